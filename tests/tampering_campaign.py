"""Tampered certificates before the checker, as often as wanted.

    python tests/tampering_campaign.py --trials 10000

Valid certificates of small networks (tests/tamper/bases.py) are changed so that they state what is
false, go with another model, or are damaged; tests/tamper/trial.py says what may be accepted.
With `--trees`, false claims with trees that are as good as can be are spoilt in every way instead
(tests/tamper/trees.py), trees by contradiction and rows that bend among them
(tests/tamper/contradictions.py). Prints counts as it goes, and every failure; the exit code is 1 if
there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
import torch

from tamper.bases import Base, bases
from tamper.contradictions import near_bases
from tamper.trees import spoilt, tree_bases
from tamper.trial import attempt

FRESH = 2500  # trials before new networks and certificates are made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the certificates of failures")
    parser.add_argument("--reasons", action="store_true", help="count the reasons of refusals")
    parser.add_argument("--trees", action="store_true", help="false claims with trees, instead")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    failures, began, valid = 0, process_time(), list[Base]()
    with TemporaryDirectory() as folder:
        for trial in range(asked.trials):
            if trial % (FRESH // 5 if asked.trees else FRESH) == 0:
                place, seed = Path(folder) / str(trial), asked.seed * 1000 + trial // FRESH
                valid = [] if asked.trees else list(bases(place, seed))
                false = []
                if asked.trees:
                    start = asked.seed * 100_000 + trial
                    false = [*tree_bases(place, start, 12), *near_bases(place, start, 8)]
            if asked.trees:
                rng = np.random.default_rng([asked.seed, trial])
                found = spoilt(false[int(rng.integers(len(false)))], rng)
            else:
                found = attempt(valid, place, [asked.seed, trial])
            failures += found.failed
            counts[found.kind, "FAILED" if found.failed else found.verdict] += 1
            reasons[found.reason.split(":")[0][:60]] += 1
            if found.failed:
                print(f"FAILED trial {trial} of seed {asked.seed}: {found.what}: {found.verdict}")
                if asked.keep:
                    asked.keep.mkdir(parents=True, exist_ok=True)
                    (asked.keep / f"{asked.seed}-{trial}.frown").write_bytes(found.content)
            if (trial + 1) % 500 == 0 or trial + 1 == asked.trials:
                parts = [f"{k} {v}: {n}" for (k, v), n in sorted(counts.items())]
                seconds = f"{process_time() - began:.0f} CPU seconds"
                print(f"{trial + 1} trials; {', '.join(parts)}; {seconds}", flush=True)
    if asked.reasons:
        for reason, n in reasons.most_common(40):
            print(f"{n:6} {reason or 'accepted'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
