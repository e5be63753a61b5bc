"""Settings of torch and numpy that a caller may have changed, as frown needs them while it works.

Default precision and device, autocasting, inference mode, the precision of products and what
numpy does on overflow are set by whoever calls; bounds must not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")
Step = TypeVar("Step")


@contextmanager
def plain_surroundings() -> Iterator[None]:
    """torch and numpy as they are when they have just been loaded; afterwards as they were."""
    dtype, products = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    try:
        with ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                stack.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_device().type != "cpu":  # a device slows every call down
                stack.enter_context(torch.device("cpu"))
            stack.enter_context(np.errstate(all="warn", under="ignore"))
            stack.enter_context(torch.inference_mode(False))
            yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(products)


def in_plain_surroundings(call: Callable[Given, Result]) -> Callable[Given, Result]:
    """A function that works in plain surroundings, whatever its caller's are."""

    @wraps(call)
    def within(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        with plain_surroundings():
            return call(*args, **kwargs)

    return within


def stepwise(
    steps: Iterator[Step], within: Callable[[], AbstractContextManager[Any]]
) -> Iterator[Step]:
    """Take the steps of a generator, each inside a context that ends before it is handed over.

    The caller's work between two steps is not inside. A KeyboardInterrupt is passed on to a
    generator.
    """
    interrupt: KeyboardInterrupt | None = None
    while True:
        try:
            with within():
                if interrupt is None:
                    step = next(steps)
                elif isinstance(steps, Generator):
                    step = steps.throw(interrupt)
                else:
                    raise interrupt
        except StopIteration:
            return
        try:
            yield step
            interrupt = None
        except KeyboardInterrupt as caught:
            interrupt = caught
