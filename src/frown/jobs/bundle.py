"""Bundles for auditors: model, inputs and certificates in one folder or zip file, with a page.

`frown check BUNDLE` needs nothing else, and believes nothing of it but the hashes. The page is made
from the claims of the certificates themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from frown import __version__
from frown.certification.certificates import sha256_of
from frown.certification.folder import reported, write_whole
from frown.certification.results import Row, class_text, digits, markup
from frown.certification.statement import Statement, shortest
from frown.errors import InvalidInput, OutputError
from frown.jobs.files import RUN
from frown.problem.data import Columns, Dataset, digest, read_data
from frown.problem.options import options_of
from frown.report.parts import document, table
from frown.report.read import read_any
from frown_check.bundle import FORMAT, MANIFEST
from frown_check.checker import Claim, check
from frown_check.container import read as read_certificate
from frown_check.errors import Refused

MODEL, DATA, PAGE, CERTIFICATES = "model", "data.npz", "summary.html", "certificates"
STAMP = (2020, 1, 1, 0, 0, 0)  # of the members of a zip file, so that equal bundles are equal files
MOST_FEATURES = 100  # in the page's table
TRUSTED = (
    "that the manifest and this page come from whom you think;"
    " the program frown_check, some thousand lines that decide, written apart from the prover;"
    " Python, numpy and python-flint (Arb); IEEE double precision, which is tested at the start"
)


@dataclass(frozen=True)
class _Certified:
    """A row with its certificate."""

    row: Row
    name: str  # in the bundle
    content: bytes
    claim: Claim
    place: int  # of its input in the bundle's data


def make_bundle(
    results: Path, model: Path, data: Path, certificates: Path | None, out: Path
) -> int:
    """Write a bundle, a zip file if `out` ends so; returns how many certificates it holds.

    Raises InvalidInput where results, model, data and certificates do not belong together, where
    the checker refuses one, and where no row has any; OutputError where `out` is there already or
    cannot be written.
    """
    if out.exists():
        raise OutputError(f"{out} is there already; choose another --out")
    found, about = read_any(results), json.loads((results / RUN).read_text(encoding="utf-8"))
    rows = [row for row in found.rows if row.certificate]
    folder = certificates or Path(about.get("certificates") or "")
    if not rows:
        raise InvalidInput(
            f"{results}: no row has a certificate; run certify with --certificates DIR"
        )
    settings = about.get("settings") or {}
    named = {f.name: settings[f.name] for f in options_of(Columns) if f.name in settings}
    whole = read_data(data, Columns(**named), labels=False)
    chosen, kept = _chosen(rows, folder, whole.divided(settings.get("divide") or 1.0), data)
    if digest(data) != about["data"]["sha256"]:
        raise InvalidInput(
            f"{data} holds these inputs, and is another file than the run was about: its labels "
            "may be others; give that file, or certify again"
        )
    said, claim = Statement.of(found), kept[0].claim
    files: dict[str, bytes] = {}
    for name, held in ((model.name, claim.digest), *claim.external):
        files[f"{MODEL}/{name}"] = _held(model.parent / name, held)
    files[DATA] = _packed(chosen, [one.row for one in kept])
    files |= {one.name: one.content for one in kept}
    for one in kept:
        verdict = check(one.content, model)
        if not verdict.accepted:
            raise InvalidInput(
                f"{folder / one.row.certificate} is refused by the checker: {verdict.reason}"
            )
    left = _left(found.rows, len(chosen), about.get("asked"))
    page = _page(model.name, kept, said, chosen, out, found.class_names, left)
    files[PAGE] = page.encode()
    manifest = {
        "format": FORMAT,
        "version": __version__,
        "model": f"{MODEL}/{model.name}",
        "data": DATA,
        "certificates": [one.name for one in kept],
        "rows": [
            {"certificate": one.name, "row": one.place, "index": one.row.index, "id": one.row.id}
            for one in kept
        ],
        "files": {n: hashlib.sha256(content).hexdigest() for n, content in files.items()},
    }
    files[MANIFEST] = json.dumps(manifest, indent=1).encode()
    _write(out, files)
    return len(kept)


def _chosen(
    rows: Sequence[Row], folder: Path, data: Dataset, path: Path
) -> tuple[Dataset, list[_Certified]]:
    """The inputs that certificates are about, and the certificates under names of their places."""
    indices = sorted({row.index for row in rows})
    if indices[-1] >= len(data):
        raise InvalidInput(f"{path} has no input {indices[-1]}: are these the data of the run?")
    place = {index: k for k, index in enumerate(indices)}
    chosen, kept = data.select(np.array(indices)), list[_Certified]()
    for row in sorted(rows, key=lambda r: (r.index, r.certificate)):
        source = folder / row.certificate
        try:
            content = source.read_bytes()
            if sha256_of(content) != row.certificate_sha256:
                raise InvalidInput(
                    f"{source} is not the certificate that input {row.index} had: its SHA-256 is "
                    "another, as of a later run; certify again, one folder for each run"
                )
            claim = Claim.of(read_certificate(content))
        except OSError as error:
            raise InvalidInput(
                f"{source} cannot be read: {error.strerror}; --certificates says where they are"
            ) from None
        except Refused as error:
            raise InvalidInput(f"{source}: {error}") from None
        k = place[row.index]
        if not np.array_equal(claim.centre.ravel(), chosen.x[k].ravel()):
            raise InvalidInput(
                f"{source} is not about input {row.index} of {path}: are these the data of the run?"
            )
        if row.label is not None and claim.label not in (None, row.label):
            raise InvalidInput(
                f"{source} is about class {claim.label}, and the row of input {row.index} about "
                f"{row.label}: the row was changed; certify again"
            )
        name = re.sub(r"input-\d+", f"input-{k:06d}", row.certificate)
        kept.append(_Certified(row, f"{CERTIFICATES}/{name}", content, claim, k))
    return chosen, kept


def _held(path: Path, digest: str) -> bytes:
    """A file's bytes; InvalidInput unless it is the one that certificates are about."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise InvalidInput(f"{path} is not the file that the certificates are about")
    return content


