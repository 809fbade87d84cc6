"""What each idea for one bit on CIFAR-10 gave, from records."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper.cifar_ideas import EXPERIMENT, QUESTIONS, Idea
from askew.paper.images_common import MISSING
from askew.paper.present import Presentation
from askew.report.runs import Stat, stat, summary_values
from askew.report.tables import Grid, cell
from askew.train.record import Record

LEAD = (
    "One thing is changed at a time, from the first row of each table; otherwise as `askew train` does it, "
    "with an even pace of capture. Everything "
    "is scored on held-out training images, so that nothing is chosen by the test images."
)


def present(records: Sequence[Record]) -> Presentation:
    """A table for each question, its first row the one that the others are compared with."""
    return Presentation(
        EXPERIMENT.title, LEAD, [table(title, group, records) for title, group in QUESTIONS.items()], {}
    )


def table(title: str, group: Sequence[Idea], records: Sequence[Record]) -> Grid:
    """Accuracy of each idea, its difference to what it is compared with, its losses on both sets of images."""
    lines = []
    for idea in group:
        score, beside = _stat(records, idea.key, "accuracy"), idea.beside or group[0].key
        other = _stat(records, beside, "accuracy") if beside != idea.key else None
        gain = f"{score.mean - other.mean:+.2f}" if score and other else ""
        losses = [_stat(records, idea.key, name) for name in ("train_loss", "test_loss")]
        shown = [f"{loss.mean:.3f}" if loss else "" for loss in losses]
        lines.append((idea.label, cell(score, 2) if score else MISSING, gain, *shown, str(score.n if score else 0)))
    keys = {idea.key for idea in group}
    epochs = sorted({r.config["epochs"] for r in records if r.config["key"] in keys})
    return Grid(
        ("idea", "accuracy (%)", "change", "training loss", "held-out loss", "n"),
        tuple(lines),
        f"{title}: {', '.join(map(str, epochs))} epochs" if epochs else title,
        "Accuracy and loss on held-out training images after the last epoch, weights on their levels, BatchNorm "
        f"re-estimated; mean ± sample standard deviation over n seeds.{_chance(records)} Change: to the first row"
        f"{', with a teacher to the same without one' if any(idea.beside for idea in group) else ''}.",
        tuple(idea.method for idea in group),
    )


def _stat(records: Sequence[Record], key: str, name: str) -> Stat | None:
    return stat(summary_values([r for r in records if r.config["key"] == key], name))


def _chance(records: Sequence[Record]) -> str:
    """What the number of held-out images alone leaves open: sqrt(p (1 - p) / images), the widest of the rows."""
    spreads = [(p * (100 - p) / r.config["test_images"]) ** 0.5 for r in records if (p := r.summary.get("accuracy"))]
    return f" So few images leave {max(spreads):.1f} points to chance (standard deviation)." if spreads else ""
