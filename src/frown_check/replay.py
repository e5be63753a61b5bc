"""The proof, replayed: bounds of every site's input, then of the claim.

Proved, by induction over the nodes: `boxes[i]` contains node i's vector for every x of the region.
For affine nodes it is interval arithmetic. A site's box is that of what it reads, cut by the
certificate's rows; its outputs lie in its image.

A row bounds c . y below, y the vector of a node. Going back through the nodes, c . y is rewritten
exactly (balls contain what rounding moves) until a site is met. There, coefficients are replaced
by their midpoints a, at the price of their radius times the largest |f|; then for any slope s
a f(z) >= a (s z + t) with the intercept t of `lines`, and (a s) rounded is taken for a s, at the
price of the rounding times the largest |z|. At the input the region's minimum ends it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from frown_check.balls import Array, Ball, Index, U, add, between, down, rounding, total, up
from frown_check.container import NO_TABLE, Certificate, Floats, Rows
from frown_check.errors import Refused, refuse_if
from frown_check.graph import Affine, Apply, Edge, Network
from frown_check.lines import Frame, Mask
from frown_check.region import Region

CHUNK = 2**21  # entries of one array of coefficients

Progress = Callable[[float], None]


class Replay:
    def __init__(self, network: Network, certificate: Certificate, progress: Progress) -> None:
        self.graph, self.certificate = network.graph, certificate
        self.region: Region = certificate.region
        self.output = network.output
        self.progress = progress
        nodes, wanted = self.graph.nodes, self.graph.needed(network.output.node)
        self.order = sorted(wanted - {0})  # all but the input
        self.sites = [i for i in self.order if isinstance(nodes[i].op, Apply)]
        self.boxes: dict[int, tuple[Array, Array]] = {}  # of nodes' vectors
        self.frames: dict[int, Frame] = {}
        self.shared: dict[int, tuple[Array, Array]] = {}  # slopes and intercepts (2, ...)
        self.reach: dict[int, tuple[Array, Array]] = {}  # the largest |f| and |z| of a site
        edges = [network.output, *(e for i in self.order for e in nodes[i].edges)]
        self.widest = max(max(e.width, len(e.index)) for e in edges)
        self.rows = sum(len(s.neuron) for s in certificate.steps) + len(certificate.others)
        self.done = 0
        self._compare()

    def _compare(self) -> None:
        """The certificate's sites are the network's, one by one."""
        given = self.certificate.sites
        if len(given) != len(self.sites):
            raise Refused(
                f"the certificate has {len(given)} sites, the checker finds {len(self.sites)}"
            )
        for i, site in zip(self.sites, given):
            op, size = self._site(i)[0], len(self._site(i)[1].index)
            if (op.name, op.kind, size) != (site.name, site.kind, site.size):
                raise Refused(
                    f"the certificate has a site {site.kind} of {site.size} entries at {site.name}"
                    f" where the checker finds {op.kind} of {size} entries at {op.name}"
                )
        size = len(self.output.index)
        if max(self.certificate.label, *self.certificate.others) >= size:
            raise Refused(f"the claim is about classes that the network's {size} outputs lack")

    def _site(self, node: int) -> tuple[Apply, Edge]:
        op = self.graph.nodes[node].op
        assert isinstance(op, Apply)
        return op, self.graph.nodes[node].edges[0]

    # -- forward ----------------------------------------------------------------------------

    def margins(self) -> Array:
        """Lower bounds of output[label] - output[other] over the region."""
        self.boxes[0] = self.region.box
        waiting = list(self.certificate.steps)
        for i in self.order:
            node = self.graph.nodes[i]
            if isinstance(node.op, Apply):
                number = self.sites.index(i)
                while waiting and waiting[0].site == number:
                    self._tighten(i, waiting.pop(0))
                self._settle(i, number)
                continue
            assert isinstance(node.op, Affine)
            xs = [between(*(e.read(end[None]) for end in self.boxes[e.node])) for e in node.edges]
            low, high = node.op.forward(xs).ends()
            self.boxes[i] = _numbers(low[0], high[0])
        return self._final()

    def _tighten(self, i: int, rows: Rows) -> None:
        """Intersect what a site reads with the rows of one step."""
        edge = self._site(i)[1]
        place = edge.index[rows.neuron]
        refuse_if((place < 0).any(), f"a row bounds padding of site {self._site(i)[0].name}")
        low, high = (end.copy() for end in self.boxes[edge.node])
        for chunk in self._chunks(len(place)):
            at, side = place[chunk], rows.side[chunk]
            coef = np.zeros((len(at), edge.width))
            coef[np.arange(len(at)), at] = np.where(side == 0, 1.0, -1.0)
            bound = self._bound(edge.node, Ball(coef), rows, chunk)
            proved = np.isfinite(bound)
            for side_of, end, best in ((0, low, np.maximum), (1, high, np.minimum)):
                use = proved & (side == side_of)
                best.at(end, at[use], bound[use] if side_of == 0 else -bound[use])
        if (low > high).any():
            raise Refused(f"the bounds of site {self._site(i)[0].name} contradict each other")
        self.boxes[edge.node] = low, high

    def _settle(self, i: int, number: int) -> None:
        """A site's frame, its image, and the lines of rows that bring none."""
        op, edge = self._site(i)
        low, high = (edge.read(end[None]).reshape(-1, op.count) for end in self.boxes[edge.node])
        if not (np.isfinite(low) & np.isfinite(high)).all():
            raise Refused(f"the bounds of site {op.name} ({op.kind}) are not finite")
        frame = op.frame(low, high)
        self.frames[i] = frame
        self.boxes[i] = _numbers(*frame.image())
        rule, given = np.stack(frame.rule()), self.certificate.shared[number]
        if given is not None:
            chosen = given.reshape(rule.shape)
            rule = np.where(np.isnan(chosen), rule, chosen)
        below = np.zeros(rule.shape[:2], dtype=bool)
        below[0] = True
        self.shared[i] = rule, frame.intercepts(rule, below)
        self.reach[i] = _largest(*self.boxes[i]), _largest(low, high)

    def _final(self) -> Array:
        """The rows of the claim or, where it is better, the difference of the outputs' boxes."""
        rows, output = self.certificate.final, self.output
        label = self.certificate.label
        low, high = (output.read(end[None])[0] for end in self.boxes[output.node])
        margins = []
        for chunk in self._chunks(len(rows.neuron)):
            others = np.array(self.certificate.others)[chunk]
            claim = np.zeros((len(others), len(output.index)))
            claim[:, label] = 1.0
            claim[np.arange(len(others)), others] = -1.0
            bound = self._bound(output.node, output.send_back(Ball(claim)), rows, chunk)
            margins.append(np.fmax(down(low[label] - high[others]), bound))
        return np.concatenate(margins)

    # -- backward ---------------------------------------------------------------------------

    def _chunks(self, count: int) -> list[slice]:
        size = max(1, CHUNK // self.widest)
        return [slice(i, min(i + size, count)) for i in range(0, count, size)]

    def _bound(self, start: int, coef: Ball, rows: Rows, chunk: slice) -> Array:
        """Lower bounds of coef . (vector of node `start`) over the region."""
        tables = rows.table[chunk]
        slots = self._slots(rows)
        pending = {start: coef}
        constant = Ball(np.zeros(len(tables)))
        for i in reversed(self.order):
            form = pending.pop(i, None)
            if form is None:
                continue
            node = self.graph.nodes[i]
            if isinstance(node.op, Apply):
                own = None
                if i in slots and rows.slopes is not None:
                    own = _own(rows.slopes, tables, slots[i], form.mid >= 0, node.op.count)
                parts, shift = self._lines(i, form, own)
            else:
                assert isinstance(node.op, Affine)
                parts, shift = node.op.backward(form)
            constant = constant if shift is None else add(constant, shift)
            for edge, part in zip(node.edges, parts, strict=True):
                back = edge.send_back(part)
                earlier = pending.get(edge.node)
                pending[edge.node] = back if earlier is None else add(earlier, back)
        if 0 in pending:
            form = pending[0]
            size = _largest(*self.region.box)
            loss = total(Ball(form.radius * size), len(size))
            constant = add(constant, Ball(np.zeros(len(tables)), up(loss.reach, 2)))
            constant = add(constant, self.region.minimum(form.mid))
        self.done += len(tables)
        self.progress(self.done / self.rows)
        return down(constant.mid - constant.radius)

    def _slots(self, rows: Rows) -> dict[int, slice]:
        """Where the slopes of each site stand in a table."""
        places, start = {}, 0
        for k in rows.over:
            end = start + self.certificate.sites[k].size
            places[self.sites[k]] = slice(start, end)
            start = end
        return places

    def _lines(self, i: int, form: Ball, own: Array | None) -> tuple[list[Ball], Ball | None]:
        """Replace a site's outputs by lines: coefficients of its inputs, and constants."""
        a, below = form.mid, form.mid >= 0
        rule, intercepts = self.shared[i]
        slope = np.where(below[..., None], rule[0], rule[1])
        t = np.where(below, intercepts[0], intercepts[1])
        if own is not None:
            given = ~np.isnan(own)
            slope = np.where(given, own, slope)
            changed = given.any(-1)
            if changed.any():
                t = np.where(changed, self.frames[i].intercepts(slope, below), t)
        coef = a[..., None] * slope
        largest, reach = self.reach[i]
        terms = a * t
        # A coefficient of 0 has no line, however large the intercept.
        terms = np.where(a == 0, 0.0, terms)
        n = a.shape[1]
        constant = total(Ball(terms), n)
        loss = (form.radius * largest).sum(1)
        moved = (np.abs(coef) * (2 * U) * reach).reshape(len(a), -1).sum(1)
        under = float(np.sum(reach)) * 2.0**-1000  # coefficients that underflow
        price = up(loss + moved + under, reach.size + 8)
        # `terms` are rounded products.
        price = price + up(rounding(1) * np.abs(terms).sum(1), n + 4)
        flat = Ball(coef.reshape(len(a), -1))
        return [flat], add(constant, Ball(np.zeros(len(a)), up(price, 2)))


def _own(slopes: Floats, tables: Index, slots: slice, below: Mask, count: int) -> Array | None:
    """The rows' slopes at one site, NaN where they have none; None where no row has any."""
    has = tables != NO_TABLE
    if not has.any():
        return None
    picked = slopes[np.where(has, tables, 0), :, slots].astype(np.float64)  # (rows, lanes, size)
    lanes = picked.reshape(*picked.shape[:2], -1, count)  # (rows, lanes, outputs, count)
    own = np.where(below[..., None], lanes[:, 0], lanes[:, -1])
    return np.where(has[:, None, None], own, np.nan)


def _numbers(low: Array, high: Array) -> tuple[Array, Array]:
    """Bounds that are NaN are none."""
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def _largest(low: Array, high: Array) -> Array:
    return np.maximum(np.abs(low), np.abs(high))
