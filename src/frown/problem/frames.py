"""Frames of a sequence: which may move, and whether each has a ball of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from frown.errors import InvalidInput
from frown.graph.op import Shape
from frown.problem.options import Option

_HOW = 'give "all", "each", a frame (3), a slice ("0:3"), frames ("0,2,5") or "each of 0:3"'


@dataclass(frozen=True, slots=True)
class Frames:
    """A choice of frames: slices of an input along `axis`, as of a sequence in time.

    `which` is "all" (they share one ball), "each" (every frame has its own), or says which may
    move: 3, "0:3", [0, 2], "each of 0:3". Not for inputs whose features have nothing to do with
    each other along any axis: give those a `scale`.
    """

    which: Annotated[
        object,
        Option(
            "which frames of a sequence move; each: a ball for each, 'each of 0:3'",
            metavar="3|0:3|0,2|each|all",
            flag="frames",
            panel="Search",
        ),
    ] = "all"
    axis: Annotated[
        int,
        Option("the frames' axis, from 0, the batch aside", flag="frame-axis", panel="Search"),
    ] = 0

    def on(self, shape: Shape) -> Moving | None:
        """The frames of inputs of this shape, checked; None: one ball over the whole input."""
        which = self.which
        text = which.strip().lower() if isinstance(which, str) else ""
        if text == "all":
            return None
        axis = axis_of(self.axis, shape)
        count = shape[axis]
        if text == "each":
            return Moving(axis, count, tuple(range(count)), each=True)
        if text.startswith("each of "):
            return Moving(axis, count, _chosen(text[8:], count, shape, axis), each=True)
        return Moving(axis, count, _chosen(text or which, count, shape, axis), each=False)

    def alone(self, shape: Shape) -> Moving:
        """The frames of which each moves alone: those chosen, or all."""
        found = self.on(shape)
        if found is not None and found.each:
            raise InvalidInput(
                "sensitivity moves one frame at a time, never several with a ball each: say which "
                "frames without the word each, or nothing for all of them"
            )
        if found is not None:
            return found
        axis = axis_of(self.axis, shape)
        return Moving(axis, shape[axis], tuple(range(shape[axis])), each=False)


@dataclass(frozen=True, slots=True)
class Moving:
    """Slices of an input along one axis, and the region they make.

    Frames that are not chosen may not move. Those chosen share one ball or, with `each`,
    have one of the same radius each.
    """

    axis: int  # of one input, without the batch axis
    count: int
    chosen: tuple[int, ...]  # in rising order
    each: bool

    @property
    def name(self) -> str:
        """The frames as users write them: `all`, `each`, `3`, `0:3`, `0,2,5`, `each of 0:3`."""
        if len(self.chosen) == self.count:
            return "each" if self.each else "all"
        return f"each of {_listed(self.chosen)}" if self.each else _listed(self.chosen)

    def mask(self, shape: Shape) -> NDArray[np.float64] | None:
        """(1, *shape): 1 where the input may move; None: everywhere."""
        if len(self.chosen) == self.count:
            return None
        return self._ones(shape, self.chosen)

    def apart(self, shape: Shape) -> NDArray[np.float64]:
        """(chosen frames, *shape): each frame's own mask."""
        return np.concatenate([self._ones(shape, (f,)) for f in self.chosen])

    def _ones(self, shape: Shape, where: tuple[int, ...]) -> NDArray[np.float64]:
        mask = np.zeros((1, *shape))
        np.moveaxis(mask, 1 + self.axis, 0)[list(where)] = 1.0
        return mask


def axis_of(axis: object, shape: Shape) -> int:
    """The axis along which the frames of an input lie, from 0; its length is at least 2."""
    if not shape:
        raise InvalidInput("the model's input is one number: it has no frames")
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer):
        raise InvalidInput(f"frame_axis must be a whole number, not {axis!r}")
    if not -len(shape) <= axis < len(shape):
        raise InvalidInput(
            f"frame_axis (--frame-axis) {axis} is none of the {len(shape)} axes of an input, "
            f"{tuple(shape)} without the batch: give 0 to {len(shape) - 1}"
        )
    axis = int(axis) % len(shape)
    if shape[axis] == 1:
        longer = [k for k, n in enumerate(shape) if n > 1]
        others = f"frame_axis={longer[0]} (--frame-axis {longer[0]})" if longer else "none"
        raise InvalidInput(
            f"inputs of shape {tuple(shape)} have a single frame along axis {axis}; leave frames "
            f"out, or choose an axis with several: {others}"
        )
    return axis


def _chosen(frames: object, count: int, shape: Shape, axis: int) -> tuple[int, ...]:
    """Distinct frame numbers in rising order; negative ones count from the end."""
    where = f"inputs of shape {tuple(shape)} have {count} frames along axis {axis}"
    listed = [n for part in _parts(frames) for n in _numbers(part, count, where)]
    if not listed:
        raise InvalidInput(f"frames {_shown(frames)} chooses none; {where}")
    if len(set(listed)) < len(listed):
        raise InvalidInput(f"frames {_shown(frames)} names a frame twice; {where}")
    return tuple(sorted(listed))


def _parts(frames: object) -> list[object]:
    """A list of frames and slices, in whichever form they were given."""
    if isinstance(frames, str):
        return [_part(text.strip(), frames) for text in frames.split(",")]
    if isinstance(frames, slice | int | np.integer) and not isinstance(frames, bool):
        return [frames]
    if isinstance(frames, Iterable):
        return list(frames)
    raise InvalidInput(f"frames {frames!r}: {_HOW}")


def _part(text: str, whole: str) -> object:
    pieces = text.split(":")
    try:
        ends = [int(p) if p.strip() else None for p in pieces]
    except ValueError:
        ends = []
    if len(ends) == 1 and ends[0] is not None:
        return ends[0]
    if not 2 <= len(ends) <= 3:
        raise InvalidInput(f"frames {whole!r}: {_HOW}")
    return slice(*ends)


def _numbers(part: object, count: int, where: str) -> list[int]:
    if isinstance(part, slice):
        ends = (part.start, part.stop, part.step)
        if not all(e is None or isinstance(e, int | np.integer) for e in ends) or part.step == 0:
            raise InvalidInput(f"frames {_shown(part)}: {_HOW}")
        for end, most in ((part.start, count - 1), (part.stop, count)):
            if end is not None and not -count <= end <= most:
                raise InvalidInput(f"frames {_shown(part)} are out of range: {where}")
        return list(range(*part.indices(count)))
    if isinstance(part, bool | np.bool_) or not isinstance(part, int | np.integer):
        raise InvalidInput(f"frames {part!r}: {_HOW}")
    if not -count <= part < count:
        raise InvalidInput(f"frame {part} is out of range: {where}, 0 to {count - 1}")
    return [int(part) % count]


def _listed(chosen: tuple[int, ...]) -> str:
    """`3`, `0:3` for neighbours, `0,2,5`."""
    first, last = chosen[0], chosen[-1]
    if len(chosen) > 1 and last - first + 1 == len(chosen):
        return f"{first}:{last + 1}"
    return ",".join(map(str, chosen))


def _shown(frames: object) -> str:
    if isinstance(frames, slice):
        ends = [frames.start, frames.stop] + ([] if frames.step is None else [frames.step])
        return ":".join("" if e is None else str(e) for e in ends)
    return str(frames)
