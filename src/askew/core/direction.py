"""The velocity of ASkewSGD in closed form, per coordinate, and the level-first floor.

Both are the Muehlebach-Jordan step  v = argmin { |v + u|^2 / 2 : v in V_alpha(w) }  for separable constraints;
velocity.py solves the general case. u is a gradient with respect to w = s q; the constraint is evaluated at q = w / s
and velocities in level units are multiplied by s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from askew.core.constraint import shape
from askew.core.levels import LevelSet, bracket, compute_dtype, nearest


def skew(
    u: Tensor,
    w: Tensor,
    levels: LevelSet,
    epsilon: float | Tensor,
    alpha: float | Tensor,
    clip: float | Tensor,
    scale: Tensor | None = None,
) -> Tensor:
    """The skewed direction s^c_{eps,alpha}(u, w) of the paper.

    -u                        if psi > 0, or if -psi' u >= -alpha psi
    clip(-alpha psi/psi', M)  otherwise
    +M                        at an exact midpoint (psi' = 0 < -alpha psi), by convention to the right

    Arguments: u, the gradient; w, the weights; epsilon, alpha and clip = M in level units; scale s, broadcastable.
    Returns v with u's dtype; where the constraint does not bind, v is -u bit for bit.
    """
    dtype = compute_dtype(w.dtype)
    q, push = w.to(dtype), u.to(dtype)
    if scale is not None:
        q, push = q / scale, push / scale
    phi, slope = shape(q, levels)
    psi, psi_prime = epsilon - phi, -slope
    floor = -alpha * psi
    free = (psi > 0) | (-psi_prime * push >= floor)
    bound = clip.to(dtype) if isinstance(clip, Tensor) else q.new_full((), clip)
    pull = torch.where(psi_prime == 0, bound, torch.clamp(floor / psi_prime, -bound, bound))
    if scale is not None:
        pull = pull * scale
    return torch.where(free, -u, pull.to(u.dtype))


def level_units(w: Tensor, levels: LevelSet, scale: Tensor | None = None) -> Tensor:
    """q = w / s in the computing dtype; exactly the level where w is its rounding s c, though w / s may be off it."""
    x = w.to(compute_dtype(w.dtype))
    if scale is None and x.dtype == w.dtype:
        return x
    q = x if scale is None else x / scale
    c = nearest(q, levels)
    return torch.where(w == (c if scale is None else c * scale).to(w.dtype), c, q)


def half_gap(q: Tensor, levels: LevelSet) -> Tensor:
    """Half the gap that q lies in (the outermost gap beyond the range); may be 0-d and broadcast."""
    a, b = bracket(q, levels)
    return (b - a) / 2


def remoteness(q: Tensor, levels: LevelSet) -> Tensor:
    """Distance to the nearest level in half gaps: 0 on a level, 1 at a midpoint; 0 beyond the range."""
    x = q.to(compute_dtype(q.dtype))
    inside = x.clamp(levels.values[0], levels.values[-1])
    way = (nearest(inside, levels) - inside).abs() / half_gap(inside, levels)
    return way.clamp(max=1.0)  # a midpoint is rounded too


def captured(q: Tensor, levels: LevelSet, radius: float | Tensor) -> Tensor:
    """Boolean: q lies within `radius` half gaps of its nearest level (radius 0: nobody, 1: everybody)."""
    return (remoteness(q, levels) <= radius) & (radius > 0)


def level_first(
    u: Tensor,
    w: Tensor,
    levels: LevelSet,
    radius: float | Tensor,
    alpha: float | Tensor,
    scale: Tensor | None = None,
) -> Tensor:
    """The level-first direction: captured coordinates are drawn to their level, the others are free.

    With d = c - q the signed way to the nearest level c, the constraint g = -d^2/2 >= 0 of a captured coordinate asks
    d v >= alpha d^2 (V_alpha with 2 alpha), so v = -u if -u sign(d) >= alpha |d|, else alpha d. On its level (d = 0)
    the feasible set is a point and v = 0.
    """
    q, push = level_units(w, levels, scale), u.to(compute_dtype(w.dtype))
    if scale is not None:
        push = push / scale
    d = nearest(q, levels) - q
    floor = alpha * d.abs()
    free = ~captured(q, levels, radius) | ((-push * d.sign() >= floor) & (d != 0))
    pull = alpha * d
    if scale is not None:
        pull = pull * scale
    return torch.where(free, -u, pull.to(u.dtype))


def arrive(after: Tensor, before: Tensor, levels: LevelSet, radius: float | Tensor, scale: Tensor | None) -> Tensor:
    """Where a step of captured coordinates may end: at most on the level, never past it.

    A captured coordinate that started on one side of its level stays on that side or on the level; one that started
    on the level stays. Free coordinates end where the base optimizer put them.
    """
    q0, q1 = level_units(before, levels, scale), level_units(after, levels, scale)
    c = nearest(q0, levels)
    past = (c - q0) * (c - q1) <= 0
    level = c if scale is None else c * scale
    return torch.where(captured(q0, levels, radius) & past, level.to(after.dtype), after)


def shown(w: Tensor, levels: LevelSet, radius: float | Tensor, scale: Tensor | None = None) -> Tensor:
    """What a network computes with while capture is reversible: a captured w at its level, any other as it is.

    s c with c the nearest level to w / s where w / s lies within `radius` half gaps of it, else w bit for bit.
    """
    q = level_units(w, levels, scale)
    c = nearest(q, levels)
    level = c if scale is None else c * scale
    return torch.where(captured(q, levels, radius), level.to(w.dtype), w)


BINS = 2048


def remoteness_counts(remote: Tensor, bins: int = BINS) -> Tensor:
    """A histogram of remotenesses over [0, 1]."""
    return torch.histc(remote.float(), bins=bins, min=0.0, max=1.0).double()


def radius_within(counts: Tensor, fraction: float | Tensor) -> Tensor:
    """The radius (0-d), to one bin, within which the given fraction of the counted coordinates lies; 0 for none."""
    below = (counts.cumsum(0) < fraction * counts.sum()).sum()
    return ((below + 1) / len(counts)).clamp(max=1.0) * (fraction > 0)


def quantile_radius(remote: Tensor, fraction: float | Tensor, bins: int = BINS) -> Tensor:
    """The radius (0-d) within which the given fraction of coordinates lies, to 1/bins, without sort or device sync."""
    return radius_within(remoteness_counts(remote, bins), fraction)


def snap(w: Tensor, levels: LevelSet, scale: Tensor | None = None) -> Tensor:
    """s * (nearest level to w / s): the weights that ship."""
    if scale is None:
        return nearest(w, levels)
    q = w.to(compute_dtype(w.dtype)) / scale
    return (nearest(q, levels) * scale).to(w.dtype)
