"""Nonlinearities: for each, all of its valid lines. `proven/` has their rigorous form."""

from frown.relax.convex import Elu, HardSwish, Softplus, selu
from frown.relax.elementwise import Elementwise
from frown.relax.hump import Gelu, GeluTanh, Hump, Silu
from frown.relax.log_sum_exp import LogSumExp
from frown.relax.maximum import Max
from frown.relax.piecewise import Abs, Clip, LeakyRelu, Moderate, PiecewiseLinear, PRelu, Relu
from frown.relax.power import Exp, Log, Power
from frown.relax.product import Product
from frown.relax.relaxation import (
    Anchors,
    Family,
    Joint,
    Line,
    Lines,
    LinesWithin,
    Relaxation,
    Relaxed,
    RowSides,
    SlopeRange,
    Slopes,
    above_of,
)
from frown.relax.s_shaped import Arctan, Erf, Sigmoid, SShaped, Tanh
from frown.relax.steps import Ceil, Floor, Round, Sign, Steps
from frown.relax.wave import Cos, Sin, Wave
