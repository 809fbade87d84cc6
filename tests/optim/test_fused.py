"""The fused step does what the wrapped one does: to rounding on one step, by the float64 run on many."""

from __future__ import annotations

import copy
import logging
import math
from itertools import pairwise

import pytest
import torch
from fused_kit import (
    BASES,
    LEVELS,
    REVERSIBLE,
    ROUNDED,
    SCALES,
    SCHEDULES,
    TOTAL,
    advance,
    latents,
    run,
    ulps,
    unlike_shown,
)
from hypothesis import given
from hypothesis import strategies as st
from optim_kit import Net, differing, on_levels, small, train, weights_of
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop
from torch.utils._python_dispatch import TorchDispatchMode

import askew
from askew.core import Constant, LevelSet, oracle
from askew.core.levels import nearest
from askew.methods.askew import ReversibleLevelFirst
from askew.methods.base import FullPrecision
from askew.methods.binaryconnect import BinaryConnect
from askew.native import loader
from askew.optim import MethodOptimizer, fused_native
from askew.optim.checks import NonFiniteGradientError
from askew.optim.fused import refusal

pytestmark = pytest.mark.skipif(fused_native.library() is None, reason="the native library was not built")
FEW = 8  # ulp: what one step may differ by


@pytest.mark.parametrize("scale", SCALES, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("base", BASES)
def test_one_step_equals_the_wrapped_one(base, schedule, levels, scale):
    here, there = (run(f, BASES[base], SCHEDULES[schedule], LEVELS[levels], scale, steps=1) for f in (True, False))
    for a, b in zip(here[0], there[0], strict=True):
        assert ulps(a.detach(), b.detach(), 1.0) <= FEW
        entries, others = here[1].state[a], there[1].state[b]
        assert entries.keys() == others.keys()
        for key, value in entries.items():
            assert value.shape == others[key].shape and value.dtype == others[key].dtype
            assert value.stride() == others[key].stride()
            assert ulps(value, others[key], 1.0) <= FEW


@pytest.mark.parametrize("scale", SCALES, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("base", ["nesterov", "adam", "adamw"])
def test_a_whole_run_stays_with_the_float64_one(base, schedule, levels, scale):
    """Rounding may decide a tie otherwise and send a weight elsewhere, in both forms: all others stay within 1e-4."""
    setting = BASES[base], SCHEDULES[schedule], LEVELS[levels], scale
    exact, _ = run(False, *setting, dtype=torch.float64)
    ps, opt = run(True, *setting)
    assert _astray(ps, exact) <= 0.002 + 2 * _astray(run(False, *setting)[0], exact)
    if schedule == "level-first":
        assert on_levels(opt)


def _astray(ps, exact):
    far = [(a.detach().double() - b.detach()).abs().flatten() > 1e-4 for a, b in zip(ps, exact, strict=True)]
    return float(torch.cat(far).double().mean())


@given(st.data())
def test_random_levels_and_weights(data):
    """One step of SGD by the scalar oracle, for weights on, at and around levels, midpoints and interval borders."""
    number = st.floats(-2, 2, width=32)
    values = data.draw(st.lists(number, min_size=2, max_size=9, unique=True).map(sorted).filter(_apart))
    levels = LevelSet(tuple(values))
    special = [*values, *levels.midpoints, values[0] - 0.5, values[-1] + 0.5]
    start = special + data.draw(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=20))
    pull = data.draw(st.floats(-1, 1, width=32))
    kind = data.draw(st.sampled_from(["interval", "level-first"]))
    number = data.draw(st.floats(0.01, 1.0))
    w = nn.Parameter(torch.tensor(start))
    w.grad = torch.full_like(w, pull)
    schedule = Constant(number) if kind == "interval" else askew.LevelFirst(start=0, end=1000)
    opt = askew.ASkew(SGD([{"params": [w], "levels": levels}], lr=0.125), schedule, alpha=0.5, clamp=False, fused=True)
    opt.steps = 0 if kind == "interval" else int(1000 * number)
    opt.step()
    for x, y in zip(start, w.tolist(), strict=True):
        q, c = torch.tensor(x).item(), [torch.tensor(v).item() for v in values]
        near = (0, 1e-7, -1e-7, 1e-6, -1e-6)  # 1e-7: on the other side of a midpoint that float32 rounds to q
        expected = [_by_hand(kind, u, q + e, c, opt.value()) for e in near for u in (pull, pull + 1e-6)]
        assert any(abs(y - z) <= 2e-5 for z in expected), (q, y, expected)  # ties within rounding may fall either way


def _apart(values):
    return all(b - a > 0.02 for a, b in pairwise(values))


def _by_hand(kind, u, q, c, value):
    if kind == "interval":
        return q + 0.125 * oracle.direction(u, q, c, value, 0.5, 1.0)
    after = q + 0.125 * oracle.level_first(u, q, c, value, 0.5)
    level = oracle.nearest(q, c)
    a, b = oracle._bracket(q, c) or (0.0, math.inf)
    captured = value > 0 and (abs(q - level) <= value * (b - a) / 2 or not c[0] <= q <= c[-1])
    return level if captured and (level - q) * (level - after) <= 0 else after


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_every_element_is_taken_once_by_any_number_of_threads(threads):
    """Sizes around the kernel's chunks of 2^14; SGD at rate 1 on gradients of 1 moves each weight by 1, once."""
    sizes = [1, 2**14 - 1, 2**14, 2**14 + 1, 5, 3 * 2**14 + 7, 1, 20 * 2**14 + 3, 2]
    ps = [nn.Parameter(torch.zeros(n)) for n in sizes]
    for p in ps:
        p.grad = torch.ones_like(p)
    groups = [{"params": ps[:4], "levels": askew.binary()}, {"params": ps[4:], "levels": None}]
    opt = MethodOptimizer(SGD(groups, lr=1.0), FullPrecision(), fused=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        opt.step()
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(p.detach(), torch.full_like(p, -1.0)) for p in ps)


@pytest.mark.parametrize("base", ["momentum", "adam"])
def test_both_forms_go_on_from_each_other(base):
    """State dicts interchange; a run that changes form at every step stays with the wrapped run."""
    ps, opt = run(True, BASES[base], SCHEDULES["interval"], askew.ternary(), steps=3)
    qs, other = run(False, BASES[base], SCHEDULES["interval"], askew.ternary(), steps=0)
    with torch.no_grad():
        for p, q in zip(ps, qs, strict=True):
            q.copy_(p)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    for k in range(3, 9):
        opt._fusion.wanted = k % 2 == 0
        advance(ps, opt, k)
        advance(qs, other, k)
    assert max(ulps(p.detach(), q.detach(), 1.0) for p, q in zip(ps, qs, strict=True)) <= 10 * FEW


def test_states_in_another_memory_order_are_taken_over():
    ps, opt = run(True, BASES["adam"], SCHEDULES["interval"], askew.binary(), steps=2)
    qs, other = run(False, BASES["adam"], SCHEDULES["interval"], askew.binary(), steps=2)
    for key in ("exp_avg", "exp_avg_sq"):
        opt.state[ps[0]][key] = opt.state[ps[0]][key].contiguous()
    advance(ps, opt, 2)
    advance(qs, other, 2)
    assert ulps(ps[0].detach(), qs[0].detach(), 1.0) <= 2 * FEW
    assert opt.state[ps[0]]["exp_avg"].is_contiguous(memory_format=torch.channels_last)


def test_per_channel_scales_of_a_transposed_weight():
    """The channel is the first dimension, wherever it lies in memory."""
    results = []
    for fused in (True, False):
        w = nn.Parameter(torch.randn(12, 7, generator=torch.Generator().manual_seed(0)).t())
        base = SGD([{"params": [w], "levels": askew.uniform(2)}], lr=0.1)
        opt = askew.ASkew(base, Constant(0.2), scale="sawb", per="channel", fused=fused)
        for k in range(3):
            advance([w], opt, k)
        results.append(w.detach())
    assert results[0].stride() == (1, 7) and ulps(*results, 1.0) <= FEW


@pytest.mark.parametrize("method", [FullPrecision(), BinaryConnect()], ids=lambda m: m.name)
def test_the_rivals_have_it_too(method):
    runs = []
    for fused in (True, False):
        model = Net()
        opt = MethodOptimizer(AdamW(askew.groups(model, askew.uniform(3)), lr=0.05), copy.copy(method), fused=fused)
        train(model, opt, range(5))
        runs.append((weights_of(model), [opt.underlying(p).detach().clone() for p in model.parameters()]))
    for a, b in zip(runs[0][0] + runs[0][1], runs[1][0] + runs[1][1], strict=True):
        assert ulps(a, b, 1.0) <= 4 * FEW


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("base", BASES)
def test_rounded_level_first_has_it_too(base, levels):
    """Latent weights as in the wrapped form, the network's on the nearest levels; in the end both on the same ones."""
    setting = BASES[base], ROUNDED, LEVELS[levels]
    for steps in (1, TOTAL):
        here, there = (run(fused, *setting, steps=steps) for fused in (True, False))
        assert here[1]._fusion._batches and not there[1]._fusion._batches
        exact = latents(*run(False, *setting, steps=steps, dtype=torch.float64))
        if steps == 1:
            for a, b in zip(latents(*here), latents(*there), strict=True):
                assert ulps(a, b, 1.0) <= FEW
        assert _astray(latents(*here), exact) <= 0.002 + 2 * _astray(latents(*there), exact)
        for p, w in zip(here[0][:5], latents(*here)[:5], strict=True):  # those with levels
            assert torch.equal(p.detach(), nearest(w, LEVELS[levels]))
            assert steps == 1 or torch.equal(p.detach(), w)
    assert on_levels(here[1])


def test_rounded_level_first_lands_weights_without_a_gradient():
    """On the last step only: the second weight never has a gradient, its latents stay till then."""
    runs = []
    for fused in (True, False):
        ps = [nn.Parameter(torch.tensor([0.3, -0.7])), nn.Parameter(torch.tensor([0.4, -0.2]))]
        opt = askew.ASkew(Adam([{"params": ps, "levels": askew.binary()}], lr=0.1), ROUNDED, total_steps=3, fused=fused)
        for _ in range(3):
            assert opt.steps == 0 or opt.underlying(ps[1]).tolist() == pytest.approx([0.4, -0.2])
            ps[0].grad = torch.tensor([0.5, 0.5])
            opt.step()
        runs.append([*(p.detach() for p in ps), *latents(ps, opt)])
        assert runs[-1][1].tolist() == runs[-1][3].tolist() == [1.0, -1.0]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("scale", SCALES, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("base", BASES)
def test_reversible_capture_has_it_too(base, levels, scale):
    """Latent weights as in the wrapped form; the network's as they belong to them, at the scale they have by then."""
    setting = BASES[base], REVERSIBLE, LEVELS[levels], scale
    for steps in (1, 4, TOTAL):
        here, there = (run(fused, *setting, steps=steps) for fused in (True, False))
        assert here[1]._fusion._batches and not there[1]._fusion._batches
        exact = latents(*run(False, *setting, steps=steps, dtype=torch.float64))
        if steps < TOTAL:
            for a, b in zip(latents(*here), latents(*there), strict=True):
                assert ulps(a, b, 1.0) <= steps * FEW
        assert _astray(latents(*here), exact) <= 0.002 + 2 * _astray(latents(*there), exact)
        assert unlike_shown(*here) <= FEW and unlike_shown(*there) <= FEW
        assert any("scale" in memory for memory in here[1]._memory.values()) == (steps == TOTAL and scale[0] != "none")
    assert on_levels(here[1])
    assert all(torch.equal(p.detach(), w) for p, w in zip(here[0][:5], latents(*here), strict=False))


def test_what_is_shown_of_weights_without_a_gradient_follows_the_radius():
    runs = []
    for fused in (True, False):
        ps = [nn.Parameter(torch.tensor([0.3, -0.7])), nn.Parameter(torch.tensor([0.55, -0.2]))]
        schedule = askew.LevelFirst(start=0.0, end=0.8, reversible=True)
        opt = askew.ASkew(
            Adam([{"params": ps, "levels": askew.binary()}], lr=0.1), schedule, total_steps=5, fused=fused
        )
        seen = []
        for _ in range(5):
            ps[0].grad = torch.tensor([0.5, 0.5])
            opt.step()
            seen.append(ps[1].detach().clone())
        runs.append(seen)
    assert [round(x, 3) for s in runs[0] for x in s.tolist()] == [0.55, -0.2, 0.55, -0.2, 1, -0.2, 1, -0.2, 1, -1]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("scale", SCALES[1:], ids=lambda s: "-".join(s))
def test_binaryconnect_with_a_scale_that_follows(scale):
    runs = []
    for fused in (True, False):
        model = Net()
        base = AdamW(askew.groups(model, askew.binary()), lr=0.05)
        opt = MethodOptimizer(base, BinaryConnect(), scale=scale[0], per=scale[1], fused=fused)
        train(model, opt, range(5))
        runs.append((weights_of(model), [opt.underlying(p).detach().clone() for p in model.parameters()]))
        assert bool(opt._fusion._batches) == fused
    for a, b in zip(runs[0][0] + runs[0][1], runs[1][0] + runs[1][1], strict=True):
        assert ulps(a, b, 1.0) <= 4 * FEW


def test_rounded_level_first_with_a_scale_that_follows_is_wrapped():
    with pytest.raises(ValueError, match="askew-level-first-rounded measures the scale 'sawb'"):
        run(True, BASES["adam"], ROUNDED, LEVELS["int4"], SCALES[2], steps=1)


@pytest.mark.parametrize("scale", SCALES[1:], ids=lambda s: "-".join(s))
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("rounded", [False, True])
def test_scales_that_freeze_on_the_way(rounded, levels, scale):
    """Plain level-first needs none before its start; with rounding the step is wrapped until then, fused afterwards."""
    schedule = askew.LevelFirst(start=4, end=8, rounded=rounded)
    setting = BASES["adam"], schedule, LEVELS[levels], scale
    for steps in (3, 5, 6, TOTAL):
        here, there = (run(fused, *setting, steps=steps) for fused in (None, False))
        exact = latents(*run(False, *setting, steps=steps, dtype=torch.float64))
        assert bool(here[1]._fusion._batches) == (not rounded or steps > 5)
        frozen = [[opt._memory[p].get("scale") for p in ps[:4]] for ps, opt in (here, there)]
        assert all((s is not None) == (steps > 4) for s in [*frozen[0], *frozen[1]])
        if steps < TOTAL:
            for a, b in zip(latents(*here), latents(*there), strict=True):
                assert ulps(a, b, 1.0) <= steps * FEW
        assert _astray(latents(*here), exact) <= 0.002 + 2 * _astray(latents(*there), exact)
    assert on_levels(here[1])


@pytest.mark.parametrize("levels", [askew.binary(), askew.uniform(4)], ids=["binary", "int4"])
@pytest.mark.parametrize("scale", ["none", "sawb"])
@pytest.mark.parametrize("start", [0, 90], ids=["under way", "before the start"])
def test_no_memory_between_or_in_steps(start, scale, levels):
    """Once warm, no operation of a fused step makes a tensor as large as a weight; the state is Adam's own."""

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(t, torch.Tensor) and not any(t is a for a in args):
                    self.size = max(self.size, t.numel())
            return out

    w = nn.Parameter(torch.randn(1000))
    w.grad = torch.randn(1000)
    schedule = askew.LevelFirst(start=start, end=95)
    opt = askew.ASkew(Adam([{"params": [w], "levels": levels}]), schedule, scale=scale, total_steps=100, fused=True)
    opt.step()
    with Largest() as seen:
        opt.step()
    assert seen.size < 100
    assert opt.state[w].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert sum(held.numel() for held in opt._memory[w].values()) == (scale != "none" and start == 0)
    opt._fusion.wanted = False
    with Largest() as seen:
        opt.step()
    assert seen.size == 1000  # the look could have found something


# -- bfloat16 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bfloat16_steps_and_lands(schedule, levels):
    """One step agrees with the wrapped one to bfloat16's rounding (there each operation rounds, here only the end)."""
    runs = [run(f, BASES["adam"], SCHEDULES[schedule], LEVELS[levels], steps=1, dtype=torch.bfloat16) for f in (1, 0)]
    for a, b in zip(runs[0][0], runs[1][0], strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), rtol=0.02, atol=0.01)
    ps, opt = run(True, BASES["adam"], SCHEDULES[schedule], LEVELS[levels], dtype=torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in ps)
    assert schedule != "level-first" or on_levels(opt)


@pytest.mark.parametrize("schedule", ["interval", "level-first"])
def test_a_master_copy_is_the_float32_run(schedule):
    """With bfloat16 gradients in both, the master copy walks as float32 weights do; the weights are its rounding."""
    g = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=g).bfloat16()

    def make(w, **more):
        p = nn.Parameter(w)
        base = Adam([{"params": [p], "levels": askew.binary()}], lr=0.05)
        return p, askew.ASkew(base, SCHEDULES[schedule], total_steps=10, **more)

    (w, opt), (v, plain) = make(start.clone(), master=True), make(start.float())
    for k in range(10):
        if k == 6:  # through a checkpoint: torch alone would round the moments
            state = opt.state_dict()
            w, opt = make(w.detach().clone(), master=True)
            opt.load_state_dict(state)
        w.grad = torch.randn(50, generator=g).bfloat16()
        v.grad = w.grad.float()
        opt.step()
        plain.step()
    assert torch.equal(opt.underlying(w), v.detach())
    assert torch.equal(w.detach(), v.detach().bfloat16())
    with pytest.raises(ValueError, match="fused"):
        make(start.clone(), master=True, fused=False)


