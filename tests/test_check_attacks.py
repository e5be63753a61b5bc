"""Attempts to make the checker accept what is false or malformed: all are refused."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frown_check
from check.writer import Draft, draft, seal
from onnx_models import model, node, saved

W0 = np.array([[1.0, -0.5], [0.3, 0.8], [-0.7, 0.2]], np.float32)
B0 = np.array([0.1, -0.2, 0.05], np.float32)
W1 = np.array([[0.9, 0.2, -0.4], [-0.6, 0.5, 0.7]], np.float32)
B1 = np.array([0.1, -0.1], np.float32)
CENTRE = np.array([0.5, 0.25])
SITES = [("a", "Relu", 3)]
TRUE, FALSE = 0.05, 1.5  # radii


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [
        node("Gemm", "x w0 b0", "z", transB=1),
        node("Relu", "z", "a"),
        node("Gemm", "a w1 b1", "y", transB=1),
    ]
    constants = {"w0": W0, "b0": B0, "w1": W1, "b1": B1}
    return saved(model(nodes, ["N", 2], constants), tmp_path)


def margin(x: list[Fraction]) -> Fraction:
    def layer(w: np.ndarray, b: np.ndarray, v: list[Fraction]) -> list[Fraction]:
        rows = zip(w.tolist(), b.tolist(), strict=True)
        return [
            sum(Fraction(c) * z for c, z in zip(r, v, strict=True)) + Fraction(d) for r, d in rows
        ]

    y = layer(W1, B1, [max(z, Fraction(0)) for z in layer(W0, B0, x)])
    return y[0] - y[1]


def claim(path: Path, radius: float = TRUE, **more: Any) -> Draft:
    return draft(path, SITES, CENTRE, radius, 0, [1], **more)


def test_the_claims_are_true_and_false_as_said(path: Path) -> None:
    assert frown_check.check(claim(path).file(), path).accepted
    centre = [Fraction(float(c)) for c in CENTRE]
    corner = [centre[0] - Fraction(FALSE), centre[1] + Fraction(FALSE)]
    assert margin(centre) > 0 > margin(corner)
    assert not frown_check.check(claim(path, FALSE).file(), path).accepted


def put(*keys: Any) -> Callable[[Any], Callable[[Draft], None]]:
    def with_value(value: Any) -> Callable[[Draft], None]:
        def change(found: Draft) -> None:
            place = found.header
            for key in keys[:-1]:
                place = place[key]
            place[keys[-1]] = value(found) if callable(value) else value

        return change

    return with_value


def array(values: Any, dtype: str = "f8") -> Callable[[Draft], Any]:
    return lambda found: found.payload.put(values, dtype)


radius, norm = put("region", "radius"), put("region", "norm")
step, final = (put("steps", 0, key) for key in ("neuron", "side")), put("final", "table")
neuron, side = step
nan, big = float("nan"), float("inf")

MALFORMED: dict[str, Callable[[Draft], None]] = {
    "radius nan": radius("nan"),
    "radius infinite": radius("inf"),
    "radius beyond all numbers": radius("0x1p9999"),
    "radius below 0": radius("-0x1p-3"),
    "radius a number": radius(0.05),
    "radius empty": radius(""),
    "norm below 1": norm("0x1p-1"),
    "norm 0": norm("0"),
    "norm below 0": norm("-1"),
    "norm nan": norm("nan"),
    "norm infinite in hex": norm("0xinf"),
    "norm a number": norm(2),
    "norm null": norm(None),
    "label among the others": put("claim", "others")([1, 0]),
    "no others": put("claim", "others")([]),
    "others twice": put("claim", "others")([1, 1]),
    "another class that is not there": put("claim", "others")([2]),
    "label that is not there": put("claim", "label")(7),
    "label below 0": put("claim", "label")(-1),
    "label a truth value": put("claim", "label")(False),
    "label a fraction": put("claim", "label")(0.0),
    "scale below 0": put("region", "scale")(array([-1.0, 1.0])),
    "scale nan": put("region", "scale")(array([nan, 1.0])),
    "scale of another length": put("region", "scale")(array([1.0])),
    "centre nan": put("region", "centre")(array([nan, 0.0])),
    "centre infinite": put("region", "centre")(array([big, 0.0])),
    "centre too short": put("region", "centre")(array([0.0])),
    "centre in single precision": put("region", "centre")(array([0.5, 0.25], "f4")),
    "one end of a range": put("region", "lower")(array([0.0, 0.0])),
    "ball below -1": put("region", "ball")(array([-2, 0], "i4")),
    "ball of floats": put("region", "ball")(array([0.0, 0.0])),
    "std 0": put("normalisation")(
        lambda d: {"mean": d.payload.put([0.0, 0.0]), "std": d.payload.put([0.0, 1.0])}
    ),
    "std below 0": put("normalisation")(
        lambda d: {"mean": d.payload.put([0.0, 0.0]), "std": d.payload.put([-1.0, 1.0])}
    ),
    "mean nan": put("normalisation")(
        lambda d: {"mean": d.payload.put([nan, 0.0]), "std": d.payload.put([1.0, 1.0])}
    ),
    "input of another shape": put("input")([1, 2]),
    "input of shape 2^60": put("input")([2**30, 2**30]),
    "no sites": lambda d: d.header.update(sites=[], shared=[], steps=[]),
    "a site twice": lambda d: d.header.update(sites=d.header["sites"] * 2, shared=[None] * 2),
    "a site of another kind": put("sites", 0, "kind")("Tanh"),
    "a site of another name": put("sites", 0, "name")("z"),
    "a site of another size": put("sites", 0, "size")(4),
    "neuron out of range": neuron(array([3] * 6, "u4")),
    "neuron below 0": neuron(array([-1] * 6, "i4")),
    "side out of range": side(array([2] * 6, "u1")),
    "sides too few": side(array([0] * 5, "u1")),
    "slopes of a table that is not there": final(array([0], "u4")),
    "steps over their own site": put("steps", 0, "over")([0]),
    "steps of no site": put("steps", 0, "site")(1),
    "final over a site twice": put("final", "over")([0, 0]),
    "final over no site": put("final", "over")([1]),
    "infinite slopes": lambda d: d.header["final"].update(
        table=d.payload.put([0], "u4"), slopes=d.payload.put([[[big, 0.0, 0.0]]])
    ),
    "infinite shared slopes": put("shared")(lambda d: [d.payload.put([[big] * 3] * 2)]),
    "shared slopes of another shape": put("shared")(lambda d: [d.payload.put([[0.5] * 2] * 2)]),
    "an array outside": put("region", "centre")({"dtype": "f8", "shape": [2], "at": 1 << 30}),
    "an array before": put("region", "centre")({"dtype": "f8", "shape": [2], "at": -8}),
    "an array not aligned": put("region", "centre")({"dtype": "f8", "shape": [2], "at": 12}),
    "an array of 2^80 entries": put("region", "centre")(
        {"dtype": "f8", "shape": [2**40, 2**40], "at": 0}
    ),
    "an array of objects": put("region", "centre")({"dtype": "O", "shape": [2], "at": 0}),
    "another format": put("format")(2),
    "format true": put("format")(True),
    "a field too many": put("extra")(1),
    "a field missing": lambda d: d.header.pop("shared"),
    "another digest": put("model", "sha256")("0" * 64),
    "a digest in capitals": lambda d: d.header["model"].update(
        sha256=d.header["model"]["sha256"].upper()
    ),
    "no digest": put("model", "sha256")(None),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_certificates_of_true_claims_are_refused(name: str, path: Path) -> None:
    found = claim(path)
    MALFORMED[name](found)
    verdict = frown_check.check(found.file(), path)
    assert not verdict.accepted and verdict.reason


@pytest.mark.parametrize("bounds", [([0.6, 0], [1, 1]), ([0, 0], [0.4, 1]), ([1, 1], [0, 0])])
def test_ranges_that_are_empty_or_leave_the_centre_out_are_refused(bounds: Any, path: Path) -> None:
    assert not frown_check.check(claim(path, bounds=bounds).file(), path).accepted


def test_damaged_containers_are_refused(path: Path) -> None:
    found = claim(path)
    text, payload = json.dumps(found.header).encode(), bytes(found.payload.data)
    good = seal(text, payload)
    twice = text.replace(b'"format": 1', b'"format": 1, "format": 1')
    literal = text.replace(b'"format": 1', b'"format": NaN')
    long = struct.pack("<I", len(text)) + text + struct.pack("<Q", len(payload))
    bomb = struct.pack("<I", len(text)) + text + struct.pack("<Q", 2**40) + zlib.compress(payload)
    for content in (
        b"",
        good[:7],
        good[:15],
        good[:-1],
        good + b"\0",
        b"FROWNC02" + good[8:],
        seal(twice, payload),
        seal(literal, payload),
        seal(b"[]", payload),
        seal(b"[" * 100_000, payload),
        seal(text[:-1], payload),
        b"FROWNC01" + long + zlib.compress(payload + b"\0" * 8),
        b"FROWNC01" + long + zlib.compress(payload[:-8]),
        b"FROWNC01" + bomb,
    ):
        assert not frown_check.check(content, path).accepted


def test_no_slopes_prove_a_false_claim(path: Path) -> None:
    """Ordinary, absurd and missing ones, on both lanes, shared or of rows; rows twice or not."""
    for seed in range(120):
        rng = np.random.default_rng(seed)
        spread = float(rng.choice([0.3, 3.0, 1e6, 1e300]))
        lanes = int(rng.integers(1, 3))
        more = {"rng": rng, "spread": spread, "lanes": lanes, "rows": bool(rng.integers(2))}
        found = claim(path, FALSE, norm=str(rng.choice(["inf", "1", "2", "0x1.8p+0"])), **more)
        found.header["shared"] = [found.payload.put(rng.standard_normal((2, 3)) * spread)]
        found.header["steps"] = found.header["steps"] * int(rng.integers(1, 3))
        accepted = frown_check.check(found.file(), path).accepted
        assert not accepted or norm_holds(found.header["region"]["norm"]), seed


def norm_holds(norm: str) -> bool:
    """Whether the false claim's ball is small enough to be true in another norm."""
    step = {"inf": 1.0, "1": 0.0, "2": 0.5**0.5}.get(norm, 0.5 ** (2 / 3))
    centre = [Fraction(float(c)) for c in CENTRE]
    length = Fraction(FALSE) * Fraction(step)
    axis = [centre[0] - Fraction(FALSE), centre[1]]
    return margin([centre[0] - length, centre[1] + length]) > 0 and margin(axis) > 0


