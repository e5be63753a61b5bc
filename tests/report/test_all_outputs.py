"""Every output beside every option that changes the meaning of rows: tables, pages, figures, files,
notebooks, `frown check` and bundles are held against what this file works out by itself from the
raw rows, and the rows against onnxruntime at points of their regions."""

from __future__ import annotations

import csv
import html
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from math import floor, inf
from pathlib import Path
from shutil import copytree
from statistics import mean, median
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnxruntime
import pytest
from typer.testing import CliRunner

import frown
from frown import cli
from frown.report.figures import KINDS, figure
from frown.report.page import report_from_files
from frown.report.read import read_any
from onnx_models import model, node, saved, weights

FRAMES, WIDE, CLASSES, COUNT = 3, 2, 3, 6
SCALE = np.array([[0.0, 0.5], [1.0, 2.0], [1.0, 1e-3]])
FEW = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0]])  # of inputs that are proved everywhere
LIMITS = "(declare-const Y_0 Real)(declare-const Y_1 Real)(declare-const Y_2 Real)"
UNSAFE = LIMITS + "(assert (or (and (>= Y_0 4.0)) (and (<= Y_1 -6.0) (>= Y_2 0.0))))"

Raw = dict[str, Any]
Holds = Callable[[np.ndarray, np.ndarray, Raw], bool]


def wins(y: np.ndarray, y0: np.ndarray, row: Raw) -> bool:
    others = [k for k in range(CLASSES) if k != row["label"]]
    others = others if row["target"] is None else [row["target"]]
    return all(y[row["label"]] > y[k] - 1e-4 for k in others)


def among_two(y: np.ndarray, y0: np.ndarray, row: Raw) -> bool:
    return sum(y[k] > y[row["label"]] + 1e-4 for k in range(CLASSES)) < 2


def near(y: np.ndarray, y0: np.ndarray, row: Raw) -> bool:
    return bool((abs(y - y0) < 0.3 + 1e-4).all())


def sides(y: np.ndarray, y0: np.ndarray, row: Raw) -> bool:
    return bool((((y > 0.25) == (y0 > 0.25)) | (abs(y - 0.25) < 1e-4)).all())


def safe(y: np.ndarray, y0: np.ndarray, row: Raw) -> bool:
    bad = y[0] >= 4 + 1e-4 or (y[1] <= -6 - 1e-4 and y[2] >= 1e-4)
    return not bad


@dataclass(frozen=True)
class Case:
    """Options, and what they mean to somebody who reads the documentation."""

    options: tuple[str, ...] = ()
    norm: float = inf
    scale: np.ndarray = field(default_factory=lambda: np.ones((FRAMES, WIDE)))
    frames: str = "all"
    low: float = -inf
    high: float = inf
    divide: float = 1.0
    mean: float = 0.0
    std: float = 1.0
    holds: Holds = wins
    eps: float | None = None
    said: tuple[str, ...] = ()  # on the terminal and on the page
    data: str = "data.npz"
    method: str = "crown"
    certified: bool = True  # there are certificates


