"""The mathematics on a GPU: the oracle's answers, the CPU's decisions, no device sync, and all of it inside a graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from rounding import (
    DTYPES,
    SLACK,
    UNIT,
    allowed_level_first,
    allowed_skew,
    as_computed,
    check,
    phi_error,
    same_bits,
    slope_error,
    special_points,
    tensor,
)

from askew.core import LevelSet, binary, oracle, scale_of, ternary, uniform
from askew.core.constraint import borders, feasible, interval, shape
from askew.core.diagnostics import FIELDS, look
from askew.core.direction import arrive, captured, level_first, quantile_radius, remoteness, skew, snap
from askew.core.levels import bracket, compute_dtype, index, nearest

pytestmark = pytest.mark.cuda

SETS = (
    binary(),
    ternary(),
    uniform(4),
    LevelSet((-3.0, -1.0, 0.25, 4.0), "uneven"),
    LevelSet((-1.9, -0.3, 0.1, 2.7), "not dyadic"),
)
by_name = pytest.mark.parametrize("levels", SETS, ids=lambda x: x.name)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda x: str(x).removeprefix("torch."))


@contextmanager
def no_sync() -> Iterator[None]:
    """Any wait for the device raises inside."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def case(levels: LevelSet, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A gradient and weights (16, 33), the special points of the level set among them."""
    generator = torch.Generator().manual_seed(0)
    w = (2 * torch.randn(16, 33, generator=generator, dtype=torch.float64)).to(dtype)
    special = tensor(special_points(levels, 0.2 * levels.epsilon_bound), dtype)
    w.view(-1)[: len(special)] = special
    return torch.randn(16, 33, generator=generator, dtype=torch.float64).to(dtype), w


@by_name
@by_dtype
def test_levels_equal_the_cpu_s(levels: LevelSet, dtype: torch.dtype) -> None:
    _, q = case(levels, dtype)
    there = q.cuda()
    assert torch.equal(nearest(there, levels).cpu(), nearest(q, levels))
    assert torch.equal(index(there, levels).cpu(), index(q, levels))
    for mine, theirs in zip(bracket(q, levels), bracket(there, levels), strict=True):
        assert torch.equal(theirs.cpu(), mine)
    assert levels.table(there).device == there.device
    assert levels.table(there) is levels.table(there[:3])
    assert levels.table(there) is not levels.table(q)


@by_name
@by_dtype
def test_constraint_agrees_with_oracle(levels: LevelSet, dtype: torch.dtype) -> None:
    _, q = case(levels, dtype)
    got = shape(q.cuda(), levels)
    exact = as_computed(levels, dtype)
    for x, f, df in zip(*(t.double().flatten().tolist() for t in (q, *got)), strict=True):
        assert f == pytest.approx(oracle.phi(x, exact.values), abs=phi_error(x, exact, dtype), rel=0)
        assert df == pytest.approx(oracle.phi_prime(x, exact.values), abs=slope_error(x, exact, dtype), rel=0)
    for factor in (0.01, 0.5, 40.0):
        epsilon = factor * levels.epsilon_bound
        for mine, theirs in zip(borders(levels, epsilon, q), borders(levels, epsilon, q.cuda()), strict=True):
            torch.testing.assert_close(theirs.cpu(), mine, rtol=1e3 * UNIT[compute_dtype(dtype)], atol=1e-6)
        for x, yes in zip(
            q.double().flatten().tolist(), feasible(q.cuda(), levels, epsilon).flatten().tolist(), strict=True
        ):
            slack = epsilon - oracle.phi(x, exact.values)
            if abs(slack) > phi_error(x, exact, dtype) + SLACK * UNIT[compute_dtype(dtype)] * epsilon:
                assert yes == (slack >= 0)


@by_name
@by_dtype
@pytest.mark.parametrize("scaled", [False, True])
def test_directions_agree_with_oracle(levels: LevelSet, dtype: torch.dtype, scaled: bool) -> None:
    u, w = case(levels, dtype)
    factor = 2.0 if scaled else 1.0  # a power of two: w / s and u / s are exact
    s = torch.tensor(factor, device="cuda", dtype=compute_dtype(dtype)) if scaled else None
    epsilon = 0.2 * levels.epsilon_bound
    v = skew(u.cuda() * factor, w.cuda() * factor, levels, epsilon, 0.5, 1.0, s)
    first = level_first(u.cuda() * factor, w.cuda() * factor, levels, 0.6, 0.5, s)
    assert v.dtype == first.dtype == dtype
    exact = as_computed(levels, dtype)
    points = list(zip(u.double().flatten().tolist(), w.double().flatten().tolist(), strict=True))
    flat = u.flatten()
    check([allowed_skew(a, q, exact, epsilon, 0.5, 1.0, dtype) for a, q in points], v.flatten() / factor, flat)
    check([allowed_level_first(a, q, exact, 0.6, 0.5, dtype) for a, q in points], first.flatten() / factor, flat)


