"""The general velocity: closed form for separable constraints, an independent QP and the KKT conditions otherwise."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from level_strategies import epsilons, level_sets, weights
from rounding import allowed_skew, tensor
from scipy.optimize import lsq_linear, minimize

from askew.core import binary, oracle
from askew.core.constraint import psi, psi_prime
from askew.core.direction import skew
from askew.core.velocity import EmptyVelocitySetError, step, velocity

Problem = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """u, g, J, alpha with a non-empty V_alpha: it holds v0, with more or less room to spare."""
    d, m = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    alpha = draw(st.floats(0.05, 3.0))
    v0 = rng.normal(size=d)
    J = rng.normal(size=(m, d)) * 10.0 ** draw(st.integers(-2, 2))
    J *= np.where(rng.uniform(size=m) < 0.8, np.sign(J @ v0), -1.0)[:, None]  # most rows can be active
    used = rng.choice([0.0, 0.3, 0.9], size=m)  # 0: g = 0, active without being violated
    g = np.where(J @ v0 >= 0, -used * (J @ v0) / alpha, rng.exponential(size=m))
    u = rng.normal(size=d) * 10.0 ** draw(st.integers(-1, 2))
    return torch.from_numpy(u), torch.from_numpy(g), torch.from_numpy(J), alpha


def residuals(v: torch.Tensor, problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Active Jacobian, slack J v + alpha g of its rows, v + u, and the size that rounding is relative to."""
    u, g, J, alpha = problem
    active = g <= 0
    A = J[active].numpy()
    slack = A @ v.numpy() + alpha * g[active].numpy()
    size = 1.0 + float(u.norm() + v.norm())
    return A, slack, (v + u).numpy(), size


@given(problem=problems())
def test_kkt_conditions(problem: Problem) -> None:
    """v + u = J' lambda with lambda >= 0, J v >= -alpha g, lambda_i > 0 only where row i is tight."""
    v = velocity(*problem)
    A, slack, pull, size = residuals(v, problem)
    if not len(A):
        assert torch.equal(v, -problem[0])
        return
    norms = np.linalg.norm(A, axis=1) + 1e-300
    assert (slack / norms >= -1e-9 * size).all()
    tight = slack / norms <= 1e-8 * size
    if not tight.any():
        np.testing.assert_allclose(pull, 0.0, atol=1e-10 * size)
        return
    rows = (A[tight] / norms[tight, None]).T
    multipliers = lsq_linear(rows, pull, bounds=(0, np.inf), method="bvls").x
    assert (multipliers >= 0).all()
    np.testing.assert_allclose(rows @ multipliers, pull, atol=1e-7 * size)


@given(problem=problems())
def test_agrees_with_an_independent_qp(problem: Problem) -> None:
    u, g, J, alpha = (x.numpy() if isinstance(x, torch.Tensor) else x for x in problem)
    v = velocity(*problem).numpy()
    active = g <= 0
    norms = np.linalg.norm(J[active], axis=1)
    A, b = J[active] / norms[:, None], -alpha * g[active] / norms
    size = 1.0 + np.linalg.norm(u) + np.abs(b).max(initial=0.0)  # in units of which SLSQP's tolerance makes sense
    found = minimize(
        lambda x: 0.5 * np.sum((x + u / size) ** 2),
        x0=-u / size,
        jac=lambda x: x + u / size,
        constraints=[{"type": "ineq", "fun": lambda x: A @ x - b / size, "jac": lambda x: A}] if active.any() else [],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 300},
    )
    assert found.success
    np.testing.assert_allclose(v / size, found.x, atol=2e-6)


