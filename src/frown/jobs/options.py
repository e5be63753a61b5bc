"""The flat options of the command line, generated from the fields of the objects they belong to,
and values as people type them.

An object's option is one field with its default, its check and its help (`frown.problem.options`);
here it gets a name with dashes and a type to parse. What belongs to no object of the Python
interface, because it is about files, is a field of `CertifyRequest`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from frown.bounds.method import Method
from frown.bounds.work import MOST, Machine
from frown.certification.attack import PGD
from frown.certification.prove import Estimate, Rigorous
from frown.certification.results import LEVELS
from frown.certification.search import At, Largest
from frown.errors import InvalidInput
from frown.methods import METHODS, kind_of, method_of
from frown.problem.data import Columns, read_array
from frown.problem.options import Option, OptionField, options_of
from frown.problem.problem import DATA, SEARCH, Ball, Frames
from frown.problem.property import Condition, label_wins
from frown.problem.questions import multilabel, threshold, top, vnnlib, within

MACHINE, OUTPUT = "Machine", "Output"
CONFIG = "frown.toml"


@dataclass(frozen=True, kw_only=True)
class QuestionOptions:
    """The question that options of `frown certify` ask: one of these or, without them, that labels
    win. Not for Python, where conditions are given as they are."""

    threshold: Annotated[
        str | None, Option("one output stays on its side of T", metavar="T", panel=SEARCH)
    ] = None
    within: Annotated[
        str | None,
        Option("outputs change by less than D, or a share", metavar="D|P%", panel=SEARCH),
    ] = None
    multilabel: Annotated[
        bool, Option("every output stays on its side of 0.5, or of --threshold", panel=SEARCH)
    ] = False
    top: Annotated[
        int | None, Option("the label stays among the K largest outputs", metavar="K", panel=SEARCH)
    ] = None
    property: Annotated[
        Path | None,
        Option("outputs never satisfy FILE's assertions (VNN-LIB)", metavar="FILE", panel=SEARCH),
    ] = None

    def option(self) -> str:
        """The name of the option that asks, empty where labels win; InvalidInput where several
        ask."""
        values = {known.name: getattr(self, known.name) for known in options_of(QuestionOptions)}
        names = [k for k, value in values.items() if value is not None and value is not False]
        if self.multilabel and self.threshold is not None:
            names.remove("threshold")  # the limit of all labels
        if len(names) > 1:
            asked = " and ".join(f"--{name}" for name in names)
            raise InvalidInput(f"{asked} are different questions: ask one at a time")
        return names[0] if names else ""

    def about_labels(self) -> bool:
        """True if the question is about labels, one for each input."""
        return self.option() in ("", "threshold", "top")

    def condition(self, y: ArrayLike | None, target: Any = None) -> Condition:
        """The condition for labels and, where these win, their targets."""
        name = self.option()
        value = getattr(self, name or "top")
        match name:
            case "threshold":
                return threshold(value, y)
            case "within":
                return within(value)
            case "multilabel":
                return multilabel(self.threshold or "0.5")
            case "top":
                return top(value, y)
            case "property":
                return vnnlib(value)
        return label_wins(y, target)


@dataclass(frozen=True, kw_only=True)
class CertifyRequest:
    """A run of `frown certify`: files, what is asked, and how; docs/command-line.md explains it."""

    model: Path
    data: Path
    labels: Annotated[Path | None, Option("a file with one label per input", panel=DATA)] = None
    columns: Columns = Columns()  # noqa: RUF009  (a frozen value)
    samples: Annotated[str | None, Option("which inputs: 5, 0:100 or 1,5,9", panel=DATA)] = None
    divide: Annotated[
        float | None, Option("divide the inputs first: 255 for bytes", panel=DATA)
    ] = None
    output: Annotated[
        str | None, Option("which output, of a model with several", metavar="NAME", panel=DATA)
    ] = None
    shape: Annotated[
        str | None,
        Option("sizes of axes that the model leaves open", metavar="NAME=1,SIZE,...", panel=DATA),
    ] = None
    mean: Annotated[
        str | None, Option("the model sees (x - mean) / std", metavar="FILE|NUMBERS", panel=DATA)
    ] = None
    std: Annotated[
        str | None,
        Option("one number, or one per channel or feature", metavar="FILE|NUMBERS", panel=DATA),
    ] = None
    target: Annotated[
        str | None,
        Option(
            "only this class counts as wrong (default: the file's, else all)",
            metavar="K|+K|FILE|all",
            panel=SEARCH,
        ),
    ] = None
    question: QuestionOptions = QuestionOptions()
    sensitivity: Annotated[bool, Option("a radius for every frame alone", panel=SEARCH)] = False
    threads: Annotated[
        int | None,
        Option("CPU threads (default: one for small networks)", least=1, most=MOST, panel=MACHINE),
    ] = None
    out: Annotated[Path | None, Option("where result files go", metavar="DIR", panel=OUTPUT)] = None
    force: Annotated[bool, Option("overwrite what was there before", panel=OUTPUT)] = False
    resume: Annotated[bool, Option("go on with what is in --out", panel=OUTPUT)] = False
    fail_under: Annotated[
        float | None,
        Option("end with code 8 if the certified accuracy at --eps is less", panel=OUTPUT),
    ] = None
    norm: str = "inf"
    bounds: tuple[str, str] | None = None
    scale: str | None = None
    fix: str | None = None
    frames: Frames = Frames()  # noqa: RUF009  (a frozen value)
    method: Method
    search: Largest | At
    proof: Rigorous | Estimate
    attack: PGD | None
    machine: Machine
    given: Mapping[str, Any]  # the options as typed
    command: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The options that choose an object of the Python interface."""

    method: Annotated[str, Option("how to bound", tuple(METHODS), panel=SEARCH)] = "frown"
    attack: Annotated[bool, Option("look for counterexamples", panel=SEARCH)] = True
    level: Annotated[str, Option("how to prove", tuple(LEVELS), panel=SEARCH)] = "rigorous"


