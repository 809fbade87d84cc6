import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_support import site

from askew.core import LevelSet, binary, ternary, uniform
from askew.core.levels import draw
from askew.core.oracle import nearest
from askew.methods.binaryconnect import BinaryConnect

SETS = [binary(), ternary(), uniform(3), LevelSet((-2.0, -0.5, 0.1, 3.0))]


@pytest.mark.parametrize("levels", SETS, ids=lambda s: s.name)
@given(
    w=st.lists(st.integers(-320, 320).map(lambda k: k / 64), min_size=1, max_size=8),
    scale=st.sampled_from([None, 0.5, 2.0]),
)
def test_deterministic_forward_is_the_nearest_level_and_retract_clamps(levels, w, scale):
    here, x = site(levels, scale), torch.tensor(w)
    s = scale or 1.0
    forward = BinaryConnect().forward_weight(x, here)
    assert forward.tolist() == [pytest.approx(s * nearest(q / s, levels.values)) for q in x.tolist()]
    low, high = levels.values[0] * s, levels.values[-1] * s
    kept = BinaryConnect().retract(x, None, here)
    assert kept.tolist() == pytest.approx([min(max(v, low), high) for v in x.tolist()])
    assert torch.equal(BinaryConnect().final(x, here), forward)


def test_gradient_passes_straight_through():
    g = torch.randn(5)
    assert torch.equal(BinaryConnect().direction(g, torch.randn(5), site()), g)


@pytest.mark.parametrize("levels", SETS, ids=lambda s: s.name)
def test_draws_are_neighbouring_levels_with_mean_clamped_q(levels):
    torch.manual_seed(0)
    n = 40_000
    low, high = levels.values[0], levels.values[-1]
    for q in [low - 1, low, *(low + (high - low) * f for f in (0.07, 0.25, 0.5, 0.81)), high, high + 1]:
        drawn = draw(torch.full((n,), q, dtype=torch.float64), levels)
        inside = min(max(q, low), high)
        below = max(c for c in levels.values if c <= inside)
        above = min(c for c in levels.values if c >= inside)
        assert set(drawn.tolist()) <= {below, above}
        spread = (inside - below) * (above - inside)  # variance of one draw
        assert abs(float(drawn.mean()) - inside) <= 4 * (spread / n) ** 0.5 + 1e-9


def test_binary_draw_has_the_papers_probability():
    torch.manual_seed(1)
    w = torch.tensor([-1.5, -1.0, -0.6, 0.0, 0.3, 1.0, 2.0])
    p = ((w + 1) / 2).clamp(0, 1)
    method = BinaryConnect(stochastic=True)
    hits = torch.stack([method.forward_weight(w, site()) for _ in range(5_000)]).eq(1).float().mean(0)
    assert torch.allclose(hits, p, atol=4 * 0.5 / 5_000**0.5)
    assert hits[[0, 1]].tolist() == [0, 0] and hits[[5, 6]].tolist() == [1, 1]


def test_draws_are_scaled_and_come_from_the_global_generator():
    w, here = torch.linspace(-1, 1, 64), site(scale=0.5)
    method = BinaryConnect(stochastic=True)
    state = torch.get_rng_state()
    first = method.forward_weight(w, here)
    second = method.forward_weight(w, here)
    torch.set_rng_state(state)
    assert torch.equal(method.forward_weight(w, here), first)
    assert not torch.equal(second, first)
    assert set(first.tolist()) == {-0.5, 0.5}
    assert method.final(torch.tensor([0.01, -0.01]), here).tolist() == [0.5, -0.5]  # scored at the nearest level
