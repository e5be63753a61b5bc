"""The command line: parse, call, print, exit code."""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING
from inspect import Parameter, Signature, signature
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from frown import __version__
from frown.certification.results import plain, plain_lines
from frown.errors import FrownError, InvalidInput
from frown.jobs.supports import CAPABILITIES, supported

# torch, onnx and numpy take seconds to import, so every command imports its own.


class _Commands(TyperGroup):
    """The commands of frown, of which `certify` is made when it is wanted."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name == "certify":
            every = "--help-all" in rest
            rest = ["--help" if word == "--help-all" else word for word in rest]
            with reported():  # torch is loaded here
                command = typer.main.get_command(_certify(every))
            command.name = name
        return name, command, rest


app = typer.Typer(
    name="frown",
    cls=_Commands,
    help="Prove how far an input can move before a neural network may change its answer.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The options of certify that its help shows; --help-all shows the others, too.
COMMON = (
    *("samples", "divide", "mean", "std", "bounds", "label_column", "id_column", "scale", "fix"),
    *("norm", "method", "eps", "target", "threshold", "within", "seconds", "level"),
    *("workers", "time_limit", "out", "certificates", "resume", "force", "fail_under"),
)
INTERRUPTED = 130
UNEXPECTED = 70


def main() -> None:
    """The entry point of the command `frown`."""
    try:
        app(prog_name="frown")
    except SystemExit as end:
        # The interpreter would take half a second to end: there are a million objects.
        if isinstance(end.code, int):
            atexit._run_exitfuncs()
            with suppress(OSError, ValueError):  # somebody takes what is written: all is done
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(end.code)
        raise


@contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage among the million objects of an import, which stay: not now, and not
    later either. That would take a tenth of a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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
        typer.echo(__version__)
        raise typer.Exit


def _name(wanted: bool) -> None:
    if wanted:
        typer.echo("frown")
        raise typer.Exit


@app.callback()
def frown(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    name: Annotated[
        bool, typer.Option("--name", callback=_name, is_eager=True, help="Print the solver's name.")
    ] = False,
) -> None:
    """Prove how far an input can move before a neural network may change its answer."""


Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, nothing else.")]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]


@app.command()
def certify(
    model: ModelFile,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help=".npz (x, y, target), .npy or .csv inputs.")
    ],
) -> None:
    """Certify inputs: the largest radius proved for each, and where it breaks."""
    # `_Commands` puts the command of `_certify` in this one's place.


def _several_workers(typed: Sequence[str]) -> bool:
    """True if a command line asks for workers, as far as that can be seen before it is parsed."""
    after = zip(typed, [*typed[1:], ""], strict=True)
    counts = [
        n if one == "--workers" else one.partition("=")[2]
        for one, n in after
        if one == "--workers" or one.startswith("--workers=")
    ]
    return any(n.isdigit() and int(n) > 1 for n in counts)


def _certify(every: bool = False) -> typer.Typer:
    """The command `certify` with all options: they are fields of objects that take torch to load,
    so it is made when it is called or its help is asked for. Help shows those in COMMON, or
    `every` one."""
    if _several_workers(sys.argv):
        from frown.certification.spread.forks import prepare

        prepare()
    with importing():
        import frown.bounds.late  # noqa: F401
        from frown.jobs.options import flags

    def run(model: Path, data: Path, **options: Any) -> None:
        with reported():
            with importing():
                from frown.jobs.job import certify_files
            from frown.jobs.options import CONFIG, read_config, request_of
            from frown.jobs.screen import JsonScreen, Screen, TableScreen

            quiet, json, _ = (options.pop(name) for name in ("quiet", "json", "help_all"))
            typed = {k: v for k, v in options.items() if v is not None and v is not False}
            config = typed.pop("config", None)
            kept = read_config(config)
            if not options["attack"]:
                typed["attack"] = False
            else:
                typed.pop("attack")
            given = {"attack": True, **kept, **typed}
            if kept and not quiet:
                shown = {k: v for k, v in kept.items() if k not in typed}
                words = (" ".join(v) if isinstance(v, tuple) else v for v in shown.values())
                told = ", ".join(f"{k} = {v}" for k, v in zip(shown, words, strict=True))
                typer.echo(f"note: from {plain(config or CONFIG)}: {plain(told)}", err=True)
            request = request_of(model, data, given, ("frown", *sys.argv[1:]))
            screen = JsonScreen() if json else Screen() if quiet else TableScreen()
            if not certify_files(request, screen):
                raise typer.Exit(INTERRUPTED)

    parameters = list(signature(certify, eval_str=True).parameters.values())
    for flag in flags():
        kind, default, switches = flag.type | None, None, [f"--{flag.name.replace('_', '-')}"]
        told = flag.help[:1].upper() + flag.help[1:]
        if flag.type is bool:
            kind, default = bool, flag.default
            switches += [f"{switches.pop()}/--no-{flag.name}"] if flag.default else []
        elif flag.default is not None and flag.default is not MISSING:
            told += f" (default: {flag.default})"
        option = typer.Option(
            *switches,
            help=f"{told}.",
            metavar=flag.metavar,
            rich_help_panel=flag.panel,
            hidden=not every and flag.name not in COMMON,
        )
        parameters.append(_keyword(flag.name, Annotated[kind, option], default))
    for name, switch, told in (
        ("quiet", ("--quiet", "-q"), "No table, no progress."),
        ("json", ("--json",), "Rows as JSON lines on stdout."),
        ("help_all", ("--help-all",), "Show all options."),
    ):
        option = typer.Option(*switch, help=told, metavar="", rich_help_panel="Output")
        parameters.append(_keyword(name, Annotated[bool, option], False))
    told = "A TOML file of options (default: frown.toml, if there is one)."
    option = typer.Option("--config", help=told, metavar="FILE", rich_help_panel="Output")
    parameters.append(_keyword("config", Annotated[Path | None, option], None))
    _taking(run, parameters)
    run.__doc__ = certify.__doc__
    made = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    made.command(context_settings={"help_option_names": ["-h", "--help"]})(run)
    return made


def _keyword(name: str, annotation: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _taking(run: Callable[..., None], parameters: Sequence[Parameter]) -> None:
    """Have typer see these parameters of a function that takes any."""
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}


@app.command()
def info(
    model: ModelFile,
    output: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which output, of a model with several.")
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(metavar="NAME=1,SIZE,...", help="Sizes of axes that the model leaves open."),
    ] = None,
    json: Json = False,
) -> None:
    """Show a model's graph, its sizes, and how each operator is bounded."""
    with reported():
        from frown.api import load
        from frown.jobs.files import dumps
        from frown.jobs.options import parse_shape
        from frown.jobs.screen import Screen
        from frown.jobs.table import describe, info_summary, info_table

        about = describe(load(model, output=output, shape=parse_shape(shape)))
        if json:
            typer.echo(dumps(about))
            return
        console = Screen().out
        console.print(info_table(about))
        console.print()
        for line in info_summary(about):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


