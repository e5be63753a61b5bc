"""Samples, the selection of cells, and what is measured, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asking
from benchmarks.paper import runner
from benchmarks.paper.cells import (
    AREA,
    COLD_LP,
    CROWN,
    LP,
    Cell,
    choose,
    frown_method,
    network_file,
)
from benchmarks.paper.data import load_data
from benchmarks.paper.experiments import METHODS, experiments, matching
from benchmarks.paper.networks import NETWORKS, parse
from benchmarks.paper.results import Result, open_results, stored_results
from benchmarks.paper.runner import Problems, Setup, Task, measure, tasks_for
from benchmarks.paper.tasks import JobWatch
from frown import api
from frown.certification.results import Certification, Row
from frown.errors import InvalidInput
from paper.conftest import World

RELU = parse("drive_4x20_relu")


class Silent(JobWatch[Task, Result]):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.finished: list[Cell] = []

    def begin(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)

    def kept(self, task: Task, rows: Sequence[Result]) -> None:
        self.results += rows

    def finish(self, task: Task) -> None:
        self.finished.append(task.cell)


def setup(world: World, **changes: Any) -> Setup:
    return replace(Setup(world.nets, world.data, samples=6, lp_samples=3), **changes)


def run(problems: Problems, folder: Path, *cells: Cell) -> Silent:
    watch = Silent()
    with open_results(folder) as results:
        measure(tasks_for(cells, problems, results), problems, results, watch)
    return watch


# -- samples -----------------------------------------------------------------------------


def test_samples_are_answered_right_and_targets_are_other_classes(world: World) -> None:
    model, data = api.load(world.nets / RELU.file), load_data(world.data, "drive")
    chosen = choose(model, data, 30, seed=3)
    assert len(set(chosen.index.tolist())) == 30
    assert (model.run(chosen.x).argmax(1) == chosen.label).all()
    assert np.array_equal(chosen.x, data.test_x[chosen.index])
    assert np.array_equal(chosen.label, data.test_y[chosen.index])
    assert ((chosen.target >= 0) & (chosen.target < 11) & (chosen.target != chosen.label)).all()


def test_more_samples_include_fewer_and_the_seed_decides(world: World) -> None:
    model, data = api.load(world.nets / RELU.file), load_data(world.data, "drive")
    few, many = choose(model, data, 5, seed=0), choose(model, data, 20, seed=0)
    assert few.marks == many.marks[:5]
    assert np.array_equal(few.target, many.target[:5])
    assert few.marks != choose(model, data, 5, seed=1).marks


def test_networks_share_samples_and_targets(world: World) -> None:
    data = load_data(world.data, "drive")
    first, second = (
        choose(api.load(world.nets / f"drive_4x20_{a}.onnx"), data, 40, seed=0)
        for a in ("relu", "sigmoid")
    )
    mine, theirs = (dict(zip(s.index.tolist(), s.target.tolist())) for s in (first, second))
    shared = mine.keys() & theirs.keys()
    assert len(shared) >= 30
    assert all(mine[i] == theirs[i] for i in shared)


def test_too_many_samples_are_refused_with_the_number_there_is(world: World) -> None:
    model, data = api.load(world.nets / RELU.file), load_data(world.data, "drive")
    right = int((model.run(data.test_x).argmax(1) == data.test_y).sum())
    assert len(choose(model, data, right, seed=0)) == right
    with pytest.raises(InvalidInput, match=f"at most {right}"):
        choose(model, data, right + 1, seed=0)


def test_a_network_is_found_under_its_name_or_as_the_authors_release(tmp_path: Path) -> None:
    assert network_file(tmp_path, RELU) is None
    released = tmp_path / f"frown_{RELU.file}"
    released.touch()
    assert network_file(tmp_path, RELU) == released
    (tmp_path / RELU.file).touch()
    assert network_file(tmp_path, RELU) == tmp_path / RELU.file


# -- the tables' cells -------------------------------------------------------------------


def test_the_tables_cover_all_networks() -> None:
    tables = experiments()
    assert list(tables) == [f"table{n}" for n in range(3, 9)]
    inside = {line.network for e in tables.values() for line in e.lines}
    assert inside == set(NETWORKS)
    assert {c.network.name for c in tables["table7"].cells()} == {
        f"cifar_{m}x2048_{a}" for m in (4, 6, 8) for a in ("relu", "sigmoid")
    }
    assert {(line.network.layers, line.group) for line in tables["table7"].lines} == {
        (4, 8),
        (6, 8),
        (8, 64),
    }
    assert [line.group for line in tables["table8"].lines] == [1, 8, 16, 32]
    for name in ("table4", "table5", "table6", "table7"):
        assert {line.norm for line in tables[name].lines} == {1.0, 2.0, inf}


def test_a_cell_shared_by_lines_is_measured_once() -> None:
    cells = experiments()["table8"].cells()
    assert len(cells) == len(set(cells)) == 2 + 4  # CROWN by two rules, FROWN by four groups


def test_tables_can_be_cut() -> None:
    table = experiments()["table5"].only(
        matching(["mnist_5x20_*"]), [1.0, inf], ["frown", "crown"], group=4
    )
    assert {(line.network.activation, line.norm) for line in table.lines} == {
        (a, p) for a in ("relu", "sigmoid", "tanh") for p in (1.0, inf)
    }
    assert table.methods == ("crown", "frown")
    assert all(dict(c.method.options)["group"] == 4 for c in table.cells() if "frown" in str(c))


def test_other_groups_do_not_repeat_a_line() -> None:
    assert len(experiments()["table8"].only(group=2).lines) == 1


def test_an_unknown_pattern_lists_the_names() -> None:
    with pytest.raises(InvalidInput, match=r"no network is named so.*mnist_20x20_tanh"):
        matching(["drive_*", "minst_*"])
    assert METHODS == ("crown", "frown", "lp")


# -- measuring ---------------------------------------------------------------------------


def test_results_are_those_of_certify_on_the_same_samples(world: World, tmp_path: Path) -> None:
    problems = Problems(setup(world))
    method = frown_method(2)
    watch = run(problems, tmp_path, Cell(RELU, inf, method))
    samples = problems.samples(RELU)
    truth = asking.certify(
        api.load(world.nets / RELU.file),
        samples.x,
        samples.label,
        target=samples.target,
        method="frown",
        group=2,
        attack=False,
    )
    radii = {r.sample: r.radius for r in watch.results}
    assert radii == pytest.approx(dict(zip(samples.index.tolist(), truth.radius)), rel=1e-5)
    assert all(r.seconds > 0 and r.complete and r.batch == 6 for r in watch.results)
    assert all(r.cpu is not None and r.cpu > 0 for r in watch.results)


def test_nothing_is_measured_twice(world: World, tmp_path: Path) -> None:
    cells = [Cell(RELU, inf, CROWN), Cell(RELU, 2.0, CROWN), Cell(RELU, inf, AREA)]
    assert len(run(Problems(setup(world)), tmp_path, *cells).results) == 18
    assert run(Problems(setup(world)), tmp_path, *cells).results == []
    more = run(Problems(setup(world, samples=8)), tmp_path, *cells)
    assert len(more.results) == 6  # two new samples each
    assert len(run(Problems(setup(world, seed=1)), tmp_path, cells[0]).results) > 0
    forced = run(Problems(setup(world, force=True)), tmp_path, *cells)
    assert len(forced.results) == 18


def test_an_interrupt_loses_no_finished_batch(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems, cell = Problems(setup(world, batch=2)), Cell(RELU, inf, CROWN)

    class Interrupting(Silent):
        def kept(self, task: Task, rows: Sequence[Result]) -> None:
            super().kept(task, rows)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), open_results(tmp_path) as results:
        measure(tasks_for([cell], problems, results), problems, results, Interrupting())
    (task,) = tasks_for([cell], problems, stored_results(tmp_path))
    assert task.todo == (2, 3, 4, 5)


def fake_lp(monkeypatch: pytest.MonkeyPatch, seconds: Sequence[float]) -> list[dict[str, Any]]:
    """An LP method that takes so many seconds for one sample after the other."""
    calls: list[dict[str, Any]] = []

    def certify(model: Any, x: Any, y: Any, **options: Any) -> Certification:
        assert len(x) == 1
        limit = options["time_limit"]
        spent = seconds[len(calls) % len(seconds)]
        calls.append(options)
        over = limit is not None and spent > limit
        index, target = int(options["indices"][0]), int(options["target"][0])
        return Certification(
            (
                Row(
                    index, int(y[0]), int(y[0]), target, options["norm"], "lp", "certified", 0.5,
                    None, None, {}, limit if over else spent, complete=not over,
                ),
            )
        )  # fmt: skip

    monkeypatch.setattr(runner.flat, "certify", certify)
    return calls


def test_lp_takes_the_first_samples_one_at_a_time(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_lp(monkeypatch, [2.0])
    problems = Problems(setup(world, workers=2, time_limit=5.0))
    watch = run(problems, tmp_path, Cell(RELU, 1.0, LP))
    assert [r.sample for r in watch.results] == problems.samples(RELU).index[:3].tolist()
    assert all(c["boxes"] == "lp" and c["workers"] == 2 and c["tangents"] == 3 for c in calls)
    assert all(c["norm"] == 1.0 and c["attack"] is False for c in calls)
    assert all(r.cpu is None for r in watch.results)  # the work is done elsewhere
    assert run(problems, tmp_path, Cell(RELU, 1.0, LP)).results == []


def test_lp_is_given_up_at_the_limit_and_tried_again_with_a_larger_one(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell(RELU, 1.0, LP)
    calls = fake_lp(monkeypatch, [2.0, 9.0, 2.0])
    watch = run(Problems(setup(world, time_limit=5.0)), tmp_path, cell)
    assert [r.complete for r in watch.results] == [True, False]
    assert watch.results[1].limit == 5.0
    assert watch.finished == [cell]
    for limit in (5.0, 3.0):  # no more patience than before
        assert run(Problems(setup(world, time_limit=limit)), tmp_path, cell).results == []
    calls.clear()
    fake_lp(monkeypatch, [9.0, 2.0])
    watch = run(Problems(setup(world, time_limit=10.0)), tmp_path, cell)
    assert [r.complete for r in watch.results] == [True, True]
    assert run(Problems(setup(world)), tmp_path, cell).results == []


def test_cold_programs_are_kept_apart_from_hot_ones(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_lp(monkeypatch, [2.0])
    problems = Problems(setup(world))
    hot, cold = Cell(RELU, inf, LP), Cell(RELU, inf, COLD_LP)
    assert len(run(problems, tmp_path, hot).results) == 3
    assert all("hot" not in c for c in calls)  # so results without the word are hot ones
    assert len(run(problems, tmp_path, cold).results) == 3
    assert all(c["hot"] is False for c in calls[3:])
    assert run(problems, tmp_path, hot, cold).results == []
    assert str(hot) == "drive_4x20_relu p=inf lp" and str(cold) == f"{hot} cold"
    store = stored_results(tmp_path)
    first, second = store.get(problems.key(hot, 0)), store.get(problems.key(cold, 0))
    assert first is not None and second is not None and first.key != second.key


def test_a_cell_that_fails_does_not_stop_the_others(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def certify(*args: Any, **options: Any) -> Certification:
        raise InvalidInput("no solver")

    problems = Problems(setup(world))
    cells = [Cell(RELU, inf, LP), Cell(RELU, inf, CROWN)]
    with open_results(tmp_path) as results:
        tasks = tasks_for(cells, problems, results)
        assert [t.cell.method.name for t in tasks] == ["crown", "lp"]  # linear programs last
        measure(tasks[:1], problems, results, Silent())
        monkeypatch.setattr(runner.flat, "certify", certify)
        (failure,) = measure(tasks[1:], problems, results, Silent())
    assert failure.task.cell == cells[0] and failure.error == "no solver"
    assert len(stored_results(tmp_path)) == 6


def test_missing_networks_name_the_command_that_trains_them(world: World, tmp_path: Path) -> None:
    problems = Problems(replace(setup(world), nets=tmp_path))
    with pytest.raises(InvalidInput, match=r"make paper ARGS=.train .*--networks drive_4x20_relu"):
        problems.require([RELU])
