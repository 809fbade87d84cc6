"""The wrapper is an Optimizer like any other: closures, hooks, groups, scalers, schedulers, copies, memory."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import warnings
from collections import Counter
from itertools import product

import pytest
import torch
from optim_kit import (
    BASES,
    Net,
    differing,
    everything,
    frozen_copy,
    loss_at,
    on_levels,
    one_weight,
    random_like,
    small,
    through_a_file,
    train,
    weights_of,
)
from torch import nn
from torch.optim import LBFGS, SGD, Adam, AdamW, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import askew
from askew.core import Constant, EpsilonWarning, oracle
from askew.core.direction import snap
from askew.methods.base import Method
from askew.optim import MethodOptimizer

SCHEDULES = {"epsilon": Constant(0.5), "level-first": askew.LevelFirst(start=1, end=6)}


class Straight(Method):
    """A latent method for these tests: forward at the nearest level, gradient passed straight through."""

    name = "straight"
    latent = True

    def forward_weight(self, w, site):
        return snap(w, site.levels, site.scale)


def latent(base="sgd", seed=0, **options):
    model = Net(seed)
    return model, MethodOptimizer(BASES[base](askew.groups(model, askew.binary())), Straight(), **options)


# -- closures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("make", ["epsilon", "level-first", "latent"])
def test_step_with_a_closure_is_the_plain_step(make, base):
    """Same weights and state bit for bit, the loss returned, the closure called once a step."""
    build = (lambda: latent(base)) if make == "latent" else (lambda: small(SCHEDULES[make], base))
    (plain, opt), (model, other) = build(), build()
    for k in range(7):
        calls = []

        def closure(k=k, calls=calls):
            calls.append(k)
            other.zero_grad()
            loss = loss_at(model, k)
            loss.backward()
            return loss

        opt.zero_grad()
        expected = loss_at(plain, k)
        expected.backward()
        assert opt.step() is None
        opt_loss = other.step(closure)
        assert calls == [k]
        assert opt_loss.item() == expected.item()
    assert differing(everything(plain, opt), everything(model, other)) == []


def test_a_closure_has_gradients_enabled_under_no_grad():
    model, opt = small()
    with torch.no_grad():

        def closure():
            opt.zero_grad()
            loss = loss_at(model, 0)
            loss.backward()
            return loss

        opt.step(closure)
    assert opt.steps == 1


def test_a_latent_method_shows_the_closure_its_forward_weights():
    """The closure computes with levels, the optimizer moves the latents behind them, and both are kept apart."""
    model, opt = latent(alpha=0.1)
    start = Net(0).fc.weight
    seen = []

    def closure():
        opt.zero_grad()
        seen.append(model.fc.weight.detach().clone())
        loss = loss_at(model, 0)
        loss.backward()
        return loss

    for _ in range(3):
        opt.step(closure)
    assert all(torch.equal(w.abs(), torch.ones_like(w)) for w in seen)
    assert torch.equal(seen[0], torch.where(start >= 0, 1.0, -1.0))
    behind = opt.underlying(model.fc.weight)
    assert torch.equal(model.fc.weight, torch.where(behind >= 0, 1.0, -1.0))
    assert not torch.equal(behind, start)
    assert set(behind.unique().tolist()) != {-1.0, 1.0}


def test_a_failing_step_does_not_lose_latents(monkeypatch):
    """An exception half-way (Ctrl-C, out of memory) must not overwrite latents by the forward weights."""
    model, opt = latent()
    train(model, opt, range(2))
    behind = [opt.underlying(p).clone() for _, p, _ in opt.weights()]
    calls = []

    def interrupted(gradient, w, site):
        calls.append(site.name)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return gradient

    monkeypatch.setattr(opt.method, "direction", interrupted)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    assert differing(behind, [opt.underlying(p) for _, p, _ in opt.weights()]) == []


def test_latents_travel_in_the_state_dict():
    model, opt = latent("adam")
    train(model, opt, range(3))
    other, fresh = latent("adam", seed=6)
    file = through_a_file([model.state_dict(), opt.state_dict()])
    other.load_state_dict(file[0])
    fresh.load_state_dict(file[1])
    train(model, opt, range(3, 6))
    train(other, fresh, range(3, 6))
    assert differing(everything(model, opt), everything(other, fresh)) == []


def test_a_latent_method_refuses_an_unknown_schedule_before_anything_changes():
    model, opt = latent("adam", annealing=Constant(0.5))
    train(model, opt, range(2))
    saved = frozen_copy(opt.state_dict())
    header = json.loads(saved["param_groups"][0]["askew"])
    header["annealing"]["schedule"] = "Cosine"
    saved["param_groups"][0]["askew"] = json.dumps(header)
    train(model, opt, range(2, 4))
    kept = everything(model, opt)
    with pytest.raises(ValueError, match="no schedule named 'Cosine'"):
        opt.load_state_dict(saved)
    assert differing(kept, everything(model, opt)) == []


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_lbfgs_works_with_a_closure(schedule, search):
    """LBFGS evaluates the closure itself; weights move, the annealing ticks once, the loss of the start is returned."""
    w = random_like(torch.empty(6, 4, dtype=torch.float64), 0)
    aim = random_like(w, 1)
    p, opt = one_weight(
        w, askew.ternary(), SCHEDULES[schedule], lambda g: LBFGS(g, lr=0.3, max_iter=4, line_search_fn=search)
    )
    losses = []

    def closure():
        opt.zero_grad()
        loss = (p - aim).square().sum()
        loss.backward()
        losses.append(loss.item())
        return loss

    first = opt.step(closure)
    assert first.item() == losses[0] == (w - aim).square().sum().item()
    for _ in range(5):
        opt.step(closure)
    assert opt.steps == 6
    assert losses[-1] < losses[0]


def test_lbfgs_follows_the_skewed_direction():
    """Its first inner step is w + t v with v the oracle's direction and t = lr min(1, 1/|v|_1)."""
    w = random_like(torch.empty(15, dtype=torch.float64), 0)
    p, opt = one_weight(w, askew.ternary(), Constant(0.2), lambda g: LBFGS(g, lr=0.5, max_iter=1), alpha=0.3)

    def closure():
        opt.zero_grad()
        loss = (p - 0.4).square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    by_hand = [oracle.direction(2 * (q - 0.4), q, (-1, 0, 1), 0.2 / 16, 0.3, 1.0) for q in w.tolist()]
    v = torch.tensor(by_hand, dtype=torch.float64)
    torch.testing.assert_close(p.detach(), w + 0.5 * min(1.0, 1 / v.abs().sum().item()) * v, rtol=0, atol=1e-12)
    assert not torch.allclose(v, -2 * (w - 0.4))