MOVES = "no single number of the input changes by more than"
CASES = {
    "plain": Case(said=(MOVES,)),
    "one row": Case(("--samples", "2:3")),
    "all wrong": Case(data="wrong.npz"),
    "norm 1": Case(("--norm", "1"), norm=1, said=("all changes together, added up",)),
    "norm 2": Case(("--norm", "2"), norm=2, said=("a Euclidean length of at most",)),
    "norm 3": Case(("--norm", "3"), norm=3, said=("an l₃ norm of at most",)),
    "target": Case(("--target", "+1"), said=("overtake the label",)),
    "top": Case(("--top", "2"), holds=among_two, said=("among the 2 largest outputs",)),
    "within": Case(("--within", "0.3"), holds=near, said=("differs by less than 0.3 from",)),
    "multilabel": Case(
        ("--multilabel", "--threshold", "0.25"), holds=sides, said=("on its side of 0.25",)
    ),
    "property": Case(("--property", "UNSAFE"), holds=safe, said=("unsafe.vnnlib (sha256",)),
    "scale": Case(("--scale", "SCALE"), scale=SCALE, said=("times its own scale (0.001 to 2)",)),
    "tiny scale": Case(
        ("--scale", "1e-6"), scale=np.full((FRAMES, WIDE), 1e-6), said=("1e-06 times",)
    ),
    "fix": Case(
        ("--fix", "0,3"),
        scale=np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]),
        said=("2 of 6 numbers may not change at all",),
    ),
    "bounds": Case(("--bounds", "-0.1", "1.1"), low=-0.1, high=1.1, said=("range [-0.1, 1.1]",)),
    "narrow bounds": Case(
        ("--bounds", "0.05", "0.95", "--fix", "0,1,2,3"), low=0.05, high=0.95, scale=FEW
    ),
    "frames": Case(("--frames", "1:3"), frames="1:3", said=("only frames 1:3 may change",)),
    "frames each": Case(("--frames", "each"), frames="each", said=("in every frame by itself",)),
    "sensitivity": Case(("--sensitivity",), frames="one", said=("only one frame changes",)),
    "sensitivity eps": Case(("--sensitivity", "--eps", "0.02"), frames="one", eps=0.02),
    "sensitivity estimate": Case(
        ("--sensitivity", "--eps", "0.02", "--level", "estimate"),
        frames="one",
        eps=0.02,
        certified=False,
    ),
    "sensitivity everywhere": Case(
        ("--sensitivity", "--bounds", "0.05", "0.95", "--level", "estimate"),
        frames="one",
        low=0.05,
        high=0.95,
        certified=False,
    ),
    "eps": Case(("--eps", "0.1"), eps=0.1, said=("0.1",)),
    "eps 0": Case(("--eps", "0"), eps=0.0),
    "eps 0 estimate": Case(("--eps", "0", "--level", "estimate"), eps=0.0, certified=False),
    "eps beyond the range": Case(
        ("--eps", "1e30", "--bounds", "0.05", "0.95", "--fix", "0,1,2,3"),
        eps=1e30,
        low=0.05,
        high=0.95,
        scale=FEW,
    ),
    "divide": Case(("--divide", "4"), divide=4.0, said=("divided by 4",)),
    "mean and std": Case(
        ("--mean", "0.25", "--std", "0.5"), mean=0.25, std=0.5, said=("(x - 0.25) / 0.5",)
    ),
    "estimate": Case(("--level", "estimate"), certified=False),
    "checked": Case(("--level", "checked")),
    "deployed": Case(("--deployed", "float32"), certified=False, said=("float32",)),
    "deployed and checked": Case(
        ("--deployed", "float32", "--level", "checked"),
        said=("float32", "covered, which certificates are not about"),
    ),
    "no attack": Case(("--no-attack",)),
    "no attack, eps": Case(("--no-attack", "--eps", "0.1"), eps=0.1),
    "frown": Case(method="frown"),
    "branch": Case(method="branch"),
    "branch estimate": Case(("--level", "estimate"), method="branch", certified=False),
    "milp": Case(method="milp", certified=False),
    "lp": Case(method="lp"),
    "interval": Case(method="interval"),
    "time limit": Case(("--time-limit", "1e-4"), certified=False),
    "workers": Case(("--workers", "1")),
}


@dataclass(frozen=True)
class Told:
    """All that a run says."""

    case: Case
    folder: Path
    rows: list[Raw]
    table: list[Raw]  # of results.csv
    terminal: str
    page: str  # its words, without tips
    tips: list[str]

    @property
    def method(self) -> str:
        return str(self.rows[0]["method"])

    @property
    def alone(self) -> bool:
        return self.case.frames == "one"


