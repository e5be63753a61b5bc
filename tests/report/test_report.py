"""The report: its numbers against the rows, its markup against a parser, hostile results."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from frown.certification.results import Certification, Row
from frown.errors import InvalidInput, OutputError
from frown.jobs.files import Origin, ResultFiles
from frown.report.charts import (
    NARROW,
    WIDE,
    Plane,
    accuracy_chart,
    aligned,
    number,
    tick_labels,
    ticks,
)
from frown.report.comparison import Comparison
from frown.report.gallery import MOST, Pictures
from frown.report.page import report_from_files, write_report
from frown.report.png import data_uri, encode
from frown.report.read import as_images, read_results

METHODS = ("interval", "fastlin", "crown", "frown")
SHARE = {"interval": 0.2, "fastlin": 0.7, "crown": 0.8, "frown": 0.9}


def row(index: int, method: str, radius: float, broken: float | None, **fields) -> Row:
    base = Row(index, 3, 3, None, inf, method, "certified", radius, None, broken, {}, 0.25)
    return replace(base, **{"input": f"{index:064x}", "level": "rigorous", **fields})


def results(count: int, methods=METHODS, wrong=(), **fields) -> dict[str, Certification]:
    """Radii SHARE[method] * r and counterexamples at r, r = 0.01, 0.02, ...."""
    made = {}
    for method in methods:
        rows = tuple(
            row(i, method, 0.0, 0.0, prediction=4, status="misclassified")
            if i in wrong
            else replace(
                row(i, method, SHARE.get(method, 0.5) * (i + 1) / 100, (i + 1) / 100), **fields
            )
            for i in range(count)
        )
        found = {i: np.full(16, 0.5) for i in range(count) if i not in wrong}
        settings = {"tol": 0.01}
        made[method] = Certification(rows, found, "net.onnx", "ab" * 32, settings, "0.1.0")
    return made


class Checker(HTMLParser):
    """Collects text and attributes, and fails on elements that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "input", "img"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


def parse(path: Path) -> Checker:
    checker = Checker()
    checker.feed(path.read_text(encoding="utf-8"))
    assert not checker.open
    return checker


def written(tmp_path: Path, made, images=None, **options) -> Checker:
    return parse(write_report(made, images, tmp_path / "report.html", "A title", **options))


def table_rows(page: Checker, path: Path) -> list[list[str]]:
    body = re.search(r"<tbody>(.*?)</tbody>", path.read_text(encoding="utf-8"), re.S)
    lines = re.findall(r"<tr>(.*?)</tr>", body[1], re.S)
    return [re.findall(r"<td[^>]*>(.*?)</td>", line) for line in lines]


def test_the_table_holds_every_row(tmp_path):
    page = written(tmp_path, results(7, wrong=(2,)))
    rows = table_rows(page, tmp_path / "report.html")
    assert [r[0] for r in rows] == [str(i) for i in range(7)]
    # 0.7 * 0.07 is a little below 0.049, and what is proved is rounded down.
    assert [float(cell) for cell in rows[6][4:9]] == [0.014, 0.04899, 0.056, 0.063, 0.07]
    assert rows[2][3] == "misclassified"


def test_tiles_show_accuracy_gain_and_means(tmp_path):
    text = " ".join(written(tmp_path, results(4, wrong=(0,))).text)
    assert "75.0 %" in text
    assert "+12.5 %" in text  # 0.9 / 0.8 - 1
    assert "0.0270" in text  # 0.9 * mean(0.02, 0.03, 0.04)
    assert "0.0300" in text  # the attack's mean over the same inputs


def test_means_leave_out_misclassified_inputs():
    comparison = Comparison.of(results(4, wrong=(3,)))
    assert comparison.mean("frown") == pytest.approx(0.9 * 0.02)
    assert comparison.mean_broken() == (pytest.approx(0.02), 3, 3)


