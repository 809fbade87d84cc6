"""Schedules: the paper's numbers, steps and fractions, end points, memory, validation, descriptions."""

import json
import math
from dataclasses import FrozenInstanceError
from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from askew.core import Annealing, Clock, Constant, Custom, Exponential, LevelFirst, Logarithmic, Plateau
from askew.core.annealing import SCHEDULES, Unannealed, from_description

SAMPLES: list[Annealing] = [
    Constant(0.3),
    Unannealed(),
    Exponential(K=0.8, start=0.25, period=10, initial=2.0),
    Exponential(),
    Logarithmic(0.5, 1e-4, 100, 900),
    Logarithmic(),
    Plateau(0.3, 4, 1e-3, 0.7, 1e-2),
    LevelFirst(start=10, end=90, power=0.5, by="quantile"),
    LevelFirst(dither=True),
    LevelFirst(stagger=0.5),
    LevelFirst(reversible=True),
    LevelFirst(),
]

# -- Clock ------------------------------------------------------------------------------------------------------------


def test_clock() -> None:
    assert Clock(3, 100).at(7, "start") == 7.0
    assert Clock(3, 100).at(0.25, "start") == 25.0
    assert Clock(3).at(7, "start") == 7.0
    assert [Clock(step, 100).last for step in (0, 98, 99, 100)] == [False, False, True, True]
    assert not Clock(10**9).last


def test_a_fraction_needs_the_length_of_the_run() -> None:
    with pytest.raises(ValueError, match=r"start=0\.5 .* give total_steps"):
        Clock(3).at(0.5, "start")
    for schedule in (Exponential(), Logarithmic(), LevelFirst()):
        with pytest.raises(ValueError, match=r"start=0\.5 is a fraction of the run: give total_steps"):
            schedule.value(Clock(0))
        with pytest.raises(ValueError, match=r"start=0\.5"):
            schedule.started(Clock(0))
    with pytest.raises(ValueError, match=r"period=0\.01"):
        Exponential(start=5).value(Clock(6))
    for schedule in (Logarithmic(start=5), LevelFirst(start=5)):
        with pytest.raises(ValueError, match=r"end="):
            schedule.value(Clock(0))
    with pytest.raises(ValueError, match=r"'mine'.*total_steps"):
        Custom(lambda f: 1.0, "mine").value(Clock(0))
    assert Constant().value(Clock(0)) == 1.0
    assert Exponential(start=5, period=1).value(Clock(7)) == pytest.approx(0.88**2)


# -- the paper's numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps_per_epoch", [1, 7, 500])
def test_the_paper_s_cifar_schedule(steps_per_epoch: int) -> None:
    """100 epochs, K = .88: epoch 49 -> 1, 65 -> .147, 90 -> .0060, constant within each epoch."""
    schedule = Exponential(K=0.88, start=0.5, period=0.01)
    total = 100 * steps_per_epoch

    def at(epoch: int) -> float:
        first = schedule.value(Clock(epoch * steps_per_epoch, total))
        assert schedule.value(Clock((epoch + 1) * steps_per_epoch - 1, total)) == first
        return first

    assert [at(epoch) for epoch in (0, 25, 49, 50)] == [1.0, 1.0, 1.0, 1.0]
    assert at(51) == pytest.approx(0.88)
    assert at(65) == pytest.approx(0.147, abs=5e-4)
    assert at(90) == pytest.approx(0.0060, abs=5e-5)
    for epoch in range(50, 100):
        assert at(epoch) == pytest.approx(0.88 ** (epoch - 50), rel=1e-12)
    assert not schedule.started(Clock(50 * steps_per_epoch - 1, total))
    assert schedule.started(Clock(50 * steps_per_epoch, total))


def test_exponential_in_plain_steps_has_no_end() -> None:
    schedule = Exponential(K=0.5, start=10, period=3, initial=0.8)
    values = [schedule.value(Clock(step)) for step in (0, 9, 10, 12, 13, 15, 16, 100)]
    assert values == [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.8 * 0.5**30]


