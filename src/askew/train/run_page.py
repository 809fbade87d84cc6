"""What runs of `askew train`, or of `fit` on a net of one's own, have done: a table and a page with curves, weight
histograms and diagnosis.

Runs are averaged where they differ in nothing but the seed; rows name what else tells them apart.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from askew.report import page, tables
from askew.report.runs import unique
from askew.report.tables import Column, Grid
from askew.train.config import decisive
from askew.train.record import NotARecordError, Record, load, load_all

DEPTH = 2  # how far below a folder records are looked for: runs/train/NAME/
COLUMNS = (
    Column("train_loss", "training loss", 3),
    Column("bits", "bits per weight", 2, spread=False),
    Column("distance_mean", "mean distance", 3, spread=False),
    Column("train_seconds", "training (s)", 0, spread=False),
)
NOTE = (
    "Mean ± sample standard deviation over n seeds, all other settings alike, after the last epoch; weights on their "
    "levels (full precision: as they are), BatchNorm re-estimated on training images. Distance: how far the weights "
    "that the optimizer moves lie from their levels, in level units. Training: steps only, without the scoring."
)
TAUGHT = " With a teacher the training loss is that of labels and teacher together."
FILLED = {"accuracy", "train_loss", "weights", "distance_mean"}  # what a finished run has in its summary
APART = {"seed", "method"}  # settings that rows do not differ in
SHARED = ("dataset", "epochs", "images", "holdout", "model", "width", "stem", "skip", "batch_size", "init", "teacher")
SHARED += ("teacher_share", "resize", "crop")  # settings that are compared over all rows; others within a method's
FOLLOWS = {"train_set", "classes", "train_images", "test_images", "pad", "score_batch_size"}  # .. from others
FOLLOWS |= {"data_digest"}


def trained(folder: Path, apart: Collection[str] = ()) -> list[Record]:
    """The records of a run's folder, or of all runs in and below a folder, that `fit` has filled.

    apart: experiments whose runs are shown elsewhere.
    """
    found = load_all(folder) or list(_below(folder))
    return [r for r in found if r.summary.keys() >= FILLED and r.experiment.removesuffix("-search") not in apart]


def _below(folder: Path) -> Iterator[Record]:
    """The records in subfolders; JSON files of something else are passed over."""
    for depth in range(1, DEPTH + 1):
        for path in sorted(folder.glob("*/" * depth + "*.json")):
            try:
                yield load(path)
            except NotARecordError:
                continue


def deciding(record: Record) -> dict[str, Any]:
    """The settings that decide a result, but the seed; those of annealing and method by their own names."""
    out: dict[str, Any] = {}
    for name, value in decisive(record.config).items():
        inner = value if isinstance(value, dict) else {name: value}
        out |= {(f"{name} {k}" if k != name and k in record.config else k): v for k, v in inner.items()}
    return {k: v for k, v in out.items() if k not in APART and v is not None}


def kinds(records: Sequence[Record]) -> list[list[Record]]:
    """Runs that differ in the seed only, together; of two with the same seed the later one."""
    groups: dict[tuple[str, str], dict[int, Record]] = {}
    for record in sorted(records, key=lambda r: r.started):
        groups.setdefault((record.method, json.dumps(deciding(record), sort_keys=True)), {})[record.seed] = record
    firsts = [record.method for record in records]
    made = [[own[seed] for seed in sorted(own)] for own in groups.values()]
    return sorted(made, key=lambda own: firsts.index(own[0].method))


def named(records: Sequence[Record]) -> list[Record]:
    """The runs under names that say, beside the method, what tells its rows from the others (see style.look)."""
    groups = kinds(records)
    settings = [deciding(own[0]) for own in groups]
    out: list[Record] = []
    for own, here in zip(groups, settings, strict=True):
        rows = [other for group, other in zip(groups, settings, strict=True) if group[0].method == own[0].method]
        words = _difference(here, settings, rows)
        number = rows.index(here) + 1
        out += [replace(r, method=f"{r.method}|{number}|{words}") if words else r for r in own]
    return out


def _difference(here: dict[str, Any], settings: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> str:
    """What of a row's settings is not so in all rows (those of SHARED) or in all rows of its method (others)."""
    known = unique(name for other in settings for name in other)
    names = [*(n for n in SHARED if n in known), *(n for n in known if n not in SHARED)]
    differ = [n for n in names if len(unique(s.get(n) for s in (settings if n in SHARED else rows))) > 1]
    chosen = [n for n in differ if n not in FOLLOWS]
    if any(other != here and all(other.get(n) == here.get(n) for n in chosen) for other in rows):
        chosen = differ
    return ", ".join(_said(name, here.get(name)) for name in chosen)


