"""The commands of `make paper`: the paper's networks, tables and pictures, made again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from frown.certification.results import plain
from frown.cli import reported
from frown.errors import InvalidInput

if TYPE_CHECKING:
    from benchmarks.paper.experiments import Experiment
    from benchmarks.paper.networks import Network

# As in frown.cli, every command imports what takes seconds to import.


def _option(panel: str, about: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=about, rich_help_panel=panel, **more)


def _what(about: str, *names: str, **more: Any) -> Any:
    return _option("What", about, *names, **more)


def _where(about: str, *names: str, **more: Any) -> Any:
    return _option("Where", about, *names, **more)


def _machine(about: str, *names: str, **more: Any) -> Any:
    return _option("Machine", about, *names, **more)


_PATTERNS = "Names like mnist_*_relu, between commas or again and again. Default: all."
_GROUP = "How many neurons share FROWN's lines. Default: as in the paper."
_COLD = "LP solves every program from nothing. Default: from the last solution."
_BATCH = "Samples at a time, for CROWN and FROWN. Default: as memory allows."

Networks = Annotated[list[str] | None, _what(_PATTERNS, metavar="PATTERN")]
Norms = Annotated[str | None, _what("Some of inf, 1 and 2, between commas.")]
Methods = Annotated[str | None, _what("Some of crown, frown and lp, between commas.")]
SampleCount = Annotated[int, _what("For CROWN and FROWN.", "--samples", min=1)]
LpSamples = Annotated[int, _what("For LP: the first of them.", min=1)]
Group = Annotated[str | None, _what(_GROUP, metavar="K|layer")]
Cold = Annotated[bool, _what(_COLD, "--cold")]
Seed = Annotated[int, _what("Of the choice of samples and targets.", min=0)]
Data = Annotated[
    Path | None, _where("Where the data sets are.", metavar="DIR", envvar="FROWN_SHARED")
]
Nets = Annotated[Path, _where("Where the networks are.", metavar="DIR")]
Out = Annotated[Path, _where("Where results go.", metavar="DIR")]
Plots = Annotated[bool, _where("Draw pictures.", "--plots/--no-plots")]
Format = Annotated[str, _where("Of the pictures: png or svg.", "--format")]
Show = Annotated[bool, _where("Measure nothing, show what there is.", "--show")]
Force = Annotated[bool, _where("Measure again what there is.", "--force")]
TimeLimit = Annotated[float | None, _machine("Seconds per sample, for LP.")]
Workers = Annotated[int, _machine("Processes at a time, for LP.", min=1)]
Threads = Annotated[int, _machine("CPU threads, for CROWN and FROWN.", min=1)]
Batch = Annotated[int | None, _machine(_BATCH, min=1)]

NETS, OUT = Path("frown-nets"), Path("frown-paper")

_TABLES = {
    "table1": "Experiment I: the same as table3.",
    "table2": "Experiment II: the same as table7.",
    "table3": "Experiment I (Table 3): drive and MNIST, ReLU and sigmoid, by CROWN, FROWN and LP.",
    "table4": "Table 4: Sensorless Drive, 4 to 12 layers.",
    "table5": "Table 5: MNIST, 5 to 20 layers of 20 neurons.",
    "table6": "Table 6: MNIST, 3 to 7 layers of 100 neurons.",
    "table7": "Experiment II (Table 7): CIFAR-10, 4 to 8 layers of 2048 neurons, in groups.",
    "table8": "Table 8: groups of 1, 8, 16 and 32 neurons on MNIST 4x[1024].",
}
PAPER = ("table4", "table5", "table6", "table7", "table8")  # Table 3 is a part of them


def paper_app() -> typer.Typer:
    """The commands, each run inside `reported`, which turns errors into messages."""
    app = typer.Typer(
        help="Make the paper's experiments again: networks, tables, pictures.",
        epilog='Through make: make paper ARGS="table4 --data DIR"',
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def add(name: str, function: Callable[..., None], about: str) -> None:
        @wraps(function)
        def inside(*args: Any, **options: Any) -> None:
            with reported():
                function(*args, **options)

        app.command(name, help=about)(inside)

    add("train", train, "Train the paper's networks and store them as ONNX files.")
    for name, about in _TABLES.items():
        add(name, _table(name), about)
    add("paper", _table(*PAPER), "Tables 4 to 8 and all pictures in one run.")
    add("barrier", barrier, "Certify the networks of the convex relaxation barrier's tables.")
    return app


def _table(*names: str) -> Callable[..., None]:
    """The command that makes these tables."""

    def table(
        networks: Networks = None,
        norms: Norms = None,
        methods: Methods = None,
        samples: SampleCount = 20,
        lp_samples: LpSamples = 5,
        group: Group = None,
        cold: Cold = False,
        seed: Seed = 0,
        data: Data = None,
        nets: Nets = NETS,
        out: Out = OUT,
        plots: Plots = True,
        picture: Format = "png",
        show: Show = False,
        force: Force = False,
        time_limit: TimeLimit = None,
        workers: Workers = 1,
        threads: Threads = 1,
        batch: Batch = None,
    ) -> None:
        from benchmarks.paper import machine
        from benchmarks.paper.plots import FORMATS
        from benchmarks.paper.report import Output, run
        from benchmarks.paper.runner import Setup

        if picture not in FORMATS:
            raise InvalidInput(f"--format {picture}: choose {' or '.join(FORMATS)}")
        if time_limit is not None and not time_limit > 0:
            raise InvalidInput(f"--time-limit {time_limit:g}: give a positive number of seconds")
        chosen = _selected(names, networks, norms, methods, group, cold)
        setup = Setup(
            nets=nets,
            data=_data(data),
            samples=samples,
            lp_samples=lp_samples,
            time_limit=time_limit,
            workers=workers,
            threads=threads,
            batch=batch,
            seed=seed,
            force=force,
        )
        output = Output(
            out,
            picture if plots else None,
            show,
            tuple(sys.argv[1:]),
            _words(
                networks=None if networks is None else ",".join(_split(networks)),
                norms=norms,
                group=group,
                samples=samples,
                seed=seed or None,
                threads=threads if threads > 1 else None,
                batch=batch,
            ),
            _words(
                lp_samples=lp_samples,
                cold=cold or None,
                workers=workers if workers > 1 else None,
            ),
        )
        with machine.threads(threads):
            failures = run(chosen, setup, output, _console(), _console(stderr=True))
        if failures:
            raise typer.Exit(1)

    return table


def train(
    networks: Networks = None,
    data: Data = None,
    nets: Nets = NETS,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and batches.")] = 0,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Default: enough for each network.")
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads; other weights come of another number.")
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Train again what there is.")] = False,
) -> None:
    from benchmarks.paper.networks import NETWORKS
    from benchmarks.paper.progress import Bar
    from benchmarks.paper.train import train_networks

    chosen = _networks(networks) or list(NETWORKS)
    with Bar(_console(stderr=True)) as bar:
        trained = train_networks(
            chosen,
            _data(data),
            nets,
            seed=seed,
            epochs=epochs,
            threads=threads,
            force=force,
            report=bar.epoch,
        )
    out = _console()
    for one in trained:
        out.print(
            f"{one.network.name}: {100 * one.accuracy:.2f}% of the test samples right, "
            f"{plain(one.path)}",
            markup=False,
            soft_wrap=True,
        )


def barrier(
    data: Data = None,
    networks: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these, like mlp_2_100_nor."),
    ] = None,
    methods: Annotated[str, typer.Option(help="Some of crown, frown and lp, between commas.")] = (
        "crown,frown"
    ),
    errors: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Table 1, errors over N test images, instead of radii."
        ),
    ] = None,
    out: Out = OUT,
) -> None:
    from benchmarks.paper import barrier, barrier_tables
    from benchmarks.paper.progress import Bar

    ways = _methods(methods) or []
    names = None if networks is None else _split(networks)
    where = _data(data)
    screen = _console()
    with Bar(_console(stderr=True)) as bar:
        if errors is None:
            radii = barrier.run_barrier(where, methods=ways, networks=names, report=bar.image)
            table = barrier_tables.barrier_table(radii, screen.width)
            written = barrier_tables.write_barrier(radii, out)
        else:
            shares = [
                row
                for way in ways
                for row in barrier.run_error(
                    where, count=errors, method=way, networks=names, report=bar.image
                )
            ]
            table = barrier_tables.error_table(shares, screen.width)
            written = barrier_tables.write_error(shares, out)
    screen.print(table)
    screen.print(f"wrote {', '.join(map(plain, written))}", markup=False, soft_wrap=True)


# -- options -----------------------------------------------------------------------------


def _console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, emoji=False)


def _data(folder: Path | None) -> Path:
    if folder is None:
        raise InvalidInput(
            "where are the data sets? give --data DIR, or set FROWN_SHARED to that folder "
            "(docs/data.md says which files)"
        )
    return folder


def _split(texts: Sequence[str]) -> list[str]:
    """Words between commas, in all of the texts."""
    return [word.strip() for text in texts for word in text.split(",") if word.strip()]


def _words(**options: object) -> tuple[str, ...]:
    """Options as one types them, without those that are None."""
    words: list[str] = []
    for name, value in options.items():
        if value is not None:
            words.append(f"--{name.replace('_', '-')}")
            words += [] if value is True else [str(value)]
    return tuple(words)


def _networks(patterns: list[str] | None) -> list[Network] | None:
    from benchmarks.paper.experiments import matching

    return None if patterns is None else matching(_split(patterns))


def _norms(text: str | None) -> list[float] | None:
    from benchmarks.paper.experiments import NORMS

    if text is None:
        return None
    wrong = InvalidInput(f"--norms {text}: give some of inf, 1 and 2, between commas")
    try:
        norms = [float(word) for word in _split([text])]
    except ValueError:
        raise wrong from None
    if not norms or not set(norms) <= set(NORMS):
        raise wrong
    return norms


def _methods(text: str | None) -> list[str] | None:
    from benchmarks.paper.experiments import METHODS

    if text is None:
        return None
    methods = _split([text])
    if not methods or not set(methods) <= set(METHODS):
        raise InvalidInput(f"--methods {text}: give some of {', '.join(METHODS)}, between commas")
    return methods


def _group(text: str) -> int:
    """Neurons that share slopes: a number, or `layer` (0)."""
    if text == "layer":
        return 0
    if not text.isdigit() or int(text) == 0:
        raise InvalidInput(f"--group {text}: give a positive whole number, or layer")
    return int(text)


def _selected(
    names: Sequence[str],
    networks: list[str] | None,
    norms: str | None,
    methods: str | None,
    group: str | None,
    cold: bool,
) -> list[Experiment]:
    """The tables with what is left of them; an error if that is nothing."""
    from benchmarks.paper.experiments import ALIASES, experiments

    known = experiments()
    tables = [known[ALIASES.get(name, name)] for name in names]
    size = None if group is None else _group(group)
    nets, balls, ways = _networks(networks), _norms(norms), _methods(methods)
    if len(tables) > 1 and ways is not None:
        # Within the whole paper a method is measured only where the paper has it.
        chosen = [t.only(nets, balls, [m for m in ways if m in t.methods], size) for t in tables]
    else:
        chosen = [t.only(nets, balls, ways, size) for t in tables]
    chosen = [t for t in chosen if t.lines and t.methods]
    if not chosen:
        there = dict.fromkeys(line.network.name for t in tables for line in t.lines)
        p = dict.fromkeys(f"{line.norm:g}" for t in tables for line in t.lines)
        raise InvalidInput(
            f"nothing of {', '.join(names)} is left by --networks, --norms and --methods; "
            f"there are {', '.join(there)}, p = {', '.join(p)}"
        )
    if not cold:
        return chosen
    if not any("lp" in t.methods for t in chosen):
        raise InvalidInput("--cold is for LP, which is not among the methods; add --methods lp")
    # Only tables with LP differ.
    return [replace(t, cold=True, title=f"{t.title}, cold LP") for t in chosen if "lp" in t.methods]


app = paper_app()


def main() -> None:
    """Run the command that `sys.argv` names."""
    app(prog_name="python -m benchmarks.paper")
