"""The store: every row that was kept comes back, whatever ended the process that kept it."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frown.certification.folder import RESULTS_LOCK as LOCK
from frown.certification.folder import InUse
from frown.errors import InvalidInput, OutputError
from frown.jobs import store as store_module
from frown.jobs.store import MANIFEST, ROWS, Store, key_of, read

SETTINGS = {"model": "3fa1", "method": {"name": "frown", "group": 8}, "tol": 0.01}
ROW = {"radius": 0.1 + 0.2, "status": "certified", "margins": {"3": 1e-17}, "broken": None}


def opened(folder: Path, **changes: Any) -> Store:
    return Store(folder, SETTINGS | changes)


@contextmanager
def program(text: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs this text, killed at the end; its arguments are in `argv`."""
    code = "from sys import argv\n" + textwrap.dedent(text)
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


# -- keys --------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_a_key_depends_on_names_and_values_and_not_on_their_order(parts: dict[str, Any]) -> None:
    key = key_of(parts)
    assert key == key_of(dict(reversed(parts.items()))) == key_of(json.loads(json.dumps(parts)))
    for name in parts:
        assert key != key_of(parts | {name: [parts[name]]})
        assert key != key_of({k: v for k, v in parts.items() if k != name})


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", {1, 2}, Path("a")], ids=repr)
def test_a_key_takes_nothing_that_json_has_not(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        key_of({"value": value})


# -- rows --------------------------------------------------------------------------------


@given(st.dictionaries(st.text(), st.dictionaries(st.text(), VALUES, max_size=3), max_size=5))
def test_rows_come_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[str, dict[str, Any]]
) -> None:
    for row in rows.values():
        row.pop("key", None)
    folder = tmp_path_factory.mktemp("store")
    with opened(folder) as store:
        store.append(rows)
        assert dict(store) == rows
    with opened(folder) as again:
        assert dict(again) == rows
    found = read(folder)
    assert found is not None and found.rows == rows and found.settings == SETTINGS


def test_a_row_is_the_same_before_and_after_it_was_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append({"a": {"pair": (1, 2), "by": {3: "x"}}})
        before = dict(store)
    with opened(tmp_path) as again:
        assert dict(again) == before == {"a": {"pair": [1, 2], "by": {"3": "x"}}}


