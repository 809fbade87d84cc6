"""The image cache: decoded once, checked always, rebuilt when it does not match; folders of images; exact sums."""

from __future__ import annotations

import errno
import logging
import os
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from askew.data import cache, images
from askew.data import files as file_module
from askew.data.cache import list_by_class, listed, read_cache
from askew.data.files import decode_files
from askew.data.images import DataError, ImageSet, evenly, moments

SIZE = (6, 5)


def tree(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 3, seed: int = 0) -> np.ndarray:
    """folder/CLASS/N.png with random pixels, which are returned in the order of the names."""
    pixels = np.random.default_rng(seed).integers(0, 256, (len(classes) * each, *SIZE, 3), np.uint8)
    for i, image in enumerate(pixels):
        place = folder / classes[i // each]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i % each:0{len(str(each - 1))}d}.png")
    return pixels


def load(folder: Path, cache: Path | None = None, check: bool = False) -> ImageSet:
    return listed("pets", folder, list_by_class(folder), SIZE, cache=cache, check=check)


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of files each time files are decoded."""
    calls: list[int] = []

    def counting(files: list[str], into: np.ndarray, workers: int | None = None) -> None:
        calls.append(len(files))
        decode_files(files, into, workers)

    monkeypatch.setattr(cache, "decode_files", counting)
    return calls


def test_a_folder_is_decoded_once_and_then_mapped(tmp_path: Path, decodings: list[int]) -> None:
    pixels = tree(tmp_path)
    first, second = load(tmp_path), load(tmp_path, check=True)
    assert decodings == [6]
    for found in (first, second):
        assert isinstance(found.images, np.memmap) and not found.images.flags.writeable
        assert np.array_equal(found.images, pixels)
        assert found.labels.tolist() == [0, 0, 0, 1, 1, 1] and found.classes == ("cat", "dog")
        assert found.name == "pets" and len(found) == 6
        assert found.known == moments(pixels)
    assert sorted(p.name for p in (tmp_path / ".askew-cache").iterdir()) == ["pets.images", "pets.images.lock"]


def test_a_changed_source_is_decoded_again(
    tmp_path: Path, decodings: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    tree(tmp_path)
    load(tmp_path)
    changed = np.zeros((*SIZE, 3), np.uint8)
    Image.fromarray(changed).save(tmp_path / "cat" / "1.png")
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(load(tmp_path).images[1], changed)
    assert "source has changed" in caplog.text
    stat = (tmp_path / "dog" / "0.png").stat()
    os.utime(tmp_path / "dog" / "0.png", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    load(tmp_path)
    (tmp_path / "dog" / "0.png").rename(tmp_path / "dog" / "00.png")
    load(tmp_path)
    assert decodings == [6] * 4


@pytest.mark.parametrize("keep", [0, 10, 60, 4200, -1])
def test_a_truncated_cache_is_rebuilt(tmp_path: Path, decodings: list[int], keep: int) -> None:
    pixels = tree(tmp_path)
    load(tmp_path)
    path = tmp_path / ".askew-cache" / "pets.images"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="cache"):
        read_cache(path)
    assert np.array_equal(load(tmp_path).images, pixels)
    assert decodings == [6, 6]


@pytest.mark.parametrize(("at", "check"), [(3, False), (20, False), (80, False), (-1, True), (-100, True)])
def test_a_corrupt_cache_is_rebuilt(tmp_path: Path, decodings: list[int], at: int, check: bool) -> None:
    """A damaged header is always found, damaged data by the full check."""
    pixels = tree(tmp_path)
    load(tmp_path)
    path = tmp_path / ".askew-cache" / "pets.images"
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(DataError, match="cache"):
        read_cache(path, check=check)
    found = load(tmp_path, check=check)
    assert np.array_equal(found.images, pixels) and found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert decodings == [6, 6]


def test_an_unwritable_folder_falls_back_to_the_users_cache(
    tmp_path: Path, decodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    data = tmp_path / "data"
    pixels = tree(data)
    (data / ".askew-cache").write_text("a file where the folder should be")
    assert np.array_equal(load(data).images, pixels)
    assert np.array_equal(load(data).images, pixels)
    assert decodings == [6]
    assert len(list((tmp_path / "home" / "askew").glob("*/pets.images"))) == 1


def test_a_full_disk_falls_back_to_the_users_cache(
    tmp_path: Path, decodings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room in either place the error says how much is needed and what to do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    full, fallocate = [1, 1, 1], os.posix_fallocate

    def reserve(handle: int, offset: int, size: int) -> None:
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        fallocate(handle, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    pixels = tree(tmp_path / "data")
    with pytest.raises(OSError, match=r"need \d+ bytes; set XDG_CACHE_HOME"):
        load(tmp_path / "data")
    assert np.array_equal(load(tmp_path / "data").images, pixels) and decodings == [6]
    assert len(list((tmp_path / "home" / "askew").glob("*/pets.images"))) == 1


def test_a_given_cache_is_used_or_refused_by_name(tmp_path: Path) -> None:
    tree(tmp_path / "data")
    load(tmp_path / "data", cache=tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "pets.images").is_file()
    assert not (tmp_path / "data" / ".askew-cache").exists()
    (tmp_path / "taken").write_text("")
    with pytest.raises(PermissionError, match=r"taken.*cache="):
        load(tmp_path / "data", cache=tmp_path / "taken")


@pytest.mark.parametrize("locking", [True, False])
def test_concurrent_loads_agree(
    tmp_path: Path, decodings: list[int], monkeypatch: pytest.MonkeyPatch, locking: bool
) -> None:
    """With locks one of them decodes; without, several may, and each still renames a whole file into place."""
    if not locking:
        fcntl = pytest.importorskip("fcntl")
        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError("no locks here")))
    pixels = tree(tmp_path, each=20)
    found: list[ImageSet] = []
    threads = [threading.Thread(target=lambda: found.append(load(tmp_path, check=True))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and all(np.array_equal(one.images, pixels) for one in found)
    assert sorted(p.name for p in (tmp_path / ".askew-cache").iterdir()) == ["pets.images", "pets.images.lock"]
    assert not locking or decodings == [40]


def test_a_failed_decoding_leaves_no_file(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "cat" / "2.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"cat.2\.png: not a readable image"):
        load(tmp_path)
    assert [p.name for p in (tmp_path / ".askew-cache").iterdir()] == ["pets.images.lock"]


def test_processes_decode_what_one_does_and_name_a_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "CHUNK", 4)
    pixels = tree(tmp_path, each=10)
    files = [file.path for file in list_by_class(tmp_path).files]
    into = np.memmap(tmp_path / "raw", np.uint8, "w+", 0, pixels.shape)
    decode_files(files, into, workers=2)
    assert np.array_equal(into, pixels)
    content = (tmp_path / "dog" / "7.png").read_bytes()
    (tmp_path / "dog" / "7.png").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match=r"dog.7\.png: not a readable image"):
        decode_files(files, into, workers=2)


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere: no such folder"):
        list_by_class(tmp_path / "nowhere")
    with pytest.raises(DataError, match="0 class folders"):
        list_by_class(tmp_path)
    tree(tmp_path)
    with pytest.raises(DataError, match="2 class folders, 10 expected"):
        list_by_class(tmp_path, 10)
    Image.new("RGB", (7, 6)).save(tmp_path / "dog" / "2.png")
    with pytest.raises(DataError, match=r"dog.2\.png: 6x7 pixels, 6x5 expected"):
        load(tmp_path)
    (tmp_path / "ant").mkdir()
    (tmp_path / "ant" / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match="ant: holds no images"):
        list_by_class(tmp_path)


def test_greyscale_and_palette_images_become_rgb(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    grey = np.arange(30, dtype=np.uint8).reshape(SIZE)
    Image.fromarray(grey).save(tmp_path / "a" / "0.png")
    Image.fromarray(grey).convert("P").save(tmp_path / "a" / "1.png")
    found = load(tmp_path)
    assert all(np.array_equal(image, np.stack([grey] * 3, -1)) for image in found.images)


def test_statistics_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "CHUNK", 3)
    pixels = np.random.default_rng(1).integers(0, 256, (8, 5, 4, 3), np.uint8)
    found = ImageSet(pixels, np.zeros(8, np.int64), ("one",), "x")
    for c in range(3):
        values = [int(v) for v in pixels[..., c].ravel()]
        mean = Fraction(sum(values), 255 * len(values))
        variance = sum((Fraction(v, 255) - mean) ** 2 for v in values) / len(values)
        assert found.mean[c] == float(mean)
        assert found.std[c] == pytest.approx(float(variance) ** 0.5, rel=1e-15)
    white = ImageSet(np.full((600, 2, 2, 3), 255, np.uint8), np.zeros(600, np.int64), ("one",), "x")
    assert white.mean == (1.0, 1.0, 1.0) and white.std == (0.0, 0.0, 0.0)


def test_a_set_checks_itself() -> None:
    pixels, labels = np.zeros((2, 3, 3, 3), np.uint8), np.zeros(2, np.int64)
    for bad in (pixels.astype(np.float32), pixels[..., :1], pixels[:0]):
        with pytest.raises(DataError, match="x: images are"):
            ImageSet(bad, labels, ("a",), "x")
    for bad in (labels[:1], labels.astype(np.int32)):
        with pytest.raises(DataError, match="x: labels are"):
            ImageSet(pixels, bad, ("a",), "x")
    with pytest.raises(DataError, match=r"outside 0\.\.0"):
        ImageSet(pixels, labels + 1, ("a",), "x")


@pytest.mark.parametrize("count", [1, 7, 20, 33, 49, 50, 51, 1000])
def test_a_thinned_set_has_as_many_of_each_class(count: int) -> None:
    labels = np.repeat(np.arange(5), 10).astype(np.int64)
    some = ImageSet(np.zeros((50, 2, 2, 3), np.uint8), labels, tuple("abcde"), "x").thinned(count)
    assert len(some) == min(count, 50) and len(np.unique(evenly(50, count))) == len(some)
    each = np.bincount(some.labels, minlength=5)
    assert each.max() - each.min() <= 1