LATENT = {
    "binaryconnect": lambda base, **more: MethodOptimizer(base, BinaryConnect(), total_steps=10, **more),
    "reversible": lambda base, **more: askew.ASkew(base, REVERSIBLE, total_steps=10, **more),
}


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("scale", ["none", "sawb"])
@pytest.mark.parametrize("form", ["binaryconnect", "reversible"])
def test_bfloat16_weights_of_methods_with_a_copy_go_on_from_a_file(form, scale, master):
    """What the network computes with is made of the copy as it is kept, and stays to the bit."""
    g = torch.Generator().manual_seed(0)
    gradients = torch.randn(8, 40, 60, generator=g).bfloat16()
    start = torch.randn(40, 60, generator=g).bfloat16()

    def make():
        w = nn.Parameter(start.clone())
        base = AdamW([{"params": [w], "levels": askew.uniform(4)}], lr=0.2)
        return w, LATENT[form](base, scale=scale, master=master, fused=True, nonfinite="ignore")

    def go(w, opt, steps):
        for k in steps:
            w.grad = gradients[k].clone()
            opt.step()

    w, opt = make()
    go(w, opt, range(4))
    ((_, _, site),) = opt.weights()
    again = opt.method.forward_weight(opt.underlying(w), site).bfloat16()
    assert (w.detach() != again).double().mean() <= (0.0 if scale == "none" else 0.01)  # a scale rounds, too
    v, other = make()
    with torch.no_grad():
        v.copy_(w)
    other.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert torch.equal(v.detach(), w.detach())
    go(w, opt, range(4, 8))
    go(v, other, range(4, 8))
    assert torch.equal(v.detach(), w.detach()) and torch.equal(other.underlying(v), opt.underlying(w))


