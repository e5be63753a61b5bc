"""The certificate file: from bytes to plain, checked values. See docs/certificate.md.

Nothing here is executed, no path is followed, and memory is bounded: the header's length, the
inflated payload's length and every array are checked before anything is allocated, and the
payload is inflated no further than it says it goes.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field, replace
from math import inf, isfinite, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from frown_check.balls import Array, Index
from frown_check.errors import Refused, refuse_if
from frown_check.region import MOST_FEATURES, Region

MAGIC = {b"FROWNC01": 1, b"FROWNC02": 2, b"FROWNC03": 3}  # which format follows
MOST_HEADER = 16 * 2**20
MOST_PAYLOAD = 2**30
MOST_ROWS = 2**24  # of all steps, of all cases that repeat them, and of a tree
MOST_NODES = 2**22  # of a tree
MOST_LITERALS = 2**20
LEAF, INPUT = -2, -1  # sites of a tree's nodes
OVERLAP = 8  # how often the payload may be read in all, by arrays that share parts of it
NO_TABLE = 0xFFFFFFFF
NO_PASS = 0xFFFFFFFF

TYPES = {"f8": "<f8", "f4": "<f4", "f2": "<f2", "i4": "<i4", "u4": "<u4", "u2": "<u2", "u1": "|u1"}
SLOPES = ("f8", "f4", "f2")
WHOLE = ("u4", "u2", "u1")
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Site:
    name: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Those that are not 0: row r has the entries from start[r] up to start[r + 1]."""

    start: Index  # (rows + 1,)
    slot: Index
    value: Array


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to bound: what they bound, over which sites they bring slopes, and which."""

    site: int | None  # None: literals
    over: tuple[int, ...]
    neuron: Index  # or literals
    side: Index
    table: Index  # NO_TABLE where a row has none
    slopes: NDArray[Any] | None  # (tables, lanes, slots)
    levels: int = 0  # slopes are codes from 1 to this, 0: none; or 0: they are numbers
    multipliers: Multipliers | None = None
    factors: Array | None = None  # >= 0: (rows,) of what is assumed, or (rows, assumptions)
    curvatures: NDArray[Any] | None = None  # (tables, slots), or (tables, sites in `over`)
    assumed: bool = False  # one row, below what is known to be at most something


@dataclass(frozen=True, slots=True)
class Literals:
    """Every clause has a literal coef . outputs + inputs . x + const > 0."""

    coef: Array  # (literals, outputs)
    const: Array  # (literals,)
    clause: Index  # (literals,) from 0 in rising order
    inputs: Array | None = None  # (literals, features); None: they are about outputs alone


@dataclass(frozen=True, slots=True)
class Tree:
    """Cases, in preorder: a node, its subtree where z <= point, its subtree where z >= point."""

    site: Index  # (nodes,) LEAF, INPUT, or the site that reads z
    neuron: Index  # (nodes,)
    point: Array  # (nodes,)
    passes: tuple[tuple[Rows, ...], ...]  # lists of steps; a first one of a literal is assumed
    own: Index  # (nodes,) which of them a node has, -1: none
    node: Index  # (rows,) in rising order, at which nodes `rows` hang
    rows: Rows
    level: float | None = None  # the most that assumed literals are; None: nothing is assumed


@dataclass(frozen=True, slots=True)
class Certificate:
    digest: str
    external: dict[str, str]
    producer: str
    shape: tuple[int, ...]
    normalisation: tuple[Array, Array] | None
    region: Region
    label: int | None  # it wins over the others; None: see `literals`
    others: tuple[int, ...]
    literals: Literals | None
    sites: tuple[Site, ...]
    shared: tuple[Floats | None, ...]
    steps: tuple[Rows, ...]
    final: Rows
    trees: tuple[Tree, ...]


def read(content: bytes, most_payload: int = MOST_PAYLOAD) -> Certificate:
    """The certificate in a file's bytes; Refused where they are none."""
    try:
        version, header, payload = _parts(content, most_payload)
        return _Reader(payload, version).certificate(header)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        kind = type(error).__name__
        raise Refused(f"not a valid certificate: {kind}: {error}") from None


