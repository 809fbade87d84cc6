"""One run in two processes: the same weights, records and checkpoints as in one process at the same global batch.

Two gloo processes are started once and do all the TASKS; torchrun itself is tried at the end. In float64 the two agree
to 1e-9 (sums are taken in another order); in float32 rounding grows with the steps: 1e-4 of the loss in the first
epoch, 1e-2 in the third.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from image_kit import command_line, pictures, small_job
from torch import Tensor, nn
from two_processes import RANKS, all_done, brought_back, close, result

import askew
from askew.methods.registry import method
from askew.nn import QuantizedGradient, logarithmic, shared_scales
from askew.optim import ASkew, MethodOptimizer
from askew.train.batchnorm import GlobalBatchNorm, global_batchnorm
from askew.train.config import TrainConfig
from askew.train.distributed import World, joined, launched, launched_first, world
from askew.train.images import train_images
from askew.train.loop import Keeper, fit
from askew.train.record import Record, load, plain
from askew.train.source import TensorSource

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="needs torch.distributed with gloo"
)
IMAGES, TESTS = 37, 21  # neither is a multiple of the batch, nor of two
CONFIG = TrainConfig(
    "askew-level-first",
    epochs=4,
    batch_size=8,
    lr=0.1,
    min_lr=0.01,
    annealing=askew.LevelFirst(start=0.3),
    alpha=0.05,
    histogram_epochs=(0, 4),
    score_batch_size=8,
)
RUNS = {
    "level-first": CONFIG,
    "level-first, part of the set for BatchNorm": replace(CONFIG, batchnorm_images=16),
    "binaryconnect": replace(CONFIG, method="binaryconnect", annealing=None, alpha=None),
    "binaryconnect-stochastic": replace(CONFIG, method="binaryconnect-stochastic", annealing=None, alpha=None),
}


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Sequential(
            nn.Conv2d(1, 6, 3, bias=False),
            nn.BatchNorm2d(6, affine=False),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24, 7, bias=False),
            nn.BatchNorm1d(7),
        )
    return layers.double()


def samples(n: int, seed: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 1, 4, 4, generator=g, dtype=torch.float64)
    return x.to(device), x.flatten(1)[:, :7].argmax(1).to(device)


def run(
    config: TrainConfig,
    rank: int,
    ranks: int,
    keeper: Keeper | None = None,
    on_status: Any = None,
    device: str = "cpu",
) -> Any:
    """Weights, latents, running statistics and record of a run."""
    model = net().to(device)
    torch.manual_seed(3)
    groups = askew.groups(model, levels=askew.binary())
    base = torch.optim.Adam(groups, lr=config.lr)
    total = config.total_steps(IMAGES)
    if config.annealing is not None:
        optimizer: MethodOptimizer = ASkew(base, config.annealing, alpha=config.alpha, total_steps=total)
    else:
        optimizer = MethodOptimizer(base, method(config.method), total_steps=total)
    train = TensorSource(samples(IMAGES, 0, device), config.batch_size, config.seed, rank, ranks)
    test = TensorSource(samples(TESTS, 1, device), config.batch_size, config.seed, rank, ranks)
    record = Record("test", config.method, config.describe(), 0, environment={})
    record = fit(model, optimizer, config.scheduler(optimizer, IMAGES), train, test, config, record, on_status, keeper)
    return {
        "state": model.state_dict(),
        "latents": [optimizer.underlying(p).detach().clone() for _, p, _ in optimizer.weights()],
        "record": timeless(record),
        "layers": [type(m).__name__ for m in model],
    }


def timeless(record: Record) -> dict[str, Any]:
    metrics = {k: v for k, v in record.metrics.items() if k != "seconds"}
    summary = {k: v for k, v in record.summary.items() if "seconds" not in k}
    return plain({"metrics": metrics, "summary": summary, "extra": record.extra})


class StoppedError(Exception):
    pass


def stop_at(step: int) -> Callable[[Any], None]:
    """Ends the process that is told of this step."""

    def stop(status: Any) -> None:
        if status.step == step:
            raise StoppedError

    return stop


def interrupted(rank: int, folder: Path) -> Any:
    """Stopped in the third epoch and resumed; then stopped again and resumed by one process alone (in the test)."""
    keeper = Keeper(folder / "kept", every_steps=2)
    short = replace(CONFIG, histogram_epochs=(0,))
    with suppress(StoppedError):
        run(short, rank, RANKS, keeper, _everywhere(rank, 11))
    dist.barrier()
    told: list[int] = []
    found = run(short, rank, RANKS, keeper, lambda status: told.append(status.step))
    return found | {"told": told, "files": sorted(path.name for path in keeper.folder.iterdir())}


def _everywhere(rank: int, step: int) -> Callable[[Any], None]:
    """Only the first process is told how it goes; the other one counts its batches."""
    if rank == 0:
        return stop_at(step)
    seen = [0]
    plain_epoch = TensorSource.epoch

    def counted(self: TensorSource, epoch: int, skip: int = 0) -> Any:
        for batch in plain_epoch(self, epoch, skip):
            if seen[0] == step and TensorSource.epoch is counted:
                TensorSource.epoch = plain_epoch
                raise StoppedError
            seen[0] += 1
            yield batch

    TensorSource.epoch = counted  # pyright: ignore[reportAttributeAccessIssue]
    return lambda status: None


def normalised(rank: int, folder: Path) -> Any:
    """GlobalBatchNorm on this process's part: outputs, gradients, running statistics, in training and evaluation."""
    out = {}
    for label, (layer, x, dy) in norms().items():
        mine = shares(x)[rank].requires_grad_()
        model = nn.Sequential(layer)
        with global_batchnorm(model):
            assert type(model[0]) is GlobalBatchNorm and model[0].running_mean is layer.running_mean
            y = model(mine)
            y.backward(shares(dy)[rank])
        assert model[0] is layer
        affine = [p.grad for p in layer.parameters()]
        with torch.no_grad():
            later = model.eval()(x)
        out[label] = {
            "y": y.detach(),
            "dx": mine.grad,
            "affine": affine,
            "buffers": list(layer.buffers()),
            "eval": later,
        }
    return out


