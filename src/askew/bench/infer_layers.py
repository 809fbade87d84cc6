"""Single layers, packed against torch: products and convolutions of signs, products of one vector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from askew.bench.infer_timing import Work
from askew.ship import kernels, layout
from askew.ship.geometry import Window
from askew.ship.signs import FLOATS, SignProduct

BOUND_ROUNDS = 20_000
OUT_OF_CACHE = 160 << 20  # bytes of weights that are gone through before the first come again


@dataclass(frozen=True)
class Case:
    """Contestants by name, ours first; `bound`: seconds below which the machine's xor and popcount cannot do it."""

    name: str
    kind: str
    contestants: dict[str, Work]
    vectors: float | None = None  # vectors of 512 bits through xor, popcount and add
    about: dict[str, Any] = field(default_factory=dict)


def bound_work() -> Work:
    """16 * BOUND_ROUNDS vectors in registers."""
    library = kernels.native()
    return lambda: library.askew_popcount_bound(BOUND_ROUNDS)


def layers(threads: int, batches: tuple[int, ...]) -> Iterator[Case]:
    """Every single-layer case."""
    for rows, outputs, inputs in ((256, 512, 4608), (256, 256, 2304), (1024, 128, 1152)):
        yield sign_product(rows, outputs, inputs, threads)
    for batch in batches:
        for side, inside, outside in ((32, 128, 128), (16, 256, 256), (8, 512, 512)):
            yield sign_convolution(batch, side, inside, outside, threads)
    for bits in (1, 2, 4):
        yield float_vector(4096, bits, threads)
    for bits in (2, 4):
        yield integer_vector(4096, bits, threads)


def sign_product(rows: int, outputs: int, inputs: int, threads: int) -> Case:
    """Signs times signs, whole numbers out."""
    rng = np.random.default_rng(0)
    x, w = (rng.integers(0, 2, (n, inputs)).astype(np.uint8) for n in (rows, outputs))
    bits = layout.aligned(layout.words(x)[:, None, None])
    tiles = layout.one_bit_tiles(layout.words(w))
    product = SignProduct(tiles, outputs, Window(), inputs)
    a, b = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    return Case(
        f"{rows}x{outputs}x{inputs}",
        "W1A1 product",
        {
            "askew": lambda: product(bits, threads),
            "torch fp32": lambda: functional.linear(a, b),
            "torch bf16": _bf16(functional.linear, a, b),
        },
        vectors=rows * outputs * bits.shape[-1] / 8,
    )


def sign_convolution(batch: int, side: int, inside: int, outside: int, threads: int) -> Case:
    """3x3 convolution from floats to floats: sign, pack, unfold, product, scale and bias."""
    rng = np.random.default_rng(0)
    window = Window((3, 3), (1, 1), (1, 1))
    w = rng.integers(0, 2, (outside, 9, inside)).astype(np.uint8)
    tiles = layout.one_bit_tiles(layout.words(w).reshape(outside, -1))
    x = rng.normal(size=(batch, side, side, inside)).astype(np.float32)
    scale, bias = np.ones(outside, np.float32), np.zeros(outside, np.float32)

    product = SignProduct(tiles, outside, window, inside, FLOATS, scale, bias)

    def ours() -> np.ndarray:
        return product(x, threads)

    weight = torch.randn(outside, inside, 3, 3)
    a = torch.from_numpy(x).permute(0, 3, 1, 2)
    rivals = {
        "torch fp32": lambda: functional.conv2d(a, weight, padding=1),
        "torch fp32, NCHW": _conv(a.contiguous(), weight),
        "torch bf16": _bf16(lambda p, q: functional.conv2d(p, q, padding=1), a, weight),
    }
    return Case(f"{inside}->{outside} at {side}x{side}, batch {batch}", "W1A1 convolution", {"askew": ours, **rivals})


def _conv(a: torch.Tensor, weight: torch.Tensor) -> Work:
    return lambda: functional.conv2d(a, weight, padding=1)


def float_vector(size: int, bits: int, threads: int) -> Case:
    """One vector of floats times a square matrix of few bits."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 1 << bits, (size, size))
    lanes, levels = layout.code_lanes(codes, bits), np.arange(1 << bits, dtype=np.float32)
    x = rng.normal(size=(1, 1, 1, size)).astype(np.float32)
    scale, bias = np.ones(size, np.float32), np.zeros(size, np.float32)
    a, b = torch.from_numpy(x.reshape(1, size)), torch.randn(size, size)
    return Case(
        f"{size}x{size}",
        f"W{bits}A32 vector",
        {
            "askew": lambda: kernels.floats(x, lanes, bits, levels, Window(), scale, bias, threads=threads),
            "torch fp32": lambda: functional.linear(a, b),
            "torch bf16": _bf16(functional.linear, a, b),
        },
    )


def integer_vector(size: int, bits: int, threads: int) -> Case:
    """One vector of 8-bit integers times a square matrix of few bits that is not in the cache."""
    rng = np.random.default_rng(0)
    lanes = layout.byte_lanes(rng.integers(0, 1 << bits, (size, size)), bits)
    copies = [layout.aligned(lanes) for _ in range(OUT_OF_CACHE // lanes.nbytes)]
    x = rng.integers(-127, 128, (1, 1, 1, size)).astype(np.int8)
    scale, bias = np.ones(size, np.float32), np.zeros(size, np.float32)
    a = torch.from_numpy(x.reshape(1, size)).float()
    matrices = [torch.randn(size, size) for _ in range(max(1, OUT_OF_CACHE // (4 * size * size)))]
    turn = [0, 0]

    def ours() -> np.ndarray:
        turn[0] = (turn[0] + 1) % len(copies)
        line = (-1.0, 1.0)
        return kernels.integers(x, copies[turn[0]], bits, Window(), size, line, scale, bias, threads=threads)

    def theirs() -> torch.Tensor:
        turn[1] = (turn[1] + 1) % len(matrices)
        return functional.linear(a, matrices[turn[1]])

    return Case(f"{size}x{size}, out of cache", f"W{bits}A8 vector", {"askew": ours, "torch fp32": theirs})


def _bf16(function: Any, a: torch.Tensor, b: torch.Tensor) -> Work:
    low = a.bfloat16(), b.bfloat16()
    return lambda: function(*low)
