"""One table of functions and hostile boxes for the property tests.

`ELEMENTWISE` has an instance or more of every elementwise function. `REFERENCE` gives each again,
in float64 and from other libraries, so that tests never compare the code with itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import isabstract
from math import inf

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from frown import relax
from frown.graph import Intervals
from frown.relax import (
    Abs,
    Arctan,
    Ceil,
    Clip,
    Cos,
    Elementwise,
    Elu,
    Erf,
    Exp,
    Floor,
    Gelu,
    GeluTanh,
    HardSwish,
    LeakyRelu,
    Log,
    Moderate,
    Power,
    PRelu,
    Relaxation,
    Relu,
    Round,
    Sigmoid,
    Sign,
    Silu,
    Sin,
    Softplus,
    Tanh,
    selu,
)

Array = NDArray[np.float64]
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# -- functions --------------------------------------------------------------------------

ELEMENTWISE: dict[str, Elementwise] = {
    "relu": Relu(),
    "leaky_relu": LeakyRelu(0.1),
    "leaky_relu_steep": LeakyRelu(1.7),
    "leaky_relu_falling": LeakyRelu(-0.3),
    "prelu": PRelu(torch.tensor(0.25)),
    "sigmoid": Sigmoid(),
    "tanh": Tanh(),
    "arctan": Arctan(),
    "erf": Erf(),
    "softplus": Softplus(),
    "elu": Elu(1.0),
    "elu_steep": Elu(2.5),
    "elu_shallow": Elu(0.3),
    "selu": selu(),
    "silu": Silu(),
    "gelu": Gelu(),
    "gelu_tanh": GeluTanh(),
    "hard_tanh": Clip(-1.0, 1.0),
    "relu6": Clip(0.0, 6.0),
    "clip_from_below": Clip(-0.5, float("inf")),
    "abs": Abs(),
    "moderate": Moderate(1e29),
    "hard_swish": HardSwish(),
    "exp": Exp(),
    "log": Log(),
    "square": Power(2.0),
    "cube": Power(3.0),
    "fourth_power": Power(4.0),
    "reciprocal": Power(-1.0),
    "inverse_square": Power(-2.0),
    "inverse_cube": Power(-3.0),
    "square_root": Power(0.5),
    "three_halves": Power(1.5),
    "inverse_root": Power(-0.5),
    "sin": Sin(),
    "cos": Cos(),
    "floor": Floor(),
    "ceil": Ceil(),
    "round": Round(),
    "sign": Sign(),
}

# Every nonlinearity that the package has.
SUPPORTED = {
    name: cls
    for name, cls in vars(relax).items()
    if isinstance(cls, type) and issubclass(cls, Relaxation) and not isabstract(cls)
}


def _elu(alpha: float, scale: float = 1.0) -> Callable[[Array], Array]:
    return lambda z: scale * np.where(z > 0, z, alpha * np.expm1(np.minimum(z, 0)))


def _gelu_tanh(z: Array) -> Array:
    z3 = np.clip(z, -1e3, 1e3) ** 3
    return z * special.expit(2 * np.sqrt(2 / np.pi) * (z + 0.044715 * z3))


REFERENCE: dict[str, Callable[[Array], Array]] = {
    "relu": lambda z: np.maximum(z, 0),
    "leaky_relu": lambda z: np.where(z > 0, z, 0.1 * z),
    "leaky_relu_steep": lambda z: np.where(z > 0, z, 1.7 * z),
    "leaky_relu_falling": lambda z: np.where(z > 0, z, -0.3 * z),
    "prelu": lambda z: np.where(z > 0, z, 0.25 * z),
    "sigmoid": special.expit,
    "tanh": np.tanh,
    "arctan": np.arctan,
    "erf": special.erf,
    "softplus": lambda z: np.logaddexp(z, 0),
    "elu": _elu(1.0),
    "elu_steep": _elu(2.5),
    "elu_shallow": _elu(0.3),
    "selu": _elu(1.6732632423543772, 1.0507009873554805),
    "silu": lambda z: z * special.expit(z),
    "gelu": lambda z: z * special.ndtr(z),
    "gelu_tanh": _gelu_tanh,
    "hard_tanh": lambda z: np.clip(z, -1, 1),
    "relu6": lambda z: np.clip(z, 0, 6),
    "clip_from_below": lambda z: np.maximum(z, -0.5),
    "abs": np.abs,
    "moderate": lambda z: z,
    "hard_swish": lambda z: z * np.clip(z + 3, 0, 6) / 6,
    "exp": np.exp,
    "log": np.log,
    "square": np.square,
    "cube": lambda z: z * z * z,
    "fourth_power": lambda z: np.square(np.square(z)),
    "reciprocal": np.reciprocal,
    "inverse_square": lambda z: 1 / np.square(z),
    "inverse_cube": lambda z: 1 / (z * z * z),
    "square_root": np.sqrt,
    "three_halves": lambda z: z * np.sqrt(z),
    "inverse_root": lambda z: 1 / np.sqrt(z),
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
}


@dataclass(frozen=True)
class Zone:
    """Where a function is drawn: least <= |z| <= most, of one sign if least > 0.

    Those are its domain and, in hostile boxes, all sizes whose values are numbers in single
    precision; in ordinary ones, sizes at which a grid can measure its curvature.
    """

    least: float = 0.0
    most: float = inf
    negative: bool = True

    def within(self, box: Intervals, turns: Tensor) -> Intervals:
        """The box folded and cut to the zone; `turns` says which go to the negative side."""
        if not self.least and self.negative:
            return Intervals(
                box.lower.clamp(-self.most, self.most), box.upper.clamp(-self.most, self.most)
            )
        sizes = [t.abs().clamp(self.least, self.most) for t in (box.lower, box.upper)]
        low, high = torch.minimum(*sizes), torch.maximum(*sizes)
        turns = turns & self.negative
        return Intervals(torch.where(turns, -high, low), torch.where(turns, -low, high))


# name: (hostile, ordinary)
ZONES: dict[str, tuple[Zone, Zone]] = {
    "exp": (Zone(most=80), Zone(most=4)),
    "moderate": (Zone(most=1e28), Zone()),
    "log": (Zone(1e-37, negative=False), Zone(1, negative=False)),
    "square": (Zone(most=1e15), Zone(most=20)),
    "cube": (Zone(most=1e9), Zone(most=8)),
    "fourth_power": (Zone(most=1e7), Zone(most=4)),
    "reciprocal": (Zone(1e-15), Zone(1, 8)),
    "inverse_square": (Zone(1e-10), Zone(1, 8)),
    "inverse_cube": (Zone(1e-8), Zone(1, 8)),
    "square_root": (Zone(negative=False), Zone(1, negative=False)),
    "three_halves": (Zone(negative=False), Zone(1, negative=False)),
    "inverse_root": (Zone(1e-20, negative=False), Zone(1, negative=False)),
    "sin": (Zone(most=1e4), Zone()),
    "cos": (Zone(most=1e4), Zone()),
}
EVERYWHERE = (Zone(), Zone())


# -- hostile boxes ----------------------------------------------------------------------

_COUNT = 200  # boxes per example: hypothesis draws a seed, numpy a table of hostile boxes

_SPECIAL = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 6.0, 1e-3, -1e-3, 20.0, -20.0)
_TINY = (1e-45, -1e-45, 1e-38, -1e-38, 3e-41, 1e-30, -1e-30)
_HUGE = (1e4, -1e4, 88.0, -88.0, 104.0, -104.0, 1e8, -1e8, 1e15, -1e15)
_EDGES = (0.0, 1.0, 0.25, 0.5, -0.1, 1.1, 1e-7, 1 - 1e-6, 0.249999, 1e-20, -2.0)


# Kinks, and where hard swish, SiLU and the two GELUs are least.
_TURNS = (0.0, 1.0, -1.0, 6.0, -0.5, 3.0, -3.0, -1.5)
_TURNS += (-1.2784645427610738, -0.7517915245300, -0.7524614220710)


def _numbers(rng: np.random.Generator, extreme: bool) -> Array:
    ordinary = rng.uniform(-8, 8, _COUNT)
    kinds = [ordinary, ordinary / 20, rng.choice(_SPECIAL, _COUNT)]
    if extreme:
        kinds += [rng.choice(_TINY, _COUNT), rng.choice(_HUGE, _COUNT), ordinary]
    return np.choose(rng.integers(len(kinds), size=_COUNT), kinds)


def boxes(name: str, dtype: torch.dtype, extreme: bool = True) -> st.SearchStrategy[Intervals]:
    """Tables of boxes for a function: points, one ulp wide, narrow, across 0, tiny, denormal,
    huge, as far as it is defined."""
    zone = ZONES.get(name, EVERYWHERE)[0 if extreme else 1]
    numpy = np.float32 if dtype == torch.float32 else np.float64

    def table(seed: int) -> Intervals:
        rng = np.random.default_rng(seed)
        a, other = (_numbers(rng, extreme).astype(numpy) for _ in range(2))
        share = rng.choice([1e-6, 1e-4, 1e-2], _COUNT).astype(numpy)
        across = (-a * rng.uniform(0.01, 3, _COUNT)).astype(numpy)
        kinds = [a, np.nextafter(a, numpy(inf)), a + np.abs(a) * share, other, other, across]
        b = np.choose(rng.integers(len(kinds), size=_COUNT), kinds)
        box = Intervals(torch.from_numpy(np.minimum(a, b)), torch.from_numpy(np.maximum(a, b)))
        return zone.within(box, torch.from_numpy(rng.random(_COUNT) < 0.5))

    return st.integers(0, 2**32).map(table)


def slopes(dtype: torch.dtype) -> st.SearchStrategy[Tensor]:
    """Any slopes: ordinary, steep, flat, negative, and those where derivatives end."""

    def table(seed: int) -> Tensor:
        rng = np.random.default_rng(seed)
        kinds = [
            rng.uniform(-1.5, 1.5, _COUNT),
            rng.uniform(0, 1, _COUNT),
            rng.choice(_EDGES, _COUNT),
            rng.uniform(-100, 100, _COUNT),
        ]
        return torch.from_numpy(np.choose(rng.integers(4, size=_COUNT), kinds)).to(dtype)

    return st.integers(0, 2**32).map(table)


def grid(box: Intervals, points: int = 301) -> Array:
    """(entries, points) numbers of each box in float64: even, and crowded about 0 and ends."""
    low, high = box.lower.double().numpy()[:, None], box.upper.double().numpy()[:, None]
    even = low + (high - low) * np.linspace(0, 1, points)[None, :]
    crowd = np.concatenate([[0.0], np.logspace(-6, 2.5, 60), -np.logspace(-6, 2.5, 60)])[None, :]
    known = np.tile(_TURNS, (len(low), 1))
    # Where waves turn, near the ends.
    turns = np.arange(-4, 5)[None, :] * (np.pi / 2)
    known = np.concatenate(
        [known, *(np.round(z / (np.pi / 2)) * (np.pi / 2) + turns for z in (low, high))], 1
    )
    z = np.concatenate([low, high, even, known, crowd + 0 * low, low - crowd, high - crowd], 1)
    return np.clip(z, low, high)
