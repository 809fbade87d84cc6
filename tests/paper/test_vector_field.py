"""The vector field: the general step agrees with the closed form where both apply."""

from pathlib import Path

import torch

from askew.core import binary
from askew.core.direction import skew
from askew.paper import vector_field_report
from askew.paper.vector_field import VectorField, constrained_minimum, constraint, field, gradient, run


def test_velocities_are_the_closed_form_inside_the_levels() -> None:
    """Within [-1, 1] the figure's constraint is ASkew's, so each velocity is the skewed direction."""
    for alpha in (0.1, 1.0):
        rows = torch.tensor(field(VectorField(extent=0.99, points=12), alpha), dtype=torch.float64)
        w, v = rows[:, :2], rows[:, 2:]
        expected = skew(gradient(w), w, binary(), 0.3, alpha, 1e9)
        torch.testing.assert_close(v, expected, rtol=1e-8, atol=1e-10)
        assert (v != -gradient(w)).any()


def test_constrained_minimum_is_feasible_and_nothing_near_it_is_better() -> None:
    best = torch.tensor(constrained_minimum(0.3), dtype=torch.float64)
    assert (constraint(best, 0.3) >= -1e-12).all()
    grid = torch.cartesian_prod(*[torch.linspace(-1.6, 1.6, 401, dtype=torch.float64)] * 2)
    inside = grid[(constraint(grid, 0.3) >= 0).all(1)]
    assert ((inside - 0.5) ** 2).sum(1).min() >= ((best - 0.5) ** 2).sum() - 1e-12


def test_a_point_without_velocity_is_left_out() -> None:
    rows = field(VectorField(points=3, extent=1.0), 0.1)  # the grid has 0, an exact midpoint
    assert len(rows) == 4


def test_figure_from_the_record(tmp_path: Path) -> None:
    record = run(VectorField(out=tmp_path, points=6))
    shown = vector_field_report.present([record])
    assert record.summary["points"] == [36, 36]
    assert len(shown.figures["vector-field"][0].axes) == 2
