"""The networks on a GPU with BN, ReLU and pool in one piece: as the plain modules, compiled, and in a CUDA graph."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from askew.models import norm
from askew.models.norm import unfused
from askew.models.resnet import BasicBlock
from askew.models.vgg_small import VGGSmall
from askew.nn import Sign, quantized_relu

pytestmark = pytest.mark.cuda
LAST = torch.channels_last


def residual():
    """A first layer and two residual blocks, one of them with a convolution as its shortcut."""
    first = norm.Chain(nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32, affine=False), nn.ReLU())
    blocks = BasicBlock(32, 32, 1, nn.ReLU), BasicBlock(32, 64, 2, nn.ReLU)
    return nn.Sequential(first, *blocks, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10, bias=False))


def strided():
    """The first layer of larger images, and a residual block."""
    norm_and_pool = nn.BatchNorm2d(32, affine=False), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
    first = norm.Chain(nn.Conv2d(3, 32, 7, 2, padding=3, bias=False), *norm_and_pool)
    block = BasicBlock(32, 32, 1, nn.ReLU)
    return nn.Sequential(first, block, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10, bias=False))


MAKE = {
    "vgg": lambda: VGGSmall(width=32),
    "residual": residual,
    "strided": strided,
    "affine": lambda: VGGSmall(width=32, affine=True),
    "quantized": lambda: VGGSmall(width=32, activation=partial(quantized_relu, 4)),
    "signs": lambda: VGGSmall(width=32, affine=True, pool_first=True, activation=Sign),
}


@pytest.fixture(autouse=True)
def _exact_float32():
    pytest.importorskip("triton")
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = flags


def made(kind):
    torch.manual_seed(0)
    return MAKE[kind]().cuda().to(memory_format=LAST)


def images(n=64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, 32, 32, generator=generator).cuda().contiguous(memory_format=LAST)
    return x, torch.arange(n, device="cuda") % 10


def step(model, forward, half):
    """One pass without an update: (output, gradients by name, buffers)."""
    x, target = images()
    model.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        y = forward(x)
    nn.functional.cross_entropy(y.float(), target).backward()
    buffers = {k: b.clone() for k, b in model.named_buffers()}
    return y.detach(), {k: p.grad.clone() for k, p in model.named_parameters()}, buffers


def distance(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-9)).item()


def test_float32_equals_the_plain_modules(monkeypatch):
    kind, used = "residual", []
    monkeypatch.setattr(norm, "_norm", lambda *a, inner=norm._norm: used.append(1) or inner(*a))
    model = made(kind)
    y, gradients, buffers = step(model, model, False)
    assert len(used) == 5
    with unfused():
        plain = made(kind)
        expected, expected_gradients, expected_buffers = step(plain, plain, False)
    assert distance(y, expected) < 1e-4
    for name, value in expected_gradients.items():
        assert distance(gradients[name], value) < 5e-3, name
    for name, value in expected_buffers.items():
        assert distance(buffers[name], value) < 1e-4, name


@pytest.mark.parametrize("kind", MAKE)
def test_bfloat16_is_about_as_near_to_float32_as_the_plain_modules(kind):
    mine = made(kind)
    _, gradients, buffers = step(mine, mine, True)
    with unfused():
        plain, exact = made(kind), made(kind)
        _, plain_gradients, plain_buffers = step(plain, plain, True)
        _, exact_gradients, exact_buffers = step(exact, exact, False)
    for name, value in exact_gradients.items():
        assert distance(gradients[name], value) < 1.5 * distance(plain_gradients[name], value) + 1e-3, name
    for name, value in exact_buffers.items():
        assert distance(buffers[name], value) < 1.5 * distance(plain_buffers[name], value) + 1e-3, name


def test_compiled():
    """One graph by the default compiler; what it gives is what it gives uncompiled, up to bfloat16."""
    torch.compiler.reset()
    kind = "vgg"
    model = made(kind)
    _, gradients, buffers = step(model, model, True)
    again = made(kind)
    _, found, found_buffers = step(again, torch.compile(again, fullgraph=True), True)
    with unfused():
        exact = made(kind)
        _, exact_gradients, _ = step(exact, exact, False)
    for name, value in exact_gradients.items():
        assert distance(found[name], value) < 1.5 * distance(gradients[name], value) + 1e-3, name
    for name, value in buffers.items():
        assert distance(found_buffers[name], value) < 0.05, name
    assert all(b == 1 for k, b in found_buffers.items() if "tracked" in k)


def test_in_a_cuda_graph_the_same_bits(monkeypatch):
    """Forward, backward and the running statistics, captured once, follow new images on every replay."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = VGGSmall(width=32).features.cuda().to(memory_format=LAST)
    x, _ = images()
    parameters = list(model.parameters())

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            y = model(x)
        return y, *torch.autograd.grad(y.float().square().mean(), [parameters[0], parameters[-1]])

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = run()
    before = [b.clone() for b in model.buffers()]
    x.copy_(x.flip(0) * 1.1)
    graph.replay()
    replayed = [t.clone() for t in held] + [b.clone() for b in model.buffers()]
    for b, value in zip(model.buffers(), before, strict=True):
        b.copy_(value)
    eager = [t.clone() for t in run()] + [b.clone() for b in model.buffers()]
    for mine, theirs in zip(replayed[:1] + replayed[3:], eager[:1] + eager[3:], strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(replayed[1:3], eager[1:3], strict=True):
        assert distance(mine, theirs) < 2e-2  # in a capture cudnn may take another way


def test_the_first_layer_of_larger_images_runs_in_one_piece(monkeypatch):
    """Compiled too: blocks of pixels, then BatchNorm, ReLU and pool."""
    torch.compiler.reset()
    used = []
    for part in ("blocked", "_pooled"):
        inner = getattr(norm, part)
        monkeypatch.setattr(norm, part, lambda *a, part=part, inner=inner: used.append(part) or inner(*a))
    model = made("strided")
    y, gradients, _ = step(model, model, True)
    assert used == ["blocked", "_pooled"]
    again = made("strided")
    found, found_gradients, _ = step(again, torch.compile(again, fullgraph=True), True)
    assert distance(found, y) < 2e-2
    for name, value in gradients.items():
        assert distance(found_gradients[name], value) < 0.1, name


def test_the_kernels_give_the_same_bits_each_time():
    bn, act, x = nn.BatchNorm2d(128, affine=False).cuda(), nn.ReLU(), images(100)[0]
    conv = nn.Conv2d(3, 128, 3, padding=1, bias=False).cuda().to(memory_format=LAST)
    chain = norm.Chain(conv, bn, act, nn.BatchNorm2d(128, affine=False).cuda(), nn.ReLU(), nn.MaxPool2d(2))
    found = []
    for _ in range(3):
        with torch.autocast("cuda", torch.bfloat16):
            y = chain(x)
        found.append((y, *torch.autograd.grad(y.float().square().sum(), conv.weight)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_evaluation_runs_the_plain_modules(monkeypatch):
    monkeypatch.setattr(norm, "_norm", lambda *_: pytest.fail("fused in evaluation mode"))
    model = made("vgg").eval()
    with torch.no_grad():
        assert model(images()[0]).isfinite().all()
