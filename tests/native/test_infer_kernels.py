"""Every kernel on every instruction set of this machine against its numpy twin: integers to the bit, floats closely."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from askew.ship import kernels, layout, reference
from askew.ship.geometry import Window
from askew.ship.signs import BITS, FLOATS, SignProduct

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="the native library was not built")
ISAS = ["portable", "neon", "avx2", "avx512"]
SHAPES = [(1, 1, 1), (3, 10, 27), (2, 65, 64), (5, 33, 700), (9, 130, 2100), (130, 49, 300)]


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    with kernels.limited(request.param) as used:
        if used != request.param:
            pytest.skip(f"no {request.param} here")
        yield used


def draw(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


windows = st.builds(
    Window,
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
images = st.tuples(st.integers(1, 3), st.integers(7, 9), st.integers(5, 8), st.integers(1, 70))


def w1a1(bits: np.ndarray, *args, threads: int = 1, **ends) -> np.ndarray:
    return SignProduct(*args, **ends)(bits, threads)


def one_bit_case(image: tuple[int, ...], outputs: int, window: Window, seed: int = 0):
    rng = draw(seed)
    c = image[3]
    x = rng.integers(0, 2, image).astype(np.uint8)
    weight = rng.integers(0, 2, (outputs, window.kernel[0] * window.kernel[1], c)).astype(np.uint8)
    tiles = layout.one_bit_tiles(layout.words(weight).reshape(outputs, -1))
    flat = weight.reshape(outputs, -1)
    return x, flat, layout.words(x), tiles


@given(images, st.integers(1, 70), windows)
def test_one_bit_convolution_is_exact_at_the_borders(image, outputs: int, window: Window) -> None:
    x, weight, bits, tiles = one_bit_case(image, outputs, window)
    expected = reference.one_bit(x, weight, window)
    for name in ISAS:
        with kernels.limited(name):
            got = w1a1(bits, tiles, outputs, window, image[3])
        assert np.array_equal(got, expected)


@given(images, st.integers(1, 70), windows, st.integers(0, 1000))
def test_one_bit_thresholds_are_exact(image, outputs: int, window: Window, seed: int) -> None:
    x, weight, bits, tiles = one_bit_case(image, outputs, window, seed)
    dots = reference.one_bit(x, weight, window)
    t = draw(seed).integers(-9, 10, outputs).astype(np.int32)
    t[0], t[-1] = (-(2**31), 2**31 - 1)
    expected = layout.words((dots >= t).astype(np.uint8))
    flip = layout.words(draw(seed).integers(0, 2, outputs).astype(np.uint8))
    args = (bits, tiles, outputs, window, image[3], BITS)
    for name in ISAS:
        with kernels.limited(name):
            assert np.array_equal(w1a1(*args, threshold=t), expected)
            assert np.array_equal(w1a1(*args, threshold=t, flip=flip), expected ^ flip)


@given(images, st.integers(1, 70), windows, st.sampled_from([1, 3]))
def test_signs_of_floats_are_taken_on_the_way(image, outputs: int, window: Window, threads: int) -> None:
    x, weight, _, tiles = one_bit_case(image, outputs, window)
    floats = np.where(x, draw().random(image), -1e-3 - draw().random(image)).astype(np.float32)
    expected = reference.one_bit(x, weight, window)
    for name in ISAS:
        with kernels.limited(name):
            got = w1a1(floats, tiles, outputs, window, image[3], threads=threads)
        assert np.array_equal(got, expected)


@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("threads", [1, 3])
def test_one_bit_product(isa: str, rows: int, outputs: int, inputs: int, threads: int) -> None:
    x, weight, bits, tiles = one_bit_case((rows, 1, 1, inputs), outputs, Window())
    dots = reference.one_bit(x, weight, Window())
    assert np.array_equal(w1a1(bits, tiles, outputs, Window(), inputs, threads=threads), dots)
    scale, bias = draw().normal(size=(2, outputs)).astype(np.float32)
    got = w1a1(bits, tiles, outputs, Window(), inputs, FLOATS, scale, bias, 0.0, threads=threads)
    np.testing.assert_allclose(got, reference.finish(dots, scale, bias, 0.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("bits", [1, 2, 4, 32])
def test_float_product(isa: str, rows: int, outputs: int, inputs: int, bits: int) -> None:
    rng = draw(bits)
    x = rng.normal(size=(rows, 1, 1, inputs)).astype(np.float32)
    scale, bias = rng.normal(size=(2, outputs)).astype(np.float32)
    if bits == 32:
        levels, weight = np.zeros(0, np.float32), rng.normal(size=(outputs, inputs)).astype(np.float32)
        lanes = layout.float_lanes(weight)
    else:
        levels = np.sort(rng.normal(size=1 << bits)).astype(np.float32)
        codes = rng.integers(0, 1 << bits, (outputs, inputs))
        weight, lanes = levels[codes], layout.code_lanes(codes, bits)
    exact = x.astype(np.float64)[:, 0, 0] @ weight.T.astype(np.float64) * scale + bias
    size = np.abs(x[:, 0, 0]) @ np.abs(weight.T) * np.abs(scale) + np.abs(bias)
    for count in {rows, min(rows, 3)}:
        for threads in (1, 2):
            got = kernels.floats(x[:count], lanes, bits, levels, Window(), scale, bias, threads=threads)
            assert np.all(np.abs(got[:, 0, 0] - exact[:count]) <= 3e-6 * size[:count])


@given(images, st.integers(1, 60), windows, st.sampled_from([1, 2, 4]))
def test_float_convolution(image, outputs: int, window: Window, bits: int) -> None:
    rng = draw(bits)
    x = rng.normal(size=image).astype(np.float32)
    codes = rng.integers(0, 1 << bits, (outputs, window.kernel[0] * window.kernel[1] * image[3]))
    levels = np.arange(1 << bits, dtype=np.float32) - 1
    one, zero = np.ones(outputs, np.float32), np.zeros(outputs, np.float32)
    expected = reference.product(x, levels[codes], window)
    for name in ISAS:
        with kernels.limited(name):
            got = kernels.floats(x, layout.code_lanes(codes, bits), bits, levels, window, one, zero)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


@given(images, st.integers(1, 70), windows, st.sampled_from([1, 2, 4]))
def test_integer_convolution_is_exact(image, outputs: int, window: Window, bits: int) -> None:
    rng = draw(bits)
    x = rng.integers(-128, 128, image).astype(np.int8)
    codes = rng.integers(0, 1 << bits, (outputs, window.kernel[0] * window.kernel[1] * image[3]))
    expected = reference.integer(x, codes, window)
    for name in ISAS:
        with kernels.limited(name):
            got = kernels.integers(x, layout.byte_lanes(codes, bits), bits, window, outputs)
        assert np.array_equal(got, expected)


@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("bits", [1, 2, 4])
def test_integer_product_with_levels_on_a_line(isa: str, rows: int, outputs: int, inputs: int, bits: int) -> None:
    rng = draw(bits)
    x = rng.integers(-128, 128, (rows, 1, 1, inputs)).astype(np.int8)
    codes = rng.integers(0, 1 << bits, (outputs, inputs))
    scale, bias = rng.normal(size=(2, outputs)).astype(np.float32)
    a, d = -1.5, 0.5
    lanes = layout.byte_lanes(codes, bits)
    got = kernels.integers(x, lanes, bits, Window(), outputs, (a, d), scale, bias, threads=2)
    exact = x.astype(np.float64)[:, 0, 0] @ (a + d * codes.T) * scale + bias
    np.testing.assert_allclose(got[:, 0, 0], exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("channels", [1, 16, 63, 64, 65, 200])
def test_signs_are_packed(isa: str, channels: int) -> None:
    x = draw().normal(size=(5, channels)).astype(np.float32)
    x[0, 0], x[1, 0], x[2, 0] = 0.0, -0.0, np.nan  # both zeros count as +1, what is no number as -1
    with np.errstate(invalid="ignore"):
        expected = layout.words((x >= 0).astype(np.uint8))
    assert np.array_equal(kernels.sign_pack(x), expected)


@given(images, windows)
def test_pooling_of_bits_is_an_or(image, window: Window) -> None:
    x = draw().integers(0, 2, image).astype(np.uint8)
    flip = layout.words(draw(1).integers(0, 2, image[3]).astype(np.uint8))
    expected = layout.words(reference.pool_bits(x, window))
    assert np.array_equal(kernels.pool_bits(layout.words(x), window), expected)
    assert np.array_equal(kernels.pool_bits(layout.words(x), window, flip), expected ^ flip)


def test_words_round_trip() -> None:
    x = draw().integers(0, 2, (3, 77)).astype(np.uint8)
    assert np.array_equal(layout.from_words(layout.words(x), 77), x)


def test_a_wrong_array_never_crosses_over() -> None:
    _, _, bits, tiles = one_bit_case((2, 5, 5, 70), 12, Window((3, 3)))
    with pytest.raises(TypeError, match="contiguous"):
        w1a1(bits[:, ::-1], tiles, 12, Window((3, 3)), 70)
    with pytest.raises(TypeError, match="uint64"):
        w1a1(bits.view(np.int64), tiles, 12, Window((3, 3)), 70)
    with pytest.raises(TypeError, match="reads"):
        w1a1(bits, tiles[:-1], 12, Window((3, 3)), 70)
    with pytest.raises(ValueError, match="70 channels got 71"):
        w1a1(np.zeros((2, 5, 5, 71), np.float32), tiles, 12, Window((3, 3)), 70)
    with pytest.raises(ValueError, match="scale"):
        w1a1(bits, tiles, 12, Window((3, 3)), 70, FLOATS)
    with pytest.raises(ValueError, match="thresholds"):
        w1a1(bits, tiles, 12, Window((3, 3)), 70, BITS)


def test_a_library_of_other_sources_is_not_called(monkeypatch):
    told = []
    monkeypatch.setattr(kernels, "load", lambda name: object())
    monkeypatch.setattr(kernels.logger, "warning", told.append)
    kernels.library.cache_clear()
    try:
        assert kernels.library() is None and kernels.isa() == "numpy"
    finally:
        kernels.library.cache_clear()
    assert len(told) == 1 and "python -m askew.native.build" in told[0]