def test_the_page_loads_nothing(tmp_path):
    page = written(tmp_path, results(3), np.full((3, 4, 4), 0.5))
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object")
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "url(" not in source and "@import" not in source and "http" not in source


def test_strings_of_users_are_escaped(tmp_path):
    evil = '<script>alert("x")</script>'
    plain = results(2, ("frown",))["frown"]
    rows = tuple(replace(r, status=evil, level=evil) for r in plain.rows)
    made = {evil: Certification(rows, {}, evil + ".onnx", evil, {evil: evil}, evil)}
    out = write_report(made, None, tmp_path / "r.html", evil, command=evil)
    assert "<script>alert" not in out.read_text(encoding="utf-8")
    assert [tag for tag, _ in parse(out).tags].count("script") == 1


def test_names_of_classes_stand_for_their_numbers_and_are_no_markup(tmp_path):
    made = results(3, ("crown", "frown"), wrong=(1,))
    names = ("a", "b", "c", "<b>long & wild</b> " + 40 * "name ", "d")
    made = {m: replace(r, class_names=names) for m, r in made.items()}
    page = written(tmp_path, made, np.zeros((3, 4, 4)))
    raw = (tmp_path / "report.html").read_text()
    assert "<b>long" not in raw
    rows = table_rows(page, tmp_path / "report.html")
    assert rows[0][1].startswith("&lt;b&gt;long &amp; wild&lt;/b&gt;")
    assert raw.count("&lt;b&gt;long") > 3 * 3


def test_every_method_has_the_level_of_its_own_radii(tmp_path):
    made = results(3, ("crown", "frown"))
    assert "certificates" not in " ".join(written(tmp_path, made).text)
    rows = [replace(row, level="checked", certificate="c.frown") for row in made["frown"].rows]
    settings = made["frown"].settings | {"level": "checked"}
    made["frown"] = replace(made["frown"], rows=tuple(rows), settings=settings)
    text = " ".join(written(tmp_path, made).text)
    assert "CROWN: rigorous; FROWN: checked; checked: rigorous, and" in text
    assert "certificates of 3 of 6 rows" in " ".join(text.split())
    rows[0] = replace(rows[0], level="rigorous")
    made["frown"] = replace(made["frown"], rows=tuple(rows))
    text = " ".join(written(tmp_path, made).text)
    assert "CROWN: rigorous; FROWN: 1 rigorous, 2 checked; checked: " in text


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(results(1), id="one input"),
        pytest.param(results(5, wrong=range(5)), id="all misclassified"),
        pytest.param(results(1, wrong=(0,)), id="one input, misclassified"),
        pytest.param(results(5), id="none misclassified"),
        pytest.param(results(5, radius=0.0), id="radius 0"),
        pytest.param(results(5, radius=inf, status="robust", broken=None), id="robust"),
        pytest.param(results(5, radius=nan, status="unknown", broken=None), id="nan"),
        pytest.param(results(5, radius=0.0, broken=None, status="unknown"), id="all 0"),
        pytest.param(results(5, broken=None), id="no attack"),
        pytest.param(results(5, radius=1e-12, broken=3e-12), id="tiny"),
        pytest.param(results(5, radius=1e12, broken=3e12), id="huge"),
        pytest.param(results(5, norm=1.5, target=7), id="targeted, norm 1.5"),
        pytest.param(results(5, complete=False), id="ended early"),
        pytest.param(results(5, ("crown",)), id="one method"),
        pytest.param(results(5, ("mine", "frown", "<b>")), id="unknown methods"),
        pytest.param(results(300), id="300 inputs"),
    ],
)
def test_hostile_results_give_a_sound_page(tmp_path, made):
    count = len(next(iter(made.values())))
    page = written(tmp_path, made, np.full((count, 4, 4), 0.5))
    shapes = [
        value
        for tag, attributes in page.tags
        if tag in ("path", "rect", "line", "text", "i")
        for value in attributes.values()
        if value
    ]
    assert not any(re.search(r"\b(nan|inf)\b", value) for value in shapes)
    assert "nan" not in " ".join(page.text).split()