@given(problem=problems())
def test_no_feasible_velocity_is_closer(problem: Problem) -> None:
    u, g, J, alpha = problem
    v = velocity(*problem)
    active = g <= 0
    others = v + torch.randn(400, len(u), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * (
        1e-3 + torch.logspace(-3, 1, 400, dtype=torch.float64)[:, None] * (1 + (v + u).norm())
    )
    inside = (others @ J[active].T >= -alpha * g[active]).all(1)
    assert bool(((others + u).norm(dim=1)[inside] >= (v + u).norm() - 1e-9 * (1 + u.norm())).all())


@given(data=st.data())
def test_equals_the_closed_form_for_separable_constraints(data: st.DataObject) -> None:
    levels = data.draw(level_sets())
    epsilon, alpha = data.draw(epsilons(levels)), data.draw(st.floats(0.05, 3.0))
    w = tensor(data.draw(weights(levels, epsilon, size=8)))
    u = tensor(data.draw(st.lists(st.floats(-2, 2), min_size=8, max_size=8)))
    slope = psi_prime(w, levels)
    sharp = (slope.abs() > 1e-6) | (psi(w, levels, epsilon) > 0)  # at midpoints V_alpha is empty
    w, u, slope = w[sharp], u[sharp], slope[sharp]
    v = velocity(u, psi(w, levels, epsilon), torch.diag(slope), alpha)
    closed = skew(u, w, levels, epsilon, alpha, math.inf)
    for got, expected, push, q in zip(v.tolist(), closed.tolist(), u.tolist(), w.tolist(), strict=True):
        if not allowed_skew(push, q, levels, epsilon, alpha, math.inf, torch.float64).ambiguous:
            assert got == pytest.approx(expected, rel=1e-7, abs=1e-9 * float(1 + closed.abs().max()))


def test_by_hand() -> None:
    u = tensor([1.0, 2.0])
    ball = tensor([-0.5]), tensor([[-2.0, 0.0]])  # g < 0, its gradient along -w1: v1 <= -alpha/4
    assert velocity(u, *ball, 0.5).tolist() == pytest.approx([-1.0, -2.0])  # -u is fast enough
    assert velocity(-u, *ball, 0.5).tolist() == pytest.approx([-0.125, 2.0])
    both = tensor([-1.0, -1.0]), tensor([[1.0, 0.0], [1.0, 1.0]])  # v1 >= .5 and v1 + v2 >= .5
    assert velocity(u, *both, 0.5).tolist() == pytest.approx([0.75, -0.25])
    assert velocity(tensor([3.0, 0.5]), *both, 0.5).tolist() == pytest.approx([0.5, 0.0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_nothing_active_is_minus_u_bit_for_bit(dtype: torch.dtype) -> None:
    u = torch.randn(5, generator=torch.Generator().manual_seed(0)).to(dtype)
    u[0] = 0.0
    J = torch.ones(2, 5, dtype=dtype)
    for g in ([0.5, 1e-9], []):
        v = velocity(u, torch.tensor(g, dtype=dtype), J[: len(g)], 0.5)
        assert v.dtype == dtype
        assert torch.equal(v, -u)
        assert torch.equal(v.signbit(), (-u).signbit())


def test_inactive_rows_do_not_matter() -> None:
    u, J = tensor([1.0, 2.0]), tensor([[-1.0, 0.5], [3.0, 3.0]])
    both = velocity(u, tensor([-0.5, 0.1]), J, 0.5)
    assert torch.equal(both, velocity(u, tensor([-0.5]), J[:1], 0.5))
    assert not torch.allclose(both, velocity(u, tensor([-0.5, -0.1]), J, 0.5))
    assert velocity(u, tensor([-0.5, 0.0]), J, 0.5).tolist() != both.tolist()  # g = 0 is active


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e3, 1e7, 1e12])
def test_large_gradients_keep_their_digits(size: float) -> None:
    """One row a.v >= c: v = -u + a (c + a.u)/|a|^2."""
    u, a, g, alpha = size * tensor([1.0, 0.3, -0.7]), tensor([2.0, 1.0, 0.5]), -0.1, 0.5
    expected = -u + a * (-alpha * g + a @ u) / (a @ a)
    torch.testing.assert_close(velocity(u, tensor([g]), a[None], alpha), expected, rtol=1e-9, atol=1e-9 * size)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 4),
    size=st.sampled_from([1e-4, 1.0, 1e4]),
    extra=st.integers(0, 2),
    more=st.integers(0, 3),
)
def test_infeasible_raises(seed: int, d: int, size: float, extra: int, more: int) -> None:
    """Farkas: rows with y'J = 0 for some y > 0 and all of them violated leave no velocity, in d dimensions or more."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(d, d))
    y = rng.uniform(0.2, 1.0, size=d)
    J = size * np.vstack([rows, -(y @ rows)[None], rng.normal(size=(extra, d))]) @ rng.normal(size=(d, d + more))
    g = np.concatenate([-rng.uniform(0.1, 2.0, size=d + 1), np.full(extra, 1.0)])
    with pytest.raises(EmptyVelocitySetError, match=rf"active constraints \[{', '.join(map(str, range(d + 1)))}\]"):
        velocity(torch.from_numpy(rng.normal(size=d + more)), torch.from_numpy(g), torch.from_numpy(J), 0.5)


@pytest.mark.parametrize("violation", [1e-3, 1.0, 1e3, 1e12])
def test_violated_constraint_without_slope_raises(violation: float) -> None:
    """An exact midpoint: psi < 0 = psi'. (In closed form the paper's convention +M steps in.)"""
    with pytest.raises(EmptyVelocitySetError):
        velocity(tensor([1.0, 2.0]), tensor([-violation]), torch.zeros(1, 2, dtype=torch.float64), 0.5)
    J = tensor([1.0, 0.0, 0.0, 0.0]).reshape(2, 2)
    with pytest.raises(EmptyVelocitySetError):
        velocity(tensor([1.0, 2.0]), tensor([-1.0, -violation]), J, 0.5)


def test_met_constraint_without_slope_asks_nothing() -> None:
    u = tensor([1.0, 2.0])
    assert torch.equal(velocity(u, tensor([0.0]), torch.zeros(1, 2, dtype=torch.float64), 0.5), -u)


def test_bad_arguments_name_themselves() -> None:
    u, g, J = tensor([1.0, 2.0]), tensor([-1.0]), tensor([[1.0, 0.0]])
    for alpha in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="alpha"):
            velocity(u, g, J, alpha)
    for bad in ((u[None], g, J), (u, g[None], J), (u, g, J[:, :1]), (u, g, J.T), (u, g[:0], J)):
        with pytest.raises(ValueError, match=r"\(d,\), g \(m,\), jacobian \(m, d\)"):
            velocity(*bad, 0.5)
    assert issubclass(EmptyVelocitySetError, ValueError)


# -- step -------------------------------------------------------------------------------------------------------------


def curved(w: torch.Tensor) -> torch.Tensor:
    """Neither separable nor convex."""
    return torch.stack([1 - w @ w, w[0] * w[1] - 0.3, torch.sin(w).sum() - 0.2])


def curved_jacobian(w: torch.Tensor) -> torch.Tensor:
    row = torch.zeros_like(w)
    row[0], row[1] = w[1], w[0]
    return torch.stack([-2 * w, row, torch.cos(w)])


@given(w=st.lists(st.floats(-2, 2), min_size=3, max_size=3), u=st.lists(st.floats(-2, 2), min_size=3, max_size=3))
def test_step_with_autograd_equals_step_with_the_given_jacobian(w: list[float], u: list[float]) -> None:
    at, push = tensor(w), tensor(u)
    try:
        given_one = step(at, push, curved, 0.4, 0.1, curved_jacobian)
    except EmptyVelocitySetError:
        with pytest.raises(EmptyVelocitySetError):
            step(at, push, curved, 0.4, 0.1)
        return
    found = step(at, push, curved, 0.4, 0.1)
    torch.testing.assert_close(found, given_one, rtol=1e-9, atol=1e-9)
    v = velocity(push, curved(at), curved_jacobian(at), 0.4)
    torch.testing.assert_close(given_one, at + 0.1 * v, rtol=1e-12, atol=1e-12)


def test_iterates_of_the_paper_s_figure_reach_the_constrained_minimum() -> None:
    """l = |w - .5|^2/3, g_i = eps - (w_i^2 - 1)^2, eps = .3: the border of the interval around +1."""
    epsilon = 0.3
    w = tensor([0.3, -1.3])
    for _ in range(600):
        w = step(w, 2 * (w - 0.5) / 3, lambda x: epsilon - (x * x - 1) ** 2, 1.0, 0.1)
    pieces = oracle.intervals(binary().values, epsilon)
    assert w.tolist() == pytest.approx([pieces[1][0], pieces[0][1]], abs=1e-3)


def test_step_does_not_change_its_arguments() -> None:
    w, u = tensor([0.5, 0.2, -0.4]), tensor([1.0, 2.0, 3.0])
    before = w.clone(), u.clone()
    out = step(w, u, lambda x: psi(x, binary(), 0.1), 0.5, 0.1)
    assert torch.equal(w, before[0])
    assert torch.equal(u, before[1])
    assert not out.requires_grad
