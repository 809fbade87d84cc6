"""Scoring a net: BatchNorm statistics re-estimated on training batches, then accuracy and loss on held-out data."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Batch = tuple[Tensor, Tensor]


@torch.no_grad()
def reestimate_batchnorm(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Replace running statistics by the plain average over the given training batches.

    Snapping the weights shifts what each layer sees; without this a good snapped net can score near chance.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return
    momenta = [m.momentum for m in layers]
    training = model.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
    model.train()
    for x, _ in batches:
        model(x)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.train(training)


@torch.no_grad()
def score(model: nn.Module, batches: Iterable[Batch]) -> tuple[float, float]:
    """(accuracy in percent, mean cross-entropy) in evaluation mode; one device sync."""
    training = model.training
    model.eval()
    right, loss, count = [], [], 0
    for x, y in batches:
        logits = model(x)
        right.append((logits.argmax(1) == y).sum())
        loss.append(nn.functional.cross_entropy(logits.float(), y, reduction="sum"))
        count += len(y)
    model.train(training)
    if not count:
        raise ValueError("score: no batches")
    return 100 * float(torch.stack(right).sum()) / count, float(torch.stack(loss).sum()) / count
