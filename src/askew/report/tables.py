"""Tables from run records: made once as a Grid of text, shown in a terminal, in Markdown or on a page."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from askew.report.runs import Run, Stat, by_method, stat, summary_values
from askew.report.style import look

NONE = "–"
HELD_OUT = "held-out"  # the column of what a search gave


@dataclass(frozen=True)
class Grid:
    """A table as text: the first column names the rows, the others hold numbers; `keys` are the rows' methods.

    The last `totals` rows sum up the others. text_columns: so many of the first columns hold words, not numbers.
    short: the note in fewer words, for `brief`.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    note: str = ""
    keys: tuple[str, ...] = ()
    totals: int = 0
    text_columns: int = 1
    short: str = ""

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.heads)]
        if wrong:
            raise ValueError(f"table {self.title!r}: {len(self.heads)} columns, but a row is {wrong[0]}")

    def brief(self, whole: str) -> Grid:
        """For a README, with the short note: without rows of which nothing has run (every n is 0, no search either).

        whole: where the table stands with all its rows.
        """
        counts = [i for i, head in enumerate(self.heads) if head == "n"]
        held = [i for i, head in enumerate(self.heads) if head == HELD_OUT]
        unrun = [bool(counts) and all(row[i] == "0" for i in counts) for row in self.rows]
        idle = [none and all(row[i] == NONE for i in held) for row, none in zip(self.rows, unrun, strict=True)]
        keep = [i for i, left_out in enumerate(idle) if not left_out]
        left = f" Not run yet: {', '.join(row[0] for row, left_out in zip(self.rows, idle, strict=True) if left_out)}."
        note = f"{self.short or self.note}{left if any(idle) else ''}{f' More: {whole}.' if self.short else ''}"
        return replace(
            self,
            rows=tuple(self.rows[i] for i in keep),
            keys=tuple(self.keys[i] for i in keep if i < len(self.keys)),
            note=note,
        )

    def pieces(self, width: int) -> list[Grid]:
        """The table, or for a narrow terminal several: the words each time, as many number columns as fit.

        A column of words is asked for its longest word or 16, whichever is more (and never more than it has).
        """
        words = range(self.text_columns)
        spaces = [2 + min(self._longest(i), max(16, self._word(i))) for i in words]
        parts: list[list[int]] = [[]]
        whole = width + 1 - sum(spaces)  # two columns have two spaces between them, and there is one at the left
        left = whole
        for i in range(self.text_columns, len(self.heads)):
            need = 2 + self._number_width(i)
            if need > left and parts[-1]:
                parts.append([])
                left = whole
            parts[-1].append(i)
            left -= need
        made = [
            replace(self, heads=self._pick(self.heads, part), rows=tuple(self._pick(row, part) for row in self.rows))
            for part in parts
        ]
        last = len(made) - 1
        return [
            replace(grid, title=self.title if i == 0 else "", note=self.note if i == last else "")
            for i, grid in enumerate(made)
        ]

    def _pick(self, cells: tuple[str, ...], part: list[int]) -> tuple[str, ...]:
        return (*cells[: self.text_columns], *(cells[i] for i in part))

    def _longest(self, i: int) -> int:
        return max(len(text) for text in [self.heads[i], *(row[i] for row in self.rows)])

    def _word(self, i: int) -> int:
        return max(len(word) for text in [self.heads[i], *(row[i] for row in self.rows), "-"] for word in text.split())

    def _number_width(self, i: int) -> int:
        """Of a column of numbers, which do not wrap; its heading does, between words."""
        return max(len(text) for text in [*self.heads[i].split(), *(row[i] for row in self.rows), ""])

    def rich(self) -> Table:
        """For a terminal."""
        out = Table(
            title=Text(self.title, style="bold") if self.title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
            caption=Text(self.note, style="dim") if self.note else None,
            caption_justify="left",
        )
        for i, head in enumerate(self.heads):
            width = self._number_width(i)
            folded = "\n".join(textwrap.wrap(head, max(1, width)))  # headings wrap between words, numbers do not
            out.add_column(
                Text(folded),
                justify="left" if i < self.text_columns else "right",
                no_wrap=i >= self.text_columns,
                min_width=min(self._longest(i), self._word(i)) if i < self.text_columns else width,
                overflow="fold",
            )
        for i, row in enumerate(self.rows):
            if self.totals and i == len(self.rows) - self.totals:
                out.add_section()
            key = self.keys[i] if i < len(self.keys) else None
            again = self.text_columns > 1 and i > 0 and row[0] == self.rows[i - 1][0]  # what is said once will do
            first = Text("" if again else row[0], style=look(key).colour if key else "")
            out.add_row(first, *(Text(cell) for cell in row[1:]))
        return out

    def fitted(self, width: int) -> Group:
        """For a terminal of that width, in pieces if need be."""
        return Group(*(piece.rich() for piece in self.pieces(width)))

    def markdown(self) -> str:
        """For a README; the note follows as a paragraph."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

        rule = "|" + "|".join(["---"] * self.text_columns + ["---:"] * (len(self.heads) - self.text_columns)) + "|"
        text = "\n".join([line(self.heads), rule, *(line(row) for row in self.rows)]) + "\n"
        return f"{text}\n{self.note}\n" if self.note else text


@dataclass(frozen=True)
class Column:
    """A summary number as a column: its key in the record, its heading with unit, and its digits."""

    key: str
    head: str
    decimals: int = 2
    spread: bool = True


def cell(value: Stat | None, decimals: int, spread: bool = True) -> str:
    """'98.81 ± 0.30', without the spread if not asked for, or a dash."""
    if value is None:
        return NONE
    return value.text(decimals) if spread else f"{value.mean:.{decimals}f}"


def overview(runs: Sequence[Run], columns: Sequence[Column], title: str = "", note: str = "") -> Grid:
    """A row per method with the mean (± sample standard deviation) of each column, and n."""
    groups = by_method(runs)
    rows = []
    for method, own in groups.items():
        stats = [stat(summary_values(own, column.key)) for column in columns]
        cells = [cell(s, column.decimals, column.spread) for s, column in zip(stats, columns, strict=True)]
        rows.append((look(method).label, *cells, str(max((s.n for s in stats if s), default=0))))
    heads = ("method", *(column.head for column in columns), "n")
    return Grid(heads, tuple(rows), title, note, tuple(groups))


def comparison(
    runs: Sequence[Run],
    column: Column,
    paper: Mapping[str, str],
    title: str = "",
    note: str = "",
    labels: Mapping[str, str] | None = None,
) -> Grid:
    """The paper's value beside ours: method, paper, ours as mean ± sample standard deviation, n.

    paper maps a method to its value as printed. Methods that the paper has and we have not run are shown too;
    labels rename rows.
    """
    groups = by_method(runs)
    methods = [*groups, *(m for m in paper if m not in groups)]
    rows = []
    for method in methods:
        ours = stat(summary_values(groups.get(method, []), column.key))
        name = (labels or {}).get(method) or look(method).label
        rows.append((name, paper.get(method, NONE), cell(ours, column.decimals), str(ours.n) if ours else "0"))
    return Grid(
        ("method", f"paper: {column.head}", f"ours: {column.head}", "n"), tuple(rows), title, note, tuple(methods)
    )


def diagnosis(run: Run, at: int = -1) -> Grid:
    """The per-layer diagnosis of one look (the last by default), as logged in a record."""
    series = run.metrics["diagnosis"]
    look_at: dict[str, Any] = series["value"][at]
    symbol = "epsilon" if look_at["kind"] == "epsilon" else "capture radius"
    feasible = "feasible" if look_at["kind"] == "epsilon" else "on level"
    active = "active" if look_at["kind"] == "epsilon" else "captured"
    heads = ("layer", "weights", feasible, active, "mean distance", "largest", "flips", "KKT residual")
    rows = [*look_at["layers"], look_at["overall"]]
    stands = f": {symbol} {look_at['value']:.3g}"
    if run.config.get("annealing", ...) is None:  # a rival: there is no constraint to be on the right side of
        rows = [row | {"feasible": None, "active": None, "kkt": None} for row in rows]
        stands = ""
    return Grid(
        heads,
        tuple(_diagnosis_row(row) for row in rows),
        title=f"{look(run.method).label}, seed {run.seed}, epoch {series['step'][at]}{stands}",
        totals=1,
    )


def _diagnosis_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    layer = str(row["name"]).removesuffix(".weight")

    def show(value: float | None, pattern: str, factor: float = 1.0) -> str:
        return NONE if value is None else format(factor * value, pattern)

    return (
        row["name"] if layer.isdigit() else layer,  # a bare number would not look like a name
        f"{row['size']:,}",
        *(show(row[key], ".2f", 100) + ("%" if row[key] is not None else "") for key in ("feasible", "active")),
        show(row["distance_mean"], ".4f"),
        show(row["distance_max"], ".4f"),
        show(row["flips"], ".3f", 100) + ("%" if row["flips"] is not None else ""),
        show(row["kkt"], ".1e") if row["kkt"] else show(row["kkt"], ".0f"),
    )
