"""Frames of sequences as they are shown: the command line, files, tables and the report."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import asking
import frown
from frown.certification.results import Row
from frown.certification.statement import KEY, Statement, moving
from frown.errors import InvalidInput
from frown.jobs.table import ACROSS, frames_summary, frames_tables
from frown.report.frames import Shades, frames_section, means
from frown.report.page import report_from_files, write_report
from frown.report.read import read_any, read_results
from methods.programs.tools import command
from onnx_models import model as onnx_model
from onnx_models import node, saved, weights
from report.test_report import parse

FRAMES, WIDTH = 3, 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unrolled recurrent network and data, with one wrong label."""
    here = tmp_path_factory.mktemp("frames")
    nodes, before = [], ""
    for t in range(FRAMES):
        nodes += [
            node("Gather", f"x at{t}", f"x{t}", axis=1),
            node("Gemm", f"x{t} w b", f"i{t}", transB=1),
        ]
        if before:
            nodes += [node("Gemm", f"{before} u", f"r{t}"), node("Add", f"i{t} r{t}", f"z{t}")]
        nodes.append(node("Tanh", f"z{t}" if before else f"i{t}", f"h{t}"))
        before = f"h{t}"
    nodes.append(node("Gemm", f"{before} v c", "y", transB=1))
    constants = {
        "w": weights(5, WIDTH, seed=1),
        "b": weights(5, seed=2),
        "u": weights(5, 5, seed=3),
        "v": weights(3, 5, seed=4),
        "c": weights(3, seed=5),
        **{f"at{t}": np.array(t, dtype=np.int64) for t in range(FRAMES)},
    }
    path = saved(onnx_model(nodes, ["N", FRAMES, WIDTH], constants), here)
    x = np.random.default_rng(3).uniform(0.2, 0.8, (4, FRAMES, WIDTH))
    y = frown.load(path).run(x).argmax(1)
    y[2] = (y[2] + 1) % 3
    np.savez(here / "data.npz", x=x, y=y)
    return here


def net(folder: Path) -> Path:
    return next(folder.glob("*.onnx"))


def test_the_command_line_with_balls_per_frame(folder: Path, tmp_path: Path) -> None:
    given = ("certify", net(folder), folder / "data.npz", "--norm", 2, "--method", "crown")
    command(*given, "--frames", "each of 0:2", "--out", tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [r["frames"] for r in rows] == ["each of 0:2"] * 4
    assert rows[0]["settings"]["frames"] == "each of 0:2" and rows[0]["settings"]["frame_axis"] == 0
    with np.load(folder / "data.npz") as data:
        expected = asking.certify(
            frown.load(net(folder)),
            data["x"],
            data["y"],
            norm=2,
            frames="each of 0:2",
            method="crown",
        )
    assert np.allclose([r["radius"] for r in rows], expected.radius, rtol=0.02)
    read = read_results(tmp_path)
    assert read.rows[0].frames == "each of 0:2"
    page = "".join(parse(report_from_files([tmp_path], tmp_path / "page.html")).text)
    assert "only frames 0:2 may change" in page


def test_sensitivity_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    given = ("certify", net(folder), folder / "data.npz", "--norm", 2, "--method", "crown")
    shown = command(*given, "--sensitivity", "--out", tmp_path / "s").stdout
    lines = shown.splitlines()
    assert lines[0].split() == ["index", "label", "frame", "0", "1", "2"]
    found = read_any(tmp_path / "s")
    assert isinstance(found, frown.Sensitivity)
    assert found.radius.shape == (4, FRAMES)
    assert [float(cell) for cell in lines[1].split()[2:]] == pytest.approx(
        found.radius[0], rel=1e-3
    )
    assert lines[3].split()[2:] == ["wrong"] * FRAMES
    right = found.radius[[0, 1, 3]].mean(0)
    assert [float(cell) for cell in lines[5].split()[2:]] == pytest.approx(right, rel=1e-3)
    least = found.radius[[0, 1, 3]].argmin(1).tolist()
    often = max(least, key=least.count)
    assert f"least radius proved: in frame {often}, for {least.count(often)} of 3 inputs" in shown
    with np.load(tmp_path / "s" / "counterexamples.npz") as held:
        assert held["frame"].tolist() == [f for _, f in found.counterexamples]
        assert len(held["x"]) == len(held["index"]) == len(found.counterexamples) > 0
    with pytest.raises(InvalidInput, match="radii of frames alone"):
        read_results(tmp_path / "s")
    checked = command(*given, "--sensitivity", "--frames", "1:", "--eps", 1e-4).stdout
    assert checked.splitlines()[1].split()[2:] == ["proved", "proved"]
    assert "checked at 0.0001" in checked
    as_json = command(*given, "--sensitivity", "--frames", 1, "--json").stdout.splitlines()
    assert [json.loads(line)["frames"] for line in as_json] == ["1"] * 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--frames", "3"), "frame 3 is out of range"),
        (("--frames", "each", "--frame-axis", "2"), "none of the 2 axes"),
        (("--frames", "each", "--sensitivity"), "one frame at a time"),
        (("--frames", "some"), "each of 0:3"),
    ],
)
def test_refusals_on_the_command_line(folder: Path, options: tuple[str, ...], words: str) -> None:
    refused = command("certify", net(folder), folder / "data.npz", *options, code=2)
    assert words in refused.stderr and len(refused.stderr.strip().splitlines()) == 1


