"""What the tests of askew.optim share: a small net, batches known by their number, exact comparison of states."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer

import askew
from askew.core import Annealing, Constant, LevelSet
from askew.core.direction import snap

BASES: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda params: SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: Adam(params, lr=0.02),
    "adamw": lambda params: AdamW(params, lr=0.02, weight_decay=0.1),
}
CUSTOM = LevelSet((-0.7, 0.1, 0.9), "custom")  # none of its levels is a float32 number
LEVELS: dict[str, LevelSet] = {
    "binary": askew.binary(),
    "ternary": askew.ternary(),
    "int2": askew.uniform(2),
    "int3": askew.uniform(3),
    "int4": askew.uniform(4),
    "custom": CUSTOM,
}
SCALES = [
    ("none", "tensor"),
    ("abs-mean", "tensor"),
    ("abs-mean", "channel"),
    ("sawb", "tensor"),
    ("sawb", "channel"),
]


class Net(nn.Module):
    """A convolution and a linear layer, with one bias that takes no levels."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(1, 4, 3, bias=False)
            self.fc = nn.Linear(16, 3)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(functional.relu(self.conv(x)).flatten(1))


def random_like(w: Tensor, seed: int) -> Tensor:
    """Normal numbers that depend on the seed alone."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(w.shape, generator=g, dtype=torch.float64).to(w.dtype)


def loss_at(model: nn.Module, k: int) -> Tensor:
    """The loss on batch k."""
    dtype = next(model.parameters()).dtype
    g = torch.Generator().manual_seed(1000 + k)
    x = torch.randn(8, 1, 4, 4, generator=g, dtype=torch.float64).to(dtype)
    y = torch.randn(8, 3, generator=g, dtype=torch.float64).to(dtype)
    return (model(x) - y).square().mean()


def train(
    model: nn.Module, optimizer: Optimizer, steps: Iterable[int], after: Callable[[int], Any] | None = None
) -> None:
    """One optimizer step on each batch; `after(k)` is called behind step k."""
    for k in steps:
        optimizer.zero_grad()
        loss_at(model, k).backward()
        optimizer.step()
        if after is not None:
            after(k)


def small(
    annealing: Annealing | None = None, base: str = "sgd", seed: int = 0, levels: Any = None, **options: Any
) -> tuple[Net, askew.ASkew]:
    """The small net and an ASkew over it; binary levels and a constant epsilon unless told otherwise."""
    model = Net(seed)
    groups = askew.groups(model, askew.binary() if levels is None else levels)
    return model, askew.ASkew(BASES[base](groups), annealing or Constant(0.5), **options)


def one_weight(w: Tensor, levels: Any, annealing: Annealing, base: Callable[[Any], Optimizer], **options: Any) -> Any:
    """(parameter, ASkew) for a single weight tensor, named 'w'."""
    p = nn.Parameter(w.clone())
    return p, askew.ASkew(base([{"params": [("w", p)], "levels": levels}]), annealing, **options)


def weights_of(model: nn.Module) -> list[Tensor]:
    """Copies of all parameters."""
    return [p.detach().clone() for p in model.parameters()]


def differing(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two nested structures differ; tensors must agree bit for bit (and in dtype)."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [path]
    if isinstance(a, dict) and isinstance(b, dict):
        if a.keys() != b.keys():
            return [f"{path}: keys {sorted(map(str, a.keys() ^ b.keys()))}"]
        return [d for k in a for d in differing(a[k], b[k], f"{path}/{k}")]
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: lengths {len(a)}, {len(b)}"]
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differing(x, y, f"{path}/{i}")]
    return [] if a == b or (a != a and b != b) else [f"{path}: {a!r} != {b!r}"]


def through_a_file(content: Any) -> Any:
    """torch.save, then torch.load with weights_only=True."""
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def frozen_copy(content: Any) -> Any:
    """The same nested structure with every tensor cloned."""
    if isinstance(content, Tensor):
        return content.detach().clone()
    if isinstance(content, dict):
        return {k: frozen_copy(v) for k, v in content.items()}
    if isinstance(content, (list, tuple)):
        return [frozen_copy(v) for v in content]
    return content


def everything(model: nn.Module, optimizer: askew.ASkew) -> Any:
    """All that a step, a load or a new group may change: weights, gradients, base state, options, annealing."""
    return frozen_copy(
        {
            "weights": list(model.parameters()),
            "gradients": [p.grad for p in model.parameters()],
            "state dict": optimizer.state_dict(),
            "groups": [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups],
            "sizes": [len(g["params"]) for g in optimizer.param_groups],
            "counters": [optimizer.steps, optimizer.skipped, optimizer.total_steps, optimizer.plateau],
        }
    )


def on_levels(optimizer: askew.ASkew) -> bool:
    """Is every weight bit for bit the number that ships?"""
    return all(torch.equal(p, snap(p, site.levels, site.scale)) for _, p, site in optimizer.weights())
