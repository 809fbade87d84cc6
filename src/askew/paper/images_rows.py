"""The rows of a table on images: the records of each method at each kind of schedule, checked, and their scores."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from askew.paper.images_common import KINDS, Experiment, Kind, Settings, flat
from askew.report.runs import Stat, stat, summary_values, unique
from askew.train.config import decisive
from askew.train.record import Record

Place = tuple[str, Kind]  # of a row: its key, and the kind of schedule
Rows = dict[Place, list[Record]]


def rows_of(experiment: Experiment, records: Sequence[Record]) -> Rows:
    """The records of each method at each kind of schedule, seed by seed; those of one row must have one setting."""
    settings: dict[Place, Settings] = {
        (c.method, kind): experiment.settings(c, kind) for c in experiment.contenders for kind in KINDS
    }
    return gathered(experiment.name, "method", settings, records)


def gathered(table: str, key: str, settings: Mapping[Place, Settings], records: Sequence[Record]) -> Rows:
    """The records of each row, which is told by its config's `key` and kind, made with that row's settings."""
    rows: Rows = {place: [] for place in settings}
    for record in sorted(records, key=lambda r: r.seed):
        place = record.config[key], record.config["kind"]
        if place not in rows:
            raise ValueError(f"record {record.name} is of no row of {table}")
        rows[place].append(record)
    for place, own in rows.items():
        check(own, settings[place])
    return rows


def check(records: Sequence[Record], settings: Settings) -> None:
    """ValueError if the records of a row were not made with these settings, or differ in others.

    Their epochs may be others than the row's, and their batch where they have fewer images, as in a trial, but must be
    alike. A setting that is None, or False, and one that a record does not have, since it is older than the setting,
    are the same; a record older than `data_digest` may have been made with any images.
    """
    for record in records:
        known = {**(record.config["annealing"] or {}), **record.config["options"], **record.config}
        known["batch"] = known["batch_size"]
        free = ("epochs", "batch") if known["images"] else ("epochs",)
        other = [k for k, v in flat(settings).items() if k not in free and known.get(k) != (None if v is False else v)]
        if other:
            raise ValueError(
                f"record {record.name} has {other[0]} {known.get(other[0])!r}, its row now has "
                f"{flat(settings)[other[0]]!r}: run it again (remove the record first)"
            )
    apart = {"seed", "data_digest"}
    settings_seen = unique(
        {k: v for k, v in decisive(r.config).items() if k not in apart and v is not None} for r in records
    )
    images_seen = unique(digest for r in records if (digest := r.config.get("data_digest")))
    if max(len(settings_seen), len(images_seen)) > 1:
        raise ValueError(f"records of {records[0].method} have different settings; keep one kind and remove the others")


def score_of(rows: Rows, key: str, kind: Kind, metric: str = "accuracy") -> Stat | None:
    """Mean and spread over the seeds that have been run."""
    return stat(summary_values(rows[key, kind], metric))


def gap(rows: Rows, full: str, key: str, kind: Kind, metric: str = "accuracy") -> float | None:
    """Row `full` at the same kind of schedule minus this row, over the seeds that both have; None for `full` itself."""
    theirs, ours = (
        {r.seed: float(r.summary[metric]) for r in rows[row, kind] if r.summary.get(metric) is not None}
        for row in (full, key)
    )
    shared = theirs.keys() & ours.keys() if full != key else ()
    return statistics.fmean(theirs[seed] - ours[seed] for seed in shared) if shared else None
