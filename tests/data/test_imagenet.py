"""ImageNet's folder layout on a small tree: crops, determinism, resuming, shards, workers, errors."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from askew.data import imagenet as module
from askew.data.imagenet import epoch_loader, random_box, shorter_side, transform
from askew.data.images import DataError
from askew.data.loader import generator

ImageNet = partial(module.ImageNet, classes=2, resize=16, crop=12)
CLASSES = ("n01", "n02")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Five training and three validation images a class, of many shapes; PNG content under the official names."""
    rng = np.random.default_rng(0)
    for split, each in (("train", 5), ("val", 3)):
        for c, wnid in enumerate(CLASSES):
            place = tmp_path / split / wnid
            place.mkdir(parents=True)
            for i in range(each):
                shape = (20 + 7 * i, 40 - 5 * i, 3)
                name = f"{wnid}_{i}.JPEG" if split == "train" else f"ILSVRC2012_val_{c}{i}.JPEG"
                Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(place / name, "png")
    return tmp_path


def test_both_splits_give_bytes_of_the_crop_and_labels(root: Path) -> None:
    train, val = ImageNet(root, "train"), ImageNet(root, "val")
    assert len(train) == 10 and len(val) == 6 and train.classes == CLASSES
    for data in (train, val, ImageNet(root, "train", how="resized")):
        x, y = data[0, len(data) - 1]
        assert x.shape == (3, 12, 12) and x.dtype == torch.uint8 and x.is_contiguous() and y == 1


def test_validation_is_the_centre_of_the_scaled_image(root: Path) -> None:
    data = ImageNet(root, "val")
    image = Image.open(root / "val" / "n01" / "ILSVRC2012_val_01.JPEG").convert("RGB")
    assert image.size == (35, 27)
    scaled = image.resize((16 * 35 // 27, 16), Image.Resampling.BILINEAR)
    left = (scaled.width - 12) // 2
    expected = np.asarray(scaled)[2:14, left : left + 12]
    assert np.array_equal(data[0, 1][0].permute(1, 2, 0), expected)
    assert torch.equal(data[9, 1][0], data[1][0])


@pytest.mark.parametrize("how", ["random", "resized"])
def test_training_images_are_fixed_by_seed_epoch_and_index(root: Path, how: module.Crop) -> None:
    data, again, other = (ImageNet(root, "train", how=how, seed=seed) for seed in (1, 1, 2))
    for index in range(len(data)):
        assert torch.equal(data[3, index][0], again[3, index][0])
    assert any(not torch.equal(data[3, i][0], data[4, i][0]) for i in range(10))
    assert any(not torch.equal(data[3, i][0], other[3, i][0]) for i in range(10))


def test_a_random_crop_is_a_window_or_its_mirror_image() -> None:
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (20, 16, 3), np.uint8))
    pixels = np.asarray(image)
    seen = set()
    for k in range(150):
        out = np.asarray(transform(image, "random", 16, 12, generator(0, 0, k)))
        fits = [
            (top, left, mirrored)
            for top in range(9)
            for left in range(5)
            for mirrored in (False, True)
            if np.array_equal(out[:, ::-1] if mirrored else out, pixels[top : top + 12, left : left + 12])
        ]
        assert len(fits) == 1
        seen.update(fits)
    assert {s[2] for s in seen} == {False, True} and {s[0] for s in seen} == set(range(9))


def test_boxes_lie_inside_and_cover_what_they_should() -> None:
    for k in range(300):
        left, top, right, bottom = random_box(50, 40, generator(k))
        assert 0 <= left < right <= 50 and 0 <= top < bottom <= 40
        assert 0.06 < (right - left) * (bottom - top) / 2000 <= 1
        assert 0.6 < (right - left) / (bottom - top) < 1.6
    assert random_box(1000, 10, np.random.default_rng(0))[1::2] == (0, 10)
    assert shorter_side(Image.new("RGB", (3, 900)), 16).size == (16, 4800)


