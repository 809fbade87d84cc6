"""quantize_activations in any module: where the quantisers stand, what is left alone, what is refused."""

import copy
import pickle

import pytest
import torch
from torch import nn

import askew
from askew.models.resnet import ResNet18
from askew.models.vgg_small import VGGSmall
from askew.nn import QuantizedActivation, Sign, quantize_activations


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, bias=False),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def images(seed: int = 0) -> torch.Tensor:
    return torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


def test_inputs_of_every_layer():
    model = net()
    names = [n for n, _ in model.named_parameters()]
    assert quantize_activations(model, 4) is model
    assert [n for n, _ in model.named_parameters()] == names
    seen = {}
    for i in (0, 3, 6):
        model[i].register_forward_pre_hook(lambda _, inputs, i=i: seen.__setitem__(i, inputs[0]))
    model(images())
    assert [bool(model[i].input_quantizer.is_signed) for i in (0, 3, 6)] == [True, False, True]  # pyright: ignore
    for i, x in seen.items():
        codes = x / model[i].input_quantizer.scale  # pyright: ignore
        torch.testing.assert_close(codes, codes.round(), atol=1e-4, rtol=0)
        assert x.unique().numel() <= 16


def test_skip_first_and_last():
    model = ResNet18(classes=4, stem="small")
    quantize_activations(model, 4, skip=("stem.conv", "head.linear"))
    quantised = [n for n, m in model.named_modules() if isinstance(m, QuantizedActivation)]
    assert len(quantised) == 16 + 3  # the blocks' convolutions and the three shortcuts
    assert not any(n.startswith(("stem", "head")) for n in quantised)
    groups = askew.groups(model, askew.uniform(4), skip=("stem.conv", "head.linear"))
    assert len(groups[0]["params"]) == 19
    quantize_activations(net(), 4, skip=lambda name, module: name == "0")
    with pytest.raises(ValueError, match="skip pattern 'fc' matches nothing; there are: 0, 3, 6"):
        quantize_activations(net(), 4, skip="fc")
    with pytest.raises(ValueError, match="no layers to quantise that skip leaves"):
        quantize_activations(net(), 4, skip="*")


def test_after_activation_modules():
    model = quantize_activations(net(), 4, at="activations")
    assert isinstance(model[2], nn.Sequential) and isinstance(model[4], nn.Sequential)
    assert [model[i].quantizer.signed for i in (2, 4)] == [False, True]  # pyright: ignore
    out = model[:3](images())
    assert out.min() == 0 and out.unique().numel() <= 16
    assert model[:5](images()).unique().numel() <= 16


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d])
def test_layers_called_by_keyword(kind):
    """self.a(input=x) computes what self.a(x) does, statistics included."""

    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = kind(3, 4) if kind is nn.Linear else kind(3, 4, 1)

        def forward(self, x: torch.Tensor, by_keyword: bool) -> torch.Tensor:
            return self.a(input=x) if by_keyword else self.a(x)

    shape = {nn.Linear: (8, 3), nn.Conv1d: (8, 3, 5)}.get(kind, (8, 3, 5, 5))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    model = quantize_activations(Keyword(), 4)
    twin = copy.deepcopy(model)
    for _ in range(2):
        assert torch.equal(model(x, True), twin(x, False))
        assert all(torch.equal(a, b) for a, b in zip(model.buffers(), twin.buffers(), strict=True))
        model.eval(), twin.eval()
    assert model.a.input_quantizer.num_batches_tracked == 1  # pyright: ignore


def test_keywords_of_ones_own_layers():
    class Named(nn.Linear):
        def forward(self, signal: torch.Tensor, gain: float = 1.0) -> torch.Tensor:  # pyright: ignore
            return gain * super().forward(signal)

    class Loose(nn.Linear):
        def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:  # pyright: ignore
            return super().forward(*args, *kwargs.values())

    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    named, loose = (quantize_activations(nn.ModuleList([kind(3, 3)]), 4)[0] for kind in (Named, Loose))
    assert torch.equal(named(gain=2.0, signal=x), named(x, gain=2.0))
    assert named.input_quantizer.num_batches_tracked == 2
    loose(x)
    message = r"Loose\(in_features=3, .*cannot tell its input among the keywords value; give it by place"
    with pytest.raises(TypeError, match=message):
        loose(value=x)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'signal'"):
        named()


