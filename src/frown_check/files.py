"""A file's bytes."""

from __future__ import annotations

from pathlib import Path

from frown_check.errors import Refused


def content(path: Path, most: int) -> bytes:
    """What is in a file of no more than `most` bytes."""
    try:
        if not path.is_file() or path.stat().st_size > most:
            raise Refused(f"{path} is no file, or too large")
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
