"""The askew command: typed dataclasses in, records, tables and pages out."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from askew import demo
from askew.atomic import write_text
from askew.bench.command import BenchCommand, bench
from askew.demo import DemoConfig
from askew.paper import registry
from askew.paper.image_runs import ImageRuns
from askew.paper.present import Presentation, show, write
from askew.paper.registry import PRESENT, Paper
from askew.report import tables
from askew.report.live import Bars, GridBars
from askew.report.readme import replace_block
from askew.ship.predict import Predict, predict
from askew.ship.predict import show as predictions
from askew.train import run_page
from askew.train.distributed import launched, launched_first
from askew.train.grid import GridError, completed, record_file
from askew.train.images import ImageTraining, train_images
from askew.train.record import Record, load_all
from askew.train.shipping import Export, export_run


@dataclass(frozen=True)
class Report:
    """Make the tables, figures and page of an experiment, or of runs of askew train, from their records."""

    folder: tyro.conf.Positional[Path]
    """Folder with the records, such as results/two-moons or runs."""
    readme: Path | None = None
    """A Markdown file whose block `<!-- EXPERIMENT -->` gets the first table."""


@dataclass(frozen=True)
class PaperCommand:
    """Run an experiment of the paper; the paper's figures stand beside ours."""

    experiment: tyro.conf.OmitArgPrefixes[tyro.conf.OmitSubcommandPrefixes[Paper]]


Command = (
    Annotated[DemoConfig, tyro.conf.subcommand("demo")]
    | Annotated[ImageTraining, tyro.conf.subcommand("train")]
    | Annotated[PaperCommand, tyro.conf.subcommand("paper")]
    | Annotated[Report, tyro.conf.subcommand("report")]
    | Annotated[Export, tyro.conf.subcommand("export")]
    | Annotated[Predict, tyro.conf.subcommand("predict")]
    | Annotated[BenchCommand, tyro.conf.subcommand("bench")]
)


THREE_VALUED = ("affine", "static", "compiled")  # yes, no, or as the other settings ask for


def main(arguments: list[str] | None = None) -> None:
    """Entry point: parse, run; a problem with the input ends with one line on stderr and status 2."""
    given = spelled_out(sys.argv[1:] if arguments is None else arguments)
    command = tyro.cli(tyro.conf.OmitSubcommandPrefixes[Command], prog="askew", description=__doc__, args=given)
    console = Console()
    try:
        if isinstance(command, DemoConfig):
            demo.run(command, console)
        elif isinstance(command, ImageTraining):
            train(command, console)
        elif isinstance(command, Report):
            report(command, console)
        elif isinstance(command, Export):
            ship(command, console)
        elif isinstance(command, Predict):
            console.print(predictions(predict(command)), soft_wrap=True, markup=False, highlight=False)
        elif isinstance(command, BenchCommand):
            bench(command, console)
        else:
            paper(command.experiment, console)
    except (ValueError, OSError, ImportError, GridError) as error:
        complain(f"askew: {error}")
        sys.exit(2)
    except KeyboardInterrupt:
        complain("askew: stopped; a run with checkpoints goes on when the same command is started again")
        sys.exit(130)


def spelled_out(arguments: list[str]) -> list[str]:
    """--affine and --no-affine for --affine True and --affine False, as flags are that have no third value."""
    out: list[str] = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name = word.removeprefix("--no-") if word.startswith("--no-") else word.removeprefix("--")
        if not word.startswith("--") or name not in THREE_VALUED or following in ("True", "False", "None"):
            out.append(word)
        else:
            out += [f"--{name}", str(not word.startswith("--no-"))]
    return out


def complain(message: str) -> None:
    """One line on stderr, however long."""
    line = " ".join(message.split())
    Console(stderr=True).print(line, style="red", markup=False, highlight=False, soft_wrap=True)


def train(config: ImageTraining, console: Console) -> None:
    """Train on images with a live bar; the record and checkpoints lie in the run's folder.

    Under torchrun all processes come here and the first one speaks.
    """
    if not launched_first():
        train_images(config)
        return
    done = completed(config)
    if done is not None:
        if launched():
            train_images(config)  # the other processes wait for this one; nothing is left to train
        told = f"complete already, a run of {done.started[:16].replace('T', ' ')} UTC; remove its folder to train anew"
        console.print(f"{config.name}: {told}", soft_wrap=True, highlight=False, markup=False)
        conclude(config, done, record_file(config), console)
        return
    with Bars(console) as bars:
        bars.add(config.method)
        record, path = train_images(config, lambda status: bars.show(config.method, status))
        bars.finish(config.method, f"accuracy {record.summary['accuracy']:.2f}%")
    conclude(config, record, path, console)


