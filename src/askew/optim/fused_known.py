"""What a prepared fused step was made for: one cheap look tells whether it may be taken again as it is."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from operator import attrgetter, is_
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from askew.methods.askew import LevelFirstSkew
from askew.optim.fused_work import FORWARD, MODES
from askew.optim.sharding import is_sharded

if TYPE_CHECKING:
    from askew.optim.wrapper import MethodOptimizer

_dtype = attrgetter("dtype")


def _same(now: list[Any], then: list[Any]) -> bool:
    """The very same objects (those of `then` are held, so none can have taken another's place)."""
    return len(now) == len(then) and all(map(is_, now, then))


def _inside(dicts: Iterable[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, dicts)))


class Tensors:
    """The parameters, states and memories of a step, and how their gradients lie: all that may not change unseen.

    Addresses of gradients may: they are new in every step after zero_grad(). Gradients are not held.
    """

    def __init__(self, optimizer: MethodOptimizer) -> None:
        self._lists = [list(group["params"]) for group in optimizer.param_groups]
        everyone = list(chain.from_iterable(self._lists))
        self._weights = [p for p in everyone if p.grad is not None]
        self._idle = [p for p in everyone if p.grad is None]
        self._places = list(map(Tensor.data_ptr, self._weights))
        self._strides = list(map(Tensor.stride, self._weights))
        self._dtypes = [p.grad.dtype for p in self._weights if p.grad is not None]
        self._states, self._memories = list(optimizer.state.values()), list(optimizer._memory.values())
        self._inside = _inside(self._states), _inside(self._memories)
        self._kinds = _kinds(optimizer)
        self._waiting = waits(optimizer)
        self._following = any(_moves(optimizer, group, p) for group in optimizer.param_groups for p in group["params"])

    @classmethod
    def of(cls, optimizer: MethodOptimizer) -> Tensors | None:
        """None where a step has to be prepared each time: cut tensors, moving scales, gradients laid out otherwise."""
        waiting = waits(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                before = not waiting and not follows_after(optimizer)  # is the scale measured before each step?
                if is_sharded(p) or (before and _moves(optimizer, group, p)):
                    return None
                if p.grad is not None and (type(p.grad) is not Tensor or p.grad.stride() != p.stride()):
                    return None
        return cls(optimizer)

    def gradients(self, optimizer: MethodOptimizer) -> list[Tensor] | None:
        """The gradients of this step if all else is as it was; otherwise None."""
        groups = optimizer.param_groups
        if len(groups) != len(self._lists) or not all(map(_same, [g["params"] for g in groups], self._lists)):
            return None
        if _kinds(optimizer) != self._kinds or waits(optimizer) != self._waiting:
            return None
        if self._following and not self._waiting and not follows_after(optimizer):
            return None
        states, memories = list(optimizer.state.values()), list(optimizer._memory.values())
        if not (_same(states, self._states) and _same(memories, self._memories)):
            return None
        if not (_same(_inside(states), self._inside[0]) and _same(_inside(memories), self._inside[1])):
            return None
        found: list[Any] = [p.grad for p in self._weights]
        if any(type(g) is not Tensor for g in found) or any(p.grad is not None for p in self._idle):
            return None
        if list(map(_dtype, found)) != self._dtypes or list(map(Tensor.data_ptr, self._weights)) != self._places:
            return None
        return found if _strides(found) == self._strides else None


def waits(optimizer: MethodOptimizer) -> bool:
    """Plain level-first before its start: no weight is captured at the coming step, whatever its scale."""
    clock = optimizer.clock
    return type(optimizer.method) is LevelFirstSkew and not (
        clock.last or optimizer.annealing.started(clock, optimizer.plateau)
    )


def follows_after(optimizer: MethodOptimizer) -> bool:
    """Does the coming step ask for a scale that follows the weights only once they have moved?"""
    after = type(optimizer.method) in FORWARD and type(optimizer.method) not in MODES
    return after and not optimizer._freezes(optimizer.clock)


def _moves(optimizer: MethodOptimizer, group: dict[str, Any], p: Tensor) -> bool:
    """Is there a scale that is not frozen?"""
    return group["levels"] is not None and group["scale"] != "none" and "scale" not in optimizer._memory.get(p, ())


def _kinds(optimizer: MethodOptimizer) -> list[Any]:
    """The options that decide which arrays a parameter has."""
    groups = optimizer.param_groups
    options = ((g["clamp"], g["scale"], g["per"], g["levels"] is None, g.get("momentum", 0) != 0) for g in groups)
    return [optimizer.method, *options]


def _strides(tensors: list[Tensor]) -> list[Any] | None:
    try:
        return list(map(Tensor.stride, tensors))
    except RuntimeError:  # sparse ones have none
        return None


class Settings:
    """The groups' options, the method and torch's state, by identity; `fixed` if none can change in place."""

    def __init__(self, optimizer: MethodOptimizer, *state: Any) -> None:
        self._state = optimizer.method, torch.get_default_dtype(), *state
        self._options = list(chain.from_iterable(map(dict.values, optimizer.param_groups)))
        options = (value for group in optimizer.param_groups for key, value in group.items() if "param" not in key)
        self.fixed = not any(isinstance(value, (Tensor, list)) for value in options)

    def hold(self, optimizer: MethodOptimizer, *state: Any) -> bool:
        """Is everything still so?"""
        if self._state != (optimizer.method, torch.get_default_dtype(), *state):
            return False
        return self.fixed and _same(list(chain.from_iterable(map(dict.values, optimizer.param_groups))), self._options)