def test_a_line_is_strict_json_that_starts_with_its_key(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append({"a": ROW})
    (line,) = (tmp_path / ROWS).read_text().splitlines()
    assert line.startswith('{"key": "a", ') and json.loads(line) == {"key": "a"} | ROW


def test_a_later_row_replaces_an_earlier_one(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append({"a": {"n": 1}, "b": {"n": 2}})
        store.append({"a": {"n": 3}})
        assert dict(store) == {"a": {"n": 3}, "b": {"n": 2}}
    with opened(tmp_path) as again:
        assert dict(again) == {"a": {"n": 3}, "b": {"n": 2}} and len(again) == 2


@pytest.mark.parametrize(
    "row", [{"x": math.nan}, {"x": object()}, {"key": "mine"}], ids=["nan", "object", "key"]
)
def test_what_cannot_be_stored_is_refused_and_leaves_no_trace(
    tmp_path: Path, row: dict[str, object]
) -> None:
    with opened(tmp_path) as store:
        with pytest.raises((TypeError, ValueError)):
            store.append({"a": ROW, "b": row})
        assert len(store) == 0
        store.append({"c": ROW})
    with opened(tmp_path) as again:
        assert dict(again) == {"c": ROW}


def test_provisional_rows_are_there_to_be_read_and_done_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append({"a": ROW})
        store.append({"b": ROW}, provisional=True)
        assert "b" not in store and len(store) == 1
    lines = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert [(line["key"], line.get("provisional")) for line in lines] == [("a", None), ("b", True)]
    found = read(tmp_path)
    assert found is not None and set(found.rows) == {"a"}
    with opened(tmp_path) as store:
        assert (tmp_path / ROWS).read_text().count("\n") == 1
        store.append({"b": {"n": 2}})
        assert dict(store) == {"a": ROW, "b": {"n": 2}}


def test_rows_are_arranged_in_any_order_each_key_once(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append({"c": {"n": 3}, "a": {"n": 0}})
        store.append({"a": {"n": 1}})
        store.append({"b": {"n": 2}}, provisional=True)
        store.arrange(["a", "b", "c", "nowhere"])
        lines = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
        assert [(line["key"], line["n"]) for line in lines] == [("a", 1), ("b", 2), ("c", 3)]
        store.append({"d": {"n": 4}})
        assert dict(store) == {"a": {"n": 1}, "c": {"n": 3}, "d": {"n": 4}}
    with opened(tmp_path) as store:
        assert dict(store) == {"a": {"n": 1}, "c": {"n": 3}, "d": {"n": 4}}


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        pass
    with pytest.raises(ValueError, match="closed"):
        store.append({"a": ROW})


def test_a_folder_without_a_store_has_nothing_to_read(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    assert read(tmp_path / "nowhere") is None
    assert list(tmp_path.iterdir()) == []


def test_rows_can_be_read_while_they_are_written(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append({"a": ROW})
        found = read(tmp_path)
        assert found is not None and found.rows == {"a": ROW}


# -- ends --------------------------------------------------------------------------------


def test_a_line_cut_anywhere_is_dropped_and_done_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append({"a": ROW})
    path = tmp_path / ROWS
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole + whole.replace(b'"a"', b'"b"')[:length])
        found = read(tmp_path)
        assert found is not None and found.rows == {"a": ROW}
        with opened(tmp_path) as store:
            assert dict(store) == {"a": ROW}
            store.append({"c": {"n": 1}})
        with opened(tmp_path) as store:
            assert dict(store) == {"a": ROW, "c": {"n": 1}}


def test_zeros_after_a_power_failure_are_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append({"a": ROW})
    with (tmp_path / ROWS).open("ab") as stream:
        stream.write(b'{"key": "b"' + b"\0" * 5000)
    with opened(tmp_path) as store:
        store.append({"c": ROW})
    with opened(tmp_path) as store:
        assert set(store) == {"a", "c"}


@pytest.mark.parametrize(
    "line", ['{"radius": 1}', "[1, 2]", "{1}", "7", "", '{"key": 5}', '{"key": "x", "r": NaN}',
             "\udcff", "[" * 100_000],
    ids=lambda line: line[:12],
)  # fmt: skip
def test_a_whole_line_that_is_no_row_is_named_and_nothing_is_lost(
    tmp_path: Path, line: str
) -> None:
    with opened(tmp_path) as store:
        store.append({"a": ROW, "b": ROW})
    path = tmp_path / ROWS
    first, second = path.read_bytes().splitlines(keepends=True)
    damaged = first + line.encode(errors="surrogateescape") + b"\n" + second
    path.write_bytes(damaged)
    for attempt in (lambda: opened(tmp_path), lambda: read(tmp_path)):
        with pytest.raises(InvalidInput, match="line 2: not a row"):
            attempt()
    assert path.read_bytes() == damaged


WRITER = """
    from pathlib import Path
    from frown.jobs.store import Store

    with Store(Path(argv[1]), {"job": "test"}) as store:
        print("open", flush=True)
        for n in range(int(argv[2])):
            if str(n) not in store:
                store.append({str(n): {"n": n, "text": "x" * (n % 50 * 300)}})
                print(n, flush=True)
"""


def test_a_job_killed_again_and_again_has_every_row_once(tmp_path: Path) -> None:
    """What the killed process had told of is there; the whole is as without any kill."""
    rng, count = random.Random(0), 2000
    for _ in range(8):
        with program(WRITER, tmp_path, count) as process:
            assert process.stdout is not None and process.stdout.readline() == "open\n"
            time.sleep(rng.uniform(0, 0.02))
            process.send_signal(signal.SIGKILL)
            told = process.stdout.read().split("\n")[:-1]
        found = read(tmp_path)
        assert found is not None and set(told) <= set(found.rows)
    with program(WRITER, tmp_path, count) as process:
        assert process.wait(60) == 0
    lines = [json.loads(line) for line in (tmp_path / ROWS).read_text().splitlines()]
    assert [line["key"] for line in lines] == [str(n) for n in range(count)]
    assert all(line["text"] == "x" * (line["n"] % 50 * 300) for line in lines)


def test_a_full_disk_keeps_what_there_was_and_says_so(tmp_path: Path) -> None:
    """The system refuses to let the file grow beyond 4000 bytes, in the middle of a line."""
    text = """
        import resource
        from pathlib import Path
        from frown.errors import OutputError
        from frown.jobs.store import Store

        with Store(Path(argv[1]), {"job": "test"}) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
            store.append({"a": {"text": "x" * 1000}})
            try:
                store.append({"b": {"text": "x" * 5000}})
            except OutputError as error:
                print(error)
            store.append({"c": {"text": "x" * 100}})  # there is room for less
    """
    with program(text, tmp_path) as process:
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and f"cannot write {tmp_path / ROWS}" in said
    found = read(tmp_path)
    assert found is not None and list(found.rows) == ["a", "c"]
    assert (tmp_path / ROWS).read_bytes().endswith(b"\n")


def test_an_interrupt_in_the_middle_of_a_write_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        store.append({"a": ROW})
        write = os.pwrite

        def interrupted(fd: int, content: bytes, offset: int) -> int:
            write(fd, content[:7], offset)
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.append({"b": ROW})
        monkeypatch.undo()
        assert dict(store) == {"a": ROW}
    assert (tmp_path / ROWS).read_bytes().count(b"\n") == 1
    assert (tmp_path / ROWS).read_bytes().endswith(b"\n")


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, text, offset: write(fd, text[:10], offset))
    with opened(tmp_path) as store:
        store.append({"a": ROW, "b": ROW})
    monkeypatch.undo()
    found = read(tmp_path)
    assert found is not None and found.rows == {"a": ROW, "b": ROW}


def test_the_disk_is_told_to_write_now_and_then_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, synced = [0.0], []
    monkeypatch.setattr(store_module.time, "monotonic", lambda: now[0])
    with Store(tmp_path, SETTINGS, sync=1.0) as store:
        fsync = os.fsync
        monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(now[0]), fsync(fd))[1])
        for step in range(25):
            now[0] = step / 10
            store.append({str(step): ROW})
    assert synced == [1.0, 2.0, 2.4]


# -- settings ----------------------------------------------------------------------------


def test_other_settings_are_refused_by_naming_what_differs(tmp_path: Path) -> None:
    opened(tmp_path).close()
    before = (tmp_path / MANIFEST).read_bytes()
    with pytest.raises(InvalidInput) as refused:
        opened(tmp_path, method={"name": "crown", "group": 8}, norm="inf")
    said = str(refused.value)
    assert 'method.name: "frown" there, "crown" here' in said
    assert 'norm: not given there, "inf" here' in said
    assert "group" not in said and "tol" not in said and "model" not in said
    assert (tmp_path / MANIFEST).read_bytes() == before
    opened(tmp_path).close()  # and the folder is free


@pytest.mark.parametrize(
    ("before", "now"), [({"n": 1}, {}), ({"n": 1}, {"n": 2}), ({"n": None}, {}), ({"n": {}}, {})]
)
def test_a_setting_of_none_is_not_a_setting_left_out(
    tmp_path: Path, before: dict[str, object], now: dict[str, object]
) -> None:
    Store(tmp_path, before).close()
    for there, here in ((before, now), (now, before)):
        if there is now:
            Store(tmp_path / "other", now).close()
        with pytest.raises(InvalidInput, match="n: "):
            Store(tmp_path if there is before else tmp_path / "other", here)


def test_what_is_said_beside_the_settings_may_change(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.describe({"state": "running"})
    with opened(tmp_path) as store:
        assert store.about == {"state": "running"}
        store.describe({"state": "complete", "version": "2"})
    found = read(tmp_path)
    assert found is not None and found.about == {"state": "complete", "version": "2"}


@pytest.mark.parametrize("point", ["open", "fsync", "replace"])
def test_the_manifest_is_the_old_or_the_new_one_wherever_its_writing_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    with opened(tmp_path) as store:
        store.describe({"state": "old"})

        def failing(*args: object, **options: object) -> None:
            raise OSError(5, "input/output error")

        monkeypatch.setattr(os, point, failing)
        with pytest.raises(OutputError, match="input/output error"):
            store.describe({"state": "new"})
        monkeypatch.undo()
        found = read(tmp_path)
        assert found is not None and found.about == store.about == {"state": "old"}
        store.describe({"state": "new"})
        assert json.loads((tmp_path / MANIFEST).read_text())["state"] == "new"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "7", '{"format": 1}', '{"format": 1, "settings": 3, "about": {}}']
)
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(InvalidInput, match="no manifest of a store"):
        opened(tmp_path)
    assert (tmp_path / MANIFEST).read_text() == text


