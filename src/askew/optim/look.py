"""Looking at a run through its optimizer: diagnostics while training, and the snapped net for evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from askew.core.diagnostics import FIELDS, LayerReport, look
from askew.core.direction import level_units
from askew.methods.askew import LevelFirstSkew
from askew.optim import sharding
from askew.optim.wrapper import MethodOptimizer


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
    kind = optimizer.annealing.kind
    seen = optimizer.__dict__.setdefault("_last_look", {})
    columns, sizes, labels = [], [], []
    for name, p, site in optimizer.weights():
        gradient = None if p.grad is None else sharding.local(sharding.aligned(p.grad, p))
        w, scale = sharding.local(optimizer.underlying(p).detach()), sharding.local(site.scale)
        q = level_units(w, site.levels, scale)
        u = gradient if gradient is None or scale is None else gradient.to(q.dtype) * scale
        value = optimizer.method.radius(site) if isinstance(optimizer.method, LevelFirstSkew) else site.value
        numbers, seen[p] = look(q, u, site.levels, kind, value, seen.get(p))
        columns.append(_over_processes(numbers, w.numel(), sharding.group_of(p)))
        sizes.append(p.numel())
        labels.append(name)
    rows = torch.stack([c.to(columns[0].device) for c in columns]).cpu().double()
    return Diagnosis(
        step=optimizer.steps,
        kind=kind,
        value=optimizer.value(optimizer._managed()[0][0]),
        layers=[LayerReport(name, size, *row.tolist()) for name, size, row in zip(labels, sizes, rows, strict=True)],
        overall=LayerReport("all", sum(sizes), *_merged(rows, torch.tensor(sizes, dtype=torch.float64)).tolist()),
    )


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
            p.copy_(sharding.apply(optimizer.method, "final", site, optimizer.underlying(p)))
    try:
        yield
    finally:
        sharding.reshard([p for _, p, _ in sites])
        with torch.no_grad():
            for (_, p, _), before in zip(sites, kept, strict=True):
                p.copy_(before)
