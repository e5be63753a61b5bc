"""Brackets closed by branch and bound: mean proved / broken after so many CPU seconds per input.

    python benchmarks/branch.py --shared DIR --networks drive-relu mnist-relu --seconds 1 10
    python benchmarks/branch.py --shared DIR --networks drive-sigmoid --norm 2 --samples 4
    python benchmarks/branch.py --shared DIR --file salman_nor_mlp_b.onnx --eps 0.02 --samples 200

One thread. Radii: the inputs of the other benchmarks, class label + 2, no valid range; the table
has FROWN's mean of proved / broken, with the attack's counterexamples, and branch and bound's
with its own. With --eps: images of the MNIST test set in [0, 1], all classes; the table has what
FROWN proves, what the attack breaks, and what branching makes of the rest. All are estimates.
"""

from __future__ import annotations

import argparse
import time
from math import inf

import numpy as np
import torch

import frown
from common import NETWORKS, circumstances, shared_folder, table
from frown.api import plan_for
from frown.bounds.method import Ends
from frown.bounds.plan import Plan
from frown.bounds.work import Machine, Work
from frown.certification.attack import PGD, nearest
from frown.methods import Branch, Frown
from frown.problem.property import LabelWins, Property, other_classes, positive
from frown.problem.region import Region

STRONG = PGD(steps=200, restarts=16)


def frown_radii(plan: Plan, region: Region, wanted: Property, most: torch.Tensor) -> torch.Tensor:
    """FROWN's radii by halving, to 0.2 %."""
    low, high = torch.zeros_like(most), most.clone()
    for _ in range(9):
        middle = (low + high) / 2
        found = Frown().bound(plan, region.with_radius(middle), wanted)
        good = positive(wanted.margins(found.literals))
        low, high = torch.where(good, middle, low), torch.where(good, high, middle)
    return low


def radii(
    name: str, shared: str | None, p: float, marks: list[float], count: int | None
) -> list[str]:
    """A row of the table of radii."""
    problem = NETWORKS[name].read(shared_folder(shared)).first(count)
    model = frown.load(problem.path)
    plan = plan_for(model, Machine(), model.graph)
    graph = plan.graph
    x = torch.from_numpy(problem.x).to(graph.dtype).view(-1, *graph.input_shape)
    target = torch.from_numpy(problem.target)[:, None]
    wanted = LabelWins(torch.from_numpy(problem.y), target, graph.output_size, graph.dtype)
    far = torch.full((len(x),), 1e3)
    guess = torch.full((len(x),), 0.05 if p == inf else 0.5)
    region = Region(x, far, p)
    struck = nearest(graph, region, wanted, guess, STRONG)
    with torch.inference_mode():
        low = frown_radii(plan, region, wanted, struck.distance).double()
        high = struck.distance.double()
        shown = [f"{float((low / high).mean()):.3f}"]
        ends = Ends(low.clone(), far, high.clone(), struck.point, False)
        method, left = Branch(seconds=max(marks)), sorted(marks)
        began = time.process_time()
        for update in method.close(plan, region, wanted, ends, Work()):
            n, spent = update.sample, (time.process_time() - began) / len(x)
            while left and spent > left[0]:
                shown.append(f"{float((low / high).mean()):.3f}")
                left.pop(0)
            low[n] = max(float(low[n]), update.proved)
            if update.point is not None:
                one = region.rows(slice(n, n + 1))
                high[n] = min(float(high[n]), float(one.distance(update.point[None])))
    spent = (time.process_time() - began) / len(x)
    shown += [f"{float((low / high).mean()):.3f}"] * len(left)
    return [name, f"{p:g}", str(len(x)), *shown, f"{spent:.2f}"]


def one_radius(file: str, shared: str | None, eps: float, seconds: float, count: int) -> list[str]:
    """A row of the table of one radius."""
    folder = shared_folder(shared)
    with np.load(folder / "data" / "mnist.npz") as data:
        pixels, labels = data["x_test"][:count] / 255.0, data["y_test"][:count].astype(np.int64)
    model = frown.load(folder / "models" / file)
    plan = plan_for(model, Machine(), model.graph)
    graph = plan.graph
    x = torch.from_numpy(pixels).to(graph.dtype).view(-1, *graph.input_shape)
    label = torch.from_numpy(labels)
    right = (graph.apply(x).flatten(1).argmax(1) == label).nonzero().flatten()
    x, label = x[right], label[right]
    others = other_classes(label, graph.output_size)
    wanted = LabelWins(label, others, graph.output_size, graph.dtype)
    radius = torch.full((len(x),), eps)
    region = Region(x, radius, inf, None, torch.zeros_like(x[:1]), torch.ones_like(x[:1]))
    struck = nearest(graph, region, wanted, radius, STRONG)
    broken = struck.distance <= radius
    with torch.inference_mode():
        proved = wanted.holds(Frown().bound(plan, region, wanted).literals)
        left = (~proved & ~broken).nonzero().flatten()
        part, asked = region.rows(left), wanted.rows(left)
        endless = torch.full((len(left),), inf).double()
        ends = Ends(torch.zeros(len(left)), part.radius, endless, part.centre, True)
        began = time.process_time()
        certain, wrong = set(), set()
        for update in Branch(seconds=seconds).close(plan, part, asked, ends, Work()):
            if update.proved > 0:  # there is one radius alone
                certain.add(update.sample)
            if update.point is not None:
                wrong.add(update.sample)
        spent = time.process_time() - began
    counts = (len(right), int(proved.sum()), int(broken.sum()), len(certain), len(wrong))
    open_ = len(left) - len(certain) - len(wrong - certain)
    return [file, f"{eps:g}", str(count), *map(str, counts), str(open_), f"{spent:.1f}"]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", help="folder with models/ and data/ (or FROWN_SHARED)")
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=["drive-relu"])
    parser.add_argument("--norm", type=float, default=inf)
    parser.add_argument("--seconds", type=float, nargs="+", default=[1.0])
    parser.add_argument("--samples", type=int, help="the first so many inputs")
    parser.add_argument("--file", help="a network of images, with --eps")
    parser.add_argument("--eps", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if (options.file is None) != (options.eps is None):
        parser.error("--file and --eps go together")
    if options.file is not None:
        head = ["network", "eps", "images", "right", "FROWN proves", "attack breaks"]
        head += ["branching proves", "branching breaks", "open", "CPU s of branching"]
        seconds, count = max(options.seconds), options.samples or 100
        rows = [one_radius(options.file, options.shared, options.eps, seconds, count)]
    else:
        marks = sorted(options.seconds)
        head = ["network", "p", "inputs", "FROWN", *(f"{s:g} s" for s in marks), "CPU s per input"]
        rows = [
            radii(name, options.shared, options.norm, marks, options.samples)
            for name in options.networks
        ]
    print(table(head, rows))
    print(circumstances())


if __name__ == "__main__":
    main()
