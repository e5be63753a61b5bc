"""What pages, cards, charts and the terminal say is the region and the property of the rows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import asking
import frown
from frown import cli
from frown.certification.results import Certification, Row
from frown.certification.statement import SAID, Spread, Statement, norm_name
from frown.errors import InvalidInput
from frown.jobs.options import flags
from frown.jobs.table import summary
from frown.report.comparison import Comparison, require_comparable
from frown.report.page import report_from_files, write_report
from frown.report.read import read_any
from onnx_models import model, node, saved, weights
from report.test_report import parse

FEATURES, CLASSES, COUNT = 16, 3, 4  # an image of 4 x 4, and a sequence of 4 frames
FREE = "no single number of the input changes by more than"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proto = model(
        [
            node("Flatten", "x", "f"),
            node("Gemm", "f w0 b0", "h", transB=1),
            node("Relu", "h", "a"),
            node("Gemm", "a w1 b1", "y", transB=1),
        ],
        ["N", 4, 4],
        {
            "w0": weights(8, FEATURES, seed=1),
            "b0": weights(8, seed=2),
            "w1": weights(CLASSES, 8, seed=3),
            "b1": weights(CLASSES, seed=4),
        },
    )
    return saved(proto, tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def data(net: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    x = np.random.default_rng(5).uniform(0.1, 0.9, (COUNT, 4, 4))
    y = np.asarray(frown.load(net).run(x)).argmax(1)
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "data.npz", x=x, y=y)
    np.save(folder / "scale.npy", np.linspace(0.0, 3.0, FEATURES).reshape(4, 4))
    np.save(folder / "targets.npy", (y + 1) % CLASSES)
    outputs = "".join(f"(declare-const Y_{k} Real)" for k in range(CLASSES))
    (folder / "unsafe.vnnlib").write_text(f"{outputs} (assert (>= Y_0 1e6))")
    return folder / "data.npz"


def command(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli.app, [str(a) for a in args])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def certified(net: Path, data: Path, out: Path, *options: object) -> str:
    """What the terminal shows; the results are in `out`."""
    given = ("--method", "crown", "--samples", "0:3", "--out", out)
    return " ".join(command("certify", net, data, *given, *options).stdout.split())


def page_of(out: Path, tmp_path: Path) -> str:
    """All that a page shows, tips and charts included."""
    page = parse(report_from_files([out], tmp_path / "page.html"))
    return " ".join(" ".join(page.text).split())


# Every option that changes what is said: how it is given, what must be said, what must not be.
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "norm": (("--norm", "1.9999996"), ("l1.9999996 norm",), ("Euclidean", "l₂", FREE)),
    "frames": (("--frames", "1:3"), ("only frames 1:3 may change",), ()),
    "frame_axis": (
        ("--frames", "each", "--frame-axis", "1"),
        ("in every frame (along axis 1) by itself",),
        (),
    ),
    "sensitivity": (("--sensitivity",), ("only one frame changes, and in it no single",), ()),
    "scale": (
        ("--scale", "SCALE"),
        ("times its own scale (0.2 to 3); 1 of 16 numbers may not change at all",),
        (f"{FREE} the radius.", f"{FREE} r level"),
    ),
    "fix": (
        ("--fix", "3,7"),
        ("; 2 of 16 numbers may not change at all",),
        (f"{FREE} the radius.",),
    ),
    "bounds": (("--bounds", "0", "1.5"), ("every number stays in its valid range [0, 1.5]",), ()),
    "eps": (("--eps", "0.001"), (), ("Mean radius",)),
    "output": (("--output", "y"), (), ()),
    "target": (
        ("--target", "TARGETS"),
        ("overtake the label",),
        ("alters the answer", "proved to stay so"),
    ),
    "threshold": (
        ("--multilabel", "--threshold", "0.25"),
        ("every output stays on its side of 0.25",),
        ("alters the answer",),
    ),
    "multilabel": (
        ("--multilabel",),
        ("every output stays on its side of 0.5",),
        ("alters the answer",),
    ),
    "within": (
        ("--within", "12.5%"),
        ("every output differs by less than 12.5% of that value",),
        ("alters the answer",),
    ),
    "top": (("--top", "2"), ("the label is among the 2 largest outputs",), ("alters the answer",)),
    "property": (
        ("--property", "UNSAFE"),
        ("what unsafe.vnnlib (sha256", "asserts of the outputs never holds"),
        ("alters the answer",),
    ),
    "divide": (("--divide", "2"), ("the data's units divided by 2",), ("own units",)),
    "mean": (("--mean", "0.25"), ("the model is given (x - 0.25) / 1",), ()),
    "std": (("--std", "1000000"), ("the model is given (x - 0) / 1000000",), ()),
    "level": (("--level", "estimate"), ("rounding errors are not accounted for",), ("rigorous",)),
    "deployed": (("--deployed", "float32"), ("float32",), ()),
}  # fmt: skip


# Options that change none of it.
UNSAID = {
    "inputs, which rows name": (
        *("model", "data", "labels", "label_column", "samples", "shape"),
        *("id_column", "drop", "class_names", "x_name", "y_name"),
    ),
    "search": (
        *("method", "tol", "group", "wide", "rule", "steps", "tangents", "boxes", "attack"),
        *("inner", "seconds", "gap", "score", "curved"),
    ),
    "machine": (
        *("threads", "workers", "cluster", "device", "dtype"),
        *("time_limit", "time_each", "memory", "batch"),
    ),
    "output": ("out", "certificates", "force", "resume", "fail_under", "quiet", "json"),
}


def test_every_option_of_certify_is_known_to_the_statement() -> None:
    """A new option must be told in words, or listed as one that changes nothing said."""
    options = {flag.name for flag in flags()} | {"model", "data", "quiet", "json"}
    said = {name for names in SAID.values() for name in names}
    unsaid = {name for names in UNSAID.values() for name in names}
    assert not said & unsaid
    assert options == said | unsaid
    assert set(CASES) == said


def filled(option: tuple[str, ...], data: Path) -> list[str]:
    files = {"SCALE": data.with_name("scale.npy"), "TARGETS": data.with_name("targets.npy")}
    files["UNSAFE"] = data.with_name("unsafe.vnnlib")
    return [str(files.get(part, part)) for part in option]


@pytest.mark.parametrize("name", CASES)
def test_an_option_is_told_on_the_page_and_on_the_terminal(
    name: str, net: Path, data: Path, tmp_path: Path
) -> None:
    option, wanted, banned = CASES[name]
    shown = certified(net, data, tmp_path / "out", *filled(option, data))
    page = page_of(tmp_path / "out", tmp_path)
    for text in wanted:
        assert text in page and text in shown, text
    for text in banned:
        assert text not in page and text not in shown, text
    if name == "eps":
        assert "Only the radius 0.001 was asked about" in page
    if name == "target":
        assert "All other classes are left aside" in page and "all others are left aside" in shown
    if name == "deployed":
        assert "Execution in float32 is covered" in page
    # The words come from the rows' files, and survive them.
    said = Statement.of(read_any(tmp_path / "out"))
    plain = Statement.of(read_any(_default(net, data, tmp_path)))
    assert name == "level" or said != plain
    assert Statement.read(json.loads(json.dumps(said.facts()))) == said


def _default(net: Path, data: Path, tmp_path: Path) -> Path:
    certified(net, data, tmp_path / "default")
    return tmp_path / "default"


def test_without_options_the_plain_sentence_stands(net: Path, data: Path, tmp_path: Path) -> None:
    page = page_of(_default(net, data, tmp_path), tmp_path)
    assert f"as long as {FREE} the radius." in page
    assert "alters the answer of the network" in page
    for text in ("scale", "overtake", "left aside", "valid range", "asked about", "divided"):
        assert text not in page, text


@pytest.mark.parametrize(
    ("norm", "sentence"),
    [
        (1.0, "all changes together, each divided by the scale of its number (0.5 to 2), added up"),
        (2.0, "the changes, each divided by the scale of its number (0.5 to 2), have, as a vector"),
        (3.0, "the changes, each divided by the scale of its number (0.5 to 2), have an l₃ norm"),
        (inf, "changes by more than the radius times its own scale (0.5 to 2)"),
    ],
)
def test_scales_are_told_in_every_norm(norm: float, sentence: str) -> None:
    assert sentence in Statement(norm, scale=Spread(0.5, 2.0, "ab")).allowed()
    tiny = Statement(inf, scale=Spread(1e-6, 1e-6, "ab")).allowed()
    assert tiny.endswith("changes by more than 1e-06 times the radius")
    assert "scale" not in Statement(norm, scale=Spread(1.0, 1.0, "ab")).allowed()


def test_a_norm_near_two_is_not_two() -> None:
    assert norm_name(1.9999996) == "l1.9999996"
    assert [norm_name(p) for p in (1.0, 2.0, inf, 12.0)] == ["l₁", "l₂", "l∞", "l₁₂"]


def test_cards_against_a_target_claim_no_other_answer(
    net: Path, data: Path, tmp_path: Path
) -> None:
    """The class that a targeted counterexample is read as is not known to be the target."""
    certified(net, data, tmp_path / "out", "--target", "+1", "--bounds", "0", "1")
    rows = read_any(tmp_path / "out").rows
    page = page_of(tmp_path / "out", tmp_path)
    broken = [row for row in rows if row.broken is not None and row.status == "certified"]
    assert broken
    for row in broken:
        assert f"{row.label} not above {row.target}" in page
    assert "misread" not in page


def test_results_of_python_say_the_same(net: Path, data: Path, tmp_path: Path) -> None:
    with np.load(data) as held:
        x, y = held["x"], held["y"]
    scale = np.load(data.with_name("scale.npy"))
    network = frown.load(net).normalised(0.25, 2.0)
    found = asking.certify(
        network, x[:3], y[:3], method="crown", scale=scale, target="+1", bounds=(0, 1), norm=1.5
    )
    options = ("--scale", data.with_name("scale.npy"), "--target", "+1", "--bounds", "0", "1")
    certified(net, data, tmp_path / "o", *options, "--norm", "1.5", "--mean", "0.25", "--std", "2")
    stored = read_any(tmp_path / "o")
    assert Statement.of(found) == Statement.of(stored)
    assert [r.input for r in found.rows] == [r.input for r in stored.rows]
    require_comparable({"a": found, "b": stored})
    text = write_report({"crown": found}, None, tmp_path / "p.html", "t").read_text()
    assert "times its own scale" not in text
    assert "each divided by the scale of its number (0.2 to 3)" in text


# -- what can be compared ------------------------------------------------------------------


DIFFERENT = {
    "norms": ("--norm", "2"),
    "frames that move": ("--frames", "0:2"),
    "scales": ("--scale", "SCALE"),
    "valid ranges": ("--bounds", "0", "1"),
    "units": ("--mean", "0.25"),
    "radii asked about": ("--eps", "0.001"),
    "targets": ("--target", "+1"),
    "kinds of execution": ("--deployed", "float32"),
    "units of the data": ("--divide", "2"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_runs_that_differ_in_region_property_or_units_are_refused(
    what: str, net: Path, data: Path, tmp_path: Path
) -> None:
    certified(net, data, tmp_path / "a")
    certified(net, data, tmp_path / "b", *filled(DIFFERENT[what], data))
    page = tmp_path / "page.html"
    message = command("report", tmp_path / "a", tmp_path / "b", "--out", page, code=2).stderr
    assert f"different {what.removesuffix(' of the data')}" in message
    assert not page.exists()


@pytest.mark.parametrize("ends", [("1", "2"), ("0.5", "1")])
def test_scales_of_one_extent_that_differ_are_refused(
    net: Path, data: Path, tmp_path: Path, ends: tuple[str, str]
) -> None:
    low, high = map(float, ends)
    forth = np.linspace(low, high, FEATURES).reshape(4, 4)
    np.save(tmp_path / "f.npy", forth)
    np.save(tmp_path / "b.npy", forth[::-1, ::-1])
    certified(net, data, tmp_path / "a", "--scale", tmp_path / "f.npy")
    certified(net, data, tmp_path / "b", "--scale", tmp_path / "b.npy")
    with pytest.raises(InvalidInput, match="different scales"):
        report_from_files([tmp_path / "a", tmp_path / "b"], tmp_path / "p.html")


def test_runs_on_other_data_are_refused(net: Path, data: Path, tmp_path: Path) -> None:
    with np.load(data) as held:
        x, y = held["x"].copy(), held["y"]
    certified(net, data, tmp_path / "a")
    x[2, 3, 3] = np.nextafter(x[2, 3, 3], 1)  # one number, by one bit
    np.savez(tmp_path / "other.npz", x=x, y=y)
    certified(net, tmp_path / "other.npz", tmp_path / "b")
    with pytest.raises(InvalidInput, match=r"different data\n.*input 2: "):
        report_from_files([tmp_path / "a", tmp_path / "b"], tmp_path / "p.html")
    # The same inputs in another file are the same data.
    np.savez_compressed(tmp_path / "same.npz", x=np.load(data)["x"], y=y, note=np.zeros(3))
    certified(net, tmp_path / "same.npz", tmp_path / "c", "--method", "frown")
    report_from_files([tmp_path / "a", tmp_path / "c"], tmp_path / "p.html")
    # Another label is another property.
    np.save(tmp_path / "y.npy", (y + 1) % CLASSES)
    certified(net, data, tmp_path / "d", "--labels", tmp_path / "y.npy")
    with pytest.raises(InvalidInput, match="different labels"):
        report_from_files([tmp_path / "a", tmp_path / "d"], tmp_path / "p.html")


def test_where_samples_differ_the_common_inputs_count(
    net: Path, data: Path, tmp_path: Path
) -> None:
    certified(net, data, tmp_path / "a")
    certified(net, data, tmp_path / "b", "--method", "frown", "--samples", "1:4")
    page = tmp_path / "page.html"
    shown = command("report", tmp_path / "a", tmp_path / "b", "--out", page)
    assert "CROWN 3, FROWN 3" in shown.stderr and "the 2 that all of them have" in shown.stderr
    text = page.read_text()
    assert "the 2 that all of them have" in text
    joined = Comparison.of({"crown": read_any(tmp_path / "a"), "frown": read_any(tmp_path / "b")})
    assert [e.index for e in joined.entries] == [1, 2]
    assert re.findall(r"<tr><td>(\d+)</td>", text) == ["1", "2"]


def test_rows_without_their_inputs_are_not_compared() -> None:
    row = Row(0, 1, 1, None, inf, "crown", "certified", 0.5, None, None, {}, 0.1)
    one = Certification((row,), digest="ab")
    with pytest.raises(InvalidInput, match="do not say which inputs"):
        Comparison.of({"crown": one, "frown": one})
    named = Certification((replace(row, input="cd"),), digest="ab")
    assert len(Comparison.of({"crown": named, "frown": named}).entries) == 1


def told(net: Path, folder: Path, where: object, holds: object = None) -> tuple[str, str]:
    """The terminal's summary and the page of a result made in Python."""
    found = frown.certify(net, where, holds, method="crown")
    lines = "\n".join(summary(found.rows, 1.0, Statement.of(found)))
    page = write_report({"crown": found}, None, folder / "page.html", "a").read_text("utf-8")
    return lines, re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_boxes_are_said_to_be_proved_as_a_whole_and_in_no_units_of_the_data(
    net: Path, tmp_path: Path
) -> None:
    x = np.full((2, 4, 4), 0.5)
    wide = np.array([0.001, 40.0]).reshape(2, 1, 1)
    lines, page = told(net, tmp_path, frown.Box(x - wide, x + wide))
    assert "50% at the whole box" in lines and "made narrower about its middle by" in lines
    assert "Radii are in boxes" in page and "Only boxes as a whole were asked about" in page
    assert "Mean radius" not in page and "frown certify" not in page


