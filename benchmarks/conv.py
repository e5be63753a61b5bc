"""Convolutional networks: CROWN beside auto_LiRPA's, FROWN with groups; time and memory.

    python benchmarks/conv.py --shared DIR --peer PYTHON
    python benchmarks/conv.py --shared DIR --networks resnet-4b --images 1 --groups 32

Untargeted l_inf radii to 1 %, one image after the other, one thread, float32, rounding not
accounted for (which auto_LiRPA does not). Every figure comes from a process of its own, so that
its peak of resident memory is its own too; with --repeat the processes take turns, and medians
are shown. PYTHON is an interpreter in which both frown and auto_LiRPA can be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

import frown
from common import circumstances, shared_folder, short, table, timed
from frown.certification.radius import Bracket, Goal, search
from peers import TOL, bisect, lirpa, quiet

Images = NDArray[np.float64]
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)  # of CIFAR-10, as trained

HEAD = ("network", "method", "mean radius", "CPU s per image", "peak MiB", "before MiB")


@dataclass(frozen=True, slots=True)
class Network:
    """A convolutional network and where its images come from."""

    file: str
    data: str  # "ten" (those of the benchmark the network is from) or "cifar"

    def images(self, shared: Path, count: int) -> Images:
        """The first images that the network gets right (of "ten": its own answer is right)."""
        if self.data == "ten":
            return np.load(shared / "models" / "salman_ten_test_images.npy")[:count].astype(float)
        with np.load(shared / "data" / "cifar10.npz") as data:
            x, y = data["x_test"][:200] / 255.0, data["y_test"][:200]
        mean, std = (np.reshape(v, (1, 3, 1, 1)) for v in (MEAN, STD))
        x = (x - mean) / std
        with torch.no_grad():
            answer = Chain(shared / self.file)(torch.tensor(x, dtype=torch.float32)).argmax(1)
        return x[answer.numpy() == y][:count]


NETWORKS = {
    "cnn-small-nor": Network("models/salman_mnist_cnn_small_nor.onnx", "ten"),
    "cnn-small-lpd": Network("models/salman_mnist_cnn_small_lpd.onnx", "ten"),
    "resnet-2b": Network("vnncomp/cifar10_resnet/onnx/resnet_2b.onnx", "cifar"),
    "resnet-4b": Network("vnncomp/cifar10_resnet/onnx/resnet_4b.onnx", "cifar"),
}


class Chain(nn.Module):
    """The Conv, Gemm, Relu, Add and Flatten nodes of an ONNX file as a torch module, with Sub and
    Div by constants."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        model = onnx.load(path)
        weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.first, self.last = model.graph.input[0].name, model.graph.output[0].name
        self.steps: list[tuple[str, list[str], str]] = []
        self.layers = nn.ModuleList()
        for node in model.graph.node:
            reads = [name for name in node.input if name not in weights]
            self.steps.append((node.op_type, reads, node.output[0]))
            self.layers.append(_layer(node, [weights[n] for n in node.input if n in weights]))
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        values = {self.first: x}
        for (kind, reads, name), layer in zip(self.steps, self.layers, strict=True):
            if kind == "Add":
                values[name] = values[reads[0]] + values[reads[1]]
            else:
                values[name] = layer(values[reads[0]])
        return values[self.last]


class Scaled(nn.Module):
    """(x - offset) / factor."""

    def __init__(self, offset: Tensor, factor: Tensor) -> None:
        super().__init__()
        self.register_buffer("offset", offset)
        self.register_buffer("factor", factor)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.offset) / self.factor


def _layer(node: onnx.NodeProto, weights: list[NDArray[np.float32]]) -> nn.Module:
    settings = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type in ("Sub", "Div") and len(weights) == 1:
        own = torch.tensor(weights[0])
        zero, one = torch.zeros_like(own), torch.ones_like(own)
        return Scaled(own, one) if node.op_type == "Sub" else Scaled(zero, own)
    if node.op_type in ("Relu", "Flatten", "Add"):
        return {"Relu": nn.ReLU, "Flatten": nn.Flatten, "Add": nn.Identity}[node.op_type]()
    weight, bias = (torch.tensor(w) for w in weights)
    layer: nn.Module
    if node.op_type == "Conv" and settings["pads"][:2] == settings["pads"][2:]:
        layer = nn.Conv2d(
            weight.shape[1],
            weight.shape[0],
            weight.shape[2:],
            tuple(settings["strides"]),
            tuple(settings["pads"][:2]),
        )
    elif node.op_type == "Gemm" and settings.get("transB") == 1:
        layer = nn.Linear(weight.shape[1], weight.shape[0])
    else:
        raise SystemExit(f"{node.op_type} {node.name} is not a plain layer")
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def work(shared: Path, name: str, method: str, count: int) -> dict[str, float]:
    """Radii of one method on one network, in this very process."""
    network = NETWORKS[name]
    path, x = shared / network.file, network.images(shared, count)
    if method.startswith("auto_LiRPA"):
        how = method.rsplit(" ", 1)[1]
        peer = Peer(path)
        peer.radius(x[:1], how, evaluations=1)
        before = _resident()
        seconds, radii = timed(lambda: [peer.radius(x[k : k + 1], how) for k in range(len(x))])
    else:
        model = frown.load(path)
        # One evaluation beforehand, as on the peer's side: what a network needs once is not timed.
        frown.certify(model, x[:1], search=1e-6, method="crown", attack=None, proof="estimate")
        chosen: frown.Method = frown.Crown()
        if method.split()[1] == "FROWN":
            chosen = frown.Frown(int(method.rsplit(" ", 1)[1]) if " group " in method else 1)
        level = "rigorous" if method.endswith("rigorous") else "estimate"
        before = _resident()

        def radius(image: Images) -> float:
            how = frown.Largest(TOL)
            found = frown.certify(model, image, method=chosen, search=how, attack=None, proof=level)
            return float(found.radius[0])

        seconds, radii = timed(lambda: [radius(x[k : k + 1]) for k in range(len(x))])
    return {
        "radius": float(np.mean(radii)),
        "seconds": seconds / len(x),
        "peak": _resident(),
        "before": before,
    }