def _said(name: str, value: Any) -> str:
    """A setting in words: 'width 8', '3 epochs', 'all images'."""
    words = name.replace("_", " ")
    if name == "images":
        return "all images" if value is None else f"{value:,} images"
    if name in ("epochs", "holdout"):
        return f"{value:,} {'held out' if name == 'holdout' else 'epoch' if value == 1 else 'epochs'}"
    if name == "skip":
        return f"skipping {' '.join(value)}" if value else "no layer skipped"
    if value is None or value == []:
        return f"no {words}"
    shown = " ".join(str(v) for v in value) if isinstance(value, list) else str(value)
    return shown if name == "dataset" else f"{words} {shown}"


def _scored(records: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    """(what the accuracy is of, runs): accuracies on test and on held-out images never stand in one column."""
    test = [r for r in records if r.config.get("holdout") is None]
    held = [r for r in records if r.config.get("holdout") is not None]
    return [(what, runs) for what, runs in (("test", test), ("held-out", held)) if runs]


def _columns(what: str) -> tuple[Column, ...]:
    return Column("accuracy", f"{what} accuracy (%)", 2), *COLUMNS


def _note(records: Sequence[Record]) -> str:
    return NOTE + (TAUGHT if any(r.config.get("teacher") for r in records) else "")


def overviews(records: Sequence[Record]) -> list[Grid]:
    """A row a method and its settings; one table for accuracies on test images, one for those on held-out ones."""
    made = [tables.overview(named(own), _columns(what)) for what, own in _scored(records)]
    return [*made[:-1], replace(made[-1], note=_note(records))]


def render(records: Sequence[Record]) -> str:
    """The page's HTML."""
    parts = [(what, named(own)) for what, own in _scored(records)]
    shown = [record for _, own in parts for record in own]
    sections = [
        section
        for what, own in parts
        for section in page.compared(own, _columns(what), _note(own), f", {what} images" if len(parts) > 1 else "")
    ]
    return page.render("Trained nets", lead(shown), sections, shown)


def lead(records: Sequence[Record]) -> str:
    """One sentence that is true of all the runs."""
    sets = ", ".join(unique(str(r.config.get("train_set") or r.experiment) for r in records))
    models = "".join(f"{name}, " for name in unique(r.config.get("model") for r in records) if name)
    weights, epochs = _range(r.summary["weights"] for r in records), _range(r.config["epochs"] for r in records)
    full = {r.config.get("method") == "full-precision" for r in records}
    how = {(False,): "on levels", (True,): "in full precision"}.get(tuple(full), "on levels or in full precision")
    counts = [(what, [r.config.get("test_images") for r in own]) for what, own in _scored(records)]
    scored = " and ".join(f"{_range(own)} {what} images" if all(own) else f"{what} images" for what, own in counts)
    return (
        f"{len(records)} {'run' if len(records) == 1 else 'runs'} on {sets}: {models}{weights} weights {how}, "
        f"{epochs} {'epoch' if epochs == '1' else 'epochs'}, scored on {scored}."
    )


def _range(values: Any) -> str:
    """'3', or '3 to 8' where the runs differ."""
    found = list(values)
    return " to ".join(unique(f"{v:,}" for v in (min(found), max(found))))
