"""BatchNorm + ReLU (+ pool, + shortcut) and the first layer in one piece: the written-out formulas against autograd."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d, max_pool2d, relu

from askew.models import norm
from askew.models.norm import Chain, NormAct, fused_as, fuses, halves, norm_activation, opened, starts, unfused
from askew.models.norm_ops import norm_act, norm_act_backward
from askew.models.norm_stem import TILE, Stem, flat, padded_rows, stem, stem_backward, windows
from askew.models.resnet import BasicBlock, ResNet18
from askew.models.vgg_small import VGGSmall
from askew.nn import Sign, quantized_relu
from askew.nn.straight_through import sign

LAST = torch.channels_last
KINDS = {"plain": (False, False), "pool": (True, False), "shortcut": (False, True)}
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def on_cpu(monkeypatch):
    """The operators' written-out form stands in for the kernels."""
    monkeypatch.setattr(norm, "DEVICES", {"cpu"})


def some(*shape, dtype=torch.float64, seed=0):
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(dtype).contiguous(memory_format=LAST) if x.ndim == 4 else x.to(dtype)


NOTHING = (None, None, None, 0.1, 1e-5)  # running statistics that are not kept; momentum, eps
ACTS = ["relu", "tanh", "clip", "quadratic"]


def composed(z, residual, pool, vectors=(None, None), act="relu"):
    """The same from torch's own pieces."""
    y = batch_norm(z, None, None, *vectors, training=True)
    y = y if residual is None else y + residual
    y = relu(y) if act == "relu" else sign(y, act)
    return max_pool2d(y, 2) if pool else y


def scales(c):
    """Of both signs, so that a pool has smallest values to find."""
    return [t.requires_grad_() for t in (some(c, seed=7), some(c, seed=8))]


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("affine", [False, True])
@kinds
def test_formulas_agree_with_autograd(kind, affine, act):
    pool, shortcut = KINDS[kind]
    if pool and act != "relu":
        pytest.skip("a pool goes with ReLU")
    z = (3 * some(3, 5, 6, 4) + 2).requires_grad_()
    residual = some(3, 5, 6, 4, seed=1).requires_grad_() if shortcut else None
    vectors = scales(5) if affine else (None, None)
    inputs = [t for t in (z, residual, *vectors) if t is not None]
    y = NormAct.apply(z, residual, *vectors, *NOTHING, pool, act)
    expected = composed(z, residual, pool, vectors, act)
    torch.testing.assert_close(y, expected)
    assert y.is_contiguous(memory_format=LAST)
    dy = some(*y.shape, seed=2)
    for mine, theirs in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(expected, inputs, dy), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_equal_values_under_a_pool():
    """The first of the largest gets the gradient, as in torch."""
    z = torch.tensor([[1.0, 1, 0, 2], [1, 1, 2, 2], [-3, -3, 0, 0], [-3, -3, 0, 5]], dtype=torch.float64)
    z = z.view(1, 1, 4, 4).requires_grad_()
    dy = some(1, 1, 2, 2)
    (mine,) = torch.autograd.grad(NormAct.apply(z, None, None, None, *NOTHING, True, "relu"), z, dy)
    (theirs,) = torch.autograd.grad(composed(z, None, True), z, dy)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
def test_running_statistics_move_as_those_of_torch(on_cpu, momentum):
    mine, theirs = (Chain(nn.BatchNorm2d(5, affine=False, momentum=momentum), nn.ReLU()) for _ in range(2))
    for step in range(3):
        z = some(3, 5, 4, 4, dtype=torch.float32, seed=step) + step
        y = mine(z)
        with unfused():
            torch.testing.assert_close(y, theirs(z))
    assert mine[0].num_batches_tracked == 3
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], value, msg=name)


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (3, 1, 4, 4), (2, 2, 1, 6)])
def test_windows_times_weights_are_the_convolution(shape):
    x, w = some(*shape), some(7, shape[1], 3, 3, seed=1)
    b, _, h, wide = shape
    U = windows(x)
    z = (U[:, : 9 * shape[1]] @ flat(w).T).view(b, h, wide, 7).permute(0, 3, 1, 2)
    torch.testing.assert_close(z, conv2d(x, w, padding=1))
    assert U.shape[1] == 32 and (U[:, 9 * shape[1]] == 1).all() and not U[:, 9 * shape[1] + 1 :].any()


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (16, 1, 4, 4), (5, 2, 8, 8)])
def test_the_products_of_windows_hold_the_statistics(shape):
    """m = 1'U K / n, var = diag(K' U'U K) / n - m^2; the rows of U are filled up with empty ones."""
    x, w = some(*shape) + 1, flat(some(16, shape[1], 3, 3, seed=1))
    _, U, gram, mean, rstd = stem(x, w, None, None, *NOTHING, torch.float64, "relu")
    n, taps = shape[0] * shape[2] * shape[3], w.shape[1]
    assert len(U) == padded_rows(n) >= n and len(U) % TILE == 0 and not U[n:].any()
    torch.testing.assert_close(U.T @ U, gram)
    torch.testing.assert_close(w @ gram[taps, :taps] / n, mean)
    variance = (w @ gram[:taps, :taps] * w).sum(1) / n - mean**2
    torch.testing.assert_close((variance + 1e-5).rsqrt(), rstd)


