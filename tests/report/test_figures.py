"""Results in notebooks and papers: figures, tables, files and back."""

from __future__ import annotations

import pickle
from dataclasses import replace
from io import BytesIO
from itertools import pairwise
from math import inf

import numpy as np
import pytest
from typer.testing import CliRunner

import frown
from frown.certification.results import Certification, Row
from frown.cli import app
from frown.errors import FrownError
from frown.report.figures import KINDS, figure


def row(index: int, radius: float, broken: float | None, method: str = "frown", **more) -> Row:
    status = "certified" if radius else "misclassified"
    return Row(
        *(
            index,
            1,
            1 if radius else 0,
            None,
            inf,
            method,
            status,
            radius,
            None,
            broken,
            {0: 0.1},
            0.5,
        ),
        level="rigorous",
        input=f"{index:064x}",
        **more,
    )


ROWS = (row(0, 0.25, 0.5, broken_as=3), row(1, 0.123456, None), row(2, 0.0, 0.0))
RESULT = Certification(ROWS, {0: np.full(4, 0.5)}, "net.onnx", "ab", {"level": "rigorous"}, "0.1")
CROWN = replace(RESULT, rows=tuple(replace(r, method="crown", radius=0.9 * r.radius) for r in ROWS))


def test_a_result_is_a_sequence_of_rows():
    assert list(RESULT) == list(ROWS) and RESULT[1] is ROWS[1] and RESULT[-1] is ROWS[2]
    part = RESULT[1:]
    assert isinstance(part, Certification) and part.rows == ROWS[1:] and not part.counterexamples
    assert len(repr(RESULT)) < 100


def test_certified_accuracy_takes_arrays():
    shares = RESULT.certified_accuracy([[0.1, 0.2], [0.3, 0.0]])
    assert shares.tolist() == [[2 / 3, 1 / 3], [0.0, 2 / 3]]
    assert RESULT.certified_accuracy(0.1) == 2 / 3