def test_lbfgs_under_a_huge_epsilon_is_lbfgs():
    w, aim = (
        random_like(torch.empty(6, 4, dtype=torch.float64), 0),
        random_like(torch.empty(6, 4, dtype=torch.float64), 1),
    )

    def descend(p, opt):
        def closure():
            opt.zero_grad()
            loss = ((p - aim) ** 4).sum()
            loss.backward()
            return loss

        for _ in range(3):
            opt.step(closure)

    with pytest.warns(EpsilonWarning):
        p, opt = one_weight(w, askew.ternary(), Constant(1e12), lambda g: LBFGS(g, lr=0.5, max_iter=5))
    descend(p, opt)
    free = nn.Parameter(w.clone())
    descend(free, LBFGS([free], lr=0.5, max_iter=5))
    assert torch.equal(p, free)


def test_lbfgs_without_a_closure_is_an_error():
    _, opt = one_weight(torch.randn(3), askew.binary(), Constant(), lambda g: LBFGS(g))
    with pytest.raises(ValueError, match=r"LBFGS needs step\(closure\)"):
        opt.step()
    assert opt.steps == 0


def test_lbfgs_evaluates_latent_methods_at_their_forward_weights():
    p = nn.Parameter(random_like(torch.empty(12), 0))
    opt = MethodOptimizer(LBFGS([{"params": [p], "levels": askew.binary()}], lr=0.1, max_iter=3), Straight())
    seen = []

    def closure():
        opt.zero_grad()
        seen.append(p.detach().clone())
        loss = (p - torch.linspace(-2, 2, 12)).square().sum()
        loss.backward()
        return loss

    opt.step(closure)
    assert len(seen) > 2
    assert all(w.abs().eq(1).all() for w in seen)
    assert not opt.underlying(p).abs().eq(1).any()