_WORDS = {bool: "", int: "COUNT", float: "NUMBER", str: "TEXT"}  # values, where no other is given


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of the command line."""

    name: str  # with underscores
    type: Any  # bool, int, float, str, Path or a pair of texts
    default: Any
    help: str
    metavar: str | None
    panel: str

    @classmethod
    def of(cls, field: OptionField, help: str) -> Flag:
        option = field.option
        kind = _type(field)
        metavar = option.metavar or "|".join(option.choices) or _WORDS.get(kind)
        return cls(_name(field), kind, field.default, help, metavar, option.panel or SEARCH)


def flags() -> list[Flag]:
    """All options of `frown certify` but its two files."""
    found = {}
    for kind in (
        CertifyRequest,
        QuestionOptions,
        Columns,
        Choices,
        Ball,
        Frames,
        Largest,
        At,
        Rigorous,
        Machine,
    ):
        for field in options_of(kind):
            found[_name(field)] = Flag.of(field, field.option.help)
    for field, methods in _of_methods():
        help = field.option.help
        if len(methods) < len(METHODS) / 2:
            help = f"of {', '.join(methods)}: {help}"
        found[_name(field)] = Flag.of(field, help)
    return list(found.values())


def request_of(
    model: Path, data: Path, given: Mapping[str, Any], command: Sequence[str] = ()
) -> CertifyRequest:
    """The run that options ask for; `given` are those that were typed, by name.

    Raises InvalidInput for an unknown choice, an option that the method does not have, and every
    value that an object refuses.
    """
    left = dict(given)
    method = left.pop("method", "frown")
    level, attack = left.pop("level", "rigorous"), left.pop("attack", True)
    if level not in LEVELS:
        raise InvalidInput(f"unknown level {level!r}; choose from {', '.join(LEVELS)}")
    rigorous = _taken(Rigorous, left)
    if level == "estimate" and rigorous:
        named = ", ".join("deployed" if k == "execution" else k for k in rigorous)
        raise InvalidInput(f"{named} needs rigorous bounds: leave out level estimate")
    searching, at = _taken(Largest, left), _taken(At, left)
    threads = left.get("threads")
    if threads is not None and not 1 <= threads <= MOST:
        raise InvalidInput(f"threads (--threads) must be 1 to {MOST}, not {threads}")
    limits = _taken(Machine, left)
    if threads is not None and threads > 1:
        limits.setdefault("workers", 1)  # several threads are for one process
    machine, frames = Machine(**limits), Frames(**_taken(Frames, left))
    ball = _taken(Ball, left)
    own, columns = _taken(CertifyRequest, left), Columns(**_taken(Columns, left))
    question = QuestionOptions(**_taken(QuestionOptions, left))
    largest = Largest(**searching)
    return CertifyRequest(
        model=model,
        data=data,
        norm=ball.get("norm", "inf"),
        bounds=ball.get("within"),
        scale=ball.get("scale"),
        fix=ball.get("fix"),
        columns=columns,
        question=question,
        frames=frames,
        method=_method(method, left),
        search=At(_number(at["eps"], "--eps")) if at else largest,
        proof=Estimate() if level == "estimate" else Rigorous(check=level == "checked", **rigorous),
        attack=PGD() if attack else None,
        machine=machine,
        given=dict(given),
        command=tuple(command),
        **own,
    )


def _method(name: str, left: dict[str, Any]) -> Method:
    """A method by name with its options, taken out of `left`; a method inside it takes those that
    it does not have itself."""
    kind, own, inner = kind_of(name), {}, None
    for field in options_of(kind):
        flag = _name(field)
        if flag not in left:
            continue
        value = left.pop(flag)
        if field.type == Method or Method in get_args(field.type):
            inner = (field.name, value) if value != name else None  # itself: nothing inside
        else:
            own[field.name] = _value(field, value)
    if inner is not None:
        own[inner[0]] = _method(inner[1], left)
    elif left:
        having = sorted(_name(field).replace("_", "-") for field in options_of(kind))
        raise InvalidInput(
            f"the method {name} has no option --{next(iter(left)).replace('_', '-')}; it has "
            f"{', '.join(f'--{h}' for h in having) or 'none'}"
        )
    return method_of(name, **own)


def _taken(kind: type, left: dict[str, Any]) -> dict[str, Any]:
    """The options of an object, by field, taken out of those that are left."""
    found = {}
    for field in options_of(kind):
        if _name(field) in left:
            found[field.name] = _value(field, left.pop(_name(field)))
    return found


def _value(field: OptionField, value: Any) -> Any:
    """A value as typed, where words stand for numbers."""
    words = dict(field.option.words)
    if not words or not isinstance(value, str):
        return value
    if value in words:
        return words[value]
    if not value.isdigit() or int(value) in words.values():
        raise InvalidInput(
            f"--{_name(field)} {value}: give a positive whole number, or {' or '.join(words)}"
        )
    return int(value)


def _number(text: Any, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"{option} {text}: give a number") from None


def _of_methods() -> Iterator[tuple[OptionField, list[str]]]:
    """Every option of a method, once, with the names of those that have it."""
    found: dict[str, tuple[OptionField, list[str]]] = {}
    for name, kind in METHODS.items():
        for field in options_of(kind):
            found.setdefault(_name(field), (field, []))[1].append(name)
    yield from found.values()


def _name(field: OptionField) -> str:
    return (field.option.flag or field.name).replace("-", "_")


def _type(field: OptionField) -> Any:
    kinds = {field.type, *get_args(field.type)}
    if field.option.metavar == "LO HI":
        return tuple[str, str]
    if field.option.words or field.option.choices or object in kinds:
        return str
    for kind in (bool, Path, str, float, int):
        if kind in kinds:
            return kind
    return str


def read_config(path: Path | None) -> dict[str, Any]:
    """The options in the table [certify] of a TOML file, by name, as if they had been typed;
    `CONFIG` in this folder where no file is given, and none where there is none.

    Raises InvalidInput for what is no such file, and for options that do not exist.
    """
    if path is None and not Path(CONFIG).is_file():
        return {}
    path = path or Path(CONFIG)
    try:
        with path.open("rb") as file:
            held = tomllib.load(file).get("certify", {})
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: {error}") from None
    if not isinstance(held, dict):
        raise InvalidInput(f"{path}: [certify] must be a table of options")
    known, found = {flag.name: flag for flag in flags()}, {}
    for name, value in held.items():
        flag = known.get(name.replace("-", "_"))
        if flag is None:
            near = get_close_matches(name, known)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            raise InvalidInput(f"{path}: certify has no option {name}{meant}")
        try:
            found[flag.name] = _typed(flag, value)
        except (TypeError, ValueError):
            raise InvalidInput(f"{path}: {name} = {value!r} is no value of it") from None
    return {name: value for name, value in found.items() if value is not None}


def _typed(flag: Flag, value: Any) -> Any:
    """A value of a TOML file as the command line would have it; ValueError where it is none."""
    if flag.type is bool:
        if not isinstance(value, bool):
            raise ValueError
        return value if value != flag.default else None
    if isinstance(value, bool | dict):
        raise ValueError
    if flag.metavar == "LO HI":
        low, high = value
        return str(low), str(high)
    if isinstance(value, list):  # numbers or names between commas
        value = ",".join(map(str, value))
    return flag.type(value)


def parse_numbers(text: str, option: str) -> NDArray[np.float64]:
    """`0.5` as an array of no axes, `0.4,0.5,0.6` as an array of three, or a file's numbers."""
    if Path(text).suffix.lower() in (".npy", ".csv", ".txt"):
        return read_array(Path(text))
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(
            f"{option} {text}: give a number, numbers between commas, or a file of them"
        ) from None
    return np.array(numbers if len(numbers) > 1 else numbers[0])