def test_a_later_format_is_refused_with_its_number(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text('{"format": 2, "settings": {}, "about": {}}')
    with pytest.raises(InvalidInput, match="has format 2, this version of frown reads 1"):
        opened(tmp_path)


def test_rows_of_something_else_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / ROWS).write_text("not ours")
    for attempt in (lambda: opened(tmp_path), lambda: read(tmp_path)):
        with pytest.raises(InvalidInput, match=f"holds {ROWS} but no {MANIFEST}"):
            attempt()
    assert (tmp_path / ROWS).read_text() == "not ours"


# -- one writer --------------------------------------------------------------------------


def test_a_second_process_is_told_who_has_the_folder(tmp_path: Path) -> None:
    with program(WRITER, tmp_path, 10**9) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        with pytest.raises(InUse, match=rf"in use by process {process.pid} on .*, since 20"):
            Store(tmp_path, {"job": "test"})


def test_a_holder_that_was_killed_does_not_block(tmp_path: Path) -> None:
    with program(WRITER, tmp_path, 10**9) as process:
        assert process.stdout is not None and process.stdout.readline() == "open\n"
        process.kill()
        process.wait(60)
        assert json.loads((tmp_path / LOCK).read_text())["process"] == process.pid
        Store(tmp_path, {"job": "test"}).close()


