"""Activations that exporters write out in several operators.

A product A * B of two computed tensors is recognised as an activation of t where
A is a multiple of t and B is p T(q(t)) + r with T one of Sigmoid, Erf and Tanh:

    t Sigmoid(a t)                                       Swish with that alpha
    t (1 + Erf(t / sqrt 2)) / 2                          Gelu
    t (1 + Tanh(sqrt(2 / pi) (t + 0.044715 t^3))) / 2    Gelu, tanh approximation

whatever the order of the operands and wherever the constants stand. Sums, products
and powers with scalar constants are multiplied out to polynomials in t, and their
coefficients compared, so nothing is taken for an activation by its look alone. That is done in
rational arithmetic, where nothing vanishes. Constants
are stored in float32 and only near those above; what is put in is a GELU with the file's.

What executes an expression must not be far from what it says: where coefficients cancel, are very
large or very small on the way, or are rounded too often, it stays written out, and is bounded as
such.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, pi, sqrt

import numpy as np

from frown.read.onnx.call import OnnxNode
from frown.read.onnx.runtime import Constants, widened

Polynomial = dict[int, Fraction]  # power of t -> coefficient

_DEGREE = 3
_DEPTH = 8  # of an expression that is read
_ROUNDING = Fraction(1, 10**6)  # constants are stored in float32
_LEAST, _MOST = Fraction(2) ** -1000, Fraction(2) ** 1000  # of a factor
_SMALL, _LARGE = Fraction(2) ** -20, Fraction(2) ** 20  # of a coefficient on the way
_MULTIPLES = 4  # behind an activation that are taken into one
_TANH = sqrt(2 / pi)
WRITTEN_GELU = "frown::Gelu"


@dataclass(frozen=True, slots=True)
class _Reader:
    """Expressions of a graph, read backwards from a tensor's name."""

    producers: Mapping[str, OnnxNode]
    constants: Constants

    def scalar(self, name: str) -> Fraction | None:
        found = self.constants.get(name)
        found = None if found is None else widened(found)
        # More than one axis could add axes to what the number is combined with.
        if found is None or found.size != 1 or found.ndim > 1 or found.dtype.kind not in "fiub":
            return None
        number = float(found.reshape(()))
        return Fraction(number) if isfinite(number) else None

    def chain(self, name: str) -> Iterator[str]:
        """`name`, then what it is an expression of with one scalar constant, and so on, as deep
        as polynomials are read."""
        for _ in range(_DEPTH + 2):
            yield name
            node = self.producers.get(name)
            if node is None or node.op not in ("Add", "Sub", "Mul", "Div", "Neg"):
                return
            computed = [i for i in node.inputs if self.scalar(i) is None]
            if len(computed) != 1 or computed[0] in self.constants:
                return
            name = computed[0]

    def polynomial(self, name: str, base: str, depth: int = 0) -> Polynomial | None:
        """`name` as a polynomial in `base`; None where it is none of low degree."""
        if name == base:
            return {1: Fraction(1)}
        number = self.scalar(name)
        if number is not None:
            return {0: number}
        node = self.producers.get(name)
        if node is None or depth > _DEPTH:
            return None
        terms = [self.polynomial(i, base, depth + 1) for i in node.inputs]
        known = [t for t in terms if t is not None]
        found = _evaluate(node.op, known) if len(known) == len(terms) else None
        return found if found is not None and _moderate(found) else None


def _evaluate(op: str, terms: list[Polynomial]) -> Polynomial | None:
    match op, terms:
        case "Neg", [x]:
            return {k: -v for k, v in x.items()}
        case "Add", [x, y]:
            return _sum(x, y, 1)
        case "Sub", [x, y]:
            return _sum(x, y, -1)
        case "Mul", [x, y]:
            return _product(x, y)
        case "Div", [x, y] if set(y) == {0} and y[0] != 0:
            return {k: v / y[0] for k, v in x.items()}
        case "Pow", [x, y] if set(y) == {0} and y[0] in (1, 2, 3):
            power: Polynomial | None = {0: Fraction(1)}
            for _ in range(int(y[0])):
                power = None if power is None else _product(power, x)
            return power
    return None


def _moderate(x: Polynomial) -> bool:
    return all(v == 0 or _SMALL <= abs(v) <= _LARGE for v in x.values())


def _sum(x: Polynomial, y: Polynomial, sign: int) -> Polynomial | None:
    """The sum of two polynomials; None where coefficients cancel."""
    none = Fraction(0)
    if any(x[k] * y[k] * sign < 0 for k in x.keys() & y.keys()):
        return None
    return {k: x.get(k, none) + sign * y.get(k, none) for k in x.keys() | y.keys()}


