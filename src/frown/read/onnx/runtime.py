"""The original of an ONNX model: onnxruntime on one thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from frown.errors import InvalidModel
from frown.graph import Shape
from frown.read.model import Array, normal_draws, same

_ROWS = 256  # at once where the batch is free
_NUMBERS = 2**27  # of one tensor for all of them; bounds the memory of a large network


@dataclass(frozen=True, slots=True)
class Port:
    """The model's input: its shape with a batch of 1, and the batch the file declares."""

    name: str
    dtype: np.dtype[Any]
    shape: Shape
    batch: int | None  # None where the file leaves it open

    @property
    def is_batched(self) -> bool:
        """True if the first axis is the batch; an input of one axis is one input."""
        return len(self.shape) > 1

    @property
    def input_shape(self) -> Shape:
        return self.shape[1:] if self.is_batched else self.shape

    @property
    def is_redeclared(self) -> bool:
        """True if the file fixes a batch other than the 1 that is bounded."""
        return self.is_batched and self.batch not in (None, 1)


@dataclass(frozen=True, slots=True)
class OnnxRuntime:
    """Answers (N, outputs) in float64 for inputs (N, *input_shape).

    Sessions cannot be pickled: what it was opened from is, and opened again.
    """

    session: onnxruntime.InferenceSession
    port: Port
    model: str
    step: int  # rows of one call
    source: bytes | str  # the file's content, or its path

    @staticmethod
    def open(source: bytes | str, port: Port, model: str, largest: int = 1) -> OnnxRuntime:
        """Start onnxruntime on a file's content, or on its path if its weights lie beside it.

        `largest` is the size of the network's largest tensor, for one input.
        """
        try:
            session = _session(source)
        except Exception as error:  # its exceptions share no base class
            reason = _sentence(error)
            remedy = ""
            if "layout == 1" in reason:
                remedy = " What helps: put a Transpose around the operator, and use layout 0"
            raise InvalidModel(f"{model}: onnxruntime refuses it: {reason}{remedy}") from error
        if port.is_batched and port.batch is not None:
            return OnnxRuntime(session, port, model, port.batch, source)
        alone = OnnxRuntime(session, port, model, 1, source)
        rows = max(1, min(_ROWS, _NUMBERS // largest))
        together = OnnxRuntime(session, port, model, rows, source)
        return together if port.is_batched and _agree(alone, together) else alone

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.source, self.port, self.model, self.step)

    def __call__(self, x: Array) -> NDArray[np.float64]:
        rows = np.asarray(x, dtype=self.port.dtype).reshape(-1, *self.port.input_shape)
        starts = range(0, max(1, len(rows)), self.step)
        answers = [self._answer(rows[i : i + self.step]) for i in starts]
        return np.concatenate(answers).astype(np.float64)

    def _answer(self, rows: NDArray[Any]) -> NDArray[Any]:
        # A fixed batch is filled up with zeros, whose answers are dropped.
        size = self.step if self.port.is_batched and self.port.batch is not None else len(rows)
        fed = np.zeros((max(1, size), *self.port.input_shape), self.port.dtype)
        fed[: len(rows)] = rows
        shape = fed.shape if self.port.is_batched else self.port.shape
        try:
            answer = self.session.run(None, {self.port.name: fed.reshape(shape)})[0]
        except Exception as error:
            raise InvalidModel(f"{self.model}: onnxruntime fails: {_sentence(error)}") from error
        answer = np.asarray(answer)
        if answer.size % len(fed):
            raise InvalidModel(
                f"{self.model}: {len(fed)} inputs give an output of shape {answer.shape}"
            )
        return answer.reshape(len(fed), -1)[: len(rows)]


def _agree(alone: OnnxRuntime, together: OnnxRuntime) -> bool:
    """True if a batch gives what its rows give one by one.

    A file can declare a symbolic batch and still reshape to a batch of 1 inside.
    """
    x = normal_draws(0)((3, *alone.port.input_shape))
    expected = alone(x)
    try:
        found = together(x)
    except InvalidModel:
        return False
    return same(found, expected)


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


def _session(source: bytes | str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # which would keep what one call needed
    options.log_severity_level = 4  # what goes wrong is raised
    return onnxruntime.InferenceSession(source, options, ["CPUExecutionProvider"])


def _reopened(source: bytes | str, port: Port, model: str, step: int) -> OnnxRuntime:
    """The runtime that was pickled, in another process say."""
    return OnnxRuntime(_session(source), port, model, step, source)
