"""Looking at a run: diagnose() against plain loops, and snapped() that gives everything back."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from optim_kit import CUSTOM, Net, differing, everything, loss_at, one_weight, random_like, small, train, weights_of
from torch import nn
from torch.func import functional_call
from torch.optim import SGD

import askew
from askew.core import Constant, LevelSet, oracle

SCALES = [("none", "tensor"), ("abs-mean", "tensor"), ("sawb", "channel")]


def by_loops(w, u, scale, levels: LevelSet, kind, value, last):
    """One layer's row, weight by weight in Python: (feasible, active, mean and max distance, flips, KKT residual)."""
    c = levels.values
    s = torch.ones_like(w) if scale is None else scale.expand_as(w)
    feasible = active = flips = 0
    distances, residuals, indices = [], [], []
    flat = [t.double().flatten().tolist() for t in (w, u, s)]
    for i, (weight, gradient, unit) in enumerate(zip(*flat, strict=True)):
        q, g = weight / unit, gradient * unit
        level = oracle.nearest(q, c)
        if (torch.tensor(level) * torch.tensor(unit)).to(w.dtype).item() == weight:
            q = level  # bit for bit the number that ships
        distance = abs(level - q)
        if kind == "epsilon":
            psi = value - oracle.phi(q, c)
            feasible += psi >= 0
            active += psi <= 0
            low, high = next((a, b) for a, b in oracle.intervals(c, value) if a <= level <= b)
            residuals.append(abs(q - min(max(q - g, low), high)))
        else:
            inside = min(max(q, c[0]), c[-1])
            gaps = [b - a for a, b in pairwise(c) if a <= inside <= b]
            caught = value > 0 and abs(oracle.nearest(inside, c) - inside) <= value * gaps[0] / 2
            feasible += distance == 0
            active += caught
            residuals.append(distance if caught else abs(g))
        distances.append(distance)
        indices.append(c.index(level))
        flips += last is not None and indices[-1] != last[i]
    n = len(indices)
    row = [
        feasible / n,
        active / n,
        sum(distances) / n,
        max(distances),
        flips / n if last else math.nan,
        max(residuals),
    ]
    return row, indices


@pytest.mark.parametrize(("scale", "per"), SCALES)
@pytest.mark.parametrize("kind", ["epsilon", "capture", "quantile"])
def test_diagnose_equals_loops(kind, scale, per):
    """Every number of every layer, at three looks; flips are counted from look to look."""
    by = "quantile" if kind == "quantile" else "radius"
    schedule = Constant(0.4) if kind == "epsilon" else askew.LevelFirst(start=0, end=12, by=by)
    levels = {"conv": askew.uniform(2), "fc": CUSTOM}
    model, opt = small(schedule, "adam", levels=levels, scale=scale, per=per)
    last: dict[str, list[int]] = {}
    flipped = 0.0
    for look in range(3):
        train(model, opt, range(5 * look, 5 * look + 5))
        found = askew.diagnose(opt)
        rows = []
        for row, (name, p, site) in zip(found.layers, opt.weights(), strict=True):
            value = float(site.memory["radius"]) if kind == "quantile" else float(site.value)
            expected, last[name] = by_loops(
                p.detach(), p.grad, site.scale, site.levels, found.kind, value, last.get(name)
            )
            assert (row.name, row.size) == (name, p.numel())
            got = [row.feasible, row.active, row.distance_mean, row.distance_max, row.flips, row.kkt]
            assert got == pytest.approx(expected, abs=2e-5, nan_ok=True), (name, look)
            rows.append((p.numel(), got))
        total = sum(n for n, _ in rows)
        mean = [sum(n * got[i] for n, got in rows) / total for i in range(6)]
        worst = [max(got[i] for _, got in rows) for i in range(6)]
        overall = found.overall
        assert (overall.name, overall.size) == ("all", total)
        assert [overall.feasible, overall.active, overall.distance_mean] == pytest.approx(mean[:3])
        assert (overall.distance_max, overall.kkt) == (worst[3], worst[5])
        assert overall.flips == pytest.approx(mean[4], nan_ok=True)
        assert math.isnan(overall.flips) == (look == 0)
        flipped += 0.0 if look == 0 else overall.flips
        assert (found.step, found.value) == (5 * look + 5, opt.value())
    assert kind == "epsilon" or flipped > 0  # below the bound of Theorem 1 nothing can cross


