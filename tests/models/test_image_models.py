"""What holds of VGG-small and ResNet-18 alike: weights and nothing else, injected activations, precision, layout."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

import askew
from askew.models.resnet import ResNet18
from askew.models.vgg_small import VGGSmall

B = askew.binary()
MAKE = {
    "vgg": lambda **o: VGGSmall(**{"width": 16, **o}),
    "vgg-pool-first": lambda **o: VGGSmall(**{"width": 16, "pool_first": True, **o}),
    "resnet": lambda **o: ResNet18(**{"classes": 10, "stem": "small", **o}),
    "resnet-tiny": lambda **o: ResNet18(**{"classes": 10, "stem": "tiny", **o}),
}
ACTIVATIONS = {"vgg": 6, "vgg-pool-first": 6, "resnet": 17, "resnet-tiny": 17}
FIRST = {"vgg": "features.0.conv", "resnet": "stem.conv"}
every = pytest.mark.parametrize("kind", MAKE)
two = pytest.mark.parametrize("kind", FIRST)


def names(group):
    return [name for name, _ in group["params"]]


def images(n=4):
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(1))


# -- weights ----------------------------------------------------------------------------------------------------------


@every
def test_every_parameter_is_a_weight_that_takes_levels(kind):
    model = MAKE[kind]()
    (taken,) = askew.groups(model, levels=B)
    assert names(taken) == [name for name, _ in model.named_parameters()]
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert len(norms) == len(taken["params"])  # one after every layer, the last too
    assert not any(m.affine for m in norms)


@every
def test_affine_gives_every_norm_but_the_last_a_scale_and_a_bias(kind):
    plain, model = MAKE[kind](), MAKE[kind](affine=True)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert [m.affine for m in norms] == [True] * (len(norms) - 1) + [False]
    taken, rest = askew.groups(model, levels=B)
    assert names(taken) == [name for name, _ in plain.named_parameters()]
    assert rest["levels"] is None and len(rest["params"]) == 2 * (len(norms) - 1)
    missing = model.load_state_dict(plain.state_dict(), strict=False)
    assert set(missing.missing_keys) == set(names(rest)) and not missing.unexpected_keys
    assert torch.equal(model.eval()(images()), plain.eval()(images()))  # scales start at 1, biases at 0


@two
def test_first_and_last_layer_stay_out_by_name(kind):
    model = MAKE[kind]()
    everything = [name for name, _ in model.named_parameters()]
    first, last = f"{FIRST[kind]}.weight", "head.linear.weight"
    assert (everything[0], everything[-1]) == (first, last)
    taken, rest = askew.groups(model, levels=B, skip="head.linear")
    assert (names(taken), names(rest), rest["levels"]) == (everything[:-1], [last], None)
    taken, rest = askew.groups(model, levels=B, skip=[FIRST[kind], "head.*"])
    assert (names(taken), names(rest)) == (everything[1:-1], [first, last])


def test_patterns_address_stages_and_shortcuts():
    model = MAKE["resnet"]()
    shortcuts, late, rest = askew.groups(model, {"*.shortcut.conv": B, "stages.3.*.conv?": askew.ternary()})
    assert names(shortcuts) == [f"stages.{i}.0.shortcut.conv.weight" for i in (1, 2, 3)]
    assert names(late) == [f"stages.3.{b}.conv{c}.weight" for b in (0, 1) for c in (1, 2)]
    assert len(names(rest)) == 21 - 3 - 4


@every
def test_weights_start_at_torchs_default(kind):
    """Uniform on +-1/sqrt(fan_in)."""
    torch.manual_seed(0)
    for name, w in MAKE[kind]().named_parameters():
        bound = w[0].numel() ** -0.5
        assert 0.9 * bound < w.abs().max() <= bound, name
        assert w.std().item() == pytest.approx(bound / 3**0.5, rel=0.1), name


@two
def test_one_seed_one_network(kind):
    def made(seed):
        torch.manual_seed(seed)
        model = MAKE[kind]()
        return model(images()), model.state_dict()

    (y, state), (again, same), (other, _) = made(0), made(0), made(1)
    assert torch.equal(y, again) and not torch.equal(y, other)
    assert all(torch.equal(state[k], same[k]) for k in state)


@two
def test_state_dict_round_trip(kind):
    model, copy = MAKE[kind](), MAKE[kind]()
    model(images())  # moves the BatchNorm statistics
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    copy.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(model.eval()(images()), copy.eval()(images()))
    assert copy.head.norm.num_batches_tracked == 1


def test_training_ends_on_the_levels():
    torch.manual_seed(0)
    model = VGGSmall(width=4, classes=3)
    opt = askew.ASkew(
        torch.optim.Adam(askew.groups(model, B, skip="head.linear"), lr=0.05), askew.LevelFirst(), total_steps=40
    )
    target = torch.arange(12) % 3
    for _ in range(40):
        opt.zero_grad()
        nn.functional.cross_entropy(model(images(12)), target).backward()
        opt.step()
    assert all((p.abs() == 1).all() for name, p in model.named_parameters() if name != "head.linear.weight")
    assert model.head.linear.weight.unique().numel() > 2


# -- activations ------------------------------------------------------------------------------------------------------


class Spy(nn.Module):
    """The identity; remembers that it was used."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x


