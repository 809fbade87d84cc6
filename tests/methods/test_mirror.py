import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_support import Problem, site, train, wrap

from askew.core import Clock, LevelSet, binary, ternary, uniform
from askew.core.oracle import nearest
from askew.methods.mirror import MirrorDescent, soft_levels

duals = st.floats(-3, 3, width=32)


@given(x=duals, beta=st.sampled_from([0.5, 5.0, 100.0]))
def test_forward_map_of_two_and_three_levels(x, beta):
    two = float(soft_levels(torch.tensor(x).double(), binary(), beta))
    assert two == pytest.approx(math.tanh(beta * x), abs=1e-12)
    three = float(soft_levels(torch.tensor(x).double(), ternary(), beta))
    assert three == pytest.approx((math.tanh(beta * (x + 0.5)) + math.tanh(beta * (x - 0.5))) / 2, abs=1e-12)


@given(x=st.floats(-6, 6, width=32))
@pytest.mark.parametrize("levels", [uniform(3), LevelSet((-2.0, -0.5, 0.1, 3.0))], ids=lambda s: s.name)
def test_a_steep_map_is_the_nearest_level(levels, x):
    if min(abs(x - m) for m in levels.midpoints) < 1e-3:
        return
    found = float(soft_levels(torch.tensor(x).double(), levels, 1e6))
    assert found == pytest.approx(nearest(x, levels.values), abs=1e-9)


def test_multiplicative_form_of_the_paper_is_the_same_rule():
    """w' = (E-1)/(E+1), E = (1+w)/(1-w) exp(-2 beta lr g), against a step of x, over a run of SGD in float64."""
    beta, lr, problem = 2.0, 0.1, Problem()
    dual = torch.nn.Parameter(problem.start.double())
    problem.x, problem.y = problem.x.double(), problem.y.double()
    optimizer = wrap(MirrorDescent(beta=beta), dual, lr=lr)
    primal = torch.tanh(beta * problem.start.double())
    for _ in range(30):
        primal.requires_grad_()
        (g,) = torch.autograd.grad(problem.loss(primal), primal)
        with torch.no_grad():
            E = (1 + primal) / (1 - primal) * torch.exp(-2 * beta * lr * g)
            primal = (E - 1) / (E + 1)
        train(problem, dual, optimizer, 1)
        assert torch.allclose(dual.detach(), primal, rtol=1e-9, atol=1e-12)


def test_hooks_leave_gradient_and_dual_alone_and_final_is_the_sign():
    method, x = MirrorDescent(), torch.tensor([-4.0, -1e-6, 0.0, 2e-3, 7.0])
    g = torch.randn(5)
    assert torch.equal(method.direction(g, x, site()), g)
    assert torch.equal(method.retract(x, None, site()), x)
    assert method.final(x, site()).tolist() == [-1, -1, 1, 1, 1]
    assert torch.allclose(method.forward_weight(x, site(scale=0.5)), 0.5 * torch.tanh(200 * x))


def test_beta_is_constant_unless_asked_to_grow():
    assert [MirrorDescent().steepness(Clock(t)) for t in (0, 10**6)] == [100.0, 100.0]
    growing = MirrorDescent(beta=1.0, growth=1.2, period=500)
    assert growing.steepness(Clock(499)) == 1
    assert growing.steepness(Clock(1500)) == pytest.approx(1.2**3)
    assert growing.steepness(Clock(10**7)) == 1e35
    steep = MirrorDescent(beta=1e35).forward_weight(torch.tensor([-2.0, 0.0, 1e-3], dtype=torch.float16), site())
    assert steep.tolist() == [-1, 0, 1]


@pytest.mark.parametrize("options", [{"beta": 0.0}, {"growth": 0.5}, {"period": -1}])
def test_options_are_checked(options):
    (name,) = options
    with pytest.raises(ValueError, match=rf"MirrorDescent\({name}\)"):
        MirrorDescent(**options)
