"""ImageNet in its official folder layout, decoded by worker processes. Nothing is downloaded.

train/WNID/*.JPEG and val/WNID/*.JPEG, or val/*.JPEG with a text file whose lines are "NAME WNID" (or Kaggle's
LOC_val_solution.csv). Images come out as uint8 (3, crop, crop); `loader.normalise` finishes a batch on the device with
MEAN and STD.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from askew.data.crops import cut, shorter_side
from askew.data.files import class_folders, decode, existing_folder, image_paths, labels_by_name, read_annotations
from askew.data.images import DataError

from .loader import IMAGE, batch_count, check_sharding, generator, order, shard

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
Crop = Literal["centre", "random", "resized"]
Where = tuple[int, int]  # epoch, index


class ImageNet(Dataset[tuple[Tensor, int]]):
    """One split. dataset[epoch, index] -> (uint8 (3, crop, crop), label), fixed by (seed, epoch, index) alone.

    Args:
        folder: holds train/ and val/.
        split: "train" or "val".
        how: "random" (the paper's: shorter side to `resize`, a random crop, a mirror image half of the time),
            "resized" (a random area and shape scaled to the crop, mirrored half of the time) or "centre"; by
            default "random" for train and "centre" for val.
        val_map: the text file of labels for a flat val/.
        classes: number of class folders that must be there; None accepts any. Labels follow the sorted names.
    """

    def __init__(
        self,
        folder: str | Path,
        split: Literal["train", "val"],
        *,
        how: Crop | None = None,
        seed: int = 0,
        resize: int = 256,
        crop: int = 224,
        val_map: str | Path | None = None,
        classes: int | None = 1000,
    ) -> None:
        if split not in ("train", "val") or how not in (None, "centre", "random", "resized"):
            raise ValueError(f"split {split!r} is not train or val, or how {how!r} is not centre, random or resized")
        if not 0 < crop <= resize:
            raise ValueError(f"crop {crop} must be positive and at most resize {resize}")
        self.root = existing_folder(Path(folder), "ImageNet with train/ and val/ was looked for")
        self.how: Crop = how or ("random" if split == "train" else "centre")
        self.split, self.seed, self.resize, self.crop = split, seed, resize, crop
        self.classes = tuple(f.name for f in class_folders(self.root / "train", classes))
        flat = Path(val_map) if split == "val" and val_map else None
        paths, self.labels = self._list_flat(flat) if flat else self._list_classes()
        # One block of bytes: a million Python objects would be copied into every worker, one reference count at a time.
        self.names = np.array([os.fsencode(path.removeprefix(f"{self.root}{os.sep}")) for path in paths])

    def _list_classes(self) -> tuple[list[str], np.ndarray]:
        place = existing_folder(self.root / self.split, "one subfolder per class was looked for")
        if self.split == "val" and not any(p.is_dir() for p in place.iterdir()):
            raise DataError(
                f"{place}: holds no class folders; sort its images into them, or name the file of their labels "
                "(lines of NAME WNID, or LOC_val_solution.csv) with --val-map (val_map=)"
            )
        folders = class_folders(place, len(self.classes))
        if odd := sorted({f.name for f in folders} ^ set(self.classes)):
            raise DataError(f"{self.root}: train and {self.split} differ in the class {odd[0]}")
        paths = [image_paths(f) for f in folders]
        labels = np.repeat(np.arange(len(folders), dtype=np.int64), [len(part) for part in paths])
        return [path for part in paths for path in part], labels

    def _list_flat(self, val_map: Path) -> tuple[list[str], np.ndarray]:
        paths = image_paths(self.root / "val")
        return paths, labels_by_name(paths, read_annotations(val_map), self.classes, self.root / "val")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that tell this set from another: of its files' names and labels, not their bytes."""
        return hashlib.sha256(b"\n".join(self.names.tolist()) + self.labels.tobytes()).hexdigest()[:16]

    def __getitem__(self, where: Where | int) -> tuple[Tensor, int]:
        epoch, index = where if isinstance(where, tuple) else (0, where)
        image = decode(self.root / os.fsdecode(self.names[index]))
        image = transform(image, self.how, self.resize, self.crop, generator(self.seed, epoch, IMAGE, index))
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous(), int(self.labels[index])


def transform(image: Image.Image, how: Crop, resize: int, crop: int, random: np.random.Generator) -> Image.Image:
    """The crop x crop image made of one of any size."""
    if how == "resized":
        box = random_box(image.width, image.height, random)
        image = image.resize((crop, crop), Image.Resampling.BILINEAR, box)
    else:
        image = shorter_side(image, resize)
        if how == "random":
            left, top = (int(random.integers(side - crop + 1)) for side in image.size)
            image = cut(image, crop, left, top)
        else:
            image = cut(image, crop)
    return ImageOps.mirror(image) if how != "centre" and random.random() < 0.5 else image


def random_box(w: int, h: int, random: np.random.Generator) -> tuple[int, int, int, int]:
    """A box of 8 % to 100 % of the area and a shape of 3:4 to 4:3; the central one if ten draws do not fit."""
    for _ in range(10):
        area = w * h * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        bw, bh = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < bw <= w and 0 < bh <= h:
            left, top = int(random.integers(w - bw + 1)), int(random.integers(h - bh + 1))
            return left, top, left + bw, top + bh
    bw, bh = min(w, round(h * 4 / 3)), min(h, round(w * 4 / 3))
    left, top = (w - bw) // 2, (h - bh) // 2
    return left, top, left + bw, top + bh


class EpochSampler(Sampler[list[Where]]):
    """The batches of one epoch as lists of (epoch, index): this rank's part of each (see `loader.shard`)."""

    def __init__(
        self,
        n: int,
        batch: int,
        epoch: int,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        skip: int,
        rank: int,
        world: int,
    ) -> None:
        check_sharding(n, batch, rank, world, drop_last)
        if not 0 <= skip <= batch_count(n, batch, drop_last):
            raise ValueError(f"cannot skip {skip} of {batch_count(n, batch, drop_last)} batches")
        self.n, self.batch, self.epoch, self.skip = n, batch, epoch, skip
        self.steps = range(skip, batch_count(n, batch, drop_last))
        self.seed, self.shuffle, self.rank, self.world = seed, shuffle, rank, world

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[Where]]:
        indices = order(self.n, self.seed, self.epoch) if self.shuffle else np.arange(self.n)
        for step in self.steps:
            mine = indices[shard(self.n, self.batch, step, self.rank, self.world)]
            yield [(self.epoch, int(i)) for i in mine]


def epoch_loader(
    data: ImageNet,
    batch: int,
    epoch: int,
    *,
    skip: int = 0,
    rank: int = 0,
    world: int = 1,
    workers: int = 8,
    pin_memory: bool = False,
) -> DataLoader[Any]:
    """The batches (uint8 (B, 3, crop, crop), labels (B,)) of one epoch from number `skip` on.

    Training batches are shuffled by (data.seed, epoch) and full; validation batches come in order, the last one
    shorter. `batch` counts the images of all ranks together.
    """
    train = data.split == "train"
    sampler = EpochSampler(len(data), batch, epoch, data.seed, train, train, skip, rank, world)
    return DataLoader(data, batch_sampler=sampler, num_workers=workers, pin_memory=pin_memory)
