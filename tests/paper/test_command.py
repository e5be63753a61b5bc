"""`make paper` from the outside: what it prints, writes and ends with."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from benchmarks.paper import runner
from benchmarks.paper.command import app
from benchmarks.paper.experiments import Experiment
from frown.jobs.store import MANIFEST, ROWS
from paper.conftest import World

SAMPLES = 4


def bench(*args: object) -> Result:
    return CliRunner().invoke(app, [*map(str, args)], env={"FROWN_SHARED": None})


def table4(world: World, out: Path, *more: object) -> Result:
    return bench(
        "table4", "--networks", "drive_4x20_relu,drive_4x20_sigmoid", "--methods", "crown,frown",
        "--norms", "inf",
        "--samples", SAMPLES, "--data", world.data, "--nets", world.nets, "--out", out, *more,
    )  # fmt: skip


def stored(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / ROWS).read_text().splitlines()]


@pytest.fixture(scope="module")
def done(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    out = tmp_path_factory.mktemp("bench") / "out"
    return out, table4(world, out)


def test_a_table_is_shown_and_written(world: World, done: tuple[Path, Result]) -> None:
    out, result = done
    assert result.exit_code == 0, result.output
    assert "Table 4: Sensorless Drive" in result.stdout
    assert "4x[20] sigmoid" in result.stdout and "CROWN 4, FROWN 4" in result.stdout
    assert {p.name for p in out.iterdir()} == {
        ROWS, MANIFEST, "table4.csv", "table4.md", "table4-gain.png",
    }  # fmt: skip
    text = (out / "table4.md").read_text()
    networks = "--networks drive_4x20_relu,drive_4x20_sigmoid --norms inf"
    assert f'`make paper ARGS="table4 {networks} --samples 4 --methods crown,frown"`' in text
    assert str(world.data) not in text  # no folders of one machine
    with (out / "table4.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [r["network"] for r in rows] == ["drive_4x20_relu", "drive_4x20_sigmoid"]
    for row in rows:
        radii = [
            r["radius"]
            for r in stored(out)
            if (r["network"], r["column"]) == (row["network"], "frown")
        ]
        assert len(radii) == SAMPLES
        assert float(row["frown_radius"]) == pytest.approx(sum(radii) / SAMPLES)
        assert float(row["frown_radius"]) >= float(row["area_radius"]) > 0


def test_methods_share_samples_and_targets(done: tuple[Path, Result]) -> None:
    rows = stored(done[0])
    for network in ("drive_4x20_relu", "drive_4x20_sigmoid"):
        asked = [
            [(r["sample"], r["mark"], r["target"]) for r in rows if r["column"] == column
             and r["network"] == network]
            for column in ("crown", "area", "frown")
        ]  # fmt: skip
        assert asked[0] == asked[1] == asked[2]
        assert len(asked[0]) == SAMPLES


def test_progress_is_plain_lines_where_there_is_no_terminal(done: tuple[Path, Result]) -> None:
    lines = done[1].stderr.splitlines()
    assert len(lines) == 6
    assert lines[0].startswith("[4/24] drive_4x20_relu p=inf crown: 4 samples, mean radius")
    assert lines[0].endswith("left") and "\x1b" not in done[1].stderr
    assert lines[-1].startswith("[24/24]")


def test_the_same_command_measures_nothing_again(
    world: World, done: tuple[Path, Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def certify(*args: object, **options: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(runner.flat, "certify", certify)
    again = table4(world, done[0])
    assert again.exit_code == 0, again.output
    assert again.stdout == done[1].stdout and again.stderr == ""


def test_show_measures_nothing(world: World, tmp_path: Path) -> None:
    result = table4(world, tmp_path, "--show", "--no-plots")
    assert result.exit_code == 0, result.output
    assert not (tmp_path / ROWS).exists()
    assert "4x[20] relu" in result.stdout and " - " in result.stdout


def test_a_failed_cell_is_named_and_the_exit_code_tells(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frown.errors import InvalidInput

    certify = runner.flat.certify

    def failing(*args: Any, **options: Any) -> Any:
        if options["method"] == "frown":
            raise InvalidInput("out of luck")
        return certify(*args, **options)

    monkeypatch.setattr(runner.flat, "certify", failing)
    result = table4(world, tmp_path, "--no-plots")
    assert result.exit_code == 1
    assert "not measured: drive_4x20_relu p=inf frown: out of luck" in result.stderr
    assert "4x[20] sigmoid" in result.stdout
    assert len(stored(tmp_path)) == 2 * 2 * SAMPLES


def test_an_interrupt_says_how_to_go_on(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certify = runner.flat.certify

    def interrupted(*args: Any, **options: Any) -> Any:
        if options["method"] == "frown":
            raise KeyboardInterrupt
        return certify(*args, **options)

    monkeypatch.setattr(runner.flat, "certify", interrupted)
    monkeypatch.setattr("sys.argv", ["paper", "table4", "--no-plots"])
    result = table4(world, tmp_path, "--no-plots")
    assert result.exit_code == 130
    assert f"{2 * SAMPLES} new results are in" in result.stderr and "to go on:" in result.stderr
    monkeypatch.undo()
    result = table4(world, tmp_path, "--no-plots")
    assert result.exit_code == 0 and len(stored(tmp_path)) == 2 * 3 * SAMPLES
    assert result.stderr.startswith("[4/16] drive_4x20_relu p=inf frown")


@pytest.mark.parametrize(("alias", "name"), [("table1", "table3"), ("table2", "table7")])
def test_the_experiments_of_the_main_text_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alias: str, name: str
) -> None:
    from benchmarks.paper import report

    asked = []

    def run(experiments: list[Experiment], *rest: object) -> list[object]:
        asked.append(experiments)
        return []

    monkeypatch.setattr(report, "run", run)
    for one in (alias, name):
        assert bench(one, "--data", tmp_path).exit_code == 0
    assert asked[0] == asked[1] and [e.name for e in asked[0]] == [name]


def test_table_1_is_shown_and_written_as_experiment_1(world: World, tmp_path: Path) -> None:
    result = bench(
        "table1", "--networks", "drive_4x20_relu", "--methods", "crown", "--samples", 1,
        "--no-plots", "--data", world.data, "--nets", world.nets, "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Experiment I (Table 3)" in result.stdout
    assert (tmp_path / "table3.md").read_text().startswith("## Experiment I (Table 3)")


def test_linear_programs_hot_and_cold(world: World, tmp_path: Path) -> None:
    pytest.importorskip("highspy")
    args = (
        "table4", "--networks", "drive_4x20_relu", "--norms", "inf", "--methods", "crown,frown,lp",
        "--samples", 1, "--data", world.data, "--nets", world.nets, "--out", tmp_path,
    )  # fmt: skip
    hot = bench(*args)
    assert hot.exit_code == 0, hot.output
    radius = {r["column"]: r["radius"] for r in stored(tmp_path)}
    assert set(radius) == {"crown", "area", "frown", "lp"}
    # Searches end within 1 % below the largest radius; LP-ALL can prove no less than the others.
    assert radius["lp"] >= 0.99 * max(radius["frown"], radius["area"]) > 0
    (row,) = csv.DictReader((tmp_path / "table4.csv").open())
    assert float(row["lp_radius"]) == radius["lp"] and row["lp_start"] == "hot"
    assert float(row["speed_up"]) > 1
    assert (tmp_path / "table4-seconds.png").read_bytes().startswith(b"\x89PNG")
    cold = bench(*args, "--cold", "--no-plots")
    assert cold.exit_code == 0, cold.output
    assert "drive_4x20_relu p=inf lp cold: 1 sample" in cold.stderr
    assert "times as long cold as hot" in cold.stdout
    (again,) = (r for r in stored(tmp_path) if r["options"].get("hot") is False)
    assert again["radius"] == pytest.approx(radius["lp"], rel=0.02)
    assert '--lp-samples 5 --cold"`' in (tmp_path / "table4-cold.md").read_text()


def test_show_leaves_out_networks_that_are_not_there(world: World, tmp_path: Path) -> None:
    result = bench(
        "table4", "--networks", "drive_[48]x20_relu", "--norms", "inf", "--show", "--no-plots",
        "--data", world.data, "--nets", world.nets, "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stderr == f"left out: {world.nets} does not hold drive_8x20_relu\n"
    assert "4x[20] relu" in result.stdout and "8x[20]" not in result.stdout


def test_the_whole_paper_can_be_cut_to_a_few_networks(world: World, tmp_path: Path) -> None:
    result = bench(
        "paper", "--networks", "drive_4x20_relu", "--methods", "crown", "--samples", 2,
        "--data", world.data, "--nets", world.nets, "--out", tmp_path, "--no-plots",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "Table 4" in result.stdout and "Table 5" not in result.stdout


def test_training_reports_accuracy_and_keeps_what_is_there(world: World, tmp_path: Path) -> None:
    args = ("train", "--networks", "drive_4x20_tanh", "--data", world.data, "--nets", tmp_path)
    first = bench(*args, "--epochs", 2, "--threads", 1)
    assert first.exit_code == 0, first.output
    assert "drive_4x20_tanh" in first.stdout and "% of the test samples right" in first.stdout
    assert (tmp_path / "drive_4x20_tanh.onnx").is_file()
    assert "2 epochs" in first.stderr
    again = bench(*args, "--epochs", 2, "--threads", 1)
    assert again.stdout == first.stdout and again.stderr == ""


# -- mistakes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["table4", "--networks", "drve_*"], "no network is named so; there are drive_4x20_relu"),
        (["table4", "--networks", "mnist_*"], "nothing of table4 is left"),
        (["table4", "--norms", "3"], "give some of inf, 1 and 2"),
        (["table4", "--norms", "two"], "give some of inf, 1 and 2"),
        (["table4", "--methods", "crwon"], "give some of crown, frown, lp"),
        (["table4", "--group", "none"], "positive whole number, or layer"),
        (["table4", "--format", "gif"], "choose png or svg"),
        (["table4", "--time-limit", "0"], "positive number of seconds"),
        (["table4", "--methods", "frown", "--cold"], "--cold is for LP"),
        (["table7", "--cold"], "--cold is for LP"),
        (["table4"], "give --data DIR, or set FROWN_SHARED"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_named_with_the_remedy(args: list[str], message: str) -> None:
    result = bench(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_networks_name_the_command(world: World, tmp_path: Path) -> None:
    result = bench(
        "table4", "--networks", "drive_8x20_relu", "--data", world.data, "--nets", tmp_path,
        "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 2
    assert f'make paper ARGS="train --nets {tmp_path}' in result.stderr
    assert "--networks drive_8x20_relu" in result.stderr


def test_missing_data_are_named(world: World, tmp_path: Path) -> None:
    result = bench(
        "table4", "--networks", "drive_4x20_relu", "--data", tmp_path, "--nets", world.nets,
        "--out", tmp_path,
    )  # fmt: skip
    assert result.exit_code == 2
    assert "no drive data in" in result.stderr


def test_help_is_quick_to_read_and_names_every_table() -> None:
    text = bench("--help").stdout
    for name in ("train", *(f"table{n}" for n in range(1, 9)), "paper", "barrier"):
        assert f" {name} " in text


def test_barrier_shows_and_writes_what_was_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.paper import barrier

    def run_barrier(shared: Path, **options: Any) -> list[barrier.BarrierRow]:
        assert options["methods"] == ["crown"] and options["networks"] == ["mlp_2_100_nor"]
        options["report"](barrier.BarrierEvent("mlp_2_100_nor", "crown", 1, 1))
        proved = {"crown": barrier.Proved((0.0125,), (0.5,))}
        return [barrier.BarrierRow(barrier.BARRIER[0], (0.03,), proved)]

    monkeypatch.setattr(barrier, "run_barrier", run_barrier)
    result = bench(
        "barrier", "--data", tmp_path, "--out", tmp_path, "--networks", "mlp_2_100_nor",
        "--methods", "crown",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stderr == "mlp_2_100_nor, crown: 1 images\n"
    assert "12.5" in result.stdout
    assert "0.0125" in (tmp_path / "barrier.csv").read_text()
    text = (tmp_path / "barrier.md").read_text()
    assert "| mlp_2_100_nor | 12.50 |" in text
    assert '`make paper ARGS="barrier --methods crown --networks mlp_2_100_nor"`' in text


def test_barrier_errors_are_table_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.paper import barrier

    asked = []

    def run_error(shared: Path, **options: Any) -> list[barrier.ErrorRow]:
        asked.append((options["method"], options["count"], options["networks"]))
        options["report"](barrier.BarrierEvent("nor_mlp_b 0.02", options["method"], 400, 400))
        return [barrier.ErrorRow(barrier.ERRORS[0], options["method"], 400, 10000, 8, 32, 60, 0.04)]

    monkeypatch.setattr(barrier, "run_error", run_error)
    result = bench("barrier", "--data", tmp_path, "--out", tmp_path / "out", "--errors", 400)
    assert result.exit_code == 0, result.output
    assert asked == [("crown", 400, None), ("frown", 400, None)]
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["barrier-error.md"]
    text = (tmp_path / "out" / "barrier-error.md").read_text(encoding="utf-8")
    assert text.count("25.00 ± 2.12") == 2 and "--errors 400" in text
    assert "barrier-error.md" in result.stdout


def test_barrier_is_always_on_one_thread_and_offers_no_other(tmp_path: Path) -> None:
    result = bench("barrier", "--data", tmp_path, "--threads", 2)
    assert result.exit_code == 2 and "No such option" in result.stderr


def test_barrier_without_its_files_says_what_is_missing(tmp_path: Path) -> None:
    result = bench("barrier", "--data", tmp_path, "--out", tmp_path)
    assert result.exit_code == 2 and "salman" in result.stderr
