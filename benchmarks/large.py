"""Larger networks: margins at one radius and radii, by CROWN, FROWN and FROWN with all steps.

    python benchmarks/large.py --shared DIR --first 4 --images 4
    python benchmarks/large.py --shared DIR --networks resnet-2b lstm --images 2

Where auto_LiRPA can be imported, its CROWN and alpha-CROWN (20 iterations, slopes of all layers)
take turns with ours at one radius, on the same images.

One image after the other, one thread, float32, CPU seconds, rounding not accounted for. "All steps"
is `Frown(steps=30)`: every neuron takes as many as every margin. The last column says how
much of what these gain over CROWN is left. Networks with a published radius are bounded there
(pixels stay in [0, 1]); of the others radii are searched for, to 1 %, without all steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import frown
from common import alternating, circumstances, shared_folder, short, table
from conv import Chain
from frown.api import plan_for
from frown.bounds.work import Machine
from frown.problem.property import Answers
from peers import ITERATIONS, installed, lirpa, quiet

Images = NDArray[np.float64]
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)  # of CIFAR-10, as trained
METHODS = {
    "CROWN": frown.Crown(),
    "FROWN": frown.Frown(),
    "FROWN, all steps": frown.Frown(steps=30),
}
HEAD = (
    "network",
    "method",
    "margin or radius",
    "CPU s per image",
    "times CROWN",
    "gain left",
    "times FROWN",
)


@dataclass(frozen=True, slots=True)
class Network:
    """A network, its images, and the radius of its published table, if it has one."""

    file: str
    data: str
    eps: float | None = None

    def images(self, shared: Path, first: int, count: int) -> tuple[Images, NDArray[np.int64]]:
        """Some images as the network reads them, and their labels."""
        with np.load(shared / "data" / self.data) as data:
            names = ("x_test", "y_test") if "x_test" in data.files else ("x", "y")
            x, y = (data[name][first : first + count] for name in names)
        x = x / 255.0 if x.dtype == np.uint8 else x.astype(np.float64)
        if self.data == "cifar10.npz":
            mean, std = (np.reshape(v, (1, 3, 1, 1)) for v in (MEAN, STD))
            x = (x - mean) / std
        return x, y.astype(np.int64)


NETWORKS = {
    "6x100": Network("models/eran_mnist_6_100.onnx", "eran_mnist.npz", 0.026),
    "9x200": Network("models/eran_mnist_9_200.onnx", "eran_mnist.npz", 0.015),
    "conv-small": Network("models/eran_mnist_conv_small.onnx", "eran_mnist.npz", 0.12),
    "cnn-a-adv": Network("models/sdp_cifar_cnn_a_adv.onnx", "sdp_cifar.npz", 2 / 255),
    "resnet-2b": Network("vnncomp/cifar10_resnet/onnx/resnet_2b.onnx", "cifar10.npz"),
    "resnet-4b": Network("vnncomp/cifar10_resnet/onnx/resnet_4b.onnx", "cifar10.npz"),
    "lstm": Network("models/lstm_7_32.onnx", "mnist.npz"),
    "gru": Network("models/gru_7_32.onnx", "mnist.npz"),
}


def bounds_of(model: frown.Model, x: Images, y: NDArray[np.int64], eps: float) -> Works:
    """For every method a function that gives the mean margin of all images at a radius."""
    plan = plan_for(model, Machine(), model.graph)
    graph, problems = plan.graph, []
    for k in range(len(x)):
        one = slice(k, k + 1)
        regions = frown.Ball(x[one], within=(0, 1)).at(eps).regions(model.input_shape)
        answers = Answers(1, model.classes, lambda one=one: model.run(x[one]))
        property = frown.label_wins(y[one]).on(answers, np.arange(1))
        radius = torch.full((1,), eps, dtype=graph.dtype)
        region = regions.on(graph).with_radius(radius)
        problems.append((region, property.to(graph.dtype, graph.device)))

    def work(method: frown.Method) -> Callable[[], float]:
        def bound() -> float:
            with torch.inference_mode():
                found = [method.once.bound(plan, *problem).literals for problem in problems]
            return float(torch.cat(found).mean())

        return bound

    return {name: work(method) for name, method in METHODS.items()}


def peers(path: Path, x: Images, y: NDArray[np.int64], eps: float) -> Works:
    """The peer's CROWN and alpha-CROWN as a careful user drives them: all margins as C, lower
    bounds only, the library's own learning rate and schedule."""
    if not installed():
        return {}
    options = {"iteration": ITERATIONS, "fix_interm_bounds": False}
    images = torch.tensor(x, dtype=torch.float32)
    with quiet():
        module = lirpa().BoundedModule(
            Chain(path), images[:1], bound_opts={"optimize_bound_args": options}, device="cpu"
        )

    def work(method: str) -> Callable[[], float]:
        def bound() -> float:
            found = []
            for image, label in zip(images[:, None], y, strict=True):
                margin = torch.eye(10)[label] - torch.eye(10)[[k for k in range(10) if k != label]]
                low, high = (image - eps).clamp(min=0), (image + eps).clamp(max=1)
                ball = lirpa().perturbations.PerturbationLpNorm(
                    norm=inf, eps=eps, x_L=low, x_U=high
                )
                with torch.set_grad_enabled(method != "CROWN"), quiet():
                    lower, _ = module.compute_bounds(
                        x=(lirpa().BoundedTensor(image, ball),),
                        C=margin[None],
                        method=method,
                        bound_upper=False,
                    )
                found.append(lower.detach())
            return float(torch.cat(found).mean())

        return bound

    names = {"auto_LiRPA CROWN": "CROWN", "auto_LiRPA alpha-CROWN": "CROWN-Optimized"}
    return {name: work(method) for name, method in names.items()}


