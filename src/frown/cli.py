"""The command line: parse, call, print, exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from frown import __version__
from frown.certification.plain import plain, plain_lines
from frown.errors import FrownError, InvalidInput

# torch, onnx and numpy take seconds to import, so every command imports its own.

app = typer.Typer(
    name="frown",
    help="Prove how far an input can move before a neural network may change its answer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

MOST = 1024  # threads or processes: where systems refuse more, libraries end the process
INTERRUPTED = 130
UNEXPECTED = 70


def main() -> None:
    """The entry point of the command `frown`."""
    app(prog_name="frown")


@contextmanager
def reported() -> Iterator[None]:
    """End with a message and an exit code instead of a traceback.

    FROWN_DEBUG=1 in the environment shows the traceback.
    """
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except BrokenPipeError:
        # The reader of our output has gone; nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        if os.environ.get("FROWN_DEBUG", "0") not in ("", "0"):
            raise
        if isinstance(error, FrownError):
            typer.echo(f"error: {plain_lines(error)}", err=True)
            raise typer.Exit(error.exit_code) from None
        text = plain(" ".join(str(error).split()))
        typer.echo(
            f"error: unexpected {type(error).__name__}: {text} (a bug in frown: please report "
            "it with the traceback that FROWN_DEBUG=1 shows)",
            err=True,
        )
        raise typer.Exit(UNEXPECTED) from None


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"frown {__version__}")
        raise typer.Exit


@app.callback()
def frown(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Prove how far an input can move before a neural network may change its answer."""


Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]

_DATA, _SEARCH, _MACHINE, _OUTPUT = "Data", "Search", "Machine", "Output"


@app.command()
def certify(
    model: ModelFile,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help=".npz (x, y, target), .npy or .csv inputs.")
    ],
    labels: Annotated[
        Path | None,
        typer.Option(help="A file with one label per input.", rich_help_panel=_DATA),
    ] = None,
    label_column: Annotated[
        str | None,
        typer.Option(help="first, last or a name: the labels in a .csv.", rich_help_panel=_DATA),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(help="Which inputs: 5, 0:100 or 1,5,9.", rich_help_panel=_DATA),
    ] = None,
    divide: Annotated[
        float | None,
        typer.Option(help="Divide the inputs first: 255 for bytes.", rich_help_panel=_DATA),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(help="The model sees (x - mean) / std.", rich_help_panel=_DATA),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(help="One number, or one per channel or feature.", rich_help_panel=_DATA),
    ] = None,
    bounds: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="LO HI", help="The valid range of inputs.", rich_help_panel=_DATA),
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NUMBERS",
            help="Radius factor per feature (.npy, or numbers between commas); 0: may not move.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    norm: Annotated[
        str, typer.Option(help="inf, 1, 2 or any p >= 1.", rich_help_panel=_SEARCH)
    ] = "inf",
    frames: Annotated[
        str,
        typer.Option(
            metavar="3|0:3|0,2|each|all",
            help="Which frames of a sequence move; each: a ball for each, 'each of 0:3'.",
            rich_help_panel=_SEARCH,
        ),
    ] = "all",
    frame_axis: Annotated[
        int,
        typer.Option(help="The frames' axis, from 0, the batch aside.", rich_help_panel=_SEARCH),
    ] = 0,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity", help="A radius for every frame alone.", rich_help_panel=_SEARCH
        ),
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            help="interval, fastlin, crown-ibp, crown, frown, lp or milp.", rich_help_panel=_SEARCH
        ),
    ] = "frown",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="K|+K|FILE|all",
            help="Only this class counts as wrong. Default: the file's, else all.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    eps: Annotated[
        float | None,
        typer.Option(help="Check this radius, do not search.", rich_help_panel=_SEARCH),
    ] = None,
    tol: Annotated[
        float, typer.Option(help="How exact the search is, relative.", rich_help_panel=_SEARCH)
    ] = 0.01,
    group: Annotated[
        str,
        typer.Option(
            metavar="K|layer", help="How many neurons share slopes.", rich_help_panel=_SEARCH
        ),
    ] = "1",
    wide: Annotated[
        bool,
        typer.Option("--wide", help="Search all slopes (appendix A.8).", rich_help_panel=_SEARCH),
    ] = False,
    rule: Annotated[
        str, typer.Option(help="CROWN's lines: area or paper.", rich_help_panel=_SEARCH)
    ] = "area",
    tangents: Annotated[
        int, typer.Option(min=1, help="lp: lines per curved side.", rich_help_panel=_SEARCH)
    ] = 3,
    boxes: Annotated[
        str,
        typer.Option(
            help="lp: what bounds inner layers: lp, crown or frown.", rich_help_panel=_SEARCH
        ),
    ] = "lp",
    attack: Annotated[
        bool,
        typer.Option(
            "--attack/--no-attack", help="Look for counterexamples.", rich_help_panel=_SEARCH
        ),
    ] = True,
    level: Annotated[
        str,
        typer.Option(help="estimate, rigorous or checked.", rich_help_panel=_SEARCH),
    ] = "rigorous",
    deployed: Annotated[
        str | None,
        typer.Option(
            metavar="float32",
            help="Prove it for the network as executed in that precision, too.",
            rich_help_panel=_SEARCH,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST,
            help="CPU threads (default: one for small networks, else all cores).",
            rich_help_panel=_MACHINE,
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1, max=MOST, help="lp: processes that share programs.", rich_help_panel=_MACHINE
        ),
    ] = 1,
    hot: Annotated[
        bool,
        typer.Option(
            "--hot/--cold", help="lp: start from the last solution.", rich_help_panel=_MACHINE
        ),
    ] = True,
    start: Annotated[
        str, typer.Option(help="lp: search from frown's or crown's.", rich_help_panel=_MACHINE)
    ] = "frown",
    device: Annotated[
        str, typer.Option(help="cpu, cuda, cuda:1, ...", rich_help_panel=_MACHINE)
    ] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="float32 or float64.", rich_help_panel=_MACHINE)
    ] = "float32",
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds; what is proved by then counts.", rich_help_panel=_MACHINE),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Like 4G. Default: half of what is free.", rich_help_panel=_MACHINE),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Inputs at a time.", rich_help_panel=_MACHINE)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where result files go.", rich_help_panel=_OUTPUT),
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="One certificate per input, for frown check.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Overwrite what was there before.", rich_help_panel=_OUTPUT),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No table, no progress.", rich_help_panel=_OUTPUT),
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="Rows as JSON lines on stdout.", rich_help_panel=_OUTPUT),
    ] = False,
) -> None:
    """Certify inputs: the largest radius proved for each, and where it breaks."""
    with reported():
        from frown.jobs.job import Request, certify_files
        from frown.jobs.screen import JsonScreen, QuietScreen, TableScreen

        request = Request(
            model=model,
            data=data,
            labels=labels,
            label_column=label_column,
            samples=samples,
            divide=divide,
            mean=mean,
            std=std,
            bounds=bounds,
            scale=scale,
            norm=norm,
            frames=frames,
            frame_axis=frame_axis,
            sensitivity=sensitivity,
            method=method,
            target=target,
            eps=eps,
            tol=tol,
            group=group,
            wide=wide,
            rule=rule,
            tangents=tangents,
            boxes=boxes,
            workers=workers,
            hot=hot,
            start=start,
            attack=attack,
            level=level,
            deployed=deployed,
            certificates=certificates,
            threads=threads,
            device=device,
            dtype=dtype,
            time_limit=time_limit,
            memory=memory,
            batch=batch,
            out=out,
            force=force,
            command=("frown", *sys.argv[1:]),
        )
        screen = JsonScreen() if json else QuietScreen() if quiet else TableScreen()
        if not certify_files(request, screen):
            raise typer.Exit(INTERRUPTED)


