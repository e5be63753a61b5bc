"""SiLU and GELU that a file writes out in several operators, as one site each.

Around a product y of two computed tensors lie a tensor t and a gate g = T(a), T one of Sigmoid, Erf
and Tanh, such that sums, products and powers with numbers lead from t and g to y, and from t to a.
Both ways are followed with rational numbers in place of t and g, without rounding, and what they
compute is told from its values at a few points. This is a proof: degrees are counted on the way,
and no other polynomial of these degrees has the same values.

    y, of degree 1 in t and in g, at t, g = 0, 1:       is it A t g + B t?
    a, of degree 3 in t, at -1, 0, 1, 2:                is it b t + c t^3?

If so, y is A times t sigmoid(b t) where B = c = 0, and 2 A times t (1 + erf(b t)) / 2 or
t (1 + tanh(b t + c t^3)) / 2 where A = B and b and c are GELU's to 1e-6. The site has the file's
own numbers. What is anything else stays as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import pi, sqrt

import numpy as np

from frown_check.model.calls import Constant, OnnxNode

NEAR = Fraction(1, 10**6)
DEEP = 8  # operators, from a product or a gate back to t
WIDE = 24  # tensors that are tried for t and g
USUAL = {
    "Erf": (Fraction(1 / sqrt(2)), Fraction(0)),
    "Tanh": (Fraction(sqrt(2 / pi)), Fraction(0.044715 * sqrt(2 / pi))),
}
KINDS = {"Sigmoid": "Silu", "Erf": "Gelu", "Tanh": "GeluTanh"}
ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Neg", "Pow")

Term = tuple[Fraction, int, int]  # a value, and degrees in t and in g that are not exceeded


def fused(nodes: list[OnnxNode], constants: Mapping[str, Constant], output: str) -> list[OnnxNode]:
    """The nodes, with each activation in place of the last operator that it is written with."""
    paths = Paths({name: node for node in nodes for name in node.outputs}, constants)
    reading: dict[str, list[OnnxNode]] = {}
    for node in nodes:
        for name in node.inputs:
            reading.setdefault(name, []).append(node)
    found: dict[str, OnnxNode] = {}
    for node in nodes:
        if node.op != "Mul" or any(paths.number(i) is not None for i in node.inputs):
            continue
        site = paths.activation(node.outputs[0])
        if site is None:
            continue
        factor, end = site.attributes["factor"], node
        while end.outputs[0] != output and len(reading.get(end.outputs[0], ())) == 1:
            (after,) = reading[end.outputs[0]]
            times = paths.multiple(after, end.outputs[0])
            if times is None:
                break
            factor, end = factor * times, after
        attributes = {**site.attributes, "factor": factor}
        found[end.outputs[0]] = OnnxNode(site.op, end.name, site.inputs, end.outputs, attributes)
    return [found.get(node.outputs[0], node) for node in nodes]


class Paths:
    """Ways through a file's arithmetic, computed with rational numbers."""

    def __init__(self, makers: Mapping[str, OnnxNode], constants: Mapping[str, Constant]) -> None:
        self.makers, self.constants = makers, constants

    def number(self, name: str) -> Fraction | None:
        """A constant of one entry; on two axes it might add one to what it is combined with."""
        found = self.constants.get(name)
        if found is None or found.size != 1 or found.ndim > 1 or not np.isfinite(found).all():
            return None
        return Fraction(found.item())

    def activation(self, product: str) -> OnnxNode | None:
        """The activation that a product is, its outputs left open; None where it is none."""
        around = self._around(product)
        for gate in around:
            maker = self.makers.get(gate)
            if maker is None or maker.op not in KINDS or len(maker.inputs) != 1:
                continue
            for source in around:
                weights = None if source == gate else self._weights(product, source, gate)
                if weights is None:
                    continue
                slopes = self._slopes(maker.inputs[0], source)
                if slopes is not None and _known(maker.op, weights, slopes):
                    factor = weights[0] if maker.op == "Sigmoid" else 2 * weights[0]
                    about = {"kind": KINDS[maker.op], "slopes": slopes, "factor": factor}
                    return OnnxNode("frown_check::Written", "", (source,), (), about)
        return None

    def multiple(self, node: OnnxNode, of: str) -> Fraction | None:
        """c where a node computes c times a tensor."""
        if node.op not in ("Mul", "Div", "Neg"):
            return None
        at_1 = self._value(node.outputs[0], {of: (Fraction(1), 1, 0)})
        at_0 = self._value(node.outputs[0], {of: (Fraction(0), 1, 0)})
        if at_0 is None or at_1 is None or at_0[0] != 0 or at_0[1] > 1:
            return None
        return at_1[0]

    def _around(self, product: str) -> list[str]:
        """Tensors that a product may be computed from, the nearest first."""
        names = [product]
        for name in names:
            maker = self.makers.get(name)
            if maker is not None and maker.op in ARITHMETIC and len(names) < WIDE:
                names += [i for i in maker.inputs if i not in self.constants and i not in names]
        return names[1:]

    def _weights(self, product: str, source: str, gate: str) -> tuple[Fraction, Fraction] | None:
        """A and B of A t g + B t."""
        values: list[Fraction] = []
        for t, g in ((0, 0), (0, 1), (1, 0), (1, 1)):
            at = {source: (Fraction(t), 1, 0), gate: (Fraction(g), 0, 1)}
            found = self._value(product, at)
            if found is None or found[1] > 1 or found[2] > 1:
                return None
            values.append(found[0])
        neither, alone, single, both = values
        return (both - single, single) if neither == alone == 0 else None

    def _slopes(self, name: str, source: str) -> tuple[Fraction, Fraction] | None:
        """b and c of b t + c t^3."""
        values: list[Fraction] = []
        for t in (-1, 0, 1, 2):
            found = self._value(name, {source: (Fraction(t), 1, 0)})
            if found is None or found[1] > 3:
                return None
            values.append(found[0])
        before, at_0, at_1, at_2 = values
        cubic = (at_2 - 2 * at_1) / 6
        return (at_1 - cubic, cubic) if at_0 == 0 and before == -at_1 else None

    def _value(self, name: str, at: dict[str, Term], deep: int = 0) -> Term | None:
        """A tensor, given others; all that is computed joins `at`. None: not by arithmetic."""
        if name in at:
            return at[name]
        number = self.number(name)
        if number is not None:
            return number, 0, 0
        maker = self.makers.get(name)
        if maker is None or maker.op not in ARITHMETIC or deep > DEEP:
            return None
        terms = [self._value(i, at, deep + 1) for i in maker.inputs]
        given = [term for term in terms if term is not None]
        found = _computed(maker.op, given) if len(given) == len(terms) else None
        if found is not None:
            at[name] = found
        return found


def _computed(op: str, terms: list[Term]) -> Term | None:
    (x, t, g), (y, u, h) = terms[0], terms[-1]
    if op == "Neg":
        return -x, t, g
    if op in ("Add", "Sub"):
        return (x + y if op == "Add" else x - y), max(t, u), max(g, h)
    if op == "Mul":
        return x * y, t + u, g + h
    if u or h:  # only numbers divide and raise to powers
        return None
    if op == "Div":
        return (x / y, t, g) if y else None
    return (x ** int(y), t * int(y), g * int(y)) if y in (1, 2, 3) else None


def _known(
    gate: str, weights: tuple[Fraction, Fraction], slopes: tuple[Fraction, Fraction]
) -> bool:
    both, single = weights
    if gate == "Sigmoid":
        return both != 0 and single == 0 and slopes[0] != 0 and slopes[1] == 0
    pairs = zip(slopes, USUAL[gate])
    return both == single != 0 and all(abs(a - b) <= NEAR * abs(b) for a, b in pairs)
