"""Certificates: what a replay used, as one file per input that an independent checker can verify.

A certificate holds the claim, the region, slopes and trees of cases; docs/certificate.md describes
all formats.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from frown import __version__
from frown.bounds.cases import Replayed, of_sample, tables
from frown.bounds.plan import Plan
from frown.bounds.replay import Replay, ReplayedRows
from frown.bounds.tree import Multipliers, source_entry
from frown.errors import InvalidInput
from frown.graph.intervals import Intervals
from frown.problem.problem import Problem, Regions
from frown.problem.property import LabelWins, Property
from frown.read.model import Model

MAGIC = {1: b"FROWNC01", 2: b"FROWNC02", 3: b"FROWNC03"}
QUERY = b"FROWNQ01"
NO_TABLE = NO_PASS = 0xFFFFFFFF


@dataclass
class Payload:
    """Arrays one after the other; the header refers to them by where they start."""

    data: bytearray = field(default_factory=bytearray)

    def put(self, array: Any, dtype: str = "f8") -> dict[str, Any]:
        values = np.ascontiguousarray(array, dtype="|u1" if dtype == "u1" else f"<{dtype}")
        start = len(self.data)
        self.data += values.tobytes()
        self.data += b"\0" * (-len(self.data) % 8)
        return {"dtype": dtype, "shape": list(values.shape), "at": start}

    def whole(self, array: NDArray[Any]) -> dict[str, Any]:
        """Whole numbers in the shortest type that holds them."""
        most = int(array.max(initial=0))
        return self.put(array, "u1" if most < 2**8 else "u2" if most < 2**16 else "u4")


@dataclass
class Recorder:
    """Collects a replay's steps; `file` turns those of a sample into a certificate."""

    plan: Plan
    steps: list[ReplayedRows] = field(default_factory=list)

    def __call__(self, step: ReplayedRows) -> None:
        self.steps.append(step)

    def file(
        self,
        model: Model,
        problem: Problem,
        replay: Replay,
        n: int,
        radius: float,
        trees: Sequence[Replayed] = (),
    ) -> bytes:
        """The certificate of the replay's n-th sample, and of trees that were replayed over it.

        A label that wins in a ball, without trees, makes a file of format 1, rows that bend one of
        format 3; all else one of format 2.
        """
        payload = Payload()
        mine = [part for step in self.steps if (part := of_sample(step, n)) is not None]
        output = self.plan.graph.output
        steps = [s for part in mine if part.target != output for s in self._step(part, payload)]
        final = [part for part in mine if part.target == output]
        plain = isinstance(problem.property, LabelWins) and not problem.regions.box
        version = 1 if plain and not trees else 2
        if any(part.curvatures for part in mine):
            version = 3
        header: dict[str, Any] = {
            "format": version,
            "producer": f"frown {__version__}",
            "model": {"sha256": model.files[0][1], "external": dict(model.files[1:])},
            "normalisation": _normalisation(model, payload),
            "input": list(model.input_shape),
            "region": _region(problem.regions, n, radius, payload),
            "claim": _claim(problem.property, n, model, payload),
            "sites": self._sites(),
            "shared": [_shared(replay, i, n, payload) for i in self.plan.nonlinear],
            "steps": sorted(steps, key=lambda s: int(s["site"])),
            "final": self._final(final, payload),
        }
        if version > 1:
            over = self._over(output)
            header["trees"] = [self._tree(tree, over, payload) for tree in trees]
            header["steps"] = [{**step, "multipliers": None} for step in header["steps"]]
        if version < 3:
            passes = [steps for tree in header.get("trees", ()) for steps in tree["passes"]]
            for rows in (*header["steps"], header["final"], *(s for own in passes for s in own)):
                rows.pop("curvatures", None)  # an assumption has none
        text = json.dumps(header, allow_nan=False).encode()
        packed = zlib.compress(bytes(payload.data), 6)
        sizes = struct.pack("<I", len(text)), struct.pack("<Q", len(payload.data))
        return MAGIC[version] + sizes[0] + text + sizes[1] + packed

    def _tree(self, done: Replayed, over: list[int], payload: Payload) -> dict[str, Any]:
        """A tree, with the steps of leaves that bound the network anew."""
        found = _tree(done, over, payload)
        if done.passes:
            own = np.full(len(done.tree), NO_PASS)
            for k, (node, each) in enumerate(done.passes.items()):
                own[node] = k
                parts = each.steps
                steps = [step for part in parts for step in self._step(part, payload, lifted=True)]
                steps = sorted(steps, key=lambda s: int(s["site"]))
                first = [self._assumption(row, payload) for row in each.assumed]
                found["passes"].append(first + steps)
            found["pass"] = payload.put(own, "u4")
        if done.tree.assumed is not None and done.factors is not None:
            found["level"] = float(done.tree.assumed.level).hex()
            found["factors"] = payload.put(done.factors.numpy(), "f4")
        return found

    def _read_at(self, source: int, entry: torch.Tensor) -> tuple[int, int]:
        """A site that reads this entry of a node, and the entry's place in the site's input. Two
        sites may read different entries of one node."""
        for site, node in enumerate(self.plan.nonlinear):
            if self.plan.sources[node] == source:
                origin = source_entry(self.plan, site, slice(None))[1]
                found = (origin == entry).nonzero()
                if len(found):
                    return site, int(found[0])
        raise AssertionError("entries that nothing reads are never cut")

    def _assumption(self, step: ReplayedRows, payload: Payload) -> dict[str, Any]:
        """The row of a literal that is assumed to fail, or of an entry one end of whose box is
        known."""
        about: dict[str, Any] = {"literal": int(step.rows.neuron[0])}
        if step.target != self.plan.graph.output:
            site, neuron = self._read_at(step.target, step.rows.neuron[0])
            about = {"site": site, "neuron": neuron, "end": int(step.rows.side[0])}
        if step.slopes is None:
            none = payload.put(np.full(1, NO_TABLE), "u4")
            return {**about, "over": [], "table": none, "slopes": None, "multipliers": None}
        return {
            **about,
            "over": self._over(step.target),
            "table": payload.put(np.zeros(1), "u4"),
            "slopes": payload.put(*_stored(self._table([step]))),
            "multipliers": self._lifts(step, torch.arange(1), payload),
        }

    def _sites(self) -> list[dict[str, Any]]:
        nodes = self.plan.graph.nodes
        return [
            {
                "name": nodes[i].name,
                "kind": type(nodes[i].op).__name__,
                "size": nodes[nodes[i].inputs[0]].size,
            }
            for i in self.plan.nonlinear
        ]

    def _step(
        self, step: ReplayedRows, payload: Payload, lifted: bool = False
    ) -> list[dict[str, Any]]:
        """The rows of a source, repeated for each site that reads it, in the site's own numbering;
        if `lifted`, with their multipliers."""
        node = self.plan.graph.nodes[step.target]
        entries = torch.arange(node.size, dtype=torch.float64).view(1, *node.shape)
        slopes, bends, found = None, None, []
        for k, i in enumerate(self.plan.nonlinear):
            if self.plan.sources[i] != step.target:
                continue
            origin = self.plan.carry(i, Intervals(entries, entries)).lower.flatten().long()
            # Which rows bound which entries of the site's input.
            row, entry = (step.rows.neuron[:, None] == origin[None, :]).nonzero(as_tuple=True)
            if not len(row):
                continue
            if step.slopes is not None and slopes is None:
                slopes = payload.put(*_stored(self._table([step])))
                bends = self._curvatures([step], payload)
            table = np.full(len(row), NO_TABLE) if slopes is None else row.numpy()
            found.append(
                {
                    "site": k,
                    "over": [] if slopes is None else self._over(step.target),
                    "neuron": payload.put(entry.numpy(), "u4"),
                    "side": payload.put(step.rows.side[row].numpy(), "u1"),
                    "table": payload.put(table, "u4"),
                    "slopes": slopes,
                }
            )
            if lifted:
                found[-1]["multipliers"] = self._lifts(step, row, payload)
                if step.factors is not None:
                    found[-1]["factors"] = payload.put(step.factors[row].numpy(), "f4")
            found[-1]["curvatures"] = None if lifted else bends
        return found

    def _lifts(
        self, step: ReplayedRows, row: torch.Tensor, payload: Payload
    ) -> dict[str, Any] | None:
        """The multipliers of some of a step's rows; None: there are none."""
        if step.slopes is None or not step.multipliers:
            return None
        return _lifts(Multipliers.of(tables(self.plan, step)[1][row]), len(row), payload)

    def _final(self, parts: list[ReplayedRows], payload: Payload) -> dict[str, Any]:
        """The conditions' rows, in order."""
        count = sum(len(part.rows) for part in parts)
        over = self._over(self.plan.graph.output)
        if not over or any(part.slopes is None for part in parts):
            none = payload.put(np.full(count, NO_TABLE), "u4")
            return {"over": [], "table": none, "slopes": None, "curvatures": None}
        condition = torch.cat([part.rows.neuron for part in parts]).numpy()
        return {
            "over": over,
            "table": payload.put(np.argsort(condition), "u4"),
            "slopes": payload.put(*_stored(self._table(parts))),
            "curvatures": self._curvatures(parts, payload),
        }

    def _curvatures(self, parts: list[ReplayedRows], payload: Payload) -> dict[str, Any] | None:
        """Every row's curvatures at the nodes before its target: one per node where its entries
        have the same, else one per entry; None: no row bends."""
        if not any(part.curvatures for part in parts):
            return None
        tables = []
        for part in parts:
            below = self.plan.below(part.target)
            sizes = [self.plan.graph.nodes[self.plan.graph.nodes[i].inputs[0]].size for i in below]
            none = torch.zeros(len(part.rows), 1, dtype=torch.float64)
            columns = [part.curvatures.get(i, none) for i in below]
            pairs = zip(columns, sizes, strict=True)
            tables.append([c.expand(-1, n) for c, n in pairs])
        nodes = [torch.cat(same) for same in zip(*tables, strict=True)]
        if all(bool((c == c[:, :1]).all()) for c in nodes):
            nodes = [c[:, :1] for c in nodes]
        return payload.put(torch.cat(nodes, 1).numpy(), "f4")

    def _over(self, target: int) -> list[int]:
        place = {i: k for k, i in enumerate(self.plan.nonlinear)}
        return [place[i] for i in self.plan.below(target)]

    def _table(self, parts: list[ReplayedRows]) -> NDArray[np.float64]:
        """(rows, 1, slots) every row's slopes at the nodes before its target."""
        tables = []
        for part in parts:
            assert part.slopes is not None
            columns = [part.slopes[i].flatten(1) for i in self.plan.below(part.target)]
            tables.append(torch.cat(columns, 1)[:, None])
        return torch.cat(tables).numpy()