@given(total=st.integers(1, 500), part=st.integers(0, 100), period=st.integers(1, 20), K=st.floats(0.1, 0.99))
def test_fractions_equal_steps(total: int, part: int, period: int, K: float) -> None:
    """total is a multiple of 100, so that every percent is a whole number of steps."""
    run = 100 * total
    by_fraction = Exponential(K, part / 100, period / 100)
    by_step = Exponential(K, part * total, period * total)
    pairs = [(by_fraction, by_step)]
    if part < 99:
        pairs.append((Logarithmic(start=part / 100, end=0.99), Logarithmic(start=part * total, end=99 * total)))
        pairs.append((LevelFirst(start=part / 100, end=0.99), LevelFirst(start=part * total, end=99 * total)))
        pairs.append((LevelFirst(start=part / 100, end=0.99), LevelFirst(start=part * total, end=0.99)))
    edges = {0, part * total, (part + period) * total, 99 * total, run - 1, run}
    for step in sorted(s for e in edges for s in (e - 1, e, e + 1) if 0 <= s <= run):
        for fraction, steps in pairs:
            assert fraction.value(Clock(step, run)) == pytest.approx(steps.value(Clock(step, run)), rel=1e-9, abs=1e-12)


# -- the other shapes -------------------------------------------------------------------------------------------------


def test_constant() -> None:
    assert {Constant(0.3).value(Clock(step, 100)) for step in (0, 50, 1000)} == {0.3}
    assert Constant(0.3).started(Clock(0))
    assert Constant(0.3).largest() == 0.3


def test_unannealed_never_starts() -> None:
    assert {Unannealed().value(Clock(step, 100)) for step in (0, 50, 1000)} == {1.0}
    assert not any(Unannealed().started(Clock(step, 100)) for step in (0, 99, 1000))
    assert Unannealed().largest() == 1.0


def test_logarithmic_end_points_and_middle() -> None:
    schedule = Logarithmic(initial=0.5, final=5e-5, start=0.2, end=0.8)
    assert [schedule.value(Clock(step, 1000)) for step in (0, 199, 200)] == [0.5, 0.5, 0.5]
    assert schedule.value(Clock(500, 1000)) == pytest.approx(math.sqrt(0.5 * 5e-5), rel=1e-12)
    assert schedule.value(Clock(800, 1000)) == pytest.approx(5e-5, rel=1e-12)
    assert schedule.value(Clock(2000, 1000)) == pytest.approx(5e-5, rel=1e-12)
    values = [schedule.value(Clock(step, 1000)) for step in range(200, 801)]
    ratios = [b / a for a, b in pairwise(values)]
    assert max(ratios) == pytest.approx(min(ratios), rel=1e-9)  # each step by the same factor
    assert max(ratios) < 1
    assert not schedule.started(Clock(199, 1000))
    assert schedule.started(Clock(200, 1000))