@cache
def place() -> Path:
    folder = Path(mkdtemp())
    proto = model(
        [
            node("Flatten", "x", "f"),
            node("Gemm", "f w0 b0", "h", transB=1),
            node("Relu", "h", "a"),
            node("Gemm", "a w1 b1", "y", transB=1),
        ],
        ["N", FRAMES, WIDE],
        {
            "w0": weights(6, FRAMES * WIDE, seed=1),
            "b0": weights(6, seed=2),
            "w1": weights(CLASSES, 6, seed=3),
            "b1": weights(CLASSES, seed=4),
        },
    )
    net = saved(proto, folder)
    x = np.random.default_rng(5).uniform(0.1, 0.9, (COUNT, FRAMES, WIDE))
    y = answers(net, x).argmax(1)
    np.savez(folder / "wrong.npz", x=x, y=(y + 1) % CLASSES)
    y[1] = (y[1] + 1) % CLASSES  # is misclassified
    np.savez(folder / "data.npz", x=x, y=y)
    np.save(folder / "scale.npy", SCALE)
    (folder / "unsafe.vnnlib").write_text(UNSAFE)
    return folder


def answers(net: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(net, providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x.astype(np.float32)})[0]
    return np.asarray(found, np.float64)


def command(*args: object) -> str:
    ran = CliRunner().invoke(cli.app, [str(a) for a in args])
    assert ran.exit_code == 0, ran.output + repr(ran.exception)
    return str(ran.stdout)