def _product(x: Polynomial, y: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for i, a in x.items():
        for j, b in y.items():
            result[i + j] = result.get(i + j, Fraction(0)) + a * b
    return result if max(result) <= _DEGREE else None


def _is(found: Polynomial, wanted: Mapping[int, Fraction | float]) -> bool:
    """True if two numbers are relatively close; what should be 0 must be 0."""
    pairs = [(found.get(k, Fraction(0)), Fraction(wanted.get(k, 0))) for k in {*found, *wanted}]
    return all(abs(a - b) <= _ROUNDING * max(abs(a), abs(b)) for a, b in pairs)


@dataclass(frozen=True, slots=True)
class _Match:
    """The product is `factor` times activation `op` of `source`."""

    op: str
    attributes: dict[str, object]
    source: str
    factor: Fraction


def _match(reader: _Reader, left: str, right: str) -> _Match | None:
    for inner in reader.chain(right):
        node = reader.producers.get(inner)
        if node is None or node.op not in ("Sigmoid", "Erf", "Tanh") or len(node.inputs) != 1:
            continue
        outer = reader.polynomial(right, inner)
        if outer is None:
            return None
        for source in reader.chain(left):
            multiple = reader.polynomial(left, source)
            argument = reader.polynomial(node.inputs[0], source)
            if multiple is None or set(multiple) != {1} or argument is None:
                continue
            found = _activation(node.op, outer, argument)
            if found is not None:
                op, attributes, factor = found
                return _Match(op, attributes, source, multiple[1] * factor)
    return None


def _activation(
    gate: str, outer: Polynomial, argument: Polynomial
) -> tuple[str, dict[str, object], Fraction] | None:
    slope = outer.get(1, Fraction(0))
    if gate == "Sigmoid":
        steepness = _number(argument.get(1, Fraction(0)))
        if steepness and _is(argument, {1: argument[1]}) and _is(outer, {1: slope}):
            return "Swish", {"alpha": steepness}, slope
        return None
    usual = {"Erf": {1: 1 / sqrt(2)}, "Tanh": {1: _TANH, 3: 0.044715 * _TANH}}[gate]
    if slope == 0 or outer.get(0, Fraction(0)) != slope or not _is(argument, usual):
        return None
    linear, cubic = float(argument[1]), float(argument.get(3, Fraction(0)))
    if cubic and (Fraction(linear), Fraction(cubic)) != (argument[1], argument[3]):
        return None  # rounded, it would be another function
    return WRITTEN_GELU, {"linear": linear, "cubic": cubic}, 2 * slope


def _number(exact: Fraction) -> float | None:
    """The nearest number, if it is near: neither so large nor so small that a float is not."""
    return float(exact) if exact == 0 or _LEAST <= abs(exact) <= _MOST else None


def fuse_activations(
    nodes: list[OnnxNode], constants: Constants, output: str
) -> tuple[list[OnnxNode], Constants]:
    """`nodes` with written-out activations replaced by one node each.

    The nodes an activation no longer needs stay: others may read them. New constants
    come with the old ones.
    """
    producers = {name: node for node in nodes for name in node.outputs}
    readers: dict[str, list[OnnxNode]] = {}
    for node in nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    reader = _Reader(producers, constants)
    known = dict(constants)
    replaced: dict[str, list[OnnxNode]] = {}  # by the name of what is replaced
    for node in nodes:
        if node.op != "Mul" or len(node.inputs) != 2:
            continue
        left, right = node.inputs
        found = _match(reader, left, right) or _match(reader, right, left)
        if found is None:
            continue
        last, exact = _absorbed(reader, readers, node, found.factor, output)
        factor = _number(exact)
        if factor is not None:
            replaced[last.outputs[0]] = _written(found, last, factor, known)
    fused: list[OnnxNode] = []
    for node in nodes:
        fused.extend(replaced.get(node.outputs[0], [node]))
    return fused, known


def _absorbed(
    reader: _Reader,
    readers: Mapping[str, list[OnnxNode]],
    node: OnnxNode,
    factor: Fraction,
    output: str,
) -> tuple[OnnxNode, Fraction]:
    """The last of the scalar multiples that follow `node`, with their product."""
    for _ in range(_MULTIPLES):
        if node.outputs[0] == output:
            break
        after = readers.get(node.outputs[0], [])
        if len(after) != 1:
            break
        scaled = reader.polynomial(after[0].outputs[0], node.outputs[0])
        if scaled is None or set(scaled) != {1} or not _moderate({0: factor * scaled[1]}):
            break
        node, factor = after[0], factor * scaled[1]
    return node, factor


def _written(found: _Match, last: OnnxNode, factor: float, constants: Constants) -> list[OnnxNode]:
    name = last.outputs[0]
    if factor == 1:
        return [last.replaced(found.op, (found.source,), (name,), found.attributes)]
    inner, number = f"{name}/{found.op}", f"{name}/factor"
    constants[number] = np.array(factor)
    return [
        last.replaced(found.op, (found.source,), (inner,), found.attributes),
        last.replaced("Mul", (inner, number), (name,), {}),
    ]
