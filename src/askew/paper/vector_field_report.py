"""The vector-field figure, from its record."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper.present import Presentation
from askew.report import paper_figures
from askew.report.tables import Grid
from askew.train.record import Record

LEAD = (
    "Velocities of the general constrained step on a plane: the objective pulls to (0.5, 0.5), the constraint asks "
    "each coordinate to lie in an interval around -1 or +1. Inside the feasible boxes the velocity is the negative "
    "gradient; outside it is turned towards them, the more the larger alpha. Each arrow is the solution of a small "
    "quadratic programme."
)


def present(records: Sequence[Record]) -> Presentation:
    """Both panels and a line of facts."""
    run = records[0]
    rows = []
    for panel in run.extra["panels"]:
        turned = sum(
            abs(v1 + 2 / 3 * (w1 - 0.5)) + abs(v2 + 2 / 3 * (w2 - 0.5)) > 1e-5 for w1, w2, v1, v2 in panel["rows"]
        )
        rows.append((f"alpha = {panel['alpha']:g}", str(len(panel["rows"])), str(turned)))
    grid = Grid(
        ("panel", "velocities", "turned by the constraint"),
        tuple(rows),
        title=f"Vector field, epsilon = {run.config['epsilon']:g}",
        note="Grid points where no velocity exists (a coordinate exactly at a midpoint) are left out.",
    )
    caption = "Velocities, the border of the feasible set and both minimisers, as in the paper's first figure."
    return Presentation("Vector field", LEAD, [grid], {"vector-field": (paper_figures.vector_field(run), caption)})