@given(
    start=st.floats(0, 0.8),
    way=st.floats(0.05, 0.2),
    power=st.floats(0.2, 4.0),
    total=st.integers(20, 2000),
)
def test_level_first_grows_from_zero_to_one(start: float, way: float, power: float, total: int) -> None:
    schedule = LevelFirst(start=start, end=start + way, power=power)
    steps = range(0, total + 1, max(1, total // 200))
    values = [schedule.value(Clock(step, total)) for step in steps]
    assert values == sorted(values)
    for step, value in zip(steps, values, strict=True):
        f = (step / total - start) / way
        assert value ** (1 / power) == pytest.approx(min(1.0, max(0.0, f)), abs=1e-9)
        if step < start * total:
            assert value == 0.0
            assert not schedule.started(Clock(step, total))
        if step >= (start + way) * total:
            assert value == 1.0
            assert schedule.started(Clock(step, total))


def test_level_first_as_measured() -> None:
    """t = 1 - (f - f0)/(.97 - f0): the radius is 1 - t."""
    schedule = LevelFirst(start=0.5)
    assert schedule.kind == "capture"
    assert schedule.largest() == 1.0
    assert schedule.default_alpha == 0.05
    assert [schedule.value(Clock(step, 100)) for step in (0, 50, 97, 99)] == [0.0, 0.0, 1.0, 1.0]
    assert schedule.value(Clock(60, 100)) == pytest.approx(0.1 / 0.47)
    assert LevelFirst(start=0.5, power=0.5).value(Clock(60, 100)) == pytest.approx(math.sqrt(0.1 / 0.47))


@given(stagger=st.floats(0, 0.95), turn=st.floats(0, 1), power=st.floats(0.3, 3.0), step=st.integers(0, 100))
def test_level_first_in_turn(stagger: float, turn: float, power: float, step: int) -> None:
    """Later turns lag behind, the first begins at the start, all are through at the end; no stagger, no difference."""
    schedule = LevelFirst(start=0.2, end=0.9, power=power, stagger=stagger)
    clock, f = Clock(step, 100), min(1.0, max(0.0, (step - 20) / 70))
    expected = min(1.0, max(0.0, (f - stagger * turn) / (1 - stagger))) ** power
    assert schedule.in_turn(turn, clock) == pytest.approx(expected, abs=1e-12)
    assert schedule.in_turn(1.0, clock) <= schedule.in_turn(turn, clock) <= schedule.value(clock)
    assert schedule.value(clock) == schedule.in_turn(0.0, clock)
    plain = LevelFirst(start=0.2, end=0.9, power=power)
    assert plain.in_turn(turn, clock) == plain.value(clock)
    assert schedule.in_turn(turn, Clock(20, 100)) == 0.0 and schedule.in_turn(turn, Clock(90, 100)) == 1.0


def test_a_plateau_has_started_when_epsilon_has_fallen() -> None:
    schedule, memory = Plateau(patience=1), Plateau(patience=1).fresh()
    assert not schedule.started(Clock(100)) and not schedule.started(Clock(100), memory)
    memory = schedule.report(schedule.report(memory, 1.0), 1.0)
    assert memory["falls"] == 1 and schedule.started(Clock(0), memory)


def test_a_stagger_of_zero_is_not_told() -> None:
    assert "stagger" not in LevelFirst().describe() and LevelFirst(stagger=0.5).describe()["stagger"] == 0.5


def test_reversible_capture_freezes_no_scales_and_is_not_told_where_it_is_not_asked_for() -> None:
    schedule = LevelFirst(start=0.2, end=0.7, reversible=True)
    assert [schedule.freezes_scales(Clock(step, 100)) for step in (20, 69, 70, 98)] == [False] * 4
    assert LevelFirst(start=0.2, end=0.7).freezes_scales(Clock(20, 100))
    assert [schedule.started(Clock(step, 100)) for step in (19, 20)] == [False, True]
    assert schedule.value(Clock(45, 100)) == LevelFirst(start=0.2, end=0.7).value(Clock(45, 100)) == 0.5
    assert "reversible" not in LevelFirst().describe() and schedule.describe()["reversible"]
    assert from_description(schedule.describe()) == schedule


def test_a_step_and_a_fraction_in_the_wrong_order_are_found_out() -> None:
    """start and end of different kinds can only be compared once the length of the run is known."""
    for schedule in (LevelFirst(start=60, end=0.5), Logarithmic(start=60, end=0.5), LevelFirst(start=50, end=0.5)):
        for step in (0, 10, 49, 50, 55, 99):
            with pytest.raises(ValueError, match="end must come after start"):
                schedule.value(Clock(step, 100))
    assert LevelFirst(start=60, end=0.5).value(Clock(80, 200)) == 0.5


def test_custom_is_a_function_of_the_fraction_done() -> None:
    schedule = Custom(lambda f: 1 - f / 2, "half", start=0.25)
    assert [schedule.value(Clock(step, 100)) for step in (0, 50, 100, 900)] == [1.0, 0.75, 0.5, 0.5]
    assert [schedule.started(Clock(step, 100)) for step in (24, 25)] == [False, True]
    assert schedule.largest() == math.inf
    assert schedule.describe() == {"schedule": "Custom", "name": "half", "start": 0.25}
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=r"'bad' at step 3 must be positive"):
            Custom(lambda f, bad=bad: bad, "bad").value(Clock(3, 100))


@pytest.mark.parametrize("schedule", SAMPLES, ids=str)
def test_values_never_rise_for_epsilon_and_never_fall_for_capture(schedule: Annealing) -> None:
    values = [schedule.value(Clock(step, 1000)) for step in range(1000)]
    assert values == sorted(values, reverse=schedule.kind == "epsilon")
    assert max(values) <= schedule.largest()
    assert min(values) >= 0
    if schedule.kind == "epsilon":
        assert values[0] == schedule.largest()
        assert min(values) > 0
    tightened = [v != values[0] for v in values]
    for step, changed in enumerate(tightened):
        if changed:
            assert schedule.started(Clock(step, 1000))


# -- Plateau ----------------------------------------------------------------------------------------------------------


def test_plateau_by_hand() -> None:
    schedule = Plateau(factor=0.5, patience=2, threshold=0.1, initial=0.8, final=0.15)
    memory = schedule.fresh()
    seen = []
    for metric in (5.0, 4.0, 3.95, 3.0, 2.95, 2.92, 9.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0):
        memory = schedule.report(memory, metric)
        seen.append(schedule.value(Clock(0), memory))
    # better, better, stale, better, stale, stale: falls and forgets the best; better, better, stale, stale: falls; ...
    assert seen == [0.8] * 5 + [0.4] * 4 + [0.2] * 3 + [0.15] * 2
    assert schedule.value(Clock(0)) == 0.8


@given(
    metrics=st.lists(st.floats(-10, 10), max_size=60),
    patience=st.integers(1, 5),
    threshold=st.floats(0, 1),
    factor=st.floats(0.1, 0.9),
)
def test_plateau_is_a_pure_function_of_its_memory(
    metrics: list[float], patience: int, threshold: float, factor: float
) -> None:
    schedule = Plateau(factor, patience, threshold, 1.0, 1e-2)
    memory = schedule.fresh()
    best, stale, value, falls = math.inf, 0, 1.0, 0
    for metric in metrics:
        before = dict(memory)
        after = schedule.report(memory, metric)
        assert memory == before
        assert schedule.report(memory, metric) == after
        if metric < best - threshold:
            best, stale = metric, 0
        else:
            stale += 1
            if stale == patience:
                best, stale, value, falls = math.inf, 0, max(1e-2, value * factor), falls + 1
        memory = json.loads(json.dumps(after))  # as a checkpoint keeps it
        assert memory == {"value": value, "best": best, "stale": stale, "falls": falls}
        assert schedule.value(Clock(3), memory) == value
    assert value >= 1e-2


def test_plateau_refuses_what_is_no_metric() -> None:
    schedule = Plateau()
    for metric in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="metric must be finite"):
            schedule.report(schedule.fresh(), metric)


