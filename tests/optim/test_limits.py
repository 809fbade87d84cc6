"""The limits in which ASkew must equal something known: Algorithm 1 by hand, the base optimizer, Z_eps, the levels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optim_kit import BASES, CUSTOM, LEVELS, SCALES, Net, loss_at, on_levels, one_weight, random_like, small, train
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, RMSprop

import askew
from askew.core import Clock, Constant, EpsilonWarning, oracle
from askew.core.direction import snap
from askew.core.scale import scale_of

SEEDS = st.integers(0, 2**20)


# -- Algorithm 1 ------------------------------------------------------------------------------------------------------


def hand_direction(u: Tensor, w: Tensor, levels, epsilon: float, alpha: float, clip: float) -> Tensor:
    """s^c_{eps,alpha}(u, w) by the oracle, one coordinate at a time."""
    pairs = zip(u.tolist(), w.tolist(), strict=True)
    v = [oracle.direction(x, q, levels.values, epsilon, alpha, clip) for x, q in pairs]
    return torch.tensor(v, dtype=torch.float64)


def bowl(w: Tensor, k: int) -> Tensor:
    """The gradient of a bowl, with noise that depends on the step only."""
    return 0.7 * (w - random_like(w, 1)) + 0.3 * random_like(w, 100 + k)


def start_at(levels, seed: int) -> Tensor:
    """Weights inside and outside the range, on levels and on exact midpoints, in float64."""
    c = levels.values
    spread = random_like(torch.empty(9, dtype=torch.float64), seed) * (c[-1] - c[0])
    return torch.cat([spread, torch.tensor([c[0], c[-1], levels.midpoints[0]], dtype=torch.float64)])


SCHEDULES = {
    "constant": (Constant(0.4), None),
    "exponential": (askew.Exponential(K=0.7, start=0.25, period=2, initial=0.95), 24),
    "exponential-steps": (askew.Exponential(K=0.8, start=5, period=3, initial=0.9), None),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@settings(max_examples=5)
@given(
    seed=SEEDS,
    lr=st.sampled_from([0.02, 0.1, 0.3]),
    alpha=st.sampled_from([0.1, 0.5, 1.3]),
    clip=st.sampled_from([0.3, 1.0]),
)
def test_sgd_is_algorithm_1(schedule, levels, seed, lr, alpha, clip):
    """w += lr v with the oracle's direction, epsilon in units of Theorem 1's bound, no clamp."""
    annealing, total = SCHEDULES[schedule]
    w = start_at(levels, seed)
    p, opt = one_weight(
        w, levels, annealing, lambda g: SGD(g, lr=lr), alpha=alpha, clip=clip, clamp=False, total_steps=total
    )
    for k in range(24):
        p.grad = bowl(p.detach(), k)
        opt.step()
        epsilon = annealing.value(Clock(k, total)) * levels.min_gap**4 / 16
        w = w + lr * hand_direction(bowl(w, k), w, levels, epsilon, alpha, clip)
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("scale", "per"), SCALES[1:])
@settings(max_examples=5)
@given(seed=SEEDS)
def test_sgd_under_a_scale_is_algorithm_1_in_level_units(scale, per, seed):
    """The constraint at w / s, the velocity times s; a constant epsilon freezes the scale at the first step."""
    levels, lr, alpha, clip = askew.uniform(3), 0.1, 0.5, 0.4
    w = 0.1 * random_like(torch.empty(3, 4, dtype=torch.float64), seed)
    s = scale_of(w, levels, scale, per).expand_as(w)
    p, opt = one_weight(w, levels, Constant(0.4), lambda g: SGD(g, lr=lr), alpha=alpha, clip=clip, scale=scale, per=per)
    bound = 0
    for k in range(12):
        p.grad = 0.1 * bowl(p.detach(), k)
        opt.step()
        u = 0.1 * bowl(w, k)
        v = hand_direction((u / s).flatten(), (w / s).flatten(), levels, 0.4 / 16, alpha, clip).view_as(w) * s
        bound += int((v != -u).sum())
        w = w + lr * v
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=1e-12)
    assert bound > 0, "the constraint never bound: this run shows nothing"


def test_quarter_clip_moves_at_most_a_quarter_gap():
    """M = h / (4 lr): a violated weight whose floor is steeper, or at a midpoint, moves by a quarter of the gap."""
    levels, lr = askew.uniform(2), 0.05
    w = torch.tensor([0.5 - 1e-6, 0.5, 0.2], dtype=torch.float64)
    p, opt = one_weight(w, levels, Constant(0.01), lambda g: SGD(g, lr=lr), alpha=5.0, clip="quarter")
    p.grad = torch.zeros_like(p)
    opt.step()
    assert (p - w)[:2].tolist() == pytest.approx([-0.25, 0.25], abs=1e-12)
    assert abs((p - w)[2].item()) <= 0.25


@pytest.mark.parametrize("tensor_lr", [False, True])
def test_quarter_clip_at_learning_rate_zero(tensor_lr):
    """A warm-up from lr 0 must neither divide by zero nor send infinity into the momentum."""
    lr = torch.tensor(0.0) if tensor_lr else 0.0
    w = torch.tensor([0.0, 0.3])  # an exact midpoint gets +M
    p, opt = one_weight(w, askew.binary(), Constant(0.1), lambda g: SGD(g, lr=lr, momentum=0.9), clip="quarter")
    p.grad = torch.ones_like(p)
    opt.step()
    assert torch.equal(p, w)
    assert bool(opt.state[p]["momentum_buffer"].isfinite().all())


@pytest.mark.parametrize("clamp", [False, True])
@settings(max_examples=6)
@given(seed=SEEDS)
def test_under_adam_the_skew_comes_first(clamp, seed):
    """Equal to a hand-written loop that overwrites p.grad by -v, steps Adam, and clamps if told to."""
    levels, epsilon = askew.ternary(), 0.5 / 16
    w = start_at(levels, seed)
    base = lambda g: Adam(g, lr=0.03)  # noqa: E731
    p, opt = one_weight(w, levels, Constant(0.5), base, alpha=0.3, clip=1.0, clamp=clamp)
    by_hand = torch.nn.Parameter(w.clone())
    adam = Adam([by_hand], lr=0.03)
    for k in range(20):
        p.grad = bowl(p.detach(), k)
        opt.step()
        here = by_hand.detach()
        by_hand.grad = -hand_direction(bowl(here, k), here, levels, epsilon, 0.3, 1.0)
        adam.step()
        if clamp:
            with torch.no_grad():
                by_hand.clamp_(-1, 1)
        torch.testing.assert_close(p.detach(), by_hand.detach(), rtol=0, atol=1e-12)


# -- huge epsilon is the base optimizer -------------------------------------------------------------------------------

FREE = {
    "sgd": (SGD, {}),
    "sgd-momentum": (SGD, {"momentum": 0.9, "dampening": 0.1}),
    "sgd-nesterov": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (Adam, {}),
    "adam-amsgrad": (Adam, {"amsgrad": True, "weight_decay": 0.01}),
    "adamw": (AdamW, {"weight_decay": 0.1}),
    "rmsprop": (RMSprop, {"momentum": 0.9, "centered": True}),
}
LOOPS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("base", FREE)
def test_huge_epsilon_is_the_base_optimizer(base, loop, dtype):
    """Weights, moments and step counts agree bit for bit."""
    kind, options = FREE[base]
    if kind is RMSprop and loop == "fused":
        pytest.skip("torch has no fused RMSprop")
    if kind is SGD and "momentum" in options and loop == "fused" and dtype == torch.bfloat16:
        pytest.skip("torch's own fused SGD leaves uninitialised numbers in bf16 momentum buffers on the CPU (2.13)")
    options = {"lr": 0.01, **options, **LOOPS[loop]}
    free, model = Net(dtype=dtype), Net(dtype=dtype)
    plain = kind(free.parameters(), **options)
    wrapped = kind(askew.groups(model, {"conv": askew.binary(), "fc": askew.uniform(3)}), **options)
    with pytest.warns(EpsilonWarning):
        opt = askew.ASkew(wrapped, Constant(1e12), fused=False)
    train(free, plain, range(6))
    train(model, opt, range(6))
    for (name, a), (_, b) in zip(free.named_parameters(), model.named_parameters(), strict=True):
        assert torch.equal(a, b), name
        assert plain.state[a].keys() == opt.state[b].keys()
        for key, value in plain.state[a].items():
            assert value is None or torch.equal(value, opt.state[b][key]), (name, key)


@pytest.mark.parametrize("scale", ["abs-mean", "sawb"])
def test_huge_epsilon_is_the_base_optimizer_under_a_scale(scale):
    free, model = Net(), Net()
    with pytest.warns(EpsilonWarning):
        opt = askew.ASkew(
            Adam(askew.groups(model, askew.uniform(4)), lr=0.01),
            Constant(1e12),
            scale=scale,
            per="channel",
            fused=False,
        )
    train(free, Adam(free.parameters(), lr=0.01), range(6))
    train(model, opt, range(6))
    assert all(torch.equal(a, b) for a, b in zip(free.parameters(), model.parameters(), strict=True))


def test_level_first_is_the_base_optimizer_until_it_starts():
    free, (model, opt) = Net(), small(askew.LevelFirst(start=5, end=9), base="adam", clamp=False, fused=False)
    train(free, BASES["adam"](free.parameters()), range(6))
    train(model, opt, range(6))  # at clock 5 the radius is still 0
    assert all(torch.equal(a, b) for a, b in zip(free.parameters(), model.parameters(), strict=True))
    train(free, BASES["adam"](free.parameters()), range(6, 9))
    train(model, opt, range(6, 9))
    assert not torch.equal(free.fc.weight, model.fc.weight)


# -- Theorem 1 --------------------------------------------------------------------------------------------------------


def bowls(seed: int, levels) -> tuple[Tensor, Tensor, Tensor]:
    """Eight quadratics (w - m)' H (w - m) / 2 in six dimensions, H's eigenvalues .7 to 1.6: (H, m, starts w)."""
    reach = levels.values[-1] - levels.values[0]
    centre = (levels.values[-1] + levels.values[0]) / 2
    random = [
        random_like(torch.empty(8, 6, *more, dtype=torch.float64), seed + i) for i, more in enumerate([(6,), (), ()])
    ]
    q, _ = torch.linalg.qr(random[0])
    eigenvalues = torch.linspace(0.7, 1.6, 6, dtype=torch.float64)
    return q @ (eigenvalues[:, None] * q.mT), centre + random[1] * reach / 2, centre + random[2] * reach / 2


def residual(w: Tensor, u: Tensor, levels, epsilon: float) -> tuple[float, float]:
    """(largest |w - P(w - u)|, largest distance outside): P onto the feasible piece around the nearest level."""
    pieces = oracle.intervals(levels.values, epsilon)
    worst = outside = 0.0
    for q, g in zip(w.flatten().tolist(), u.flatten().tolist(), strict=True):
        level = oracle.nearest(q, levels.values)
        low, high = next((a, b) for a, b in pieces if a <= level <= b)
        worst = max(worst, abs(q - min(max(q - g, low), high)))
        outside = max(outside, low - q, q - high)
    return worst, outside


def descend(seed, levels, share, alpha, pace, steps, noise=0.0) -> tuple[float, float]:
    """SGD under ASkew with step sizes `pace(k)`; the KKT residual at the end, with the exact gradient."""
    hessian, minimiser, w = bowls(seed, levels)
    gradient = lambda w: torch.einsum("bij,bj->bi", hessian, w - minimiser)  # noqa: E731
    p, opt = one_weight(w, levels, Constant(share), lambda g: SGD(g, lr=1.0), alpha=alpha, clip=1.0)
    draws = torch.Generator().manual_seed(seed)
    for k in range(1, steps + 1):
        opt.param_groups[0]["lr"] = pace(k)
        p.grad = gradient(p.detach())
        if noise:
            p.grad += noise * torch.randn(p.shape, generator=draws, dtype=torch.float64)
        opt.step()
    return residual(p.detach(), gradient(p.detach()), levels, share * levels.epsilon_bound)


KKT = {
    "levels": st.sampled_from([askew.binary(), askew.ternary(), CUSTOM]),
    "share": st.floats(0.05, 0.7),
    "seed": SEEDS,
}


@settings(max_examples=6)
@given(alpha=st.floats(0.7, 2.0), **KKT)
def test_theorem_1_decreasing_steps_reach_the_kkt_set(levels, share, seed, alpha):
    worst, outside = descend(seed, levels, share, alpha, lambda k: k**-0.7, 800)
    assert worst < 1e-3
    assert outside < 1e-3


@settings(max_examples=6)
@given(alpha=st.floats(0.7, 2.0), **KKT)
def test_theorem_1_noisy_gradients(levels, share, seed, alpha):
    """Noise of .1 in every gradient: the exact residual ends within a few standard deviations of the last steps."""
    worst, outside = descend(seed, levels, share, alpha, lambda k: k**-0.7, 800, noise=0.1)
    assert worst < 0.05
    assert outside < 0.02


@settings(max_examples=6)
@given(alpha=st.floats(0.7, 2.0), **KKT)
def test_constant_small_steps_reach_the_kkt_set_with_exact_gradients(levels, share, seed, alpha):
    worst, outside = descend(seed, levels, share, alpha, lambda k: 0.05, 400)
    assert worst < 1e-3
    assert outside < 1e-3


def test_the_kkt_residual_is_not_small_before():
    """The tests above could fail: at the start, and for the unconstrained minimiser, the residual is large."""
    hessian, minimiser, w = bowls(3, askew.binary())
    start = residual(w, torch.einsum("bij,bj->bi", hessian, w - minimiser), askew.binary(), 0.3)
    free = residual(minimiser, torch.zeros_like(w), askew.binary(), 0.3)
    assert min(start[0], free[0]) > 0.1


@pytest.mark.parametrize("base", BASES)
def test_epsilon_to_zero_lands_on_levels(base):
    """With eps = 1e-8 of the bound at the end, every weight lies within the slack of the border around a level."""
    model, opt = small(
        askew.Logarithmic(final=1e-8, start=0.1, end=0.7),
        base=base,
        levels=askew.ternary(),
        alpha=2.0,
        clamp=True,
        total_steps=400,
    )
    train(model, opt, range(400))
    for _, p, site in opt.weights():
        assert (p - snap(p, site.levels)).abs().max().item() < 0.02


# -- level-first ends on the levels -----------------------------------------------------------------------------------


def drive(p: Tensor, opt: askew.ASkew, steps: int, seed: int = 0) -> None:
    """Steps on noisy gradients of a bowl around random points, in p's dtype."""
    aim = random_like(p, seed + 77)
    for k in range(steps):
        p.grad = (p.detach() - aim) + 0.5 * random_like(p, 1000 * seed + k)
        opt.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=["f32", "bf16", "f64"])
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("base", BASES)
def test_level_first_ends_exactly_on_levels(base, levels, dtype):
    """weights == snap(weights) bit for bit and distance exactly 0, for every scale, by radius and by quantile."""
    start = random_like(torch.empty(5, 7, dtype=dtype), 5)
    for i, (scale, per) in enumerate(SCALES):
        by = ("radius", "quantile")[i % 2]
        annealing = askew.LevelFirst(start=0.3, by=by)
        p, opt = one_weight(start, levels, annealing, BASES[base], total_steps=12, scale=scale, per=per)
        drive(p, opt, 11)
        if levels is not LEVELS["binary"]:
            assert not on_levels(opt), "the last step has nothing to do: this run shows nothing"
        drive(p, opt, 1, seed=1)
        assert on_levels(opt), (scale, per)
        row = askew.diagnose(opt).overall
        assert (row.distance_max, row.distance_mean, row.feasible) == (0.0, 0.0, 1.0), (scale, per)
        values = torch.tensor(levels.values, dtype=torch.float64)
        s = 1.0 if scale == "none" else opt.weights()[0][2].scale.double()
        reachable = (values[:, None, None] * s).expand(-1, *p.shape)
        off = (reachable - p.detach().double()).abs().amin(0) / (reachable.abs().amax() + 1)
        assert float(off.max()) < {torch.bfloat16: 2**-8, torch.float32: 2**-23, torch.float64: 2**-51}[dtype]


