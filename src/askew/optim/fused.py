"""The fused step: direction, base optimizer and retract in one pass over weight, gradient and moments.

It does what the wrapped form does for torch's SGD, Adam and AdamW, on the same state, so the two may change places at
any step; the wrapped form stays for every other base, method and dtype. Kernels: fused_cpu.py (C++), fused_cuda.py
(Triton).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from askew.core import Clock
from askew.methods.askew import LevelFirstSkew
from askew.methods.base import FullPrecision, Method
from askew.methods.binaryconnect import BinaryConnect
from askew.optim import fused_cpu, fused_cuda
from askew.optim.checks import Group, names
from askew.optim.fused_known import Settings, Tensors
from askew.optim.fused_work import (
    FORWARD,
    MODES,
    PLAIN,
    SHOWN,
    GroupWork,
    ParamWork,
    gradient,
    group_work,
    param_work,
    room_for_scale,
)
from askew.optim.sharding import apply, is_sharded, local

if TYPE_CHECKING:
    from askew.optim.wrapper import MethodOptimizer

DTYPES = (torch.float32, torch.bfloat16)
MAX_LEVELS = 64
DEVICES = {"cpu": fused_cpu, "cuda": fused_cuda}


class Fusion:
    """Whether to fuse (None: where it can be done, True: or else an error, False: never) and what steps may reuse.

    A steady step (same tensors, gradients laid out as before) costs one look (fused_known.py) and the launches.
    """

    def __init__(self, wanted: bool | None) -> None:
        if wanted not in (None, True, False):
            raise ValueError(f"fused must be None, True or False, got {wanted!r}")
        self.wanted = wanted
        self._tensors: Tensors | None = None  # what the batches were made for
        self._settings: Settings | None = None  # what the groups' work was made for
        self._groups: list[GroupWork] = []
        self._batches: list[tuple[Any, list[Tensor]]] = []  # of one device each, with their parameters
        self._captured: list[Any] = []  # what CUDA graphs read when they are replayed

    def __getstate__(self) -> dict[str, Any]:
        return {"wanted": self.wanted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["wanted"])

    def steady(self, optimizer: MethodOptimizer) -> list[Tensor] | None:
        """The gradients, if this step treats the same tensors as the last one, with gradients of the same kinds."""
        known = self._tensors if self.wanted is not False else None
        return None if known is None else known.gradients(optimizer)

    def sound(self, steady: list[Tensor]) -> bool:
        """True if no gradient of a steady step holds NaN or infinity; at most one sync a device."""
        pieces = self._batches
        return all(batch.sound(steady if len(pieces) == 1 else [p.grad for p in ps]) for batch, ps in pieces)

    def applies(self, optimizer: MethodOptimizer, steady: list[Tensor] | None = None) -> bool:
        """May this step be fused? With fused=True a reason against it is an error."""
        if self.wanted is False:
            return False
        if steady is not None and self._settings is not None and self._settings.hold(*_now(optimizer)):
            return True
        self._settings = None
        reason = refusal(optimizer, weights=steady is None)
        if reason is not None and self.wanted:
            raise ValueError(f"fused=True: {reason}; with fused=None the wrapped step is taken there")
        return reason is None

    def step(self, optimizer: MethodOptimizer, steady: list[Tensor] | None = None) -> None:
        """One step, after `applies`, on every parameter with a gradient; the run's last one lands the others, too."""
        now = Clock(max(0, optimizer.steps - 1), optimizer.total_steps)
        if self._settings is None:
            self._settings = Settings(*_now(optimizer))
            self._groups = [group_work(optimizer, i, group, now.last) for i, group in enumerate(optimizer.param_groups)]
        for position, work in enumerate(self._groups):
            if work.levels is not None:
                work.number = optimizer.value(position)
        if steady is None:
            self._prepare(optimizer, now)
        for batch, weights in self._batches:
            if steady is None:
                batch.run(self._groups, [gradient(p, local(optimizer.underlying(p))) for p in weights])
            else:
                batch.run(self._groups, steady if len(self._batches) == 1 else [p.grad for p in weights])
        if steady is None:
            self._tensors = Tensors.of(optimizer)
        self._idle(optimizer, now)

    def _idle(self, optimizer: MethodOptimizer, now: Clock) -> None:
        """Weights without a gradient: the last step lands them, and what is shown of them follows the schedule."""
        if not (now.last or any(work.forward == SHOWN for work in self._groups)):
            return
        if not any(p.grad is None for _, group in optimizer._managed() for p in group["params"]):
            return
        for _, p, site in optimizer.weights():
            if p.grad is None:
                w = optimizer.underlying(p)
                if now.last:
                    w.copy_(apply(optimizer.method, "retract", site, w, None))
                if w is not p:
                    p.copy_(apply(optimizer.method, "forward_weight", site, w))

    def _prepare(self, optimizer: MethodOptimizer, now: Clock) -> None:
        """Batches of the parameters with gradients; scales are measured, and frozen where the annealing says so."""
        self._captured += [batch for batch, _ in self._batches if batch.captured]
        self._tensors, self._batches = None, []
        works: dict[str, list[tuple[ParamWork, Tensor]]] = {}
        freeze = optimizer._freezes(now)
        waiting = type(optimizer.method) is LevelFirstSkew and not freeze  # nobody is captured, no scale is asked for
        for position, group in enumerate(optimizer.param_groups):
            for p in group["params"]:
                scale, follows = None, False
                if group["levels"] is not None:
                    memory = optimizer._memory.setdefault(p, {})
                    follows = _follows(self._groups[position], group, memory, freeze)
                    if follows:
                        scale = room_for_scale(p, group["per"])
                    elif not waiting:
                        scale = optimizer._scale(p, group, memory, freeze)
                if p.grad is not None:
                    work = param_work(optimizer, position, self._groups[position], p, scale, follows)
                    works.setdefault(str(p.device), []).append((work, p))
        for pairs in works.values():
            module = DEVICES[pairs[0][0].w.device.type]
            gradients = [p.grad for _, p in pairs]
            self._batches.append((module.Batch([work for work, _ in pairs], gradients), [p for _, p in pairs]))


