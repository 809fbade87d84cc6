"""Every network for images by its name in configurations, records and on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from askew.models.resnet import ResNet18
from askew.models.small_conv import small_conv
from askew.models.vgg_small import VGGSmall

MODELS: dict[str, Callable[..., nn.Module]] = {
    "small-conv": small_conv,
    "vgg-small": VGGSmall,
    "resnet18": ResNet18,
}


def model(name: str, **options: Any) -> nn.Module:
    """The network of that name with its options (classes, activation, ...)."""
    if name not in MODELS:
        raise ValueError(f"no model named {name!r}; known: {', '.join(MODELS)}")
    return MODELS[name](**options)
