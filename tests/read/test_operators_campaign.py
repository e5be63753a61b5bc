"""A small fixed share of the campaign against the readers of ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from frown.read.onnx.call import HANDLERS
from frown_check.model.calls import HANDLERS as CHECKED
from operators.compare import Found, campaign, compare
from operators.table import TABLE, drawn

SHARE = 210  # models: three of each operator

# Read by frown, but no function of the input on their own.
SHAPES = {"Shape", "Size", "CastLike", "frown::Gelu"}
CONSTANTS = {"Constant", "ConstantOfShape", "frown_check::Written"}


def test_readers_and_onnxruntime_agree(tmp_path: Path) -> None:
    *_, found = campaign(3, SHARE, tmp_path, folds=True)
    assert found.wrong == []
    assert found.count["models"] == SHARE
    assert found.count["points of frown"] > 4 * SHARE
    assert found.count["points of checker"] > 3 * SHARE


def test_every_operator_is_drawn() -> None:
    assert TABLE.keys() >= {op for op in HANDLERS if not op.startswith("ai.onnx.ml::")} - SHAPES
    assert TABLE.keys() >= CHECKED.keys() - SHAPES - CONSTANTS


def test_every_attribute_is_drawn() -> None:
    """Of those that both read; each in some of a hundred models."""
    for op in sorted(TABLE.keys() & CHECKED.keys()):
        both = HANDLERS[op].attributes & CHECKED[op][1]
        given: set[str] = set()
        for k in range(400):
            case = drawn(op, (5, k))
            given |= case.attributes.keys()
        missing = both - given - {"saturate", "round_mode", "spatial", "training_mode", "layout"}
        if op in ("LSTM", "GRU"):
            missing -= {"activations"}  # any but the usual ones are refused by the checker
        assert not missing, (op, missing)


@pytest.mark.parametrize("who", ["frown", "checker"])
def test_a_reader_that_errs_is_caught(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An average that counts its padding, or a leaky slope that is a little off."""
    import operators.compare as compared

    found = Found()
    case = drawn("LeakyRelu", (0, 1))
    case.attributes["alpha"] = 0.3
    compare(case, True, False, tmp_path, found)
    assert found.wrong == [] and found.count[f"points of {who}"] > 0
    path = tmp_path / "model.onnx"
    load = compared.load_onnx if who == "frown" else compared.load

    def misread(*given: object) -> object:
        content = path.read_bytes()
        case.attributes["alpha"] = 0.31
        path.write_bytes(case.model(True, None).SerializeToString())
        import hashlib

        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        read = load(path) if who == "frown" else load(path, digest, {}, None)
        path.write_bytes(content)
        if who == "frown":
            case.attributes["alpha"] = 0.3
            monkeypatch.undo()
            object.__setattr__(read, "run", compared.load_onnx(path).run)
        return read

    monkeypatch.setattr(compared, "load_onnx" if who == "frown" else "load", misread)
    found = Found()
    case.attributes["alpha"] = 0.3
    compare(case, True, False, tmp_path, found)
    assert len(found.wrong) == 1 and found.wrong[0].startswith(f"{who}: off by")


def test_points_lie_near_and_far() -> None:
    from operators.compare import points

    found = points((2, 3), np.random.default_rng(0))
    assert np.abs(found).max() > 100 and (found == 0).all((1, 2)).any()
