"""On a GPU: steps of the low-bit methods inside a CUDA graph, without a device sync, equal to eager ones."""

import pytest
import torch
from torch import nn

from askew.core import LevelFirst, uniform
from askew.methods.registry import method
from askew.optim import ASkew, MethodOptimizer

pytestmark = pytest.mark.cuda
OURS = [f"askew-level-first{form}" for form in ("", "-rounded", "-reversible")]
NAMES = ["luq", "lsq", "parq-fixed", *OURS]
TOTAL = 100


def build(name: str, per: str):
    """A weight of four bits on the GPU with a fixed gradient buffer, Adam inside."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(6, 40).cuda())
    p.grad = torch.zeros_like(p)
    group = {"params": [("w", p)], "levels": uniform(4)}
    base = torch.optim.Adam([group], lr=torch.tensor(0.02, device="cuda"), capturable=True)
    options = {"scale": "sawb", "per": per, "total_steps": TOTAL, "nonfinite": "ignore"}
    if name.startswith("askew"):
        form = name.removeprefix("askew-level-first").strip("-")
        annealing = LevelFirst(start=2, end=80, **({form: True} if form else {}))
        return p, ASkew(base, annealing, **options)  # pyright: ignore
    return p, MethodOptimizer(base, method(name), **options)  # pyright: ignore


def fill(p: nn.Parameter, k: int) -> None:
    g = torch.Generator().manual_seed(k)
    assert p.grad is not None
    p.grad.copy_(torch.randn(p.shape, generator=g))


@pytest.mark.parametrize("per", ["tensor", "channel"])
@pytest.mark.parametrize("name", NAMES)
def test_a_captured_step_equals_eager_steps(name, per):
    eager, opt = build(name, per)
    for k in range(12):
        fill(eager, k)
        opt.step()
    p, graphed = build(name, per)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for k in range(5):
            fill(p, k)
            graphed.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        graphed.step()
    for k in range(5, 12):
        fill(p, k)
        graphed.tick()
        graph.replay()
    assert graphed.steps == opt.steps == 12
    torch.testing.assert_close(p.detach(), eager.detach(), rtol=0, atol=0)
    torch.testing.assert_close(graphed.underlying(p).detach(), opt.underlying(eager).detach(), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_no_device_sync(name):
    p, opt = build(name, "channel")
    for k in range(4):
        fill(p, k)
        opt.step()
    fill(p, 4)
    torch.cuda.set_sync_debug_mode("error")
    try:
        opt.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
