"""Diagnostics: the KKT residual vanishes on Z_eps and nowhere else; a look's numbers against plain loops."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from level_strategies import epsilons, gradients, level_sets, radii, weights
from rounding import DTYPES, SLACK, UNIT, as_computed, gap_around, near_midpoint, tensor

from askew.core import LevelSet, binary, oracle, ternary, uniform
from askew.core.annealing import Kind
from askew.core.constraint import borders, psi_prime
from askew.core.diagnostics import FIELDS, LayerReport, capture_residual, kkt_residual, look, look_at_all
from askew.core.direction import skew
from askew.core.levels import compute_dtype

SETS = (binary(), ternary(), uniform(4), LevelSet((-3.0, -1.0, 0.25, 4.0), "uneven"))
by_name = pytest.mark.parametrize("levels", SETS, ids=lambda x: x.name)

# -- the KKT residual -------------------------------------------------------------------------------------------------


@by_name
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("factor", [0.01, 0.5, 0.99, 7.0, 1e6])
def test_zero_exactly_at_kkt_points(levels: LevelSet, dtype: torch.dtype, factor: float) -> None:
    """Inside with zero gradient; on a border with a gradient of the sign of psi' (Theorem 1)."""
    epsilon = factor * levels.epsilon_bound
    low, high = borders(levels, epsilon, torch.zeros((), dtype=dtype))
    inside = torch.cat([low + t * (high - low) for t in (0.1, 0.5, 0.9)])
    assert not kkt_residual(inside, torch.zeros_like(inside), levels, epsilon).any()
    for border in (low, high):
        sign = psi_prime(border, levels).sign()
        assert bool(sign.all())
        for size in (1e-3, 1.0, 1e3):
            assert not kkt_residual(border, size * sign, levels, epsilon).any()
            assert bool((kkt_residual(border, -size * sign, levels, epsilon) > 0).all())
        assert not kkt_residual(border, torch.zeros_like(border), levels, epsilon).any()


