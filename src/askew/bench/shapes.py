"""The parameter lists that steps are timed on: shapes alone, no models."""

from __future__ import annotations

from math import prod

Shapes = list[tuple[int, ...]]


def _conv(outside: int, inside: int, kernel: int) -> Shapes:
    """A convolution without bias and its BatchNorm with scale and shift."""
    return [(outside, inside, kernel, kernel), (outside,), (outside,)]


def resnet(blocks: tuple[int, ...], bottleneck: bool, classes: int = 1000) -> Shapes:
    """The usual ImageNet ResNet: ResNet-18 is (2, 2, 2, 2), ResNet-50 (3, 4, 6, 3) with bottlenecks."""
    out, inside = _conv(64, 3, 7), 64
    for stage, count in enumerate(blocks):
        width = 64 * 2**stage
        outside = width * 4 if bottleneck else width
        for block in range(count):
            if bottleneck:
                out += _conv(width, inside, 1) + _conv(width, width, 3) + _conv(outside, width, 1)
            else:
                out += _conv(width, inside, 3) + _conv(width, width, 3)
            if block == 0 and inside != outside:
                out += _conv(outside, inside, 1)
            inside = outside
    return [*out, (classes, inside), (classes,)]


CASES: dict[str, Shapes] = {
    "resnet18": resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": resnet((3, 4, 6, 3), bottleneck=True),
    "one-50m": [(50_000, 1000)],
    "one-1b": [(1_000_000, 1000)],
}
TITLES = {
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "one-50m": "one tensor of 50M",
    "one-1b": "one tensor of 1B",
}


def size(shapes: Shapes) -> int:
    """How many parameters."""
    return sum(prod(shape) for shape in shapes)