def test_a_robust_input_says_any_radius(tmp_path):
    made = results(3, radius=inf, status="robust", broken=None)
    assert "any radius" in " ".join(written(tmp_path, made).text)


def test_a_large_gallery_is_cut_and_says_so(tmp_path):
    page = written(tmp_path, results(1000), np.full((1000, 4, 4), 0.5))
    assert sum(attributes.get("class") == "card" for _, attributes in page.tags) == MOST
    assert "least and the 30 most robust of 1,000" in " ".join(page.text)


def test_the_gallery_shows_the_counterexample_and_its_class(tmp_path):
    images = np.zeros((1, 4, 4))
    page = written(tmp_path, results(1), images, answers={0: 9})
    sources = [a["src"] for tag, a in page.tags if tag == "img"]
    grey = np.full((4, 4), 128, np.uint8)
    assert sources == [data_uri(np.zeros((4, 4), np.uint8)), data_uri(grey)]
    assert re.search(r"read as\s+9", " ".join(page.text))


def test_methods_with_different_inputs_are_compared_on_the_common_ones(tmp_path):
    made = {"crown": results(4)["crown"], "frown": results(2)["frown"]}
    joined = Comparison.of(made)
    assert [e.index for e in joined.entries] == [0, 1]
    assert joined.gain("frown", "crown") == pytest.approx(0.125)
    assert joined.mean("crown") == pytest.approx(0.8 * 0.015)
    assert joined.seconds("crown") == pytest.approx(0.5)
    text = " ".join(written(tmp_path, made).text)
    assert "CROWN 4, FROWN 2" in text and "the 2 that all of them have" in text
    apart = replace(
        made["frown"], rows=tuple(replace(r, index=r.index + 9) for r in made["frown"].rows)
    )
    with pytest.raises(InvalidInput, match="none in common"):
        Comparison.of({"crown": made["crown"], "frown": apart})


@pytest.mark.parametrize("change", [{"norm": 2.0}, {"target": 1}])
def test_results_that_cannot_be_compared_are_refused(tmp_path, change):
    made = results(2, ("crown", "frown"))
    rows = tuple(replace(r, **change) for r in made["crown"].rows)
    made["crown"] = replace(made["crown"], rows=rows)
    with pytest.raises(InvalidInput, match="different"):
        write_report(made, None, tmp_path / "r.html", "t")


def test_results_of_two_models_are_refused(tmp_path):
    made = results(2, ("crown", "frown"))
    made["crown"] = replace(made["crown"], digest="cd" * 32)
    with pytest.raises(InvalidInput, match="models"):
        write_report(made, None, tmp_path / "r.html", "t")


def test_results_with_other_names_of_classes_are_refused(tmp_path):
    """A class has one name on a page; results without names are told with those of others."""
    made = results(2, ("crown", "frown"))
    names = tuple(f"word {k}" for k in range(10))
    made["crown"] = replace(made["crown"], class_names=names)
    write_report(made, None, tmp_path / "r.html", "t")
    made["frown"] = replace(made["frown"], class_names=names[::-1])
    with pytest.raises(InvalidInput, match="different names of classes"):
        write_report(made, None, tmp_path / "q.html", "t")


def test_empty_results_are_refused(tmp_path):
    with pytest.raises(InvalidInput, match="empty"):
        write_report({"frown": Certification(())}, None, tmp_path / "r.html", "t")


def test_images_of_a_wrong_shape_or_number_are_refused(tmp_path):
    for images in (np.zeros((3, 4)), np.zeros((2, 4, 4)), np.zeros((3, 4, 4, 2))):
        with pytest.raises(InvalidInput, match="image"):
            write_report(results(3), images, tmp_path / "r.html", "t")


