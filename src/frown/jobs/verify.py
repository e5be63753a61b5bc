"""Answer queries from files, as `frown verify` does: a verdict on stdout, the rest on stderr.

The first line is the verdict, in the words of the VNN-LIB standard; a witness follows it. Witnesses
are written with as many digits as tell their numbers exactly.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from frown import api
from frown.bounds.work import Machine, now, reuse_memory
from frown.certification.folder import reported
from frown.certification.results import plain
from frown.certification.witness import Witness
from frown.errors import InvalidInput
from frown.problem.vnnlib import VnnLib, read_vnnlib

SPARE, MOST_SPARE = 0.03, 0.5  # of a time limit, and seconds: for what follows the verdict
LATE, MOST_LATE = 0.05, 0.5  # beyond a time limit, before the process ends whatever it does


@dataclass(frozen=True, kw_only=True)
class QueryFiles:
    """A query, the networks it is about, and where a witness goes."""

    query: Path
    networks: Sequence[str]  # as typed: [NAME=]MODEL
    timeout: float | None = None
    assignments: Path | None = None  # a folder for the witness's tensors
    real: bool = False  # floating point types that the query declares mean real numbers
    certificate: Path | None = None  # a file for the proof of unsat
    level: str = "rigorous"  # or checked
    began: float | None = None  # on the monotonic clock


def verify_files(files: QueryFiles, out: Callable[[str], None], tell: Callable[[str], None]) -> str:
    """Answer a query; lines go `out`, remarks to `tell`. Returns the verdict's word.

    Raises FrownError for files that cannot be read, and for queries that do not fit the network.
    """
    began = now() if files.began is None else files.began
    reuse_memory()
    if files.timeout is not None and not files.timeout > 0:
        raise InvalidInput(f"--timeout {files.timeout:g}: give seconds, more than 0")
    with _ended_in_time(files.timeout, began, out) as conclude:
        query = read_vnnlib(files.query)
        model = api.load_for(network_of(files.networks, query), query)
        machine = Machine(seconds=_seconds(files.timeout, began))
        verdict = api.verify(
            model,
            query,
            real=files.real,
            certificate=files.certificate,
            level=files.level,
            machine=machine,
        )
        for remark in verdict.remarks:
            tell(plain(remark))
        tell(
            f"{verdict.answer}: {verdict.proved} of {verdict.disjuncts} boxes refuted, "
            f"{'checked, ' if verdict.level == 'checked' else ''}{now() - began:.2f} s"
        )
        lines = [verdict.answer]
        if verdict.witness is not None:
            if files.assignments is None:
                lines += written(query, verdict.witness)
            else:
                serialise(files.assignments, query, verdict.witness)
        conclude(lines)
    return verdict.answer


def network_of(networks: Sequence[str], query: VnnLib) -> Path:
    """The one network's file, from `[NAME=]MODEL` as typed.

    Raises InvalidInput where there are others, or where the query calls its network otherwise.
    """
    if len(networks) != 1:
        told = "none is given" if not networks else f"{len(networks)} are given"
        raise InvalidInput(f"a query about one network needs one --network, and {told}")
    (text,) = networks
    name, equals, path = text.partition("=")
    if not equals or Path(text).exists():
        return Path(text)
    if query.declared is not None and name != query.declared.network:
        raise InvalidInput(
            f"--network {name}=...: the query's network is called {query.declared.network}"
        )
    return Path(path)


def written(query: VnnLib, witness: Witness) -> list[str]:
    """The lines of a witness in the form of the query's version."""
    x, y = ([repr(v) for v in values.ravel().tolist()] for values in (witness.x, witness.y))
    if query.declared is None or query.declared.input.real:
        x = witness.digits()
    numbers = [x, y]
    if query.declared is not None:
        lines = []
        for tensor, own in zip((query.declared.input, query.declared.output), numbers, strict=True):
            sizes = ",".join(map(str, tensor.shape))
            lines += [f"{tensor.name} {tensor.element} [{sizes}]", *own]
        return lines
    pairs = [
        f"({n}_{i} {v})" for n, own in zip("XY", numbers, strict=True) for i, v in enumerate(own)
    ]
    return [f"({pairs[0]}", *pairs[1:-1], f"{pairs[-1]})"]


def serialise(folder: Path, query: VnnLib, witness: Witness) -> None:
    """Write every variable as an ONNX tensor. Raises OutputError where that fails."""
    from onnx import numpy_helper

    tensors: Mapping[str, NDArray[np.floating]] = {"X": witness.x[None], "Y": witness.y[None]}
    if query.declared is not None:
        both = (query.declared.input, witness.x), (query.declared.output, witness.y)
        tensors = {tensor.name: values.reshape(tensor.shape) for tensor, values in both}
    with reported("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in tensors.items():
            proto = numpy_helper.from_array(np.ascontiguousarray(values), name)
            (folder / f"{name}.pb").write_bytes(proto.SerializeToString())


def _seconds(timeout: float | None, began: float) -> float | None:
    """The time left for a verdict, without what is spared for its output."""
    if timeout is None:
        return None
    return max(1e-3, timeout - min(SPARE * timeout, MOST_SPARE) - (now() - began))


@contextmanager
def _ended_in_time(
    timeout: float | None, began: float, out: Callable[[str], None]
) -> Iterator[Callable[[Sequence[str]], None]]:
    """A function that prints a verdict, once; where it is not called soon after the time limit,
    the process says that time is up, and ends."""
    lock, done = threading.Lock(), False

    def conclude(lines: Sequence[str]) -> None:
        nonlocal done
        with lock:
            done = True
            for line in lines:
                out(line)

    def expire() -> None:
        with lock:
            if not done:
                out("timed-out")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)

    timer: threading.Timer | None = None
    if timeout is not None:
        late = began + timeout + min(LATE * timeout, MOST_LATE) - now()
        timer = threading.Timer(max(0.0, late), expire)
        timer.daemon = True
        timer.start()
    try:
        yield conclude
    finally:
        if timer is not None:
            timer.cancel()
