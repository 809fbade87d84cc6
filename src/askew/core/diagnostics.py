"""What a look at the weights tells: feasibility, distance to levels, flips, and the KKT residual.

All functions are pure and without device syncs: each returns one small tensor per weight tensor, and the caller reads
all of them at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from askew.core.annealing import Kind
from askew.core.constraint import interval, psi
from askew.core.direction import captured
from askew.core.levels import LevelSet, compute_dtype, index, nearest

FIELDS = ("feasible", "active", "distance_mean", "distance_max", "flips", "kkt")


@dataclass(frozen=True)
class LayerReport:
    """One layer's numbers: fractions in [0, 1], distances in level units, largest KKT residual (nan: no gradient)."""

    name: str
    size: int
    feasible: float
    active: float
    distance_mean: float
    distance_max: float
    flips: float
    kkt: float


def kkt_residual(q: Tensor, u: Tensor, levels: LevelSet, epsilon: float | Tensor) -> Tensor:
    """Natural residual |q - P(q - u)| per coordinate, P the projection onto the feasible interval around q's level.

    Zero exactly on Z_eps: inside (psi > 0) it asks u = 0, on a border sign(u) = sign(psi'), outside it is positive.
    u is the gradient with respect to q.
    """
    x, g = q.to(compute_dtype(q.dtype)), u.to(compute_dtype(u.dtype))
    low, high = interval(x, levels, epsilon)
    return (x - torch.clamp(x - g, low, high)).abs()


def capture_residual(q: Tensor, u: Tensor, levels: LevelSet, radius: float | Tensor) -> Tensor:
    """The same for level-first: a captured coordinate's feasible set is its level, a free one's is the whole line."""
    x, g = q.to(compute_dtype(q.dtype)), u.to(compute_dtype(u.dtype))
    distance = (nearest(x, levels) - x).abs()
    return torch.where(captured(x, levels, radius), distance, g.abs())


def look(
    q: Tensor, u: Tensor | None, levels: LevelSet, kind: Kind, value: float | Tensor, last: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One tensor's numbers in the order of FIELDS, and the level indices to compare with at the next look.

    feasible and active are those of the schedule: psi >= 0 and psi <= 0 for epsilon; on its level and captured for
    level-first. Arguments: q, the weights in level units; u, the gradient with respect to q; last, the indices before.
    """
    x = q.to(compute_dtype(q.dtype))
    j = index(x, levels).to(torch.uint8 if len(levels) <= 256 else torch.int32)
    distance = (nearest(x, levels) - x).abs()
    if kind == "epsilon":
        slack = psi(x, levels, value)
        inside, active = slack >= 0, slack <= 0
    else:
        inside, active = distance == 0, captured(x, levels, value)
    nan = torch.full((), float("nan"), dtype=x.dtype, device=x.device)
    if u is None or x.numel() == 0:
        worst = nan
    else:
        worst = (kkt_residual if kind == "epsilon" else capture_residual)(x, u, levels, value).max()
    flips = nan if last is None else (j != last).to(x.dtype).mean()
    far = distance.max() if x.numel() else nan
    parts = [inside.to(x.dtype).mean(), active.to(x.dtype).mean(), distance.mean(), far, flips, worst]
    return torch.stack([part.float() for part in parts]), j