def test_workers_that_outlive_a_killed_holder_do_not_block(tmp_path: Path) -> None:
    text = """
        import os, time
        from pathlib import Path
        from frown.jobs.store import Store

        store = Store(Path(argv[1]), {"job": "test"})
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(60)
        time.sleep(60)
    """
    with program(text, tmp_path) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            with pytest.raises(InUse):  # the worker's copy is closed, the holder's is not
                Store(tmp_path, {"job": "test"})
            process.kill()
            process.wait(60)
            Store(tmp_path, {"job": "test"}).close()
        finally:
            os.kill(worker, signal.SIGKILL)


def test_one_process_cannot_open_a_store_twice(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(InUse, match="this process itself"):
        opened(tmp_path)
    opened(tmp_path).close()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"process": "x"}', '{"process": 1e999}'])
def test_a_lock_file_that_says_nothing_blocks_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK).write_text(text)
    with opened(tmp_path):
        (tmp_path / LOCK).write_text(text)
        with pytest.raises(InUse, match="another process"):
            opened(tmp_path)


# -- links and other things in the way ---------------------------------------------------


@pytest.mark.parametrize("name", [ROWS, MANIFEST, LOCK])
@pytest.mark.parametrize("there", [True, False], ids=["link", "dangling link"])
def test_links_are_not_followed(tmp_path: Path, name: str, there: bool) -> None:
    folder, outside = tmp_path / "store", tmp_path / "outside"
    opened(folder).close()
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    if there:
        outside.write_text("precious")
    with pytest.raises(OutputError, match="symbolic link"):
        opened(folder)
    assert outside.read_text() == "precious" if there else not outside.exists()


def test_a_link_in_the_place_of_a_fresh_manifest_is_not_written_through(tmp_path: Path) -> None:
    folder, outside = tmp_path / "store", tmp_path / "outside"
    outside.write_text("precious")
    with opened(folder) as store:
        (folder / f"{MANIFEST}.new").symlink_to(outside)
        store.describe({"state": "new"})
    assert outside.read_text() == "precious"
    assert not (folder / MANIFEST).is_symlink()


@pytest.mark.parametrize("name", [ROWS, MANIFEST, LOCK])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, name: str, make: Any) -> None:
    opened(tmp_path).close()
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(OutputError, match=name):
        opened(tmp_path)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        opened(tmp_path / "file" / "out")
    with pytest.raises(OutputError, match="cannot write"):
        opened(tmp_path / "file")


def test_a_folder_may_be_reached_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "scratch")
    with opened(tmp_path / "out") as store:
        store.append({"a": ROW})
    found = read(tmp_path / "scratch")
    assert found is not None and found.rows == {"a": ROW}


def test_nothing_stays_open(tmp_path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = count()
    for n in range(5):
        with opened(tmp_path) as store:
            store.append({str(n): ROW})
        with pytest.raises(InvalidInput):
            opened(tmp_path, tol=1.0)
        read(tmp_path)
        del store
    assert count() == before