def _parts(content: bytes, most_payload: int) -> tuple[int, dict[str, Any], bytes]:
    refuse_if(not content, "the file is empty")
    refuse_if(content[:6] == b"FROWNQ", "it proves a query: give the query, too (--query)")
    refuse_if(content[:6] != b"FROWNC", "not a certificate")
    refuse_if(
        content[:8] not in MAGIC, "not a certificate of version 1, 2 or 3, which are read here"
    )
    refuse_if(len(content) < 20, "the certificate is cut off")
    (length,) = struct.unpack_from("<I", content, 8)
    if length > MOST_HEADER or 12 + length + 8 > len(content):
        raise Refused("the certificate is cut off, or its header is too long")
    text = content[12 : 12 + length].decode("utf-8", "strict")
    header = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    if not isinstance(header, dict):
        raise Refused("the header is not an object")
    (inflated,) = struct.unpack_from("<Q", content, 12 + length)
    if inflated > most_payload:
        raise Refused(f"the payload of {inflated} bytes is over the limit of {most_payload}")
    stream = zlib.decompressobj()
    try:
        payload = stream.decompress(content[12 + length + 8 :], inflated + 1)
    except zlib.error as error:
        raise Refused(f"the payload is damaged: {error}") from None
    if len(payload) != inflated or not stream.eof or stream.unused_data:
        raise Refused("the payload has another length than its header says")
    return MAGIC[content[:8]], header, payload


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} in the header")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice in one object")
    return found


def _whole(value: Any, low: int, high: int, what: str) -> int:
    if type(value) is not int or not low <= value <= high:
        raise Refused(f"{what} is {value!r}, not a whole number from {low} to {high}")
    return value


def _text(value: Any, what: str) -> str:
    if type(value) is not str or len(value) > 4096:
        raise Refused(f"{what} is not a short string")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if type(value) is not list:
        raise Refused(f"{what} is not a list")
    return value


def _fields(value: Any, names: str, what: str) -> list[Any]:
    """The values of exactly these fields."""
    wanted = names.split()
    if type(value) is not dict or set(value) != set(wanted):
        raise Refused(f"{what} does not have just the fields {', '.join(wanted)}")
    return [value[name] for name in wanted]


def _number(value: Any, what: str) -> float:
    """A float as Python's float.hex writes it, and in no other spelling: what is read is what
    the file says."""
    text = _text(value, what)
    found = float.fromhex(text)
    refuse_if(not isfinite(found), f"{what} is not finite")
    refuse_if(found.hex() != text, f"{what} is not written as {found.hex()}")
    return found


def _norm(value: Any) -> float:
    """inf, a whole number or a hexadecimal one."""
    text = _text(value, "norm")
    if text == "inf":
        return inf
    if text.isascii() and text.isdigit() and len(text) < 4 and str(int(text)) == text:
        return float(text)
    return _number(text, "norm")


