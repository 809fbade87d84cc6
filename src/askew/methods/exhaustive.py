"""Exhaustive search: the loss of every level pattern of a small net, as ground truth for the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from askew.core.levels import LevelSet, as_levels


class Search(NamedTuple):
    """The best pattern (size,), its loss, and the losses of all K^size patterns, in the order of `patterns`."""

    pattern: Tensor
    loss: float
    losses: Tensor


def patterns(indices: Tensor, levels: LevelSet | Sequence[float], size: int) -> Tensor:
    """(B, size) patterns, float32: weight j takes the level named by digit j of the index in base K, lowest first."""
    table = torch.tensor(as_levels(levels).values, device=indices.device)
    powers = torch.tensor([len(table) ** j for j in range(size)], device=indices.device)
    return table[indices.unsqueeze(1) // powers % len(table)]


@torch.no_grad()
def exhaustive(
    loss: Callable[[Tensor], Tensor],
    levels: LevelSet | Sequence[float],
    size: int,
    limit: int = 2**20,
    batch: int = 4096,
    device: torch.device | str = "cpu",
) -> Search:
    """The best of all K^size patterns of `size` weights; of equal ones the first.

    loss    (B, size) weights -> (B,) losses, without NaN
    limit   most patterns to try; above it a ValueError
    batch   patterns a call
    """
    levels = as_levels(levels)
    if size < 1 or batch < 1:
        raise ValueError(f"exhaustive: size and batch must be at least 1, got {size} and {batch}")
    count = len(levels) ** size
    if count > limit:
        raise ValueError(f"exhaustive: {len(levels)}^{size} = {count} patterns exceed the limit of {limit}")
    found = []
    for first in range(0, count, batch):
        w = patterns(torch.arange(first, min(first + batch, count), device=device), levels, size)
        values = loss(w)
        if values.shape != w.shape[:1]:
            raise ValueError(f"exhaustive: loss must give shape {tuple(w.shape[:1])}, got {tuple(values.shape)}")
        found.append(values)
    losses = torch.cat(found)
    if bool(losses.isnan().any()):
        raise ValueError(f"exhaustive: the loss of pattern {int(losses.isnan().nonzero()[0])} is NaN")
    best = losses.argmin()
    return Search(patterns(best.reshape(1), levels, size)[0], float(losses[best]), losses)
