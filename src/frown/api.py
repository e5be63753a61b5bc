"""The Python interface: load, certify, sensitivity, bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from frown import __version__
from frown.bounds.clock import NO_LIMIT, now
from frown.bounds.method import Method
from frown.bounds.plan import Plan
from frown.bounds.surroundings import in_plain_surroundings
from frown.bounds.work import Pool, pool_of
from frown.certification.attack import Attack
from frown.certification.inspect import Bounded, bounded
from frown.certification.results import Certification, Row, Sensitivity
from frown.certification.run import LITTLE, Progress, Question, Search, answered, certificate_name
from frown.certification.statement import GIVEN, KEY, Spread, Statement
from frown.errors import InvalidInput
from frown.graph.graph import Graph
from frown.graph.simplify import simplify, without_batch_axis
from frown.problem.frames import Frames, apart_of, frames_of
from frown.problem.inputs import (
    indices_of,
    inputs_of,
    labels_of,
    norm_of,
    numbers_of,
    radii_of,
    range_of,
    scale_of,
    targets_of,
)
from frown.problem.query import Query
from frown.read.model import Model

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Progress",
    "Search",
    "bound",
    "certify",
    "load",
    "plan_for",
    "sensitivity",
    "statement",
]

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@in_plain_surroundings
def load(source: str | Path | nn.Module, example: Any = None) -> Model:
    """A model from an ONNX file, or from a torch module and an example input.

    The example is a batch (its first axis counts inputs). The imported graph is compared
    with the original runtime on random inputs; a disagreement is an error.
    """
    if isinstance(source, str | Path):
        if "\0" in str(source):
            raise InvalidInput("the path of a model holds a null character")
        from frown.read.onnx.load import load_onnx

        return load_onnx(source)
    if isinstance(source, torch.nn.Module):
        from frown.read.torch.load import load_torch

        if example is None:
            raise InvalidInput(
                "a torch module needs an example input to be traced: "
                "frown.load(module, torch.zeros(1, ...))"
            )
        return load_torch(source, example)
    raise InvalidInput(f"cannot load a {type(source).__name__}; give a path or a torch module")


@in_plain_surroundings
def certify(
    model: Model | str | Path,
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    norm: str | float = "inf",
    method: str | Method = "frown",
    target: object = None,
    bounds: object = None,
    eps: ArrayLike | None = None,
    scale: object = None,
    frames: object = "all",
    frame_axis: int = 0,
    tol: float = 0.01,
    group: int = 1,
    wide: bool = False,
    rule: str = "area",
    steps: int | None = None,
    tangents: int = 3,
    boxes: str = "lp",
    workers: int = 1,
    hot: bool = True,
    start: str = "frown",
    dtype: str = "float32",
    device: str = "cpu",
    memory: int | None = None,
    time_limit: float | None = None,
    attack: bool | Attack = True,
    batch: int | None = None,
    level: str = "rigorous",
    certificates: str | Path | None = None,
    deployed: str | None = None,
    indices: ArrayLike | None = None,
    progress: Callable[[Progress], None] | None = None,
    on_rows: Callable[[list[Row], dict[int, NDArray[np.float64]]], None] | None = None,
) -> Certification:
    """The largest radius, within `tol`, at which each input's answer is proved.

    x is (N, *model.input_shape), y the labels (N,); without them the model's own answers
    stand in. `model` may be the path of an ONNX file, too. `target` is None (every other class),
    a class, an array of classes, or "+K" (label + K, modulo the classes). `bounds` is the
    valid input range. With `eps` one radius is checked instead of searched for. `scale`
    gives features their own radius: eps * scale, 0 for features that may not move.
    `frames` are slices of an input along `frame_axis`, as of a sequence in time: "all" share
    one ball, "each" has its own, and 3, "0:3", [0, 2] or "each of 0:3" alone may move.
    `method` is a name, whose options are given beside it, or a method with its own
    (`frown.Frown(group=8)`). Methods lp and milp need the extra `frown[lp]`; `tangents`, `boxes`,
    `workers`, `hot` and `start` are options of lp (see `frown.LP`).

    With the `level` "rigorous" every radius returned was proved at that very radius with all
    rounding errors accounted for; with "estimate", in plain floating point. `certificates` is
    a folder for one file per input, which `frown check` verifies; the level "checked" does so
    at once. With `deployed` "float32" the statement covers the network as executed in single
    precision, in any order of summation, as well (docs/soundness.md says what is assumed).

    Rows carry a counterexample's distance as the other end of the bracket unless attack=False.
    After `time_limit` seconds, proofs and the attack included but not `load`, each input keeps the
    best radius proved so far; what is cheap is proved first.
    """
    model = _model(model)
    began = now()
    question = _question(model, x, y, norm, target, bounds, eps, scale, frames, frame_axis, indices)
    search = Search(
        method=method,
        tol=tol,
        group=group,
        wide=wide,
        rule=rule,
        steps=steps,
        tangents=tangents,
        boxes=boxes,
        workers=workers,
        hot=hot,
        start=start,
        dtype=dtype,
        device=device,
        memory=memory,
        time_limit=time_limit,
        attack=attack,
        batch=batch,
        level=level,
        certificates=_folder(certificates),
        deployed=deployed,
    )
    plan = plan_for(model, dtype, device, search.proved(model))
    run, options = answered(model, plan, question, search, search.clock(began), progress, on_rows)
    options["scale"] = None if scale is None else "given"
    options[KEY] = _statement(model, question, target, deployed).facts()
    return Certification(
        tuple(run.rows), run.counterexamples, model.name, model.digest, options, __version__
    )


@in_plain_surroundings
def sensitivity(
    model: Model | str | Path,
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    frames: object = "all",
    frame_axis: int = 0,
    norm: str | float = "inf",
    target: object = None,
    bounds: object = None,
    eps: ArrayLike | None = None,
    scale: object = None,
    indices: ArrayLike | None = None,
    progress: Callable[[Progress], None] | None = None,
    on_rows: Callable[[list[Row], dict[tuple[int, int], NDArray[np.float64]]], None] | None = None,
    **options: Any,
) -> Sensitivity:
    """The largest radius at which each frame alone may move, all others staying as they are:
    a small one tells a frame on which the answer hangs.

    `frames` are those to ask about; everything else, `options` too, is as for `certify`. All
    pairs of input and frame share batches. `progress` counts pairs, and counterexamples go
    by input and frame.
    """
    model = _model(model)
    began = now()
    asked = _question(model, x, y, norm, target, bounds, eps, scale, "all", 0, indices)
    shape = model.input_shape
    chosen = apart_of(frames, frame_axis, shape)
    whole, count = asked.query, len(chosen.chosen)
    masks = chosen.apart(shape) * (1.0 if whole.scale is None else whole.scale)
    stuck = [f for f, m in zip(chosen.chosen, masks, strict=True) if not m.any()]
    if stuck:
        raise InvalidInput(f"scale leaves frames {', '.join(map(str, stuck))} nowhere to move")
    pairs = np.repeat(np.arange(len(whole)), count)
    query = replace(whole.take(pairs), scale=np.tile(masks, (len(whole), *[1] * len(shape))))
    radii = None if asked.radii is None else asked.radii[pairs]

    def named(rows: list[Row]) -> list[Row]:
        return [
            replace(
                row,
                index=int(asked.numbers[row.index // count]),
                frames=str(chosen.chosen[row.index % count]),
            )
            for row in rows
        ]

    def keyed(found: dict[int, NDArray[np.float64]]) -> dict[tuple[int, int], NDArray[np.float64]]:
        return {
            (int(asked.numbers[k // count]), chosen.chosen[k % count]): point
            for k, point in found.items()
        }

    def finished(rows: list[Row], found: dict[int, NDArray[np.float64]]) -> None:
        if on_rows is not None:
            on_rows(named(rows), keyed(found))

    def file(k: int) -> str:
        return certificate_name(int(asked.numbers[k // count]), chosen.chosen[k % count])

    question = Question(query, radii, np.arange(len(query)), file)
    options["certificates"] = _folder(options.get("certificates"))
    search = Search(**options)
    plan = plan_for(model, search.dtype, search.device, search.proved(model))
    run, settings = answered(model, plan, question, search, search.clock(began), progress, finished)
    settings |= {"sensitivity": True, "frames": chosen.name, "frame_axis": chosen.axis}
    settings["scale"] = None if scale is None else "given"
    settings[KEY] = _statement(model, asked, target, search.deployed, chosen).facts()
    return Sensitivity(
        tuple(named(run.rows)),
        chosen.chosen,
        keyed(run.counterexamples),
        model.name,
        model.digest,
        settings,
        __version__,
    )


def statement(
    model: Model,
    x: ArrayLike,
    y: ArrayLike | None = None,
    *,
    norm: str | float = "inf",
    target: object = None,
    bounds: object = None,
    eps: ArrayLike | None = None,
    scale: object = None,
    frames: object = "all",
    frame_axis: int = 0,
    deployed: str | None = None,
    sensitivity: bool = False,
    indices: ArrayLike | None = None,
) -> Statement:
    """What the rows of `certify`, or of `sensitivity`, with these arguments are going to say.

    Raises InvalidInput for all that they refuse of these arguments.
    """
    apart = apart_of(frames, frame_axis, model.input_shape) if sensitivity else None
    where = ("all", 0) if sensitivity else (frames, frame_axis)
    question = _question(model, x, y, norm, target, bounds, eps, scale, *where, indices)
    return _statement(model, question, target, deployed, apart)


def _statement(
    model: Model,
    question: Question,
    target: object,
    deployed: str | None,
    apart: Frames | None = None,
) -> Statement:
    query, shape = question.query, model.input_shape
    frames = apart or query.frames
    mask = None if frames is None else frames.mask(shape)
    moving = np.ones(shape, bool) if mask is None else mask[0] > 0
    factors = np.ones(shape) if query.scale is None else np.broadcast_to(query.scale[0], shape)
    scale = None
    if query.scale is not None:
        free = factors[moving & (factors > 0)]
        scale = replace(
            Spread.of(factors, shape), least=float(free.min()), largest=float(free.max())
        )
    valid = query.range
    # Several normalisations are one: (x - mean) / std of the whole.
    mean, std = np.zeros(shape), np.ones(shape)
    for inner_mean, inner_std in model.normalisation:
        mean, std = mean + std * inner_mean, std * inner_std
    eps = None
    if question.radii is not None:
        same = (question.radii == question.radii[0]).all()
        eps = repr(float(question.radii[0])) if same else "one per input"
    kind = "all"
    if query.target is not None:
        named = isinstance(target, str) or np.ndim(target) == 0  # type: ignore[arg-type]
        kind = str(target).strip() if named else GIVEN
    return Statement(
        norm=query.p,
        frames="all" if frames is None else frames.name,
        frame_axis=0 if frames is None else frames.axis,
        sensitivity=apart is not None,
        scale=scale,
        fixed=int((moving & (factors == 0)).sum()),
        features=int(moving.sum()),
        lower=None if valid is None else Spread.of(valid.lower[0], shape),
        upper=None if valid is None else Spread.of(valid.upper[0], shape),
        mean=Spread.of(mean, shape) if model.normalisation else None,
        std=Spread.of(std, shape) if model.normalisation else None,
        target=kind,
        eps=eps,
        deployed=deployed or "",
    )


@in_plain_surroundings
def bound(
    model: Model | str | Path,
    x: ArrayLike,
    eps: ArrayLike,
    *,
    norm: str | float = "inf",
    method: str | Method = "crown",
    coef: ArrayLike | None = None,
    bounds: object = None,
    scale: object = None,
    frames: object = "all",
    frame_axis: int = 0,
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

    They are computed in plain floating point, of `dtype`, like radii of the level "estimate":
    right up to rounding. The result has `lower` and `upper` (N, K), the intermediate bounds and
    lines by layer, and the linear forms at the input.
    """
    model = _model(model)
    inputs = inputs_of(x, model.input_shape)
    none = np.zeros(len(inputs), dtype=np.int64)
    query = _query(model, inputs, none, None, norm, bounds, scale, frames, frame_axis, None)
    search = Search(
        method=method,
        group=group,
        wide=wide,
        rule=rule,
        steps=30 if steps is None else steps,
        tangents=tangents,
        boxes=boxes,
        workers=workers,
        hot=hot,
        device=device,
        memory=memory,
    )
    plan, chosen = plan_for(model, dtype, device), search.chosen()
    work = search.work(NO_LIMIT, Pool())
    graph = plan.graph
    if coef is None:
        functions = 2 * len(inputs) * model.classes
        least = functions * plan.row_bytes(graph.output)  # all forms are part of the answer
        if least > max(work.memory, LITTLE):
            raise InvalidInput(
                f"bounds of {model.classes} outputs, with their forms, of {len(inputs)} inputs "
                f"take {least >> 20:,} MiB, memory (--memory) is {work.memory >> 20:,}: give "
                "fewer inputs, functions (coef) or more memory"
            )
    rows = np.eye(model.classes) if coef is None else np.atleast_2d(numbers_of(coef, "coef"))
    if rows.ndim != 2 or rows.shape[1] != model.classes or not np.isfinite(rows).all():
        raise InvalidInput(f"coef must be finite and (K, {model.classes}), not {rows.shape}")
    radius = torch.from_numpy(radii_of(eps, len(inputs))).to(graph.dtype).to(graph.device)
    with torch.inference_mode():
        wanted = torch.from_numpy(rows).to(graph.dtype).to(graph.device)
        ball = query.region(graph).with_radius(radius)
        chosen.refuse(plan, query.p)
        with pool_of(search.workers if chosen.singly else 1) as pool:
            own = replace(work, pool=pool)
            return bounded(plan, ball, wanted, chosen, model.input_shape, own)


