"""Training many repeats of a small problem at once: every weight has a leading dimension that counts repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class RepeatedModel(Protocol):
    """A model that gives one loss per repeat, (R,), for batches x (R, B, ..) and y (R, B)."""

    def losses(self, x: Tensor, y: Tensor) -> Tensor: ...


def shuffled(repeats: int, n: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Index batches (R, batch) of one epoch: every repeat has an order of its own."""
    order = torch.rand(repeats, n, generator=generator).argsort(1)
    yield from order.split(batch, dim=1)


def train_step(
    model: RepeatedModel, optimizer: Optimizer, scheduler: LRScheduler | None, x: Tensor, y: Tensor
) -> Tensor:
    """One step on the sum of the repeats' losses, so that their gradients do not mix; returns the losses before it."""
    optimizer.zero_grad()
    losses = model.losses(x, y)
    losses.sum().backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    return losses.detach()


def train_repeats(
    model: RepeatedModel,
    optimizer: Optimizer,
    batches: Callable[[int], Iterator[tuple[Tensor, Tensor]]],
    epochs: int,
    scheduler: LRScheduler | None = None,
    after_step: Callable[[int, Tensor], None] | None = None,
    after_epoch: Callable[[int], None] | None = None,
) -> None:
    """Plain training.

    after_step(step, losses) sees each repeat's loss before the step; after_epoch(epoch) may look at the model.
    """
    assert isinstance(model, nn.Module)
    step = 0
    for epoch in range(epochs):
        for x, y in batches(epoch):
            losses = train_step(model, optimizer, scheduler, x, y)
            if after_step is not None:
                after_step(step, losses)
            step += 1
        if after_epoch is not None:
            after_epoch(epoch)
