"""The general Muehlebach-Jordan step for any smooth constraint g(w) >= 0 (section 2 of the paper).

v = argmin { |v + u|^2 / 2 : grad g_i(w) . v >= -alpha g_i(w) for i in I(w) },  I(w) = { i : g_i(w) <= 0 }.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.optimize import nnls
from torch import Tensor


class EmptyVelocitySetError(ValueError):
    """V_alpha(w) is empty: no velocity satisfies all active constraints at once."""


def velocity(u: Tensor, g: Tensor, jacobian: Tensor, alpha: float) -> Tensor:
    """The velocity v for a gradient u (d,), constraint values g (m,) and their Jacobian (m, d).

    x = v + u is the point of least norm with J x >= -alpha g + J u over the active rows: a least-distance problem,
    which Lawson and Hanson reduce to non-negative least squares (scipy's nnls): with E = [J'; h'] and
    f = (0, .., 0, 1), the residual r = E y - f gives x = -r_d / r_{d+1}; a zero residual means that no x exists.
    """
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, got {alpha}")
    if u.ndim != 1 or g.ndim != 1 or jacobian.shape != (g.numel(), u.numel()):
        raise ValueError(f"u (d,), g (m,), jacobian (m, d) expected, got {u.shape}, {g.shape}, {jacobian.shape}")
    active = g <= 0
    if not bool(active.any()):
        return -u
    J = jacobian[active].double()
    h = -alpha * g[active].double() + J @ u.double()
    scale = J.norm(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    E = torch.cat([(J / scale).T, (h / scale[:, 0]).unsqueeze(0)]).cpu().numpy()
    f = torch.zeros(E.shape[0], dtype=torch.float64)
    f[-1] = 1.0
    y, norm = nnls(E, f.numpy())
    if norm < 1e-10:
        rows = active.nonzero().flatten().tolist()
        raise EmptyVelocitySetError(f"no velocity satisfies the active constraints {rows}")
    r = torch.from_numpy(E @ y) - f
    x = -r[:-1] / r[-1]
    return (x.to(u.device) - u.double()).to(u.dtype)


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
