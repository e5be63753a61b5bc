"""Lemmas: ends of boxes of inner neurons, each proved by a tree of cuts before it.

The rows that bound a neuron suffer from the relaxation as those of the property do, and what they
lose is lost again in every later layer. So a neuron's end is proved by cases as the property is:
by a tree that cuts neurons of earlier sites at their kinks, over boxes that have the ends of
earlier lemmas. What is proved of all of its leaves holds on the region.

A certificate has no lemmas. There, a tree begins with one cut for each of them: at the point that
the lemma proves, or a little before. On the side that has no points stands the lemma's own tree,
whose leaves' rows bound a literal with a large multiplier of that cut, which lifts them above 0. On
the other side the box has its new end, and the next cut follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from frown.bounds.dense import DenseRows, Held
from frown.bounds.tree import CODES, LEAF, NONE, Lemma, Literals, Multipliers, Tree
from frown.errors import InvalidInput

SPARE = 2.0**-10  # of a box's width: how far before what a lemma proves its end is
LARGEST = torch.finfo(torch.float32).max  # multiplier of a certificate, which may prove too little
ABOVE = 4.0  # times as far as needed are rows of cases without points lifted


@dataclass(frozen=True, eq=False)
class ProvedLemma:
    """A lemma as it was replayed."""

    lemma: Lemma
    held: Held  # of its leaves
    boxes: tuple[Tensor, Tensor]  # (slots,) over which
    useful: Tensor  # (rows,) whether an end is better than the box's was
    spare: Tensor  # (rows,) how far the proof goes beyond the end
    ends: Tensor  # (rows,)

    @cached_property
    def leaves(self) -> Tensor:
        """The numbers of the leaves of useful trees."""
        return self.useful[self.lemma.tree[self.lemma.leaves]].nonzero().flatten()


def prove(dense: DenseRows, lemmas: Sequence[Lemma]) -> list[ProvedLemma]:
    """Give the boxes of a sample the ends that lemmas prove, each over those before it."""
    return [_proved(dense, lemma) for lemma in lemmas]


def _proved(dense: DenseRows, lemma: Lemma) -> ProvedLemma:
    part, (place, slot, side) = dense.parts[lemma.site], _cuts(dense, lemma)
    first, count = part.start, len(lemma.leaves)
    if bool((lemma.neuron < 0).any() | (lemma.neuron >= part.stop - first).any()):
        raise InvalidInput("a lemma is about an entry that its nonlinearity does not read")
    if lemma.slopes.shape != (count, first):
        raise InvalidInput("a lemma has slopes for another network")
    cut = torch.zeros(first, count, dtype=torch.float64)
    cut[slot, place] = side.double() * 2 - 1
    # Any multiplier is valid; those that this arithmetic does not price are left out.
    lift = lemma.multipliers.dense(count, first).T
    lift = torch.where(lift * cut < 0, lift, 0.0)
    codes = lemma.slopes.T.double()
    usual = (dense.upper > -dense.lower).double()[:first, None]
    slope = ((codes - 1) / (CODES - 1)).clamp(0, 1)  # no others are below
    held = Held(cut, torch.where(codes > 0, slope, usual), lift)
    row = lemma.tree[lemma.leaves]
    bound = dense.entries(lemma.site, lemma.neuron[row], lemma.side[row], held)
    bound = torch.where(bound.isfinite(), bound, -torch.inf)
    bound = torch.where(dense.crossed(cut), torch.inf, bound)
    rows = len(lemma.neuron)
    least = torch.full((rows,), torch.inf, dtype=torch.float64).scatter_reduce(
        0, row, bound, "amin"
    )
    at, sign = first + lemma.neuron, 1.0 - 2.0 * lemma.side.double()
    boxes = dense.lower, dense.upper
    low, high = boxes[0][at], boxes[1][at]
    spare, before = SPARE * (high - low), torch.where(sign > 0, low, -high)
    useful = least - spare > before
    ends = torch.where(useful, least - spare, before) * sign
    dense.narrow(at, lemma.side, ends)
    ends = torch.where(sign > 0, dense.lower[at], dense.upper[at])
    return ProvedLemma(lemma, held, boxes, useful & ends.isfinite(), spare, ends)


def _cuts(dense: DenseRows, lemma: Lemma) -> tuple[Tensor, Tensor, Tensor]:
    """The cuts on the ways to a lemma's leaves: place of the leaf, slot, side."""
    place, node, side = lemma.cuts
    site = lemma.cut_site[node]
    if len(site) and not 0 <= int(site.min()) <= int(site.max()) < lemma.site:
        raise InvalidInput("a lemma cuts a nonlinearity that is not before it")
    sizes = torch.tensor([p.stop - p.start for p in dense.parts])
    neuron = lemma.cut_neuron[node]
    if bool((neuron < 0).any() | (neuron >= sizes[site]).any()):
        raise InvalidInput("a lemma cuts an entry that its nonlinearity does not read")
    starts = torch.tensor([p.start for p in dense.parts])
    return place, starts[site] + neuron, side


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some nodes of a tree that stand one after the other, with their rows."""

    site: Tensor
    neuron: Tensor
    point: Tensor
    node: Tensor  # of rows, counted in this piece
    literal: Tensor
    slopes: Tensor
    lifts: Multipliers  # of these rows


def written_out(
    dense: DenseRows, proved: Sequence[ProvedLemma], tree: Tree, coef: Tensor, const: Tensor
) -> Tree:
    """The tree as a certificate has it, with cuts in place of lemmas.

    Args:
        dense: the boxes of its sample.
        proved: the lemmas, as they were replayed.
        tree: with rows that have codes at all slots.
        coef: (1, outputs) the literal of its first row.
        const: (1,) what is added to it.
    """
    rows = tree.literals
    main = _Piece(
        tree.site,
        tree.neuron,
        tree.point,
        rows.node,
        rows.literal,
        rows.slopes,
        rows.multipliers,
    )
    before, after = list[_Piece](), list[_Piece]()
    for own in (own for own in proved if len(own.leaves)):
        for side, cut, refuted in _pieces(dense, own, int(rows.literal[0]), coef, const):
            before.append(cut)
            (after if side else before).append(refuted)
    pieces = [*before, main, *reversed(after)]
    node = torch.tensor([0, *(len(p.site) for p in pieces)]).cumsum(0).tolist()
    row = torch.tensor([0, *(len(p.node) for p in pieces)]).cumsum(0).tolist()
    lifts = [replace(p.lifts, row=p.lifts.row + k) for p, k in zip(pieces, row, strict=False)]
    return replace(
        tree,
        site=torch.cat([p.site for p in pieces]),
        neuron=torch.cat([p.neuron for p in pieces]),
        point=torch.cat([p.point for p in pieces]),
        literals=Literals(
            torch.cat([p.node + k for p, k in zip(pieces, node, strict=False)]),
            torch.cat([p.literal for p in pieces]),
            torch.cat([p.slopes for p in pieces]),
            Multipliers.cat(lifts),
            CODES,
        ),
        lemmas=(),
    )


def _pieces(
    dense: DenseRows, own: ProvedLemma, literal: int, coef: Tensor, const: Tensor
) -> Iterator[tuple[int, _Piece, _Piece]]:
    """The side of every useful end, its cut, and the tree where the cut leaves no points."""
    lemma, leaves = own.lemma, own.leaves
    count, slots = len(leaves), dense.parts[-1].stop
    # Along what a case's rows say of the literal, before anything is added to them.
    cut = torch.zeros(slots, count, dtype=torch.float64)
    first = len(own.held.cut)
    cut[:first] = own.held.cut[:, leaves]
    low, high = own.boxes
    slope = (high > -low).double()[:, None].repeat(1, count)
    slope[:first] = own.held.slope[:, leaves]
    at = dense.over(own.boxes)
    held = Held(cut, slope, torch.zeros_like(cut))
    bound, _ = at.bound(coef.expand(count, -1), const.expand(count), held)
    row = lemma.tree[lemma.leaves[leaves]]
    # What must be lifted, of all cases of an end; the proof goes `spare` beyond it.
    short = torch.zeros_like(own.spare).scatter_reduce(0, row, -bound, "amax").nan_to_num(nan=0.0)
    factor = (ABOVE * (short + 1) / own.spare).clamp(max=LARGEST).float().double()
    lifts = torch.zeros_like(cut)
    lifts[:first] = own.held.lift[:, leaves] * factor[row]
    sign = 1.0 - 2.0 * lemma.side[row].double()
    lifts[first + lemma.neuron[row], torch.arange(count)] = factor[row] * sign
    # Slopes are those of lines below, which rows take where their coefficients are positive.
    _, used = at.bound(coef.expand(count, -1), const.expand(count), replace(held, lift=lifts))
    codes = torch.where(used, 1 + slope * (CODES - 1), float(NONE)).to(torch.uint8).T.contiguous()
    lifts = lifts.clamp(-LARGEST, LARGEST).float().T
    bounds = torch.searchsorted(lemma.tree, torch.arange(len(lemma.neuron) + 1)).tolist()
    places = torch.searchsorted(row, torch.arange(len(lemma.neuron) + 1)).tolist()
    nothing = torch.zeros(0, dtype=torch.long)
    none = torch.zeros(0, slots, dtype=torch.uint8)
    for k in own.useful.nonzero().flatten().tolist():
        nodes, mine = slice(bounds[k], bounds[k + 1]), slice(places[k], places[k + 1])
        site = lemma.cut_site[nodes]
        cut_here = _Piece(
            torch.tensor([lemma.site]),
            lemma.neuron[k : k + 1],
            own.ends[k : k + 1],
            nothing,
            nothing,
            none,
            Multipliers.none(),
        )
        size = places[k + 1] - places[k]
        yield (
            int(lemma.side[k]),
            cut_here,
            _Piece(
                site,
                lemma.cut_neuron[nodes],
                torch.zeros(len(site), dtype=torch.float64),
                (site == LEAF).nonzero().flatten(),
                torch.full((size,), literal),
                codes[mine],
                Multipliers.of(lifts[mine]),
            ),
        )