@dataclass(slots=True)
class _Reader:
    payload: bytes
    version: int
    seen: set[tuple[str, tuple[int, ...], int]] = field(default_factory=set)  # arrays so far
    taken: int = 0  # bytes of all these, parts that they share several times
    rows: int = 0  # of the steps so far

    def certificate(self, header: dict[str, Any]) -> Certificate:
        names = "format producer model normalisation input region claim sites shared steps final"
        version, producer, model, norm, shape, region, claim, sites, shared, steps, final, *more = (
            _fields(header, names if self.version == 1 else f"{names} trees", "the header")
        )
        _whole(version, self.version, self.version, "the format")
        digest, external = _fields(model, "sha256 external", "model")
        refuse_if(type(external) is not dict, "model.external is not an object")
        sizes = tuple(_whole(n, 1, MOST_FEATURES, "an axis") for n in _list(shape, "input"))
        features = prod(sizes)
        _whole(features, 1, MOST_FEATURES, "the number of features")
        label, rivals, literals = self._claim(claim, features)
        count = len(rivals) if literals is None else len(literals.const)
        places = tuple(self._site(site) for site in _list(sites, "sites"))
        if len(_list(shared, "shared")) != len(places):
            raise Refused("shared must have one entry for each site")
        return Certificate(
            _text(digest, "model.sha256"),
            {_text(k, "a file"): _text(v, "its digest") for k, v in external.items()},
            _text(producer, "producer"),
            sizes,
            self._normalisation(norm, sizes),
            self._region(region, features),
            label,
            rivals,
            literals,
            places,
            tuple(self._shared(ref, site) for ref, site in zip(shared, places, strict=True)),
            self._pass(steps, places, 0),
            self._final(final, places, count),
            self._trees(more[0] if more else [], places, features, count),
        )

    def _claim(
        self, claim: Any, features: int
    ) -> tuple[int | None, tuple[int, ...], Literals | None]:
        """The label and the classes it beats, or literals."""
        if self.version > 1 and type(claim) is dict and "coef" in claim:
            names = "coef const clause" + " inputs" * ("inputs" in claim)
            coef, const, clause, *inputs = _fields(claim, names, "claim")
            matrix = self.array(coef, ("f8",), "coef")
            refuse_if(matrix.ndim != 2, "coef is not (literals, outputs)")
            count = _whole(len(matrix), 1, MOST_LITERALS, "the number of literals")
            _whole(matrix.shape[1], 1, MOST_FEATURES, "the number of outputs")
            values = self._floats(coef, matrix.size, "coef").reshape(matrix.shape)
            number = self.array(clause, WHOLE, "clause").astype(np.int64)
            steps = np.diff(number)
            if number.shape != (count,) or number[0] or ((steps < 0) | (steps > 1)).any():
                raise Refused("clause is not one number per literal, from 0 in rising order")
            beside = None
            if inputs:
                beside = self._floats(inputs[0], count * features, "inputs")
                beside = beside.reshape(count, features)
            return None, (), Literals(values, self._floats(const, count, "const"), number, beside)
        label, others = _fields(claim, "label others", "claim")
        rivals = tuple(_whole(o, 0, 2**31, "a class") for o in _list(others, "others"))
        label = _whole(label, 0, 2**31, "the label")
        if not rivals or label in rivals or len(set(rivals)) != len(rivals):
            raise Refused("the other classes must be some, each once, without the label")
        return label, rivals, None

    def array(self, ref: Any, types: tuple[str, ...], what: str) -> NDArray[Any]:
        """An array of the payload; a view, so nothing is allocated."""
        dtype, shape, at = _fields(ref, "dtype shape at", what)
        refuse_if(dtype not in types, f"{what} has type {dtype!r}, not one of {', '.join(types)}")
        kind = np.dtype(TYPES[dtype])
        sizes = tuple(_whole(n, 0, 2**40, f"an axis of {what}") for n in _list(shape, what))
        refuse_if(len(sizes) > 8, f"{what} has too many axes")
        start = _whole(at, 0, 2**40, f"the place of {what}")
        count = prod(sizes)
        if start % 8 or start + count * kind.itemsize > len(self.payload):
            raise Refused(f"{what} lies outside the payload or is not aligned")
        found = np.frombuffer(self.payload, kind, count, start).reshape(sizes)
        if (dtype, sizes, start) not in self.seen:
            self.seen.add((dtype, sizes, start))
            self.taken += found.nbytes
            refuse_if(self.taken > OVERLAP * len(self.payload), "too many arrays overlap")
            if dtype in SLOPES and np.isinf(found).any():
                raise Refused(f"{what} has infinite numbers")
        return found

    def _floats(self, ref: Any, count: int, what: str) -> Array:
        found = self.array(ref, ("f8",), what)
        if found.size != count or not np.isfinite(found).all():
            raise Refused(f"{what} is not {count} finite numbers")
        return found.astype(np.float64).ravel()

    def _normalisation(self, norm: Any, sizes: tuple[int, ...]) -> tuple[Array, Array] | None:
        if norm is None:
            return None
        values = []
        for ref, what in zip(_fields(norm, "mean std", "normalisation"), ("mean", "std")):
            found = self.array(ref, ("f8",), what)
            if found.ndim > len(sizes) or not np.isfinite(found).all():
                raise Refused(f"{what} does not fit the input, or is not finite")
            values.append(np.broadcast_to(found, sizes).astype(np.float64).ravel())
        refuse_if(not (values[1] > 0).all(), "std is not positive")
        return values[0], values[1]

    def _region(self, region: Any, n: int) -> Region:
        if self.version > 1 and type(region) is dict and set(region) == {"lower", "upper"}:
            left, right = (self._floats(region[end], n, end) for end in ("lower", "upper"))
            refuse_if(not (left <= right).all(), "the box has ends in the wrong order")
            none = np.zeros(n)
            return Region(inf, 0.0, none, none, none.astype(np.int64), left, right, exact=True)
        norm, radius, centre, scale, ball, lower, upper = _fields(
            region, "norm radius centre scale ball lower upper", "region"
        )
        p = _norm(norm)
        size = _number(radius, "radius")
        refuse_if(not p >= 1 or size < 0, "the norm must be at least 1, the radius not below 0")
        scales = np.ones(n) if scale is None else self._floats(scale, n, "scale")
        refuse_if(not (scales >= 0).all(), "scale is below 0")
        groups = np.zeros(n, dtype=np.int64)
        if ball is not None:
            groups = self.array(ball, ("i4",), "ball").astype(np.int64).ravel()
            if len(groups) != n or groups.min() < -1:
                raise Refused("ball is not one number from -1 on per feature")
        middle = self._floats(centre, n, "centre")
        refuse_if((lower is None) != (upper is None), "a valid range needs both ends")
        low = None if lower is None else self._floats(lower, n, "lower")
        high = None if upper is None else self._floats(upper, n, "upper")
        if low is not None and high is not None and not ((low <= middle) & (middle <= high)).all():
            raise Refused("the centre lies outside the valid range")
        return Region(p, size, middle, np.where(groups < 0, 0.0, scales), groups, low, high)

    def _site(self, site: Any) -> Site:
        name, kind, size = _fields(site, "name kind size", "a site")
        width = _whole(size, 1, MOST_FEATURES, "a site's size")
        return Site(_text(name, "a site's name"), _text(kind, "a site's kind"), width)

    def _shared(self, ref: Any, site: Site) -> Floats | None:
        if ref is None:
            return None
        found = self.array(ref, SLOPES, "shared slopes")
        if found.shape != (2, site.size):
            raise Refused(f"shared slopes of {site.name} are not (2, {site.size})")
        return found

    def _steps(self, steps: Any, sites: tuple[Site, ...]) -> tuple[Rows, ...]:
        found = tuple(self._step(step, sites) for step in _list(steps, "steps"))
        order = [rows.site for rows in found if rows.site is not None]
        refuse_if(order != sorted(order), "steps are not in the order of their sites")
        return found

    def _pass(self, given: Any, sites: tuple[Site, ...], literals: int) -> tuple[Rows, ...]:
        """The steps of a pass; those of an assumption follow it."""
        steps = _list(given, "a pass")
        if not steps or type(steps[0]) is not dict or "literal" not in steps[0]:
            found = self._steps(steps, sites)
            refuse_if(any(s.factors is not None for s in found), "factors of nothing")
            return found
        names = "literal over table slopes multipliers"
        literal, over, table, slopes, lifts = _fields(steps[0], names, "an assumption")
        which = np.array([_whole(literal, 0, literals - 1, "an assumption's literal")])
        side = np.zeros_like(which)
        assumed = [self._rows(None, over, which, side, table, slopes, sites, lifts)]
        for step in steps[1:]:
            if type(step) is not dict or "end" not in step:
                break
            assumed.append(self._end(step, sites))
        found = self._steps(steps[len(assumed) :], sites)
        for rows in found:
            wrong = rows.factors is not None and rows.factors.shape[1:] not in ((), (len(assumed),))
            refuse_if(wrong, "factors are not one for each assumption")
        return *(replace(rows, assumed=True) for rows in assumed), *found

    def _end(self, given: Any, sites: tuple[Site, ...]) -> Rows:
        """A row below an entry of what a site reads, or below its negative."""
        names = "site neuron end over table slopes multipliers"
        site, neuron, end, over, table, slopes, lifts = _fields(given, names, "an assumption")
        at = _whole(site, 0, len(sites) - 1, "an assumption's site")
        which = np.array([_whole(neuron, 0, sites[at].size - 1, "an assumption's neuron")])
        side = np.array([_whole(end, 0, 1, "an assumption's end")])
        return self._rows(at, over, which, side, table, slopes, sites[:at], lifts)

    def _factors(self, given: Any, rows: int, planes: bool = False) -> Array | None:
        if given is None:
            return None
        found = self.array(given, SLOPES, "factors")
        fits = found.shape == (rows,) or (planes and found.ndim == 2 and len(found) == rows)
        if not fits or not (np.isfinite(found) & (found >= 0)).all():
            raise Refused("factors are not finite numbers from 0, one per row or assumption")
        return found.astype(np.float64)

    def _step(self, step: Any, sites: tuple[Site, ...]) -> Rows:
        names = "site over neuron side table slopes" + " multipliers" * (self.version > 1)
        factored = self.version > 1 and type(step) is dict and "factors" in step
        names += " factors" * factored + " curvatures" * (self.version > 2)
        site, over, neuron, side, table, slopes, *more = _fields(step, names, "a step")
        at = _whole(site, 0, len(sites) - 1, "a step's site")
        given, given_sides = (
            self.array(neuron, ("u4",), "neuron"),
            self.array(side, ("u1",), "side"),
        )
        if given.ndim != 1 or given_sides.shape != given.shape:
            raise Refused("neuron and side of a step differ in shape")
        self._count(len(given))
        neurons, sides = given.astype(np.int64), given_sides.astype(np.int64)
        if len(neurons) and (neurons.max() >= sites[at].size or sides.max() > 1):
            raise Refused(f"a row of {sites[at].name} has no such neuron or side")
        if self.version > 2 and not factored:
            more.insert(1, None)
        return self._rows(at, over, neurons, sides, table, slopes, sites[:at], *more)

    def _count(self, rows: int) -> None:
        self.rows += rows
        refuse_if(self.rows > MOST_ROWS, f"the steps have more than {MOST_ROWS} rows")

    def _final(self, final: Any, sites: tuple[Site, ...], count: int) -> Rows:
        names = "over table slopes" + " curvatures" * (self.version > 2)
        over, table, slopes, *more = _fields(final, names, "final")
        rows = np.arange(count)
        none = (None, None)
        return self._rows(None, over, rows, np.zeros_like(rows), table, slopes, sites, *none, *more)

    def _rows(
        self,
        at: int | None,
        over: Any,
        neurons: Index,
        sides: Index,
        table: Any,
        slopes: Any,
        earlier: tuple[Site, ...],
        multipliers: Any = None,
        factors: Any = None,
        curvatures: Any = None,
    ) -> Rows:
        places, width = self._over(over, earlier)
        given = self.array(table, ("u4",), "table")
        refuse_if(given.shape != neurons.shape, "table must have one number per row")
        tables = given.astype(np.int64)
        lifts = self._multipliers(multipliers, len(neurons), width)
        shares = self._factors(factors, len(neurons), planes=True)
        if slopes is None:
            if (tables != NO_TABLE).any():
                raise Refused("a row names a table of slopes, but there are none")
            refuse_if(curvatures is not None, "there are curvatures, but no slopes")
            return Rows(at, places, neurons, sides, tables, None, 0, lifts, shares)
        found = self.array(slopes, SLOPES, "slopes")
        if found.ndim != 3 or found.shape[1] not in (1, 2) or found.shape[2] != width:
            raise Refused(f"slopes have shape {found.shape}, not (tables, 1 or 2, {width})")
        if ((tables >= found.shape[0]) & (tables != NO_TABLE)).any():
            raise Refused("a row names a table of slopes that is not there")
        bends = None
        if curvatures is not None:
            refuse_if(lifts is not None, "rows with multipliers do not bend")
            bends = self.array(curvatures, SLOPES, "curvatures")
            if bends.shape not in ((len(found), width), (len(found), len(places))):
                raise Refused(
                    f"curvatures have shape {bends.shape}, not one for each slope or site"
                )
            refuse_if(not (bends >= 0).all(), "a curvature is below 0")
        return Rows(at, places, neurons, sides, tables, found, 0, lifts, shares, bends)

    def _over(self, over: Any, earlier: tuple[Site, ...]) -> tuple[tuple[int, ...], int]:
        """Sites at which rows bring slopes, and the number of their entries."""
        places = tuple(_whole(k, 0, len(earlier) - 1, "over") for k in _list(over, "over"))
        if list(places) != sorted(set(places)):
            raise Refused("over must name earlier sites, in order, each once")
        return places, sum(earlier[k].size for k in places)

    # -- trees ------------------------------------------------------------------------------

    def _trees(self, trees: Any, *known: Any) -> tuple[Tree, ...]:
        found = tuple(self._tree(tree, *known) for tree in _list(trees, "trees"))
        for count, most in ((0, MOST_NODES), (1, MOST_ROWS)):
            sizes = ((len(tree.site), len(tree.node))[count] for tree in found)
            refuse_if(sum(sizes) > most, f"the trees have more than {most} nodes or rows")
        return found

    def _tree(self, tree: Any, sites: tuple[Site, ...], features: int, literals: int) -> Tree:
        names = "site neuron point passes pass rows literal over levels slopes multipliers"
        assumes = type(tree) is dict and "level" in tree
        site, neuron, point, passes, own, rows, literal, over, levels, slopes, lifts, *more = (
            _fields(tree, f"{names} level factors" if assumes else names, "the tree")
        )
        level = _number(more[0], "the level") if assumes else None
        refuse_if(level is not None and not level > 0, "the level is not positive")
        kinds = self.array(site, WHOLE, "the tree's sites")
        nodes = _whole(kinds.size, 1, MOST_NODES, "the number of a tree's nodes")
        refuse_if(kinds.shape != (nodes,), "the tree's sites are no list")
        places = kinds.astype(np.int64) + LEAF
        refuse_if(places.max() >= len(sites), "a cut is at a site that is not there")
        inner = places != LEAF
        # In preorder: after every node but the last, some subtree is still to come.
        left = 1 + np.where(inner, 1, -1).cumsum()
        refuse_if((left[:-1] < 1).any() or left[-1] != 0, "the tree is cut off or goes on too long")
        count = int(inner.sum())
        entry, numbers = np.zeros(nodes, dtype=np.int64), np.zeros(nodes)
        given = self.array(neuron, WHOLE, "the tree's neurons")
        cuts = self.array(point, ("f8", "f4"), "the tree's points")
        if given.shape != (count,) or cuts.shape != (count,) or not np.isfinite(cuts).all():
            raise Refused(f"neurons and points of a tree are not {count} finite numbers each")
        entry[inner], numbers[inner] = given, cuts
        sizes = np.array([*(s.size for s in sites), features])
        refuse_if((entry[inner] >= sizes[places[inner]]).any(), "a cut is at an entry out of range")
        lists = tuple(self._pass(steps, sites, literals) for steps in _list(passes, "passes"))
        assumed = any(steps and steps[0].site is None for steps in lists)
        refuse_if(assumed and not assumes, "a pass assumes what has no level")
        bent = any(step.curvatures is not None for steps in lists for step in steps)
        refuse_if(bent, "rows of a tree do not bend")
        which = np.full(nodes, -1)
        if own is not None:
            named = self.array(own, ("u4",), "the tree's passes").astype(np.int64)
            refuse_if(named.shape != (nodes,), "the tree's passes are not one for each node")
            which = np.where(named == NO_PASS, -1, named)
            refuse_if(which.max() >= len(lists), "a node has a pass that is not there")
        for k, steps in enumerate(lists):
            self._count(sum(len(s.neuron) for s in steps) * int((which == k).sum()))
        each = self.array(rows, WHOLE, "the tree's rows").astype(np.int64)
        refuse_if(each.shape != (nodes,), "the tree's rows are not a count for each node")
        total = _whole(int(each.sum()), 0, MOST_ROWS, "the number of a tree's rows")
        wanted = self.array(literal, WHOLE, "the tree's literals").astype(np.int64)
        if wanted.shape != (total,) or (total and wanted.max() >= literals):
            raise Refused("the tree's literals are not one for each row")
        reads, width = self._over(over, sites)
        most = _whole(levels, 0, 255, "levels")
        found = self.array(slopes, ("u1",) if most else SLOPES, "the tree's slopes")
        refuse_if(found.shape != (total, width), f"a tree's slopes are not ({total}, {width})")
        refuse_if(bool(most and total * width and found.max() > most), "a code is above the levels")
        return Tree(
            places,
            entry,
            numbers,
            lists,
            which,
            np.repeat(np.arange(nodes), each),
            Rows(
                None,
                reads,
                wanted,
                np.zeros_like(wanted),
                np.arange(total),
                found[:, None],
                most,
                self._multipliers(lifts, total, width),
                self._factors(more[1], total) if assumes else None,
            ),
            level,
        )

    def _multipliers(self, given: Any, rows: int, width: int) -> Multipliers | None:
        if given is None:
            return None
        count, slot, value = _fields(given, "count slot value", "multipliers")
        each = self.array(count, WHOLE, "counts of multipliers").astype(np.int64)
        places = self.array(slot, WHOLE, "slots of multipliers").astype(np.int64)
        numbers = self.array(value, SLOPES, "multipliers")
        total = _whole(int(each.sum()), 0, 2**40, "the number of multipliers")
        if each.shape != (rows,) or places.shape != (total,) or numbers.shape != (total,):
            raise Refused("multipliers, their slots and counts differ in number")
        refuse_if(total > 0 and places.max() >= width, "a multiplier is at no slot")
        refuse_if(not np.isfinite(numbers).all(), "a multiplier is not finite")
        start = np.concatenate([[0], np.cumsum(each)])
        return Multipliers(start, places, numbers.astype(np.float64))
