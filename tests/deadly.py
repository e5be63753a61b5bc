"""A method on which processes die, for tests of what outlives them; workers import it by name."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from frown.bounds.method import Bounds, Method
from frown.methods.crown import Crown

POISON = 0.123  # the first feature of inputs on which it dies


@dataclass(frozen=True)
class Deadly(Method):
    """CROWN, but the process is killed over some inputs; with `once`, while that file is there."""

    name: ClassVar[str] = "crown"
    once: Path | None = None

    def bound(self, plan: Any, region: Any, *args: Any, **more: Any) -> Bounds:
        poisoned = bool(((region.centre.flatten(1)[:, 0] - POISON).abs() < 1e-6).any())
        if poisoned and (self.once is None or self.once.exists()):
            if self.once is not None:
                self.once.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return Crown().bound(plan, region, *args, **more)
