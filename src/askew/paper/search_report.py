"""The search behind the best schedule, as its records show it: the table of settings, and how they were chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from askew.paper.images_common import Search, Settings, search_key, words
from askew.report.runs import Stat, stat, summary_values, unique
from askew.report.tables import HELD_OUT, NONE, Grid, cell
from askew.train.record import Record


@dataclass(frozen=True)
class Candidate:
    """A row of a table: its settings at the paper's schedule, their origin, its search; key: of its search records.

    as_long: whether the table's runs are as long as the chosen setting's trial; longer trials then count as any other.
    """

    label: str
    method: str
    key: str
    paper: Settings | None
    origin: str
    search: Search | None
    as_long: bool = False

    def held_out(self, tried: Settings, searched: Sequence[Record]) -> Stat | None:
        """The held-out accuracy of a setting; None if it was not tried."""
        own = [r for r in searched if r.config["key"] == search_key(self.key, tried)]
        return stat(summary_values(own, "accuracy"))

    def scores(self, searched: Sequence[Record], like: Settings | None = None) -> list[float]:
        """Of all settings that were tried; like: of those alone whose trial had as many epochs as this one's."""
        tried = self.search.tried if self.search else ()
        alike = [one for one in tried if like is None or named_epochs(one) == named_epochs(like)]
        return [one.mean for one in (self.held_out(setting, searched) for setting in alike) if one]

    def count(self, searched: Sequence[Record]) -> str:
        """How many settings were tried: '3', or '3 of 5' while some of the search are still to be run."""
        done, whole = len(self.scores(searched)), len(self.search.tried) if self.search else 0
        return f"{done}" if done == whole else f"{done} of {whole}"

    def overruled(self, searched: Sequence[Record]) -> str:
        """Words for a setting in use that is not the best of those tried; nothing if it is, or if none was tried."""
        if self.search is None or not self.scores(searched):
            return ""
        chosen = self.search.tried[self.search.chosen]
        longest = max((one for one in self.search.tried if self.held_out(one, searched)), key=named_epochs)
        best = max(self.scores(searched, None if self.as_long else longest))
        if not self.as_long and named_epochs(longest) > named_epochs(chosen):
            return f"{self.label} (from the shorter trials; the best of the longer ones has {best:.2f})"
        used = self.held_out(chosen, searched)
        if used is None:
            return f"{self.label} (the one in use: {self.search.elsewhere})"
        return f"{self.label} ({used.mean:.2f} against {best:.2f})" if used.mean < best else ""


def named_epochs(setting: Settings) -> int:
    """Of its trial; 0 where it takes the search's own, which is shorter."""
    return setting.get("epochs", 0)


def chosen_how(candidates: Sequence[Candidate], searched: Sequence[Record], otherwise: str) -> str:
    """How the settings of the best schedule were chosen, as far as records show it; `otherwise`: where they do not."""
    if not searched:
        return otherwise
    others = [c.label for c in candidates if c.search and not c.scores(searched)]
    rest = f" ({', '.join(others)}: {otherwise})" if others else ""
    overruled = [text for c in candidates if (text := c.overruled(searched))]
    kept = f"; not the best found there: {', '.join(overruled)}" if overruled else ""
    counts = "; ".join(f"{c.label} {c.count(searched)}" for c in candidates if c.scores(searched))
    return f"{_trials(searched)}{rest}{kept}; settings tried: {counts}"


def chosen_briefly(candidates: Sequence[Candidate], searched: Sequence[Record], otherwise: str) -> str:
    """The same without what came of it for each method, but for how many it does not hold."""
    if not searched:
        return otherwise
    rows = [c for c in candidates if c.search]
    other = sum(1 for c in rows if c.overruled(searched) or not c.scores(searched))
    return f"{_trials(searched)}{f' (not so in {other} of {len(rows)} rows)' if other else ''}"


def _trials(searched: Sequence[Record]) -> str:
    return f"chosen by {_runs(searched)} of {_epochs(searched)} each on {_held(searched)} held-out training images"


def with_held_out(grid: Grid, candidates: Sequence[Candidate], searched: Sequence[Record]) -> Grid:
    """The table with what the setting in use had in the search, if there is one: its first rows are the candidates'."""
    if not searched:
        return grid
    scores = [cell(c.search and c.held_out(c.search.tried[c.search.chosen], searched), 2) for c in candidates]
    scores += [NONE] * (len(grid.rows) - len(scores))
    more = f" Held-out: the setting of the best schedule in the search, {_runs(searched)}."
    return replace(
        grid,
        heads=(*grid.heads, HELD_OUT),
        rows=tuple((*row, score) for row, score in zip(grid.rows, scores, strict=True)),
        note=f"{grid.note}{more}",
        short=f"{grid.short}{more}" if grid.short else "",
    )


def settings_table(candidates: Sequence[Candidate], searched: Sequence[Record]) -> Grid:
    """Every setting that is in use or was tried, and what the search found."""
    lines, methods, left = [], [], 0
    for c in candidates:
        before = len(lines)
        if c.paper is not None:
            lines.append((c.label, words(c.paper), f"paper's schedule ({c.origin})", NONE))
        for place, tried in enumerate(c.search.tried if c.search else ()):
            used = "best schedule" if c.search and place == c.search.chosen else ""
            held_out = c.held_out(tried, searched)
            if used or held_out:
                lines.append((c.label, words(tried), used, cell(held_out, 2)))
            left += not (used or held_out)
        methods += [c.method] * (len(lines) - before)
    found = (
        f"Held-out: accuracy (%) on {_held(searched)} training images left out of {_runs(searched)} of "
        f"{_epochs(searched)}."
        if searched
        else "No search was run."
    )
    found += f" Not shown: {left} settings of the search that have not run." if left else ""
    return Grid(
        ("method", "settings", "used at", HELD_OUT),
        tuple(lines),
        "Settings and the search",
        "In brackets: settings of the paper's text; tuned: set here for a rival, where the text has none, without a "
        f"search of its own at that schedule; ours. What is not named is the method's default. {found}",
        tuple(methods),
        text_columns=3,
    )


def _runs(searched: Sequence[Record]) -> str:
    """How many runs a setting had: 'one run', '2 runs', '1 to 3 runs'."""
    counts = Counter(r.config["key"] for r in searched).values()
    least, most = min(counts), max(counts)
    return "one run" if most == 1 else f"{most} runs" if least == most else f"{least} to {most} runs"


def _epochs(searched: Sequence[Record]) -> str:
    return " or ".join(map(str, unique(r.config["epochs"] for r in searched))) + " epochs"


def _held(searched: Sequence[Record]) -> str:
    return ", ".join(map(str, unique(r.config["holdout"] for r in searched)))
