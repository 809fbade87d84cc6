"""Ideas for one bit a weight on CIFAR-10 and what each gives: short runs, scored on held-out training images.

Not in the paper. VGG-small as in cifar-w1; each question changes one thing of its first row.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from askew.paper.image_runs import ImageRuns, checkpoint, complete, training
from askew.paper.images_common import AGAIN, COLD, EARLY, KINDS, Experiment, Settings
from askew.train.grid_job import OnJob
from askew.train.image_config import ImageTraining
from askew.train.record import Record

EXPERIMENT = Experiment("cifar-ideas", "Ideas for one bit a weight on CIFAR-10", {"dataset": "cifar10"}, ())
OURS, ROUNDED, STRAIGHT = "askew-level-first", "askew-level-first-rounded", "binaryconnect"
REVERSIBLE = "askew-level-first-reversible"
FLOAT = "full-precision"
SCALED: Settings = {"lr": 0.03, "scale": "abs-mean", "weight_decay": 0.03}
SLOW_DECAY: Settings = {**SCALED, "lr": 0.01, "weight_decay": 0.1}
BC: Settings = {"lr": 0.03}
LONGER: Settings = {"lr": 0.06, "options": {"anneal_end": 0.9}}
MIRROR: Settings = {"lr": 0.03, "options": {"beta": 1.0, "growth": 1.1}}
ROUND: Settings = {"lr": 0.03, "min_lr": 0.001, "cosine_end": 0.95}  # as level-first has it
ROUND_COLD: Settings = {**ROUND, **COLD}
FULL = "full-faster"
MEAN = 0.05
BOTH: Settings = {"average": MEAN, "affine": True}
SLOWER: Settings = {**EARLY, "lr": 0.015}
SAID = "square root of time, all captured after 85%, learning rate to 0"
BEST = "full-together"


@dataclass(frozen=True)
class Idea:
    """One row: what is changed, in words and as fields of ImageTraining."""

    key: str
    label: str
    settings: Settings = field(default_factory=dict)
    method: str = OURS
    teacher: str | None = None
    """The idea, by its key, whose net teaches this one's."""
    beside: str | None = None
    """The idea, by its key, that it is compared with (the first of its question if not given)."""
    longer: float = 1.0
    """Times as many epochs."""


def _layers(key: str, label: str, *names: str) -> Idea:
    """BinaryConnect with some layers left in full precision."""
    return Idea(f"real-{key}", f"{label} in full precision", {"lr": 0.03, "skip": names}, STRAIGHT)


def _taught(key: str, label: str, share: float, settings: Settings, method: str, beside: str) -> Idea:
    """A row with full precision at lr .03 as its teacher, compared with the same without one."""
    own, words = {**settings, "teacher_share": share}, f"{label}, {100 * share:g}% of the loss the teacher's"
    return Idea(f"taught-{key}-{share}", words, own, method, FULL, beside)


def _averaged(beside: str, label: str, settings: Settings, method: str) -> Idea:
    """A row whose net is snapped from the running mean, compared with the same without it."""
    return Idea(f"mean-{beside}", f"{label}, from the mean", {**settings, "average": MEAN}, method, beside=beside)


def _affine(beside: str, label: str, settings: Settings, method: str) -> Idea:
    """A row with affine BatchNorm, compared with the same without it."""
    return Idea(f"affine-{beside}", f"{label}, with", {**settings, "affine": True}, method, beside=beside)


def _long(key: str, label: str, settings: Settings, method: str = OURS) -> Idea:
    """A row of as many epochs as the tables have. Capture is by touch: more steps, sooner captured."""
    return Idea(f"long-{key}", label, settings, method, longer=2.5)


def _long_affine(key: str, label: str, settings: Settings, method: str, beside: str) -> Idea:
    """Such a row with affine BatchNorm, compared with the same without it."""
    return Idea(f"long-affine-{key}", label, {**settings, "affine": True}, method, beside=beside, longer=2.5)


def _long_taught(
    key: str, label: str, settings: Settings, method: str, beside: str, teacher: str = "long-full"
) -> Idea:
    """Such a row with a teacher, which has trained as long, compared with the same without one."""
    own = {**settings, "teacher_share": 0.9}
    return Idea(f"long-taught-{key}", label, own, method, teacher, beside, longer=2.5)