def per_feature(values: NDArray[np.float64], shape: Sequence[int]) -> NDArray[np.float64]:
    """Numbers in a shape that broadcasts to an input's: those per channel get further axes."""
    if values.ndim == 1 and len(shape) > 1 and values.size == shape[0]:
        return values.reshape(-1, *[1] * (len(shape) - 1))
    if values.size == np.prod(shape):
        return values.reshape(tuple(shape))
    return values


def parse_target(text: str) -> int | str | Path | None:
    """A class, `+K` as it stands, a file, or None for `all`."""
    if text == "all":
        return None
    if re.fullmatch(r"\+\d+", text):
        return text
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if Path(text).exists() or Path(text).suffix:
        return Path(text)
    raise InvalidInput(
        f"--target {text}: give a class (3), an offset from the label (+1), all, "
        "or a file with one class per input"
    )


def parse_shape(text: str | None) -> dict[str, tuple[int, ...]] | tuple[int, ...] | None:
    """Sizes as in `x=1,1,28,28`, by the input's name, or `1,1,28,28`."""
    if text is None:
        return None
    name, _, sizes = text.rpartition("=")
    try:
        found = tuple(int(size) for size in re.split(r"[,x]", sizes))
    except ValueError:
        raise InvalidInput(f"--shape {text}: write 1,1,28,28 or NAME=1,1,28,28") from None
    return {name: found} if name else found