def test_results_survive_pickle_and_files(tmp_path):
    assert pickle.loads(pickle.dumps(RESULT)).rows == RESULT.rows
    again = frown.open(RESULT.save(tmp_path / "saved"))
    assert again.rows == RESULT.rows and again.digest == "ab"
    assert (again.counterexamples[0] == 0.5).all()
    with pytest.raises(FrownError, match="already holds"):
        RESULT.save(tmp_path / "saved")
    RESULT.save(tmp_path / "saved", force=True)
    page = RESULT.report(tmp_path / "page.html").read_text()
    assert "How robust is net.onnx?" in page
    RESULT.report(tmp_path / "page.html")  # in the place of the earlier one
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(FrownError, match="no page of frown's"):
        RESULT.report(tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "<p>mine</p>"


def test_pandas_has_every_row_with_types():
    pytest.importorskip("pandas")
    frame = RESULT.to_pandas()
    assert frame.index.tolist() == [0, 1, 2] and frame.radius.tolist() == [0.25, 0.123456, 0.0]
    assert list(frame.columns[:4]) == ["id", "status", "radius", "broken"]
    assert set(frame.columns) == set(Row.__dataclass_fields__) - {"index", "margins"}
    assert frame.broken_as[0] == 3 and frame.broken_as.isna()[1] and np.isnan(frame.broken[1])


def test_what_notebooks_show_is_rounded_the_safe_way_and_escaped():
    html = replace(RESULT, rows=(replace(ROWS[1], status="<b>"),))._repr_html_()
    assert "<td>0.1234</td>" in html and "&lt;b&gt;" in html


@pytest.mark.parametrize("kind", ["accuracy", "brackets", "radii"])
def test_figures_have_the_size_asked_for_and_embedded_fonts(kind, tmp_path):
    drawn = RESULT.plot(kind, CROWN, width=3.3)
    assert drawn.get_size_inches()[0] == 3.3 and len(drawn.axes) == 1
    drawn.savefig(tmp_path / "a.pdf")
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf
    assert drawn._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(("width", "panels"), [(3.3, 1), (3.3, 2), (1.5, 1), (7.0, 1)])
def test_numbers_of_the_axis_of_radii_do_not_touch(width, panels):
    others = [CROWN, replace(RESULT, rows=tuple(replace(r, norm=2.0) for r in ROWS))][:panels]
    drawn = RESULT.plot("accuracy", *others, width=width)
    drawn.savefig(BytesIO())
    for place in drawn.axes:
        low, high = place.get_xlim()
        shown = [t for t in place.get_xticklabels() if low <= t.get_position()[0] <= high]
        ends = [t.get_window_extent() for t in shown]
        gaps = [b.x0 - a.x1 for a, b in pairwise(ends)]
        assert len(shown) >= 2 and min(gaps) > 0.3 * ends[0].height


def test_accuracy_curves_are_the_shares_themselves():
    (place,) = RESULT.plot("accuracy", CROWN).axes
    lines = {line.get_label(): line for line in place.get_lines()}
    x, y = lines["FROWN"].get_data()
    for radius in (0.0, 0.05, 0.2, 0.24):
        assert y[np.searchsorted(x, radius, side="right") - 1] == RESULT.certified_accuracy(radius)
    assert set(lines) == {"FROWN", "CROWN", "not broken"}


def test_norms_get_panels_of_their_own(tmp_path):
    l2 = replace(RESULT, rows=tuple(replace(r, norm=2.0) for r in ROWS))
    assert len(RESULT.plot("accuracy", CROWN, l2).axes) == 2
    RESULT.save(tmp_path / "inf")
    l2.save(tmp_path / "l2")
    asked = ["plot", str(tmp_path / "inf"), str(tmp_path / "l2"), "--out"]
    done = CliRunner().invoke(app, [*asked, str(tmp_path / "f.svg"), "--kind", "radii"])
    assert done.exit_code == 0, done.output
    assert "<svg" in (tmp_path / "f.svg").read_text()
    done = CliRunner().invoke(app, [*asked, str(tmp_path / "f.gif")])
    assert done.exit_code == 2 and not (tmp_path / "f.gif").exists()
    with pytest.raises(FrownError, match="unknown kind"):
        RESULT.plot("pie")


def test_panels_of_one_norm_have_the_names_of_their_runs():
    """Three panels, of which a norm names two: nobody could tell these from one another."""
    other = replace(CROWN, settings={"statement": {"norm": "inf", "condition": "all is well"}})
    flat = replace(RESULT, rows=tuple(replace(r, norm=1.0) for r in ROWS))
    drawn = figure({"frown (a)": RESULT, "crown": other, "frown (b)": flat}, "radii", 9)
    assert [axes.get_title() for axes in drawn.axes] == ["FROWN (a)", "CROWN", "FROWN (b)"]
    drawn = figure({"frown (a)": RESULT, "frown (b)": flat}, "radii", 9)
    assert [axes.get_title() for axes in drawn.axes] == ["l∞ norm", "l₁ norm"]


def test_axes_say_what_is_proved():
    """Not "accuracy" of a regression, nor of a label that others may overtake."""

    def titles(**said):
        settings = {"statement": {"norm": "inf", **said}}
        drawn = (
            replace(RESULT, settings=settings).plot(kind).axes[0] for kind in ("accuracy", "radii")
        )
        accuracy, radii = drawn
        return accuracy.get_ylabel(), radii.get_xlabel()

    right = "inputs classified correctly, by growing radius"
    assert titles() == ("certified accuracy", right)
    assert titles(target="3") == ("certified accuracy, against class 3 alone", right)
    other = "inputs with the property, by growing radius"
    assert titles(condition="all is well") == ("inputs proved", other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("some", [False, True])
def test_estimates_are_told_from_proofs(kind: str, some: bool) -> None:
    """In every figure, by the legend and, where it says what radii are, by the axis."""
    rows = tuple(
        replace(r, level="rigorous" if some and i == 0 else "estimate")
        for i, r in enumerate(RESULT.rows)
    )
    (place,) = replace(RESULT, rows=rows).plot(kind).axes
    told = [text.get_text() for text in place.get_legend().get_texts()]
    names = [text for text in told if text.startswith("FROWN")]
    assert names and all("estimates" in n and (" of " in n) == some for n in names)
    axes = f"{place.get_xlabel()} {place.get_ylabel()}"
    assert "estimated" in axes and ("proved" in axes) == (some and kind != "accuracy")
    (plain,) = RESULT.plot(kind).axes
    assert "estimate" not in f"{plain.get_xlabel()} {plain.get_ylabel()} {plain.get_legend()}"
    assert not any("estimate" in text.get_text() for text in plain.get_legend().get_texts())
