"""LUQ's weights: the nearest level under a scale that follows the latents, a plain straight-through gradient."""

import pytest
import torch
from method_support import Problem, train, wrap

from askew.core import scale_of, ternary, uniform
from askew.core.oracle import nearest
from askew.optim import snapped


@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize(
    "levels", [uniform(2), uniform(3), uniform(4), uniform(4, "paper"), ternary()], ids=lambda c: c.name
)
def test_equals_a_hand_written_straight_through_loop(levels, per):
    """Adam moves the latents by the gradient at the rounded weights; the scale is measured anew after each step."""
    torch.manual_seed(0)
    start = torch.randn(6, 20)
    w, latent = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    opt = wrap("luq", w, "adam", levels=levels, scale="sawb", per=per)
    adam = torch.optim.Adam([latent], lr=0.05)
    for _ in range(10):
        s = scale_of(latent.detach(), levels, "sawb", per)
        q = (latent.detach() / s).flatten().tolist()
        rounded = torch.tensor([nearest(v, levels.values) for v in q]).reshape(6, 20) * s
        torch.testing.assert_close(w.detach(), rounded)
        gradient = (rounded - torch.linspace(-1, 1, 120).reshape(6, 20)).tanh()
        w.grad = latent.grad = gradient
        opt.step()
        adam.step()
        torch.testing.assert_close(opt.underlying(w), latent.detach())


def test_latents_beyond_the_clip_keep_their_gradient_and_are_not_clamped():
    w = torch.nn.Parameter(torch.tensor([5.0, *[0.1, -0.1] * 40]))
    opt = wrap("luq", w, "sgd", lr=0.1, levels=uniform(2), scale="sawb", total_steps=None)
    assert w[0].item() < 2.0  # far beyond the clip
    w.grad = torch.ones_like(w)
    opt.step()
    assert opt.underlying(w)[0].item() == pytest.approx(4.9)


def test_the_last_scale_is_frozen_and_ships():
    """The scale that the last step begins with: the latents it leaves are rounded with it, shown and shipped alike."""
    problem = Problem()
    w = problem.parameter()
    opt = wrap("luq", w, "adam", levels=uniform(4), scale="sawb")
    train(problem, w, opt, 59)
    assert "askew.scale" not in opt.state_dict()["state"][0]
    scale = scale_of(opt.underlying(w).detach(), uniform(4), "sawb")
    train(problem, w, opt, 1)
    latent = opt.underlying(w).detach()
    frozen = opt.state_dict()["state"][0]["askew.scale"]
    assert torch.equal(frozen, scale) and not torch.equal(frozen, scale_of(latent, uniform(4), "sawb"))
    levels = torch.tensor([nearest(v, uniform(4).values) for v in (latent / frozen).tolist()])
    assert len(levels.unique()) > 2
    assert torch.equal(w.detach(), levels * frozen)
    with snapped(opt):
        assert torch.equal(w.detach(), levels * frozen) and torch.equal(opt.weights()[0][2].scale, frozen)
