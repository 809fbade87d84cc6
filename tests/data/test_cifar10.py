"""CIFAR-10: the same pixels from every layout, and damaged or hostile files refused by name."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from askew.data import cifar10 as module
from askew.data.cifar10 import BINARY, CLASSES, PYTHON, Version, cifar10, read_pickle
from askew.data.images import DataError, ImageSet

EACH = 4  # images in one batch file
SIZES = (5 * EACH, EACH)
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6 * EACH, 32, 32, 3), np.uint8)
LABELS = np.concatenate([np.arange(20) % 10, [0, 1, 2, 3]])


def python2_pickle(planes: np.ndarray, labels: list[int]) -> bytes:
    """A batch as the official files hold it: protocol 2 as Python 2 and numpy 1 wrote it."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    raw = planes.tobytes()
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    shape = b"".join(map(number, planes.shape)) + b"\x86"
    array += b"(" + number(1) + shape + dtype + b"\x89" + b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    entries = text(b"batch_label") + text(b"training batch") + text(b"labels") + listed + text(b"data") + array
    return b"\x80\x02}(" + entries + b"u."


def as_planes(pixels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)


def batch_file(version: Version, part: slice) -> bytes:
    planes, labels = as_planes(PIXELS[part]), LABELS[part]
    if version is PYTHON:
        return python2_pickle(planes, labels.tolist())
    return np.concatenate([labels[:, None].astype(np.uint8), planes], 1).tobytes()


def unpacked(folder: Path, version: Version) -> Path:
    place = folder / version.folder
    place.mkdir(parents=True)
    for i, name in enumerate(version.train + version.test):
        (place / name).write_bytes(batch_file(version, slice(i * EACH, (i + 1) * EACH)))
    return place


def archive(folder: Path, version: Version) -> Path:
    place = unpacked(folder / "made", version)
    with tarfile.open(folder / version.archive, "w:gz") as tar:
        tar.add(place, version.folder)
    return folder / version.archive


def image_folder(folder: Path, suffix: str = "png") -> Path:
    """The training images of the batches, by class, as both parts: every class must be in each."""
    for part in ("train", "test"):
        for i in range(20):
            place = folder / part / CLASSES[LABELS[i]]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(PIXELS[i]).save(place / f"{i:04d}.{suffix}")
    return folder


def same(found: ImageSet, rows: slice) -> bool:
    return np.array_equal(found.images, PIXELS[rows]) and np.array_equal(found.labels, LABELS[rows])


