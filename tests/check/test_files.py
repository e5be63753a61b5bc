"""Certificates that were changed, damaged or made to do harm are refused, and never crash it."""

from __future__ import annotations

import copy
import json
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.networks import NETWORKS, Net
from check.writer import Draft, draft, seal
from examples import examples
from frown_check import check, container
from frown_check.__main__ import main

X = np.array([0.3, -0.2, 0.5, 0.1, -0.4])
FAR = np.array([0.5, -0.5, 0.5, 0.5, 0.5])


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    return NETWORKS["tanh"](tmp_path_factory.mktemp("net"), np.random.default_rng(1))


@pytest.fixture(scope="module")
def tight(net: Net) -> Callable[..., Draft]:
    """A certificate at nearly the largest radius that its rows prove; norm 2 in a range."""
    y = net.outputs(X[None])[0]
    label = int(y.argmax())
    others = [o for o in range(3) if o != label]

    def make(radius: float) -> Draft:
        return draft(
            net.path,
            net.sites,
            X,
            radius,
            label,
            others,
            "2",
            scale=[1.0, 1.0, 0.5, 1.0, 1.0],
            bounds=(X - 0.2, X + 0.2),
            normalisation=([0.0], [1.0]),
        )

    low, high = 0.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        accepted = check(make(middle).file(), net.path).accepted
        low, high = (middle, high) if accepted else (low, middle)
    assert 0.01 < low < 3
    return lambda: make(low * (1 - 1e-7))


def put(found: Draft, *path: Any, value: Any) -> None:
    at: Any = found.header
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value(at[path[-1]]) if callable(value) else value


def array(found: Draft, values: Any, dtype: str = "f8") -> Any:
    return found.payload.put(np.asarray(values), dtype)


TAMPERED: dict[str, Callable[[Draft], None]] = {
    "radius": lambda d: put(
        d, "region", "radius", value=lambda r: (float.fromhex(r) * 1.00001).hex()
    ),
    "norm": lambda d: put(d, "region", "norm", value="inf"),
    "norm 3": lambda d: put(d, "region", "norm", value=(3.0).hex()),
    "label": lambda d: put(
        d, "claim", value=lambda c: {"label": c["others"][0], "others": [c["label"]]}
    ),
    "centre": lambda d: put(d, "region", "centre", value=array(d, X + FAR)),
    "scale": lambda d: put(d, "region", "scale", value=array(d, np.full(5, 1.2))),
    "no scale": lambda d: put(d, "region", "scale", value=None),
    "balls": lambda d: put(d, "region", "ball", value=array(d, np.arange(5), "i4")),
    "normalisation": lambda d: put(d, "normalisation", "std", value=array(d, [0.9])),
    "no normalisation's mean": lambda d: put(d, "normalisation", "mean", value=array(d, [0.5])),
    "wider range": lambda d: put(d, "region", "lower", value=array(d, X - 0.3)),
    "half a range": lambda d: put(d, "region", "lower", value=None),
    "no rows": lambda d: put(d, "steps", value=[]),
    "missing rows": lambda d: put(d, "steps", value=lambda s: s[:-1]),
    "model": lambda d: put(d, "model", "sha256", value="0" * 64),
    "a site's name": lambda d: put(d, "sites", 0, "name", value="other"),
    "a site's kind": lambda d: put(d, "sites", 0, "kind", value="Sigmoid"),
    "a site's size": lambda d: put(d, "sites", 0, "size", value=5),
    "fewer sites": lambda d: put(d, "sites", value=lambda s: s[:1]),
    "shape": lambda d: put(d, "input", value=[1, 5]),
    "format": lambda d: put(d, "format", value=2),
    "class that is not": lambda d: put(d, "claim", "others", value=[7]),
    "no classes": lambda d: put(d, "claim", "others", value=[]),
    "the label itself": lambda d: put(
        d, "claim", "others", value=lambda o: [d.header["claim"]["label"]]
    ),
    "NaN centre": lambda d: put(d, "region", "centre", value=array(d, X * np.nan)),
    "infinite range": lambda d: put(d, "region", "upper", value=array(d, X + np.inf)),
    "range beside the centre": lambda d: put(d, "region", "lower", value=array(d, X + 0.1)),
    "negative radius": lambda d: put(d, "region", "radius", value=(-0.1).hex()),
    "NaN radius": lambda d: put(d, "region", "radius", value="nan"),
    "decimal radius": lambda d: put(d, "region", "radius", value=0.1),
    "norm below 1": lambda d: put(d, "region", "norm", value=(0.5).hex()),
    "negative scale": lambda d: put(d, "region", "scale", value=array(d, -np.ones(5))),
    "zero std": lambda d: put(d, "normalisation", "std", value=array(d, [0.0])),
    "infinite slopes": lambda d: put(d, "shared", 0, value=array(d, np.full((2, 6), np.inf))),
    "slopes of another shape": lambda d: put(d, "shared", 0, value=array(d, np.zeros((2, 5)))),
    "a neuron that is not": lambda d: put(d, "steps", 0, "neuron", value=array(d, [9] * 12, "u4")),
    "a third side": lambda d: put(d, "steps", 0, "side", value=array(d, [2] * 12, "u1")),
    "a table that is not": lambda d: put(d, "steps", 0, "table", value=array(d, [1] * 12, "u4")),
    "rows over later sites": lambda d: put(d, "steps", 0, "over", value=[1]),
    "steps out of order": lambda d: put(d, "steps", value=lambda s: s[::-1]),
    "final rows missing": lambda d: put(d, "final", "table", value=array(d, [0xFFFFFFFF], "u4")),
    "unknown field": lambda d: put(d, "final", "trust", value=True),
    "boolean for a number": lambda d: put(d, "claim", "label", value=True),
    "array outside": lambda d: put(d, "region", "centre", "at", value=2**30),
    "array misaligned": lambda d: put(d, "region", "centre", "at", value=4),
    "array of terabytes": lambda d: put(d, "region", "centre", "shape", value=[2**40]),
    "array of negative size": lambda d: put(d, "region", "centre", "shape", value=[-5]),
    "objects in an array": lambda d: put(d, "region", "centre", "dtype", value="O"),
}


