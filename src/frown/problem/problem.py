"""The question: inputs, where each may move, and what must hold there.

Users say where inputs may move with a `Ball` or a `Box`, for sequences with `Frames`, and what must
hold with a `Condition` (`frown.problem.property`). Together with a model these make a `Problem`:
plain arrays in double precision, cast to the numbers of a graph once for every batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from frown.errors import InvalidInput
from frown.graph.graph import Graph
from frown.graph.op import Shape
from frown.problem.inputs import (
    Array,
    Range,
    features_of,
    fixed_of,
    indices_of,
    inputs_of,
    norm_of,
    radii_of,
    range_of,
    scale_of,
)
from frown.problem.options import Option
from frown.problem.property import Property
from frown.problem.region import Region

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
        int, Option("the frames' axis, from 0, the batch aside", flag="frame-axis", panel="Search")
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


Integers = NDArray[np.int64]
DATA, SEARCH = "Data", "Search"  # panels of the help text
# A box is the ball of radius 1, in units of its half-widths, cut by its own ends: a little more
# than 1, so that rounding leaves no corner out.
WHOLE_BOX = 1 + 2.0**-20


@dataclass(frozen=True, eq=False)
class Ball:
    """All points within a radius of inputs, in an l_p norm, and within a valid range.

    x is (N, *input shape). `within` is (lo, hi), numbers or arrays. `scale` gives features their
    own radius: radius * scale, 0 for those that may not move, and `fix` names such features, or
    gives their places. `frames` are slices of an input, as of a sequence in time, that have a ball
    each or that alone may move. `names` are whole numbers that inputs go by in results, 0, 1, ...
    unless given, and `ids` any other names beside these; `features` are what columns are called, by
    default as a DataFrame x has it. `at` fixes the radius.

    Raises InvalidInput, when it is used, for what does not fit the model or makes no sense. Not
    for a region with ends of its own for every feature: that is a `Box`.
    """

    x: ArrayLike
    norm: Annotated[
        str | float, Option("the norm: inf, 1, 2 or any p >= 1", metavar="P", panel=SEARCH)
    ] = "inf"
    within: Annotated[
        object, Option("the valid range of inputs", metavar="LO HI", panel=DATA, flag="bounds")
    ] = None
    scale: Annotated[
        object,
        Option(
            "radius factor per feature (a file, numbers between commas, or std: the data's "
            "deviation); 0: may not move",
            metavar="FILE|NUMBERS|std",
            panel=DATA,
        ),
    ] = None
    fix: Annotated[
        object,
        Option("features that may not move, by name or place", metavar="NAME,NAME", panel=DATA),
    ] = None
    frames: Frames | str = "all"
    names: ArrayLike | None = None
    radius: ArrayLike | None = None
    features: Sequence[str] | None = None
    ids: Sequence[str] | None = None

    def at(self, eps: ArrayLike) -> Ball:
        """A copy with a radius: a number, or one for each input."""
        return replace(self, radius=eps)

    def regions(self, shape: Shape) -> Regions:
        """Check everything against the shape of an input."""
        p = norm_of(self.norm)
        index = None
        if self.names is not None:
            index = indices_of(self.names, np.shape(self.x)[0] if np.ndim(self.x) else 0)
        x = inputs_of(self.x, shape, index, self.features)
        moving = frames_of(self.frames).on(shape)
        scale = scale_of(self.scale, shape)
        called = features_of(self.features, self.x, shape)
        still = fixed_of(self.fix, called, shape)
        if still is not None:
            scale = still if scale is None else scale * still
            if not scale.any():
                raise InvalidInput("fix (--fix) leaves no feature that may move")
        mask = None if moving is None else moving.mask(shape)
        if mask is not None:
            scale = mask if scale is None else scale * mask
            if not scale.any():
                raise InvalidInput(
                    f"scale is 0 in all frames that may move ({frames_of(self.frames).which})"
                )
        valid = range_of(self.within, x, index)
        names = np.arange(len(x)) if index is None else index
        radius = None if self.radius is None else radii_of(self.radius, len(x))
        every = np.full(len(x), -1)
        ids = tuple(map(str, self.ids)) if self.ids is not None else ()
        if ids and len(ids) != len(x):
            raise InvalidInput(f"there are {len(ids)} ids for {len(x)} inputs")
        return Regions(x, p, valid, scale, moving, names, every, radius, features=called, ids=ids)


@dataclass(frozen=True, eq=False)
class Box:
    """All points between `lower` and `upper`, each (N, *input shape).

    A box is asked about as a whole: there is no radius to search for. Features whose ends are
    equal do not move. `names` as for a `Ball`.
    """

    lower: ArrayLike
    upper: ArrayLike
    names: ArrayLike | None = None

    def regions(self, shape: Shape) -> Regions:
        """Check everything against the shape of an input."""
        lower, upper = inputs_of(self.lower, shape), inputs_of(self.upper, shape)
        if lower.shape != upper.shape:
            raise InvalidInput(f"a box has {len(lower)} lower and {len(upper)} upper ends")
        if (lower > upper).any():
            raise InvalidInput("a box's lower end exceeds its upper end")
        count = len(lower)
        names = np.arange(count) if self.names is None else indices_of(self.names, count)
        # Halves first: the ends' sum may overflow. The middle lies between them also if rounded.
        middle = np.clip(lower / 2 + upper / 2, lower, upper)
        scale = np.maximum(middle - lower, upper - middle)
        whole = np.full(count, WHOLE_BOX)
        valid = Range(lower, upper)
        return Regions(middle, inf, valid, scale, None, names, np.full(count, -1), whole, box=True)


Where = Ball | Box


def where_of(where: object) -> Where:
    """A region as users give it; inputs alone are the centres of balls in the norm infinity."""
    return where if isinstance(where, Ball | Box) else Ball(where)  # type: ignore[arg-type]


def frames_of(frames: object) -> Frames:
    """Frames as users give them; text and numbers are frames along the first axis."""
    return frames if isinstance(frames, Frames) else Frames(frames)


@dataclass(frozen=True)
class Regions:
    """Inputs with where each may move, in double precision."""

    x: Array  # (N, *input shape)
    p: float
    range: Range | None  # the valid range; the ends of boxes
    scale: Array | None  # (1 or N, *input shape); 0 in frames that may not move
    frames: Moving | None
    index: Integers  # (N,) the inputs' names
    frame: Integers  # (N,) the frame that moves alone; -1: not one alone
    radius: Array | None = None  # (N,) where it is given
    box: bool = False  # whether the range is the region
    features: tuple[str, ...] = ()  # what an input's numbers are called, in reading order
    ids: tuple[str, ...] = ()  # what the user calls inputs, beside their index; empty: nothing

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Integers) -> Regions:
        """The regions of these inputs; an index may repeat."""

        def pick(array: Array | None) -> Array | None:
            return array if array is None or len(array) == 1 else array[index]

        valid = self.range
        if valid is not None and len(valid.lower) > 1:
            valid = Range(valid.lower[index], valid.upper[index])
        return replace(
            self,
            x=self.x[index],
            range=valid,
            scale=pick(self.scale),
            index=self.index[index],
            frame=self.frame[index],
            radius=None if self.radius is None else self.radius[index],
            ids=tuple(self.ids[n] for n in index.tolist()) if self.ids else (),
        )

    def apart(self, alone: Moving) -> Regions:
        """Every input once for each of the frames chosen, which then moves alone."""
        shape, count = self.x.shape[1:], len(alone.chosen)
        masks = alone.apart(shape) * (1.0 if self.scale is None else self.scale)
        stuck = [f for f, m in zip(alone.chosen, masks, strict=True) if not m.any()]
        if stuck:
            raise InvalidInput(f"scale leaves frames {', '.join(map(str, stuck))} nowhere to move")
        return replace(
            self.take(np.repeat(np.arange(len(self)), count)),
            scale=np.tile(masks, (len(self), *[1] * len(shape))),
            frame=np.tile(np.array(alone.chosen), len(self)),
        )

    def name(self, n: int) -> str:
        """The stem of input n's files: its index, and the frame that moves alone."""
        alone = "" if self.frame[n] < 0 else f"-frame-{self.frame[n]:03d}"
        return f"input-{self.index[n]:06d}{alone}"

    def key(self, n: int) -> int | tuple[int, int]:
        """The key of counterexamples: the input's index or, of frames alone, a pair."""
        index, frame = int(self.index[n]), int(self.frame[n])
        return index if frame < 0 else (index, frame)

    def moving(self, n: int) -> str:
        """The frames of input n that move, as users write them."""
        if self.frame[n] >= 0:
            return str(self.frame[n])
        return "all" if self.frames is None else self.frames.name

    def still(self, n: int) -> NDArray[np.bool_]:
        """The features of input n that may not move."""
        if self.scale is None:
            return np.zeros(self.x.shape[1:], bool)
        fixed: NDArray[np.bool_] = self.scale[n if len(self.scale) > 1 else 0] == 0
        return fixed

    def clip(self, n: int, point: Array) -> Array:
        """A point drawn into the valid range of input n, as it was given: casting may move it."""
        if self.range is None:
            return point
        place = n if len(self.range.lower) > 1 else 0
        drawn: Array = np.clip(point, self.range.lower[place], self.range.upper[place])
        return drawn

    def balls(self) -> Integers:
        """The number of the ball, hence of the frame, that each feature is of; 0 without frames."""
        shape = self.x.shape[1:]
        if self.frames is None or not self.frames.each:
            return np.zeros(shape, np.int64)
        along = [1] * len(shape)
        along[self.frames.axis] = -1
        return np.broadcast_to(np.arange(shape[self.frames.axis]).reshape(along), shape)

    def distance(self, n: int, point: Array) -> float:
        """The radius at which input n's region reaches a point that moves no fixed feature."""
        step = point - self.x[n]
        if self.scale is not None:
            scale = self.scale[n if len(self.scale) > 1 else 0]
            step = step / np.where(scale > 0, scale, 1.0)
        balls = step.reshape(1, -1)
        if self.frames is not None and self.frames.each:
            balls = np.moveaxis(step, self.frames.axis, 0).reshape(self.frames.count, -1)
        size = np.maximum(np.abs(balls).max(1), np.finfo(np.float64).tiny)  # or powers underflow
        return float((size * np.linalg.norm(balls / size[:, None], ord=self.p, axis=1)).max())

    def on(self, graph: Graph) -> Region:
        """The balls at radius 0, as a graph's numbers; `with_radius` sets others."""

        def cast(a: Array | None) -> Tensor | None:
            if a is None:
                return None
            t = torch.from_numpy(np.ascontiguousarray(a)).reshape(len(a), *graph.input_shape)
            return t.to(dtype=graph.dtype, device=graph.device)

        centre = cast(self.x)
        assert centre is not None
        lower = cast(self.range.lower) if self.range else None
        upper = cast(self.range.upper) if self.range else None
        if lower is not None and upper is not None:
            centre = centre.maximum(lower).minimum(upper)  # casting may leave the range
        radius = torch.zeros(len(self.x), dtype=graph.dtype, device=graph.device)
        split = None
        if self.frames is not None and self.frames.each and self.p != inf:
            # The row axis, and the model's own batch axis where it has one.
            split = 1 + len(graph.input_shape) - (self.x.ndim - 1) + self.frames.axis
        return Region(centre, radius, self.p, cast(self.scale), lower, upper, split)


