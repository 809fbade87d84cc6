"""The Triton kernel's mathematics in Triton's interpreter, on CPU tensors; skips where Triton is not installed."""

from __future__ import annotations

import inspect
import math
import os
from contextlib import nullcontext

import pytest
import torch
from fused_kit import BASES, LEVELS, REVERSIBLE, ROUNDED, SCALES, SCHEDULES, latents, run, ulps, unlike_shown

from askew.core.levels import nearest
from askew.optim import fused, fused_cuda
from askew.optim.fused_launch import GRADIENTS, STEP

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton looks when it is imported
pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="compiled there: see test_fused_cuda.py")
FEW = 8
CASES = [
    ("sgd", "interval", "binary", 0, 1),
    ("nesterov", "level-first", "int4", 2, 10),
    ("momentum", "interval", "table", 1, 2),
    ("adam", "interval", "int4", 2, 2),
    ("adam", "level-first", "pair", 1, 2),
    ("adam", "level-first", "binary", 0, 10),
    ("adam-decay", "interval", "pair", 0, 1),
    ("adamw", "level-first", "table", 2, 10),
    ("adamw", "free", "binary", 0, 2),
]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    """The Triton form in place of the C++ one."""
    monkeypatch.setitem(fused.DEVICES, "cpu", fused_cuda)
    monkeypatch.setattr(fused_cuda, "BLOCK", 1024)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())


@pytest.mark.parametrize("host", [False, True], ids=["device-count", "host-count"])
@pytest.mark.parametrize(("base", "schedule", "levels", "scale", "steps"), CASES)
def test_it_equals_the_wrapped_step(base, schedule, levels, scale, steps, host, monkeypatch):
    if host and not base.startswith("adam"):
        pytest.skip("SGD has no step count")
    if host:
        monkeypatch.setattr(fused_cuda, "_counted_by_host", lambda work: work.step is not None)
    setting = BASES[base], SCHEDULES[schedule], LEVELS[levels], SCALES[scale], steps
    here, there = run(True, *setting), run(False, *setting)
    assert here[1]._fusion._batches[0][0].__class__ is fused_cuda.Batch
    for a, b in zip(here[0], there[0], strict=True):
        assert ulps(a.detach(), b.detach(), 1.0) <= steps * FEW
        for key, value in here[1].state[a].items():
            assert ulps(value, there[1].state[b][key], 1.0) <= steps * FEW


@pytest.mark.parametrize("levels", ["binary", "table"])
def test_rounded_level_first_equals_the_wrapped_step(levels):
    for steps in (1, 10):
        here, there = (run(fused, BASES["adam"], ROUNDED, LEVELS[levels], steps=steps) for fused in (True, False))
        assert here[1]._fusion._batches[0][0].__class__ is fused_cuda.Batch
        for a, b in zip(latents(*here), latents(*there), strict=True):
            assert ulps(a, b, 1.0) <= steps * FEW
        own = latents(*here)[:5]
        assert all(torch.equal(p.detach(), nearest(w, LEVELS[levels])) for p, w in zip(here[0][:5], own, strict=True))


@pytest.mark.parametrize(("levels", "scale"), [("binary", 0), ("int4", 2), ("table", 1), ("binary", 1)])
def test_reversible_capture_equals_the_wrapped_step(levels, scale):
    for steps in (1, 4, 10):
        setting = BASES["adamw"], REVERSIBLE, LEVELS[levels], SCALES[scale]
        here, there = (run(fused, *setting, steps=steps) for fused in (True, False))
        assert here[1]._fusion._batches[0][0].__class__ is fused_cuda.Batch
        for a, b in zip(latents(*here), latents(*there), strict=True):
            assert ulps(a, b, 1.0) <= steps * FEW
        assert unlike_shown(*here) <= FEW


def test_the_arguments_stand_in_the_kernels_order():
    """Compiled kernels are called by place."""
    _, opt = run(True, BASES["adam"], REVERSIBLE, LEVELS["binary"], SCALES[1], steps=1)
    launch = opt._fusion._batches[0][0]._launches[0]
    names = list(inspect.signature(fused_cuda.kernels().step_kernel.fn).parameters)
    assert names[len(launch._arguments) :] == list(launch._constants)
    assert names[GRADIENTS] == "gradients" and names[STEP : STEP + 2] == ["step", "over_root"]
    names = list(inspect.signature(fused_cuda.kernels().count_kernel.fn).parameters)
    assert names[len(launch._counting) :] == ["LR_THERE"]
    names = list(inspect.signature(fused_cuda.kernels().show_kernel.fn).parameters)
    assert names[len(launch._showing) :] == list(launch._show_constants)
    assert names[: len(launch._showing)] == ["blocks", "table", "levels", "middles", "value_at", "gap", "inverse_gap"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_bad_gradients_are_found(value):
    ps, opt = run(True, BASES["adam"], SCHEDULES["level-first"], LEVELS["binary"], steps=2)
    batch, found = opt._fusion._batches[0][0], [torch.full_like(p, torch.finfo(p.dtype).max) for p in ps]
    assert batch.sound(found)
    for i in (0, 1, 5, 6):
        found[i][(-1,) * found[i].ndim] = value
        assert not batch.sound(found)
        found[i].fill_(1.0)
        assert batch.sound(found)


def test_bfloat16_with_a_master_copy():
    """The interpreter cuts bits off where the GPU rounds: to one bfloat16 step here, exactly in test_fused_cuda.py."""
    ps, opt = run(
        True, BASES["adam"], SCHEDULES["level-first"], LEVELS["int4"], dtype=torch.bfloat16, master=True, steps=2
    )
    for p in ps:
        torch.testing.assert_close(p.detach(), opt.underlying(p).bfloat16(), rtol=2**-7, atol=0)
        assert opt.state[p]["exp_avg"].dtype == torch.float32
