"""What the tests of methods share: a site to call hooks at, a small problem, an optimizer for every method's name."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from askew.core import Annealing, Clock, Exponential, LevelFirst, LevelSet, binary
from askew.methods.base import Method, Site
from askew.methods.registry import METHODS, method
from askew.optim import MethodOptimizer

STEPS = 60
# Options that make a run of 60 steps do what a long one does by default.
OPTIONS: dict[str, dict[str, Any]] = {"md-tanh": {"beta": 5.0}, "proxquant": {"rate": 1e-3}}
SCALES = {"lsq": "sawb"}  # LSQ learns a scale and asks for one to start from; the others run at scale 1
ANNEALING: dict[str, Annealing] = {
    "askew": Exponential(K=0.7, start=0.5, period=0.02),
    "askew-level-first": LevelFirst(start=0.3, end=0.8),
    "askew-level-first-dithered": LevelFirst(start=0.3, end=0.8, dither=True),
    "askew-level-first-rounded": LevelFirst(start=0.3, end=0.8, rounded=True),
    "askew-level-first-reversible": LevelFirst(start=0.3, end=0.8, reversible=True),
}
_has_torchao = importlib.util.find_spec("torchao") is not None
NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(name.startswith("parq") and not _has_torchao, reason="needs torchao"))
    for name in METHODS
]


def site(
    levels: LevelSet | None = None,
    scale: float | Tensor | None = None,
    step: int = 0,
    total: int | None = 100,
    lr: float | Tensor = 0.1,
) -> Site:
    """Where a hook is called: a parameter named 'layer.weight' at `step` of `total`, its scale (if any) frozen."""
    frozen = torch.tensor(scale) if isinstance(scale, float) else scale
    return Site(
        name="layer.weight",
        levels=levels or binary(),
        scale=frozen,
        scale_rule=("abs-mean", "tensor"),
        lr=lr,
        alpha=0.2,
        clip=1.0,
        clamp=True,
        value=torch.tensor(1.0, dtype=torch.float64),
        clock=Clock(step, total),
        memory={} if frozen is None else {"scale": frozen},
    )


class Problem:
    """Logistic regression whose true weights are a vertex of {-1, +1}^d."""

    def __init__(self, seed: int = 0, n: int = 400, d: int = 10) -> None:
        g = torch.Generator().manual_seed(seed)
        self.x = 2 * torch.rand(n, d, generator=g) - 1
        self.truth = torch.where(torch.rand(d, generator=g) < 0.5, -1.0, 1.0)
        self.y = (torch.rand(n, generator=g) < torch.sigmoid(4 * self.x @ self.truth)).float()
        self.start = 0.3 * torch.randn(d, generator=g)

    def parameter(self) -> torch.nn.Parameter:
        return torch.nn.Parameter(self.start.clone())

    def loss(self, w: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(self.x @ w, self.y)


def wrap(
    name: str | Method, w: torch.nn.Parameter, base: str = "sgd", lr: float | None = None, **wrapper: Any
) -> MethodOptimizer:
    """The method of that name around SGD (lr 1) or Adam (lr .05) on one weight with levels -1, +1."""
    kind, default = {"sgd": (torch.optim.SGD, 1.0), "adam": (torch.optim.Adam, 0.05)}[base]
    options = dict(OPTIONS.get(name, {})) if isinstance(name, str) else {}
    if name == "proxquant":
        options["rate"] /= default if lr is None else lr  # the prox moves by lr * rate
    made = method(name, **options) if isinstance(name, str) else name
    group = {"params": [("layer.weight", w)], "levels": wrapper.pop("levels", binary())}
    inner = kind([group], lr=default if lr is None else lr)
    annealing = wrapper.pop("annealing", ANNEALING.get(made.name))
    wrapper.setdefault("scale", SCALES.get(made.name, "none"))
    return MethodOptimizer(inner, made, annealing, total_steps=wrapper.pop("total_steps", STEPS), **wrapper)


def train(problem: Problem, w: torch.nn.Parameter, optimizer: MethodOptimizer, steps: int) -> list[Tensor]:
    """The forward weights seen by each of the next steps."""
    seen = []
    for _ in range(steps):
        seen.append(w.detach().clone())
        optimizer.zero_grad()
        problem.loss(w).backward()
        optimizer.step()
    return seen
