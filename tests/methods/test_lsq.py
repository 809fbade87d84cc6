"""LSQ: the gradients of weights and step against autograd, both rules by hand, the step as the group's scale."""

import copy
import math

import pytest
import torch
from method_support import site, wrap

from askew.core import LevelSet, binary, ternary, uniform
from askew.core.oracle import nearest
from askew.methods.lsq import Lsq, first_step, step_gradient
from askew.optim import diagnose, snapped

LEVELS = [binary(), ternary(), uniform(2), uniform(3), uniform(4), uniform(4, "paper")]


def by_autograd(
    w: torch.Tensor, s: torch.Tensor, levels: LevelSet, g: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients at w and s of g . (s round(clip(w/s))), rounding straight through, as LSQ's pseudocode has it."""
    w, s = w.clone().requires_grad_(), s.clone().requires_grad_()
    q = (w / s).clamp(levels.values[0], levels.values[-1])
    rounded = torch.tensor([nearest(v, levels.values) for v in q.detach().flatten().tolist()]).to(w.dtype)
    straight = q + (rounded.reshape(q.shape) - q).detach()
    (g * (straight * s)).sum().backward()
    assert w.grad is not None and s.grad is not None
    return w.grad, s.grad


@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize("levels", LEVELS, ids=lambda c: c.name)
def test_gradients_are_those_of_autograd(levels, per):
    torch.manual_seed(0)
    w, g = torch.randn(3, 40, dtype=torch.float64), torch.randn(3, 40, dtype=torch.float64)
    s = torch.tensor(0.3, dtype=torch.float64) if per == "tensor" else torch.tensor([[0.1], [0.3], [0.7]]).double()
    to_w, to_s = by_autograd(w, s, levels, g)
    count = 120 if per == "tensor" else 40
    torch.testing.assert_close(step_gradient(g, w, levels, s), to_s / math.sqrt(count * levels.values[-1]))
    here = site(levels, s)
    here.memory |= {key: torch.zeros_like(s) for key in ("moment", "square", "count")}
    torch.testing.assert_close(Lsq().direction(g, w, here), to_w)


def test_the_first_step():
    w = torch.tensor([[1.0, -3.0], [0.5, 0.5]])
    assert float(first_step(w, uniform(4), torch.tensor(1.0))) == pytest.approx(2 * 1.25 / math.sqrt(7))
    rows = first_step(w, binary(), torch.ones(2, 1))
    assert rows.tolist() == [[4.0], [1.0]]


def problem(rule: str, per: str = "tensor", levels: LevelSet | None = None, lr: float = 0.05):
    """A weight that should become a target on scaled levels, Adam or SGD outside."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(4, 30))
    opt = wrap(
        Lsq(rule), w, "adam" if rule == "adam" else "sgd", lr, levels=levels or uniform(2), scale="sawb", per=per
    )
    return w, opt


def test_sgd_rule_by_hand():
    w, opt = problem("sgd", lr=0.1)
    s = float(opt.weights()[0][2].scale)
    velocity = 0.0
    for _ in range(3):
        latent = opt.underlying(w).detach().clone()
        w.grad = torch.randn_like(w)
        gradient = step_gradient(w.grad, latent, uniform(2), torch.tensor(s))
        velocity = 0.9 * velocity + float(gradient)
        s = max(s - 0.1 * velocity, s / 2)
        opt.step()
        assert float(opt.weights()[0][2].scale) == pytest.approx(s, rel=1e-5)


def test_adam_rule_is_adam_on_the_logarithm():
    w, opt = problem("adam")
    log_s = torch.nn.Parameter(opt.weights()[0][2].scale.log().clone())
    adam = torch.optim.Adam([log_s], lr=0.05, eps=1e-16)
    for _ in range(6):
        latent = opt.underlying(w).detach().clone()
        w.grad = torch.randn_like(w)
        log_s.grad = step_gradient(w.grad, latent, uniform(2), log_s.detach().exp()) * log_s.detach().exp()
        adam.step()
        opt.step()
        torch.testing.assert_close(opt.weights()[0][2].scale, log_s.detach().exp(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize("rule", ["adam", "sgd"])
def test_it_finds_the_scale_of_a_target_on_levels(rule, per):
    """From 1.3 times a target on .37 * {-2..1}, with noise, it comes to the target: the step is learned."""
    torch.manual_seed(1)
    target = 0.37 * torch.randint(-2, 2, (4, 30)).float()
    w = torch.nn.Parameter(1.3 * target + 0.02 * torch.randn(4, 30))
    lr, base = (0.01, "adam") if rule == "adam" else (0.1, "sgd")
    opt = wrap(Lsq(rule), w, base, lr, levels=uniform(2), scale="sawb", per=per)
    start = float((w.detach() - target).square().mean())
    for _ in range(400):
        w.grad = w.detach() - target
        opt.step()
    assert float((w.detach() - target).square().mean()) < 0.02 * start
    torch.testing.assert_close(opt.weights()[0][2].scale.mean(), torch.tensor(0.37), rtol=0.03, atol=0)


def test_the_step_is_the_scale_that_everyone_sees():
    w, opt = problem("adam", "channel")
    for _ in range(5):
        w.grad = torch.randn_like(w)
        opt.step()
    _, _, here = opt.weights()[0]
    assert here.scale is not None and here.scale.shape == (4, 1)
    codes = w.detach() / here.scale
    torch.testing.assert_close(codes, codes.round())
    assert opt.state_dict()["state"][0]["askew.scale"] is here.scale
    assert "scale" not in opt.base.state[w]
    assert diagnose(opt).overall.size == 120
    with snapped(opt):
        torch.testing.assert_close(w.detach(), codes.round() * here.scale)


def test_resume_takes_the_step_along():
    w, opt = problem("adam")
    for _ in range(4):
        w.grad = w.detach().sin()
        opt.step()
    v, fresh = problem("adam")
    fresh.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert torch.equal(v, w)
    for a, b in ((w, opt), (v, fresh)):
        for _ in range(4):
            a.grad = a.detach().sin()
            b.step()
    assert torch.equal(v, w) and torch.equal(opt.weights()[0][2].scale, fresh.weights()[0][2].scale)


def test_the_step_stays_positive_under_any_gradient():
    for rule in ("adam", "sgd"):
        w, opt = problem(rule, lr=1.0)
        for k in range(50):
            w.grad = 1e3 * (-1) ** k * opt.underlying(w).detach().sign()
            opt.step()
        scale = opt.weights()[0][2].scale
        assert scale > 0 and scale.isfinite() and w.isfinite().all()


def test_refusals():
    with pytest.raises(ValueError, match=r"layer\.weight: LSQ learns its scale; .*scale='sawb'"):
        wrap(Lsq(), torch.nn.Parameter(torch.randn(4)), scale="none")
    with pytest.raises(ValueError, match=r"Lsq\(rate\)"):
        Lsq(rate=0.0)
    with pytest.raises(ValueError, match=r"Lsq\(rule\) must be 'adam' or 'sgd', got 'lion'"):
        Lsq("lion")  # pyright: ignore
