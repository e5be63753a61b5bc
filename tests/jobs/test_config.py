"""Options that repeat, in frown.toml, and help in two lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from frown.methods import METHODS
from frown.problem.options import Option, options_of
from methods.programs.tools import command
from onnx_models import model, node, saved, weights


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path, Path]:
    monkeypatch.chdir(tmp_path)
    constants = {"a": weights(3, 6), "b": weights(6, 2, seed=2)}
    nodes = [node("MatMul", "x a", "h"), node("Relu", "h", "r"), node("MatMul", "r b")]
    np.savez("data.npz", x=np.random.default_rng(0).uniform(0, 1, (4, 3)))
    return "certify", saved(model(nodes, ("N", 3), constants), tmp_path), tmp_path / "data.npz"


def settings(out: Path) -> dict:
    about = json.loads((out / "run.json").read_text())
    return about["settings"] | {"method": about["method"], "norm": about["norm"]}


def test_options_come_from_a_file(given, tmp_path: Path) -> None:
    text = '[certify]\nmethod = "crown"\nnorm = 2\nbounds = [0, 1]\nattack = false\nfix = [0, 1]\n'
    Path("frown.toml").write_text(text)
    shown = command(*given, "--out", "a")
    assert "from frown.toml: method = crown, norm = 2, bounds = 0 1, attack" in shown.stderr
    found = settings(Path("a"))
    assert (found["method"], found["norm"], found["fix"]) == ("crown", "2", "0,1")
    assert "0 of" not in shown.stdout and "2 of 3 numbers may not change" in shown.stdout
    command(*given, "--out", "b", "--method", "interval")
    assert settings(Path("b"))["method"] == "interval"  # what is typed overrules the file
    Path("frown.toml").rename("other.toml")
    command(*given, "--out", "c")
    assert settings(Path("c"))["method"] == "frown"
    command(*given, "--out", "d", "--config", "other.toml")
    assert settings(Path("d"))["method"] == "crown"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[certify]\nmetod = "crown"\n', "no option metod; did you mean method"),
        ("[certify]\ntol = true\n", "tol = True"),
        ("[certify]\nresume = 1\n", "resume = 1"),
        ("[certify\n", "frown.toml: "),
        ("certify = 3\n", "must be a table"),
    ],
)
def test_a_file_that_makes_no_sense(given, text: str, said: str) -> None:
    Path("frown.toml").write_text(text)
    assert said in command(*given, code=2).output


def test_help_comes_in_two_lengths() -> None:
    short, long = (command("certify", flag).output for flag in ("--help", "--help-all"))
    assert "--norm" in short and "--tangents" not in short and "--help-all" in short
    assert "--fail-under" in short and "--id-column" in short and long.count("<bool>") < 2
    assert "--norm" in long and "--tangents" in long and "--id-column" in long


def test_methods_that_share_an_option_explain_it_alike():
    """Else the command line would show the help of one of them for all."""
    held: dict[str, set[Option]] = {}
    for kind in METHODS.values():
        for known in options_of(kind):
            held.setdefault(known.option.flag or known.name, set()).add(known.option)
    assert {name for name, told in held.items() if len(told) > 1} == set()
    assert held.keys() >= {"inner", "boxes", "rule"}
