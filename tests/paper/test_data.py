"""Every format gives the same samples, scaled as the paper does; what is wrong is named."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.paper.data import Dataset, load_data, split
from benchmarks.paper.formats import DataWarning
from frown.errors import InvalidInput

RNG = np.random.default_rng(7)
DIGITS = RNG.integers(0, 256, (30, 28, 28), dtype=np.uint8)
PHOTOS = RNG.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
TEN = np.arange(60, dtype=np.uint8) % 10
DRIVE_X = RNG.normal(3, 2, (110, 48))
DRIVE_Y = np.arange(110) % 11

MNIST_FILES = {
    "train-images-idx3-ubyte": DIGITS[:20],
    "train-labels-idx1-ubyte": TEN[:20],
    "t10k-images-idx3-ubyte": DIGITS[20:],
    "t10k-labels-idx1-ubyte": TEN[20:30],
}


def idx(array: NDArray[np.uint8]) -> bytes:
    """The IDX format by its definition: two zeros, type, rank, axes, bytes."""
    return (
        bytes([0, 0, 8, array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + (array.tobytes())
    )


def mnist_idx(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in MNIST_FILES.items():
        (folder / name).write_bytes(idx(array))


def mnist_gz(folder: Path) -> None:
    for name, array in MNIST_FILES.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))


def mnist_npz(folder: Path) -> None:
    np.savez(
        folder / "mnist.npz",
        x_train=DIGITS[:20],
        y_train=TEN[:20],
        x_test=DIGITS[20:],
        y_test=TEN[20:30],
    )


def cifar_batches() -> dict[str, bytes]:
    """Ten samples per file: the label's byte, then the 3072 of the image."""
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    rows = [bytes([y]) + x.tobytes() for x, y in zip(PHOTOS, TEN)]
    return {name: b"".join(rows[10 * i : 10 * i + 10]) for i, name in enumerate(names)}


def cifar_folder(folder: Path) -> None:
    (folder / "cifar-10-batches-bin").mkdir()
    for name, content in cifar_batches().items():
        (folder / "cifar-10-batches-bin" / name).write_bytes(content)


def cifar_archive(folder: Path, skip: str = "") -> None:
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for name, content in cifar_batches().items():
            if name != skip:
                member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def cifar_npz(folder: Path) -> None:
    np.savez(
        folder / "cifar10.npz",
        x_train=PHOTOS[:50],
        y_train=TEN[:50],
        x_test=PHOTOS[50:],
        y_test=TEN[50:],
    )


def drive_text(folder: Path) -> None:
    lines = (" ".join([*map(repr, map(float, x)), str(y + 1)]) for x, y in zip(DRIVE_X, DRIVE_Y))
    (folder / "Sensorless_drive_diagnosis.txt").write_text("\n".join(lines) + "\n")


def drive_npz(folder: Path) -> None:
    np.savez(folder / "drive.npz", x=DRIVE_X, y=DRIVE_Y)