# -- validation -------------------------------------------------------------------------------------------------------

BAD_POINTS = [-1, -0.5, 1.5, math.nan, math.inf, True, "half", None]
FORMS = ("dither", "rounded", "reversible")
BAD_SIZES = [0.0, -1.0, math.nan, math.inf]
INVALID: list[tuple[type[Annealing], dict[str, Any], str]] = [
    *[(Constant, {"initial": x}, r"Constant\(initial\)") for x in BAD_SIZES],
    *[(Exponential, {"start": x}, r"Exponential\(start\)") for x in BAD_POINTS],
    *[(Exponential, {"period": x}, r"Exponential\(period\)") for x in [0, 0.0, *BAD_POINTS]],
    *[(Exponential, {"initial": x}, r"Exponential\(initial\)") for x in BAD_SIZES],
    *[(Exponential, {"K": x}, r"Exponential\(K\)") for x in (0.0, 1.0, -0.5, 2.0, math.nan)],
    *[(Logarithmic, {"start": x}, r"Logarithmic\(start\)") for x in BAD_POINTS],
    *[(Logarithmic, {"end": x}, r"Logarithmic\(end\)") for x in BAD_POINTS],
    *[(Logarithmic, {"final": x}, r"final") for x in [*BAD_SIZES, 1.0, 2.0]],
    *[(Logarithmic, {"initial": x}, r"initial") for x in [*BAD_SIZES, 1e-3]],
    (Logarithmic, {"start": 0.9, "end": 0.9}, r"end must come after start"),
    (Logarithmic, {"start": 90, "end": 80}, r"end must come after start"),
    *[(Plateau, {"initial": x}, r"Plateau\(initial\)") for x in BAD_SIZES],
    *[(Plateau, {"final": x}, r"Plateau\(final\)") for x in BAD_SIZES],
    (Plateau, {"initial": 0.5, "final": 0.6}, r"Plateau: final must not exceed initial"),
    *[(Plateau, {"factor": x}, r"Plateau\(factor\)") for x in (0.0, 1.0, -1.0, math.nan)],
    *[(Plateau, {"patience": x}, r"Plateau\(patience\)") for x in (0, -1, math.nan, 2.5, True)],
    *[(Plateau, {"threshold": x}, r"Plateau\(threshold\)") for x in (-1e-3, math.nan, math.inf)],
    *[(Custom, {"start": x}, r"Custom\(start\)") for x in BAD_POINTS],
    (Custom, {"function": 3.0}, r"Custom\(function\)"),
    *[(LevelFirst, {"start": x}, r"LevelFirst\(start\)") for x in BAD_POINTS],
    *[(LevelFirst, {"end": x}, r"LevelFirst\(end\)") for x in BAD_POINTS],
    *[(LevelFirst, {"power": x}, r"LevelFirst\(power\)") for x in BAD_SIZES],
    *[(LevelFirst, {"stagger": x}, r"LevelFirst\(stagger\)") for x in (-0.1, 1.0, math.nan)],
    *[(LevelFirst, dict.fromkeys(two, True), "choose one") for two in combinations(FORMS, 2)],
    (LevelFirst, {"by": "rank"}, r"LevelFirst\(by\).*'rank'"),
    (LevelFirst, {"start": 0.97}, r"end must come after start"),
    (LevelFirst, {"start": 90, "end": 90}, r"end must come after start"),
]


