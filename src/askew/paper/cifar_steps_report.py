"""Accuracy of the paper's form on CIFAR-10 while epsilon falls, from records."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper import cifar_w1
from askew.paper.images_rows import Rows
from askew.paper.present import Presentation
from askew.paper.steps_report import histogram_figure, loss_figure, steps_table
from askew.train.record import Record

LEAD = (
    "ASkew in the paper's form on CIFAR-10 at the paper's schedule: epsilon is 1 for half of the run and then falls by "
    "0.88 an epoch. The net is scored with its weights at their signs."
)


def present(records: Sequence[Record]) -> Presentation:
    """The steps, the losses with the marks, the histograms."""
    rows: Rows = {("askew", "paper"): sorted(records, key=lambda r: r.seed), ("askew-level-first", "best"): []}
    drawn = {"losses": loss_figure(rows, "paper"), "histograms": histogram_figure(rows)}
    table = steps_table(rows["askew", "paper"], cifar_w1.EXPERIMENT.steps)
    return Presentation("The paper's form while epsilon falls", LEAD, [table], drawn)
