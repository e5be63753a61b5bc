"""`frown demo`: certify handwritten digits five ways and write a page about it."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from importlib.util import find_spec
from math import inf
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress as Bar
from rich.table import Table

from frown import api
from frown.certification.folder import reported, write_whole
from frown.certification.results import cut, percent, plain
from frown.certification.run import Watch
from frown.errors import InvalidInput
from frown.jobs.job import certify_files
from frown.jobs.options import CertifyRequest, request_of
from frown.jobs.screen import BarWatch, Screen, bars
from frown.jobs.table import branching, round_radii
from frown.problem.data import Dataset, read_data
from frown.report.comparison import Comparison, display_name
from frown.report.gallery import counterexample
from frown.report.page import write_report
from frown.report.read import as_images, read_results

# With their options; branching has so many seconds for each digit.
METHODS = {"interval": {}, "fastlin": {}, "crown": {}, "frown": {}, "branch": {"seconds": 0.3}}
SAMPLES = 30
MODEL, DATA, PAGE = "digits.onnx", "digits.npz", "report.html"
_INTERRUPTED = 130


def run(out: Path, samples: int = SAMPLES, console: Console | None = None) -> int:
    """Certify the first `samples` digits by every method, and return the exit code.

    Leaves in `out` the model and its data, one directory of results per method, and the
    page. Raises InvalidInput for a number of samples that there are not, OutputError where
    `out` cannot be written.
    """
    console = console or Console(emoji=False)
    model, data = _unpack(out)
    digits = read_data(data)
    if not 1 <= samples <= len(digits):
        raise InvalidInput(
            f"--samples {samples}: the demo has {len(digits)} digits; give 1 to {len(digits)}"
        )
    console.print(
        f"Certifying {samples} handwritten digits: how far can every pixel (0 to 1) move\n"
        "before the classifier may change its answer?\n",
        highlight=False,
    )
    methods = list(METHODS)
    if any(find_spec(name) is None for name in ("scipy", "highspy")):
        methods.pop()
        console.print("Branching is left out: it needs pip install 'frown[lp]'.\n", markup=False)
    requests = {m: _request(model, data, m, samples, out / m) for m in methods}
    with bars(console) as shown:
        for method, request in requests.items():
            if not certify_files(request, _DemoScreen(shown, display_name(method), samples)):
                return _INTERRUPTED
    comparison = Comparison.of({m: read_results(out / m) for m in methods})
    page = _report(comparison, model, digits, requests["frown"], out / PAGE)
    console.print(_table(comparison))
    console.print(
        "\nat r: share of the digits proved right within r; attack: share not broken\n",
        style="dim",
        highlight=False,
    )
    gain = comparison.gain("frown", "crown")
    if gain is not None:
        console.print(f"FROWN proves radii {gain:.1%} larger than CROWN’s.", highlight=False)
    for line in branching(comparison.results[comparison.main].rows):
        console.print(line[:1].upper() + line[1:] + ".", highlight=False)
    following = _shell(
        "certify",
        model,
        data,
        "--norm",
        "2",
        "--bounds",
        "0",
        "1",
        "--samples",
        f"0:{min(samples, 20)}",
        "--out",
        out / "l2",
    )
    for line in (
        f"Open {page} in a browser to see every digit, its radius and what fools the network.",
        f"Then try another norm:\n  {following}",
        "or your own model and data in place of these two files.",
    ):
        text = "\n  ".join(map(plain, line.split("\n  ")))
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    return 0


class _DemoScreen(Screen):
    """One line of a shared set of progress bars."""

    def __init__(self, shown: Bar, name: str, total: int) -> None:
        super().__init__()
        self._shown = shown
        self._task = shown.add_task(name, total=total, radius="")

    @contextmanager
    def working(self, total: int, longest: float = inf) -> Iterator[Watch]:
        yield BarWatch(self._shown, self._task, stages=False)
        self._shown.update(self._task, completed=total)


def _unpack(out: Path) -> tuple[Path, Path]:
    """Copies of the model and the data that ship with the package, for the user to play with."""
    assets = files("frown.jobs").joinpath("assets")
    with reported("write to", out, "choose another --out"):
        out.mkdir(parents=True, exist_ok=True)
        for name in (MODEL, DATA):
            write_whole(out / name, assets.joinpath(name).read_bytes())
    return out / MODEL, out / DATA


def _request(model: Path, data: Path, method: str, samples: int, out: Path) -> CertifyRequest:
    given = {
        "method": method,
        "norm": "inf",
        "bounds": ("0", "1"),
        "samples": f"0:{samples}",
        # So small a network is slower on several threads than on one.
        "threads": 1,
        "out": out,
        **METHODS[method],
    }
    words: list[object] = ["certify", model, data]
    for name, value in given.items():
        words += [f"--{name}", *(value if isinstance(value, tuple) else (value,))]
    return request_of(model, data, {**given, "force": True}, shlex.split(_shell(*words)))


def _shell(*words: object) -> str:
    """A command line that works where the demo ran, with or without an active environment."""
    program = Path("frown")
    if shutil.which("frown") is None:
        program = Path(sys.executable).with_name("frown")
        if program.is_relative_to(Path.cwd()):
            program = program.relative_to(Path.cwd())
    return shlex.join([str(program), *map(str, words)])


def _report(
    comparison: Comparison, model: Path, digits: Dataset, request: CertifyRequest, page: Path
) -> Path:
    found = {e.index: counterexample(comparison, e) for e in comparison.entries if e.correct}
    broken = {index: x for index, x in found.items() if x is not None}
    answers: dict[int, int] = {}
    if broken:
        logits = api.load(model).run(np.stack(list(broken.values())))
        answers = dict(zip(broken, np.argmax(logits, axis=1).tolist(), strict=True))
    chosen = digits.x[[entry.index for entry in comparison.entries]]
    return write_report(
        comparison.results,
        as_images(chosen),
        page,
        "How robust is a small digit classifier?",
        answers=answers,
        command=shlex.join(request.command),
    )


def _table(comparison: Comparison) -> Table:
    """Per method: mean radius, certified accuracy at round radii, time."""
    radii = round_radii(max((comparison.mean(m) or 0.0) for m in comparison.methods) * 1.5, 3)[:3]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method")
    table.add_column("mean radius", justify="right")
    for radius in radii:
        table.add_column(f"at {radius:g}", justify="right")
    table.add_column("seconds", justify="right")
    for method in comparison.methods:
        mean = comparison.mean(method)
        table.add_row(
            comparison.called(method),
            "–" if mean is None else f"{cut(mean, 4, -1):.4f}",
            *(f"{percent(comparison.certified(method, radius))}%" for radius in radii),
            f"{comparison.seconds(method):.2f}",
            style="bold" if method == comparison.main else "",
        )
    mean, _, _ = comparison.mean_broken()
    if mean is not None:
        unbroken = (f"{percent(comparison.unbroken(radius))}%" for radius in radii)
        table.add_row("Attack", f"{cut(mean, 4, 1):.4f}", *unbroken, "", style="dim")
    return table
