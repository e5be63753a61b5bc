"""The first look at a batch: what the model answers, and which answers are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frown.certification.agreement import compare_inputs
from frown.certification.findings import Begun
from frown.graph.graph import Graph
from frown.problem.problem import Problem
from frown.problem.property import violated
from frown.read.model import Model


def begin(model: Model, graph: Graph, problem: Problem) -> Begun:
    """Answer the inputs by the original and by the graph, which must agree."""
    regions = problem.regions
    outputs = model.run(regions.x)
    prediction = problem.property.predicted(outputs)
    cast = problem.on(graph)
    wanted = cast.property
    ours = graph.apply(cast.region.centre).flatten(1)
    answers = ours
    if model.scores is not None:  # the graph that is bounded ends before the model does
        answers = model.graph.apply(torch.from_numpy(regions.x).double()).flatten(1)
    mismatch = compare_inputs(model, regions.x, outputs, answers.double().cpu().numpy())
    clean = wanted.margins(wanted.literals(ours))
    wrong = violated(problem.margins(outputs))
    admitted = problem.property.admits(torch.from_numpy(prediction)).numpy()
    holds = (clean > 0).all(1).cpu().numpy() & admitted & ~wrong
    holds[list(mismatch)] = False
    right = np.flatnonzero(holds)
    keep = torch.from_numpy(right).to(graph.device)
    limit, whole = cast.limits()[keep], cast.region.limit()[keep]
    if regions.radius is not None:
        # In double precision: a narrow range has lost its width where the search rounds its ends.
        exact = regions.on(replace(graph, dtype=torch.float64, device=torch.device("cpu"))).limit()
        far = _rounded_up(exact.numpy()[right], limit)
        limit = torch.minimum(_rounded_up(regions.radius[right], limit), whole.maximum(far))
    return Begun(
        problem,
        graph,
        prediction,
        wrong,
        mismatch,
        right,
        cast.rows(keep),
        clean[keep],
        limit,
        whole,
    )


def _rounded_up(radius: NDArray[np.float64], like: Tensor) -> Tensor:
    """Radii in the precision of the search, none below what was asked for."""
    exact = torch.from_numpy(radius)
    cast = exact.to(like.dtype)
    above = torch.nextafter(cast, torch.full_like(cast, torch.inf))
    return torch.where(cast.double() < exact, above, cast).to(like.device)
