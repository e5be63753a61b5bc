"""Turn what users pass in into arrays, naming every mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isnan, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from frown.errors import InvalidInput
from frown.graph.op import Shape, foldable

Array = NDArray[np.float64]
# What numpy and torch raise for what is no array of numbers.
UNREADABLE = (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError)
Numbers = NDArray[np.int64] | None  # what the user calls the inputs, for messages


def norm_of(norm: str | float) -> float:
    """p as a number: "inf", "l2", 2, "1.5", ..."""
    text = str(norm).strip().lower().removeprefix("l_").removeprefix("l")
    try:
        p = inf if text in ("inf", "infinity", "max") else float(text)
    except ValueError:
        raise InvalidInput(f"unknown norm {norm!r}; give inf, 1, 2 or any number >= 1") from None
    if isnan(p) or p < 1:
        raise InvalidInput(f"the norm's p must be at least 1, not {norm}")
    return p


def inputs_of(
    x: ArrayLike, shape: Shape, numbers: Numbers = None, features: Sequence[str] | None = None
) -> Array:
    """x as (N, *shape), finite; flat inputs of the right size are folded. `features` are what the
    user calls the columns, for messages."""
    try:
        raw = _raw(x)
        if np.iscomplexobj(raw):
            raise TypeError
        array = raw.astype(np.float64)
    except UNREADABLE:
        raise InvalidInput("the inputs are not an array of real numbers") from None
    if array.ndim < 2 and len(shape) > 0 and array.shape != (0,):
        raise InvalidInput(
            f"the inputs have shape {array.shape}; the first axis must count them: expected "
            f"(N, {', '.join(map(str, shape))})"
        )
    if array.shape[0] == 0:
        raise InvalidInput("there are no inputs: the data are empty")
    if array.shape[1:] != tuple(shape):
        axes, wanted = (tuple(n for n in s if n != 1) for s in (array.shape[1:], shape))
        if not foldable(array.shape[1:], tuple(shape)):
            remedy = ""
            if sorted(axes) == sorted(wanted):
                remedy = "; are the axes in another order? Transpose the inputs"
            elif prod(axes) == prod(wanted):
                remedy = (
                    "; as many numbers: if one input's lie in the model's order, reshape the data "
                    f"to (N, {', '.join(map(str, shape))})"
                )
            elif prod(axes) == prod(wanted) + 1 and len(axes) == 1:
                remedy = "; one number too many: is a label among them (--label-column)?"
            if isinstance(features, list | tuple) and features:
                remedy += f"; the columns taken are {', '.join(map(str, features[:20]))}"
                remedy += ", ..." if len(features) > 20 else ""
            raise InvalidInput(
                f"the inputs have shape {array.shape[1:]} each, the model takes {tuple(shape)}"
                + remedy
            )
        array = array.reshape(len(array), *shape)
    bad = ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
    if bad.any():
        first, where = array[int(np.argmax(bad))].ravel(), ""
        columns = getattr(x, "columns", ())  # of a DataFrame
        if len(columns) == len(first):
            where = f", first in column {columns[int(np.argmin(np.isfinite(first)))]}"
        raise InvalidInput(f"NaN or infinity among the inputs: number {_some(bad, numbers)}{where}")
    return array


def labels_of(
    y: ArrayLike, count: int, classes: int, name: str = "labels", numbers: Numbers = None
) -> NDArray[np.int64]:
    """y as (N,) class numbers in range."""
    try:
        array = _raw(y)
    except UNREADABLE:
        raise InvalidInput(f"{name} are not one number per input") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 0:
        array = np.full(count, array)
    if array.shape != (count,):
        hint = ""
        if array.shape == (count, classes):
            hint = f"; if they are one-hot, give {name}.argmax(1)"
        raise InvalidInput(f"{name} have shape {array.shape}; there are {count} inputs{hint}")
    try:
        if np.iscomplexobj(array):
            raise TypeError
        whole = np.asarray(array, dtype=np.float64)
    except UNREADABLE:
        raise InvalidInput(
            f"{name} are not numbers: give the number of each one's output, from 0 to {classes - 1}"
        ) from None
    bad = ~(np.isfinite(whole) & (whole == np.floor(whole)) & (whole >= 0) & (whole < classes))
    if bad.any():
        first = array[int(np.argmax(bad))]
        raise InvalidInput(
            f"{name} out of range, at {_inputs(bad, numbers)}: the model has classes 0 to "
            f"{classes - 1}, found {first}"
        )
    return whole.astype(np.int64)


def targets_of(
    target: object, label: NDArray[np.int64], classes: int, numbers: Numbers = None
) -> NDArray[np.int64] | None:
    """(N,) one target class per input, or None for every other class."""
    if target is None:
        return None
    if isinstance(target, str) and target.strip().startswith("+"):
        try:
            step = int(target)
        except ValueError:
            raise InvalidInput(f"target {target!r} is not +K with a whole number K") from None
        chosen = (label + step) % classes
    else:
        values = int(target) if isinstance(target, str) and target.isdigit() else target
        chosen = labels_of(values, len(label), classes, "targets", numbers)  # type: ignore[arg-type]
    same = chosen == label
    if same.any():
        raise InvalidInput(f"target equals the label for {_inputs(same, numbers)}")
    return chosen


@dataclass(frozen=True, slots=True)
class Range:
    """The valid range of every feature."""

    lower: Array  # (1, *shape)
    upper: Array

    @property
    def stated(self) -> tuple[Array, Array]:
        """Both ends as certificates have them: in place of infinity the largest double, beyond
        which no number of a ball is."""
        most = np.finfo(np.float64).max
        return np.clip(self.lower, -most, most), np.clip(self.upper, -most, most)


def range_of(bounds: object, x: Array, numbers: Numbers = None) -> Range | None:
    """(lo, hi), numbers or arrays, checked to contain all inputs; None: no range."""
    if bounds is None:
        return None
    try:
        low, high = tuple(bounds)  # type: ignore[arg-type, var-annotated]
    except (TypeError, ValueError):
        raise InvalidInput("bounds must be a pair (lo, hi)") from None
    lower, upper = (_feature_array(v, x.shape[1:], "bounds") for v in (low, high))
    if (lower > upper).any() or np.isnan(lower).any() or np.isnan(upper).any():
        raise InvalidInput("bounds: lo exceeds hi")
    flat = ((x < lower) | (x > upper)).reshape(len(x), -1).any(1)
    if flat.any():
        raise InvalidInput(
            f"outside the bounds [{float(lower.min()):g}, {float(upper.max()):g}]: "
            f"{_inputs(flat, numbers)}"
        )
    return Range(lower[None], upper[None])


def scale_of(scale: object, shape: Shape) -> Array | None:
    """(1, *shape) radius factors per feature, none negative; None: all 1."""
    if scale is None:
        return None
    array = _feature_array(scale, shape, "scale")
    if not np.isfinite(array).all() or (array < 0).any() or not (array > 0).any():
        raise InvalidInput("scale must be finite, not negative, and positive somewhere")
    return array[None]


def features_of(names: object, x: object, shape: Shape) -> tuple[str, ...]:
    """The names of an input's features, in reading order; a DataFrame's columns have them. Empty:
    there are none."""
    given: Any = getattr(x, "columns", None) if names is None else names
    if given is None:
        return ()
    found = tuple(map(str, given))
    if len(found) == prod(shape):
        return found
    if names is None:
        return ()
    raise InvalidInput(f"there are {len(found)} names for {prod(shape)} features")


def fixed_of(fix: object, names: tuple[str, ...], shape: Shape) -> Array | None:
    """(1, *shape) 0 where features may not move, else 1, from names or places; None: all move."""
    if fix is None:
        return None
    listed: Any = fix.split(",") if isinstance(fix, str) else np.atleast_1d(fix).ravel().tolist()  # type: ignore[call-overload]
    free, size = np.ones(prod(shape)), prod(shape)
    for one in listed:
        text = str(one).strip()
        if text in names:
            free[[k for k, name in enumerate(names) if name == text]] = 0
        elif text.isdigit() and int(text) < size:
            free[int(text)] = 0
        else:
            held = (
                f"the features are called {', '.join(names[:20])}"
                if names
                else "they have no names"
            )
            more = ", ..." if len(names) > 20 else ""
            raise InvalidInput(
                f"fix (--fix): there is no feature {text}; give names, or places from 0 to "
                f"{size - 1}; {held}{more}"
            )
    return free.reshape(1, *shape)


def radii_of(eps: ArrayLike, count: int) -> Array:
    """eps as (N,), finite and not negative."""
    array = numbers_of(eps, "eps")
    if array.ndim == 0:
        array = np.full(count, float(array))
    if array.shape != (count,):
        raise InvalidInput(f"eps has shape {array.shape}; there are {count} inputs")
    if not np.isfinite(array).all() or (array < 0).any():
        raise InvalidInput("eps must be finite and not negative")
    return array


def _feature_array(value: object, shape: Shape, name: str) -> Array:
    array = numbers_of(value, name)
    if foldable(array.shape, shape):
        return array.reshape(shape).copy()
    try:
        return np.broadcast_to(array, shape).copy()
    except ValueError:
        raise InvalidInput(
            f"{name}: an array of shape {array.shape} does not fit inputs of shape {shape}; give "
            "one number, or one for each of their features"
        ) from None


def _raw(value: object) -> NDArray[Any]:
    """An array of what was given, a torch tensor wherever it lives and whatever tracks it.

    Raises one of UNREADABLE where it is none, or where entries of it are masked.
    """
    if isinstance(value, torch.Tensor):
        dense = value.detach().cpu().to_dense() if value.is_sparse else value.detach().cpu()
        plain = dense.resolve_conj().resolve_neg()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    if np.ma.is_masked(value):
        raise ValueError("masked entries")
    return np.asarray(value)


def indices_of(indices: ArrayLike, count: int) -> NDArray[np.int64]:
    """(N,) whole numbers: the user's own numbers of the inputs."""
    array = numbers_of(indices, "indices")
    if array.shape != (count,) or not np.array_equal(array, np.floor(array)):
        raise InvalidInput(f"indices must be whole numbers, one for each of the {count} inputs")
    return array.astype(np.int64)


