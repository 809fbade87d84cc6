"""Fusible functions: inside `compiled()` one graph for all shapes, with the plain results; outside the function itself.

Most tests compile with a backend that counts graphs and runs them op by op; a few make real kernels.
"""

from contextlib import nullcontext

import pytest
import torch
from method_support import ANNEALING, OPTIONS
from torch import nn

from askew.core import LevelSet, binary, ternary, uniform
from askew.methods import adaste, askew, base, lsq, mirror, parq_maps, projected, proxquant
from askew.methods.fusible import compiled, fusible
from askew.methods.registry import METHODS, method
from askew.optim import MethodOptimizer

SHAPES = [(8, 3, 3, 3), (16, 8, 3, 3), (4, 16, 1, 1), (10, 7), (13,), (6, 5, 3), (3, 2, 5, 7), (21, 2), (2, 3, 1, 2)]
NUMBER = torch.tensor(0.3, dtype=torch.float64)  # as the optimizer keeps numbers on the device


class Counting:
    """A backend of torch.compile that runs each graph as it is, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, _examples: list[torch.Tensor]):
        self.graphs += 1
        return graph.forward


@pytest.fixture
def counting():
    torch._dynamo.reset()
    yield Counting()
    torch._dynamo.reset()


# name -> (function, how it is called with weights w, gradients g, level set c, scale s)
CALLS = {
    "snapped": (base.snapped, lambda w, g, c, s: (w, c, s)),
    "clamped": (base.clamped, lambda w, g, c, s: (w, c, s)),
    "adaste direction": (adaste.damped, lambda w, g, c, s: (g, w, s, NUMBER, 0.1, 0.5, 1e-3, False)),
    "adaste direction, hard": (adaste.damped, lambda w, g, c, s: (g, w, s, NUMBER, 0.1, 0.5, 1e-3, True)),
    "adaste forward": (adaste.hardened, lambda w, g, c, s: (w, s, NUMBER, 0.1, False)),
    "mirror": (mirror.mirrored, lambda w, g, c, s: (w, c, s, NUMBER)),
    "proxquant": (proxquant.drawn_in, lambda w, g, c, s: (w, c, s, torch.tensor(0.4), NUMBER, True)),
    "projected": (projected.stretched, lambda w, g, c, s: (w, NUMBER.float(), w.norm(), NUMBER.float())),
    "parq": (parq_maps.slope, lambda w, g, c, s: (w, NUMBER, *c.table(w).unbind())),
    "parq fixed": (parq_maps.fixed_slope, lambda w, g, c, s: (w, c, s, NUMBER)),
    "parq even": (parq_maps.even_slope, lambda w, g, c, s: (w, NUMBER.float(), NUMBER)),
    "parq peeled": (parq_maps.peeled, lambda w, g, c, s: (w, NUMBER.float())),
    "parq hard": (parq_maps.reached, lambda w, g, c, s: (w, g, NUMBER.float())),
    "parq ternary": (parq_maps.nearest_of_three, lambda w, g, c, s: (w, NUMBER.float())),
    "lsq gradient": (lsq.inside, lambda w, g, c, s: (g, w, c, NUMBER.float() if s is None else s)),
    "lsq step": (lsq.step_change, lambda w, g, c, s: (g, w, c, NUMBER.float() if s is None else s)),
    "skewed": (askew.skewed, lambda w, g, c, s: (g, w, c, NUMBER, 0.2, 1.0, s)),
    "level-first": (askew.drawn_first, lambda w, g, c, s: (g, w, c, NUMBER, 0.2, s)),
    "arrived": (askew.arrived, lambda w, g, c, s: (w, w + 0.3 * g, c, NUMBER, s, True)),
    "let seen": (askew.let_seen, lambda w, g, c, s: (w, c, NUMBER, s)),
    "remote": (askew.remote, lambda w, g, c, s: (w, c, s)),
}


def weights(shape: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and gradients, channels-last where there are four dimensions; some weights lie on levels or between."""
    g = torch.Generator().manual_seed(seed)
    w, gradient = torch.randn(shape, generator=g), torch.randn(shape, generator=g)
    w.view(-1)[:3] = torch.tensor([0.0, 1.0, -1.0])[: w.numel()]
    return channels_last(w), channels_last(gradient)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format)


