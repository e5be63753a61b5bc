"""Hypothesis' profiles, one thread, and Ctrl-C for what tests start."""

from __future__ import annotations

import signal

import torch

import examples  # noqa: F401  (registers the profiles)

torch.set_num_threads(1)

# A shell's background jobs ignore Ctrl-C, and so would what tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