def test_the_certificate_itself_is_accepted(net: Net, tight: Callable[[], Draft]) -> None:
    verdict = check(tight().file(), net.path)
    assert verdict.accepted, verdict.reason
    assert verdict.claim is not None and verdict.claim.norm == 2
    assert verdict.claim.clipped and verdict.claim.scaled and verdict.claim.normalised


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_changed_is_refused(what: str, net: Net, tight: Callable[[], Draft]) -> None:
    found = tight()
    found = Draft(copy.deepcopy(found.header), found.payload)
    TAMPERED[what](found)
    verdict = check(found.file(), net.path)
    assert not verdict.accepted
    assert verdict.reason


def test_another_model_is_refused(net: Net, tight: Callable[[], Draft], tmp_path: Path) -> None:
    proto = onnx.load(net.path)
    proto.producer_name = "someone else"
    other = tmp_path / "other.onnx"
    onnx.save(proto, other)
    assert "another model" in check(tight().file(), other).reason
    assert "no file" in check(tight().file(), tmp_path / "absent.onnx").reason
    assert "no file" in check(tmp_path / "absent.cert", net.path).reason


@given(data=st.data())
@examples(40)
def test_damaged_bytes_never_crash_and_prove_nothing_false(data: Any, net: Net, tight: Any) -> None:
    file = bytearray(tight().file())
    kind = data.draw(st.sampled_from(["flip", "cut", "noise", "header"]))
    if kind == "flip":
        for _ in range(data.draw(st.integers(1, 4))):
            file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del file[data.draw(st.integers(0, len(file) - 1)) :]
    elif kind == "noise":
        file[8:] = data.draw(st.binary(max_size=200))
    else:
        (length,) = struct.unpack_from("<I", file, 8)
        at = data.draw(st.integers(12, 12 + length - 1))
        file[at] = data.draw(st.sampled_from(b'0123456789{}[],:"-+.xen'))
    verdict = check(bytes(file), net.path)
    if verdict.accepted:
        claim = verdict.claim
        assert claim is not None
        rng = np.random.default_rng(0)
        steps = rng.normal(size=(50, 5))
        steps *= claim.radius / np.linalg.norm(steps, claim.norm, axis=1, keepdims=True) / 2
        y = net.outputs(claim.centre + steps * [1, 1, 0.5, 1, 1])
        assert (y[:, [claim.label]] > y[:, list(claim.others)]).all()


