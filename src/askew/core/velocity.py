"""The general Muehlebach-Jordan step for any smooth constraint g(w) >= 0 (section 2 of the paper).

v = argmin { |v + u|^2 / 2 : grad g_i(w) . v >= -alpha g_i(w) for i in I(w) },  I(w) = { i : g_i(w) <= 0 }.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from scipy.optimize import nnls
from torch import Tensor


class EmptyVelocitySetError(ValueError):
    """V_alpha(w) is empty: no velocity satisfies all active constraints at once."""


def velocity(u: Tensor, g: Tensor, jacobian: Tensor, alpha: float) -> Tensor:
    """The velocity v for a gradient u (d,), constraint values g (m,) and their Jacobian (m, d).

    x = v + u is the point of least norm with J x >= h, h = -alpha g + J u, over the active rows: a least-distance
    problem, which Lawson and Hanson reduce to non-negative least squares (scipy's nnls): with E = [J'; h'] and
    f = (0, .., 0, 1), the residual r = E y - f gives x = -r_d / r_{d+1}, and |r| = 1/sqrt(1 + |x|^2): next to nothing
    means that no x exists. Rows are normalised and h is measured in its largest entry, so that |x| is of order 1.
    """
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    if u.ndim != 1 or g.ndim != 1 or jacobian.shape != (g.numel(), u.numel()):
        raise ValueError(f"u (d,), g (m,), jacobian (m, d) expected, got {u.shape}, {g.shape}, {jacobian.shape}")
    active = g <= 0
    J = jacobian[active].double()
    h = -alpha * g[active].double() + J @ u.double()
    length = J.norm(dim=1)
    flat = length == 0  # such a row asks 0 >= h of every velocity
    J, h = J / torch.where(flat, 1, length)[:, None], h / torch.where(flat, 1, length)
    if not bool((h > 0).any()):
        return -u
    unit = h.max()
    E = torch.cat([J.T, h.unsqueeze(0) / unit]).cpu().numpy()
    f = torch.zeros(E.shape[0], dtype=torch.float64)
    f[-1] = 1.0
    y, norm = nnls(E, f.numpy())
    if norm < 1e-7:
        rows = active.nonzero().flatten().tolist()
        raise EmptyVelocitySetError(f"no velocity satisfies the active constraints {rows}")
    r = torch.from_numpy(E @ y) - f
    x = (-r[:-1] / r[-1]).to(u.device) * unit
    return (x - u.double()).to(u.dtype)


def step(
    w: Tensor,
    gradient: Tensor,
    constraint: Callable[[Tensor], Tensor],
    alpha: float,
    lr: float,
    jacobian: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """w + lr * v for the constraint function g: (d,) -> (m,); its Jacobian is found by autograd if not given."""
    differentiate = jacobian if jacobian is not None else torch.func.jacrev(constraint)
    return w + lr * velocity(gradient, constraint(w), differentiate(w), alpha)
