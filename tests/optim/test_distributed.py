"""More than one process: DDP and FSDP2 (weights cut over processes) train as one process does on the whole batch.

Two gloo processes are started once and do all the TASKS; the tests compare what both brought back with one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from optim_kit import BASES, differing, frozen_copy
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from two_processes import RANKS, all_done, brought_back, close, result

import askew
from askew.core import Annealing, Exponential, LevelFirst, LevelSet, scale_of
from askew.methods.base import Method, Site
from askew.methods.registry import method
from askew.optim import MethodOptimizer
from askew.optim.checks import NonFiniteGradientError

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed with gloo"
)
STEPS = 12
MIDDLE = 7  # scales are frozen from step 4 on; here most weights are not on a level yet
BATCH = 8


class Uneven(nn.Module):
    """5, 3 and 1 output channels: over two processes the shards are uneven, and the last one of `out` is empty."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(1, 5, 3, bias=False)
            self.fc = nn.Linear(20, 3)
            self.out = nn.Linear(3, 1)
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.conv(x)).flatten(1)
        return self.out(torch.tanh(self.fc(h)))


class Centred(Method):
    """A user's method that looks at the whole tensor: each step ends at mean zero."""

    name = "centred"

    def retract(self, w: Tensor, before: Tensor | None, site: Site) -> Tensor:
        return w - w.mean()


class Case(NamedTuple):
    """One setting of a run."""

    annealing: Annealing | None
    levels: LevelSet
    scale: str = "none"
    per: str = "tensor"
    base: str = "sgd"
    method: str | None = None
    options: dict[str, Any] = {}  # noqa: RUF012
    dtype: torch.dtype = torch.float64
    average: float = 0.0


FIRST = LevelFirst(start=0.34, end=0.9)
SHRINK = Exponential(K=0.7, start=4, period=1)
INT2, TWO, THREE = askew.uniform(2), askew.binary(), askew.ternary()
CASES = {
    "level-first": Case(FIRST, TWO, base="adam"),
    "level-first mean": Case(FIRST, THREE, "abs-mean"),
    "level-first mean channel": Case(FIRST, TWO, "abs-mean", "channel", "adam"),
    "level-first sawb": Case(FIRST, INT2, "sawb", base="adam"),
    "level-first sawb channel": Case(FIRST, INT2, "sawb", "channel"),
    "exponential": Case(SHRINK, TWO),
    "exponential mean": Case(SHRINK, TWO, "abs-mean", base="adam"),
    "exponential sawb": Case(SHRINK, INT2, "sawb"),
    "exponential sawb channel": Case(SHRINK, INT2, "sawb", "channel"),
}
FLOAT32 = CASES["level-first sawb"]._replace(dtype=torch.float32, base="sgd")
SHARDED = CASES | {
    "quantile sawb": Case(LevelFirst(start=0.34, end=0.9, by="quantile"), INT2, "sawb"),
    "quantile channel": Case(LevelFirst(start=0.34, end=0.9, by="quantile"), THREE, "abs-mean", "channel", "adam"),
    "dithered sawb": Case(LevelFirst(start=0.34, end=0.9, dither=True), INT2, "sawb"),
    "binaryconnect mean": Case(None, TWO, "abs-mean", method="binaryconnect"),
    "binaryconnect channel": Case(None, INT2, "sawb", "channel", method="binaryconnect"),
    "adaste": Case(None, TWO, "abs-mean", method="adaste", options={"period": 0.1}),
    "md-tanh": Case(None, THREE, "abs-mean", method="md-tanh", options={"beta": 3.0}),
    "proxquant": Case(None, TWO, "sawb", "channel", method="proxquant", options={"rate": 1.0, "period": 0.1}),
    "sphere": Case(None, TWO, base="adam", method="projected"),
    "rounded, averaged": Case(
        LevelFirst(start=0.34, end=0.9, rounded=True), TWO, "abs-mean", "channel", "adam", average=0.5
    ),
    "a user's method": Case(None, INT2, "sawb", "channel", method="centred"),
    "sphere channel": Case(SHRINK, TWO, "abs-mean", "channel", method="projected"),
}
if find_spec("torchao") is not None:
    SHARDED["parq"] = Case(None, INT2, method="parq")
    SHARDED["parq fixed"] = Case(None, INT2, "sawb", "channel", method="parq", options={"levels": "fixed"})


