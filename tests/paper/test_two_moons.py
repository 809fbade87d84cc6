"""Two moons: the enumerated optimum, what ASkew reaches, and that batching repeats changes nothing."""

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from askew.data.toy import two_moons
from askew.models.toy import MoonsNet, moons_logits, moons_score
from askew.paper import two_moons_report
from askew.paper.two_moons import ENTRIES, TwoMoons, run, search, shared_start, train
from askew.train.repeats import shuffled

BY_KEY = {entry.key: entry for entry in ENTRIES}


def start(repeats: int, seed: int) -> MoonsNet:
    return MoonsNet(repeats, torch.Generator().manual_seed(seed + 2))


def test_the_exhaustive_optimum_is_the_published_one() -> None:
    record = search(two_moons())
    losses = sorted(record.extra["test_loss"])
    assert len(losses) == 512
    assert record.summary["test_loss"][0] == pytest.approx(2.119, abs=5e-4)
    assert losses[5] < 2.124 < losses[6]  # six patterns are as good as optimal
    assert all(abs(v) == 1 for v in record.extra["pattern"])


def test_model_equals_torch_batchnorm_layers() -> None:
    model, data = start(2, 0), two_moons()
    net = nn.Sequential(
        nn.Linear(2, 3, bias=False),
        nn.BatchNorm1d(3, affine=False),
        nn.ReLU(),
        nn.Linear(3, 1, bias=False),
        nn.BatchNorm1d(1, affine=False),
    )
    with torch.no_grad():
        net[0].weight.copy_(model.hidden[1])
        net[3].weight.copy_(model.output[1])
        expected = net(data.train_x[:100]).squeeze(1)
        logits, _ = moons_logits(model.hidden, model.output, data.train_x[:100].expand(2, 100, 2))
    torch.testing.assert_close(logits[1], expected)


def test_scoring_uses_the_training_sets_statistics() -> None:
    model, data = start(1, 0), two_moons()
    whole, _ = moons_score(model.hidden, model.output, data.train_x, data.test_x, data.test_y)
    parts = [
        moons_score(model.hidden, model.output, data.train_x, data.test_x[i : i + 50], data.test_y[i : i + 50])[0]
        for i in range(0, 200, 50)
    ]
    torch.testing.assert_close(torch.stack(parts).mean(0), whole)


def test_repeats_trained_together_are_as_trained_alone() -> None:
    """The same start and orders, once in a tensor of three and once alone, give the same weights."""
    data, entry = two_moons(), BY_KEY["level-first"]
    together = start(3, 0)
    alone = MoonsNet(1, torch.Generator())
    with torch.no_grad():
        alone.hidden.copy_(together.hidden[1:2])
        alone.output.copy_(together.output[1:2])
    orders = list(shuffled(3, len(data.train_y), 100, torch.Generator().manual_seed(1)))
    from askew.paper.common import optimizer_for

    for model, row in ((together, slice(0, 3)), (alone, slice(1, 2))):
        optimizer = optimizer_for(entry, model, len(orders))
        for index in orders:
            optimizer.zero_grad()
            model.losses(data.train_x[index[row]], data.train_y[index[row]]).sum().backward()
            optimizer.step()
    torch.testing.assert_close(together.hidden[1:2], alone.hidden, rtol=0, atol=1e-6)
    torch.testing.assert_close(together.output[1:2], alone.output, rtol=0, atol=1e-6)


@pytest.mark.parametrize("seed", [11, 12])
def test_askew_with_reheats_is_within_one_per_cent_of_the_optimum(seed: int) -> None:
    data = two_moons()
    model = start(50, seed)
    record = train(BY_KEY["reheated"], model, data, seed)
    best = search(data).summary["test_loss"][0]
    assert statistics.fmean(record.summary["test_loss"]) <= 1.01 * best
    assert all(w.detach().abs().eq(1).all() for w in model.parameters())
    rival = train(BY_KEY["bc"], start(50, seed), data, seed)
    assert statistics.fmean(record.summary["test_loss"]) < statistics.fmean(rival.summary["test_loss"])


def test_a_run_is_the_same_twice() -> None:
    data, entry = two_moons(), BY_KEY["reheated"]
    a, b = (train(entry, start(2, 3), data, 3).summary["test_loss"] for _ in range(2))
    assert a == b


def test_reheats_must_use_the_whole_budget() -> None:
    entry = BY_KEY["reheated"]
    assert entry.reheats is not None
    short = replace(entry, reheats=replace(entry.reheats, lengths=(500, 100)))
    with pytest.raises(ValueError, match="budget is 1000"):
        train(short, start(1, 0), two_moons(), 0)


def test_shared_start_groups_repeats_by_start() -> None:
    config = TwoMoons(repeats=3, shared_starts=2)
    record = shared_start(BY_KEY["fp"], two_moons(own_statistics=True), config)
    losses = torch.tensor(record.summary["test_loss"]).reshape(2, 3)
    assert record.summary["start_mean"] == pytest.approx(losses.mean(1).tolist())
    assert len(record.summary["start_std"]) == 2


def test_whole_experiment_makes_table_and_verdicts(tmp_path: Path) -> None:
    records = run(TwoMoons(out=tmp_path, repeats=2, shared_starts=1))
    shown = two_moons_report.present(records)
    text = shown.tables[0].markdown()
    assert len(list(tmp_path.glob("*.json"))) == len(records)
    assert "2.11±0.01" in text and "2.045±0.005" in text and "exhaustive search" in text
    assert any("1%" in line for line in shown.verdicts)
    assert set(shown.figures) == {"losses", "patterns", "repeats"}
