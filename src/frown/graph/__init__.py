"""Networks: operators, graphs of them, and how a graph is built and simplified."""

from frown.graph.affine import (
    Combine,
    Concat,
    Conv,
    ConvTranspose,
    Expand,
    Flat,
    Gather,
    Linear,
    Pad,
    Permute,
    Reshape,
    Scale,
    Slice,
    Sum,
)
from frown.graph.builder import Builder, Operand, Value, output_size
from frown.graph.graph import Graph, Input, Node
from frown.graph.intervals import Intervals, rows_of
from frown.graph.op import (
    LEAST,
    MOST_ENTRIES,
    MOST_IN_ALL,
    Affine,
    Nonlinear,
    Op,
    Selection,
    Shape,
    Unsupported,
    Window,
    broadcast,
    foldable,
    lossless,
    require_entries,
    sliced,
)
from frown.graph.simplify import simplify, without_batch_axis
from frown.graph.windows import Windows
