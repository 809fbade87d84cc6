"""LUQ's weights (Chmiel et al. 2023): integers under a SAWB scale in the forward pass, a straight-through gradient."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from askew.methods.base import Method, Site, snapped


class Luq(Method):
    """forward: s * nearest level of w/s, s following the latents at every step;  gradient and latents as they are.

    The scale is the group's (scale='sawb' for LUQ proper, with uniform(4)); it is frozen at the run's last step. The
    latents are not clipped: weights beyond the clip keep their gradient, as in the authors' code.

    This is LUQ's forward phase. Activations are askew.nn.quantize_activations; the logarithmic unbiased quantiser of
    the neural gradients is askew.nn.quantize_gradients, off unless asked for, as in the ASkew paper's comparison.
    """

    name: ClassVar[str] = "luq"
    latent: ClassVar[bool] = True

    def forward_weight(self, w: Tensor, site: Site) -> Tensor:
        return snapped(w, site.levels, site.scale)
