"""Interrupting a run changes nothing, bit for bit: state dict -> file -> a freshly built model and optimizer."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from optim_kit import BASES, Net, differing, everything, frozen_copy, small, through_a_file, train
from torch.optim import Adam, lr_scheduler

import askew
from askew.core import Constant

TOTAL = 10
ANNEALINGS = {
    "constant": Constant(0.6),
    "exponential": askew.Exponential(K=0.7, start=0.4, period=0.1),
    "exponential-steps": askew.Exponential(K=0.5, start=3, period=2),
    "logarithmic": askew.Logarithmic(final=1e-2, start=0.4),
    "plateau": askew.Plateau(factor=0.5, patience=2),
    "custom": askew.Custom(lambda done: 1 - 0.9 * done, name="line", start=0.4),
    "level-first": askew.LevelFirst(start=0.4, end=0.9),
    "level-first-quantile": askew.LevelFirst(start=0.4, end=0.9, by="quantile"),
    "level-first-dither": askew.LevelFirst(start=0.4, end=0.9, dither=True),
}
SCALES = {"none": ("none", "tensor"), "mean": ("abs-mean", "tensor"), "sawb": ("sawb", "channel")}
LEVELS = {"conv": askew.uniform(2), "fc": askew.binary()}


def build(annealing, base, scale, seed=0):
    kind, per = SCALES[scale]
    torch.manual_seed(seed)  # dithering draws the first forward weights
    return small(ANNEALINGS[annealing], base, seed, LEVELS, scale=kind, per=per, total_steps=TOTAL)


def run(model, opt, steps) -> None:
    """Train and tell a Plateau schedule a metric that falls, stalls and falls again; dithering draws by the step."""
    for k in steps:
        torch.manual_seed(k)
        train(model, opt, [k])
        if opt.plateau is not None:
            opt.report([3.0, 2.0, 2.0, 2.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5][k])


@cache
def uninterrupted(annealing, base, scale):
    model, opt = build(annealing, base, scale)
    run(model, opt, range(TOTAL))
    return lasting(model, opt)


def lasting(model, opt):
    """Everything but the gradients, which no checkpoint holds."""
    opt.zero_grad()
    return everything(model, opt)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("annealing", ANNEALINGS)
@settings(max_examples=4)
@given(n=st.integers(0, TOTAL))
@example(n=4)  # the step after this one freezes the scales
@example(n=5)  # the step before this one did
def test_resume_equals_no_interruption(annealing, base, scale, n):
    """Weights, moments, scales, radii, counters and schedule agree bit for bit after the end of the run."""
    model, opt = build(annealing, base, scale)
    run(model, opt, range(n))
    file = through_a_file({"model": model.state_dict(), "optimizer": opt.state_dict()})
    model, opt = build(annealing, base, scale, seed=9)
    model.load_state_dict(file["model"])
    opt.load_state_dict(file["optimizer"])
    run(model, opt, range(n, TOTAL))
    assert differing(uninterrupted(annealing, base, scale), lasting(model, opt)) == []


@pytest.mark.parametrize("scale", ["mean", "sawb"])
@pytest.mark.parametrize("annealing", ["exponential", "level-first"])
def test_scales_freeze_at_the_start_and_survive_resume(annealing, scale):
    """Before annealing starts (step 4) scales follow the weights, afterwards they are the ones in the file."""
    model, opt = build(annealing, "adam", scale)
    follows = [[site.scale.clone() for _, _, site in opt.weights()]]
    for k in range(TOTAL):
        train(model, opt, [k])
        follows.append([site.scale.clone() for _, _, site in opt.weights()])
        frozen = any(key.startswith("askew.scale") for entry in opt.state_dict()["state"].values() for key in entry)
        assert frozen == (k >= 4)
        fresh_model, fresh = build(annealing, "adam", scale, seed=3)
        fresh_model.load_state_dict(model.state_dict())
        fresh.load_state_dict(through_a_file(opt.state_dict()))
        assert differing(follows[-1], [site.scale for _, _, site in fresh.weights()]) == []
    same = [not differing(a, b) for a, b in pairwise(follows)]
    assert same == [False] * 4 + [same[4]] + [True] * 5


SCHEDULERS = {
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, TOTAL, eta_min=1e-3),
    "one-cycle": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=TOTAL),
    "step": lambda opt: lr_scheduler.StepLR(opt, 3, 0.5),
    "sequential": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(opt, 6)], milestones=[3]
    ),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=1, factor=0.5),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=4)
@given(n=st.integers(1, TOTAL - 1))
def test_resume_with_a_learning_rate_scheduler(scheduler, n):
    """The scheduler's own state travels beside the optimizer's; 'quarter' makes the clip follow the learning rate."""

    def make(seed):
        model = Net(seed)
        groups = askew.groups(model, LEVELS, clip="quarter")
        opt = askew.ASkew(BASES["adam"](groups), ANNEALINGS["logarithmic"], scale="sawb", total_steps=TOTAL)
        return model, opt, SCHEDULERS[scheduler](opt)

    def go(model, opt, schedule, steps):
        metric = [1.0] if scheduler == "plateau" else []
        train(model, opt, steps, lambda k: schedule.step(*metric))

    whole = make(0)
    go(*whole, range(TOTAL))
    model, opt, schedule = make(0)
    go(model, opt, schedule, range(n))
    file = through_a_file([model.state_dict(), opt.state_dict()])
    rates = frozen_copy(schedule.state_dict())  # torch's own schedulers do not all load with weights_only=True
    model, opt, schedule = make(5)
    model.load_state_dict(file[0])
    schedule.load_state_dict(rates)
    opt.load_state_dict(file[1])
    go(model, opt, schedule, range(n, TOTAL))
    assert differing(everything(whole[0], whole[1]), everything(model, opt)) == []


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("scale", SCALES)
def test_saving_before_the_first_step_keeps_lazy_state_lazy(base, scale):
    """Loading a state dict made before step 1 leaves the base's state empty; training then goes as from scratch."""
    model, opt = build("constant", base, scale)
    fresh_model, fresh = build("constant", base, scale, seed=4)
    askew.diagnose(opt)  # a look must not write state either
    saved = opt.state_dict()
    assert saved["state"] == {}
    fresh_model.load_state_dict(model.state_dict())
    fresh.load_state_dict(through_a_file(saved))
    assert all(len(entry) == 0 for entry in fresh.state.values())
    run(model, opt, range(3))
    run(fresh_model, fresh, range(3))
    assert differing(everything(model, opt), everything(fresh_model, fresh)) == []


