"""The demo, end to end, and the files that ship for it."""

from __future__ import annotations

import io
from importlib.resources import files

import numpy as np
import onnxruntime
import pytest
from rich.console import Console

from frown.errors import InvalidInput, OutputError
from frown.jobs.demo import DATA, METHODS, MODEL, run
from frown.report.page import report_from_files
from frown.report.read import read_results

ASSETS = files("frown.jobs").joinpath("assets")


@pytest.fixture(scope="module")
def shipped():
    with np.load(io.BytesIO(ASSETS.joinpath(DATA).read_bytes())) as data:
        x, y = data["x"], data["y"]
    return onnxruntime.InferenceSession(ASSETS.joinpath(MODEL).read_bytes()), x, y


def answers(session, x):
    return session.run(None, {"image": x.astype(np.float32)})[0].argmax(1)


def test_the_shipped_classifier_is_good_and_small(shipped):
    session, x, y = shipped
    assert x.shape == (300, 64) and x.dtype == np.float32
    assert x.min() >= 0 and x.max() <= 1
    assert np.mean(answers(session, x) == y) >= 0.95
    assert session.get_inputs()[0].shape == ["N", 64]
    assert sum(len(ASSETS.joinpath(name).read_bytes()) for name in (MODEL, DATA)) < 200_000


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    text = io.StringIO()
    assert run(out, 12, Console(file=text, width=100)) == 0
    return out, text.getvalue()


def test_the_demo_leaves_results_and_a_page(demo):
    out, text = demo
    assert "report.html" in text and "frown certify" in text
    for method in METHODS:
        assert len(read_results(out / method)) == 12
    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count('<article class="card">') == 12


def test_the_demo_orders_the_methods_and_stays_below_the_attack(demo):
    out, _ = demo
    radius = {m: read_results(out / m).radius for m in METHODS}
    broken = read_results(out / "frown").broken
    assert (radius["frown"] >= radius["crown"] * 0.99).all()  # the search's tolerance
    assert (radius["crown"] >= radius["interval"] * 0.99).all()
    for method in METHODS:
        assert (radius[method] <= broken).all()


def test_every_counterexample_of_the_demo_fools_the_classifier(demo, shipped):
    out, _ = demo
    session, x, y = shipped
    result = read_results(out / "frown")
    assert result.counterexamples
    for row in result.rows:
        if row.index in result.counterexamples and row.status != "misclassified":
            found = result.counterexamples[row.index].reshape(1, 64)
            assert answers(session, found)[0] != y[row.index]
            assert np.abs(found - x[row.index]).max() <= row.broken * (1 + 1e-5)
            assert found.min() >= 0 and found.max() <= 1


def test_the_demo_page_can_be_written_again_from_its_files(demo, tmp_path):
    out, _ = demo
    page = report_from_files([out / m for m in METHODS], tmp_path / "again.html")
    assert page.read_text(encoding="utf-8").count('<article class="card">') == 12


@pytest.mark.parametrize("samples", [0, -1, 301])
def test_samples_that_there_are_not_are_refused(tmp_path, samples):
    with pytest.raises(InvalidInput, match="300 digits"):
        run(tmp_path, samples, Console(file=io.StringIO()))


def test_an_unwritable_directory_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        run(tmp_path / "file", 1, Console(file=io.StringIO()))
