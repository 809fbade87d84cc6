"""Which weights take levels: kinds of layers, patterns, predicates, ties, and each weight claimed once."""

from __future__ import annotations

import pytest
import torch
from optim_kit import Net, train
from torch import nn
from torch.optim import SGD

import askew
from askew.core import Constant
from askew.optim.groups import candidates

B, T = askew.binary(), askew.ternary()

LAYERS = {
    "linear": lambda: nn.Linear(2, 3),
    "bilinear": lambda: nn.Bilinear(2, 3, 4),
    "embedding": lambda: nn.Embedding(5, 2),
    "bag": lambda: nn.EmbeddingBag(5, 2),
    "conv1": lambda: nn.Conv1d(1, 2, 3),
    "conv2": lambda: nn.Conv2d(1, 2, 3),
    "conv3": lambda: nn.Conv3d(1, 2, 3),
    "convt1": lambda: nn.ConvTranspose1d(1, 2, 3),
    "convt2": lambda: nn.ConvTranspose2d(1, 2, 3),
    "convt3": lambda: nn.ConvTranspose3d(1, 2, 3),
}
OTHERS = {
    "bn": lambda: nn.BatchNorm2d(2),
    "ln": lambda: nn.LayerNorm(3),
    "gn": lambda: nn.GroupNorm(1, 2),
    "prelu": lambda: nn.PReLU(),
}


def names(group):
    return [name for name, _ in group["params"]]


class Deep(nn.Module):
    """Two blocks and a head: block1.conv, block1.bn, block2.conv, block2.bn, head."""

    def __init__(self):
        super().__init__()
        self.block1 = nn.ModuleDict({"conv": nn.Conv2d(1, 2, 3), "bn": nn.BatchNorm2d(2)})
        self.block2 = nn.ModuleDict({"conv": nn.Conv2d(2, 2, 3), "bn": nn.BatchNorm2d(2)})
        self.head = nn.Linear(2, 2)