def laid_out_alike(found: torch.Tensor, like: torch.Tensor) -> bool:
    return all(a == b for n, a, b in zip(like.shape, found.stride(), like.stride(), strict=True) if n > 1)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("levels", [binary(), uniform(2)], ids=["binary", "int2"])
def test_one_graph_serves_every_shape(name, levels, counting):
    function, arguments = CALLS[name]
    for scale in (None, torch.tensor(0.4)):
        for seed, shape in enumerate(SHAPES):
            w, g = weights(shape, seed)
            call = arguments(w, g, levels, scale)
            plain = function(*call)
            with compiled(counting):
                found = function(*call)
            assert found.dtype == plain.dtype == torch.float32
            assert found.shape == w.shape
            assert laid_out_alike(found, w)
            torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-7)
    assert counting.graphs <= 2  # without a scale and with one


@pytest.mark.parametrize("name", ["snapped", "adaste direction", "proxquant", "parq fixed", "lsq step", "level-first"])
def test_one_graph_serves_every_shape_under_a_scale_per_channel(name, counting):
    function, arguments = CALLS[name]
    for seed, shape in enumerate(s for s in SHAPES if len(s) > 1):
        w, g = weights(shape, seed)
        scale = 0.3 + torch.rand(shape[0], *[1] * (len(shape) - 1))
        call = arguments(w, g, uniform(2), scale)
        with compiled(counting):
            found = function(*call)
        assert found.shape == w.shape
        assert laid_out_alike(found, w)
        torch.testing.assert_close(found, function(*call), rtol=1e-6, atol=1e-7)
    assert counting.graphs == 1


def test_other_constants_make_other_kernels(counting):
    """Plain numbers that differ from call to call are seen to differ."""
    w, g = weights((9, 4))
    for alpha in (0.1, 0.2, 0.3, 0.4):
        levels = LevelSet((-alpha, 2 * alpha, 3 * alpha))
        with compiled(counting):
            found = adaste.hardened(w, None, NUMBER, alpha, False), askew.arrived(w, g, levels, NUMBER, None, True)
        assert torch.allclose(found[0], adaste.hardened(w, None, NUMBER, alpha, False))
        assert torch.allclose(found[1], askew.arrived(w, g, levels, NUMBER, None, True))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1), (0, 3)])
