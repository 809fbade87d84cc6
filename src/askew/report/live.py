"""A run's progress in the terminal: one bar a method, with loss, accuracy, epsilon or radius, feasible part, ETA."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from askew.report.style import look

NARROW = 110  # columns of a terminal below which the numbers are abbreviated


@dataclass(frozen=True)
class Status:
    """Where a run stands. None: not known yet, or no such thing for this method. symbol names `value`."""

    step: int
    total_steps: int
    epoch: int
    epochs: int
    loss: float | None = None
    accuracy: float | None = None
    symbol: str = ""
    value: float | None = None
    feasible: float | None = None


def describe(status: Status, short: bool = False) -> str:
    """The numbers beside a bar."""
    parts = [] if short else [f"epoch {status.epoch:>{len(str(status.epochs))}}/{status.epochs}"]
    if status.loss is not None:
        parts.append(f"loss {status.loss:.3f}")
    if status.accuracy is not None:
        parts.append(f"{'acc' if short else 'accuracy'} {status.accuracy:4.1f}%")
    if status.value is not None:
        parts.append(f"{status.symbol[:3] if short else status.symbol} {status.value:.2f}")
    if status.feasible is not None:
        parts.append(f"{'on' if short else 'feasible'} {100 * status.feasible:3.0f}%")
    return (" " if short else " · ").join(parts)


class Bars:
    """Live bars on a console, one a method; several runs in a row (seeds) share it."""

    def __init__(self, console: Console) -> None:
        self._short = console.width < NARROW
        self._progress = Progress(
            TextColumn("[{task.fields[colour]}]{task.description}"),
            BarColumn(
                bar_width=12 if self._short else 24,
                complete_style="#1a7fc4",
                finished_style="#0a9270",
                pulse_style="bar.back",
            ),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[numbers]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}
        self._started: set[str] = set()

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def add(self, method: str, runs: int = 1) -> None:
        """A bar for `runs` runs of one method; its clock waits for the first of them."""
        style = look(method)
        self._tasks[method] = self._progress.add_task(
            escape(style.label), total=runs, start=False, numbers="", colour=style.colour
        )
        self._done[method] = 0

    def show(self, method: str, status: Status) -> None:
        """Move a bar to where its current run stands."""
        task = self._tasks[method]
        if method not in self._started:
            self._started.add(method)
            self._progress.start_task(task)
        done = self._done[method] + status.step / status.total_steps
        self._progress.update(task, completed=done, numbers=describe(status, self._short))

    def finish(self, method: str, numbers: str) -> None:
        """One run is over, with these numbers to show; the next one continues the bar."""
        self._done[method] += 1
        self._progress.update(self._tasks[method], completed=self._done[method], numbers=escape(numbers))