def radii(model: frown.Model, x: Images) -> Works:
    """For every method a function that gives the mean radius of all images."""

    def work(method: frown.Method) -> Callable[[], float]:
        def search() -> float:
            found = [
                frown.certify(
                    model, x[k : k + 1], method=method, attack=None, proof="estimate"
                ).radius
                for k in range(len(x))
            ]
            return float(np.mean(found))

        return search

    return {name: work(METHODS[name]) for name in ("CROWN", "FROWN")}


Works = dict[str, Callable[[], float]]


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    shared = shared_folder(args.shared)
    last = args.first + args.images - 1
    print(f"{circumstances()}; images {args.first} to {last}, one at a time")
    rows = []
    for name in args.networks:
        network = NETWORKS[name]
        model = frown.load(shared / network.file)
        x, y = network.images(shared, args.first, args.images)
        x = x.reshape(len(x), *model.input_shape)
        # One radius beforehand: what a network needs once is not timed.
        frown.certify(model, x[:1], search=1e-6, method="crown", attack=None, proof="estimate")
        eps = network.eps
        works = radii(model, x) if eps is None else bounds_of(model, x, y, eps)
        if eps is not None:
            works |= peers(shared / network.file, x, y, eps)
        found = alternating(works, args.repeat)
        plain, least = found["CROWN"]
        _, most = found.get("FROWN, all steps", (0.0, least))
        for method, (seconds, value) in found.items():
            left = f"{(value - least) / (most - least):.3f}" if most > least else ""
            times = f"{seconds / plain:.1f}"
            ratio = f"{seconds / found['FROWN'][0]:.1f}"
            shown = short(value) if value > 0 else f"{value:.4g}"
            rows.append((name, method, shown, f"{seconds / len(x):.3g}", times, left, ratio))
    text = table(HEAD, rows)
    print(text)
    if args.out:
        Path(args.out).write_text(f"{circumstances()}\n\n{text}\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shared", help="folder with models/, data/, vnncomp/ (or FROWN_SHARED)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--first", type=int, default=0, help="the first image's number (0)")
    parser.add_argument("--images", type=int, default=3, help="images per network (3)")
    parser.add_argument("--repeat", type=int, default=1, help="runs; medians are shown (1)")
    parser.add_argument("--out", help="also write the table here, as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
