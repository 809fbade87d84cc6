"""A GPU that multiplies wrongly is found out before anything is trained on it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from image_kit import pictures, small_job
from torch import nn

from askew.models.resnet import ResNet18
from askew.train import images, products
from askew.train.images import train_images
from askew.train.mps import SHARE
from askew.train.products import ProductError, check_products, product_error, wrong_products

CPU = torch.device("cpu")
SIZES = st.integers(1, 40)


@given(SIZES, SIZES, SIZES, st.integers(0, 1000))
def test_the_error_is_that_of_the_product_along_the_signs(n: int, k: int, m: int, seed: int) -> None:
    torch.manual_seed(seed)
    a, b, off = torch.randn(n, k).double(), torch.randn(k, m).double(), torch.randn(n, m).double()
    signs = torch.randn(m).sign().double()
    exact = a @ b
    assume((exact @ signs).norm() > 0.1)  # float32 leaves nothing of what has cancelled
    assert product_error(exact, a, b, signs) <= 1e-3 * (1 + 1 / (exact @ signs).norm())  # which float32 leaves of it
    want = (off @ signs).norm() / (exact @ signs).norm()
    torch.testing.assert_close(product_error(exact + off, a, b, signs).double(), want, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_right_products_pass_and_broken_ones_are_named(dtype: torch.dtype) -> None:
    shapes = [(100, 512, 200), (7, 3, 1)]

    def one_tile_wrong(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = a @ b
        out[: len(out) // 4, : out.shape[1] // 4] = 0
        return out

    def nothing(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.full((len(a), b.shape[1]), math.nan, dtype=a.dtype)

    assert wrong_products(shapes, dtype, CPU) == {}
    assert list(wrong_products(shapes, dtype, CPU, one_tile_wrong)) == shapes[:1]
    assert list(wrong_products(shapes, dtype, CPU, nothing)) == shapes
    assert wrong_products([], dtype, CPU) == {}


def test_all_products_of_a_net_are_looked_at() -> None:
    net = ResNet18(classes=20, width=8)
    found = list(products.products(net, (100, 1000, 100)))
    assert found[:3] == [(100, 64, 20), (100, 20, 64), (20, 100, 64)] and len(found) == 6
    assert list(products.products(nn.Conv2d(3, 3, 1), (100,))) == []


@pytest.mark.parametrize(("share", "advice"), [("33.33", f"{SHARE}=33.33 gives .* choose 50, 25"), (None, "trusted")])
def test_a_run_on_such_a_device_ends_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: str | None, advice: str
) -> None:
    job = small_job(pictures(tmp_path / "data"), tmp_path / "runs")
    monkeypatch.delenv(SHARE, raising=False)
    if share:
        monkeypatch.setenv(SHARE, share)
    checked = []

    def broken(net: nn.Module, batches: tuple[int, int], bf16: bool, device: torch.device) -> None:
        checked.append((batches, bf16, device))
        raise ProductError(products.words({(100, 512, 200): math.nan}, torch.bfloat16, torch.device("cuda:0")))

    monkeypatch.setattr(images, "check_products", broken)
    with pytest.raises(ProductError, match=f"wrongly on cuda:0: 100x512 by 512x200 in bfloat16 .* of nan; .*{advice}"):
        train_images(job)
    settings = job.settings()
    assert checked == [((settings.batch_size, settings.score_batch_size), settings.bf16, CPU)]


@pytest.mark.cuda
def test_this_gpu_multiplies_rightly() -> None:
    check_products(nn.Linear(512, 200), (100, 1000), True, torch.device("cuda"))
    check_products(nn.Linear(8192, 10), (100, 1000), False, torch.device("cuda"))