def _model(model: object) -> Model:
    """A model as `load` gives it; a path is loaded."""
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return load(model)
    kind = "torch module" if isinstance(model, torch.nn.Module) else type(model).__name__
    raise InvalidInput(
        f"a {kind} is no model to bound: give frown.load(path) or, of a torch module, "
        "frown.load(module, torch.zeros(1, ...)) with an example of its inputs"
    )


def _folder(path: object) -> Path | None:
    if path is None or isinstance(path, str | Path):
        return None if path is None else Path(path)
    raise InvalidInput(f"certificates must be a folder's path, not {path!r}")


def _question(
    model: Model,
    x: ArrayLike,
    y: ArrayLike | None,
    norm: str | float,
    target: object,
    bounds: object,
    eps: ArrayLike | None,
    scale: object,
    frames: object,
    frame_axis: int,
    indices: ArrayLike | None,
) -> Question:
    norm_of(norm)
    numbers = None if indices is None else indices_of(indices, np.shape(x)[0] if np.ndim(x) else 0)
    inputs = inputs_of(x, model.input_shape, numbers)
    answers = model.run(inputs).argmax(1) if y is None else y
    label = labels_of(answers, len(inputs), model.classes, numbers=numbers)
    if model.classes < 2:
        raise InvalidInput("the model has one output; a classifier has at least two classes")
    wrong = targets_of(target, label, model.classes, numbers)
    query = _query(model, inputs, label, wrong, norm, bounds, scale, frames, frame_axis, numbers)
    radii = None if eps is None else radii_of(eps, len(inputs))
    return Question(query, radii, np.arange(len(inputs)) if numbers is None else numbers)


