"""What the tables on images share: methods with their settings and the paper's values, as data.

Each method is trained at two kinds of schedule: the paper's (learning rate halved at epochs 20 and 40 of 100) and its
own best (cosine; its settings are the best of a search that is part of the table).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from askew.paper.common import Source
from askew.report.style import look
from askew.train.recipes import USERS
from askew.train.record import plain

Kind = Literal["paper", "best"]
Settings = Mapping[str, Any]  # fields of ImageTraining
KINDS: dict[Kind, Settings] = {  # a method's options are those a table names, not those of `askew train`
    "paper": {"schedule": "steps", "options": {}},
    "best": {"schedule": "cosine", "options": {}},
}
COLD: Settings = {"min_lr": 0.0, "cosine_end": 1.0}  # a cosine down to nothing at the end of the run
EARLY: Settings = {"power": 0.5, "end": 0.85, **COLD}  # level-first: fast at first, all captured before the end
AGAIN: Settings = {"start": 0.2, "end": 0.7, **COLD}  # reversible: early, for nothing is settled by it
STEPS = (50, 65, 90)  # epochs of 100 at which the paper looks at its form of ASkew
OURS = "askew-level-first"
MISSING = "not run"
HEADS: dict[Kind, str] = {"paper": "ours, paper's schedule", "best": "ours, best schedule"}


@dataclass(frozen=True)
class Search:
    """Settings tried at the best schedule, on held-out training images, and the place of the chosen one.

    A setting may name the epochs of its trial (the search's own if not): what is best in short runs need not be in
    long ones. elsewhere: where the chosen one was found, if not by this search.
    """

    tried: tuple[Settings, ...]
    chosen: int = 0
    elsewhere: str = "not tried"

    @property
    def open(self) -> tuple[Settings, ...]:
        """What there is to try: nothing where one setting stands alone."""
        return self.tried if len(self.tried) > 1 else ()

    @property
    def winner(self) -> Settings:
        """The chosen setting; its runs have the epochs of the table."""
        return {k: v for k, v in self.tried[self.chosen].items() if k != "epochs"}


def each(rates: Sequence[Settings], **more: Any) -> tuple[Settings, ...]:
    """Each of these settings with more beside it."""
    return tuple({**rate, **more} for rate in rates)


def unnamed(method: str, schedule: str) -> Settings:
    """Settings a table need not name, which may differ from `askew train`'s: level-first's even pace, cosine, decay."""
    if method not in USERS["power"]:
        return {"weight_decay": 0.0}
    cosine = {"min_lr": 0.001, "cosine_end": 0.95} if schedule == "cosine" else {}
    return {"power": 1.0, "end": 0.97, "weight_decay": 0.0} | cosine


def origin(method: str, source: Source, kind: Kind) -> Source:
    """Where the settings of a method at a kind of schedule come from; source: those at the paper's."""
    if method.startswith(OURS):
        return "ours"
    return source if kind == "paper" else "tuned"


@dataclass(frozen=True)
class Contender:
    """A method of a table: its settings at the paper's schedule, its search, and what the paper prints for it.

    source says where the settings at the paper's schedule come from: the paper, tuned here, or ours.
    """

    method: str
    paper: Settings
    search: Search
    values: Mapping[str, str] = field(default_factory=dict)
    source: Source = "paper"

    @property
    def label(self) -> str:
        return look(self.method).label

    def settings(self, kind: Kind) -> dict[str, Any]:
        """Of a run at this kind of schedule."""
        return {**KINDS[kind], **(self.paper if kind == "paper" else self.search.winner)}

    def origin(self, kind: Kind) -> Source:
        return origin(self.method, self.source, kind)


@dataclass(frozen=True)
class Experiment:
    """A table: its name, its data and net (fields of ImageTraining), its methods; steps: the paper's, by epoch.

    settings_from: where the settings of the best schedule come from as long as no search has been recorded.
    kinds: what all methods have at a kind of schedule, such as its epochs, where that is not the usual.
    """

    name: str
    title: str
    base: Settings
    contenders: tuple[Contender, ...]
    steps: Mapping[int, str] = field(default_factory=dict)
    settings_from: str = "from single scouting runs"
    metrics: Mapping[str, str] = field(default_factory=lambda: {"accuracy": "test accuracy (%)"})
    kinds: Mapping[Kind, Settings] = field(default_factory=dict)

    def settings(self, contender: Contender, kind: Kind) -> dict[str, Any]:
        """Of the runs of a method at a kind of schedule."""
        return {**self.kinds.get(kind, {}), **contender.settings(kind)}


def search_key(method: str, tried: Settings) -> str:
    """Of the record of a setting that was tried."""
    return f"{method}-{slug(tried)}"


def slug(settings: Settings) -> str:
    """Settings as a part of a file name: lr0.03-alpha0.05."""
    return "-".join(f"{k}{v}" for k, v in flat(settings).items()) or "default"


def flat(settings: Settings) -> dict[str, Any]:
    """Settings with the method's options among them."""
    return plain({**{k: v for k, v in settings.items() if k != "options"}, **settings.get("options", {})})


def words(settings: Settings) -> str:
    """Settings in a table: lr 0.03, alpha 0.05."""
    return ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in flat(settings).items())