def shares(x: Tensor) -> list[Tensor]:
    """Uneven parts of a batch; nothing of a batch of two for the second process."""
    first = 2 if len(x) == 2 else 3
    return [x[:first].detach().clone(), x[first:].detach().clone()]


def norms() -> dict[str, tuple[Any, Tensor, Tensor]]:
    g = torch.Generator().manual_seed(2)

    def case(layer: nn.Module, *shape: int, dtype: torch.dtype = torch.float64) -> tuple[Any, Tensor, Tensor]:
        x, dy = (torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for _ in range(2))
        return layer.to(torch.float64 if dtype == torch.float64 else torch.float32), 3 * x + 5, dy

    torch.manual_seed(0)
    affine = nn.BatchNorm2d(3)
    nn.init.normal_(affine.weight)
    nn.init.normal_(affine.bias)
    return {
        "no affine": case(nn.BatchNorm2d(3, affine=False), 8, 3, 2, 2),
        "affine": case(affine, 8, 3, 2, 2),
        "flat": case(nn.BatchNorm1d(4, affine=False, momentum=None), 7, 4),
        "no running statistics": case(nn.BatchNorm1d(4, track_running_stats=False), 7, 4),
        "an empty part": case(nn.BatchNorm2d(3, affine=False), 2, 3, 2, 2),
        "float32": case(nn.BatchNorm2d(3, affine=False), 8, 3, 2, 2, dtype=torch.float32),
        "bfloat16": case(nn.BatchNorm2d(3, affine=False), 8, 3, 2, 2, dtype=torch.bfloat16),
    }


def meeting(rank: int, folder: Path) -> Any:
    here = world()
    try:
        here.agree(rank == 0, "checkpoint x is there")
    except OSError as error:
        said = str(error)
    else:
        said = ""
    total, mean = here.total(torch.tensor([rank + 1.0])), here.mean(torch.tensor([rank + 1.0]))
    return {"rank": here.rank, "total": float(total), "mean": float(mean), "said": said, "yes": here.agree(True, "")}


