"""A data set too large for the device: images decoded by worker processes, normalised on the device."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from askew.data.imagenet import MEAN, STD, EpochSampler, ImageNet, epoch_loader
from askew.data.images import DataError, evenly
from askew.data.loader import batch_count, normalise
from askew.train.evaluate import Batch


class WorkerSource:
    """One split of ImageNet as the loop sees it; `whole` is the same split without augmentation."""

    def __init__(
        self,
        data: ImageNet,
        whole: ImageNet,
        batch: int,
        device: torch.device | str = "cpu",
        workers: int = 8,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.data, self.whole, self.workers = data, whole, workers
        self.batch = max(world, min(batch, len(data) // world * world))
        self.rank, self.world = rank, world
        self.device = torch.device(device)
        self.images = len(data)
        self.mean, self.std = (torch.tensor(part, device=self.device) for part in (MEAN, STD))

    def steps(self) -> int:
        return batch_count(self.images, self.batch, drop_last=True)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        pinned = self.device.type == "cuda"
        part = {"rank": self.rank, "world": self.world, "workers": self.workers, "pin_memory": pinned}
        return self._on_device(epoch_loader(self.data, self.batch, epoch, skip=skip, **part))

    def ordered(self, size: int) -> Iterator[Batch]:
        return self._once(self.whole, size, shuffle=False)

    def seen(self, size: int) -> Iterator[Batch]:
        return self._once(self.data, size, shuffle=True)

    def _once(self, data: ImageNet, size: int, shuffle: bool) -> Iterator[Batch]:
        """Every image once, in its own order or (full batches only, if there is one) in a fixed mixed one."""
        size = -(-size // self.world) * self.world
        part = {"rank": self.rank, "world": self.world}
        drop_last = shuffle and len(data) >= size
        sampler = EpochSampler(len(data), size, 0, 0, shuffle, drop_last=drop_last, skip=0, **part)
        return self._on_device(DataLoader(data, batch_sampler=sampler, num_workers=self.workers))

    def _on_device(self, loader: DataLoader) -> Iterator[Batch]:
        for x, y in _plain_errors(loader):
            x = x.to(self.device, non_blocking=True, memory_format=torch.channels_last)
            yield normalise(x, self.mean, self.std), y.to(self.device, non_blocking=True)


def _plain_errors(loader: DataLoader) -> Iterator[Batch]:
    """The loader's batches; a bad file that a worker met is named in one line, not within a worker's traceback."""
    try:
        yield from loader
    except DataError as error:
        said = str(error).strip().splitlines()[-1]
        raise DataError(said.removeprefix(f"{DataError.__module__}.DataError: ")) from error


def imagenet_sources(
    folder: Path,
    batch: int,
    seed: int,
    device: torch.device | str = "cpu",
    *,
    resize: int = 256,
    crop: int = 224,
    val_map: Path | None = None,
    classes: int | None = 1000,
    images: int | None = None,
    workers: int = 8,
    rank: int = 0,
    world: int = 1,
) -> tuple[WorkerSource, WorkerSource]:
    """(train, validation), of `images` each; training images cropped at random and mirrored, the others as they are."""
    train = ImageNet(folder, "train", seed=seed, resize=resize, crop=crop, classes=classes)
    val = ImageNet(folder, "val", seed=seed, resize=resize, crop=crop, classes=classes, val_map=val_map)
    if images is not None:
        train, val = thinned(train, images), thinned(val, images)
    centred = copy(train)
    centred.how = "centre"
    part = (batch, device, workers, rank, world)
    return WorkerSource(train, centred, *part), WorkerSource(val, val, *part)


def thinned(data: ImageNet, count: int) -> ImageNet:
    """`count` images, evenly spaced over the set (all if it has fewer)."""
    chosen, out = evenly(len(data), count), copy(data)
    out.names, out.labels = data.names[chosen], data.labels[chosen]
    return out