def _packed(data: Dataset, rows: Sequence[Row]) -> bytes:
    labels = {row.index: row.label for row in rows}
    held = BytesIO()
    arrays = {"x": data.x, "index": data.indices}
    own = [labels[i] for i in data.indices.tolist()]
    if None not in own:  # else the question is about no class
        arrays["y"] = np.array(own)
    if data.ids:
        arrays["id"] = np.array(data.ids)
    if data.features:
        arrays["features"] = np.array(data.features)
    np.savez_compressed(held, **arrays)  # type: ignore[arg-type]
    return held.getvalue()


def _write(out: Path, files: Mapping[str, bytes]) -> None:
    with reported("write", out):
        if out.suffix == ".zip":
            held = BytesIO()
            with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as packed:
                for name, content in files.items():
                    packed.writestr(zipfile.ZipInfo(name, STAMP), content, zipfile.ZIP_DEFLATED)
            write_whole(out, held.getvalue())
            return
        for name, content in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(out / name, content)


# -- the page --------------------------------------------------------------------------


def _page(
    model: str,
    kept: Sequence[_Certified],
    said: Statement,
    data: Dataset,
    out: Path,
    called: Sequence[str],
    left: str,
) -> str:
    """The page of a bundle; `called` are the names of classes, `left` says which inputs of the run
    are not in it."""
    claims = [one.claim for one in kept]
    head = (
        f"<h1>What is proved about {markup(model)}</h1><p>For each of the"
        f" {len(data):,} inputs below, and for every input within its radius, the network that"
        f" {markup(model)} defines over the real numbers {markup(_property(claims[0], said))}."
        f" Within a radius r, {markup(said.allowed('r'))}. Radii are in"
        f" {markup(said.units())}.</p><p>Each line has a certificate, a proof that a program"
        f" checks. Check all of them: <code>frown check {markup(out.name)}</code>, which needs"
        " nothing but this bundle, or <code>python -m frown_check</code> with the same argument."
        " It prints what each certificate claims: compare that with this page, which is"
        " not part of the proof.</p>"
    )
    facts = {
        "level": "rigorous: all rounding errors of the proof are accounted for",
        "model, SHA-256": claims[0].digest,
        "inputs, from the data file": f"{len(data):,}, of shape {tuple(data.x.shape[1:])}",
        "not in this bundle": left,
        "written by": f"frown {__version__}",
        "what is trusted": TRUSTED,
    }
    listed = "".join(f"<dt>{markup(k)}</dt><dd>{markup(v)}</dd>" for k, v in facts.items())
    return document(
        [
            f"<section>{head}</section>",
            _rows(kept, said, called),
            _features(claims, data),
            f'<section><h2>About this bundle</h2><dl class="facts">{listed}</dl></section>',
        ],
        f"What is proved about {model}",
    )


