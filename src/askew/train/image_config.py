"""Settings of one training run on images: a frozen dataclass from which the command line is derived."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import tyro

from askew.core import LevelSet, Per
from askew.methods.registry import METHODS, method
from askew.models.resnet import Stem
from askew.nn.straight_through import SignGradient
from askew.optim.average import check as check_average
from askew.train import low_bit
from askew.train.config import SHAPES, Schedule, TrainConfig
from askew.train.device import device_named
from askew.train.distributed import launched
from askew.train.low_bit import Fitted, Form
from askew.train.recipes import (
    AFFINE_RATE,
    DATASETS,
    OTHER,
    RECIPES,
    USERS,
    WIDTHS,
    By,
    DataDefaults,
    Dataset,
    Model,
    Recipe,
    method_for,
)
from askew.train.record import plain
from askew.train.teacher import SHARE

HISTOGRAMS = (0.2, 0.39, 0.55, 0.99, 1.0)  # parts of the run; of 100 epochs, the paper's 20, 39, 55, 99 and the end
AUTO = "auto"  # the method that is best where it is asked for
RECIPE_FIELDS = tuple(f.name for f in fields(Recipe))
OF_IMAGENET = ("resize", "crop", "val_map", "workers")  # settings that only ImageNet has


@dataclass(frozen=True)
class TableRow:
    """Where a run stands in a table: the experiment, the row's key, what its record says of it, and its folder."""

    experiment: str
    key: str
    folder: Path
    about: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ImageTraining:
    """Train a network on images and keep what is needed to trust, resume and repeat the run.

    A setting that is not given is the method's (or the data set's) own: see askew/train/recipes.py.
    """

    data: Path
    """Folder with the data set as its makers give it; nothing is downloaded."""
    dataset: tyro.conf.Positional[Dataset] = "cifar10"
    """Which data set."""
    method: str = AUTO
    """full-precision, askew-level-first, askew, or a rival: binaryconnect, proxquant, parq, ... (auto: level-first, on
    TinyImageNet at one bit its reversible form)."""
    bits: int = 1
    """Bits a weight: 1 is {-1, +1}, 2 to 8 the integers of that width with a scale a layer."""
    activation_bits: int | None = None
    """Bits an activation: 1 is its sign, 2 to 8 what each layer multiplies (full precision if not given)."""
    form: Form | None = None
    """Levels of 2 to 8 bits: int (2^b integers), symmetric (2^b levels without zero), paper (2^b + 1 integers) or, at 2
    bits, ternary."""
    per: Per | None = None
    """A weight scale for each tensor or each channel (tensor if not given)."""
    scale: Fitted | None = None
    """How a weight scale is found: sawb, abs-mean or none (if not given, sawb, and none at 1 bit but for the reversible
    form on TinyImageNet)."""
    sign_gradient: SignGradient | None = None
    """What stands for the derivative of a sign: tanh (the paper's), clip or quadratic (one-bit activations)."""
    gradient_bits: int | None = None
    """Put the gradients of what layers compute on LUQ's logarithmic, unbiased grid of so many bits."""
    epochs: int | None = None
    """Passes over the training images (100, and 40 on TinyImageNet, if not given)."""
    batch: int | None = None
    """Images a step."""
    lr: float | None = None
    """Adam's learning rate at the start."""
    schedule: Schedule | None = None
    """How the learning rate falls: constant, cosine, or in steps (the paper's)."""
    min_lr: float | None = None
    """Learning rate at the end of a cosine."""
    cosine_end: float | None = None
    """Part of the run after which a cosine has reached min_lr and stays there."""
    milestones: tuple[float, ...] | None = None
    """Parts of the run at which a schedule in steps lowers the learning rate."""
    factor: float | None = None
    """What the learning rate is multiplied by at a milestone."""
    weight_decay: float | None = None
    """AdamW's: a step shrinks each weight by this part of the learning rate."""
    alpha: float | None = None
    """ASkew's alpha."""
    start: float | None = None
    """Part of the run after which ASkew begins to tighten."""
    end: float | None = None
    """Part of the run after which level-first has captured all weights."""
    power: float | None = None
    """Pace of level-first: the radius (or captured part) grows as this power of time."""
    by: By | None = None
    """What grows in level-first: the capture radius, or the captured part of each layer (quantile)."""
    stagger: float | None = None
    """Layers captured one after another: the last begins after this part of the way from start to end (level-first)."""
    K: float | None = None
    """Factor by which the paper's form lowers epsilon each hundredth of the run."""
    average: float | None = None
    """Score and ship the running mean of the weights over about this last part of the steps (0: as they are)."""
    options: dict[str, bool | int | float | str] | None = field(default=None, hash=False)
    """Options of the method by name, such as: rate 0.001 freeze 0.7 (ProxQuant)."""
    seed: int = 0
    """Seed of initial weights, order and augmentation."""
    init: Path | None = None
    """Start from the weights of this float checkpoint (.safetensors or .pt), matched by name, and fine-tune."""
    teacher: Path | None = None
    """Learn from this float net as well as from the labels: the checkpoint of a run of the same net."""
    teacher_share: float | None = None
    """The teacher's part of the loss, above 0 and up to 1 (0.5 if not given)."""
    model: Model | None = None
    """The net: vgg-small (CIFAR-10 alone, and what it has if none is given) or resnet18."""
    width: int | None = None
    """Channels of the net's first layer (128 of VGG-small, 64 of ResNet-18, if not given)."""
    stem: Stem | None = None
    """ResNet-18's first layer: tiny or imagenet (7x7 and a pool), small (3x3: on CIFAR-10, if not given)."""
    affine: bool | None = None
    """BatchNorm learns a scale and bias (--affine, --no-affine); if not given: with one-bit activations alone."""
    affine_rate: float | None = None
    """Learning rate of those scales and biases, as a part of the weights' (0.3 if not given)."""
    skip: tuple[str, ...] = ()
    """Layers left in full precision, by name or pattern, such as head.linear."""
    pad: int | None = None
    """Border around an image before a random crop of its size; 0 for none (not for ImageNet)."""
    resize: int = 256
    """ImageNet: shorter side of an image before the crop."""
    crop: int = 224
    """ImageNet: side of the crop."""
    val_map: Path | None = None
    """ImageNet: text file of labels, if val/ has no class folders."""
    workers: int = 8
    """ImageNet: processes that decode images."""
    score_every: int = 5
    """Epochs from one scoring of the snapped net to the next."""
    keep_every: int = 10
    """Epochs from one checkpoint to the next (an epoch that ends two minutes after the last one is kept too)."""
    keep_steps: int | None = None
    """Write it also every so many steps within an epoch, for epochs that take long."""
    keep_best: bool = True
    """Keep the best scored net as well as the last one."""
    images: int | None = None
    """Use only so many training and test images (all if not given)."""
    holdout: int | None = None
    """Keep so many training images out and score on them, not on the test images: for the search of settings."""
    check_data: bool = True
    """Refuse a data set that lacks its official number of classes or images."""
    static: bool | None = None
    """Steps compiled and replayed as a CUDA graph (--static, --no-static); if not given: on a GPU, in one process."""
    compiled: bool | None = None
    """Net and method compiled where no graph can be (--compiled, --no-compiled); if not given: as with --static."""
    tensorboard: bool = False
    """Write curves and histograms for TensorBoard to the run's folder as well."""
    device: str = "auto"
    """cpu, cuda, or auto: a GPU if there is one."""
    out: Path = Path("runs/train")
    """Folder for record and checkpoints; a run that was stopped there goes on."""
    row: Annotated[TableRow | None, tyro.conf.Suppress] = None

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ValueError(f"no data set named {self.dataset!r}; known: {', '.join(DATASETS)}")
        if self.method == AUTO:
            object.__setattr__(self, "method", method_for(self.dataset, self.bits))
        if self.method not in METHODS:
            raise ValueError(f"no method named {self.method!r}; known: {', '.join(METHODS)}")
        if self.model not in (None, *WIDTHS):
            raise ValueError(f"no model named {self.model!r}; known: {', '.join(WIDTHS)}")
        if self.model == "vgg-small" and self.dataset != "cifar10":
            raise ValueError(f"vgg-small takes the 32x32 images of cifar10, not {self.dataset}")
        low_bit.check(self)
        for name in ("images", "holdout", "width", "resize", "crop", "keep_every", "keep_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        if self.workers < 0:
            raise ValueError(f"workers must be 0 or more, got {self.workers}")
        check_average(self.recipe.average)
        if not 0 <= self.recipe.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be 0 or more and finite, got {self.weight_decay}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must lie in 0..2^32-1, got {self.seed}")
        if self.teacher_share is not None and not (self.teacher and 0 < self.teacher_share <= 1):
            raise ValueError(f"teacher_share, above 0 and up to 1, needs a teacher: got {self.teacher_share!r}")
        if self.affine_rate is not None and not (self.learns_norms and 0 < self.affine_rate < math.inf):
            raise ValueError(f"affine_rate, above 0 and finite, needs affine: got {self.affine_rate!r}")
        self._check_unused()
        self._check_options()
        if self.min_lr is not None and self.min_lr > self.recipe.lr:
            raise ValueError(f"min_lr {self.min_lr} lies above lr {self.recipe.lr}: a cosine falls from lr to min_lr")
        self.settings()

    def _check_unused(self) -> None:
        """Nothing is taken and then ignored."""
        for name, users in USERS.items():
            if getattr(self, name) is not None and self.method not in users:
                raise ValueError(f"{name} is a setting of {', '.join(users)}; {self.method} has none")
        schedule = self.recipe.schedule
        for name, shape in SHAPES.items():
            if getattr(self, name) is not None and schedule != shape:
                raise ValueError(f"{name} belongs to the schedule {shape!r}, not to {schedule!r}")
        if self.stem is not None and self.net != "resnet18":
            raise ValueError(f"stem is a setting of resnet18; this run trains {self.net}")
        if self.stem is not None and self.stem not in get_args(Stem):
            raise ValueError(f"no stem named {self.stem!r}; known: {', '.join(get_args(Stem))}")
        if self.dataset == "imagenet" and (self.pad or self.holdout):
            raise ValueError("pad and holdout are for CIFAR-10 and TinyImageNet")
        for setting in fields(self):
            given = getattr(self, setting.name) != setting.default
            if setting.name in OF_IMAGENET and given and self.dataset != "imagenet":
                raise ValueError(f"{setting.name} is a setting of imagenet; {self.dataset} has none")

    def _check_options(self) -> None:
        if self.recipe.annealing(self.method) is not None:
            if self.recipe.options:
                own = [name for name, users in USERS.items() if self.method in users]
                raise ValueError(f"{self.method} has no options; it has --{', --'.join(own)}")
            return
        try:
            made = method(self.method, **self.recipe.options)
        except TypeError as error:
            raise ValueError(f"options of {self.method}: {error}") from error
        if self.scale is not None and self.method == "lsq":
            raise ValueError("scale: lsq learns its steps; leave it out")
        for name in ("per", "form", "scale"):
            if getattr(self, name) not in (None, "none") and low_bit.scale(self, made) == "none":
                raise ValueError(f"{name}: {self.method} finds its own levels for each tensor; parq-fixed takes it")

    @property
    def learns_norms(self) -> bool:
        """Whether BatchNorm has a scale and a bias to learn."""
        return self.activation_bits == 1 if self.affine is None else self.affine

    @property
    def vector_rate(self) -> float | None:
        """Learning rate of BatchNorm's scales and biases as a part of the weights'; None if there are none."""
        return (self.affine_rate or AFFINE_RATE) if self.learns_norms else None

    @property
    def recipe(self) -> Recipe:
        """The method's recipe, on some data sets one for these, with what was given in its place."""
        given = {name: getattr(self, name) for name in RECIPE_FIELDS}
        own = self.defaults.few_bit_recipes if self.bits > 1 else self.defaults.recipes
        usual = own.get(self.method) or RECIPES.get(self.method, OTHER)
        return replace(usual, **{k: v for k, v in given.items() if v is not None})

    @property
    def defaults(self) -> DataDefaults:
        return DATASETS[self.dataset]

    @property
    def passes(self) -> int:
        """Epochs of the run."""
        return self.defaults.epochs if self.epochs is None else self.epochs

    @property
    def net(self) -> Model:
        """The net that is trained."""
        return self.model or self.defaults.model

    @property
    def net_options(self) -> dict[str, Any]:
        """Its size and, of a ResNet, its first layer."""
        width = {"width": self.width or WIDTHS[self.net]}
        return width if self.net == "vgg-small" else {"stem": self.stem or self.defaults.stem or "small"} | width

    @property
    def levels(self) -> LevelSet:
        return low_bit.levels(self)

    @property
    def name(self) -> str:
        """Of the run's folder: what tells it from its neighbours."""
        if self.row is not None:
            return f"{self.row.experiment}-{self.row.key}-seed{self.seed}"
        return f"{self.dataset}-{self.method}-{self.width_name}-seed{self.seed}"

    @property
    def width_name(self) -> str:
        """Bits of weights and activations: 1bit, w4a4, 32bit in full precision."""
        bits = 32 if self.method == "full-precision" else self.bits
        return f"{bits}bit" if self.activation_bits is None else f"w{bits}a{self.activation_bits}"

    @property
    def share(self) -> float:
        """The teacher's part of the loss."""
        return SHARE if self.teacher_share is None else self.teacher_share

    @property
    def padding(self) -> int:
        """Border of random crops."""
        return self.defaults.pad if self.pad is None else self.pad

    def settings(self) -> TrainConfig:
        """The loop's part of the settings."""
        recipe = self.recipe
        annealing = recipe.annealing(self.method)
        alpha = annealing.default_alpha if annealing and recipe.alpha is None else recipe.alpha
        return TrainConfig(
            method=self.method,
            epochs=self.passes,
            batch_size=self.defaults.batch if recipe.batch is None else recipe.batch,
            lr=recipe.lr,
            schedule=recipe.schedule,
            min_lr=min(recipe.min_lr, recipe.lr),
            cosine_end=recipe.cosine_end,
            milestones=recipe.milestones,
            factor=recipe.factor,
            annealing=annealing,
            alpha=alpha if annealing else None,
            seed=self.seed,
            histogram_epochs=tuple(sorted({round(part * self.passes) for part in HISTOGRAMS})),
            score_every=self.score_every,
            score_batch_size=500 if self.dataset == "imagenet" else 1000,
            batchnorm_images=20000,
            bf16=self.where.type == "cuda",
            static=self.takes_static_steps,
            compiled=self.compiles,
            log_every=self.defaults.log_every,
            brief=True,
        )

    @property
    def takes_static_steps(self) -> bool:
        if self.static is not None:
            return self.static
        return self.where.type == "cuda" and self.dataset != "imagenet" and not launched()

    @property
    def compiles(self) -> bool:
        if self.takes_static_steps or self.compiled is not None:
            return bool(self.compiled) and not self.takes_static_steps
        return self.where.type == "cuda" and self.static is None and not launched()

    @property
    def where(self) -> torch.device:
        return device_named(self.device)

    def describe(self) -> dict[str, Any]:
        """Plain values that decide the outcome (not where the files lie)."""
        elsewhere = {"data", "out", "device", "row", "workers", "check_data", "val_map", "batch"}
        elsewhere |= {"tensorboard", "keep_every", "keep_steps", "keep_best"}
        own = {k: v for k, v in asdict(self).items() if k not in elsewhere and k not in RECIPE_FIELDS}
        own["average"], own["weight_decay"] = self.recipe.average or None, self.recipe.weight_decay or None
        own["scale"] = None if self.recipe.scale == "none" else self.recipe.scale
        own["affine"], own["affine_rate"] = self.learns_norms or None, self.vector_rate
        own["init"] = None if self.init is None else self.init.name
        own["teacher"] = None if self.teacher is None else self.teacher.name
        own["teacher_share"] = None if self.teacher is None else self.share
        net = {"model": self.net, "pad": self.padding, "options": dict(self.recipe.options)} | self.net_options
        if self.net == "resnet18" and net["width"] == WIDTHS[self.net]:
            net["width"] = None  # as in records from before there were others
        about = self.row.about if self.row else {}
        return plain(own | self.settings().describe() | net | {"device": self.where.type} | about)
