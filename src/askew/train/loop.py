"""The training loop: epochs over tensors in seeded order, everything worth knowing logged to a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from askew.methods.base import FullPrecision
from askew.optim import ASkew, MethodOptimizer, diagnose, snapped
from askew.optim.look import Diagnosis
from askew.report.live import Status
from askew.train.config import TrainConfig
from askew.train.evaluate import Batch, reestimate_batchnorm, score
from askew.train.record import Record

OnStatus = Callable[[Status], None]
HISTOGRAM_RANGE = (-1.275, 1.275)  # of the largest level; with 51 bins 0 and the outermost levels are bin centres
HISTOGRAM_BINS = 51


def batches(data: Batch, size: int, generator: torch.Generator | None = None) -> Iterator[Batch]:
    """Whole batches in random order with a generator; without one all the data in its own order."""
    x, y = data
    if generator is None:
        yield from zip(x.split(size), y.split(size), strict=True)
        return
    order = torch.randperm(len(y), generator=generator).to(y.device)
    whole = max(1, len(y) // size)
    for part in order[: whole * size].split(size):
        yield x[part], y[part]


def fit(
    model: nn.Module,
    optimizer: MethodOptimizer,
    scheduler: LRScheduler,
    train: Batch,
    test: Batch,
    config: TrainConfig,
    record: Record,
    on_status: OnStatus | None = None,
) -> Record:
    """Train for config.epochs and fill `record`; the model is left as trained (not snapped).

    Logged at each step: loss, lr, value (epsilon or capture radius; ASkew only). At each epoch: epoch_loss (mean over
    its steps), diagnosis, seconds since the start; where scored: accuracy (%) and test_loss of the snapped net, its
    BatchNorm re-estimated on the training set. extra["histograms"]: weights in level units at the chosen epochs.
    One device sync an epoch, apart from the optimizer's own check of gradients.
    """
    run = _Run(model, optimizer, train, test, config, record, on_status)
    generator = torch.Generator().manual_seed(config.seed)
    run.histogram(0)
    for epoch in range(1, config.epochs + 1):
        start = time.perf_counter()
        losses = run.epoch(epoch, scheduler, generator)
        mean_loss = run.log_losses(epoch, losses)
        run.train_seconds += time.perf_counter() - start
        run.look(epoch, mean_loss)
    run.summarise()
    return record


class _Run:
    """What the loop carries from epoch to epoch."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: MethodOptimizer,
        train: Batch,
        test: Batch,
        config: TrainConfig,
        record: Record,
        on_status: OnStatus | None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.train, self.test = train, test
        self.config, self.record = config, record
        self.on_status = on_status
        self.steps_per_epoch = config.steps_per_epoch(len(train[1]))
        self.total = config.total_steps(len(train[1]))
        self.started = time.perf_counter()
        self.train_seconds = 0.0
        self.diagnosis: Diagnosis | None = None
        self.accuracy: float | None = None
        self.test_loss: float | None = None
        self.mean_loss: float | None = None

    @property
    def constrained(self) -> bool:
        """True where the annealing binds; for a rival method its value means nothing."""
        return isinstance(self.optimizer, ASkew)

    def epoch(self, epoch: int, scheduler: LRScheduler, generator: torch.Generator) -> list[Tensor]:
        """One pass; the losses stay on the device."""
        self.model.train()
        losses = []
        first = (epoch - 1) * self.steps_per_epoch
        for step, (x, y) in enumerate(batches(self.train, self.config.batch_size, generator), start=first):
            self.optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(self.model(x).float(), y)
            loss.backward()
            lr = float(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
            self.record.log(step, lr=lr)
            if self.constrained:
                self.record.log(step, value=self.optimizer.value())
            self.tell(step + 1, epoch)
        return losses

    def log_losses(self, epoch: int, losses: Sequence[Tensor]) -> float:
        """The steps' losses, read from the device at once, and their mean."""
        values = torch.stack(list(losses)).tolist()
        first = (epoch - 1) * self.steps_per_epoch
        for step, value in enumerate(values, start=first):
            self.record.log(step, loss=value)
        mean = sum(values) / len(values)
        self.record.log(epoch, epoch_loss=mean)
        return mean

    def look(self, epoch: int, mean_loss: float) -> None:
        """Diagnosis, score and histograms after an epoch."""
        self.mean_loss = mean_loss
        self.diagnosis = diagnose(self.optimizer)
        self.record.log(epoch, diagnosis=self.diagnosis.to_dict())
        if epoch % self.config.score_every == 0 or epoch == self.config.epochs:
            self.accuracy, self.test_loss = score_snapped(
                self.model, self.optimizer, self.train, self.test, self.config.score_batch_size
            )
            self.record.log(epoch, accuracy=self.accuracy, test_loss=self.test_loss)
        self.histogram(epoch)
        self.record.log(epoch, seconds=time.perf_counter() - self.started)
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
        assert self.diagnosis is not None
        overall = self.diagnosis.overall
        self.record.summary |= {
            "accuracy": self.accuracy,
            "test_loss": self.test_loss,
            "train_loss": self.mean_loss,
            "bits": bits_per_weight(self.optimizer),
            "weights": overall.size,
            "distance_mean": overall.distance_mean,
            "distance_max": overall.distance_max,
            "seconds": time.perf_counter() - self.started,
            "train_seconds": self.train_seconds,
        }


def score_snapped(
    model: nn.Module, optimizer: MethodOptimizer, train: Batch, test: Batch, size: int
) -> tuple[float, float]:
    """(accuracy in percent, mean loss) on `test`, weights on their levels and BatchNorm re-estimated on `train`.

    The weights are put back; BatchNorm's running statistics stay the snapped net's (training does not use them).
    """
    with snapped(optimizer):
        reestimate_batchnorm(model, batches(train, size))
        return score(model, batches(test, size))


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
