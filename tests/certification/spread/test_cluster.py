"""Workers on a real Ray cluster of two nodes on loopback, one of which is lost in the middle."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frown
from frown import Ball, Machine
from frown.certification.run import Outcome, Progress, Watch
from frown.certification.spread import cluster as module
from frown.certification.spread.messages import Lost
from frown.errors import InvalidInput, WorkersLost
from onnx_models import saved, small

HERE = "127.0.0.1"
COUNT = 48
X = np.random.default_rng(5).uniform(0.1, 0.9, (COUNT, 4))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(small(), tmp_path_factory.mktemp("net"))


@pytest.fixture(scope="module")
def net(path: Path) -> frown.Model:
    return frown.load(path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and another node, with one CPU each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Else Ray takes another address of this machine for its own.
        patched.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patched.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        pytest.importorskip("ray")
        from ray.cluster_utils import Cluster

        few = {"num_cpus": 1, "node_ip_address": HERE, "object_store_memory": 80 << 20}
        made = Cluster(initialize_head=True, head_node_args={**few, "include_dashboard": False})
        made.other = made.add_node(**few)
        yield made
        made.shutdown()


def rows(result: frown.Certification) -> list[Any]:
    return [replace(row, seconds=0.0) for row in result.rows]


def test_a_worker_that_lies_is_found_out(
    cluster: Any, net: frown.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deadly import Liar

    monkeypatch.setattr(module, "Actor", Liar)
    machine = Machine(cluster=cluster.address, workers=1, batch=2)
    found = frown.certify(net, Ball(X[:3]), method="crown", proof="checked", machine=machine)
    for row in found.rows:
        assert (row.status, row.radius, row.level) == ("unknown", 0.0, "estimate")
        assert "another statement" in row.remark


def test_a_tree_has_leaves_on_several_machines(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deadly import Sharer
    from methods.test_shared_leaves import X as HARD
    from methods.test_shared_leaves import network

    monkeypatch.setattr(module, "Actor", Sharer)
    machine = Machine(cluster=cluster.address)
    for _ in range(4):  # on busy cores a worker may be done before another one has begun
        (row,) = frown.certify(network(24, 20), Ball(HARD), method="branch", machine=machine).rows
        if row.remark[-1] != " ":
            break
    assert row.remark.startswith("parts from elsewhere: ") and row.remark[-1] != " "
    assert row.level == "rigorous" and row.broken / 1.05 < row.radius <= row.broken


def test_every_row_is_there_once_though_a_node_is_lost(
    cluster: Any, net: frown.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, lost = list[module.Cluster](), list[Lost]()

    class Recorded(module.Cluster):
        def __init__(self, *given: Any) -> None:
            made.append(self)
            super().__init__(*given)

        def _lost(self, *given: Any) -> Lost:
            lost.append(super()._lost(*given))
            return lost[-1]

    monkeypatch.setattr(module, "Cluster", Recorded)
    told, seen = list[Progress](), list[int]()

    class Killing(Watch):
        def progress(self, progress: Progress) -> None:
            told.append(progress)

        def finished(self, outcome: Outcome) -> None:
            seen.extend(outcome.places)
            busy = {made[0]._nodes.get(worker) for worker in made[0]._orders}
            if cluster.other is not None and cluster.other.node_id in busy:
                cluster.remove_node(cluster.other, allow_graceful=False)
                cluster.other = None

    def proof(name: str) -> frown.Rigorous:
        return frown.Rigorous(certificates=tmp_path / name, check=True)

    machine = Machine(cluster=cluster.address, batch=2)
    found = frown.certify(net, Ball(X), proof=proof("far"), machine=machine, watch=Killing())
    assert cluster.other is None and sorted(seen) == list(range(COUNT))
    # A worker that was sent there before the loss was known is lost with it.
    assert lost and all(one.blameless for one in lost)
    near = replace(machine, cluster=None, workers=1)
    own = frown.certify(net, Ball(X), proof=proof("near"), machine=near)
    unmeasured = [[replace(row, margins={}) for row in rows(one)] for one in (found, own)]
    assert unmeasured[0] == unmeasured[1]
    for there, here in zip(found.rows, own.rows, strict=True):  # the least, as the checker saw it
        least = pytest.approx(min(here.margins.values()), rel=1e-3)
        assert there.margins == dict.fromkeys(here.margins, least)
    assert all(row.level == "checked" for row in found.rows)
    for file in (tmp_path / "near").glob("*.frown"):
        assert file.read_bytes() == (tmp_path / "far" / file.name).read_bytes()
    assert told[-1].done == COUNT and any(0 < t.done < COUNT for t in told)


def test_an_interrupt_keeps_what_is_proved(cluster: Any, net: frown.Model) -> None:
    seen = list[Outcome]()

    class Stopping(Watch):
        def finished(self, outcome: Outcome) -> None:
            seen.append(outcome)
            if len(seen) == 1:
                raise KeyboardInterrupt

    machine = Machine(cluster=cluster.address, workers=1, batch=4)
    with pytest.raises(KeyboardInterrupt):
        frown.certify(net, Ball(X), machine=machine, watch=Stopping())
    assert 1 <= len(seen) <= 3
    assert all(o.provisional or all(r.complete for r in o.rows) for o in seen)


def test_what_cannot_be_on_a_cluster_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    proto = onnx.load(path)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    with pytest.raises(InvalidInput, match="weights in other files"):
        frown.certify(tmp_path / "m.onnx", Ball(X), machine=Machine(cluster="auto"))
    proof = frown.Rigorous(check=True, execution="float32")
    with pytest.raises(InvalidInput, match="no certificate"):
        frown.certify(path, Ball(X), proof=proof, machine=Machine(cluster="auto"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"frown\[ray\]"):
        frown.certify(path, Ball(X), machine=Machine(cluster="auto"))


def test_another_version_of_frown_is_refused() -> None:
    with pytest.raises(WorkersLost, match=r"has frown .*, not 0\.0"):
        module.Actor(b"", "0.0")
