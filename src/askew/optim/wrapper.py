"""The optimizer: any torch.optim optimizer with a method's three hooks around its step."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from askew.core import Annealing, Clock, LevelSet, Plateau
from askew.core.annealing import Unannealed, from_description
from askew.core.scale import Per, ScaleKind
from askew.methods.base import Method, Site
from askew.optim import average as averages
from askew.optim import checkpoint, sharding
from askew.optim.checks import (
    Group,
    NonFinite,
    check_gradients,
    check_group,
    labels,
    only_makes_state,
    warn_epsilon,
)
from askew.optim.dials import Dials
from askew.optim.fused import Fusion, capturing
from askew.optim.fused_work import restore_moments

Closure = Callable[[], Any]


class MethodOptimizer(Optimizer):
    """direction -> base optimizer -> retract, for the parameter groups that have `levels`.

    It shares param_groups, state and step hooks with the base optimizer, so torch's schedulers, GradScaler and hooks
    work on it as on any optimizer. What it remembers itself (frozen scales, latents of rival methods) lies beside
    the base optimizer's state, never in it. A method without latents costs no memory between steps.

    Parameters may be cut over processes (FSDP2): all processes then step, diagnose and snap together (sharding.py).
    """

    def __init__(
        self,
        base: Optimizer,
        method: Method,
        annealing: Annealing | None = None,
        *,
        levels: LevelSet | None = None,
        alpha: float | None = None,
        clip: float | Literal["quarter"] = 1.0,
        clamp: bool = False,
        scale: ScaleKind = "none",
        per: Per = "tensor",
        total_steps: int | None = None,
        nonfinite: NonFinite = "raise",
        fused: bool | None = None,
        master: bool = False,
        average: float = 0.0,
    ) -> None:
        if not isinstance(base, Optimizer):
            raise TypeError(f"base must be a torch.optim.Optimizer, got {type(base).__name__}")
        if nonfinite not in ("raise", "skip", "ignore"):
            raise ValueError(f"nonfinite must be 'raise', 'skip' or 'ignore', got {nonfinite!r}")
        if total_steps is not None and (not isinstance(total_steps, int) or total_steps < 1):
            raise ValueError(f"total_steps must be a positive whole number, got {total_steps!r}")
        averages.check(average)
        self.base = base
        self.method = method
        self.average = float(average)
        self.annealing = annealing or Unannealed()
        self.total_steps = total_steps
        self.nonfinite: NonFinite = nonfinite
        self.steps = 0
        self.skipped = 0
        if master and fused is False:
            raise ValueError("master=True needs the fused step: leave fused at None or True")
        self._fusion = Fusion(True if master else fused)
        self._master = master
        self.plateau = self.annealing.fresh() if isinstance(self.annealing, Plateau) else None
        self._options: Group = {
            "levels": levels,
            "alpha": self.annealing.default_alpha if alpha is None else alpha,
            "clip": clip,
            "clamp": clamp,
            "scale": scale,
            "per": per,
        }
        self._memory: dict[Tensor, dict[str, Tensor]] = {}
        self._values: dict[int, float] = {}
        self._value_dials: Dials[int] = Dials()
        self._number_dials: Dials[str] = Dials()
        self._check_times()
        ready = [self._completed(group, position) for position, group in enumerate(base.param_groups)]
        if all(group["levels"] is None for group in ready):
            raise ValueError("no parameter group has levels: build the groups with askew.groups(...) or pass levels=")
        for group, full in zip(base.param_groups, ready, strict=True):
            group.update(full)
        self._adopt_base()
        for position, group in enumerate(base.param_groups):
            self._begin(group, position)
        if self._fusion.wanted:
            self._fusion.applies(self)

    # -- the torch.optim.Optimizer face -------------------------------------------------------------------------------

    def _adopt_base(self) -> None:
        """Become an Optimizer whose groups, state, defaults and hooks are the base's own."""
        self.defaults = self.base.defaults
        for kind in ("step_pre", "step_post", "state_dict_pre", "state_dict_post", "load_state_dict_pre"):
            setattr(self, f"_optimizer_{kind}_hooks", getattr(self.base, f"_optimizer_{kind}_hooks"))
        self._optimizer_load_state_dict_post_hooks = self.base._optimizer_load_state_dict_post_hooks
        self._warned_capturable_if_run_uncaptured = True
        self._patch_step_function()

    @property
    def param_groups(self) -> list[Group]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.param_groups

    @property
    def state(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.base.state

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles hold; as in torch, neither hooks nor the step a scheduler has put before ours."""
        return {k: v for k, v in self.__dict__.items() if k != "step" and not k.endswith("_hooks")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._adopt_base()

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, with levels or without; one that does not pass the checks is not added."""
        self.base.add_param_group(dict(param_group))
        position = len(self.param_groups) - 1
        added = self.param_groups[position]
        try:
            added.update(self._completed(added, position))
            self._fusion.applies(self)
        except Exception:
            del self.param_groups[position]
            raise
        self._begin(added, position)

    def step(self, closure: Closure | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step. A closure is evaluated at the weights the network computes with, exactly as in a plain step."""
        needs_closure = _needs_closure(type(self.base))
        if needs_closure and closure is None:
            raise ValueError(f"{type(self.base).__name__} needs step(closure)")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        steady = None if needs_closure else self._fusion.steady(self)
        sound = steady is not None and (self.nonfinite == "ignore" or self._fusion.sound(steady))
        if not sound and not check_gradients(self.param_groups, self.nonfinite):
            self.skipped += 1
            return loss
        if self._fusion.wanted and not needs_closure:
            self._fusion.applies(self, steady)  # an error now, before the step counts
        recorded = capturing()
        if closure is None and not recorded and only_makes_state(self.base):
            with torch.no_grad():
                _unhooked_step(self.base)
            return loss
        if not recorded:
            self.tick()
        with torch.no_grad():
            if not needs_closure and self._fusion.applies(self, steady):
                self._fusion.step(self, steady)
            else:
                self._step(closure if needs_closure else None)
            if self.average:
                averages.follow(self)
                if Clock(self.steps - 1, self.total_steps).last:
                    self.snap_()  # the run ends where its means say
        self.base._opt_called = True  # pyright: ignore[reportAttributeAccessIssue] # a scheduler on the base may ask
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The base optimizer's state dict with askew's own entries in its groups and states; plain types only."""
        return checkpoint.pack(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume: everything is checked first; the saved schedule and options win, as torch's learning rates do."""
        checkpoint.unpack(self, state_dict)
        if self._master:
            restore_moments(self, state_dict)

    # -- annealing ----------------------------------------------------------------------------------------------------

    @property
    def clock(self) -> Clock:
        """Where the run stands: steps done, of total_steps."""
        return Clock(self.steps, self.total_steps)

    def tick(self) -> None:
        """Advance the annealing by one step. `step` does it; call it yourself before each replay of a CUDA graph."""
        self._set_dials(self.clock)
        self.steps += 1

    def dials(self) -> list[Tensor]:
        """The 0-d tensors that `tick` sets: the value of each group, the method's own numbers; in a fixed order."""
        return [*self._value_dials.tensors, *self._number_dials.tensors]

    def dial_settings(self, clock: Clock) -> list[float]:
        """What `tick` sets the dials to at that clock, so that a CUDA graph may set them itself, from a table."""
        values = [self._value_of(position, clock) for position in self._value_dials.keys]
        numbers = self._numbers_at(clock)
        return [*values, *(numbers[name] for name in self._number_dials.keys)]

    def phase(self, clock: Clock) -> Hashable:
        """What a step at that clock decides on the host; a CUDA graph of a step is good while it stays the same."""
        return clock.last, self.annealing.freezes_scales(clock, self.plateau), self.method.phase(clock)

    def advance(self, steps: int) -> None:
        """Count steps that were taken by replays of a CUDA graph which set the dials itself."""
        self.steps += steps
        last = Clock(max(0, self.steps - 1), self.total_steps)
        for position, _ in self._managed():
            self._values[position] = self._value_of(position, last)

    def report(self, metric: float) -> None:
        """Tell a Plateau schedule how training goes (lower is better)."""
        if not isinstance(self.annealing, Plateau) or self.plateau is None:
            raise ValueError(f"report() drives a Plateau schedule; this one is {type(self.annealing).__name__}")
        self.plateau = self.annealing.report(self.plateau, float(metric))

    def value(self, position: int = 0) -> float:
        """The schedule's current number for a group: epsilon in its level units, or the capture radius."""
        return self._values[position]

    def method_under(self, description: dict[str, Any]) -> Method:
        """The method as it would be with a saved schedule."""
        return self.method

    def resume_annealing(self, description: dict[str, Any]) -> None:
        """Take over a saved schedule (a Custom one cannot travel in a file: the live one must bear its name)."""
        if description["schedule"] != "Custom":
            self.annealing = from_description(description)

    # -- weights ------------------------------------------------------------------------------------------------------

    def weights(self, freeze: bool = False) -> list[tuple[str, Tensor, Site]]:
        """(name, parameter, site) of every weight on levels, at the schedule's current value.

        freeze: remember adaptive scales from now on if the annealing freezes them (only `step` asks for that).
        """
        last = Clock(max(0, self.steps - 1), self.total_steps)
        return [
            (name, p, self._site(p, name, group, position, last, freeze))
            for position, group in self._managed()
            for name, p in zip(labels(group), group["params"], strict=True)
        ]

    def underlying(self, p: Tensor) -> Tensor:
        """The weights that are optimised: the latent copy of a rival method, or the parameter itself."""
        return self._memory.get(p, {}).get("latent", p)

    def settled(self, p: Tensor) -> Tensor:
        """The weights that are put on levels to be scored and shipped: their running mean, or as they are."""
        return self._memory.get(p, {}).get(averages.KEY, self.underlying(p))

    @torch.no_grad()
    def snap_(self) -> None:
        """Put every weight on its level for good (a rival's latents too)."""
        sites = self.weights()
        sharding.reshard([p for _, p, _ in sites])
        for _, p, site in sites:
            on_level = sharding.apply(self.method, "final", site, self.settled(p))
            p.copy_(on_level)
            if averages.KEY in site.memory:
                site.memory[averages.KEY].copy_(on_level)
            if self.underlying(p) is not p:
                self.underlying(p).copy_(on_level)

    # -- inner workings -----------------------------------------------------------------------------------------------

    def _managed(self) -> list[tuple[int, Group]]:
        return [(i, group) for i, group in enumerate(self.param_groups) if group.get("levels") is not None]

    def _check_times(self) -> None:
        """A fraction without total_steps is an error now, not in the middle of the run."""
        for clock in [self.clock] if self.total_steps is not None else [self.clock, Clock(sys.maxsize)]:
            self.annealing.value(clock, self.plateau)
            self.annealing.started(clock, self.plateau)

    def _completed(self, group: Group, position: int) -> Group:
        """The group with defaults filled in, checked; the group itself is left as it is."""
        full = {**self._options, **group}
        check_group(full, position)
        if full["levels"] is not None:
            warn_epsilon(self.annealing, full["levels"], position)
        return full

    def _begin(self, group: Group, position: int) -> None:
        """Set the value of a new group and, for latent methods, the forward weights; master copies for any group."""
        for p in group["params"]:
            self._make_master(p)
        if group["levels"] is None:
            return
        self._turn_dials(position, group, self.clock)
        for p in group["params"]:
            self._make_average(p)
        if not self.method.latent:
            return
        with torch.no_grad():
            for name, p in zip(labels(group), group["params"], strict=True):
                self._memory.setdefault(p, {}).setdefault("latent", p.detach().clone())
                site = self._site(p, name, group, position, self.clock, False)
                p.copy_(sharding.apply(self.method, "forward_weight", site, p))

    def _make_master(self, p: Tensor) -> None:
        """The float32 copy of a bfloat16 weight, with master=True, if there is none yet."""
        if self._master and p.dtype == torch.bfloat16 and "latent" not in self._memory.get(p, {}):
            self._memory.setdefault(p, {})["latent"] = p.detach().float()

    def _make_average(self, p: Tensor) -> None:
        """The running mean of a weight, if there is to be one and is none yet."""
        if self.average and averages.KEY not in self._memory.setdefault(p, {}):
            self._memory[p][averages.KEY] = averages.begin(p, self.underlying(p))

    def _restore_forward(self) -> None:
        """After loading latents: the forward weights that belong to them (random ones come with the model's file).

        Those that are there stay, to the bit, if they belong to them up to rounding: a fused step rounds otherwise.
        """
        if self.method.latent and not self.method.random:
            sites = self.weights()
            sharding.reshard([p for _, p, _ in sites])
            with torch.no_grad():
                for _, p, site in sites:
                    latent = site.memory["latent"]
                    seen = sharding.apply(self.method, "forward_weight", site, latent)
                    if sharding.is_sharded(p) or not self.method.belongs(p, seen, latent, site):
                        p.copy_(seen)

    def _restore_values(self) -> None:
        """After loading: the numbers as the last step before the checkpoint used them, and no others."""
        last = Clock(max(0, self.steps - 1), self.total_steps)
        self._number_dials.keep(self._numbers_at(last))
        self._set_dials(last)

    def _set_dials(self, clock: Clock) -> None:
        for position, group in self._managed():
            self._turn_dials(position, group, clock)

    def _turn_dials(self, position: int, group: Group, clock: Clock) -> None:
        """A group's value, and the method's numbers where the group's weights are."""
        devices = {p.device for p in group["params"]}
        self._values[position] = self._value_of(position, clock)
        self._value_dials.turn(position, self._values[position], devices)
        for name, number in self._numbers_at(clock).items():
            self._number_dials.turn(name, number, devices)

    def _value_of(self, position: int, clock: Clock) -> float:
        """A group's value at its turn; a schedule's epsilon counts in units of Theorem 1's bound, the group's own."""
        group = self.param_groups[position]
        bound = group["levels"].epsilon_bound if self.annealing.kind == "epsilon" else 1.0
        return self.annealing.in_turn(group.get("turn", 0.0), clock, self.plateau) * bound

    def _numbers_at(self, clock: Clock) -> dict[str, float]:
        """The method's numbers, and the rate of the running means."""
        own = {averages.KEY: averages.rate(self.average, clock)} if self.average else {}
        return {**self.method.numbers(clock), **own}

    def _site(self, p: Tensor, name: str, group: Group, position: int, now: Clock, freeze: bool) -> Site:
        memory = self._memory.setdefault(p, {})
        return (sharding.ShardedSite if sharding.is_sharded(p) else Site)(
            name=name,
            levels=group["levels"],
            scale_rule=(group["scale"], group["per"]),
            scale=self._scale(p, group, memory, freeze and self._freezes(now)),
            lr=group.get("lr", 1.0),
            alpha=group["alpha"],
            clip=self._clip(group),
            clamp=group["clamp"],
            value=self._value_dials.at(position, p.device),
            clock=now,
            memory=memory,
            numbers=self._number_dials.on(p.device),
            ascends=bool(group.get("maximize")),
            first_lr=group.get("initial_lr"),
        )

    def _clip(self, group: Group) -> float | Tensor:
        """M in level units."""
        return _quarter(group["levels"], group.get("lr", 1.0)) if group["clip"] == "quarter" else group["clip"]

    def _freezes(self, now: Clock) -> bool:
        """Adaptive scales stay as they are from now on."""
        return now.last or self.annealing.freezes_scales(now, self.plateau)

    def _scale(self, p: Tensor, group: Group, memory: dict[str, Tensor], freeze: bool) -> Tensor | None:
        """The scale follows the weights until the annealing (at the latest the last step) freezes it."""
        if group["scale"] == "none":
            return None
        if "scale" in memory:
            return memory["scale"]
        scale = sharding.scale_of(memory.get("latent", p), group["levels"], group["scale"], group["per"])
        if scale is not None and freeze:
            memory["scale"] = scale
        return scale

    def _step(self, closure: Closure | None) -> None:
        """The three hooks around the base's step; weights without a gradient stay, but for the run's last retract."""
        sites = self.weights(freeze=True)
        entered: list[tuple[Tensor, Site]] = []
        before = [self.underlying(p).detach().clone() if self.method.needs_before else None for _, p, _ in sites]
        plain = [p.grad for _, p, _ in sites]
        try:
            for _, p, site in sites:
                self._enter(p, site)
                entered.append((p, site))
            if closure is None:
                _unhooked_step(self.base)
            else:
                _unhooked_step(self.base, self._skewed(closure, sites))
            for (_, p, site), start, gradient in zip(sites, before, plain, strict=True):
                if gradient is not None or site.clock.last:
                    p.copy_(sharding.apply(self.method, "retract", site, p, start))
        finally:
            for (_, p, _), gradient in zip(sites, plain, strict=True):
                p.grad = gradient
            for p, site in entered:
                self._leave(p, site)

    def _enter(self, p: Tensor, site: Site) -> None:
        """Put the optimised weights and the skewed gradient where the base optimizer finds them."""
        w = self.underlying(p)
        if p.grad is not None:
            gradient = sharding.aligned(p.grad, p)
            direction = sharding.apply(self.method, "direction", site, -gradient if site.ascends else gradient, w)
            p.grad = -direction if site.ascends else direction
        if self.method.latent:
            p.copy_(w)

    def _leave(self, p: Tensor, site: Site) -> None:
        """Keep the optimised weights and show the network the forward ones."""
        if self.method.latent:
            latent = site.memory["latent"].copy_(p)
            site.follow(latent)
            p.copy_(sharding.apply(self.method, "forward_weight", site, latent))

    def _skewed(self, closure: Closure, sites: list[tuple[str, Tensor, Site]]) -> Closure:
        """The closure for bases that evaluate it themselves (LBFGS): at the forward weights, with skewed gradients."""

        def evaluate() -> Any:
            with torch.no_grad():
                for _, p, site in sites:
                    self._leave(p, site)
            try:
                with torch.enable_grad():
                    return closure()
            finally:
                with torch.no_grad():
                    for _, p, site in sites:
                        self._enter(p, site)

        return evaluate


def _quarter(levels: LevelSet, lr: float | Tensor) -> float | Tensor:
    """M = h / (4 lr) with h the smallest gap; h itself while lr = 0, where no M moves a weight."""
    h = levels.min_gap
    if isinstance(lr, Tensor):
        return torch.where(lr > 0, h / (4 * lr), h)
    return h / (4 * lr) if lr > 0 else h


@cache
def _needs_closure(kind: type[Optimizer]) -> bool:
    """True for optimizers such as LBFGS whose step has no default for its closure."""
    step = getattr(kind.step, "__wrapped__", kind.step)
    closure = inspect.signature(step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _unhooked_step(base: Optimizer, *arguments: Any) -> None:
    """The base's step without its hooks: they are shared with the wrapper and fire there, once."""
    step = type(base).step
    bare = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
    bare(base, *arguments)
