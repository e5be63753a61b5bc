"""What is assumed and proved of execution in single precision, against the runtimes installed.

    python tests/execution_campaign.py --every 257 --networks 2000

runs every kernel of `rigor/kernels.py` on every 257th of all numbers of single precision, and
random networks in onnxruntime and torch at points of balls. Ends with 1 if anything is off by
more than is assumed, or outside of what is proved.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent)]

from charged.executions import tried  # noqa: E402
from charged.kernels import floats, kernels, measured  # noqa: E402

REFUSED = 0.1  # of the networks is the most that may be refused


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--every", type=int, default=257, help="of all numbers, for each kernel")
    parser.add_argument("--networks", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernel", default="", help="only kernels with this in their names")
    options = parser.parse_args()
    failures = 0
    for kernel in kernels():
        if options.kernel not in kernel.name:
            continue
        found = measured(kernel, floats(options.every, options.seed % options.every))
        failures += found.beyond
        print(
            f"{kernel.name:36} {found.units:6.2f} u at {found.worst:<12.6g}"
            f" {found.beyond} beyond, {found.unsafe} not assumed about",
            flush=True,
        )
    statements = useful = refused = 0
    closest = np.inf
    with tempfile.TemporaryDirectory() as folder:
        for k in range(options.networks):
            one = tried(np.random.default_rng((options.seed, k)), Path(folder))
            statements, useful = statements + one.statements, useful + one.useful
            closest = min(closest, one.closest)
            refused += one.refused
            failures += len(one.false)
            for line in one.false:
                print(f"network {k}: {line}", flush=True)
    print(f"{options.networks} networks, {statements} answers, {useful} of them bounded")
    print(f"{refused} networks refused as they were read")
    print(f"nearest to a bound: {closest:.3g} of the width; {failures} failures")
    return int(failures > 0 or refused > REFUSED * options.networks)


if __name__ == "__main__":
    sys.exit(main())
