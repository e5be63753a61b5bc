"""One question about many inputs: which network, where the inputs may move, what must hold."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.graph.graph import Graph
from frown.query.inputs import Range
from frown.query.region import Region
from frown.query.spec import Spec, margins, other_classes


@dataclass(frozen=True)
class Query:
    """Inputs with their labels, in double precision; `at` casts a part of them."""

    x: NDArray[np.float64]  # (N, *input shape)
    label: NDArray[np.int64]  # (N,)
    target: NDArray[np.int64] | None  # (N,), or None for every other class
    p: float
    range: Range | None
    scale: NDArray[np.float64] | None  # (1, *input shape)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: NDArray[np.int64]) -> Query:
        target = None if self.target is None else self.target[index]
        return Query(self.x[index], self.label[index], target, self.p, self.range, self.scale)

    def targets(self, classes: int) -> Tensor:
        """(N, T) the classes each label is compared with."""
        label = torch.from_numpy(self.label)
        if self.target is None:
            return other_classes(label, classes)
        return torch.from_numpy(self.target)[:, None]

    def spec(self, graph: Graph) -> Spec:
        label = torch.from_numpy(self.label)
        spec = margins(label, self.targets(graph.output_size), graph.output_size, graph.dtype)
        return Spec(spec.coef.to(graph.device))

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
        return Region(centre, radius, self.p, cast(self.scale), lower, upper)

    def limits(self, graph: Graph) -> Tensor:
        """(N,) the largest radius that makes sense: all of the valid range or, without one,
        a thousand times the input's own size."""
        region = self.region(graph)
        limit = region.limit()
        size = region.centre.abs().flatten(1).amax(1) + 1
        features = region.centre[0].numel()
        whole = 1e3 * size * (1.0 if self.p == inf else features ** (1 / self.p))
        return torch.minimum(limit, whole)