def test_an_unwritable_page_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_report(results(1), None, tmp_path / "file" / "r.html", "t")


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_the_step_curve_is_the_certified_accuracy(size):
    made = results(8, wrong=(3,))
    comparison = Comparison.of(made)
    plane = Plane(*size, right=1.04 * comparison.span, top=1.0)
    chart = accuracy_chart(comparison, size)
    for method in METHODS:
        path = re.search(rf'<path class="line m-{method}" d="([^"]*)"', chart)[1]
        x, y = map(float, re.match(r"M(\S+) ([\d.]+)", path).groups())
        corners = [(x, y)]
        for command, value in re.findall(r"([HV])([\d.]+)", path):
            x, y = (float(value), y) if command == "H" else (x, float(value))
            corners.append((x, y))
        for radius in (0.0011, 0.0123, 0.0234, 0.0456, 0.0567, 0.0789):
            # At a radius, the curve's height is that of the last corner to its left.
            height = [cy for cx, cy in corners if cx <= plane.x(radius)][-1]
            share = made[method].certified_accuracy(radius)
            assert height == pytest.approx(plane.y(share), abs=0.06), (method, radius)


@pytest.mark.parametrize("pixels", [(5, 7), (5, 7, 3), (1, 1), (32, 32, 3)])
def test_png_is_read_back_by_another_decoder(pixels):
    image = pytest.importorskip("PIL.Image")
    made = np.random.default_rng(0).integers(0, 256, pixels, dtype=np.uint8)
    assert (np.asarray(image.open(io.BytesIO(encode(made)))) == made).all()
    assert base64.b64decode(data_uri(made).split(",")[1]) == encode(made)


def test_channels_first_counterexamples_are_laid_out_like_the_image():
    picture = np.random.default_rng(0).random((1, 6, 5, 3))
    pictures = Pictures.of(picture, (4,))
    assert pictures.uri_like(4, np.moveaxis(picture[0], -1, 0)) == pictures.uri(4)
    assert pictures.uri_like(4, np.zeros(7)) is None


def test_inputs_that_are_images():
    assert as_images(np.zeros((2, 64))).shape == (2, 8, 8)
    assert as_images(np.zeros((2, 1, 28, 28))).shape == (2, 28, 28)
    assert as_images(np.zeros((2, 3, 32, 32))).shape == (2, 32, 32, 3)
    assert as_images(np.zeros((2, 3072))).shape == (2, 32, 32, 3)
    assert as_images(np.zeros((2, 13))) is None


@pytest.mark.parametrize("top", [1e-9, 0.037, 0.1, 1.0, 7.3, 99.0, 1e7])
@pytest.mark.parametrize("about", [4, 8])
def test_ticks_are_few_distinct_and_inside(top, about):
    values = ticks(top, about)
    assert values[0] == 0 and values[-1] <= top * (1 + 1e-9)
    assert about / 2.5 <= len(values) <= about + 1
    assert len(set(tick_labels(values))) == len(values)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (None, "–"), (inf, "any radius"), (0.01234, "0.0123"), (12.34, "12.3"),
     (1234.0, "1234"), (1e-7, "1.00e-07")],
)  # fmt: skip
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize("value", [0.0213961, 0.9996, 12.345, 99951.0, 1e-7 / 3, 0.25])
@pytest.mark.parametrize("show", [number, lambda v, way: aligned(v, 2.0, way)])
def test_radii_hold_as_they_are_shown(value, show):
    low, high = float(show(value, -1)), float(show(value, 1))
    assert low <= value <= high
    assert high - low <= max(0.011 * value, 1.001e-3)
    assert value != 0.25 or low == high == 0.25


def save(directory: Path, made: Certification, about: dict) -> Path:
    origin = Origin(made.settings, made.version, made.digest)
    files = ResultFiles.prepare(directory, about, origin)
    files.append(made.rows, made.counterexamples)
    files.close({"state": "finished"})
    return directory