def _signs(key: str, label: str, more: Settings, method: str = STRAIGHT, teacher: str | None = None) -> Idea:
    """A row with one-bit activations; real weights have a smaller learning rate."""
    own = {"lr": 0.01 if method == FLOAT else 0.03, "activation_bits": 1, **more}
    return Idea(f"signs{key}", label, own | ({"teacher_share": 0.9} if teacher else {}), method, teacher)


def _together(beside: str, label: str, settings: Settings, method: str) -> Idea:
    """A row with all three, compared with the same without any."""
    own = {**settings, **BOTH, "teacher_share": 0.9}
    return Idea(f"together-{beside}", f"{label}, with", own, method, BEST, beside)


QUESTIONS: dict[str, tuple[Idea, ...]] = {
    "What there is to gain": (
        Idea("full", "full precision, lr .01", {"lr": 0.01}, FLOAT),
        Idea(FULL, "full precision, lr .03", {"lr": 0.03}, FLOAT),
        Idea("binaryconnect", "BinaryConnect", BC, STRAIGHT),
        Idea("binaryconnect-cold", "BinaryConnect once more, the same settings", {**BC, **COLD}, STRAIGHT),
        Idea("stochastic", "BinaryConnect, weights drawn at random", {"lr": 0.03}, "binaryconnect-stochastic"),
        Idea("mirror", "mirror descent, lr .03, beta from 1 on", MIRROR, "md-tanh"),
        Idea("parq", "PARQ, lr .06", {"lr": 0.06}, "parq"),
        Idea("parq-longer", "PARQ, lr .06, annealed until 90%", LONGER, "parq"),
    ),
    "Which layers cost it (BinaryConnect)": (
        Idea("binaryconnect", "all layers at one bit", BC, STRAIGHT),
        _layers("first", "first layer", "features.0.*"),
        _layers("middle", "second to fifth layer", *(f"features.{i}.*" for i in range(1, 5))),
        _layers("late", "sixth layer", "features.5.*"),
        _layers("last", "last layer", "head.*"),
    ),
    "When to capture": (
        Idea("level-first", "from 50% of the run on"),
        Idea("start-30", "from 30%", {"start": 0.3}),
        Idea("start-70", "from 70%", {"start": 0.7}),
        Idea("cool-first", "from 65%, learning rate at its end by then", {"start": 0.65, "cosine_end": 0.65}),
    ),
    "At what pace": (
        Idea("level-first", "radius, linear in time"),
        Idea("power-half", "radius, square root of time", {"power": 0.5}),
        Idea("power-two", "radius, square of time", {"power": 2.0}),
        Idea("quantile", "part of the weights, linear in time", {"by": "quantile"}),
        Idea("in-turn", "radius, linear in time, layers one after another (stagger .5)", {"stagger": 0.5}),
    ),
    "At what pace, over the epochs of the tables": (
        _long("even", "level-first, radius linear in time", {}),
        _long("half", "square root of time", {"power": 0.5}),
        _long("even-sooner", "linear, all captured after 85%, learning rate to 0", {"end": 0.85, **COLD}),
        _long("half-sooner", "square root of time, the same", EARLY),
        _long("third-sooner", "time to the power .35, the same", {**EARLY, "power": 0.35}),
        _long("half-slower", "square root of time, the same, lr .015", SLOWER),
        _long("third-slower", "time to the power .35, the same, lr .015", {**SLOWER, "power": 0.35}),
        _long("two", "square of time", {"power": 2.0}),
        _long("slower", "linear, lr .015", {"lr": 0.015}),
        _long("rounded", "computing with the nearest levels, lr .06 to 0, linear", {**ROUND_COLD, "lr": 0.06}, ROUNDED),
        _long("rounded-two", "the same, square of time", {**ROUND_COLD, "lr": 0.06, "power": 2.0}, ROUNDED),
        _long("rounded-03", "the same, linear, lr .03 to 0", ROUND_COLD, ROUNDED),
        _long("half-faster", "square root of time, all captured after 85%, lr .06 to 0", {**EARLY, "lr": 0.06}),
        _long("half-decay", "the same, lr .03, a scale (mean size) and weight decay .03", {**EARLY, **SCALED}),
        _long("half-decay-more", "the same, weight decay .1", {**EARLY, **SCALED, "weight_decay": 0.1}),
        _long("rounded-decay", "the same, computing with the nearest levels", {**EARLY, **SCALED}, ROUNDED),
        _long("reversible", "reversible, from 20% to 70%, lr .03 to 0", {"lr": 0.03, **AGAIN}, REVERSIBLE),
        _long("reversible-decay", "the same, a scale and weight decay .03", {**AGAIN, **SCALED}, REVERSIBLE),
        _long("reversible-slow", "the same, lr .01, weight decay .1", {**AGAIN, **SLOW_DECAY}, REVERSIBLE),
        _long("binaryconnect", "BinaryConnect", {**BC, **COLD}, STRAIGHT),
        _long("parq", "PARQ, lr .06, annealed until 90%", LONGER, "parq"),
        _long("full", "full precision, lr .03", {"lr": 0.03}, FLOAT),
    ),
    "The rivals' settings, over the epochs of the tables": (
        _long("full", "full precision, lr .03", {"lr": 0.03}, FLOAT),
        _long("binaryconnect", "BinaryConnect, lr .03", {**BC, **COLD}, STRAIGHT),
        _long("binaryconnect-slower", "BinaryConnect, lr .015", {**COLD, "lr": 0.015}, STRAIGHT),
        _long("binaryconnect-06", "BinaryConnect, lr .06", {**COLD, "lr": 0.06}, STRAIGHT),
        _long("binaryconnect-1", "BinaryConnect, lr .1", {**COLD, "lr": 0.1}, STRAIGHT),
        _long("binaryconnect-decay", "the same, lr .03, a scale and weight decay .03", {**COLD, **SCALED}, STRAIGHT),
        _long(
            "binaryconnect-decay-more",
            "the same, weight decay .1",
            {**COLD, **SCALED, "weight_decay": 0.1},
            STRAIGHT,
        ),
        _long("mirror", "mirror descent, lr .03, beta from 1 on", MIRROR, "md-tanh"),
        _long("mirror-slower", "the same, lr .015", {**MIRROR, "lr": 0.015}, "md-tanh"),
        _long("parq", "PARQ, lr .06, annealed until 90%", LONGER, "parq"),
        _long("parq-slower", "the same, lr .03", {**LONGER, "lr": 0.03}, "parq"),
        _long("parq-decay", "the same, weight decay .1", {**LONGER, "lr": 0.03, "weight_decay": 0.1}, "parq"),
        _long("full-decay", "full precision, lr .01, weight decay .1", {"lr": 0.01, "weight_decay": 0.1}, FLOAT),
        _long("full-decay-less", "full precision, lr .03, weight decay .01", {"lr": 0.03, "weight_decay": 0.01}, FLOAT),
    ),
    "With affine BatchNorm and a teacher (90% of the loss), over the epochs of the tables": (
        _long("full", "full precision, not affine, the teacher", {"lr": 0.03}, FLOAT),
        _long_taught("full", "full precision, not affine", {"lr": 0.03}, FLOAT, "long-full"),
        _long_taught("binaryconnect", "BinaryConnect", {**BC, **COLD, "affine": True}, STRAIGHT, "long-binaryconnect"),
        _long_taught(
            "binaryconnect-plain", "BinaryConnect, not affine", {**BC, **COLD}, STRAIGHT, "long-binaryconnect"
        ),
        _long_taught("half", f"level-first, {SAID}", {**EARLY, "affine": True}, OURS, "long-half-sooner"),
        _long_taught("slower", f"level-first, {SAID}, lr .015", {**SLOWER, "affine": True}, OURS, "long-half-slower"),
        _long_taught("slower-plain", f"level-first, {SAID}, lr .015, not affine", SLOWER, OURS, "long-half-slower"),
        _long_taught(
            "rounded",
            "level-first, computing with the nearest levels, linear, lr .03 to 0",
            {**ROUND_COLD, "affine": True},
            ROUNDED,
            "long-rounded-03",
        ),
        _long_taught("parq", "PARQ, lr .06, annealed until 90%", {**LONGER, "affine": True}, "parq", "long-parq"),
        _long_taught(
            "mean-rounded",
            "level-first, computing with the nearest levels, the same and from the mean",
            {**ROUND_COLD, **BOTH},
            ROUNDED,
            "long-taught-rounded",
        ),
        _long_taught(
            "twice-rounded",
            "level-first, computing with the nearest levels, the same, its teacher taught itself",
            {**ROUND_COLD, "affine": True},
            ROUNDED,
            "long-taught-rounded",
            "long-taught-full",
        ),
        _long_taught(
            "twice-binaryconnect",
            "BinaryConnect, its teacher taught itself",
            {**BC, **COLD, "affine": True},
            STRAIGHT,
            "long-taught-binaryconnect",
            "long-taught-full",
        ),
    ),
    "With affine BatchNorm, over the epochs of the tables": (
        _long("full", "full precision, lr .03, not affine", {"lr": 0.03}, FLOAT),
        _long_affine("full", "full precision, lr .03", {"lr": 0.03}, FLOAT, "long-full"),
        _long_affine("binaryconnect", "BinaryConnect, lr .03", {**BC, **COLD}, STRAIGHT, "long-binaryconnect"),
        _long_affine("half", f"level-first, {SAID}", EARLY, OURS, "long-half-sooner"),
        _long_affine("rounded", "level-first, rounded, lr .03 to 0", ROUND_COLD, ROUNDED, "long-rounded-03"),
        _long_affine("reversible", "reversible, lr .03 to 0", {"lr": 0.03, **AGAIN}, REVERSIBLE, "long-reversible"),
        _long_affine(
            "reversible-decay",
            "reversible, a scale and weight decay .03",
            {**AGAIN, **SCALED},
            REVERSIBLE,
            "long-reversible-decay",
        ),
    ),
    "How fast, how strong": (
        Idea("level-first", "lr .03, alpha .05"),
        Idea("lr-015", "lr .015", {"lr": 0.015}),
        Idea("lr-06", "lr .06", {"lr": 0.06}),
        Idea("lr-1", "lr .1", {"lr": 0.1}),
        Idea("alpha-01", "alpha .01", {"alpha": 0.01}),
        Idea("alpha-5", "alpha .5", {"alpha": 0.5}),
    ),
    "What the net computes with": (
        Idea("level-first", "the weights as they are"),
        Idea("rounded", "their nearest levels", ROUND, ROUNDED),
        Idea("dithered", "levels drawn with the weights as mean", {}, "askew-level-first-dithered"),
    ),
    "Capture while the net computes with the nearest levels": (
        Idea("rounded", "from 50% of the run on, lr .03, alpha .05", ROUND, ROUNDED),
        Idea("rounded-06", "lr .06", {**ROUND, "lr": 0.06}, ROUNDED),
        Idea("rounded-cold", "learning rate to 0", ROUND_COLD, ROUNDED),
        Idea("rounded-in-turn", "layers one after another (stagger .5)", {**ROUND, "stagger": 0.5}, ROUNDED),
    ),
    "Snapped from a running mean of the weights (over the last 5% of the steps)": (
        Idea("rounded-cold", "level-first, computing with the nearest levels, learning rate to 0", ROUND_COLD, ROUNDED),
        _averaged("rounded-cold", "level-first, computing with the nearest levels", ROUND_COLD, ROUNDED),
        _averaged("binaryconnect-cold", "BinaryConnect", {**BC, **COLD}, STRAIGHT),
        _averaged(FULL, "full precision", {"lr": 0.03}, FLOAT),
    ),
    "BatchNorm with a learnt scale and bias for each channel": (
        Idea("rounded-cold", "level-first, computing with the nearest levels, without", ROUND_COLD, ROUNDED),
        _affine("rounded-cold", "level-first, computing with the nearest levels", ROUND_COLD, ROUNDED),
        _affine("binaryconnect-cold", "BinaryConnect", {**BC, **COLD}, STRAIGHT),
        _affine("parq-longer", "PARQ, lr .06, annealed until 90%", LONGER, "parq"),
        _affine(FULL, "full precision", {"lr": 0.03}, FLOAT),
    ),
    "What a full-precision net can teach (its lr .03)": (
        Idea("level-first", "level-first, the labels alone"),
        _taught("level-first", "level-first", 0.5, {}, OURS, "level-first"),
        _taught("level-first", "level-first", 0.9, {}, OURS, "level-first"),
        _taught("rounded", "level-first, computing with the nearest levels", 0.9, ROUND, ROUNDED, "rounded"),
        _taught("binaryconnect", "BinaryConnect", 0.5, BC, STRAIGHT, "binaryconnect"),
        _taught("binaryconnect", "BinaryConnect", 0.9, BC, STRAIGHT, "binaryconnect"),
        _taught("binaryconnect-cold", "BinaryConnect once more", 0.9, {**BC, **COLD}, STRAIGHT, "binaryconnect-cold"),
        _taught("parq", "PARQ, lr .06, annealed until 90%", 0.9, LONGER, "parq", "parq-longer"),
        _taught("mirror", "mirror descent", 0.9, MIRROR, "md-tanh", "mirror"),
        _taught("full", "full precision", 0.9, {"lr": 0.03}, FLOAT, FULL),
        Idea(
            "taught-by-mean",
            "BinaryConnect, 90% of the loss an averaged teacher's",
            {**BC, **COLD, "teacher_share": 0.9},
            STRAIGHT,
            f"mean-{FULL}",
            "binaryconnect-cold",
        ),
    ),
    "With one-bit activations (W1/A1)": (
        _signs("", "BinaryConnect, BatchNorm without affine", {}),
        _signs("-affine", "affine", {"affine": True}),
        _signs("-affine-faster", "affine, its learning rate that of the weights", {"affine": True, "affine_rate": 1.0}),
        _signs("-taught", "not affine, 90% of the loss a teacher's", {}, teacher=FULL),
        _signs("-affine-taught", "affine, 90% of the loss a teacher's", {"affine": True}, teacher=f"affine-{FULL}"),
        _signs(
            "-rounded", "affine, level-first computing with the nearest levels", {**ROUND_COLD, "affine": True}, ROUNDED
        ),
        _signs("-real", "not affine, real weights (W32/A1)", {}, FLOAT),
        _signs("-real-affine", "affine, real weights (W32/A1)", {"affine": True}, FLOAT),
    ),
    "Together: affine BatchNorm, running mean, and a teacher of that kind (90% of the loss)": (
        Idea("rounded-cold", "level-first, computing with the nearest levels, without", ROUND_COLD, ROUNDED),
        _together("rounded-cold", "level-first, computing with the nearest levels", ROUND_COLD, ROUNDED),
        _together("binaryconnect-cold", "BinaryConnect", {**BC, **COLD}, STRAIGHT),
        _together("parq-longer", "PARQ, lr .06, annealed until 90%", LONGER, "parq"),
        Idea(BEST, "full precision, the teacher", {"lr": 0.03, **BOTH}, FLOAT, beside=FULL),
        _together(FULL, "full precision", {"lr": 0.03}, FLOAT),
    ),
}


