"""On a GPU: the step inside a CUDA graph, under GradScaler, without a device sync, and equal to the CPU's."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from optim_kit import Net, differing, random_like, weights_of
from torch import nn
from torch.optim import SGD, Adam, AdamW

import askew
from askew.core import Constant
from askew.core.direction import snap

pytestmark = pytest.mark.cuda

SCHEDULES = {
    "constant": Constant(0.4),
    "exponential": askew.Exponential(K=0.7, start=2, period=1),
    "logarithmic": askew.Logarithmic(start=2, end=9, final=1e-2),
    "level-first": askew.LevelFirst(start=0, end=8),
    "level-first-quantile": askew.LevelFirst(start=0, end=8, by="quantile"),
}
SCALES = [("none", "tensor"), ("abs-mean", "tensor"), ("sawb", "channel")]


def build(schedule, scale="none", per="tensor", base=None, levels=None, **options):
    """A weight in three level sets' company, on the GPU, with fixed gradient buffers."""
    ps = [nn.Parameter(random_like(torch.empty(8, 6), i).cuda()) for i in range(3)]
    make = base or (lambda groups: Adam(groups, lr=torch.tensor(0.05, device="cuda"), capturable=True))
    groups = [
        {"params": [p], "levels": lv}
        for p, lv in zip(ps, levels or (askew.binary(), askew.ternary(), askew.uniform(4)), strict=True)
    ]
    for p in ps:
        p.grad = torch.zeros_like(p)
    opt = askew.ASkew(make(groups), SCHEDULES[schedule], scale=scale, per=per, nonfinite="ignore", **options)
    return ps, opt


def fill(ps, k):
    """The gradients of step k, in place: a graph reads the same addresses."""
    for i, p in enumerate(ps):
        p.grad.copy_(random_like(p.detach().cpu(), 10 * k + i))