def drawn(rank: int, folder: Path) -> Any:
    """A gradient on LUQ's grid in two processes whose generators are alike; the first one's part is larger."""
    layer = nn.Sequential(QuantizedGradient(3))
    torch.manual_seed(5)
    out = []
    with shared_scales(layer):
        for part in (gradients()[rank], gradients()[rank][: 0 if rank else 4]):
            x = torch.zeros_like(part, requires_grad=True)
            layer(x).backward(part)
            out.append(x.grad)
    return out


def gradients() -> list[Tensor]:
    g = torch.Generator().manual_seed(4)
    return [scale * torch.rand(500, generator=g, dtype=torch.float64) for scale in (4.0, 1.0)]


TASKS: dict[str, Callable[[int, Path], Any]] = {
    **{name: lambda rank, _, config=config: run(config, rank, RANKS) for name, config in RUNS.items()},
    "interrupted": interrupted,
    "normalised": normalised,
    "meeting": meeting,
    "drawn": drawn,
}


def work(rank: int, folder: Path) -> None:
    all_done(TASKS, rank, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the processes work; one for all of pytest-xdist's workers."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "torchrun"


@pytest.fixture(scope="module")
def brought(folder: Path) -> list[dict[str, Any]]:
    """Each process's results; of pytest-xdist's workers the first to come starts the processes, the others wait."""
    return brought_back(work, folder)


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_as_one(brought: list[dict[str, Any]], name: str) -> None:
    alone = run(RUNS[name], 0, 1)
    first, second = result(brought, name)
    close(first["state"], alone["state"], 1e-9, "state")
    close(first["latents"], alone["latents"], 1e-9, "latents")
    close(first["record"], alone["record"], 2e-6, "record")  # records keep seven digits
    assert first["record"] == second["record"]  # scores and losses too, bit for bit
    close(first["state"], second["state"], 0, "state of the second")
    assert first["layers"] == alone["layers"]  # the model has its own BatchNorm again


def test_the_runs_above_show_what_they_should() -> None:
    """Without shared statistics, or with another batch, the weights would differ by more than the tolerance."""
    alone, other = run(CONFIG, 0, 1), run(replace(CONFIG, seed=1), 0, 1)
    assert alone["state"]["0.weight"].unique().tolist() == [-1, 1]
    assert not torch.equal(alone["state"]["0.weight"], other["state"]["0.weight"])
    assert alone["record"]["metrics"]["loss"]["value"][0] != other["record"]["metrics"]["loss"]["value"][0]


def test_two_processes_resume_from_their_checkpoint(brought: list[dict[str, Any]], folder: Path) -> None:
    short = replace(CONFIG, histogram_epochs=(0,))
    first, second = result(brought, "interrupted")
    alone = run(short, 0, 1)
    for found in (first, second):
        close(found["state"], alone["state"], 1e-9)
        close(found["record"], alone["record"], 2e-6)
    assert first["told"][0] == 11 and second["told"] == []  # kept after step 10; the first process alone is told
    assert first["files"] == ["best.pt", "last.pt"]
    again = run(short, 0, 1, Keeper(folder / "kept"))  # one process takes the two's files over
    close(again["state"], first["state"], 0)


def test_batchnorm_over_processes_is_that_of_the_whole_batch(brought: list[dict[str, Any]]) -> None:
    for label, (layer, x, dy) in norms().items():
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}[x.dtype]
        x.requires_grad_()
        y = layer(x)
        y.backward(dy)
        x.detach_()
        parts = [here[label] for here in result(brought, "normalised")]
        close(torch.cat([part["y"] for part in parts]), y.detach(), tolerance, f"{label} y")
        close(torch.cat([part["dx"] for part in parts]), x.grad, tolerance, f"{label} dx")
        for part in parts:
            close(part["buffers"], list(layer.buffers()), tolerance, f"{label} buffers")
            close(part["eval"], layer.eval()(x).detach(), tolerance, f"{label} eval")
        for i, p in enumerate(layer.parameters()):
            close(sum(part["affine"][i] for part in parts), p.grad, tolerance, f"{label} affine")


