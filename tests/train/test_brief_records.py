"""Records of long runs stay small, and a thinned one agrees with a full one where it speaks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import askew
from askew.data.images import ImageSet, Splits
from askew.report.live import Status
from askew.train.config import TrainConfig
from askew.train.loop import Keeper, first_and_others, fit
from askew.train.record import Record, lists_on_a_line
from askew.train.source import TensorSource, image_sources

FULL = TrainConfig(
    "askew-level-first", epochs=6, batch_size=8, lr=0.1, annealing=askew.LevelFirst(start=0.2), histogram_epochs=(3, 6)
)
BRIEF = replace(FULL, log_every=5, brief=True, score_every=2)


def data(n: int = 64) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    return x, x[:, :3].argmax(1)


def trained(config: TrainConfig, layers: int = 3, keeper: Keeper | None = None, on_status=None) -> Record:
    torch.manual_seed(0)
    wide = [nn.Linear(6 if i == 0 else 4, 4, bias=False) for i in range(layers - 1)]
    model = nn.Sequential(*wide, nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3))
    base = torch.optim.Adam(askew.groups(model, levels=askew.binary()), lr=config.lr)
    optimizer = askew.ASkew(base, config.annealing, total_steps=config.total_steps(64))
    train = TensorSource(data(), config.batch_size, 0)
    record = Record("test", config.method, config.describe(), 0, environment={})
    return fit(model, optimizer, config.scheduler(optimizer, 64), train, train, config, record, on_status, keeper)


def points(record: Record, metric: str) -> dict[int, float]:
    return dict(zip(*record.metrics[metric].values(), strict=True))


def test_a_thinned_record_agrees_with_the_full_one():
    full, brief = trained(FULL), trained(BRIEF)
    for metric in ("loss", "lr", "value"):
        assert list(points(brief, metric)) == list(range(0, 48, 5))
        assert points(brief, metric).items() <= points(full, metric).items()
    assert brief.metrics["epoch_loss"] == full.metrics["epoch_loss"]
    assert points(brief, "accuracy") == {e: points(full, "accuracy")[e] for e in (2, 4, 6)}
    looks = brief.metrics["diagnosis"]
    assert looks["step"] == [2, 4, 6] and [len(look["layers"]) for look in looks["value"]] == [0, 0, 3]
    last = full.metrics["diagnosis"]["value"][-1]
    assert looks["value"][-1]["overall"]["feasible"] == last["overall"]["feasible"] == 1
    for ours, whole in zip(brief.extra["histograms"], full.extra["histograms"], strict=True):
        assert list(ours["layers"]) == ["0.weight", "others"]
        assert ours["layers"]["0.weight"] == whole["layers"]["0.weight"]
        assert sum(map(sum, ours["layers"].values())) == sum(map(sum, whole["layers"].values())) == 24 + 16 + 12
    assert set(brief.extra) == {"histograms"}


@pytest.mark.parametrize("at", [5, 11, 19, 40])
def test_a_thinned_run_goes_on_bit_for_bit(tmp_path: Path, at: int):
    class KilledError(Exception):
        pass

    def kill(status: Status) -> None:
        if status.step == at:
            raise KilledError

    keeper = Keeper(tmp_path, every_steps=3)
    with pytest.raises(KilledError):
        trained(BRIEF, keeper=keeper, on_status=kill)
    resumed, whole = trained(BRIEF, keeper=keeper), trained(BRIEF)
    for metric in ("loss", "epoch_loss", "accuracy", "value", "lr"):
        assert resumed.metrics[metric] == whole.metrics[metric]


def test_a_record_of_a_hundred_epochs_of_a_deep_net_is_small(tmp_path: Path):
    """Twenty-one layers as in ResNet-18, 400 logged steps as on TinyImageNet."""
    marks = (20, 39, 55, 99, 100)
    config = replace(BRIEF, epochs=100, log_every=2, score_every=5, histogram_epochs=marks)
    path = trained(config, layers=21).save(tmp_path)
    assert path.stat().st_size < 60_000
    assert len(json.loads(path.read_text())["metrics"]["loss"]["value"]) == 400


def test_lists_of_numbers_lie_on_a_line_and_nothing_else_changes():
    value = {"a": [1, -2.5e-07, None], "b": ["x[\n 1\n]", 1], "c": [[1, 2], [3]], "d": [], "e": {"f": [0]}}
    text = lists_on_a_line(json.dumps(value, indent=1))
    assert json.loads(text) == value
    assert '"a": [1, -2.5e-07, null]' in text and text.count("\n") == 14


def test_one_layer_has_no_others():
    assert first_and_others({"a": [1, 2]}) == {"a": [1, 2]}


def test_the_first_seen_batches_hold_all_classes_of_a_set_sorted_by_class():
    """A folder of images per class is read class by class; statistics of its first images would be of one class."""
    labels = np.repeat(np.arange(5), 20).astype(np.int64)
    images = np.random.default_rng(0).integers(0, 256, (100, 8, 8, 3), np.uint8)
    part = ImageSet(images, labels, tuple("abcde"), "sorted")
    source, _ = image_sources(Splits(part, part), 10, seed=3)
    first = next(source.seen(25))[1]
    assert len(first.unique()) == 5 and next(source.ordered(20))[1].unique().tolist() == [0]
    mixed = list(source.seen(25))
    assert torch.equal(torch.cat([y for _, y in mixed]).sort().values, torch.from_numpy(labels))
    again = list(source.seen(25))
    assert [len(y) for _, y in source.seen(33)] == [33] * 3 and [len(y) for _, y in source.seen(101)] == [100]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(mixed, again, strict=True))


def test_statistics_come_from_crops_as_training_sees_them():
    """White images: a crop's border is black, so the mean of what the net is trained on lies below the images' own."""
    images = np.random.default_rng(0).integers(200, 256, (200, 8, 8, 3), np.uint8)
    part = ImageSet(images, np.arange(200) % 5, tuple("abcde"), "bright")
    source, _ = image_sources(Splits(part, part), 10, seed=3, pad=2)

    def mean(batches):
        return torch.cat([x for x, _ in batches]).mean()

    seen, trained, whole = mean(source.seen(40)), mean(source.epoch(4)), mean(source.ordered(40))
    assert abs(whole) < 1e-4 and trained < -1 and abs(seen - trained) < 0.1 * abs(trained)