@app.command()
def check(
    certificates: Annotated[
        list[Path],
        typer.Argument(metavar="CERT...", help="Files made by certify, folders of them, a bundle."),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="MODEL", help="The ONNX file they are about; a bundle has its own."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The inputs: name each one's row, or end with 1."),
    ] = None,
    divide: Annotated[float, typer.Option(help="Divide the inputs first, as in certify.")] = 1.0,
    query: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The VNN-LIB file whose proof, by verify, they are."),
    ] = None,
    json: Json = False,
) -> None:
    """Check certificates with a program of its own, which shares no code with the prover."""
    with reported():
        from frown_check.__main__ import check_all
        from frown_check.errors import Refused

        try:
            accepted = check_all(certificates, model, json, data, divide, query)
        except Refused as reason:
            raise InvalidInput(str(reason)) from None
        if not accepted:
            raise typer.Exit(1)


@app.command()
def bundle(
    results: Annotated[
        Path, typer.Argument(metavar="DIR", help="A folder made by certify --out --certificates.")
    ],
    model: Annotated[Path, typer.Option(metavar="MODEL", help="The ONNX file.")],
    data: Annotated[Path, typer.Option(metavar="FILE", help="The inputs, as given to certify.")],
    certificates: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Default: where that run has written them."),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR|FILE.zip", help="The bundle: a folder, or a zip file.")
    ] = Path("bundle.zip"),
) -> None:
    """Pack model, inputs and certificates for an auditor, with a page that says what is proved."""
    with reported():
        from frown.jobs.bundle import make_bundle

        made = make_bundle(results, model, data, certificates, out)
        typer.echo(f"{made} certificates in {plain(out)}; check them: frown check {plain(out)}")


