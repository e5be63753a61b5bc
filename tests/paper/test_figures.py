"""The paper's figures: consistent with each other and with the networks there are."""

from __future__ import annotations

from math import inf

import pytest

from benchmarks.paper.figures import (
    EXPERIMENT_I,
    FIGURES,
    GROUP_FIGURES,
    GROUP_NETWORK,
    GROUPS,
    Figure,
)
from benchmarks.paper.networks import NETWORKS

NAMES = {n.name for n in NETWORKS}


def test_every_figure_belongs_to_a_network_of_the_tables() -> None:
    assert {name for name, _ in FIGURES} | set(GROUPS) | {GROUP_NETWORK} <= NAMES
    assert {norm for _, norm in FIGURES} == {1, 2, inf}


# Improvement columns of Experiments I and II as printed: percent, FROWN and LP.
PRINTED = {
    ("drive_4x20_relu", inf): (11.27, 12.38),
    ("drive_8x20_relu", inf): (12.95, 20.66),
    ("drive_12x20_relu", inf): (25.05, 37.28),
    ("drive_4x20_sigmoid", inf): (39.08, 36.21),
    ("drive_8x20_sigmoid", inf): (88.62, 89.59),
    ("drive_12x20_sigmoid", inf): (93.06, 38.22),
    ("mnist_5x20_relu", 1): (7.41, 11.04),
    ("mnist_5x20_relu", 2): (6.81, 4.52),
    ("mnist_5x20_relu", inf): (6.52, 9.89),
    ("mnist_20x20_relu", 1): (30.22, 33.04),
    ("mnist_20x20_relu", 2): (34.71, 38.78),
    ("mnist_20x20_relu", inf): (30.84, 33.75),
    ("mnist_5x20_sigmoid", 1): (18.49, 17.31),
    ("mnist_5x20_sigmoid", 2): (15.51, 10.20),
    ("mnist_5x20_sigmoid", inf): (13.94, 11.11),
    ("mnist_20x20_sigmoid", 1): (28.87, 28.55),
    ("mnist_20x20_sigmoid", 2): (29.21, 5.28),
    ("mnist_20x20_sigmoid", inf): (27.01, 17.12),
    ("mnist_5x100_relu", 1): (8.77, None),
    ("mnist_5x100_relu", 2): (5.28, 7.91),
    ("mnist_5x100_relu", inf): (5.85, 6.57),
    ("mnist_7x100_relu", 1): (12.38, None),
    ("mnist_7x100_relu", 2): (7.01, None),
    ("mnist_7x100_relu", inf): (7.09, None),
    ("mnist_5x100_sigmoid", 1): (19.93, None),
    ("mnist_5x100_sigmoid", 2): (16.74, -22.84),
    ("mnist_5x100_sigmoid", inf): (18.76, 13.10),
    ("mnist_7x100_sigmoid", 1): (29.40, None),
    ("mnist_7x100_sigmoid", 2): (20.96, None),
    ("mnist_7x100_sigmoid", inf): (19.96, None),
    ("cifar_4x2048_relu", 1): (0.70, None),
    ("cifar_4x2048_relu", 2): (2.09, None),
    ("cifar_4x2048_relu", inf): (4.14, None),
    ("cifar_6x2048_relu", 1): (2.72, None),
    ("cifar_6x2048_relu", 2): (-0.60, None),
    ("cifar_6x2048_relu", inf): (0.95, None),
    ("cifar_8x2048_relu", 1): (16.69, None),
    ("cifar_8x2048_relu", 2): (9.59, None),
    ("cifar_8x2048_relu", inf): (8.83, None),
    ("cifar_4x2048_sigmoid", 1): (22.34, None),
    ("cifar_4x2048_sigmoid", 2): (17.77, None),
    ("cifar_4x2048_sigmoid", inf): (18.33, None),
    ("cifar_6x2048_sigmoid", 1): (22.11, None),
    ("cifar_6x2048_sigmoid", 2): (22.71, None),
    ("cifar_6x2048_sigmoid", inf): (21.03, None),
    ("cifar_8x2048_sigmoid", 1): (30.97, None),
    ("cifar_8x2048_sigmoid", 2): (28.65, None),
    ("cifar_8x2048_sigmoid", inf): (37.65, None),
}


@pytest.mark.parametrize("key", PRINTED, ids=str)
def test_radii_give_the_improvements_that_the_paper_prints(key: tuple[str, float]) -> None:
    frown, lp = PRINTED[key]
    figure = FIGURES[key]
    assert 100 * figure.frown_gain == pytest.approx(frown, abs=0.011)
    assert (figure.lp_gain is None) == (lp is None)
    if lp is not None and figure.lp_gain is not None:
        assert 100 * figure.lp_gain == pytest.approx(lp, abs=0.011)


# Speed-ups as printed.
@pytest.mark.parametrize(
    ("key", "times"),
    [
        (("drive_12x20_sigmoid", inf), 17.555),
        (("mnist_5x20_relu", 1), 115.4674),
        (("mnist_20x20_sigmoid", inf), 41.4508),
        (("mnist_5x100_sigmoid", 2), 757.0516),
        (("mnist_7x100_relu", inf), 222.5342),
    ],
    ids=str,
)
def test_seconds_give_the_speed_ups_that_the_paper_prints(
    key: tuple[str, float], times: float
) -> None:
    assert FIGURES[key].speed_up == pytest.approx(times, rel=1e-4)


def test_experiment_one_has_the_lines_of_the_main_text() -> None:
    assert set(EXPERIMENT_I) == {key for key in PRINTED if not key[0].startswith("cifar")}
    assert len(EXPERIMENT_I) == len(set(EXPERIMENT_I))


def test_lp_that_was_given_up_has_no_radius() -> None:
    for figure in FIGURES.values():
        if figure.lp_unfinished:
            assert figure.lp is None and figure.lp_seconds in (6000, 10000)
        else:
            assert (figure.lp is None) == (figure.lp_seconds is None)


def test_a_figure_without_times_has_no_speed_up() -> None:
    assert Figure(1.0, 1.5).speed_up is None
    assert Figure(1.0, 1.5).frown_gain == 0.5


def test_larger_groups_are_faster_and_no_tighter() -> None:
    gpu = [f for f in GROUP_FIGURES if f.device == "gpu"]
    assert [f.group for f in gpu] == [1, 8, 16, 32]
    assert sorted(gpu, key=lambda f: -f.seconds) == gpu
    assert sorted(gpu, key=lambda f: -f.radius) == gpu