# -- hooks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [*BASES, "lbfgs"])
def test_hooks_fire_exactly_once_a_step(base):
    """Registered on the wrapper, on the base (before and after wrapping) or globally; with the wrapper as optimizer."""
    p = nn.Parameter(random_like(torch.empty(4), 0))
    groups = [{"params": [p], "levels": askew.binary()}]
    inner = LBFGS(groups, max_iter=3) if base == "lbfgs" else BASES[base](groups)
    fired: list[str] = []
    seen: set[object] = set()

    def note(what):
        def hook(optimizer, args, kwargs):
            fired.append(what)
            seen.add(optimizer)

        return hook

    inner.register_step_pre_hook(note("base pre, early"))
    opt = askew.ASkew(inner, Constant(0.5))
    handles = [
        opt.register_step_pre_hook(note("wrapper pre")),
        opt.register_step_post_hook(note("wrapper post")),
        inner.register_step_pre_hook(note("base pre")),
        inner.register_step_post_hook(note("base post")),
        register_optimizer_step_pre_hook(note("global pre")),
        register_optimizer_step_post_hook(note("global post")),
    ]

    def closure():
        opt.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    try:
        for _ in range(3):
            fired.clear()
            opt.step(closure)
            assert sorted(fired) == sorted(
                ["base pre, early", "base pre", "base post", "wrapper pre", "wrapper post", "global pre", "global post"]
            )
    finally:
        for handle in handles:
            handle.remove()
    fired.clear()
    opt.step(closure)
    assert fired == ["base pre, early"]
    assert seen == {opt}


def test_a_pre_hook_may_change_the_gradient_and_the_arguments():
    """A hook sees the user's gradient, may clip it in place, and may bring the closure."""
    model, opt = small()

    def closure():
        opt.zero_grad()
        loss_at(model, 0).backward()
        return 7.0

    handle = opt.register_step_pre_hook(lambda o, args, kwargs: ((o, closure), kwargs))
    assert opt.step() == 7.0
    handle.remove()
    opt.register_step_pre_hook(
        lambda o, args, kwargs: [p.grad.zero_() for g in o.param_groups for p in g["params"]] and None
    )
    before = frozen_copy(opt.state[model.fc.bias]["momentum_buffer"])
    opt.step()
    assert torch.equal(opt.state[model.fc.bias]["momentum_buffer"], 0.9 * before)


def test_state_dict_hooks_fire_once():
    model, opt = small()
    train(model, opt, range(1))
    fired = []
    opt.register_state_dict_pre_hook(lambda o: fired.append("save pre"))
    opt.register_state_dict_post_hook(lambda o, d: fired.append("save post"))
    opt.register_load_state_dict_pre_hook(lambda o, d: fired.append("load pre"))
    opt.register_load_state_dict_post_hook(lambda o: fired.append(o.param_groups[0]["levels"].name))
    opt.load_state_dict(opt.state_dict())
    assert fired == ["save pre", "save post", "load pre", "binary"]


# -- new groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_add_param_group_mid_run(schedule, base, named):
    """A group with levels and one without, added after a few steps: the new weights equal a run by themselves."""
    first = nn.Parameter(random_like(torch.empty(4, 3), 0))
    pack = lambda name, p: (name, p) if named else p  # noqa: E731
    opt = askew.ASkew(
        BASES[base]([{"params": [pack("first", first)], "levels": askew.binary()}]), SCHEDULES[schedule], alpha=0.3
    )

    def step(*params):
        for i, p in enumerate(params):
            p.grad = random_like(p, 10 * opt.steps + i)
        opt.step()

    for _ in range(3):
        step(first)
    second, third = (nn.Parameter(random_like(torch.empty(5, 2), i)) for i in (1, 2))
    start = second.detach().clone()
    opt.add_param_group({"params": [pack("second", second)], "levels": [-1.0, 0.0, 1.0], "alpha": 0.6, "scale": "sawb"})
    opt.add_param_group({"params": pack("third", third) if not named else [pack("third", third)], "levels": None})
    assert [g["alpha"] for g in opt.param_groups] == [0.3, 0.6, 0.3]
    assert [name for name, _, _ in opt.weights()] == (["first", "second"] if named else ["parameter 0"] * 2)
    moved = third.detach().clone()
    gradients = []
    for k in range(4):
        gradients.append(random_like(second, 10 * (3 + k) + 1))
        step(first, second, third)
    alone = nn.Parameter(start)
    other = askew.ASkew(
        BASES[base]([{"params": [alone], "levels": askew.ternary()}]), SCHEDULES[schedule], alpha=0.6, scale="sawb"
    )
    other.steps = 3
    for gradient in gradients:
        alone.grad = gradient
        other.step()
    assert torch.equal(second, alone)
    assert not torch.equal(third, moved)
    assert opt.value(1) == other.value(0)
    saved = through_a_file(opt.state_dict())
    opt.load_state_dict(saved)
    assert differing(saved, opt.state_dict()) == []


