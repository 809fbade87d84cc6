"""Quantised activations as modules: batch scales in training, running ones in evaluation, files, dtypes, layouts."""

import copy
import io
import warnings
from functools import partial

import pytest
import torch
from torch import nn

from askew.models.resnet import ResNet18
from askew.models.vgg_small import VGGSmall
from askew.nn import QuantizedActivation, Sign, activations, quantized_relu, shared_scales
from askew.nn.activations import UnmeasuredWarning
from askew.nn.sawb import nonzero_moments, signed_scale, tally, unsigned_scale


def batch(seed: int, *shape: int, signed: bool = True) -> torch.Tensor:
    x = torch.randn(shape or (8, 3, 5, 5), generator=torch.Generator().manual_seed(seed))
    return x if signed else x.relu()


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("signed", [True, False])
def test_training_rounds_by_the_batch_and_evaluation_by_the_running_scale(bits, signed):
    layer = QuantizedActivation(bits, signed)
    x = batch(0, signed=signed)
    s = (signed_scale if signed else unsigned_scale)(nonzero_moments(x), bits)
    out = layer(x)
    codes = (out / s).round()
    torch.testing.assert_close(out, codes * s)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    assert codes.min() >= low and codes.max() <= high
    assert layer.scale == s and layer.num_batches_tracked == 1  # the first batch sets the running scale
    layer(2 * x)
    assert float(layer.scale) == pytest.approx(1.5 * float(s), rel=1e-6)
    layer.eval()
    shown = layer(x)
    assert torch.equal(shown, layer.codes(x) * layer.scale)
    assert layer.codes(x).min() >= low and layer.codes(x).max() <= high
    assert layer.num_batches_tracked == 2


def test_running_scale_is_a_plain_mean_then_a_moving_one():
    layer = QuantizedActivation(4, True, momentum=0.25)
    seen, expected = [], None
    for k in range(8):
        x = (k + 1) * batch(k)
        layer(x)
        seen.append(float(signed_scale(nonzero_moments(x), 4)))
        weight = max(1 / (k + 1), 0.25)
        expected = seen[-1] if expected is None else expected + weight * (seen[-1] - expected)
        assert float(layer.scale) == pytest.approx(expected, rel=1e-5)
        if k < 4:
            assert float(layer.scale) == pytest.approx(sum(seen) / len(seen), rel=1e-5)
    layer.reset_running_stats()
    layer.momentum = None
    for k in range(8):
        layer(batch(k))
    scales = [float(signed_scale(nonzero_moments(batch(k)), 4)) for k in range(8)]
    assert float(layer.scale) == pytest.approx(sum(scales) / 8, rel=1e-5)


def test_evaluation_does_not_depend_on_the_batch():
    layer = QuantizedActivation(4)
    for k in range(3):
        layer(batch(k))
    layer.eval()
    x = batch(9)
    assert torch.equal(layer(x), torch.cat([layer(x[i : i + 1]) for i in range(len(x))]))
    state = copy.deepcopy(layer.state_dict())
    layer(100 * x)
    assert all(torch.equal(state[k], v) for k, v in layer.state_dict().items())


def test_signed_by_what_arrives():
    layer = QuantizedActivation(4)
    x = batch(0, signed=False)
    assert layer(x).unique().numel() > 9  # sixteen levels above zero, not eight
    assert not layer.is_signed
    layer(batch(1))
    assert layer.is_signed
    layer(x)
    assert layer.is_signed  # for good
    fixed = QuantizedActivation(4, signed=False)
    assert (fixed(batch(1)) >= 0).all() and not fixed.is_signed