def _tree(done: Replayed, over: list[int], payload: Payload) -> dict[str, Any]:
    """A tree with the rows that were bounded, along the numbers that they used, without passes."""
    tree = done.tree
    inner, rows = tree.inner.numpy(), tree.literals
    point = tree.point.numpy()[inner]
    counts = np.bincount(rows.node[done.rows].numpy(), minlength=len(tree))
    slopes = done.slopes.numpy()
    return {
        "site": payload.whole(tree.site.numpy() + 2),
        "neuron": payload.whole(tree.neuron.numpy()[inner]),
        "point": payload.put(point, "f4" if (point.astype("<f4") == point).all() else "f8"),
        "passes": [],
        "pass": None,
        "rows": payload.whole(counts),
        "literal": payload.whole(rows.literal[done.rows].numpy()),
        "over": over,
        "levels": done.levels,
        "slopes": payload.put(slopes, "u1") if done.levels else payload.put(*_stored(slopes)),
        "multipliers": _lifts(done.multipliers, len(done.rows), payload),
    }


def _lifts(lifts: Multipliers, rows: int, payload: Payload) -> dict[str, Any]:
    """The multipliers of so many rows, in their order."""
    return {
        "count": payload.whole(np.bincount(lifts.row.numpy(), minlength=rows)),
        "slot": payload.whole(lifts.slot.numpy()),
        "value": payload.put(*_stored(lifts.value.numpy())),
    }


