"""Writing into a folder that others may use, too: one run at a time, whole files, no surprises.

A lock is a file held open by its run. The system lets go of it when the process ends, however it
ends, so a lock that a killed run left behind keeps nobody out.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Self

from frown.certification.results import plain
from frown.errors import OutputError

RESULTS_LOCK = ".frown-results.lock"
CERTIFICATES_LOCK = ".frown-certificates.lock"

_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_MOST = 4096  # bytes of a lock file that are read


class InUse(OutputError):
    """Another process, or another part of this one, is writing to the folder."""


class Lock:
    """A folder taken exclusively, from `take` to `release`.

    Not for reading: readers ask `holder`. A child that was forked holds nothing.
    """

    _held: dict[Path, Lock] = {}  # noqa: RUF012  (of this process, by the lock's file)

    def __init__(self, path: Path, handle: int) -> None:
        self.path, self.handle = path, handle
        self.thread, self.times = threading.get_ident(), 1

    @classmethod
    def take(cls, folder: Path, name: str, what: str) -> Lock:
        """Hold `folder` for `what`, as errors name it; InUse where somebody does already."""
        path = folder.resolve() / name
        while True:
            handle = open_regular(path, os.O_RDWR | os.O_CREAT)
            if not _patient_lock(handle):
                held = _said(handle)
                os.close(handle)
                raise InUse(
                    f"{plain(folder)} is in use by {held}, which writes {what} there; wait for it "
                    "to end, or choose another folder"
                )
            if _same(path, handle):
                break
            os.close(handle)  # the run before has just removed it: another one has to be made
        me = {"process": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(me).encode())
        cls._held[path] = lock = cls(path, handle)
        return lock

    @classmethod
    def join(cls, folder: Path, name: str, what: str) -> Lock:
        """Take the folder, or hold it once more where this thread has it."""
        mine = cls._held.get(folder.resolve() / name)
        if mine is None or mine.thread != threading.get_ident():
            return cls.take(folder, name, what)
        mine.times += 1
        return mine

    def release(self) -> None:
        """Let other runs in and remove the lock's file. Does nothing once the lock is free."""
        if self.times == 0:
            return
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


def _leave_to_the_parent() -> None:
    """A forked child shares the locks: it must not keep them when its parent is killed."""
    for lock in Lock._held.values():
        lock.times = 0
        with suppress(OSError):
            os.close(lock.handle)
    Lock._held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def holder(folder: Path, name: str) -> str | None:
    """The process that is writing into the folder now; None: there is none."""
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


@contextmanager
def reported(doing: str, path: Path, remedy: str = "") -> Iterator[None]:
    """Turn the system's errors into an OutputError that names the file and a remedy."""
    try:
        yield
    except OSError as error:
        what = error.strerror or str(error)
        if error.errno == errno.ELOOP:
            what = "a symbolic link, which is not followed"
        if isinstance(error, FileExistsError | NotADirectoryError):
            what = "it is a file, and no folder"
        new = isinstance(error.filename, str) and error.filename.endswith(".new")
        if isinstance(error.filename, str) and error.filename != str(path) and not new:
            what += f" ({error.filename})"
        helps = f"; {remedy}" if remedy else ""
        raise OutputError(f"cannot {doing} {plain(path)}: {plain(what)}{helps}") from None


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of the regular file at `path`; OutputError for a link or anything else."""
    # O_NONBLOCK: a pipe in the way is refused below instead of waited for.
    more = _NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    with reported("read" if flags == os.O_RDONLY else "write", path):
        handle = os.open(path, flags | more, 0o666)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or (found.st_nlink > 1 and flags != os.O_RDONLY):
        os.close(handle)
        raise OutputError(
            f"cannot write {plain(path)}: it is no file of frown's own; remove it, or choose "
            "another folder"
        )
    return handle


def read_regular(path: Path) -> bytes:
    """The content of a regular file; OutputError for a link or anything else."""
    with open(open_regular(path, os.O_RDONLY), "rb") as stream, reported("read", path):
        return stream.read()


def sync_names(folder: Path) -> None:
    """Names of new files are on the disk when this returns, where the system can say so."""
    if hasattr(os, "O_DIRECTORY"):
        with reported("write", folder):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def require_writable(folder: Path) -> None:
    """Make the folder if need be, and a file in it; OSError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, path = _fresh(folder / ".frown")
    os.close(handle)
    path.unlink()


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Put a file in its place in one step: readers find the old one or the new one, also after a
    power failure.

    A link at `path` is replaced and not followed; a pipe or a device is written to.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        path.write_bytes(content)
        return
    with whole(path) as file:
        file.write(content)


@contextmanager
def whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its place when the block ends without an error, in one step; as
    `write_whole`, for what is written bit by bit."""
    handle, fresh = _fresh(path)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(handle)
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _fresh(path: Path) -> tuple[int, Path]:
    """A new file beside `path`, with a name that cannot be guessed."""
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
    """Try for a moment, since another process may be asking for the holder."""
    for _ in range(5):
        if _lock(handle):
            return True
        time.sleep(0.02)
    return False


def _said(handle: int) -> str:
    """The process that has the lock, as far as its file tells."""
    os.lseek(handle, 0, os.SEEK_SET)
    try:
        told = json.loads(os.read(handle, _MOST))
        process, host, since = int(told["process"]), str(told["host"]), float(told["since"])
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    except (ValueError, TypeError, KeyError, OSError, OverflowError):
        return "another process"
    if process == os.getpid() and host == socket.gethostname():
        return f"this process itself, since {began}"
    return plain(f"process {process} on {host}, since {began}")


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
