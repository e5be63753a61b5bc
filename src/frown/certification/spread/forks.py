"""A process that has everything loaded and splits off workers, so that these start at once.

Loading torch takes a process more than a second. On Linux one process does it for all workers, once
in the driver's life and beside the driver's own loading (`prepare`), and forks: it has one thread,
so that nothing is torn apart by it, and workers share its memory. It ends with its driver.
Elsewhere, where libraries do not bear forks, every worker is a fresh process.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import platform
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any, Protocol

FORKS = platform.system() == "Linux"
_BOOT = (
    "import gc, sys; gc.disable(); sys.path[:] = {path!r}; import frown.bounds.late; "
    "from frown.certification.spread.processes import serve; "
)
_FRESH = "gc.enable(); serve()"
_SERVER = "from frown.certification.spread.forks import split_off; split_off({fd}, serve)"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PATIENCE = 5.0  # seconds for processes to be gone
_HEAD = 8  # bytes that tell a message's length
UNKNOWN = 255  # the exit code of a worker whose end nobody saw


class Started(Protocol):
    """A worker's process, with its three streams."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def kill(self) -> None:
        """End it at once."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or the signal that ended it, negative, when it has ended."""


def started() -> Started:
    """A fresh worker; OSError where there cannot be one."""
    if FORKS:
        return _server().fork()
    return subprocess.Popen(
        [sys.executable, "-c", _BOOT.format(path=sys.path) + _FRESH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | dict.fromkeys(_THREADS, "1"),
        start_new_session=True,  # Ctrl-C is for the driver, which passes it on
    )


def prepare() -> None:
    """Have a process load what workers need, while the caller goes on."""
    if FORKS:
        _server()


class _Forked:
    """A worker that the server split off, by its number there."""

    def __init__(self, server: ForkServer, number: int, talk: socket.socket, errors: int) -> None:
        self._server, self._number = server, number
        self.stdin: IO[bytes] | None = talk.makefile("wb")
        self.stdout: IO[bytes] | None = talk.makefile("rb")
        self.stderr: IO[bytes] | None = os.fdopen(errors, "rb")
        self._talk = talk
        self._ended, self._code = threading.Event(), UNKNOWN

    def kill(self) -> None:
        if self._server.lives:
            self._server.say(("kill", self._number))
        else:  # a worker that loses its driver ends
            with suppress(OSError):
                self._talk.shutdown(socket.SHUT_RDWR)

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self._code

    def gone(self, code: int) -> None:
        """Be told of its end."""
        self._code = code
        self._ended.set()


class ForkServer:
    """The driver's view of the process that splits off workers."""

    def __init__(self) -> None:
        mine, theirs = socket.socketpair()
        with theirs:
            code = _BOOT.format(path=sys.path) + _SERVER.format(fd=theirs.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | dict.fromkeys(_THREADS, "1"),
                start_new_session=True,
            )
        self.owner = os.getpid()
        self._talk, self._lock, self._count = mine, threading.Lock(), 0
        self._workers: dict[int, _Forked] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def lives(self) -> bool:
        """True if it can be asked, by this process and no copy of it."""
        return self.owner == os.getpid() and self.process.poll() is None

    def fork(self) -> _Forked:
        """A worker, which begins as soon as the server has loaded what it needs."""
        mine, theirs = socket.socketpair()
        errors, complain = os.pipe()
        with self._lock:
            self._count += 1
            number = self._count
            worker = self._workers[number] = _Forked(self, number, mine, errors)
        surroundings = (os.getcwd(), list(sys.path), dict(os.environ))
        try:
            self.say(("fork", number, surroundings), [theirs.fileno(), complain])
        finally:
            theirs.close()
            os.close(complain)
        if not self.lives:
            worker.gone(UNKNOWN)
        return worker

    def say(self, message: object, files: list[int] | None = None) -> None:
        """Send a message; a server that is gone has told so."""
        content = pickle.dumps(message)
        with self._lock, suppress(OSError):
            socket.send_fds(self._talk, [len(content).to_bytes(_HEAD, "little")], files or [])
            self._talk.sendall(content)

    def close(self) -> None:
        """End it and its workers, whose time then counts as the driver's."""
        if self.lives:
            with suppress(OSError):
                self._talk.shutdown(socket.SHUT_WR)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_PATIENCE)

    def _listen(self) -> None:
        with suppress(OSError, EOFError), self._talk.makefile("rb") as heard:
            while True:
                number, code = pickle.load(heard)
                with self._lock:
                    worker = self._workers.pop(number)
                worker.gone(code)
        self.process.wait()
        with self._lock:
            left, self._workers = list(self._workers.values()), {}
        for worker in left:
            worker.gone(UNKNOWN)


