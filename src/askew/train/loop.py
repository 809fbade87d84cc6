"""The training loop: epochs over tensors in seeded order, everything worth knowing logged to a record."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from askew.atomic import remove_leftovers
from askew.methods.base import FullPrecision
from askew.optim import ASkew, MethodOptimizer, diagnose, snapped
from askew.optim.look import Diagnosis
from askew.report.live import Status
from askew.train.board import Board
from askew.train.checkpoint import Position, load, save
from askew.train.config import TrainConfig
from askew.train.distributed import together, world
from askew.train.evaluate import Score, reestimate_batchnorm, score
from askew.train.record import Record, plain
from askew.train.source import Source
from askew.train.stepper import Eager, Static, Stepper, autocast, loss_of
from askew.train.stopping import Stop, heeded
from askew.train.teacher import Objective, labelled

OnStatus = Callable[[Status], None]
HISTOGRAM_RANGE = (-1.275, 1.275)  # of the largest level; with 51 bins 0 and the outermost levels are bin centres
HISTOGRAM_BINS = 51
READ_SECONDS, READ_STEPS = 3.0, 100  # how often the loss is read for the bar within an epoch, and over how many steps
log = logging.getLogger(__name__)
UNFINISHED = "losses_of_this_epoch"  # in record.extra while an epoch is under way


@dataclass(frozen=True)
class Keeper:
    """Where and how often a run is kept: last.pt every so many epochs (and steps), best.pt by accuracy.

    every_seconds: at the end of an epoch also when so much time has passed since the last one.
    tensorboard: write the record's curves and histograms to folder/tensorboard too, as event files.
    """

    folder: Path
    every_epochs: int = 1
    every_steps: int | None = None
    every_seconds: float | None = None
    tensorboard: bool = False
    keep_best: bool = True

    @property
    def last(self) -> Path:
        return self.folder / "last.pt"

    @property
    def best(self) -> Path:
        return self.folder / "best.pt"

    def sweep(self) -> None:
        """Remove what a killed process left of a file it was writing."""
        for path in (self.last, self.best):
            remove_leftovers(path)


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
    objective: Objective = labelled,
) -> Record:
    """Train for config.epochs and fill the record, which is returned; the model is left as trained (not snapped).

    objective: the loss of a batch from (logits, x, y), such as a Teacher; cross-entropy with the labels by default.

    Logged every config.log_every steps: loss, lr, value (epsilon or capture radius; ASkew only). At each epoch:
    epoch_loss (mean over its steps), diagnosis, seconds since the start; where scored: accuracy (%), top5 (%, more than
    five classes) and test_loss of the snapped net, its BatchNorm re-estimated on the training set.
    extra["histograms"]: weights in level units at the chosen epochs. config.brief keeps less of all this.
    One device sync an epoch, apart from the optimizer's own check of gradients and, if somebody is told how the run
    goes, one every few seconds for the loss.

    With a keeper the run is saved as it goes, and goes on from last.pt if there is one, bit for bit on the CPU; the
    record returned is then the saved one, continued. Ctrl-C and SIGTERM then end it (one process) after the step under
    way, of static steps after the epoch, and it is saved there.

    In several processes (torch.distributed) all of them call, with sources that give each its part of every batch; the
    first one alone writes files and tells how it goes.
    """
    with together(model) as forward, heeded(keeper is not None and world().size == 1) as stop:
        run = _Run(model, forward, optimizer, scheduler, train, test, config, record, on_status, keeper, objective)
        run.stop = stop
        try:
            run.resume()
            if run.position == Position(0, 0):
                run.histogram(0)
            while run.position.epoch < config.epochs:
                run.one_epoch()
            run.summarise()
        finally:
            run.close()
    return run.record


class _Run:
    """What the loop carries from step to step."""

    def __init__(
        self,
        model: nn.Module,
        forward: nn.Module,
        optimizer: MethodOptimizer,
        scheduler: LRScheduler,
        train: Source,
        test: Source,
        config: TrainConfig,
        record: Record,
        on_status: OnStatus | None,
        keeper: Keeper | None,
        objective: Objective,
    ) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        # forward is the model, or the model within DDP: what a training step calls
        pause = keeper.every_steps if keeper else None
        parts = loss_of(forward, objective), optimizer, scheduler, train, config.bf16
        self.stepper: Stepper = Static(*parts, pause) if config.static else Eager(*parts, config.compiled)
        self.world = world()
        self.board: Board | None = None
        self.train, self.test = train, test
        self.config, self.record = config, record
        self.on_status, self.keeper = on_status if self.world.first else None, keeper
        self.steps_per_epoch = train.steps()
        self.total = config.epochs * self.steps_per_epoch
        self.position = Position(0, 0)
        self.pending: list[Tensor] = []  # losses of the last steps, still on the device
        self.clock = self.kept = time.perf_counter()
        self.diagnosis: Diagnosis | None = None
        self.mean_loss: float | None = None  # of the last epoch, or of the last steps in an epoch that takes long
        self.last_read: float | None = None
        self.stop = Stop()

    @property
    def accuracy(self) -> float | None:
        """Of the last scoring."""
        return last_value(self.record, "accuracy")

    @property
    def parts(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer, "scheduler": self.scheduler, "look": LookMemory(self.optimizer)}

    def resume(self) -> None:
        """Go on from the keeper's last checkpoint, if there is one."""
        if self.keeper is None:
            return
        if self.world.agree(self.keeper.last.exists(), f"checkpoint {self.keeper.last} is there"):
            self.position, self.record = load(self.keeper.last, self.model, self.parts, self.record.config)
            self.mean_loss = last_value(self.record, "epoch_loss")
        if self.world.first:
            self.keeper.sweep()
            if self.keeper.tensorboard:
                done = self.position.epoch * self.steps_per_epoch + self.position.step
                folder = self.keeper.folder / "tensorboard"
                self.board = Board(folder, self.record, self.steps_per_epoch, self.symbol, done)

    def keep(self, path: Path) -> None:
        """Write a checkpoint (the first process does), curves before it: what it holds is then on the board as well."""
        self.flush()
        self.show()
        if self.world.first:
            last = self.keeper.last if self.keeper else None
            save(path, self.model, self.parts, self.position, self.record, self.record.config, last)

    def show(self) -> None:
        """Bring the board up to the record."""
        if self.board is not None:
            self.board.write(self.record)

    def close(self) -> None:
        if self.board is not None:
            self.board.close()

    @property
    def symbol(self) -> str:
        return "eps" if self.optimizer.annealing.kind == "epsilon" else "radius"

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
        for index, loss in enumerate(self.stepper.steps(epoch, first), start=first):
            self.pending.append(loss)
            self.log_step(epoch * self.steps_per_epoch + index)
            self.position = Position(epoch, index + 1)
            every = self.keeper.every_steps if self.keeper else None
            if self.keeper and every and (index + 1) % every == 0 and index + 1 < self.steps_per_epoch:
                self.keep(self.keeper.last)
            self.tell(epoch * self.steps_per_epoch + index + 1, epoch + 1)
            if self.stop and not self.config.static and index + 1 < self.steps_per_epoch:
                self.spent("train_seconds")
                self.end_kept()
        self.flush()
        self.spent("train_seconds")
        self.look(epoch + 1)
        self.position = Position(epoch + 1, 0)
        self.spent("look_seconds")
        if self.stop:
            self.end_kept()
        if self.keeper and self.due(epoch + 1, self.keeper):
            self.keep(self.keeper.last)
            self.kept = time.perf_counter()

    def end_kept(self) -> None:
        """Save the run where it stands, and end as the signal asks."""
        if self.keeper:
            self.keep(self.keeper.last)
        self.stop.end()

    def due(self, epoch: int, keeper: Keeper) -> bool:
        """Whether to keep the run after this epoch; a process decides alone, for the first one alone writes."""
        waited = time.perf_counter() - self.kept
        late = keeper.every_seconds is not None and waited >= keeper.every_seconds
        return late or epoch % keeper.every_epochs == 0 or epoch == self.config.epochs

    def log_step(self, step: int) -> None:
        if step % self.config.log_every == 0:
            self.record.log(step, lr=self.stepper.lr)
            if self.constrained:
                self.record.log(step, value=self.optimizer.value())

    def flush(self) -> None:
        """Log the losses of the last steps, read from the device at once; those of an unfinished epoch are kept."""
        if not self.pending:
            return
        seen = self.record.extra.setdefault(UNFINISHED, [])
        losses = self.world.mean(torch.stack(self.pending))
        values = plain(losses)  # as a checkpoint keeps them, so that a resumed mean is the same
        self.check(values, self.position.epoch * self.steps_per_epoch + len(seen))
        for step, value in enumerate(values, start=self.position.epoch * self.steps_per_epoch + len(seen)):
            if step % self.config.log_every == 0:
                self.record.log(step, loss=value)
        seen += values
        self.pending.clear()

    def check(self, losses: list[float | None], first: int) -> None:
        """A static step does not look at gradients; what they break shows in the losses."""
        bad = next((i for i, loss in enumerate(losses) if loss is None), None)
        if self.config.static and bad is not None:
            raise ValueError(
                f"the loss of step {first + bad} is not a finite number: lower the learning rate (static steps check "
                "losses at the end of an epoch; without them the gradients of every step are checked)"
            )

    def look(self, epoch: int) -> None:
        """Diagnosis, score and histograms after an epoch."""
        known = [value for value in self.record.extra.pop(UNFINISHED, []) if value is not None]
        self.mean_loss = sum(known) / len(known) if known else None
        self.record.log(epoch, epoch_loss=self.mean_loss)
        scored = epoch % self.config.score_every == 0 or epoch == self.config.epochs
        if scored or not self.config.brief:
            self.diagnosis = diagnose(self.optimizer)
            layers = not self.config.brief or epoch == self.config.epochs
            self.record.log(epoch, diagnosis=self.diagnosis.to_dict() | ({} if layers else {"layers": []}))
        if scored:
            best = max(self.record.metrics.get("accuracy", {"value": []})["value"], default=-1.0)
            found = score_snapped(self.model, self.optimizer, self.train, self.test, self.config)
            if not math.isfinite(found.loss):
                log.warning("after epoch %d the loss of the snapped net on the test images is %s", epoch, found.loss)
            self.record.log(epoch, accuracy=found.accuracy, test_loss=found.loss)
            if found.top5 is not None:
                self.record.log(epoch, top5=found.top5)
            if self.keeper and self.keeper.keep_best and found.accuracy > best:
                self.keep(self.keeper.best)
        self.histogram(epoch)
        self.record.log(epoch, seconds=sum(self.record.summary.get(k, 0.0) for k in ("train_seconds", "look_seconds")))
        self.show()
        self.tell(epoch * self.steps_per_epoch, epoch)

    def histogram(self, epoch: int) -> None:
        if epoch in self.config.histogram_epochs:
            found = weight_histogram(self.optimizer)
            if self.config.brief:
                found["layers"] = first_and_others(found["layers"])
            self.record.extra.setdefault("histograms", []).append({"epoch": epoch, **found})

    def tell(self, step: int, epoch: int) -> None:
        if self.on_status is None:
            return
        now = time.perf_counter()
        self.last_read = now if self.last_read is None else self.last_read
        if self.pending and now - self.last_read > READ_SECONDS:
            self.mean_loss, self.last_read = float(torch.stack(self.pending[-READ_STEPS:]).mean()), now
        feasible = self.diagnosis.overall.feasible if self.diagnosis and self.constrained else None
        value = self.optimizer.value() if self.constrained else None
        epochs, loss, accuracy = self.config.epochs, self.mean_loss, self.accuracy
        self.on_status(Status(step, self.total, epoch, epochs, loss, accuracy, self.symbol, value, feasible))

    def summarise(self) -> None:
        """The final numbers."""
        overall = (self.diagnosis or diagnose(self.optimizer)).overall
        self.record.summary |= {
            "accuracy": self.accuracy,
            "top5": last_value(self.record, "top5"),
            "test_loss": last_value(self.record, "test_loss"),
            "train_loss": last_value(self.record, "epoch_loss"),
            "bits": bits_per_weight(self.optimizer),
            "weights": overall.size,
            "distance_mean": overall.distance_mean,
            "distance_max": overall.distance_max,
            "seconds": self.record.summary["train_seconds"] + self.record.summary["look_seconds"],
        }


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
) -> Score:
    """Accuracy and mean loss on `test`, weights on their levels and BatchNorm re-estimated on batches as in training.

    The weights are put back; BatchNorm's running statistics stay the snapped net's (training does not use them).
    """
    size, some = config.score_batch_size, config.batchnorm_images
    chosen = islice(train.seen(size), max(1, some // size) if some else None)
    device = next(model.parameters()).device
    with snapped(optimizer), autocast(device, config.bf16):
        reestimate_batchnorm(model, chosen)
        return score(model, test.ordered(size), world().total)


def bits_per_weight(optimizer: MethodOptimizer) -> float:
    """Mean storage of a managed weight: its level's index, or its dtype's width in full precision; no scales."""
    full = isinstance(optimizer.method, FullPrecision)
    sizes = [(p.numel(), 8 * p.element_size() if full else site.levels.bits) for _, p, site in optimizer.weights()]
    return sum(n * bits for n, bits in sizes) / max(1, sum(n for n, _ in sizes))


@torch.no_grad()
def weight_histogram(optimizer: MethodOptimizer) -> dict[str, Any]:
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


def first_and_others(layers: dict[str, list[int]]) -> dict[str, list[int]]:
    """The first layer's counts as they are and those of all other layers added up."""
    (first, counts), *others = layers.items()
    if not others:
        return layers
    return {first: counts, "others": [sum(column) for column in zip(*(c for _, c in others), strict=True)]}