@every
def test_activations_are_injected(kind):
    """One module of its own at every place, each used once in a pass; no ReLU is left."""
    made = []

    def activation():
        made.append(Spy())
        return made[-1]

    model = MAKE[kind](activation=activation)
    model(images())
    found = [m for m in model.modules() if isinstance(m, Spy)]
    assert len(found) == len(made) == ACTIVATIONS[kind] and set(found) == set(made)
    assert [m.calls for m in found] == [1] * ACTIVATIONS[kind]
    assert not any(isinstance(m, nn.ReLU) for m in model.modules())
    assert sum(isinstance(m, nn.ReLU) for m in MAKE[kind]().modules()) == ACTIVATIONS[kind]


@two
def test_identity_activations(kind):
    """With nn.Identity and mean pooling the network in eval mode is affine: f(x + z) - f(x) = f(z) - f(0)."""
    torch.manual_seed(0)
    model = MAKE[kind](activation=nn.Identity).double().eval()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.MaxPool2d):
            model.get_submodule(name.rpartition(".")[0]).pool = nn.AvgPool2d(2)
    x, z = images(4).double().chunk(2)
    torch.testing.assert_close(model(x + z) - model(x), model(z) - model(0 * z), rtol=1e-9, atol=1e-12)


@two
def test_an_activation_with_its_own_parameter_is_not_put_on_levels(kind):
    taken, rest = askew.groups(MAKE[kind](activation=nn.PReLU), levels=B)
    assert all(".activation" not in name for name in names(taken))
    assert len(names(rest)) == ACTIVATIONS[kind] and all("activation" in name for name in names(rest))


# -- precision, layout, compilation -----------------------------------------------------------------------------------


@every
def test_bf16_autocast(kind):
    """Forward and backward; weights, gradients and statistics stay float32, outputs near the float32 ones."""
    torch.manual_seed(0)
    model = MAKE[kind](head_norm=False)
    x = images(16)
    exact = model(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    assert (y - exact).norm() < 0.1 * exact.norm()
    nn.functional.cross_entropy(y.float(), torch.arange(16) % 10).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 and p.grad.any() for p in model.parameters())
    assert all(b.dtype in (torch.float32, torch.int64) and b.isfinite().all() for b in model.buffers())
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert MAKE[kind]().eval()(x).dtype == torch.bfloat16  # the normed head too


@every
def test_channels_last(kind):
    torch.manual_seed(0)
    model = MAKE[kind](head_norm=False).double()
    x = images().double()
    before = model(x)
    model = model.to(memory_format=torch.channels_last)
    x = x.to(memory_format=torch.channels_last)
    body = model.features if "vgg" in kind else nn.Sequential(model.stem, model.stages)
    assert body(x).is_contiguous(memory_format=torch.channels_last) or body(x).shape[-1] == 1
    torch.testing.assert_close(model(x), before, rtol=1e-9, atol=1e-9)


@two
def test_one_graph_for_the_compiler(kind):
    """Dynamo traces the whole network without a break; the result is the same."""
    torch.manual_seed(0)
    model = MAKE[kind]().eval()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(images()), model(images()))
