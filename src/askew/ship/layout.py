"""Weights and activations in the order the kernels read them (the layouts are described in native/infer_*.cpp)."""

from __future__ import annotations

import numpy as np

OUT = 16  # outputs side by side
TILE = 64  # outputs of the one-bit kernel that lie together


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that starts at a multiple of 64 bytes, so that no vector lies across two cache lines."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def words(bits: np.ndarray) -> np.ndarray:
    """(..., C) of 0 and 1 into (..., ceil(C / 64)) words of 64 bits; the bits beyond the last channel are 0."""
    count = bits.shape[-1]
    full = np.zeros((*bits.shape[:-1], -(-count // 64) * 64), np.uint8)
    full[..., :count] = bits
    return np.packbits(full, axis=-1, bitorder="little").view(np.uint64)


def from_words(packed: np.ndarray, channels: int) -> np.ndarray:
    """The inverse of `words`: (..., channels) of 0 and 1."""
    return np.unpackbits(np.ascontiguousarray(packed).view(np.uint8), axis=-1, bitorder="little", count=channels)


def one_bit_tiles(packed: np.ndarray) -> np.ndarray:
    """(outputs, words of 64 bits) into tiles of 64 outputs, each (words of 32 bits, blocks of 16, 16), one by one."""
    outputs, count = packed.shape
    halves = np.zeros((-(-outputs // OUT) * OUT, 2 * count), np.uint32)
    halves[:outputs] = packed.view(np.uint32)
    tiles = [halves[i : i + TILE].reshape(-1, OUT, 2 * count).transpose(2, 0, 1) for i in range(0, len(halves), TILE)]
    return aligned(np.concatenate([tile.ravel() for tile in tiles]))


def _lanes(codes: np.ndarray, bits: int, places: np.ndarray) -> np.ndarray:
    """(outputs, inputs) into (blocks, words, 16) of 32 bits; input k of a word's share starts at bit places[k]."""
    outputs, inputs = codes.shape
    per = 32 // bits
    padded = np.zeros((-(-outputs // OUT) * OUT, -(-inputs // per) * per), np.uint32)
    padded[:outputs, :inputs] = codes
    shares = padded.reshape(len(padded), -1, per) << places.astype(np.uint32)
    merged = np.bitwise_or.reduce(shares, axis=2)
    return aligned(merged.reshape(-1, OUT, merged.shape[1]).transpose(0, 2, 1))


def code_lanes(codes: np.ndarray, bits: int) -> np.ndarray:
    """For float activations: the codes of a word in order, the first in the lowest bits."""
    return _lanes(codes, bits, np.arange(32 // bits) * bits)


def byte_lanes(codes: np.ndarray, bits: int) -> np.ndarray:
    """For integer activations: input 4 s + j of a word's share in byte j at bit `bits` s."""
    k = np.arange(32 // bits)
    return _lanes(codes, bits, 8 * (k % 4) + bits * (k // 4))


def float_lanes(weight: np.ndarray) -> np.ndarray:
    """Float weights (outputs, inputs) into (blocks, inputs, 16)."""
    outputs, inputs = weight.shape
    padded = np.zeros((-(-outputs // OUT) * OUT, inputs), np.float32)
    padded[:outputs] = weight
    return aligned(padded.reshape(-1, OUT, inputs).transpose(0, 2, 1))