@cache
def told(name: str) -> Told:
    case, files = CASES[name], place()
    folder = files / re.sub(r"\W+", "-", name)
    given = [{"UNSAFE": files / "unsafe.vnnlib", "SCALE": files / "scale.npy"}.get(o, o)
             for o in case.options]  # fmt: skip
    kept = ["--certificates", folder / "certificates"] if case.certified else []
    run = ["certify", files / "model.onnx", files / case.data, "--method", case.method, *given]
    terminal = command(*run, "--out", folder / "out", *kept)
    raw = (folder / "out" / "results.jsonl").read_text().splitlines()
    with (folder / "out" / "results.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    page = report_from_files([folder / "out"], folder / "page.html").read_text()
    tips = [html.unescape(t) for t in re.findall(r"<title>(.*?)</title>", page, re.S)]
    words = re.sub(r"(?s)<style>.*?</style>|<script>.*?</script>|<title>.*?</title>", " ", page)
    words = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", words)).split())
    return Told(case, folder, [json.loads(line) for line in raw], table, terminal, words, tips)


# -- what rows mean, worked out here -----------------------------------------------------------


def proved(row: Raw) -> bool:
    return row["status"] in ("certified", "robust") or (row["radius"] or 0.0) > 0


def reach(row: Raw) -> float:
    return inf if row["status"] == "robust" else float(row["radius"])


def share(rows: list[Raw], radius: float) -> float:
    return sum(proved(r) and reach(r) >= radius for r in rows) / len(rows)


def per_cent(value: float, places: int) -> float:
    return floor(100 * value * 10**places + 1e-6) / 10**places


def estimated(rows: list[Raw]) -> bool:
    return any(proved(r) and r["level"] == "estimate" for r in rows)


def points(case: Case, row: Raw, x0: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Points that a reader may take to be within the row's radius, the farthest ones first."""
    far = case.high - case.low if row["status"] == "robust" else float(row["radius"])
    if not np.isfinite(far):
        far = 10.0
    found = []
    for k in range(60):
        step = dice.normal(size=(FRAMES, WIDE)) if k % 2 else dice.choice([-1.0, 1.0], (FRAMES, 2))
        step = step * case.scale
        if case.frames == "one":
            step[[f for f in range(FRAMES) if f != int(row["frames"])]] = 0
        if case.frames == "1:3":
            step[0] = 0
        groups = [[f] for f in range(FRAMES)] if case.frames == "each" else [[*range(FRAMES)]]
        for group in groups:
            free = case.scale[group] > 0
            own = np.abs(step[group][free] / case.scale[group][free])
            size = own.max() if case.norm == inf else (own**case.norm).sum() ** (1 / case.norm)
            shrink = 1.0 if k < 40 else dice.random()
            step[group] *= far * shrink * (1 - 1e-9) / size if size else 0.0
        found.append(np.clip(x0 + step, case.low, case.high))
    return np.array(found)


@pytest.mark.parametrize("name", CASES)
def test_rows_hold_at_points_of_the_region_that_a_reader_is_told(name: str) -> None:
    run, dice = told(name), np.random.default_rng(0)
    case, net = run.case, place() / "model.onnx"
    data = np.load(place() / case.data)["x"] / case.divide

    def asked(x: np.ndarray) -> np.ndarray:
        return answers(net, (x - case.mean) / case.std)

    for row in run.rows:
        x0 = data[row["index"]]
        y0 = asked(x0[None])[0]
        if proved(row):
            for y in asked(points(case, row, x0, dice)):
                assert case.holds(y, y0, row), (row["index"], row["status"], row["radius"])
        if row["status"] == "misclassified" and row["target"] is None:
            assert row["label"] is None or row["prediction"] == y0.argmax()


@pytest.mark.parametrize("name", CASES)
def test_the_terminal_counts_and_averages_what_is_there(name: str) -> None:
    run = told(name)
    rows, text, case = run.rows, run.terminal, run.case
    if not run.alone:
        line = next(ln for ln in text.splitlines() if re.match(r"\d+ inputs? in ", ln))
        counted = {s: int(n) for n, s in re.findall(r"(\d+) ([a-z]+)", line.split(": ")[1])}
        assert counted == Counter(r["status"] for r in rows)
        assert int(line.split()[0]) == len(rows)
    radii = [r["radius"] for r in rows if r["status"] != "misclassified"]
    means = re.search(r"(\w+) radius: mean ([\d.e+-]+), median ([\d.e+-]+)", text)
    assert (means is not None) == (case.eps is None and bool(radii) and not run.alone)
    if means:
        for shown, truth in ((means[2], mean(radii)), (means[3], median(radii))):
            assert truth * (1 - 1e-3) <= float(shown) <= truth * (1 + 1e-15)
    for per, at in re.findall(r"(\d+)% at ([\d.e+-]+)", text):
        assert int(per) == per_cent(share(rows, float(at)), 0), at
    assert ("certified accuracy" in text) <= (case.holds is wins)


@pytest.mark.parametrize("name", CASES)
def test_no_output_calls_an_estimate_proved_or_hides_a_level(name: str) -> None:
    run = told(name)
    levels = {r["level"] for r in run.rows if proved(r)}
    result = read_any(run.folder / "out")
    shown = [run.terminal.replace("any number is proved", ""), repr(result)]
    shown += [] if run.alone else [result._repr_html_()]  # type: ignore[union-attr]
    if run.alone is False:
        drawn = [figure({run.method: result}, kind, 5.0) for kind in KINDS]  # type: ignore[dict-item]
        shown += [" ".join(_words(one)) for one in drawn]
    for text in shown:
        if levels == {"estimate"}:
            assert not re.search(r"\bproved\b(?! of it)", re.sub(r"nothing proved", "", text)), text
            assert not re.search(r"\bproofs? (of|distinguish)\b", text + run.page), text
            assert "estimate" in text
        elif levels:
            assert "estimate" not in text
    for level in levels:
        assert level in run.terminal and level in repr(result) and level in run.page
    assert ("these radii are no proofs" in run.page) == (levels == {"estimate"})
    assert ("nothing proved" in repr(result)) == (not levels)


def _words(drawn: Any) -> list[str]:
    found = []
    for axes in drawn.axes:
        found += [axes.get_xlabel(), axes.get_ylabel()]
        legend = axes.get_legend()
        found += [] if legend is None else [t.get_text() for t in legend.get_texts()]
    return found


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].frames != "one"])
def test_the_page_counts_and_averages_what_is_there(name: str) -> None:
    run = told(name)
    rows, case = run.rows, run.case
    right = [r for r in rows if r["status"] != "misclassified"]
    assert f"Inputs {len(rows)} model.onnx" in run.page
    assert f"{len(right)} of {len(rows)}" in run.page
    slices = [t.splitlines() for t in run.tips if t.startswith("radius ")]
    assert len(slices) == 120  # of two charts
    for first, *others in slices:
        at = float(first.split()[1])
        for line in others:
            found = re.fullmatch(r"(.*): ([\d.]+) %( \w+)?", line)
            assert found
            if found[1] == "not broken":
                alive = [r for r in right if r["broken"] is None or r["broken"] > at]
                assert float(found[2]) == per_cent(len(alive) / len(rows), 1)
            else:
                assert float(found[2]) == per_cent(share(rows, at), 1)
    attacked = "--no-attack" not in case.options
    for words in ("an attack searches", "not broken by the attack", "broken by the attack"):
        assert attacked or words not in run.page
    assert attacked or not any("not broken" in tip for tip in run.tips)
    starred = len(re.findall(r"(certified|unknown)\*", run.page))
    early = sum(not r["complete"] and r["status"] in ("certified", "unknown") for r in rows)
    assert starred == early == len(re.findall(r"(certified|unknown)\*", run.terminal))
    assert not re.search(r"(robust|misclassified|falsified|mismatch)\*", run.page + run.terminal)


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].frames == "one"])
def test_means_of_frames_are_brackets_of_the_same_inputs(name: str) -> None:
    run = told(name)
    proved_line = re.search(r"^mean (?:proved|estimated) .*", run.terminal, re.M)
    broken_line = re.search(r"^mean broken (.*)", run.terminal, re.M)
    tops = broken_line[1].split() if broken_line else []
    assert bool(proved_line) == (run.case.eps is None)
    assert bool(proved_line) == ("whose radius has an end" in run.page)
    shown = re.search(
        r"mean radius by frame ([^a-z(]*[^a-z( ,])", repr(read_any(run.folder / "out"))
    )
    assert shown
    for frame, low in enumerate(shown[1].split(", ")):
        ends = [r for r in run.rows if r["frames"] == str(frame)]
        ends = [r for r in ends if r["status"] not in ("robust", "misclassified")]
        assert (low == "–") == (not ends)
        assert not ends or float(low) <= mean(r["radius"] for r in ends)
        if len(tops) == FRAMES:  # no frame is left blank
            found = [r["broken"] for r in ends if r["broken"] is not None]
            assert (tops[frame] == "?") == (len(found) < len(ends))
            assert tops[frame] == "?" or mean(found) <= float(tops[frame]) <= 1.001 * mean(found)


