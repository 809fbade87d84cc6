"""Bad input: a clear exception that names the group and the parameter, and nothing has changed."""

from __future__ import annotations

import json

import pytest
import torch
from optim_kit import BASES, Net, differing, everything, frozen_copy, loss_at, small, train, weights_of
from torch import nn
from torch.optim import SGD, Adam

import askew
from askew.core import Constant, EpsilonWarning
from askew.optim.checks import NonFiniteGradientError

NAN, INF = float("nan"), float("inf")


def two_groups(**second) -> Adam:
    """Adam over a good group 'a' and a second one, 'b', whose options are under test; it has taken a step."""
    a, b = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4)), nn.Parameter(torch.linspace(-2, 2, 5))
    groups = [
        {"params": [("a", a)], "levels": askew.binary()},
        {"params": [("b", b)], "levels": askew.ternary(), **second},
    ]
    base = Adam(groups, lr=0.1)
    for p in (a, b):
        p.grad = torch.ones_like(p)
    base.step()
    return base


def snapshot(base):
    groups = [{k: v for k, v in g.items() if k != "params"} for g in base.param_groups]
    return frozen_copy([groups, [g["params"] for g in base.param_groups], base.state_dict()["state"]])


OPTIONS = {
    "no levels": ({"levels": []}, "at least two levels"),
    "one level": ({"levels": [1.0]}, "at least two levels"),
    "unsorted": ({"levels": [-1.0, 1.0, 0.0]}, "increase strictly"),
    "twice the same": ({"levels": [-1.0, 1.0, 1.0]}, "increase strictly"),
    "nan level": ({"levels": [-1.0, NAN]}, "finite"),
    "infinite level": ({"levels": [-1.0, INF]}, "finite"),
    "text for levels": ({"levels": "binary"}, "could not convert"),
    "number for levels": ({"levels": 2}, "not iterable"),
    "alpha 0": ({"alpha": 0.0}, "alpha must be positive"),
    "alpha < 0": ({"alpha": -0.1}, "alpha must be positive"),
    "alpha nan": ({"alpha": NAN}, "alpha must be positive"),
    "alpha inf": ({"alpha": INF}, "alpha must be positive and finite"),
    "alpha text": ({"alpha": "big"}, "alpha must be positive"),
    "clip 0": ({"clip": 0.0}, "clip must be positive"),
    "clip < 0": ({"clip": -1}, "clip must be positive"),
    "clip nan": ({"clip": NAN}, "clip must be positive"),
    "clip text": ({"clip": "half"}, "clip must be positive and finite, or 'quarter'"),
    "scale": ({"scale": "max"}, "scale must be one of none, abs-mean, sawb"),
    "per": ({"scale": "sawb", "per": "row"}, "per must be 'tensor' or 'channel'"),
    "per channel of a vector": ({"scale": "sawb", "per": "channel"}, r"two dimensions or more, got \(5,\)"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_a_group(case):
    """The group and the parameter are named, base optimizer and weights stay as they were."""
    options, message = OPTIONS[case]
    base = two_groups(**options)
    before = snapshot(base)
    with pytest.raises(ValueError, match=rf"group 1, b: .*{message}"):
        askew.ASkew(base, Constant())
    assert differing(before, snapshot(base)) == []


@pytest.mark.parametrize("case", ["alpha 0", "clip nan", "scale", "unsorted"])
def test_options_of_the_wrapper(case):
    """Defaults for all groups are checked alike, and a second try with good ones is not spoilt by the first."""
    options, message = OPTIONS[case]
    base = two_groups()
    for group in base.param_groups:
        del group["levels"]
    before = snapshot(base)
    with pytest.raises(ValueError, match=rf"group 0, a: .*{message}"):
        askew.ASkew(base, Constant(), **{"levels": askew.binary(), **options})
    assert differing(before, snapshot(base)) == []
    opt = askew.ASkew(base, Constant(), levels=askew.binary(), alpha=0.3, clip=0.7)
    assert [(g["alpha"], g["clip"]) for g in opt.param_groups] == [(0.3, 0.7)] * 2


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_weights_that_are_not_real_numbers(dtype):
    base = SGD([{"params": [("index", torch.zeros(3, dtype=dtype))], "levels": askew.binary()}], lr=0.1)
    with pytest.raises(ValueError, match=rf"group 0, index: levels need real floating-point weights, got {dtype}"):
        askew.ASkew(base, Constant())


def test_a_group_without_names_is_counted():
    base = SGD([{"params": [torch.zeros(3), torch.zeros(3)], "levels": askew.binary(), "scale": "huge"}], lr=0.1)
    with pytest.raises(ValueError, match="group 0, parameter 0: scale"):
        askew.ASkew(base, Constant())


def test_an_empty_group_is_named_too():
    base = SGD([{"params": [torch.zeros(2, 2)]}, {"params": [], "levels": askew.binary(), "alpha": -1}], lr=0.1)
    with pytest.raises(ValueError, match="group 1: alpha"):
        askew.ASkew(base, Constant())


def test_quarter_needs_a_learning_rate():
    class Plain(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    with pytest.raises(ValueError, match="group 0, w: clip='quarter' needs a base optimizer with a learning rate"):
        askew.ASkew(Plain([("w", torch.zeros(2))]), Constant(), levels=askew.binary(), clip="quarter")


FRACTIONS = {
    "default": None,
    "level-first": askew.LevelFirst(start=3, end=0.9),
    "exponential": askew.Exponential(),
    "exponential period": askew.Exponential(start=100),  # its period, .01, would only be asked for at step 100
    "logarithmic": askew.Logarithmic(start=5, end=1.0),
    "custom": askew.Custom(lambda done: 1.0),
}


@pytest.mark.parametrize("case", FRACTIONS)
def test_a_fraction_without_total_steps(case):
    """An error when the optimizer is built, not in the middle of the run."""
    base = two_groups()
    before = snapshot(base)
    with pytest.raises(ValueError, match="give total_steps"):
        askew.ASkew(base, FRACTIONS[case])
    assert differing(before, snapshot(base)) == []
    askew.ASkew(base, FRACTIONS[case], total_steps=200)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nonfinite": "warn"}, "nonfinite must be 'raise', 'skip' or 'ignore'"),
        ({"total_steps": 0}, "total_steps must be a positive whole number"),
        ({"total_steps": 2.5}, "total_steps must be a positive whole number"),
    ],
)
def test_arguments_of_the_wrapper(arguments, message):
    base = two_groups()
    before = snapshot(base)
    with pytest.raises(ValueError, match=message):
        askew.ASkew(base, Constant(), **arguments)
    assert differing(before, snapshot(base)) == []


def test_the_base_must_be_an_optimizer():
    with pytest.raises(TypeError, match=r"base must be a torch\.optim.Optimizer, got list"):
        askew.ASkew([torch.zeros(2)], Constant())


def test_no_group_with_levels():
    base = SGD(Net().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no parameter group has levels"):
        askew.ASkew(base, Constant())
    assert "levels" not in base.param_groups[0]


# -- epsilon above the bound ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annealing", [Constant(1.5), askew.Exponential(initial=3.0, start=0, period=1), askew.Plateau(initial=2.0)]
)
def test_epsilon_above_the_bound_warns_and_names_the_group(annealing):
    with pytest.warns(EpsilonWarning) as caught:
        askew.ASkew(two_groups(), annealing)
    texts = [str(w.message) for w in caught]
    assert len(texts) == 2
    assert "group 0" in texts[0] and "bound 1 for levels 'binary'" in texts[0]
    assert "group 1" in texts[1] and "bound 0.0625 for levels 'ternary'" in texts[1]


def test_epsilon_at_the_bound_does_not_warn(recwarn):
    askew.ASkew(two_groups(), Constant(1.0))
    assert len(recwarn) == 0


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonfinite", ["raise", "skip", "ignore"])
def test_sparse_gradients(nonfinite):
    model = nn.ModuleDict({"emb": nn.Embedding(6, 3, sparse=True), "fc": nn.Linear(3, 2)})
    opt = askew.ASkew(SGD(askew.groups(model, askew.binary()), lr=0.1, momentum=0.9), Constant(), nonfinite=nonfinite)
    model["fc"](model["emb"](torch.tensor([0, 2]))).sum().backward()
    before = weights_of(model)
    with pytest.raises(ValueError, match=r"group 0, emb\.weight: sparse gradients are not supported; use sparse=False"):
        opt.step()
    assert differing(before, weights_of(model)) == []
    assert opt.steps == 0
    assert not opt.state


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("base", BASES)
def test_nonfinite_gradients_raise_and_change_nothing(base, bad):
    """Weights, moments, gradients, steps and annealing are untouched, and the next good step goes on."""
    model, opt = small(askew.Plateau(), base=base, scale="sawb")
    train(model, opt, range(2))
    opt.zero_grad()
    loss_at(model, 2).backward()
    model.fc.weight.grad[1, 1] = bad
    model.fc.bias.grad[0] = bad
    kept = everything(model, opt)
    with pytest.raises(NonFiniteGradientError, match=r"group 0, fc\.weight; group 1, fc\.bias") as caught:
        opt.step()
    assert "conv.weight" not in str(caught.value)
    model.fc.weight.grad[1, 1] = kept["gradients"][1][1, 1] = 0.0  # NaN is not equal to itself
    model.fc.bias.grad[0] = kept["gradients"][2][0] = 0.0
    assert differing(kept, everything(model, opt)) == []
    opt.step()
    assert opt.steps == 3


def test_nonfinite_gradients_in_a_closure():
    model, opt = small()
    before = weights_of(model)

    def closure():
        opt.zero_grad()
        (loss_at(model, 0) * NAN).backward()

    with pytest.raises(NonFiniteGradientError, match=r"group 0, conv\.weight"):
        opt.step(closure)
    assert differing(before, weights_of(model)) == []
    assert opt.steps == 0


def test_many_bad_gradients_are_listed_up_to_five():
    ps = [nn.Parameter(torch.zeros(2)) for _ in range(7)]
    opt = askew.ASkew(SGD([{"params": ps, "levels": askew.binary()}], lr=0.1), Constant())
    for p in ps:
        p.grad = torch.full_like(p, NAN)
    with pytest.raises(NonFiniteGradientError, match=r"parameter 4 \.\.\.: the step was not taken"):
        opt.step()


@pytest.mark.parametrize("base", BASES)
def test_nonfinite_gradients_are_skipped(base):
    """The run with a skipped step equals the run without it: only `skipped` counts."""
    runs = []
    for poisoned in (False, True):
        model, opt = small(askew.LevelFirst(start=0, end=6), base=base, nonfinite="skip")
        for k in range(5):
            train(model, opt, [k])
            if poisoned and k == 2:
                kept = everything(model, opt)
                opt.zero_grad()
                loss_at(model, 9).backward()
                model.conv.weight.grad[0] = INF
                assert opt.step() is None
                after = everything(model, opt)
                assert after["counters"][:2] == [3, 1]
                assert differing(kept["weights"], after["weights"]) == []
                assert differing(kept["state dict"]["state"], after["state dict"]["state"]) == []
                assert opt.value() == 2 / 6
        runs.append((weights_of(model), opt.steps, opt.skipped))
    assert differing(runs[0][0], runs[1][0]) == []
    assert [r[1:] for r in runs] == [(5, 0), (5, 1)]


def test_skipped_steps_are_counted_in_the_state_dict():
    model, opt = small(nonfinite="skip")
    model.fc.weight.grad = torch.full_like(model.fc.weight, NAN)
    opt.step()
    _, fresh = small(nonfinite="skip")
    fresh.load_state_dict(opt.state_dict())
    assert (fresh.skipped, fresh.steps) == (1, 0)


def test_ignore_does_not_look():
    model, opt = small(nonfinite="ignore")
    model.fc.bias.grad = torch.full_like(model.fc.bias, NAN)
    opt.step()
    assert model.fc.bias.isnan().all()
    assert opt.steps == 1


def test_an_empty_weight_is_no_trouble():
    """A tensor without elements has no largest gradient."""
    empty, w = nn.Parameter(torch.zeros(3, 0)), nn.Parameter(torch.ones(3))
    opt = askew.ASkew(SGD([{"params": [empty, w], "levels": askew.binary()}], lr=0.1), Constant())
    empty.grad, w.grad = torch.zeros(3, 0), torch.full((3,), 0.5)
    opt.step()
    assert w.tolist() == pytest.approx([0.95] * 3)
    w.grad[1] = NAN
    with pytest.raises(NonFiniteGradientError, match="group 0, parameter 1"):
        opt.step()


def test_a_schedule_that_goes_wrong_changes_nothing():
    """A Custom function that leaves the positive numbers is reported at the step where it does."""
    model, opt = small(askew.Custom(lambda done: 0.5 - done, name="falling"), total_steps=4)
    train(model, opt, range(2))
    loss_at(model, 2).backward()
    kept = everything(model, opt)
    with pytest.raises(ValueError, match="Custom schedule 'falling' at step 2 must be positive"):
        opt.step()
    assert differing(kept, everything(model, opt)) == []


# -- state dicts ------------------------------------------------------------------------------------------------------


def linear(outputs=3, levels=None, annealing=None, skip=(), bias=True, **options):
    torch.manual_seed(0)
    model = nn.ModuleDict({"one": nn.Linear(4, 4, bias=bias), "two": nn.Linear(4, outputs)})
    groups = askew.groups(model, levels or askew.binary(), skip)
    opt = askew.ASkew(Adam(groups, lr=0.1), annealing or Constant(), **options)
    model["two"](model["one"](torch.ones(2, 4))).square().sum().backward()
    opt.step()
    return model, opt


def tampered(change):
    """A good state dict of another run (further on, another learning rate) with its header changed."""
    _, opt = linear()
    opt.param_groups[0]["lr"] = 0.7
    opt.step()
    saved = opt.state_dict()
    header = json.loads(saved["param_groups"][0]["askew"])
    change(header)
    saved["param_groups"][0]["askew"] = json.dumps(header)
    return saved


def custom(name):
    return askew.Custom(lambda done: 1.0, name=name)


STATE_DICTS = {
    "other shape": (lambda: linear(outputs=5)[1].state_dict(), r"group 0, two\.weight: .*shape \[5, 4\].*has \[3, 4\]"),
    "other levels": (
        lambda: linear(levels=askew.ternary())[1].state_dict(),
        r"group 0, one\.weight: .*levels \[-1.0, 0.0, 1.0\]",
    ),
    "more groups": (
        lambda: linear(levels={"one": askew.binary(), "two": askew.ternary()})[1].state_dict(),
        "has 3 groups, this optimizer 2",
    ),
    "fewer weights": (lambda: linear(skip="one")[1].state_dict(), "group 0: 1 parameters saved, 2 here"),
    "fewer biases": (lambda: linear(bias=False)[1].state_dict(), "group 1: 1 parameters saved, 2 here"),
    "plain Adam": (lambda: linear()[1].base.state_dict(), "group 0: .*not made by askew.*base"),
    "other method": (
        lambda: linear(annealing=askew.LevelFirst(start=0, end=9))[1].state_dict(),
        "method 'askew-level-first'",
    ),
    "custom": (lambda: linear(annealing=custom("mine"), total_steps=9)[1].state_dict(), "'mine'"),
    "unknown schedule": (lambda: tampered(lambda h: h["annealing"].update(schedule="Cosine")), "named 'Cosine'"),
    "broken schedule": (lambda: tampered(lambda h: h["annealing"].update(initial=-1.0)), "positive"),
}


@pytest.mark.parametrize("case", STATE_DICTS)
def test_a_state_dict_that_does_not_fit(case):
    """Refused before anything is loaded: weights, moments, options, schedule and counters stay."""
    make, message = STATE_DICTS[case]
    saved = make()
    model, opt = linear()
    kept = everything(model, opt)
    with pytest.raises(ValueError, match=message):
        opt.load_state_dict(saved)
    assert differing(kept, everything(model, opt)) == []
    opt.step()
    assert opt.steps == 2


def test_custom_schedules_of_different_names_do_not_mix():
    _, saved = linear(annealing=custom("mine"), total_steps=9)
    model, opt = linear(annealing=custom("yours"), total_steps=9)
    kept = everything(model, opt)
    with pytest.raises(ValueError, match="build the optimizer with the same one"):
        opt.load_state_dict(saved.state_dict())
    assert differing(kept, everything(model, opt)) == []
