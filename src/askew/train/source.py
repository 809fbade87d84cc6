"""Where batches come from: epochs in an order that depends only on seed and epoch, so a run can go on from any step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from askew.data.images import Splits
from askew.data.loader import Batches, DeviceData
from askew.train.evaluate import Batch


class Source(Protocol):
    """A data set as the loop sees it."""

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


class TensorSource:
    """A data set that is two tensors; an incomplete last batch is left out of training."""

    def __init__(self, data: Batch, batch: int, seed: int) -> None:
        self.x, self.y = data
        self.batch, self.seed = batch, seed
        self.images = len(self.y)

    def steps(self) -> int:
        return max(1, self.images // self.batch)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        order = torch.randperm(self.images, generator=generator).to(self.y.device)
        for part in order[: self.steps() * self.batch].split(self.batch)[skip:]:
            yield self.x[part], self.y[part]

    def ordered(self, size: int) -> Iterator[Batch]:
        return zip(self.x.split(size), self.y.split(size), strict=True)


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
        whole = Batches(
            self.data,
            size,
            mean=self.train.mean.tolist(),
            std=self.train.std.tolist(),
            augment=False,
            shuffle=False,
            dtype=self.train.dtype,
            drop_last=False,
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
) -> tuple[ImageSource, ImageSource]:
    """(train, test) on the device, both normalised by the training set's statistics."""

    def source(split: DeviceData) -> ImageSource:
        batches = Batches(
            split, min(batch, len(split)), seed, mean=splits.train.mean, std=splits.train.std, pad=pad, flip=flip
        )
        return ImageSource(split, batches)

    train, test = (DeviceData(part, device, channels_last) for part in splits)
    return source(train), source(test)
