"""What a replay knows, cropped to the patch that a convolution's neurons read.

Outside of its patch a row's coefficients are 0, so neither bounds nor charges change: the
cropped graph applies the very same weights, in fewer operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from frown.bounds.charged.forms import Charged, FixedLines, Passed, Weights, pull_back, terms_of
from frown.bounds.charged.gather import SampleIndex
from frown.bounds.charged.region import least
from frown.bounds.patches import Patch, cropped, moved_lines
from frown.graph.op import Affine
from frown.problem.region import Region
from frown.relax.proven.rounding import LOOSE, UNIT, below


@dataclass(frozen=True, slots=True)
class Known:
    """What is proven of all nodes before a target."""

    region: Region
    weights: Weights
    rules: Mapping[int, FixedLines]


def patched_rows(part: Patch, known: Known, coef: Tensor, sample: Tensor, place: Tensor) -> Tensor:
    """(rows,) proven lower bounds of coef . target, in the patch of each row's place, along the
    fixed rule's lines."""
    own, spot, index = part.distinct(sample, place)
    which = torch.zeros_like(sample) if isinstance(index, slice) else index
    weights = _weights(part, known.weights, own, spot)
    rules = {i: _rule(part, i, known.rules, own, spot) for i in part.views}

    def through(i: int, here: Tensor) -> Passed:
        return rules[i].through(part.plan.relaxation(i), here, which)

    form = pull_back(part.plan, part.target, coef, which, weights, through)
    return bounded(part.region(known.region, sample, place), form)


def bounded(region: Region, form: Charged, which: SampleIndex | None = None) -> Tensor:
    """(rows,) at most what each form and its charge leave over its region."""
    value = least(region, form.coef, which) + form.const
    return below(value, form.charge + form.const.abs() * (4 * UNIT))


def _weights(part: Patch, weights: Weights, sample: Tensor, place: Tensor) -> Weights:
    """The sizes of every node of a patch; where a node was added to cut or pad another, from the
    sizes of what it reads."""
    value: dict[int, Tensor] = {}
    terms: dict[int, Tensor] = {}
    total: dict[int, Tensor] = {}
    graph, origins = part.plan.graph, part.origins()
    for i in part.plan.ancestors(part.target):
        node = graph.nodes[i]
        if i in origins:
            origin, entries = origins[i]
            value[i] = cropped(weights.value[origin], entries, sample, place, node.shape)
            total[i] = weights.total[origin][sample]
            if isinstance(node.op, Affine):
                terms[i] = cropped(weights.terms[origin], entries, sample, place, node.shape)
        else:
            assert isinstance(node.op, Affine)
            terms[i] = value[i] = terms_of(node.op, [value[j] for j in node.inputs])
            total[i] = value[i].flatten(1).sum(1) * LOOSE
    return Weights(value, terms, total)


def _rule(
    part: Patch, i: int, rules: Mapping[int, FixedLines], sample: Tensor, place: Tensor
) -> FixedLines:
    rule = rules[part.views[i].origin]
    reads, gives = part.moves(i, sample, place)
    charge = None if rule.charge is None else gives(rule.charge)
    return FixedLines(moved_lines(rule.lines, reads, gives), reads(rule.size), charge)