@pytest.mark.parametrize("start", [0.5, 0.97])
def test_level_first_ends_on_levels_however_late_it_starts(start):
    """There may be no step between start and the last one: scales must be frozen by the last one all the same."""
    p, opt = one_weight(
        random_like(torch.empty(5, 7), 5), askew.uniform(3), askew.LevelFirst(start=start, end=1.0), BASES["adam"],
        total_steps=10, scale="sawb", per="channel",
    )  # fmt: skip
    drive(p, opt, 10)
    assert on_levels(opt)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_dithered_level_first_ends_exactly_on_levels(levels, dtype):
    """The network's weights are drawn at random around the optimised ones; at the end both are the same levels."""
    torch.manual_seed(0)
    for scale, per in SCALES:
        start = random_like(torch.empty(40, 25, dtype=dtype), 5)
        annealing = askew.LevelFirst(start=0.3, dither=True)
        p, opt = one_weight(start, levels, annealing, BASES["adam"], total_steps=10, scale=scale, per=per)
        drive(p, opt, 9)
        assert on_levels(opt), "the network computes with levels at every step"
        assert not torch.equal(p, opt.underlying(p))
        drive(p, opt, 1, seed=1)
        assert on_levels(opt)
        assert torch.equal(p, opt.underlying(p)), (scale, per)