def test_results_survive_their_files(tmp_path):
    made = results(4, ("frown",), wrong=(1,))["frown"]
    rows = (*made.rows[:3], replace(made.rows[3], radius=inf, broken=None, status="robust"))
    made = replace(made, rows=rows)
    save(tmp_path / "run", made, {"model": {"file": "net.onnx"}})
    read = read_results(tmp_path / "run")
    assert read.rows == made.rows
    assert (read.model, read.digest, read.version) == (made.model, made.digest, made.version)
    assert set(read.counterexamples) == set(made.counterexamples)


def test_a_page_from_files_tells_equal_methods_apart(tmp_path):
    made = results(3, ("crown", "frown"))
    about = {"model": {"file": "dir/net.onnx"}, "command": "frown certify net.onnx"}
    directories = [
        save(tmp_path / "one", made["frown"], about),
        save(tmp_path / "two", made["frown"], about),
        save(tmp_path / "three", made["crown"], about),
    ]
    page = parse(report_from_files(directories, tmp_path / "r.html"))
    text = " ".join(page.text)
    assert "FROWN (one)" in text and "FROWN (two)" in text and "CROWN" in text
    assert "How robust is net.onnx?" in text and "frown certify net.onnx" in text


def test_runs_of_one_method_stand_together_the_plain_one_last():
    made = results(3, ("crown", "frown"))
    names = ("frown", "mine", "frown (groups of 8)", "crown")
    comparison = Comparison.of(dict.fromkeys(names, made["crown"]))
    assert comparison.methods == ("mine", "crown", "frown (groups of 8)", "frown")
    assert comparison.main == "frown"


@pytest.mark.parametrize("content", [None, "not json\n", '{"index": 0}\n', "[1]\n"])
def test_missing_or_damaged_files_are_named(tmp_path, content):
    if content is not None:
        (tmp_path / "results.jsonl").write_text(content)
    with pytest.raises(InvalidInput, match=re.escape(str(tmp_path))):
        report_from_files([tmp_path], tmp_path / "r.html")


def test_a_page_with_estimates_begins_by_saying_so(tmp_path: Path) -> None:
    """Also where they are those of one method among others, or of some inputs."""
    made = results(4)
    assert "no proofs" not in " ".join(written(tmp_path, made).text)
    mixed = tuple(replace(r, level="estimate" if r.index else "rigorous") for r in made["crown"])
    page = written(tmp_path, {**made, "crown": replace(made["crown"], rows=mixed)})
    words = " ".join(page.text)
    assert words.index("CROWN, 3 of 4 estimates: these radii are no proofs") < 300
    assert "CROWN, 3 of 4 estimates" in words.partition("All results")[2]


def test_nothing_is_broken_where_another_class_than_the_target_wins(tmp_path: Path) -> None:
    """There the property holds, and there is no counterexample at distance 0."""
    wrong = {"status": "misclassified", "prediction": 5, "target": 7, "radius": 0.0}
    rows = (row(0, "frown", 0.1, 0.2, target=7), replace(row(1, "frown", 0.0, None), **wrong))
    entries = Comparison.of({"frown": Certification(rows)}).entries
    assert [e.limit for e in entries] == [0.2, inf]
    rows = (rows[0], replace(rows[1], broken=0.0))
    assert Comparison.of({"frown": Certification(rows)}).entries[1].limit == 0.0
    withdrawn = {"status": "mismatch", "label": None, "prediction": None, "radius": 0.0}
    rows = (replace(row(1, "frown", 0.0, None), **withdrawn),)
    assert Comparison.of({"frown": Certification(rows)}).entries[0].limit == inf


def test_a_counterexample_that_is_known_and_not_kept_is_not_denied(tmp_path):
    made = {"frown": replace(results(2, ("frown",))["frown"], counterexamples={})}
    assert all(row.broken for row in made["frown"].rows)
    written(tmp_path, made, np.zeros((2, 4, 4)))
    raw = (tmp_path / "report.html").read_text()
    assert raw.count("found, and not kept") == 2 and "none found" not in raw
