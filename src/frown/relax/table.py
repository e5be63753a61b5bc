"""The one table of nonlinearities: engines, front ends and property tests read it."""

from __future__ import annotations

import torch

from frown.relax.convex import Elu, HardSwish, Softplus, selu
from frown.relax.elementwise import Elementwise
from frown.relax.hump import Gelu, GeluTanh, Silu
from frown.relax.log_sum_exp import LogSumExp
from frown.relax.maximum import Max
from frown.relax.piecewise import Abs, Clip, LeakyRelu, Moderate, PRelu, Relu
from frown.relax.power import Exp, Log, Power
from frown.relax.product import Product
from frown.relax.relaxation import Relaxation
from frown.relax.s_shaped import Arctan, Erf, Sigmoid, Tanh
from frown.relax.wave import Cos, Sin

Selu = selu

# One instance or more of every elementwise function, as the tests draw them.
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
}

_CLASSES: list[type[Relaxation]] = [
    *(type(f) for f in ELEMENTWISE.values()),
    LogSumExp,
    Max,
    Product,
]
SUPPORTED: dict[str, type[Relaxation]] = {cls.__name__: cls for cls in _CLASSES}

__all__ = [
    "ELEMENTWISE",
    "SUPPORTED",
    "Abs",
    "Arctan",
    "Clip",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Gelu",
    "GeluTanh",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "LogSumExp",
    "Max",
    "Moderate",
    "PRelu",
    "Power",
    "Product",
    "Relu",
    "Selu",
    "Sigmoid",
    "Silu",
    "Sin",
    "Softplus",
    "Tanh",
]
