"""One question about many inputs: which network, where the inputs may move, what must hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.graph.graph import Graph
from frown.problem.frames import Frames
from frown.problem.inputs import Range
from frown.problem.property import LabelWins, other_classes
from frown.problem.region import Region


@dataclass(frozen=True)
class Query:
    """Inputs with their labels, and what is asked about them, in double precision."""

    x: NDArray[np.float64]  # (N, *input shape)
    label: NDArray[np.int64]  # (N,)
    target: NDArray[np.int64] | None  # (N,), or None for every other class
    p: float
    range: Range | None
    scale: NDArray[np.float64] | None  # (1 or N, *input shape); 0 in frames that may not move
    frames: Frames | None = None

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.int64]) -> Query:
        return replace(
            self,
            x=self.x[index],
            label=self.label[index],
            target=None if self.target is None else self.target[index],
            scale=self.scale if self.scale is None or len(self.scale) == 1 else self.scale[index],
        )

    def still(self, n: int) -> NDArray[np.bool_]:
        """The features of input n that may not move."""
        if self.scale is None:
            return np.zeros(self.x.shape[1:], bool)
        fixed: NDArray[np.bool_] = self.scale[n if len(self.scale) > 1 else 0] == 0
        return fixed

    def balls(self) -> NDArray[np.int64]:
        """The number of the ball, hence of the frame, that each feature is of; 0 without frames."""
        shape = self.x.shape[1:]
        if self.frames is None or not self.frames.each:
            return np.zeros(shape, np.int64)
        along = [1] * len(shape)
        along[self.frames.axis] = -1
        return np.broadcast_to(np.arange(shape[self.frames.axis]).reshape(along), shape)

    def distance(self, n: int, point: NDArray[np.float64]) -> float:
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

    def targets(self, classes: int) -> Tensor:
        """(N, T) the classes each label is compared with."""
        label = torch.from_numpy(self.label)
        if self.target is None:
            return other_classes(label, classes)
        return torch.from_numpy(self.target)[:, None]

    def margins(self, outputs: NDArray[np.floating], n: int | None = None) -> NDArray[np.float64]:
        """(rows, T) output[label] - output[target], of the inputs in order or all of input n."""
        one = self if n is None else self.take(np.full(len(outputs), n))
        values = np.asarray(outputs, np.float64)
        label = np.take_along_axis(values, one.label[:, None], 1)
        others = one.targets(values.shape[1]).numpy()
        with np.errstate(invalid="ignore"):  # infinities may tie
            margins: NDArray[np.float64] = label - np.take_along_axis(values, others, 1)
        return margins

    def property(self, graph: Graph) -> LabelWins:
        """The property that must hold, in a graph's precision."""
        label = torch.from_numpy(self.label).to(graph.device)
        targets = self.targets(graph.output_size).to(graph.device)
        return LabelWins(label, targets, graph.output_size, graph.dtype)

    def region(self, graph: Graph) -> Region:
        """The balls at radius 0; `with_radius` sets others."""

        def cast(a: NDArray[np.float64] | None) -> Tensor | None:
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

    def limits(self, graph: Graph) -> Tensor:
        """(N,) the largest radius that makes sense: all of the valid range or, without one,
        a thousand times the input's own size."""
        region = self.region(graph)
        limit = region.limit()
        size = region.centre.abs().flatten(1).amax(1) + 1
        features = region.centre[0].numel()
        whole = 1e3 * size * (1.0 if self.p == inf else features ** (1 / self.p))
        return torch.minimum(limit, whole)
