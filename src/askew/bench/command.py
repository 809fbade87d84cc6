"""askew bench: measure, keep the records, show the tables; or show them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.markup import escape

from askew.atomic import write_text
from askew.bench import infer, infer_report, steps, steps_report, training, training_report
from askew.bench.infer import InferBench
from askew.bench.steps import StepBench
from askew.bench.training import TrainBench
from askew.paper.present import show, write
from askew.report.readme import replace_block
from askew.train.record import Record, load_all

PRESENT = {
    steps.EXPERIMENT: steps_report.present,
    training.EXPERIMENT: training_report.present,
    infer.EXPERIMENT: infer_report.present,
}
SHORT = {steps.EXPERIMENT: steps_report.summary, training.EXPERIMENT: training_report.summary}  # for a README


@dataclass(frozen=True)
class Show:
    """Make the tables and figure of a benchmark anew, from its records."""

    folder: tyro.conf.Positional[Path]
    """Folder with the records, such as results/bench-step."""
    readme: Path | None = None
    """A Markdown file whose block `<!-- BENCHMARK -->` gets the short table (all tables, for inference)."""


@dataclass(frozen=True)
class BenchCommand:
    """Measure what a training step costs, or how fast a shipped net is, against torch and the rivals."""

    what: tyro.conf.OmitArgPrefixes[
        tyro.conf.OmitSubcommandPrefixes[
            Annotated[StepBench, tyro.conf.subcommand("step")]
            | Annotated[TrainBench, tyro.conf.subcommand("train")]
            | Annotated[InferBench, tyro.conf.subcommand("infer")]
            | Annotated[Show, tyro.conf.subcommand("show")]
        ]
    ]


def readme_block(experiment: str, records: Sequence[Record]) -> str:
    """What a README shows of a benchmark: its short table, or all of them where there is none."""
    tables = [SHORT[experiment](records)] if experiment in SHORT else PRESENT[experiment](records).tables
    return "\n".join(table.markdown() for table in tables).strip()


def bench(command: BenchCommand, console: Console) -> None:
    """Run or load, then tables in the terminal and files beside the records."""
    what = command.what
    if not isinstance(what, Show):
        with console.status("starting") as status:

            def progress(text: str) -> None:
                status.update(escape(text))

            if isinstance(what, StepBench):
                steps.run(what, progress)
            elif isinstance(what, TrainBench):
                training.run(what, progress)
            else:
                infer.run(what, progress)
    folder = what.folder if isinstance(what, Show) else what.out
    records = load_all(folder)
    experiment = next((r.experiment for r in records if r.experiment in PRESENT), None)
    if experiment is None:
        raise ValueError(f"no records of {' or '.join(PRESENT)} in {folder}")
    records = [r for r in records if r.experiment == experiment]
    presentation = PRESENT[experiment](records)
    page = write(presentation, records, folder)
    if isinstance(what, Show) and what.readme is not None:
        made = readme_block(experiment, records)
        write_text(what.readme, replace_block(what.readme.read_text("utf-8"), experiment, made))
    show(presentation, console)
    console.print(f"Records: {page.parent}/", soft_wrap=True, highlight=False)