def parse_samples(text: str, count: int) -> NDArray[np.int64]:
    """Indices chosen by `5`, `0:100`, `0:100:10`, `1,5,9` or a mixture, in the order given.

    A slice works as in Python, negative ends included, except that one reaching beyond
    the data is refused. So is an index named twice.
    """
    chosen: list[int] = []
    for part in text.split(","):
        chosen.extend(_slice(part.strip(), text, count))
    if not chosen:
        raise InvalidInput(f"--samples {text} selects none of the {count} inputs")
    if len(set(chosen)) < len(chosen):
        twice = next(i for i in chosen if chosen.count(i) > 1)
        raise InvalidInput(f"--samples {text} names input {twice} twice")
    return np.array(chosen, dtype=np.int64)


def _slice(part: str, text: str, count: int) -> range:
    pieces = part.split(":")
    try:
        ends = [int(p) if p.strip() else None for p in pieces]
    except ValueError:
        ends = []
    if not 1 <= len(ends) <= 3 or ends == [None] or (len(ends) == 3 and ends[2] == 0):
        raise InvalidInput(f"--samples {text}: write 5, 0:100, 0:100:10 or 1,5,9")
    single = len(ends) == 1
    for place, end in enumerate(ends[:2]):
        last = count if place == 1 else count - 1
        if end is not None and not -count <= end <= last:
            raise InvalidInput(
                f"--samples {text} reaches beyond the data, "
                f"which holds {count} input{'s' * (count > 1)} (0 to {count - 1})"
            )
    if single and ends[0] is not None:
        index = ends[0] % count
        return range(index, index + 1)
    return range(*slice(*ends).indices(count))