def conclude(config: ImageTraining, record: Record, path: Path, console: Console) -> None:
    """What a run has come to."""
    console.print(tables.diagnosis(record).fitted(console.width))
    console.print(
        f"\n{record.config['train_set']}: {record.summary['accuracy']:.2f}% on {scored_on(config)}, "
        f"{'' if config.method == 'full-precision' else 'weights on their levels, '}BatchNorm re-estimated.\n"
        f"{started_from(record)}Record: {path}",
        soft_wrap=True,
        highlight=False,
    )


def started_from(record: Record) -> str:
    """What a run took over from the file of --init, and what not; nothing without one."""
    taken = record.extra.get("init")
    if taken is None:
        return ""
    words = {"missing": "not in the file", "unused": "not used", "shapes": "of another shape"}
    left = [f"{len(taken[key])} {what} ({', '.join(taken[key][:3])})" for key, what in words.items() if taken[key]]
    told = ", ".join([f"{taken['matched']} tensors matched", *left])
    return f"Started from {taken['file']}: {told}.\n"


def scored_on(config: ImageTraining) -> str:
    """The images of a run's accuracy."""
    return "the test images" if config.holdout is None else f"{config.holdout:,} held-out training images"


def ship(config: Export, console: Console) -> None:
    """Export a run and say how small it got."""
    done = export_run(config)
    told = [f"{done.path}: {done.bytes:,} bytes, {done.ratio:.1f} times smaller than float32"]
    if done.onnx_bytes is not None:
        told.append(f"{config.onnx}: {done.onnx_bytes:,} bytes")
    if done.torchao_bytes is not None:
        told.append(f"{config.torchao}: {done.torchao_bytes:,} bytes")
    if config.data is None:
        told.append("BatchNorm as the run left it; with --data it is re-estimated at the weights that ship.")
    console.print("\n".join(told), soft_wrap=True, markup=False, highlight=False)


def paper(config: Paper, console: Console) -> None:
    """Run one experiment of the paper and show it, with whatever its folder holds of earlier runs."""
    start = time.perf_counter()
    records: list[Record] = []
    if isinstance(config, ImageRuns):
        with GridBars(console) as bars:
            records = registry.run(config, on_status=bars)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("starting")
        if not isinstance(config, ImageRuns):
            records = registry.run(config, lambda what: bar.update(task, description=escape(what)))
        bar.update(task, description="drawing")
        presentation, page = _present(records, config.out)
    _show(presentation, page, console)
    console.print(f"{time.perf_counter() - start:.0f} seconds", highlight=False)


def report(config: Report, console: Console) -> None:
    """Tables, figures and page anew, from the records of a folder."""
    records = load_all(config.folder)
    if config.readme is not None and registry.experiment_of(records) is None:
        raise ValueError(f"readme: {config.folder} holds no records of askew paper, whose tables go into a README")
    if any(record.experiment == demo.EXPERIMENT for record in records):
        demo.present([r for r in records if r.experiment == demo.EXPERIMENT], config.folder, console)
        return
    if registry.experiment_of(records) is None:
        runs_of(config.folder, console)
        return
    presentation, page = _present(records, config.folder)
    _show(presentation, page, console)
    if config.readme is not None:
        text, name = config.readme.read_text("utf-8"), registry.experiment_of(records)
        whole = Path(os.path.relpath(config.folder / "table.md", config.readme.parent)).as_posix()
        brief = presentation.tables[0].brief(f"[{whole}]({whole})")
        write_text(config.readme, replace_block(text, str(name), brief.markdown()))


def runs_of(folder: Path, console: Console) -> None:
    """What runs of askew train, or of fit, in this folder have done, as a table and a page."""
    records = run_page.trained(folder, apart={*PRESENT, demo.EXPERIMENT})
    if not records:
        raise ValueError(_unknown(folder))
    for grid in run_page.overviews(records):
        console.print(grid.fitted(console.width))
    page = folder / "index.html"
    write_text(page, run_page.render(records))
    console.print(f"\nPage: {page.resolve().as_uri()}", soft_wrap=True, highlight=False)


def _present(records: list[Record], folder: Path) -> tuple[Presentation, Path]:
    """What the records say, and the page of it in their folder."""
    name = registry.experiment_of(records)
    if name is None:
        raise ValueError(_unknown(folder))
    presentation = PRESENT[name](records)
    return presentation, write(presentation, records, folder)


def _unknown(folder: Path) -> str:
    return (
        f"{folder} holds no records of an experiment, nor runs of askew train or fit that have ended; askew report "
        f"shows what these and askew demo left, and askew paper ({', '.join(PRESENT)})"
    )


def _show(presentation: Presentation, page: Path, console: Console) -> None:
    show(presentation, console)
    console.print(f"\nRecords: {page.parent}/\nPage:    {page.resolve().as_uri()}", soft_wrap=True, highlight=False)
