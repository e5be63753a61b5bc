"""The Python interface: load, certify, bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from frown.attacks.pgd import Attack
from frown.bounding import Bounded, bounded
from frown.certifier import SEARCHED, Batch, Certifier
from frown.engines.clock import Clock
from frown.engines.lp import check_program, crew_of
from frown.engines.plan import Plan
from frown.engines.settings import Ascent, Settings
from frown.errors import InvalidInput
from frown.frontends.model import Model
from frown.graph.simplify import simplify
from frown.memory import half_of_free
from frown.query.inputs import (
    indices_of,
    inputs_of,
    labels_of,
    norm_of,
    radii_of,
    range_of,
    scale_of,
    targets_of,
    whole_number,
)
from frown.query.query import Query
from frown.relax.fuse import fuse
from frown.results import Certification, Row
from frown.version import __version__

if TYPE_CHECKING:
    from torch import nn

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long call has come."""

    done: int
    total: int
    proved_mean: float  # of the inputs done
    stage: str


def load(source: str | Path | nn.Module, example: Any = None) -> Model:
    """A model from an ONNX file, or from a torch module and an example input.

    The example is a batch (its first axis counts inputs). The imported graph is compared
    with the original runtime on random inputs; a disagreement is an error.
    """
    if isinstance(source, str | Path):
        from frown.frontends.onnx import load_onnx

        return load_onnx(source)
    if isinstance(source, torch.nn.Module):
        from frown.frontends.torch import load_torch

        if example is None:
            raise InvalidInput(
                "a torch module needs an example input to be traced: "
                "frown.load(module, torch.zeros(1, ...))"
            )
        return load_torch(source, example)
    raise InvalidInput(f"cannot load a {type(source).__name__}; give a path or a torch module")


def certify(
    model: Model,
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    norm: str | float = "inf",
    method: str = "frown",
    target: object = None,
    bounds: object = None,
    eps: ArrayLike | None = None,
    scale: object = None,
    tol: float = 0.01,
    group: int = 1,
    wide: bool = False,
    rule: str = "area",
    steps: int | None = None,
    tangents: int = 3,
    boxes: str = "lp",
    workers: int = 1,
    hot: bool = True,
    dtype: str = "float32",
    device: str = "cpu",
    memory: int | None = None,
    time_limit: float | None = None,
    attack: bool | Attack = True,
    batch: int | None = None,
    indices: ArrayLike | None = None,
    progress: Callable[[Progress], None] | None = None,
    on_rows: Callable[[list[Row], dict[int, NDArray[np.float64]]], None] | None = None,
) -> Certification:
    """The largest radius, within `tol`, at which each input's answer is proved.

    x is (N, *model.input_shape), y the labels (N,); without them the model's own answers
    stand in. `target` is None (every other class),
    a class, an array of classes, or "+K" (label + K, modulo the classes). `bounds` is the
    valid input range. With `eps` one radius is checked instead of searched for. `scale`
    gives features their own radius: eps * scale, 0 for features that may not move.
    Methods lp and milp need the extra `frown[lp]`; `tangents`, `boxes`, `workers` and `hot` are
    options of lp (see `frown.engines.settings.Settings`).

    Every radius returned was proved at that very radius, in floating point. Rows carry a
    counterexample's distance as the other end of the bracket unless attack=False.
    After `time_limit` seconds each input keeps the best radius proved so far.
    """
    p = norm_of(norm)
    numbers = None if indices is None else indices_of(indices, np.shape(x)[0] if np.ndim(x) else 0)
    inputs = inputs_of(x, model.input_shape, numbers)
    answers = model.run(inputs).argmax(1) if y is None else y
    label = labels_of(answers, len(inputs), model.classes, numbers=numbers)
    if model.classes < 2:
        raise InvalidInput("the model has one output; a classifier has at least two classes")
    query = Query(
        inputs,
        label,
        targets_of(target, label, model.classes, numbers),
        p,
        range_of(bounds, inputs, numbers),
        scale_of(scale, model.input_shape),
    )
    radii = None if eps is None else radii_of(eps, len(inputs))
    if not 0 < tol < 1:
        raise InvalidInput(f"tol must lie between 0 and 1, not {tol}")
    if time_limit is not None and not time_limit > 0:
        raise InvalidInput(f"time_limit (--time-limit) must be positive, not {time_limit}")
    if batch is not None:
        batch = whole_number(batch, "batch")
    plan = plan_for(model, dtype, device)
    settings = Settings(
        method=method,
        group=group,
        wide=wide,
        rule=rule,
        ascent=_ascent(steps),
        memory=memory or half_of_free(device),
        tangents=whole_number(tangents, "tangents"),
        boxes=boxes,
        workers=whole_number(workers, "workers"),
        hot=hot,
    )
    search = Attack() if attack is True else attack or None
    check_program(plan, settings, p)
    clock = Clock.lasting(time_limit)
    size = batch or _batch_size(plan, settings, len(inputs))
    if numbers is None:
        numbers = np.arange(len(inputs))
    with torch.no_grad(), crew_of(settings) as crew:
        certifier = Certifier(model, plan, settings, tol, search, clock, crew)
        run = _Run(certifier, query, radii, numbers, size, progress, on_rows)
        run.all(anytime=time_limit is not None)
    options = {
        "norm": p,
        "target": "all" if query.target is None else "given",
        "bounds": None if bounds is None else "given",
        "eps": None if eps is None else "given",
        "scale": None if scale is None else "given",
        "tol": tol,
        "dtype": dtype,
        "device": device,
        "time_limit": time_limit,
        "attack": None if search is None else asdict(search),
        **asdict(settings),
    }
    return Certification(
        tuple(run.rows), run.counterexamples, model.name, model.digest, options, __version__
    )


