"""Where batches come from: epochs in an order that depends only on seed and epoch, so a run can go on from any step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from askew.data.images import Splits
from askew.data.loader import Batches, DeviceData, batch_count, check_sharding, shard
from askew.train.evaluate import Batch

T = TypeVar("T")


class Source(Protocol):
    """A data set as the loop sees it. In several processes each gets its part of every batch."""

    images: int

    def steps(self) -> int:
        """Batches in an epoch."""
        ...

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """The training batches of an epoch (counted from 0) from number `skip` on."""
        ...

    def ordered(self, size: int) -> Iterator[Batch]:
        """All images once, in their own order and as they are, `size` at a time."""
        ...

    def seen(self, size: int) -> Iterator[Batch]:
        """All images once as training sees them, cropped and mirrored, in a mixed order; always the same batches.

        A shorter last batch is left out unless it is the only one: in a mean over batches its images would count more.

        For BatchNorm's statistics: those of whole images are others where crops have black borders.
        """
        ...


class Shelf:
    """Keeps the last data set that was loaded, so that the next run on it in this process neither decodes nor uploads.

    One thing of each kind (files in memory, images on the device); another key's goes before the new one comes.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[Hashable, Any]] = {}

    def take(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """What lies there for this key, or what `make` gives, kept."""
        if kind not in self._held or self._held[kind][0] != key:
            self._held.pop(kind, None)
            self._held[kind] = key, make()
        return self._held[kind][1]


class TensorSource:
    """A data set that is two tensors; an incomplete last batch is left out of training."""

    def __init__(self, data: Batch, batch: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self.x, self.y = data
        if world > 1:
            check_sharding(len(self.y), batch, rank, world, drop_last=True)
        self.batch, self.seed = batch, seed
        self.rank, self.world = rank, world
        self.images = len(self.y)

    def steps(self) -> int:
        return max(1, self.images // self.batch)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        order = torch.randperm(self.images, generator=generator).to(self.y.device)
        yield from self._parts(order[: self.steps() * self.batch], self.batch, skip)

    def ordered(self, size: int) -> Iterator[Batch]:
        return self._parts(torch.arange(self.images, device=self.y.device), size)

    def seen(self, size: int) -> Iterator[Batch]:
        order = torch.randperm(self.images, generator=torch.Generator().manual_seed(0)).to(self.y.device)
        return self._parts(order, size, drop_last=self.images >= size)

    def _parts(self, order: Tensor, size: int, skip: int = 0, drop_last: bool = False) -> Iterator[Batch]:
        """This process's part of each batch of `size` in that order."""
        for step in range(skip, batch_count(len(order), size, drop_last)):
            mine = order[shard(len(order), size, step, self.rank, self.world)]
            yield self.x[mine], self.y[mine]


class ImageSource:
    """A data set of images on the device, cropped, mirrored and normalised there."""

    def __init__(self, data: DeviceData, train: Batches) -> None:
        self.data, self.train = data, train
        self.images = len(data)

    def steps(self) -> int:
        return len(self.train)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        return self.train.epoch(epoch, skip)

    def ordered(self, size: int) -> Iterator[Batch]:
        return self._whole(size, trained=False)

    def seen(self, size: int) -> Iterator[Batch]:
        return self._whole(size, trained=True)

    def _whole(self, size: int, trained: bool) -> Iterator[Batch]:
        rank, world = self.train.rank, self.train.world
        size = -(-size // world) * world
        whole = Batches(
            self.data,
            size,
            mean=self.train.mean.tolist(),
            std=self.train.std.tolist(),
            augment=trained and self.train.augment,
            pad=self.train.pad,
            flip=self.train.flip,
            shuffle=trained,
            dtype=self.train.dtype,
            drop_last=trained and self.images >= size,
            rank=rank,
            world=world,
        )
        return whole.epoch(0)


def image_sources(
    splits: Splits,
    batch: int,
    seed: int,
    device: torch.device | str = "cpu",
    pad: int = 4,
    flip: bool = True,
    channels_last: bool = True,
    rank: int = 0,
    world: int = 1,
    shelf: Shelf | None = None,
) -> tuple[ImageSource, ImageSource]:
    """(train, test) on the device, both normalised by the training set's statistics.

    rank, world: this process's part of every batch. shelf: take the uploaded images from it if they are there.
    """

    def source(split: DeviceData) -> ImageSource:
        size = max(world, min(batch, len(split) // world * world))
        mean, std = splits.train.mean, splits.train.std
        batches = Batches(split, size, seed, mean=mean, std=std, pad=pad, flip=flip, rank=rank, world=world)
        return ImageSource(split, batches)

    def upload() -> list[DeviceData]:
        return [DeviceData(part, device, channels_last) for part in splits]

    train, test = (shelf or Shelf()).take("device", (splits, str(device), channels_last), upload)
    return source(train), source(test)