HARMFUL = {
    "a long header": b"FROWNC01" + struct.pack("<I", 2**32 - 1),
    "terabytes": b"FROWNC01" + struct.pack("<I", 2) + b"{}" + struct.pack("<Q", 2**60) + b"x",
    "a bomb": b"FROWNC01"
    + struct.pack("<I", 2)
    + b"{}"
    + struct.pack("<Q", 64)
    + zlib.compress(b"\0" * 2**27),
    "nothing": b"",
    "a name": b"FROWNC01",
    "deep": seal(b"[" * 100_000, b""),
    "NaN": seal(b'{"format": NaN}', b""),
    "digits": seal(b'{"format": ' + b"9" * 10_000 + b"}", b""),
    "twice": seal(b'{"format": 1, "format": 1}', b""),
    "pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system",
    "no text": seal(b"\xff\xfe", b""),
    "a list": seal(b"[]", b""),
}


@pytest.mark.parametrize(
    ("steps", "shift", "reason"),
    [(20, 0, ""), (2000, 0, "the steps have more than"), (400, 8, "too many arrays overlap")],
)
def test_small_files_do_not_ask_for_much_more(
    steps: int, shift: int, reason: str, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros are packed tightly, and arrays may share them: many steps of many rows each."""
    monkeypatch.setattr(container, "MOST_ROWS", 100_000)
    label = int(net.outputs(X[None])[0].argmax())
    found = draft(net.path, net.sites, X, 1e-6, label, [(label + 1) % 3])
    count = 64
    zeros = array(found, np.zeros(count + 4 * 400), "u4")["at"]
    table = array(found, np.full(count, 0xFFFFFFFF), "u4")
    (first, *rest) = found.header["steps"]
    more = []
    for k in range(steps):
        where = {"shape": [count], "at": zeros + shift * k}
        rows = {"neuron": {"dtype": "u4", **where}, "side": {"dtype": "u1", **where}}
        more.append({**first, **rows, "table": table, "slopes": None})
    found.header["steps"] = [first, *more, *rest]
    verdict = check(found.file(), net.path)
    assert verdict.accepted == (not reason) and reason in verdict.reason


@pytest.mark.parametrize("what", HARMFUL)
def test_harmful_files_are_refused_in_little_memory(what: str, net: Net) -> None:
    check(b"", net.path)
    tracemalloc.start()
    verdict = check(HARMFUL[what], net.path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not verdict.accepted and verdict.reason
    assert peak < 30e6


def test_weights_in_other_files_must_be_named_and_unchanged(net: Net, tight: Any, tmp_path: Path):
    import hashlib

    proto = onnx.load(net.path)
    path = tmp_path / "model.onnx"
    onnx.save_model(
        proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    found = tight()
    found.header["model"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert "does not cover" in check(found.file(), path).reason
    weights = tmp_path / "weights.bin"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    found.header["model"]["external"] = {"weights.bin": digest}
    assert check(found.file(), path).accepted
    found.header["model"]["external"]["other.bin"] = digest
    assert "does not read: ['other.bin']" in check(found.file(), path).reason
    found.header["model"]["external"] = {"weights.bin": digest}
    whole = weights.read_bytes()
    for changed in (whole[:-1], whole + b"\0", whole[:-1] + bytes([whole[-1] ^ 1])):
        weights.write_bytes(changed)
        assert "another model" in check(found.file(), path).reason
    weights.unlink()
    assert "not there" in check(found.file(), path).reason
    weights.write_bytes(whole)
    # A location that leaves the folder is never opened, even if the certificate names it.
    for name in ("../weights.bin", str(weights), ".."):
        moved = onnx.load(path, load_external_data=False)
        for tensor in moved.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = name
        other = tmp_path / "moved.onnx"
        other.write_bytes(moved.SerializeToString())
        found.header["model"]["sha256"] = hashlib.sha256(other.read_bytes()).hexdigest()
        found.header["model"]["external"] = {name: digest}
        assert "does not cover" in check(found.file(), other).reason


PLACES = {
    "signed": ("offset", "+0", "not understood"),
    "grouped": ("length", "1_0", "not understood"),
    "spaced": ("offset", " 0", "not understood"),
    "negative": ("offset", "-4", "not understood"),
    "empty": ("length", "", "not understood"),
    "other digits": ("offset", "\u0660", "not understood"),
    "absurdly long": ("length", "9" * 5000, "not understood"),
    "unknown": ("compression", "zlib", "not understood"),
    "beyond the end": ("length", "1000000000", "cut off"),
    "beyond the end, too": ("offset", "1000000000", "cut off"),
    "too short": ("length", "4", "damaged"),
}


@pytest.mark.parametrize("name", PLACES)
def test_places_of_weights_are_read_in_one_way(
    name: str, net: Net, tight: Any, tmp_path: Path
) -> None:
    import hashlib

    key, value, reason = PLACES[name]
    path = tmp_path / "model.onnx"
    onnx.save_model(
        onnx.load(net.path), path, save_as_external_data=True, location="w", size_threshold=0
    )
    proto = onnx.load(path, load_external_data=False)
    tensor = max(proto.graph.initializer, key=lambda t: np.prod(t.dims))
    given = {entry.key: entry.value for entry in tensor.external_data}
    del tensor.external_data[:]
    for k, v in {**given, key: value}.items():
        tensor.external_data.add(key=k, value=v)
    path.write_bytes(proto.SerializeToString())
    found = tight()
    digest = hashlib.sha256((tmp_path / "w").read_bytes()).hexdigest()
    found.header["model"] = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "external": {"w": digest},
    }
    assert reason in check(found.file(), path).reason
    # The same entry twice.
    tensor.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    found.header["model"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    assert "not understood" in check(found.file(), path).reason


def test_weights_in_other_files_are_bounded_in_all(
    net: Net, tight: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    from frown_check.model import file

    path = tmp_path / "model.onnx"
    onnx.save_model(
        onnx.load(net.path), path, save_as_external_data=True, location="w", size_threshold=0
    )
    found = tight()
    found.header["model"] = {
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "external": {"w": hashlib.sha256((tmp_path / "w").read_bytes()).hexdigest()},
    }
    assert check(found.file(), path).accepted
    monkeypatch.setattr(file, "content", lambda path, most: path.read_bytes())
    monkeypatch.setattr(file, "MOST_BYTES", 100)
    assert "have over 100 bytes" in check(found.file(), path).reason


def test_the_command_tells_and_exits(
    net: Net, tight: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good.cert", tmp_path / "bad.cert"
    good.write_bytes(tight().file())
    bad.write_bytes(tight().file()[:-1])
    assert main([str(good), "--model", str(net.path)]) == 0
    assert "accepted: class" in capsys.readouterr().out
    assert main([str(good), str(bad), "--model", str(net.path), "--json"]) == 1
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["accepted"] is True and first["claim"]["norm"] == 2.0
    assert second["accepted"] is False and second["reason"]


def test_frown_check_is_the_same_command(net: Net, tight: Any, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from frown.cli import app

    cert = tmp_path / "a.frown"
    cert.write_bytes(tight().file())
    done = CliRunner().invoke(app, ["check", str(cert), "--model", str(net.path), "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["accepted"] is True
    cert.write_bytes(b"")
    done = CliRunner().invoke(app, ["check", str(cert), "--model", str(net.path)])
    assert done.exit_code == 1 and "REFUSED" in done.stdout


WALL = """
import sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("frown", "torch", "scipy", "onnxruntime"):
            raise ImportError("beyond the wall: " + name)
sys.meta_path.insert(0, Wall())
from frown_check.__main__ import main
"""


def test_nothing_of_frown_or_torch_is_imported(net: Net, tight: Any, tmp_path: Path) -> None:
    cert = tmp_path / "a.cert"
    cert.write_bytes(tight().file())
    program = f"{WALL}sys.exit(main([{str(cert)!r}, '--model', {str(net.path)!r}]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "accepted" in done.stdout


def test_its_modules_import_three_libraries_only() -> None:
    import ast

    import frown_check

    allowed = {"numpy", "onnx", "flint", "google", "frown_check", "__future__"}
    for path in Path(frown_check.__file__).parent.rglob("*.py"):
        for part in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(part, ast.Import):
                names = [alias.name for alias in part.names]
            elif isinstance(part, ast.ImportFrom):
                names = [part.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top in allowed or top in sys.stdlib_module_names, f"{path.name}: {name}"
                assert top not in ("pickle", "subprocess", "ctypes", "importlib")