def test_a_scale_that_is_frozen_does_not_clamp_what_reversible_capture_moves():
    """As in the wrapped step: only weights without a scale are held within the levels."""
    runs = []
    for fused in (True, False):
        torch.manual_seed(0)
        w = nn.Parameter(torch.randn(30) * 3)
        base = SGD([{"params": [w], "levels": askew.binary()}], lr=1.0)
        method, schedule = ReversibleLevelFirst(), askew.LevelFirst(start=0, end=8)
        opt = MethodOptimizer(base, method, schedule, scale="abs-mean", clamp=True, total_steps=10, fused=fused)
        for k in range(3):
            w.grad = torch.full_like(w, 1.0 - k)
            opt.step()
        runs.append(opt.underlying(w).clone())
    assert ulps(*runs, 1.0) <= FEW and runs[0].abs().max() > 4


def test_a_dict_without_master_copies_makes_them():
    """Weights and moments of bfloat16 become float32 as they are, and go on in float32."""
    opts = []
    for master in (False, True):
        p = nn.Parameter(torch.linspace(-1, 1, 50).bfloat16())
        base = Adam([{"params": [p], "levels": askew.binary()}], lr=0.05)
        opts.append((p, askew.ASkew(base, SCHEDULES["interval"], total_steps=10, master=master)))
    (v, plain), (w, opt) = opts
    for p, one in opts:
        p.grad = torch.linspace(2, -3, 50).bfloat16()
        one.step()
    saved = plain.state_dict()
    w.data.copy_(v.data)
    opt.load_state_dict(saved)
    assert torch.equal(opt.underlying(w), v.detach().float()) and opt.underlying(w).dtype == torch.float32
    for key in ("exp_avg", "exp_avg_sq"):
        assert opt.state[w][key].dtype == torch.float32 and torch.equal(opt.state[w][key], plain.state[v][key].float())
    opt.step()
    assert torch.equal(w.detach(), opt.underlying(w).bfloat16())
    assert not torch.equal(opt.underlying(w), opt.underlying(w).bfloat16().float())


