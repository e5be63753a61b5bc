"""The proof, replayed: bounds of every site's input, then of the claim, case by case.

Proved, by induction over the nodes: in every case, `boxes[i]` contains node i's vector for every x
of the region that belongs to the case; to the root, every x does. For affine nodes it is interval
arithmetic. A site's box is that of what it reads, cut by the certificate's rows; its outputs lie
in its image. A case below another (`tree`) has its boxes, which still hold, and of the entries
that are cut on the way the part on the right side of the cut; where that leaves nothing of a box,
no x belongs to the case, and everything holds of it.

A row bounds c . y below, y the vector of a node. Going back through the nodes, c . y is rewritten
exactly (balls contain what rounding moves) until a site is met. There, coefficients are replaced
by their midpoints a, at the price of their radius times the largest |f|; then for any slope s and
any multiplier m

    a f(z) >= a (s z + t) + m z - max(m l, m u)

with the intercept t of `lines` and the box [l, u] of z, and (a s + m) rounded is taken for a s + m,
at the price of the rounding times the largest |z|. Over an l_2 ball rows may bend there, which
`deviations` proves. At the input the region's minimum ends it.

A tree with a level e is about one clause, and proves it by contradiction: in its cases with an
assumption, and in those below them, only such x count at which no literal of the clause exceeds e.
What is said above then holds of these x. A row below one of the literals, c . x + d, is at most e
at them: so c . x + d - e <= 0 is the case's *plane*, which any row may add with a factor f >= 0.
On its way down that row was a form c . y + d of the vector y of a node that some site reads, and of
nothing else: then c . y + d - e <= 0 is a plane of the node, which rows that begin there may add
before they go down. So is, with an end b of an entry's box for e, a row below that entry, or below
its negative, that passes an earlier node.
Where a literal's bound is b, or no x is left, the clause's greatest literal exceeds e or is at
least b: the margin is the lesser of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from frown_check.balls import (
    Array,
    Ball,
    Index,
    U,
    add,
    between,
    down,
    multiply,
    rounding,
    total,
    up,
)
from frown_check.container import INPUT, NO_TABLE, Certificate, Floats, Rows, Tree
from frown_check.deviations import Deviations, bent_below
from frown_check.errors import Refused, refuse_if
from frown_check.functions import Function
from frown_check.graph import Affine, Apply, Edge, Network
from frown_check.lines import Frame, Mask
from frown_check.region import Region, least_products
from frown_check.tree import Cuts, Grouped, Shape, split

CHUNK = 2**21  # entries of one array of coefficients
MOST_MARGINS = 2**26  # nodes of a tree times clauses

Progress = Callable[[float], None]
Box = tuple[Array, Array]  # (cases, width), or (1, width) for all


@dataclass(slots=True)
class Cases:
    """Knowledge of some cases; arrays have a row for each, or one for all."""

    empty: Mask  # (cases,) no x belongs to it
    boxes: dict[int, Box]  # of nodes' vectors
    frames: dict[int, Frame] = field(default_factory=dict)
    rule: dict[int, tuple[Array, ...]] = field(default_factory=dict)  # slopes and intercepts
    reach: dict[int, tuple[Array, Array]] = field(default_factory=dict)  # largest |f|, |z|
    plane: tuple[Array, Array] | None = None  # c, d of c . x + d <= 0: (cases, features), (cases,)
    planes: dict[int, list[tuple[Array, Array] | None]] = field(default_factory=dict)  # of nodes


class Replay:
    def __init__(self, network: Network, certificate: Certificate, progress: Progress) -> None:
        self.graph, self.certificate = network.graph, certificate
        self.region: Region = certificate.region
        self.output = network.output
        self.progress = progress
        nodes, wanted = self.graph.nodes, self.graph.needed(network.output.node)
        self.order = sorted(wanted - {0})  # all but the input
        self.sites = [i for i in self.order if isinstance(nodes[i].op, Apply)]
        edges = [network.output, *(e for i in self.order for e in nodes[i].edges)]
        self.widest = max(max(e.width, len(e.index)) for e in edges)
        self.entries = sum(nodes[i].size for i in wanted)
        self.rows, self.done = _count(certificate), 0
        self.leaves = 0  # of all trees
        low, high = self.region.box
        self.root = Cases(np.zeros(1, dtype=bool), {0: (low[None], high[None])})
        self._compare()

    @cached_property
    def deviations(self) -> Deviations:
        """Those over the region, by the boxes of the root."""
        point = self.region.centre[None]
        middle = Cases(np.zeros(1, dtype=bool), {0: (point, point)})
        self._forward(middle, ())
        return Deviations(self.graph, self.order, self.region, self.root.boxes, middle.boxes, CHUNK)

    def _compare(self) -> None:
        """The certificate's sites are the network's, one by one."""
        sites = self.certificate.sites
        if len(sites) != len(self.sites):
            raise Refused(
                f"the certificate has {len(sites)} sites, the checker finds {len(self.sites)}"
            )
        for i, site in zip(self.sites, sites):
            op, size = self._site(i)[0], len(self._site(i)[1].index)
            if (op.name, op.kind, size) != (site.name, site.kind, site.size):
                raise Refused(
                    f"the certificate has a site {site.kind} of {site.size} entries at {site.name}"
                    f" where the checker finds {op.kind} of {size} entries at {op.name}"
                )
        size, given = len(self.output.index), self.certificate
        classes = () if given.label is None else (given.label, *given.others)
        if any(c >= size for c in classes):
            raise Refused(f"the claim is about classes that the network's {size} outputs lack")
        if given.literals is not None and given.literals.coef.shape[1] != size:
            raise Refused(f"the claim's literals are not about the network's {size} outputs")

    def _site(self, node: int) -> tuple[Apply, Edge]:
        op = self.graph.nodes[node].op
        assert isinstance(op, Apply)
        return op, self.graph.nodes[node].edges[0]

    # -- the claim --------------------------------------------------------------------------

    def margins(self) -> Array:
        """(clauses,) lower bounds over the region of the greatest literal of each clause."""
        root = self.root
        self._forward(root, self.certificate.steps, at_root=True)
        rows = self.certificate.final
        bounds = np.concatenate(
            [self._literals(root, rows, chunk) for chunk in self._chunks(len(rows.neuron))]
        )
        given = self.certificate.literals
        clause = np.arange(len(bounds)) if given is None else given.clause
        margins = np.full(clause[-1] + 1, -np.inf)
        known = np.isfinite(bounds)
        np.maximum.at(margins, clause[known], bounds[known])
        for tree in self.certificate.trees:
            margins = self._cases(tree, root, margins, clause)
        return margins

    def _claimed(self, literal: Index) -> tuple[Array, Array, Array | None]:
        """Coefficients of the outputs, constants, and coefficients of the input, of some
        literals."""
        given = self.certificate
        if given.literals is not None:
            beside = given.literals.inputs
            direct = None if beside is None else beside[literal]
            return given.literals.coef[literal], given.literals.const[literal], direct
        coef, every = np.zeros((len(literal), len(self.output.index))), np.arange(len(literal))
        coef[:, given.label] = 1.0
        coef[every, np.array(given.others)[literal]] = -1.0
        return coef, np.zeros(len(literal)), None

    def _literals(self, cases: Cases, rows: Rows, chunk: Index) -> Array:
        """Lower bounds of literals, one row in each case or all in one; by the outputs' boxes
        where that is better."""
        coef, const, direct = self._claimed(rows.neuron[chunk])
        start, output = self.output.node, self.output
        bound = self._bound(start, output.send_back(Ball(coef)), rows, chunk, cases, None, direct)
        low, high = (output.read(end) for end in cases.boxes[start])
        plain = total(least_products(Ball(coef), low, high), coef.shape[1])
        if direct is not None:
            beside = least_products(Ball(direct), *cases.boxes[0])
            plain = add(plain, total(beside, direct.shape[1]))
        best = np.fmax(plain.ends()[0], bound)
        return np.where(const == 0, best, down(best + const))

    def _cases(self, tree: Tree, root: Cases, margins: Array, clause: Index) -> Array:
        """The margins again, with those that were not proved so far leaf by leaf.

        Groups of cases with one pass go together, and those below them before the next."""
        shape, wanted = Shape(tree), np.flatnonzero(~(margins > 0))
        self.leaves += len(shape.leaves)
        if tree.level is not None:
            # Nothing here is about x at which another clause fails.
            about = {int(clause[k]) for k in tree.rows.neuron}
            about |= {int(clause[s[0].neuron[0]]) for s in tree.passes if s and s[0].site is None}
            refuse_if(len(about) != 1, "a tree with a level is not about one clause")
            wanted = wanted[np.isin(wanted, list(about))]
        if not len(wanted):
            return margins
        nodes, column = len(tree.site), np.full(len(margins), -1)
        column[wanted] = np.arange(len(wanted))
        refuse_if(nodes * len(wanted) > MOST_MARGINS, "the tree has too many nodes for its clauses")
        found = np.full((nodes, len(wanted)), -np.inf)
        empty = np.zeros(nodes, dtype=bool)
        # What hangs at the cases of each base: rows, leaves without rows, and other bases.
        useful = np.flatnonzero(column[clause[tree.rows.neuron]] >= 0)
        self.done += len(tree.node) - len(useful)
        bare = np.setdiff1d(shape.leaves, tree.node[useful])
        rows_of = Grouped(useful, shape.base[tree.node[useful]])
        bare_of = Grouped(bare, shape.base[bare])
        bases_of = Grouped(shape.bases, shape.above(shape.bases))
        size = self._size(int(shape.depth.max()))
        first = np.zeros(1, dtype=np.int64)
        waiting: list[tuple[Cases, Index, Index]] = [(root, first, first)]
        while waiting:
            above, case, bases = waiting.pop()  # the cases of those above, and the nodes
            here = above
            if bases[0] > 0 or tree.own[0] >= 0:
                ends = np.where(bases > 0, shape.above(bases), bases)
                here = self._narrowed(above, case, shape.cuts(bases, ends), tree)
                self._forward(here, tree.passes[tree.own[bases[0]]], level=tree.level)
                empty[bases] = here.empty
            alive = np.flatnonzero(~here.empty)
            for rows, place in rows_of.below(bases, alive, size):
                at = tree.node[rows]
                part = self._narrowed(here, place, shape.cuts(at, shape.base[at]), tree)
                self._settle_all(part)
                bound = self._literals(part, tree.rows, rows)
                empty[at] |= part.empty
                known = np.isfinite(bound)
                which = column[clause[tree.rows.neuron[rows]]]
                np.maximum.at(found, (at[known], which[known]), bound[known])
            for at, place in bare_of.below(bases, alive, size):
                cuts = shape.cuts(at, shape.base[at])
                empty[at] = self._narrowed(here, place, cuts, tree).empty
            for group, place in bases_of.below(bases, alive, self._size(self.entries)):
                for own in np.unique(tree.own[group]):
                    same = tree.own[group] == own
                    waiting.append((here, place[same], group[same]))
        if tree.level is None and empty[shape.leaves].all():
            raise Refused("the cases of the tree contradict each other")
        most = np.inf if tree.level is None else tree.level
        margins[wanted] = np.maximum(margins[wanted], np.minimum(shape.least(found, empty), most))
        return margins

    # -- forward ----------------------------------------------------------------------------

    def _forward(
        self,
        cases: Cases,
        steps: tuple[Rows, ...],
        at_root: bool = False,
        level: float | None = None,
    ) -> None:
        """Bound all nodes in order; boxes that are known already stay where they are tighter."""
        waiting = list(steps)
        cases.planes = {}
        if waiting and waiting[0].site is None:
            assert level is not None  # the reader has made sure
            self._forward(cases, ())  # what cuts do to later boxes
            heads = [rows for rows in waiting if rows.assumed]
            del waiting[: len(heads)]
            self._assume(cases, heads, level)
        for i in self.order:
            node = self.graph.nodes[i]
            if isinstance(node.op, Apply):
                number = self.sites.index(i)
                while waiting and waiting[0].site == number:
                    self._tighten(cases, i, waiting.pop(0), at_root)
                self._settle(cases, i, self.certificate.shared[number] if at_root else None)
                self._meet(cases, i, *cases.frames[i].image())
                largest = _largest(*cases.boxes[i])
                cases.reach[i] = largest, cases.reach[i][1]
                continue
            assert isinstance(node.op, Affine)
            many = max(len(cases.boxes[e.node][0]) for e in node.edges)
            xs = [
                between(*(np.repeat(e.read(x), many // len(x), 0) for x in cases.boxes[e.node]))
                for e in node.edges
            ]
            self._meet(cases, i, *node.op.forward(xs).ends())

    def _assume(self, cases: Cases, heads: list[Rows], level: float) -> None:
        """The planes of each case: of a row below the literal that is assumed to be at most
        `level`, and of rows below entries of which an end is known."""
        case = np.arange(len(cases.empty))
        nodes = {self._site(i)[1].node for i in self.sites}
        found: list[dict[int, tuple[Array, Array]]] = []
        for rows in heads:
            direct = None
            if rows.site is None:
                coef, const, direct = self._claimed(rows.neuron[case * 0])
                start, first = self.output.node, self.output.send_back(Ball(coef))
                const = down(const - level)
            else:
                edge = self._site(self.sites[rows.site])[1]
                start, at, side = edge.node, int(edge.index[rows.neuron[0]]), int(rows.side[0])
                refuse_if(at < 0, "an assumption is about padding")
                coef = np.zeros((len(case), edge.width))
                coef[:, at] = -1.0 if side else 1.0
                low, high = (end[:, at] for end in cases.boxes[start])
                first, const = Ball(coef), np.broadcast_to(low if side else -high, len(case))
            seen: dict[int, tuple[Ball, Ball]] = {}
            form, least = self._form(start, first, rows, case * 0, cases, case, direct, seen)
            self.done += len(case)
            if rows.site is None:
                cases.plane = form.mid, down(down(least.mid - least.radius) + const)
            known = {}
            for i in nodes & set(seen):
                (form, least), box = seen[i], cases.boxes[i]
                least = add(least, self._loss(form, box, case))
                known[i] = form.mid, down(down(least.mid - least.radius) + const)
            found.append(known)
        cases.planes = {i: [known.get(i) for known in found] for i in nodes}

    def _meet(self, cases: Cases, i: int, low: Array, high: Array) -> None:
        """Cut the box of a node with another that holds as well."""
        low, high = _numbers(low, high)
        known = cases.boxes.get(i)
        refuse_if(
            known is None and (low > high).any(), "the bounds of a node contradict each other"
        )
        if known is not None:
            low, high = np.maximum(low, known[0]), np.minimum(high, known[1])
            crossed = low > high
            cases.empty |= crossed.any(1)
            low, high = np.where(crossed, known[0], low), np.where(crossed, known[1], high)
        cases.boxes[i] = low, high

    def _tighten(self, cases: Cases, i: int, rows: Rows, at_root: bool) -> None:
        """Intersect what a site reads with the rows of one step, in every case."""
        edge = self._site(i)[1]
        place = edge.index[rows.neuron]
        refuse_if((place < 0).any(), f"a row bounds padding of site {self._site(i)[0].name}")
        count, many = len(place), len(cases.empty)
        low, high = (np.repeat(end, many // len(end), 0) for end in cases.boxes[edge.node])
        for chunk in self._chunks(count * many):
            case, row = chunk // count, chunk % count
            at, side = place[row], rows.side[row]
            coef = np.zeros((len(at), edge.width))
            coef[np.arange(len(at)), at] = np.where(side == 0, 1.0, -1.0)
            bound = self._bound(edge.node, Ball(coef), rows, row, cases, case)
            proved = np.isfinite(bound)
            for side_of, end, best in ((0, low, np.maximum), (1, high, np.minimum)):
                use = proved & (side == side_of)
                best.at(end, (case[use], at[use]), bound[use] if side_of == 0 else -bound[use])
        if at_root and (low > high).any():
            raise Refused(f"the bounds of site {self._site(i)[0].name} contradict each other")
        self._meet(cases, edge.node, low, high)

    def _settle(self, cases: Cases, i: int, given: Floats | None) -> None:
        """A site's frame, and the lines of rows that bring none."""
        op, edge = self._site(i)
        low, high = (edge.read(end) for end in cases.boxes[edge.node])
        low, high = (end.reshape(len(end), -1, op.count) for end in (low, high))
        if not (np.isfinite(low) & np.isfinite(high)).all():
            raise Refused(f"the bounds of site {op.name} ({op.kind}) are not finite")
        frame = op.frame(low, high)
        rule = frame.rule()
        if given is not None:
            chosen = given.reshape(2, *rule[0].shape)
            rule = [np.where(np.isnan(c), r, c) for c, r in zip(chosen, rule)]
        below = np.ones(low.shape[:2], dtype=bool)
        cases.frames[i] = frame
        cases.rule[i] = (*rule, frame.intercepts(rule[0], below), frame.intercepts(rule[1], ~below))
        cases.reach[i] = _largest(*cases.boxes.get(i, (low, high))), _largest(low, high)

    def _settle_all(self, cases: Cases) -> None:
        """Frames of all sites that have none, over boxes that are known."""
        for i in self.sites:
            if i not in cases.frames:
                self._settle(cases, i, None)

    def _narrowed(self, cases: Cases, case: Index, cuts: Cuts, tree: Tree) -> Cases:
        """Boxes of some of the cases, one for each entry of `case`, with cuts of their own. Frames
        of sites that are not concerned stay, and are left out where they change."""
        one = len(cases.empty) == 1
        boxes = {
            i: (low, high) if len(low) == 1 else (low[case], high[case])
            for i, (low, high) in cases.boxes.items()
        }
        plane = cases.plane and (_of(cases.plane[0], case), _of(cases.plane[1], case))
        found = Cases(np.zeros(len(case), dtype=bool), boxes, plane=plane)
        changed = set()
        site = tree.site[cuts.node]
        for k in np.unique(site).tolist():
            edge = None if k == INPUT else self._site(self.sites[k])[1]
            where = 0 if edge is None else edge.node
            here = site == k
            row, side = cuts.place[here], cuts.side[here]
            entry, point = tree.neuron[cuts.node[here]], tree.point[cuts.node[here]]
            if edge is not None:
                entry = edge.index[entry]
                refuse_if((entry < 0).any(), "a cut is at padding")
            known = boxes[where]
            low, high = (np.repeat(end, len(case) // len(end), 0) for end in known)
            np.maximum.at(low, (row[side == 1], entry[side == 1]), point[side == 1])
            np.minimum.at(high, (row[side == 0], entry[side == 0]), point[side == 0])
            crossed = low > high
            found.empty |= crossed.any(1)
            low, high = np.where(crossed, known[0], low), np.where(crossed, known[1], high)
            boxes[where] = low, high
            changed.add(where)
        for i in self.sites if one else ():
            if self._site(i)[1].node not in changed:
                found.frames[i], found.rule[i], found.reach[i] = (
                    cases.frames[i],
                    cases.rule[i],
                    cases.reach[i],
                )
        return found

    # -- backward ---------------------------------------------------------------------------

    def _size(self, least: int = 1) -> int:
        """How many rows go together."""
        return max(1, CHUNK // max(self.widest, least))

    def _chunks(self, count: int) -> list[Index]:
        return split(np.arange(count), self._size())

    def _bound(
        self,
        start: int,
        coef: Ball,
        rows: Rows,
        chunk: Index,
        cases: Cases,
        case: Index | None,
        direct: Array | None = None,
    ) -> Array:
        """Lower bounds of coef . (vector of node `start`) + direct . x, with the slopes,
        multipliers and factors of the rows in `chunk`, each in its `case` (None: a case for each
        row, or one for all)."""
        more = Ball(np.zeros(len(chunk)))
        if rows.factors is not None and rows.factors.ndim == 2:
            for factor, plane in zip(rows.factors[chunk].T, cases.planes.get(start, ())):
                if plane is not None and factor.any():
                    c, d = (_of(part, case) for part in plane)
                    coef = add(coef, multiply(Ball(factor[:, None]), Ball(c)))
                    more = add(more, multiply(Ball(factor), Ball(d)))
        form, constant = self._form(start, coef, rows, chunk, cases, case, direct)
        constant = add(constant, more)
        if cases.plane is not None and rows.factors is not None and rows.factors.ndim == 1:
            c, d = (_of(part, case) for part in cases.plane)
            factor = rows.factors[chunk]
            tilted = add(form, multiply(Ball(factor[:, None]), Ball(c)))
            constant = add(constant, multiply(Ball(factor), Ball(d)))
            form = Ball(tilted.mid)
            constant = add(constant, self._loss(tilted, cases.boxes[0], case))
        box = cases.boxes[0]
        low, high = _of(box[0], case), _of(box[1], case)
        part_of = None if cases is self.root else (low, high)
        constant = add(constant, self.region.minimum(form.mid, part_of))
        self.done += len(chunk)
        self.progress(min(1.0, self.done / self.rows))
        return down(constant.mid - constant.radius)

    def _loss(self, form: Ball, box: Box, case: Index | None) -> Ball:
        """The most by which a form of a node changes if its midpoint is taken for it."""
        low, high = (_of(end, case) for end in box)
        loss = total(Ball(form.radius * _largest(low, high)), low.shape[1])
        return Ball(np.zeros(len(form.mid)), up(loss.reach, 2))

    def _form(
        self,
        start: int,
        coef: Ball,
        rows: Rows,
        chunk: Index,
        cases: Cases,
        case: Index | None,
        direct: Array | None = None,
        seen: dict[int, tuple[Ball, Ball]] | None = None,
    ) -> tuple[Ball, Ball]:
        """A form of the input, exactly its midpoint, and a constant, whose sum is a lower bound.
        Those of nodes on the way that it was a form of alone are `seen`."""
        slots = self._slots(rows)
        pending = {start: coef}
        if direct is not None:
            pending[0] = add(pending[0], Ball(direct)) if start == 0 else Ball(direct)
        constant = Ball(np.zeros(len(chunk)))
        for i in reversed(self.order):
            if seen is not None and i < start and list(pending) == [i]:
                seen[i] = pending[i], constant
            form = pending.pop(i, None)
            if form is None:
                continue
            node = self.graph.nodes[i]
            if isinstance(node.op, Apply):
                own = m = bend = None
                if i in slots:
                    own = _own(rows, chunk, slots[i], form.mid >= 0, cases.frames[i], case)
                    m = _dense(rows, chunk, slots[i])
                    bend = self._bend(rows, chunk, i, slots[i])
                parts, shift = self._lines(cases, case, i, form, own, m, bend)
            else:
                assert isinstance(node.op, Affine)
                parts, shift = node.op.backward(form)
            constant = constant if shift is None else add(constant, shift)
            for edge, part in zip(node.edges, parts, strict=True):
                back = edge.send_back(part)
                earlier = pending.get(edge.node)
                pending[edge.node] = back if earlier is None else add(earlier, back)
        if 0 not in pending:
            return Ball(np.zeros((len(chunk), cases.boxes[0][0].shape[1]))), constant
        return Ball(pending[0].mid), add(constant, self._loss(pending[0], cases.boxes[0], case))

    def _slots(self, rows: Rows) -> dict[int, slice]:
        """Where the slopes of each site stand in a table."""
        places, start = {}, 0
        for k in rows.over:
            end = start + self.certificate.sites[k].size
            places[self.sites[k]] = slice(start, end)
            start = end
        return places

    def _lines(
        self,
        cases: Cases,
        case: Index | None,
        i: int,
        form: Ball,
        own: Array | None,
        m: Array | None,
        bend: Array | None,
    ) -> tuple[list[Ball], Ball | None]:
        """Replace a site's outputs by lines, or what bends below them: coefficients of its inputs,
        and constants."""
        a, below = form.mid, form.mid >= 0
        lower, upper, at_lower, at_upper = (_of(x, case) for x in cases.rule[i])
        slope = np.where(below[..., None], lower, upper)
        t = np.where(below, at_lower, at_upper)
        if own is not None:
            given = ~np.isnan(own)
            slope = np.where(given, own, slope)
            changed = given.any(-1)
            if changed.any():
                t = np.where(changed, _frame(cases.frames[i], case).intercepts(slope, below), t)
        coef = a[..., None] * slope
        largest, reach = (_of(x, case) for x in cases.reach[i])
        terms = a * t
        # A coefficient of 0 has no line, however large the intercept.
        terms = np.where(a == 0, 0.0, terms)
        n = a.shape[1]
        size = np.abs(coef)  # of what is rounded, besides the terms
        if m is not None:
            frame = cases.frames[i]
            low, high = _of(frame.low, case), _of(frame.high, case)
            lift = m.reshape(coef.shape)
            cost = np.maximum(lift * low, lift * high)
            coef = coef + lift
            size = size + np.abs(coef)
            terms = np.concatenate([terms, -cost.reshape(len(a), -1)], 1)
            n = terms.shape[1]
        constant = total(Ball(terms), n)
        loss = (form.radius * largest).sum(1)
        moved = (size * (2 * U) * reach).reshape(len(a), -1).sum(1)
        under = np.sum(reach, axis=(1, 2)) * 2.0**-1000  # coefficients that underflow
        price = up(loss + moved + under, reach[0].size + 8)
        # `terms` are rounded products.
        price = price + up(rounding(1) * np.abs(terms).sum(1), n + 4)
        flat = Ball(coef.reshape(len(a), -1))
        if bend is not None:
            constant = add(constant, Ball(self._gain(i, a, flat.mid, bend, terms)))
        return [flat], add(constant, Ball(np.zeros(len(a)), up(price, 2)))

    def _gain(self, i: int, a: Array, back: Array, bend: Array, terms: Array) -> Array:
        """(rows,) what curvatures add to constants that are sums of these terms; 0 where that is
        nothing."""
        known, function = self.deviations.at(i), self._site(i)[0].function
        assert isinstance(function, Function)
        at, edge = known.index, self._site(i)[1]
        low, high = (edge.read(end)[0, at] for end in self.root.boxes[edge.node])
        w = bend[:, at]
        used, positive = w > 0, np.where(w > 0, w, 1.0)
        found = bent_below(function, (low, high), a[:, at], back[:, at], positive, known.centre[at])
        more = add(Ball(np.where(used, found, 0.0)), Ball(np.where(used, -terms[:, at], 0.0)))
        gain = add(total(more, len(at)), Ball(up(known.most(w), 1) * -0.5))
        least = down(gain.mid - gain.radius)
        return np.where(least > 0, least, 0.0)

    def _bend(self, rows: Rows, chunk: Index, i: int, slots: slice) -> Array | None:
        """The rows' curvatures at one site; None where no row has any."""
        if rows.curvatures is None:
            return None
        tables = rows.table[chunk]
        has, place = tables != NO_TABLE, self.sites.index(i)
        if rows.curvatures.shape[1] == len(rows.over):
            column = rows.over.index(place)
            slots = slice(column, column + 1)
        picked = rows.curvatures[np.where(has, tables, 0), slots].astype(np.float64)
        found = np.where(has[:, None], picked, 0.0)
        size = self.certificate.sites[place].size
        return np.broadcast_to(found, (len(chunk), size)) if found.any() else None


def _of(x: Array, case: Index | None) -> Array:
    """Each row's case; where there is one for all, it stays as it is."""
    return x if case is None or len(x) == 1 else x[case]


def _frame(frame: Frame, case: Index | None) -> Frame:
    return frame if case is None or len(frame.low) == 1 else frame.take(case)


def _own(
    rows: Rows, chunk: Index, slots: slice, below: Mask, frame: Frame, case: Index | None
) -> Array | None:
    """The rows' slopes at one site, NaN where they have none; None where no row has any."""
    tables = rows.table[chunk]
    has = tables != NO_TABLE
    if rows.slopes is None or not has.any():
        return None
    picked = rows.slopes[np.where(has, tables, 0), :, slots].astype(
        np.float64
    )  # (rows, lanes, size)
    lanes = picked.reshape(*picked.shape[:2], *frame.low.shape[1:])  # (rows, lanes, outputs, count)
    if rows.levels:
        # Places between the ends; any slopes are valid.
        first, last = (_of(end, case)[:, None] for end in frame.ends())
        share = (lanes - 1) / max(1, rows.levels - 1)
        lanes = np.where(lanes > 0, first + (last - first) * share, np.nan)
    own = np.where(below[..., None], lanes[:, 0], lanes[:, -1])
    return np.where(has[:, None, None], own, np.nan)


def _dense(rows: Rows, chunk: Index, slots: slice) -> Array | None:
    """The rows' multipliers at one site; None where no row has any."""
    given = rows.multipliers
    if given is None:
        return None
    start, end = given.start[chunk], given.start[chunk + 1]
    row = np.repeat(np.arange(len(chunk)), end - start)
    entry = np.arange(len(row)) - np.repeat(np.cumsum(end - start) - (end - start), end - start)
    entry = entry + np.repeat(start, end - start)
    slot = given.slot[entry]
    here = (slot >= slots.start) & (slot < slots.stop)
    if not here.any():
        return None
    found = np.zeros((len(chunk), slots.stop - slots.start))
    np.add.at(found, (row[here], slot[here] - slots.start), given.value[entry[here]])
    return found


def _count(certificate: Certificate) -> int:
    """How many rows there are to bound."""
    count = sum(len(s.neuron) for s in certificate.steps) + len(certificate.final.neuron)
    for tree in certificate.trees:
        each = np.array([sum(len(s.neuron) for s in steps) for steps in tree.passes] + [0])
        count += len(tree.node) + int(each[tree.own].sum())
    return max(1, count)


def _numbers(low: Array, high: Array) -> Box:
    """Bounds that are NaN are none."""
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def _largest(low: Array, high: Array) -> Array:
    return np.maximum(np.abs(low), np.abs(high))
