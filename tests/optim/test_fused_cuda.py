"""On a GPU: the compiled Triton step equals the wrapped one, in few launches, in a CUDA graph, without memory."""

from __future__ import annotations

from functools import partial

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
    excess,
    latents,
    run,
    ties,
    ulps,
    unlike_shown,
)
from optim_kit import differing, on_levels
from torch import nn
from torch.optim import Adam, AdamW

import askew
from askew.optim import fused_cuda, fused_launch

pytestmark = pytest.mark.cuda
FEW = 16  # ulp a step: the GPU's division and square root are not always the nearest


@pytest.mark.parametrize("scale", SCALES, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("base", BASES)
def test_one_step_equals_the_wrapped_one(base, schedule, levels, scale):
    setting = BASES[base], SCHEDULES[schedule], LEVELS[levels], scale
    here, there = (run(f, *setting, steps=1, device="cuda", nudge=0.0) for f in (True, False))
    exact, *moved = (run(False, *setting, steps=1, dtype=torch.float64, nudge=n) for n in (0.0, 1.0, -1.0))
    edge = [*ties(LEVELS[levels], scale), None, None]
    for i, (a, b, c) in enumerate(zip(here[0], there[0], exact[0], strict=True)):
        others = [m[0][i] for m in moved]
        assert excess(a, b, c, others, edge[i]) <= FEW
        for key, value in here[1].state[a].items():
            states = [m[1].state[p][key] for m, p in zip(moved, others, strict=True)]
            assert excess(value, there[1].state[b][key], exact[1].state[c][key], states, edge[i]) <= FEW


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("scale", SCALES[1:], ids=lambda s: "-".join(s))
def test_both_forms_measure_the_same_scale(scale, levels):
    setting = BASES["adam"], SCHEDULES["interval"], LEVELS[levels], scale
    (ps, here), (qs, there) = (run(f, *setting, steps=1, device="cuda") for f in (True, False))
    pairs = [(here._memory[p]["scale"], there._memory[q]["scale"]) for p, q in zip(ps[:-2], qs[:-2], strict=True)]
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("base", BASES)
def test_rounded_level_first_equals_the_wrapped_one(base, levels):
    here, there = (run(f, BASES[base], ROUNDED, LEVELS[levels], steps=1, device="cuda") for f in (True, False))
    for a, b in zip(latents(*here), latents(*there), strict=True):
        assert not a.numel() or ulps(a, b, 1.0) <= FEW
    ps, opt = run(True, BASES[base], ROUNDED, LEVELS[levels], device="cuda")
    assert on_levels(opt) and all(torch.equal(p.detach(), w) for p, w in zip(ps[:5], latents(ps, opt), strict=False))


@pytest.mark.parametrize("scale", SCALES, ids=lambda s: "-".join(s))
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("base", ["nesterov", "adam", "adamw"])
def test_reversible_capture_equals_the_wrapped_one(base, levels, scale):
    setting = BASES[base], REVERSIBLE, LEVELS[levels], scale
    here, there = (run(f, *setting, steps=1, device="cuda") for f in (True, False))
    for a, b in zip(latents(*here), latents(*there), strict=True):
        assert not a.numel() or ulps(a, b, 1.0) <= FEW
    assert unlike_shown(*run(True, *setting, steps=4, device="cuda")) <= FEW
    ps, opt = run(True, *setting, device="cuda")
    assert on_levels(opt) and all(torch.equal(p.detach(), w) for p, w in zip(ps[:5], latents(ps, opt), strict=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize("base", ["nesterov", "adam"])
def test_a_run_lands_on_levels(base, levels, dtype):
    _, opt = run(True, BASES[base], SCHEDULES["level-first"], LEVELS[levels], SCALES[2], device="cuda", dtype=dtype)
    assert on_levels(opt)


@pytest.mark.parametrize("base", ["nesterov", "adam", "adamw"])
def test_cpu_and_gpu_go_together(base):
    places = {"cpu": None, "cuda": True}  # on the CPU the wrapped step if the native library is not there
    runs = [run(f, BASES[base], SCHEDULES["level-first"], askew.uniform(3), device=d)[0] for d, f in places.items()]
    for a, b in zip(*runs, strict=True):
        far = (a.detach() - b.detach().cpu()).abs() > 1e-4
        assert not a.numel() or far.double().mean() < 0.005


def _many(**options):
    ps = [nn.Parameter(torch.randn(64, 32, device="cuda")) for _ in range(40)]
    bs = [nn.Parameter(torch.randn(64, device="cuda")) for _ in range(20)]
    for p in [*ps, *bs]:
        p.grad = torch.randn_like(p)
    groups = [{"params": ps, "levels": askew.binary()}, {"params": bs, "levels": None}]
    opt = askew.ASkew(
        Adam(groups, **options), askew.LevelFirst(start=0, end=50), total_steps=100, nonfinite="ignore", fused=True
    )
    return [*ps, *bs], opt


def test_sixty_tensors_take_few_launches():
    _, opt = _many(lr=0.01)
    for _ in range(3):
        opt.step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        opt.step()
        torch.cuda.synchronize()
    kernels = [e for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert sum("step_kernel" in e.name for e in kernels) == 2
    assert len(kernels) <= 6


def test_no_memory_in_a_step():
    ps, opt = _many(lr=0.01)
    for _ in range(3):
        opt.step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    opt.step()
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before <= sum(p.numel() for p in ps)
    assert torch.cuda.memory_allocated() == before


def test_a_graph_outlives_eager_steps_and_new_tables():
    """Rate, step count and schedule move on the device; tables that a graph reads are kept when others are made."""
    (ps, opt), (qs, eager) = (_many(lr=torch.tensor(0.01, device="cuda"), capturable=True) for _ in range(2))
    with torch.no_grad():
        for p, q in zip(ps, qs, strict=True):
            q.copy_(p)
            q.grad.copy_(p.grad)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            opt.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        opt.step()
    held = [p.grad for p in ps]
    for k in range(6):
        if k == 3:  # an eager step with gradients elsewhere makes new tables
            for p in ps:
                p.grad = p.grad.clone()
            opt.step()
            for p, g in zip(ps, held, strict=True):
                p.grad = g
            continue
        opt.param_groups[0]["lr"].mul_(0.9)
        opt.tick()
        graph.replay()
    for _ in range(2):
        eager.step()
    for k in range(6):
        if k != 3:
            eager.param_groups[0]["lr"].mul_(0.9)
        eager.step()
    assert opt.steps == eager.steps
    assert differing([p.detach() for p in qs], [p.detach() for p in ps]) == []


def test_a_step_count_on_the_host_or_device_gives_the_same():
    results = []
    for more in ({}, {"fused": True}, {"capturable": True}):
        base = partial(AdamW, lr=0.05, **more)
        results.append(run(True, base, SCHEDULES["interval"], askew.binary(), device="cuda", steps=5)[0])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert ulps(a.detach().cpu(), b.detach().cpu(), 1.0) <= FEW


def test_new_gradients_each_step():
    """zero_grad(set_to_none=True): the addresses change, the tables follow."""
    setting = BASES["adam"], SCHEDULES["interval"], askew.binary()
    (ps, opt), (qs, other) = (run(f, *setting, device="cuda", steps=0) for f in (True, False))
    keep = []
    for k in range(TOTAL - 1):
        keep.append(torch.empty(1000 * (k + 1), device="cuda"))
        advance(ps, opt, k)
        advance(qs, other, k)
    for p, q in zip(ps, qs, strict=True):
        far = (p.detach() - q.detach()).abs() > 1e-4
        assert not p.numel() or far.double().mean() < 0.005


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_bad_gradient_changes_nothing(value):
    ps, opt = _many(lr=0.01)
    opt.nonfinite = "skip"
    for _ in range(3):
        opt.step()
    before, held = [p.detach().clone() for p in ps], ps[7].grad[63, 31].item()
    ps[7].grad[63, 31] = value
    opt.step()
    assert opt.skipped == 1 and opt.steps == 3 and differing(before, [p.detach() for p in ps]) == []
    ps[7].grad[63, 31] = held
    opt.step()
    assert opt.steps == 4 and differing(before, [p.detach() for p in ps]) != []


def test_direct_calls_are_triton_s_own(monkeypatch):
    """The kernel found by the first call, called by place, does what Triton's own call does."""
    runs = []
    for direct in (True, False):
        if not direct:
            monkeypatch.setattr(fused_launch, "DIRECT", False)
        torch.manual_seed(0)
        ps, opt = _many(lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
        for _ in range(5):
            opt.step()
            scheduler.step()
        made = [launch._step._direct is not None for launch in opt._fusion._batches[0][0]._launches]
        assert made == [direct] * 2
        runs.append([p.detach() for p in ps])
    assert differing(*runs) == []


def test_without_triton_the_wrapped_step_is_taken(monkeypatch):
    monkeypatch.setattr(fused_cuda, "kernels", lambda: None)
    with pytest.raises(ValueError, match="Triton"):
        run(True, BASES["adam"], SCHEDULES["interval"], askew.binary(), device="cuda", steps=1)
    run(None, BASES["adam"], SCHEDULES["interval"], askew.binary(), device="cuda", steps=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_bfloat16_with_a_master_copy(schedule):
    setting = BASES["adam"], SCHEDULES[schedule], LEVELS["int4"]
    ps, opt = run(True, *setting, dtype=torch.bfloat16, device="cuda", master=True)
    for p in ps:
        assert torch.equal(p.detach(), opt.underlying(p).bfloat16())
        assert opt.state[p]["exp_avg"].dtype == torch.float32