BAD_GROUPS = {
    "levels": ({"levels": [1.0, 0.0]}, r"group 2, new.*increase strictly"),
    "alpha": ({"levels": askew.binary(), "alpha": -1.0}, r"group 2, new.*alpha"),
    "clip": ({"levels": askew.binary(), "clip": 0.0}, r"group 2, new.*clip"),
    "scale": ({"levels": askew.binary(), "scale": "max"}, r"group 2, new.*scale"),
    "per": ({"levels": askew.binary(), "scale": "sawb", "per": "channel"}, r"group 2, new.*two dimensions"),
    "names": ({"params": [torch.zeros(2)], "levels": askew.binary()}, "with/without names"),
    "set": ({"params": {torch.zeros(2)}, "levels": askew.binary()}, "ordered collections"),
    "not a tensor": ({"params": [("new", "weight")], "levels": askew.binary()}, "can only optimize Tensors"),
}


@pytest.mark.parametrize("case", BAD_GROUPS)
def test_a_bad_group_is_refused_before_anything_changes(case):
    model, opt = small(base="adam")
    train(model, opt, range(2))
    before = everything(model, opt)
    extra, message = BAD_GROUPS[case]
    group = {"params": [("new", nn.Parameter(torch.zeros(2)))], **extra}
    kept = dict(group)
    with pytest.raises((ValueError, TypeError), match=message):
        opt.add_param_group(group)
    assert differing(before, everything(model, opt)) == []
    assert group == kept
    train(model, opt, range(2, 4))


def test_a_parameter_cannot_be_added_twice():
    model, opt = small()
    with pytest.raises(ValueError, match="more than one parameter group"):
        opt.add_param_group({"params": [("fc.weight", model.fc.weight)], "levels": askew.ternary()})
    assert len(opt.param_groups) == 2


def test_a_new_group_above_the_bound_warns_once():
    model = Net()
    with pytest.warns(EpsilonWarning):
        opt = askew.ASkew(SGD(askew.groups(model, askew.binary()), lr=0.1), Constant(2.0))
    with pytest.warns(EpsilonWarning, match="group 2") as caught:
        opt.add_param_group({"params": [("new", nn.Parameter(torch.zeros(2)))], "levels": askew.binary()})
    assert len(caught) == 1


# -- scaler and schedulers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [*BASES, "fused"])
def test_grad_scaler_on_cpu(base):
    """Scaling by a power of two changes no bit; a step that the scaler skips changes nothing at all."""
    make = lambda: (lambda g: AdamW(g, lr=0.02, fused=True)) if base == "fused" else BASES[base]  # noqa: E731
    model, other = Net(), Net()
    opt, plain = (
        askew.ASkew(make()(askew.groups(m, askew.binary())), SCHEDULES["level-first"]) for m in (model, other)
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=1000)
    for k in range(6):
        opt.zero_grad()
        scaler.scale(loss_at(model, k)).backward()
        if k == 3:
            kept = everything(model, opt)
            model.fc.weight.grad[0, 0] = torch.inf
            scaler.step(opt)
            assert differing(kept["state dict"], frozen_copy(opt.state_dict())) == []
            assert differing(kept["weights"], weights_of(model)) == []
            assert opt.steps == 3
            scaler.update()
            assert scaler.get_scale() == 128.0
            continue
        scaler.unscale_(opt)
        scaler.step(opt)
        scaler.update()
        train(other, plain, [k])
    assert differing(weights_of(other), weights_of(model)) == []
    assert opt.steps == plain.steps == 5


LR = {
    "step": lambda opt: lr_scheduler.StepLR(opt, 2, 0.5),
    "cosine": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 8),
    "one-cycle": lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=9),
    "sequential": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.ConstantLR(opt, 0.1, 3), lr_scheduler.ExponentialLR(opt, 0.8)], milestones=[3]
    ),
    "plateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=1),
    "lambda": lambda opt: lr_scheduler.LambdaLR(opt, lambda k: k / 4),
}