@pytest.mark.parametrize("name", CASES)
def test_region_and_property_are_told_everywhere(name: str) -> None:
    run = told(name)
    flat = " ".join(run.terminal.split())
    for words in run.case.said:
        assert words in flat and words in run.page
    settings = run.rows[0]["settings"]["statement"]
    assert settings["norm"] == ("inf" if run.case.norm == inf else f"{run.case.norm:g}")
    if run.case.holds is not wins:
        for words in ("alters the answer", "classified correctly", "Certified accuracy"):
            assert words not in run.page and words not in flat
        assert "property: " in flat
    # Nothing is said to be proved by a line that stands there whatever was proved.
    assert not re.search(r"^proved: (?!\d)", run.terminal, re.M)


@pytest.mark.parametrize("name", CASES)
def test_files_and_python_agree(name: str) -> None:
    run = told(name)
    result = read_any(run.folder / "out")
    assert len(run.rows) == len(run.table) == len(result.rows)
    for raw, line, row in zip(run.rows, run.table, result.rows, strict=True):
        for key in ("index", "status", "level", "method", "remark", "frames", "input"):
            assert str(raw[key]) == line[key] == str(getattr(row, key)), key
        for key in ("radius", "broken", "failed", "seconds"):
            assert line[key] == ("" if raw[key] is None else repr(raw[key]))
        assert row.radius == raw["radius"] and row.broken == raw["broken"]
        assert raw["broken"] is None or raw["radius"] < raw["broken"] or not raw["broken"]
        for at in (0.0, raw["radius"], 1.5 * raw["radius"], 1e3):
            assert row.proves(at) == (share([raw], at) == 1)
    if isinstance(result, frown.Certification):
        radii = [r["radius"] for r in run.rows if r["status"] != "misclassified"]
        shown = re.search(r"mean radius ([\d.e+-]+)", repr(result))
        assert (shown is not None) == (run.case.eps is None and bool(radii))
        if shown:
            assert mean(radii) * (1 - 1e-3) <= float(shown[1]) <= mean(radii) * (1 + 1e-15)
        for at in (0.0, 0.05, 0.1, 0.5, 1e30):
            assert result.certified_accuracy(at) == share(run.rows, at)
        if run.case.eps is not None:
            counted = share(run.rows, run.case.eps)
            good = sum(r["status"] in ("certified", "robust") for r in run.rows) / len(run.rows)
            assert counted == good == result.certified_accuracy(run.case.eps)


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].certified])
def test_certificates_say_what_rows_say(name: str) -> None:
    run = told(name)
    rows = [r for r in run.rows if r["certificate"]]
    assert {r["index"] for r in rows} == {r["index"] for r in run.rows if proved(r)}
    if not rows:
        return
    net, data = place() / "model.onnx", place() / run.case.data
    folder = run.folder / "certificates"
    asked = ("check", folder, "--model", net, "--data", data, "--divide", run.case.divide)
    lines = command(*asked, "--json").splitlines()
    found = {Path(c["certificate"]).name: c for c in map(json.loads, lines)}
    text = command(*asked)
    assert "REFUSED" not in text and "ANOTHER" not in text
    out = run.folder / "bundle.zip"
    out.unlink(missing_ok=True)
    command("bundle", run.folder / "out", "--model", net, "--data", data, "--out", out)
    command("check", out)
    for row in rows:
        said = found[row["certificate"]]
        claim, case = said["claim"], run.case
        assert said["accepted"] and said["data"]["rows"] == [row["index"]]
        assert claim["radius"] == row["radius"] and claim["input"] == row["input"]
        assert claim["label"] == (row["label"] if case.holds is wins else None)
        assert claim["norm"] == ("inf" if case.norm == inf else case.norm)
        moving = case.scale > 0
        if case.frames == "one":
            moving = moving & (np.arange(FRAMES)[:, None] == int(row["frames"]))
        elif case.frames == "1:3":
            moving = moving & (np.arange(FRAMES)[:, None] > 0)
        assert claim["moving"] == moving.sum()
        furthest = row["radius"] * case.scale[moving].max()
        assert furthest <= claim["reach"]["largest"] <= furthest * (1 + 1e-9)
        for end, limit in (("lower", case.low), ("upper", case.high)):
            assert (claim[end] is None) == (not np.isfinite(limit))
            assert claim[end] is None or claim[end]["least"] == claim[end]["largest"] == limit