def test_gradients_in_two_processes_have_one_grid_and_draws_of_their_own(brought: list[dict[str, Any]]) -> None:
    (first, _), (second, empty) = result(brought, "drawn")
    top = float(gradients()[0].max())
    allowed = torch.tensor([0.0, top / 4, top / 2, top], dtype=torch.float64)
    for own, found in zip(gradients(), (first, second), strict=True):
        assert bool(torch.isclose(found[:, None], allowed).any(1).all())
        assert float((found - own).mean()) == pytest.approx(0, abs=5 * top / 500**0.5)
    assert float(second.max()) == pytest.approx(top / 4)
    assert empty.shape == (0,)
    torch.manual_seed(5)
    alike = logarithmic(gradients()[1], 3, gradients()[0].max())
    assert not torch.equal(alike, second)


def test_processes_add_up_and_agree(brought: list[dict[str, Any]]) -> None:
    for rank, found in enumerate(result(brought, "meeting")):
        assert found["rank"] == rank and found["total"] == 3 and found["mean"] == 1.5 and found["yes"]
        assert "checkpoint x is there for 1 of 2 processes only" in found["said"]


def test_one_process_is_a_world_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert world() == World(0, 1) and not launched() and launched_first()
    with joined(torch.device("cpu")) as here:
        assert here.first and not dist.is_initialized()
    assert World().agree(False, "x") is False


def test_a_process_without_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert launched() and not launched_first()
    with pytest.raises(ValueError, match="a machine with 1 GPUs"), joined(torch.device("cuda")):
        pass
    with pytest.raises(ValueError, match="a GPU of its own"), joined(torch.device("cuda:0")):
        pass


def test_torchrun(tmp_path: Path) -> None:
    """`torchrun -m askew train`: one record, one bar, and the numbers of one process."""
    data = pictures(tmp_path / "data")
    job = small_job(data, tmp_path / "two", lr=0.01)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*torchrun, "-m", "askew", *command_line(job)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert " ".join(done.stdout.split()).count("on the test images") == 1
    place = job.out / job.name
    assert {path.suffix for path in place.iterdir()} == {".pt", ".json"} and len(list(place.iterdir())) == 3
    record = load(next(place.glob("*.json")))
    alone, _ = train_images(replace(job, out=tmp_path / "one"))
    assert record.environment["processes"] == 2 and alone.environment["processes"] == 1
    for metric in ("epoch_loss", "test_loss"):
        found, expected = record.metrics[metric]["value"], alone.metrics[metric]["value"]
        assert found == pytest.approx(expected, rel=1e-2) and found[0] == pytest.approx(expected[0], rel=1e-4)
    assert record.summary["distance_max"] == pytest.approx(alone.summary["distance_max"], abs=1e-3)


def work_on_gpu(rank: int, folder: Path) -> None:
    """Two processes share a GPU over gloo: torch's SyncBatchNorm in place of ours."""
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    found = {name: run(RUNS[name], rank, RANKS, device="cuda") for name in ("level-first", "binaryconnect")}
    torch.save(found, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.cuda
def test_two_processes_on_a_gpu_train_as_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work_on_gpu, (tmp_path,), nprocs=RANKS)
    both = [torch.load(tmp_path / f"{rank}.pt", weights_only=False, map_location="cuda") for rank in range(RANKS)]
    for name in both[0]:
        alone = run(RUNS[name], 0, 1, device="cuda")
        for found in (one[name] for one in both):
            close(found["state"], alone["state"], 1e-6)
            close(found["latents"], alone["latents"], 1e-6)
        assert both[0][name]["record"] == both[1][name]["record"]


def test_a_batch_that_cannot_be_shared_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch 7 cannot be split over 2 ranks"):
        TensorSource(samples(IMAGES, 0), 7, 0, rank=0, world=2)
