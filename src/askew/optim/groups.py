"""Which weights take levels: chosen once, by name or predicate, each claimed exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from askew.core.levels import LevelSet, as_levels

LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)  # they multiply their input
WEIGHT_MODULES = (*LAYERS, nn.Bilinear, nn.Embedding, nn.EmbeddingBag)
Skip = str | Iterable[str] | Callable[[str, nn.Parameter], bool]
Levels = LevelSet | Sequence[float] | Mapping[str, LevelSet | Sequence[float]]


@dataclass
class Weight:
    """A weight and every name it goes by (a tied embedding and output layer share one)."""

    parameter: nn.Parameter
    names: list[str]

    def matches(self, pattern: str) -> bool:
        """A shell pattern on the parameter's name or its module's ('conv*', 'layer1.0', 'fc.weight')."""
        return any(fnmatchcase(n, pattern) or fnmatchcase(n.removesuffix(".weight"), pattern) for n in self.names)


def _weight_names(module: nn.Module) -> tuple[str, ...]:
    """Attributes of a module that hold such weights; attention keeps its input projections as bare parameters."""
    if isinstance(module, nn.MultiheadAttention):
        return ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    return ("weight",) if isinstance(module, WEIGHT_MODULES) else ()


def candidates(model: nn.Module) -> dict[str, Weight]:
    """Trainable weights of conv, linear and embedding modules, each once, under its first name; all names are known."""
    found: dict[int, Weight] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for own in _weight_names(module):
            weight = getattr(module, own, None)
            if isinstance(weight, nn.Parameter) and weight.requires_grad:
                name = f"{prefix}.{own}" if prefix else own
                found.setdefault(id(weight), Weight(weight, [])).names.append(name)
    return {w.names[0]: w for w in found.values()}


def _skipped(weights: dict[str, Weight], skip: Skip) -> set[str]:
    if callable(skip):
        return {name for name, w in weights.items() if skip(name, w.parameter)}
    patterns = [skip] if isinstance(skip, str) else list(skip)
    out: set[str] = set()
    for pattern in patterns:
        hit = {name for name, w in weights.items() if w.matches(pattern)}
        if not hit:
            raise ValueError(f"skip pattern {pattern!r} matches no weight; there are: {', '.join(weights)}")
        out |= hit
    return out


def _claims(weights: dict[str, Weight], levels: Levels) -> list[tuple[LevelSet, list[str]]]:
    """Who takes which levels; every pattern must match, and no two may claim one weight."""
    if not isinstance(levels, Mapping):
        return [(as_levels(levels), list(weights))]
    owner: dict[str, str] = {}
    claims = []
    for pattern, own in levels.items():
        hit = [name for name, w in weights.items() if w.matches(pattern)]
        if not hit:
            raise ValueError(f"levels pattern {pattern!r} matches no weight; there are: {', '.join(weights)}")
        for name in hit:
            if name in owner:
                raise ValueError(f"weight {name!r} is claimed twice, by {owner[name]!r} and by {pattern!r}")
            owner[name] = pattern
        claims.append((as_levels(own), hit))
    return claims


def groups(
    model: nn.Module,
    levels: Levels,
    skip: Skip = (),
    rest: dict[str, Any] | None = None,
    in_turn: bool = False,
    **options: Any,
) -> list[dict[str, Any]]:
    """Parameter groups for a torch optimizer that ASkew then wraps.

    levels   one level set for every conv, linear and embedding weight, or {pattern: level set} (unmatched weights are
             left in full precision)
    skip     patterns or a predicate (name, parameter) of weights that stay in full precision
    rest     options of the group with everything else (lr, weight_decay, ...)
    in_turn  a group for each weight, with its `turn`: 0 for the net's first weight on levels, 1 for its last
             (LevelFirst(stagger=...) captures them one after another)
    options  options of the groups with levels: lr, alpha, clip, scale='none'|'abs-mean'|'sawb', per='tensor'|'channel'

    Raises ValueError naming a pattern that matches nothing or a weight claimed twice.
    """
    weights = candidates(model)
    if not weights:
        raise ValueError(f"{type(model).__name__} has no trainable conv, linear or embedding weight to put on levels")
    left_out = _skipped(weights, skip)
    chosen = {name: w for name, w in weights.items() if name not in left_out}
    if not chosen:
        raise ValueError("skip leaves no weight to put on levels")
    out: list[dict[str, Any]] = []
    claimed: set[int] = set()
    for own, names in _claims(chosen, levels):
        claimed |= {id(chosen[name].parameter) for name in names}
        own_group = {"params": [(name, chosen[name].parameter) for name in names], "levels": own, **options}
        out += _in_turn(own_group, list(chosen)) if in_turn else [own_group]
    others = [(n, p) for n, p in model.named_parameters() if p.requires_grad and id(p) not in claimed]
    if others:
        out.append({"params": others, "levels": None, **(rest or {})})
    return out


def _in_turn(group: dict[str, Any], order: list[str]) -> list[dict[str, Any]]:
    """A group for each weight of the group, its turn by the name's place in the order."""
    turns = {name: k / max(1, len(order) - 1) for k, name in enumerate(order)}
    return [{**group, "params": [(name, p)], "turn": turns[name]} for name, p in group["params"]]