@app.command()
def info(model: ModelFile, json: Json = False) -> None:
    """Show a model's graph, its sizes, and how each operator is bounded."""
    with reported():
        from frown.api import load
        from frown.jobs.files import dumps
        from frown.jobs.table import describe, info_summary, info_table

        about = describe(load(model))
        if json:
            typer.echo(dumps(about))
            return
        console = Console(emoji=False)
        console.print(info_table(about))
        console.print()
        for line in info_summary(about):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


@app.command()
def check(
    certificates: Annotated[
        list[Path],
        typer.Argument(metavar="CERT...", help="Files made by certify, or folders of them."),
    ],
    model: Annotated[Path, typer.Option(metavar="MODEL", help="The ONNX file they are about.")],
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The inputs: name each one's row, or end with 1."),
    ] = None,
    divide: Annotated[float, typer.Option(help="Divide the inputs first, as in certify.")] = 1.0,
    json: Json = False,
) -> None:
    """Check certificates with a program of its own, which shares no code with the prover."""
    with reported():
        from frown_check.__main__ import run
        from frown_check.errors import Refused

        try:
            accepted = run(certificates, model, json, data, divide)
        except Refused as reason:
            raise InvalidInput(str(reason)) from None
        if not accepted:
            raise typer.Exit(1)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path(
        "frown-demo"
    ),
    samples: Annotated[int, typer.Option(min=1, help="How many images.")] = 60,
) -> None:
    """Certify images with the digit classifier that ships with frown."""
    with reported():
        from frown.jobs.demo import run

        code = run(out, samples, Console(emoji=False))
        raise typer.Exit(code or 0)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories made by certify --out.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
) -> None:
    """Write one self-contained web page about one or more results."""
    with reported():
        from frown.report.page import report_from_files

        def tell(notice: str) -> None:
            typer.echo(plain(notice), err=True)

        typer.echo(f"wrote {plain(report_from_files(directories, out, tell))}")