def test_level_first_stays_on_levels_after_the_end():
    p, opt = one_weight(
        random_like(torch.empty(5, 7), 5), askew.ternary(), askew.LevelFirst(), BASES["adamw"], total_steps=8
    )
    drive(p, opt, 14)
    assert on_levels(opt)


def test_level_first_trains_a_net_onto_its_levels():
    """A real net: the loss falls, the network itself (nothing snapped) computes with levels only."""
    model, opt = small(askew.LevelFirst(start=0.2), base="adam", levels=askew.uniform(3), scale="sawb", total_steps=60)
    first = sum(loss_at(model, k).item() for k in range(5))
    train(model, opt, [k % 5 for k in range(60)])
    assert sum(loss_at(model, k).item() for k in range(5)) < first
    assert on_levels(opt)
    assert len(model.conv.weight.unique()) <= 8 and len(model.fc.weight.unique()) <= 8


def test_a_captured_weight_on_its_level_stays():
    """Momentum does not carry a captured weight off its level (level units; scales and bf16: the test below)."""
    p, opt = one_weight(torch.tensor([1.0, -1.0, 0.4]), askew.binary(), askew.LevelFirst(start=0, end=10), BASES["sgd"])
    p.grad = torch.zeros_like(p)
    opt.step()  # at the first step the radius is 0
    opt.state[p]["momentum_buffer"] = torch.tensor([3.0, -3.0, 0.0])
    for k in range(8):
        p.grad = random_like(p, k)
        opt.step()
        assert p.detach()[:2].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("case", ["scale", "bf16"])
