"""Frames of sequences from the outside: Python, the command line, files and the report."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import frown
from frown.errors import InvalidInput
from frown.frontends.model import Model
from frown.query.frames import Frames, apart_of, frames_of
from frown.report.frames import Shades, means, moving
from frown.report.page import report_from_files, write_report
from frown.report.read import read_any, read_results
from onnx_models import model as onnx_model
from onnx_models import node, saved, weights
from programs.tools import command
from test_report import parse

FRAMES, WIDTH = 3, 2


class Reader(nn.Module):
    """A recurrent classifier of three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.RNN(WIDTH, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(x)[0][:, -1])


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(2)
    reader = Reader().eval()
    with torch.no_grad():
        for weight in reader.parameters():
            weight.mul_(1.6)
    return frown.load(reader, torch.zeros(1, FRAMES, WIDTH))


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(4).uniform(-1, 1, (4, FRAMES, WIDTH))


def ball_points(
    centre: np.ndarray, radius: float, p: float, frames: list[int], each: bool
) -> np.ndarray:
    """Points on the surface of a region, by numpy alone."""
    rng = np.random.default_rng(0)
    step = rng.normal(size=(2000, *centre.shape))
    if p == inf:
        step = np.sign(step)
    step[:, [f for f in range(FRAMES) if f not in frames]] = 0
    size = (
        np.linalg.norm(step, ord=p, axis=2, keepdims=True)
        if each
        else np.linalg.norm(step.reshape(len(step), -1), ord=p, axis=1)[:, None, None]
    )
    return centre + 0.9999 * radius * step / np.where(size > 0, size, 1.0)


CASES: list[tuple[object, list[int], bool]] = [
    ("each", [0, 1, 2], True),
    (1, [1], False),
    ("0:2", [0, 1], False),
    ([0, 2], [0, 2], False),
    ("each of 1:3", [1, 2], True),
]


@pytest.mark.parametrize("p", [1, 2, 3, inf])
@pytest.mark.parametrize(("frames", "moved", "each"), CASES, ids=[str(c[0]) for c in CASES])
def test_a_proved_region_holds_and_counterexamples_lie_in_theirs(
    model: Model, x: np.ndarray, p: float, frames: object, moved: list[int], each: bool
) -> None:
    result = frown.certify(model, x, norm=p, frames=frames, bounds=(-3, 3), method="crown")
    label = model.run(x).argmax(1)
    assert (result.radius > 0).all() and (result.radius <= result.broken).all()
    for n, row in enumerate(result.rows):
        points = ball_points(x[n], row.radius, p, moved, each).clip(-3, 3)
        assert (model.run(points).argmax(1) == label[n]).all()
    assert result.counterexamples
    for n, point in result.counterexamples.items():
        step = point - x[n]
        assert (step[[f for f in range(FRAMES) if f not in moved]] == 0).all()
        sizes = np.linalg.norm(step, ord=p, axis=1) if each else [np.linalg.norm(step.ravel(), p)]
        assert max(sizes) == pytest.approx(result.broken[n])
        assert model.run(point[None]).argmax() != label[n]


def test_fewer_frames_and_smaller_balls_are_larger_radii(model: Model, x: np.ndarray) -> None:
    """each <= all <= each frame alone, and a ball of l_inf is the same either way."""

    def radius(frames: object, norm: float) -> np.ndarray:
        found = frown.certify(
            model, x, norm=norm, frames=frames, attack=False, method="crown", tol=0.001
        )
        return found.radius

    each, whole = radius("each", 2), radius("all", 2)
    assert (each < whole).all()
    assert (whole <= each * FRAMES**0.5 * 1.01).all()
    for frame in range(FRAMES):
        assert (whole <= radius(frame, 2) * 1.01).all()
    assert np.allclose(radius("each", inf), radius("all", inf))
    assert np.allclose(radius("each of 1", 2), radius(1, 2))


@pytest.mark.parametrize("p", [1, 2, inf])
def test_methods_agree_on_frames(model: Model, x: np.ndarray, p: float) -> None:
    options: dict[str, Any] = {"norm": p, "frames": "each of 0:2", "attack": False}
    options |= {"dtype": "float64", "boxes": "frown"}
    crown, tight, lp = (
        frown.certify(model, x[:1], method=m, **options).radius for m in ("crown", "frown", "lp")
    )
    assert (crown <= tight * 1.001).all() and (tight <= lp * 1.05).all()
    assert (lp <= crown * 3).all()


