"""The running mean of the weights: the formula, what is snapped, checkpoints, graphs and shards."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import askew
from askew.core import Clock, LevelFirst, binary, uniform
from askew.methods.base import FullPrecision, Method
from askew.methods.binaryconnect import BinaryConnect
from askew.optim import MethodOptimizer
from askew.optim.average import rate

STEPS = 40
Make = Callable[[list[nn.Parameter], float], MethodOptimizer]


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.empty(shape, dtype=dtype).uniform_(-0.3, 0.3)) for shape in ((6, 5), (0, 3), (4,))]


def made(params: list[nn.Parameter], average: float, method: Method | None = None) -> MethodOptimizer:
    base = torch.optim.Adam([{"params": params, "levels": binary()}], lr=0.05)
    return MethodOptimizer(base, method or BinaryConnect(), total_steps=STEPS, average=average)


def rounded(params: list[nn.Parameter], average: float) -> MethodOptimizer:
    base = torch.optim.Adam([{"params": params, "levels": binary()}], lr=0.05)
    return askew.ASkew(base, LevelFirst(start=0.5, rounded=True), total_steps=STEPS, average=average)


def plain(params: list[nn.Parameter], average: float) -> MethodOptimizer:
    base = torch.optim.SGD([{"params": params, "levels": uniform(2)}], lr=0.05)
    return askew.ASkew(base, LevelFirst(start=0.5), scale="abs-mean", total_steps=STEPS, average=average)


def take(optimizer: MethodOptimizer, steps: int, first: int = 0) -> list[list[Tensor]]:
    """Steps with seeded gradients; the optimised weights after each."""
    seen = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        for _, p, _ in optimizer.weights():
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()
        seen.append([optimizer.underlying(p).detach().clone() for _, p, _ in optimizer.weights()])
    return seen


@pytest.mark.parametrize("make", [made, rounded, plain])
@pytest.mark.parametrize("part", [0.01, 0.2, 0.9])
def test_the_mean_is_the_formulas(make: Make, part: float) -> None:
    params = weights()
    start = [p.detach().double() for p in params]
    optimizer = make(params, part)
    means = start
    for step, seen in enumerate(take(optimizer, STEPS - 2), start=1):
        k = 1 / max(1.0, part * step)
        means = [m + k * (w.double() - m) for m, w in zip(means, seen, strict=True)]
    for p, mean in zip(params, means, strict=True):
        torch.testing.assert_close(optimizer.settled(p).double(), mean, rtol=1e-5, atol=1e-6)


def test_it_forgets_what_is_older_than_its_part_of_the_steps() -> None:
    """A weight that jumps from 0 to 1 after n steps: after 10% more, a mean over the last 5% has forgotten most."""
    n, mean = 1000, 0.0
    for step in range(int(1.1 * n)):
        mean += rate(0.05, Clock(step)) * (float(step >= n) - mean)
    assert 0.8 < mean < 0.95
    assert rate(0.05, Clock(0)) == 1.0 and rate(0.05, Clock(999)) == pytest.approx(1 / 50)


@pytest.mark.parametrize("make", [made, rounded, plain])
def test_training_is_the_same_with_it(make: Make) -> None:
    """Weights on the way do not feel the mean; what is snapped does."""
    one, other = weights(), weights()
    with_mean, without = make(one, 0.5), make(other, 0.0)
    for a, b in zip(take(with_mean, STEPS - 1), take(without, STEPS - 1), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert "average" not in without._memory.get(other[0], {})


def test_snapped_weights_are_those_of_the_mean() -> None:
    params = [nn.Parameter(torch.zeros(60, 50))]
    optimizer = made(params, 0.5)
    take(optimizer, STEPS - 1)
    mean, last = optimizer.settled(params[0]).clone(), optimizer.underlying(params[0]).clone()
    before = params[0].detach().clone()
    assert ((mean >= 0) != (last >= 0)).any()  # or the test shows nothing
    with askew.snapped(optimizer):
        assert torch.equal(params[0], torch.where(mean >= 0, 1.0, -1.0))
    assert torch.equal(params[0], before)
    optimizer.snap_()
    for held in (params[0], optimizer.underlying(params[0]), optimizer.settled(params[0])):
        assert torch.equal(held, torch.where(mean >= 0, 1.0, -1.0))


@pytest.mark.parametrize("make", [made, rounded, plain])
def test_the_last_step_leaves_the_weights_on_the_means_levels(make: Make) -> None:
    params = weights()
    optimizer = make(params, 0.5)
    take(optimizer, STEPS)
    levels = {round(float(v), 5) for v in params[0].detach().unique()}
    assert len(levels) <= 4
    for p in params:
        assert torch.equal(p, optimizer.settled(p).to(p.dtype)) and torch.equal(p, optimizer.underlying(p))


def test_full_precision_has_a_mean_too() -> None:
    params = weights()
    optimizer = made(params, 0.5, FullPrecision())
    take(optimizer, 5)
    mean = optimizer.settled(params[0]).clone()
    assert not torch.equal(mean, params[0])
    with askew.snapped(optimizer):
        assert torch.equal(params[0], mean)
    take(optimizer, STEPS - 5, 5)
    assert torch.equal(params[0], optimizer.settled(params[0])) and params[0].detach().unique().numel() > 10


@pytest.mark.parametrize("make", [made, rounded, plain])
def test_a_run_goes_on_bit_for_bit(make: Make) -> None:
    whole = make(weights(), 0.3)
    take(whole, STEPS)
    first = make(weights(), 0.3)
    take(first, 17)
    params = [nn.Parameter(p.detach().clone()) for _, p, _ in first.weights()]
    resumed = make(params, 0.0)  # the saved part wins, as the saved schedule does
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    assert resumed.average == 0.3
    take(resumed, STEPS - 17, 17)
    for (_, a, _), (_, b, _) in zip(whole.weights(), resumed.weights(), strict=True):
        assert torch.equal(a, b) and torch.equal(whole.settled(a), resumed.settled(b))


def test_a_checkpoint_without_means_starts_them_at_its_weights() -> None:
    old = made(weights(), 0.0)
    take(old, 5)
    saved = copy.deepcopy(old.state_dict())
    for group in saved["param_groups"]:
        group["askew"] = group["askew"].replace('"average": 0.0, ', "")  # as it was before there were means
    params = [nn.Parameter(p.detach().clone()) for _, p, _ in old.weights()]
    new = made(params, 0.3)
    new.load_state_dict(saved)
    assert new.average == 0.3 and torch.equal(new.settled(params[0]), old.underlying(old.param_groups[0]["params"][0]))


def test_a_checkpoint_that_says_no_means_ends_them() -> None:
    old = made(weights(), 0.0)
    take(old, 5)
    params = [nn.Parameter(p.detach().clone()) for _, p, _ in old.weights()]
    new = made(params, 0.3)
    new.load_state_dict(copy.deepcopy(old.state_dict()))
    assert new.average == 0.0 and len(new.dials()) == len(old.dials())
    assert new.dial_settings(new.clock) == old.dial_settings(old.clock)
    for a, b in zip(take(new, 3, 5), take(old, 3, 5), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_bfloat16_weights_have_float32_means() -> None:
    params = weights(torch.bfloat16)
    optimizer = made(params, 0.9)
    take(optimizer, 30)
    assert optimizer.settled(params[0]).dtype == torch.float32
    with askew.snapped(optimizer):
        assert set(params[0].detach().float().unique().tolist()) <= {-1.0, 1.0}


@pytest.mark.parametrize("part", [-0.1, 1.0, float("nan"), True, "half"])
def test_a_part_that_is_none_is_refused(part: object) -> None:
    with pytest.raises(ValueError, match="average is the part of the steps"):
        made(weights(), part)  # pyright: ignore[reportArgumentType]


def test_groups_added_later_have_means_of_their_own() -> None:
    optimizer = made(weights(), 0.2)
    late = nn.Parameter(torch.full((3,), 0.4))
    optimizer.add_param_group({"params": [late], "levels": binary()})
    assert torch.equal(optimizer.settled(late), torch.full((3,), 0.4))
    take(optimizer, 3)
    assert not torch.equal(optimizer.settled(late), torch.full((3,), 0.4))


@pytest.mark.cuda
@pytest.mark.parametrize("make", [made, rounded, plain])
def test_in_a_cuda_graph_the_mean_follows_its_rate(make: Make) -> None:
    """Replays of one graph, ticked by the host, give the means of plain steps."""

    def run(graphed: bool) -> list[Tensor]:
        params = [nn.Parameter(p.detach().cuda()) for p in weights()]
        optimizer = make(params, 0.2)
        for group in optimizer.param_groups:
            group["capturable"] = True
        optimizer.nonfinite = "ignore"
        for p in params:
            p.grad = torch.ones_like(p) * 0.1
        for _ in range(3):
            optimizer.step()
        if not graphed:
            for _ in range(6):
                optimizer.step()
        else:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
            for _ in range(6):
                optimizer.tick()
                graph.replay()
        return [optimizer.settled(p).clone() for p in params]

    for a, b in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
