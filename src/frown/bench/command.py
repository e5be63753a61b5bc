"""The commands `frown bench ...`: the paper's networks, tables and pictures, made again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from frown.errors import InvalidInput
from frown.plain import plain

if TYPE_CHECKING:
    from frown.bench.experiments import Experiment
    from frown.bench.networks import Network

# As in frown.cli, every command imports what takes seconds to import.

_WHAT, _WHERE, _MACHINE = "What", "Where", "Machine"

Networks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Names like mnist_*_relu, between commas or again and again. Default: all.",
        rich_help_panel=_WHAT,
    ),
]
Norms = Annotated[
    str | None,
    typer.Option(help="Some of inf, 1 and 2, between commas.", rich_help_panel=_WHAT),
]
Methods = Annotated[
    str | None,
    typer.Option(help="Some of crown, frown and lp, between commas.", rich_help_panel=_WHAT),
]
SampleCount = Annotated[
    int, typer.Option("--samples", min=1, help="For CROWN and FROWN.", rich_help_panel=_WHAT)
]
LpSamples = Annotated[
    int, typer.Option(min=1, help="For LP: the first of them.", rich_help_panel=_WHAT)
]
Group = Annotated[
    str | None,
    typer.Option(
        metavar="K|layer",
        help="How many neurons share FROWN's lines. Default: as in the paper.",
        rich_help_panel=_WHAT,
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, help="Of the choice of samples and targets.", rich_help_panel=_WHAT)
]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="FROWN_SHARED",
        help="Where the data sets are.",
        rich_help_panel=_WHERE,
    ),
]
Nets = Annotated[
    Path, typer.Option(metavar="DIR", help="Where the networks are.", rich_help_panel=_WHERE)
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where results go.", rich_help_panel=_WHERE)]
Plots = Annotated[
    bool, typer.Option("--plots/--no-plots", help="Draw pictures.", rich_help_panel=_WHERE)
]
Format = Annotated[
    str, typer.Option("--format", help="Of the pictures: png or svg.", rich_help_panel=_WHERE)
]
Show = Annotated[
    bool,
    typer.Option("--show", help="Measure nothing, show what there is.", rich_help_panel=_WHERE),
]
Force = Annotated[
    bool, typer.Option("--force", help="Measure again what there is.", rich_help_panel=_WHERE)
]
Cold = Annotated[
    bool,
    typer.Option(
        "--cold",
        help="LP solves every program from nothing. Default: from the last solution.",
        rich_help_panel=_WHAT,
    ),
]
TimeLimit = Annotated[
    float | None,
    typer.Option(help="Seconds per sample, for LP.", rich_help_panel=_MACHINE),
]
Workers = Annotated[
    int, typer.Option(min=1, help="Processes at a time, for LP.", rich_help_panel=_MACHINE)
]
Threads = Annotated[
    int, typer.Option(min=1, help="CPU threads, for CROWN and FROWN.", rich_help_panel=_MACHINE)
]
Batch = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Samples at a time, for CROWN and FROWN. Default: as memory allows.",
        rich_help_panel=_MACHINE,
    ),
]

NETS, OUT = Path("frown-nets"), Path("frown-bench")

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

Reported = Callable[[], AbstractContextManager[None]]


def bench_app(reported: Reported) -> typer.Typer:
    """The commands, each run inside `reported`, which turns errors into messages."""
    app = typer.Typer(
        help="Make the paper's experiments again: networks, tables, pictures.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
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
        import torch

        from frown.bench.plots import FORMATS
        from frown.bench.report import Output, run
        from frown.bench.runner import Setup

        if picture not in FORMATS:
            raise InvalidInput(f"--format {picture}: choose {' or '.join(FORMATS)}")
        if time_limit is not None and not time_limit > 0:
            raise InvalidInput(f"--time-limit {time_limit:g}: give a positive number of seconds")
        chosen = _selected(names, networks, norms, methods, group, cold)
        torch.set_num_threads(threads)
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
            ("frown", *sys.argv[1:]),
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
        if run(chosen, setup, output, _console(), _console(stderr=True)):
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
    from frown.bench.networks import NETWORKS
    from frown.bench.progress import training
    from frown.bench.train import train_networks

    chosen = _networks(networks) or list(NETWORKS)
    with training(_console(stderr=True), len(chosen)) as report:
        trained = train_networks(
            chosen, _data(data), nets,
            seed=seed, epochs=epochs, threads=threads, force=force, report=report,
        )  # fmt: skip
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
    from frown.bench import barrier, barrier_tables
    from frown.bench.progress import counting

    ways = _methods(methods) or []
    names = None if networks is None else _split(networks)
    where = _data(data)
    screen = _console()
    with counting(_console(stderr=True)) as report:
        if errors is None:
            radii = barrier.run_barrier(where, methods=ways, networks=names, report=report)
            table = barrier_tables.barrier_table(radii, screen.width)
            written = barrier_tables.write_barrier(radii, out)
        else:
            shares = [
                row
                for way in ways
                for row in barrier.run_error(
                    where, count=errors, method=way, networks=names, report=report
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
    from frown.bench.experiments import matching

    return None if patterns is None else matching(_split(patterns))


def _norms(text: str | None) -> list[float] | None:
    from frown.bench.experiments import NORMS

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
    from frown.bench.experiments import METHODS

    if text is None:
        return None
    methods = _split([text])
    if not methods or not set(methods) <= set(METHODS):
        raise InvalidInput(f"--methods {text}: give some of {', '.join(METHODS)}, between commas")
    return methods


def _selected(
    names: Sequence[str],
    networks: list[str] | None,
    norms: str | None,
    methods: str | None,
    group: str | None,
    cold: bool,
) -> list[Experiment]:
    """The tables with what is left of them; an error if that is nothing."""
    from frown.bench.experiments import ALIASES, experiments
    from frown.run.options import parse_group

    known = experiments()
    tables = [known[ALIASES.get(name, name)] for name in names]
    size = None if group is None else parse_group(group)
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
