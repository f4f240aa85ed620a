r"""The definition of the op, in plain einsum and without cleverness.

Shapes, throughout this package: ``...`` are replicates (seeds, ensemble members), ``K`` Monte Carlo draws, ``B``
examples; ``P = d_out (d_in + 1)`` are one layer's parameters: weights, laid out ``(d_out, d_in)``, then biases.
Axes named ``k`` or ``b`` are 1 where a quantity does not depend on the draw or on the example.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fdn_kernels import philox


class WeightGaussian(NamedTuple):
    """Diagonal Gaussian over the weights and biases of one layer, q(theta_l | s_l) (paper, section 3.2)."""

    mean: Tensor  # (..., k, b, P)
    scale: Tensor  # (..., k, b, P), standard deviations


def split_parameters(theta: Tensor, d_in: int) -> tuple[Tensor, Tensor]:
    """Parameters ``(..., P)`` as weights ``(..., d_out, d_in)`` and biases ``(..., d_out)``.

    Raises:
        ValueError: where P is no multiple of d_in + 1.
    """
    d_out, rest = theta.shape[-1] // (d_in + 1), theta.shape[-1] % (d_in + 1)
    if rest:
        p = theta.shape[-1]
        raise ValueError(f"{p} parameters are no layer of {d_in} inputs; expected a multiple of {d_in + 1}")
    return theta[..., : d_out * d_in].unflatten(-1, (d_out, d_in)), theta[..., d_out * d_in :]


def hypernet_order(t: Tensor, d_in: int, dim: int) -> tuple[Tensor, Tensor]:
    """Outputs ordered (mu_W, rho_W, mu_b, rho_b) along ``dim`` as the parameters' means and rhos, P each."""
    d_out = t.shape[dim] // (2 * (d_in + 1))
    n = d_out * d_in
    weight_mean, weight_rho, bias_mean, bias_rho = t.split([n, n, d_out, d_out], dim)
    return torch.cat([weight_mean, bias_mean], dim), torch.cat([weight_rho, bias_rho], dim)


def hypernet_gaussian(z: Tensor, weight: Tensor, bias: Tensor, d_in: int, floor: float) -> WeightGaussian:
    r"""(mu_W, rho_W, mu_b, rho_b) = weight z + bias, sigma = floor + softplus(rho) (paper, section 3.2).

    z ``(..., k, B, h)``, weight ``(..., 2P, h)``, bias ``(..., 2P)``.
    """
    out = torch.einsum("...kbh,...ph->...kbp", z, weight) + bias[..., None, None, :]  # (..., k, B, 2P)
    mean, rho = hypernet_order(out, d_in, -1)  # (..., k, B, P)
    return WeightGaussian(mean, floor + F.softplus(rho))


def matvec(theta: Tensor, a: Tensor) -> Tensor:
    """W a + b: theta ``(..., k, b, P)``, a ``(..., k, B, d_in)`` to ``(..., k, B, d_out)``."""
    weight, bias = split_parameters(theta, a.shape[-1])
    return torch.einsum("...oi,...i->...o", weight, a) + bias


def moments(a: Tensor, q: WeightGaussian) -> tuple[Tensor, Tensor]:
    r"""Mean and variance of W a + b given a: mu_W a + mu_b and sigma_W^2 a^2 + sigma_b^2, both ``(..., k, B, d_out)``.

    Exact, and the outputs are independent, where each draw of the weights is used for one a.
    """
    return matvec(q.mean, a), matvec(q.scale.square(), a.square())


def root(variance: Tensor) -> Tensor:
    """The square root, with the gradient 0 where it is 0: where a's that are not 0 have certain weights."""
    there = variance != 0
    return torch.where(there, variance, 1).sqrt() * there


def gaussian_linear(a: Tensor, q: WeightGaussian, noise: str, eps: Tensor | None) -> Tensor:
    """y = W a + b with (W, b) ~ q, for each draw and example; see :func:`fdn_kernels.ops.gaussian_linear`."""
    if noise == "none":
        return matvec(q.mean, a)
    if noise == "local":
        mean, var = moments(a, q)
        return mean + root(var) * eps
    return matvec(q.mean + q.scale * eps, a)


