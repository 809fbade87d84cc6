"""Batches of a small image set that lives on the device: order, crops and flips for whole batches, no worker processes.

Everything random in epoch e is drawn at its start on the CPU from (seed, e) alone, so a resumed run, another device
and any number of ranks see the same batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from askew.data.images import ImageSet

UPLOAD = 4096  # images sent to the device at a time
ORDER, SHIFT, FLIP, IMAGE = 1, 2, 3, 4  # random streams of an epoch


class DeviceData:
    """A whole image set on a device: images uint8 (N, 3, H, W), labels int64 (N,).

    With channels_last the images keep the memory order of the file (N, H, W, 3), and so do the batches made of them.
    """

    def __init__(self, images: ImageSet, device: torch.device | str = "cpu", channels_last: bool = False) -> None:
        n, h, w, c = images.images.shape
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.images = torch.empty((n, c, h, w), dtype=torch.uint8, device=device, memory_format=layout)
        for start in range(0, n, UPLOAD):
            part = torch.from_numpy(np.array(images.images[start : start + UPLOAD]))
            self.images[start : start + UPLOAD] = part.to(device).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(np.array(images.labels)).to(device)
        self.classes = images.classes
        self.name = images.name

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.images.device


def augment(x: Tensor, shift_y: Tensor, shift_x: Tensor, flip: Tensor, pad: int) -> Tensor:
    """Crop each image out of itself padded by `pad`, then mirror it left to right where `flip`.

    out[b, c, i, j] = padded[b, c, i + shift_y[b], (W-1-j if flip[b] else j) + shift_x[b]]

    The padding is raw zeros, black, before normalisation: after it the border is -mean/std, not 0.

    Args:
        x: uint8 (B, C, H, W); a channels_last batch stays one.
        shift_y, shift_x: integers (B,) in 0..2 pad; pad leaves the image in its place.
        flip: bool (B,).
    """
    b, c, h, w = x.shape
    padded = nn.functional.pad(x, (pad, pad, pad, pad)) if pad else x
    column = torch.arange(w, device=x.device)
    columns = torch.where(flip[:, None], w - 1 - column, column) + shift_x[:, None]
    rows = torch.arange(h, device=x.device) + shift_y[:, None]
    pixel = (rows[:, :, None] * (w + 2 * pad) + columns[:, None, :]).view(b, h * w)
    if keeps_channels_last(x):
        taken = padded.permute(0, 2, 3, 1).flatten(1, 2).gather(1, pixel[:, :, None].expand(b, h * w, c))
        return taken.view(b, h, w, c).permute(0, 3, 1, 2)
    return padded.flatten(2).gather(2, pixel[:, None, :].expand(b, c, h * w)).view(b, c, h, w)


def keeps_channels_last(x: Tensor) -> bool:
    """Whether x is channels_last and not, as with one channel or pixel, contiguous as well."""
    return x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()


def normalise(x: Tensor, mean: Tensor, std: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(x / 255 - mean) / std per channel for uint8 x (B, C, H, W), in float32 and then rounded to `dtype`."""
    mean, std = (255 * mean.float()).view(-1, 1, 1), (255 * std.float()).view(-1, 1, 1)
    return ((x.float() - mean) / std).to(dtype)


class Plan(NamedTuple):
    """What an epoch, or a part of it, does with each image: which one, how shifted, whether mirrored. Tensors (n,)."""

    image: Tensor
    shift_y: Tensor
    shift_x: Tensor
    flip: Tensor


def generator(*key: int) -> np.random.Generator:
    """A random stream of its own for each tuple of integers in 0..2^32-1; trailing zeros do not count."""
    if not all(0 <= part < 2**32 for part in key):
        raise ValueError(f"seeds and epochs must lie in 0..2^32-1: {key}")
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def order(n: int, seed: int, epoch: int) -> np.ndarray:
    """The order of n images in an epoch; it depends on nothing but these three numbers."""
    return generator(seed, epoch, ORDER).permutation(n)


def plan(n: int, seed: int, epoch: int, *, shuffle: bool = True, pad: int = 0, flip: bool = False) -> Plan:
    """The plan of a whole epoch, on the CPU. Order, shifts and flips have streams of their own."""
    index = order(n, seed, epoch) if shuffle else np.arange(n)
    shifts = generator(seed, epoch, SHIFT).integers(0, 2 * pad + 1, (2, n))
    mirrored = generator(seed, epoch, FLIP).random(n) < 0.5 if flip else np.zeros(n, bool)
    return Plan(*map(torch.from_numpy, (index, shifts[0], shifts[1], mirrored)))


