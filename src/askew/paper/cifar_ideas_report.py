"""What each idea for one bit on CIFAR-10 gave, from records."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper.cifar_ideas import EXPERIMENT, QUESTIONS, Idea
from askew.paper.images_common import MISSING
from askew.paper.present import Presentation
from askew.report.runs import stat, summary_values
from askew.report.tables import Grid, cell
from askew.train.record import Record

LEAD = (
    "One thing is changed at a time, from the first row of each table; otherwise as `askew train` does it. Everything "
    "is scored on held-out training images, so that nothing is chosen by the test images."
)


def present(records: Sequence[Record]) -> Presentation:
    """A table for each question, its first row the one that the others are compared with."""
    return Presentation(
        EXPERIMENT.title, LEAD, [table(title, group, records) for title, group in QUESTIONS.items()], {}
    )


def table(title: str, group: Sequence[Idea], records: Sequence[Record]) -> Grid:
    """Accuracy of each idea, its difference to the first, and the training loss it ends with."""
    own = {idea.key: [r for r in records if r.config["key"] == idea.key] for idea in group}
    scores = {key: stat(summary_values(found, "accuracy")) for key, found in own.items()}
    first = scores[group[0].key]
    lines = []
    for idea in group:
        score, loss = scores[idea.key], stat(summary_values(own[idea.key], "train_loss"))
        gain = f"{score.mean - first.mean:+.2f}" if score and first and idea is not group[0] else ""
        shown = (cell(score, 2), gain, f"{loss.mean:.3f}" if loss else "") if score else (MISSING, "", "")
        lines.append((idea.label, *shown, str(score.n) if score else "0"))
    epochs = sorted({r.config["epochs"] for r in records})
    return Grid(
        ("idea", "accuracy (%)", "change", "training loss", "n"),
        tuple(lines),
        f"{title}: {', '.join(map(str, epochs))} epochs",
        "Accuracy on held-out training images after the last epoch, weights on their levels, BatchNorm re-estimated; "
        "mean ± sample standard deviation over n seeds.",
        tuple(idea.method for idea in group),
    )