def test_radii_of_each_input_are_told_and_not_typed(net: Path, tmp_path: Path) -> None:
    ball = frown.Ball(np.full((2, 4, 4), 0.5)).at([0.001, 40.0])
    lines, page = told(net, tmp_path, ball)
    assert "50% at the radius of each input" in lines
    assert "frown certify" not in page


def test_inputs_are_not_said_to_be_classified_where_no_label_is_to_win(
    net: Path, tmp_path: Path
) -> None:
    lines, page = told(net, tmp_path, np.full((2, 4, 4), 0.5), frown.within("0.1"))
    assert "certified accuracy" not in lines and "proved: 100% at" in lines
    assert "lassified correctly" not in page and "With the property 100 %" in page
    assert "frown certify" not in page  # which would prove another property


# -- properties that words do not tell apart --------------------------------------------------


def _about(net: Path, condition: frown.Condition) -> Certification:
    x = np.random.default_rng(5).uniform(0.1, 0.9, (2, 4, 4))
    return frown.certify(net, frown.Ball(x), condition, method="crown", attack=None)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (frown.Clauses([[1.0, 0.0, 0.0]], 9.0), frown.Clauses([[0.0, 1.0, 0.0]], 9.0)),
        (frown.Clauses([[1.0, 0, 0]], 9.0, said="a"), frown.Clauses([[1.0, 0, 0]], 8.0, said="a")),
        (frown.multilabel(0, np.ones((2, 3))), frown.multilabel(0, np.zeros((2, 3)))),
        (frown.within(9, np.zeros((2, 3))), frown.within(9, np.ones((2, 3)))),
    ],
    ids=["literals", "constants", "labels", "values"],
)
def test_results_about_other_properties_are_not_compared(
    net: Path, first: frown.Condition, second: frown.Condition
) -> None:
    one, other = _about(net, first), _about(net, second)
    with pytest.raises(InvalidInput, match="different properties"):
        require_comparable({"crown": one, "frown": other})
    require_comparable({"crown": one, "frown": _about(net, first)})


def test_a_property_of_literals_is_written_out(net: Path) -> None:
    clauses = frown.Clauses([[1.0, 0, -0.5], [0, 1, 0], [0, 0, 1]], [0, 9, 9], [0, 0, 1])
    said = "1 y[0] + -0.5 y[2] > 0 or 1 y[1] + 9 > 0; 1 y[2] + 9 > 0 (sha256 "
    assert clauses.words.startswith(said)
    lines = Statement.of(_about(net, clauses)).lines()
    assert f"property: {clauses.words}" in lines


def test_sides_that_are_joined_with_another_condition_are_no_classes(tmp_path: Path) -> None:
    proto = model([node("ReduceMean", "x", axes=[1], keepdims=1)], ["N", 4])
    file = saved(proto, tmp_path)
    x = np.full((1, 4), 0.8)
    both = frown.threshold("0.5", [1]) & frown.within("0.9")
    (row,) = frown.certify(file, frown.Ball(x), both, method="crown").rows
    assert (row.label, row.prediction) in ((None, None), (1, 1))
    assert row.status == "certified"
