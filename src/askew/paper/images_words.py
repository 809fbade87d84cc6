"""What a table on images says in words: the lead, the note under the table, the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from askew.paper.images_common import OURS, Experiment, Kind
from askew.paper.images_rows import Rows, gap, score_of
from askew.report.runs import unique
from askew.report.style import look
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


def lead(experiment: Experiment, rows: Rows) -> str:
    """What is compared, in a paragraph."""
    done = sum(map(len, rows.values()))
    nets = unique(NAMES[r.config["model"]] + (f", {s} stem" if (s := r.config.get("stem")) else "") for r in _all(rows))
    left = unique(layer for r in _all(rows) for layer in r.config["skip"])
    return (
        f"The same net ({', '.join(nets) or 'not run yet'}; no biases, BatchNorm without affine) in full precision and "
        f"with weights of -1 and +1, trained by {len(experiment.contenders) - 1} methods with Adam, for each seed from "
        f"the same initial weights{'; in full precision stays ' + ', '.join(left) if left else ''}. {done} runs so far."
    )


def note(experiment: Experiment, rows: Rows, searched: Sequence[Record]) -> str:
    """What the numbers mean and how the best settings were found."""
    some = [r.config for own in rows.values() for r in own]
    data = unique((c["train_set"], c["train_images"], c["test_images"]) for c in some)
    shown = "; ".join(f"{NAMES.get(name, name)}, {n:,} training and {m:,} test images" for name, n, m in data)
    tried = "; ".join(f"{c.label} {len(c.search.tried)}" for c in experiment.contenders)
    return (
        f"{shown + '. ' if shown else ''}After the last epoch, weights on their levels (not full precision's) and "
        "BatchNorm re-estimated on training images; mean ± sample standard deviation over n seeds (the paper: best "
        "epoch). Gap: full precision at the same kind of schedule minus this. Paper's schedule: learning rate halved "
        "at 20% and 40% of the run. Best schedule: cosine, settings "
        f"{searched_how(experiment, searched)}; how many were tried: {tried}."
    )


def searched_how(experiment: Experiment, searched: Sequence[Record]) -> str:
    """How the settings of the best schedule were chosen, as far as records show it."""
    if not searched:
        return experiment.settings_from
    held = ", ".join(map(str, unique(r.config["holdout"] for r in searched)))
    methods = {r.config["method"] for r in searched}
    others = [c.label for c in experiment.contenders if c.method not in methods]
    rest = f" ({', '.join(others)}: {experiment.settings_from})" if others else ""
    return f"chosen by one run each on {held} held-out training images{rest}"


def verdicts(experiment: Experiment, rows: Rows) -> list[str]:
    """How ASkew's level-first form stands beside full precision and its rivals, whichever way it went."""
    return [
        *_verdict(experiment, rows, "paper", "the paper's schedule"),
        *_verdict(experiment, rows, "best", "its best schedule"),
    ]


def _verdict(experiment: Experiment, rows: Rows, kind: Kind, name: str) -> list[str]:
    ours, below = score_of(rows, OURS, kind), gap(rows, OURS, kind)
    if ours is None or below is None:
        return []
    place = f"{abs(below):.2f} points {'below' if below >= 0 else 'above'} full precision"
    text = f"At {name} level-first ASkew scores {ours.mean:.2f}%, {place}{_paper_gap(experiment)}."
    rivals = [c.method for c in experiment.contenders if c.method not in (OURS, FULL)]
    ahead = {m: ours.mean - s.mean for m in rivals if (s := score_of(rows, m, kind))}
    if not ahead:
        return [text]
    nearest = min(ahead, key=lambda m: ahead[m])
    who, by = look(nearest).label, ahead[nearest]
    verb = f"ahead of every other method, the nearest being {who}, by" if by > 0 else f"NOT ahead of {who}, by"
    return [f"{text} It is {verb} {abs(by):.2f} points ({len(ahead)} of {len(rivals)} others run)."]


def _paper_gap(experiment: Experiment) -> str:
    """The paper's own gap, for ASkew in its form."""
    values = {c.method: c.values.get("accuracy") for c in experiment.contenders}
    full, ours = values.get(FULL), values.get("askew")
    if not full or not ours:
        return ""
    return f" (the paper's gap: {float(full.split('±')[0]) - float(ours.split('±')[0]):.2f})"


def _all(rows: Rows) -> list[Record]:
    return [record for own in rows.values() for record in own]
