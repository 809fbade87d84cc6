"""The training loop: epochs over tensors in seeded order, everything worth knowing logged to a record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from askew.methods.base import FullPrecision
from askew.optim import ASkew, MethodOptimizer, diagnose, snapped
from askew.optim.look import Diagnosis
from askew.report.live import Status
from askew.train.checkpoint import Position, load, save
from askew.train.config import TrainConfig
from askew.train.evaluate import reestimate_batchnorm, score
from askew.train.record import Record
from askew.train.source import Source

OnStatus = Callable[[Status], None]
HISTOGRAM_RANGE = (-1.275, 1.275)  # of the largest level; with 51 bins 0 and the outermost levels are bin centres
HISTOGRAM_BINS = 51


@dataclass(frozen=True)
class Keeper:
    """Where and how often a run is kept: last.pt every so many epochs (and steps), best.pt by accuracy."""

    folder: Path
    every_epochs: int = 1
    every_steps: int | None = None

    @property
    def last(self) -> Path:
        return self.folder / "last.pt"

    @property
    def best(self) -> Path:
        return self.folder / "best.pt"


def fit(
    model: nn.Module,
    optimizer: MethodOptimizer,
    scheduler: LRScheduler,
    train: Source,
    test: Source,
    config: TrainConfig,
    record: Record,
    on_status: OnStatus | None = None,
    keeper: Keeper | None = None,
) -> Record:
    """Train for config.epochs and fill the record, which is returned; the model is left as trained (not snapped).

    Logged at each step: loss, lr, value (epsilon or capture radius; ASkew only). At each epoch: epoch_loss (mean over
    its steps), diagnosis, seconds since the start; where scored: accuracy (%) and test_loss of the snapped net, its
    BatchNorm re-estimated on the training set. extra["histograms"]: weights in level units at the chosen epochs.
    One device sync an epoch, apart from the optimizer's own check of gradients.

    With a keeper the run is saved as it goes, and goes on from last.pt if there is one, bit for bit on the CPU; the
    record returned is then the saved one, continued.
    """
    run = _Run(model, optimizer, scheduler, train, test, config, record, on_status, keeper)
    run.resume()
    if run.position == Position(0, 0):
        run.histogram(0)
    while run.position.epoch < config.epochs:
        run.one_epoch()
    run.summarise()
    return run.record


class _Run:
    """What the loop carries from step to step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: MethodOptimizer,
        scheduler: LRScheduler,
        train: Source,
        test: Source,
        config: TrainConfig,
        record: Record,
        on_status: OnStatus | None,
        keeper: Keeper | None,
    ) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.train, self.test = train, test
        self.config, self.record = config, record
        self.on_status, self.keeper = on_status, keeper
        self.steps_per_epoch = train.steps()
        self.total = config.epochs * self.steps_per_epoch
        self.position = Position(0, 0)
        self.pending: list[Tensor] = []  # losses of the last steps, still on the device
        self.clock = time.perf_counter()
        self.diagnosis: Diagnosis | None = None
        self.mean_loss: float | None = None

    @property
    def accuracy(self) -> float | None:
        """Of the last scoring."""
        return last_value(self.record, "accuracy")

    @property
    def parts(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "scheduler": self.scheduler, "look": LookMemory(self.optimizer)}

    def resume(self) -> None:
        """Go on from the keeper's last checkpoint, if there is one."""
        if self.keeper is not None and self.keeper.last.exists():
            self.position, self.record = load(self.keeper.last, self.model, self.parts, self.record.config)

    def keep(self, path: Path) -> None:
        self.flush()
        save(path, self.model, self.parts, self.position, self.record, self.record.config)

    def spent(self, what: str) -> None:
        """Add the time since the last call to `what` (train_seconds, look_seconds), which a resumed run continues."""
        now = time.perf_counter()
        self.record.summary[what] = self.record.summary.get(what, 0.0) + now - self.clock
        self.clock = now

    @property
    def constrained(self) -> bool:
        """True where the annealing binds; for a rival method its value means nothing."""
        return isinstance(self.optimizer, ASkew)

    def one_epoch(self) -> None:
        """The rest of an epoch, from wherever the run stands, then a look."""
        epoch, first = self.position.epoch, self.position.step
        self.model.train()
        self.spent("look_seconds")
        for index, (x, y) in enumerate(self.train.epoch(epoch, first), start=first):
            self.one_step(epoch * self.steps_per_epoch + index, x, y)
            self.position = Position(epoch, index + 1)
            every = self.keeper.every_steps if self.keeper else None
            if self.keeper and every and (index + 1) % every == 0 and index + 1 < self.steps_per_epoch:
                self.keep(self.keeper.last)
            self.tell(epoch * self.steps_per_epoch + index + 1, epoch + 1)
        self.flush()
        self.spent("train_seconds")
        self.look(epoch + 1)
        self.position = Position(epoch + 1, 0)
        self.spent("look_seconds")
        if self.keeper and ((epoch + 1) % self.keeper.every_epochs == 0 or epoch + 1 == self.config.epochs):
            self.keep(self.keeper.last)

    def one_step(self, step: int, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(x.device, self.config.bf16):
            logits = self.model(x)
        loss = nn.functional.cross_entropy(logits.float(), y)
        loss.backward()
        self.record.log(step, lr=float(self.optimizer.param_groups[0]["lr"]))
        self.optimizer.step()
        self.scheduler.step()
        self.pending.append(loss.detach())
        if self.constrained:
            self.record.log(step, value=self.optimizer.value())

    def flush(self) -> None:
        """Log the losses of the last steps, read from the device at once."""
        if not self.pending:
            return
        logged = len(self.record.metrics.get("loss", {"step": []})["step"])
        for step, value in enumerate(torch.stack(self.pending).tolist(), start=logged):
            self.record.log(step, loss=value)
        self.pending.clear()

    def look(self, epoch: int) -> None:
        """Diagnosis, score and histograms after an epoch."""
        losses = self.record.metrics["loss"]["value"][-self.steps_per_epoch :]
        known = [value for value in losses if value is not None]
        self.mean_loss = sum(known) / len(known) if known else None
        self.record.log(epoch, epoch_loss=self.mean_loss)
        self.diagnosis = diagnose(self.optimizer)
        self.record.log(epoch, diagnosis=self.diagnosis.to_dict())
        if epoch % self.config.score_every == 0 or epoch == self.config.epochs:
            best = max(self.record.metrics.get("accuracy", {"value": []})["value"], default=-1.0)
            accuracy, test_loss = score_snapped(self.model, self.optimizer, self.train, self.test, self.config)
            self.record.log(epoch, accuracy=accuracy, test_loss=test_loss)
            if self.keeper and accuracy > best:
                self.keep(self.keeper.best)
        self.histogram(epoch)
        self.record.log(epoch, seconds=sum(self.record.summary.get(k, 0.0) for k in ("train_seconds", "look_seconds")))
        self.tell(epoch * self.steps_per_epoch, epoch)

    def histogram(self, epoch: int) -> None:
        if epoch in self.config.histogram_epochs:
            self.record.extra.setdefault("histograms", []).append({"epoch": epoch, **weight_histogram(self.optimizer)})

    def tell(self, step: int, epoch: int) -> None:
        if self.on_status is None:
            return
        symbol = "eps" if self.optimizer.annealing.kind == "epsilon" else "radius"
        feasible = self.diagnosis.overall.feasible if self.diagnosis and self.constrained else None
        value = self.optimizer.value() if self.constrained else None
        self.on_status(
            Status(step, self.total, epoch, self.config.epochs, self.mean_loss, self.accuracy, symbol, value, feasible)
        )

    def summarise(self) -> None:
        """The final numbers."""
        overall = (self.diagnosis or diagnose(self.optimizer)).overall
        self.record.summary |= {
            "accuracy": self.accuracy,
            "test_loss": last_value(self.record, "test_loss"),
            "train_loss": last_value(self.record, "epoch_loss"),
            "bits": bits_per_weight(self.optimizer),
            "weights": overall.size,
            "distance_mean": overall.distance_mean,
            "distance_max": overall.distance_max,
            "seconds": self.record.summary["train_seconds"] + self.record.summary["look_seconds"],
        }


def autocast(device: torch.device, enabled: bool) -> torch.autocast:
    """bfloat16 where it is safe, float32 elsewhere; the weights themselves stay as they are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


class LookMemory:
    """The level indices of the last look, by weight, so that a resumed run counts flips as an uninterrupted one."""

    def __init__(self, optimizer: MethodOptimizer) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        seen = self.optimizer.__dict__.get("_last_look", {})
        return {name: seen[p] for name, p, _ in self.optimizer.weights() if p in seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        found = [(p, state_dict[name]) for name, p, _ in self.optimizer.weights() if name in state_dict]
        self.optimizer.__dict__["_last_look"] = {p: index.to(p.device) for p, index in found}


def last_value(record: Record, metric: str) -> Any:
    """The last logged value of a metric, None if there is none."""
    values = record.metrics.get(metric, {"value": []})["value"]
    return values[-1] if values else None


def score_snapped(
    model: nn.Module, optimizer: MethodOptimizer, train: Source, test: Source, config: TrainConfig
) -> tuple[float, float]:
    """(accuracy in percent, mean loss) on `test`, weights on their levels and BatchNorm re-estimated on `train`.

    The weights are put back; BatchNorm's running statistics stay the snapped net's (training does not use them).
    """
    size = config.score_batch_size
    batches = config.batchnorm_images and max(1, config.batchnorm_images // size)
    device = next(model.parameters()).device
    with snapped(optimizer), autocast(device, config.bf16):
        reestimate_batchnorm(model, islice(train.ordered(size), batches))
        return score(model, test.ordered(size))


def bits_per_weight(optimizer: MethodOptimizer) -> float:
    """Mean storage of a managed weight: its level's index, or its dtype's width in full precision; no scales."""
    full = isinstance(optimizer.method, FullPrecision)
    sizes = [(p.numel(), 8 * p.element_size() if full else site.levels.bits) for _, p, site in optimizer.weights()]
    return sum(n * bits for n, bits in sizes) / max(1, sum(n for n, _ in sizes))


@torch.no_grad()
def weight_histogram(optimizer: MethodOptimizer) -> dict[str, list[float] | dict[str, list[int]]]:
    """Counts of each layer's optimised weights (a rival's latents) in level units, over the levels' range and a bit.

    The end bins hold everything beyond them too.
    """
    weights = optimizer.weights()
    reach = max(max(abs(v) for v in site.levels.values) for _, _, site in weights)
    low, high = (edge * reach for edge in HISTOGRAM_RANGE)
    counts = {}
    for name, p, site in weights:
        w = optimizer.underlying(p).detach().float()
        q = w if site.scale is None else w / site.scale
        counts[name] = q.clamp(low, high).cpu().histc(HISTOGRAM_BINS, low, high).long().tolist()
    width = (high - low) / HISTOGRAM_BINS
    return {"edges": [low + i * width for i in range(HISTOGRAM_BINS + 1)], "layers": counts}
