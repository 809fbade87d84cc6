"""Rounding and signs: the forward pass exactly on the levels, the backward pass as stated."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from askew.core.oracle import nearest
from askew.nn.straight_through import integer_codes, round_to, sign, slope


def number(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=20),
    st.floats(0.1, 3),
    st.sampled_from([(-8, 7), (-2, 1), (0, 15), (0, 3), (0, 1)]),
)
def test_round_to_is_the_nearest_integer_in_range(values, scale, ends):
    low, high = ends
    x = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    out = round_to(x, number(scale), number(low), number(high))
    codes = integer_codes(x, number(scale), number(low), number(high))
    for q, code in zip((x / scale).tolist(), codes.tolist(), strict=True):
        assert code in range(low, high + 1)
        assert abs(code - q) <= abs(nearest(q, range(low, high + 1)) - q) + 1e-12
    assert torch.equal(out, codes * scale)
    upstream = torch.linspace(1, 2, len(values), dtype=torch.float64)
    out.backward(upstream)
    assert x.grad is not None
    inside = (x / scale >= low) & (x / scale <= high)
    assert torch.equal(x.grad, torch.where(inside, upstream, 0.0))


def test_no_gradient_for_the_scale_and_dtype_stays():
    x = torch.tensor([0.3, 1.7, 9.0], dtype=torch.bfloat16, requires_grad=True)
    out = round_to(x, torch.tensor(0.5), torch.tensor(0.0), torch.tensor(3.0))
    assert out.dtype == torch.bfloat16 and out.tolist() == [0.5, 1.5, 1.5]
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 0.0, 0.0]  # 1.7 / .5 = 3.4 lies beyond 3


SLOPES = {
    "tanh": lambda x: 1 - torch.tanh(x) ** 2,
    "clip": lambda x: (x.abs() <= 1).double(),
    "quadratic": lambda x: torch.relu(2 - 2 * x.abs()),
}


@pytest.mark.parametrize("kind", SLOPES)
def test_sign_and_its_gradient(kind):
    x = torch.tensor([-3.0, -1.0, -0.2, -0.0, 0.0, 0.4, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    out = sign(x, kind)
    assert out.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]
    upstream = torch.arange(1.0, 9.0, dtype=torch.float64)
    out.backward(upstream)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, upstream * SLOPES[kind](x.detach()))


def test_tanh_slope_is_the_derivative_of_tanh():
    x = torch.linspace(-4, 4, 33, dtype=torch.float64, requires_grad=True)
    torch.tanh(x).sum().backward()
    torch.testing.assert_close(x.grad, slope(x.detach(), "tanh"))
    x = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    for kind in ("clip", "quadratic", "tanh"):  # each bump has the area of a step from -1 to 1
        assert float(torch.trapezoid(slope(x, kind), x)) == pytest.approx(2, abs=2e-3)
