"""Modules of torch that askew.nn knows: layers that multiply, and activations by the sign of what they let through."""

from __future__ import annotations

from torch import nn

from askew.optim.groups import LAYERS as LAYERS

UNSIGNED = (nn.ReLU, nn.ReLU6, nn.Sigmoid, nn.Softplus, nn.Hardsigmoid)
SIGNED = (
    nn.GELU,
    nn.SiLU,
    nn.LeakyReLU,
    nn.PReLU,
    nn.ELU,
    nn.CELU,
    nn.SELU,
    nn.Tanh,
    nn.Hardtanh,
    nn.Hardswish,
    nn.Mish,
)
