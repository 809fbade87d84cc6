"""TensorBoard: the curves and histograms of a run's record as event files, written as the run goes.

Everything lies on one axis, the optimizer steps done; what belongs to an epoch stands at its last step. A run that is
resumed purges what lies beyond its checkpoint, so that nothing appears twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from askew.train.record import Record

STEP_TAGS = {"loss": "train/loss", "lr": "train/lr", "value": "train/{symbol}"}
EPOCH_TAGS = {
    "epoch_loss": "train/epoch_loss",
    "accuracy": "test/accuracy",
    "top5": "test/top5",
    "test_loss": "test/loss",
}
DIAGNOSIS_TAGS = {
    "feasible": "weights/feasible",
    "active": "weights/active",
    "distance_mean": "weights/distance_mean",
    "flips": "weights/flips",
    "kkt": "weights/kkt_residual",
}
Point = tuple[str, int, float]


class Board:
    """Writes what is new in a record to event files in `folder`.

    steps_per_epoch  turns epochs into steps
    symbol           what `value` is: eps or radius
    done             steps that the record holds already: a resumed run's events from there on are purged
    """

    def __init__(self, folder: Path, record: Record, steps_per_epoch: int, symbol: str, done: int) -> None:
        self.steps_per_epoch, self.symbol = steps_per_epoch, symbol
        self.written: dict[str, int] = {}
        begun = folder.is_dir() and any(folder.glob("events.*"))
        self.writer = _writer(folder, purge_step=done if begun else None)
        if begun and done:
            self.written = _lengths(record)

    def write(self, record: Record) -> None:
        """Add the record's new points and histograms; on disk when this returns."""
        for name, series in record.metrics.items():
            first = self.written.get(name, 0)
            new = zip(series["step"][first:], series["value"][first:], strict=True)
            for tag, step, value in self._points(name, new):
                self.writer.add_scalar(tag, value, step)
        histograms = record.extra.get("histograms", [])
        for found in histograms[self.written.get("histograms", 0) :]:
            for layer, counts in found["layers"].items():
                _add_histogram(self.writer, f"weights/{layer}", counts, found["edges"], self._last_step(found["epoch"]))
        self.written = _lengths(record)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()

    def _last_step(self, epoch: int) -> int:
        """Of an epoch counted from 1; 0 is before the first step."""
        return max(0, epoch * self.steps_per_epoch - 1)

    def _points(self, name: str, new: Iterator[tuple[int, Any]]) -> Iterator[Point]:
        """Scalars of one metric; values that are not known are left out."""
        for at, value in new:
            if value is None:
                continue
            if name in STEP_TAGS:
                yield STEP_TAGS[name].format(symbol=self.symbol), at, value
            elif name in EPOCH_TAGS:
                yield EPOCH_TAGS[name], self._last_step(at), value
            elif name == "diagnosis":
                overall = value["overall"]
                for field, tag in DIAGNOSIS_TAGS.items():
                    if overall.get(field) is not None:
                        yield tag, self._last_step(at), overall[field]


def _lengths(record: Record) -> dict[str, int]:
    lengths = {name: len(series["step"]) for name, series in record.metrics.items()}
    return lengths | {"histograms": len(record.extra.get("histograms", []))}


def _writer(folder: Path, purge_step: int | None) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("TensorBoard is not installed: pip install 'askew[tensorboard]'") from error
    return SummaryWriter(str(folder), purge_step=purge_step)


def _add_histogram(writer: Any, tag: str, counts: list[int], edges: list[float], step: int) -> None:
    """A histogram that is already counted; its moments are those of the bins' centres."""
    centres = [(low + high) / 2 for low, high in pairwise(edges)]
    writer.add_histogram_raw(
        tag,
        min=edges[0],
        max=edges[-1],
        num=sum(counts),
        sum=sum(n * c for n, c in zip(counts, centres, strict=True)),
        sum_squares=sum(n * c * c for n, c in zip(counts, centres, strict=True)),
        bucket_limits=edges[1:],
        bucket_counts=counts,
        global_step=step,
    )
