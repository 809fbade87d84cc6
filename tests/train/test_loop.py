"""The loop: deterministic per seed, logs what it says it logs, leaves the net as trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import askew
from askew.methods.base import FullPrecision
from askew.optim import ASkew, MethodOptimizer
from askew.report.live import Status
from askew.train import loop
from askew.train.config import TrainConfig
from askew.train.evaluate import Score, reestimate_batchnorm, score
from askew.train.loop import Keeper, bits_per_weight, fit, score_snapped, weight_histogram
from askew.train.record import Record, plain
from askew.train.source import TensorSource

CONFIG = TrainConfig(
    "askew-level-first",
    epochs=3,
    batch_size=16,
    lr=0.1,
    min_lr=0.01,
    annealing=askew.LevelFirst(start=0.2),
    alpha=0.05,
    histogram_epochs=(0, 3),
)


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3, bias=False), nn.BatchNorm1d(3)
    )


def data(n: int = 70, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :3].argmax(1)


def wrapped(model: nn.Module, config: TrainConfig) -> MethodOptimizer:
    base = torch.optim.Adam(askew.groups(model, levels=askew.binary()), lr=config.lr)
    total = config.total_steps(70)
    if config.annealing is None:
        return MethodOptimizer(base, FullPrecision(), total_steps=total)
    return ASkew(base, config.annealing, alpha=config.alpha, total_steps=total)


def sources(config: TrainConfig = CONFIG) -> tuple[TensorSource, TensorSource]:
    return (
        TensorSource(data(), config.batch_size, config.seed),
        TensorSource(data(40, 1), config.batch_size, config.seed),
    )


def trained(
    config: TrainConfig = CONFIG, on_status=None, keeper: Keeper | None = None
) -> tuple[nn.Module, MethodOptimizer, Record]:
    model = net()
    optimizer = wrapped(model, config)
    record = Record("test", config.method, config.describe(), config.seed, environment={})
    scheduler = config.scheduler(optimizer, 70)
    record = fit(model, optimizer, scheduler, *sources(config), config, record, on_status, keeper)
    return model, optimizer, record


def timeless(record: Record) -> dict:
    metrics = {k: v for k, v in record.metrics.items() if k != "seconds"}
    summary = {k: v for k, v in record.summary.items() if "seconds" not in k}
    return plain({"metrics": metrics, "summary": summary, "extra": record.extra})


def test_a_seed_repeats_exactly_and_another_differs():
    first, second, other = trained()[2], trained()[2], trained(replace(CONFIG, seed=1))[2]
    assert timeless(first) == timeless(second)
    assert first.metrics["loss"] != other.metrics["loss"]


def test_global_random_state_does_not_matter_nor_change():
    torch.manual_seed(0)
    net()
    state = torch.random.get_rng_state()
    first = trained()[2]
    assert torch.equal(torch.random.get_rng_state(), state)  # trained() seeds for the net, the loop draws nothing
    assert timeless(first) == timeless(trained()[2])


def test_compiled_steps_are_the_same_up_to_rounding(monkeypatch: pytest.MonkeyPatch):
    """The net by torch.compile, the method's mathematics too; the scores are made op by op."""
    used = []
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: used.append(f) or compiler(f, backend="aot_eager"))
    _, _, plain_record = trained()
    assert not used
    _, _, record = trained(replace(CONFIG, compiled=True))
    assert used and record.config["compiled"] is True
    found, expected = (r.metrics["epoch_loss"]["value"] for r in (record, plain_record))
    assert found == pytest.approx(expected, rel=1e-4) and len(found) == 3


