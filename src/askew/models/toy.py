"""The paper's small models with many repeats in one tensor: the first dimension of every weight counts repeats.

Methods that work element by element do in such a tensor exactly what they would do in each repeat alone; the sphere of
projected gradient and a scale from the weights do not, so they are not used here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits


class LogisticNet(nn.Module):
    """R logistic regressions without bias: logits = x . w."""

    def __init__(self, repeats: int, d: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(_uniform((repeats, d), 1 / math.sqrt(d), generator))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("rnd,rd->rn", x, self.weight)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean logistic loss of each repeat, (R,)."""
        return binary_cross_entropy_with_logits(self(x), y, reduction="none").mean(1)


class Statistics(NamedTuple):
    """BatchNorm statistics of the hidden and the output layer."""

    hidden_mean: Tensor
    hidden_var: Tensor
    output_mean: Tensor
    output_var: Tensor


class MoonsNet(nn.Module):
    """R nets 2-3-1 with 9 weights each: linear, BatchNorm without affine, ReLU, linear, BatchNorm without affine."""

    def __init__(self, repeats: int, generator: torch.Generator, hidden: int = 3) -> None:
        super().__init__()
        self.hidden = nn.Parameter(_uniform((repeats, hidden, 2), 1 / math.sqrt(2), generator))
        self.output = nn.Parameter(_uniform((repeats, 1, hidden), 1 / math.sqrt(hidden), generator))

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean logistic loss of each repeat on its own batch x (R, B, 2), BatchNorm by that batch."""
        return moons_losses(self.hidden, self.output, x, y)

    @torch.no_grad()
    def score(self, train_x: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(mean loss, accuracy) of each repeat on x, BatchNorm by the whole training set at the present weights."""
        return moons_score(self.hidden, self.output, train_x, x, y)


def _uniform(shape: tuple[int, ...], bound: float, generator: torch.Generator) -> Tensor:
    """torch's default for linear layers: uniform on [-1/sqrt(fan_in), 1/sqrt(fan_in)]."""
    return (2 * torch.rand(shape, generator=generator) - 1) * bound


def _normalise(z: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return (z - mean) / torch.sqrt(var + 1e-5)


def moons_logits(
    hidden: Tensor, output: Tensor, x: Tensor, known: Statistics | None = None
) -> tuple[Tensor, Statistics]:
    """Logits (R, B) and the BatchNorm statistics of this batch; `known` statistics are used instead if given."""
    z = torch.einsum("rbi,rhi->rbh", x, hidden)
    hm, hv = z.mean(1, keepdim=True), z.var(1, correction=0, keepdim=True)
    a = torch.relu(_normalise(z, *(known[:2] if known else (hm, hv))))
    o = torch.einsum("rbh,rkh->rbk", a, output)
    om, ov = o.mean(1, keepdim=True), o.var(1, correction=0, keepdim=True)
    logits = _normalise(o, *(known[2:] if known else (om, ov)))
    return logits.squeeze(-1), Statistics(hm, hv, om, ov)


def moons_losses(hidden: Tensor, output: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Mean logistic loss of each repeat with the batch's own statistics."""
    logits, _ = moons_logits(hidden, output, x)
    return binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1)


def moons_score(hidden: Tensor, output: Tensor, train_x: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """(mean loss, accuracy) of each repeat on x with the training set's statistics."""
    repeats = len(hidden)
    _, population = moons_logits(hidden, output, train_x.expand(repeats, *train_x.shape))
    logits, _ = moons_logits(hidden, output, x.expand(repeats, *x.shape), population)
    target = y.expand(repeats, -1)
    loss = binary_cross_entropy_with_logits(logits, target, reduction="none").mean(1)
    return loss, ((logits > 0) == (target > 0.5)).float().mean(1)