def batch_count(n: int, batch: int, drop_last: bool) -> int:
    """Batches in an epoch of n images."""
    return n // batch if drop_last else -(-n // batch)


def shard(n: int, batch: int, step: int, rank: int = 0, world: int = 1) -> slice:
    """The positions in an epoch of n images that rank `rank` of `world` takes at a step.

    The ranks' parts, in the order of the ranks, make up the global batch: equal parts of a full one, parts that
    differ by at most one image of a last, shorter one.
    """
    start = step * batch
    size = min(batch, n - start)
    return slice(start + size * rank // world, start + size * (rank + 1) // world)


def check_sharding(n: int, batch: int, rank: int, world: int, drop_last: bool) -> None:
    """ValueError if these cannot make batches of equal parts."""
    if batch < 1 or not 0 <= rank < world or batch % world:
        raise ValueError(f"batch {batch} cannot be split over {world} ranks for rank {rank}: it must be a multiple")
    if batch_count(n, batch, drop_last) == 0:
        raise ValueError(f"batch {batch} is larger than the {n} images: no full batch (drop_last=False keeps it)")


class Batches:
    """Epochs of batches (x, y) on the device of `data`; `batch` counts the images of all ranks together.

    Args:
        seed: with the epoch's number it fixes order and augmentation.
        mean, std: per channel, of pixel values in [0, 1]: those of the training set, also for the test set
            (`ImageSet.mean`, `ImageSet.std`).
        augment: random crops after padding by `pad` raw zeros, and with `flip` mirror images.
        shuffle: a new order each epoch; False keeps the set's own, for evaluation.
        dtype: of x; y is int64.
        drop_last: leave out a last, shorter batch.
        rank, world: this process's part of each batch (see `shard`).
    """

    def __init__(
        self,
        data: DeviceData,
        batch: int,
        seed: int = 0,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        augment: bool = True,
        pad: int = 4,
        flip: bool = True,
        shuffle: bool = True,
        dtype: torch.dtype = torch.float32,
        drop_last: bool = True,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        channels = data.images.shape[1]
        if len(mean) != channels or len(std) != channels or min(std) <= 0:
            raise ValueError(f"mean and std must be {channels} numbers each and std positive: {mean}, {std}")
        if pad < 0:
            raise ValueError(f"pad must not be negative: {pad}")
        generator(seed)
        check_sharding(len(data), batch, rank, world, drop_last)
        self.data, self.batch, self.seed, self.dtype = data, batch, seed, dtype
        self.augment, self.pad, self.flip, self.shuffle = augment, pad, flip, shuffle
        self.drop_last, self.rank, self.world = drop_last, rank, world
        self.mean = torch.tensor(mean, dtype=torch.float32, device=data.device)
        self.std = torch.tensor(std, dtype=torch.float32, device=data.device)

    def __len__(self) -> int:
        """Batches in an epoch, the same on every rank."""
        return batch_count(len(self.data), self.batch, self.drop_last)

    def plan(self, epoch: int) -> Plan:
        """The plan of a whole epoch on the device: one transfer an epoch, from pinned memory without waiting."""
        pad, flip = (self.pad, self.flip) if self.augment else (0, False)
        made = plan(len(self.data), self.seed, epoch, shuffle=self.shuffle, pad=pad, flip=flip)
        if self.data.device.type != "cuda":
            return Plan(*(part.to(self.data.device) for part in made))
        return Plan(*(part.pin_memory().to(self.data.device, non_blocking=True) for part in made))

    def make(self, part: Plan) -> tuple[Tensor, Tensor]:
        """The batch (x, y) of a part of a plan. Only device work: fit for torch.compile and CUDA graphs."""
        x = gather(self.data.images, part.image)
        if self.augment and (self.pad or self.flip):
            x = augment(x, part.shift_y, part.shift_x, part.flip, self.pad)
        return normalise(x, self.mean, self.std, self.dtype), self.data.labels[part.image]

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch from number `skip` on, the same ones as without skipping."""
        if not 0 <= skip <= len(self):
            raise ValueError(f"cannot skip {skip} of {len(self)} batches")
        return self._epoch(epoch, skip)

    def _epoch(self, epoch: int, skip: int) -> Iterator[tuple[Tensor, Tensor]]:
        whole = self.plan(epoch)
        for step in range(skip, len(self)):
            mine = shard(len(self.data), self.batch, step, self.rank, self.world)
            yield self.make(Plan(*(part[mine] for part in whole)))


def gather(images: Tensor, index: Tensor) -> Tensor:
    """images[index] that keeps the memory format."""
    if keeps_channels_last(images):
        return images.permute(0, 2, 3, 1)[index].permute(0, 3, 1, 2)
    return images[index]
