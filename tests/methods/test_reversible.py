"""Reversible level-first: what is captured is what the network sees; the copy behind it goes on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import askew
from askew.core import Clock, LevelSet, oracle
from askew.core.scale import scale_of

TOTAL = 20
LEVELS = (askew.binary(), askew.uniform(2, "symmetric"), askew.uniform(4))
FORWARD = askew.LevelFirst(start=0.2, end=0.7, reversible=True)


def run(w: nn.Parameter, pushes: list[float], annealing: askew.LevelFirst) -> list[float]:
    """The weight that the network sees after each step of SGD with these gradients."""
    base = torch.optim.SGD([{"params": [("w", w)], "levels": askew.binary()}], lr=0.5)
    opt = askew.ASkew(base, annealing, total_steps=TOTAL)
    seen = []
    for push in pushes:
        w.grad = torch.full_like(w, push)
        opt.step()
        seen.append(w.item())
    return seen


def test_a_captured_weight_leaves_and_changes_its_sign_where_plain_level_first_settles_it() -> None:
    pushes = [-1.0] * 8 + [1.0] * 12  # to the right, and from 40% of the run on, when some are captured, to the left
    plain, reversible = (
        run(nn.Parameter(torch.tensor([0.9])), pushes, askew.LevelFirst(0.2, 0.7, reversible=may_leave))
        for may_leave in (False, True)
    )
    assert plain[7] == reversible[7] == 1.0
    assert plain[-1] == 1.0 and reversible[-1] == -1.0


@pytest.mark.parametrize("kind", ["sawb", "abs-mean"])
@pytest.mark.parametrize("levels", LEVELS, ids=lambda x: x.name)
def test_steps_are_the_oracles(levels: LevelSet, kind) -> None:
    """u <- u - lr g(shown(u)); the scale follows u to the last step, which keeps what it finds."""
    generator = torch.Generator().manual_seed(3)
    u = torch.randn(40, generator=generator, dtype=torch.float64)
    target = torch.randn(40, generator=generator, dtype=torch.float64)
    w = nn.Parameter(u.clone())
    base = torch.optim.SGD([{"params": [("w", w)], "levels": levels}], lr=0.1)
    opt = askew.ASkew(base, FORWARD, scale=kind, total_steps=TOTAL)
    shown, frozen = u.clone(), None
    for k in range(TOTAL):
        assert torch.equal(w.detach(), shown)
        opt.zero_grad()
        ((w - target) ** 2).sum().backward()
        opt.step()
        if k == TOTAL - 1:
            frozen = scale_of(u, levels, kind)
        u = u - 0.1 * 2 * (shown - target)
        if frozen is not None:
            u = torch.tensor([oracle.nearest(q, levels.values) for q in (u / frozen).tolist()], dtype=u.dtype) * frozen
        torch.testing.assert_close(opt.underlying(w), u, rtol=1e-12, atol=1e-14)
        u = opt.underlying(w).detach().clone()  # no drift: a weight at a border may fall on either side
        s = scale_of(u, levels, kind) if frozen is None else frozen
        assert s is not None
        radius = FORWARD.value(Clock(k, TOTAL))
        held = [oracle.captured(q, levels.values, radius) for q in (u / s).tolist()]
        nearest = torch.tensor([oracle.nearest(q, levels.values) for q in (u / s).tolist()], dtype=u.dtype) * s
        shown = torch.where(torch.tensor(held), nearest, u)
    assert torch.equal(w.detach(), opt.underlying(w))
    assert all(q in levels.values for q in (w.detach() / frozen).round(decimals=9).tolist())


def test_without_a_scale_the_copy_stays_within_the_levels_and_with_one_it_does_not() -> None:
    for scale, most in (("none", 1.0), ("abs-mean", 6.0)):
        w = nn.Parameter(torch.tensor([1.0, -1.0]))
        base = torch.optim.SGD([{"params": [("w", w)], "levels": askew.binary()}], lr=0.5)
        opt = askew.ASkew(base, FORWARD, scale=scale, total_steps=TOTAL)
        for _ in range(10):
            w.grad = torch.tensor([-1.0, 1.0])
            opt.step()
        assert opt.underlying(w).abs().max().item() == most


def test_by_quantile_the_radius_holds_the_part_that_the_schedule_asks_for() -> None:
    w = nn.Parameter(torch.linspace(-0.9, 0.9, 50))
    base = torch.optim.SGD([{"params": [("w", w)], "levels": askew.binary()}], lr=1e-9)
    opt = askew.ASkew(base, askew.LevelFirst(0.2, 0.7, by="quantile", reversible=True), total_steps=TOTAL)
    for k in range(10):
        w.grad = torch.ones_like(w)
        opt.step()
        part = (w.detach().abs() == 1).float().mean().item()
        assert part == pytest.approx(FORWARD.value(Clock(k, TOTAL)), abs=0.05)


def test_diagnostics_look_at_what_the_network_sees() -> None:
    w = nn.Parameter(torch.linspace(-0.95, 0.95, 20))
    base = torch.optim.SGD([{"params": [("w", w)], "levels": askew.binary()}], lr=1e-9)
    opt = askew.ASkew(base, FORWARD, total_steps=TOTAL)
    for _ in range(10):
        w.grad = torch.ones_like(w)
        opt.step()
    on_level = (w.detach().abs() == 1).float().mean().item()
    assert 0 < on_level < 1 and (opt.underlying(w).detach().abs() < 1).all()
    assert askew.diagnose(opt).overall.feasible == pytest.approx(on_level)


@pytest.mark.parametrize("scale", ["none", "abs-mean"])
@pytest.mark.parametrize("wrong", ["the levels", "the copy", "noise"])
def test_a_file_of_other_weights_gets_those_of_its_copy(wrong, scale) -> None:
    """All on their levels, or all as they are optimised, is not what the network computes with half way."""
    torch.manual_seed(0)
    gradients = torch.randn(4, 6, 6)

    def make() -> tuple[nn.Parameter, askew.ASkew]:
        w = nn.Parameter(torch.linspace(-0.9, 0.9, 36).view(6, 6))
        base = torch.optim.Adam([{"params": [("w", w)], "levels": askew.binary()}], lr=0.02)
        return w, askew.ASkew(base, askew.LevelFirst(0.0, 0.9, reversible=True), scale=scale, total_steps=10)

    w, opt = make()
    for push in gradients:
        w.grad = push.clone()
        opt.step()
    ((_, _, site),) = opt.weights()
    latent = opt.underlying(w).detach()
    others = {"the levels": opt.method.final(latent, site), "the copy": latent, "noise": torch.randn(6, 6)}
    v, other = make()
    with torch.no_grad():
        v.copy_(others[wrong])
    assert not torch.equal(v, w)
    other.load_state_dict(opt.state_dict())
    torch.testing.assert_close(v.detach(), w.detach(), rtol=1e-5, atol=0)
