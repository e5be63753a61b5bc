"""What execution in single precision costs: radii and time with and without `deployed`.

    python benchmarks/deployed.py --shared DIR
    python benchmarks/deployed.py --shared DIR --networks mnist-relu --norms 1 2 inf --samples 5

Untargeted radii to 1 %, one thread. A share is a radius that holds for the network as executed in
float32, too, divided by the rigorous one of the same input.
"""

from __future__ import annotations

import argparse
from functools import partial

import torch

import frown
from common import NETWORKS, Problem, alternating, circumstances, shared_folder, short, table

HEAD = ("network", "p", "inputs", "mean radius", "deployed", "share", "least share", "time ratio")


def radii(
    model: frown.Model, problem: Problem, p: float, method: str, deployed: str | None
) -> frown.Certification:
    where, proof = frown.Ball(problem.x, norm=p), frown.Rigorous(execution=deployed)
    return frown.certify(model, where, problem.y, method=method, proof=proof, attack=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shared", help="folder with models/ and data/")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--norms", nargs="+", type=float, default=[1.0, 2.0, float("inf")])
    parser.add_argument("--samples", type=int, help="the first so many inputs; default: all")
    parser.add_argument("--method", default="frown", choices=["frown", "crown"])
    parser.add_argument("--repeat", type=int, default=1, help="rounds; times are medians")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folder = shared_folder(options.shared)
    rows = []
    for network in options.networks:
        problem = NETWORKS[network].read(folder).first(options.samples)
        model = frown.load(problem.path)
        for p in options.norms:
            work = {
                name: partial(radii, model, problem, p, options.method, deployed)
                for name, deployed in (("real", None), ("executed", "float32"))
            }
            found = alternating(work, options.repeat)
            (before, real), (after, executed) = found["real"], found["executed"]
            proved = real.radius > 0
            share = executed.radius[proved] / real.radius[proved]
            rows.append(
                (
                    network,
                    f"{p:g}",
                    str(int(proved.sum())),
                    short(float(real.radius[proved].mean())),
                    short(float(executed.radius[proved].mean())),
                    f"{100 * share.mean():.2f} %",
                    f"{100 * share.min():.2f} %",
                    f"{after / before:.2f}",
                )
            )
            print(" ".join(rows[-1]), flush=True)
    print(f"\n{circumstances()}, {options.method}\n\n{table(HEAD, rows)}")


if __name__ == "__main__":
    main()
