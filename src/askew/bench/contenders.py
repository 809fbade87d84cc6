"""The optimizers whose steps are compared, each at its best settings: Adam, at one bit unless its name says more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import nn
from torch.optim import Adam

from askew.core import Exponential, LevelFirst, LevelSet, binary, uniform
from askew.methods.binaryconnect import BinaryConnect
from askew.optim import ASkew, MethodOptimizer

Params = list[nn.Parameter]


class Steps(Protocol):
    """Anything with a step."""

    def step(self) -> Any: ...


RUN = 10**6  # steps of the pretended run, so that annealing is under way and never ends
PAPER = Exponential(K=0.9999, start=0, period=1)
OURS = LevelFirst(start=0.0, end=0.9)
AGAIN = LevelFirst(start=0.0, end=0.9, reversible=True)
LATER = LevelFirst(start=0.8, end=0.9)  # has not begun in the middle of the run: scales still follow their weights
BINARY = binary()
FOUR: dict[str, Any] = {"levels": uniform(4), "scale": "sawb", "per": "channel", "nonfinite": "ignore"}


def _groups(params: Params, levels: LevelSet = BINARY) -> list[dict[str, Any]]:
    """Weights of two and more dimensions take levels; norms and biases do not."""
    chosen = [p for p in params if p.ndim > 1]
    rest = [p for p in params if p.ndim <= 1]
    return [{"params": chosen, "levels": levels}, *([{"params": rest, "levels": None}] if rest else [])]


def _askew(
    annealing: Any, adam: dict[str, Any] | None = None, levels: LevelSet = BINARY, **options: Any
) -> Callable[[Params], Steps]:
    """ASkew around Adam, in the middle of its run."""

    def build(params: Params) -> Steps:
        optimizer = ASkew(Adam(_groups(params, levels), lr=1e-3, **(adam or {})), annealing, total_steps=RUN, **options)
        optimizer.steps = RUN // 2
        return optimizer

    return build


def _binaryconnect(params: Params) -> Steps:
    return MethodOptimizer(Adam(_groups(params), lr=1e-3), BinaryConnect(), nonfinite="ignore")


def _parq(hard: bool) -> Callable[[Params], Steps]:
    """torchao's own optimizer at one bit, with its default quant_period, around torch's fused Adam."""

    def build(params: Params) -> Steps:
        from torchao.prototype.parq.optim import ProxHardQuant, ProxPARQ, QuantOptimizer
        from torchao.prototype.parq.quant import LSBQuantizer

        chosen = [p for p in params if p.ndim > 1]
        rest = [p for p in params if p.ndim <= 1]
        groups: list[dict[str, Any]] = [{"params": chosen, "quant_bits": 1}, *([{"params": rest}] if rest else [])]
        prox = ProxHardQuant() if hard else ProxPARQ(anneal_start=0, anneal_end=1000, steepness=10)
        return QuantOptimizer(Adam(groups, lr=1e-3, fused=True), LSBQuantizer(), prox)

    return build


REFERENCE = "torch fused Adam"
CONTENDERS: dict[str, Callable[[Params], Steps]] = {
    REFERENCE: lambda params: Adam(params, lr=1e-3, fused=True),
    "torch foreach Adam": lambda params: Adam(params, lr=1e-3, foreach=True),
    "ASkew, level-first": _askew(OURS, nonfinite="ignore"),
    "ASkew, paper form": _askew(PAPER, nonfinite="ignore"),
    "ASkew, level-first, gradients checked": _askew(OURS),
    "ASkew, level-first, 4 bits, scale frozen": _askew(OURS, **FOUR),
    "ASkew, level-first, 4 bits, scale followed": _askew(LATER, **FOUR),
    "ASkew, level-first, reversible": _askew(AGAIN, nonfinite="ignore"),
    "ASkew, level-first, reversible, scale followed": _askew(AGAIN, scale="abs-mean", nonfinite="ignore"),
    "ASkew, level-first, wrapped": _askew(OURS, {"fused": True}, nonfinite="ignore", fused=False),
    "BinaryConnect": _binaryconnect,
    "PARQ, hard": _parq(hard=True),
    "PARQ": _parq(hard=False),
}
