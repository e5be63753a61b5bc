"""Property tests draw the same examples everywhere, on one thread."""

from __future__ import annotations

import signal

import torch
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "frown",
    max_examples=4,
    phases=[Phase.explicit, Phase.generate],  # an example is a table of boxes: nothing to shrink
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("frown")
torch.set_num_threads(1)

# A shell's background jobs ignore Ctrl-C, and so would what tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