@pytest.mark.parametrize("fused", [None, False])
def test_master_copies_are_not_taken_where_nothing_moves_them(fused):
    def make(**more):
        p = nn.Parameter(torch.linspace(-1, 1, 50).bfloat16())
        base = Adam([{"params": [("w", p)], "levels": askew.binary()}], lr=0.05)
        return p, askew.ASkew(base, SCHEDULES["interval"], total_steps=10, **more)

    w, opt = make(master=True)
    w.grad = torch.ones(50).bfloat16()
    opt.step()
    v, plain = make(fused=fused)
    with pytest.raises(ValueError, match=r"w: the state dict holds a torch\.float32 copy of this torch\.bfloat16"):
        plain.load_state_dict(opt.state_dict())
    assert plain.steps == 0 and plain.underlying(v) is v and not plain.state


# -- when it applies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "why"),
    [
        (lambda g: RMSprop(g, lr=0.1), "RMSprop"),
        (lambda g: Adam(g, amsgrad=True), "amsgrad"),
        (lambda g: SGD(g, maximize=True), "maximize"),
    ],
)
def test_fused_true_says_why_not(base, why):
    model = Net()
    groups = askew.groups(model, askew.binary())
    with pytest.raises(ValueError, match=why):
        askew.ASkew(base(groups), fused=True, total_steps=9)
    opt = askew.ASkew(base(groups), total_steps=9)
    train(model, opt, range(2))
    assert opt.steps == 2 and why in (refusal(opt) or "")


