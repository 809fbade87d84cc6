"""What one fused step has to do, free of any device: the scalars of each group, the arrays of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import SGD

from askew.core import LevelSet
from askew.core.scale import Per, scales_of
from askew.methods.askew import EpsilonSkew, LevelFirstSkew, ReversibleLevelFirst, RoundedLevelFirst
from askew.methods.binaryconnect import BinaryConnect
from askew.optim.checks import Group
from askew.optim.sharding import aligned, local

if TYPE_CHECKING:
    from askew.optim.wrapper import MethodOptimizer

PLAIN, INTERVAL, LEVEL_FIRST = range(3)  # native/step.h
MODES = {EpsilonSkew: INTERVAL, LevelFirstSkew: LEVEL_FIRST, RoundedLevelFirst: LEVEL_FIRST}  # others: PLAIN
COPY, NEAREST, SHOWN = range(3)  # what the network computes with (native/step.h)
FORWARD = {BinaryConnect: NEAREST, RoundedLevelFirst: NEAREST, ReversibleLevelFirst: SHOWN}  # of latent weights


@dataclass
class GroupWork:
    """One parameter group at this step. Scalars that live on a device (lr, value, clip) stay there as 0-d tensors."""

    mode: int
    levels: LevelSet | None
    number: float  # epsilon or capture radius on the host; `value` is the same on the device
    value: Tensor | None
    alpha: float
    clip: float | Tensor
    snap: bool
    forward: int
    adam: bool
    lr: float | Tensor
    options: Group  # betas, eps, weight_decay, momentum, .. as torch keeps them


@dataclass
class ParamWork:
    """One parameter: arrays of this process in one memory order, and where its step count stands.

    Not its gradient: what is kept between steps must not keep old gradients alive.
    """

    position: int  # of its group
    w: Tensor
    m: Tensor | None
    v: Tensor | None
    out: Tensor | None
    scale: Tensor | None
    follows: bool  # the scale is measured after the step, before `out` is made
    clamp: bool
    step: Tensor | None
    fresh: bool
    state: dict[str, Any]  # the base optimizer's own


def group_work(optimizer: MethodOptimizer, position: int, group: Group, last: bool) -> GroupWork:
    """The scalars of one group; a group without levels, or full precision, is the base optimizer alone."""
    method, levels = optimizer.method, group["levels"]
    devices = [p.device for p in group["params"][:1]] if levels is not None else []
    mode = PLAIN if levels is None else MODES.get(type(method), PLAIN)
    return GroupWork(
        mode=mode,
        levels=levels,
        number=0.0 if levels is None else optimizer.value(position),
        value=optimizer._value_dials.at(position, devices[0]) if devices else None,
        alpha=0.0 if levels is None else group["alpha"],
        clip=1.0 if levels is None else optimizer._clip(group),
        snap=levels is not None and isinstance(method, LevelFirstSkew) and last,
        forward=COPY if levels is None else FORWARD.get(type(method), COPY),
        adam=type(optimizer.base) is not SGD,
        lr=group["lr"],
        options=group,
    )


def param_work(
    optimizer: MethodOptimizer, position: int, work: GroupWork, p: Tensor, scale: Tensor | None, follows: bool = False
) -> ParamWork:
    """The arrays of one parameter, laid out alike; makes the base's state as its own step would."""
    memory, state = optimizer._memory.get(p, {}), optimizer.base.state
    w = memory.get("latent", p)
    m = v = step = None
    fresh = False
    if work.adam:
        if not state[p]:
            optimizer.base._init_group({**work.options, "params": [p]}, *([] for _ in range(6)))  # pyright: ignore
            if w.dtype != p.dtype:  # float32 moments beside a float32 master copy
                state[p].update(exp_avg=torch.zeros_like(w), exp_avg_sq=torch.zeros_like(w))
        m, v, step = _in_order(state[p], "exp_avg", w), _in_order(state[p], "exp_avg_sq", w), state[p]["step"]
    elif work.options["momentum"] != 0:
        fresh = state[p].get("momentum_buffer") is None
        if fresh:
            state[p]["momentum_buffer"] = torch.empty_like(w)
        m = _in_order(state[p], "momentum_buffer", w)
    clamped = type(optimizer.method) is BinaryConnect or work.options["clamp"]
    bounded = work.options["scale"] == "none" or ("scale" in memory and work.forward != SHOWN)
    levels = work.levels is not None and (work.mode != PLAIN or work.forward)
    return ParamWork(
        position=position,
        w=local(w),
        m=m,
        v=v,
        out=None if w is p else local(p),
        scale=None if scale is None else local(scale),
        follows=follows,
        clamp=bool(levels and clamped and bounded),
        step=step,
        fresh=fresh,
        state=state.get(p, {}),
    )


def follow(groups: Sequence[GroupWork], works: Sequence[ParamWork]) -> None:
    """After the step of weights whose scales follow them: measure the scales anew, in place."""
    for position in dict.fromkeys(work.position for work in works):
        own, options = [work for work in works if work.position == position], groups[position].options
        found = scales_of([work.w for work in own], options["levels"], options["scale"], options["per"])
        torch._foreach_copy_([work.scale for work in own], found)  # pyright: ignore


def room_for_scale(w: Tensor, per: Per) -> Tensor:
    """Where the scale of w will be put."""
    shape = () if per == "tensor" else (len(w), *(1,) * (w.ndim - 1))
    return torch.empty(shape, dtype=torch.float32, device=w.device)


def gradient(p: Tensor, w: Tensor) -> Tensor:
    """This process's gradient in the weights' memory order; copied only if it lies otherwise."""
    assert p.grad is not None
    g: Any = local(aligned(p.grad, p))
    if hasattr(g, "wait"):  # a collective that is still under way
        g = g.wait()
    return g if g.stride() == w.stride() or g.numel() < 2 else torch.empty_like(w, dtype=g.dtype).copy_(g)


def _in_order(state: dict[str, Any], key: str, w: Tensor) -> Tensor:
    """The state tensor in the weights' memory order; laid out anew for good if it came otherwise (from a file)."""
    held, here = local(state[key]), local(w)
    if held.stride() != here.stride() and held.numel() > 1:
        state[key] = torch.empty_like(w, dtype=held.dtype).copy_(state[key])
        held = local(state[key])
    return held


def restore_moments(optimizer: MethodOptimizer, state_dict: dict[str, Any]) -> None:
    """After loading: the float32 moments of master copies, which torch has rounded to the parameters' dtype.

    Those of a dict without master copies become float32 as they are.
    """
    for group, saved in zip(optimizer.param_groups, state_dict["param_groups"], strict=True):
        for p, i in zip(group["params"], saved["params"], strict=True):
            for key, value in state_dict["state"].get(i, {}).items():
                held = optimizer.base.state.get(p, {}).get(key)
                if key != "step" and held is not None and p.dtype == torch.bfloat16:
                    optimizer.base.state[p][key] = value.detach().to(p.device, torch.float32, copy=True)
