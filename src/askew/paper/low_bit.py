"""What the tables of two and four bits and of one-bit activations share: rows as data, and the runs they ask for.

A row is a method at some width of weights and activations; each may run at the paper's schedule, at its best one
(cosine, settings from a search that is part of the table), or at both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from askew.paper.common import Source
from askew.paper.image_runs import ImageTable, asked_for, checkpoint, complete, training
from askew.paper.images_common import KINDS, OURS, Experiment, Kind, Search, Settings, origin, search_key
from askew.report.style import look
from askew.train.grid_job import OnJob
from askew.train.image_config import ImageTraining
from askew.train.record import Record

Widths = Literal["w1a1", "w1a32", "w2a4", "w4a4", "w32a1", "w32a32"]
WIDTHS: dict[Widths, Settings] = {
    "w1a32": {"bits": 1},
    "w1a1": {"bits": 1, "activation_bits": 1},
    "w2a4": {"bits": 2, "activation_bits": 4},
    "w4a4": {"bits": 4, "activation_bits": 4},
    "w32a1": {"activation_bits": 1},
    "w32a32": {},
}
FULL = "full-precision-w32a32"


def named(widths: Widths) -> str:
    """W2/A4."""
    return widths.upper().replace("A", "/A")


@dataclass(frozen=True, eq=False)
class Row:
    """A method at a width, with its settings at the paper's schedule and its search (None: not run there).

    tag     tells rows of one method and width apart, such as alpha0.5
    value   what the paper prints; source: where the settings at the paper's schedule come from
    taught  the part of the loss that the net of full precision's row teaches, for the same seed (None: no teacher)
    """

    method: str
    widths: Widths
    paper: Settings | None = None
    search: Search | None = None
    value: str = ""
    source: Source = "paper"
    tag: str = ""
    taught: float | None = None

    @property
    def key(self) -> str:
        parts = (self.method, self.widths, self.tag, "taught" if self.taught else "")
        return "-".join(part for part in parts if part)

    @property
    def ours(self) -> bool:
        """True for level-first in any of its forms."""
        return self.method.startswith(OURS)

    @property
    def tags(self) -> list[str]:
        """What tells it from the method's other rows at this width."""
        return [*([self.tag.replace("alpha", "alpha ")] if self.tag else []), *(["taught"] if self.taught else [])]

    @property
    def words(self) -> str:
        return ", ".join([*([] if self.tag else [named(self.widths)]), *self.tags])

    @property
    def label(self) -> str:
        return ", ".join([f"{look(self.method).label} [{named(self.widths)}]", *self.tags])

    def origin(self, kind: Kind) -> Source:
        return origin(self.method, self.source, kind)


@dataclass(frozen=True)
class LowBit:
    """A table: its data and net, its rows, its schedules, values from the literature.

    kinds: where a schedule differs from that of the one-bit tables; schedule: the paper's, in words.
    settings_from: where the settings of the best schedule come from as long as no search has been recorded.
    """

    name: str
    title: str
    base: Settings
    rows: tuple[Row, ...]
    kinds: Mapping[Kind, Settings]
    schedule: str = ""
    literature: Mapping[str, str] = field(default_factory=dict)
    settings_from: str = "chosen without a recorded search"

    @property
    def experiment(self) -> Experiment:
        return Experiment(self.name, self.title, self.base, ())

    def shape(self, kind: Kind) -> Settings:
        """What all rows have at a kind of schedule; a method's options are those a row names."""
        return {**KINDS[kind], **self.kinds.get(kind, {})}

    def settings(self, row: Row, kind: Kind) -> dict[str, object] | None:
        """Of the runs of a row at a kind of schedule; None if there are none."""
        own = row.paper if kind == "paper" else row.search and row.search.winner
        taught = {"teacher_share": row.taught} if row.taught else {}
        return None if own is None else {**self.shape(kind), **WIDTHS[row.widths], **own, **taught}

    @property
    def runs_at(self) -> list[Kind]:
        """The kinds of schedule that some row is run at."""
        return [kind for kind in KINDS if any(self.settings(row, kind) is not None for row in self.rows)]

    @property
    def full(self) -> Row:
        """Full precision's row: what gaps are counted from, and the teacher."""
        return next(row for row in self.rows if row.key == FULL)


def plan(table: LowBit, config: ImageTable) -> list[ImageTraining]:
    """The runs asked for, seed by seed, so that a table that is filled in pieces has all rows early."""
    if config.search:
        return list(search_plan(table, config))
    kinds: list[Kind] = ["paper", "best"] if config.schedules == "both" else [config.schedules]
    return [
        job(table, config, row, kind, seed)
        for seed in range(config.seeds)
        for kind in kinds
        for row in with_teacher(table, asked_for(table.name, table.rows, config))
        if table.settings(row, kind) is not None
    ]


def with_teacher(table: LowBit, rows: Sequence[Row]) -> list[Row]:
    """The rows, and full precision's if one of them is taught by it."""
    needed = any(row.taught for row in rows) and table.full not in rows
    return [table.full, *rows] if needed else list(rows)


def job(table: LowBit, config: ImageTable, row: Row, kind: Kind, seed: int) -> ImageTraining:
    """The run of a row."""
    settings = table.settings(row, kind)
    assert settings is not None
    if row.taught:
        settings["teacher"] = checkpoint(job(table, config, table.full, kind, seed))
    about = {"kind": kind, "row": row.key, "label": row.label, "settings": row.origin(kind)}
    return training(table.experiment, config, row.method, f"{row.key}-{kind}", settings, seed, about)


def search_plan(table: LowBit, config: ImageTable) -> Iterator[ImageTraining]:
    """Runs of each tried setting, scored on held-out training images; seed by seed, so that all are tried early."""
    rows = asked_for(table.name, table.rows, config)
    tried = [(row, one) for row in rows if row.search and not row.taught for one in row.search.open]
    for seed in range(config.search_seeds):
        for row, one in tried:
            settings = {**table.shape("best"), **WIDTHS[row.widths], **one, "holdout": config.holdout}
            about = {"kind": "search", "row": row.key, "label": row.label}
            key = search_key(row.key, one)
            yield training(table.experiment, config, row.method, key, settings, seed, about, "-search")


def run(table: LowBit, config: ImageTable, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs of a table that are missing; the records of all that were asked for."""
    return complete(plan(table, config), config, on_status)
