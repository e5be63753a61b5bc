"""Charged rows cropped to the patch that a convolution's neurons read.

Outside of its patch a row's coefficients are 0, so neither bounds nor charges change: the
cropped graph applies the very same weights, in fewer operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from frown.bounds.arithmetic.charged import (
    Charged,
    Charges,
    FixedLines,
    Weights,
    bounded,
    charged_form,
    terms_of,
)
from frown.bounds.patches import Patch, cropped
from frown.graph.op import Affine
from frown.relax.proven.rounding import LOOSE


def patched_rows(
    part: Patch, nodes: Charged, coef: Tensor, sample: Tensor, place: Tensor
) -> Tensor:
    """(rows,) proven lower bounds of coef . target, in the patch of each row's place, along the
    fixed rule's lines."""
    own, spot, index = part.distinct(sample, place)
    which = torch.zeros_like(sample) if isinstance(index, slice) else index
    charges = Charges(part.plan, _weights(part, nodes.weights, own, spot), which)
    fixed = {i: _fixed(part, i, nodes, own, spot) for i in part.views}

    def through(i: int, here: Tensor) -> tuple[Tensor, Tensor]:
        passed = fixed[i].through(part.plan.relaxation(i), here, which)
        charges.take(passed.charge)
        return passed.const, passed.coef

    form = charged_form(charges, part.target, coef, through)
    return bounded(part.region(nodes.region, sample, place), form)


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


def _fixed(part: Patch, i: int, nodes: Charged, sample: Tensor, place: Tensor) -> FixedLines:
    rule = nodes.fixed[part.views[i].origin]
    reads, gives = part.moves(i, sample, place)
    charge = None if rule.charge is None else gives(rule.charge)
    return FixedLines(rule.lines.moved(reads, gives), reads(rule.size), charge)
