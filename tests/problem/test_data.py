"""Readers of inputs, labels, targets and option values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from frown.bounds.work import bytes_of
from frown.errors import InvalidInput
from frown.jobs.options import (
    parse_numbers,
    parse_samples,
    parse_target,
    per_feature,
    request_of,
)
from frown.methods.frown.network import Frown
from frown.problem.data import Columns, Dataset, digest, read_classes, read_data

X = np.arange(12.0).reshape(3, 4)


def refused(call, *args: object) -> str:
    with pytest.raises(InvalidInput) as caught:
        call(*args)
    text = str(caught.value)
    assert "\n" not in text
    return text


def text_file(folder: Path, content: str, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_text(content)
    return path


# -- numpy files -----------------------------------------------------------------------


def test_npz_with_labels_and_targets(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, y=[0, 1, 2], target=[1, 2, 0])
    data = read_data(tmp_path / "d.npz")
    assert np.array_equal(data.x, X)
    assert data.x.dtype == np.float64
    assert data.y.tolist() == [0, 1, 2]
    assert data.target.tolist() == [1, 2, 0]
    assert data.indices.tolist() == [0, 1, 2]


def test_labels_are_optional(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X)
    np.save(tmp_path / "d.npy", X)
    for name in ("d.npz", "d.npy"):
        data = read_data(tmp_path / name)
        assert data.y is None
        assert data.target is None
        assert len(data) == 3


def test_bytes_are_cast_and_not_rescaled(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.array([[0, 255], [51, 102]], np.uint8))
    data = read_data(tmp_path / "d.npy")
    assert data.x.tolist() == [[0, 255], [51, 102]]
    assert data.divided(255).x[1].tolist() == [0.2, 0.4]


def test_selected_inputs_keep_their_place_in_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, y=[5, 6, 7], target=[1, 2, 3])
    chosen = read_data(tmp_path / "d.npz").select(np.array([2, 0]))
    assert chosen.indices.tolist() == [2, 0]
    assert chosen.y.tolist() == [7, 5]
    assert chosen.target.tolist() == [3, 1]
    assert np.array_equal(chosen.x, X[[2, 0]])


@pytest.mark.parametrize("by", [0, -1, np.nan, np.inf])
def test_division_by_nonsense(by: float) -> None:
    assert "--divide" in refused(Dataset(X, None, None, np.arange(3)).divided, by)


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", x=X)
    whole = (tmp_path / "whole.npz").read_bytes()
    middle = bytearray(whole)
    middle[len(middle) // 3] ^= 255
    for name, content in {
        "cut.npz": whole[: len(whole) // 2],
        "flipped.npz": bytes(middle),
        "empty.npz": b"",
        "text.npy": b"hello",
        "empty.npy": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
        assert "damaged" in refused(read_data, tmp_path / name)
    assert "no such file" in refused(read_data, tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    assert "directory" in refused(read_data, tmp_path / "folder.npz")
    assert ".npz, .npy or .csv" in refused(read_data, tmp_path / "x.parquet")


def test_python_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "d.npz", x=np.array([{}, 1], dtype=object))
    for name in ("d.npy", "d.npz"):
        assert "Python objects" in refused(read_data, tmp_path / name)


def test_wrong_names_and_shapes(tmp_path: Path) -> None:
    np.savez(tmp_path / "names.npz", images=X, labels=[1])
    assert "images, labels" in refused(read_data, tmp_path / "names.npz")
    for name, x, expected in (
        ("flat", X[0], "(4,)"),
        ("none", X[:0], "no input"),
        ("complex", X * 1j, "complex128"),
        ("words", np.array([["a"]]), "<U1"),
    ):
        np.save(tmp_path / f"{name}.npy", x)
        assert expected in refused(read_data, tmp_path / f"{name}.npy")
    np.savez(tmp_path / "few.npz", x=X, y=[1, 2])
    assert "2 labels for 3 inputs" in refused(read_data, tmp_path / "few.npz")
    np.savez(tmp_path / "onehot.npz", x=X, y=np.eye(3))
    assert "(3, 3)" in refused(read_data, tmp_path / "onehot.npz")
    np.savez(tmp_path / "half.npz", x=X, y=[0, 1, 1.5])
    assert "1.5 at index 2" in refused(read_data, tmp_path / "half.npz")


def test_a_file_under_the_other_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", X)
    np.savez(tmp_path / "b.npz", x=X)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    assert "rename" in refused(read_data, tmp_path / "a.npz")
    assert "rename" in refused(read_data, tmp_path / "b.npy")


# -- text files ------------------------------------------------------------------------


def test_csv_without_header_is_inputs_only(tmp_path: Path) -> None:
    data = read_data(text_file(tmp_path, "1,2,3\n4,5,6\n\n"))
    assert data.x.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert data.y is None


@pytest.mark.parametrize("name", ["y", "label", "Label"])
def test_csv_header_names_the_labels(tmp_path: Path, name: str) -> None:
    data = read_data(text_file(tmp_path, f'a,{name},"b c",target\n1,0,3,2\n4,1,6,0\n'))
    assert data.x.tolist() == [[1, 3], [4, 6]]
    assert data.y.tolist() == [0, 1]
    assert data.target.tolist() == [2, 0]


def test_csv_label_column_by_place_or_name(tmp_path: Path) -> None:
    bare = text_file(tmp_path, "1,2,3\n4,5,6\n")
    assert read_data(bare, Columns(label_column="last")).y.tolist() == [3, 6]
    assert read_data(bare, Columns(label_column="first")).x.tolist() == [[2, 3], [5, 6]]
    named = text_file(tmp_path, "a,kind\n.5,1\n", "named.csv")
    assert read_data(named, Columns(label_column="kind")).y.tolist() == [1]
    assert "names a, kind" in refused(read_data, named, Columns(label_column="sort"))
    assert "--label-column" in refused(read_data, tmp_path / "x.npy", Columns(label_column="last"))


def test_tables_of_real_life(tmp_path: Path) -> None:
    text = "id,age,site,mass,kind\nP7,60,A,1.5,benign\nP8,70,B,2.5,malign\nP9,50,A,3.5,benign\n"
    path = text_file(tmp_path, text)
    columns = Columns(id_column="id", drop="site", label_column="kind")
    data = read_data(path, columns)
    assert data.x.tolist() == [[60, 1.5], [70, 2.5], [50, 3.5]]
    assert data.features == ("age", "mass")
    assert data.ids == ("P7", "P8", "P9")
    assert data.classes == ("benign", "malign") and data.y.tolist() == [0, 1, 0]
    assert data.select(np.array([2, 1])).ids == ("P9", "P8")
    other = replace(columns, class_names="malign, benign")
    assert read_data(path, other).y.tolist() == [1, 0, 1]
    assert "'malign' of input 1" in refused(read_data, path, replace(columns, class_names="benign"))
    said = refused(read_data, path, Columns(label_column="kind"))
    assert "line 2, column id: 'P7'" in said and "--id-column" in said
    assert "two things" in refused(read_data, path, replace(columns, drop="site,kind"))
    short = text_file(tmp_path, text + "P1,1,A,2\n", "short.csv")
    assert "line 5 has 4 columns" in refused(read_data, short, columns)
    semicolons = text.replace(",", ";").replace(".", ",")
    data = read_data(text_file(tmp_path, semicolons, "semicolons.csv"), columns)
    assert data.x.tolist() == [[60, 1.5], [70, 2.5], [50, 3.5]]


def test_words_beside_numbers_are_no_header(tmp_path: Path) -> None:
    iris = text_file(tmp_path, "5.1,3.5,setosa\n4.9,3.0,setosa\n6.0,2.9,virginica\n")
    data = read_data(iris, Columns(label_column="last"))
    assert len(data) == 3 and data.y.tolist() == [0, 0, 1] and data.features == ()
    named = text_file(tmp_path, "label,0,1\n7,.5,.25\n", "mnist.csv")
    assert read_data(named).y.tolist() == [7]


def test_arrays_of_an_npz_go_by_other_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x_test=X, y_test=[0, 1, 2])
    data = read_data(tmp_path / "d.npz", Columns(x_name="x_test", y_name="y_test"))
    assert np.array_equal(data.x, X) and data.y.tolist() == [0, 1, 2]
    assert "--x-name" in refused(read_data, tmp_path / "d.npz")
    assert "label" in refused(
        read_data, tmp_path / "d.npz", Columns(x_name="x_test", y_name="label")
    )
    assert "--x-name is for .npz" in refused(read_data, tmp_path / "d.csv", Columns(x_name="a"))


def test_csv_that_makes_no_sense(tmp_path: Path) -> None:
    for content, expected in (
        ("", "empty"),
        ("a,b\n", "no line below"),
        ("1,2\n3,four\n", "'four'"),
        ("1,2\n3\n", "columns changed"),
        ("a,b,c\n1,2\n", "names 3 columns"),
        ("y,label,a\n1,2,3\n", "y and label"),
        ("1,\n", "line 1, column 2 is empty"),
        ("1,2x\n3,4\n", "'2x'"),
    ):
        assert expected in refused(read_data, text_file(tmp_path, content)), content
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x80")
    assert "UTF-8" in refused(read_data, tmp_path / "binary.csv")


def test_classes_from_every_kind_of_file(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([3, 1], np.uint8))
    np.savez(tmp_path / "a.npz", y=[3, 1], target=[0, 0])
    text_file(tmp_path, "3\n1\n", "a.txt")
    text_file(tmp_path, "anything\n3\n1\n", "a.csv")
    text_file(tmp_path, "id,label\n7,3\n8,1\n", "b.csv")
    for name in ("a.npy", "a.npz", "a.txt", "a.csv", "b.csv"):
        assert read_classes(tmp_path / name, "y").tolist() == [3, 1], name
    assert read_classes(tmp_path / "a.npz", "target").tolist() == [0, 0]
    assert "named target" in refused(read_classes, tmp_path / "b.csv", "target")


def test_digest_is_sha256(tmp_path: Path) -> None:
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest(text_file(tmp_path, "")) == empty


# -- options ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", [5]),
        ("-1", [9]),
        ("0:3", [0, 1, 2]),
        (":", list(range(10))),
        ("0:10:4", [0, 4, 8]),
        ("8:", [8, 9]),
        ("-2:", [8, 9]),
        ("1,5,9", [1, 5, 9]),
        ("9, 0:2", [9, 0, 1]),
    ],
)
def test_samples_are_chosen_as_python_slices(text: str, expected: list[int]) -> None:
    assert parse_samples(text, 10).tolist() == expected


@pytest.mark.parametrize("text", ["10", "0:11", "-11", "3,99", "12:13"])
def test_samples_beyond_the_data(text: str) -> None:
    assert "10 inputs (0 to 9)" in refused(parse_samples, text, 10)


@pytest.mark.parametrize("text", ["", "a", "1:2:3:4", "0:5:0", "1,,2", "1.5"])
def test_samples_that_make_no_sense(text: str) -> None:
    assert "0:100" in refused(parse_samples, text, 10)


def test_samples_none_or_twice() -> None:
    assert "none of the 10" in refused(parse_samples, "5:5", 10)
    assert "input 2 twice" in refused(parse_samples, "0:3,2", 10)


def test_decimal_commas_between_commas_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b,y\n"1,5",2,0\n"2,5",3,1\n')
    message = refused(read_data, path)
    assert "column a: '1,5' is no number; decimal commas are read where" in message


def test_memory_in_powers_of_1024() -> None:
    sizes = {"4G": 4 << 30, "500M": 500 << 20, "1.5GiB": 3 << 29, "2mb": 2 << 20, "100000": 100_000}
    assert {t: bytes_of(t) for t in sizes} == sizes
    for text in ("much", "-1G", "0", "4X", "", "10", "8K"):
        refused(bytes_of, text)


def test_groups_and_numbers() -> None:
    model, data = Path("m.onnx"), Path("d.npz")
    assert request_of(model, data, {"group": "layer"}).method == Frown(group=0)
    assert request_of(model, data, {"group": "8"}).method == Frown(group=8)
    refused(request_of, model, data, {"group": "some"})
    refused(request_of, model, data, {"group": "0"})
    assert parse_numbers("0.5", "--mean").shape == ()
    assert parse_numbers("1,2", "--mean").tolist() == [1, 2]
    assert "--std" in refused(parse_numbers, "1,x", "--std")


def test_one_number_per_channel_broadcasts() -> None:
    assert per_feature(np.array([1.0, 2.0, 3.0]), (3, 4, 4)).shape == (3, 1, 1)
    assert per_feature(np.arange(8.0), (2, 4)).shape == (2, 4)
    assert per_feature(np.array(1.0), (2, 4)).shape == ()


def test_targets(tmp_path: Path) -> None:
    path = text_file(tmp_path, "1\n", "targets.txt")
    assert parse_target("3") == 3
    assert parse_target("+2") == "+2"
    assert parse_target("all") is None
    assert parse_target(str(path)) == path
    assert "class (3)" in refused(parse_target, "three")


def test_a_bad_cell_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n\n3,x\n")
    with pytest.raises(InvalidInput, match="line 3"):
        read_data(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("p,q\n1,oops\n")
    with pytest.raises(InvalidInput, match="line 2"):
        read_data(tmp_path / "b.csv")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_tables_with_other_marks_and_decimal_commas_are_read(tmp_path, mark):
    path = tmp_path / "d.csv"
    path.write_text(f"a{mark}b{mark}y\n1,5{mark}-2,25{mark}0\n3{mark}4,125{mark}1\n")
    data = read_data(path)
    assert data.x.tolist() == [[1.5, -2.25], [3.0, 4.125]] and data.y.tolist() == [0, 1]
    path.write_text(f"1.000,5{mark}2\n")
    with pytest.raises(InvalidInput, match=r"both \. and ,"):
        read_data(path)


@pytest.mark.parametrize("line", [",2,0", "1,,0", "1, ,0", "1,2,"])
def test_an_empty_cell_is_named_by_line_and_column(tmp_path, line):
    path = tmp_path / "d.csv"
    path.write_text(f"age,income,y\n1,2,0\n{line}\n")
    name = ["age", "income", "y"][[c.strip() for c in line.split(",")].index("")]
    with pytest.raises(InvalidInput, match=f"line 3, column {name} is empty"):
        read_data(path)
