"""A file's bytes."""

from __future__ import annotations

from pathlib import Path

from frown_check.errors import Refused


def content(path: Path, most: int) -> bytes:
    """The bytes of a file of no more than `most` bytes."""
    try:
        if not path.is_file():
            raise Refused(f"{path} is {'a folder' if path.is_dir() else 'not there, or no file'}")
        if path.stat().st_size > most:
            raise Refused(f"{path} is too large: more than {most} bytes")
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None
