"""Figure 1 of the paper: velocities of the general step on a plane with two interval constraints.

l(w) = ((w1 - .5)^2 + (w2 - .5)^2) / 3,  g_i(w) = eps - (w_i^2 - 1)^2,  eps = .3, alpha = .1 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from askew.core.velocity import EmptyVelocitySetError, velocity
from askew.train.record import Record, plain, writable_folder

FREE_MINIMUM = (0.5, 0.5)


@dataclass(frozen=True)
class VectorField:
    """The vector-field figure."""

    out: Path = Path("results/vector-field")
    """Folder for the record and the figure."""
    epsilon: float = 0.3
    """Width of the constraint."""
    alphas: tuple[float, ...] = (0.1, 1.0)
    """One panel each."""
    extent: float = 1.6
    """The grid covers [-extent, extent] in both coordinates."""
    points: int = 24
    """Grid points a side."""


def gradient(w: Tensor) -> Tensor:
    """grad l(w) = 2/3 (w - 1/2)."""
    return 2 / 3 * (w - 0.5)


def constraint(w: Tensor, epsilon: float) -> Tensor:
    """g(w)."""
    return epsilon - (w * w - 1) ** 2


def constrained_minimum(epsilon: float) -> tuple[float, float]:
    """The feasible point nearest to the free minimiser: sqrt(1 - sqrt(eps)) in each coordinate (for eps < 9/16)."""
    border = (1 - epsilon**0.5) ** 0.5
    return (max(border, 0.5), max(border, 0.5))


def field(config: VectorField, alpha: float) -> list[list[float]]:
    """Rows (w1, w2, v1, v2) over the grid; a point where no velocity exists (an exact midpoint) is left out."""
    axis = torch.linspace(-config.extent, config.extent, config.points, dtype=torch.float64)
    rows = []
    for w in torch.cartesian_prod(axis, axis):
        jacobian = torch.diag(-4 * w * (w * w - 1))
        try:
            v = velocity(gradient(w), constraint(w, config.epsilon), jacobian, alpha)
        except EmptyVelocitySetError:
            continue
        rows.append([*w.tolist(), *v.tolist()])
    return rows


def run(config: VectorField) -> Record:
    """Compute both panels and save the record."""
    writable_folder(config.out)
    record = Record("vector-field", "mj", plain(config.__dict__), seed=0)
    record.extra = {
        "columns": ["w1", "w2", "v1", "v2"],
        "panels": [{"alpha": alpha, "rows": field(config, alpha)} for alpha in config.alphas],
        "free_minimum": list(FREE_MINIMUM),
        "constrained_minimum": list(constrained_minimum(config.epsilon)),
    }
    record.summary = {"points": [len(panel["rows"]) for panel in record.extra["panels"]]}
    record.save(config.out)
    return record
