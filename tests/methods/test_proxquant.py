import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_support import Problem, site, train, wrap

from askew.core import LevelSet, binary, ternary, uniform
from askew.methods.proxquant import ProxQuant, prox

SETS = [binary(), ternary(), uniform(2), LevelSet((-2.0, -0.5, 0.1, 3.0))]


@given(w=st.floats(-2, 2, width=32), strength=st.sampled_from([0.0, 1e-3, 0.2, 0.9, 2.0]))
def test_binary_prox_is_the_papers_formula(w, strength):
    sign, size = (1 if w >= 0 else -1), abs(w)
    side = 1 if size > 1 else -1
    expected = sign * (1 + side * max(abs(size - 1) - strength, 0))
    assert float(prox(torch.tensor(w).double(), binary(), strength)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("levels", SETS, ids=lambda s: s.name)
@given(w=st.floats(-4, 4, width=32), strength=st.sampled_from([0.01, 0.2, 0.9, 2.0]), s=st.sampled_from([0.5, 1.0]))
def test_prox_is_the_best_point_on_a_grid(levels, w, strength, s):
    found = prox(torch.tensor(w).double(), levels, strength, torch.tensor(s).double())

    def energy(x: torch.Tensor) -> torch.Tensor:
        distance = torch.stack([(x - s * c).abs() for c in levels.values]).amin(0)
        return (x - w) ** 2 / 2 + strength * distance

    grid = torch.linspace(-6, 6, 6001, dtype=torch.float64)
    assert float(energy(found)) <= float(energy(grid).min()) + 1e-9


def test_strength_is_lr_times_rate_times_whole_periods_and_the_result_is_clamped():
    method, w = ProxQuant(rate=0.5, period=10), torch.tensor([0.5, -0.5, 1.4])
    for step, pull in ((0, 0.0), (9, 0.0), (10, 0.05), (29, 0.1)):
        found = method.retract(w, None, site(step=step, lr=0.1))
        assert found.tolist() == pytest.approx([0.5 + pull, -0.5 - pull, 1.0])
        tensor_lr = method.retract(w, None, site(step=step, lr=torch.tensor(0.1)))
        assert torch.allclose(found, tensor_lr)
    fraction = ProxQuant(rate=0.5, period=0.1).retract(w, None, site(step=29, total=100, lr=0.1))
    assert fraction.tolist() == pytest.approx([0.6, -0.6, 1.0])
    scaled = method.retract(w, None, site(step=10, lr=0.1, scale=0.25))  # levels at +-.25, hull too
    assert scaled.tolist() == pytest.approx([0.25, -0.25, 0.25])


def test_pull_over_a_run_is_the_budget_of_the_docstring():
    """Without a gradient a weight moves lr * rate * (E-1) * n/2 towards its level."""
    n, periods, lr, rate = 200, 20, 0.1, 2e-3
    w = torch.nn.Parameter(torch.tensor([0.1]))
    optimizer = wrap(ProxQuant(rate=rate, period=n // periods), w, lr=lr, total_steps=n)
    for _ in range(n):
        w.grad = torch.zeros(1)
        optimizer.step()
    assert w.tolist() == pytest.approx([0.1 + lr * rate * (periods - 1) * n / 2], rel=1e-4)


def test_an_adjusted_pull_does_not_fall_with_the_learning_rate():
    """Without a gradient: lr_0 * rate * t a step with it, lr * rate * t without."""
    for adjust, rate in ((True, lambda step: 0.1), (False, lambda step: 0.1 * 0.9**step)):
        w = torch.nn.Parameter(torch.tensor([0.1]))
        optimizer = wrap(ProxQuant(rate=2e-3, period=10, adjust=adjust), w, lr=0.1, total_steps=100)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        for _ in range(100):
            w.grad = torch.zeros(1)
            optimizer.step()
            scheduler.step()
        assert w.tolist() == pytest.approx(
            [0.1 + sum(rate(step) * 2e-3 * (step // 10) for step in range(100))], rel=1e-4
        )


@pytest.mark.parametrize(("base", "lr"), [("sgd", 1e3), ("adam", 0.05)])
def test_frozen_weights_stay_on_their_levels(base, lr):
    """Even under gradients that push to the other level, which one step of SGD at this lr would reach."""
    problem = Problem()
    w = problem.parameter()
    optimizer = wrap(ProxQuant(freeze=20), w, base, lr=0.05)
    before = train(problem, w, optimizer, 20)[-1]
    assert not bool((before.abs() == 1).all())
    optimizer.param_groups[0]["lr"] = lr
    for _ in range(20):
        w.grad = before.sign()
        optimizer.step()
        assert torch.equal(w.detach(), before.sign())


@pytest.mark.parametrize("options", [{"rate": 0.0}, {"period": 0}, {"freeze": 1.5}])
def test_options_are_checked(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"ProxQuant\({name}\)"):
        ProxQuant(**options)


def test_a_fraction_needs_the_length_of_the_run():
    with pytest.raises(ValueError, match=r"period=0\.01 is a fraction"):
        ProxQuant().retract(torch.zeros(1), None, site(total=None))
