"""Learning from a float net: besides the labels, the student follows the probabilities that a trained net gives.

    L = (1 - t) CE(student, labels) + t CE(student, softmax(teacher))

t is the teacher's share. Both nets see the same batch, as it was cropped and mirrored for this step; the teacher is in
evaluation mode and does not change. (Hinton, Vinyals, Dean 2015, at temperature 1.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from askew.train.checkpoint import Origin, origin
from askew.train.initial import has_seen, initialise, read_weights

SHARE = 0.5
Objective = Callable[[Tensor, Tensor, Tensor], Tensor]  # (logits, images, labels) -> loss


@dataclass(frozen=True)
class Teacher:
    """A trained net and its share of the loss."""

    net: nn.Module
    share: float = SHARE

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"a teacher's share of the loss must lie above 0 and not above 1, got {self.share!r}")
        self.net.eval().requires_grad_(False)

    def __call__(self, logits: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch."""
        with torch.no_grad():
            aim = wide(self.net(x)).softmax(1)
        followed = nn.functional.cross_entropy(wide(logits), aim)
        return followed if self.share == 1 else torch.lerp(labelled(logits, x, y), followed, self.share)


def labelled(logits: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy with the labels alone: the loss without a teacher."""
    return nn.functional.cross_entropy(wide(logits), y)


def wide(logits: Tensor) -> Tensor:
    """In float32 at least."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def taught_by(
    net: nn.Module, path: Path, share: float, holdout: int | None = None, images: int | None = None
) -> Teacher:
    """`net` with all its tensors from the file, as a teacher; ValueError, naming what is missing, if it is another.

    A checkpoint of ours says how its net was made: it must be a float net, trained to the end, and must not have seen
    the images that are held out here.
    """
    made = origin(path)
    why = None if made is None else unfit(made, holdout, images, best=path.name == "best.pt")
    if why:
        raise ValueError(f"teacher {path}: {why}")
    found = initialise(net, path)
    extra = [name for name in found.unused if not name.endswith("num_batches_tracked")]
    for where, names in (("there", [*found.shapes, *found.missing]), ("here", extra)):
        if names:
            shown = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
            raise ValueError(f"teacher {path}: not the float net of this run; without a partner {where}: {shown}")
    return Teacher(net, share)


def has_scales(path: Path) -> bool:
    """Whether BatchNorm of the net in the file has scales and biases."""
    tensors = read_weights(path)
    norms = [name.removesuffix("running_mean") for name in tensors if name.endswith("running_mean")]
    return any(f"{name}weight" in tensors for name in norms)


def unfit(made: Origin, holdout: int | None, images: int | None = None, best: bool = False) -> str | None:
    """Why a net made like this is no teacher for a run that holds out so many of so many images, or None.

    best: it is the best one of its run, which stands at whatever epoch that was.
    """
    config = made.config
    method, bits, total = config.get("method"), config.get("activation_bits"), config.get("epochs", made.epochs)
    if method != "full-precision":
        return f"its run trained with {method}; a teacher is a float net (--method full-precision)"
    if bits is not None:
        return f"its activations have {bits} bits; a teacher's are real (leave --activation-bits out)"
    if made.epochs < total and not best:
        return f"its run stands at epoch {made.epochs} of {total}; let it end first"
    return has_seen(made, holdout, images)