def optimizer_for(model: nn.Module, case: Case, **more: Any) -> MethodOptimizer:
    groups = askew.groups(model, case.levels, scale=case.scale, per=case.per)
    base = BASES[case.base](groups) if case.base in BASES else torch.optim.SGD(groups, lr=0.05)
    if case.method is None:
        return askew.ASkew(base, case.annealing, alpha=0.3, total_steps=STEPS, average=case.average, **more)
    own = Centred() if case.method == "centred" else method(case.method, **case.options)
    return MethodOptimizer(base, own, case.annealing, total_steps=STEPS, **more)


def batch(k: int, rank: int, ranks: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """This process's part of batch k."""
    g = torch.Generator().manual_seed(1000 + k)
    x = torch.randn(BATCH, 1, 4, 4, generator=g, dtype=torch.float64).to(dtype)
    y = torch.randn(BATCH, 1, generator=g, dtype=torch.float64).to(dtype)
    return x[rank::ranks], y[rank::ranks]


def train(model: nn.Module, optimizer: MethodOptimizer, steps: range, rank: int = 0, ranks: int = 1) -> None:
    dtype = next(model.parameters()).dtype
    for k in steps:
        optimizer.zero_grad()
        x, y = batch(k, rank, ranks, dtype)
        (model(x) - y).square().mean().backward()
        optimizer.step()


def gathered(t: Tensor) -> Tensor:
    t = t.detach()
    return (t.full_tensor() if hasattr(t, "full_tensor") else t).clone()


def found(model: nn.Module, optimizer: MethodOptimizer) -> dict[str, Any]:
    """Whole weights, underlying weights and scales, as plain tensors."""
    sites = optimizer.weights()
    return {
        "weights": [gathered(p) for p in model.parameters()],
        "underlying": [gathered(optimizer.underlying(p)) for _, p, _ in sites],
        "settled": [gathered(optimizer.settled(p)) for _, p, _ in sites],
        "scales": [gathered(site.scale) for _, _, site in sites if site.scale is not None],
        "radii": [gathered(site.memory["radius"]) for _, _, site in sites if "radius" in site.memory],
    }


def reports(optimizer: MethodOptimizer) -> list[list[float]]:
    looked = askew.diagnose(optimizer)
    return [list(vars(row).values())[1:] for row in [*looked.layers, looked.overall]]


def run_of(case: Case, wrap: Callable[[nn.Module], nn.Module] = lambda m: m, rank: int = 0, ranks: int = 1) -> Any:
    """What a run shows at its middle and at its end."""
    model = wrap(Uneven(dtype=case.dtype))
    torch.manual_seed(5)
    optimizer = optimizer_for(model, case)
    out: dict[str, Any] = {"start": found(model, optimizer)}
    train(model, optimizer, range(2), rank, ranks)
    out["following"] = found(model, optimizer)
    train(model, optimizer, range(2, MIDDLE), rank, ranks)
    out["middle"] = found(model, optimizer)
    out["look"] = [reports(optimizer)]
    train(model, optimizer, range(MIDDLE, STEPS), rank, ranks)
    out["end"] = found(model, optimizer)
    out["look"].append(reports(optimizer))
    return out


# -- what the two processes do ----------------------------------------------------------------------------------------


def cut(model: nn.Module) -> nn.Module:
    """FSDP2: the convolution in a unit of its own, the rest in the root's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    fully_shard(model.conv, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def snapping(rank: int, folder: Path) -> Any:
    """Outputs before, inside and after `snapped`, each without a backward pass; then after snap_."""
    model = cut(Uneven())
    case = CASES["level-first sawb"]
    optimizer = optimizer_for(model, case)
    train(model, optimizer, range(MIDDLE), rank, RANKS)
    x, _ = batch(0, 0, 1, case.dtype)
    with torch.no_grad():
        out = [model(x)]
        with askew.snapped(optimizer):
            out.append(model(x))
        out.append(model(x))
        optimizer.snap_()
        out.append(model(x))
    return out


def poisoned(rank: int, folder: Path) -> Any:
    """A NaN in one process's part of one gradient: what either process does about it, and the weights."""
    out = []
    for policy in ("skip", "raise"):
        model = cut(Uneven())
        optimizer = optimizer_for(model, CASES["level-first mean"], nonfinite=policy)
        train(model, optimizer, range(2), rank, RANKS)
        before = found(model, optimizer)
        if rank == 1:
            model.fc.weight.grad.to_local()[0, 0] = float("nan")
        try:
            optimizer.step()
            said = ""
        except NonFiniteGradientError as error:
            said = str(error)
        untouched = not differing(before, found(model, optimizer))
        train(model, optimizer, range(2, 4), rank, RANKS)  # nobody hangs
        out.append((optimizer.skipped, said, untouched))
    return out


def resumed(rank: int, folder: Path, name: str, at: int, how: str) -> Any:
    """Where a run that was interrupted ends otherwise than one that was not."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    case = SHARDED.get(name, PLAIN_SGD)
    wrap = DistributedDataParallel if how == "ddp checkpoint" else cut
    full = StateDictOptions(full_state_dict=True)
    model = wrap(Uneven())
    optimizer = optimizer_for(model, case)
    train(model, optimizer, range(at), rank, RANKS)
    optimizer.zero_grad()
    if how == "per rank":
        saved = frozen_copy(optimizer.state_dict())
    elif how == "files":
        torch.save(optimizer.state_dict(), folder / f"{name} {rank}.pt")
    elif how == "gathered":
        saved = frozen_copy(get_optimizer_state_dict(model, optimizer, options=full))
    else:
        saved = get_optimizer_state_dict(model, optimizer)
        dcp.save({"optimizer": saved}, checkpoint_id=folder / f"{name} {at} {how}")
    clock = optimizer.steps
    weights = frozen_copy(model.state_dict())
    train(model, optimizer, range(at, STEPS), rank, RANKS)

    again = wrap(Uneven(seed=1))
    fresh = optimizer_for(again, case)
    again.load_state_dict(weights)
    if how == "per rank":
        fresh.load_state_dict(saved)
    elif how == "files":
        fresh.load_state_dict(torch.load(folder / f"{name} {rank}.pt", weights_only=True))
    elif how == "gathered":
        set_optimizer_state_dict(again, fresh, saved, options=full)
    else:
        template = {"optimizer": get_optimizer_state_dict(again, fresh)}
        dcp.load(template, checkpoint_id=folder / f"{name} {at} {how}")
        set_optimizer_state_dict(again, fresh, template["optimizer"])
    changed = differing([gathered(w) for w in weights.values()], [gathered(w) for w in again.state_dict().values()])
    changed += differing([at, at], [clock, fresh.steps])
    train(again, fresh, range(at, STEPS), rank, RANKS)
    return changed + differing(found(model, optimizer), found(again, fresh))


PLAIN_SGD = Case(FIRST, THREE, "abs-mean", base="plain sgd")
RESUMED = {
    f"{name}, step {at}, {how}": (name, at, how)
    for name in ("level-first sawb", "level-first mean channel", "quantile sawb", "binaryconnect channel")
    for at, how in ((2, "checkpoint"), (MIDDLE, "checkpoint"), (MIDDLE, "per rank"))
} | {"plain sgd, step 7, checkpoint": ("plain sgd", MIDDLE, "checkpoint")}
RESUMED["level-first sawb channel, files"] = ("level-first sawb channel", MIDDLE, "files")
RESUMED["level-first sawb channel, gathered"] = ("level-first sawb channel", MIDDLE, "gathered")
RESUMED["level-first sawb, ddp"] = ("level-first sawb", MIDDLE, "ddp checkpoint")


def scales(rank: int, folder: Path) -> Any:
    """Scales of tensors cut along rows, columns, or not at all, and of one with an empty part."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from askew.optim import sharding

    mesh = init_device_mesh("cpu", (RANKS,))
    out = {}
    for label, w in pieces().items():
        for placement in (Shard(0), Shard(1), Replicate()):
            spread = distribute_tensor(w, mesh, [placement])
            for kind, per in KINDS:
                s = sharding.scale_of(spread, INT2, kind, per)
                out[label, kind, per, str(placement)] = gathered(s), tuple(s.shape)
    return out


KINDS = [(kind, per) for kind in ("abs-mean", "sawb") for per in ("tensor", "channel")]


def pieces() -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(3)
    return {
        str(shape): torch.randn(shape, generator=g, dtype=torch.float64).cumsum(0)
        for shape in ((5, 3), (1, 4), (4, 1), (3, 2, 2))
    }


TASKS: dict[str, Callable[[int, Path], Any]] = {
    **{
        f"ddp {name}": lambda rank, _, case=case: run_of(case, DistributedDataParallel, rank, RANKS)
        for name, case in CASES.items()
    },
    "ddp float32": lambda rank, _: run_of(FLOAT32, DistributedDataParallel, rank, RANKS),
    **{f"fsdp {name}": lambda rank, _, case=case: run_of(case, cut, rank, RANKS) for name, case in SHARDED.items()},
    "fsdp float32": lambda rank, _: run_of(FLOAT32, cut, rank, RANKS),
    "snapped": snapping,
    "poisoned": poisoned,
    "scales": scales,
    **{
        f"resumed {label}": partial(lambda rank, folder, args: resumed(rank, folder, *args), args=args)
        for label, args in RESUMED.items()
    },
}


def work(rank: int, folder: Path) -> None:
    all_done(TASKS, rank, folder)


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Each process's results; of pytest-xdist's workers the first to come starts the processes, the others wait."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "two processes"
    return brought_back(work, folder)


# -- tests ------------------------------------------------------------------------------------------------------------


def same_run(brought: list[dict[str, Any]], name: str, case: Case, tolerance: float) -> None:
    alone = run_of(case)
    for here in result(brought, name):
        look, expected = here.pop("look"), alone["look"]
        close(here, {k: v for k, v in alone.items() if k != "look"}, tolerance)
        close(look, expected, max(tolerance, 1e-6))  # diagnostics are float32 numbers


@pytest.mark.parametrize("name", CASES)
def test_ddp_on_half_batches_trains_as_one_process(brought: list[dict[str, Any]], name: str) -> None:
    same_run(brought, f"ddp {name}", CASES[name], 1e-10)


@pytest.mark.parametrize("name", SHARDED)
def test_sharded_weights_train_as_whole_ones(brought: list[dict[str, Any]], name: str) -> None:
    same_run(brought, f"fsdp {name}", SHARDED[name], 1e-10)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_float32_within_rounding(brought: list[dict[str, Any]], kind: str) -> None:
    same_run(brought, f"{kind} float32", FLOAT32, 1e-5)


def test_the_runs_above_show_what_they_should() -> None:
    """Scales that differ between the shards, weights off their levels in the middle, on them at the end."""
    for name, case in CASES.items():
        alone = run_of(case)
        assert any(bool((w != w.round()).any()) for w in alone["middle"]["weights"]), name
        if case.scale == "none" or case.per == "channel":
            continue
        for s, w in zip(alone["following"]["scales"], alone["following"]["weights"][:2], strict=False):
            part = scale_of(w[: (len(w) + 1) // 2], case.levels, case.scale, "tensor")  # pyright: ignore
            assert abs(float(part / s) - 1) > 1e-3, name


def test_scales_are_those_of_the_whole_tensor(brought: list[dict[str, Any]]) -> None:
    for here in result(brought, "scales"):
        for label, w in pieces().items():
            for kind, per in KINDS:
                expected = scale_of(w, INT2, kind, per)
                for placement in ("S(0)", "S(1)", "R"):
                    s, shape = here[label, kind, per, placement]
                    assert shape == tuple(expected.shape)
                    torch.testing.assert_close(s, expected, rtol=1e-13, atol=0)


def test_snapped_weights_are_computed_with_and_left_again(brought: list[dict[str, Any]]) -> None:
    model = Uneven()
    optimizer = optimizer_for(model, CASES["level-first sawb"])
    train(model, optimizer, range(MIDDLE))
    x, _ = batch(0, 0, 1, torch.float64)
    with torch.no_grad():
        plain = model(x)
        with askew.snapped(optimizer):
            snapped = model(x)
    assert float((plain - snapped).abs().max()) > 1e-3
    for here in result(brought, "snapped"):
        close(here, [plain, snapped, plain, snapped], 1e-10)


def test_a_bad_gradient_in_one_process_stops_the_step_in_all(brought: list[dict[str, Any]]) -> None:
    for skip, loud in result(brought, "poisoned"):
        assert skip == (1, "", True)
        assert loud[0] == 0 and "fc.weight" in loud[1] and loud[2]


@pytest.mark.parametrize("label", RESUMED)
def test_an_interrupted_run_goes_on_bit_for_bit(brought: list[dict[str, Any]], label: str) -> None:
    assert result(brought, f"resumed {label}") == [[], []]
