"""Whole low-bit runs of both annealing forms: against the oracle step by step, and resumed across the freeze."""

from __future__ import annotations

import io
import warnings

import pytest
import torch
from optim_kit import differing, everything, small, train
from torch import Tensor, nn
from torch.optim import SGD

import askew
from askew.core import Clock, binary, oracle, uniform
from askew.core.scale import scale_of
from askew.nn import quantize_activations
from askew.optim import ASkew, groups
from askew.optim.checks import OneLevelWarning

WIDTHS = {
    "ternary": askew.ternary(),
    "int2": askew.uniform(2),
    "int3": askew.uniform(3),
    "int4": askew.uniform(4),
    "17 levels": askew.uniform(4, form="paper"),
}
FORMS = {
    "paper": askew.Exponential(K=0.6, start=0.5, period=0.1),
    "level-first": askew.LevelFirst(start=0.5, end=0.9),
    "rounded": askew.LevelFirst(start=0.5, end=0.9, rounded=True),
    "reversible": askew.LevelFirst(start=0.2, end=0.5, reversible=True),
}
SCALES = [("sawb", "tensor"), ("sawb", "channel"), ("abs-mean", "tensor"), ("abs-mean", "channel")]
TOTAL, FREEZE = 10, 5


def gradient(k: int) -> Tensor:
    return 0.3 * torch.randn(3, 10, generator=torch.Generator().manual_seed(k), dtype=torch.float64)