def test_workers_skipping_and_ranks_give_the_same_batches(root: Path) -> None:
    data = ImageNet(root, "train", seed=5)
    whole = list(epoch_loader(data, 4, epoch=2, workers=0))
    assert [tuple(x.shape) for x, _ in whole] == [(4, 3, 12, 12)] * 2
    worked = list(epoch_loader(data, 4, epoch=2, workers=2))
    skipped = list(epoch_loader(data, 4, epoch=2, workers=0, skip=1))
    ranks = [list(epoch_loader(data, 4, epoch=2, workers=0, rank=r, world=2)) for r in range(2)]
    joined = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*ranks, strict=True)]
    for found, expected in ((worked, whole), (skipped, whole[1:]), (joined, whole)):
        assert len(found) == len(expected)
        assert all(torch.equal(a, b) for p, q in zip(found, expected, strict=True) for a, b in zip(p, q, strict=True))
    assert not torch.equal(whole[0][0], next(iter(epoch_loader(data, 4, epoch=3, workers=0)))[0])
    with pytest.raises(ValueError, match="cannot skip 3 of 2"):
        epoch_loader(data, 4, epoch=0, skip=3)


def test_validation_batches_hold_every_image_once_in_order(root: Path) -> None:
    labels = [y.tolist() for _, y in epoch_loader(ImageNet(root, "val"), 4, epoch=0, workers=0)]
    assert labels == [[0, 0, 0, 1], [1, 1]]


def test_a_flat_validation_folder_with_its_map(root: Path) -> None:
    nested = ImageNet(root, "val")
    lines = []
    for path in sorted((root / "val").glob("*/*.JPEG")):
        lines.append(f"{path.name} {path.parent.name}\n")
        path.rename(root / "val" / path.name)
    for wnid in CLASSES:
        (root / "val" / wnid).rmdir()
    expected_labels = nested.labels.tolist()
    (root / "val.txt").write_text("".join(lines))
    flat = ImageNet(root, "val", val_map=root / "val.txt")
    assert flat.labels.tolist() == expected_labels and flat[5][1] == 1
    boxed = [line.replace(".JPEG ", ",").replace("\n", " 1 2 3 4\n") for line in lines]  # as Kaggle has it
    (root / "val.csv").write_text("".join(["ImageId,PredictionString\n", *boxed]))
    assert ImageNet(root, "val", val_map=root / "val.csv").labels.tolist() == expected_labels
    (root / "truth.txt").write_text("490\n361\n")  # as the development kit has it
    with pytest.raises(DataError, match=r"truth\.txt: entry 1 is not an image name followed by its class"):
        ImageNet(root, "val", val_map=root / "truth.txt")
    (root / "val.txt").write_text("".join(lines[1:]))
    with pytest.raises(DataError, match=r"ILSVRC2012_val_00\.JPEG has no annotation"):
        ImageNet(root, "val", val_map=root / "val.txt")
    with pytest.raises(DataError, match=r"val: holds no class folders; .* with --val-map"):
        ImageNet(root, "val")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_named_from_any_process(root: Path, workers: int) -> None:
    bad = root / "train" / "n02" / "n02_3.JPEG"
    bad.write_bytes(bad.read_bytes()[:200])
    with pytest.raises(DataError, match=r"n02_3\.JPEG: not a readable image"):
        list(epoch_loader(ImageNet(root, "train"), 10, epoch=0, workers=workers))


def test_wrong_trees_and_settings_are_refused(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ImageNet(root / "nowhere", "train")
    with pytest.raises(DataError, match="2 class folders, 1000 expected"):
        module.ImageNet(root, "train")
    (root / "val" / "n02").rename(root / "val" / "n03")
    with pytest.raises(DataError, match="differ in the class n02"):
        ImageNet(root, "val")
    with pytest.raises(ValueError, match="crop 17"):
        ImageNet(root, "train", crop=17)
    with pytest.raises(ValueError, match="'test' is not train or val"):
        ImageNet(root, "test")  # pyright: ignore[reportArgumentType]


def test_the_digest_follows_names_and_labels(root: Path) -> None:
    before = ImageNet(root, "train").digest
    assert before == ImageNet(root, "train", seed=1).digest != ImageNet(root, "val").digest
    file = root / "train" / "n02" / "n02_4.JPEG"
    file.rename(file.with_stem("n02_5"))
    assert ImageNet(root, "train").digest != before