def _stored(slopes: NDArray[np.float64]) -> tuple[NDArray[np.float64], str]:
    """Slopes, and the shortest type that holds them all; replays use single precision at most."""
    with np.errstate(over="ignore", under="ignore"):
        same = (slopes.astype(np.float16) == slopes) | np.isnan(slopes)
    return slopes, "f2" if same.all() else "f4"


def _shared(replay: Replay, i: int, n: int, payload: Payload) -> dict[str, Any]:
    """The fixed rule's slopes below and above."""
    rule = replay.fixed[i].lines.slopes
    both = torch.stack([rule.lower[n].flatten(), rule.upper[n].flatten()])
    return payload.put(both.numpy())


def _claim(property: Property, n: int, model: Model, payload: Payload) -> dict[str, Any]:
    """The n-th sample's property: the label and the classes it beats, or all literals, about the
    outputs and, where these follow them, the inputs."""
    if isinstance(property, LabelWins):
        return {"label": int(property.label[n]), "others": property.targets[n].tolist()}
    own = property.rows(slice(n, n + 1))
    coef = own.pick(slice(None)).numpy()
    outputs = coef.shape[1] if model.alone is None else model.alone.classes
    found = {
        "coef": payload.put(coef[:, :outputs]),
        "const": payload.put(own.const[0].numpy()),
        "clause": payload.whole(own.clause.numpy()),
    }
    if model.alone is not None:
        found["inputs"] = payload.put(coef[:, outputs:])
    return found


