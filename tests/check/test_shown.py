"""What the checker prints is the claim: every magnitude, every digit, and the row of the data."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from check.networks import NETWORKS, Net
from check.writer import draft
from frown_check import check, shown
from frown_check.__main__ import main
from frown_check.data import read_data
from frown_check.errors import Refused

X = np.array([0.3, -0.2, 0.5, 0.1, -0.4])


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Net:
    return NETWORKS["tanh"](tmp_path_factory.mktemp("net"), np.random.default_rng(1))


def certificate(net: Net, path: Path, radius: float = 1e-4, norm: str = "inf", **how: Any) -> Path:
    mean, std = how.get("normalisation") or ([0.0], [1.0])
    y = net.outputs((X[None] - mean) / std)[0]
    label = int(y.argmax())
    others = [o for o in range(3) if o != label]
    path.write_bytes(draft(net.path, net.sites, X, radius, label, others, norm, **how).file())
    return path


def printed(capsys: pytest.CaptureFixture[str], *args: object, code: int = 0) -> str:
    assert main([str(a) for a in args]) == code
    return " ".join(capsys.readouterr().out.split())


def claim(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert main([*map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["claim"]


def test_a_tiny_scale_shows_how_far_features_move(net: Net, tmp_path: Path, capsys) -> None:
    path = certificate(net, tmp_path / "c.frown", 100.0, scale=np.full(5, 1e-6))
    text = printed(capsys, path, "--model", net.path)
    assert "||(x - x0) / scale||_inf <= 100 scale 1e-06" in text
    moves = text.split("each by up to ")[1].split(" ")[0]
    assert 0.99999e-4 <= float(moves) <= 100.0 * 1e-6
    found = claim(capsys, path, "--model", net.path)
    assert found["scale"] == {"least": 1e-6, "largest": 1e-6}
    assert found["reach"]["largest"] == pytest.approx(1e-4, rel=1e-12)
    assert found["reach"]["largest"] >= 100.0 * 1e-6


def test_features_are_not_said_to_move_further_than_is_proved(net: Net, tmp_path: Path, capsys):
    radius = 0.025814326480031013e-3
    text = printed(capsys, certificate(net, tmp_path / "c.frown", radius), "--model", net.path)
    moves = float(text.split("each by up to ")[1].split(" ")[0])
    assert (1 - 1e-5) * radius <= moves <= radius


def test_scales_that_differ_and_features_that_are_fixed(net: Net, tmp_path: Path, capsys) -> None:
    scale = [0.0, 0.25, 1.0, 3.0, 0.5]
    path = certificate(net, tmp_path / "c.frown", 1e-5, "2", scale=scale)
    text = printed(capsys, path, "--model", net.path)
    assert "||(x - x0) / scale||_2 <= 1e-05 scale 0.25 to 3" in text
    assert "4 of 5 features, each by up to 2.49999e-06 to 3e-05" in text
    found = claim(capsys, path, "--model", net.path)
    assert (found["moving"], found["features"]) == (4, 5)


def test_balls_are_counted(net: Net, tmp_path: Path, capsys) -> None:
    path = certificate(net, tmp_path / "c.frown", 1e-5, "2", ball=[0, 0, 1, 1, 1])
    assert "||x - x0||_2 <= 1e-05 in each of 2 balls" in printed(capsys, path, "--model", net.path)
    path = certificate(net, tmp_path / "c.frown", 1e-5, "2")
    assert "in each of" not in printed(capsys, path, "--model", net.path)


def test_a_large_std_and_the_valid_range_are_shown(net: Net, tmp_path: Path, capsys) -> None:
    path = certificate(
        net,
        tmp_path / "c.frown",
        100.0,
        normalisation=([0.25], [1e6]),
        bounds=(X - 2000, X + 1000),
    )
    text = printed(capsys, path, "--model", net.path)
    assert "is given (x - mean) / std, mean 0.25, std 1000000" in text
    assert "x from -2000.4 to -1999.5, up to 999.6 to 1000.5" in text
    assert "each by up to 100 in the units of x0" in text
    found = claim(capsys, path, "--model", net.path)
    assert found["std"] == {"least": 1e6, "largest": 1e6}
    assert found["mean"] == {"least": 0.25, "largest": 0.25}
    assert found["lower"]["least"] == -2000.4 and found["upper"]["largest"] == 1000.5
    plainly = certificate(net, tmp_path / "d.frown")
    text = printed(capsys, plainly, "--model", net.path)
    assert "range not limited" in text and "mean" not in text and "scale" not in text


@pytest.mark.parametrize("norm", [1.9999996, 1.0000001, 2.0000000000000004, 2.5, 3.0, inf])
def test_a_norm_has_all_its_digits(net: Net, tmp_path: Path, capsys, norm: float) -> None:
    word = {inf: "inf", 3.0: "3"}.get(norm, norm.hex())
    path = certificate(net, tmp_path / "c.frown", 1e-6, word)
    text = printed(capsys, path, "--model", net.path)
    exact = text.split("||_")[1].split(" ")[0]
    assert float(exact) == norm
    assert f"<= {1e-6!r}" in text


@pytest.mark.parametrize("number", [0.1, 1 / 3, 2.5e-9, 123456.7, 1e300, 5e-324, 99999.95])
def test_what_is_rounded_for_reading_is_rounded_down(number: float) -> None:
    assert number * (1 - 2e-5) <= float(shown._reach(number, 1.0)) <= number
    assert float(shown._reach(number, 0.1)) <= number * 0.1


@pytest.mark.parametrize("number", [0.1, 1 / 3, 0.29999, 2.5e-9, 123456.7, 1e300, 99999.95])
def test_margins_are_rounded_down(number: float) -> None:
    """ "margins > 0.3" would be false of a network whose least margin is 0.29999."""
    assert number * (1 - 2e-3) <= float(shown._below(number)) <= number


def test_the_margin_printed_is_not_above_the_one_proved(net: Net, tmp_path: Path, capsys) -> None:
    for radius in (1e-6, 1.0001e-6, 1.234567e-6):
        path = certificate(net, tmp_path / "c.frown", radius)
        text = printed(capsys, path, "--model", net.path)
        verdict = check(path, net.path)
        assert verdict.margin is not None
        assert float(text.split("margins > ")[1].split(";")[0]) <= verdict.margin


# -- the data ------------------------------------------------------------------------------


def written(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    if path.suffix == ".npz":
        np.savez(path, x=x, y=y)
    elif path.suffix == ".npy":
        np.save(path, x)
    else:
        lines = [",".join(map(repr, [*row, int(k)])) for row, k in zip(x.tolist(), y, strict=True)]
        head = "" if "bare" in path.name else "a,b,c,d,e,y\n"
        path.write_text(head + "\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("name", ["d.npz", "d.npy", "d.csv", "bare.csv"])
def test_the_row_is_named_and_compared(net: Net, tmp_path: Path, capsys, name: str) -> None:
    x = np.random.default_rng(0).normal(size=(6, 5))
    x[4] = X
    path = certificate(net, tmp_path / "input-000004.frown")
    label = check(path, net.path).claim.label
    data = written(tmp_path / name, x, np.full(6, label))
    text = printed(capsys, path, "--model", net.path, "--data", data)
    assert f"x0 is row 4 of {data}" in text and "labelled" not in text
    assert (f"; {label} beside it is not compared" in text) == (name == "bare.csv")
    assert main([str(path), "--model", str(net.path), "--data", str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert (found["rows"], found["mismatch"], found["file"]) == ([4], "", str(data))
    x[4, 2] = np.nextafter(x[4, 2], 1)  # one bit
    other = written(tmp_path / name, x, np.full(6, label))
    text = printed(capsys, path, "--model", net.path, "--data", other, code=1)
    assert "ANOTHER INPUT: its input x0 is no row of" in text and ": accepted" not in text
    assert main([str(path), "--model", str(net.path), "--data", str(other), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["data"]["mismatch"]


def test_a_name_that_says_another_row_is_not_believed(net: Net, tmp_path: Path, capsys) -> None:
    x = np.random.default_rng(0).normal(size=(6, 5))
    x[4] = X
    data = written(tmp_path / "d.npz", x, np.zeros(6, int))
    path = certificate(net, tmp_path / "input-000003.frown")
    text = printed(capsys, path, "--model", net.path, "--data", data, code=1)
    assert "its name says input 3, its x0 is row 4 of" in text
    x[3] = X  # twice in the data: both are named, and 3 is one of them
    data = written(tmp_path / "d.npz", x, np.full(6, check(path, net.path).claim.label))
    text = printed(capsys, path, "--model", net.path, "--data", data)
    assert "x0 is row 3, 4 of" in text
    label = check(path, net.path).claim.label
    data = written(tmp_path / "d.npz", x, np.array([label] * 3 + [(label + 1) % 3, label, label]))
    text = printed(capsys, path, "--model", net.path, "--data", data, code=1)
    assert f"ANOTHER LABEL: it is about class {label}, and row 3 of {data} is labelled" in text


def test_data_are_divided_as_for_certify(net: Net, tmp_path: Path, capsys) -> None:
    x = np.stack([X * 8, X])  # exact
    data = written(tmp_path / "d.npy", x, np.zeros(2, int))
    path = certificate(net, tmp_path / "c.frown")
    given = (path, "--model", net.path, "--data", data)
    assert "x0 is row 0 of" in printed(capsys, *given, "--divide", "8")
    assert "x0 is row 1 of" in printed(capsys, *given)


def test_another_label_in_the_data_is_told(net: Net, tmp_path: Path, capsys) -> None:
    path = certificate(net, tmp_path / "c.frown")
    label = check(path, net.path).claim.label
    data = written(tmp_path / "d.npz", X[None], np.array([(label + 1) % 3]))
    text = printed(capsys, path, "--model", net.path, "--data", data, code=1)
    said = f"ANOTHER LABEL: it is about class {label}, and row 0 of {data} is labelled"
    assert f"{said} {(label + 1) % 3}; it proves" in text and ": accepted" not in text
    both = written(tmp_path / "d.npz", np.stack([X, X]), np.array([label, (label + 1) % 3]))
    assert "x0 is row 0, 1 of" in printed(capsys, path, "--model", net.path, "--data", both)


def test_of_several_the_strays_are_counted(net: Net, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "proofs"
    folder.mkdir()
    certificate(net, folder / "input-000000.frown")
    certificate(net, folder / "input-000001.frown")
    data = written(tmp_path / "d.npy", np.stack([X, X + 1]), np.zeros(2, int))
    text = printed(capsys, folder, "--model", net.path, "--data", data, code=1)
    assert text.endswith("2 certificates: 2 accepted, 0 refused, 1 about other inputs or labels")


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY"])
def test_data_that_cannot_be_read_end_with_2(net: Net, tmp_path: Path, capsys, content) -> None:
    path = certificate(net, tmp_path / "c.frown")
    for name in ("d.npz", "d.npy", "d.csv"):
        (tmp_path / name).write_bytes(content)
        assert main([str(path), "--model", str(net.path), "--data", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(Refused, match="not there"):
        read_data(tmp_path / "gone.npy")
    with pytest.raises(Refused, match="divided by"):
        read_data(tmp_path / "d.npy", 0.0)


def test_labels_that_are_no_numbers_are_told(net: Net, tmp_path: Path, capsys) -> None:
    path = certificate(net, tmp_path / "c.frown")
    data = written(tmp_path / "d.npz", X[None], np.array([np.nan]))
    given = (str(path), "--model", str(net.path), "--data", str(data), "--json")
    assert main(given) == 1
    found = json.loads(capsys.readouterr().out)["data"]
    assert found["labels"] == [None] and "labelled nan" in found["mismatch"]
    assert read_data(written(data, X[None], np.zeros((1, 0)))).y is None


def test_pickles_in_data_are_not_opened(net: Net, tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.array([object()]), allow_pickle=True)
    with pytest.raises(Refused, match="holds no inputs"):
        read_data(tmp_path / "d.npy")


def test_tables_are_read_whatever_parts_their_cells(tmp_path: Path) -> None:
    for text in ("1.5,2\n", "a,b\n1.5,2\n", "id;a;b\nAnn;1,5;2\n", "Ann\t1.5\t2\nBob\t1\t3\n"):
        path = tmp_path / "data.csv"
        path.write_text(text)
        assert read_data(path).x[0].tolist() == [1.5, 2.0], text
    path.write_text("a,b\n")
    with pytest.raises(Refused, match="no line of numbers"):
        read_data(path)


def test_a_column_of_words_does_not_change_the_numbers_beside_it(tmp_path: Path) -> None:
    """Tables of numbers are read as a whole, those with words cell by cell."""
    x = np.random.default_rng(0).normal(size=(30, 5)) * 10.0 ** np.arange(-3, 2)
    lines = [",".join(map(repr, row.tolist())) for row in x]
    found = []
    for mark, head in ((",", ""), (";", "a;b;c;d;e\n")):
        for word in ("", "Ann"):
            cells = [
                line.replace(",", mark).replace(".", "," if mark == ";" else ".") for line in lines
            ]
            text = "\n".join(f"{word}{mark if word else ''}{line}" for line in cells)
            top = f"{'id;' if word and head else ''}{head}"
            (tmp_path / "d.csv").write_text(top + text)
            found.append(read_data(tmp_path / "d.csv").x)
    assert all(np.array_equal(other, x) for other in found)
