"""The memory that rows may take."""

from __future__ import annotations

from pathlib import Path

import torch


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
