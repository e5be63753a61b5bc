"""The memory that rows may take."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch

from frown.errors import InvalidInput

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def bytes_of(memory: object) -> int:
    """Bytes: a whole number, or `4G`, `500M`, `1.5GiB`; units are powers of 1024."""
    size = 0
    if isinstance(memory, int | np.integer) and not isinstance(memory, bool):
        size = int(memory)
    if isinstance(memory, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(?:I?B)?\s*", memory.upper())
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if size <= 0:
        raise InvalidInput(
            f"memory (--memory) {memory}: give a number of bytes, or a size like 4G or 500M"
        )
    return size


def half_of_free(device: str = "cpu") -> int:
    """Half of the bytes that are free now, on the device that will hold the rows."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] // 2)
    return _free_bytes() // 2


def _free_bytes() -> int:
    """Available memory: the kernel's word, within a container's limit where there is one."""
    free = 4 << 30  # systems that tell nothing
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 256 << 20)
