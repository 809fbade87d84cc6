"""Modules of torch that askew.nn knows: layers that multiply, and activations by the sign of what they let through."""

from __future__ import annotations

from torch import nn

LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
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