@pytest.mark.parametrize(
    "schedule", [Constant(0.01), askew.LevelFirst(start=0, end=2)], ids=["interval", "level-first"]
)
@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_base_that_maximises_is_drawn_to_the_levels_too(kind, schedule):
    """Ascent on -loss is descent on loss, weight for weight; without a gradient the weight goes to its level."""
    ends, residuals = [], []
    for maximize in (False, True):
        w = nn.Parameter(torch.linspace(-1.7, 1.7, 35))
        base = kind([{"params": [w], "levels": askew.binary()}], lr=0.01, maximize=maximize)
        opt = askew.ASkew(base, schedule, total_steps=2000, fused=False)
        for k in range(300):
            push = torch.randn(35, generator=torch.Generator().manual_seed(k)) * 0.1
            w.grad = -push if maximize else push
            opt.step()
        ends.append(w.detach().clone())
        residuals.append(askew.diagnose(opt).overall.kkt)
    assert torch.equal(*ends) and residuals[0] == residuals[1]
    still = nn.Parameter(torch.full((1,), 0.8))
    opt = askew.ASkew(
        kind([{"params": [still], "levels": askew.binary()}], lr=0.05, maximize=True), schedule, alpha=1.0
    )
    for _ in range(300):
        still.grad = torch.zeros(1)
        opt.step()
    assert still.item() > 0.94


