"""PARQ at two to four bits: the groups' own levels under a scale that follows, and its own greedy ones."""

import pytest
import torch
from method_support import wrap

from askew.core import scale_of, uniform
from askew.methods.parq import Parq
from askew.optim import snapped


def run(method: Parq, levels, steps: int = 40, **options):
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(6, 50))
    target = torch.randn(6, 50)
    opt = wrap(method, w, "adam", levels=levels, total_steps=steps + 1, **options)
    for _ in range(steps):
        w.grad = w.detach() - target
        opt.step()
    return w, opt


@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize("form", ["int", "symmetric"])
@pytest.mark.parametrize("bits", [2, 3, 4])
def test_fixed_levels_under_sawb(bits, form, per):
    """After annealing the forward weights are the nearest levels, under the SAWB scale of the latents themselves."""
    levels = uniform(bits, form)
    w, opt = run(Parq(levels="fixed"), levels, 39, scale="sawb", per=per)
    latent = opt.underlying(w).detach()
    s = scale_of(latent, levels, "sawb", per)
    q = w.detach() / s
    assert all(any(v == pytest.approx(c, abs=1e-4) for c in levels.values) for v in q.flatten().tolist())
    assert q.unique(sorted=True).numel() > 2
    shown = w.detach().clone()
    with snapped(opt):
        torch.testing.assert_close(w.detach(), shown)


def test_fixed_levels_move_between_latents_and_levels_while_annealing():
    w, opt = run(Parq(0, 100, levels="fixed"), uniform(2), 50, scale="sawb")
    q = w.detach() / scale_of(opt.underlying(w).detach(), uniform(2), "sawb")
    on = (q - q.round()).abs() < 1e-5
    assert 0 < on.float().mean() < 1


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_its_own_levels(bits):
    w, opt = run(Parq(), uniform(bits))
    with snapped(opt):
        assert 2 < w.detach().unique().numel() <= 2**bits
