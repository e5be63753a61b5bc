"""auto_LiRPA as a careful user would drive it: margins as C, all inputs in one batch.

Radii come from one of two searches. `bisection` is what users write: from the radius that
CROWN proves, grow until it fails, then halve the bracket. `shared` is frown's own search,
so that only the bounds themselves are compared.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from common import Problem, sequential
from numpy.typing import NDArray
from torch import Tensor

from frown.radius import Bracket, search

Margins = Callable[[Tensor, Tensor], Tensor]  # (samples (n,), radii (n,)) -> margins (n, 1)
ITERATIONS = 20


def installed() -> bool:
    return find_spec("auto_LiRPA") is not None


def version() -> str:
    return str(_import().__version__)


@dataclass(frozen=True)
class Peer:
    """A network, its inputs and margins, wrapped once; wrapping is not timed."""

    module: Any  # BoundedModule
    x: Tensor  # (N, features)
    margin: Tensor  # (N, 1, classes)
    p: float

    @classmethod
    def of(cls, problem: Problem, p: float) -> Peer:
        lirpa = _import()
        network = sequential(problem.path)
        x = torch.tensor(problem.x, dtype=torch.float32)
        with torch.no_grad():
            every = torch.arange(len(x))
            margin = torch.zeros(len(x), 1, network(x).shape[1])
            margin[every, 0, torch.from_numpy(problem.y)] = 1
            margin[every, 0, torch.from_numpy(problem.target)] = -1
        # Without fix_interm_bounds=False only the last layer would be optimised, and the
        # radii would fall short; the learning rate is the library's own.
        options = {"iteration": ITERATIONS, "fix_interm_bounds": False}
        with _quiet():
            module = lirpa.BoundedModule(
                network,
                torch.zeros_like(x),
                bound_opts={"optimize_bound_args": options},
                device="cpu",
            )
        return cls(module, x, margin, p)

    def crown(self, tol: float, how: str) -> NDArray[np.float64]:
        """(N,) radii by CROWN."""
        return self._radii(self._margins("CROWN"), self._guess() * 0.3, tol, how).numpy()

    def alpha_crown(self, tol: float, how: str) -> NDArray[np.float64]:
        """(N,) radii by alpha-CROWN, from CROWN's radii to 3 %."""
        start = self._radii(self._margins("CROWN"), self._guess() * 0.3, 0.03, how)
        return self._radii(self._margins("CROWN-Optimized"), start * 1.2, tol, how, start).numpy()

    def _margins(self, method: str) -> Margins:
        lirpa = _import()

        def evaluate(sample: Tensor, radius: Tensor) -> Tensor:
            ball = lirpa.PerturbationLpNorm(norm=self.p, eps=radius[:, None].float())
            x = lirpa.BoundedTensor(self.x[sample], ball)
            with torch.set_grad_enabled(method != "CROWN"), _quiet():
                lower, _ = self.module.compute_bounds(
                    x=(x,), C=self.margin[sample], method=method, bound_upper=False
                )
            return lower.detach()

        return evaluate

    def _radii(
        self, margins: Margins, first: Tensor, tol: float, how: str, proved: Tensor | None = None
    ) -> Tensor:
        if how == "bisection":
            return bisect(margins, first, tol, proved)
        with torch.no_grad():
            clean = self.margin @ self._outputs()[:, :, None]
        bracket = Bracket.start(clean.squeeze(-1), torch.full_like(first, torch.inf))
        if proved is not None:
            # Their margins are not known: a bound that is proved anyway costs nothing.
            bracket.power = torch.full_like(first, 1.5)
        return search(bracket, margins, first, tol).proved

    def _outputs(self) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = self.module(self.x)
        return outputs

    def _guess(self) -> Tensor:
        """Where the margin would vanish if the network were linear at the input."""
        with torch.enable_grad():
            x = self.x.clone().requires_grad_()
            margin = (self.margin @ self.module(x)[:, :, None]).flatten()
            (slope,) = torch.autograd.grad(margin.sum(), x)
        dual = 1.0 if self.p == torch.inf else torch.inf if self.p == 1 else self.p / (self.p - 1)
        return margin.detach() / torch.linalg.vector_norm(slope, ord=dual, dim=1)


def bisect(margins: Margins, first: Tensor, tol: float, proved: Tensor | None = None) -> Tensor:
    """The largest radius, within `tol`, with a positive margin; every sample its own bracket.

    Doubling or halving until there is a bracket (by half from a proved radius), then its
    geometric middle. Decided samples leave the batch.
    """
    low = torch.zeros_like(first) if proved is None else proved.clone()
    high = torch.full_like(first, torch.inf)
    grow = 2.0 if proved is None else 1.25
    here = first
    for _ in range(60):
        index = (high > low * (1 + tol)).nonzero().flatten()
        if not len(index):
            break
        radius = here[index]
        holds = (margins(index, radius) > 0).all(1)
        low[index[holds]] = radius[holds]
        high[index[~holds]] = radius[~holds]
        both = (low > 0) & torch.isfinite(high)
        here = torch.where(both, torch.sqrt(low * high), torch.where(low > 0, low * grow, high / 2))
    return low


def _import() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import auto_LiRPA
        import auto_LiRPA.perturbations

        auto_LiRPA.PerturbationLpNorm = auto_LiRPA.perturbations.PerturbationLpNorm
        return auto_LiRPA


@contextlib.contextmanager
def _quiet() -> Any:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