def test_batches_cover_the_data_once_a_pass_in_seeded_order():
    x = torch.arange(70.0)[:, None]
    y = torch.arange(70)
    source = TensorSource((x, y), 16, seed=0)
    drawn = list(source.epoch(0))
    assert [len(part) for _, part in drawn] == [16] * 4 and source.steps() == 4
    seen = torch.cat([part for _, part in drawn])
    assert len(seen.unique()) == 64 and not torch.equal(seen, y[:64])
    assert all(torch.equal(a[:, 0].long(), b) for a, b in drawn)
    assert torch.equal(torch.cat([part for _, part in source.ordered(16)]), y)
    assert not torch.equal(seen, torch.cat([part for _, part in source.epoch(1)]))
    assert all(torch.equal(a[1], b[1]) for a, b in zip(drawn[2:], source.epoch(0, skip=2), strict=True))
    assert len(next(TensorSource((x[:5], y[:5]), 16, 0).epoch(0))[1]) == 5


class KilledError(Exception):
    pass


@pytest.mark.parametrize("at", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("by", ["radius", "quantile"])
def test_a_run_killed_at_any_step_goes_on_bit_for_bit(tmp_path, at, by):
    """Kept every two steps and every epoch; what was done since the last file is done again."""
    config = replace(CONFIG, annealing=askew.LevelFirst(start=0.2, by=by))
    model, _, whole = trained(config)

    def kill(status: Status) -> None:
        if status.step == at:
            raise KilledError

    keeper = Keeper(tmp_path, every_steps=2)
    with pytest.raises(KilledError):
        trained(config, kill, keeper)
    steps: list[int] = []
    resumed, _, record = trained(config, lambda status: steps.append(status.step), keeper)
    assert (steps[0] == 1) == (at < 2 + 1)  # it went on rather than began anew
    assert timeless(record) == timeless(whole)
    for (name, a), b in zip(model.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_a_finished_run_is_not_trained_again(tmp_path):
    keeper = Keeper(tmp_path)
    first = trained(keeper=keeper)[2]
    steps: list[int] = []
    again = trained(keeper=keeper, on_status=lambda status: steps.append(status.step))[2]
    assert steps == []
    assert timeless(again) == timeless(first)
    assert {path.name for path in tmp_path.iterdir()} == {"last.pt", "best.pt"}


def test_another_config_does_not_take_over_the_folder(tmp_path):
    trained(keeper=Keeper(tmp_path))
    with pytest.raises(ValueError, match=r"lr: 0\.1 there, 0\.2 here"):
        trained(replace(CONFIG, lr=0.2), keeper=Keeper(tmp_path))


def test_record_holds_steps_epochs_and_summary():
    _, optimizer, record = trained()
    steps, epochs = list(range(12)), [1, 2, 3]
    for name in ("loss", "lr", "value"):
        assert record.metrics[name]["step"] == steps
    for name in ("epoch_loss", "accuracy", "test_loss", "diagnosis", "seconds"):
        assert record.metrics[name]["step"] == epochs
    losses = record.metrics["loss"]["value"]
    assert record.metrics["epoch_loss"]["value"][0] == pytest.approx(sum(losses[:4]) / 4, rel=1e-6)
    assert record.metrics["lr"]["value"][0] == 0.1
    assert record.metrics["value"]["value"][0] == 0 and record.metrics["value"]["value"][-1] > 0.9
    last = record.metrics["diagnosis"]["value"][-1]
    assert last["overall"]["feasible"] == 1 and last["overall"]["distance_max"] == 0
    assert [row["name"] for row in last["layers"]] == ["0.weight", "3.weight"]
    assert record.summary["bits"] == 1 and record.summary["weights"] == 108
    assert record.summary["accuracy"] == record.metrics["accuracy"]["value"][-1]
    assert 0 < record.summary["train_seconds"] <= record.summary["seconds"]
    assert [h["epoch"] for h in record.extra["histograms"]] == [0, 3]
    assert optimizer.steps == 12


def test_the_last_epoch_is_always_scored():
    record = trained(replace(CONFIG, score_every=2))[2]
    assert record.metrics["accuracy"]["step"] == [2, 3]


def test_a_method_without_constraint_logs_no_value():
    record = trained(replace(CONFIG, method="full-precision", annealing=None, alpha=None))[2]
    assert "value" not in record.metrics
    assert record.summary["bits"] == 32


def test_status_reports_move_forward_to_the_end():
    seen: list[Status] = []
    trained(on_status=seen.append)
    assert [s.step for s in seen] == sorted(s.step for s in seen)
    assert seen[0].loss is None and seen[0].step == 1
    last = seen[-1]
    assert (last.step, last.total_steps, last.epoch, last.symbol, last.feasible) == (12, 12, 3, "radius", 1.0)
    assert last.accuracy is not None and last.value is not None


def test_a_long_epoch_shows_its_loss_before_it_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "READ_SECONDS", 0.0)
    seen: list[Status] = []
    record = trained(on_status=seen.append)[2]
    losses = record.metrics["loss"]["value"]
    assert seen[1].loss == pytest.approx(sum(losses[:2]) / 2, rel=1e-5)
    assert seen[-1].loss == pytest.approx(record.metrics["epoch_loss"]["value"][-1], rel=1e-5)


def test_scoring_snaps_only_for_the_score():
    model = net()
    optimizer = wrapped(model, CONFIG)
    before = [p.detach().clone() for p in model.parameters()]
    found = score_snapped(model, optimizer, *sources(), CONFIG)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    twin = net()
    with torch.no_grad():
        for name, p in twin.named_parameters():
            if name in ("0.weight", "3.weight"):
                p.copy_(torch.where(p >= 0, 1.0, -1.0))
    reestimate_batchnorm(twin, [data()])
    expected = score(twin, [data(40, 1)])
    assert found == expected._replace(loss=pytest.approx(expected.loss, rel=1e-6))  # sums in another order


def test_histogram_counts_every_weight_once():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(5.0)
    found = weight_histogram(wrapped(model, CONFIG))
    layers = found["layers"]
    assert isinstance(layers, dict)
    assert {name: sum(counts) for name, counts in layers.items()} == {"0.weight": 72, "3.weight": 36}
    assert layers["0.weight"][-1] == 72  # beyond the range: in the end bin
    assert found["edges"][0] == -1.275 and found["edges"][-1] == pytest.approx(1.275)


def test_weights_on_levels_fill_the_bins_around_them():
    model = net()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.where(p >= 0, 1.0, -1.0))
    found = weight_histogram(wrapped(model, CONFIG))
    edges, counts = found["edges"], found["layers"]["3.weight"]
    filled = [(edges[i] + edges[i + 1]) / 2 for i, count in enumerate(counts) if count]
    assert filled == pytest.approx([-1.0, 1.0])


def test_bits_average_over_layers():
    model = net()
    levels = {"0": askew.binary(), "3": askew.uniform(4)}
    optimizer = ASkew(torch.optim.SGD(askew.groups(model, levels=levels), lr=0.1), total_steps=2)
    assert bits_per_weight(optimizer) == pytest.approx((72 * 1 + 36 * 4) / 108)


@pytest.mark.parametrize(("seconds", "written"), [(None, 1), (1e9, 1), (0.0, CONFIG.epochs)])
def test_an_epoch_that_ends_long_after_the_last_checkpoint_is_kept(tmp_path, monkeypatch, seconds, written):
    names = []
    monkeypatch.setattr(loop, "save", lambda path, *_: names.append(path.name))
    trained(keeper=Keeper(tmp_path, every_epochs=100, every_seconds=seconds))
    assert names.count("last.pt") == written


def test_a_test_loss_that_is_not_finite_is_said_aloud(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    monkeypatch.setattr(loop, "score_snapped", lambda *parts: Score(0.5, float("nan"), None))
    record = trained()[2]
    said = "after epoch 3 the loss of the snapped net on the test images is nan"
    assert said in [one.getMessage() for one in caplog.records]
    assert plain(record.summary)["test_loss"] is None
