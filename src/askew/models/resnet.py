"""ResNet-18 of the TinyImageNet and ImageNet runs: no biases, a BatchNorm (without affine) after every layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, get_args

from torch import Tensor, nn

from askew.models.norm import Chain, norm_activation

Stem = Literal["imagenet", "small", "tiny"]


class BasicBlock(nn.Module):
    """activation(shortcut(x) + norm(conv2(activation(norm(conv1(x)))))).

    The shortcut is the identity, or a 1x1 convolution and BN where the shape changes.
    """

    def __init__(
        self, inside: int, outside: int, stride: int, activation: Callable[[], nn.Module], affine: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside, affine=affine)
        self.activation1 = activation()
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside, affine=affine)
        self.activation2 = activation()
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut.add_module("conv", nn.Conv2d(inside, outside, 1, stride, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(outside, affine=affine))

    def forward(self, x: Tensor) -> Tensor:
        y = norm_activation(self.conv1(x), self.norm1, self.activation1)
        return norm_activation(self.conv2(y), self.norm2, self.activation2, self.shortcut(x))


class ResNet18(nn.Module):
    """Stem, four stages of two basic blocks with 64, 128, 256, 512 channels, average pooling, FC.

    stem        "imagenet": 7x7 stride 2, then 3x3 max-pool stride 2; 11,678,912 weights for 1000 classes
                "tiny": the same for 64x64 images, whose last stage is then 2x2; 11,269,312 weights for 200 classes
                "small": 3x3 stride 1 and no pool, for 32x32 and 64x64; 11,261,632 weights for 200 classes
    activation  makes one module for the stem and two for each block: seventeen of them
    head_norm   BatchNorm after the linear layer as well
    affine      the convolutions' BatchNorm with a learnt scale and bias for each channel (the paper's has none)
    width       channels of the stem and the first stage (the weights above are of 64); the next ones have twice as many
                as the one before

    Any image size will do. Weights start at torch's default (Kaiming uniform, +-1/sqrt(fan_in)). Their modules go by
    stem.conv, stages.0.0.conv1 ... stages.3.1.conv2, stages.1.0.shortcut.conv and head.linear, names for the patterns
    of `askew.groups`.
    """

    def __init__(
        self,
        classes: int = 1000,
        stem: Stem = "imagenet",
        activation: Callable[[], nn.Module] = nn.ReLU,
        head_norm: bool = True,
        affine: bool = False,
        width: int = 64,
    ) -> None:
        super().__init__()
        self.stem = _stem(stem, width, activation(), affine)
        self.stages = nn.Sequential(
            _stage(width, width, 1, activation, affine),
            *(_stage(inside, 2 * inside, 2, activation, affine) for inside in (width, 2 * width, 4 * width)),
        )
        layers: list[tuple[str, nn.Module]] = [
            ("pool", nn.AdaptiveAvgPool2d(1)),
            ("flatten", nn.Flatten()),
            ("linear", nn.Linear(8 * width, classes, bias=False)),
        ]
        if head_norm:
            layers.append(("norm", nn.BatchNorm1d(classes, affine=False)))
        self.head = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(x)))


def _stage(inside: int, outside: int, stride: int, activation: Callable[[], nn.Module], affine: bool) -> nn.Sequential:
    first = BasicBlock(inside, outside, stride, activation, affine)
    return nn.Sequential(first, BasicBlock(outside, outside, 1, activation, affine))


def _stem(kind: Stem, width: int, activation: nn.Module, affine: bool) -> Chain:
    if kind not in get_args(Stem):
        raise ValueError(f"no stem named {kind!r}; known: {', '.join(get_args(Stem))}")
    size, stride = (3, 1) if kind == "small" else (7, 2)
    layers: list[tuple[str, nn.Module]] = [
        ("conv", nn.Conv2d(3, width, size, stride, padding=size // 2, bias=False)),
        ("norm", nn.BatchNorm2d(width, affine=affine)),
        ("activation", activation),
    ]
    if kind != "small":
        layers.append(("pool", nn.MaxPool2d(3, 2, padding=1)))
    return Chain(OrderedDict(layers))
