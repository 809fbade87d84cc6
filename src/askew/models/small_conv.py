"""A small convolutional net for 8x8 digits: no biases, BatchNorm without affine after every layer, as in the paper."""

from __future__ import annotations

from torch import nn


def small_conv(channels: int = 32, classes: int = 10) -> nn.Sequential:
    """1x8x8 -> conv3 -> conv3 -> pool -> conv3 -> pool -> linear; about 30 thousand weights at 32 channels."""

    def block(inside: int, outside: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside, affine=False),
            nn.ReLU(),
        ]

    return nn.Sequential(
        *block(1, channels),
        *block(channels, channels),
        nn.MaxPool2d(2),
        *block(channels, 2 * channels),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * channels * 4, classes, bias=False),
        nn.BatchNorm1d(classes, affine=False),
    )
