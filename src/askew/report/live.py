"""A run's progress in the terminal: one bar a method, with loss, accuracy, epsilon or radius, feasible part, ETA."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from askew.report.style import look

QUIET_SECONDS = 30.0  # how long a run without a terminal may say nothing while an epoch goes on
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
        parts.append(f"{status.symbol[:3] if short else status.symbol} {status.value:#.2g}")
    if status.feasible is not None:
        parts.append(f"{'on' if short else 'feasible'} {100 * status.feasible:3.0f}%")
    return (" " if short else " · ").join(parts)


def _progress(console: Console, short: bool) -> Progress:
    return Progress(
        TextColumn("[{task.fields[colour]}]{task.description}"),
        BarColumn(
            bar_width=12 if short else 24,
            complete_style="#1a7fc4",
            finished_style="#0a9270",
            pulse_style="bar.back",
        ),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[numbers]}"),
        console=console,
        disable=not console.is_terminal,  # a file would get the bars once, at the end: Lines tells as it goes
    )


class Lines:
    """Progress where no bar can be drawn (a file, a pipe): a line when an epoch has ended, or after a long silence.

    What is said last of an epoch has its loss and score; it is known to be the last when the next epoch begins.
    """

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._begun = self._spoke = clock()
        self._last: dict[str, Status] = {}

    def show(self, label: str, status: Status, every_epoch: bool = True) -> None:
        """Where the run of that label stands."""
        before = self._last.get(label)
        self._last[label] = status
        if every_epoch and before is not None and before.epoch < status.epoch:
            self.say(label, describe(before))
        elif self._clock() - self._spoke >= QUIET_SECONDS:
            self.say(label, describe(status))

    def end(self, label: str, numbers: str) -> None:
        """The run of that label is over."""
        last = self._last.pop(label, None)
        self.say(label, numbers if last is None else f"{describe(last)}, done: {numbers}")

    def say(self, label: str, words: str) -> None:
        if self._console.is_terminal:
            return
        self._spoke = self._clock()
        told = f"{label}: {words} · {self._spoke - self._begun:.0f} s"
        self._console.print(told, markup=False, highlight=False, soft_wrap=True)


class Bars:
    """Live bars on a console, one a method; several runs of it (seeds), in a row or at the same time, share it.

    Without a terminal there are lines in their place.
    """

    def __init__(self, console: Console) -> None:
        self._lines = Lines(console)
        self._short = console.width < NARROW
        self._progress = _progress(console, self._short)
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}
        self._parts: dict[str, dict[str, float]] = {}
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
        self._parts[method] = {}

    def show(self, method: str, status: Status, run: str = "") -> None:
        """Move a bar to where its current run stands; `run` tells runs apart that go on at the same time."""
        task = self._tasks[method]
        self._parts[method][run] = status.step / status.total_steps
        done = self._done[method] + sum(self._parts[method].values())
        if method not in self._started:
            self._started.add(method)
            before = done - 1 / status.total_steps  # a resumed run: what was done earlier says nothing about the speed
            self._progress.reset(task, completed=before)  # pyright: ignore[reportArgumentType]
        self._progress.update(task, completed=done, numbers=describe(status, self._short))
        alone = self._progress.tasks[task].total == 1  # of many short runs each one's end will do
        self._lines.show(_run_label(method, run), status, every_epoch=alone)

    def finish(self, method: str, numbers: str) -> None:
        """One run is over, with these numbers to show; the next one continues the bar."""
        self._done[method] += 1
        for run in self._parts[method] or {"": 0.0}:
            self._lines.end(_run_label(method, run), numbers)
        self._parts[method].clear()
        self._progress.update(self._tasks[method], completed=self._done[method], numbers=escape(numbers))


def _run_label(method: str, run: str) -> str:
    return f"{look(method).label}{', ' if run else ''}{run}"


class GridBars:
    """Live bars of a grid: one for all its runs, and one for each run that is under way. Call it with (name, status).

    A run counts from the first word about it on, step 0 while it waits; what was done by then (a resumed or a finished
    run) says nothing about the speed. Without a terminal there is a line when a run ends, and one after a long silence.
    """

    def __init__(self, console: Console) -> None:
        self._lines = Lines(console)
        self._short = console.width < NARROW
        self._progress = _progress(console, self._short)
        self._all = self._progress.add_task("all runs", total=None, start=False, numbers="", colour="bold")
        self._parts: dict[str, float] = {}
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> GridBars:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, name: str, status: Status) -> None:
        """Where a run stands."""
        new = name not in self._parts
        ended = not new and self._parts[name] < 1 <= status.step / status.total_steps
        self._parts[name] = part = status.step / status.total_steps
        done = sum(self._parts.values())
        if new:
            self._progress.reset(self._all, total=len(self._parts), completed=done)  # pyright: ignore[reportArgumentType]
        over = sum(value >= 1 for value in self._parts.values())
        self._progress.update(self._all, completed=done, numbers=f"{over} of {len(self._parts)} runs done")
        if ended:
            self._lines.end(name, f"{over} of {len(self._parts)} runs done")
        elif 0 < part < 1:
            self._lines.show(name, status, every_epoch=False)
        if part >= 1 and name in self._tasks:
            self._progress.remove_task(self._tasks.pop(name))
        elif 0 < part < 1:
            self._show(name, part, status)

    def _show(self, name: str, part: float, status: Status) -> None:
        if self._short:
            status = replace(status, value=None, feasible=None)
        numbers = describe(status, self._short)
        if name not in self._tasks:
            label = escape(name.removeprefix(_shared(self._parts)))
            self._tasks[name] = self._progress.add_task(label, total=1, numbers="", colour="default")
            self._progress.reset(self._tasks[name], completed=part)  # pyright: ignore[reportArgumentType]
        self._progress.update(self._tasks[name], completed=part, numbers=numbers)


def _shared(names: Iterable[str]) -> str:
    """The words between dashes that all names (of two runs or more) begin with: they tell nothing apart."""
    known = [name.split("-") for name in names]
    same = takewhile(lambda words: len(set(words)) == 1, zip(*known, strict=False)) if len(known) > 1 else ()
    return "".join(f"{words[0]}-" for words in same)