class Tied(nn.Module):
    """The output layer shares the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.middle = nn.Linear(3, 3, bias=False)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embed.weight


@pytest.mark.parametrize("kind", LAYERS)
def test_weights_of_every_layer_kind_are_taken(kind):
    model = nn.ModuleDict({"layer": LAYERS[kind]()})
    taken, *rest = askew.groups(model, B)
    assert names(taken) == ["layer.weight"]
    assert taken["params"][0][1] is model["layer"].weight
    assert [n for g in rest for n in names(g)] == [n for n, _ in model.named_parameters() if n != "layer.weight"]


@pytest.mark.parametrize("kind", OTHERS)
def test_weights_of_other_layers_are_not(kind):
    model = nn.ModuleDict({"fc": nn.Linear(2, 2), "other": OTHERS[kind]()})
    taken, rest = askew.groups(model, B)
    assert names(taken) == ["fc.weight"]
    assert "other.weight" in names(rest)
    assert rest["levels"] is None


def test_a_module_that_is_a_layer_itself():
    taken, rest = askew.groups(nn.Linear(2, 3), B)
    assert (names(taken), names(rest)) == (["weight"], ["bias"])


def test_every_parameter_is_in_exactly_one_group():
    model = Deep()
    out = askew.groups(model, {"block*": B, "head": T}, skip="block2.conv")
    ids = [id(p) for g in out for _, p in g["params"]]
    assert len(ids) == len(set(ids))
    assert set(ids) == {id(p) for p in model.parameters()}


def test_frozen_parameters_are_left_out():
    model = Deep()
    model.block1["conv"].weight.requires_grad_(False)
    model.head.bias.requires_grad_(False)
    taken, rest = askew.groups(model, B)
    assert names(taken) == ["block2.conv.weight", "head.weight"]
    assert "block1.conv.weight" not in names(rest) and "head.bias" not in names(rest)


SKIPS = {
    "parameter name": "head.weight",
    "module name": "head",
    "pattern": "h*d",
    "list": ["head"],
    "tuple of patterns": ("hea?", "head.weight"),
    "generator": (n for n in ["head"]),
    "predicate on the name": lambda name, p: name.startswith("head"),
    "predicate on the weight": lambda name, p: p.ndim == 2,
}


@pytest.mark.parametrize("how", SKIPS)
def test_skip(how):
    taken, rest = askew.groups(Deep(), B, skip=SKIPS[how])
    assert names(taken) == ["block1.conv.weight", "block2.conv.weight"]
    assert "head.weight" in names(rest)


def test_skip_several():
    taken, _ = askew.groups(Deep(), B, skip=["block1.*", "head"])
    assert names(taken) == ["block2.conv.weight"]


@pytest.mark.parametrize("skip", ["haed", ["head", "haed"], "bn", "block1", "BLOCK1.CONV"])
def test_a_skip_pattern_that_matches_nothing(skip):
    """A typing error must not leave a layer quantised in silence; the known weights are listed."""
    with pytest.raises(
        ValueError, match=r"skip pattern .* matches no weight; there are: block1.conv.weight, .*head.weight"
    ):
        askew.groups(Deep(), B, skip=skip)


def test_patterns_to_level_sets():
    """Each pattern makes a group with its own levels; unmatched weights stay in full precision."""
    first, second, rest = askew.groups(Deep(), {"block1.*": B, "head": [-2.0, 0.5, 3.0]})
    assert (names(first), first["levels"]) == (["block1.conv.weight"], B)
    assert (names(second), second["levels"].values) == (["head.weight"], (-2.0, 0.5, 3.0))
    assert "block2.conv.weight" in names(rest)


@pytest.mark.parametrize("pattern", ["tail", "*.bn", "head.bias"])
def test_a_levels_pattern_that_matches_nothing(pattern):
    with pytest.raises(ValueError, match=r"levels pattern .* matches no weight; there are: "):
        askew.groups(Deep(), {"head": B, pattern: T})


def test_a_levels_pattern_whose_weights_are_all_skipped_matches_nothing():
    with pytest.raises(ValueError, match="levels pattern 'head' matches no weight"):
        askew.groups(Deep(), {"head": B, "block*": T}, skip="head")


def test_a_weight_claimed_twice():
    with pytest.raises(ValueError, match=r"weight 'head.weight' is claimed twice, by 'head' and by '\*'"):
        askew.groups(Deep(), {"head": B, "*": T})


def test_nothing_to_claim():
    with pytest.raises(ValueError, match="Sequential has no trainable conv, linear or embedding weight"):
        askew.groups(nn.Sequential(nn.BatchNorm1d(2), nn.ReLU()), B)
    with pytest.raises(ValueError, match="skip leaves no weight"):
        askew.groups(Deep(), B, skip=lambda name, p: True)


@pytest.mark.parametrize("levels", [[], [1.0], [1.0, -1.0], [0.0, float("nan")]])
def test_bad_levels(levels):
    with pytest.raises(ValueError, match="level set"):
        askew.groups(Deep(), levels)


# -- tied weights -----------------------------------------------------------------------------------------------------


def test_tied_weights_are_claimed_once():
    """One parameter under two names: in one group once, under its first name."""
    model = Tied()
    (taken,) = askew.groups(model, B)
    assert names(taken) == ["embed.weight", "middle.weight"]
    assert candidates(model)["embed.weight"].names == ["embed.weight", "out.weight"]
    opt = askew.ASkew(SGD(askew.groups(model, B), lr=0.1), Constant())
    assert len(opt.weights()) == 2


@pytest.mark.parametrize("name", ["embed", "out", "out.weight"])
def test_tied_weights_go_by_either_name(name):
    taken, rest = askew.groups(Tied(), B, skip=name)
    assert (names(taken), names(rest)) == (["middle.weight"], ["embed.weight"])
    taken, rest = askew.groups(Tied(), {name: T})
    assert (names(taken), names(rest)) == (["embed.weight"], ["middle.weight"])


def test_conflicting_claims_on_tied_weights():
    with pytest.raises(ValueError, match=r"weight 'embed.weight' is claimed twice, by 'embed' and by 'out'"):
        askew.groups(Tied(), {"embed": B, "out": T})


def test_a_module_used_under_two_names():
    """The module itself is shared: both names are known, the weight is claimed once."""
    model = nn.Module()
    model.encoder = nn.Linear(3, 3)
    model.decoder = model.encoder
    model.head = nn.Linear(3, 2)
    taken, rest = askew.groups(model, B, skip="decoder")
    assert names(taken) == ["head.weight"]
    assert names(rest) == ["encoder.weight", "encoder.bias", "head.bias"]
    with pytest.raises(ValueError, match="claimed twice"):
        askew.groups(model, {"encoder": B, "decoder": T})


# -- options ----------------------------------------------------------------------------------------------------------


def test_options_and_rest_reach_the_optimizer():
    """Options go to the groups with levels, `rest` to the group without; torch's defaults fill the others."""
    model = Deep()
    out = askew.groups(
        model, {"block*": B, "head": T}, rest={"lr": 0.5, "weight_decay": 0.1}, lr=0.3, alpha=0.7, scale="sawb"
    )
    base = SGD(out, lr=0.1, momentum=0.9)
    opt = askew.ASkew(base, Constant(), alpha=0.2, clip=0.4)
    seen = [(g["lr"], g["weight_decay"], g["momentum"], g["alpha"], g["clip"], g["scale"]) for g in opt.param_groups]
    assert seen == [(0.3, 0, 0.9, 0.7, 0.4, "sawb")] * 2 + [(0.5, 0.1, 0.9, 0.2, 0.4, "none")]


