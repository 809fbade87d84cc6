"""phi, psi, psi', interval borders and feasibility: the oracle first, then the tensors against it."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from level_strategies import epsilons, level_sets, weights
from rounding import DTYPES, SLACK, UNIT, as_computed, phi_error, slope_error, special_points, tensor

from askew.core import LevelSet, binary, oracle, ternary, uniform
from askew.core.constraint import borders, feasible, interval, phi, psi, psi_prime, shape
from askew.core.levels import compute_dtype

# -- the oracle itself ------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_oracle_slope_is_the_derivative(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    h = 1e-5
    for q in data.draw(weights(levels)):
        # phi' is continuous but kinks at the levels, so the two-sided difference is off by at most |phi''| h there
        difference = (oracle.phi(q + h, levels.values) - oracle.phi(q - h, levels.values)) / (2 * h)
        largest = max(1.0, *(2 * gap * gap for gap in levels.gaps))
        assert oracle.phi_prime(q, levels.values) == pytest.approx(difference, abs=2 * largest * h, rel=1e-7)


@given(levels=level_sets())
def test_oracle_phi_vanishes_exactly_on_levels_only(levels: LevelSet) -> None:
    assert all(oracle.phi(c, levels.values) == 0 for c in levels.values)
    assert all(oracle.phi_prime(c, levels.values) == 0 for c in levels.values)
    for (a, b), middle in zip(pairwise(levels.values), levels.midpoints, strict=True):
        assert oracle.phi(middle, levels.values) == pytest.approx((b - a) ** 4 / 16, rel=1e-12)


def test_oracle_phi_by_hand() -> None:
    assert oracle.phi(0.5, (-1.0, 1.0)) == 0.5625  # (1 - q^2)^2
    assert oracle.phi_prime(0.5, (-1.0, 1.0)) == -1.5  # -4 q (1 - q^2)
    assert oracle.phi(-1.5, (-1.0, 1.0)) == 0.25
    assert oracle.phi_prime(-1.5, (-1.0, 1.0)) == -1.0
    assert oracle.phi(3.0, (-1.0, 1.0)) == 4.0
    assert oracle.phi_prime(3.0, (-1.0, 1.0)) == 4.0
    assert oracle.phi(0.25, (-1.0, 0.0, 1.0)) == (0.25 * 0.75) ** 2


@given(data=st.data())
def test_oracle_borders_are_zeros_of_psi(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon = data.draw(epsilons(levels))
    for end in (end for piece in oracle.intervals(levels.values, epsilon) for end in piece):
        dx = 1e-15 * (abs(end) + max(abs(c) for c in levels.values))
        room = abs(oracle.phi_prime(end, levels.values)) * dx + max(1.0, *levels.gaps) ** 2 * dx * dx
        assert abs(epsilon - oracle.phi(end, levels.values)) <= room + 1e-14 * epsilon


@given(data=st.data())
def test_oracle_intervals_are_the_feasible_set(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon = data.draw(epsilons(levels))
    pieces = oracle.intervals(levels.values, epsilon)
    assert all(low < high for low, high in pieces)
    assert all(left[1] <= right[0] for left, right in pairwise(pieces))
    assert all(sum(low <= c <= high for low, high in pieces) == 1 for c in levels.values)
    separate = sum(gap**4 / 16 >= epsilon for gap in levels.gaps) + 1
    on_the_edge = any(math.isclose(gap**4 / 16, epsilon, rel_tol=1e-12) for gap in levels.gaps)
    assert len(pieces) == separate or on_the_edge
    for q in data.draw(weights(levels, epsilon)):
        slack = epsilon - oracle.phi(q, levels.values)
        inside = any(low <= q <= high for low, high in pieces)
        nearest_end = min(abs(q - end) for piece in pieces for end in piece)
        assert inside == (slack >= 0) or nearest_end <= 1e-6  # t has an infinite slope where intervals just touch


# -- tensors against the oracle ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_phi_and_slope_agree_with_oracle(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon = data.draw(epsilons(levels))
    q = tensor(data.draw(weights(levels, epsilon)) + special_points(levels, epsilon), dtype)
    got = shape(q, levels)
    assert got.phi.dtype == got.slope.dtype == compute_dtype(dtype)
    assert torch.equal(phi(q, levels), got.phi)
    assert torch.equal(psi_prime(q, levels), -got.slope)
    assert torch.equal(psi(q, levels, epsilon), epsilon - got.phi)
    exact = as_computed(levels, dtype)
    for x, f, df in zip(q.double().tolist(), got.phi.tolist(), got.slope.tolist(), strict=True):
        assert f == pytest.approx(oracle.phi(x, exact.values), abs=phi_error(x, exact, dtype), rel=0)
        assert df == pytest.approx(oracle.phi_prime(x, exact.values), abs=slope_error(x, exact, dtype), rel=0)
        assert f >= 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_zero_exactly_on_levels_and_slope_zero_at_midpoints(dtype: torch.dtype) -> None:
    for levels in (binary(), ternary(), uniform(4), LevelSet((-3.0, -1.0, 0.25, 4.0))):
        on = shape(tensor(list(levels.values), dtype), levels)
        assert not on.phi.any()
        assert not on.slope.any()
        middle = shape(tensor(list(levels.midpoints), dtype), levels)
        assert not middle.slope.any()
        assert middle.phi.tolist() == [h**4 / 16 for h in levels.gaps]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(data=st.data())
def test_borders_agree_with_oracle(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon = data.draw(epsilons(levels))
    low, high = borders(levels, epsilon, torch.zeros(1, dtype=dtype))
    assert low.dtype == high.dtype == dtype
    assert low.shape == high.shape == (len(levels),)
    exact = as_computed(levels, dtype)
    pieces = oracle.intervals(exact.values, epsilon)
    rooms = [gap * gap / 4 - math.sqrt(epsilon) for gap in exact.gaps]
    errors = [SLACK * UNIT[dtype] * (gap * gap / 4 + math.sqrt(epsilon)) for gap in exact.gaps]
    assume(all(abs(r) > e for r, e in zip(rooms, errors, strict=True)))  # else neither merged nor parted for sure
    error = max(e / math.sqrt(abs(r)) for r, e in zip(rooms, errors, strict=True))
    error += SLACK * UNIT[dtype] * (math.sqrt(epsilon) + max(abs(c) for c in exact.values))
    for c, left, right in zip(exact.values, low.tolist(), high.tolist(), strict=True):
        (piece,) = [p for p in pieces if p[0] <= c <= p[1]]
        assert left == pytest.approx(piece[0], abs=error, rel=0)
        assert right == pytest.approx(piece[1], abs=error, rel=0)


def test_borders_by_hand() -> None:
    like = torch.zeros((), dtype=torch.float64)
    low, high = borders(binary(), 0.25, like)
    t = math.sqrt(0.5)  # h^2/4 - sqrt(eps) = 1 - 1/2
    torch.testing.assert_close(low, tensor([-1.5, t]), rtol=1e-15, atol=0)
    torch.testing.assert_close(high, tensor([-t, 1.5]), rtol=1e-15, atol=0)
    low, high = borders(binary(), 1.0, like)  # touching at the midpoint
    assert low.tolist() == [-2.0, 0.0]
    assert high.tolist() == [0.0, 2.0]
    low, high = borders(binary(), 1.21, like)  # merged
    torch.testing.assert_close(low, tensor([-2.1, -2.1]), rtol=1e-15, atol=0)
    torch.testing.assert_close(high, tensor([2.1, 2.1]), rtol=1e-15, atol=0)


def test_merged_intervals_share_their_ends() -> None:
    levels = LevelSet((0.0, 1.0, 4.0, 5.0, 6.0, 10.0))  # narrow gaps merge, wide ones do not
    epsilon = 2 * levels.epsilon_bound
    low, high = borders(levels, epsilon, torch.zeros((), dtype=torch.float64))
    assert low[0] == low[1] < low[2] == low[3] == low[4] < low[5]
    assert high[0] == high[1] < high[2] == high[3] == high[4] < high[5]
    assert high[0] < low[2]
    pieces = oracle.intervals(levels.values, epsilon)
    expected = tensor([pieces[i] for i in (0, 0, 1, 1, 1, 2)])
    # torch's sqrt may be 1 ulp off
    torch.testing.assert_close(torch.stack([low, high], 1), expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_feasible_is_inside_the_borders(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon = data.draw(epsilons(levels))
    q = tensor(data.draw(weights(levels, epsilon)) + special_points(levels, epsilon), dtype)
    inside = feasible(q, levels, epsilon)
    assert torch.equal(inside, psi(q, levels, epsilon) >= 0)
    low, high = interval(q, levels, epsilon)
    assert low.shape == high.shape == q.shape
    between = (low <= q) & (q <= high)
    exact = as_computed(levels, dtype)
    unit = SLACK * UNIT[compute_dtype(dtype)]
    for x, yes, by_border in zip(q.double().tolist(), inside.tolist(), between.tolist(), strict=True):
        slack, slope = epsilon - oracle.phi(x, exact.values), oracle.phi_prime(x, exact.values)
        blur = phi_error(x, exact, dtype) + unit * epsilon
        if abs(slack) > blur:
            assert yes == (slack >= 0)
        # the closed form loses digits of the position, times phi' (and half of them where intervals just touch)
        dx = unit * (max(abs(c) for c in exact.values) + math.sqrt(epsilon))
        if abs(slack) > blur + 2 * abs(slope) * dx + max(1.0, *exact.gaps) ** 2 * dx * max(1.0, *exact.gaps):
            assert by_border == (slack >= 0)


@given(data=st.data())
def test_every_level_is_feasible_and_inside_its_interval(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon = data.draw(epsilons(levels))
    c = tensor(list(levels.values))
    low, high = borders(levels, epsilon, c)
    assert bool(((low < c) & (c < high)).all())
    assert bool(feasible(c, levels, epsilon).all())
    assert bool((low[1:] >= low[:-1]).all())
    assert bool((high[1:] >= high[:-1]).all())


@given(data=st.data())
def test_a_larger_epsilon_has_larger_intervals(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    small, large = sorted((data.draw(epsilons(levels)), data.draw(epsilons(levels))))
    like = torch.zeros((), dtype=torch.float64)
    (low, high), (wide_low, wide_high) = borders(levels, small, like), borders(levels, large, like)
    assert bool((wide_low <= low).all())
    assert bool((high <= wide_high).all())


def test_epsilon_may_be_a_tensor() -> None:
    q = torch.linspace(-3, 3, 101)
    for levels in (binary(), uniform(3)):
        for epsilon in (torch.tensor(0.04, dtype=torch.float64), torch.tensor(0.04)):
            for a, b in zip(interval(q, levels, epsilon), interval(q, levels, 0.04), strict=True):
                assert a.dtype == torch.float32
                torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
            assert torch.equal(feasible(q, levels, epsilon), feasible(q, levels, 0.04))


def test_epsilon_zero_leaves_the_levels() -> None:
    levels = LevelSet((-1.0, 0.5, 2.0))
    low, high = borders(levels, 0.0, torch.zeros((), dtype=torch.float64))
    assert low.tolist() == high.tolist() == list(levels.values)
    assert feasible(tensor([-1.0, -0.99, 0.5, 2.0, 2.01]), levels, 0.0).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("levels", [binary(), uniform(4)], ids=lambda x: x.name)
def test_shapes_and_inputs_untouched(levels: LevelSet) -> None:
    q = 2 * torch.randn(2, 3, 2, 2, 3, generator=torch.Generator().manual_seed(1))
    before = q.clone()
    for x in (q, q[0, 0, 0, 0, 0], q[:0], q.permute(4, 0, 3, 1, 2), q[..., ::2]):
        flat = x.reshape(-1)
        got, expected = shape(x, levels), shape(flat, levels)
        assert got.phi.shape == got.slope.shape == x.shape
        assert torch.equal(got.phi.reshape(-1), expected.phi)
        assert torch.equal(got.slope.reshape(-1), expected.slope)
        assert interval(x, levels, 0.01)[0].shape == x.shape
        assert feasible(x, levels, 0.01).shape == x.shape
    assert torch.equal(q, before)
    assert levels.table(q).tolist() == list(levels.values)