@pytest.mark.parametrize("momentum", [None, 0.1, 1.0])
def test_statistics_start_anew_where_a_layer_turns_signed(momentum):
    """A layer that saw ReLU batches first ends with the statistics of one that saw the signed batches only."""
    layer, fresh = QuantizedActivation(4, momentum=momentum), QuantizedActivation(4, momentum=momentum)
    for k in range(5):
        layer(batch(k, signed=False))
    assert layer.num_batches_tracked == 5 and not layer.is_signed
    restored = QuantizedActivation(4, momentum=momentum)
    restored.load_state_dict(layer.state_dict())
    scales = []
    for k in range(5, 10):
        scales.append(float(signed_scale(nonzero_moments(batch(k)), 4)))
        outputs = [each(batch(k)) for each in (layer, restored, fresh)]
        assert torch.equal(outputs[0], outputs[2]) and torch.equal(outputs[1], outputs[2])
    for each in (layer, restored):
        assert all(torch.equal(v, fresh.state_dict()[key]) for key, v in each.state_dict().items())
    layer(batch(5, signed=False))
    assert layer.num_batches_tracked == 6  # it turns once
    if momentum is None:
        assert float(fresh.scale) == pytest.approx(sum(scales) / 5, rel=1e-5)


@pytest.mark.parametrize("signed", [None, False, True])
@pytest.mark.parametrize("seen", [0, 2])
def test_an_empty_batch_passes_and_leaves_no_trace(signed, seen):
    layer = QuantizedActivation(4, signed)
    for k in range(seen):
        layer(batch(k))
    state = copy.deepcopy(layer.state_dict())
    x = torch.zeros(0, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    out = layer(x)
    assert out.shape == x.shape and out.dtype == x.dtype
    out.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape
    assert all(torch.equal(state[k], v) for k, v in layer.state_dict().items())


def test_statistics_travel_through_a_file():
    """A deployed net reproduces the evaluation of the trained one, bit for bit."""
    torch.manual_seed(0)
    net = VGGSmall(width=4, image=8, activation=partial(quantized_relu, 4))
    for k in range(3):
        net(batch(k, 16, 3, 8, 8))
    net.eval()
    x = batch(9, 4, 3, 8, 8)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    deployed = VGGSmall(width=4, image=8, activation=partial(quantized_relu, 4))
    deployed.load_state_dict(torch.load(file, weights_only=True))
    deployed.eval()
    assert torch.equal(deployed(x), net(x))
    torch.testing.assert_close(torch.cat([deployed(x[i : i + 1]) for i in range(4)]), net(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: VGGSmall(width=4, image=8, activation=Sign, pool_first=True),
        lambda: ResNet18(classes=4, stem="small", activation=partial(quantized_relu, 4)),
    ],
    ids=["W1/A1 VGG-small", "A4 ResNet-18"],
)
def test_injected_into_the_models_every_layer_learns(make):
    torch.manual_seed(0)
    net = make().to(memory_format=torch.channels_last)
    x = batch(0, 4, 3, 8, 8).to(memory_format=torch.channels_last)
    nn.functional.cross_entropy(net(x), torch.tensor([0, 1, 2, 3])).backward()
    for name, p in net.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().sum() > 0, name


def test_sign_feeds_only_ones():
    torch.manual_seed(0)
    net = VGGSmall(width=4, image=8, activation=Sign, pool_first=True)
    seen = []
    for block in list(net.features)[1:]:
        block.conv.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))  # pyright: ignore
    net(batch(0, 4, 3, 8, 8))
    assert len(seen) == 5 and all(set(x.unique().tolist()) == {-1.0, 1.0} for x in seen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_and_layouts(dtype):
    layer = QuantizedActivation(4)
    x = batch(0).to(dtype).to(memory_format=torch.channels_last)
    out = layer(x)
    assert out.dtype == dtype and out.is_contiguous(memory_format=torch.channels_last)
    assert layer.scale.dtype == torch.float32
    plain = QuantizedActivation(4)(x.float())
    torch.testing.assert_close(out.float(), plain, rtol=1e-2, atol=1e-2)
    assert Sign()(x).dtype == dtype and Sign()(x).is_contiguous(memory_format=torch.channels_last)


def test_autocast_keeps_the_scale_in_float32():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), QuantizedActivation(4), nn.Conv2d(4, 4, 3))
    with torch.autocast("cpu", torch.bfloat16):
        y = net(batch(0))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert net[2].scale.dtype == torch.float32 and 0 < net[2].scale < 1  # pyright: ignore
    assert net[0].weight.grad.abs().sum() > 0  # pyright: ignore


