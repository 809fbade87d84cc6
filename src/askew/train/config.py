"""Settings of one training run: a frozen dataclass that validates itself and goes into the record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from askew.core import Annealing

Schedule = Literal["constant", "cosine", "steps"]
# Settings that follow the machine: a record made on another one will do.
MACHINE = {"device", "bf16", "static", "compiled"}
WATCHED = {"histogram_epochs", "score_every", "log_every", "brief"}  # .. that change only what is written of a run
SHAPES = {"min_lr": "cosine", "cosine_end": "cosine", "milestones": "steps", "factor": "steps"}  # of these schedules


def decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's settings what decides its outcome: no machine, nothing watched, nothing that its schedule has not."""
    idle = {name for name, shape in SHAPES.items() if settings.get("schedule") != shape}
    return {name: value for name, value in settings.items() if name not in MACHINE | WATCHED | idle}


@dataclass(frozen=True)
class TrainConfig:
    """One run. Everything that decides its outcome beside the model, the data and the code."""

    method: str
    """Name of the training method, as in its record."""
    epochs: int = 30
    """Passes over the training set."""
    batch_size: int = 64
    """Images a step; an incomplete last batch is left out (the next epoch shuffles anew)."""
    lr: float = 0.01
    """Learning rate at the start."""
    schedule: Schedule = "cosine"
    """constant; cosine: from lr down to min_lr, step by step; steps: lr times factor at each of the milestones."""
    min_lr: float = 0.0
    """Learning rate at the end of a cosine."""
    cosine_end: float = 1.0
    """Part of the run after which a cosine has reached min_lr and stays there."""
    milestones: tuple[float, ...] = (0.2, 0.4)
    """Parts of the run at which the schedule "steps" lowers the learning rate (the paper: epochs 20 and 40 of 100)."""
    factor: float = 0.5
    """What the learning rate is multiplied by at a milestone."""
    annealing: Annealing | None = None
    """How the constraint tightens; None for methods without one."""
    alpha: float | None = None
    """MJ parameter of ASkew; None for methods without one, or for the schedule's default."""
    seed: int = 0
    """Decides the order of the batches (and, with the caller, the initial weights)."""
    histogram_epochs: tuple[int, ...] = ()
    """Epochs after which weight histograms are kept; 0 is before the first step."""
    score_every: int = 1
    """Epochs from one scoring of the snapped net to the next; the last epoch is always scored."""
    score_batch_size: int = 2048
    """Images a forward pass when BatchNorm is re-estimated and the net scored."""
    bf16: bool = False
    """Forward and backward pass in bfloat16 autocast."""
    static: bool = False
    """Take steps from buffers on the device, on a GPU compiled and replayed as one CUDA graph (stepper.py)."""
    compiled: bool = False
    """Compile the net and the method's mathematics where steps are not static."""
    batchnorm_images: int | None = None
    """Training images, of all classes alike, on which BatchNorm is re-estimated before a scoring (all if not given)."""
    log_every: int = 1
    """Steps from one logged loss and learning rate to the next; the mean loss of an epoch is over all its steps."""
    brief: bool = False
    """A small record: a diagnosis where the net is scored only, layer by layer at the end only, and histograms of the
    first layer and of all others together."""

    def __post_init__(self) -> None:
        if not self.method:
            raise ValueError("TrainConfig: method needs a name")
        for name in ("epochs", "batch_size", "score_every", "score_batch_size", "log_every"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"TrainConfig: {name} must be a whole number from 1 on, got {value!r}")
        if not math.isfinite(self.lr) or self.lr <= 0:
            raise ValueError(f"TrainConfig: lr must be positive and finite, got {self.lr!r}")
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"TrainConfig: schedule must be one of {get_args(Schedule)}, got {self.schedule!r}")
        if not 0 <= self.min_lr <= self.lr:
            raise ValueError(f"TrainConfig: min_lr must lie in [0, lr = {self.lr}], got {self.min_lr!r}")
        if not 0 < self.cosine_end <= 1:
            raise ValueError(f"TrainConfig: cosine_end is a part of the run, in (0, 1], got {self.cosine_end!r}")
        if list(self.milestones) != sorted(set(self.milestones)) or not all(0 < m < 1 for m in self.milestones):
            raise ValueError(
                f"TrainConfig: milestones are growing parts of the run, between 0 and 1, got {self.milestones!r}"
            )
        if not 0 < self.factor <= 1:
            raise ValueError(f"TrainConfig: factor must lie in (0, 1], got {self.factor!r}")
        if self.alpha is not None and not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"TrainConfig: alpha must be positive and finite, got {self.alpha!r}")
        beyond = [e for e in self.histogram_epochs if not 0 <= e <= self.epochs]
        if beyond:
            raise ValueError(f"TrainConfig: histogram_epochs must lie in 0..{self.epochs}, got {beyond}")

    def steps_per_epoch(self, images: int) -> int:
        """Whole batches in one pass (a training set smaller than one batch is one batch)."""
        return max(1, images // self.batch_size)

    def total_steps(self, images: int) -> int:
        """Optimizer steps of the run."""
        return self.epochs * self.steps_per_epoch(images)

    def rate(self, step: int, total: int) -> float:
        """Learning rate of a step, as a part of lr: with f = step / total the part of the run done,

        cosine  low + (1 - low) (1 + cos(pi min(1, f / cosine_end))) / 2,  low = min_lr / lr
        steps   factor ^ (number of milestones m <= f)
        """
        if self.schedule == "constant":
            return 1.0
        if self.schedule == "steps":
            return self.factor ** sum(step >= round(m * total, 6) for m in self.milestones)
        low = self.min_lr / self.lr
        return low + (1 - low) * (1 + math.cos(math.pi * min(1.0, step / (self.cosine_end * total)))) / 2

    def scheduler(self, optimizer: Optimizer, images: int) -> LambdaLR:
        """The learning-rate schedule, to be stepped after every optimizer step."""
        total = self.total_steps(images)
        return LambdaLR(optimizer, lambda step: self.rate(step, total))

    def describe(self) -> dict[str, Any]:
        """Plain values for a record."""
        return asdict(self) | {"annealing": self.annealing.describe() if self.annealing else None}
