"""Ctrl-C that cannot be lost: Python forgets an interrupt that reaches it inside a finaliser."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any, Self


class Interrupt:
    """While it is entered, SIGINT raises KeyboardInterrupt as usual, and is remembered."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if default and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise it again if it was lost on its way."""
        if self.asked and not isinstance(sys.exception(), KeyboardInterrupt):
            raise KeyboardInterrupt
