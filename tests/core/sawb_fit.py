"""Re-derive the coefficients of SAWB's clip (Choi et al. 2018) by deterministic quadrature.

Quantizer: 2^b levels equally spaced on [-a, a], step s = 2a / (2^b - 1).
SAWB:      a = c1 sqrt(E w^2) - c2 E|w|, that is a/E|w| = c1 r - c2 with r = sqrt(E w^2)/E|w|.
(c1, c2) is a line through the points (r, a*/E|w|) of standard distributions, a* the clip of least squared error.
Run as a script, it prints both fits for 1 to 8 bits with the excess error of each distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, linprog, minimize_scalar
from scipy.special import i0

Array = NDArray[np.float64]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


class Distribution(NamedTuple):
    """A symmetric density, given on [0, end]; the tail beyond holds less than 1e-18."""

    density: Callable[[Array], Array]
    end: float


DISTRIBUTIONS: dict[str, Distribution] = {
    "gauss": Distribution(lambda x: np.exp(-x * x / 2) / np.sqrt(2 * np.pi), 9.0),
    "uniform": Distribution(lambda x: np.full_like(x, 0.5), 1.0),
    "laplace": Distribution(lambda x: 0.5 * np.exp(-x), 45.0),
    "logistic": Distribution(lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2, 45.0),
    "triangle": Distribution(lambda x: 1 - x, 1.0),
    "vonmises": Distribution(lambda x: np.exp(np.cos(x)) / (2 * np.pi * i0(1.0)), np.pi),  # kappa = 1
}
MINIMAX_OVER = ("gauss", "laplace", "logistic", "uniform")


def expect(f: Callable[[Array], Array], of: Distribution, cuts: Sequence[float] | Array = ()) -> float:
    """E f(|w|): 12-point Gauss-Legendre between the kinks `cuts` of f and 128 even cells."""
    edges = np.unique(np.concatenate([np.asarray(cuts, float), np.linspace(0.0, of.end, 129)]))
    edges = edges[edges <= of.end]
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (1 + NODES)
    return float(2 * np.sum(half * WEIGHTS * f(x) * of.density(x)))


@cache
def moments(name: str) -> tuple[float, float]:
    """(E|w|, sqrt(E w^2))."""
    of = DISTRIBUTIONS[name]
    return expect(lambda x: x, of), expect(lambda x: x * x, of) ** 0.5


def mse(name: str, clip: float, bits: int) -> float:
    """E (w - Q(w))^2 with positive levels s (k + 1/2) and thresholds s k, k < n = 2^(b-1)."""
    n = 2 ** (bits - 1)
    s = clip / (n - 0.5)

    def squared_error(x: Array) -> Array:
        return (x - s * (np.minimum(np.floor(x / s), n - 1) + 0.5)) ** 2

    return expect(squared_error, DISTRIBUTIONS[name], s * np.arange(n))


@cache
def optimal_clip(name: str, bits: int) -> float:
    """a* = argmin_a MSE(a): a coarse geometric scan, then bounded Brent around its minimum."""
    grid = np.geomspace(0.02, 1.2, 160) * DISTRIBUTIONS[name].end
    i = int(np.argmin([mse(name, a, bits) for a in grid]))
    bounds = (grid[i - 1], grid[i + 1])
    found = minimize_scalar(lambda a: mse(name, a, bits), bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return float(found.x)


def excess(name: str, bits: int, c1: float, c2: float) -> float:
    """MSE(SAWB's clip) / MSE(a*) - 1; inf if the clip is not positive."""
    mean, rms = moments(name)
    clip = c1 * rms - c2 * mean
    return mse(name, clip, bits) / mse(name, optimal_clip(name, bits), bits) - 1 if clip > 0 else np.inf


def fit_least_squares(bits: int, names: Sequence[str] = tuple(DISTRIBUTIONS)) -> tuple[float, float]:
    """SAWB's own fit: ordinary least squares of a*/E|w| on r."""
    r = [moments(k)[1] / moments(k)[0] for k in names]
    slope, intercept = np.polyfit(r, [optimal_clip(k, bits) / moments(k)[0] for k in names], 1)
    return float(slope), float(-intercept)


def fit_minimax(bits: int, names: Sequence[str] = MINIMAX_OVER) -> tuple[float, float]:
    """The line of least worst excess: bisection on its level t.

    { clip : excess <= t } is an interval for each distribution, so whether some line meets all of them is a linear
    programme in (c1, c2); of all such lines it takes the one with the largest common slack.
    """
    low, high = 1e-6, 4.0  # a worst excess of .0001 % .. 400 %
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (low, middle) if _line_within(middle, bits, names) else (middle, high)
    return _line_within(high, bits, names) or (np.nan, np.nan)


def _line_within(t: float, bits: int, names: Sequence[str]) -> tuple[float, float] | None:
    rows, rhs = [], []
    for k in names:
        mean, rms = moments(k)
        low, high = _clips_within(t, bits, k)
        rows += [[rms / mean, -1, 1], [-rms / mean, 1, 1]]  # third variable: the common slack, maximised
        rhs += [high / mean, -low / mean]
    found = linprog([0, 0, -1], rows, rhs, bounds=[(None, None)] * 2 + [(0, None)])
    return (float(found.x[0]), float(found.x[1])) if found.status == 0 else None


def _clips_within(t: float, bits: int, name: str) -> tuple[float, float]:
    """The ends of { clip : excess <= t }."""
    best = optimal_clip(name, bits)
    least = mse(name, best, bits)

    def over(clip: float) -> float:
        return mse(name, clip, bits) / least - 1 - t

    low = high = best
    while over(low) < 0:
        low *= 0.97
    while over(high) < 0:
        high *= 1.03
    return brentq(over, low, best), brentq(over, best, high)


if __name__ == "__main__":
    for b in range(1, 9):
        for tag, fit in (("least squares", fit_least_squares), ("minimax", fit_minimax)):
            if b == 1 and tag == "minimax":
                continue
            c = fit(b)
            row = "  ".join(f"{k} {100 * excess(k, b, *c):.2f}%" for k in DISTRIBUTIONS)
            print(f"{b} {tag:13s} c1={c[0]:.4g} c2={c[1]:.4g}  {row}")  # noqa: T201
