"""On a GPU: no device sync, whole steps in a CUDA graph, bfloat16 autocast and channels_last, compiled."""

import copy

import pytest
import torch
from torch import nn

from askew.nn import quantize_activations, quantize_gradients

pytestmark = pytest.mark.cuda


def net(gradients: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16, affine=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 4),
    )
    quantize_activations(model, 4, skip="0")
    if gradients:
        quantize_gradients(model, 4)
    return model.to("cuda", memory_format=torch.channels_last)  # pyright: ignore


def images(seed: int) -> torch.Tensor:
    x = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return x.cuda().contiguous(memory_format=torch.channels_last)


def backward(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        y = model(x)
    loss = y.float().square().mean()
    loss.backward()
    return loss


@pytest.mark.parametrize("gradients", [False, True])
def test_no_device_sync(gradients):
    model, x = net(gradients), images(0)
    backward(model, x)
    torch.cuda.set_sync_debug_mode("error")
    try:
        backward(model, x)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_captured_step_equals_an_eager_one(compiled):
    model = net()
    eager = copy.deepcopy(model)
    run = torch.compile(model, fullgraph=True) if compiled else model
    x = images(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for k in range(3):
            x.copy_(images(k))
            model.zero_grad(set_to_none=True)
            backward(run, x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    model.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        backward(run, x)
    for k in range(3, 8):
        x.copy_(images(k))
        graph.replay()
    for k in range(8):
        eager.zero_grad(set_to_none=True)
        backward(eager, images(k))
    tolerance = {"rtol": 2e-2, "atol": 1e-2}
    for (name, a), b in zip(model.state_dict().items(), eager.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, **tolerance, msg=lambda m, name=name: f"{name}: {m}")
    assert model[4].input_quantizer.num_batches_tracked == 8  # pyright: ignore


def test_inserted_quantisers_lie_on_the_models_device():
    model = quantize_activations(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda(), at="activations")
    assert all(b.is_cuda for b in model.buffers())
    assert model(torch.randn(2, 4, device="cuda")).is_cuda