def test_many_frames_go_into_several_tables() -> None:
    rows = [
        Row(i, 0, 0, None, 2.0, "crown", "certified", 0.1, None, None, {}, 0.0, frames=str(f))
        for i in range(2)
        for f in range(ACROSS + 2)
    ]
    tables = list(frames_tables(rows, Statement(2.0), None))
    assert [len(t.columns) for t in tables] == [2 + ACROSS, 4]


def test_names_of_features_are_not_cut_off() -> None:
    names = tuple(f"mean_of_the_{k}_measurement" for k in ("first", "second", "third", "fourth"))
    said = Statement(2.0, sensitivity=True, part="feature", parts=names)
    rows = [
        Row(0, 0, 0, None, 2.0, "crown", "certified", 0.1, None, None, {}, 0.0, frames=str(f))
        for f in range(4)
    ]
    console = Console(width=80, file=StringIO())
    for table in frames_tables(rows, said, None):
        console.print(table)
    assert all(name in console.file.getvalue() for name in names)  # type: ignore[attr-defined]


def test_one_input_has_its_counterexamples_below_and_several_have_means() -> None:
    rows = [
        Row(i, 0, 0, None, 2.0, "crown", "certified", 0.1, None, 0.2, {}, 0.0, frames=str(f))
        for i in range(2)
        for f in range(3)
    ]
    assert "mean estimated" in map(
        str, next(frames_tables(rows, Statement(2.0), 1)).columns[0].cells
    )
    rows = [replace(row, level="rigorous") for row in rows]
    one, two = (next(frames_tables(r, Statement(2.0), None)) for r in (rows[:3], rows))
    assert list(map(str, one.columns[0].cells)) == ["0", "broken"]
    assert list(map(str, two.columns[0].cells)) == ["0", "1", "mean proved", "mean broken"]
    assert str(list(one.columns[3].cells)[1]) == "0.2"


