"""A bundle: a model, inputs and the certificates about them in one folder or zip file, each under
its hash in `manifest.json`. What the manifest says of them beyond that is not believed."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from frown_check.errors import Refused
from frown_check.files import content

MANIFEST = "manifest.json"
FORMAT = "frown bundle 1"
MOST_MANIFEST = 2**28
MOST = 2**33  # bytes of one file, and of all that a zip file holds


@dataclass(frozen=True)
class Bundle:
    """The files of a bundle whose hashes are those of its manifest."""

    folder: Path  # that holds them
    model: Path
    data: Path
    certificates: tuple[Path, ...]


def is_bundle(path: Path) -> bool:
    """Whether a path is a zip file, or a folder with a manifest."""
    return (path / MANIFEST).is_file() or (path.suffix == ".zip" and path.is_file())


@contextmanager
def opened(path: Path) -> Iterator[Bundle]:
    """The bundle in a folder or zip file; Refused where a file is missing, changed, or not in the
    manifest."""
    if path.is_dir():
        yield _verified(path)
        return
    with TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(path) as packed:
                if sum(entry.file_size for entry in packed.infolist()) > MOST:
                    raise Refused(f"{path} unpacks to more than {MOST} bytes")
                for entry in packed.infolist():
                    _require_inside(entry.filename)
                packed.extractall(folder)
        except Refused:
            raise
        except Exception as error:  # of zipfile, zlib, bz2, lzma: no list of them is complete
            raise Refused(f"{path} cannot be unpacked: {error}") from None
        yield _verified(Path(folder))


def _verified(folder: Path) -> Bundle:
    try:
        held: Any = json.loads(content(folder / MANIFEST, MOST_MANIFEST))
        files = {str(name): str(digest) for name, digest in held["files"].items()}
        model, data = str(held["model"]), str(held["data"])
        certificates = [str(name) for name in held["certificates"]]
        said = str(held["format"])
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Refused(f"{MANIFEST} is none: {type(error).__name__}: {error}") from None
    if said != FORMAT:
        raise Refused(f"{MANIFEST} is of the format {said!r}, not {FORMAT!r}")
    if not certificates or len(set(certificates)) < len(certificates):
        raise Refused(f"{MANIFEST} names no certificates, or one twice")
    for name in files:
        _require_inside(name)
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir()}
    strange = sorted(there - files.keys() - {MANIFEST})
    if strange:
        raise Refused(f"{strange[0]} is not in {MANIFEST}")
    for name, digest in files.items():
        if hashlib.sha256(content(folder / name, MOST)).hexdigest() != digest:
            raise Refused(f"{name} has been changed: its SHA-256 is not that of {MANIFEST}")
    for name in (model, data, *certificates):
        if name not in files:
            raise Refused(f"{name} is not among the files of {MANIFEST}")
    own = tuple(folder / name for name in certificates)
    return Bundle(folder, folder / model, folder / data, own)


def _require_inside(name: str) -> None:
    """Refused unless a name stays in its folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or ":" in name:
        raise Refused(f"a file of the bundle is called {name!r}")
