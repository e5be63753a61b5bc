"""The barrier benchmark on small networks whose files bear its names."""

from __future__ import annotations

import csv
from math import inf, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.paper.barrier import (
    BARRIER,
    ERRORS,
    IMAGES,
    BarrierEvent,
    BarrierRow,
    ErrorRow,
    Proved,
    run_barrier,
    run_error,
)
from benchmarks.paper.barrier_tables import (
    barrier_markdown,
    barrier_table,
    error_markdown,
    error_table,
    write_barrier,
    write_error,
)
from frown.errors import InvalidInput, OutputError
from onnx_models import integers, model, node, saved

LINEAR, BENT = BARRIER[0].name, BARRIER[1].name
NAMES = ["nor_mlp_b", "adv_mlp_b_0.1"]
CLASSES = 10


def dense(folder: Path, file: str, shape: tuple[int, ...], *layers: np.ndarray) -> None:
    """Flatten, then weights (in, out) with ReLU between them."""
    nodes, here = [node("Reshape", "x flat", "h0")], "h0"
    constants = {"flat": integers(-1, int(np.prod(shape)))}
    for n, weight in enumerate(layers):
        constants[f"w{n}"] = weight.astype(np.float32)
        last = n == len(layers) - 1
        nodes.append(node("MatMul", f"{here} w{n}", "y" if last else f"z{n}"))
        if not last:
            nodes.append(node("Relu", f"z{n}", f"h{n + 1}"))
            here = f"h{n + 1}"
    saved(model(nodes, ["N", *shape], constants), folder, file)


@pytest.fixture
def radii(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray]:
    """A linear and a bent network and three images; the linear one's weights and the images."""
    rng = np.random.default_rng(1)
    folder = tmp_path / "models"
    folder.mkdir()
    weight = rng.standard_normal((16, CLASSES))
    dense(folder, BARRIER[0].file, (1, 4, 4), weight)
    first, second = rng.standard_normal((16, 12)), rng.standard_normal((12, 12))
    third = rng.standard_normal((12, CLASSES))
    dense(folder, BARRIER[1].file, (1, 4, 4), first, second, third)
    images = rng.random((3, 1, 4, 4))
    np.save(folder / IMAGES, images)
    return tmp_path, weight, images


def exact(weight: np.ndarray, x: np.ndarray) -> float:
    """The l_inf distance at which a linear classifier's own answer changes."""
    outputs = x.ravel() @ weight
    label = int(outputs.argmax())
    others = [k for k in range(weight.shape[1]) if k != label]
    return min(
        (outputs[label] - outputs[k]) / np.abs(weight[:, label] - weight[:, k]).sum()
        for k in others
    )


def test_radii_of_a_linear_network_are_its_distances(radii) -> None:
    shared, weight, images = radii
    (row,) = run_barrier(shared, networks=[LINEAR], tol=0.002)
    truth = [exact(weight, x) for x in images]
    for method in ("crown", "frown"):
        assert np.all(np.array(row.proved[method].radii) <= np.array(truth) * (1 + 1e-5))
        assert row.proved[method].radii == pytest.approx(truth, rel=0.003)
        assert row.ratio(method) == pytest.approx(1000 * np.mean(truth) / 15.83, rel=0.003)
    assert np.all(np.array(row.broken) >= np.array(truth) * (1 - 1e-5))
    assert row.broken == pytest.approx(truth, rel=0.05)


def test_frown_proves_more_than_crown_and_less_than_the_attack_breaks(radii) -> None:
    shared, _, _ = radii
    (row,) = run_barrier(shared / "models", networks=[BENT])
    crown, frown = (np.array(row.proved[m].radii) for m in ("crown", "frown"))
    assert np.all(crown > 0)
    assert np.all(frown >= crown * 0.998)
    assert frown.mean() > crown.mean()
    assert np.all(frown < np.array(row.broken))


def test_linear_programs_prove_at_least_as_much_as_frown(radii) -> None:
    pytest.importorskip("highspy")
    shared, _, _ = radii
    (row,) = run_barrier(shared, networks=[BENT], methods=["frown", "lp"], tol=0.005)
    frown, lp = (np.array(row.proved[m].radii) for m in ("frown", "lp"))
    assert np.all(lp >= frown * 0.995)
    assert np.all(lp < np.array(row.broken))


