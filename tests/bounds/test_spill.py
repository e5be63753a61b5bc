"""Tables that outgrow memory are in files, and hold what was written."""

from __future__ import annotations

import errno
from pathlib import Path
from types import ModuleType
from typing import IO

import pytest
import torch

import frown
from frown.bounds import cases, spill
from frown.bounds.spill import NoRoom, SpillingTable, room
from frown.methods.branch import relu
from onnx_models import model, node, saved, weights


def test_numbers_stay_while_a_table_grows_into_a_file() -> None:
    table = SpillingTable((3,), torch.int32, most=100_000)
    written = torch.zeros(0, 3, dtype=torch.int32)
    for k in range(30):
        more = torch.randint(-1000, 1000, (1000, 3), dtype=torch.int32)
        table.grow(len(written) + 1000)
        table.data[len(written) : len(written) + 1000] = more
        written = torch.cat([written, more])
        assert table.spilt == (len(table) * 12 > 100_000)
        assert bool((table.data[: len(written)] == written).all())
        assert not bool(table.data[len(written) :].any())
        assert k < 20 or table.memory == 0
    table.retype(torch.float64)
    assert bool((table.data[: len(written)] == written).all())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_what_is_in_files_takes_no_memory_of_its_own() -> None:
    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10

    before = anonymous()
    held = room((1 << 26, 2), torch.uint8, most=1 << 20)
    held.fill_(7)
    assert anonymous() - before < 32 << 20
    assert int(held.sum(dtype=torch.long)) == 7 << 27


def full_after(monkeypatch: pytest.MonkeyPatch, rooms: int) -> list[int]:
    """Let a disk be full after so many tables' growths; returns the list of their sizes."""
    real, asked = spill._reserve, list[int]()

    def reserve(file: IO[bytes], size: int) -> None:
        asked.append(size)
        if len(asked) > rooms:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, size)

    monkeypatch.setattr(spill, "_reserve", reserve)
    return asked


def test_a_table_without_room_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    full_after(monkeypatch, 0)
    table = SpillingTable((), torch.int32, most=5000)
    table.grow(10)
    table.data[:10] = 7
    with pytest.raises(NoRoom, match="No space left"):
        table.grow(10_000)
    assert not table.spilt and bool((table.data[:10] == 7).all())


@pytest.mark.parametrize(("spilling", "rooms"), [(relu, 0), (relu, 1), (relu, 5), (cases, 0)])
def test_a_full_disk_ends_the_branching_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spilling: ModuleType, rooms: int
) -> None:
    """Wherever the disk is full, in the search or in the replay of its trees, the rows have what
    FROWN proves, and say why there is no more."""
    chain = [node("Gemm", "x w0", "a", transB=1), node("Relu", "a", "b")]
    chain += [node("Gemm", "b w1", "c", transB=1), node("Relu", "c", "d")]
    given = {"w0": weights(40, 20, seed=1), "w1": weights(40, 40, seed=2)}
    given["w2"] = weights(3, 40, seed=3)
    proto = model([*chain, node("Gemm", "d w2", "y", transB=1)], ["N", 20], given)
    network = frown.load(saved(proto, tmp_path))
    where = frown.Ball(torch.randn(2, 20, generator=torch.Generator().manual_seed(1)).numpy())
    plain = frown.certify(network, where, attack=None)
    monkeypatch.setattr(spilling, "SPILL", 1 << 60)
    asked = full_after(monkeypatch, rooms)
    found = frown.certify(
        network,
        where,
        method=frown.Branch(seconds=0.5),
        proof=frown.Rigorous(certificates=tmp_path / "proofs"),
        attack=None,
    )
    assert len(asked) > rooms
    told = [row.remark for row in found.rows if "no room for its leaves" in row.remark]
    began = "branching ended early" if spilling is relu else "its tree is not replayed"
    assert told and all(began in remark and "No space left" in remark for remark in told)
    for row, before in zip(found.rows, plain.rows, strict=True):
        assert row.radius >= 0.98 * before.radius > 0 and row.level == "rigorous"