def test_all_zeros_and_one_value_do_no_harm():
    layer = QuantizedActivation(4)
    assert torch.equal(layer(torch.zeros(5)), torch.zeros(5))
    torch.testing.assert_close(QuantizedActivation(4, False)(torch.full((5,), 0.7)), torch.full((5,), 0.7))
    assert torch.equal(layer.eval()(torch.zeros(5)), torch.zeros(5))


@pytest.mark.parametrize("bits", [0, 9, -1, 2.0, True])
def test_bits_outside_1_to_8(bits):
    with pytest.raises(ValueError, match=r"bits must be a whole number from 1 to 8, got"):
        QuantizedActivation(bits)


def test_other_bad_arguments():
    with pytest.raises(ValueError, match=r"askew\.nn\.Sign"):
        QuantizedActivation(1)
    QuantizedActivation(1, signed=False)
    with pytest.raises(ValueError, match="momentum"):
        QuantizedActivation(4, momentum=0.0)
    with pytest.raises(ValueError, match=r"Sign\(gradient\) must be one of tanh, clip, quadratic, got 'relu'"):
        Sign("relu")  # pyright: ignore


def test_one_graph_without_breaks():
    """Compiled whole (no branch on a tensor): the same numbers and the same running scale."""
    net = nn.Sequential(QuantizedActivation(4), nn.Linear(6, 5), QuantizedActivation(3, True), Sign())
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for k in range(3):
        a, b = batch(k, 7, 6).requires_grad_(), batch(k, 7, 6).requires_grad_()
        ya, yb = net(a), compiled(b)
        assert torch.equal(ya, yb)
        (ya * torch.arange(5.0)).sum().backward()
        (yb * torch.arange(5.0)).sum().backward()
        torch.testing.assert_close(a.grad, b.grad)
    for x, y in zip(net.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(x, y)


def test_shared_scales_are_those_of_the_whole_batch(monkeypatch):
    """Two processes with halves of a batch measure what one process measures on all of it."""
    x = batch(0, 16, 5)
    x[:8] = x[:8].relu()  # only the second half has negative numbers
    mine, theirs = x[:8], x[8:]
    monkeypatch.setattr(activations, "gathered", lambda t, group: torch.stack([t, tally(theirs)]))
    monkeypatch.setattr(activations, "_everyone", lambda: None)
    part, whole = QuantizedActivation(4), QuantizedActivation(4)
    with shared_scales(nn.Sequential(part)):
        out = part(mine)
    assert not part.shared and part.is_signed
    torch.testing.assert_close(out, whole(x)[:8])
    torch.testing.assert_close(part.scale, whole.scale)


def test_an_empty_part_joins_the_others(monkeypatch):
    """A process without images measures what the others have, and is there when they gather."""
    x = batch(0, 8, 5)
    monkeypatch.setattr(activations, "gathered", lambda t, group: torch.stack([t, tally(x)]))
    monkeypatch.setattr(activations, "_everyone", lambda: None)
    part, whole = QuantizedActivation(4), QuantizedActivation(4)
    whole(x)
    with shared_scales(nn.Sequential(part)):
        assert part(x[:0]).shape == (0, 5)
    assert all(torch.equal(v, whole.state_dict()[key]) for key, v in part.state_dict().items())


def test_evaluation_before_any_batch_is_warned_of_once() -> None:
    layer = QuantizedActivation(8).eval()
    with pytest.warns(UnmeasuredWarning, match="never measured and is 1: run some batches"):
        layer(torch.rand(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(torch.rand(3))
        known = QuantizedActivation(8)
        known(torch.rand(3))
        known.eval()(torch.rand(3))
        loaded = QuantizedActivation(8).eval()
        loaded.load_state_dict(known.state_dict())
        assert torch.equal(loaded(torch.ones(3)), known(torch.ones(3)))


def test_zeros_in_half_precision_stay_zeros() -> None:
    layer = QuantizedActivation(4).half()
    for _ in range(3):
        assert not layer(torch.zeros(4, dtype=torch.float16)).any()
    layer.eval()
    assert layer.scale > 0 and not layer(torch.zeros(4, dtype=torch.float16)).any()