def _left(rows: Sequence[Row], held: int, asked: object) -> str:
    """A phrase on the inputs of the run that are not among the `held` ones of the bundle."""
    wrong = len({row.index for row in rows if row.status == "misclassified"})
    about = len({row.index for row in rows})
    if isinstance(asked, int) and len(rows) < asked:
        return f"the run was interrupted: it has {len(rows):,} of the {asked:,} rows asked for"
    if about == held:
        return f"nothing: the run was about these {held:,} inputs"
    why = f", {wrong:,} of them since the model is wrong about the input itself" if wrong else ""
    return f"{about - held:,} of the run's {about:,} inputs, of which nothing is proved here{why}"


def _property(claim: Claim, said: Statement) -> str:
    """The property, to stand behind "the network"."""
    if claim.coef is not None:
        return f"keeps this: {said.condition}"
    if said.targeted:
        return f"gives the label a larger output than {said.rival()}"
    return "gives the label a larger output than any other class"


def _rows(kept: Sequence[_Certified], said: Statement, called: Sequence[str]) -> str:
    ids = any(one.row.id for one in kept)
    classes = any(one.row.label is not None for one in kept)
    names = ["row", "number in the data file", *(["name"] if ids else [])]
    targets = any(one.row.target is not None for one in kept)
    names += [*(["label"] if classes else []), *(["target"] if targets else [])]
    names += [*([f"the {said.part} that changes"] if said.sensitivity else []), "norm"]
    heads = [(name, "") for name in (*names, "radius proved", "certificate")]
    rows = []
    for one in kept:
        row, claim = one.row, one.claim
        radius = "the whole box" if claim.box else f"{digits(claim.radius, 6, -1):.6g}"
        cells = [str(one.place), str(row.index), *([row.id] if ids else [])]
        cells += [_class(row.label, called)] if classes else []
        cells += [_class(row.target, called)] if targets else []
        cells += [said.part_name(int(row.frames))] if said.sensitivity else []
        cells += [shortest(claim.norm), radius]
        cells.append(Path(one.name).name)
        rows.append([f"<td>{markup(cell)}</td>" for cell in cells])
    return f"<section><h2>Inputs</h2>{table(heads, rows)}</section>"


def _class(number: int | None, called: Sequence[str]) -> str:
    """A class as certificates say it, by its number, and by its name where it has one."""
    name = class_text(number, called)
    return name if name == class_text(number) else f"{number} ({name})"


def _features(claims: Sequence[Claim], data: Dataset) -> str:
    """A table of how far each feature moves, where they have names or differ."""
    first = claims[0]
    same = all(np.array_equal(c.scale, first.scale) for c in claims)
    size = first.scale.size
    if not same or size > MOST_FEATURES or not (data.features or first.scaled):
        return ""
    ends = [None if end is None else end.ravel() for end in (first.lower, first.upper)]
    rows = []
    for k, scale in enumerate(first.scale.ravel().tolist()):
        name = data.features[k] if len(data.features) == size else f"feature {k}"
        moves = "not at all" if scale == 0 else f"{shortest(scale)} times the radius"
        valid = " to ".join("any" if end is None else shortest(float(end[k])) for end in ends)
        valid = "not limited" if first.lower is None else valid
        rows.append([f"<td>{markup(cell)}</td>" for cell in (name, moves, valid)])
    heads = [(name, "") for name in ("feature", "moves by at most", "valid range")]
    return (
        "<section><h2>Features</h2><p>In the units of the data; in a norm other than infinity all"
        f" of them together stay within the radius.</p>{table(heads, rows)}</section>"
    )
