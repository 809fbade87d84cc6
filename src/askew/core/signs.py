"""What stands for the derivative of the sign, which is 0 wherever it exists."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

SignGradient = Literal["tanh", "clip", "quadratic"]


def slope(x: Tensor, kind: SignGradient) -> Tensor:
    """A bump around 0 that a gradient is multiplied by.

    tanh       1 - tanh(x)^2, as in the paper
    clip       1 where |x| <= 1, else 0
    quadratic  max(0, 2 - 2|x|), the derivative of a piecewise quadratic sign
    """
    if kind == "tanh":
        return 1 - torch.tanh(x).square()
    if kind == "clip":
        return (x.abs() <= 1).to(x.dtype)
    return (2 - 2 * x.abs()).clamp(min=0)