def test_brackets_without_an_upper_end_are_drawn_as_such() -> None:
    for name in ("no attack", "plain"):
        result = read_any(told(name).folder / "out")
        drawn = figure({"crown": result}, "brackets", 5.0)  # type: ignore[dict-item]
        lines = [line for line in drawn.axes[0].get_lines() if len(line.get_xdata()) == 2]
        attacked = name == "plain"
        assert len(lines) == COUNT - 1
        assert {line.get_linestyle() for line in lines} == {"-" if attacked else ":"}
        words = " ".join(_words(drawn))
        assert ("proved to broken" in words) == attacked
        assert ("no counterexample found" in words) == (not attacked)


def test_cards_and_tips_of_inputs_that_are_proved_everywhere_leave_nothing_open() -> None:
    from frown.report.comparison import Comparison
    from frown.report.gallery import _bracket

    result = read_any(told("narrow bounds").folder / "out")
    comparison = Comparison.of({"crown": result})  # type: ignore[dict-item]
    (entry,) = (e for e in comparison.entries if e.main.status == "robust")
    shown = _bracket(comparison, entry)
    assert 'class="proved" style="width:100.0%"' in shown and "proved any radius" in shown


def test_brackets_of_branching_without_a_counterexample_have_no_upper_end(tmp_path: Path) -> None:
    x = np.load(place() / "data.npz")["x"][:1]
    result = frown.certify(place() / "model.onnx", x, method="branch")
    row = replace(result.rows[0], broken=None, broken_before=None, radius_before=0.01)
    result = replace(result, rows=(row,), counterexamples={})
    page = result.report(tmp_path / "page.html").read_text()
    tips = [t for t in re.findall(r"<title>(.*?)</title>", page, re.S) if "leaves" in t]
    assert tips and all(t.count("to no counterexample found") == 2 for t in tips)
    assert page.count('stroke-dasharray="2 8"') == 4 and "any radius" not in page


