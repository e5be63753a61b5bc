"""The convex relaxation barrier benchmark (Salman et al., 2019): radii, and adversarial errors.

Its LP-ALL tightens every neuron of every layer by linear programs: the most that bounds by
one relaxation per neuron can prove. Table 2 has mean l_inf radii of ten MNIST images, table 1
upper bounds on the error that an adversary can cause over the MNIST test set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper import flat
from benchmarks.paper.data import load_data
from benchmarks.paper.experiments import METHODS
from benchmarks.paper.machine import threads
from frown import api
from frown.errors import InvalidInput
from frown.read.model import Model

IMAGES = "salman_ten_test_images.npy"

TOL = 0.002  # of the search: means are compared to 1 %
STEPS = 5  # of FROWN's ascent, at every radius of a search
ERROR_STEPS = 10  # of it where one radius is tried
TOGETHER = 8  # images of table 1 that go through at once
_MEMORY = 256 << 20  # bytes of rows in flight: more is slower, for the pages that it touches


@dataclass(frozen=True, slots=True)
class BarrierNetwork:
    """A line of table 2: mean radii x 1000 as published, and the attack's."""

    name: str
    lp_greedy: float
    lp_last: float
    lp_all: float
    pgd: float

    @property
    def file(self) -> str:
        return f"salman_mnist_{self.name}.onnx"


@dataclass(frozen=True, slots=True)
class ErrorProblem:
    """A line of table 1: errors in per cent as published, MILP's a bracket."""

    name: str
    eps: float
    test: float
    pgd: float
    milp: tuple[float, float]
    lp_all: float
    lp_greedy: float

    @property
    def file(self) -> str:
        return f"salman_{self.name}.onnx"


BARRIER = (
    BarrierNetwork("mlp_2_100_nor", 14.19, 15.11, 15.83, 28.14),
    BarrierNetwork("mlp_2_100_lpd", 81.50, 85.33, 85.33, 118.10),
    BarrierNetwork("cnn_small_nor", 14.98, 16.29, 18.87, 52.70),
    BarrierNetwork("cnn_small_lpd", 153.17, 160.83, 160.83, 226.72),
)
ERRORS = (
    ErrorProblem("nor_mlp_b", 0.02, 2.05, 10.06, (10.16, 13.48), 26.41, 35.11),
    ErrorProblem("nor_mlp_b", 0.03, 2.05, 20.37, (20.43, 48.67), 65.70, 75.85),
    ErrorProblem("adv_mlp_b_0.1", 0.1, 3.33, 15.86, (16.25, 34.37), 61.59, 71.34),
)


@dataclass(frozen=True, slots=True)
class BarrierEvent:
    """`done` of `total` images are through, by one method on one network."""

    network: str
    method: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.network} {self.method}: {self.done} of {self.total} images"


Report = Callable[[BarrierEvent], None]


@dataclass(frozen=True, slots=True)
class Proved:
    """One method on one network, image by image."""

    radii: tuple[float, ...]
    seconds: tuple[float, ...]  # of CPU

    @property
    def radius(self) -> float:
        return mean(self.radii)

    @property
    def seconds_each(self) -> float:
        return mean(self.seconds)


@dataclass(frozen=True, slots=True)
class BarrierRow:
    """A network of table 2, measured."""

    network: BarrierNetwork
    broken: tuple[float, ...]  # by the attack, image by image; inf: nothing found
    proved: Mapping[str, Proved]  # by method

    def ratio(self, method: str) -> float:
        """The mean radius over the published one of LP-ALL.

        No method here can go beyond LP-ALL's largest radius: a ratio above 1 says that the
        published one is not the largest, not that a barrier was broken.
        """
        return 1000 * self.proved[method].radius / self.network.lp_all


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """A line of table 1, measured on `count` test images of `of`."""

    problem: ErrorProblem
    method: str
    count: int
    of: int
    wrong: int  # misclassified as they are
    broken: int  # with a counterexample within eps
    unproved: int  # neither proved nor broken
    seconds: float  # of CPU per image, the attack's included

    @property
    def test(self) -> float:
        return self.wrong / self.count

    @property
    def lower(self) -> float:
        """A lower bound of the adversarial error: what the attack achieved."""
        return (self.wrong + self.broken) / self.count

    @property
    def upper(self) -> float:
        """An upper bound of the adversarial error: what was not proved."""
        return (self.wrong + self.broken + self.unproved) / self.count

    def deviation(self, share: float) -> float:
        """Standard error of a share as an estimate of that of all images; 0 if these are all.

        The binomial one, less the part of all images that was looked at.
        """
        left = (self.of - self.count) / max(1, self.of - 1)
        return sqrt(share * (1 - share) / self.count * left)