@by_name
@by_dtype
def test_limits_and_decisions_equal_the_cpu_s(levels: LevelSet, dtype: torch.dtype) -> None:
    u, w = case(levels, dtype)
    there = w.cuda()
    assert same_bits(skew(u.cuda(), there, levels, 1e30, 0.3, 1.0).cpu(), -u)
    assert same_bits(level_first(u.cuda(), there, levels, 0.0, 0.3).cpu(), -u)
    assert bool(captured(there, levels, 1.0).all())
    assert torch.equal(snap(there, levels).cpu(), snap(w, levels))
    assert torch.equal(arrive((w - u).cuda(), there, levels, 1.0, None).cpu(), arrive(w - u, w, levels, 1.0, None))
    s = torch.tensor(0.37, dtype=compute_dtype(dtype))
    landed = snap(w, levels, s).cuda()
    assert not level_first(u.cuda(), landed, levels, 0.1, 0.3, s.cuda()).any()
    assert torch.equal(arrive(landed - u.cuda(), landed, levels, 0.1, s.cuda()), landed)
    remote = remoteness(there, levels)
    torch.testing.assert_close(remote.cpu(), remoteness(w, levels), rtol=1e-6, atol=1e-6)
    for fraction in (0.0, 0.3, 1.0):
        radius = quantile_radius(remote, fraction)
        assert abs(radius.item() - quantile_radius(remote.cpu(), fraction).item()) <= 1 / 2048
        assert (remote <= radius).sum() >= fraction * remote.numel() * (1 - 1e-6) or fraction == 0


@by_name
@pytest.mark.parametrize("kind", ["epsilon", "capture"])
def test_look_equals_the_cpu_s(levels: LevelSet, kind: str) -> None:
    u, q = case(levels, torch.float32)
    value = 0.31 * levels.epsilon_bound if kind == "epsilon" else 0.31
    expected, j = look(q, u, levels, kind, value, None)
    numbers, theirs = look(q.cuda(), u.cuda(), levels, kind, value, None)
    torch.testing.assert_close(numbers.cpu(), expected, rtol=1e-4, atol=3 / q.numel(), equal_nan=True)
    assert torch.equal(theirs.cpu(), j)
    again, _ = look(q.cuda(), None, levels, kind, value, theirs)
    assert again[FIELDS.index("flips")].item() == 0


@by_dtype
@pytest.mark.parametrize("kind", ["abs-mean", "sawb"])
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_scales_equal_the_cpu_s_without_sync(dtype: torch.dtype, kind: str, per: str) -> None:
    w = torch.randn(8, 4, 3, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    there = w.cuda()
    with no_sync():
        s = scale_of(there, uniform(4), kind, per)
    assert s is not None
    torch.testing.assert_close(s.cpu(), scale_of(w, uniform(4), kind, per), rtol=1e-4, atol=0)


def test_general_velocity_comes_back_to_the_gradient_s_device() -> None:
    pytest.importorskip("scipy")
    from askew.core.velocity import velocity

    u, g, J = tensor([1.0, 2.0]), tensor([-1.0, -1.0]), tensor([1.0, 0.0, 1.0, 1.0]).reshape(2, 2)
    v = velocity(u.cuda(), g.cuda(), J.cuda(), 0.5)
    assert v.device.type == "cuda"
    torch.testing.assert_close(v.cpu(), velocity(u, g, J, 0.5), rtol=1e-12, atol=1e-12)


def everything(
    levels: LevelSet,
    u: torch.Tensor,
    w: torch.Tensor,
    s: torch.Tensor | None,
    epsilon: torch.Tensor,
    fraction: torch.Tensor,
) -> Callable[[], list[torch.Tensor]]:
    """One function that calls all of the mathematics of a step and of a look, on the given tensors."""

    def run() -> list[torch.Tensor]:
        q = w if s is None else w / s
        radius = quantile_radius(remoteness(q, levels), fraction)
        v = level_first(u, w, levels, radius, 0.5, s)
        return [
            skew(u, w, levels, epsilon, 0.5, 1.0, s),
            skew(u, w, levels, 0.01, 0.5, 1.0, s),
            v,
            arrive(w + v, w, levels, radius, s),
            captured(q, levels, radius),
            captured(q, levels, 0.3),
            radius,
            quantile_radius(remoteness(q, levels), 0.4),
            *borders(levels, epsilon, w),
            *borders(levels, 0.01, w),
            *interval(q, levels, epsilon),
            snap(w, levels, s),
            *look(q, u, levels, "epsilon", epsilon, None),
            *look(q, u, levels, "capture", radius, None),
        ]

    return run


@by_name
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_no_device_sync_and_graph_capture(levels: LevelSet, scaled: bool, layout: str) -> None:
    """Captured once, the graph follows weights, gradient, epsilon and fraction on every replay."""
    u, w = (x.reshape(4, 4, 3, 11).cuda() for x in case(levels, torch.float32))
    if layout == "channels last":
        u, w = (x.to(memory_format=torch.channels_last) for x in (u, w))
    s = torch.full((4, 1, 1, 1), 0.7, device="cuda") if scaled else None
    epsilon = torch.tensor(0.2 * levels.epsilon_bound, device="cuda", dtype=torch.float64)
    fraction = torch.tensor(0.4, device="cuda", dtype=torch.float64)
    run = everything(levels, u, w, s, epsilon, fraction)
    run()  # makes the cached tables: the only copies to the device
    with no_sync():
        eager = run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = run()
    graph.replay()
    for a, b in zip(held, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    first = [a.clone() for a in held]
    w.mul_(0.9)
    u.neg_()
    epsilon.mul_(0.5)
    fraction.fill_(0.7)
    graph.replay()
    for a, b in zip(held, run(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    assert not all(torch.equal(a, b) for a, b in zip(held, first, strict=True))
