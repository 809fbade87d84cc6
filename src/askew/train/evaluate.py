"""Scoring a net: BatchNorm statistics re-estimated on training batches, then accuracy and loss on held-out data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from askew.nn import QuantizedActivation

Batch = tuple[Tensor, Tensor]


class Score(NamedTuple):
    """Accuracy in percent, mean cross-entropy, and top-5 accuracy in percent (None for five classes or fewer)."""

    accuracy: float
    loss: float
    top5: float | None


@torch.no_grad()
def reestimate_batchnorm(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Replace running statistics, of BatchNorm and of activation scales, by the plain average over the given batches.

    Snapping the weights shifts what each layer sees; without this a good snapped net can score near chance.
    """
    tracking = [m for m in model.modules() if isinstance(m, (_BatchNorm, QuantizedActivation))]
    layers = [m for m in tracking if isinstance(m, QuantizedActivation) or m.track_running_stats]
    if not layers:
        return
    momenta = [m.momentum for m in layers]
    training = model.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
    model.train()
    try:
        for x, _ in batches:
            model(x)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(training)


@torch.no_grad()
def score(model: nn.Module, batches: Iterable[Batch], total: Callable[[Tensor], Tensor] = lambda t: t) -> Score:
    """How often the right class is the net's first (and among its first five), in evaluation mode; one device sync.

    total: adds up a small tensor over the processes that share the batches.
    """
    training = model.training
    model.eval()
    sums, count, classes = [], 0, 0
    for x, y in batches:
        logits = model(x).float()
        classes = logits.shape[1]
        right = logits.topk(min(5, classes), 1).indices == y[:, None]
        loss = nn.functional.cross_entropy(logits, y, reduction="sum")
        sums.append(torch.stack([(logits.argmax(1) == y).sum().to(loss), right.sum().to(loss), loss]))
        count += len(y)
    model.train(training)
    columns = zip(*torch.stack(sums).tolist(), strict=True) if sums else ([], [], [])
    mine = torch.tensor([*map(sum, columns), count], dtype=torch.float64)
    first, five, loss, count = total(mine).tolist()
    if not count:
        raise ValueError("score: no batches")
    return Score(100 * first / count, loss / count, 100 * five / count if classes > 5 else None)
