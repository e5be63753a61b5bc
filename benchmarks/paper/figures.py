"""The figures that the paper printed, as data.

Experiments I and II of the main text, with the digits of its source, and the tables of
the appendix. Networks are named as in `networks.py`: "mnist_10x20_relu".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the paper's tables: mean radii, and seconds per image. None: not printed."""

    crown: float
    frown: float
    lp: float | None = None
    frown_seconds: float | None = None
    lp_seconds: float | None = None
    lp_unfinished: bool = False  # LP was given up after `lp_seconds`

    @property
    def frown_gain(self) -> float:
        """FROWN's radius over CROWN's, less one."""
        return self.frown / self.crown - 1

    @property
    def lp_gain(self) -> float | None:
        """LP's radius over CROWN's, less one."""
        return None if self.lp is None else self.lp / self.crown - 1

    @property
    def speed_up(self) -> float | None:
        """LP's seconds over FROWN's; a lower bound where LP did not finish."""
        if self.frown_seconds is None or self.lp_seconds is None:
            return None
        return self.lp_seconds / self.frown_seconds


@dataclass(frozen=True, slots=True)
class GroupFigure:
    """One size of group in Table 8: mean radius and seconds per image."""

    group: int
    device: str
    radius: float
    seconds: float


def _given_up(crown: float, frown: float, seconds: float, limit: float) -> Figure:
    return Figure(crown, frown, None, seconds, limit, lp_unfinished=True)


# Table 4: p = inf. The first six lines are in Experiment I as well.
_DRIVE: dict[tuple[str, float], Figure] = {
    ("drive_4x20_relu", inf): Figure(0.20189309, 0.22465439, 0.22689147, 0.346491119, 0.960072917),
    ("drive_8x20_relu", inf): Figure(0.20936128, 0.23646373, 0.25261395, 1.808810924, 4.194196891),
    ("drive_12x20_relu", inf): Figure(0.19960524, 0.24960147, 0.27402096, 4.388828654, 9.455646552),
    ("drive_4x20_sigmoid", inf): Figure(
        0.10192142, 0.14175183, 0.13882568, 0.743399554, 2.114387755
    ),
    ("drive_8x20_sigmoid", inf): Figure(
        0.08578154, 0.16179805, 0.16263148, 4.14962963, 32.14590909
    ),
    ("drive_12x20_sigmoid", inf): Figure(
        0.07820402, 0.15097938, 0.10809507, 8.710052219, 152.9056907
    ),
    ("drive_4x20_tanh", inf): Figure(0.0975, 0.1306, 0.1361, 0.55, 2.05),
    ("drive_8x20_tanh", inf): Figure(0.0754, 0.1551, 0.1343, 3.35, 30.33),
}

# Table 5: 20 neurons per layer.
_MNIST_20: dict[tuple[str, float], Figure] = {
    ("mnist_5x20_relu", 1): Figure(3.8017509, 4.08353186, 4.22146046, 1.689364, 195.0664),
    ("mnist_5x20_relu", 2): Figure(0.53455848, 0.57095152, 0.55870703, 1.122871, 41.6283),
    ("mnist_5x20_relu", inf): Figure(0.02610023, 0.02780137, 0.02868102, 1.258348, 11.93404),
    ("mnist_10x20_relu", 1): Figure(2.6866, 3.1702, 3.1071, 5.15, 571),
    ("mnist_10x20_relu", 2): Figure(0.4036, 0.4575, 0.4615, 6.59, 101),
    ("mnist_10x20_relu", inf): Figure(0.0193, 0.0223, 0.0234, 7.30, 45.6),
    ("mnist_20x20_relu", 1): Figure(2.3853, 3.1062, 3.17351974, 35.5283, 1301.114),
    ("mnist_20x20_relu", 2): Figure(0.3656, 0.4925, 0.50737058, 31.10188, 229.8665),
    ("mnist_20x20_relu", inf): Figure(0.01834928, 0.0240081, 0.02454141, 43.31122, 199.4015),
    ("mnist_5x20_sigmoid", 1): Figure(1.80092955, 2.13400507, 2.11258952, 1.751429, 310.2723),
    ("mnist_5x20_sigmoid", 2): Figure(0.31002384, 0.35811698, 0.34165625, 1.226073, 44.0025),
    ("mnist_5x20_sigmoid", inf): Figure(0.01530928, 0.0174441, 0.01700973, 1.385459, 17.19214),
    ("mnist_20x20_sigmoid", 1): Figure(1.53479946, 1.97794294, 1.97303025, 31.79776, 4904.991),
    ("mnist_20x20_sigmoid", 2): Figure(0.25236204, 0.3260701, 0.26567794, 31.76949, 1354.536),
    ("mnist_20x20_sigmoid", inf): Figure(0.01308495, 0.01661916, 0.01532545, 44.86479, 1859.683),
    ("mnist_20x20_tanh", inf): Figure(0.0113, 0.0145, 0.0149, 44.1, 1414),
}

