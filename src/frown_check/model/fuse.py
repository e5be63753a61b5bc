"""Activations that files write out in several operators, as one site each.

A product of two computed tensors, one a multiple m t of some tensor t, the other p T(q(t)) + r with
T one of Sigmoid, Erf, Tanh and q a polynomial, is one of

    t sigmoid(a t),    t (1 + erf(b t)) / 2,    t (1 + tanh(b t + c t^3)) / 2

times a factor. Polynomials are compared in rational arithmetic. Constants need only be near the
usual ones (to 1e-6) to be recognised, but it is the file's own constants that are used, exactly;
where r and p are not the same number, the product is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import isfinite, pi, sqrt

import numpy as np
from flint import fmpq

from frown_check.errors import Refused
from frown_check.model.calls import Constant, OnnxNode

Polynomial = dict[int, Fraction]

NEAR = Fraction(1, 10**6)
DEGREE = 3
DEPTH = 8  # of an expression that is read
LARGEST = 2**1000  # more than any factor that could be of use
USUAL = {"Erf": {1: 1 / sqrt(2)}, "Tanh": {1: sqrt(2 / pi), 3: 0.044715 * sqrt(2 / pi)}}


class Fuser:
    def __init__(self, nodes: list[OnnxNode], constants: Mapping[str, Constant], output: str):
        self.nodes, self.constants, self.output = nodes, constants, output
        self.producers = {name: node for node in nodes for name in node.outputs}
        self.readers: dict[str, list[OnnxNode]] = {}
        for node in nodes:
            for name in node.inputs:
                self.readers.setdefault(name, []).append(node)

    def fused(self) -> list[OnnxNode]:
        """The nodes with every activation in place of the last node it is written with."""
        replaced: dict[str, list[OnnxNode]] = {}
        for node in self.nodes:
            if node.op == "Mul" and len(node.inputs) == 2:
                left, right = node.inputs
                found = self._match(left, right) or self._match(right, left)
                if found is not None:
                    last, factor = self._absorbed(node, found[1])
                    replaced[last.outputs[0]] = self._written(found[0], last, factor)
        return [n for node in self.nodes for n in replaced.get(node.outputs[0], [node])]

    def _match(self, left: str, right: str) -> tuple[OnnxNode, Fraction] | None:
        """The activation, named after nothing yet, and its factor."""
        for inner in self._chain(right):
            gate = self.producers.get(inner)
            if gate is None or gate.op not in ("Sigmoid", "Erf", "Tanh"):
                continue
            if len(gate.inputs) != 1:
                continue
            outer = self._polynomial(right, inner)
            if outer is None:
                return None
            for source in self._chain(left):
                multiple = self._polynomial(left, source)
                argument = self._polynomial(gate.inputs[0], source)
                if multiple is None or set(multiple) != {1} or argument is None:
                    continue
                found = _activation(gate, source, outer, argument)
                if found is not None:
                    return found[0], multiple[1] * found[1]
        return None

    def _absorbed(self, node: OnnxNode, factor: Fraction) -> tuple[OnnxNode, Fraction]:
        """The last of the multiples that follow, and the product of them all."""
        while node.outputs[0] != self.output:
            after = self.readers.get(node.outputs[0], [])
            scaled = (
                self._polynomial(after[0].outputs[0], node.outputs[0]) if len(after) == 1 else None
            )
            if scaled is None or set(scaled) != {1}:
                break
            node, factor = after[0], factor * scaled[1]
        return node, factor

    def _written(self, found: OnnxNode, last: OnnxNode, factor: Fraction) -> list[OnnxNode]:
        name = last.outputs[0]
        if factor == 1:
            return [replace(found, name=last.name, outputs=(name,))]
        inner = f"{name}/activation"
        exact = fmpq(factor.numerator, factor.denominator)
        return [
            replace(found, name=last.name, outputs=(inner,)),
            OnnxNode("frown_check::Times", last.name, (inner,), (name,), {"factor": exact}),
        ]

    def _scalar(self, name: str) -> Fraction | None:
        found = self.constants.get(name)
        if found is None or found.size != 1 or found.ndim > 1 or not np.isfinite(found).all():
            return None
        number = float(found.reshape(()))
        return Fraction(number) if isfinite(number) else None

    def _chain(self, name: str) -> Iterator[str]:
        """`name`, then what it is an expression of with one scalar constant, and so on, as deep
        as polynomials are read."""
        for _ in range(DEPTH + 2):
            yield name
            node = self.producers.get(name)
            if node is None or node.op not in ("Add", "Sub", "Mul", "Div", "Neg"):
                return
            computed = [i for i in node.inputs if self._scalar(i) is None]
            if len(computed) != 1 or computed[0] in self.constants:
                return
            name = computed[0]

    def _polynomial(self, name: str, base: str, depth: int = 0) -> Polynomial | None:
        if name == base:
            return {1: Fraction(1)}
        number = self._scalar(name)
        if number is not None:
            return {0: number}
        node = self.producers.get(name)
        if node is None or depth > DEPTH:
            return None
        terms = [self._polynomial(i, base, depth + 1) for i in node.inputs]
        known = [t for t in terms if t is not None]
        return _evaluate(node.op, known) if len(known) == len(terms) else None


def _evaluate(op: str, terms: list[Polynomial]) -> Polynomial | None:
    match op, terms:
        case "Neg", [x]:
            return {k: -v for k, v in x.items()}
        case (("Add" | "Sub"), [x, y]):
            sign = 1 if op == "Add" else -1
            return {k: x.get(k, Fraction(0)) + sign * y.get(k, Fraction(0)) for k in x | y}
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


def _product(x: Polynomial, y: Polynomial) -> Polynomial | None:
    result: Polynomial = {}
    for i, a in x.items():
        for j, b in y.items():
            result[i + j] = result.get(i + j, Fraction(0)) + a * b
    return result if max(result) <= DEGREE else None


def _near(found: Polynomial, wanted: Mapping[int, float | Fraction]) -> bool:
    """Relatively, so that what should be 0 is 0; in rational arithmetic, where nothing vanishes."""
    pairs = [(found.get(k, Fraction(0)), Fraction(wanted.get(k, 0))) for k in {*found, *wanted}]
    return all(abs(a - b) <= NEAR * max(abs(a), abs(b)) for a, b in pairs)


def _activation(
    gate: OnnxNode, source: str, outer: Polynomial, argument: Polynomial
) -> tuple[OnnxNode, Fraction] | None:
    slope = outer.get(1, Fraction(0))
    if gate.op == "Sigmoid":
        steep = argument.get(1, Fraction(0))
        if steep == 0 or not _near(argument, {1: steep}) or not _near(outer, {1: slope}):
            return None
        if abs(steep) > LARGEST or Fraction(float(steep)) != steep:
            raise Refused(f"a sigmoid's factor at {gate.name} is not supported by the checker")
        return OnnxNode("Swish", "", (source,), (), {"alpha": float(steep)}), slope
    if not _near(outer, {0: slope, 1: slope}) or not _near(argument, USUAL[gate.op]):
        return None
    if outer.get(0, Fraction(0)) != slope:
        raise Refused(f"the constants of {gate.name} are not supported by the checker")
    constants = [fmpq(c.numerator, c.denominator) for k, c in sorted(argument.items()) if k % 2]
    kind = "Gelu" if gate.op == "Erf" else "GeluTanh"
    attributes = {"kind": kind, "constants": constants}
    return OnnxNode("frown_check::Hump", "", (source,), (), attributes), 2 * slope