@pytest.mark.parametrize(("kind", "per"), SCALES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_papers_form_is_algorithm_1_in_level_units(width, kind, per):
    """w <- w + lr s v(q), one scalar at a time; s follows w until annealing starts and is then the same for good."""
    levels, annealing = WIDTHS[width], FORMS["paper"]
    start = torch.randn(3, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p = nn.Parameter(start.clone())
    groups = [{"params": [("w", p)], "levels": levels}]
    base = torch.optim.SGD(groups, lr=0.1)
    opt = askew.ASkew(base, annealing, alpha=0.5, clip="quarter", scale=kind, per=per, total_steps=TOTAL)
    w, frozen = start.clone(), None
    for k in range(TOTAL):
        s = scale_of(w, levels, kind, per) if frozen is None else frozen
        assert s is not None
        frozen = s if k >= FREEZE else None
        epsilon = annealing.value(Clock(k, TOTAL)) * levels.epsilon_bound
        u, clip, wide = gradient(k), levels.min_gap / (4 * 0.1), s.expand(3, 10)
        for i in range(3):
            for j in range(10):
                si = float(wide[i, j])
                v = oracle.direction(float(u[i, j]) / si, float(w[i, j]) / si, levels.values, epsilon, 0.5, clip)
                w[i, j] += 0.1 * si * v
        p.grad = u
        opt.step()
        torch.testing.assert_close(p.detach(), w, rtol=1e-9, atol=1e-12)
    kept = opt.weights()[0][2].scale
    assert frozen is not None and kept is not None
    torch.testing.assert_close(kept, frozen, rtol=1e-9, atol=0)
    assert not torch.isclose(kept, scale_of(w, levels, kind, per), rtol=1e-6).any()  # the weights have moved on


@pytest.mark.parametrize(("kind", "per"), SCALES)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_bound_step_moves_at_most_a_quarter_of_a_spacing(width, kind, per):
    """clip='quarter': where the constraint decides (no gradient pushes), one step of SGD moves s/4 at most."""
    levels = WIDTHS[width]
    p = nn.Parameter(2 * torch.randn(4, 30, generator=torch.Generator().manual_seed(0)))
    base = torch.optim.SGD([{"params": [("w", p)], "levels": levels}], lr=0.7)
    opt = askew.ASkew(
        base, FORMS["paper"], alpha=50.0, clip="quarter", scale=kind, per=per, clamp=False, total_steps=TOTAL
    )
    most = 0.0
    for _ in range(TOTAL):
        before, scale = p.detach().clone(), opt.weights()[0][2].scale
        assert scale is not None
        p.grad = torch.zeros_like(p)
        opt.step()
        most = max(most, float(((p.detach() - before).abs() / scale).max()))
    assert most == pytest.approx(0.25 * levels.min_gap, rel=1e-4)  # it binds, and no step is longer


@pytest.mark.parametrize(("kind", "per"), SCALES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("form", ["level-first", "rounded"])
def test_level_first_ends_on_scaled_levels(form, width, kind, per):
    levels = WIDTHS[width]
    model, opt = low_bit(levels, FORMS[form], kind, per)
    go(model, opt, range(TOTAL))
    for name, p, site in opt.weights():
        assert site.scale is not None
        q = (p / site.scale).detach()
        expected = torch.tensor([oracle.nearest(v, levels.values) for v in q.flatten().tolist()]).reshape(q.shape)
        assert torch.equal(p.detach(), expected * site.scale), name


class Net(nn.Module):
    """Conv, BN, ReLU, linear, with four-bit activations at the linear layer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(1, 4, 3, bias=False)
            self.norm = nn.BatchNorm2d(4, affine=False)
            self.fc = nn.Linear(16, 3, bias=False)
        quantize_activations(self, 4, skip="conv")

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x)).relu().flatten(1))


def low_bit(levels, annealing, kind, per, seed=0):
    model = Net(seed)
    base = torch.optim.Adam(askew.groups(model, levels), lr=0.02)
    return model, askew.ASkew(base, annealing, clip="quarter", clamp=True, scale=kind, per=per, total_steps=TOTAL)


def go(model, opt, steps):
    for k in steps:
        g = torch.Generator().manual_seed(k)
        opt.zero_grad()
        loss = (model(torch.randn(8, 1, 4, 4, generator=g)) - torch.randn(8, 3, generator=g)).square().mean()
        loss.backward()
        opt.step()


@pytest.mark.parametrize("cut", [FREEZE - 1, FREEZE, FREEZE + 1])
@pytest.mark.parametrize(("kind", "per"), [("sawb", "tensor"), ("sawb", "channel"), ("abs-mean", "tensor")])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("form", FORMS)
def test_resume_is_bit_exact_across_the_freeze(form, width, kind, per, cut):
    """Weights, moments, scales of weights and of activations, cut before, at and after the moment scales freeze."""
    whole_model, whole = low_bit(WIDTHS[width], FORMS[form], kind, per)
    go(whole_model, whole, range(TOTAL))
    model, opt = low_bit(WIDTHS[width], FORMS[form], kind, per)
    go(model, opt, range(cut))
    assert any("scale" in m for m in opt._memory.values()) == (cut > FREEZE and form != "reversible")
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model, opt = low_bit(WIDTHS[width], FORMS[form], kind, per, seed=9)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["optimizer"])
    go(model, opt, range(cut, TOTAL))
    whole.zero_grad()
    opt.zero_grad()
    assert differing(everything(whole_model, whole), everything(model, opt)) == []
    assert differing(dict(whole_model.state_dict()), dict(model.state_dict())) == []


def test_per_channel_on_a_vector():
    p = nn.Parameter(torch.randn(5))
    base = torch.optim.SGD([{"params": [("norm.weight", p)], "levels": askew.uniform(4)}], lr=0.1)
    with pytest.raises(ValueError, match=r"norm\.weight: a scale per channel needs a weight of two dimensions or more"):
        askew.ASkew(base, scale="sawb", per="channel", total_steps=10)


def test_a_plateau_freezes_the_scale_when_epsilon_first_falls():
    """Until then it follows the weights."""
    model, opt = small(askew.Plateau(patience=1), levels=askew.uniform(4), scale="sawb")
    train(model, opt, range(3))
    assert not any("scale" in memory for memory in opt._memory.values())
    opt.report(1.0)
    train(model, opt, range(3, 5))
    assert not any("scale" in memory for memory in opt._memory.values())
    opt.report(1.0)
    measured = {name: site.scale.clone() for name, _, site in opt.weights()}
    train(model, opt, range(5, 9))
    frozen = {name: opt._memory[p]["scale"] for name, p, _ in opt.weights()}
    assert all(torch.equal(frozen[name], measured[name]) for name in measured) and len(frozen) == 2


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize(("shape", "per"), [((0, 3), "tensor"), ((3, 0), "channel"), ((0, 3), "channel")])
def test_an_empty_weight_takes_part(shape, per, fused):
    w = nn.Parameter(torch.zeros(shape))
    base = SGD([{"params": [w], "levels": askew.uniform(4)}], lr=0.1)
    opt = askew.ASkew(base, scale="sawb", per=per, total_steps=3, fused=fused)
    for _ in range(3):
        w.grad = torch.zeros(shape)
        opt.step()
    assert opt.steps == 3 and w.shape == shape


def test_levels_too_far_apart_for_the_weights_are_warned_of() -> None:
    net = nn.Sequential(nn.Linear(100, 10), nn.Linear(10, 2))
    with pytest.warns(
        OneLevelWarning, match=r"group 0, 0\.weight: all weights, -0\.\d+ to 0\.\d+, .* level 0 .*'sawb'"
    ):
        ASkew(torch.optim.Adam(groups(net, uniform(4))), total_steps=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OneLevelWarning)
        ASkew(torch.optim.Adam(groups(net, uniform(4))), total_steps=10, scale="sawb")
        ASkew(torch.optim.Adam(groups(net, binary())), total_steps=10)
        nn.init.zeros_(net[1].weight)
        nn.init.uniform_(net[0].weight, -1, 1)
        ASkew(torch.optim.Adam(groups(net, uniform(4))), total_steps=10)