@pytest.mark.parametrize("by_keyword", [False, True])
def test_inserted_quantisers_compile_without_breaks(by_keyword):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x).relu()
            return self.b(input=y) if by_keyword else self.b(y)

    torch.manual_seed(0)
    model = quantize_activations(Net(), 4)
    twin = copy.deepcopy(model)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        x = torch.randn(7, 6)
        assert torch.equal(model(x), compiled(x))
    for a, b in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_one_bit_replaces_the_activations():
    model = quantize_activations(net(), 1, gradient="clip", norm=False)
    assert isinstance(model[2], Sign) and isinstance(model[4], Sign) and model[2].gradient == "clip"
    vgg = quantize_activations(VGGSmall(width=4, image=8, pool_first=True), 1)
    assert sum(isinstance(m, Sign) for m in vgg.modules()) == 6 and not any(
        isinstance(m, nn.ReLU) for m in vgg.modules()
    )
    with pytest.raises(ValueError, match="use at='activations'"):
        quantize_activations(net(), 1, at="inputs")


def test_a_shared_activation_is_replaced_everywhere():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = nn.ReLU()

    model = quantize_activations(Shared(), 4, at="activations")
    assert model.first is model.second and isinstance(model.first, nn.Sequential)
    assert isinstance(model.first.activation, nn.ReLU)


@pytest.mark.parametrize("bits", [1, 4])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_an_encoder_layer_has_no_way_around_its_new_activation(activation, bits):
    """torch's fast path of inference remembers which activation the layer was made with."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation=activation(), batch_first=True)
    options = {"norm": False} if bits == 1 else {"at": "activations"}
    quantize_activations(layer, bits, **options)
    x = torch.randn(4, 5, 16)
    layer(x)
    layer.eval()
    with torch.no_grad():
        fast = layer(x)
    torch.testing.assert_close(fast, layer(x))


def test_attention_is_left_alone():
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "fc": nn.Linear(8, 8)})
    quantize_activations(model)
    assert hasattr(model["fc"], "input_quantizer")
    assert not any(hasattr(m, "input_quantizer") for m in model["attention"].modules())


def test_copies_and_pickles_keep_the_quantisers():
    model = quantize_activations(net(), 4)
    model(images())
    model.eval()
    x = images(3)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
        twin.train()(5 * x)
        assert not torch.equal(twin[0].input_quantizer.scale, model[0].input_quantizer.scale)


def test_new_modules_take_the_mode_of_their_neighbours():
    model = quantize_activations(net().eval(), 4)
    assert not any(m.training for m in model.modules())


def test_refusals():
    for bits in (0, 9, 4.0):
        with pytest.raises(ValueError, match="bits must be a whole number from 1 to 8"):
            quantize_activations(net(), bits)  # pyright: ignore
    with pytest.raises(ValueError, match="at must be 'inputs' or 'activations', got 'outputs'"):
        quantize_activations(net(), 4, at="outputs")  # pyright: ignore
    with pytest.raises(ValueError, match="quantised already"):
        quantize_activations(quantize_activations(net()))
    with pytest.raises(ValueError, match="Flatten has no layers to quantise"):
        quantize_activations(nn.Flatten())
    with pytest.raises(ValueError, match="put it into a module"):
        quantize_activations(nn.ReLU(), at="activations")


def test_w4a4_trains_with_askew():
    """Weights by ASkew, activations by SAWB: the loss falls and the weights end on sixteen levels a layer."""
    model = quantize_activations(net(), 4, skip="0")
    x, y = images(), torch.arange(8) % 3
    groups = askew.groups(model, askew.uniform(4), skip="6")
    opt = askew.ASkew(
        torch.optim.Adam(groups, lr=0.02), askew.LevelFirst(start=0.3), scale="sawb", per="channel", total_steps=60
    )
    losses = []
    for _ in range(60):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    for _, w, site in opt.weights():
        assert site.scale is not None
        torch.testing.assert_close(w / site.scale, (w / site.scale).round())