@dataclass(frozen=True)
class CifarIdeas(ImageRuns):
    """Ideas for one bit on CIFAR-10, one change at a time: short runs, scored on held-out training images."""

    usual_epochs: ClassVar[int] = 40

    out: Path = Path("results/cifar-ideas")
    """Folder for the records, tables and figures."""
    seeds: int = 2
    """Runs of each idea."""
    holdout: int = 5000
    """Training images held out for scoring."""
    width: int | None = None
    """Width of VGG-small's first layer (128 if not given); less for a trial."""
    ideas: tuple[str, ...] = ()
    """Only these ideas, by the keys in their records' names (all if not given); a teacher is trained where one is asked
    for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        strange = [key for key in self.ideas if key not in ideas()]
        if strange:
            raise ValueError(f"no idea named {strange[0]!r}; known: {', '.join(ideas())}")

    def own(self) -> dict[str, Any]:
        return {"width": self.width, "holdout": self.holdout}

    def chosen(self) -> list[Idea]:
        """The ideas to be run, and the teachers they need."""
        known = ideas()
        wanted = [*(self.ideas or known)]
        for key in wanted:  # which grows: a teacher may have one itself
            if (teacher := known[key].teacher) and teacher not in wanted:
                wanted.append(teacher)
        return [idea for key, idea in known.items() if key in wanted]


def ideas() -> dict[str, Idea]:
    """Each idea once, by its key."""
    return {idea.key: idea for group in QUESTIONS.values() for idea in group}


def run(config: CifarIdeas, on_status: OnJob | None = None) -> list[Record]:
    """Make the runs that are missing; the records of all that were asked for."""
    jobs = [_job(config, idea, seed) for seed in range(config.seeds) for idea in config.chosen()]
    return complete(jobs, config, on_status)


def _job(config: CifarIdeas, idea: Idea, seed: int) -> ImageTraining:
    settings: dict[str, Any] = {**KINDS["best"], **idea.settings}
    if idea.teacher:
        settings["teacher"] = checkpoint(_job(config, ideas()[idea.teacher], seed))
    about = {"kind": "best", "settings": "ours"}
    times = replace(config, epochs=round(idea.longer * config.passes))
    return training(EXPERIMENT, times, idea.method, idea.key, settings, seed, about)