def numbers_of(value: object, name: str) -> Array:
    """An array of real numbers, of any shape."""
    try:
        raw = _raw(value)
        if np.iscomplexobj(raw):
            raise TypeError
        return raw.astype(np.float64)
    except UNREADABLE:
        raise InvalidInput(f"{name} {value!r} is not a number or an array of numbers") from None


def numbers_below(value: object, name: str) -> Array:
    """The largest doubles that are not above finite numbers, given as texts or fractions, too."""
    array = numbers_of(value, name)
    if not np.isfinite(array).all():
        raise InvalidInput(f"{name} must be finite")
    exact = _raw(value)
    if exact.dtype in (np.float64, np.float32, np.float16, np.bool_):
        return array
    below = array.copy()
    for place in np.ndindex(array.shape):
        number: Any = exact[place]
        if isinstance(number, str | np.integer):
            said = Fraction(number if isinstance(number, str) else int(number))
        else:
            said = Fraction(*number.as_integer_ratio())
        if Fraction(float(array[place])) > said:
            below[place] = np.nextafter(array[place], -np.inf)
    return below


def _inputs(mask: object, numbers: Numbers) -> str:
    """The first few inputs that a mask marks, with the noun."""
    return f"input{'s' * (int(np.sum(np.asarray(mask))) > 1)} {_some(mask, numbers)}"


def _some(mask: object, numbers: Numbers) -> str:
    """The first few inputs that a mask marks."""
    index = np.flatnonzero(np.asarray(mask))
    if numbers is not None and len(numbers) == np.size(mask):  # type: ignore[arg-type]
        index = numbers[index]
    shown = ", ".join(map(str, index[:5]))
    return shown if len(index) <= 5 else f"{shown}, ... ({len(index)} in all)"