def load(folder: Path, name: str) -> Dataset:
    """Without the warning that small files are not the published ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return load_data(folder, name)


# -- the same samples from every format --------------------------------------------------


@pytest.mark.parametrize("write", [mnist_idx, mnist_gz, mnist_npz])
@pytest.mark.parametrize("below", ["", "data"])
def test_mnist(tmp_path: Path, write: Callable[[Path], None], below: str) -> None:
    (tmp_path / below).mkdir(exist_ok=True)
    write(tmp_path / below)
    data = load(tmp_path, "mnist")
    pixels = DIGITS.reshape(30, 784) / 255 * 2 - 1
    np.testing.assert_allclose(data.train_x, pixels[:20], atol=1e-6)
    np.testing.assert_allclose(data.test_x, pixels[20:], atol=1e-6)
    assert data.train_y.tolist() == TEN[:20].tolist()
    assert data.test_y.tolist() == TEN[20:30].tolist()
    assert data.train_x.dtype == np.float32 and data.train_y.dtype == np.int64
    assert data.bounds == (-1, 1)
    assert abs(data.train_x).max() <= 1


def test_mnist_where_torchvision_keeps_it(tmp_path: Path) -> None:
    mnist_idx(tmp_path / "MNIST" / "raw")
    assert load(tmp_path, "mnist").source == tmp_path / "MNIST" / "raw"


@pytest.mark.parametrize("write", [cifar_folder, cifar_archive, cifar_npz])
def test_cifar(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    data = load(tmp_path, "cifar")
    pixels = PHOTOS.reshape(60, 3072) / 255 * 2 - 1
    np.testing.assert_allclose(data.train_x, pixels[:50], atol=1e-6)
    np.testing.assert_allclose(data.test_x, pixels[50:], atol=1e-6)
    assert data.train_y.tolist() == TEN[:50].tolist()
    assert data.test_y.tolist() == TEN[50:].tolist()


@pytest.mark.parametrize("write", [drive_text, drive_npz])
def test_drive(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    data = load(tmp_path, "drive")
    every = (DRIVE_X - DRIVE_X.mean(0)) / DRIVE_X.std(0, ddof=1)
    train = np.setdiff1d(np.arange(110), data.test_index)
    np.testing.assert_allclose(data.test_x, every[data.test_index], atol=1e-5)
    np.testing.assert_allclose(data.train_x, every[train], atol=1e-5)
    assert data.test_y.tolist() == DRIVE_Y[data.test_index].tolist()
    assert data.train_y.tolist() == DRIVE_Y[train].tolist()
    assert np.bincount(data.test_y).tolist() == [2] * 11  # a fifth of ten
    assert data.bounds is None


def test_published_files_come_before_a_part_of_them(tmp_path: Path) -> None:
    drive_npz(tmp_path)
    assert load(tmp_path, "drive").source.name == "drive.npz"
    drive_text(tmp_path)
    assert load(tmp_path, "drive").source.name == "Sensorless_drive_diagnosis.txt"


def test_the_fingerprint_tells_data_apart(tmp_path: Path) -> None:
    mnist_npz(tmp_path)
    first = load(tmp_path, "mnist").fingerprint
    assert load(tmp_path, "mnist").fingerprint == first
    mnist_idx(tmp_path)
    assert load(tmp_path, "mnist").fingerprint == first
    labels = tmp_path / "t10k-labels-idx1-ubyte"
    labels.write_bytes(idx(TEN[21:31]))
    assert load(tmp_path, "mnist").fingerprint != first


def test_a_split_is_stratified_and_fixed() -> None:
    y = np.repeat(np.arange(3), [10, 20, 45])
    train, test = split(y)
    assert sorted([*train, *test]) == list(range(75))
    assert np.bincount(y[test]).tolist() == [2, 4, 9]
    assert np.array_equal(test, split(y)[1])
    assert not np.array_equal(test, split(y, seed=1)[1])


# -- what may be wrong -------------------------------------------------------------------


def refused(folder: Path, name: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        load(folder, name)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("drive", ["Sensorless_drive_diagnosis.txt", "drive.npz"]),
        ("mnist", [*MNIST_FILES, ".gz", "MNIST/raw", "mnist.npz"]),
        ("cifar", ["data_batch_1.bin", "cifar-10-binary.tar.gz", "cifar10.npz"]),
    ],
)
def test_what_was_looked_for_is_listed(tmp_path: Path, name: str, files: list[str]) -> None:
    text = refused(tmp_path, name)
    assert str(tmp_path) in text and "docs/data.md" in text
    assert all(file in text for file in files)
    assert "which is no folder" in refused(tmp_path / "absent", name)


def test_a_set_of_files_that_is_not_complete(tmp_path: Path) -> None:
    mnist_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    assert f"in {tmp_path} there is no t10k-labels-idx1-ubyte" in refused(tmp_path, "mnist")


def test_an_unknown_name(tmp_path: Path) -> None:
    assert "no data set 'svhn': there are drive, mnist, cifar" in refused(tmp_path, "svhn")


def test_an_archive_that_is_not_the_published_one_is_told(tmp_path: Path) -> None:
    cifar_archive(tmp_path)
    with pytest.warns(DataWarning, match="c32a1d4ab5d03f1284b67883e8d87530"):
        load_data(tmp_path, "cifar")
    mnist_gz(tmp_path)
    with pytest.warns(DataWarning) as caught:
        load_data(tmp_path, "mnist")
    assert len(caught) == 4


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (idx(DIGITS[:20])[:-1], "header says"),
        (idx(DIGITS[:20]) + b"\0", "header says"),
        (idx(TEN[:20]), "no IDX file of bytes with 3 axes"),
        (b"\0\0\x08\x03\0", "no IDX file"),
        (b"", "no IDX file"),
        (idx(DIGITS[:20, :14, :]), "14 x 28, expected 28 x 28"),
        (idx(DIGITS[:19]), "do not match"),
    ],
)
def test_damaged_idx_files(tmp_path: Path, content: bytes, says: str) -> None:
    mnist_idx(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    assert says in refused(tmp_path, "mnist")


def test_damaged_archives(tmp_path: Path) -> None:
    mnist_gz(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    assert "fetch it again" in refused(tmp_path, "mnist")
    cifar_archive(tmp_path, skip="data_batch_3.bin")
    assert "holds no data_batch_3.bin" in refused(tmp_path, "cifar")
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(path.read_bytes()[:2000])
    assert "fetch it again" in refused(tmp_path, "cifar")


def test_damaged_cifar_files(tmp_path: Path) -> None:
    cifar_folder(tmp_path)
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert "30729 bytes" in refused(tmp_path, "cifar")
    path.write_bytes(bytes([10]) + bytes(3072))
    assert "labels from 0 to 10" in refused(tmp_path, "cifar")


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["1 2 3"], "1 lines of 3 numbers, expected lines of 49"),
        ([" ".join(["1"] * 48 + ["x"])], "cannot be read as a table"),
        ([" ".join(["1"] * 48 + ["1.5"])], "whole numbers"),
        ([" ".join(["nan"] * 48 + ["1"])], "not finite"),
        ([" ".join(["1"] * 48 + ["12"])], "labels from 11 to 11"),
        ([" ".join(["1"] * 48 + ["0"])], "labels from -1 to -1"),
        ([" ".join(["1"] * 48 + ["1"])], "at least 3"),
        ([" ".join(["1"] * 48 + [str(y)]) for y in range(1, 12)] * 3, "constant"),
    ],
)
def test_wrong_drive_files(tmp_path: Path, lines: list[str], says: str) -> None:
    (tmp_path / "Sensorless_drive_diagnosis.txt").write_text("\n".join(lines))
    assert says in refused(tmp_path, "drive")


def test_wrong_npz_files(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    path.write_bytes(b"no zip")
    assert "cannot be read as .npz" in refused(tmp_path, "mnist")
    np.savez(path, x_train=DIGITS, y_train=TEN[:30])
    assert "holds x_train, y_train, but no x_test, y_test" in refused(tmp_path, "mnist")
    wrong = {"y_train": TEN[:30], "x_test": DIGITS, "y_test": TEN[:30]}
    np.savez(path, x_train=DIGITS / 255, **wrong)
    assert "pixels must be bytes" in refused(tmp_path, "mnist")
    np.savez(path, x_train=DIGITS[:, :7], **wrong)
    assert "196 features per sample, mnist has 784" in refused(tmp_path, "mnist")
