"""Pairs of alpha and learning rate for the paper's form on CIFAR-10, from records."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper.cifar_grid import EXPERIMENT, PAIRS, key
from askew.paper.images_common import MISSING
from askew.paper.present import Presentation
from askew.report.runs import stat, summary_values
from askew.report.tables import Grid, cell
from askew.train.record import Record

LEAD = (
    "ASkew in the paper's form on CIFAR-10 at the paper's schedule, with the pairs of alpha and learning rate of the "
    "paper's appendix. The skew comes before Adam, which normalises most of alpha away."
)


def present(records: Sequence[Record]) -> Presentation:
    """The paper's value beside ours for each pair."""
    lines = []
    for (alpha, lr), value in PAIRS.items():
        own = stat(summary_values([r for r in records if r.config["key"] == key(alpha, lr)], "accuracy"))
        lines.append((f"{alpha:g} / {lr:g}", value, cell(own, 2) if own else MISSING, str(own.n) if own else "0"))
    epochs = sorted({r.config["epochs"] for r in records})
    grid = Grid(
        ("alpha / lr", "paper", "ours", "n"),
        tuple(lines),
        f"Test accuracy (%), {', '.join(map(str, epochs))} epochs",
        "After the last epoch, weights at their signs, BatchNorm re-estimated; mean ± sample standard deviation over n "
        "seeds. The paper prints its best epoch.",
        ("askew",) * len(lines),
    )
    return Presentation(EXPERIMENT.title, LEAD, [grid], {})
