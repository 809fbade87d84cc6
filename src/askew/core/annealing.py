"""Annealing schedules: how far the run has come -> how tight the constraint is.

Frozen dataclasses without state. Points in time are fractions of the run (float) or optimizer steps (int); fractions
need the run's length. An epsilon schedule gives eps in units of Theorem 1's bound (min gap^4 / 16), so the same
schedule serves every level set: 1 is where intervals part (eps = 1 for {-1, +1}, 1/16 for unit spacing).
A capture schedule (level-first) gives the capture radius in half gaps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Literal

Kind = Literal["epsilon", "capture"]


@dataclass(frozen=True)
class Clock:
    """Position in a run: `step` optimizer steps done before this one, of `total` (None: unknown)."""

    step: int
    total: int | None = None

    def at(self, point: float | int, what: str) -> float:
        """A point in time in steps: an int as it is, a float as a fraction of the run."""
        if isinstance(point, int):
            return float(point)
        if self.total is None:
            raise ValueError(
                f"{what}={point} is a fraction of the run: give total_steps (or give {what} in steps, int)"
            )
        return point * self.total

    @property
    def last(self) -> bool:
        """True at the last step of a run of known length and ever after."""
        return self.total is not None and self.step + 1 >= self.total


def check_point(point: float | int, what: str) -> None:
    """Raise a ValueError unless the point is a number of steps (int) or a fraction of the run (float)."""
    if isinstance(point, bool) or not isinstance(point, (int, float)) or not math.isfinite(point) or point < 0:
        raise ValueError(f"{what} must be a number of steps (int) or a fraction of the run (float), got {point!r}")
    if isinstance(point, float) and point > 1:
        raise ValueError(f"{what}={point} as a fraction of the run must lie in [0, 1]; for steps give an int")


def check_positive(value: float, what: str) -> None:
    """Raise a ValueError unless the value is positive and finite."""
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{what} must be positive and finite, got {value}")


@dataclass(frozen=True)
class Annealing:
    """Base of all schedules: `value` and `started` at a clock; `kind` says what the value means."""

    kind: ClassVar[Kind] = "epsilon"
    default_alpha: ClassVar[float] = 0.2

    def value(self, clock: Clock, memory: dict[str, float] | None = None) -> float:
        raise NotImplementedError

    def in_turn(self, turn: float, clock: Clock, memory: dict[str, float] | None = None) -> float:
        """The value for a group whose turn among all is `turn`, 0 for the first, 1 for the last."""
        return self.value(clock, memory)

    def started(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        """True once the schedule has begun to tighten."""
        raise NotImplementedError

    def freezes_scales(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        """True from the moment on after which adaptive scales no longer follow the weights."""
        return self.started(clock, memory)

    def describe(self) -> dict[str, Any]:
        """Plain values that identify the schedule in records and state dicts."""
        return {"schedule": type(self).__name__} | {k: v for k, v in asdict(self).items() if not callable(v)}

    def largest(self) -> float:
        """The largest value the schedule can take (inf if unknown), for the check against Theorem 1."""
        return float(getattr(self, "initial", math.inf))


@dataclass(frozen=True)
class Constant(Annealing):
    """eps = initial for the whole run: one problem P_eps, as in Theorem 1."""

    initial: float = 1.0

    def __post_init__(self) -> None:
        check_positive(self.initial, "Constant(initial)")

    def value(self, clock: Clock, memory: dict[str, float] | None = None) -> float:
        return self.initial

    def started(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        return True


@dataclass(frozen=True)
class Unannealed(Annealing):
    """No schedule: what methods other than ASkew run with; an adaptive scale follows the weights to the last step."""

    def value(self, clock: Clock, memory: dict[str, float] | None = None) -> float:
        return 1.0

    def started(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        return False

    def largest(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Exponential(Annealing):
    """The paper's schedule: eps = initial until `start`, then initial * K^t, t whole periods since the start.

    Its CIFAR-10 runs: 100 epochs, K = .88, start = .5, period = .01 (one epoch).
    """

    K: float = 0.88
    start: float | int = 0.5
    period: float | int = 0.01
    initial: float = 1.0

    def __post_init__(self) -> None:
        check_point(self.start, "Exponential(start)")
        check_point(self.period, "Exponential(period)")
        check_positive(self.period, "Exponential(period)")
        check_positive(self.initial, "Exponential(initial)")
        if not 0 < self.K < 1:
            raise ValueError(f"Exponential(K) must lie in (0, 1), got {self.K}")

    def value(self, clock: Clock, memory: dict[str, float] | None = None) -> float:
        since = clock.step - clock.at(self.start, "start")
        if since < 0:
            return self.initial
        return self.initial * self.K ** math.floor(since / clock.at(self.period, "period") + 1e-9)

    def started(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        return clock.step >= clock.at(self.start, "start")


@dataclass(frozen=True)
class Logarithmic(Annealing):
    """log eps falls linearly from log initial at `start` to log final at `end`, step by step."""

    initial: float = 1.0
    final: float = 1e-3
    start: float | int = 0.5
    end: float | int = 1.0

    def __post_init__(self) -> None:
        check_point(self.start, "Logarithmic(start)")
        check_point(self.end, "Logarithmic(end)")
        check_positive(self.final, "Logarithmic(final)")
        if not self.final < self.initial < math.inf:
            raise ValueError(f"Logarithmic: final must lie below initial, got {self.initial} -> {self.final}")
        if type(self.start) is type(self.end) and self.end <= self.start:
            raise ValueError(f"Logarithmic: end must come after start, got {self.start} .. {self.end}")

    def value(self, clock: Clock, memory: dict[str, float] | None = None) -> float:
        return self.initial * (self.final / self.initial) ** _ramp(clock, self.start, self.end)

    def started(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        return clock.step >= clock.at(self.start, "start")


@dataclass(frozen=True)
class Plateau(Annealing):
    """The paper's other form: keep eps until a metric (lower is better) stops improving, then eps <- factor * eps.

    Call `optimizer.report(metric)` once a look. eps falls after `patience` looks in a row that do not improve the best
    one since the last fall by more than `threshold`; it never falls below `final`.
    """

    factor: float = 0.5
    patience: int = 2
    threshold: float = 1e-4
    initial: float = 1.0
    final: float = 1e-3

    def __post_init__(self) -> None:
        check_positive(self.initial, "Plateau(initial)")
        check_positive(self.final, "Plateau(final)")
        if not 0 < self.factor < 1:
            raise ValueError(f"Plateau(factor) must lie in (0, 1), got {self.factor}")
        if self.final > self.initial:
            raise ValueError(f"Plateau: final must not exceed initial, got {self.initial} -> {self.final}")
        if isinstance(self.patience, bool) or not isinstance(self.patience, int) or self.patience < 1:
            raise ValueError(f"Plateau(patience) must be a whole number of at least 1, got {self.patience!r}")
        if not 0 <= self.threshold < math.inf:
            raise ValueError(f"Plateau(threshold) must be finite and not negative, got {self.threshold}")

    def fresh(self) -> dict[str, float]:
        """The memory before the first look."""
        return {"value": self.initial, "best": math.inf, "stale": 0.0, "falls": 0.0}

    def report(self, memory: dict[str, float], metric: float) -> dict[str, float]:
        """The memory after one more look; pure."""
        if not math.isfinite(metric):
            raise ValueError(f"Plateau: the reported metric must be finite, got {metric}")
        if metric < memory["best"] - self.threshold:
            return memory | {"best": metric, "stale": 0.0}
        if memory["stale"] + 1 < self.patience:
            return memory | {"stale": memory["stale"] + 1}
        lower = max(self.final, memory["value"] * self.factor)
        return {"value": lower, "best": math.inf, "stale": 0.0, "falls": memory["falls"] + 1}

    def value(self, clock: Clock, memory: dict[str, float] | None = None) -> float:
        return (memory or self.fresh())["value"]

    def started(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        return (memory or self.fresh())["falls"] > 0


@dataclass(frozen=True)
class Custom(Annealing):
    """Any function of the fraction of the run done, in [0, 1], giving eps in units of Theorem 1's bound.

    `name` stands for the function in records and state dicts; a resumed run must bring the same one.
    """

    function: Callable[[float], float] = field(default=lambda progress: 1.0)
    name: str = "custom"
    start: float | int = 0.0

    def __post_init__(self) -> None:
        check_point(self.start, "Custom(start)")
        if not callable(self.function):
            raise ValueError(f"Custom(function) must be callable, got {self.function!r}")

    def value(self, clock: Clock, memory: dict[str, float] | None = None) -> float:
        if clock.total is None:
            raise ValueError(f"Custom schedule {self.name!r} is a function of the fraction done: give total_steps")
        value = float(self.function(min(1.0, clock.step / clock.total)))
        check_positive(value, f"Custom schedule {self.name!r} at step {clock.step}")
        return value

    def started(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        return clock.step >= clock.at(self.start, "start")


@dataclass(frozen=True)
class LevelFirst(Annealing):
    """Level-first annealing: weights near a level are captured first, weights near a midpoint stay free longest.

    With f the part of the way from `start` to `end`, the radius grows from 0 to 1 half gap as f^power (by="radius"), or
    the part f^power of each tensor's weights is captured, nearest to a level first (by="quantile"). After `end` all
    are captured and drawn in; at the last step of the run whatever is left lands exactly on its level.

    dither: the network computes with each weight rounded at random to a neighbouring level (mean w, so the noise dies
    out as weights reach their levels); the weights themselves are then a second copy. `askew paper two-moons`
    shows what it does there.

    rounded: the network computes with each weight at its nearest level from the first step on, and the gradient there
    is passed straight through to the weight (a second copy); capture then ends the wandering of weights between two
    levels. For two bits and more, where what a net of real weights learns says less about the rounded one.

    reversible: a captured weight may leave again. The network computes with captured weights at their levels and with
    the others as they are; the optimizer goes on with a second copy that no level holds, its gradient that at the
    shown weights. So signs may change until the end of the run, where plain level-first settles them at the first
    touch; adaptive scales follow the weights to the last step, for weight decay goes on too.

    stagger: layers are captured one after another, so that those still free adapt to those captured. A group whose
    `turn` is 0 begins at once, one whose turn is 1 after this part of the way; each then takes the rest of it:
    f_turn = (f - stagger turn) / (1 - stagger), between 0 and 1. `groups(..., in_turn=True)` makes a group of each
    weight, its turn by its place in the net.
    """

    kind: ClassVar[Kind] = "capture"
    default_alpha: ClassVar[float] = 0.05

    start: float | int = 0.5
    end: float | int = 0.97
    power: float = 1.0
    by: Literal["radius", "quantile"] = "radius"
    dither: bool = False
    rounded: bool = False
    stagger: float = 0.0
    reversible: bool = False

    def __post_init__(self) -> None:
        check_point(self.start, "LevelFirst(start)")
        check_point(self.end, "LevelFirst(end)")
        check_positive(self.power, "LevelFirst(power)")
        if self.dither + self.rounded + self.reversible > 1:
            raise ValueError(
                "LevelFirst: with dither the network computes with levels drawn at random, with rounded at the nearest "
                "ones, with reversible at those of captured weights alone; choose one"
            )
        if not 0 <= self.stagger < 1:
            raise ValueError(f"LevelFirst(stagger) must lie in [0, 1), got {self.stagger!r}")
        if self.by not in ("radius", "quantile"):
            raise ValueError(f"LevelFirst(by) must be 'radius' or 'quantile', got {self.by!r}")
        if type(self.start) is type(self.end) and self.end <= self.start:
            raise ValueError(f"LevelFirst: end must come after start, got {self.start} .. {self.end}")

    def value(self, clock: Clock, memory: dict[str, float] | None = None) -> float:
        return self.in_turn(0.0, clock, memory)

    def in_turn(self, turn: float, clock: Clock, memory: dict[str, float] | None = None) -> float:
        f = (_ramp(clock, self.start, self.end) - self.stagger * turn) / (1 - self.stagger)
        return min(1.0, max(0.0, f)) ** self.power

    def describe(self) -> dict[str, Any]:
        """Without a stagger of 0 and reversible=False, as it was before there were these."""
        return {k: v for k, v in super().describe().items() if k not in ("stagger", "reversible") or v}

    def started(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        return clock.step >= clock.at(self.start, "start")

    def freezes_scales(self, clock: Clock, memory: dict[str, float] | None = None) -> bool:
        """When capture begins; a reversible one holds nothing, so its scales follow to the end of the run."""
        return not self.reversible and self.started(clock, memory)

    def largest(self) -> float:
        return 1.0


def _ramp(clock: Clock, start: float | int, end: float | int) -> float:
    """0 before start, 1 after end, linear between."""
    first, last = clock.at(start, "start"), clock.at(end, "end")
    if last <= first:  # one in steps, the other a fraction: only now can they be compared
        raise ValueError(f"end must come after start, got steps {first:g} .. {last:g} of {clock.total}")
    if clock.step >= last:
        return 1.0
    return max(0.0, (clock.step - first) / (last - first))


SCHEDULES: dict[str, type[Annealing]] = {
    c.__name__: c for c in (Constant, Unannealed, Exponential, Logarithmic, Plateau, LevelFirst)
}


def from_description(description: dict[str, Any]) -> Annealing:
    """The schedule that `describe` described (not for Custom: a function does not travel in a file)."""
    kind = SCHEDULES.get(description.get("schedule", ""))
    if kind is None:
        raise ValueError(f"no schedule named {description.get('schedule')!r}; known: {', '.join(SCHEDULES)}")
    arguments = {k: v for k, v in description.items() if k != "schedule"}
    unknown = arguments.keys() - {f.name for f in fields(kind)}
    if unknown:
        raise ValueError(f"schedule {kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**arguments)
