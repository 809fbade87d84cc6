"""The optimizer of ASkewSGD: the wrapper with the method that the annealing asks for."""

from __future__ import annotations

from typing import Any, Literal

from torch.optim import Optimizer

from askew.core import Annealing, LevelFirst, LevelSet
from askew.core.annealing import from_description
from askew.core.scale import Per, ScaleKind
from askew.methods.askew import DitheredLevelFirst, EpsilonSkew, LevelFirstSkew, ReversibleLevelFirst, RoundedLevelFirst
from askew.methods.base import Method
from askew.optim.checks import Group, NonFinite, warn_one_level
from askew.optim.wrapper import MethodOptimizer


class ASkew(MethodOptimizer):
    """ASkewSGD around any torch optimizer: weights are drawn into shrinking intervals around the levels.

    w <- base step on the gradient -v,  v = s^c_{eps,alpha}(gradient, w)  (core.direction.skew; with plain SGD exactly
    Algorithm 1), or the level-first direction when the annealing is LevelFirst.

    base         a torch.optim optimizer over askew.groups(model, levels=...)
    annealing    LevelFirst (default), Exponential, Logarithmic, Plateau, Constant, Custom
    alpha, clip  the MJ parameter and the velocity bound M in level units ('quarter': one step of plain SGD moves at
                 most a quarter of the smallest gap); groups may hold their own
    clamp        keep the weights in [c_1, c_K]; default: with LevelFirst yes, otherwise no (Algorithm 1 has no clamp)
    scale, per   how weights map to level units: 'none', 'abs-mean' or 'sawb', per 'tensor' or 'channel'
    total_steps  length of the run, for schedules given in fractions
    nonfinite    NaN or infinite gradients: 'raise', 'skip' the step, or 'ignore' (no check, no device sync)
    fused        one pass over weight, gradient and moments for torch's SGD, Adam and AdamW (optim/fused.py); None:
                 where it can be done, True: or else an error that says why, False: never
    master       bfloat16 weights are rounded from float32 copies, which are what is optimised, with float32 moments
                 (8 more bytes each); needs the fused step
    average      put on levels (`snapped`, `snap_`, export) is the running mean of the weights over about this last
                 part of the steps (optim/average.py; 4 more bytes each); the last step leaves the weights there. 0: the
                 weights as they are
    """

    def __init__(
        self,
        base: Optimizer,
        annealing: Annealing | None = None,
        *,
        levels: LevelSet | None = None,
        alpha: float | None = None,
        clip: float | Literal["quarter"] = 1.0,
        clamp: bool | None = None,
        scale: ScaleKind = "none",
        per: Per = "tensor",
        total_steps: int | None = None,
        nonfinite: NonFinite = "raise",
        fused: bool | None = None,
        master: bool = False,
        average: float = 0.0,
    ) -> None:
        annealing = annealing or LevelFirst()
        super().__init__(
            base,
            _method_for(annealing),
            annealing,
            levels=levels,
            alpha=alpha,
            clip=clip,
            clamp=annealing.kind == "capture" if clamp is None else clamp,
            scale=scale,
            per=per,
            total_steps=total_steps,
            nonfinite=nonfinite,
            fused=fused,
            master=master,
            average=average,
        )

    def _completed(self, group: Group, position: int) -> Group:
        full = super()._completed(group, position)
        warn_one_level(full, position)
        return full

    def method_under(self, description: dict[str, Any]) -> Method:
        return self.method if description["schedule"] == "Custom" else _method_for(from_description(description))

    def resume_annealing(self, description: dict[str, Any]) -> None:
        super().resume_annealing(description)
        self.method = _method_for(self.annealing)


def _method_for(annealing: Annealing) -> Method:
    if not isinstance(annealing, LevelFirst):
        return EpsilonSkew()
    if annealing.rounded:
        return RoundedLevelFirst(annealing.by)
    if annealing.reversible:
        return ReversibleLevelFirst(annealing.by)
    return (DitheredLevelFirst if annealing.dither else LevelFirstSkew)(annealing.by)
