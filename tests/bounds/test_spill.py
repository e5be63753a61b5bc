"""Tables that outgrow memory are in files, and hold what was written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from frown.bounds.spill import SpillingTable, room


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


def test_a_full_disk_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    table = SpillingTable((), torch.int32, most=0)
    with pytest.raises(OSError, match="No space"):
        table.grow(10)