@by_name
@pytest.mark.parametrize("factor", [0.01, 0.5, 0.99, 7.0])
def test_positive_everywhere_else(levels: LevelSet, factor: float) -> None:
    epsilon = factor * levels.epsilon_bound
    like = torch.zeros((), dtype=torch.float64)
    low, high = borders(levels, epsilon, like)
    for t in (0.1, 0.5, 0.9):
        inside = low + t * (high - low)
        for u in (-5.0, -1e-6, 1e-6, 5.0):
            push = torch.full_like(inside, u)
            # a gradient can take the point no farther than to the border
            room = torch.minimum(push.abs(), high - inside if u < 0 else inside - low)
            torch.testing.assert_close(kkt_residual(inside, push, levels, epsilon), room, rtol=1e-6, atol=1e-12)
            assert bool((room > 0).all())
    outside = [(low[:1] - 0.1), (high[-1:] + 0.1)]
    if factor < 1:
        outside += [high[:-1] + 0.3 * (low[1:] - high[:-1]), high[:-1] + 0.7 * (low[1:] - high[:-1])]
    for q in outside:
        for u in (-5.0, 0.0, 5.0):
            assert bool((kkt_residual(q, torch.full_like(q, u), levels, epsilon) > 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_residual_is_the_projection_step(dtype: torch.dtype, data: st.DataObject) -> None:
    """|q - P(q - u)| with P onto the oracle's interval around q's nearest level."""
    levels = data.draw(level_sets())
    epsilon = data.draw(epsilons(levels).filter(lambda e: all(abs(e * 16 / h**4 - 1) > 1e-3 for h in levels.gaps)))
    q = tensor(data.draw(weights(levels, epsilon)), dtype)
    u = tensor(data.draw(gradients()), dtype).clamp(-3, 3)
    got = kkt_residual(q, u, levels, epsilon)
    assert got.dtype == compute_dtype(dtype)
    exact = as_computed(levels, dtype)
    pieces = oracle.intervals(exact.values, epsilon)
    size = 3 + math.sqrt(epsilon) + max(abs(c) for c in exact.values)
    error = 1e3 * SLACK * UNIT[compute_dtype(dtype)] * size  # borders lose digits near touching, by 1/sqrt(1e-3)
    for x, push, r in zip(q.double().tolist(), u.double().tolist(), got.tolist(), strict=True):
        shift = near_midpoint(x, exact, dtype)
        answers = set()
        for y in (x - shift, x, x + shift):
            level = oracle.nearest(y, exact.values)
            ((low, high),) = [p for p in pieces if p[0] <= level <= p[1]]
            answers.add(abs(x - min(max(x - push, low), high)))
        assert min(abs(r - a) for a in answers) <= error


@given(data=st.data())
def test_fixed_points_of_the_step_are_the_zeros_of_the_residual(data: st.DataObject) -> None:
    """Where skew answers 0 at a feasible point, and only there, the residual is 0 (away from borders)."""
    levels = data.draw(level_sets())
    epsilon = data.draw(epsilons(levels))
    q = tensor(data.draw(weights(levels, epsilon)))
    u = tensor(data.draw(gradients())).round()
    still = skew(u, q, levels, epsilon, 0.5, 1.0) == 0
    residual = kkt_residual(q, u, levels, epsilon)
    near = [*torch.cat(borders(levels, epsilon, q)).tolist(), *levels.midpoints]  # intervals may just touch there
    for x, stands, r in zip(q.tolist(), still.tolist(), residual.tolist(), strict=True):
        if min(abs(x - b) for b in near) > 1e-6:
            assert (r == 0) == (stands and oracle.phi(x, levels.values) < epsilon)


def test_algorithm_1_drives_the_residual_to_zero() -> None:
    """Theorem 1 on a toy: l = |w - target|^2 / 2 with gamma_k = k^-.6."""
    target = tensor([0.2, -0.1, 1.3, -5.0, 0.9, 0.0])
    w = tensor([-0.4, 0.7, 0.1, -0.2, 1.0, 2.0])
    epsilon = 0.2
    for k in range(1, 4001):
        w = w + 1.0 / k**0.6 * skew(w - target, w, binary(), epsilon, 1.0, 1.0)
    assert kkt_residual(w, w - target, binary(), epsilon).max() < 1e-3
    assert kkt_residual(target, w - target, binary(), epsilon).max() > 0.1


# -- level-first ------------------------------------------------------------------------------------------------------


def test_capture_residual_by_hand() -> None:
    q = torch.tensor([-1.0, -0.8, -0.2, 0.3, 1.0, 1.5])
    u = torch.tensor([7.0, 7.0, 7.0, -0.5, -9.0, 0.0])
    torch.testing.assert_close(
        capture_residual(q, u, binary(), 0.25), torch.tensor([0.0, 0.2, 7.0, 0.5, 0.0, 0.5]), rtol=1e-6, atol=1e-7
    )
    assert torch.equal(capture_residual(q, u, binary(), 0.0), u.abs())


# -- look -------------------------------------------------------------------------------------------------------------


def plain_look(
    q: list[float], u: list[float] | None, levels: LevelSet, kind: str, value: float, last: list[int] | None
) -> dict[str, float]:
    """The same numbers by loops over scalars."""
    n, c = len(q), levels.values
    nearest = [oracle.nearest(x, c) for x in q]
    distance = [abs(a - x) for a, x in zip(nearest, q, strict=True)]
    if kind == "epsilon":
        slack = [value - oracle.phi(x, c) for x in q]
        inside, active = [s >= 0 for s in slack], [s <= 0 for s in slack]
    else:
        inside = [d == 0 for d in distance]
        active = []
        for x, d in zip(q, distance, strict=True):
            a, b = gap_around(x, levels)
            active.append(value > 0 and (d / ((b - a) / 2) <= value or not c[0] <= x <= c[-1]))
    worst = math.nan
    if u is not None:
        worst = 0.0
        for x, push, level, d, held in zip(q, u, nearest, distance, active, strict=True):
            if kind == "epsilon":
                ((low, high),) = [p for p in oracle.intervals(c, value) if p[0] <= level <= p[1]]
                worst = max(worst, abs(x - min(max(x - push, low), high)))
            else:
                worst = max(worst, d if held else abs(push))
    flips = math.nan if last is None else sum(c.index(a) != j for a, j in zip(nearest, last, strict=True)) / n
    return {
        "feasible": sum(inside) / n,
        "active": sum(active) / n,
        "distance_mean": sum(distance) / n,
        "distance_max": max(distance),
        "flips": flips,
        "kkt": worst,
    }


@pytest.mark.parametrize("kind", ["epsilon", "capture"])
@given(data=st.data())
def test_look_equals_plain_loops(kind: str, data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    value = data.draw(epsilons(levels) if kind == "epsilon" else radii)
    # off the places where rounding decides: away from borders and from the edge of capture, but on levels too
    edges = [x for piece in oracle.intervals(levels.values, max(value, 1e-9)) for x in piece] + list(levels.midpoints)
    if kind == "capture":
        edges += [c + s * value * h / 2 for c in levels.values for s in (-1, 1) for h in levels.gaps]
    safe = [x for x in data.draw(weights(levels)) if min(abs(x - e) for e in edges) > 1e-9 or x in levels.values]
    q = [*safe, *levels.values]
    u = data.draw(st.lists(st.floats(-2, 2), min_size=len(q), max_size=len(q)))
    last = data.draw(st.lists(st.integers(0, len(levels) - 1), min_size=len(q), max_size=len(q)))
    with_gradient = data.draw(st.booleans())
    numbers, j = look(
        tensor(q), tensor(u) if with_gradient else None, levels, kind, value, torch.tensor(last, dtype=torch.uint8)
    )
    expected = plain_look(q, u if with_gradient else None, levels, kind, value, last)
    assert tuple(expected) == FIELDS
    assert numbers.dtype == torch.float32
    for name, got in zip(FIELDS, numbers.tolist(), strict=True):
        assert got == pytest.approx(expected[name], rel=1e-5, abs=1e-6, nan_ok=True), name
    assert [levels.values[i] for i in j.tolist()] == [oracle.nearest(x, levels.values) for x in q]


def test_look_by_hand() -> None:
    q = torch.tensor([-1.0, -0.5, 0.5, 2.0])  # phi = 0, .5625, .5625, 1
    u = torch.tensor([0.0, 0.0, 0.0, -0.25])
    numbers, j = look(q, u, binary(), "epsilon", 0.6, None)
    row = dict(zip(FIELDS, numbers.tolist(), strict=True))
    assert (row["feasible"], row["active"]) == (0.75, 0.25)
    assert (row["distance_mean"], row["distance_max"]) == (0.5, 1.0)
    assert math.isnan(row["flips"])
    assert row["kkt"] == pytest.approx(2.0 - (1 + math.sqrt(0.6)), rel=1e-5)
    assert j.tolist() == [0, 0, 1, 1]
    numbers, _ = look(-q, None, binary(), "capture", 0.6, j)
    row = dict(zip(FIELDS, numbers.tolist(), strict=True))
    assert (row["feasible"], row["active"], row["flips"]) == (0.25, 1.0, 1.0)
    assert math.isnan(row["kkt"])


def test_a_point_on_the_border_is_feasible_and_active() -> None:
    numbers, _ = look(torch.tensor([0.5]), None, binary(), "epsilon", 0.5625, None)
    assert numbers[:2].tolist() == [1.0, 1.0]


def test_flips_count_changes_of_the_nearest_level() -> None:
    levels = uniform(3)
    w = 0.5 * torch.randn(1000, generator=torch.Generator().manual_seed(0))
    _, j = look(w, None, levels, "capture", 0.5, None)
    assert j.dtype == torch.uint8
    numbers, again = look(w, None, levels, "capture", 0.5, j)
    assert numbers[FIELDS.index("flips")] == 0
    assert torch.equal(again, j)
    moved = w.clone()
    moved[:130] += 1.0  # to the next level, all of them
    numbers, _ = look(moved, None, levels, "capture", 0.5, j)
    assert numbers[FIELDS.index("flips")].item() == pytest.approx(0.13)


def test_look_takes_many_levels_empty_tensors_half_precision_and_tensor_values() -> None:
    many = LevelSet(tuple(range(257)))
    _, j = look(torch.tensor([0.0, 256.0, 255.4]), None, many, "capture", 0.5, None)
    assert j.tolist() == [0, 256, 255]
    for kind in ("epsilon", "capture"):
        numbers, j = look(torch.zeros(0, 3), torch.zeros(0, 3), binary(), kind, 0.5, None)
        assert numbers.shape == (6,)
        assert numbers.isnan().all()
        assert j.shape == (0, 3)
        q = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0)).bfloat16()
        numbers, j = look(q, q, ternary(), kind, torch.tensor(0.05, dtype=torch.float64), None)
        plain, _ = look(q.float().flatten(), q.float().flatten(), ternary(), kind, 0.05, None)
        torch.testing.assert_close(numbers, plain, rtol=1e-6, atol=0, equal_nan=True)
        assert j.shape == q.shape


def test_layer_report_holds_the_fields_in_order() -> None:
    assert tuple(f.name for f in dataclasses.fields(LayerReport)) == ("name", "size", *FIELDS)
    report = LayerReport("conv", 3, *range(6))
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.kkt = 0.0  # pyright: ignore[reportAttributeAccessIssue]


@by_name
@pytest.mark.parametrize("kind", ["epsilon", "capture"])
@pytest.mark.parametrize("known", [True, False])
def test_several_tensors_at_once_give_the_numbers_of_each(levels: LevelSet, kind: Kind, known: bool) -> None:
    g = torch.Generator().manual_seed(5)
    shapes, values = ((4, 3, 3, 3), (7,), (0, 2), (50, 2)), (0.3, 0.6, 0.1, 0.9)
    reach = max(abs(c) for c in levels.values)
    qs = [1.2 * reach * (2 * torch.rand(s, generator=g, dtype=torch.float64) - 1) for s in shapes]
    qs[0] = qs[0].to(memory_format=torch.channels_last)
    us = [torch.randn(s, generator=g, dtype=torch.float64) if known else None for s in shapes]
    lasts = [torch.randint(len(levels), s, generator=g).to(torch.uint8) if known else None for s in shapes]
    each = torch.cat([torch.full((q.numel(),), v, dtype=torch.float64) for q, v in zip(qs, values, strict=True)])
    one = 0.4 * levels.epsilon_bound if kind == "epsilon" else 0.4
    for value, own in ((one, (one,) * 4), *([(each, values)] if kind == "capture" else [])):
        rows, indices = look_at_all(qs, us, levels, kind, value, lasts)
        for row, j, q, u, v, last in zip(rows, indices, qs, us, own, lasts, strict=True):
            alone, at = look(q, u, levels, kind, v, last)
            torch.testing.assert_close(row, alone, equal_nan=True)
            assert torch.equal(j, at) and j.shape == q.shape
