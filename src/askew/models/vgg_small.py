"""VGG-small, the ConvNet of the CIFAR-10 runs: no biases, a BatchNorm (without affine) after every layer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from askew.models.norm import Chain


class VGGSmall(nn.Module):
    """2x128C3, pool, 2x256C3, pool, 2x512C3, pool, FC: 4,656,512 weights (4.66M) for ten classes of 32x32 images.

    width       channels of the first pair; the next pairs have two and four times as many
    activation  makes one module after each convolution's BatchNorm: six of them
    image       side of the square input; it sets the size of the linear layer
    pool_first  False: conv -> BN -> activation -> pool. True, for sign activations (W1/A1): conv -> pool -> BN -> sign,
                so that the BN just before the sign centres what the sign sees. Pooling after it would leave +-1 too,
                but mostly +1: the largest of four. The two orders agree once BN's statistics are given, for
                scales that are not negative.
    head_norm   BatchNorm after the linear layer as well
    affine      the convolutions' BatchNorm with a learnt scale and bias for each channel (the paper's has none)

    Weights start at torch's default (Kaiming uniform, +-1/sqrt(fan_in)). Their modules go by features.0.conv ...
    features.5.conv and head.linear, names for the patterns of `askew.groups`.
    """

    def __init__(
        self,
        classes: int = 10,
        width: int = 128,
        activation: Callable[[], nn.Module] = nn.ReLU,
        image: int = 32,
        pool_first: bool = False,
        head_norm: bool = True,
        affine: bool = False,
    ) -> None:
        super().__init__()
        if image < 8:
            raise ValueError(f"three poolings need images of at least 8x8, not {image}x{image}")
        channels = [3, width, width, 2 * width, 2 * width, 4 * width, 4 * width]
        self.features = nn.Sequential()
        for i, (inside, outside) in enumerate(pairwise(channels)):
            self.features.append(_block(inside, outside, activation(), i % 2 == 1, pool_first, affine))
        layers: list[tuple[str, nn.Module]] = [
            ("flatten", nn.Flatten()),
            ("linear", nn.Linear(4 * width * (image // 8) ** 2, classes, bias=False)),
        ]
        if head_norm:
            layers.append(("norm", nn.BatchNorm1d(classes, affine=False)))
        self.head = nn.Sequential(OrderedDict(layers))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def _block(inside: int, outside: int, activation: nn.Module, pool: bool, pool_first: bool, affine: bool) -> Chain:
    """conv -> BN -> activation, with a pool at the end or right after the convolution."""
    layers: list[tuple[str, nn.Module]] = [
        ("conv", nn.Conv2d(inside, outside, 3, padding=1, bias=False)),
        ("norm", nn.BatchNorm2d(outside, affine=affine)),
        ("activation", activation),
    ]
    if pool:
        layers.insert(1 if pool_first else len(layers), ("pool", nn.MaxPool2d(2)))
    return Chain(OrderedDict(layers))