def test_without_anything_else_there_is_no_rest():
    assert len(askew.groups(nn.Linear(2, 2, bias=False), B, rest={"lr": 1.0})) == 1


def test_levels_of_the_wrapper_serve_groups_without_their_own():
    """ASkew(..., levels=) is for optimizers built without askew.groups; a group's own levels, None too, win."""
    a, b, c = (nn.Parameter(torch.zeros(2)) for _ in range(3))
    base = SGD([{"params": [a]}, {"params": [b], "levels": T}, {"params": [c], "levels": None}], lr=0.1)
    opt = askew.ASkew(base, Constant(), levels=B)
    assert [g["levels"] for g in opt.param_groups] == [B, T, None]


def test_groups_do_not_touch_the_model():
    model = Net()
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    opt = askew.ASkew(SGD(askew.groups(model, B), lr=0.1), Constant())
    assert all(torch.equal(kept[k], v) for k, v in model.state_dict().items())
    assert [type(m) for m in model.modules()] == [Net, nn.Conv2d, nn.Linear]
    train(model, opt, range(1))
    assert not torch.equal(kept["fc.weight"], model.fc.weight)


def test_a_group_for_each_weight_in_turn():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4), nn.Linear(4, 5))
    found = askew.groups(model, {"0": T, "2": B}, skip="1", in_turn=True, alpha=0.1, rest={"lr": 0.5})
    assert [(names(g), g["levels"], g.get("turn")) for g in found[:2]] == [
        (["0.weight"], T, 0.0),
        (["2.weight"], B, 1.0),
    ]
    assert "turn" not in found[2] and found[2]["lr"] == 0.5 and {g["alpha"] for g in found[:2]} == {0.1}
    whole = askew.groups(model, B, in_turn=True)
    assert [g.get("turn") for g in whole] == [0.0, 0.5, 1.0, None]
    assert askew.groups(nn.Linear(2, 2, bias=False), B, in_turn=True)[0]["turn"] == 0.0


@pytest.mark.parametrize("turn", [-0.1, 1.5, "first", float("nan")])
def test_a_turn_lies_between_first_and_last(turn):
    p = nn.Parameter(torch.randn(3, 2))
    with pytest.raises(ValueError, match="turn must lie between"):
        askew.ASkew(SGD([{"params": [p], "levels": B, "turn": turn}], lr=0.1), Constant(0.5))


def test_layers_are_captured_one_after_another():
    """The first layer lies on its levels when the last one's capture has not begun; in the end all do."""
    model, steps = Net(), 60
    schedule = askew.LevelFirst(start=0, end=50, stagger=0.9)
    opt = askew.ASkew(SGD(askew.groups(model, B, in_turn=True), lr=0.05), schedule, alpha=5.0, total_steps=steps)
    train(model, opt, range(40))
    first, last = askew.diagnose(opt).layers
    assert (opt.value(0), opt.value(1)) == (1.0, 0.0)
    assert first.active == 1.0 and last.active == 0.0 and first.distance_mean < 0.1 < last.distance_mean
    train(model, opt, range(40, steps))
    assert opt.value(1) == 1.0 and all(layer.distance_max == 0 for layer in askew.diagnose(opt).layers)