@pytest.mark.parametrize(("scale", "per"), SCALES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_captured_step_with_ticks_equals_eager_stepping(schedule, scale, per):
    """opt.tick() before each replay moves the annealing; nothing else of the step lives on the host.

    The capture comes after annealing has started: whether scales are frozen is decided when the graph is made.
    """
    warm, total = 4, 12
    eager, opt = build(schedule, scale, per)
    for k in range(total):
        fill(eager, k)
        opt.step()
    ps, graphed = build(schedule, scale, per)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for k in range(warm):
            fill(ps, k)
            graphed.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    before = weights_of(nn.ParameterList(ps))
    with torch.cuda.graph(graph):
        graphed.step()
    assert graphed.steps == warm, "capturing is not a step"
    assert differing(before, weights_of(nn.ParameterList(ps))) == []
    for k in range(warm, total):
        fill(ps, k)
        graphed.tick()
        graph.replay()
    assert graphed.steps == opt.steps == total
    assert differing([p.detach() for p in eager], [p.detach() for p in ps]) == []
    assert [opt.value(i) for i in range(3)] == [graphed.value(i) for i in range(3)]


def test_without_ticks_the_graph_stands_still():
    """The test above could fail: replaying without tick() keeps the old epsilon."""
    results = []
    for ticking in (True, False):
        ps, opt = build("exponential")
        for k in range(3):
            fill(ps, k)
            opt.step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            opt.step()
        for k in range(3, 9):
            fill(ps, k)
            if ticking:
                opt.tick()
            graph.replay()
        results.append([p.detach().clone() for p in ps])
    assert differing(*results)


@contextmanager
def no_sync():
    """Any synchronising call inside is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("base", ["adam", "fused", "sgd"])
@pytest.mark.parametrize(("scale", "per"), SCALES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_device_sync_in_a_step(schedule, scale, per, base):
    """With nonfinite='ignore' host and device never wait for each other, warm-up (level tables) apart."""
    bases = {
        "adam": lambda g: Adam(g, lr=0.05),
        "fused": lambda g: AdamW(g, lr=0.05, fused=True),
        "sgd": lambda g: SGD(g, lr=0.05, momentum=0.9),
    }
    ps, opt = build(schedule, scale, per, bases[base], clip="quarter", clamp=True, total_steps=10)
    fill(ps, 0)
    opt.step()
    with no_sync():
        for _ in range(9):  # over the freeze of the scales and the last step's landing
            opt.step()
    assert opt.steps == 10


def test_the_check_of_gradients_does_sync():
    """The test above could fail: nonfinite='raise' reads a number back."""
    ps, opt = build("constant")
    opt.nonfinite = "raise"
    fill(ps, 0)
    opt.step()
    with pytest.raises(RuntimeError, match="synchroniz"), no_sync():
        opt.step()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("base", ["adam", "fused"])
def test_grad_scaler_on_cuda(base, schedule):
    """Powers of two change no bit; a step with infinities is skipped by the scaler and changes nothing."""
    make = lambda g: Adam(g, lr=0.02, fused=base == "fused")  # noqa: E731
    ps, opt = build(schedule, base=make)
    qs, plain = build(schedule, base=make)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=1000)
    for k in range(6):
        fill(ps, k)
        for p in ps:
            p.grad.copy_(scaler.scale(p.grad))
        if k == 3:
            ps[1].grad[0, 0] = torch.inf
        before = [p.detach().clone() for p in ps]
        scaler.step(opt)
        scaler.update()
        if k == 3:
            assert differing(before, [p.detach() for p in ps]) == []
            assert opt.steps == 3
            continue
        fill(qs, k)
        plain.step()
    assert opt.steps == plain.steps == 5
    assert scaler.get_scale() == 512.0
    assert differing([q.detach() for q in qs], [p.detach() for p in ps]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize(("scale", "per"), SCALES)
def test_level_first_ends_on_levels_on_cuda(scale, per, dtype):
    p = nn.Parameter(random_like(torch.empty(16, 9, dtype=dtype), 0).cuda())
    opt = askew.ASkew(
        AdamW([{"params": [p], "levels": askew.uniform(3)}], lr=0.05),
        askew.LevelFirst(),
        scale=scale,
        per=per,
        total_steps=12,
    )
    for k in range(12):
        p.grad = random_like(p.detach().cpu(), k).cuda()
        opt.step()
    site = opt.weights()[0][2]
    assert torch.equal(p, snap(p, site.levels, site.scale))
    assert askew.diagnose(opt).overall.distance_max == 0.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_cuda_and_cpu_agree(schedule):
    """Six steps of SGD in float64 on both devices, to rounding; the state dict made on one loads on the other."""
    runs = []
    for device in ("cpu", "cuda"):
        p = nn.Parameter(random_like(torch.empty(12, 5, dtype=torch.float64), 3).to(device))
        opt = askew.ASkew(
            SGD([{"params": [("w", p)], "levels": askew.ternary()}], lr=0.1, momentum=0.9),
            SCHEDULES[schedule],
            scale="sawb",
        )
        for k in range(6):
            p.grad = random_like(p.detach().cpu(), k).to(device)
            opt.step()
        runs.append((p, opt))
    (a, first), (b, second) = runs
    torch.testing.assert_close(b.detach().cpu(), a.detach(), rtol=0, atol=1e-12)
    second.load_state_dict(first.state_dict())
    assert second.state[b]["momentum_buffer"].device.type == "cuda"
    assert all(t.device.type == "cuda" for t in second._memory[b].values())
    b.grad = torch.zeros_like(b)
    second.step()


def test_a_net_on_cuda_is_snapped_and_restored():
    model = Net().cuda()
    opt = askew.ASkew(SGD(askew.groups(model, askew.binary()), lr=0.1), Constant())
    before = weights_of(model)
    with askew.snapped(opt):
        assert model.fc.weight.abs().eq(1).all()
    assert differing(before, weights_of(model)) == []
