"""PARQ at two to four bits: the groups' own levels under a scale that follows, and its own greedy ones."""

import math
from itertools import product

import pytest
import torch
from method_support import wrap

from askew.core import scale_of, uniform
from askew.methods.parq import Parq
from askew.methods.parq_maps import least_squares_levels
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


def sizes_and_greedy(values: list[float], bits: int) -> tuple[list[float], list[float]]:
    """v_1 .. v_b, each the mean size of what the ones before leave, and the sum of +-v that every value gets."""
    sizes, rest = [], list(values)
    for _ in range(bits):
        sizes.append(math.fsum(map(abs, rest)) / len(rest))
        rest = [r - math.copysign(sizes[-1], r) for r in rest]
    return sizes, [v - r for v, r in zip(values, rest, strict=True)]


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_its_own_levels(bits):
    """All 2^b sums +-v_1 .. +-v_b; what ships are the greedy ones that the forward pass has, exactly of that table."""
    w, opt = run(Parq(), uniform(bits))
    latent = opt.underlying(w).detach().double().flatten().tolist()
    sizes, greedy = sizes_and_greedy(latent, bits)
    sums = sorted(math.fsum(terms) for terms in product(*((-v, v) for v in sizes)))
    assert len(set(sums)) == 2**bits
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(w.detach().double().flatten(), torch.tensor(greedy, dtype=torch.float64), **close)
    trained = w.detach().clone()
    with snapped(opt):
        torch.testing.assert_close(w.detach(), trained, **close)
        assert 2 < len(w.unique()) <= 2**bits


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_its_own_levels_are_torchaos(bits):
    quant = pytest.importorskip("torchao.prototype.parq.quant")
    w, opt = run(Parq(), uniform(bits))
    latent = opt.underlying(w).detach()
    forward, levels = quant.LSBQuantizer().quantize(latent, bits)
    torch.testing.assert_close(w.detach(), forward)
    torch.testing.assert_close(torch.stack(least_squares_levels(latent, bits)), levels)
