"""From records to what a person sees: tables, figures, a page; the same for every experiment of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from matplotlib.figure import Figure
from rich.console import Console

from askew.atomic import write_text
from askew.report import page
from askew.report.figures import save
from askew.report.tables import Grid
from askew.train.record import Record


@dataclass(frozen=True)
class Presentation:
    """A title, a paragraph, tables, figures with captions, and what the numbers say in sentences."""

    title: str
    lead: str
    tables: list[Grid]
    figures: dict[str, tuple[Figure, str]]
    verdicts: list[str] = field(default_factory=list)


def show(presentation: Presentation, console: Console) -> None:
    """Tables and verdicts in the terminal; a table that is too wide for it comes in pieces."""
    for grid in presentation.tables:
        console.print()
        for piece in grid.pieces(console.width):
            console.print(piece.rich())
    console.print()
    for line in presentation.verdicts:
        console.print(line, highlight=False)


def write(presentation: Presentation, records: Sequence[Record], folder: Path) -> Path:
    """table.md, one PNG a figure, and a self-contained page, all from the records; returns the page's path."""
    sections = [page.Section(grid.title, "", (replace(grid, title=""),)) for grid in presentation.tables]
    if presentation.verdicts:
        sections.append(page.Section("What it says", " ".join(presentation.verdicts)))
    sections += [page.Section("", pictures=(page.Picture(*drawn),)) for drawn in presentation.figures.values()]
    text = page.render(presentation.title, presentation.lead, sections, records)
    index = folder / "index.html"
    write_text(index, text)
    write_text(folder / "table.md", markdown(presentation))
    for name, (figure, _) in presentation.figures.items():
        save(figure, folder / f"{name}.png")
    return index


def markdown(presentation: Presentation) -> str:
    """Title, paragraph, tables and sentences as a Markdown file."""
    blocks = [f"# {presentation.title}", presentation.lead]
    blocks += [f"## {grid.title}\n\n{grid.markdown()}" for grid in presentation.tables]
    blocks += presentation.verdicts
    return "\n\n".join(blocks) + "\n"
