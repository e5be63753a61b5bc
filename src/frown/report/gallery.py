"""The inputs as pictures: each with its radius bracket and the counterexample beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from frown.certification.results import markup
from frown.errors import InvalidInput
from frown.report.charts import number
from frown.report.comparison import Comparison, Entry
from frown.report.png import data_uri

MOST = 60  # cards; an even number

Pixels = NDArray[np.floating] | NDArray[np.integer]


@dataclass(frozen=True)
class Pictures:
    """Images by input index, with one grey scale for all of them."""

    images: Mapping[int, Pixels]  # each (H, W) or (H, W, 3)
    black: float
    white: float

    @classmethod
    def of(cls, images: Pixels, indices: tuple[int, ...]) -> Pictures:
        """`images` (N, H, W) or (N, H, W, 3), the n-th belonging to the n-th of `indices`."""
        if images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
            raise InvalidInput(
                f"images have shape {images.shape}; give (N, H, W) or (N, H, W, 3), or None"
            )
        if len(images) != len(indices):
            raise InvalidInput(f"{len(images)} images for {len(indices)} inputs; give one for each")
        images = images[..., 0] if images.shape[3:] == (1,) else images
        finite = images[np.isfinite(images)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        # The usual ranges first: an image of few greys must not be stretched to all of them.
        usual = next((top for top in (1.0, 255.0) if low >= 0 and high <= top), None)
        black, white = (low, high) if usual is None else (0.0, usual)
        return cls(dict(zip(indices, images, strict=True)), black, max(white, black + 1e-12))

    def uri(self, index: int) -> str:
        return data_uri(self._bytes(self.images[index]))

    def uri_like(self, index: int, values: NDArray[np.floating]) -> str | None:
        """`values`, a model's input, laid out like the image of `index`; None if it cannot be.

        Colour models mostly take channels first, pages want them last.
        """
        shape = self.images[index].shape
        if values.size != np.prod(shape):
            return None
        values = np.squeeze(values)
        if len(shape) == 3 and values.ndim == 3 and values.shape[0] == 3 and shape[0] != 3:
            values = np.moveaxis(values, 0, -1)
        return data_uri(self._bytes(values.reshape(shape)))

    def _bytes(self, pixels: Pixels) -> NDArray[np.uint8]:
        values: NDArray[np.float64] = np.nan_to_num(pixels.astype(np.float64))
        share = ((values - self.black) / (self.white - self.black)).clip(0, 1)
        return np.asarray(np.rint(255 * share), dtype=np.uint8)


def chosen(comparison: Comparison) -> list[Entry]:
    """The inputs to show by growing radius: all, or the least and the most robust of those that
    are classified right."""
    order = sorted(comparison.entries, key=lambda e: (e.proved, e.limit))
    if len(order) > MOST:
        order = [e for e in order if e.correct] or order
    if len(order) > MOST:
        order = order[: MOST // 2] + order[-MOST // 2 :]
    return order


def gallery(comparison: Comparison, pictures: Pictures, answers: Mapping[int, int]) -> str:
    """Cards of the chosen inputs; `answers` are the model's classes of the counterexamples."""
    cards = [_card(comparison, pictures, answers, e) for e in chosen(comparison)]
    return f'<div class="gallery">{"".join(cards)}</div>'


def counterexample(comparison: Comparison, entry: Entry) -> NDArray[np.floating] | None:
    """The nearest counterexample of an input that any method's result holds."""
    held = [
        (row.broken, result.counterexamples[entry.index])
        for method, result in comparison.results.items()
        if (row := entry.rows.get(method)) is not None
        and row.broken is not None
        and entry.index in result.counterexamples
    ]
    return min(held, key=lambda pair: pair[0])[1] if held else None


def broken_as(entry: Entry) -> int | None:
    """The class that overtakes the label at the nearest counterexample, where rows tell it."""
    held = [(r.broken, r.broken_as) for r in entry.rows.values() if r.broken is not None]
    return min(held, key=lambda pair: pair[0])[1] if held else None


def _card(
    comparison: Comparison, pictures: Pictures, answers: Mapping[int, int], entry: Entry
) -> str:
    row = entry.main
    before = _figure(
        pictures.uri(entry.index),
        f"input {entry.index}",
        ""
        if row.prediction is None
        else f"read as <b>{markup(comparison.named(row.prediction))}</b>",
        "" if entry.correct else " wrong",
    )
    found = counterexample(comparison, entry) if entry.correct else None
    uri = None if found is None else pictures.uri_like(entry.index, found)
    if uri is not None:
        # Against a target, only that one is known to have overtaken the label.
        answer = answers.get(entry.index, broken_as(entry))
        own = markup(comparison.named(row.label))
        said = f"{own} no longer ahead"
        if answer is not None:
            said = f"read as <b>{markup(comparison.named(answer))}</b>"
        if row.target is not None:
            said = f"{own} not above <b>{markup(comparison.named(row.target))}</b>"
        elif comparison.statement.condition:
            said = "without the property"
        after = _figure(uri, f"counterexample to input {entry.index}", said, " wrong")
    else:
        said = "wrong before any change"
        if entry.correct:
            said = "none found" if entry.limit == inf else "found, and not kept"
        after = f'<p class="verdict">{said}</p>'
    arrow = "to none" if uri is None else "to"
    label = "" if row.label is None else f"label <b>{markup(comparison.named(row.label))}</b>"
    return (
        f'<article class="card"><header><span>{label}</span>'
        f"<small>#{entry.index}</small></header>"
        f'<div class="pair">{before}<span class="{arrow}" aria-hidden="true">→</span>{after}</div>'
        f"{_bracket(comparison, entry)}</article>"
    )


def _figure(uri: str, alt: str, caption: str, kind: str) -> str:
    return (
        f'<figure class="seen{kind}"><img src="{uri}" alt="{markup(alt)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _bracket(comparison: Comparison, entry: Entry) -> str:
    """A bar from 0 to the largest radius of the page: proved, open, broken."""
    top = comparison.span
    proved = min(entry.reach / top, 1.0)
    broken = min(entry.limit / top, 1.0)
    upper = "not broken" if entry.limit == inf else number(entry.limit, 1)
    text = f"proved {number(entry.reach, -1)}, broken {upper}"
    return (
        f'<div class="bar" title="{markup(text)}">'
        f'<i class="open" style="width:{100 * broken:.1f}%"></i>'
        f'<i class="proved" style="width:{100 * proved:.1f}%"></i></div>'
        f'<p class="bracket"><span>{number(entry.reach, -1)}</span>'
        f"<span>{markup(upper)}</span></p>"
    )
