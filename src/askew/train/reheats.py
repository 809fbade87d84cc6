"""Several short anneals on one budget: the best result is kept, and the next anneal starts from it, shrunk.

An anneal ends on levels, in a minimum that no single flip improves. Shrinking the best weights towards the midpoints
(w <- c * best) lets the signs be chosen anew; the training loss over a hold, forward passes only, tells which is best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from askew.optim import MethodOptimizer
from askew.train.repeats import RepeatedModel, train_step


@dataclass(frozen=True)
class Reheats:
    """lengths: steps of each anneal; hold: the last steps of each only measure; shrink: c in w <- c * best."""

    lengths: tuple[int, ...] = (500, 100, 100, 100, 100, 100)
    hold: int = 20
    shrink: float = 0.1

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) <= self.hold or self.hold < 1:
            raise ValueError(f"Reheats: every length must exceed the hold of at least one step, got {self}")
        if not 0 <= self.shrink < 1:
            raise ValueError(f"Reheats(shrink) must lie in [0, 1), got {self.shrink}")

    @property
    def steps(self) -> int:
        """Batches used in all."""
        return sum(self.lengths)


class Best:
    """The best weights so far, repeat by repeat, by the loss measured over a hold."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights = [w.detach().clone() for w in weights]
        self.loss = torch.full((len(weights[0]),), float("inf"))

    def offer(self, weights: Sequence[Tensor], loss: Tensor) -> None:
        """Take over the repeats whose loss is lower than what is kept."""
        better = loss < self.loss
        self.loss = torch.where(better, loss, self.loss)
        for kept, new in zip(self.weights, weights, strict=True):
            kept.copy_(torch.where(better.reshape(-1, *[1] * (new.ndim - 1)), new.detach(), kept))


def train_with_reheats(
    model: RepeatedModel,
    anneal: Callable[[int], tuple[Optimizer, LRScheduler | None]],
    batches: Iterator[tuple[Tensor, Tensor]],
    reheats: Reheats,
    after_step: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Run the anneals; the model ends at the best weights. Returns the held training loss of the best, (R,).

    anneal(steps) makes a fresh optimizer (and scheduler) for one anneal of that many steps, after which the
    weights are snapped. Every batch counts, those of the holds too.
    """
    assert isinstance(model, nn.Module)
    weights = list(model.parameters())
    best = Best(weights)
    step = 0
    for cycle, length in enumerate(reheats.lengths):
        if cycle:
            _put(weights, [reheats.shrink * w for w in best.weights])
        optimizer, scheduler = anneal(length - reheats.hold)
        for _ in range(length - reheats.hold):
            losses = train_step(model, optimizer, scheduler, *next(batches))
            if after_step is not None:
                after_step(step, losses)
            step += 1
        if isinstance(optimizer, MethodOptimizer):
            optimizer.snap_()
        with torch.no_grad():
            held = torch.stack([model.losses(*next(batches)) for _ in range(reheats.hold)]).mean(0)
        step += reheats.hold
        best.offer(weights, held)
    _put(weights, best.weights)
    return best.loss


@torch.no_grad()
def _put(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for w, value in zip(weights, values, strict=True):
        w.copy_(value)
