"""Tables of numbers that may outgrow memory: beyond a size they are in files without a name.

The system keeps in memory what is used of a mapped file, and may take that memory back at any time.
Such files are made where `tempfile` makes them (TMPDIR), and are gone with the process.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from math import prod
from typing import IO

import torch
from torch import Tensor


class NoRoom(Exception):
    """A table has outgrown its memory, and the disk has no room for it either."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"no room for its leaves in {tempfile.gettempdir()}: {error.strerror}")


class SpillingTable:
    """Rows of numbers, (rows, *shape), that grow in number.

    `most` are the bytes from which they are in a file. What outgrows its disk raises NoRoom, and
    stays as it was.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, most: int) -> None:
        self.shape, self.dtype, self.most = shape, dtype, most
        self.data = torch.zeros(0, *shape, dtype=dtype)
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return len(self.data)

    @property
    def spilt(self) -> bool:
        """True if the numbers are in a file."""
        return self._file is not None

    @property
    def memory(self) -> int:
        """The bytes that are not in a file."""
        return 0 if self.spilt else self.data.numel() * self.data.element_size()

    def grow(self, rows: int) -> None:
        """Make room for at least so many rows in all; new ones are 0."""
        if rows <= len(self.data):
            return
        rows = max(rows, len(self.data) * 3 // 2, 1024)
        size = max(1, rows * prod(self.shape) * self.dtype.itemsize)
        if size <= self.most:
            more = self.data.new_zeros(rows - len(self.data), *self.shape)
            self.data = torch.cat([self.data, more])
            return
        old = None if self.spilt else self.data
        try:
            file = self._file or tempfile.TemporaryFile(prefix="frown-")  # noqa: SIM115
            _reserve(file, size)
            whole = torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=self.dtype)
        except OSError as error:
            raise NoRoom(error) from None
        self._file = file
        self.data = whole[: rows * prod(self.shape)].view(rows, *self.shape)
        if old is not None:
            self.data[: len(old)] = old

    def retype(self, dtype: torch.dtype) -> None:
        """Go on with numbers of another type."""
        other = SpillingTable(self.shape, dtype, self.most)
        other.grow(len(self.data))
        for k in range(0, len(self.data), 1 << 16):
            other.data[k : k + (1 << 16)][: len(self.data) - k] = self.data[k : k + (1 << 16)]
        self.dtype, self.data, self._file = dtype, other.data, other._file


def _reserve(file: IO[bytes], size: int) -> None:
    """Give a file a size for which the disk has room: a page without any would end the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    file.seek(0, os.SEEK_END)
    while (left := size - file.tell()) > 0:
        file.write(bytes(min(left, 1 << 20)))
    file.flush()


def room(shape: tuple[int, ...], dtype: torch.dtype, most: int) -> Tensor:
    """A tensor of zeros: in memory, or in a file where it has more than `most` bytes."""
    table = SpillingTable(shape[1:], dtype, most)
    table.grow(shape[0])
    return table.data[: shape[0]]