class Peer:
    """auto_LiRPA's CROWN as a careful user drives it: all margins as C, lower bounds only."""

    def __init__(self, path: Path) -> None:
        self.network = Chain(path)
        self.modules: dict[tuple[int, ...], Any] = {}

    def radius(self, x: Images, how: str, evaluations: int | None = None) -> float:
        """The radius of one image by a bisection or by frown's own search."""
        image = torch.tensor(x, dtype=torch.float32)
        label = self.network(image).argmax(1)
        others = [k for k in range(10) if k != int(label)]
        margin = torch.eye(10)[label][:, None] - torch.eye(10)[others]
        if image.shape not in self.modules:
            with quiet():
                self.modules[image.shape] = lirpa().BoundedModule(self.network, image, device="cpu")
        module = self.modules[image.shape]

        def margins(sample: Tensor, radius: Tensor) -> Tensor:
            ball = lirpa().perturbations.PerturbationLpNorm(norm=inf, eps=float(radius))
            with torch.no_grad(), quiet():
                lower, _ = module.compute_bounds(
                    x=(lirpa().BoundedTensor(image, ball),),
                    C=margin,
                    method="CROWN",
                    bound_upper=False,
                )
            return lower

        moved = image.clone().requires_grad_()
        clean = (margin @ self.network(moved)[:, :, None]).squeeze(-1)
        (slope,) = torch.autograd.grad(clean.amin(), moved)
        guess = 0.3 * (clean.amin() / slope.abs().sum()).detach()[None]
        if evaluations == 1:
            margins(torch.zeros(1, dtype=torch.int64), 1e-3 * guess)
            return 0.0
        if how == "bisection":
            return float(bisect(margins, guess, TOL))
        bracket = Bracket.start(clean.detach(), 1e6 * guess)
        *_, found = search(bracket, margins, guess, Goal.fixed(TOL))
        return float(found.proved)


def _resident() -> float:
    """The peak of this process's resident memory so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    shared = shared_folder(args.shared)
    if args.worker:
        print(json.dumps(work(shared, args.networks[0], args.worker, args.images)))
        return
    print(f"{circumstances()}; the first {args.images} images, one at a time")
    rows = []
    for name in args.networks:
        methods = [(sys.executable, "frown CROWN")]
        if args.rigorous:
            methods += [(sys.executable, "frown CROWN, rigorous")]
        methods += [(sys.executable, f"frown FROWN group {g}") for g in args.groups]
        if args.peer:
            methods += [(args.peer, f"auto_LiRPA CROWN, {how}") for how in args.search]
        runs: dict[str, list[dict[str, float]]] = {method: [] for _, method in methods}
        for turn in range(args.repeat):
            for python, method in methods[:: 1 if turn % 2 == 0 else -1]:
                found = _elsewhere(python, shared, name, method, args.images)
                runs[method].append(found)
                print(" ".join(_cells(name, method, found)), file=sys.stderr, flush=True)
        for method, each in runs.items():
            middle = {key: median(found[key] for found in each) for key in each[0]}
            rows.append(_cells(name, method, middle))
    text = table(HEAD, rows)
    print(text)
    if args.out:
        Path(args.out).write_text(f"{circumstances()}\n\n{text}\n")


def _cells(name: str, method: str, found: dict[str, float]) -> tuple[str, ...]:
    sizes = (f"{found['peak']:.0f}", f"{found['before']:.0f}")
    return (name, method, short(found["radius"]), f"{found['seconds']:.3g}", *sizes)


def _elsewhere(python: str, shared: Path, name: str, method: str, images: int) -> dict[str, float]:
    """The same work in a process of its own."""
    command = [python, __file__, "--shared", str(shared), "--networks", name]
    command += ["--images", str(images), "--worker", method]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{method} on {name} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shared", help="folder with models/, data/, vnncomp/ (or FROWN_SHARED)")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--images", type=int, default=3, help="images per network (3)")
    parser.add_argument("--groups", nargs="*", type=int, default=[], help="FROWN's group sizes")
    parser.add_argument("--rigorous", action="store_true", help="also with rounding accounted for")
    parser.add_argument("--repeat", type=int, default=1, help="runs; medians are shown (1)")
    parser.add_argument("--peer", help="interpreter that can import auto_LiRPA and frown")
    parser.add_argument(
        "--search",
        nargs="+",
        choices=("bisection", "shared"),
        default=["shared"],
        help="the peer's search for the radius: what users write, or frown's own",
    )
    parser.add_argument("--out", help="also write the table here, as Markdown")
    parser.add_argument("--worker", metavar="METHOD", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