def bound(
    model: Model,
    x: ArrayLike,
    eps: ArrayLike,
    *,
    norm: str | float = "inf",
    method: str = "crown",
    coef: ArrayLike | None = None,
    bounds: object = None,
    scale: object = None,
    group: int = 1,
    wide: bool = False,
    rule: str = "area",
    steps: int | None = None,
    tangents: int = 3,
    boxes: str = "lp",
    workers: int = 1,
    hot: bool = True,
    dtype: str = "float32",
    device: str = "cpu",
    memory: int | None = None,
) -> Bounded:
    """Bounds of the outputs, or of linear functions coef (K, outputs) of them, over a ball
    of radius `eps` (a number, or one per input) around each input.

    The result has `lower` and `upper` (N, K), the intermediate bounds and lines by layer,
    and the linear forms at the input.
    """
    inputs = inputs_of(x, model.input_shape)
    none = np.zeros(len(inputs), dtype=np.int64)
    query = Query(
        inputs,
        none,
        None,
        norm_of(norm),
        range_of(bounds, inputs),
        scale_of(scale, model.input_shape),
    )
    plan = plan_for(model, dtype, device)
    settings = Settings(
        method=method,
        group=group,
        wide=wide,
        rule=rule,
        ascent=_ascent(30 if steps is None else steps),
        memory=memory or half_of_free(device),
        tangents=whole_number(tangents, "tangents"),
        boxes=boxes,
        workers=whole_number(workers, "workers"),
        hot=hot,
    )
    graph = plan.graph
    rows = np.eye(model.classes) if coef is None else np.atleast_2d(np.asarray(coef, np.float64))
    if rows.ndim != 2 or rows.shape[1] != model.classes or not np.isfinite(rows).all():
        raise InvalidInput(f"coef must be finite and (K, {model.classes}), not {rows.shape}")
    radius = torch.from_numpy(radii_of(eps, len(inputs))).to(graph.dtype).to(graph.device)
    with torch.inference_mode():
        functions = torch.from_numpy(rows).to(graph.dtype).to(graph.device)
        ball = query.region(graph).with_radius(radius)
        check_program(plan, settings, query.p)
        with crew_of(settings) as crew:
            return bounded(plan, ball, functions, settings, model.input_shape, crew)


def _ascent(steps: int | None) -> Ascent:
    if steps is None:
        return Ascent()
    steps = whole_number(steps, "steps")
    return Ascent(steps=steps, more=steps)


def plan_for(model: Model, dtype: str = "float32", device: str = "cpu") -> Plan:
    """The network as the engines take it: simplified, in the wanted precision."""
    if dtype not in _DTYPES:
        raise InvalidInput(f"unknown dtype {dtype!r}; choose float32 or float64")
    try:
        where = torch.device(device)
        torch.zeros(1, device=where)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        # torch has no one exception for a device that is misspelt, missing or not built in.
        reason = str(error).splitlines()[0][:120]
        raise InvalidInput(f"device {device!r} is not available: {reason}") from None
    graph = simplify(fuse(simplify(model.graph)))
    return Plan(graph.to(_DTYPES[dtype], where))


