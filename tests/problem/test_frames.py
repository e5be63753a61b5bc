"""Frames of sequences in Python: how they are named, radii, sensitivities, bounds."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import asking
import frown
from frown.errors import InvalidInput
from frown.problem.problem import Frames, Moving
from frown.read.model import Model

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
    result = asking.certify(model, x, norm=p, frames=frames, bounds=(-3, 3), method="crown")
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
        found = asking.certify(
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
    options |= {"dtype": "float64"}
    methods = (frown.Crown(), frown.Frown(), frown.LP(inner=frown.Frown()))
    crown, tight, lp = (asking.certify(model, x[:1], method=m, **options).radius for m in methods)
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
        exact = asking.certify(small, x, norm=p, frames=frames, method="milp")
        loose = asking.certify(small, x, norm=p, frames=frames, method="crown", attack=False)
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
    found = asking.sensitivity(
        model, x, norm=2, method="crown", indices=[7, 3, 5, 1], progress=seen.append, batch=5
    )
    assert found.radius.shape == found.broken.shape == (4, FRAMES)
    assert found.index == [7, 3, 5, 1] and found.frames == (0, 1, 2)
    assert seen[-1].done == seen[-1].total == 4 * FRAMES
    for frame in range(FRAMES):
        alone = asking.certify(model, x, norm=2, frames=frame, method="crown")
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
    found = asking.sensitivity(
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
        out = asking.bound(model, x[:1], 0.3, norm=2, frames=frames, method="crown")
        answers = model.run(ball_points(x[0], 0.3, 2, moved, each))
        assert (out.lower[0] <= answers + 1e-5).all() and (answers <= out.upper[0] + 1e-5).all()
    rows, columns = (
        asking.bound(model, x, 0.3, norm=2, frames="each", frame_axis=k).lower for k in (0, 1)
    )
    last = asking.bound(model, x, 0.3, norm=2, frames="each", frame_axis=-1).lower
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
    found = Frames(given, 0).on((4, 5))
    assert found == Moving(0, 4, chosen, each)
    assert found.name == name
    if name != "all":
        assert Frames(name, 0).on((4, 5)) == found
    mask = found.mask((4, 5))
    expected = np.isin(np.arange(4), chosen)
    assert mask is None or np.array_equal(mask[0], np.repeat(expected[:, None], 5, 1))
    assert (mask is None) == expected.all()


def test_frames_along_another_axis() -> None:
    found = Frames("each of 1", -1).on((1, 3, 4))
    assert found is not None and (found.axis, found.count) == (2, 4)
    mask = found.mask((1, 3, 4))
    assert mask is not None and np.array_equal(np.argwhere(mask[0].any((0, 1))), [[1]])
    assert Frames("all", 99).on(()) is None
    assert Frames("all", 1).alone((1, 3, 4)).chosen == (0, 1, 2)
    assert Frames("0:2", 1).alone((1, 3, 4)).apart((1, 3, 4)).sum() == 8


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
        Frames(frames, axis).on(shape)
    assert words in str(refused.value)


def test_scale_must_leave_frames_to_move(model: Model, x: np.ndarray) -> None:
    scale = np.ones((FRAMES, WIDTH))
    scale[1] = 0
    with pytest.raises(InvalidInput, match="scale is 0 in all frames"):
        asking.certify(model, x, frames=1, scale=scale)
    with pytest.raises(InvalidInput, match="leaves frames 1 nowhere to move"):
        asking.sensitivity(model, x, scale=scale)
    with pytest.raises(InvalidInput, match="one frame at a time"):
        asking.sensitivity(model, x, frames="each of 0:2")
