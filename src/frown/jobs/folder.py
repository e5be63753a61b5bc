"""A folder of files that one process at a time may write, and that no link leads out of."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from frown.errors import OutputError

LOCK = "lock"
_HOLDER_BYTES = 4096


class InUse(OutputError):
    """Another process is writing to the folder."""


class Folder:
    """An open folder. Its files are opened by name inside it: never through a symbolic link.

    The folder itself may be reached through links, as scratch disks often are. Only for systems
    with POSIX calls. Errors of the system become `OutputError`, which names the file.
    """

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.path = path
        self._fd = -1
        with self._reported("write" if create else "read", ""):
            if create:
                path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        weakref.finalize(self, _close, self._fd)

    def open(self, name: str, flags: int) -> int:
        """A descriptor of the regular file `name`; raises OutputError for anything else."""
        # O_NONBLOCK: a pipe in the way is refused below instead of waited for.
        more = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._reported("read" if flags == os.O_RDONLY else "write", name):
            fd = os.open(name, flags | more, 0o666, dir_fd=self._fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OutputError(f"{self.path / name} is no regular file; choose another folder")
        return fd

    def exists(self, name: str) -> bool:
        """True if there is anything of this name, be it a dangling link."""
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """The content of a file."""
        with open(self.open(name, os.O_RDONLY), "rb") as stream, self._reported("read", name):
            return stream.read()

    def replace(self, name: str, content: bytes) -> None:
        """Give a file new content, all or nothing, also if the power fails."""
        fresh = f"{name}.new"
        with self._reported("write", fresh), suppress(FileNotFoundError):
            os.unlink(fresh, dir_fd=self._fd)
        fd = self.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with open(fd, "wb") as stream, self._reported("write", fresh):
            stream.write(content)
            stream.flush()
            os.fsync(fd)
        with self._reported("write", name):
            os.replace(fresh, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        self.sync()

    def sync(self) -> None:
        """Names of new files are on the disk when this returns."""
        with self._reported("write", ""):
            os.fsync(self._fd)

    @contextmanager
    def _reported(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = error.strerror or str(error)
            if error.errno == errno.ELOOP:
                what = "a symbolic link, which is not followed"
            raise OutputError(f"cannot {doing} {self.path / name}: {what}") from None


class Lock:
    """The sole right to write to a folder, until `release` or the end of the process.

    It is the kernel's lock (flock) on the file `lock`, which dies with its holder however that
    ends: nothing stale ever blocks. The file names the holder to those who come second, and stays.
    """

    def __init__(self, folder: Folder) -> None:
        """Raises InUse, with the holder's name, if another process or object has the folder."""
        self._fd = -1
        self._fd = folder.open(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _holder(self._fd)
            self.release()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise InUse(
                    f"{folder.path} is in use by {holder}; wait for it to end, "
                    "or choose another folder"
                ) from None
            raise OutputError(
                f"cannot lock {folder.path}: {error.strerror or error}; choose a folder on a "
                "file system with locks"
            ) from None
        me = {"process": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, json.dumps(me).encode(), 0)
        _LOCKS.add(self)

    def release(self) -> None:
        """Let others write; nothing happens the second time."""
        if self._fd >= 0:
            _close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.release()


_LOCKS: weakref.WeakSet[Lock] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """A forked worker shares the lock: it must not keep it when its parent is killed."""
    for lock in list(_LOCKS):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_the_parent)


def _close(fd: int) -> None:
    with suppress(OSError):
        os.close(fd)


def _holder(fd: int) -> str:
    """The process that has the lock, as far as its file tells."""
    try:
        told = json.loads(os.pread(fd, _HOLDER_BYTES, 0))
        process, host, since = int(told["process"]), str(told["host"]), float(told["since"])
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    except (ValueError, TypeError, KeyError, OSError, OverflowError):
        return "another process"
    if process == os.getpid() and host == socket.gethostname():
        return f"this process itself, since {began}"
    return f"process {process} on {host}, since {began}"
