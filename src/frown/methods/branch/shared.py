"""Leaves of one tree, bounded by several processes.

A step of branch and bound raises the bounds of some hundred leaves, each by itself. Where the run
has processes to spare (`Work.pool`), here or on other machines, each of them gets a part: what to
cut next is decided here. What they return are choices like any others, which the replay proves.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from time import monotonic
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from frown.bounds.work import Pool
from frown.methods.branch.ascent import Bases, LeafAscent, Leaves, Risen, ascend
from frown.methods.branch.passes import Passes, Places

LEAST = 32  # leaves that are worth a message
PATIENCE, SLOW = (
    20.0,
    20.0,
)  # seconds for others to answer, or as many times as long as it took here
KEPT = 4  # networks that a process remembers

T = TypeVar("T", "Asked", Risen, Bases)

_known: dict[str, Context] = {}


@dataclass(frozen=True)
class Context:
    """All that leaves of one search have in common."""

    passes: Passes
    places: Places
    ascent: LeafAscent


@dataclass(frozen=True)
class Asked:
    """Leaves to be bounded."""

    bases: Bases
    base: Tensor  # (B,) of them
    sample: Tensor  # (B,)
    radius: Tensor  # (B,)
    cut: Tensor  # (B, slots)
    theta: Tensor  # (B, slots)
    head: Tensor  # (heads, B)
    const: Tensor  # (B,)
    weight: Tensor | None = None  # (slots, inputs) of intercepts, where they are learnt

    def __len__(self) -> int:
        return len(self.sample)

    def take(self, part: slice) -> Asked:
        """Some of the leaves, with the bases of these alone."""
        own, base = torch.unique(self.base[part], return_inverse=True)
        few = Bases(*(getattr(self.bases, f.name).index_select(1, own) for f in fields(Bases)))
        return Asked(
            few,
            base,
            self.sample[part],
            self.radius[part],
            self.cut[part],
            self.theta[part].clone(),
            self.head[:, part].contiguous(),
            self.const[part],
            self.weight,
        )

    def risen(self, context: Context) -> Risen:
        """The ends of their ascents."""
        every = slice(None)
        found = ascend(self._leaves(context, every, self.cut, self.theta), context.ascent)
        return found if found.candidates is None else self._tried(context, found)

    def _leaves(
        self, context: Context, which: Tensor | slice, cut: Tensor, theta: Tensor
    ) -> Leaves:
        """Some of the leaves, with these cuts, slopes and multipliers."""
        sample = self.sample[which]
        return Leaves(
            context.passes,
            self.bases,
            self.base[which],
            cut,
            theta,
            self.head[:, which].contiguous(),
            self.const[which],
            context.places.of(sample, self.radius[which]),
            self.weight,
            sample,
        )

    def _tried(self, context: Context, found: Risen) -> Risen:
        """Cut leaves where the worse of two children is best along their own slopes."""
        open_ = (~(found.bound > 0) & (found.worth > 0)).nonzero().flatten()
        if not len(open_):
            return replace(found, candidates=None)
        assert found.candidates is not None
        slots, every = found.candidates[open_], torch.arange(len(open_))
        worse = found.bound.new_full(slots.shape, torch.inf)
        for k, slot in enumerate(slots.T):
            for side in (-1, 1):
                cut, theta = self.cut[open_].clone(), found.theta[open_].clone()
                cut[every, slot], theta[every, slot] = side, 0.0
                bound = self._leaves(context, open_, cut, theta).bound()
                worse[:, k] = worse[:, k].minimum(bound.nan_to_num(nan=-torch.inf))
        best = slots.gather(1, worse.argmax(1)[:, None])[:, 0]
        return replace(found, slot=found.slot.index_copy(0, open_, best), candidates=None)


class SharedAscent:
    """Ascents of one search's leaves, in this process or in several."""

    def __init__(self, context: Context, pool: Pool) -> None:
        self.context, self.pool = context, pool
        self._key, self._content = uuid.uuid4().hex, b""

    def risen(self, asked: Asked) -> Risen:
        """The ends of all ascents, in the order of the leaves."""
        count = min(self.pool.count, len(asked) // LEAST)
        if count < 2 or self.pool.executor is None:
            return asked.risen(self.context)
        self._content = self._content or pickle.dumps(self.context)
        ends = [len(asked) * k // count for k in range(count + 1)]
        parts = [asked.take(slice(a, b)) for a, b in pairwise(ends)]
        submit = self.pool.executor.submit
        sent = [submit(_elsewhere, self._key, b"", _arrays(part)) for part in parts[1:]]
        began = monotonic()
        found = [parts[0].risen(self.context)]
        most = max(PATIENCE, SLOW * (monotonic() - began))
        for part, future in zip(parts[1:], sent, strict=True):
            found.append(self._answer(part, future, submit, most))
        return _joined(found, ends)

    def _answer(
        self, part: Asked, future: Future[Any], submit: Callable[..., Future[Any]], most: float
    ) -> Risen:
        """The answer of another process; what it does not answer in time is found here."""
        try:
            answer = future.result(most)
            if answer is None:  # it does not know this network yet
                future = submit(_elsewhere, self._key, self._content, _arrays(part))
                answer = future.result(most)
            return _tensors(Risen, answer)
        except Exception:  # lost, or too busy: of many kinds
            future.cancel()
            self.pool = Pool()
            return part.risen(self.context)


Arrays = tuple[Any, ...]  # the fields of a value, tensors as numpy's arrays


def _arrays(value: Asked | Risen | Bases) -> Arrays:
    """A value on its way: tensors would travel through files of shared memory, which takes longer
    than bounding a leaf."""

    def plain(held: Any) -> Any:
        if isinstance(held, Tensor):
            return held.numpy()
        if isinstance(held, list):
            return [(k, point.numpy()) for k, point in held]
        return _arrays(held) if isinstance(held, Bases) else held

    return tuple(plain(getattr(value, field.name)) for field in fields(value))


def _tensors(kind: type[T], held: Arrays) -> T:
    """A value that has arrived."""

    def whole(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            return torch.from_numpy(part)
        if isinstance(part, list):
            return [(k, torch.from_numpy(point)) for k, point in part]
        return _tensors(Bases, part) if isinstance(part, tuple) else part

    return kind(*map(whole, held))


def _elsewhere(key: str, content: bytes, asked: Arrays) -> Arrays | None:
    """Be asked for leaves; None: the network of `key` has not come yet."""
    if key not in _known:
        if not content:
            return None
        torch.set_num_threads(1)
        while len(_known) >= KEPT:
            del _known[next(iter(_known))]
        _known[key] = pickle.loads(content)
    return _arrays(_tensors(Asked, asked).risen(_known[key]))


def _joined(parts: list[Risen], starts: list[int]) -> Risen:
    """The results of parts as those of the whole."""
    first = parts[0]
    return replace(
        first,
        bound=torch.cat([p.bound for p in parts]),
        theta=torch.cat([p.theta for p in parts]),
        slot=torch.cat([p.slot for p in parts]),
        worth=torch.cat([p.worth for p in parts]),
        broken=[(start + k, point) for start, p in zip(starts, parts) for k, point in p.broken],
        rows=sum(p.rows for p in parts),
    )