def query_proof(parts: Sequence[bytes]) -> bytes:
    """The proof that no input satisfies a query, from the certificates of its boxes."""
    sized = (struct.pack("<Q", len(part)) + part for part in parts)
    return QUERY + struct.pack("<I", len(parts)) + b"".join(sized)


def check_certifiable(model: Model) -> None:
    """Raise InvalidInput where a certificate could not name the network."""
    if model.source != "onnx" or model.path is None:
        raise InvalidInput(
            "certificates are about ONNX files: export the module with torch.onnx.export and "
            "load that file"
        )
    away = [name for name, _ in model.files[1:] if Path(name).name != name]
    if away:
        raise InvalidInput(
            f"{model.name}: weights in {', '.join(away)} do not lie beside it; certificates know "
            "files of the model's own folder only: save the model with its weights there"
        )
    if len(model.input_shape) > 1 and model.graph.input_shape == model.input_shape:
        raise InvalidInput(
            f"{model.name} is taken with its leading axis of {model.input_shape[0]} as a part of "
            "the input, and certificates are about inputs with a batch of 1: put an axis of 1 first"
        )
    taken = model.taken
    if taken.output:
        raise InvalidInput(
            f"certificates are about models of one output: save {model.name} with its output "
            f"{taken.output} alone (onnx.utils.extract_model)"
        )
    if taken.sizes:
        raise InvalidInput(
            f"certificates are about files as they are: save {model.name} with an input of shape "
            f"{taken.sizes}, and leave out shape (--shape)"
        )
    if taken.precision:
        raise InvalidInput(
            f"certificates are about files as they are, and {model.name} computes in "
            f"{taken.precision}: save it in float32"
        )
    if len(model.normalisation) > 1:
        raise InvalidInput("certificates know one normalisation; this model has several")


def _normalisation(model: Model, payload: Payload) -> dict[str, Any] | None:
    if not model.normalisation:
        return None
    ((mean, std),) = model.normalisation
    return {"mean": payload.put(mean), "std": payload.put(std)}


def _region(regions: Regions, n: int, radius: float, payload: Payload) -> dict[str, Any]:
    """The region of input n: a ball, or a box of given ends."""
    shape = regions.x.shape[1:]

    def put(array: NDArray[np.float64] | None, dtype: str = "f8") -> dict[str, Any] | None:
        if array is None:
            return None
        return payload.put(np.broadcast_to(array[n if len(array) > 1 else 0], shape), dtype)

    lower, upper = regions.range.stated if regions.range else (None, None)
    if regions.box:
        return {"lower": put(lower), "upper": put(upper)}
    norm = {inf: "inf", 1.0: "1", 2.0: "2"}.get(regions.p, float(regions.p).hex())
    return {
        "norm": norm,
        "radius": radius.hex(),
        "centre": payload.put(regions.x[n]),
        "scale": put(regions.scale),
        "ball": payload.put(balls, "i4") if (balls := regions.balls()).any() else None,
        "lower": put(lower),
        "upper": put(upper),
    }