@pytest.mark.parametrize(("kind", "arguments", "names"), INVALID, ids=lambda x: getattr(x, "__name__", str(x)))
def test_every_invalid_argument_is_named(kind: type[Annealing], arguments: dict[str, Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        kind(**arguments)


def test_the_border_cases_that_are_valid() -> None:
    assert Exponential(start=0, period=1).value(Clock(2)) == pytest.approx(0.88**2)
    assert Exponential(start=1.0).value(Clock(99, 100)) == 1.0
    assert LevelFirst(start=0, end=1).value(Clock(1)) == 1.0
    assert LevelFirst(start=0.0, end=1.0).value(Clock(50, 100)) == 0.5
    assert Plateau(threshold=0.0, initial=1e-3).initial == Plateau().final


def test_schedules_are_frozen_and_hashable() -> None:
    for schedule in SAMPLES:
        assert hash(schedule) == hash(from_description(schedule.describe()))
        with pytest.raises(FrozenInstanceError):
            schedule.initial = 3.0  # pyright: ignore[reportAttributeAccessIssue]


# -- descriptions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SAMPLES, ids=str)
def test_describe_and_back_through_json(schedule: Annealing) -> None:
    back = from_description(json.loads(json.dumps(schedule.describe())))
    assert back == schedule
    assert type(back) is type(schedule)
    for key, value in schedule.describe().items():  # 1 and 1.0 mean different things: steps and fractions
        if key != "schedule":
            assert type(getattr(back, key)) is type(value)


def test_descriptions_of_every_schedule_but_custom() -> None:
    assert {type(s).__name__ for s in SAMPLES} == set(SCHEDULES)
    for unknown in ({"schedule": "Custom"}, {"schedule": "Linear"}, {}):
        with pytest.raises(ValueError, match=r"no schedule named .* known: Constant"):
            from_description(unknown)


def test_a_description_with_an_unknown_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="inital"):
        from_description({"schedule": "Constant", "inital": 0.5})


def test_the_base_class_has_no_value() -> None:
    with pytest.raises(NotImplementedError):
        Annealing().value(Clock(0))
    with pytest.raises(NotImplementedError):
        Annealing().started(Clock(0))
