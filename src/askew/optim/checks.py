"""What bad input gets: an exception that names the group and the parameter, before anything has changed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from askew.core import Annealing, EpsilonWarning, LevelSet, as_levels
from askew.core.levels import nearest
from askew.core.scale import check_scale
from askew.optim.fused_native import any_bad
from askew.optim.sharding import agreed, is_sharded, local

Group = dict[str, Any]
NonFinite = Literal["raise", "skip", "ignore"]


class OneLevelWarning(UserWarning):
    """All weights of a tensor are nearest to the same level: the levels are too far apart for them."""


class NonFiniteGradientError(ValueError):
    """A gradient holds NaN or infinity; weights, moments and annealing are untouched."""


def labels(group: Group) -> list[str]:
    """'conv1.weight' for each parameter, or its place where the optimizer was built without names."""
    return list(group.get("param_names") or [f"parameter {i}" for i in range(len(group["params"]))])


def names(group: Group, position: int) -> list[str]:
    """'group 0, conv1.weight' for each parameter."""
    return [f"group {position}, {label}" for label in labels(group)]


def first_name(group: Group, position: int) -> str:
    """'group 0, conv1.weight' for errors about a whole group; 'group 0' when it is empty."""
    return (names(group, position) or [f"group {position}"])[0]


def check_group(group: Group, position: int) -> None:
    """Validate the options of one group with levels; turns a list of levels into a LevelSet."""
    if group.get("levels") is None:
        group["levels"] = None
        return
    where = first_name(group, position)
    try:
        group["levels"] = as_levels(group["levels"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error
    alpha, clip = group["alpha"], group["clip"]
    if not isinstance(alpha, (int, float)) or not math.isfinite(alpha) or alpha <= 0:
        raise ValueError(f"{where}: alpha must be positive and finite, got {alpha!r}")
    if clip != "quarter" and (not isinstance(clip, (int, float)) or not math.isfinite(clip) or clip <= 0):
        raise ValueError(f"{where}: clip must be positive and finite, or 'quarter', got {clip!r}")
    if clip == "quarter" and "lr" not in group:
        raise ValueError(f"{where}: clip='quarter' needs a base optimizer with a learning rate")
    turn = group.get("turn", 0.0)
    if not isinstance(turn, (int, float)) or not 0 <= turn <= 1:
        raise ValueError(f"{where}: turn must lie between 0 (first) and 1 (last), got {turn!r}")
    for name, p in zip(names(group, position), group["params"], strict=True):
        if not p.is_floating_point():
            raise ValueError(f"{name}: levels need real floating-point weights, got {p.dtype}")
        check_scale(group["scale"], group["per"], p, name)


def warn_epsilon(annealing: Annealing, levels: LevelSet, position: int) -> None:
    """Warn when the schedule starts above Theorem 1's bound (values are in units of it)."""
    if annealing.kind == "epsilon" and 1 < annealing.largest() < math.inf:
        warnings.warn(
            f"group {position}: epsilon starts at {annealing.largest():g} times Theorem 1's bound "
            f"{levels.epsilon_bound:g} for levels {levels.name!r}; above it the intervals have merged and the theorem "
            "does not apply",
            EpsilonWarning,
            stacklevel=4,
        )


def warn_one_level(group: Group, position: int) -> None:
    """Warn when unscaled levels are so far apart that all (different) weights of a tensor would snap to one of them."""
    if group["levels"] is None or group["scale"] != "none":
        return
    for name, p in zip(names(group, position), group["params"], strict=True):
        part = local(p.detach())
        if part.device.type == "meta" or part.numel() == 0:
            continue
        ends = torch.stack(part.aminmax()).to(torch.float64)
        low, high = nearest(ends, group["levels"]).tolist()
        if low == high and ends[0] != ends[1]:
            warnings.warn(
                f"{name}: all weights, {ends[0]:.3g} to {ends[1]:.3g}, are nearest to the level {low:g} of "
                f"{group['levels'].name!r}; give scale='sawb' or 'abs-mean' so that the levels fit the weights",
                OneLevelWarning,
                stacklevel=4,
            )
            return


def gradients(groups: list[Group]) -> Iterator[tuple[str, Tensor]]:
    """(name, gradient) of every parameter that has one."""
    for position, group in enumerate(groups):
        for name, p in zip(names(group, position), group["params"], strict=True):
            if p.grad is not None:
                yield name, p.grad


def _bad_here(groups: list[Group], found: list[Tensor]) -> list[str]:
    """Names of the gradients with NaN or infinity; one device sync when there is none."""
    if not found or any_bad(found) is False:
        return []
    largest = torch.nn.utils.get_total_norm([g for g in found if g.numel()], norm_type=math.inf)
    if bool(torch.isfinite(largest)):
        return []
    return [name for name, g in gradients(groups) if not bool(torch.isfinite(g).all())]


def _bad_anywhere(groups: list[Group], weights: list[Tensor]) -> list[str]:
    """The same over all processes that hold parts of the weights, with or without gradients here."""
    fine = torch.ones((), dtype=torch.bool, device=weights[0].device)
    here = [fine if p.grad is None else torch.isfinite(local(p.grad)).all().to(fine.device) for p in weights]
    bad = agreed(~torch.stack(here), weights).tolist()
    return [name for name, flag in zip(_all_names(groups), bad, strict=True) if flag]


def _all_names(groups: list[Group]) -> list[str]:
    return [name for position, group in enumerate(groups) for name in names(group, position)]


def only_makes_state(base: Optimizer) -> bool:
    """True for a step that is none: no state yet, every learning rate set to 0, every gradient there and 0.

    torch.distributed.checkpoint takes such a step, so that the base optimizer makes its state, before it saves or
    loads one; annealing, scales and weights must not move. Looks at gradients only when the rest holds.
    """
    if base.state:
        return False
    rates = [group.get("lr", 1.0) for group in base.param_groups]
    if not all(_is_zero(rate) for rate in rates) or base.defaults.get("lr", 0.0) == 0:
        return False
    weights = [p for group in base.param_groups for p in group["params"] if p.requires_grad]
    if not weights:
        return False
    moving = [_moves(p).to(weights[0].device) for p in weights]
    return not bool(agreed(torch.stack(moving).any().reshape(1), weights))


def _is_zero(rate: float | Tensor) -> bool:
    """Without a device sync: a rate that lives on a device is not what torch puts in."""
    return rate.device.type == "cpu" and bool(rate == 0) if isinstance(rate, Tensor) else rate == 0


def _moves(p: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.bool) if p.grad is None else (local(p.grad) != 0).any()


def check_gradients(groups: list[Group], nonfinite: NonFinite) -> bool:
    """True when the step may go on; False when it is to be skipped. One device sync unless nonfinite='ignore'.

    Processes that hold parts of the weights decide as one: a bad part anywhere skips the step, or raises, everywhere.
    """
    weights = [p for group in groups for p in group["params"]]
    found = [g for p in weights if (g := p.grad) is not None]
    if any(g.layout != torch.strided for g in found):
        name = next(name for name, g in gradients(groups) if g.layout != torch.strided)
        raise ValueError(f"{name}: sparse gradients are not supported; use sparse=False in the embedding")
    if nonfinite == "ignore":
        return True
    bad = _bad_anywhere(groups, weights) if any(is_sharded(p) for p in weights) else _bad_here(groups, found)
    if not bad:
        return True
    if nonfinite == "skip":
        return False
    raise NonFiniteGradientError(
        f"NaN or infinite gradient in {'; '.join(bad[:5])}{' ...' if len(bad) > 5 else ''}: the step was not taken "
        "(nonfinite='skip' skips such steps)"
    )