def _follows(work: GroupWork, group: Group, memory: dict[str, Tensor], freeze: bool) -> bool:
    """Does only what the network computes with ask for the scale, that of the weights after the step?"""
    return bool(
        work.mode == PLAIN and work.forward and group["scale"] != "none" and "scale" not in memory and not freeze
    )


def capturing() -> bool:
    """Is a CUDA graph being captured? (None can be before CUDA is up.)"""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _now(optimizer: MethodOptimizer) -> tuple[MethodOptimizer, bool, bool]:
    total = optimizer.total_steps
    return optimizer, capturing(), total is not None and optimizer.steps >= total


def refusal(optimizer: MethodOptimizer, weights: bool = True) -> str | None:
    """Why the step cannot be fused, or None. weights: look at every parameter, too."""
    reason = _base_refusal(optimizer.base) or _method_refusal(optimizer.method)
    for position, group in enumerate(optimizer.param_groups):
        reason = reason or _group_refusal(optimizer, position, group)
        if reason is None and weights:
            found = ((i, _weight_refusal(p, local(p))) for i, p in enumerate(group["params"]))
            reason = next((f"{names(group, position)[i]}: {why}" for i, why in found if why), None)
    return reason


def _base_refusal(base: Any) -> str | None:
    if type(base) not in (SGD, Adam, AdamW):
        return f"the base is {type(base).__name__}, not torch.optim.SGD, Adam or AdamW"
    return None


def _method_refusal(method: Method) -> str | None:
    if isinstance(method, LevelFirstSkew) and method.by != "radius":
        return f"level-first by {method.by} looks at whole tensors"
    if type(method) is BinaryConnect and method.stochastic:
        return "stochastic BinaryConnect draws from torch's generator"
    if type(method) not in (*MODES, *FORWARD, FullPrecision, Method):
        return f"the method {method.name} has no fused form"
    return None


def _group_refusal(optimizer: MethodOptimizer, position: int, group: Group) -> str | None:
    where = f"group {position}: "
    for option in ("amsgrad", "maximize", "differentiable"):
        if group.get(option):
            return f"{where}{option}=True has no fused form"
    for option in ("weight_decay", "momentum", "dampening", "eps"):
        if isinstance(group.get(option), Tensor):
            return f"{where}{option} is a tensor"
    if any(isinstance(beta, Tensor) for beta in group.get("betas", ())):
        return f"{where}betas are tensors"
    levels = group.get("levels")
    if levels is not None and len(levels) > MAX_LEVELS:
        return f"{where}{len(levels)} levels are more than {MAX_LEVELS}"
    if levels is not None and type(optimizer.method) in FORWARD and not _frozen(optimizer, group):
        name, scale = optimizer.method.name, group["scale"]
        if type(optimizer.method) in MODES:
            return f"{where}{name} measures the scale {scale!r} before the step and after it"
        if any(map(is_sharded, group["params"])):
            return f"{where}{name} measures the scale {scale!r} of whole tensors between step and forward weights"
    if len({p.device for p in group["params"]}) > 1:
        return f"{where}its parameters lie on several devices"
    if group["params"]:
        return _capture_refusal(group, group["params"][0].device.type, where)
    return None


def _frozen(optimizer: MethodOptimizer, group: Group) -> bool:
    """True where no scale follows the weights any more."""
    return group["scale"] == "none" or all("scale" in optimizer._memory.get(p, ()) for p in group["params"])


def _capture_refusal(group: Group, device: str, where: str) -> str | None:
    capturable = group.get("capturable")
    if capturable and device == "cpu":
        return f"{where}capturable=True on the CPU"
    if capturable is False and device == "cuda" and capturing():
        return f"{where}a CUDA graph needs capturable=True"
    if device == "cuda" and (capturable or group.get("fused")) and torch.get_default_dtype() != torch.float32:
        return f"{where}step counts of {torch.get_default_dtype()} on the device"
    return None


def _weight_refusal(p: Tensor, here: Tensor) -> str | None:
    if type(p) not in (Tensor, nn.Parameter) and not is_sharded(p):
        return f"the tensor type {type(p).__name__} has no fused form"
    if here.dtype not in DTYPES:
        return f"dtype {here.dtype} has no fused form (float32 and bfloat16 have)"
    if here.device.type not in DEVICES:
        return f"device {here.device} has no fused form (cpu and cuda have)"
    if p.grad is not None and (p.grad.dtype not in DTYPES or p.grad.device != p.device):
        return f"its gradient is {p.grad.dtype} on {p.grad.device}"
    if torch.empty_like(here, device="meta").stride() != here.stride():
        return "its memory has gaps or overlaps"
    return DEVICES[here.device.type].refusal()
