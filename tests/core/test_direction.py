"""The skewed and the level-first direction: optimal in the oracle, the same in tensors; arrive, quantile, snap."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from level_strategies import alphas, clips, epsilons, gradients, level_sets, radii, weights
from rounding import (
    DTYPES,
    SLACK,
    UNIT,
    allowed_level_first,
    allowed_skew,
    as_computed,
    check,
    gap_around,
    near_midpoint,
    same_bits,
    special_points,
    tensor,
)

from askew.core import LevelSet, binary, oracle, ternary, uniform
from askew.core.direction import (
    arrive,
    captured,
    half_gap,
    level_first,
    level_units,
    quantile_radius,
    remoteness,
    shown,
    skew,
    snap,
)
from askew.core.levels import compute_dtype, nearest

EXACT_SETS = (binary(), ternary(), uniform(4), uniform(2, "symmetric"), LevelSet((-3.0, -1.0, 0.25, 4.0), "uneven"))
by_name = pytest.mark.parametrize("levels", EXACT_SETS, ids=lambda x: x.name)


# -- the oracle itself ------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_oracle_direction_is_the_argmin_over_v_alpha(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon, alpha = data.draw(epsilons(levels)), data.draw(alphas)
    for u, q in zip(data.draw(gradients()), data.draw(weights(levels, epsilon)), strict=True):
        psi = epsilon - oracle.phi(q, levels.values)
        slope = -oracle.phi_prime(q, levels.values)
        v = oracle.direction(u, q, levels.values, epsilon, alpha, math.inf)
        if psi > 0:
            assert v == -u  # V_alpha is the whole line
            continue
        if slope == 0 and psi < 0:
            assert v == math.inf  # V_alpha is empty: the convention
            continue
        room = 1e-12 * (abs(slope * v) + alpha * abs(psi))
        assert slope * v >= -alpha * psi - room  # v is in V_alpha
        boundary = [-alpha * psi / slope] if slope else []
        away = 1.0 + abs(u) + abs(v)
        for other in [*boundary, -u, *(v + away * k / 20 for k in range(-40, 41)), v - 1e-6 * away, v + 1e-6 * away]:
            if slope * other >= -alpha * psi:  # no other one of V_alpha is closer to -u
                assert abs(other + u) >= abs(v + u) - 1e-9 * away


@given(data=st.data())
def test_oracle_clip_bounds_the_pull_only(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon, alpha, clip = data.draw(epsilons(levels)), data.draw(alphas), data.draw(st.floats(0.05, 2.0))
    for u, q in zip(data.draw(gradients()), data.draw(weights(levels, epsilon)), strict=True):
        unclipped = oracle.direction(u, q, levels.values, epsilon, alpha, math.inf)
        v = oracle.direction(u, q, levels.values, epsilon, alpha, clip)
        assert v == (-u if unclipped == -u else max(-clip, min(clip, unclipped))) or abs(unclipped) == math.inf


def test_oracle_direction_by_hand() -> None:
    c = (-1.0, 1.0)  # at q = .5: phi = .5625, phi' = -1.5; with eps = .0625: psi = -.5, psi' = 1.5
    assert oracle.direction(0.0, 0.5, c, 0.0625, 0.3, 9.0) == pytest.approx(0.1)  # outward, towards +1
    assert oracle.direction(-0.2, 0.5, c, 0.0625, 0.3, 9.0) == 0.2  # -u is already fast enough
    assert oracle.direction(-0.05, 0.5, c, 0.0625, 0.3, 9.0) == pytest.approx(0.1)
    assert oracle.direction(5.0, 0.5, c, 0.0625, 0.3, 9.0) == pytest.approx(0.1)
    assert oracle.direction(0.0, -0.5, c, 0.0625, 0.3, 9.0) == pytest.approx(-0.1)  # towards -1
    assert oracle.direction(0.0, 1.5, c, 0.0625, 0.3, 9.0) == pytest.approx(-0.3 * 0.1875)  # back from outside
    assert oracle.direction(0.0, 0.5, c, 0.0625, 0.3, 0.02) == 0.02
    assert oracle.direction(0.0, 0.0, c, 0.0625, 0.3, 9.0) == 9.0
    assert oracle.direction(7.0, 0.5, c, 0.6, 0.3, 9.0) == -7.0


@given(data=st.data())
def test_oracle_level_first_is_the_argmin_for_captured_coordinates(data: st.DataObject) -> None:
    """For g = -d^2/2 at rate 2 alpha: v is in V_alpha (d v >= alpha d^2), and none of V_alpha is closer to -u."""
    levels = data.draw(level_sets())
    alpha = data.draw(alphas)
    for u, q in zip(data.draw(gradients()), data.draw(weights(levels)), strict=True):
        d = oracle.nearest(q, levels.values) - q
        v = oracle.level_first(u, q, levels.values, math.inf, alpha)
        if d == 0:
            assert v == 0
            continue
        if abs(d) < 1e-150:
            continue  # d^2 underflows
        assert d * v >= alpha * d * d * (1 - 1e-12)
        away = 1.0 + abs(u) + abs(v)
        for other in [alpha * d, -u, *(v + away * k / 20 for k in range(-40, 41))]:
            if d * other >= alpha * d * d:
                assert abs(other + u) >= abs(v + u) - 1e-9 * away


def test_oracle_level_first_by_hand() -> None:
    c = (-1.0, 1.0)
    assert oracle.level_first(0.3, 0.8, c, 0.1, 0.05) == -0.3  # not captured: remoteness .2
    assert oracle.level_first(0.3, 0.8, c, 0.2 + 1e-9, 0.05) == pytest.approx(0.01)
    assert oracle.level_first(-0.3, 0.8, c, 0.5, 0.05) == 0.3
    assert oracle.level_first(0.3, -0.8, c, 0.5, 0.05) == -0.3  # towards -1 already, and fast
    assert oracle.level_first(-0.3, -0.8, c, 0.5, 0.05) == pytest.approx(-0.01)
    assert oracle.level_first(-0.3, 1.0, c, 0.5, 0.05) == 0.0
    assert oracle.level_first(-0.3, 1.4, c, 0.01, 0.05) == pytest.approx(-0.02)  # beyond the range: always captured
    assert oracle.level_first(-0.3, 1.4, c, 0.0, 0.05) == 0.3


# -- skew against the oracle ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_skew_agrees_with_oracle(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon, alpha, clip = data.draw(epsilons(levels)), data.draw(alphas), data.draw(clips)
    w = tensor(data.draw(weights(levels, epsilon)), dtype)
    u = tensor(data.draw(gradients()), dtype)
    v = skew(u, w, levels, epsilon, alpha, clip)
    assert v.dtype == dtype
    exact = as_computed(levels, dtype)
    points = zip(u.double().tolist(), w.double().tolist(), strict=True)
    check([allowed_skew(a, q, exact, epsilon, alpha, clip, dtype) for a, q in points], v, u)


@given(data=st.data())
def test_skew_equals_oracle_in_float64_where_nothing_is_close(data: st.DataObject) -> None:
    """To 1e-12 wherever a few rounding units cannot change the branch (the test above has the other points)."""
    levels = data.draw(level_sets())
    epsilon, alpha, clip = data.draw(epsilons(levels)), data.draw(alphas), data.draw(clips)
    w, u = data.draw(weights(levels, epsilon)), data.draw(gradients())
    v = skew(tensor(u), tensor(w), levels, epsilon, alpha, clip)
    for got, push, q in zip(v.tolist(), u, w, strict=True):
        expected = oracle.direction(push, q, levels.values, epsilon, alpha, clip)
        allowed = allowed_skew(push, q, levels, epsilon, alpha, clip, torch.float64)
        if allowed.ambiguous or len(allowed.ranges) > 1:
            continue
        # the pull has psi' below and psi above the line; both cancel, next to a midpoint and next to a border
        psi, slope = epsilon - oracle.phi(q, levels.values), oracle.phi_prime(q, levels.values)
        lost = 1e-15 * epsilon / abs(psi) if psi else 0.0
        lost += 1e-15 * max(1.0, *levels.gaps) ** 3 / abs(slope) if slope else 0.0
        assert got == pytest.approx(expected, rel=1e-12 + 8 * lost, abs=0)


@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 0.0), (torch.float32, 0.002), (torch.bfloat16, 0.002)])
def test_few_points_have_two_answers(dtype: torch.dtype, most: float) -> None:
    """The tolerance of the tests above is not where they pass: both answers are allowed at next to no random point."""
    generator = torch.Generator().manual_seed(0)
    for levels in (binary(), uniform(3)):
        low, high = levels.values[0] - 1, levels.values[-1] + 1
        w = (
            (low + (high - low) * torch.rand(3000, generator=generator, dtype=torch.float64))
            .to(dtype)
            .double()
            .tolist()
        )
        u = torch.randn(3000, generator=generator, dtype=torch.float64).to(dtype).double().tolist()
        epsilon = 0.3 * levels.epsilon_bound
        skews = [allowed_skew(a, q, levels, epsilon, 0.5, 1.0, dtype) for a, q in zip(u, w, strict=True)]
        firsts = [allowed_level_first(a, q, levels, 0.4, 0.5, dtype) for a, q in zip(u, w, strict=True)]
        for answers in (skews, firsts):
            off_midpoint = [a for a, q in zip(answers, w, strict=True) if q not in levels.midpoints]
            assert sum(a.ambiguous or len(a.ranges) > 1 for a in off_midpoint) <= most * len(answers)
            assert sum(a.keep for a in answers) > 500
            assert sum(not a.keep for a in answers) > 500


@pytest.mark.parametrize("dtype", DTYPES)
def test_skew_by_hand(dtype: torch.dtype) -> None:
    """Numbers that every dtype holds exactly. At q = .5: phi = .5625, psi' = 1.5; the decisions fall on equality."""
    w, c = tensor([0.5, 0.5, 0.5, -0.5, -0.5, 1.5, 1.5, 2.0], dtype), binary()
    u = tensor([1.0, -1.0, 0.0, 1.0, -1.0, 1.0, -1.0, 0.0], dtype)
    # on the border at +-.5: outward -u is kept, inward becomes 0; 1.5 is free; 2 is pulled: -.5 (.4375) / 2
    v = skew(u, w, c, 0.5625, 0.5, 1.0)
    assert v.tolist() == [0.0, 1.0, 0.0, -1.0, 0.0, -1.0, 1.0, -0.109375]
    # psi = -.375 at .5: floor .5 (.375) = .1875, so the pull is .125, and u = -.125 just meets it
    u = tensor([-0.125, -0.1171875, 0.125, 0.125, 0.1171875, 0.0, 9.0, 0.0], dtype)
    v = skew(u, w, c, 0.1875, 0.5, 1.0)
    assert v.tolist() == [0.125, 0.125, 0.125, -0.125, -0.125, -0.03125, -9.0, -0.203125]
    assert skew(u, w, c, 0.1875, 0.5, 0.0625).tolist() == [
        0.125,
        *[0.0625] * 2,
        -0.125,
        -0.0625,
        -0.03125,
        -9.0,
        -0.0625,
    ]