def test_a_refused_step_does_not_count_and_a_refused_group_is_not_added():
    p, q = (nn.Parameter(torch.randn(4)) for _ in range(2))
    opt = askew.ASkew(Adam([{"params": [p], "levels": askew.binary()}]), total_steps=9, fused=True)
    with pytest.raises(ValueError, match="amsgrad"):
        opt.add_param_group({"params": [q], "levels": askew.binary(), "amsgrad": True})
    assert len(opt.param_groups) == 1
    p.grad = torch.randn(4)
    opt.step()
    opt.param_groups[0]["amsgrad"] = True
    kept, value = p.detach().clone(), opt.value()
    with pytest.raises(ValueError, match="amsgrad"):
        opt.step()
    assert opt.steps == 1 and opt.value() == value and torch.equal(p.detach(), kept)


def test_other_dtypes_methods_and_level_counts_are_wrapped():
    for model, options, why in (
        (Net(dtype=torch.float64), {}, "float64"),
        (Net(), {"annealing": askew.LevelFirst(by="quantile")}, "quantile"),
        (Net(), {"levels": askew.uniform(7)}, "128 levels"),
    ):
        groups = askew.groups(model, options.pop("levels", askew.binary()))
        opt = askew.ASkew(SGD(groups, lr=0.1), options.get("annealing"), total_steps=5)
        assert why in (refusal(opt) or "")
        train(model, opt, range(2))
    with pytest.raises(ValueError, match="fused must be"):
        small(fused="yes")  # pyright: ignore