@pytest.mark.parametrize("where", ["on the wrapper", "on the base"])
@pytest.mark.parametrize("name", LR)
def test_schedulers_give_the_same_rates_as_on_the_base(name, where):
    """Learning rates (and OneCycle's momenta) agree with a plain optimizer's at every step, without a warning."""
    model, opt = small(base="sgd")
    free = Net()
    plain = BASES["sgd"](askew.groups(free, askew.binary()))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lr_scheduler.step|.*optimizer.step")
        ours, theirs = LR[name](opt if where == "on the wrapper" else opt.base), LR[name](plain)
        for k in range(8):
            rates = [[(g["lr"], g["momentum"]) for g in o.param_groups] for o in (opt, plain)]
            assert rates[0] == rates[1], k
            train(model, opt, [k])
            train(free, plain, [k])
            metric = [1.0] if name == "plateau" else []
            ours.step(*metric)
            theirs.step(*metric)
    assert len({g["lr"] for g in opt.param_groups}) == 1
    assert opt.steps == 8


def test_the_learning_rate_of_a_scheduler_moves_the_weights():
    """The wrapper has no copy of the learning rate: at rate 0 nothing moves."""
    model, opt = small()
    lr_scheduler.LambdaLR(opt, lambda k: 0.0)
    before = weights_of(model)
    train(model, opt, range(3))
    assert differing(before, weights_of(model)) == []


# -- copies -----------------------------------------------------------------------------------------------------------


def duplicates(pair, how):
    return copy.deepcopy(pair) if how == "deepcopy" else pickle.loads(pickle.dumps(pair))


@pytest.mark.parametrize("scheduler", [False, True], ids=["bare", "scheduled"])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("schedule", [Constant(0.5), askew.Plateau(), askew.LevelFirst(start=1, end=6, by="quantile")])
def test_a_copy_is_independent_and_goes_on_the_same(schedule, how, scheduler):
    """Also with a scheduler attached, which puts a function bound to the original in front of `step`."""
    model, opt = small(schedule, base="adam", scale="sawb")
    if scheduler:
        lr_scheduler.StepLR(opt, 1)
    train(model, opt, range(3))
    askew.diagnose(opt)
    opt.zero_grad()  # a copied nn.Parameter has no gradient
    twin, other = duplicates((model, opt), how)
    before = everything(model, opt)
    assert differing(before, everything(twin, other)) == []
    train(twin, other, range(3, 6))
    assert differing(before, everything(model, opt)) == []
    assert other.steps == 6
    train(model, opt, range(3, 6))
    assert differing(everything(model, opt), everything(twin, other)) == []
    assert askew.diagnose(opt) == askew.diagnose(other)


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_hooks_work_on_a_copy(how):
    """As in torch a copy has no hooks of the original; new ones on the copied wrapper or its base fire once."""
    model, opt = small()
    fired = []
    if how == "deepcopy":
        opt.register_step_pre_hook(lambda *_: fired.append("original"))
    twin, other = duplicates((model, opt), how)
    other.register_step_pre_hook(lambda *_: fired.append("wrapper"))
    other.base.register_step_pre_hook(lambda *_: fired.append("base"))
    train(twin, other, range(1))
    assert fired == ["wrapper", "base"]


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["epsilon", "level-first", "latent"])
@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_and_the_users_gradient(make, to_none):
    """After a step p.grad is the very tensor the backward pass left, with its values; zero_grad clears it."""
    model, opt = latent() if make == "latent" else small(SCHEDULES[make], "adamw")
    for k in range(3):
        opt.zero_grad(set_to_none=to_none)
        assert all(p.grad is None or not p.grad.any() for p in model.parameters())
        loss_at(model, k).backward()
        held = [p.grad for p in model.parameters()]
        values = frozen_copy(held)
        opt.step()
        assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))
        assert differing(values, held) == []