def test_the_operators_of_the_first_layer_are_what_they_say():
    """Shapes, strides and what is changed in place, as the compiler is told."""
    x, w = some(3, 3, 4, 6, dtype=torch.float32), flat(some(16, 3, 3, 3, dtype=torch.float32, seed=1))
    running = (torch.zeros(16), torch.ones(16), torch.tensor(0))
    for vectors, act in (((None, None), "relu"), ((torch.ones(16), torch.zeros(16)), "tanh")):
        torch.library.opcheck(stem, (x, w, *vectors, *running, 0.1, 1e-5, torch.bfloat16, act))
        y, *kept = stem(x, w, *vectors, *running, 0.1, 1e-5, torch.bfloat16, act)
        torch.library.opcheck(stem_backward, (kept[0], w, torch.ones_like(y), *kept[1:], *vectors, act))


@kinds
def test_the_operators_of_batchnorm_are_what_they_say(kind):
    pool, shortcut = KINDS[kind]
    z = some(3, 5, 4, 6, dtype=torch.float32)
    residual = some(3, 5, 4, 6, dtype=torch.float32, seed=1) if shortcut else None
    for vectors, act in (((None, None), "relu"), ((torch.ones(5), torch.zeros(5)), "relu" if pool else "clip")):
        running = (torch.zeros(5), torch.ones(5), torch.tensor(0))
        torch.library.opcheck(norm_act, (z, residual, *vectors, *running, 0.1, 1e-5, pool, act))
        y, mean, rstd = norm_act(z, residual, *vectors, *running, 0.1, 1e-5, pool, act)
        kept = residual if act != "relu" else y
        given = (z, kept, torch.ones_like(y), mean, rstd, *vectors, pool, shortcut, act)
        torch.library.opcheck(norm_act_backward, given)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_the_gradient_of_the_first_layer_from_two_products(channels, affine, act):
    x = some(4, channels, 5, 6) + 1
    w = some(16, channels, 3, 3, seed=1).requires_grad_()
    vectors = scales(16) if affine else (None, None)
    y = Stem.apply(x, flat(w), *vectors, *NOTHING, torch.float64, act)
    expected = composed(conv2d(x, w, padding=1), None, False, vectors, act)
    torch.testing.assert_close(y, expected)
    dy = some(*y.shape, seed=2)
    inputs = [w, *vectors] if affine else [w]
    for mine, theirs in zip(torch.autograd.grad(y, inputs, dy), torch.autograd.grad(expected, inputs, dy), strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs)


# -- where it applies -------------------------------------------------------------------------------------------------


def test_never_on_a_cpu():
    z = some(4, 8, 4, 4, dtype=torch.float32)
    assert not fuses(z, nn.BatchNorm2d(8, affine=False), nn.ReLU())


class Noisy(nn.BatchNorm2d):
    pass


def test_only_for_what_the_kernels_compute(on_cpu):
    z, bn, act = some(4, 8, 4, 4, dtype=torch.float32), nn.BatchNorm2d(8, affine=False), nn.ReLU()
    assert fuses(z, bn, act) and fuses(z.bfloat16(), bn, nn.ReLU(inplace=True))
    assert not fuses(z.contiguous(), bn, act) and not fuses(z.double(), bn, act)
    assert fuses(z, nn.BatchNorm2d(8), act) and not fuses(z, Noisy(8, affine=False), act)
    assert not fuses(z, bn, nn.PReLU()) and not fuses(z, bn.eval(), act) and not fuses(z[0], bn.train(), act)
    assert not fuses(z[:1, :, :1, :1], bn, act)  # one value a channel: nn.BatchNorm2d refuses it
    with unfused():
        assert not fuses(z, bn, act)
    for listen in (act.register_forward_hook, bn.register_full_backward_hook, bn.register_full_backward_pre_hook):
        hook = listen(lambda *_: None)
        assert not fuses(z, bn, act)
        hook.remove()
    assert fuses(z, bn, act)
    assert not fuses(z, bn, act, 9)
    bn.running_var = torch.ones(16)[::2]
    assert not fuses(z, bn, act)