_running: list[ForkServer] = []
_starting = threading.Lock()


def _server() -> ForkServer:
    """The server of this process; a new one where it has none that lives."""
    with _starting:
        if not (_running and _running[-1].lives):
            _running[:] = [ForkServer()]
            atexit.register(_running[-1].close)
        return _running[-1]


# -- in the server -----------------------------------------------------------------------


def split_off(number: int, serve: Callable[[], None]) -> None:
    """Run the server: load all that workers need, fork one for every order, and end with the
    driver."""
    import flint  # noqa: F401  (workers would do it one by one; onnxruntime starts a thread)
    import onnx  # noqa: F401

    gc.freeze()
    gc.enable()
    _Splitter(socket.socket(fileno=number), serve).run()
    os._exit(0)  # the driver waits, and the interpreter's own end takes half a second


class _Splitter:
    """Orders and ends of workers, in one thread."""

    def __init__(self, talk: socket.socket, serve: Callable[[], None]) -> None:
        self._talk, self._serve = talk, serve
        self._pids: dict[int, int] = {}  # of workers, by number
        self._wake, woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)

    def run(self) -> None:
        """Wait for orders, and for workers that end."""
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._talk, selectors.EVENT_READ)
            waiting.register(self._wake, selectors.EVENT_READ)
            while True:
                for key, _ in waiting.select():
                    if key.fileobj is self._talk:
                        if not self._order():
                            return self._end()
                    else:
                        with suppress(BlockingIOError):
                            os.read(self._wake, 4096)
                self._reap()

    def _end(self) -> None:
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)

    def _order(self) -> bool:
        """Carry out an order; False: the driver has gone."""
        head, files, _, _ = socket.recv_fds(self._talk, _HEAD, 2)
        rest = _HEAD - len(head)
        if not head or (rest and len(more := self._exactly(rest)) < rest):
            return False
        size = int.from_bytes(head + (more if rest else b""), "little")
        content = self._exactly(size)
        if len(content) < size:
            return False
        match pickle.loads(content):
            case ("fork", number, surroundings):
                self._fork(number, surroundings, *files)
            case ("kill", number) if number in self._pids:
                os.kill(self._pids[number], signal.SIGKILL)
        return True

    def _exactly(self, size: int) -> bytes:
        parts = []
        while size and (part := self._talk.recv(min(size, 1 << 16))):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _fork(self, number: int, surroundings: Any, talk: int, errors: int) -> None:
        try:
            pid = os.fork()
        except OSError:
            self._say(number, UNKNOWN)
            pid = -1
        if pid == 0:
            self._work(surroundings, talk, errors)
        os.close(talk)
        os.close(errors)
        if pid > 0:
            self._pids[number] = pid

    def _work(self, surroundings: Any, talk: int, errors: int) -> None:
        """Be a worker."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            self._talk.close()
            for place, file in ((0, talk), (1, talk), (2, errors)):
                os.dup2(file, place)
            os.close(talk)
            os.close(errors)
            folder, path, environment = surroundings
            sys.path[:] = path
            os.environ.clear()
            os.environ.update(environment | dict.fromkeys(_THREADS, "1"))
            with suppress(OSError):  # it is gone: files by their whole names are still there
                os.chdir(folder)
            self._serve()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Tell of the workers that have ended."""
        for number, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._pids[number]
                self._say(number, os.waitstatus_to_exitcode(status))

    def _say(self, number: int, code: int) -> None:
        with suppress(OSError):
            self._talk.sendall(pickle.dumps((number, code)))