def gaussian_kl(q: WeightGaussian, prior_scale: float) -> Tensor:
    r"""KL(q || N(0, s0^2 I)) = 1/2 sum_j [(sigma_j^2 + mu_j^2) / s0^2 - 1 - log(sigma_j^2 / s0^2)], ``(..., k, b)``.

    Summed over all weights and biases of the layer. Source: paper, section 3.2, "Prior and regularization".
    """
    squares = (q.scale.square() + q.mean.square()) / prior_scale**2
    return (0.5 * (squares - 1) - (q.scale / prior_scale).log()).sum(-1)


def sampled_kl(q: WeightGaussian, eps: Tensor, prior_scale: float) -> Tensor:
    r"""log q(theta | s) - log p0(theta) at the drawn theta, ``(..., K, b)``: the KL's one-sample estimate.

    The IWAE bound weighs a draw by exp(-sampled_kl) p(y | x, theta) (paper, appendix B, equation (B)).
    """
    theta = q.mean + q.scale * eps  # (..., K, b, P)
    log_ratio = 0.5 * ((theta / prior_scale).square() - eps.square()) - (q.scale / prior_scale).log()
    return log_ratio.sum(-1)


def kl_term(q: WeightGaussian, kl: str, eps: Tensor | None, prior_scale: float) -> Tensor | None:
    """The layer's KL, ``"analytic"`` or ``"sampled"`` at the draws that eps makes; None for ``"none"``."""
    if kl == "none":
        return None
    return gaussian_kl(q, prior_scale) if kl == "analytic" else sampled_kl(q, eps, prior_scale)


def fdn_linear(
    a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, noise: str, eps: Tensor | None, kl: str, floor: float,
    prior_scale: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Hypernetwork output, sampling, matvec and KL of one layer; see :func:`fdn_kernels.ops.fdn_linear`."""
    q = hypernet_gaussian(z, weight, bias, a.shape[-1], floor)
    return gaussian_linear(a, q, noise, eps), kl_term(q, kl, eps, prior_scale)


def linear(
    a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None, seed: Tensor | None, draws: int, noise: str,
    kl: str, floor: float, prior_scale: float, stream: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The layer as :mod:`fdn_kernels.ops` registers it; a seed's noise is written out."""
    batch, d_in = a.shape[-2:]
    if seed is not None:
        d_out = weight.shape[-2] // (2 * (d_in + 1))
        sizes = {"draws": range(draws), "examples": range(batch), "d_in": d_in, "d_out": d_out}
        eps = philox.standard_normal(seed, noise, **sizes, stream=stream, dtype=a.dtype)
    q = hypernet_gaussian(z, weight, bias, d_in, floor)
    y, variance = moments(a, q) if noise == "moments" else (gaussian_linear(a, q, noise, eps), a.new_empty(0))
    if noise in ("none", "moments"):
        y, variance = (t.expand(-1, draws, -1, -1) if t.dim() > 1 else t for t in (y, variance))
    term = kl_term(q, kl, eps, prior_scale)
    return y, variance, a.new_empty(0) if term is None else term


def linear_backward(
    grad_y: Tensor, grad_variance: Tensor, grad_kl: Tensor, a: Tensor, z: Tensor, weight: Tensor, bias: Tensor,
    *settings,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of :func:`linear`'s four inputs; the last two settings say whether those of a and z are wanted."""
    *settings, need_a, need_z = settings
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (a, z, weight, bias)]
        outputs = linear(*leaves, *settings)
        pairs = [(t, g) for t, g in zip(outputs, (grad_y, grad_variance, grad_kl)) if t.requires_grad]
    found, incoming = zip(*pairs)
    da, dz, dweight, dbias = torch.autograd.grad(found, leaves, incoming, materialize_grads=True)
    return da if need_a else a.new_empty(0), dz if need_z else z.new_empty(0), dweight, dbias