@app.command()
def verify(
    query: Annotated[
        Path | None, typer.Argument(metavar="QUERY", help="A VNN-LIB file, also packed by gzip.")
    ] = None,
    others: Annotated[list[Path] | None, typer.Argument(hidden=True, metavar="")] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]MODEL", help="The ONNX file of a network of the query."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Answer timed-out after so long.")
    ] = None,
    serialise_assignments: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a witness there, as ONNX tensors."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the proof of unsat, for frown check --query."),
    ] = None,
    level: Annotated[
        str, typer.Option(metavar="LEVEL", help="checked: the checker accepts the proof, too.")
    ] = "rigorous",
    real: Annotated[
        bool, typer.Option("--real", help="Read float32 and the like, in VNN-LIB 2, as real.")
    ] = False,
    instances: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Answer all queries of an instances.csv instead."),
    ] = None,
    results: Annotated[
        Path, typer.Option(metavar="FILE", help="Where their verdicts go; those there stay.")
    ] = Path("results.csv"),
) -> None:
    """Answer a VNN-LIB query: sat with a witness, unsat with all rounding accounted for."""
    began = monotonic()
    with reported():
        if others:
            model = next((f for f in (query, *others) if f and f.suffix == ".onnx"), "MODEL")
            asked = next((f for f in (query, *others) if f and ".vnnlib" in f.name), "QUERY")
            command = shlex.join(["frown", "verify", str(asked), "--network", str(model)])
            raise InvalidInput(f"verify takes one query, and networks by --network: {command}")
        if instances is not None:
            from frown.jobs.instances import run_instances

            if query is not None or network or serialise_assignments is not None:
                raise InvalidInput("--instances names queries and networks: give no others")
            if certificate is not None:
                raise InvalidInput("--certificate is for one query")
            run_instances(instances, results, timeout, typer.echo, real)
            return
        if query is None:
            raise InvalidInput("verify takes a query, or --instances")
        with importing():
            import frown.bounds.late
            import frown.read.onnx.load  # noqa: F401  (onnx and onnxruntime, too)
            from frown.jobs.verify import QueryFiles, verify_files

        files = QueryFiles(
            query=query,
            networks=network or (),
            timeout=timeout,
            assignments=serialise_assignments,
            real=real,
            certificate=certificate,
            level=level,
            began=began,
        )
        verify_files(files, typer.echo, lambda note: typer.echo(note, err=True))


def _supports(**asked: bool) -> None:
    """Tell what verify is capable of, as the VNN-LIB standard has it."""
    with reported():
        for line in supported([name.replace("_", "-") for name, wanted in asked.items() if wanted]):
            typer.echo(line)


_taking(
    _supports,
    [
        _keyword(name.replace("-", "_"), Annotated[bool, typer.Option(f"--{name}")], False)
        for name in CAPABILITIES
    ],
)
app.command("supports")(_supports)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path(
        "frown-demo"
    ),
    samples: Annotated[int, typer.Option(min=1, help="How many images.")] = 30,
) -> None:
    """Certify images with the digit classifier that ships with frown."""
    with reported():
        from rich.console import Console

        from frown.jobs.demo import run

        code = run(out, samples, Console(emoji=False))
        raise typer.Exit(code or 0)


@app.command()
def plot(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories made by certify --out.")
    ],
    kind: Annotated[
        str, typer.Option(metavar="accuracy|brackets|radii", help="What is drawn.")
    ] = "accuracy",
    format: Annotated[
        str | None, typer.Option(metavar="pdf|svg|png", help="Default: as FILE ends, or pdf.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Default: the kind, as in accuracy.pdf.")
    ] = None,
    width: Annotated[float, typer.Option(help="Inches; a column of a paper is some 3.3.")] = 5.0,
    height: Annotated[float | None, typer.Option(help="Inches.")] = None,
) -> None:
    """Draw a figure for a paper; runs that cannot be compared get panels of their own."""
    with reported():
        from frown.report.figures import figure_from_files

        def tell(notice: str) -> None:
            typer.echo(plain(notice), err=True)

        made = figure_from_files(directories, kind, format, out, width, height, tell)
        typer.echo(f"wrote {plain(made)}")


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
