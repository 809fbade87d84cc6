"""TinyImageNet's official layout on a small tree."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from askew.data import tiny_imagenet as module
from askew.data.images import DataError

WNIDS = ("n02", "n01", "n03")
EACH, TEST = 2, 4
tiny_imagenet = partial(module.tiny_imagenet, classes=3, per_class=EACH, test=TEST)
PIXELS = np.random.default_rng(0).integers(0, 256, (10, 64, 64, 3), np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The layout, with PNG content under the official names: Pillow goes by content, and it is lossless."""
    root = tmp_path / "tiny-imagenet-200"
    for c, wnid in enumerate(WNIDS):
        place = root / "train" / wnid / "images"
        place.mkdir(parents=True)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("boxes\n")
        for i in range(EACH):
            Image.fromarray(PIXELS[c * EACH + i]).save(place / f"{wnid}_{i}.JPEG", "png")
    (root / "val" / "images").mkdir(parents=True)
    lines = []
    for i in range(TEST):
        image = Image.fromarray(PIXELS[6 + i])
        (image.convert("L") if i == 3 else image).save(root / "val" / "images" / f"val_{i}.JPEG", "png")
        lines.append(f"val_{i}.JPEG\t{WNIDS[i % 3]}\t0\t0\t62\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(reversed(lines)))
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (root / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tfire salamander\nn99\tother\n")
    return root


def test_the_layout_is_read_with_val_as_test_set(root: Path) -> None:
    for folder in (root, root.parent):
        found = tiny_imagenet(folder)
        assert found.train.classes == found.test.classes == ("n01", "n02", "n03")
        assert np.array_equal(found.train.images, PIXELS[[2, 3, 0, 1, 4, 5]])
        assert found.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert found.test.labels.tolist() == [1, 0, 2, 1]
        assert np.array_equal(found.test.images[:3], PIXELS[6:9])
        grey = np.asarray(Image.fromarray(PIXELS[9]).convert("L"))
        assert np.array_equal(found.test.images[3], np.stack([grey] * 3, -1))
    assert module.words(root.parent)["n02"] == "fire salamander"


def test_new_annotations_are_noticed(root: Path) -> None:
    tiny_imagenet(root)
    path = root / "val" / "val_annotations.txt"
    path.write_text(path.read_text().replace("val_0.JPEG\tn02", "val_0.JPEG\tn03"))
    assert tiny_imagenet(root).test.labels.tolist() == [2, 0, 2, 1]


def test_wrong_trees_are_named(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        module.tiny_imagenet(root / "nowhere")
    with pytest.raises(DataError, match="3 class folders, 200 expected"):
        module.tiny_imagenet(root)
    with pytest.raises(DataError, match="images: holds 2 images, 500 expected"):
        module.tiny_imagenet(root, classes=3)
    with pytest.raises(DataError, match="holds 4 images, 10000 expected"):
        module.tiny_imagenet(root, classes=3, per_class=2)
    (root / "val" / "images" / "val_9.JPEG").write_bytes(b"")
    with pytest.raises(DataError, match=r"val_9\.JPEG has no annotation"):
        module.tiny_imagenet(root, classes=3, per_class=2, test=None)


def test_damage_is_named(root: Path) -> None:
    annotations = root / "val" / "val_annotations.txt"
    text = annotations.read_text()
    for bad, message in (
        (text + "val_7.JPEG\tn01\n", r"val_7\.JPEG is annotated but missing"),
        (text.replace("n03", "n77"), "name n77"),
        (text + "val_7.JPEG\n", "entry 5 is not"),
    ):
        annotations.write_text(bad)
        with pytest.raises(DataError, match=message):
            tiny_imagenet(root)
    annotations.write_text(text)
    (root / "train" / "n01" / "images" / "n01_1.JPEG").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(DataError, match=r"n01_1\.JPEG: not a readable image"):
        tiny_imagenet(root)
    (root / "wnids.txt").write_text("n01\nn02\nn04\n")
    with pytest.raises(DataError, match="differ in n03, n04"):
        tiny_imagenet(root)
    (root / "wnids.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"wnids\.txt"):
        tiny_imagenet(root)
