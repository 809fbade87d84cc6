"""The training benchmark measures every method, and its table says what its record holds."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from askew import cli
from askew.bench import machine
from askew.bench.command import readme_block
from askew.bench.training import ONE_BIT, REFERENCE, TrainBench, run
from askew.bench.training_report import present
from askew.bench.training_run import CASES
from askew.report.readme import block
from askew.train.record import Record, load_all

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_record_and_table(tmp_path):
    """All methods, on a tiny net."""
    run(TrainBench(rounds=2, steps=2, batch=4, width=4, device="cpu", out=tmp_path))
    (record,) = load_all(tmp_path)
    facts = record.summary
    assert list(facts) == [REFERENCE, *ONE_BIT] and "out" not in record.config
    assert facts[REFERENCE]["ratio"] == 1
    for method, fact in facts.items():
        assert len(record.extra["seconds"][method]) == 2
        epoch = fact["step_seconds"] * (50_000 // 4)
        assert fact["epochs_per_second"] * epoch == pytest.approx(1, rel=1e-5)
        assert fact["diagnosis_share"] * epoch == pytest.approx(fact["diagnosis_seconds"], rel=1e-5)
        assert fact["memory_bytes"] == fact["held_bytes"] + fact["peak_bytes"] and fact["peak_bytes"] > 0
    latent = facts["binaryconnect"]["held_bytes"] - facts["askew-level-first"]["held_bytes"]
    assert latent > 4 * _weights(4)  # a second copy of the weights
    (grid,) = present([record]).tables
    assert len(grid.rows) == 1 + len(ONE_BIT) and record.environment["cpu"] in grid.title
    assert f"{facts['binaryconnect']['ratio']:.3f}" in grid.rows[1][1]
    assert grid.rows[0][5].endswith(" (1.00)")


def _weights(width: int) -> int:
    """Of VGG-small's convolutions."""
    sizes = [3, width, width, 2 * width, 2 * width, 4 * width, 4 * width]
    return sum(9 * a * b for a, b in pairwise(sizes))


def test_too_few_rounds():
    with pytest.raises(ValueError, match="rounds must be at least 2"):
        TrainBench(rounds=1)


def made_up(case: str, device: str, ratio: float, mebibytes: int) -> Record:
    def fact(times: float, memory: int) -> dict[str, object]:
        return {
            "step_seconds": times * 1e-3,
            "ratio": times,
            "ratio_quartiles": [times, times],
            "epochs_per_second": 2 / times,
            "diagnosis_share": 0.004,
            "memory_bytes": memory * 2**20,
            "first_round_seconds": 1.0,
        }

    about = {"case": case, "device": device, "rounds": 3, "steps": 2, "batch": 8, "width": None, "images": 16}
    seen = {"cpu": "a CPU, 2 cores", "threads": 2, "gpu": "a GPU", "commit": "", "versions": {}}
    facts = {REFERENCE: fact(1, 400), "askew-level-first": fact(ratio, mebibytes)}
    return Record("bench-train", f"{case}-{device}", about, 0, summary=facts, environment=seen)


def test_the_block_of_a_readme_is_made_from_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    records = [made_up("vgg-small", "cpu", 1.5, 500), made_up("vgg-small", "cuda", 1.25, 300)]
    for record in records:
        record.save(tmp_path)
    readme = tmp_path / "README.md"
    readme.write_text("# A net\n<!-- bench-train -->\n<!-- /bench-train -->\nThe end.\n")
    cli.main(["bench", "show", str(tmp_path), "--readme", str(readme)])
    made = block(readme.read_text(), "bench-train")
    assert made == readme_block("bench-train", load_all(tmp_path))
    row = "| ASkew, level-first | 1.25 (1.25–1.25) | 300 (0.75) | 1.50 (1.50–1.50) | 500 (1.25) |"
    assert row in made.splitlines() and "0.4% of it" in made  # the GPU first
    heads = made.splitlines()[0]
    assert heads.index("CIFAR-10, a GPU: step") < heads.index("CIFAR-10, a CPU, 2 cores, 2 threads: step")
    assert readme.read_text().endswith("<!-- /bench-train -->\nThe end.\n") and capsys.readouterr().out
    assert (tmp_path / "training.png").exists()


def test_footprint_is_what_stays_and_the_peak_above():
    kept: list[torch.Tensor] = []

    def begin() -> None:
        kept.append(torch.zeros(100_000) + 1)

    def again() -> None:
        kept[0].add_(kept[0] * 2)

    held, peak = machine.footprint(begin, again, CPU)
    assert held == 400_000 and 400_000 <= peak < 401_000


def test_a_graph_holds_its_whole_pool(monkeypatch):
    """Of the shared pool what is allocated, of a graph's own all of it, of another device nothing."""
    shared = {"device": 0, "segment_pool_id": (0, 0), "total_size": 1000, "allocated_size": 10}
    segments = [
        shared,
        shared | {"segment_pool_id": (0, 1), "total_size": 200, "allocated_size": 1},
        shared | {"device": 1, "allocated_size": 7},
    ]
    for name, value in (("memory_snapshot", segments), ("empty_cache", None), ("synchronize", None)):
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    assert machine.held(CUDA) == 210


@pytest.mark.cuda
def test_the_memory_of_a_graph_is_found():
    """A graph that works on 64 MiB between its input and its output of 1 MiB, whatever was cached before."""
    x = torch.ones(2**18, device=CUDA)
    kept: list[object] = []
    torch.zeros(2**26, device=CUDA)  # 256 MiB that stay in the cache

    def begin() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept.append(x.repeat(64).view(64, -1).sum(0))
        kept.append(graph)
        graph.replay()

    held, peak = machine.footprint(begin, lambda: kept[1].replay(), CUDA)  # pyright: ignore
    assert 65 * 2**20 <= held <= 140 * 2**20 and peak < 2**20


@pytest.mark.cuda
def test_every_method_holds_its_memory_on_a_gpu(tmp_path):
    """BinaryConnect's second copy of the weights is seen; ASkew needs no more than full precision."""
    config = TrainBench(("vgg-small",), ("binaryconnect", "askew-level-first"), 2, 10, 100, device="cuda", out=tmp_path)
    (record,) = run(config)
    memory = {method: fact["memory_bytes"] for method, fact in record.summary.items()}
    assert memory[REFERENCE] > 50 * 2**20  # activations of a batch of 100 alone
    assert memory["askew-level-first"] < 1.1 * memory[REFERENCE]
    assert memory["askew-level-first"] < memory["binaryconnect"]


def test_one_case_has_signs() -> None:
    job = CASES["vgg-small-signs"].job("binaryconnect", 4, 8, "cpu")
    assert job.activation_bits == 1 and job.learns_norms
    assert CASES["vgg-small"].job("askew", 4, 8, "cpu").activation_bits is None