@pytest.mark.parametrize("schedule", [Constant(0.5), askew.LevelFirst(start=0, end=20, stagger=0.5)], ids=["eps", "lf"])
def test_layers_in_groups_of_their_own_are_seen_as_in_one(schedule):
    """One epsilon or a radius of their own each: a look at all of them says of each what a look at it alone says."""
    model = Net()
    apart = askew.groups(model, askew.binary(), in_turn=True)
    opt = askew.ASkew(SGD(apart, lr=0.05), schedule, total_steps=20)
    train(model, opt, range(6))
    found = {row.name: row for row in askew.diagnose(opt).layers}
    assert len(opt.param_groups) == 3 and found.keys() == {"conv.weight", "fc.weight"}
    for (name, p, site), position in zip(opt.weights(), range(2), strict=True):
        row, _ = by_loops(p.detach(), p.grad, None, site.levels, schedule.kind, opt.value(position), None)
        assert [found[name].feasible, found[name].active] == pytest.approx(row[:2])
        assert [found[name].distance_mean, found[name].kkt] == pytest.approx([row[2], row[5]], rel=1e-5)
    if schedule.kind == "capture":
        assert opt.value(0) > opt.value(1)


def test_flips_compare_with_the_look_before():
    """Two looks in a row without a step: none; a known number of crossings: exactly that part."""
    p, opt = one_weight(torch.tensor([-1.0, -0.2, 0.3, 0.9]), askew.binary(), Constant(0.5), lambda g: SGD(g, lr=0.1))
    assert math.isnan(askew.diagnose(opt).overall.flips)
    assert askew.diagnose(opt).overall.flips == 0
    with torch.no_grad():
        p.copy_(torch.tensor([-1.0, 0.2, -0.3, 0.9]))
    assert askew.diagnose(opt).overall.flips == 0.5
    assert askew.diagnose(opt).overall.flips == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("levels", [askew.uniform(4), CUSTOM])
def test_on_its_level_means_bit_for_bit(levels, dtype):
    """A weight that is the number that ships is on its level although w / s rounds off it; one beside it is not."""
    w = random_like(torch.empty(6, 50, dtype=dtype), 0)
    p, opt = one_weight(
        w, levels, askew.LevelFirst(start=0, end=4), lambda g: SGD(g, lr=0.0), scale="sawb", per="channel"
    )
    p.grad = torch.zeros_like(p)
    for _ in range(2):
        opt.step()  # the scale is frozen from here on
    opt.snap_()
    row = askew.diagnose(opt).overall
    assert (row.feasible, row.distance_mean, row.distance_max, row.kkt) == (1.0, 0.0, 0.0, 0.0)
    with torch.no_grad():
        p[0, :3] += 0.3 * opt.weights()[0][2].scale[0].to(dtype)
    row = askew.diagnose(opt).overall
    assert row.feasible == pytest.approx(297 / 300)
    assert row.distance_max > 0


def test_bf16_weights_are_looked_at_in_float32():
    """A scale per tensor is a 0-d tensor, which does not lift bf16 by itself."""
    w = random_like(torch.empty(40, 10, dtype=torch.bfloat16), 1)
    p, opt = one_weight(w, askew.uniform(3), Constant(0.4), lambda g: SGD(g, lr=0.0), scale="sawb")
    p.grad = random_like(p, 2)
    row = askew.diagnose(opt).layers[0]
    site = opt.weights()[0][2]
    expected, _ = by_loops(w, p.grad, site.scale, site.levels, "epsilon", float(site.value), None)
    assert [row.distance_mean, row.distance_max, row.kkt] == pytest.approx([*expected[2:4], expected[5]], rel=1e-5)


def test_a_layer_without_gradient_does_not_hide_the_others():
    model, opt = small()
    train(model, opt, range(2))
    model.conv.weight.grad = None
    found = askew.diagnose(opt)
    by_name = {row.name: row for row in found.layers}
    assert math.isnan(by_name["conv.weight"].kkt)
    assert found.overall.kkt == by_name["fc.weight"].kkt
    opt.zero_grad()
    assert math.isnan(askew.diagnose(opt).overall.kkt)


def test_a_new_layer_does_not_hide_flips():
    model, opt = small()
    askew.diagnose(opt)
    opt.add_param_group({"params": [("new", nn.Parameter(torch.randn(3, 3)))], "levels": askew.binary()})
    found = askew.diagnose(opt)
    assert math.isnan(found.layers[-1].flips)
    assert found.overall.flips == 0.0
    assert found.overall.size == sum(row.size for row in found.layers)
    assert len(weights_of(model)) == 3


def test_looking_changes_nothing():
    model, opt = small(askew.LevelFirst(start=0, end=9, by="quantile"), "adam", scale="sawb")
    train(model, opt, range(3))
    kept = everything(model, opt)
    before = [t.clone() for memory in opt._memory.values() for t in memory.values()]
    askew.diagnose(opt)
    assert differing(kept, everything(model, opt)) == []
    assert differing(before, [t for memory in opt._memory.values() for t in memory.values()]) == []


def test_before_the_first_step():
    """Nothing is captured yet, whatever the part to capture will be; no gradient, no flips."""
    _, opt = small(askew.LevelFirst(start=0, end=9, by="quantile"), scale="sawb")
    row = askew.diagnose(opt).overall
    assert row.active == 0.0
    assert math.isnan(row.kkt) and math.isnan(row.flips)
    _, opt = small(askew.LevelFirst(start=0, end=9, by="quantile"))
    opt.steps = 4
    opt.add_param_group({"params": [("new", nn.Parameter(torch.zeros(3) + 0.9))], "levels": askew.binary()})
    assert askew.diagnose(opt).layers[-1].active == 0.0