def test_means_of_both_ends_are_about_the_same_inputs(tmp_path: Path) -> None:
    """Or a mean of what is proved can stand above one of the few counterexamples found."""
    row = Row(
        0, 0, 0, None, 2.0, "crown", "certified", 0.125, None, 0.25, {}, 0.0, level="rigorous"
    )
    far = replace(row, radius=0.875, broken=None)
    rows = [
        replace(row, index=0, frames="0"),
        replace(row, index=1, frames="0", radius=0.25, broken=0.5),
        replace(row, index=0, frames="1", radius=0.125, broken=0.25),
        replace(far, index=1, frames="1"),
        replace(far, index=0, frames="2", status="robust"),
        replace(far, index=1, frames="2", status="robust"),
    ]
    said = Statement(2.0, sensitivity=True)
    (table,) = frames_tables(rows, said, None)
    cells = [list(map(str, column.cells))[2:] for column in table.columns[2:]]
    assert cells == [["0.1875", "0.375"], ["0.5", "?"], ["", ""]]
    lines = frames_summary(rows, 1.0, said)
    assert "mean broken: ? where an input of the mean above it has no counterexample" in lines
    assert any(line.startswith("any: ") and line.endswith("and in no mean") for line in lines)
    found = frown.Sensitivity(tuple(rows), (0, 1, 2))
    assert "0.187, 0.5, – (without 2 robust of 6 rows), rigorous" in repr(found)
    page = frames_section("crown", found, None)
    assert page.count('<i class="ghost" style="height:0') == 2
    assert "whose radius has an end, grey where each of them has a counterexample" in page
    settings = {KEY: replace(said, eps="0.1").facts()}
    asked = replace(found, settings=settings)  # all radii are eps, or 0
    page = frames_section("crown", asked, None)
    assert "The bars" not in page and "profile" not in page


def test_the_report_shows_every_radius(folder: Path, tmp_path: Path) -> None:
    given = ("certify", net(folder), folder / "data.npz", "--norm", 2, "--method", "crown", "-q")
    command(*given, "--sensitivity", "--out", tmp_path / "s")
    command(*given, "--frames", "each", "--out", tmp_path / "e")
    found = read_any(tmp_path / "s")
    assert isinstance(found, frown.Sensitivity)
    page = parse(report_from_files([tmp_path / "s"], tmp_path / "frames.html"))
    cells = [dict(a) for tag, a in page.tags if tag == "td" and "title" in a]
    assert len(cells) == 4 * FRAMES
    shades = Shades.of(found)
    for cell, row in zip(cells, found.rows, strict=True):
        assert f"input {row.index}, frame {row.frames}: " in str(cell["title"])
        if row.status == "certified":
            assert f"--d:{shades.depth(row.radius):.0f}%" == cell["style"]
    assert shades.depth(shades.least) > shades.depth((shades.least * shades.most) ** 0.5) > 0
    assert shades.depth(shades.most) == 0
    pictures = [a for tag, a in page.tags if tag == "img"]
    assert len(pictures) == 4 * FRAMES
    text = "".join(page.text)
    for mean, _ in means(found):
        assert mean is not None
        exact = Decimal(mean)
        digit = Decimal(10) ** (exact.adjusted() - 2)
        assert str(exact.quantize(digit, ROUND_FLOOR)) in text
    both = "".join(parse(report_from_files([tmp_path / "e", tmp_path / "s"], tmp_path / "b")).text)
    assert "Certified accuracy" in both and "one at a time" in both
    assert "in every frame by itself" in both


def test_reports_that_make_no_sense(folder: Path, tmp_path: Path) -> None:
    model = frown.load(net(folder))
    with np.load(folder / "data.npz") as data:
        x = data["x"]
    found = asking.sensitivity(model, x, method="crown", attack=False)
    whole = asking.certify(model, x, method="crown", attack=False)
    out = tmp_path / "page.html"
    write_report({"crown": whole}, None, out, "t", frames={"crown": found}, sequences=x)
    other = frown.Sensitivity(found.rows, found.frames, digest="another")
    with pytest.raises(InvalidInput, match="different models"):
        write_report({"crown": whole}, None, out, "t", frames={"crown": other})
    with pytest.raises(InvalidInput, match="empty"):
        write_report({}, None, out, "t", frames={"crown": frown.Sensitivity((), ())})
    each = asking.certify(model, x, method="crown", frames="each", attack=False)
    with pytest.raises(InvalidInput, match="different frames that move"):
        write_report({"crown": whole, "frown": each}, None, out, "t")


def test_words_for_what_moves() -> None:
    assert moving("all") == ""
    assert moving("each") == "in every frame by itself "
    assert moving("3") == "only frame 3 may change, and "
    assert moving("each of 0,2") == "only frames 0,2 may change, and in each of them by itself "
