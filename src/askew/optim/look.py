"""Looking at a run through its optimizer: diagnostics while training, and the snapped net for evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from rich.table import Table
from torch import Tensor

from askew.core.diagnostics import FIELDS, LayerReport, look_at_all
from askew.core.direction import level_units
from askew.core.levels import LevelSet
from askew.methods.askew import LevelFirstSkew
from askew.methods.base import Site
from askew.optim import sharding
from askew.optim.wrapper import MethodOptimizer

AT_ONCE = 2**23  # weights of one pass: enough to make its operations cheap, few enough to keep its memory small


@dataclass(frozen=True)
class Diagnosis:
    """What one look found: a row per layer and one over all weights; `value` is epsilon or the capture radius."""

    step: int
    kind: str
    value: float
    layers: list[LayerReport]
    overall: LayerReport

    def to_dict(self) -> dict[str, object]:
        """Plain values for a record (NaN, "not known at this look", and infinity become None)."""
        tidy = asdict(self)
        for row in [tidy["overall"], *tidy["layers"]]:
            row.update({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()})
        return tidy

    def table(self) -> Table:
        """A rich table."""
        symbol = "eps" if self.kind == "epsilon" else "radius"
        out = Table(title=f"step {self.step} · {symbol} = {self.value:.4g}", title_justify="left")
        for head in ("layer", "weights", "feasible", "active", "distance", "max", "flips", "KKT residual"):
            out.add_column(head, justify="left" if head == "layer" else "right")
        for row in self.layers:
            out.add_row(*_cells(row))
        out.add_section()
        out.add_row(*_cells(self.overall), style="bold")
        return out

    def __rich__(self) -> Table:
        return self.table()

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=110)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()


def _cells(row: LayerReport) -> list[str]:
    percent = [f"{100 * v:.2f}%" if v == v else "–" for v in (row.feasible, row.active)]
    flips = f"{100 * row.flips:.3f}%" if row.flips == row.flips else "–"
    kkt = f"{row.kkt:.2e}" if row.kkt == row.kkt else "–"
    return [row.name, f"{row.size:,}", *percent, f"{row.distance_mean:.4f}", f"{row.distance_max:.4f}", flips, kkt]


@torch.no_grad()
def diagnose(optimizer: MethodOptimizer) -> Diagnosis:
    """Feasible and active fractions, distance to levels, flips since the last look, KKT residual; one device sync.

    The KKT residual uses the gradients that the last backward pass left: with mini-batches it is a noisy one.
    Flips compare with the level indices of the look before (one byte a weight, kept from the first look on).
    Weights cut over processes: all of them look together, and each gets the numbers of the whole.
    """
    seen = optimizer.__dict__.setdefault("_last_look", {})
    weights = optimizer.weights()
    views = [_view(optimizer, p, site, seen.get(p)) for _, p, site in weights]
    columns: list[Tensor] = [torch.empty(0)] * len(views)
    for positions in _together(views, apart=optimizer.annealing.kind == "epsilon"):
        group = [views[i] for i in positions]
        numbers, indices = look_at_all(
            [v.q for v in group],
            [v.u for v in group],
            group[0].levels,
            optimizer.annealing.kind,
            _one_or_all([v.value for v in group], [v.q.numel() for v in group]),
            [v.last for v in group],
        )
        for i, row, index in zip(positions, numbers, indices, strict=True):
            seen[views[i].p] = index
            columns[i] = _over_processes(row, views[i].q.numel(), sharding.group_of(views[i].p))
    rows = torch.stack([c.to(columns[0].device) for c in columns]).cpu().double()
    labels, sizes = [name for name, _, _ in weights], [v.p.numel() for v in views]
    return Diagnosis(
        step=optimizer.steps,
        kind=optimizer.annealing.kind,
        value=optimizer.value(optimizer._managed()[0][0]),
        layers=[LayerReport(name, size, *row.tolist()) for name, size, row in zip(labels, sizes, rows, strict=True)],
        overall=LayerReport("all", sum(sizes), *_merged(rows, torch.tensor(sizes, dtype=torch.float64)).tolist()),
    )


class _View(NamedTuple):
    """One parameter as a look sees it: weights and gradient in level units, schedule's value, indices before."""

    p: Tensor
    q: Tensor
    u: Tensor | None
    levels: LevelSet
    value: Tensor
    last: Tensor | None