def _batch_size(plan: Plan, settings: Settings, count: int) -> int:
    """As many inputs at once as memory for their slopes allows, 64 at most."""
    if settings.method in ("lp", "milp"):
        return 1  # programs are solved input by input
    kept = 1
    if settings.method == "frown":
        for source in {plan.sources[i] for i in plan.relaxed} | {plan.graph.output}:
            groups = -(-2 * plan.graph.nodes[source].size // (settings.group or 1 << 40)) + 2
            kept += groups * plan.slots(source)[1] * plan.graph.dtype.itemsize
    return int(max(1, min(64, count, settings.memory // (2 * kept))))


class _Run:
    """Batches in order; rows are handed over as they are finished."""

    def __init__(
        self,
        certifier: Certifier,
        query: Query,
        eps: NDArray[np.float64] | None,
        numbers: NDArray[np.int64],
        size: int,
        progress: Callable[[Progress], None] | None,
        on_rows: Callable[[list[Row], dict[int, NDArray[np.float64]]], None] | None,
    ) -> None:
        self.certifier, self.query, self.eps, self.numbers = certifier, query, eps, numbers
        self.size, self.progress, self.on_rows = size, progress, on_rows
        self.rows: list[Row] = []
        self.counterexamples: dict[int, NDArray[np.float64]] = {}
        self.parts = [np.arange(a, min(a + size, len(query))) for a in range(0, len(query), size)]

    def all(self, anytime: bool) -> None:
        """With `anytime`, every input gets its cheap radius before any is optimised.

        An interrupt hands over what the batches under way have proved.
        """
        waiting: list[tuple[NDArray[np.int64], Batch]] = []
        first = self.parts if anytime and self.certifier.settings.method in SEARCHED else []
        try:
            for part in first:
                self._begin(part, waiting)
            for k, part in enumerate(self.parts):
                if not first:
                    self._begin(part, waiting)
                self._tell(self.certifier.settings.method)
                certifier = self.certifier
                if certifier.settings.method in ("lp", "milp"):
                    # Programs may take any time: each batch gets its part of what is left.
                    clock = certifier.clock.share(len(self.parts) - k)
                    certifier = replace(certifier, clock=clock)
                certifier.tighten(waiting[0][1], self.eps is not None, self._pulse)
                self._hand_over(*waiting.pop(0))
        except KeyboardInterrupt:
            for part, batch in waiting:
                batch.complete = False
                self._hand_over(part, batch)
            raise

    def _begin(
        self, part: NDArray[np.int64], waiting: list[tuple[NDArray[np.int64], Batch]]
    ) -> None:
        """Attack and cheap radii of one more batch."""
        batch = self.certifier.start(self.query.take(part), self.numbers[part], self._eps(part))
        waiting.append((part, batch))
        self._tell("crown" if self.certifier.settings.method in SEARCHED else "search")
        self.certifier.bracket(batch, self.eps is not None, self._pulse)

    def _pulse(self, batch: Batch) -> None:
        """A sign of life after every radius: the mean proved so far, this batch included."""
        if self.progress is not None:
            proved = [r.radius for r in self.rows] + batch.bracket.proved.tolist()
            mean = sum(proved) / max(1, len(proved))
            stage = self.certifier.settings.method
            self.progress(Progress(len(self.rows), len(self.query), mean, stage))

    def _hand_over(self, part: NDArray[np.int64], batch: Batch) -> None:
        rows = self.certifier.rows(batch, self._eps(part))
        found = {int(batch.index[n]): point for n, point in batch.counterexample.items()}
        self.rows += rows
        self.counterexamples |= found
        if self.on_rows is not None:
            self.on_rows(rows, found)
        self._tell("done")

    def _eps(self, part: NDArray[np.int64]) -> NDArray[np.float64] | None:
        return None if self.eps is None else self.eps[part]

    def _tell(self, stage: str) -> None:
        if self.progress is not None:
            mean = float(np.mean([r.radius for r in self.rows])) if self.rows else 0.0
            self.progress(Progress(len(self.rows), len(self.query), mean, stage))
