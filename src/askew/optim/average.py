"""A running mean of the weights that are optimised, from which a net is put on its levels.

Near a midpoint a weight goes to and fro, and the side on which the last step leaves it is chance. Over the last part of
the run its mean says which side it belongs to. After step t, counted from 1,

    m <- m + k (w - m),    k = 1 / max(1, part t),

so that m forgets what is older than about the last `part` of the steps so far, whatever the length of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from askew.core import Clock
from askew.optim.sharding import local

if TYPE_CHECKING:
    from askew.optim.wrapper import MethodOptimizer

KEY = "average"  # in a weight's memory, and the name of its number


def check(part: float) -> None:
    """ValueError unless it is a part of the run."""
    if isinstance(part, bool) or not isinstance(part, (int, float)) or not 0 <= part < 1:
        raise ValueError(f"average is the part of the steps to average over, in [0, 1) (0: none), got {part!r}")


def rate(part: float, clock: Clock) -> float:
    """k at the step after that clock."""
    return 1 / max(1.0, part * (clock.step + 1))


def begin(p: Tensor, w: Tensor) -> Tensor:
    """The mean of parameter p at its start: a copy of w, in float32 at least (small changes are lost in bfloat16)."""
    return w.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)


def follow(optimizer: MethodOptimizer) -> None:
    """Move all means, with the optimizer's current k (a number on the device, which a CUDA graph sees change)."""
    means: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}
    for _, group in optimizer._managed():
        for p in group["params"]:
            mean = local(optimizer._memory[p][KEY])
            if mean.numel():
                own = means.setdefault(p.device, ([], []))
                own[0].append(mean)
                own[1].append(local(optimizer.underlying(p)).detach().to(mean.dtype))
    for device, (own, weights) in means.items():
        way = torch._foreach_sub(weights, own)  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_mul_(way, optimizer._number_dials.at(KEY, device))  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_add_(own, way)  # pyright: ignore[reportPrivateImportUsage]
