"""Networks by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from askew.models.registry import MODELS, model
from askew.models.resnet import ResNet18
from askew.models.vgg_small import VGGSmall


def test_names():
    assert list(MODELS) == ["small-conv", "vgg-small", "resnet18"]
    assert isinstance(model("small-conv", channels=4), nn.Sequential)
    vgg = model("vgg-small", width=4, classes=7, activation=nn.Tanh)
    assert isinstance(vgg, VGGSmall) and isinstance(vgg.features[0].activation, nn.Tanh)
    assert vgg(torch.randn(2, 3, 32, 32)).shape == (2, 7)
    assert isinstance(model("resnet18", classes=7, stem="small"), ResNet18)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="no model named 'vgg'; known: small-conv, vgg-small, resnet18"):
        model("vgg")


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="stem"):
        model("vgg-small", stem="small")
