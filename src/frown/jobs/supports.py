"""Capabilities of `frown verify`, in the words of the VNN-LIB standard (`frown supports`)."""

from __future__ import annotations

from collections.abc import Callable

from frown.errors import InvalidInput

NEWEST_OPSET = 20  # as which operators are read; a newer file may load, too


def _opsets() -> list[str]:
    from frown.read.onnx.load import OLDEST_OPSET

    return [str(OLDEST_OPSET), str(NEWEST_OPSET)]


def _operators() -> list[str]:
    import frown.read.onnx.load  # noqa: F401  (its handlers register)
    from frown.read.onnx.call import HANDLERS

    return sorted(HANDLERS)


# By the option's name. `unsat` is proved of the network over the real numbers, which is why no
# floating point type is among the element types.
CAPABILITIES: dict[str, Callable[[], list[str]]] = {
    "onnx-opset-versions": _opsets,
    "onnx-element-types": lambda: ["real"],
    "onnx-operators": _operators,
    "vnnlib-versions": lambda: ["1.0", "2.1"],
    "hidden-node-theories": lambda: ["NH"],
    "multiple-input-output-theories": lambda: ["SIO"],
    "multiple-network-theories": lambda: ["SNET"],
    "multiple-node-comparison-theories": lambda: ["SNC", "MNC"],
    "arithmetic-complexity-theories": lambda: ["BND", "OUTC", "LIN"],
    "optimised-disjunctive-reasoning": lambda: ["true"],
    "serialise-assignments": lambda: ["true"],
}


def supported(asked: list[str]) -> list[str]:
    """The lines that answer which capabilities there are, in the order asked.

    Raises InvalidInput unless one at least is asked about.
    """
    if not asked:
        told = ", ".join(f"--{name}" for name in CAPABILITIES)
        raise InvalidInput(f"supports takes a capability: {told}")
    return [line for name in asked for line in CAPABILITIES[name]()]
