"""What a table on images says in words: the lead, the note under the table, the verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from askew.paper.best_epochs import best_of
from askew.paper.images_common import KINDS, OURS, Experiment, Kind
from askew.paper.images_rows import Rows, gap, score_of
from askew.report.runs import Stat, apart, so_far, unique
from askew.report.style import look
from askew.train.recipes import WIDTHS
from askew.train.record import Record

FULL = "full-precision"
NAMES = {
    "cifar10-train": "CIFAR-10",
    "cifar10-jpeg-train": "CIFAR-10 (JPEG copy)",
    "cifar10-png-train": "CIFAR-10 (PNG copy)",
    "tiny-imagenet-train": "TinyImageNet",
    "imagenet-train": "ImageNet",
    "vgg-small": "VGG-small",
    "resnet18": "ResNet-18",
}  # of data sets and nets, as records have them and as they are shown
SCHEDULES: dict[Kind, str] = {"paper": "the paper's schedule", "best": "its best schedule"}
GAP = "Gap: full precision at the same kind of schedule minus this, over the seeds that both have"


def lead(experiment: Experiment, rows: Rows) -> str:
    """What is compared, in a paragraph."""
    done = sum(map(len, rows.values()))
    nets = net_words([r.config for r in _all(rows)])
    left = unique(layer for r in _all(rows) for layer in r.config["skip"])
    return (
        f"The same net ({nets}; no biases, BatchNorm without affine) in full precision and "
        f"with weights of -1 and +1, trained by {len(experiment.contenders) - 1} methods with Adam, for each seed from "
        f"the same initial weights{'; in full precision stays ' + ', '.join(left) if left else ''}. {so_far(done)}."
    )


def note(rows: Rows, how: str) -> str:
    """What the numbers mean and how the settings of the best schedule were chosen."""
    some = [r.config for own in rows.values() for r in own]
    shown = data_words(some)
    return (
        f"{shown + '. ' if shown else ''}After the last epoch, weights on their levels (not full precision's) and "
        "BatchNorm re-estimated on training images; mean ± sample standard deviation over n seeds (the paper: best "
        f"epoch). {GAP}. Paper's schedule: learning rate halved "
        f"at 20% and 40% of the run. Best schedule: cosine, settings {how}."
    )


def made(rows: Rows) -> str:
    """Epochs and batch of a table, from the records; by kind of schedule where they differ."""
    at: dict[Kind, list[Record]] = {kind: [] for kind in KINDS}
    for (_, kind), own in rows.items():
        at[kind] += own
    found: dict[Kind, str] = {kind: length(own) for kind, own in at.items() if own}
    shapes = unique(found.values())
    if len(shapes) < 2:
        return "".join(f", {shape}" for shape in shapes)
    return "".join(f", {shape} ({SCHEDULES[kind]})" for kind, shape in found.items())


def length(records: Sequence[Record]) -> str:
    """Epochs and batch of these records: 40 epochs, batch 100 or 512."""
    epochs, batches = (
        " or ".join(map(str, sorted({r.config[name] for r in records}))) for name in ("epochs", "batch_size")
    )
    return f"{epochs} epochs, batch {batches}"


def data_words(configs: Sequence[Mapping[str, Any]]) -> str:
    """The data sets of runs by name, with their sizes."""
    data = unique((c["train_set"], c["train_images"], c["test_images"]) for c in configs)
    return "; ".join(f"{NAMES.get(name, name)}, {n:,} training and {m:,} test images" for name, n, m in data)


def net_words(configs: Sequence[Mapping[str, Any]]) -> str:
    """The nets of runs by name."""
    return "; ".join(unique(_net(c) for c in configs)) or "not run yet"


def _net(config: Mapping[str, Any]) -> str:
    """A run's net by name, with its first layer, if it has a choice, and its width, if it is not the usual one."""
    model, stem, width = config["model"], config.get("stem"), config.get("width")
    parts = [NAMES.get(model, model), *([f"{stem} stem"] if stem else [])]
    return ", ".join([*parts, *([f"width {width}"] if width not in (None, WIDTHS.get(model)) else [])])


def verdicts(experiment: Experiment, rows: Rows) -> list[str]:
    """How ASkew's level-first form stands beside full precision and its rivals, whichever way it went."""
    return [
        *_verdict(experiment, rows, "paper", SCHEDULES["paper"]),
        *_verdict(experiment, rows, "best", SCHEDULES["best"]),
    ]


def _verdict(experiment: Experiment, rows: Rows, kind: Kind, name: str) -> list[str]:
    methods = [c.method for c in experiment.contenders]
    forms = {m: s for m in methods if m.startswith(OURS) and (s := score_of(rows, m, kind))}
    if not forms:
        return []
    method = max(forms, key=lambda m: forms[m].mean)
    ours, below = forms[method], gap(rows, FULL, method, kind)
    if below is None:
        return []
    picked = f" (the higher of {len(forms)} forms of level-first)" if len(forms) > 1 else ""
    text = (
        f"At {name} {look(method).label}{picked} scores {ours.mean:.2f}%, {gap_words(below)}{_paper_gap(experiment)}."
    )
    rivals = [m for m in methods if m != FULL and not m.startswith(OURS)]
    scores = {m: s for m in rivals if (s := score_of(rows, m, kind))}
    if not scores:
        return [text]
    unsearched = [c for c in experiment.contenders if c.method in scores and c.source == "tuned"]
    by_us = f", {len(unsearched)} of them with settings of ours, not searched" if kind == "paper" and unsearched else ""
    text += f" It is {place_words(ours, _labelled(scores))}; {len(scores)} of {len(rivals)} others run{by_us}."
    heights = {m: s for m in rivals if (s := best_of(rows, m, kind))}
    height = best_of(rows, method, kind)
    return [f"{text} {best_words(height, _labelled(heights))}" if height and heights else text]


def _labelled(scores: Mapping[str, Stat]) -> dict[str, Stat]:
    return {look(method).label: own for method, own in scores.items()}


def gap_words(below: float) -> str:
    """How far from full precision."""
    if below >= 0:
        return f"{below:.2f} points below full precision"
    return f"{-below:.2f} points above full precision, which is then no measure of what few bits cost"


def place_words(ours: Stat, others: Mapping[str, Stat], who: str = "every other method") -> str:
    """Ahead of all others, or of whom not, and by how much."""
    nearest = max(others, key=lambda label: others[label].mean)
    ahead = ours.mean > others[nearest].mean
    verb = f"ahead of {who}, the nearest being {nearest}" if ahead else f"NOT ahead of {nearest}"
    return f"{verb}, by {apart(ours, others[nearest])}"


def best_words(ours: Stat, others: Mapping[str, Stat], who: str = "every other method") -> str:
    """The same with each run at its best epoch, as the paper prints its own."""
    return f"With each run at its best epoch it has {ours.mean:.2f}% and is {place_words(ours, others, who)}."


def _paper_gap(experiment: Experiment) -> str:
    """The paper's own gap, for ASkew in its form."""
    values = {c.method: c.values.get("accuracy") for c in experiment.contenders}
    full, ours = values.get(FULL), values.get("askew")
    if not full or not ours:
        return ""
    return f" (the paper's gap: {float(full.split('±')[0]) - float(ours.split('±')[0]):.2f})"


def _all(rows: Rows) -> list[Record]:
    return [record for own in rows.values() for record in own]
