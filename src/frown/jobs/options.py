"""Option values as people type them, turned into numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frown.errors import InvalidInput

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_memory(text: str) -> int:
    """Bytes: `4G`, `500M`, `1.5GiB`, `2000000`; units are powers of 1024."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size <= 0:
        raise InvalidInput(f"--memory {text}: give a size like 4G or 500M")
    return size


def parse_group(text: str) -> int:
    """Neurons that share slopes: a number, or `layer` (0)."""
    if text == "layer":
        return 0
    if not text.isdigit() or int(text) == 0:
        raise InvalidInput(f"--group {text}: give a positive whole number, or layer")
    return int(text)


def parse_numbers(text: str, option: str) -> NDArray[np.float64]:
    """`0.5` as an array of no axes, `0.4,0.5,0.6` as an array of three."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"{option} {text}: give a number, or numbers between commas") from None
    return np.array(numbers if len(numbers) > 1 else numbers[0])


def per_feature(values: NDArray[np.float64], shape: Sequence[int]) -> NDArray[np.float64]:
    """Numbers laid over an input: one per channel gets axes to broadcast with."""
    if values.ndim == 1 and len(shape) > 1 and values.size == shape[0]:
        return values.reshape(-1, *[1] * (len(shape) - 1))
    if values.size == np.prod(shape):
        return values.reshape(tuple(shape))
    return values


def parse_target(text: str) -> int | str | Path | None:
    """A class, `+K` as it stands, a file, or None for `all`."""
    if text == "all":
        return None
    if re.fullmatch(r"\+\d+", text):
        return text
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if Path(text).exists() or Path(text).suffix:
        return Path(text)
    raise InvalidInput(
        f"--target {text}: give a class (3), an offset from the label (+1), all, "
        "or a file with one class per input"
    )


def parse_samples(text: str, count: int) -> NDArray[np.int64]:
    """Indices chosen by `5`, `0:100`, `0:100:10`, `1,5,9` or a mixture, in the order given.

    A slice works as in Python, negative ends included, except that one reaching beyond
    the data is refused. So is an index named twice.
    """
    chosen: list[int] = []
    for part in text.split(","):
        chosen.extend(_slice(part.strip(), text, count))
    if not chosen:
        raise InvalidInput(f"--samples {text} selects none of the {count} inputs")
    if len(set(chosen)) < len(chosen):
        twice = next(i for i in chosen if chosen.count(i) > 1)
        raise InvalidInput(f"--samples {text} names input {twice} twice")
    return np.array(chosen, dtype=np.int64)


def _slice(part: str, text: str, count: int) -> range:
    pieces = part.split(":")
    try:
        ends = [int(p) if p.strip() else None for p in pieces]
    except ValueError:
        ends = []
    if not 1 <= len(ends) <= 3 or ends == [None] or (len(ends) == 3 and ends[2] == 0):
        raise InvalidInput(f"--samples {text}: write 5, 0:100, 0:100:10 or 1,5,9")
    single = len(ends) == 1
    for place, end in enumerate(ends[:2]):
        last = count if place == 1 else count - 1
        if end is not None and not -count <= end <= last:
            raise InvalidInput(
                f"--samples {text} reaches beyond the data, "
                f"which holds {count} inputs (0 to {count - 1})"
            )
    if single and ends[0] is not None:
        index = ends[0] % count
        return range(index, index + 1)
    return range(*slice(*ends).indices(count))
