"""What the tests of the fused step share: runs of one setting in both forms, and distances in units of rounding."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

import askew
from askew.core import Constant, LevelSet
from askew.core.direction import remoteness, shown
from askew.core.scale import Per, ScaleKind, scale_of

BASES = {
    "sgd": lambda g: SGD(g, lr=0.1),
    "momentum": lambda g: SGD(g, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.01),
    "nesterov": lambda g: SGD(g, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda g: Adam(g, lr=0.05),
    "adam-decay": lambda g: Adam(g, lr=0.05, weight_decay=0.1, betas=(0.3, 0.9)),
    "adamw": lambda g: AdamW(g, lr=0.05, weight_decay=0.1),
}
SCHEDULES = {
    "interval": Constant(0.5),
    "free": Constant(1e9),
    "level-first": askew.LevelFirst(start=0.0, end=0.8),
}
ROUNDED = askew.LevelFirst(start=0.0, end=0.8, rounded=True)
REVERSIBLE = askew.LevelFirst(start=0.0, end=0.8, reversible=True)
LEVELS = {
    "binary": askew.binary(),
    "int4": askew.uniform(4),
    "pair": LevelSet((-0.3, 0.4)),
    "table": LevelSet((-0.7, 0.1, 0.9, 1.5)),
}
SCALES: list[tuple[ScaleKind, Per]] = [("none", "tensor"), ("abs-mean", "tensor"), ("sawb", "channel")]
SHAPES = [(33, 7, 3, 3), (40, 31), (5, 1), (1, 1), (0, 5)]
TOTAL = 10
EPS = torch.finfo(torch.float32).eps


def run(
    fused, base, schedule, levels, scale=SCALES[0], steps=TOTAL, dtype=torch.float32, device="cpu", nudge=None, **more
):
    """(parameters, optimizer) after steps on fixed gradients; a conv weight lies channels-last, two have no levels.

    nudge moves each start value by so many float32 ulps at its size or 1, every other one the other way; with one, and
    be it 0, scales are given: those of the values unmoved, for rounding alone moves SAWB's by ten ulps.
    """
    g = torch.Generator().manual_seed(3)
    plain = starts(levels, g)
    start = [nudged(w, nudge or 0.0) for w in plain]
    ps = [nn.Parameter(w.to(device, dtype)) for w in start]
    ps[0] = nn.Parameter(ps[0].detach().to(memory_format=torch.channels_last))
    free = [nn.Parameter(torch.randn(s, generator=g).to(device, dtype)) for s in ((7,), ())]
    groups = [{"params": ps, "levels": levels}, {"params": free, "levels": None}]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = askew.ASkew(base(groups), schedule, scale=scale[0], per=scale[1], total_steps=TOTAL, fused=fused, **more)
    if nudge is not None and scale[0] != "none":
        for p, w in zip(ps, plain, strict=True):
            opt._memory.setdefault(p, {})["scale"] = fixed_scale(w, levels, scale).to(device, dtype)
    for k in range(steps):
        advance([*ps, *free], opt, k)
    return [*ps, *free], opt


def advance(ps: list[nn.Parameter], opt: askew.ASkew, k: int) -> None:
    """Step k, with gradients that depend on k alone."""
    g = torch.Generator().manual_seed(100 + k)
    for p in ps:
        p.grad = torch.randn(p.shape, generator=g).to(p.device, p.dtype)  # plain layout: conv's must be laid out anew
    opt.step()


def latents(ps: list[nn.Parameter], opt: askew.ASkew) -> list[Tensor]:
    """What is optimised."""
    return [opt.underlying(p).detach() for p in ps]


def unlike_shown(ps: list[nn.Parameter], opt: askew.ASkew) -> float:
    """How far what the network computes with is from core.direction.shown of the weights that are optimised.

    Which side of the radius, or of a midpoint, may be up to rounding: there the weight, or another level, will do.
    """
    worst = 0.0
    for _, p, site in opt.weights():
        w = opt.underlying(p).detach()
        q = w if site.scale is None else w / site.scale
        remote = remoteness(q, site.levels)
        unclear = ((remote - site.value).abs() < 1e-4) | (remote > 1 - 1e-4)
        expected = torch.where(unclear, p.detach(), shown(w, site.levels, site.value, site.scale))
        worst = max(worst, ulps(p.detach(), expected, 1.0))
    return worst


def ulps(a: Tensor, b: Tensor, size: Tensor | float = 0.0) -> float:
    """The largest |a - b| in units of float32's spacing at the size of the numbers involved."""
    if not a.numel():
        return 0.0
    unit = torch.finfo(torch.float32).eps * torch.maximum(torch.maximum(a.abs(), b.abs()), torch.as_tensor(size))
    return float(((a.double() - b.double()).abs() / unit.clamp(min=1e-38)).max())


def starts(levels: LevelSet, g: torch.Generator) -> list[Tensor]:
    """Start values of the weights on levels."""
    return [torch.randn(s, generator=g) * max(abs(c) for c in levels.values) / 2 for s in SHAPES]


def fixed_scale(w: Tensor, levels: LevelSet, scale: tuple[ScaleKind, Per]) -> Tensor:
    """The scale of w as float64 gives it, rounded to float32."""
    return scale_of(w.double(), levels, *scale).float()


def ties(levels: LevelSet, scale: tuple[ScaleKind, Per]) -> list[Tensor]:
    """Which start values lie on a midpoint, to rounding: a channel's largest does where SAWB's clip is its size."""
    found = []
    for w in starts(levels, torch.Generator().manual_seed(3)):
        q = w.double() if scale[0] == "none" else w.double() / fixed_scale(w, levels, scale)
        far = (q[..., None] - torch.tensor(levels.midpoints)).abs()
        found.append(far.amin(-1) < 1e-5)
    return found


def nudged(w: Tensor, by: float) -> Tensor:
    """w, or in float64 w moved by so many float32 ulps at its size or 1, the signs in turn."""
    if not by:
        return w
    signs = 1.0 - 2.0 * (torch.arange(w.numel()) % 2).reshape(w.shape).double()
    return w.double() + by * EPS * w.double().abs().clamp(min=1.0) * signs


def excess(a: Tensor, b: Tensor, exact: Tensor, moved: list[Tensor], tie: Tensor | None = None) -> float:
    """The largest |a - b| in units of rounding: an ulp at the numbers' size or 1, and what an ulp at the start makes.

    Near a midpoint -alpha psi/psi' divides by almost nothing: an ulp of the weight is many ulps of the step there, in
    any form. That share is the distance of exact, the step in float64, from `moved`, the same from nudged weights.
    At a tie rounding alone says which way it goes, and the value is not compared.
    """
    if not a.numel():
        return 0.0
    a, b, exact = (t.detach().double().cpu() for t in (a, b, exact))
    unit = EPS * torch.maximum(a.abs(), b.abs()).clamp(min=1.0)
    for other in moved:
        unit = unit + (other.detach().cpu() - exact).abs()
    far = (a - b).abs() / unit
    return float((far if tie is None or tie.shape != far.shape else far.masked_fill(tie, 0.0)).max())
