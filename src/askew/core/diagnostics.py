"""What a look at the weights tells: feasibility, distance to levels, flips, and the KKT residual.

All functions are pure and without device syncs: each returns one small tensor per weight tensor, and the caller reads
all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    rows, indices = look_at_all([q], [u], levels, kind, value, [last])
    return rows[0], indices[0]


def look_at_all(
    qs: Sequence[Tensor],
    us: Sequence[Tensor | None],
    levels: LevelSet,
    kind: Kind,
    value: float | Tensor,
    lasts: Sequence[Tensor | None],
) -> tuple[Tensor, list[Tensor]]:
    """`look` at several tensors, laid end to end: about as many operations as for one. Returns ((n, 6), n indices).

    us and lasts are known of all tensors or of none; value is one number, or a radius for each weight, laid end to end.
    """
    x = torch.cat([q.reshape(-1) for q in qs]).to(compute_dtype(qs[0].dtype))
    j = index(x, levels).to(torch.uint8 if len(levels) <= 256 else torch.int32)
    distance = (nearest(x, levels) - x).abs()
    if kind == "epsilon":
        slack = psi(x, levels, value)
        inside, active = slack >= 0, slack <= 0
    else:
        inside, active = distance == 0, captured(x, levels, value)
    before, pushes = [t for t in lasts if t is not None], [t for t in us if t is not None]
    unknown = torch.full((), torch.nan, dtype=x.dtype, device=x.device).expand_as(x)
    flipped = (j != torch.cat([t.reshape(-1) for t in before])).to(x.dtype) if before else unknown
    residual = unknown
    if pushes:
        u = torch.cat([t.reshape(-1) for t in pushes])
        residual = (kkt_residual if kind == "epsilon" else capture_residual)(x, u, levels, value)
    sizes = [q.numel() for q in qs]
    means = torch.stack([inside.to(x.dtype), active.to(x.dtype), distance, flipped]).split(sizes, 1)
    worsts = torch.stack([distance, residual]).split(sizes, 1)
    none = x.new_full((2,), torch.nan)
    mean = torch.stack([part.mean(1) for part in means])  # nan for a tensor without weights
    worst = torch.stack([part.amax(1) if part.numel() else none for part in worsts])
    columns = (mean[:, :3], worst[:, :1], mean[:, 3:], worst[:, 1:])
    return torch.cat(columns, 1).float(), [t.view(q.shape) for t, q in zip(j.split(sizes), qs, strict=True)]