def test_a_captured_weight_on_its_level_stays_also_when_it_rounds(case):
    """A weight that equals snap(w) bit for bit is on its level though w / s (or bf16's w) is not the level exactly."""
    dtype, levels, scale = (
        (torch.float32, askew.uniform(3), "sawb") if case == "scale" else (torch.bfloat16, CUSTOM, "none")
    )
    w = random_like(torch.empty(64, 9, dtype=dtype), 0)
    p, opt = one_weight(w, levels, askew.LevelFirst(start=0, end=20), BASES["adam"], scale=scale, per="channel")
    for k in range(60):
        before = p.detach().clone()
        p.grad = random_like(p, k)
        opt.step()
        site = opt.weights()[0][2]
        home = before == snap(before, levels, site.scale)
        assert k == 0 or torch.equal(p.detach()[home], before[home])


@settings(max_examples=10)
@given(seed=SEEDS, power=st.sampled_from([0.5, 1.0, 2.0]))
def test_quantile_captures_the_promised_part(seed, power):
    """At every step at least f^power of the tensor's weights lie within the radius, and it never shrinks."""
    annealing = askew.LevelFirst(start=0.0, end=0.9, power=power, by="quantile")
    p, opt = one_weight(
        random_like(torch.empty(20, 30), seed), askew.ternary(), annealing, BASES["adam"], total_steps=12
    )
    radius = 0.0
    for k in range(11):
        before = p.detach().clone()
        p.grad = random_like(p, seed + k)
        opt.step()
        new = float(opt._memory[p]["radius"])
        assert new >= radius
        radius = new
        inside = before.clamp(-1, 1)
        remote = (inside - inside.round()).abs() * 2
        part = annealing.value(Clock(k, 12))
        caught = float((remote <= radius).double().mean()) if radius else 0.0
        assert caught >= part - 1e-9
        if math.isclose(part, 0):
            assert radius == 0


def test_the_quantile_radius_never_shrinks():
    """When the weights draw nearer to their levels the quantile falls, but nobody is set free again."""
    annealing = askew.LevelFirst(start=0, end=20, by="quantile")
    p, opt = one_weight(torch.linspace(-1, 1, 300), askew.ternary(), annealing, BASES["sgd"])
    for k in range(8):
        p.grad = 0.01 * random_like(p, k)
        opt.step()
    radius = float(opt._memory[p]["radius"])
    with torch.no_grad():
        p.copy_(p.round() + 0.05 * (p - p.round()))
    p.grad = torch.zeros_like(p)
    opt.step()
    assert float(opt._memory[p]["radius"]) == radius > 0.1