@by_name
@pytest.mark.parametrize("dtype", DTYPES)
def test_midpoint_rule_goes_right_with_speed_m(levels: LevelSet, dtype: torch.dtype) -> None:
    middle = tensor(list(levels.midpoints), dtype)
    for u in (-1.0, 0.0, 2.0, 100.0):
        v = skew(torch.full_like(middle, u), middle, levels, 0.5 * levels.epsilon_bound, 0.3, 0.75)
        assert v.tolist() == [0.75] * len(middle)
        v = skew(torch.full_like(middle, u), middle, levels, 2.0 * max(levels.gaps) ** 4 / 16, 0.3, 0.75)
        assert same_bits(v, -torch.full_like(middle, u))  # merged: nothing binds at the midpoint
    v = skew(torch.full_like(middle, 5.0), middle, levels, levels.epsilon_bound, 0.3, 0.75)
    touching = [h == levels.min_gap for h in levels.gaps]  # psi = psi' = 0: every velocity is allowed
    assert v.tolist() == [-5.0 if t else 0.75 for t in touching]


@given(data=st.data())
def test_clip_bounds_what_the_constraint_imposes(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon, alpha, clip = data.draw(epsilons(levels)), data.draw(alphas), data.draw(st.floats(0.01, 0.5))
    w, u = tensor(data.draw(weights(levels, epsilon))), tensor(data.draw(gradients()))
    v = skew(u, w, levels, epsilon, alpha, clip)
    assert bool(((v == -u) | (v.abs() <= clip)).all())
    assert torch.equal(v, skew(u, w, levels, epsilon, alpha, torch.tensor(clip, dtype=torch.float64)))


@by_name
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_huge_epsilon_is_minus_u_bit_for_bit(levels: LevelSet, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    w = (5 * torch.randn(1000, generator=generator)).to(dtype)
    u = torch.randn(1000, generator=generator).to(dtype)
    u[:4] = torch.tensor([0.0, -0.0, 1e-7, -1e-7]).to(dtype)
    assert same_bits(skew(u, w, levels, 1e30, 0.3, 1.0), -u)
    assert same_bits(skew(u, w, levels, torch.tensor(1e30, dtype=torch.float64), 0.3, 1.0), -u)
    assert same_bits(skew(u, w, levels, 1e30, 0.3, 1.0, torch.tensor(0.37)), -u)
    assert same_bits(skew(u, w, levels, math.inf, 0.3, 1.0), -u)


@given(data=st.data())
def test_a_small_step_along_the_pull_improves_feasibility(data: st.DataObject) -> None:
    """What skew is for: an infeasible coordinate gains psi, whatever the gradient (off the midpoints)."""
    levels = data.draw(level_sets())
    epsilon, alpha = data.draw(epsilons(levels)), data.draw(alphas)
    u, w = data.draw(gradients()), data.draw(weights(levels, epsilon))
    v = skew(tensor(u), tensor(w), levels, epsilon, alpha, 1.0).tolist()
    for q, speed in zip(w, v, strict=True):
        psi = epsilon - oracle.phi(q, levels.values)
        slope = -oracle.phi_prime(q, levels.values)
        if psi < -1e-9 * epsilon and abs(slope) > 1e-9 and abs(speed) <= 1.0:
            assert speed * slope > 0
            step = 1e-7 * speed
            assert oracle.phi(q + step, levels.values) <= oracle.phi(q, levels.values)


# -- scales, shapes, dtypes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(data=st.data())
def test_scaled_skew_is_skew_in_level_units(dtype: torch.dtype, data: st.DataObject) -> None:
    """skew(u, w; s) = s skew(u/s, w/s): the same decision, the same pull up to rounding, -u bit for bit."""
    levels = data.draw(level_sets())
    epsilon, alpha, clip = data.draw(epsilons(levels)), data.draw(alphas), data.draw(clips)
    s = torch.tensor(data.draw(st.floats(0.01, 20.0)), dtype=dtype)
    w = tensor(data.draw(weights(levels, epsilon)), dtype) * s
    u = tensor(data.draw(gradients()), dtype)
    v = skew(u, w, levels, epsilon, alpha, clip, s)
    inner = skew(u / s, w / s, levels, epsilon, alpha, clip)
    free = same_sign_equal(inner, -(u / s))
    assert same_bits(v[free], -u[free])
    assert v.dtype == dtype
    torch.testing.assert_close(v[~free], (inner * s)[~free], rtol=4 * UNIT[dtype], atol=1e-37)
    exact = as_computed(levels, dtype)
    points = zip((u / s).double().tolist(), (w / s).double().tolist(), strict=True)
    for (push, q), got, plain in zip(points, v.tolist(), u.tolist(), strict=True):
        allowed = allowed_skew(push, q, exact, epsilon, alpha, clip, dtype)
        assert (allowed.keep and got == -plain) or any(
            low <= got / s.item() * (1 + side) <= high for low, high in allowed.ranges for side in (-1e-6, 0.0, 1e-6)
        )


def same_sign_equal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) & (a.signbit() == b.signbit())


@by_name
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_scale_per_channel(levels: LevelSet, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    s = torch.tensor([0.1, 1.0, 7.0], dtype=compute_dtype(dtype)).reshape(3, 1, 1)
    w = (3 * torch.randn(3, 4, 5, generator=generator) * s).to(dtype)
    u = torch.randn(3, 4, 5, generator=generator).to(dtype)
    for function, extra in ((skew, (0.05 * levels.epsilon_bound, 0.5, 1.0)), (level_first, (0.6, 0.5))):
        v = function(u, w, levels, *extra, s)
        assert v.shape == w.shape
        assert v.dtype == dtype
        for k in range(3):
            assert same_bits(v[k], function(u[k], w[k], levels, *extra, s[k, 0, 0]))
    assert torch.equal(snap(w, levels, s)[1], snap(w[1], levels, s[1, 0, 0]))


@by_name
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_any_shape_and_layout(levels: LevelSet, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    w = (2 * torch.randn(2, 3, 4, 3, 5, generator=generator)).to(dtype)
    u = torch.randn(2, 3, 4, 3, 5, generator=generator).to(dtype)
    functions = {
        "skew": lambda u, w: skew(u, w, levels, 0.1 * levels.epsilon_bound, 0.5, 1.0),
        "level_first": lambda u, w: level_first(u, w, levels, 0.7, 0.5),
        "arrive": lambda u, w: arrive(u, w, levels, 0.7, None),
        "snap": lambda u, w: snap(w, levels),
        "snap with scale": lambda u, w: snap(w, levels, torch.tensor(0.3)),
    }
    views = {
        "5-D": lambda x: x,
        "0-d": lambda x: x[0, 0, 0, 0, 0],
        "empty": lambda x: x[:, :0],
        "permuted": lambda x: x.permute(4, 1, 3, 0, 2),
        "strided": lambda x: x[:, ::2, 1:, :, ::3],
        "channels last": lambda x: x[0].to(memory_format=torch.channels_last),
        "channels last 3d": lambda x: x.to(memory_format=torch.channels_last_3d),
    }
    u0, w0 = u.clone(), w.clone()
    for name, function in functions.items():
        for view, take in views.items():
            got = function(take(u), take(w))
            flat = function(take(u).reshape(-1), take(w).reshape(-1))
            assert got.shape == take(w).shape, (name, view)
            assert got.dtype == dtype, (name, view)
            assert torch.equal(got.reshape(-1), flat), (name, view)
            if view.startswith("channels last"):
                assert got.stride() == take(w).stride(), (name, view)
    assert torch.equal(u, u0)
    assert torch.equal(w, w0)
    assert levels.table(w).tolist() == list(levels.values)


def test_gradient_and_weight_may_differ_in_dtype() -> None:
    w, u = torch.tensor([0.5, 0.99]), torch.tensor([1.0, 1.0])
    expected = skew(u, w, binary(), 0.05, 0.5, 1.0)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        v = skew(u.to(dtype), w, binary(), 0.05, 0.5, 1.0)
        assert v.dtype == dtype
        torch.testing.assert_close(v, expected.to(dtype), rtol=1e-6, atol=0)


# -- level-first ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_level_first_agrees_with_oracle(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    alpha, radius = data.draw(alphas), data.draw(radii)
    w = tensor(data.draw(weights(levels)), dtype)
    u = tensor(data.draw(gradients()), dtype)
    v = level_first(u, w, levels, radius, alpha)
    assert v.dtype == dtype
    exact = as_computed(levels, dtype)
    points = zip(u.double().tolist(), w.double().tolist(), strict=True)
    check([allowed_level_first(a, q, exact, radius, alpha, dtype) for a, q in points], v, u)


@by_name
@pytest.mark.parametrize("dtype", DTYPES)
def test_level_first_on_a_level_stands_still(levels: LevelSet, dtype: torch.dtype) -> None:
    w = tensor(list(levels.values), dtype)
    for u in (-3.0, 0.0, 3.0):
        assert not level_first(torch.full_like(w, u), w, levels, 1e-6, 0.5).any()
        assert same_bits(level_first(torch.full_like(w, u), w, levels, 0.0, 0.5), torch.full_like(w, -u))


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_on_a_scaled_level_nothing_moves(dtype: torch.dtype, data: st.DataObject) -> None:
    """w = s c rounded is on its level, although w / s need not be c exactly: velocity 0, and arrive() holds it."""
    levels = data.draw(level_sets())
    s = torch.tensor(data.draw(st.floats(0.01, 20.0)), dtype=compute_dtype(dtype))
    w = snap(tensor(list(levels.values), dtype) * s, levels, s)
    for push in (-3.0, 0.01, 3.0):
        u = torch.full_like(w, push)
        assert not level_first(u, w, levels, 0.5, 0.3, s).any()
        assert torch.equal(arrive(w - u, w, levels, 0.5, s), w)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_level_units_divide_by_the_scale_but_for_landed_weights(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    s = torch.tensor(data.draw(st.floats(0.01, 20.0)), dtype=compute_dtype(dtype))
    w = tensor(data.draw(weights(levels)), dtype) * s.to(dtype)
    for scale in (None, s):
        q = level_units(w, levels, scale)
        assert q.dtype == compute_dtype(dtype)
        plain = w.to(q.dtype) if scale is None else w.to(q.dtype) / scale
        landed = w == snap(w, levels, scale)
        assert torch.equal(q[~landed], plain[~landed])
        assert torch.equal(q[landed], nearest(plain, levels)[landed])
        on = snap(w, levels, scale)
        assert bool(torch.isin(level_units(on, levels, scale), levels.table(q)).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(data=st.data())
def test_scaled_level_first_is_level_first_in_level_units(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    alpha, radius = data.draw(alphas), data.draw(radii)
    s = torch.tensor(data.draw(st.floats(0.01, 20.0)), dtype=dtype)
    w = tensor(data.draw(weights(levels)), dtype) * s
    u = tensor(data.draw(gradients()), dtype)
    v = level_first(u, w, levels, radius, alpha, s)
    inner = level_first(u / s, w / s, levels, radius, alpha)
    on_level = w == snap(w, levels, s)
    free = same_sign_equal(inner, -(u / s)) & ~on_level
    assert same_bits(v[free], -u[free])
    bound = ~free & ~on_level
    torch.testing.assert_close(v[bound], (inner * s)[bound], rtol=4 * UNIT[dtype], atol=1e-37)
    assert not v[on_level].any() or radius == 0


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_remoteness_and_half_gap(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    q = tensor(data.draw(weights(levels)) + special_points(levels), dtype)
    remote = remoteness(q, levels)
    half = half_gap(q, levels).expand(q.shape)
    exact, unit = as_computed(levels, dtype), SLACK * UNIT[compute_dtype(dtype)]
    assert bool(((remote >= 0) & (remote <= 1)).all())
    for x, got, h in zip(q.double().tolist(), remote.tolist(), half.tolist(), strict=True):
        a, b = gap_around(x, exact)
        assert h == pytest.approx((b - a) / 2, rel=unit)
        way = abs(oracle.nearest(x, exact.values) - x) if exact.values[0] <= x <= exact.values[-1] else 0.0
        assert got == pytest.approx(way / h, rel=unit, abs=4 * near_midpoint(x, exact, dtype) / h)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_captured_grows_with_the_radius_from_nobody_to_everybody(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    q = tensor(data.draw(weights(levels)) + special_points(levels), dtype)
    assert not captured(q, levels, 0.0).any()
    assert not captured(q, levels, torch.tensor(0.0)).any()
    assert captured(q, levels, 1.0).all()
    assert captured(q, levels, torch.tensor(1.0, dtype=torch.float64)).all()
    before = captured(q, levels, 0.0)
    for radius in sorted(data.draw(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3))):
        now = captured(q, levels, radius)
        assert bool((now | ~before).all())
        if radius > 0:
            assert torch.equal(now, remoteness(q, levels) <= radius)
        before = now


def test_captured_by_hand() -> None:
    q = torch.tensor([-1.4, -1.0, -0.7, -0.2, 0.0, 0.4, 0.6, 1.0, 3.0])
    assert captured(q, binary(), 0.35).tolist() == [True, True, True, False, False, False, False, True, True]
    assert captured(q, binary(), 0.65).tolist() == [True, True, True, False, False, True, True, True, True]
    uneven = LevelSet((0.0, 1.0, 5.0))  # one half gap is .5 on the left of 1 and 2 on its right
    q = torch.tensor([0.2, 0.3, 0.7, 0.8, 1.9, 2.1, 3.9, 4.1])
    assert captured(q, uneven, 0.5).tolist() == [True, False, False, True, True, False, False, True]


@given(data=st.data())
def test_shown_is_the_level_of_the_captured_and_the_weight_itself_elsewhere(data: st.DataObject) -> None:
    levels, radius = data.draw(level_sets()), data.draw(radii)
    w = torch.tensor(data.draw(weights(levels)) + special_points(levels), dtype=torch.float64)
    seen = shown(w, levels, radius)
    for q, x, near in zip(w.tolist(), seen.tolist(), remoteness(w, levels).tolist(), strict=True):
        if math.isclose(near, radius, abs_tol=1e-12):
            assert x in (q, *levels.values)
        elif near < 1 - 1e-12:
            assert x == oracle.shown(q, levels.values, radius)
        else:  # a midpoint to rounding: either level
            assert x == q if radius < 1 else math.isclose(abs(x - q), abs(oracle.shown(q, levels.values, radius) - q))


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_shown_goes_from_the_weights_to_the_snapped_ones(dtype: torch.dtype, data: st.DataObject) -> None:
    """Radius 0: the weights bit for bit; radius 1: what ships; in between the levels of captured ones, times s."""
    levels, radius = data.draw(level_sets()), torch.tensor(data.draw(radii), dtype=torch.float64)
    s = torch.tensor(data.draw(st.floats(0.01, 20.0)), dtype=compute_dtype(dtype))
    w = tensor(data.draw(weights(levels)), dtype)
    for scale in (None, s):
        assert same_bits(shown(w, levels, 0.0, scale), w)
        assert torch.equal(shown(w, levels, 1.0, scale), snap(w, levels, scale))
        seen = shown(w, levels, radius, scale)
        held = captured(level_units(w, levels, scale), levels, radius)
        assert seen.dtype == dtype
        assert torch.equal(seen[held], snap(w, levels, scale)[held]) and same_bits(seen[~held], w[~held])


def test_shown_by_hand() -> None:
    w = torch.tensor([-3.0, -0.8, -0.4, 0.0, 0.5, 0.9])
    assert shown(w, binary(), 0.5).tolist() == [-1.0, -1.0, w[2].item(), 0.0, 1.0, 1.0]
    assert shown(2 * w, binary(), 0.5, torch.tensor(2.0)).tolist() == [-2.0, -2.0, 2 * w[2].item(), 0.0, 2.0, 2.0]


# -- arrive -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_arrive_never_passes_the_level_and_leaves_the_free_alone(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    radius = data.draw(radii)
    before = tensor(data.draw(weights(levels)), dtype)
    after = before - tensor(data.draw(gradients()), dtype)
    end = arrive(after, before, levels, radius, None)
    assert end.dtype == dtype
    taken = captured(level_units(before, levels), levels, radius)
    assert same_bits(end[~taken], after[~taken])
    level = nearest(before, levels)
    side, side_after = level.double() - before.double(), level.double() - end.double()
    assert bool((side * side_after >= 0)[taken].all())  # never past its level
    assert bool(((end == after) | (end == level))[taken].all())  # moved back only as far as the level
    stays = taken & (side == 0)
    assert torch.equal(end[stays], level[stays])  # on-level weights are pinned
    short = taken & (side * (level.double() - after.double()) > 0)
    reached = short & (side.abs() > 1e-15)  # (the product of two tinier ways may underflow: on the level is right too)
    assert same_bits(end[reached], after[reached])


@by_name
def test_arrive_by_hand_with_scale(levels: LevelSet) -> None:
    a, b = levels.values[-2:]
    h, s = b - a, 0.25
    before = tensor([b - 0.1 * h, b - 0.1 * h, b + 0.1 * h, b, b - 0.4 * h]) * s
    after = tensor([b + 0.2 * h, b - 0.05 * h, b - 0.2 * h, b + 0.3 * h, b + 0.2 * h]) * s
    end = arrive(after, before, levels, 0.5, torch.tensor(s, dtype=torch.float64))
    expected = tensor([b, b - 0.05 * h, b, b, b + 0.2 * h]) * s  # the last one was not captured
    torch.testing.assert_close(end, expected, rtol=0, atol=0)


@given(data=st.data())
def test_level_first_iterates_end_exactly_on_levels(data: st.DataObject) -> None:
    """Algorithm: direction, SGD step, arrive. With everybody captured every weight lands on a level and stays."""
    levels = data.draw(level_sets())
    w = tensor(data.draw(weights(levels)))
    u = tensor(data.draw(gradients())).clamp(-1, 1)
    target = nearest(w, levels)
    for _ in range(60):
        w = arrive(w + 0.5 * level_first(u, w, levels, 1.0, 1.9), w, levels, 1.0, None)
    torch.testing.assert_close(w, target, rtol=0, atol=1e-12)
    w = arrive(w + 0.5 * level_first(u, target, levels, 1.0, 2.5), target, levels, 1.0, None)
    assert torch.equal(w, target)


# -- quantile radius --------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    remote=st.lists(
        st.one_of(st.floats(0.0, 1.0, width=32), st.sampled_from([0.0, 0.25, 1.0])), min_size=1, max_size=60
    ),
    fraction=st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 0.5, 1.0])),
    bins=st.sampled_from([16, 256, 2048]),
)
def test_quantile_radius_captures_the_fraction(remote: list[float], fraction: float, bins: int) -> None:
    x = torch.tensor(remote)
    radius = quantile_radius(x, fraction, bins)
    assert radius.shape == ()
    assert torch.equal(radius, quantile_radius(x, torch.tensor(fraction, dtype=torch.float64), bins))
    if fraction == 0:
        assert radius == 0
        return
    wanted = fraction * len(remote) * (1 - 1e-6)
    assert (x <= radius).sum() >= wanted
    assert 0 < radius <= 1
    less = radius - 1 / bins  # one bin less is too few: only ties with the last one fill a bin
    assert less <= 0 or (x < less).sum() < fraction * len(remote) * (1 + 1e-6)


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantile_radius_of_a_large_tensor(fraction: float, dtype: torch.dtype) -> None:
    w = torch.randn(50_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    remote = remoteness(w, uniform(3))
    radius = quantile_radius(remote, fraction)
    share = captured(w, uniform(3), radius).double().mean().item()
    ties = 0.01 if dtype == torch.bfloat16 else 0.0
    assert fraction - 1e-6 <= share <= fraction + 2 / 2048 + ties


def test_quantile_radius_by_hand() -> None:
    remote = torch.tensor([0.7, 0.1, 0.5, 0.3])
    for fraction, count in ((0.01, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4), (1.0, 4)):
        assert (remote <= quantile_radius(remote, fraction)).sum() == count
    assert quantile_radius(remote, 0.5, bins=10).item() == pytest.approx(0.4)  # the end of the bin that holds .3


def test_quantile_radius_is_monotone_and_takes_edge_cases() -> None:
    remote = torch.rand(500, generator=torch.Generator().manual_seed(0))
    radii = [quantile_radius(remote, f / 50).item() for f in range(51)]
    assert radii == sorted(radii)
    assert radii[0] == 0.0
    assert (remote <= radii[-1]).all()
    assert quantile_radius(torch.zeros(0), 0.5).item() <= 1.0
    assert quantile_radius(torch.tensor(1.0), 1.0) == 1.0
    assert quantile_radius(torch.zeros(3, 4), 0.5) <= 1 / 2048
    assert quantile_radius(remote.reshape(5, 10, 10).permute(2, 0, 1), 0.3) == quantile_radius(remote, 0.3)


# -- snap -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_snap_is_the_nearest_level_and_idempotent(dtype: torch.dtype, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    s = torch.tensor(data.draw(st.floats(0.01, 20.0)), dtype=compute_dtype(dtype))
    w = tensor(data.draw(weights(levels)), dtype)
    assert torch.equal(snap(w, levels), nearest(w, levels))
    once = snap(w, levels, s)
    assert once.dtype == dtype
    assert torch.equal(once, (nearest(w.to(s.dtype) / s, levels) * s).to(dtype))
    assert torch.equal(snap(once, levels, s), once)
    table = (levels.table(w) * s).to(dtype)
    assert bool(torch.isin(once, table).all())
