"""Starting from a float checkpoint: its tensors matched to the net's by name, and a report of what was matched.

Names are compared without the prefixes that wrappers add (module., model., _orig_mod.), then with torchvision's names
of a ResNet put into ours. A tensor of another shape is left out and named.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from askew.train.checkpoint import NOT_TENSORS, Origin, check_sums, origin

logger = logging.getLogger("askew")
PREFIXES = ("module.", "model.", "_orig_mod.", "net.", "backbone.")
TORCHVISION = (
    (r"^layer(\d)\.(\d)\.", lambda m: f"stages.{int(m[1]) - 1}.{m[2]}."),
    (r"\.downsample\.0\.", lambda m: ".shortcut.conv."),
    (r"\.downsample\.1\.", lambda m: ".shortcut.norm."),
    (r"\.bn(\d)\.", lambda m: f".norm{m[1]}."),
    (r"^conv1\.", lambda m: "stem.conv."),
    (r"^bn1\.", lambda m: "stem.norm."),
    (r"^fc\.", lambda m: "head.linear."),
)


@dataclass(frozen=True)
class Matched:
    """Our names with theirs; what of ours found no partner, what of theirs was not used, and other shapes."""

    pairs: dict[str, str]
    missing: tuple[str, ...]
    unused: tuple[str, ...]
    shapes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.pairs)} tensors matched by name"]
        for what, names in (
            ("not in the file", self.missing),
            ("not used", self.unused),
            ("of another shape", self.shapes),
        ):
            if names:
                lines.append(f"{len(names)} {what}: {', '.join(names[:6])}{', ...' if len(names) > 6 else ''}")
        return "\n".join(lines)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file or of a torch checkpoint (loaded without running code)."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        check_sums(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError as error:
        raise ImportError(f"{path}: reading it needs the package safetensors") from error
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path}: no such file to start from or to learn from") from error
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path}: {NOT_TENSORS}") from error
    except Exception as error:  # torch and safetensors raise many kinds for a damaged file
        raise ValueError(f"{path}: cannot be read as a checkpoint ({error})") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    tensors = {k: v for k, v in found.items() if isinstance(v, Tensor)} if isinstance(found, Mapping) else {}
    if not tensors:
        raise ValueError(f"{path}: holds no tensors by name")
    return tensors


def digest(path: Path) -> str:
    """The first 16 hexadecimal digits of the file's SHA-256: which file it was, whatever its name."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def plain_name(name: str) -> str:
    """A name without a wrapper's prefixes."""
    while prefix := next((p for p in PREFIXES if name.startswith(p)), None):
        name = name.removeprefix(prefix)
    return name


def our_name(name: str) -> str:
    """A torchvision ResNet's name as our ResNet has it."""
    for pattern, ours in TORCHVISION:
        name = re.sub(pattern, ours, name)
    return name


def match(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> Matched:
    """Pair the tensors by name, each at most once."""
    wanted = {plain_name(name): name for name in ours}
    pairs: dict[str, str] = {}
    shapes: list[str] = []
    for name, tensor in theirs.items():
        short = plain_name(name)
        own = wanted.get(short) or wanted.get(our_name(short))
        if own is None or own in pairs:
            continue
        if ours[own].shape != tensor.shape:
            shapes.append(f"{own} ({tuple(tensor.shape)} there, {tuple(ours[own].shape)} here)")
        else:
            pairs[own] = name
    named = {text.split(" ")[0] for text in shapes}
    used = set(pairs.values())
    missing = tuple(n for n in ours if n not in pairs and n not in named)
    return Matched(pairs, missing, tuple(n for n in theirs if n not in used), tuple(shapes))


@torch.no_grad()
def initialise(model: nn.Module, path: str | Path) -> Matched:
    """Copy what matches from the file into the model; a ValueError if no weight does."""
    theirs, ours = read_weights(Path(path)), model.state_dict()
    found = match(ours, theirs)
    if not any(ours[own].ndim > 1 for own in found.pairs):
        names = f"{', '.join(list(theirs)[:3])} there, {', '.join(list(ours)[:3])} here"
        examples = f"other shapes: {', '.join(found.shapes[:3])}" if found.shapes else names
        raise ValueError(f"{path}: no weight of it matches one of {type(model).__name__} ({examples})")
    for own, other in found.pairs.items():
        ours[own].copy_(theirs[other])
    return found


@torch.no_grad()
def spread(model: nn.Module, size: float = 0.5) -> None:
    """Scale every conv and linear weight to the mean magnitude `size`, which BatchNorm after it undoes.

    Float weights are small against levels of -1 and +1; without a scale in the optimizer they would all start near 0. A
    layer without BatchNorm after it changes what the net computes: give such layers a scale instead.
    """
    for m in model.modules():
        if isinstance(m, (nn.Linear, nn.Conv2d)):
            m.weight.mul_(size / m.weight.abs().mean().clamp(min=torch.finfo(m.weight.dtype).tiny))


def start_from(model: nn.Module, path: Path, spread_weights: bool) -> dict[str, Any]:
    """initialise, and spread where the levels have no scale; what the run's record says of it."""
    found = initialise(model, path)
    logger.info("%s: %s", path, found)
    if spread_weights:
        spread(model)
    left = {"missing": list(found.missing), "unused": list(found.unused), "shapes": list(found.shapes)}
    return {"file": path.name, "matched": len(found.pairs), **left}


def has_seen(made: Origin, holdout: int | None, images: int | None) -> str | None:
    """Why a net made like this may know the images held out here, or None.

    Held-out images are spaced over the set by their number, so another number, or other images, are others.
    """
    if holdout is None or (made.config.get("holdout"), made.config.get("images")) == (holdout, images):
        return None
    asked = f"--holdout {holdout}" + ("" if images is None else f" --images {images}")
    return f"it may have seen images that are held out here; train it with {asked}, too"


def check_unseen(path: Path, holdout: int | None, images: int | None) -> None:
    """A ValueError if a checkpoint of ours to start from may know the images held out here."""
    made = None if holdout is None else origin(path)
    why = made and has_seen(made, holdout, images)
    if why:
        raise ValueError(f"init {path}: {why}")
