"""Networks: operators, graphs of them, and how a graph is built and simplified."""

from frown.graph.affine import Combine, Conv, ConvTranspose, Flat, Linear, Scale, Sum
from frown.graph.box import Box, rows_of
from frown.graph.builder import Builder, Operand, Value, output_size
from frown.graph.graph import Graph, Input, Node
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
from frown.graph.selection import Concat, Expand, Gather, Pad, Permute, Reshape, Slice
from frown.graph.simplify import simplify, without_batch_axis
from frown.graph.windows import Windows
