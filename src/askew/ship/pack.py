"""Codes of 1, 2, 4 or 8 bits packed into bytes: the first code in the lowest bits, the last byte filled with zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WIDTHS = (1, 2, 4, 8)


def width(levels: int) -> int:
    """Bits that a stored code takes: the smallest of 1, 2, 4, 8 that tells so many levels apart (ternary: 2)."""
    for bits in WIDTHS:
        if levels <= 1 << bits:
            return bits
    raise ValueError(f"{levels} levels do not fit in a code of 8 bits")


def one_too_many(levels: Sequence[float]) -> bool:
    """True where the last level doubles the bits: 17 levels (8 bits, not 4), and 5 equally spaced ones (4, not 2).

    The latter are the paper's form of 2 bits. Five levels of another spacing have no width in their name and simply
    take 4 bits, ternary takes 2.
    """
    even = np.allclose(np.diff(levels), levels[1] - levels[0], atol=0)
    return len(levels) == 17 or (len(levels) == 5 and even)


def packed_size(count: int, bits: int) -> int:
    """Bytes that `count` codes take."""
    return -(-count * bits // 8)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """The codes, read in C order, as bytes (uint8, 1-D)."""
    if bits not in WIDTHS:
        raise ValueError(f"codes are packed in {WIDTHS} bits, not {bits}")
    flat = np.asarray(codes).ravel()
    if flat.size and (flat.min() < 0 or flat.max() >= 1 << bits):
        raise ValueError(f"codes of {bits} bits lie in 0..{(1 << bits) - 1}, got {flat.min()}..{flat.max()}")
    flat = flat.astype(np.uint8)
    if bits == 1:
        return np.packbits(flat, bitorder="little")
    per = 8 // bits
    padded = np.zeros(-(-flat.size // per) * per, np.uint8)
    padded[: flat.size] = flat
    shifted = padded.reshape(-1, per) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(shifted, axis=1)


def unpack(data: np.ndarray, bits: int, shape: tuple[int, ...]) -> np.ndarray:
    """The codes (uint8) of that shape; the inverse of `pack`."""
    count = int(np.prod(shape, dtype=np.int64))
    if bits not in WIDTHS or data.dtype != np.uint8 or data.ndim != 1 or data.size != packed_size(count, bits):
        raise ValueError(f"{data.size} bytes ({data.dtype}) cannot be {count} codes of {bits} bits")
    if bits == 1:
        return np.unpackbits(data, count=count, bitorder="little").reshape(shape)
    spread = (data[:, None] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    return spread.ravel()[:count].reshape(shape)