@dataclass(frozen=True)
class Problem:
    """A property of the outputs, asked about regions of inputs; in double precision."""

    regions: Regions
    property: Property

    def __len__(self) -> int:
        return len(self.regions)

    def take(self, index: Integers) -> Problem:
        """The problem of these inputs."""
        return Problem(self.regions.take(index), self.property.rows(torch.from_numpy(index)))

    def on(self, graph: Graph) -> Cast:
        """The problem as a graph's numbers."""
        return Cast(self.regions.on(graph), self.property.to(graph.dtype, graph.device))

    def violated(self, outputs: NDArray[np.floating], n: int | None = None) -> NDArray[np.bool_]:
        """(rows,) whether outputs violate the property, exactly; rows as for `margins`."""
        return self._of(n, len(outputs)).fails(outputs)

    def margins(self, outputs: NDArray[np.floating], n: int | None = None) -> Array:
        """(rows, clauses) margins at outputs, of the inputs in order or all of input n."""
        values = torch.from_numpy(np.asarray(outputs, np.float64))
        own = self._of(n, len(values))
        margins: Array = own.margins(own.literals(values)).numpy()
        return margins

    def _of(self, n: int | None, rows: int) -> Property:
        """The property of the inputs in order, or that of input n for all rows."""
        return self.property if n is None else self.property.rows(torch.full((rows,), n))


@dataclass(frozen=True, slots=True)
class Cast:
    """A problem in the precision, and on the device, of a graph."""

    region: Region  # at any radius
    property: Property

    def rows(self, index: Tensor | slice) -> Cast:
        """The problem of these samples."""
        return Cast(self.region.rows(index), self.property.rows(index))

    def at(self, radius: Tensor) -> Cast:
        """The problem at these radii (N,)."""
        return Cast(self.region.with_radius(radius), self.property)

    def limits(self) -> Tensor:
        """(N,) the largest radius that makes sense: all of the valid range or, without one,
        a thousand times the input's own size."""
        region = self.region
        size = region.centre.abs().flatten(1).amax(1) + 1
        features = region.centre[0].numel()
        whole = 1e3 * size * (1.0 if region.p == inf else features ** (1 / region.p))
        return torch.minimum(region.limit(), whole)