# Table 6: 100 neurons per layer.
_MNIST_100: dict[tuple[str, float], Figure] = {
    ("mnist_3x100_relu", inf): Figure(0.0335, 0.0337, 0.0333, 1.95, 110),
    ("mnist_5x100_relu", 1): _given_up(3.8928, 4.23426247, 13.10667, 6000),
    ("mnist_5x100_relu", 2): Figure(0.5499, 0.57894945, 0.5933791, 10.89919, 826.7916),
    ("mnist_5x100_relu", inf): Figure(0.02605076, 0.02757367, 0.02776357, 10.41608, 446.0726),
    ("mnist_7x100_relu", 1): _given_up(3.5509, 3.99067092, 55.07379, 10000),
    ("mnist_7x100_relu", 2): _given_up(0.4997, 0.53474498, 49.48793, 10000),
    ("mnist_7x100_relu", inf): _given_up(0.02411035, 0.02582039, 44.93692, 10000),
    ("mnist_3x100_sigmoid", inf): Figure(0.0213, 0.0234, 0.0231, 2.53, 173),
    ("mnist_5x100_sigmoid", 1): _given_up(2.09984541, 2.51844215, 13.64317, 10000),
    ("mnist_5x100_sigmoid", 2): Figure(0.3232736, 0.37738118, 0.24942495, 12.37509, 9368.58454),
    ("mnist_5x100_sigmoid", inf): Figure(0.01562966, 0.0185616, 0.01767777, 13.09035, 1319.25163),
    ("mnist_7x100_sigmoid", 1): _given_up(1.72942972, 2.23796749, 48.95841, 10000),
    ("mnist_7x100_sigmoid", 2): _given_up(0.28328878, 0.34267208, 42.0407, 10000),
    ("mnist_7x100_sigmoid", inf): _given_up(0.01399797, 0.01679174, 41.99858, 10000),
    ("mnist_7x100_tanh", inf): _given_up(0.0132, 0.0162, 46.9, 10000),
}

# Table 7 and Experiment II: LP is out of reach, and times were not printed.
_CIFAR: dict[tuple[str, float], Figure] = {
    ("cifar_4x2048_relu", 1): Figure(7.54595089, 7.59892654),
    ("cifar_4x2048_relu", 2): Figure(0.61745107, 0.63034403),
    ("cifar_4x2048_relu", inf): Figure(0.01506771, 0.01569192),
    ("cifar_6x2048_relu", 1): Figure(4.59904099, 4.72408152),
    ("cifar_6x2048_relu", 2): Figure(0.37454715, 0.37229005),
    ("cifar_6x2048_relu", inf): Figure(0.00918379, 0.00927143),
    ("cifar_8x2048_relu", 1): Figure(4.23493385, 4.94163609),
    ("cifar_8x2048_relu", 2): Figure(0.34760612, 0.38093299),
    ("cifar_8x2048_relu", inf): Figure(0.00866792, 0.00943343),
    ("cifar_4x2048_sigmoid", 1): Figure(3.65584946, 4.47255278),
    ("cifar_4x2048_sigmoid", 2): Figure(0.28469625, 0.33529428),
    ("cifar_4x2048_sigmoid", inf): Figure(0.00690464, 0.00817044),
    ("cifar_6x2048_sigmoid", 1): Figure(1.50934732, 1.84298861),
    ("cifar_6x2048_sigmoid", 2): Figure(0.11799628, 0.14479597),
    ("cifar_6x2048_sigmoid", inf): Figure(0.00285764, 0.00345873),
    ("cifar_8x2048_sigmoid", 1): Figure(1.28750134, 1.68622041),
    ("cifar_8x2048_sigmoid", 2): Figure(0.10062468, 0.12945828),
    ("cifar_8x2048_sigmoid", inf): Figure(0.00237977, 0.00327576),
}

FIGURES: Mapping[tuple[str, float], Figure] = {**_DRIVE, **_MNIST_20, **_MNIST_100, **_CIFAR}

# The lines that the main text prints as Experiment I, in its order.
EXPERIMENT_I: tuple[tuple[str, float], ...] = (
    *((f"drive_{m}x20_{a}", inf) for a in ("relu", "sigmoid") for m in (4, 8, 12)),
    *((f"mnist_{m}x20_{a}", p) for a in ("relu", "sigmoid") for m in (5, 20) for p in (1, 2, inf)),
    *((f"mnist_{m}x100_{a}", p) for a in ("relu", "sigmoid") for m in (5, 7) for p in (1, 2, inf)),
)

# Table 8: groups of neurons on MNIST 4x[1024] ReLU, p = inf.
GROUP_NETWORK = "mnist_4x1024_relu"
GROUP_FIGURES: tuple[GroupFigure, ...] = (
    GroupFigure(1, "cpu", 0.02942, 89.9),
    GroupFigure(1, "gpu", 0.02937, 23.4),
    GroupFigure(8, "gpu", 0.02937, 3.5),
    GroupFigure(16, "gpu", 0.02898, 2.0),
    GroupFigure(32, "gpu", 0.02897, 1.4),
)

# How many neurons the authors let share their lines (appendix A.9); one where not listed.
GROUPS: Mapping[str, int] = {
    f"cifar_{m}x2048_{a}": size
    for m, size in ((4, 8), (6, 8), (8, 64))
    for a in ("relu", "sigmoid")
}