@pytest.mark.parametrize("p", [1, inf])
def test_the_exact_distance_of_frames(p: float) -> None:
    """milp closes the bracket, and what it calls proved is proved in the region it names."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    small = frown.load(net, torch.zeros(1, FRAMES, WIDTH))
    x = np.random.default_rng(1).uniform(-1, 1, (2, FRAMES, WIDTH))
    label = small.run(x).argmax(1)
    for frames, moved in (("each", [0, 1, 2]), ("each of 0,2", [0, 2])):
        exact = frown.certify(small, x, norm=p, frames=frames, method="milp")
        loose = frown.certify(small, x, norm=p, frames=frames, method="crown", attack=False)
        assert all(row.remark == "" for row in exact.rows)
        assert (exact.radius >= loose.radius * 0.999).all()
        assert (exact.broken <= exact.radius * 1.01).all()
        for n in range(2):
            points = ball_points(x[n], exact.radius[n], p, moved, each=True)
            assert (small.run(points).argmax(1) == label[n]).all()
            step = exact.counterexamples[n] - x[n]
            assert np.linalg.norm(step, ord=p, axis=1).max() == pytest.approx(exact.broken[n])


def test_sensitivity_is_every_frame_alone(model: Model, x: np.ndarray) -> None:
    seen = []
    found = frown.sensitivity(
        model, x, norm=2, method="crown", indices=[7, 3, 5, 1], progress=seen.append, batch=5
    )
    assert found.radius.shape == found.broken.shape == (4, FRAMES)
    assert found.index == [7, 3, 5, 1] and found.frames == (0, 1, 2)
    assert seen[-1].done == seen[-1].total == 4 * FRAMES
    for frame in range(FRAMES):
        alone = frown.certify(model, x, norm=2, frames=frame, method="crown")
        assert np.allclose(found.radius[:, frame], alone.radius, rtol=0.02)
        assert [r.frames for r in alone.rows] == [str(frame)] * 4
    assert (found.radius <= found.broken).all()
    for (index, frame), point in found.counterexamples.items():
        moved = (point != x[found.index.index(index)]).any(1)
        assert np.flatnonzero(moved).tolist() == [frame]
    row = found.row(3, 2)
    assert row is not None and row.radius == found.radius[1, 2]
    assert found.row(3, 9) is None
    assert "Sensitivity of 4 inputs" in repr(found)


def test_sensitivity_takes_what_certify_takes(model: Model, x: np.ndarray) -> None:
    scale = np.ones((FRAMES, WIDTH))
    scale[:, 0] = 0
    label = model.run(x).argmax(1)
    eps = np.array([0.01, 0.02, 0.03, 0.04])
    rows = []
    found = frown.sensitivity(
        model,
        x,
        label,
        frames=[2, 0],
        scale=scale,
        eps=eps,
        target=(label + 1) % 3,
        bounds=(-2, 2),
        method="crown",
        on_rows=lambda fresh, _: rows.extend(fresh),
    )
    assert found.frames == (0, 2) and rows == list(found.rows)
    assert [r.target for r in rows] == np.repeat((label + 1) % 3, 2).tolist()
    assert {r.status for r in rows} <= {"certified", "falsified", "unknown"}
    assert (found.radius <= eps[:, None]).all()
    for (index, _), point in found.counterexamples.items():
        assert (point[:, 0] == x[index][:, 0]).all()
    assert found.settings["sensitivity"] and found.settings["frames"] == "0,2"


def test_bound_over_frames(model: Model, x: np.ndarray) -> None:
    for frames, moved, each in CASES:
        out = frown.bound(model, x[:1], 0.3, norm=2, frames=frames, method="crown")
        answers = model.run(ball_points(x[0], 0.3, 2, moved, each))
        assert (out.lower[0] <= answers + 1e-5).all() and (answers <= out.upper[0] + 1e-5).all()
    rows, columns = (
        frown.bound(model, x, 0.3, norm=2, frames="each", frame_axis=k).lower for k in (0, 1)
    )
    last = frown.bound(model, x, 0.3, norm=2, frames="each", frame_axis=-1).lower
    assert np.array_equal(columns, last)
    assert (rows != columns).all()


@pytest.mark.parametrize(
    ("given", "chosen", "each", "name"),
    [
        ("each", (0, 1, 2, 3), True, "each"),
        (" EACH ", (0, 1, 2, 3), True, "each"),
        (2, (2,), False, "2"),
        (-1, (3,), False, "3"),
        ("0:3", (0, 1, 2), False, "0:3"),
        ("1:", (1, 2, 3), False, "1:4"),
        (":", (0, 1, 2, 3), False, "all"),
        (slice(None, None, 2), (0, 2), False, "0,2"),
        ("3,0", (0, 3), False, "0,3"),
        ([3, 0], (0, 3), False, "0,3"),
        (np.array([1, 2]), (1, 2), False, "1:3"),
        (range(2), (0, 1), False, "0:2"),
        ("each of 0,2:4", (0, 2, 3), True, "each of 0,2,3"),
    ],
    ids=str,
)
def test_ways_to_name_frames(given: object, chosen: tuple[int, ...], each: bool, name: str) -> None:
    found = frames_of(given, 0, (4, 5))
    assert found == Frames(0, 4, chosen, each)
    assert found.name == name
    if name != "all":
        assert frames_of(name, 0, (4, 5)) == found
    mask = found.mask((4, 5))
    expected = np.isin(np.arange(4), chosen)
    assert mask is None or np.array_equal(mask[0], np.repeat(expected[:, None], 5, 1))
    assert (mask is None) == expected.all()


def test_frames_along_another_axis() -> None:
    found = frames_of("each of 1", -1, (1, 3, 4))
    assert found is not None and (found.axis, found.count) == (2, 4)
    mask = found.mask((1, 3, 4))
    assert mask is not None and np.array_equal(np.argwhere(mask[0].any((0, 1))), [[1]])
    assert frames_of("all", 99, ()) is None
    assert apart_of("all", 1, (1, 3, 4)).chosen == (0, 1, 2)
    assert apart_of("0:2", 1, (1, 3, 4)).apart((1, 3, 4)).sum() == 8


@pytest.mark.parametrize(
    ("frames", "axis", "shape", "words"),
    [
        (4, 0, (4, 5), "frame 4 is out of range: inputs of shape (4, 5) have 4 frames"),
        ("0:9", 0, (4, 5), "0:9 are out of range"),
        ("3:3", 0, (4, 5), "3:3 chooses none"),
        ("1,1", 0, (4, 5), "names a frame twice"),
        ("every", 0, (4, 5), 'give "all", "each"'),
        ("each of", 0, (4, 5), 'give "all", "each"'),
        (1.5, 0, (4, 5), 'give "all", "each"'),
        (True, 0, (4, 5), 'give "all", "each"'),
        ([1.0], 0, (4, 5), 'give "all", "each"'),
        (slice(0.5, 2), 0, (4, 5), 'give "all", "each"'),
        ("0:4:0", 0, (4, 5), 'give "all", "each"'),
        (None, 0, (4, 5), 'give "all", "each"'),
        ("each", 2, (4, 5), "none of the 2 axes"),
        ("each", 0.5, (4, 5), "must be a whole number"),
        ("each", 0, (1, 28, 28), "frame_axis=1 (--frame-axis 1)"),
        ("each", 0, (), "has no frames"),
    ],
    ids=str,
)
def test_frames_that_make_no_sense(frames: object, axis: Any, shape: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        frames_of(frames, axis, shape)
    assert words in str(refused.value)


def test_scale_must_leave_frames_to_move(model: Model, x: np.ndarray) -> None:
    scale = np.ones((FRAMES, WIDTH))
    scale[1] = 0
    with pytest.raises(InvalidInput, match="scale is 0 in all frames"):
        frown.certify(model, x, frames=1, scale=scale)
    with pytest.raises(InvalidInput, match="leaves frames 1 nowhere to move"):
        frown.sensitivity(model, x, scale=scale)
    with pytest.raises(InvalidInput, match="one frame at a time"):
        frown.sensitivity(model, x, frames="each of 0:2")


# -- files, command line, report -------------------------------------------------------


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
        expected = frown.certify(
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
    assert f"least radius proved: in frame {often}, for {least.count(often)} of 4 inputs" in shown
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
    from frown.results import Row
    from frown.run.table_frames import ACROSS, frames_tables

    rows = [
        Row(i, 0, 0, None, 2.0, "crown", "certified", 0.1, None, None, {}, 0.0, frames=str(f))
        for i in range(2)
        for f in range(ACROSS + 2)
    ]
    tables = list(frames_tables(rows, None, None))
    assert [len(t.columns) for t in tables] == [2 + ACROSS, 4]


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
    for mean in means(found, lambda row: row.radius):
        assert mean is not None and f"{mean:.3g}"[:4] in text
    both = "".join(parse(report_from_files([tmp_path / "e", tmp_path / "s"], tmp_path / "b")).text)
    assert "Certified accuracy" in both and "one at a time" in both
    assert "in every frame by itself" in both


def test_reports_that_make_no_sense(
    folder: Path, model: Model, x: np.ndarray, tmp_path: Path
) -> None:
    found = frown.sensitivity(model, x, method="crown", attack=False)
    whole = frown.certify(model, x, method="crown", attack=False)
    out = tmp_path / "page.html"
    write_report({"crown": whole}, None, out, "t", frames={"crown": found}, sequences=x)
    other = frown.Sensitivity(found.rows, found.frames, digest="another")
    with pytest.raises(InvalidInput, match="different models"):
        write_report({"crown": whole}, None, out, "t", frames={"crown": other})
    with pytest.raises(InvalidInput, match="empty"):
        write_report({}, None, out, "t", frames={"crown": frown.Sensitivity((), ())})
    each = frown.certify(model, x, method="crown", frames="each", attack=False)
    with pytest.raises(InvalidInput, match="different frames that move"):
        write_report({"crown": whole, "frown": each}, None, out, "t")


def test_words_for_what_moves() -> None:
    assert moving("all") == ""
    assert moving("each") == "in every frame by itself "
    assert moving("3") == "only frame 3 may change, and "
    assert moving("each of 0,2") == "only frames 0,2 may change, and in each of them by itself "