@pytest.mark.parametrize("version", [PYTHON, BINARY], ids=["python", "binary"])
@pytest.mark.parametrize("make", [unpacked, archive])
def test_official_versions_hold_the_same_pixels(
    tmp_path: Path, version: Version, make: Callable[[Path, Version], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path, version)
    for place in (tmp_path, made):
        found = cifar10(place, sizes=SIZES, verify=False)
        assert same(found.train, slice(0, 20)) and same(found.test, slice(20, 24))
        assert found.train.classes == CLASSES and found.train.name == "cifar10-train"
    monkeypatch.setattr(module, "_draft", None)
    again = cifar10(tmp_path, sizes=SIZES, verify=False, check=True)
    assert same(again.train, slice(0, 20))


def test_a_folder_of_images_holds_the_same_pixels_by_class(tmp_path: Path) -> None:
    found = cifar10(image_folder(tmp_path), sizes=None)
    by_class = np.argsort(LABELS[:20], kind="stable")
    assert np.array_equal(found.train.images, PIXELS[by_class])
    assert np.array_equal(found.train.labels, LABELS[by_class])
    assert found.train.classes == CLASSES and found.train.name == "cifar10-png-train"


def test_a_lossy_copy_says_so(tmp_path: Path) -> None:
    assert cifar10(image_folder(tmp_path, "jpg"), sizes=None).test.name == "cifar10-jpeg-test"


def test_pickles_of_python_3_are_read_as_well() -> None:
    planes = as_planes(PIXELS[:3])
    for order in ("C", "F"):
        content = pickle.dumps({b"data": np.asarray(planes, order=order), b"labels": [1, 2, 3]}, protocol=2)
        assert np.array_equal(read_pickle(content, "x").images, PIXELS[:3])


class Hostile:
    """Unpickling this with pickle.load makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_a_hostile_pickle_does_not_execute(tmp_path: Path) -> None:
    place = unpacked(tmp_path, PYTHON)
    (place / "data_batch_3").write_bytes(pickle.dumps({b"data": Hostile(tmp_path / "owned"), b"labels": []}))
    with pytest.raises(DataError, match=r"data_batch_3: not a CIFAR-10 batch .*mkdir"):
        cifar10(tmp_path, sizes=SIZES, verify=False)
    assert not (tmp_path / "owned").exists()
    for name in ("builtins\neval", "os\nsystem", "numpy\nload", "numpy.core.multiarray\nfromfile", "_codecs\ndecode"):
        with pytest.raises(DataError, match="never does"):
            read_pickle(b"c" + name.encode() + b"\n(Vignored\ntR.", "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({b"data": b"raw", b"labels": []}, "data are not uint8"),
        ({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}, "data are not uint8"),
        ({b"data": np.zeros((2, 3072), np.float32), b"labels": [1, 2]}, "not uint8"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}, "labels are not a list of 2"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1, 10]}, r"outside 0\.\.9"),
        ([1, 2], "no dictionary"),
    ],
)
def test_other_pickles_are_refused(content: object, message: str) -> None:
    with pytest.raises(DataError, match=f"file x: .*{message}"):
        read_pickle(pickle.dumps(content, protocol=2), "file x")


@pytest.mark.parametrize("version", [PYTHON, BINARY], ids=["python", "binary"])
def test_a_wrong_checksum_and_a_truncated_archive_are_named(
    tmp_path: Path, version: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path, version)
    with pytest.raises(DataError, match=rf"{version.archive}: md5 .* official archive's is {version.md5}"):
        cifar10(tmp_path, sizes=SIZES)
    right = version._replace(md5=hashlib.md5(path.read_bytes()).hexdigest())
    monkeypatch.setattr(module, "PYTHON" if version is PYTHON else "BINARY", right)
    assert same(cifar10(tmp_path, sizes=SIZES).train, slice(0, 20))
    whole = path.read_bytes()
    path.write_bytes(whole[:-8] + bytes(4) + whole[-4:])  # the sum that gzip keeps of its content
    with pytest.raises(DataError, match=f"{version.archive}: truncated or damaged after .*CRC"):
        cifar10(tmp_path, sizes=SIZES, verify=False)
    path.write_bytes(whole[:-20000])
    with pytest.raises(DataError, match=f"{version.archive}: md5 .* truncated or altered"):
        cifar10(tmp_path, sizes=SIZES)
    with pytest.raises(DataError, match=f"{version.archive}: truncated or damaged after"):
        cifar10(tmp_path, sizes=SIZES, verify=False)


@pytest.mark.parametrize("version", [PYTHON, BINARY], ids=["python", "binary"])
def test_damaged_and_missing_batches_are_named(tmp_path: Path, version: Version) -> None:
    place = unpacked(tmp_path, version)
    bad = place / version.train[1]
    bad.write_bytes(bad.read_bytes()[:-7])
    with pytest.raises(DataError, match=version.train[1]):
        cifar10(tmp_path, sizes=SIZES, verify=False)
    bad.unlink()
    with pytest.raises(FileNotFoundError, match=f"{version.train[1]} missing"):
        cifar10(tmp_path, sizes=SIZES)


def test_an_altered_file_of_the_unpacked_version_is_named_by_its_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = unpacked(tmp_path, PYTHON)
    assert same(cifar10(tmp_path, sizes=SIZES, verify=False).train, slice(0, 20))
    with pytest.raises(DataError, match=r"data_batch_1: md5 .* the official file's is c99cafc1.* --no-check-data"):
        cifar10(tmp_path, sizes=SIZES)  # read unchecked before, and cached
    sums = {name: hashlib.md5((place / name).read_bytes()).hexdigest() for name in PYTHON.train + PYTHON.test}
    monkeypatch.setattr(module, "PYTHON", PYTHON._replace(sums=sums))
    assert same(cifar10(tmp_path, sizes=SIZES).train, slice(0, 20))


def test_missing_data_and_wrong_counts_are_errors(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        cifar10(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"looked for cifar-10-batches-py/.*cifar-10-binary.tar.gz.*train/CLASS"
    ):
        cifar10(tmp_path)
    image_folder(tmp_path)
    with pytest.raises(DataError, match="train: holds 20 images, 50000 expected"):
        cifar10(tmp_path)
    (tmp_path / "test" / "truck").rename(tmp_path / "test" / "lorry")
    with pytest.raises(DataError, match=r"different classes \(lorry, truck\)"):
        cifar10(tmp_path, sizes=None)
    (tmp_path / "train" / "zebra").mkdir()
    with pytest.raises(DataError, match="11 class folders, 10 expected"):
        cifar10(tmp_path, sizes=None)
    place = unpacked(tmp_path / "official", BINARY)
    for _ in range(2):  # decoded, then from the cache
        with pytest.raises(DataError, match=f"{place.name}: holds 20 images, 50000 expected"):
            cifar10(place)
