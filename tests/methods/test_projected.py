import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_support import site, wrap

from askew.core import LevelFirst, binary, ternary, uniform
from askew.methods.projected import ProjectedGradient, sphere

weights = st.lists(st.floats(-10, 10, width=32).filter(lambda v: v == 0 or abs(v) > 1e-3), min_size=1, max_size=9)


@given(w=weights, levels=st.sampled_from([binary(), ternary(), uniform(2)]), s=st.sampled_from([None, 0.5]))
def test_sphere_has_its_radius_and_keeps_the_ray(w, levels, s):
    x = torch.tensor(w, dtype=torch.float64)
    found = sphere(x, levels, None if s is None else torch.tensor(s).double())
    rms = math.sqrt(sum(c * c for c in levels.values) / len(levels.values))
    radius = math.sqrt(len(w)) * rms * (s or 1)
    assert float(found.norm()) == pytest.approx(radius)
    assert float(found @ x) == pytest.approx(radius * float(x.norm()))  # Cauchy-Schwarz is tight: same direction


def test_sphere_passes_through_sign_vertices_and_through_scaled_ones_per_channel():
    vertex = torch.where(torch.randn(4, 5) >= 0, 1.0, -1.0)
    assert torch.allclose(sphere(3 * vertex, binary()), vertex)
    s = torch.rand(4, 1) + 0.1
    assert torch.allclose(sphere(0.2 * s * vertex, binary(), s), s * vertex)


def test_projection_is_the_nearest_point_of_the_sphere():
    torch.manual_seed(0)
    w = torch.randn(6, dtype=torch.float64)
    best = float((sphere(w, binary()) - w).norm())
    others = torch.randn(20_000, 6, dtype=torch.float64)
    others *= math.sqrt(6) / others.norm(dim=1, keepdim=True)
    assert best <= float((others - w).norm(dim=1).min())
    near = sphere(w, binary()) + 1e-3 * torch.randn(100, 6, dtype=torch.float64)
    near *= math.sqrt(6) / near.norm(dim=1, keepdim=True)
    assert best <= float((near - w).norm(dim=1).min())


def test_an_adaptive_scale_does_not_collapse():
    """The sphere's radius follows E|w| < rms(w): projecting at each step would halve the weights in three."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(20, 20))
    before = float(w.detach().norm())
    optimizer = wrap("projected", w, lr=1e-6, annealing=LevelFirst(start=0.5), scale="abs-mean")
    for step in range(40):
        w.grad = torch.randn(20, 20)
        optimizer.step()
        if step == 20:
            assert float(w.detach().norm()) == pytest.approx(before, rel=1e-3)
    ((_, _, here),) = optimizer.weights()  # frozen since half of the 60 steps
    assert float(w.detach().norm()) == pytest.approx(20 * float(here.scale), rel=1e-5)


def test_hooks():
    w = torch.tensor([0.5, -3.0])
    ball, cube = ProjectedGradient(), ProjectedGradient(onto="cube")
    assert torch.allclose(ball.retract(w, None, site()), w * math.sqrt(2) / w.norm())
    assert cube.retract(w, None, site()).tolist() == [0.5, -1.0]
    assert torch.equal(ball.forward_weight(w, site()), w)
    assert ball.final(w, site()).tolist() == [1.0, -1.0]
    assert ball.retract(torch.zeros(4), None, site()).tolist() == [1.0] * 4
    assert ball.retract(w.bfloat16(), None, site()).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="'sphere' or 'cube'"):
        ProjectedGradient(onto="ball")  # pyright: ignore[reportArgumentType]
