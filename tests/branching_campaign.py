"""Brackets of branch and bound against MILP and exact rationals, as often as wanted.

    python tests/branching_campaign.py --networks 3000

Small random ReLU networks, p = inf, 1 and 2 (tests/methods/brackets.py). Prints what was done as it
goes, and every false radius; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from time import process_time

import torch

from methods.brackets import run

BLOCK = 50  # networks between two lines of output


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    total: Counter[str] = Counter()
    began = process_time()
    for block in range(-(-asked.networks // BLOCK)):
        found = run(asked.seed * 10_000 + block, min(BLOCK, asked.networks - block * BLOCK))
        for text in found.false:
            print("FALSE", text)
        total.update(
            networks=found.networks,
            closed=found.closed,
            leaves=found.leaves,
            points=found.judged,
            false=len(found.false),
        )
        seconds = f"{process_time() - began:.0f} CPU seconds"
        print(", ".join(f"{v} {k}" for k, v in total.items()), seconds, flush=True)
    return 1 if total["false"] else 0


if __name__ == "__main__":
    sys.exit(main())