def test_the_saved_schedule_and_options_win():
    """As with learning rates in torch: what the file says replaces what the constructor was given."""
    model, opt = small(askew.Exponential(K=0.5, start=2, period=1), alpha=0.7, clip=0.9, clamp=True, total_steps=50)
    train(model, opt, range(4))
    _, fresh = small(Constant(0.1), alpha=0.1, clip=0.2, total_steps=7)
    fresh.load_state_dict(opt.state_dict())
    assert fresh.annealing == opt.annealing
    assert (fresh.total_steps, fresh.steps) == (50, 4)
    assert fresh.param_groups[0]["alpha"] == 0.7
    assert fresh.param_groups[0]["clip"] == 0.9
    assert fresh.param_groups[0]["clamp"] is True
    assert fresh.value() == opt.value() == 0.5


def test_a_saved_quantile_schedule_brings_its_method():
    model, opt = small(askew.LevelFirst(start=0, end=8, by="quantile"))
    train(model, opt, range(4))
    other, fresh = small(askew.LevelFirst(start=0, end=8, by="radius"), seed=2)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(through_a_file(opt.state_dict()))
    train(model, opt, range(4, 6))
    train(other, fresh, range(4, 6))
    assert differing(everything(model, opt), everything(other, fresh)) == []


def test_plateau_memory_is_in_the_file():
    model, opt = small(askew.Plateau(factor=0.5, patience=2))
    for metric in (1.0, 1.0):
        opt.report(metric)
    _, fresh = small(askew.Plateau(factor=0.5, patience=2))
    fresh.load_state_dict(through_a_file(opt.state_dict()))
    fresh.report(1.0)  # the second look in a row without improvement
    train(model, fresh, range(0))
    fresh.tick()
    assert fresh.value() == 0.5


def test_the_state_dict_is_plain():
    """One JSON text a group, askew's tensors under 'askew.', and no entry of ours in the base's own state dict."""
    model, opt = build("level-first-quantile", "adam", "sawb")
    run(model, opt, range(6))
    saved = opt.state_dict()
    assert saved.keys() == {"state", "param_groups"}
    assert all(
        isinstance(json.loads(group["askew"]), dict) and "levels" not in group for group in saved["param_groups"]
    )
    assert {"askew.scale", "askew.radius", "exp_avg"} <= saved["state"][0].keys()
    for entry in (*opt.base.state.values(), *opt.base.state_dict()["state"].values()):
        assert not any(str(key).startswith("askew") for key in entry)


def test_loading_does_not_share_our_tensors():
    """What askew remembers is copied on loading (torch shares the base's moments with the dict; a file parts them)."""
    model, opt = build("level-first-quantile", "adam", "sawb")
    run(model, opt, range(6))
    _, fresh = build("level-first-quantile", "adam", "sawb", seed=1)
    fresh.load_state_dict(opt.state_dict())
    ours, theirs = ([t for memory in o._memory.values() for t in memory.values()] for o in (opt, fresh))
    assert len(ours) == 4 and differing(ours, theirs) == []
    assert {t.data_ptr() for t in ours}.isdisjoint(t.data_ptr() for t in theirs)


def test_the_base_state_dict_still_serves_the_base():
    """The base optimizer under ASkew can be unwrapped: its own state dict holds no tensor of ours."""
    model, opt = build("constant", "adam", "sawb")
    run(model, opt, range(3))
    other = Net()
    plain = Adam(askew.groups(other, LEVELS), lr=0.1)
    plain.load_state_dict(opt.base.state_dict())
    loss = sum(p.sum() for p in other.parameters())
    loss.backward()
    plain.step()
    assert all(float(entry["step"]) == 4 for entry in plain.state.values())
    assert torch.isfinite(other.fc.weight).all()


def test_diagnose_after_resume_shows_the_value_of_the_last_step():
    model, opt = build("exponential", "sgd", "none")
    run(model, opt, range(8))
    _, fresh = build("exponential", "sgd", "none", seed=1)
    fresh.load_state_dict(opt.state_dict())
    assert askew.diagnose(fresh).value == askew.diagnose(opt).value == opt.value()
    assert askew.diagnose(fresh).step == 8
