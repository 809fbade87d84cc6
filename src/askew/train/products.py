"""Whether this GPU multiplies matrices rightly: on some shares of one, under NVIDIA's MPS, it does not.

Seen on an H200 (cuBLAS 13.1): with CUDA_MPS_ACTIVE_THREAD_PERCENTAGE at 20, 30, 33.33, 40, 60 or 75, among others,
products in bfloat16 come out wrong or as NaN, without an error; at 12.5, 25, 50 and 100 they are right. So a run looks
first, at the products that its linear layers will ask for; convolutions were right on every share tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from askew.train.mps import SHARE

TOLERANCE = 0.02  # relative; rounding to bfloat16 gives about .002
Multiply = Callable[[Tensor, Tensor], Tensor]
Shape = tuple[int, int, int]  # rows, terms of a sum, columns


class ProductError(RuntimeError):
    """A product of matrices came out wrong on a device."""


def product_error(product: Tensor, a: Tensor, b: Tensor, signs: Tensor) -> Tensor:
    """|P v - A (B v)| / |A (B v)| for P = A B and a random v of signs (Freivalds), without a product of matrices."""
    a, b, product = a.float(), b.float(), product.float()
    want = (a * (b * signs).sum(1)).sum(1)
    return ((product * signs).sum(1) - want).norm() / want.norm()


def products(net: nn.Module, batches: Iterable[int]) -> Iterator[Shape]:
    """Those of the net's linear layers, forward and backward: y = x w', dx = g w, dw = g' x."""
    layers = {(m.in_features, m.out_features) for m in net.modules() if isinstance(m, nn.Linear)}
    for batch in dict.fromkeys(batches):
        for before, after in sorted(layers):
            yield batch, before, after
            yield batch, after, before
            yield after, batch, before


def wrong_products(
    shapes: Iterable[Shape], dtype: torch.dtype, device: torch.device, multiply: Multiply = torch.matmul
) -> dict[Shape, float]:
    """The products of random matrices that are not what they should be, with their errors; one device sync."""
    generator = torch.Generator(device).manual_seed(0)
    errors: dict[Shape, Tensor] = {}
    for rows, terms, columns in dict.fromkeys(shapes):
        a, b = (torch.randn(s, generator=generator, device=device).to(dtype) for s in ((rows, terms), (terms, columns)))
        signs = torch.randn(columns, generator=generator, device=device).sign()
        errors[rows, terms, columns] = product_error(multiply(a, b), a, b, signs)
    found = torch.stack(list(errors.values())).tolist() if errors else []
    return {shape: error for shape, error in zip(errors, found, strict=True) if not error <= TOLERANCE}


def check_products(net: nn.Module, batches: Iterable[int], bf16: bool, device: torch.device) -> None:
    """ProductError if a GPU gets the products of this net wrong."""
    if device.type != "cuda":
        return
    dtype = torch.bfloat16 if bf16 else torch.float32
    wrong = wrong_products(products(net, batches), dtype, device)
    if wrong:
        raise ProductError(words(wrong, dtype, device))


def words(wrong: dict[Shape, float], dtype: torch.dtype, device: torch.device) -> str:
    """What is wrong, and what to do."""
    (rows, terms, columns), error = next(iter(wrong.items()))
    share = os.environ.get(SHARE)
    cause = (
        f"{SHARE}={share} gives this process a share of the GPU that its library does not bear: choose 50, 25 or 12.5"
        if share
        else f"nothing that is learnt there can be trusted; if it is a share of a GPU (MPS), set {SHARE} to 50 or 25"
    )
    return (
        f"torch multiplies matrices wrongly on {device}: {rows}x{terms} by {terms}x{columns} in "
        f"{str(dtype).removeprefix('torch.')} has a relative error of {error:.2g}; {cause}"
    )
