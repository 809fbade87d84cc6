import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from method_support import Problem, site, wrap

from askew.core import Clock, ternary
from askew.methods.adaste import AdaSTE, factor, forward_map

latents = st.floats(-3, 3, width=32)
strengths = st.sampled_from([0.01, 0.3, 2.0, 30.0, 99.0, 100.0, 150.0])


def reference_forward(theta: float, mu: float, a: float) -> float:
    sign = 1 if theta >= 0 else -1
    if a * mu >= 1:
        return sign
    return max(-1.0, min(1.0, (theta + mu * (1 + a) * sign) / (1 + mu)))


def reference_factor(theta: float, g: float, mu: float, a: float) -> float:
    """The authors' table of branches, with +|theta| in the last."""
    size, inward = abs(theta), theta * g > 0
    if a * mu >= 1:
        if abs(g) <= 1e-3 or size <= 1e-3:
            return 1.0
        return min(0.5, 1 / size) if inward else 0.0
    top = max(1 - a * mu, 1e-6)
    if abs(g) <= 1e-3 or size <= 1e-6 or (not inward and size <= top):
        return 1 / (1 + mu)
    if not inward:
        return 0.0
    if size > top:
        return min(0.5, (1 + 2 * mu + a * mu) / ((1 + mu) * size))
    return min(0.5, (2 * mu * (1 + a) + size) / ((1 + mu) * size))


@given(theta=latents, mu=strengths, a=st.sampled_from([0.01, 0.05]))
def test_forward_is_the_best_point_of_the_double_well_on_a_grid(theta, mu, a):
    w = float(forward_map(torch.tensor(theta, dtype=torch.float64), mu, a))
    assert w == pytest.approx(reference_forward(theta, mu, a), abs=1e-12)

    def energy(x: torch.Tensor) -> torch.Tensor:
        return (x - theta) ** 2 / 2 + mu / 2 * (x.abs() - (1 + a)) ** 2

    grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)
    assert float(energy(torch.tensor(w, dtype=torch.float64))) <= float(energy(grid).min()) + 1e-9


def test_forward_hardens_to_the_sign():
    theta = torch.tensor([-2.0, -0.3, -1e-9, 0.0, 1e-9, 0.4])
    sign = [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
    assert forward_map(theta, 100.0, 0.01).tolist() == sign
    assert forward_map(theta, 99.0, 0.01).tolist() != sign
    assert AdaSTE().final(theta, site()).tolist() == sign


def test_the_cap_is_hard_for_every_alpha():
    """alpha * (1/alpha) is not always 1 in floats."""
    theta, inward = torch.tensor([0.3, -1e-4], dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    alphas = [1 / k for k in range(1, 200)]
    assert any(a * (1 / a) < 1 for a in alphas)
    for a in alphas:
        cap = AdaSTE(alpha=a).mu(Clock(700, 700))
        assert forward_map(theta, cap, a).tolist() == [1.0, -1.0]
        assert factor(theta, inward, cap, a, limit=100.0, quiet=0.0).tolist() == pytest.approx([1 / 0.3, 1.0])


@given(theta=latents, g=st.floats(-2, 2, width=32), mu=strengths)
@example(theta=0.3, g=0.5, mu=0.01)  # where the released -theta gives 0
@example(theta=-0.3, g=-0.5, mu=0.01)
@example(theta=0.0, g=0.5, mu=0.3)
@example(theta=5e-4, g=0.5, mu=150.0)
@example(theta=5e-4, g=-0.5, mu=150.0)
@example(theta=5e-4, g=0.5, mu=99.0)
def test_factor_follows_the_branches(theta, g, mu):
    found = factor(torch.tensor(theta).double(), torch.tensor(g).double(), mu, 0.01, limit=0.5, quiet=1e-3)
    assert float(found) == pytest.approx(reference_factor(theta, g, mu, 0.01), rel=1e-9, abs=1e-12)


@given(theta=st.floats(0.05, 3), mu=st.sampled_from([0.01, 0.3, 2.0, 30.0]))
def test_inward_factor_is_the_finite_difference_to_the_other_side_of_zero(theta, mu):
    below = forward_map(torch.tensor(-1e-12, dtype=torch.float64), mu, 0.01)
    here = forward_map(torch.tensor(theta, dtype=torch.float64), mu, 0.01)
    found = factor(torch.tensor(theta, dtype=torch.float64), torch.tensor(1.0), mu, 0.01, limit=1e9, quiet=0.0)
    assert float(found) == pytest.approx(float(here - below) / theta, rel=1e-6)


def test_both_signs_are_treated_alike():
    theta, g = torch.rand(200) * 2, torch.randn(200)
    for mu in (0.01, 1.0, 200.0):
        assert torch.equal(factor(theta, g, mu, 0.01, 0.5, 1e-3), factor(-theta, -g, mu, 0.01, 0.5, 1e-3))


def test_mu_grows_each_period_up_to_its_cap():
    method = AdaSTE(growth=2.0, period=10)
    found = [method.mu(Clock(step)) for step in (0, 9, 10, 25, 10**6)]
    assert found == pytest.approx([0.01, 0.01, 0.02, 0.04, 100.0])
    fraction = AdaSTE()  # 1.05 at each 700th of the run
    assert fraction.mu(Clock(3, 700)) == pytest.approx(0.01 * 1.05**3)
    assert fraction.mu(Clock(188, 700)) < 100 == fraction.mu(Clock(189, 700))


def test_gradient_and_forward_weight_use_the_same_mu():
    """The gradient of step 10 was taken at weights made after step 9, before mu grew."""
    method = AdaSTE(growth=50.0, period=10, quiet=0.0)
    theta, g = torch.tensor([0.2]), torch.tensor([-1.0])
    assert float(method.direction(g, theta, site(step=10))) == pytest.approx(-1 / 1.01)
    assert float(method.direction(g, theta, site(step=11))) == pytest.approx(-1 / 1.5)
    assert float(method.forward_weight(theta, site(step=9))) == pytest.approx(reference_forward(0.2, 0.01, 0.01))
    assert float(method.forward_weight(theta, site(step=10))) == pytest.approx(reference_forward(0.2, 0.5, 0.01))


def test_a_scale_is_a_change_of_units():
    method, theta, g = AdaSTE(mu0=1.0), torch.tensor([-0.4, 0.1, 0.9]), torch.tensor([-0.3, 0.2, -0.1])
    plain, scaled = site(), site(scale=0.25)
    expected = 0.25 * method.forward_weight(theta, plain)
    assert torch.allclose(method.forward_weight(0.25 * theta, scaled), expected)
    assert torch.allclose(method.direction(g, 0.25 * theta, scaled), method.direction(g, theta, plain))


def test_other_levels_are_refused_by_name():
    with pytest.raises(ValueError, match=r"layer\.weight.*-1 and \+1 only.*-1\.0, 0\.0, 1\.0"):
        wrap("adaste", Problem().parameter(), levels=ternary())


@pytest.mark.parametrize(
    "options", [{"alpha": 0.0}, {"mu0": -1.0}, {"growth": 0.9}, {"period": 0}, {"period": 1.5}, {"quiet": -1.0}]
)
def test_options_are_checked(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"AdaSTE\({name}\)"):
        AdaSTE(**options)