def test_smallest_shapes(shape, counting):
    w = torch.full(shape, 0.3)
    with compiled(counting):
        found = base.snapped(w, ternary(), None)
    assert torch.equal(found, torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_keep_theirs(dtype, counting):
    """0-d numbers of float64 promote nothing."""
    w, g = (x.to(dtype) for x in weights((9, 4)))
    for function, arguments in CALLS.values():
        call = arguments(w, g, uniform(2), None)
        with compiled(counting):
            found = function(*call)
        assert found.dtype == function(*call).dtype
        torch.testing.assert_close(found, function(*call), rtol=1e-6, atol=1e-7)


def test_gradients_of_another_layout_are_brought_into_the_first_ones(counting):
    w, g = weights((8, 3, 3, 3))
    call = (g.contiguous(), w, None, NUMBER, 0.1, 0.5, 1e-3, False)
    assert g.contiguous().stride() != w.stride()
    with compiled(counting):
        assert torch.equal(adaste.damped(*call), adaste.damped.__wrapped__(*call))  # pyright: ignore
    assert counting.graphs == 1


@pytest.mark.parametrize("shape", [(), (5, 1, 1)])
@pytest.mark.parametrize("rule", ["adam_step", "momentum_step"])
def test_changes_in_place_reach_the_tensors(rule, shape, counting):
    """LSQ's step and its moments."""
    torch.manual_seed(0)
    start = [torch.rand(shape) + 0.1 for _ in range(5)][: 5 if rule == "adam_step" else 3]
    plain, found = [t.clone() for t in start], [t.clone() for t in start]
    getattr(lsq, rule)(*plain, torch.tensor(0.1), 1.0)
    with compiled(counting):
        getattr(lsq, rule)(*found, torch.tensor(0.1), 1.0)
    assert counting.graphs == 1
    for a, b, before in zip(plain, found, start, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
        assert torch.equal(a, before) == (before is start[1])  # all but the gradient


def test_without_compiled_the_function_itself_runs(monkeypatch):
    seen = []

    @fusible
    def double(w: torch.Tensor) -> torch.Tensor:
        seen.append(w)
        return 2 * w

    def refuse(*_, **__):
        raise AssertionError("compiled")

    monkeypatch.setattr(torch, "compile", refuse)
    w = torch.randn(3, 2)
    assert torch.equal(double(w), 2 * w)
    assert seen[0] is w
    with pytest.raises(AssertionError, match="compiled"), compiled():
        double(w)
    assert torch.equal(double(w), 2 * w)  # and again once outside, though the inside has failed


def test_what_cannot_be_shown_flat_runs_as_written(counting):
    gaps = torch.randn(8, 6)[:, ::2]
    learned = torch.randn(4, requires_grad=True)
    with compiled(counting):
        assert torch.equal(base.snapped(gaps, binary(), None), torch.where(gaps >= 0, 1.0, -1.0))
        mirror.mirrored(learned, binary(), None, 2.0).sum().backward()  # a gradient is asked for
        base.snapped(torch.randn(4, 3), binary(), torch.rand(3))  # one number a column
    assert counting.graphs == 0
    assert learned.grad is not None


def steps(name: str, device: str, inside, count: int = 12) -> list[torch.Tensor]:
    """Weights and latents after each of a few steps of the method on layers of several shapes."""
    torch.manual_seed(0)
    shapes = [(8, 3, 3, 3), (12, 8, 3, 3), (6, 12, 1, 1), (10, 6)]
    params = [nn.Parameter(0.5 * channels_last(torch.randn(s)).to(device)) for s in shapes]
    goals = [channels_last(torch.randn(s)).to(device) for s in shapes]
    group = {"params": [(f"w{i}", p) for i, p in enumerate(params)], "levels": binary()}
    inner = torch.optim.SGD([group], lr=0.1, momentum=0.9)
    made = method(name, **OPTIONS.get(name, {}))
    scale = "sawb" if name == "lsq" else "none"
    optimizer = MethodOptimizer(inner, made, ANNEALING.get(name), total_steps=count, scale=scale, fused=False)
    seen = []
    for _ in range(count):
        for p, goal in zip(params, goals, strict=True):
            p.grad = p.detach() - goal
        with inside():
            optimizer.step()
        seen += [p.detach().clone() for p in params] + [optimizer.underlying(p).detach().clone() for p in params]
    return [x.cpu() for x in seen]


@pytest.mark.parametrize("name", METHODS)
def test_whole_runs_are_the_plain_ones(name, counting):
    """Phases change on the way; draws come from the same generator. One graph for each function and phase."""
    plain, found = steps(name, "cpu", nullcontext), steps(name, "cpu", lambda: compiled(counting))
    for a, b in zip(plain, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert counting.graphs <= 5
    assert (counting.graphs > 0) == (name != "full-precision")


@pytest.mark.parametrize("name", ["parq", "adaste direction", "proxquant", "let seen"])
def test_real_kernels_agree(name, counting):
    function, arguments = CALLS[name]
    for seed, shape in enumerate(SHAPES[:4]):
        w, g = weights(shape, seed)
        call = arguments(w, g, binary(), None)
        with torch.no_grad(), compiled():
            found = function(*call)
        assert laid_out_alike(found, w)
        torch.testing.assert_close(found, function(*call), rtol=1e-6, atol=1e-7)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["parq", "parq-hard", "adaste", "proxquant", "md-tanh", "projected"])
def test_real_kernels_train_on_a_gpu_as_the_plain_ones(name):
    torch._dynamo.reset()
    for a, b in zip(steps(name, "cuda", nullcontext), steps(name, "cuda", compiled), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
