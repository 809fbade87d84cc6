"""Labelled images in memory: pixels, labels, classes, and the exact sums that give mean and deviation."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

CHUNK = 512  # images at a time: sums of squares stay within uint32, copies stay small


class DataError(ValueError):
    """The data on disk are not what they should be; the message names the file or folder."""


class Moments(NamedTuple):
    """Exact integer sums of the raw bytes per channel, over all pixels of a set."""

    pixels: int
    total: tuple[int, ...]
    squares: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images uint8 (N, H, W, 3), usually memory-mapped and read-only, labels int64 (N,) into `classes`."""

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    name: str
    known: Moments | None = None  # the channel sums, where a cache holds them

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.images.shape[3] != 3 or not self.images.size:
            raise DataError(f"{self.name}: images are {self.images.dtype} {self.images.shape}, not uint8 (N, H, W, 3)")
        if self.labels.dtype != np.int64 or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                f"{self.name}: labels are {self.labels.dtype} {self.labels.shape}, not int64 {self.images.shape[:1]}"
            )
        if self.labels.min() < 0 or self.labels.max() >= len(self.classes):
            raise DataError(f"{self.name}: a label lies outside 0..{len(self.classes) - 1}")

    def __len__(self) -> int:
        return len(self.labels)

    def thinned(self, count: int) -> ImageSet:
        """`count` images, evenly spaced over the set (all if it has fewer)."""
        chosen = evenly(len(self), count)
        return ImageSet(self.images[chosen], self.labels[chosen], self.classes, self.name)

    @cached_property
    def moments(self) -> Moments:
        """The channel sums: from the cache's header, or counted now."""
        return self.known or moments(self.images)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that tell this set from another: of its shape, channel sums, classes and labels."""
        about = json.dumps([self.images.shape, self.moments, self.classes]).encode()
        return hashlib.sha256(about + self.labels.astype("<i8").tobytes()).hexdigest()[:16]

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean per channel, of pixel values in [0, 1]."""
        n, total, _ = self.moments
        return tuple(s / (255 * n) for s in total)

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation per channel over all pixels, of pixel values in [0, 1]."""
        n, total, squares = self.moments
        return tuple(math.sqrt(n * q - s * s) / (255 * n) for s, q in zip(total, squares, strict=True))


class Splits(NamedTuple):
    """The two parts of a data set."""

    train: ImageSet
    test: ImageSet


def evenly(size: int, count: int) -> np.ndarray:
    """The places of `count` of `size` things, evenly spaced (all if there are fewer)."""
    count = min(count, size)
    return np.arange(count) * size // max(1, count)


def moments(images: np.ndarray) -> Moments:
    """Exact sums and sums of squares per channel of uint8 images (N, H, W, 3)."""
    total, squares = np.zeros(3, np.uint64), np.zeros(3, np.uint64)
    for start in range(0, len(images), CHUNK):
        part = images[start : start + CHUNK].reshape(-1, math.prod(images.shape[1:]))
        total += part.sum(0, dtype=np.uint32).reshape(-1, 3).sum(0, dtype=np.uint64)
        squares += np.square(part, dtype=np.uint32).sum(0, dtype=np.uint32).reshape(-1, 3).sum(0, dtype=np.uint64)
    return Moments(math.prod(images.shape[:3]), tuple(map(int, total)), tuple(map(int, squares)))