@pytest.mark.parametrize("schedule", [Constant(0.5), askew.LevelFirst(start=0, end=9)])
def test_to_dict_is_json(schedule):
    """Strict JSON (no NaN, no Infinity), every number back as it was; unknown ones are null."""
    model, opt = small(schedule, nonfinite="ignore")
    first = askew.diagnose(opt).to_dict()
    assert first["overall"]["kkt"] is None and first["overall"]["flips"] is None
    train(model, opt, range(2))
    model.fc.weight.grad[0, 0] = math.inf
    found = askew.diagnose(opt)
    text = json.dumps(found.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert back["kind"] == schedule.kind and back["step"] == 2 and back["value"] == found.value
    assert [row["name"] for row in back["layers"]] == ["conv.weight", "fc.weight"]
    assert back["layers"][0] == {**vars(found.layers[0])}


def test_str_prints_a_table():
    model, opt = small()
    train(model, opt, range(2))
    text = str(askew.diagnose(opt))
    assert "step 2" in text and "eps = 0.5" in text
    lines = text.splitlines()
    for name, size in (("conv.weight", "36"), ("fc.weight", "48"), ("all", "84")):
        (line,) = [line for line in lines if f" {name} " in line]
        assert f" {size} " in line and "%" in line
    assert "KKT residual" in text
    assert "radius" in str(askew.diagnose(small(askew.LevelFirst(start=0, end=9))[1]))


# -- snapped ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "per"), SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inside_snapped_the_net_computes_with_levels_only(scale, per, dtype):
    """The output equals the net's with every weight put on scale * nearest level by a loop; others are as they are."""
    model = Net(dtype=dtype)
    opt = askew.ASkew(SGD(askew.groups(model, askew.uniform(2)), lr=0.05), Constant(0.5), scale=scale, per=per)
    train(model, opt, range(3))
    before, kept = weights_of(model), everything(model, opt)
    by_hand = dict(model.named_parameters())
    for name, p, site in opt.weights():
        s = torch.ones(()) if site.scale is None else site.scale
        q = (p.detach().float() / s).flatten().tolist()
        nearest = torch.tensor([oracle.nearest(v, site.levels.values) for v in q]).reshape(p.shape)
        by_hand[name] = (nearest * s).to(dtype)
    x = random_like(torch.empty(4, 1, 4, 4, dtype=dtype), 8)
    with torch.no_grad():
        expected, real = functional_call(model, by_hand, (x,)), model(x)
        with askew.snapped(opt):
            assert torch.equal(model(x), expected)
            assert torch.equal(model.fc.bias, before[-1])
            if per == "tensor":
                assert len(model.fc.weight.unique()) <= 4
        assert not torch.equal(real, expected)
        assert torch.equal(model(x), real)
    assert differing(kept, everything(model, opt)) == []


def test_snapped_restores_exactly_when_the_body_raises():
    """Same tensors, same bits (-0.0 too), and the exception goes through."""
    model, opt = small(askew.LevelFirst(start=0, end=9), "adam", scale="sawb")
    train(model, opt, range(3))
    with torch.no_grad():
        model.fc.weight[0, 0] = -0.0
    bits = [p.detach().view(torch.int32).clone() for p in model.parameters()]
    pointers = [p.data_ptr() for p in model.parameters()]
    kept = everything(model, opt)

    def evaluate():
        with askew.snapped(opt):
            assert not torch.equal(model.fc.weight, kept["weights"][1])
            raise RuntimeError("evaluation failed")

    with pytest.raises(RuntimeError, match="evaluation failed"):
        evaluate()
    assert differing(bits, [p.detach().view(torch.int32) for p in model.parameters()]) == []
    assert pointers == [p.data_ptr() for p in model.parameters()]
    assert differing(kept, everything(model, opt)) == []


def test_snapped_may_be_nested_and_leaves_training_unchanged():
    """A run that is looked at through snapped() equals one that is not."""
    (plain, a), (model, b) = (small(askew.LevelFirst(start=2, end=9), "adam", scale="sawb") for _ in range(2))
    for k in range(8):
        train(plain, a, [k])
        train(model, b, [k])
        with askew.snapped(b), askew.snapped(b), torch.no_grad():
            loss_at(model, k)
    assert differing(everything(plain, a), everything(model, b)) == []


def test_snapped_shows_gradients_at_the_snapped_weights():
    """Gradients may be taken inside; the restored weights still require them."""
    model, opt = small()
    with askew.snapped(opt):
        loss_at(model, 0).backward()
    assert model.fc.weight.requires_grad and model.fc.weight.grad is not None
    opt.step()