def test_channels_that_do_not_fit_are_an_error(on_cpu):
    """As without kernels, which would write beside the running statistics."""
    conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError, match="running_mean"):
        Chain(conv, nn.BatchNorm2d(8), nn.ReLU())(some(2, 3, 8, 8, dtype=torch.float32))
    with pytest.raises(RuntimeError, match="running_mean"):
        Chain(nn.BatchNorm2d(4), nn.ReLU())(some(2, 8, 4, 4, dtype=torch.float32))


class OtherSign(Sign):
    pass


class Wrapper(nn.Module):
    """Looks like what it holds and gives three times as much."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        return super().__getattr__(name) if name == "inner" else getattr(self.inner, name)

    def forward(self, input):
        return 3 * self.inner(input)


def test_which_activations():
    assert [fused_as(a) for a in (nn.ReLU(), Sign(), Sign("clip"), nn.Tanh(), OtherSign(), nn.Hardtanh())] == [
        "relu",
        "tanh",
        "clip",
        None,
        None,
        None,
    ]
    heard, replaced = Sign(), Sign()
    heard.register_forward_hook(lambda *_: None)
    replaced.forward = lambda input: 3 * input
    assert fused_as(heard) is fused_as(replaced) is fused_as(Wrapper(Sign())) is None
    everywhere = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert fused_as(Sign()) is fused_as(nn.ReLU()) is None
    everywhere.remove()
    assert fused_as(nn.ReLU()) == "relu"


def test_a_pool_behind_a_sign_runs_by_itself(on_cpu):
    """It would pool what the sign has made; the kernels know the pool that stands behind a ReLU."""
    chain = Chain(nn.BatchNorm2d(8), Sign(), nn.MaxPool2d(2))
    z = some(4, 8, 4, 6, dtype=torch.float32)
    y = chain(z)
    with unfused():
        assert torch.equal(y, chain(z)) and y.shape == (4, 8, 2, 3)


def test_which_pools(on_cpu):
    z = some(4, 8, 4, 6, dtype=torch.float32)
    assert halves(z, nn.MaxPool2d(2)) and halves(z, nn.MaxPool2d((2, 2), 2))
    others = [nn.MaxPool2d(3, 2, padding=1), nn.MaxPool2d(2, 1), nn.AvgPool2d(2), nn.MaxPool2d(2, return_indices=True)]
    assert not any(halves(z, pool) for pool in others)
    assert not halves(z[:, :, :3], nn.MaxPool2d(2))  # a row is left over


def test_which_first_layers(on_cpu):
    bn, act = nn.BatchNorm2d(16, affine=False), nn.ReLU()
    x = some(4, 3, 8, 8, dtype=torch.bfloat16)

    def conv(inside=3, size=3, **options):
        return nn.Conv2d(inside, 16, size, **{"padding": size // 2, "bias": False, **options})

    assert starts(x, conv(), bn, act)
    assert not starts(x.float(), conv(), bn, act)
    with torch.autocast("cpu", torch.bfloat16):
        assert starts(x.float(), conv(), bn, act)
    for other in (conv(size=7), conv(stride=2), conv(bias=True), conv(padding_mode="circular"), conv(padding=0)):
        assert not starts(x, other, bn, act)
    assert not starts(some(4, 4, 8, 8, dtype=torch.bfloat16), conv(4), bn, act)
    assert not starts(x.clone().requires_grad_(), conv(), bn, act)


# -- in the networks --------------------------------------------------------------------------------------------------


def strided():
    """The first layer of larger images, and a block."""
    norm_and_pool = nn.BatchNorm2d(16, affine=False), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
    first = Chain(nn.Conv2d(3, 16, 7, 2, padding=3, bias=False), *norm_and_pool)
    block = BasicBlock(16, 16, 1, nn.ReLU)
    return nn.Sequential(first, block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10, bias=False))


MAKE = {
    "strided": strided,
    "vgg": lambda: VGGSmall(width=16, image=16),
    "vgg-pool-first": lambda: VGGSmall(width=16, image=16, pool_first=True),
    "vgg-affine": lambda: VGGSmall(width=16, image=16, affine=True),
    "vgg-signs": lambda: VGGSmall(width=16, image=16, pool_first=True, affine=True, activation=Sign),
    "vgg-quantized": lambda: VGGSmall(width=16, image=16, activation=partial(quantized_relu, 4)),
    "resnet": lambda: ResNet18(classes=10, stem="small"),
    "resnet-affine": lambda: ResNet18(classes=10, stem="small", affine=True),
    "resnet-tiny": lambda: ResNet18(classes=10, stem="tiny"),
}


def trained(make, dtype, compiled=False):
    """Output, gradients and buffers after one pass, fused or not."""
    torch.manual_seed(0)
    model = make().to(memory_format=LAST)
    forward = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
    x = some(6, 3, 16, 16, dtype=torch.float32, seed=3)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = forward(x)
    nn.functional.cross_entropy(y.float(), torch.arange(6)).backward()
    return y, {k: p.grad for k, p in model.named_parameters()}, model.state_dict()


def close(a, b, share):
    return (a.double() - b.double()).norm() <= share * b.double().norm() + 1e-6


@pytest.mark.parametrize("kind", MAKE)
def test_networks_compute_the_same(on_cpu, kind, monkeypatch):
    """Outputs, gradients and running statistics in float32."""
    used = []
    monkeypatch.setattr(norm, "_norm", lambda *a, inner=norm._norm: used.append(1) or inner(*a))
    monkeypatch.setattr(norm, "_pooled", lambda *a, inner=norm._pooled: used.append(1) or inner(*a))
    y, gradients, state = trained(MAKE[kind], torch.float32)
    assert len(used) == (3 if kind == "strided" else 6 if "vgg" in kind else 17)
    with unfused():
        expected, expected_gradients, expected_state = trained(MAKE[kind], torch.float32)
    assert close(y, expected, 1e-4)
    for name, value in expected_gradients.items():
        assert close(gradients[name], value, 2e-3), name
    for name, value in expected_state.items():
        assert close(state[name], value, 1e-4), name


@pytest.mark.parametrize("kind", ["vgg", "vgg-affine", "vgg-signs", "vgg-quantized", "resnet", "strided"])
def test_one_graph_for_the_compiler(on_cpu, kind):
    """In bfloat16, first layer included: without a break, and what it gives is what it gives uncompiled.

    Roughly so for a first layer of stride 2: a convolution of blocks, which may add up in another order there.
    """
    torch.compiler.reset()
    found, expected = (trained(MAKE[kind], torch.bfloat16, compiled) for compiled in (True, False))
    share = 2e-2 if kind == "strided" else 1e-3
    assert close(found[0], expected[0], share)
    for part in (1, 2):
        for name, value in expected[part].items():
            assert close(found[part][name], value, share), name


def test_a_quantizer_behind_a_block_s_relu(on_cpu, monkeypatch):
    """BN, shortcut and ReLU in one piece, then the quantizer; a value between two steps may go the other way."""
    used = []
    monkeypatch.setattr(norm, "_norm", lambda *a, inner=norm._norm: used.append(1) or inner(*a))
    torch.manual_seed(0)
    block = BasicBlock(8, 16, 2, partial(quantized_relu, 4)).to(memory_format=LAST)
    x = some(8, 8, 12, 12, dtype=torch.float32)
    y = block(x)
    assert len(used) == 2 and len(y.unique()) == 16
    with unfused():
        assert close(y, block(x), 1e-2) and len(used) == 2


def test_which_sequences_are_opened(on_cpu, monkeypatch):
    """Plain ones; what a hook or a class of its own makes of one is not known."""
    heard, inner = nn.Sequential(nn.ReLU(), nn.Tanh()), nn.Sequential(nn.Tanh(), nn.Sequential())
    layers = opened([nn.Sequential(nn.ReLU(), inner), Chain(nn.ReLU()), heard])
    assert [type(m) for m in layers] == [nn.ReLU, nn.Tanh, Chain, nn.ReLU, nn.Tanh]
    heard.register_forward_hook(lambda module, given, out: out + 1)
    assert opened([heard]) == [heard]
    z, bn = some(4, 8, 4, 4, dtype=torch.float32), nn.BatchNorm2d(8, affine=False)
    y = norm_activation(z, bn, heard)
    assert torch.allclose(y, relu(bn(z)).tanh() + 1) and torch.allclose(y, Chain(bn, heard)(z))
    assert torch.allclose(norm_activation(z, bn, nn.Sequential()), bn(z))


def test_a_shortcut_of_another_kind_is_added_plainly(on_cpu):
    z, bn = some(4, 8, 4, 4, dtype=torch.bfloat16), nn.BatchNorm2d(8, affine=False)
    shortcut = some(4, 8, 4, 4, dtype=torch.float32, seed=1)
    assert norm_activation(z, bn, nn.ReLU(), shortcut).dtype == torch.float32