def test_a_run_that_was_cut_short_says_so_and_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    whole, out = told("plain"), tmp_path / "out"
    copytree(whole.folder / "out", out)
    lines = (out / "results.jsonl").read_text().splitlines(keepends=True)
    (out / "results.jsonl").write_text("".join(lines[:4]))
    about = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps({**about, "state": "running"}))
    drawn = CliRunner().invoke(cli.app, ["plot", str(out), "--out", str(tmp_path / "a.svg")])
    assert f"interrupted: 4 of {COUNT} inputs" in drawn.stderr
    page = report_from_files([out], tmp_path / "page.html").read_text()
    assert f"interrupted: 4 of {COUNT} inputs; level: rigorous" in html.unescape(page)
    assert "Inputs</h3><strong>4<" in page
    files = place()
    run = ["certify", files / "model.onnx", files / "data.npz", "--method", "crown"]
    text = command(*run, "--out", out, "--resume", "--certificates", whole.folder / "certificates")
    again = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    for old, new in zip(whole.rows, again, strict=True):
        for key in ("index", "status", "radius", "broken", "level", "label", "prediction"):
            assert old[key] == new[key]
    assert f"{COUNT} inputs (4 of {COUNT} rows were there already, the others in" in text
    page = report_from_files([out], tmp_path / "page.html").read_text()
    assert "interrupted" not in page


def test_two_methods_on_one_page_are_told_apart(tmp_path: Path) -> None:
    runs = [told(name) for name in ("interval", "plain", "frown")]
    page = report_from_files([r.folder / "out" for r in runs], tmp_path / "page.html").read_text()
    tips = [html.unescape(t) for t in re.findall(r"<title>(.*?)</title>", page, re.S)]
    names = {"Interval": runs[0].rows, "CROWN": runs[1].rows, "FROWN": runs[2].rows}
    seen = Counter[str]()
    for first, *others in (t.splitlines() for t in tips if t.startswith("radius ")):
        at = float(first.split()[1])
        for line in others:
            method, _, per = line.partition(": ")
            rows = next((held for name, held in names.items() if name in method), None)
            if rows is not None:
                seen[method] += 1
                assert float(per.split()[0]) == per_cent(share(rows, at), 1)
    assert len(seen) == 3


def test_a_page_of_two_levels_says_which_run_has_which(tmp_path: Path) -> None:
    """Those of the run with the largest radii are not those of the others."""
    for one, other in (("checked", "interval"), ("checked", "estimate"), ("plain", "milp")):
        runs = [told(one), told(other)]
        folders = [tmp_path / f"{k}-{name}" for k, name in enumerate((one, other))]
        for run, folder in zip(runs, folders, strict=True):
            copytree(run.folder / "out", folder, dirs_exist_ok=True)
        page = html.unescape(report_from_files(folders, tmp_path / "page.html").read_text())
        sentence = re.search(r"Levels of the proofs: (.*?\))\. ", page)
        assert sentence, (one, other)
        assert len(re.findall(r"\b(?:CROWN|Interval|MILP)[^:;]*: ", sentence[1])) == 2
        for run in runs:
            assert run.rows[0]["level"] in sentence[1]
