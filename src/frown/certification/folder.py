"""Writing into a folder that others may use, too: one run at a time, whole files, no surprises.

A lock is a file held open by its run. The system lets go of it when the process ends, however it
ends, so a lock that a killed run left behind keeps nobody out.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from frown.certification.plain import plain
from frown.errors import OutputError

RESULTS_LOCK = ".frown-results.lock"
CERTIFICATES_LOCK = ".frown-certificates.lock"

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_MOST = 4096  # bytes of a lock file that are read


class Lock:
    """A folder taken exclusively, from `take` to `release`.

    The thread that holds it may take it again. Not for reading: readers ask `holder`.
    """

    _held: dict[Path, Lock] = {}  # noqa: RUF012  (of this process, by the lock's file)

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self.handle = path, handle
        self.thread, self.times = threading.get_ident(), 1

    @classmethod
    def take(cls, folder: Path, name: str, what: str) -> Lock:
        """Hold `folder` for `what`, as errors name it; OutputError where another run does."""
        path = folder.resolve() / name
        mine = cls._held.get(path)
        if mine is not None and mine.thread == threading.get_ident():
            mine.times += 1
            return mine
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | _NO_FOLLOW, 0o666)
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                os.close(handle)
                raise OutputError(f"{plain(path)} is not a lock of frown; remove it")
            if not _patient_lock(handle):
                held = _said(handle)
                os.close(handle)
                raise OutputError(
                    f"{plain(folder)} is in use: {held} is writing {what} there; wait for it, or "
                    "choose another folder"
                )
            if _same(path, handle):
                break
            os.close(handle)  # the run before has just removed it: another one has to be made
        about = f"process {os.getpid()} on {socket.gethostname()}"
        os.ftruncate(handle, 0)
        os.write(handle, about.encode("utf-8", "replace"))
        cls._held[path] = lock = cls(path, handle)
        return lock

    def release(self) -> None:
        """Let others in; the lock's file is gone. A second call does nothing."""
        self.times -= 1
        if self.times == 0:
            Lock._held.pop(self.path, None)
            with suppress(OSError):
                self.path.unlink()  # before it is unlocked: nobody else's can be hit
            os.close(self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def holder(folder: Path, name: str) -> str | None:
    """Who is writing into the folder now; None: nobody."""
    try:
        handle = os.open(folder / name, os.O_RDWR | _NO_FOLLOW)
    except OSError:
        return None
    try:
        return None if _lock(handle) else _said(handle)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(handle)


def require_writable(folder: Path) -> None:
    """Make the folder if need be, and a file in it; OSError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, path = _fresh(folder / ".frown")
    os.close(handle)
    path.unlink()


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Put a file in its place in one step: readers find the old one or the new one.

    A link at `path` is replaced and not followed; a pipe or a device is written to.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        path.write_bytes(content)
        return
    handle, fresh = _fresh(path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def new_text_file(path: Path) -> IO[str]:
    """A file that was not there before, opened for text; a link or a file there is an OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW, 0o666)
    return os.fdopen(handle, "w", encoding="utf-8", newline="")


def _fresh(path: Path) -> tuple[int, Path]:
    """A new file beside `path`, under a name that nobody can have guessed."""
    while True:
        fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW
            return os.open(fresh, flags, 0o666), fresh


def _same(path: Path, handle: int) -> bool:
    """True if the file that was locked still is the one at `path`."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False


def _patient_lock(handle: int) -> bool:
    """Try for a moment: somebody may just be asking who the holder is."""
    for _ in range(5):
        if _lock(handle):
            return True
        time.sleep(0.02)
    return False


def _said(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    with suppress(OSError):
        return plain(os.read(handle, _MOST).decode("utf-8", "replace")) or "another run"
    return "another run"


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> bool:
        try:
            os.lseek(handle, _MOST, os.SEEK_SET)  # beyond what the file says of its holder
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
