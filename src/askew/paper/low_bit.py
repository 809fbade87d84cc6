"""What the tables of two and four bits and of one-bit activations share: rows as data, and the runs they ask for.

A row is a method at some width of weights and activations; each may run at the paper's schedule, at its best one
(cosine, settings from a search that is part of the table), or at both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from askew.paper.common import Source
from askew.paper.image_runs import ImageTable, asked_for, complete, training
from askew.paper.images_common import OURS, Experiment, Kind, Search, Settings, origin, search_key
from askew.report.style import look
from askew.train.grid_job import OnJob
from askew.train.image_config import ImageTraining
from askew.train.record import Record

Widths = Literal["w1a1", "w2a4", "w4a4", "w32a1", "w32a32"]
WIDTHS: dict[Widths, Settings] = {
    "w1a1": {"bits": 1, "activation_bits": 1},
    "w2a4": {"bits": 2, "activation_bits": 4},
    "w4a4": {"bits": 4, "activation_bits": 4},
    "w32a1": {"activation_bits": 1},
    "w32a32": {},
}


@dataclass(frozen=True)
class Row:
    """A method at a width, with its settings at the paper's schedule and its search (None: not run there).

    tag    tells rows of one method and width apart, such as alpha0.5
    value  what the paper prints; source: where the settings at the paper's schedule come from
    """

    method: str
    widths: Widths
    paper: Settings | None = None
    search: Search | None = None
    value: str = ""
    source: Source = "paper"
    tag: str = ""

    @property
    def key(self) -> str:
        return "-".join(part for part in (self.method, self.widths, self.tag) if part)

    @property
    def ours(self) -> bool:
        """True for level-first in any of its forms."""
        return self.method.startswith(OURS)

    @property
    def label(self) -> str:
        bits = self.widths.upper().replace("A", "/A")
        return f"{look(self.method).label} [{bits}]" + (f", {self.tag.replace('alpha', 'alpha ')}" if self.tag else "")

    def origin(self, kind: Kind) -> Source:
        return origin(self.method, self.source, kind)


@dataclass(frozen=True)
class LowBit:
    """A table: its data and net, its rows, its two schedules, values from the literature.

    settings_from: where the settings of the best schedule come from as long as no search has been recorded.
    """

    name: str
    title: str
    base: Settings
    rows: tuple[Row, ...]
    kinds: Mapping[Kind, Settings]
    schedule: str
    literature: Mapping[str, str] = field(default_factory=dict)
    settings_from: str = "chosen without a recorded search"

    @property
    def experiment(self) -> Experiment:
        return Experiment(self.name, self.title, self.base, ())

    def settings(self, row: Row, kind: Kind) -> dict[str, object] | None:
        """Of the runs of a row at a kind of schedule; None if there are none."""
        own = row.paper if kind == "paper" else row.search and row.search.winner
        return None if own is None else {**self.kinds[kind], **WIDTHS[row.widths], **own}


def plan(table: LowBit, config: ImageTable) -> list[ImageTraining]:
    """The runs asked for, seed by seed, so that a table that is filled in pieces has all rows early."""
    if config.search:
        return list(search_plan(table, config))
    kinds: list[Kind] = ["paper", "best"] if config.schedules == "both" else [config.schedules]
    return [
        training(table.experiment, config, row.method, f"{row.key}-{kind}", settings, seed, about)
        for seed in range(config.seeds)
        for kind in kinds
        for row in asked_for(table.name, table.rows, config)
        if (settings := table.settings(row, kind)) is not None
        for about in [{"kind": kind, "row": row.key, "label": row.label, "settings": row.origin(kind)}]
    ]


def search_plan(table: LowBit, config: ImageTable) -> Iterator[ImageTraining]:
    """One run for each tried setting, scored on held-out training images."""
    for row in asked_for(table.name, table.rows, config):
        for tried in row.search.tried if row.search else ():
            settings = {**table.kinds["best"], **WIDTHS[row.widths], **tried, "holdout": config.holdout}
            about = {"kind": "search", "row": row.key, "label": row.label}
            key = search_key(row.key, tried)
            yield training(table.experiment, config, row.method, key, settings, 0, about, "-search")


def run(table: LowBit, config: ImageTable, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs of a table that are missing; the records of all that were asked for."""
    return complete(plan(table, config), config, on_status)
