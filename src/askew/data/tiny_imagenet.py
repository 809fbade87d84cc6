"""TinyImageNet (200 classes of 64x64 images) in its official layout. Nothing is downloaded.

tiny-imagenet-200/{wnids.txt, words.txt, train/WNID/images/*.JPEG, val/images/*.JPEG, val/val_annotations.txt}. The
official test images have no labels: the validation images are the test set, as in the literature.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from askew.data.cache import Listing, list_by_class, listed
from askew.data.files import check_size, existing_folder, found_file, image_paths, labels_by_name, read_annotations
from askew.data.images import DataError, Splits

NAME = "tiny-imagenet-200"
SIDE = 64


def tiny_imagenet(
    folder: str | Path,
    *,
    classes: int | None = 200,
    per_class: int | None = 500,
    test: int | None = 10_000,
    cache: Path | None = None,
    check: bool = False,
) -> Splits:
    """TinyImageNet from `folder`, which is or holds tiny-imagenet-200.

    Labels follow the sorted WordNet ids, which are the `classes` of the sets; `words` translates them. Greyscale
    images become RGB.

    Args:
        classes, per_class, test: how many classes, training images of each and test images must be there; None
            accepts any number.
        cache: where decoded images are kept (see `images.cached`); check: compare the cache's checksum too.
    """
    root = _root(Path(folder))
    existing_folder(root, f"{NAME} with train/ and val/ was looked for")
    train = list_by_class(root / "train", classes, inside="images")
    _check_train(root, train, per_class)
    val = _list_val(root, train.classes, test)
    extra = [root / "val" / "val_annotations.txt"]
    return Splits(
        listed("tiny-imagenet-train", root, train, (SIDE, SIDE), cache=cache, check=check),
        listed("tiny-imagenet-val", root, val, (SIDE, SIDE), extra, cache, check),
    )


def words(folder: str | Path) -> dict[str, str]:
    """WordNet id -> its words, from words.txt of `folder`, which is or holds tiny-imagenet-200."""
    lines = (_root(Path(folder)) / "words.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t", 1) for line in lines if "\t" in line)


def _root(folder: Path) -> Path:
    return folder / NAME if (folder / NAME).is_dir() else folder


def _check_train(root: Path, train: Listing, per_class: int | None) -> None:
    """The class folders are those of wnids.txt, each with its full number of images."""
    if not (root / "wnids.txt").is_file():
        raise FileNotFoundError(f"{root / 'wnids.txt'}: no such file (it lists the classes)")
    wnids = set((root / "wnids.txt").read_text(encoding="utf-8").split())
    if odd := sorted(wnids ^ set(train.classes)):
        raise DataError(f"{root}: wnids.txt and the folders of train/ differ in {', '.join(odd[:5])}")
    for name, count in zip(train.classes, np.bincount(train.labels), strict=True):
        check_size(root / "train" / name / "images", int(count), per_class)


def _list_val(root: Path, classes: tuple[str, ...], expected: int | None) -> Listing:
    """The validation images in the order of their names, labelled by val_annotations.txt."""
    paths = image_paths(root / "val" / "images")
    check_size(root / "val" / "images", len(paths), expected)
    names = read_annotations(root / "val" / "val_annotations.txt")
    return Listing(list(map(found_file, paths)), labels_by_name(paths, names, classes, root / "val"), classes)
