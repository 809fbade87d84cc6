"""On-device batches: augmentation against a slow twin, determinism, skipping, shards; on a GPU no syncs, in a graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from askew.data.images import ImageSet
from askew.data.loader import Batches, DeviceData, Plan, augment, normalise, plan

N, H, W = 23, 6, 5
PIXELS = np.random.default_rng(0).integers(0, 256, (N, H, W, 3), np.uint8)
SET = ImageSet(PIXELS, np.arange(N, dtype=np.int64) % 4, ("a", "b", "c", "d"), "small")
LAYOUTS = pytest.mark.parametrize("channels_last", [False, True])


def batches(batch: int = 4, seed: int = 1, channels_last: bool = False, device: str = "cpu", **options) -> Batches:
    data = DeviceData(SET, device, channels_last)
    return Batches(data, batch, seed, mean=SET.mean, std=SET.std, **options)


def slow_augment(x: Tensor, shift_y: Tensor, shift_x: Tensor, flip: Tensor, pad: int) -> Tensor:
    """One image at a time: pad with zeros, cut out, mirror."""
    out = torch.empty_like(x)
    _, c, h, w = x.shape
    for b in range(len(x)):
        padded = torch.zeros(c, h + 2 * pad, w + 2 * pad, dtype=x.dtype)
        padded[:, pad : pad + h, pad : pad + w] = x[b]
        top, left = int(shift_y[b]), int(shift_x[b])
        cut = padded[:, top : top + h, left : left + w]
        out[b] = cut.flip(-1) if flip[b] else cut
    return out


def same(a: list[tuple[Tensor, Tensor]], b: list[tuple[Tensor, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(p, q) for s, t in zip(a, b, strict=True) for p, q in zip(s, t, strict=True)
    )


@LAYOUTS
def test_the_device_holds_the_same_pixels(channels_last: bool) -> None:
    data = DeviceData(SET, channels_last=channels_last)
    assert np.array_equal(data.images.permute(0, 2, 3, 1).numpy(), PIXELS)
    assert data.labels.tolist() == SET.labels.tolist() and len(data) == N
    assert data.images.is_contiguous(memory_format=torch.channels_last) == channels_last


@LAYOUTS
@pytest.mark.parametrize("pad", [0, 1, 4, 7])
def test_augment_equals_its_slow_twin(pad: int, channels_last: bool) -> None:
    x = DeviceData(SET, channels_last=channels_last).images
    part = plan(N, 3, 0, pad=pad, flip=True)
    fast = augment(x, part.shift_y, part.shift_x, part.flip, pad)
    assert torch.equal(fast, slow_augment(x, part.shift_y, part.shift_x, part.flip, pad))
    assert fast.dtype == torch.uint8
    assert fast.is_contiguous(memory_format=torch.channels_last) == channels_last
    centre = torch.full((N,), pad)
    assert torch.equal(augment(x, centre, centre, torch.zeros(N, dtype=torch.bool), pad), x)


def test_normalise_is_the_formula_in_float64_to_rounding() -> None:
    x = DeviceData(SET).images
    mean, std = (torch.tensor(v) for v in (SET.mean, SET.std))
    exact = (x.double() / 255 - torch.tensor(SET.mean, dtype=torch.float64)[:, None, None]) / torch.tensor(
        SET.std, dtype=torch.float64
    )[:, None, None]
    assert (normalise(x, mean, std).double() - exact).abs().max() < 1e-6
    assert abs(exact.mean()) < 1e-12
    assert torch.equal(normalise(x, mean, std, torch.bfloat16), normalise(x, mean, std).bfloat16())


@LAYOUTS
def test_an_epoch_is_gather_augment_normalise(channels_last: bool) -> None:
    made = batches(channels_last=channels_last)
    x, y = zip(*made.epoch(2), strict=True)
    assert [len(part) for part in y] == [4] * 5 == [4] * len(made)
    p = Plan(*(part[:20] for part in plan(N, 1, 2, pad=4, flip=True)))
    raw = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)[p.image]
    expected = normalise(slow_augment(raw, *p[1:], 4), made.mean, made.std)
    assert torch.equal(torch.cat(x), expected)
    assert torch.equal(torch.cat(y), torch.from_numpy(SET.labels)[p.image])
    assert x[0].is_contiguous(memory_format=torch.channels_last) == channels_last


def test_epochs_depend_on_seed_and_number_alone() -> None:
    made = batches()
    first = list(made.epoch(0))
    later = list(made.epoch(5))
    assert same(list(batches().epoch(5)), later) and same(list(made.epoch(0)), first)
    assert not same(first, later) and not same(first, list(batches(seed=2).epoch(0)))
    plain = plan(N, 1, 0)
    assert torch.equal(plain.image, plan(N, 1, 0, pad=4, flip=True).image)
    assert torch.equal(plan(N, 1, 0, pad=4).shift_y, plan(N, 1, 0, pad=4, flip=True).shift_y)
    assert sorted(plain.image.tolist()) == list(range(N))


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_resumed_epoch_gives_the_rest_of_the_whole_one(drop_last: bool) -> None:
    made = batches(drop_last=drop_last)
    whole = list(made.epoch(3))
    for skip in range(len(made) + 1):
        assert same(list(made.epoch(3, skip)), whole[skip:])
    with pytest.raises(ValueError, match="cannot skip"):
        made.epoch(3, len(made) + 1)


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_ranks_together_make_the_batch_of_one_process(world: int, drop_last: bool) -> None:
    whole = list(batches(drop_last=drop_last).epoch(1))
    ranks = [list(batches(drop_last=drop_last, rank=r, world=world).epoch(1)) for r in range(world)]
    assert all(len(part) == len(whole) for part in ranks)
    joined = [tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*ranks, strict=True)]
    assert same(joined, whole)
    assert all(len(y) == 4 // world for part in ranks for _, y in part[:5])


def test_evaluation_keeps_every_image_in_order() -> None:
    made = batches(augment=False, shuffle=False, drop_last=False, dtype=torch.float64)
    x, y = (torch.cat(part) for part in zip(*made.epoch(0), strict=True))
    assert y.tolist() == SET.labels.tolist() and x.dtype == torch.float64
    assert np.array_equal(((x * made.std[:, None, None] + made.mean[:, None, None]) * 255).round(), made.data.images)


def test_shifts_and_flips_are_uniform() -> None:
    made = plan(90_000, 0, 0, pad=4, flip=True)
    for shift in (made.shift_y, made.shift_x):
        assert (torch.bincount(shift, minlength=9) - 10_000).abs().max() < 500
    assert abs(made.flip.double().mean() - 0.5) < 0.01


def test_bad_settings_are_refused() -> None:
    for options, message in (
        ({"batch": 24}, "no full batch"),
        ({"batch": 0}, "batch 0"),
        ({"world": 3}, "multiple"),
        ({"rank": 2, "world": 2}, "rank 2"),
        ({"pad": -1}, "negative"),
        ({"seed": -1}, "seeds"),
    ):
        with pytest.raises(ValueError, match=message):
            batches(**options)
    with pytest.raises(ValueError, match="std positive"):
        Batches(DeviceData(SET), 4, mean=SET.mean, std=(1.0, 0.0, 1.0))


@LAYOUTS
def test_a_batch_compiles_without_a_graph_break(channels_last: bool) -> None:
    made = batches(channels_last=channels_last)
    part = Plan(*(p[:4] for p in made.plan(0)))
    compiled = torch.compile(made.make, backend="aot_eager", fullgraph=True)
    assert same([compiled(part)], [made.make(part)])


@pytest.mark.cuda
@LAYOUTS
def test_on_a_gpu_the_same_batches_without_a_sync(channels_last: bool) -> None:
    made = batches(device="cuda", channels_last=channels_last)
    list(made.epoch(0))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = list(made.epoch(7))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for (x, y), (u, v) in zip(found, batches(channels_last=channels_last).epoch(7), strict=True):
        assert torch.equal(y.cpu(), v) and torch.allclose(x.cpu(), u, rtol=1e-6, atol=1e-6)


@pytest.mark.cuda
@LAYOUTS
def test_a_batch_is_captured_in_a_cuda_graph(channels_last: bool) -> None:
    made = batches(device="cuda", channels_last=channels_last)
    whole = made.plan(0)
    part = Plan(*(p[:4].clone() for p in whole))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        made.make(part)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x, y = made.make(part)
    for step, (u, v) in enumerate(made.epoch(0)):
        for static, values in zip(part, whole, strict=True):
            static.copy_(values[4 * step : 4 * step + 4])
        graph.replay()
        assert torch.equal(x, u) and torch.equal(y, v)
