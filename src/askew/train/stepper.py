"""How training steps are taken: one by one (Eager), or from fixed buffers, compiled, as a CUDA graph (Static).

Both take the same steps: the same batches, learning rates, schedules and order of operations; what is compiled rounds
in its own way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from askew.core import Clock
from askew.data.loader import Batches, Plan
from askew.methods.fusible import compiled
from askew.optim import MethodOptimizer
from askew.train.source import ImageSource, Source
from askew.train.teacher import Objective

LossOf = Callable[[Tensor, Tensor], Tensor]
WARM = 3  # steps before the first capture: they compile, choose convolution kernels and make the optimizer's state
MOST = 20  # steps in one CUDA graph: between two graphs a GPU pauses for some microseconds


class Stepper(Protocol):
    """Takes the steps of an epoch; lr is the learning rate of the last one (of the first group)."""

    lr: float

    def steps(self, epoch: int, first: int) -> Iterator[Tensor]:
        """Take the epoch's steps from number `first` on; after each one its loss, still on the device."""
        ...


def autocast(device: torch.device, enabled: bool, cache: bool = True) -> torch.autocast:
    """bfloat16 where it is safe, float32 elsewhere; the weights themselves stay as they are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=cache)


@contextmanager
def fastest_convolutions() -> Iterator[None]:
    """Inside, cuDNN tries its kernels at the first sight of a shape and keeps the fastest; shapes stay, in a graph."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def loss_of(model: nn.Module, objective: Objective) -> LossOf:
    """The loss of a batch (x, y) as steps take it."""

    def of(x: Tensor, y: Tensor) -> Tensor:
        return objective(model(x), x, y)

    return of


class Eager:
    """One step after another, on any device, model and source of batches; model and method compiled if asked."""

    def __init__(
        self,
        loss_of: LossOf,
        optimizer: MethodOptimizer,
        scheduler: LRScheduler,
        train: Source,
        bf16: bool,
        compile: bool = False,
    ) -> None:
        self.loss_of = torch.compile(loss_of, dynamic=False) if compile else loss_of
        self.optimizer, self.scheduler = optimizer, scheduler
        self.train, self.bf16, self.compile = train, bf16, compile
        self.lr = 0.0

    def steps(self, epoch: int, first: int) -> Iterator[Tensor]:
        for x, y in self.train.epoch(epoch, first):
            with ExitStack() as inside:
                if self.compile:
                    inside.enter_context(compiled())
                    inside.enter_context(fastest_convolutions())
                loss = self._step(x, y)
            yield loss

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(x.device, self.bf16):
            loss = self.loss_of(x, y)
        loss.backward()
        self.lr = float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        self.scheduler.step()
        return loss.detach()


