"""Bad data on the command line: status 2 and one line that names the file or folder, before anything is trained."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from askew import cli


def pictures(folder: Path, count: int, side: int = 32) -> None:
    """So many PNG files."""
    folder.mkdir(parents=True)
    for i in range(count):
        Image.fromarray(np.full((side, side, 3), 20 * i, np.uint8)).save(folder / f"{i}.png")


def cifar(root: Path, classes: int = 10) -> Path:
    """CIFAR-10's layout in small: ten class folders in train and test."""
    for split in ("train", "test"):
        for label in range(classes):
            pictures(root / split / f"class{label}", 2)
    return root


def tiny(root: Path) -> Path:
    """TinyImageNet's official layout in small."""
    for label in ("n01", "n02"):
        pictures(root / "train" / label / "images", 2, 64)
    pictures(root / "val" / "images", 2, 64)
    (root / "val" / "val_annotations.txt").write_text("0.png\tn01\t0\t0\t62\t62\n1.png\tn02\t0\t0\t62\t62\n")
    (root / "wnids.txt").write_text("n01\nn02\n")
    return root


def complaint(capsys: pytest.CaptureFixture[str], data: Path, dataset: str, *more: str) -> str:
    """What the command says, on one line."""
    line = [
        "train",
        "--data",
        str(data),
        dataset,
        "--device",
        "cpu",
        "--epochs",
        "1",
        "--out",
        str(data.parent / "runs"),
    ]
    with pytest.raises(SystemExit) as stop:
        cli.main([*line, *more])
    captured = capsys.readouterr()
    assert stop.value.code == 2
    assert "Traceback" not in captured.err
    (message,) = captured.err.splitlines()
    assert message.startswith("askew: ")
    assert not list((data.parent / "runs").rglob("*.pt"))
    return message


def truncated_archive(root: Path) -> tuple[Path, str]:
    """An archive of the right name that breaks off."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        content = np.random.default_rng(0).integers(0, 256, 10_000, dtype=np.uint8).tobytes()
        entry = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    root.mkdir()
    archive = root / "cifar-10-binary.tar.gz"
    archive.write_bytes(whole.getvalue()[:5000])
    return archive, "truncated"


def truncated_batch(root: Path) -> tuple[Path, str]:
    """The unpacked binary version, one file of which is too short."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(bytes(2 * 3073 - (name == "data_batch_3.bin")))
    return folder / "data_batch_3.bin", "not a multiple of 3073"


def wrong_class_count(root: Path) -> tuple[Path, str]:
    cifar(root, classes=9)
    return root / "train", "9"


def other_classes_in_test(root: Path) -> tuple[Path, str]:
    (cifar(root) / "test" / "class4").rename(root / "test" / "klasse4")
    return root, "klasse4"


def unreadable_image(root: Path) -> tuple[Path, str]:
    bad = cifar(root) / "train" / "class3" / "1.png"
    bad.write_bytes(bad.read_bytes()[:40])
    return bad, ""


def no_image(root: Path) -> tuple[Path, str]:
    bad = cifar(root) / "test" / "class7" / "0.png"
    bad.write_text("not an image")
    return bad, ""


def wrong_size(root: Path) -> tuple[Path, str]:
    bad = cifar(root) / "train" / "class0" / "0.png"
    Image.fromarray(np.zeros((31, 32, 3), np.uint8)).save(bad)
    return bad, "31"


def empty_folder(root: Path) -> tuple[Path, str]:
    root.mkdir()
    return root, "no CIFAR-10 here"


def missing_folder(root: Path) -> tuple[Path, str]:
    return root, "no such folder"


def empty_class(root: Path) -> tuple[Path, str]:
    place = cifar(root) / "train" / "class5"
    shutil.rmtree(place)
    place.mkdir()
    return place, ""


BAD = [
    truncated_archive,
    truncated_batch,
    wrong_class_count,
    other_classes_in_test,
    unreadable_image,
    no_image,
    wrong_size,
    empty_folder,
    missing_folder,
    empty_class,
]


@pytest.mark.parametrize("spoil", BAD)
def test_bad_cifar10(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Callable[[Path], tuple[Path, str]]
) -> None:
    named, reason = spoil(tmp_path / "data")
    verify = spoil is truncated_archive
    message = complaint(capsys, tmp_path / "data", "cifar10", *([] if verify else ["--no-check-data"]))
    assert str(named) in message and reason in message


def test_a_copy_with_too_few_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = complaint(capsys, cifar(tmp_path / "data"), "cifar10")
    assert f"{tmp_path / 'data' / 'train'}: holds 20 images, 50000 expected" in message


@pytest.mark.parametrize("broken", ["wnids.txt", "val/val_annotations.txt", "val/images/0.png", "train/n02/images"])
def test_bad_tiny_imagenet(tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: str) -> None:
    """A file or folder that is not there is named."""
    root = tiny(tmp_path / "data")
    place = root / broken
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    message = complaint(capsys, root, "tiny-imagenet", "--no-check-data")
    assert Path(broken).name in message or str(place.parent) in message


def test_tiny_imagenet_with_other_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = complaint(capsys, tiny(tmp_path / "data"), "tiny-imagenet")
    assert "200" in message and str(tmp_path / "data") in message


@pytest.mark.parametrize(("spoiled", "workers"), [("empty", 0), ("unreadable", 0), ("unreadable", 1), ("classes", 0)])
def test_bad_imagenet(tmp_path: Path, capsys: pytest.CaptureFixture[str], spoiled: str, workers: int) -> None:
    root = tmp_path / "data"
    for split in ("train", "val"):
        for label in ("n01", "n02"):
            pictures(root / split / label, 2)
    if spoiled == "empty":
        named = root / "train" / "n01"
        shutil.rmtree(named)
        named.mkdir()
    elif spoiled == "unreadable":
        named = root / "train" / "n02" / "1.png"
        named.write_bytes(b"")
    else:
        named = root / "train"
    more = ["--resize", "32", "--crop", "32", "--batch", "4", "--workers", str(workers)]
    message = complaint(capsys, root, "imagenet", *more, *([] if spoiled == "classes" else ["--no-check-data"]))
    assert str(named) in message


def test_an_out_folder_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("")
    message = complaint(capsys, cifar(tmp_path / "data"), "cifar10", "--no-check-data")
    assert str(tmp_path / "runs") in message and "not writable" in message
