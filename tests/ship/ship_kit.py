"""Nets for the tests of shipping: weights on levels, BatchNorm and quantisers that have seen data."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from askew.core import LevelSet, binary
from askew.core.levels import nearest
from askew.ship.export import to_graph
from askew.ship.runtime import Net

M = TypeVar("M", bound=nn.Module)
WEIGHTS = (nn.Linear, nn.Conv2d, nn.Embedding)


def signs(*shape: int) -> Tensor:
    return torch.where(torch.rand(shape) < 0.5, -1.0, 1.0)


@torch.no_grad()
def on_levels(model: M, levels: LevelSet, scale: float = 1.0) -> M:
    """Every weight at random on the levels, all of them used."""
    table = torch.tensor(levels.values)
    for m in model.modules():
        if isinstance(m, WEIGHTS):
            drawn = table[torch.randint(len(table), m.weight.shape)]
            drawn.view(-1)[: len(table)] = table[: drawn.numel()]
            m.weight.copy_(nearest(drawn, levels) * scale)
    return model


@torch.no_grad()
def settled(model: M, shape: tuple[int, ...], levels: LevelSet | None = None, scale: float = 1.0, seed: int = 0) -> M:
    """The model with weights on levels, running statistics from random batches, affine BatchNorm at random, in eval."""
    torch.manual_seed(seed)
    on_levels(model, levels or binary(), scale)
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.affine:
            m.weight.uniform_(0.5, 1.5)
            m.bias.normal_()
    model.train()
    for _ in range(3):
        model(torch.randn(16, *shape))
    return model.eval()


def both(
    model: nn.Module, levels: LevelSet | None, x: Tensor, threads: int = 1, wide: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(torch's result, the shipped net's)."""
    net = Net(to_graph(model, levels, wide=wide), threads)
    with torch.no_grad():
        return model(x).numpy(), net(x.numpy())


def close(expected: np.ndarray, got: np.ndarray, relative: float = 1e-5) -> bool:
    """Within a part of the largest value."""
    return got.shape == expected.shape and bool(np.abs(got - expected).max() <= relative * np.abs(expected).max())
