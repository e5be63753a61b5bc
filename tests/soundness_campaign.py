"""Rigorous bounds against exact arithmetic, as often as wanted.

    python tests/soundness_campaign.py --regions 100000

Random hostile networks (tests/rigor/cases.py) are bounded over random regions; every bound of every
layer and margin is compared with the exact value at points of the region. Prints what was
done as it goes, and every false statement; the exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from time import process_time

import torch

from charged.cases import run

BLOCK = 50  # networks between two lines of output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--regions", type=int, default=100_000, help="how many cases")
    parser.add_argument("--samples", type=int, default=8, help="regions of each network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smooth", action="store_true", help="smooth activations (Arb) instead")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    total: Counter[str] = Counter()
    began, block = process_time(), 0
    while total["regions"] < asked.regions:
        found = run(asked.seed * 10_000_000 + block, BLOCK, asked.samples, asked.smooth)
        block += 1
        total.update(
            networks=found.networks,
            regions=found.cases,
            statements=found.statements,
            silent=found.silent,
            tight=found.tight,
            false=len(found.false),
        )
        for text in found.false:
            print("FALSE", text)
        seconds = f"{process_time() - began:.0f} CPU seconds"
        print(", ".join(f"{v} {k}" for k, v in total.items()), seconds, flush=True)
    return 1 if total["false"] else 0


if __name__ == "__main__":
    sys.exit(main())
