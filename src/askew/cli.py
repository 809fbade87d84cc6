"""The askew command: typed dataclasses in, records, tables and pages out."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from askew import demo
from askew.atomic import write_text
from askew.demo import DemoConfig
from askew.paper import logistic, logistic_report, two_moons, two_moons_report, vector_field, vector_field_report
from askew.paper.logistic import LogisticRegression
from askew.paper.present import Presentation, show, write
from askew.paper.two_moons import TwoMoons
from askew.paper.vector_field import VectorField
from askew.report import tables
from askew.report.live import Bars
from askew.report.readme import replace_block
from askew.train.images import ImageTraining, train_images
from askew.train.record import Record, load, load_all

PRESENT = {
    "vector-field": vector_field_report.present,
    "logistic": logistic_report.present,
    "two-moons": two_moons_report.present,
}


@dataclass(frozen=True)
class Report:
    """Make the tables, figures and page of an experiment anew, from its records."""

    folder: tyro.conf.Positional[Path]
    """Folder with the records, such as results/two-moons."""
    readme: Path | None = None
    """A Markdown file whose block `<!-- EXPERIMENT -->` gets the first table."""


Paper = (
    Annotated[VectorField, tyro.conf.subcommand("vector-field")]
    | Annotated[LogisticRegression, tyro.conf.subcommand("logistic")]
    | Annotated[TwoMoons, tyro.conf.subcommand("two-moons")]
)


@dataclass(frozen=True)
class PaperCommand:
    """Run an experiment of the paper; the paper's figures stand beside ours."""

    experiment: tyro.conf.OmitArgPrefixes[tyro.conf.OmitSubcommandPrefixes[Paper]]


Command = (
    Annotated[DemoConfig, tyro.conf.subcommand("demo")]
    | Annotated[ImageTraining, tyro.conf.subcommand("train")]
    | Annotated[PaperCommand, tyro.conf.subcommand("paper")]
    | Annotated[Report, tyro.conf.subcommand("report")]
)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: parse, run; a problem with the input ends with one line on stderr and status 2."""
    command = tyro.cli(tyro.conf.OmitSubcommandPrefixes[Command], prog="askew", description=__doc__, args=arguments)
    console = Console()
    try:
        if isinstance(command, DemoConfig):
            demo.run(command, console)
        elif isinstance(command, ImageTraining):
            train(command, console)
        elif isinstance(command, Report):
            report(command, console)
        else:
            paper(command.experiment, console)
    except (ValueError, OSError, ImportError) as error:
        Console(stderr=True).print(f"askew: {error}", style="red", highlight=False)
        sys.exit(2)


def train(config: ImageTraining, console: Console) -> None:
    """Train on images with a live bar; the record and checkpoints lie in the run's folder."""
    with Bars(console) as bars:
        bars.add(config.method)
        record, path = train_images(config, lambda status: bars.show(config.method, status))
        bars.finish(config.method, f"accuracy {record.summary['accuracy']:.2f}%")
    console.print(tables.diagnosis(record).rich())
    console.print(
        f"\n{record.config['train_set']}: {record.summary['accuracy']:.2f}% on the test images, weights on their "
        f"levels, BatchNorm re-estimated.\nRecord: {path}",
        soft_wrap=True,
        highlight=False,
    )


def paper(config: VectorField | LogisticRegression | TwoMoons, console: Console) -> None:
    """Run one experiment of the paper and show it."""
    start = time.perf_counter()
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("starting")

        def progress(what: str) -> None:
            bar.update(task, description=what)

        if isinstance(config, VectorField):
            records: list[Record] = [vector_field.run(config)]
        elif isinstance(config, LogisticRegression):
            records = logistic.run(config, progress)
        else:
            records = two_moons.run(config, progress)
        bar.update(task, description="drawing")
        records = [load(config.out / f"{record.name}.json") for record in records]  # what is shown is what was saved
        presentation = PRESENT[records[0].experiment](records)
        page = write(presentation, records, config.out)
    _show(presentation, page, console)
    console.print(f"{time.perf_counter() - start:.0f} seconds", highlight=False)


def report(config: Report, console: Console) -> None:
    """Tables, figures and page anew, from the records of a folder."""
    records = load_all(config.folder)
    if any(record.experiment == demo.EXPERIMENT for record in records):
        demo.present([r for r in records if r.experiment == demo.EXPERIMENT], config.folder, console)
        return
    known = next((r.experiment for r in records if r.experiment in PRESENT), None)
    if known is None:
        raise ValueError(f"no records of {', '.join(PRESENT)} in {config.folder}")
    presentation = PRESENT[known](records)
    _show(presentation, write(presentation, records, config.folder), console)
    if config.readme is not None:
        text = config.readme.read_text("utf-8")
        write_text(config.readme, replace_block(text, known, presentation.tables[0].markdown()))


def _show(presentation: Presentation, page: Path, console: Console) -> None:
    show(presentation, console)
    console.print(f"\nRecords: {page.parent}/\nPage:    {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