def _view(optimizer: MethodOptimizer, p: Tensor, site: Site, last: Tensor | None) -> _View:
    gradient = None if p.grad is None else sharding.local(sharding.aligned(p.grad, p))
    if gradient is not None and site.ascends:
        gradient = -gradient
    looked_at = p if optimizer.method.judged_as_shown else optimizer.underlying(p)
    w, scale = sharding.local(looked_at.detach()), sharding.local(site.scale)
    q = level_units(w, site.levels, scale)
    u = gradient if gradient is None or scale is None else gradient.to(q.dtype) * scale
    value = optimizer.method.radius(site) if isinstance(optimizer.method, LevelFirstSkew) else site.value
    return _View(p, q, u, site.levels, value, last)


def _together(views: Sequence[_View], apart: bool) -> Iterator[list[int]]:
    """Positions of views that one pass can take: alike, and no more weights together than keep its memory small.

    apart: only those that share one value, for the borders of intervals are made for one epsilon.
    """
    open_groups: dict[object, list[int]] = {}
    for i, v in enumerate(views):
        key = (
            v.levels,
            v.q.device,
            v.q.dtype,
            None if v.u is None else v.u.dtype,
            v.last is None,
            apart and id(v.value),
        )
        group = open_groups.get(key, [])
        if group and sum(views[k].q.numel() for k in group) + v.q.numel() > AT_ONCE:
            yield group
            group = []
        open_groups[key] = [*group, i]
    yield from open_groups.values()


def _one_or_all(values: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The value that all share, or each tensor's own for each of its weights."""
    if all(v is values[0] for v in values):
        return values[0]
    return torch.cat([v.reshape(1).expand(n) for v, n in zip(values, sizes, strict=True)])


def _merged(rows: Tensor, sizes: Tensor) -> Tensor:
    """One row for all parts: the worst of the maxima, the mean over weights of the rest; nan parts are left out."""
    known = ~rows.isnan()
    weight = known * sizes[:, None]
    mean = (torch.where(known, rows, 0) * weight).sum(0) / weight.sum(0)
    worst = torch.where(known, rows, -math.inf).max(0).values
    worst = torch.where(known.any(0), worst, math.nan)
    return torch.stack([worst[i] if f in ("distance_max", "kkt") else mean[i] for i, f in enumerate(FIELDS)])


def _over_processes(numbers: Tensor, size: int, groups: Sequence[Any]) -> Tensor:
    """One tensor's numbers from those of its parts in the groups' processes (as they are when it is not cut)."""
    if not groups:
        return numbers
    count = torch.tensor([size], dtype=torch.float64, device=numbers.device)
    for group in groups:
        rows = sharding.gathered(torch.cat([numbers.double(), count]), group)
        numbers, count = _merged(rows[:, :-1], rows[:, -1]), rows[:, -1].sum().reshape(1)
    return numbers.float()


@contextmanager
def snapped(optimizer: MethodOptimizer) -> Iterator[None]:
    """Inside the context the network computes with its weights on the levels; afterwards they are as before.

    Snapping shifts BatchNorm statistics: re-estimate them on training batches inside the context before scoring.
    """
    sites = optimizer.weights()
    sharding.reshard([p for _, p, _ in sites])
    with torch.no_grad():
        kept = [p.detach().clone() for _, p, _ in sites]
        for _, p, site in sites:
            p.copy_(sharding.apply(optimizer.method, "final", site, optimizer.settled(p)))
    try:
        yield
    finally:
        sharding.reshard([p for _, p, _ in sites])
        with torch.no_grad():
            for (_, p, _), before in zip(sites, kept, strict=True):
                p.copy_(before)
