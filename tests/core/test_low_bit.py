"""Two, three and four bits (and all the others): constraint, snapping and scales against the oracle at every width."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from askew.core import LevelSet, binary, oracle, scale_of, ternary, uniform
from askew.core.constraint import feasible, shape
from askew.core.direction import level_first, skew, snap
from askew.core.scale import SAWB_COEFFICIENTS

SETS = [binary(), ternary(), *(uniform(b, form) for b in range(2, 9) for form in ("int", "symmetric", "paper"))]  # pyright: ignore
KINDS = [("sawb", "tensor"), ("sawb", "channel"), ("abs-mean", "tensor"), ("abs-mean", "channel")]
every_set = pytest.mark.parametrize("levels", SETS, ids=lambda c: c.name)


def weights(seed: int = 0, rows: int = 3, columns: int = 12) -> torch.Tensor:
    """Rows of different size and shape of distribution."""
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, columns, generator=g, dtype=torch.float64)
    return (w + 0.3 * w**3) * torch.tensor([0.02, 0.5, 3.0], dtype=torch.float64)[:rows, None]


def oracle_scale(values: list[float], levels: LevelSet, kind: str) -> float:
    """SAWB's and the abs-mean scale in plain arithmetic."""
    mean = sum(abs(v) for v in values) / len(values)
    if kind == "abs-mean":
        return mean / (sum(abs(c) for c in levels.values) / len(levels))
    bits = round(math.log2(len(levels)))
    c1, c2 = SAWB_COEFFICIENTS[bits]
    largest = max(abs(v) for v in values)
    clip = c1 * math.sqrt(sum(v * v for v in values) / len(values)) - c2 * mean
    clip = largest if clip < mean else min(clip, largest)
    return 2 * (mean if bits == 1 else clip) / (levels.values[-1] - levels.values[0])


def each_scale(w: torch.Tensor, levels: LevelSet, kind: str, per: str) -> list[list[float]]:
    """The oracle's scale of every element."""
    if per == "tensor":
        s = oracle_scale(w.flatten().tolist(), levels, kind)
        return [[s] * w.shape[1]] * w.shape[0]
    return [[oracle_scale(row, levels, kind)] * w.shape[1] for row in w.tolist()]


@every_set
@pytest.mark.parametrize(("kind", "per"), KINDS)
def test_scale_and_snapping(levels, kind, per):
    w = weights()
    s = scale_of(w, levels, kind, per)
    assert s is not None and s.shape == (() if per == "tensor" else (3, 1))
    expected = torch.tensor(each_scale(w, levels, kind, per), dtype=torch.float64)
    torch.testing.assert_close(s.expand(3, 12), expected, rtol=1e-12, atol=0)
    on = snap(w, levels, s)
    for i in range(3):
        for j in range(12):
            q = float(w[i, j]) / float(expected[i, j])
            assert float(on[i, j]) == pytest.approx(float(expected[i, j]) * oracle.nearest(q, levels.values), rel=1e-12)
    assert torch.equal(snap(on, levels, s), on)


@every_set
@given(seed=st.integers(0, 1000), share=st.sampled_from([1.0, 0.9, 0.3, 0.01]), alpha=st.sampled_from([0.05, 0.2, 4.0]))
def test_skewed_direction_under_a_scale(levels, seed, share, alpha):
    """s * (the oracle's direction at w/s for the gradient u/s), eps in level units up to the theorem's bound."""
    w, u = weights(seed), weights(seed + 7).flip(0)
    s = scale_of(w, levels, "sawb", "channel")
    assert s is not None
    epsilon = share * levels.epsilon_bound
    v = skew(u, w, levels, epsilon, alpha, 0.25, s)
    for i in range(3):
        si = float(s[i])
        for j in range(12):
            expected = si * oracle.direction(
                float(u[i, j]) / si, float(w[i, j]) / si, levels.values, epsilon, alpha, 0.25
            )
            assert float(v[i, j]) == pytest.approx(expected, rel=1e-7, abs=1e-12)


@every_set
@given(seed=st.integers(0, 1000), radius=st.sampled_from([0.0, 0.3, 0.77, 1.0]))
def test_level_first_direction_under_a_scale(levels, seed, radius):
    w, u = weights(seed), weights(seed + 7).flip(0)
    s = scale_of(w, levels, "abs-mean", "channel")
    assert s is not None
    v = level_first(u, w, levels, radius, 0.05, s)
    for i in range(3):
        si = float(s[i])
        for j in range(12):
            expected = si * oracle.level_first(float(u[i, j]) / si, float(w[i, j]) / si, levels.values, radius, 0.05)
            assert float(v[i, j]) == pytest.approx(expected, rel=1e-7, abs=1e-12)


@every_set
def test_constraint_and_the_bound_in_level_units(levels):
    """Theorem 1's bound is 1 for {-1, +1} and 1/16 for unit spacing; at it the intervals touch at the midpoints."""
    assert levels.epsilon_bound == (1.0 if levels.name == "binary" else 1 / 16)
    q = torch.linspace(levels.values[0] - 0.7, levels.values[-1] + 0.7, 301, dtype=torch.float64)
    phi, slope = shape(q, levels)
    for x, p, d in zip(q.tolist(), phi.tolist(), slope.tolist(), strict=True):
        assert p == pytest.approx(oracle.phi(x, levels.values), abs=1e-12)
        assert d == pytest.approx(oracle.phi_prime(x, levels.values), abs=1e-11)
    middle = torch.tensor(levels.midpoints, dtype=torch.float64)
    assert feasible(middle, levels, levels.epsilon_bound).all()
    assert not feasible(middle, levels, 0.99 * levels.epsilon_bound).any()
    assert len(oracle.intervals(levels.values, 0.99 * levels.epsilon_bound)) == len(levels)


@pytest.mark.parametrize("bits", [0, 9, -3, 2.5, "4", True, None])
@pytest.mark.parametrize("form", ["int", "symmetric", "paper"])
def test_bits_outside_1_to_8(bits, form):
    with pytest.raises(ValueError, match=r"uniform levels: bits must be a whole number from 1 to 8, got"):
        uniform(bits, form)
