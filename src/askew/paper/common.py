"""What the experiments share: a row of a table as data, and the optimizer that a row asks for."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from askew.core import Annealing, LevelSet, binary
from askew.methods.registry import method
from askew.optim import ASkew, MethodOptimizer
from askew.train.reheats import Reheats

Source = Literal["paper", "published", "tuned", "ours"]


@dataclass(frozen=True)
class Entry:
    """One row: a method with its settings and the value the paper prints for it.

    settings says where they come from: the paper's text, the published runs beyond the text, tuned here for a rival, or
    ours. options go to the method, annealing and alpha to ASkew. value is the paper's figure as it prints it. With
    lr_end the learning rate falls by a cosine from lr to lr_end over 95% of the run and stays there.
    """

    key: str
    label: str
    method: str
    lr: float
    settings: Source = "paper"
    base: Literal["sgd", "adam"] = "sgd"
    annealing: Annealing | None = None
    alpha: float | None = None
    clip: float = 1.0
    clamp: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    value: str | None = None
    lr_end: float | None = None
    reheats: Reheats | None = None

    def describe(self) -> dict[str, Any]:
        """Plain values for the record."""
        out = {k: v for k, v in asdict(self).items() if k not in ("annealing", "key")}
        return out | {"annealing": self.annealing.describe() if self.annealing else None}


def base_optimizer(entry: Entry, model: nn.Module, levels: LevelSet) -> Optimizer:
    """SGD or Adam with torch's defaults over all weights, as one group with levels."""
    group = {"params": list(model.named_parameters()), "levels": levels}
    kind = torch.optim.SGD if entry.base == "sgd" else torch.optim.Adam
    return kind([group], lr=entry.lr)


def optimizer_for(entry: Entry, model: nn.Module, total_steps: int, levels: LevelSet | None = None) -> MethodOptimizer:
    """The wrapped optimizer of a row."""
    base = base_optimizer(entry, model, levels or binary())
    if entry.annealing is not None:
        return ASkew(
            base,
            entry.annealing,
            alpha=entry.alpha,
            clip=entry.clip,
            clamp=entry.clamp or None,
            total_steps=total_steps,
        )
    return MethodOptimizer(base, method(entry.method, **entry.options), total_steps=total_steps)


def scheduler_for(entry: Entry, optimizer: Optimizer, total_steps: int) -> LRScheduler | None:
    """lr constant, or a cosine down to lr_end over 95% of the run."""
    if entry.lr_end is None:
        return None
    end, ratio = 0.95 * total_steps, entry.lr_end / entry.lr

    def factor(step: int) -> float:
        return ratio + (1 - ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, step / end)))

    return LambdaLR(optimizer, factor)
