"""A convolution of images with stride 2, k x k, as one of stride 1 with many channels: the same sums, in another order.

    z[i, j] = sum over a, b of w[a, b] x[2i + a - p, 2j + b - p],  p = (k - 1) / 2.

Matrix units multiply by the dozen, and an image has three channels. So pixels are taken in blocks of 2x2, and the
blocks that lie side by side under the kernel become channels of one place: of a 7x7 kernel, four blocks across of
four pixels each, 48 channels in all. What is left is a kernel of four blocks down and one across,

    z[i, j] = sum over A of W[A] . X[i + A, j],

X: (blocks down with a border, j) of channels (block across, row, column, channel); W: w with a line of zeros where
the kernel does not fill its blocks, in the same order. The gradient of w follows by autograd, which leaves out the
zeros; images have none.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad


def reach(kernel: int) -> tuple[int, int]:
    """Blocks that a kernel of this odd size reaches before and behind its own."""
    p = kernel // 2
    return (p + 1) // 2, p // 2


def blocks(x: Tensor, kernel: int) -> Tensor:
    """X, channels-last, of images (b, c, 2h, 2w): (b, channels, h + border, w)."""
    b, c, h, w = x.shape
    before, behind = reach(kernel)
    squares = x.permute(0, 2, 3, 1).reshape(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5)
    squares = pad(squares.reshape(b, h // 2, w // 2, 4 * c), (0, 0, before, behind, before, behind))
    across = [squares[:, :, place : place + w // 2] for place in range(before + behind + 1)]
    return torch.cat(across, 3).permute(0, 3, 1, 2)


def stacked(weight: Tensor) -> Tensor:
    """W, channels-last, of weights (C, c, k, k): (C, channels, blocks down, 1)."""
    n, c, k, _ = weight.shape
    before, behind = reach(k)
    size = before + behind + 1
    first = 2 * before - k // 2
    square = pad(weight, (first, 2 * size - k - first) * 2).reshape(n, c, size, 2, size, 2)
    return square.permute(0, 2, 4, 3, 5, 1).reshape(n, size, 1, 4 * size * c).permute(0, 3, 1, 2)


def fits(x: Tensor, conv: nn.Conv2d) -> bool:
    """Whether `blocked` computes what conv does with x."""
    k = conv.kernel_size[0]
    return (
        x.ndim == 4
        and x.shape[2] % 2 == x.shape[3] % 2 == 0
        and k % 2 == 1
        and (conv.kernel_size, conv.stride, conv.dilation) == ((k, k), (2, 2), (1, 1))
        and (conv.padding, conv.padding_mode) == ((k // 2, k // 2), "zeros")
        and conv.groups == 1
        and conv.bias is None
        and x.shape[1] == conv.in_channels
    )


def blocked(x: Tensor, weight: Tensor) -> Tensor:
    """z of images whose sides are even."""
    return conv2d(blocks(x, weight.shape[2]), stacked(weight))
