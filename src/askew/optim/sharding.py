"""Weights cut over processes (DTensors, as FSDP2's fully_shard makes them): each hook sees what it needs, no more.

A method that treats each weight alone runs on the local part; what it must know of the whole tensor (moments for the
scale, the histogram for the quantile radius) is reduced over the processes that hold the other parts. Any other method
runs on the gathered tensor, one parameter at a time. Levels are never cut. Every function is the identity, or the
plain computation, for a tensor that is not cut, so nothing is sent where nothing is sharded; where something is, all
processes must call together (step, diagnose, snapped, snap_, and weights while a scale still follows).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from askew.core import LevelSet, Per, ScaleKind
from askew.core import scale_of as plain_scale_of
from askew.core.direction import level_units, radius_within, remoteness, remoteness_counts
from askew.core.levels import compute_dtype
from askew.core.scale import moments, scale_from
from askew.methods.adaste import AdaSTE
from askew.methods.askew import DitheredLevelFirst, EpsilonSkew, LevelFirstSkew, ReversibleLevelFirst, RoundedLevelFirst
from askew.methods.base import FullPrecision, Method, Site
from askew.methods.binaryconnect import BinaryConnect
from askew.methods.luq import Luq
from askew.methods.mirror import MirrorDescent
from askew.methods.parq import Parq
from askew.methods.projected import ProjectedGradient
from askew.methods.proxquant import ProxQuant

Hook = Literal["direction", "retract", "forward_weight", "final"]
ELEMENTWISE = (
    FullPrecision,
    EpsilonSkew,
    LevelFirstSkew,
    DitheredLevelFirst,
    RoundedLevelFirst,
    ReversibleLevelFirst,
    BinaryConnect,
    Luq,
    AdaSTE,
    MirrorDescent,
    ProxQuant,
)


class ShardedSite(Site):
    """The site of a cut parameter; its scale is 0-d, or cut as the parameter's channels are."""

    def follow(self, w: Tensor) -> None:
        if self.scale is not None and "scale" not in self.memory:
            self.scale = scale_of(w, self.levels, *self.scale_rule)


class _Layout(NamedTuple):
    """Where a DTensor lies: its mesh, and for each mesh dimension the tensor dimension it cuts (None: it copies)."""

    mesh: Any
    placements: tuple[Any, ...]
    cuts: tuple[int | None, ...]

    def groups(self, first: int = 0) -> list[dist.ProcessGroup]:
        """The process groups over which tensor dimensions >= first are cut."""
        return [self.mesh.get_group(i) for i, d in enumerate(self.cuts) if d is not None and d >= first]


def is_sharded(t: Tensor) -> bool:
    """True for a DTensor (there can be none before its module has been imported)."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(t, module.DTensor)


def local(t: Any) -> Any:
    """This process's part of a DTensor, sharing its memory; anything else as it is."""
    if not isinstance(t, Tensor) or not is_sharded(t):
        return t
    with torch.no_grad():
        return t.to_local()  # pyright: ignore[reportAttributeAccessIssue]


def whole(t: Any) -> Any:
    """The gathered tensor of a DTensor; anything else as it is."""
    if not isinstance(t, Tensor) or not is_sharded(t):
        return t
    return t.detach().full_tensor()  # pyright: ignore[reportAttributeAccessIssue]


def _layout(t: Any) -> _Layout:
    if any(p.is_partial() for p in t.placements):
        raise ValueError(f"a weight of pending sums cannot take levels: placements {t.placements}")
    return _Layout(t.device_mesh, t.placements, tuple(getattr(p, "dim", None) for p in t.placements))


def group_of(t: Tensor) -> list[dist.ProcessGroup]:
    """The process groups over which t is cut; none for a plain tensor."""
    return _layout(t).groups() if is_sharded(t) else []


def _like(part: Tensor, t: Any) -> Tensor:
    """A DTensor that lies as t does, from this process's part."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(part, t.device_mesh, t.placements, run_check=False, shape=t.shape, stride=t.stride())


def _rows_like(part: Tensor, t: Any) -> Tensor:
    """A DTensor (C, 1, ..) whose rows are cut as t's are."""
    from torch.distributed.tensor import DTensor, Replicate

    layout = _layout(t)
    placements = [Replicate() if d else p for p, d in zip(layout.placements, layout.cuts, strict=True)]
    shape, stride = torch.Size([t.shape[0], *[1] * (t.ndim - 1)]), (1,) * t.ndim
    return DTensor.from_local(part, layout.mesh, placements, run_check=False, shape=shape, stride=stride)


def aligned(gradient: Tensor, w: Tensor) -> Tensor:
    """The gradient cut as its weight is (FSDP2's always is; tensor-parallel ones may be pending sums)."""
    if is_sharded(gradient) and gradient.placements != w.placements:  # pyright: ignore[reportAttributeAccessIssue]
        return gradient.redistribute(w.device_mesh, w.placements)  # pyright: ignore[reportAttributeAccessIssue]
    return gradient


# -- reductions -------------------------------------------------------------------------------------------------------