def _query(
    model: Model,
    inputs: NDArray[np.float64],
    label: NDArray[np.int64],
    target: NDArray[np.int64] | None,
    norm: str | float,
    bounds: object,
    scale: object,
    frames: object,
    frame_axis: int,
    numbers: NDArray[np.int64] | None,
) -> Query:
    shape = model.input_shape
    moving = frames_of(frames, frame_axis, shape)
    factor = scale_of(scale, shape)
    mask = None if moving is None else moving.mask(shape)
    if mask is not None:
        factor = mask if factor is None else factor * mask
        if not factor.any():
            raise InvalidInput(f"scale is 0 in all frames that may move ({frames})")
    valid = range_of(bounds, inputs, numbers)
    return Query(inputs, label, target, norm_of(norm), valid, factor, moving)


def plan_for(
    model: Model, dtype: str = "float32", device: str = "cpu", graph: Graph | None = None
) -> Plan:
    """A network as the engines take it: simplified, in the wanted precision. `graph` is one of
    the model's, that of its outputs unless given."""
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InvalidInput(f"unknown dtype {dtype!r}; choose float32 or float64")
    try:
        where = torch.device(device)
        torch.zeros(1, device=where)
    except (RuntimeError, AssertionError, TypeError) as error:
        # A RuntimeError where it is misspelt or missing, an AssertionError where not built in.
        reason = str(error).splitlines()[0][:120]
        raise InvalidInput(f"device {device!r} is not available: {reason}") from None
    if where.type == "meta":
        raise InvalidInput("device 'meta' holds no numbers; choose cpu or cuda")
    given = model.graph if graph is None else graph
    key = ("plan", dtype, str(where), "outputs" if given is model.graph else "scores")
    if key not in model.memo:
        graph = simplify(given)
        if len(model.input_shape) < len(graph.input_shape):  # the model has a batch axis of its own
            graph = without_batch_axis(graph)
        model.memo[key] = Plan(graph.to(_DTYPES[dtype], where))
    plan: Plan = model.memo[key]
    return plan