def test_the_users_gradient_comes_back_when_the_base_fails(monkeypatch):
    model, opt = small(askew.LevelFirst(start=0, end=2), fused=False)
    train(model, opt, range(2))
    held = [p.grad for p in model.parameters()]
    monkeypatch.setattr(SGD, "step", lambda self, closure=None: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        opt.step()
    assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_parameters_without_gradient_are_left_alone(schedule, base):
    """Not even clamped; their base state stays empty; weights with a gradient move as if alone."""
    model, opt = small(SCHEDULES[schedule], base, clamp=True, scale="sawb")
    with torch.no_grad():
        model.conv.weight.mul_(9)
    before = model.conv.weight.detach().clone()
    alone, other = small(SCHEDULES[schedule], base, levels={"fc": askew.binary()}, clamp=True, scale="sawb")
    for k in range(4):
        x = random_like(torch.empty(8, 16), k)
        for m, o in ((model, opt), (alone, other)):
            o.zero_grad()
            m.fc(x).square().mean().backward()
            o.step()
    assert torch.equal(model.conv.weight, before)
    assert not opt.state.get(model.conv.weight)
    assert torch.equal(model.fc.weight, alone.fc.weight)


def test_at_the_last_step_of_level_first_every_weight_lands():
    """A weight that happens to have no gradient at the last step must not be left off its level."""
    model, opt = small(askew.LevelFirst(), total_steps=6)
    train(model, opt, range(5))
    opt.zero_grad()
    model.fc(torch.ones(1, 16)).sum().backward()
    assert model.conv.weight.grad is None
    opt.step()
    assert on_levels(opt)


def test_snap_puts_the_weights_on_levels_for_good():
    model, opt = small(scale="abs-mean", levels=askew.uniform(2))
    train(model, opt, range(2))  # a constant epsilon has started: the scale is frozen
    assert not on_levels(opt)
    opt.snap_()
    assert on_levels(opt)
    model, opt = latent()
    train(model, opt, range(2))
    opt.snap_()
    assert all(torch.equal(opt.underlying(p), p) for _, p, _ in opt.weights())


# -- the schedule's value ---------------------------------------------------------------------------------------------


def test_value_and_tick_count_in_units_of_the_groups_bound():
    model, opt = small(
        askew.Exponential(K=0.5, start=2, period=1), levels={"conv": askew.binary(), "fc": askew.uniform(2)}
    )
    seen = []
    train(model, opt, range(4), lambda k: seen.append((opt.value(0), opt.value(1))))
    assert seen == [(v, v / 16) for v in (1.0, 1.0, 1.0, 0.5)]
    opt.tick()
    assert (opt.steps, opt.value(0)) == (5, 0.25)


def test_report_is_for_plateau_only():
    _, opt = small()
    with pytest.raises(ValueError, match="Plateau"):
        opt.report(1.0)
    _, opt = small(askew.Plateau())
    with pytest.raises(ValueError, match="finite"):
        opt.report(float("nan"))


# -- memory -----------------------------------------------------------------------------------------------------------


def test_no_latent_copy():
    """Between steps only the weight and the base optimizer's moments have the weight's size."""
    schedules = [*SCHEDULES.values(), askew.LevelFirst(start=1, end=6, by="quantile")]
    bases = [(lambda g: SGD(g, lr=0.1), 0), (lambda g: SGD(g, lr=0.1, momentum=0.9), 1), (lambda g: Adam(g, lr=0.1), 2)]
    expected, held = Counter(), []
    for i, (schedule, (base, moments)) in enumerate(product(schedules, bases)):
        shape = (1037, 2 * i + 3)  # nobody else's
        p, opt = one_weight(torch.zeros(shape), askew.ternary(), schedule, base)
        for k in range(4):
            p.grad = random_like(p, k)
            opt.step()
        opt.zero_grad()
        held.append(opt)
        expected[shape] = 1 + moments
        own = [t for memory in opt._memory.values() for t in memory.values()]
        assert all(t.numel() == 1 for t in (*own, *opt._value_dials.tensors))
    gc.collect()
    tensors = [tuple(o.shape) for o in gc.get_objects() if type(o) in (torch.Tensor, nn.Parameter)]
    assert Counter(shape for shape in tensors if shape in expected) == expected


def test_the_base_state_has_no_foreign_keys():
    model, opt = small(askew.LevelFirst(start=1, end=6, by="quantile"), base="adam", scale="sawb")
    train(model, opt, range(4))
    assert {key for entry in opt.base.state.values() for key in entry} == {"step", "exp_avg", "exp_avg_sq"}
    assert opt.state is opt.base.state
    assert opt.param_groups is opt.base.param_groups


def test_repr_names_the_wrapper_and_its_options():
    _, opt = small()
    assert repr(opt).startswith("ASkew (")
    assert "levels: LevelSet" in repr(opt)


def test_a_method_describes_itself_and_full_precision_changes_nothing():
    """The peer method without constraint: the base optimizer bit for bit, nothing is snapped."""
    from askew.methods.base import FullPrecision

    free, model = Net(), Net()
    opt = MethodOptimizer(BASES["adam"](askew.groups(model, askew.binary())), FullPrecision(), fused=False)
    train(free, BASES["adam"](free.parameters()), range(4))
    train(model, opt, range(4))
    assert differing(weights_of(free), weights_of(model)) == []
    with askew.snapped(opt):
        assert differing(weights_of(free), weights_of(model)) == []
    assert FullPrecision().describe() == {"method": "full-precision"}