def test_without_the_library_the_wrapped_step_is_taken_and_says_so_once(monkeypatch, caplog):
    monkeypatch.setattr(loader, "find", lambda name: None)
    for cached in (loader.load, fused_native.library):
        cached.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, "askew"):
            model, opt = small()
            train(model, opt, range(3))
        assert [r.message for r in caplog.records if "native" in r.message] == [caplog.records[0].message]
        assert "askew.native.build" in caplog.text
        with pytest.raises(ValueError, match="not built"):
            small(fused=True)
    finally:
        for cached in (loader.load, fused_native.library):
            cached.cache_clear()


# -- the optimizer's other promises -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bad_gradients_are_found_wherever_they_are(value, dtype):
    for size in (1, 17, 40_000):
        for place in {0, size // 2, size - 1}:
            good = [torch.randn(5, dtype=dtype), torch.full((size,), torch.finfo(dtype).max, dtype=dtype)]
            assert fused_native.any_bad(good) is False
            good[1][place] = value
            assert fused_native.any_bad(good) is True
    assert fused_native.any_bad([torch.randn(4, dtype=torch.float64)]) is None


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_bad_gradient_changes_nothing(nonfinite):
    model, opt = small(base="adam", fused=True, nonfinite=nonfinite)
    train(model, opt, range(2))
    before, state = weights_of(model), copy.deepcopy(opt.state_dict())
    model.fc.weight.grad[0, 0] = math.nan
    if nonfinite == "raise":
        with pytest.raises(NonFiniteGradientError, match=r"fc\.weight"):
            opt.step()
    else:
        opt.step()
        assert opt.skipped == 1
        opt.skipped = 0
    assert differing(before, weights_of(model)) == [] and differing(state, copy.deepcopy(opt.state_dict())) == []


def test_gradients_that_come_go_and_move():
    """None gradients, new gradient tensors, a new group, a scheduler: what is kept between steps never goes stale."""
    runs = []
    for fused in (True, False):
        model, opt = small(base="adam", fused=fused)
        extra = nn.Parameter(torch.full((3, 3), 0.3))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
        for k in range(9):
            train(model, opt, [k])
            if k == 3:
                opt.add_param_group({"params": [("extra", extra)], "levels": askew.ternary(), "lr": 0.2})
            if k >= 5:
                extra.grad = torch.full((3, 3), 0.1 * k) if k % 2 else None
            if k == 4:
                model.fc.weight = nn.Parameter(model.fc.weight.detach())  # no longer the optimizer's
            scheduler.step()
        runs.append([*weights_of(model), extra.detach()])
    assert max(ulps(a, b, 1.0) for a, b in zip(*runs, strict=True)) <= 8 * FEW


def test_the_last_step_lands_weights_without_gradient():
    w, v = nn.Parameter(torch.tensor([0.3, -0.2])), nn.Parameter(torch.tensor([0.4, -0.9]))
    opt = askew.ASkew(SGD([{"params": [w, v], "levels": askew.binary()}], lr=0.1), total_steps=1, fused=True)
    w.grad = torch.zeros(2)
    opt.step()
    assert w.tolist() == [1, -1] and v.tolist() == [1, -1]


def test_grad_scaler_skips_and_unscales():
    runs = []
    for fused in (True, False):
        model, opt = small(base="adam", fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for k in range(4):
            train(model, _Scaled(opt, scaler, bad=k == 2), [k])
        runs.append((weights_of(model), opt.steps))
    assert runs[0][1] == runs[1][1] == 3
    assert max(ulps(a, b, 1.0) for a, b in zip(runs[0][0], runs[1][0], strict=True)) <= 4 * FEW


class _Scaled:
    """An optimizer as a loop with a GradScaler drives it."""

    def __init__(self, opt, scaler, bad):
        self.opt, self.scaler, self.bad = opt, scaler, bad

    def zero_grad(self):
        self.opt.zero_grad()

    def step(self):
        for group in self.opt.param_groups:
            for p in group["params"]:
                p.grad = self.scaler.scale(p.grad)
                if self.bad:
                    p.grad = p.grad * math.inf
        self.scaler.step(self.opt)
        self.scaler.update()


def test_copies_and_pickles_fuse_on_their_own():
    model, opt = small(base="adam", fused=True)
    train(model, opt, range(2))
    other_model, other = copy.deepcopy((model, opt))
    train(model, opt, range(2, 4))
    train(other_model, other, range(2, 4))
    assert differing(weights_of(model), weights_of(other_model)) == []


def test_hooks_fire_once_and_total_steps_are_kept():
    model, opt = small(askew.LevelFirst(), base="adamw", fused=True, total_steps=TOTAL)
    calls = []
    opt.register_step_pre_hook(lambda *_: calls.append("pre"))
    opt.register_step_post_hook(lambda *_: calls.append("post"))
    train(model, opt, range(TOTAL))
    assert calls == ["pre", "post"] * TOTAL and on_levels(opt)