def test_one_thread_while_it_runs_and_the_callers_afterwards(radii) -> None:
    shared, _, _ = radii
    events: list[tuple[BarrierEvent, int]] = []
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run_barrier(
            shared,
            networks=[LINEAR],
            methods=["crown"],
            report=lambda event: events.append((event, torch.get_num_threads())),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert {threads for _, threads in events} == {1}
    assert [(e.method, e.done) for e, _ in events] == [
        ("attack", 3),
        ("crown", 1),
        ("crown", 2),
        ("crown", 3),
    ]
    assert str(events[1][0]) == f"{LINEAR} crown: 1 of 3 images"


def test_what_is_missing_is_named(radii) -> None:
    shared, _, _ = radii
    with pytest.raises(InvalidInput, match=BARRIER[2].file):
        run_barrier(shared)
    with pytest.raises(InvalidInput, match="choose from mlp_2_100_nor"):
        run_barrier(shared, networks=["mlp"])
    with pytest.raises(InvalidInput, match="choose from crown, frown, lp"):
        run_barrier(shared, methods=["milp"])
    with pytest.raises(InvalidInput, match="positive"):
        run_error(shared, count=0)
    (shared / "models" / IMAGES).write_text("no array")
    with pytest.raises(InvalidInput, match=IMAGES):
        run_barrier(shared, networks=[LINEAR])


# -- the error ------------------------------------------------------------------------


@pytest.fixture
def digits(tmp_path: Path) -> tuple[Path, np.ndarray, np.ndarray, np.ndarray]:
    """Linear networks under both names, and an MNIST of 20 test images; the last half is dark."""
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((784, CLASSES))
    for name in NAMES:
        dense(tmp_path, f"salman_{name}.onnx", (1, 28, 28), weight)
    x = rng.integers(0, 256, (20, 28, 28)).astype(np.uint8)
    x[10:] = np.where(rng.random((10, 28, 28)) < 0.9, 0, x[10:])
    outputs = x.reshape(20, -1) / 255 @ weight
    y = outputs.argmax(1).astype(np.uint8)
    y[::5] = (y[::5] + 1) % CLASSES
    np.savez(tmp_path / "mnist.npz", x_train=x[:10], y_train=y[:10], x_test=x, y_test=y)
    return tmp_path, weight, x, y


def can_be_fooled(weight: np.ndarray, x: np.ndarray, label: int, eps: float) -> bool:
    """Exactly, for a linear network and pixels that stay in [0, 1]."""
    low, high = np.maximum(x - eps, 0), np.minimum(x + eps, 1)
    for k in range(weight.shape[1]):
        slope = weight[:, label] - weight[:, k]
        if k != label and np.where(slope > 0, low, high) @ slope <= 0:
            return True
    return False


def test_the_error_of_a_linear_network_is_exact(digits) -> None:
    folder, weight, x, y = digits
    rows = run_error(folder, count=None)
    assert [(r.problem.name, r.problem.eps) for r in rows] == [(p.name, p.eps) for p in ERRORS]
    pixels = x.reshape(20, -1) / 255
    for row in rows:
        fooled = [can_be_fooled(weight, pixels[n], int(y[n]), row.problem.eps) for n in range(20)]
        assert row.wrong == 4
        assert row.upper == pytest.approx(np.mean(fooled))
        assert row.test <= row.lower <= row.upper
        assert row.deviation(row.upper) == 0  # these are all images
    assert 0.2 < rows[0].upper < 1  # or nothing was tested


def test_images_are_spread_over_the_test_set(digits) -> None:
    folder, *_ = digits
    (row,) = run_error(folder, count=4, networks=["adv_mlp_b_0.1"], method="crown")
    assert (row.count, row.of, row.method) == (4, 20, "crown")
    assert row.wrong == 4  # places 0, 5, 10 and 15 carry wrong labels
    assert row.lower == row.upper == 1


def test_a_network_for_other_images_is_refused(digits) -> None:
    folder, *_ = digits
    dense(folder, "salman_nor_mlp_b.onnx", (1, 4, 4), np.ones((16, CLASSES)))
    with pytest.raises(InvalidInput, match="784 pixels"):
        run_error(folder, networks=["nor_mlp_b"])


# -- tables ---------------------------------------------------------------------------

ROWS = [
    BarrierRow(
        BARRIER[0],
        (0.03, inf),
        {
            "crown": Proved((0.010, 0.020), (0.5, 0.7)),
            "frown": Proved((0.0117, 0.0199), (1.0, 2.0)),
        },
    )
]
ERROR_ROWS = [ErrorRow(ERRORS[0], "frown", 400, 10000, 8, 32, 60, 0.04)]


def text(table, width: int = 250) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_tables_show_ours_and_theirs() -> None:
    lines = [line for line in barrier_markdown(ROWS).splitlines() if line.startswith("|")]
    heads, values = ([c.strip() for c in line.strip("|").split("|")] for line in lines[::2])
    shown = dict(zip(heads, values, strict=True))
    assert shown["network"] == LINEAR
    assert (shown["CROWN"], shown["FROWN"], shown["LP-ALL"]) == ("15.00", "15.80", "15.83")
    assert shown["FROWN / LP-ALL"] == "0.998"
    assert (shown["attack"], shown["PGD"]) == ("inf", "28.14")
    assert (shown["CPU s CROWN"], shown["CPU s FROWN"]) == ("0.6", "1.5")
    for cell in (*heads, *values):
        assert cell in text(barrier_table(ROWS))


@pytest.mark.parametrize("width", [80, 120, 250])
def test_nothing_is_cut_on_a_narrow_terminal(width: int) -> None:
    radii = [BarrierRow(network, (0.03,), ROWS[0].proved) for network in BARRIER]
    errors = [ErrorRow(p, m, 400, 10000, 8, 32, 60, 0.04) for m in ("crown", "lp") for p in ERRORS]
    for shown in (barrier_table(radii, width), error_table(errors, width)):
        lines = text(shown, width).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width
        assert not any("…" in line for line in lines)
    seen = text(error_table(errors, width), width)
    assert seen.count("25.00 ± 2.12") == len(errors)
    assert seen.count("adv_mlp_b_0.1") == 2


def test_errors_come_with_their_standard_error() -> None:
    (row,) = ERROR_ROWS
    assert (row.test, row.lower, row.upper) == (0.02, 0.1, 0.25)
    binomial = sqrt(0.25 * 0.75 / 400)
    assert row.deviation(0.25) == pytest.approx(binomial * sqrt(9600 / 9999))
    written = error_markdown(ERROR_ROWS)
    assert "| 25.00 ± 2.12 |" in written
    assert "| 10.16 to 13.48 | 26.41 | 35.11 |" in written
    assert "25.00 ± 2.12" in text(error_table(ERROR_ROWS))


def test_below_a_table_are_its_command_its_samples_and_notes() -> None:
    radii, errors = barrier_markdown(ROWS), error_markdown(ERROR_ROWS)
    assert radii.startswith("## Convex relaxation barrier, table 2") and "of 2 MNIST" in radii
    assert f'`make paper ARGS="barrier --methods crown,frown --networks {LINEAR}"`' in radii
    assert "- samples per cell: 2 images" in radii
    assert errors.startswith("## Convex relaxation barrier, table 1")
    command = 'make paper ARGS="barrier --methods frown --networks nor_mlp_b --errors 400"'
    assert f"`{command}`" in errors and "- samples per cell: 400 images" in errors
    every = [BarrierRow(network, (0.03,), ROWS[0].proved) for network in BARRIER]
    assert "--networks" not in barrier_markdown(every)


def test_files_hold_the_tables_and_every_image(tmp_path: Path) -> None:
    table, images = write_barrier(ROWS, tmp_path / "out")
    assert table.read_text() == barrier_markdown(ROWS)
    with images.open() as stream:
        records = list(csv.DictReader(stream))
    assert [(r["method"], float(r["radius"]), float(r["broken"])) for r in records] == [
        ("crown", 0.010, 0.03),
        ("crown", 0.020, inf),
        ("frown", 0.0117, 0.03),
        ("frown", 0.0199, inf),
    ]
    (errors,) = write_error(ERROR_ROWS, tmp_path)
    assert errors.read_text(encoding="utf-8") == error_markdown(ERROR_ROWS)
    with pytest.raises(OutputError, match="cannot write"):
        write_barrier(ROWS, errors)