def run_barrier(
    shared: Path,
    *,
    methods: Sequence[str] = ("crown", "frown"),
    networks: Sequence[str] | None = None,
    tol: float = TOL,
    steps: int = STEPS,
    report: Report | None = None,
) -> list[BarrierRow]:
    """Table 2: untargeted l_inf radii without a valid range, labels the network's own answers.

    The networks and the ten images are looked for in `shared` and in its subfolder `models`;
    `networks` are names of BARRIER (None: all). Images go one by one, on one thread; the
    attack's time is not in theirs. A radius that the attack contradicts counts as 0.
    """
    for method in methods:
        _known(method, METHODS, "method")
    chosen = _chosen(networks, [n.name for n in BARRIER])
    problems = [n for n in BARRIER if n.name in chosen]
    files = {n.name: _file(shared, n.file) for n in problems}
    images = _images(_file(shared, IMAGES))
    tell = report or (lambda event: None)
    rows = []
    with threads(1):
        for network in problems:
            model = api.load(files[network.name])
            broken = _attacked(model, images)
            tell(BarrierEvent(network.name, "attack", len(images), len(images)))
            proved = {}
            for method in methods:
                radii, seconds = [], []
                options = _options(method, tol, steps)
                for n, image in enumerate(images):
                    began = process_time()
                    (row,) = flat.certify(
                        model, image[None], attack=False, level="estimate", **options
                    ).rows
                    seconds.append(process_time() - began)
                    radii.append(row.radius if row.radius < broken[n] else 0.0)
                    tell(BarrierEvent(network.name, method, n + 1, len(images)))
                proved[method] = Proved(tuple(radii), tuple(seconds))
            rows.append(BarrierRow(network, broken, proved))
    return rows


def run_error(
    shared: Path,
    *,
    data: Path | None = None,
    count: int | None = 1000,
    method: str = "frown",
    networks: Sequence[str] | None = None,
    steps: int = ERROR_STEPS,
    report: Report | None = None,
) -> list[ErrorRow]:
    """Table 1: shares of MNIST test images that are not proved within eps, pixels in [0, 1].

    `count` images (None: all), evenly spread over the test set, whose halves differ. MNIST is
    looked for in `data`, or else in `shared`; `networks` are names of ERRORS (None: all).
    """
    _known(method, METHODS, "method")
    if count is not None and count < 1:
        raise InvalidInput(f"count must be positive, or None for all test images, not {count}")
    chosen = _chosen(networks, list(dict.fromkeys(p.name for p in ERRORS)))
    problems = [p for p in ERRORS if p.name in chosen]
    files = {p.name: _file(shared, p.file) for p in problems}
    mnist = load_data(data or shared, "mnist")
    total = len(mnist.test_y)
    size = total if count is None else min(count, total)
    index = np.arange(size) * total // size
    pixels = np.round((mnist.test_x[index].astype(np.float64) + 1) * 127.5) / 255
    labels = mnist.test_y[index]
    tell = report or (lambda event: None)
    options = _options(method, TOL, steps)
    if method != "lp":
        options["batch"] = TOGETHER
    rows = []
    with threads(1):
        for problem in problems:
            model = api.load(files[problem.name])
            x = _shaped(pixels, model, files[problem.name])
            name, statuses = f"{problem.name} {problem.eps:g}", Counter[str]()
            began = process_time()
            for a in range(0, size, TOGETHER):
                part = slice(a, a + TOGETHER)
                answers = flat.certify(
                    model, x[part], labels[part], eps=problem.eps, bounds=(0, 1), **options
                ).rows
                statuses.update(row.status for row in answers)
                tell(BarrierEvent(name, method, statuses.total(), size))
            rows.append(
                ErrorRow(
                    problem,
                    method,
                    size,
                    total,
                    wrong=statuses["misclassified"],
                    broken=statuses["falsified"],
                    unproved=statuses["unknown"],
                    seconds=(process_time() - began) / size,
                )
            )
    return rows


# -- inside -----------------------------------------------------------------------


def _options(method: str, tol: float, steps: int) -> dict[str, Any]:
    options: dict[str, Any] = {"method": method, "tol": tol}
    if method == "lp":
        return options
    options["memory"] = _MEMORY
    if method == "frown":
        options["steps"] = steps
    return options


def _attacked(model: Model, images: NDArray[np.float64]) -> tuple[float, ...]:
    """Distances of the nearest counterexamples found; intervals keep the proofs beside cheap."""
    rows = flat.certify(model, images, method="interval", attack=True).rows
    return tuple(np.inf if r.broken is None else r.broken for r in rows)


def _images(path: Path) -> NDArray[np.float64]:
    try:
        images = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInput(f"{path} is no array of numpy's: {error}") from None
    if not isinstance(images, np.ndarray) or images.ndim < 2 or not len(images):
        raise InvalidInput(f"{path} must hold one array of images, the first axis counting them")
    return images.astype(np.float64)


def _shaped(pixels: NDArray[np.float64], model: Model, path: Path) -> NDArray[np.float64]:
    if np.prod(model.input_shape) != pixels.shape[1]:
        raise InvalidInput(
            f"{path} takes inputs {tuple(model.input_shape)}, an image has {pixels.shape[1]} pixels"
        )
    return pixels.reshape(-1, *model.input_shape)


def _file(shared: Path, name: str) -> Path:
    for folder in (shared, shared / "models"):
        if (folder / name).is_file():
            return folder / name
    raise InvalidInput(
        f"no {name} in {shared} or {shared / 'models'}: the benchmark's networks and images, as "
        "ONNX and .npy files, come from https://github.com/Hadisalman/robust-verify-benchmark"
    )


def _known(name: str, among: Collection[str], what: str) -> None:
    if name not in among:
        raise InvalidInput(f"unknown {what} {name!r}; choose from {', '.join(among)}")


def _chosen(networks: Sequence[str] | None, names: Sequence[str]) -> set[str]:
    for name in networks or ():
        _known(name, names, "network")
    return set(names if networks is None else networks)
