"""Every operator that the readers of ONNX files know, against onnxruntime, as often as wanted.

    python tests/operators_campaign.py --models 10000

Models of one operator (tests/operators/table.py: random shapes, ranks, attributes and opsets) are
read by frown, whose own comparison with onnxruntime is switched off, and by the checker, and all
three are evaluated at the same points, near and far. One in five has the operator read a constant,
which readers fold. Prints what was done as it goes, and every difference; the exit code is 1 if
there is one, or if an operator was never read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import torch

from operators.compare import Found, campaign
from operators.table import TABLE

BLOCK = 500  # models between two lines of output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=10_000, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-folds", action="store_true", help="leave out operators of constants")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    began, told, found = process_time(), 0, Found()
    with TemporaryDirectory() as folder:
        for found in campaign(asked.seed, asked.models, Path(folder), not asked.no_folds):
            for text in found.wrong[told:]:
                print("WRONG", text, flush=True)
            told = len(found.wrong)
            if found.count["models"] % BLOCK == 0:
                seconds = f"{process_time() - began:.0f} CPU seconds"
                done = ", ".join(f"{v} {k}" for k, v in found.count.items())
                print(f"{done}, {told} differences, {seconds}", flush=True)
    unread = [op for op in TABLE if not found.read[f"{op} frown"]]
    if unread:
        print(f"never read by frown: {', '.join(unread)}")
    return 1 if told or unread else 0


if __name__ == "__main__":
    sys.exit(main())