def gathered(part: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(ranks, ...): the same small tensor from every process of the group, in the same order everywhere."""
    mine = part.contiguous()
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, mine, group=group)
    return torch.stack(parts)


def summed(part: Tensor, groups: Sequence[dist.ProcessGroup]) -> Tensor:
    """The sum over the groups' processes."""
    for group in groups:
        part = gathered(part, group).sum(0)
    return part


def agreed(flags: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Flags (bool) that are up in any process over which one of the weights is spread; one small exchange a mesh."""
    meshes = {w.device_mesh for w in weights if is_sharded(w)}  # pyright: ignore[reportAttributeAccessIssue]
    for mesh in sorted(meshes, key=lambda m: str(m.mesh.tolist())):
        for i in range(mesh.ndim):
            flags = gathered(flags.to(torch.uint8), mesh.get_group(i)).amax(0) > 0
    return flags


def _pooled(moment: Tensor, count: int, groups: Sequence[dist.ProcessGroup]) -> Tensor:
    """The moments of the whole from those of parts: sum of count * mean over sum of counts; an empty part adds none."""
    number = torch.full_like(moment[:1], count, dtype=torch.float64)
    pooled = moment.double()
    for group in groups:
        rows = gathered(torch.cat([number, pooled]), group)
        counts, values = rows[:, :1], rows[:, 1:]
        number = counts.sum(0)
        mean = torch.where(counts > 0, counts * values[:, :2], 0).sum(0) / number
        pooled = torch.cat([mean, values[:, 2:].amax(0)])
    return pooled.to(moment.dtype)


def scale_of(w: Tensor, levels: LevelSet, kind: ScaleKind, per: Per = "tensor") -> Tensor | None:
    """core.scale_of for a tensor that may be cut: 0-d and equal in all processes, or cut with the channels' rows."""
    if kind == "none" or not is_sharded(w):
        return plain_scale_of(w, levels, kind, per)
    part = local(w)
    rows, columns = (part.shape[0], math.prod(part.shape[1:])) if per == "channel" else (1, part.numel())
    lone = part if columns else part.new_zeros(rows, *[1] * (part.ndim - 1))
    moment = _pooled(moments(lone, kind, per), columns, _layout(w).groups(1 if per == "channel" else 0))
    s = scale_from(moment, levels, kind)
    return s if per == "tensor" else _rows_like(s, w)


def unmeasured(w: Tensor, per: Per) -> Tensor:
    """Zeros that lie as the scale of w does."""
    dtype, ones = compute_dtype(w.dtype), [1] * (w.ndim - 1)
    if per == "tensor":
        return torch.zeros((), dtype=dtype, device=w.device)
    zeros = torch.zeros(local(w).shape[0], *ones, dtype=dtype, device=w.device)
    return _rows_like(zeros, w) if is_sharded(w) else zeros


def quantile_radius(remote: Tensor, fraction: Tensor, groups: Sequence[dist.ProcessGroup]) -> Tensor:
    """core.direction.quantile_radius of a tensor whose part has these remotenesses: the histograms are summed."""
    return radius_within(summed(remoteness_counts(remote), groups), fraction)


# -- hooks ------------------------------------------------------------------------------------------------------------


def elementwise(method: Method, hook: Hook) -> bool:
    """May the hook run on a part alone? Draws may not: whole tensors make them those of one process with that seed."""
    if hook == "forward_weight" and method.random:
        return False
    if isinstance(method, ProjectedGradient):
        return type(method) is ProjectedGradient and method.onto == "cube"
    if isinstance(method, Parq):
        return type(method) is Parq and method.levels == "fixed"
    return type(method) in ELEMENTWISE


def apply(method: Method, hook: Hook, site: Site, first: Tensor, *others: Tensor | None) -> Tensor:
    """method.hook(first, *others, site), for parameters cut over processes or not; the result lies as `first` does."""
    call = getattr(method, hook)
    if not is_sharded(first):
        return call(first, *others, site)
    if elementwise(method, hook):
        here = replace(site, scale=local(site.scale))
        if hook == "direction" and isinstance(method, LevelFirstSkew) and method.by == "quantile":
            call, here = _with_radius(method, here, local(others[0]), group_of(first))
        part = local(first)
        return _like(call(part, *map(local, others), here) if part.numel() else part, first)
    from torch.distributed.tensor import distribute_tensor

    out = call(whole(first), *map(whole, others), replace(site, scale=whole(site.scale)))
    layout = _layout(first)
    return distribute_tensor(out, layout.mesh, layout.placements, src_data_rank=None)


def _with_radius(
    method: LevelFirstSkew, site: Site, w: Tensor, groups: Sequence[dist.ProcessGroup]
) -> tuple[Any, Site]:
    """The direction by radius, at the whole tensor's quantile radius, which is remembered as LevelFirstSkew does."""
    radius = quantile_radius(remoteness(level_units(w, site.levels, site.scale), site.levels), site.value, groups)
    radius = site.memory["radius"] = torch.maximum(site.memory.get("radius", radius), radius)
    return replace(method, by="radius").direction, replace(site, value=radius)


def reshard(weights: Sequence[Tensor]) -> None:
    """Let FSDP2 drop gathered copies of these weights: after a forward pass without a backward one its root keeps them,
    and would compute with them whatever is written to the weights.
    """
    if not any(is_sharded(w) for w in weights):
        return
    from torch.distributed import _composable_state
    from torch.distributed.fsdp import FSDPModule

    for module in list(getattr(_composable_state, "_module_state_mapping", {})):
        if isinstance(module, FSDPModule):
            module.reshard()