class Static:
    """A step that reads everything from buffers on the device, so that one CUDA graph holds some of them, whole.

    At the start of an epoch its plan (order, shifts, flips) and a table of numbers (one row a step: learning rate of
    each group, dials of the optimizer) go to the device; a step reads the place that its own counter points to. What
    the host decides (optimizer.phase) holds for a graph's life: when it changes, steps are taken op by op and the
    next ones are captured anew. The mathematics of the method is compiled, too (methods/fusible.py); the steps op by op
    before a capture make its kernels. On a CPU, and with capture=False, every step is taken op by op, as written.

    A graph holds the steps of a stretch: a divisor of the epoch's steps and of pause, the steps after which the caller
    wants to see the weights (an epoch's end if not given). Within a stretch they may be some steps ahead.

    Gradients are not checked step by step; a loss that is not finite ends the run at the end of its epoch.
    """

    def __init__(
        self,
        loss_of: LossOf,
        optimizer: MethodOptimizer,
        scheduler: LRScheduler,
        train: Source,
        bf16: bool,
        pause: int | None = None,
        capture: bool = True,
    ) -> None:
        if not isinstance(train, ImageSource) or train.train.world > 1:
            raise ValueError("a static step needs images that lie on one device: CIFAR-10 or TinyImageNet, one process")
        if not isinstance(scheduler, LambdaLR):
            raise ValueError(f"a static step needs a LambdaLR schedule, got {type(scheduler).__name__}")
        self.optimizer, self.scheduler = optimizer, scheduler
        self.batches, self.bf16 = train.train, bf16
        n = len(self.batches)
        self.stretch = _divisor(math.gcd(n, pause) if pause and pause < n else n)
        self.device = train.data.device
        self.capture = capture and self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if self.capture else None
        self.lr = 0.0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.graph_phase: Hashable = None
        self.filled: list[tuple[Tensor, Tensor | None]] = []  # weights with the gradients that the graph's replays fill
        self.warm = WARM
        self.batch_at = self._compiled(_batch_at(self.batches))
        self.loss_of = self._compiled(loss_of)
        optimizer.nonfinite = "ignore"
        self._buffers()

    def _compiled(self, function: Callable[..., object]) -> Callable:
        return torch.compile(function, dynamic=False) if self.capture else function

    def _buffers(self) -> None:
        n, size = len(self.batches), self.batches.batch
        whole = self.batches.plan(0)
        self.plan = Plan(*(torch.empty_like(part) for part in whole))
        self.places = torch.arange(size, device=self.device)
        self.index = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.losses = torch.zeros(n, device=self.device)
        self.table: Tensor | None = None

    def _knobs(self) -> list[Tensor]:
        """The scalars a row of the table sets: learning rates, then the optimizer's dials."""
        return [group["lr"] for group in self.optimizer.param_groups] + self.optimizer.dials()

    def _row(self, step: int) -> list[float]:
        pairs = zip(self.scheduler.base_lrs, self.scheduler.lr_lambdas, strict=True)
        clock = Clock(step, self.optimizer.total_steps)
        return [float(base) * rate(step) for base, rate in pairs] + self.optimizer.dial_settings(clock)

    def _load(self, epoch: int) -> None:
        """Send the epoch's plan and table to the device, into the buffers the graph reads."""
        for buffer, part in zip(self.plan, self.batches.plan(epoch), strict=True):
            buffer.copy_(part)
        n = len(self.losses)
        rows = torch.tensor([self._row(epoch * n + i) for i in range(n)], dtype=torch.float64)
        if self.table is None:
            self.table = torch.empty_like(rows, device=self.device)
        self.table.copy_(rows)
        self.rates: list[list[float]] = rows[:, : len(self.optimizer.param_groups)].tolist()
        for group, lr in zip(self.optimizer.param_groups, self.rates[0], strict=True):
            if self.capture and not (isinstance(group["lr"], Tensor) and group["lr"].device == self.index.device):
                group["lr"] = torch.tensor(lr, dtype=torch.float32, device=self.device)

    def steps(self, epoch: int, first: int) -> Iterator[Tensor]:
        n = len(self.losses)
        self._load(epoch)
        self.index.fill_(first)
        ahead = 0  # steps taken by a replay and not told yet
        for i in range(first, n):
            self.lr = self.rates[i][0]
            if not ahead and self.graph is not None and self._stretch_at(epoch * n + i) == self.graph_phase:
                self.graph.replay()
                self._show_gradients()
                ahead = self.stretch
            if ahead:
                self.optimizer.advance(1)
                ahead -= 1
            elif self.capture:
                self._beside(epoch * n + i)
            else:
                self._set_rates(i)
                self._step()
            self.scheduler.last_epoch += 1
            yield self.losses[i]

    def _set_rates(self, i: int) -> None:
        for group, lr in zip(self.optimizer.param_groups, self.rates[i], strict=True):
            group["lr"] = lr

    def _stretch_at(self, step: int) -> Hashable:
        """What the host decides in the stretch that starts with this step; None: it starts none, or decides twice."""
        total = self.optimizer.total_steps
        if step % self.stretch or (total is not None and step + self.stretch > total):
            return None
        phases = {self.optimizer.phase(Clock(step + k, total)) for k in range(self.stretch)}
        return phases.pop() if len(phases) == 1 else None

    def _beside(self, step: int) -> None:
        """One step op by op on the stream of captures; then the capture of the stretch that follows, if it is alike."""
        assert self.stream is not None
        self.graph = None
        main = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(main)
        with torch.cuda.stream(self.stream), compiled(), fastest_convolutions():
            self._step()
        main.wait_stream(self.stream)
        self.warm -= 1
        phase = self.optimizer.phase(Clock(step, self.optimizer.total_steps))
        if self.warm <= 0 and self._stretch_at(step + 1) == phase:
            self.graph, self.graph_phase = self._captured(), phase

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The steps of a stretch as a graph; gradients stay those of the step before until it is replayed."""
        torch.cuda.synchronize(self.device)
        weights = [p for group in self.optimizer.param_groups for p in group["params"]]
        before = [p.grad for p in weights]
        graph = torch.cuda.CUDAGraph()
        captured = torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local")
        with captured, compiled(), fastest_convolutions():
            for _ in range(self.stretch):
                self._step()
        self.filled = [(p, p.grad) for p in weights]
        for p, gradient in zip(weights, before, strict=True):
            p.grad = gradient
        return graph

    def _show_gradients(self) -> None:
        """After a graph's first replay: the gradients are those it has filled."""
        for p, gradient in self.filled:
            p.grad = gradient
        self.filled = []

    def _step(self) -> None:
        """The whole step, from buffers and counter to new weights; nothing here waits for the device."""
        assert self.table is not None
        if self.capture:
            row = self.table.index_select(0, self.index)[0]
            torch._foreach_copy_(self._knobs(), list(row.unbind()))  # pyright: ignore[reportPrivateImportUsage]
        x, y = self.batch_at(self.index, self.places, self.plan)
        self.optimizer.zero_grad(set_to_none=True)
        with autocast(self.device, self.bf16, cache=False):
            loss = self.loss_of(x, y)
        loss.backward()
        self.optimizer.step()
        self.losses.index_copy_(0, self.index, loss.detach().reshape(1))
        self.index += 1


def _divisor(n: int) -> int:
    """The largest divisor of n that is not above MOST."""
    return max(k for k in range(1, min(n, MOST) + 1) if n % k == 0)


def _batch_at(batches: Batches) -> Callable[[Tensor, Tensor, Plan], tuple[Tensor, Tensor]]:
    """The batch of a step, cut from an epoch's plan and made in one go: the compiler leaves few kernels of it."""

    def batch_at(step: Tensor, places: Tensor, plan: Plan) -> tuple[Tensor, Tensor]:
        own = step * batches.batch + places
        return batches.make(Plan(*(part.index_select(0, own) for part in plan)))

    return batch_at
