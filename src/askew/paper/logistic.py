"""The convex toy example: logistic regression whose truth is a vertex of the hypercube.

n = 6000, d = 10, x uniform on [-1, 1]^d, y ~ Bernoulli(sigmoid(x . w*)); SGD lr 1, batch 1000, 25 epochs, and in the
appendix 50 epochs with batches of 100 and 1000. The paper prints curves, no numbers: ASkew lies on full precision, the
straight-through variants oscillate above it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from askew.core import Constant, LevelFirst
from askew.data.toy import Logistic, logistic
from askew.models.toy import LogisticNet
from askew.optim import diagnose, snapped
from askew.paper.common import Entry, optimizer_for
from askew.train.record import Record, writable_folder
from askew.train.repeats import shuffled, train_repeats
from askew.train.threads import one_thread

ENTRIES = (
    Entry("fp", "full precision", "full-precision", lr=1.0),
    Entry("bc", "BinaryConnect, stochastic", "binaryconnect-stochastic", lr=1.0),
    Entry("bc-det", "BinaryConnect, deterministic", "binaryconnect", lr=1.0),
    Entry("adaste", "AdaSTE", "adaste", lr=1.0),
    Entry("askew", "ASkew, eps = 1", "askew", lr=1.0, annealing=Constant(1.0), alpha=0.1),
    Entry("level-first", "ASkew, level-first", "askew-level-first", lr=1.0, settings="ours", annealing=LevelFirst()),
)
SETTINGS = {"batch-1000": (1000, 25), "batch-1000-long": (1000, 50), "batch-100-long": (100, 50)}


@dataclass(frozen=True)
class LogisticRegression:
    """The logistic regression curves and the table of final training losses."""

    out: Path = Path("results/logistic")
    """Folder for records, table and figures."""
    repeats: int = 20
    """Independent problems (data, truth, start), trained side by side."""
    seed: int = 0
    """Seed of data, start and order."""


def run(config: LogisticRegression, progress: Callable[[str], None] = lambda _: None) -> list[Record]:
    """Train every method in every setting; one record each."""
    writable_folder(config.out)
    data = logistic(config.repeats, seed=config.seed)
    records = []
    with one_thread():
        for setting, (batch, epochs) in SETTINGS.items():
            for entry in ENTRIES:
                progress(f"{setting}: {entry.label}")
                records.append(train(entry, setting, data, batch, epochs, config.seed))
                records[-1].save(config.out)
    return records


def train(entry: Entry, setting: str, data: Logistic, batch: int, epochs: int, seed: int) -> Record:
    """One method in one setting, all repeats at once."""
    repeats, n, d = data.x.shape
    start = time.perf_counter()
    torch.manual_seed(seed)  # the stochastic method draws from the global generator
    order = torch.Generator().manual_seed(seed + 1)
    model = LogisticNet(repeats, d, torch.Generator().manual_seed(seed + 2))
    optimizer = optimizer_for(entry, model, total_steps=epochs * (n // batch))
    record = Record(
        "logistic",
        f"{setting}-{entry.key}",
        entry.describe() | {"key": entry.key, "setting": setting, "batch": batch, "epochs": epochs, "repeats": repeats},
        seed,
    )

    def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        rows = torch.arange(repeats).unsqueeze(1)
        (index,) = shuffled(repeats, n, n, order)
        yield from zip(data.x[rows, index].split(batch, 1), data.y[rows, index].split(batch, 1), strict=True)

    def after_step(step: int, losses: Tensor) -> None:
        record.log(step, batch_loss_first=losses[0], batch_loss=losses.mean())

    @torch.no_grad()
    def after_epoch(epoch: int) -> None:
        record.log(epoch + 1, train_loss=model.losses(data.x, data.y))

    train_repeats(model, optimizer, batches, epochs, after_step=after_step, after_epoch=after_epoch)
    record.extra["diagnosis"] = diagnose(optimizer).to_dict()
    with torch.no_grad():
        record.summary["train_loss"] = model.losses(data.x, data.y).tolist()
        with snapped(optimizer):
            record.summary["snapped_train_loss"] = model.losses(data.x, data.y).tolist()
            record.summary["right_signs"] = (model.weight.sign() == data.truth).float().mean(1).tolist()
    record.summary["seconds"] = time.perf_counter() - start
    return record