def test_a_certificate_is_of_one_model_alone(path: Path, tmp_path: Path) -> None:
    """Other weights under the old name; the header names the model that it was made for."""
    content = claim(path).file()
    changed = path.read_bytes().replace(B1.tobytes(), np.array([-5.0, 5.0], np.float32).tobytes())
    assert changed != path.read_bytes()
    other = tmp_path / "other.onnx"
    other.write_bytes(changed)
    verdict = frown_check.check(content, other)
    assert not verdict.accepted and "another model" in verdict.reason


@pytest.mark.parametrize(
    "text",
    ["0.05", "0x1p-9999", "0x1.99999999999999p-5", "0x1.9999999999999ffffp-5", " 0x1p-5", "0X1P-5"],
)
def test_what_is_accepted_is_the_radius_that_the_file_says(text: str, path: Path) -> None:
    """A text that is not the number it is read as claims more than is proved."""
    found = claim(path)
    found.header["region"]["radius"] = text
    verdict = frown_check.check(found.file(), path)
    assert not verdict.accepted


@pytest.mark.parametrize("text", ["1_0", " 2", "+2", "\u0662", "02"])
def test_norms_are_written_in_one_way(text: str, path: Path) -> None:
    found = claim(path)
    found.header["region"]["norm"] = text
    assert not frown_check.check(found.file(), path).accepted
