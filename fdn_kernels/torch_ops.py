"""The CPU path: the numbers of :mod:`fdn_kernels.reference` in fewer operations and less memory.

Training draws are few and layers small, so time goes into the number of operations: one autograd function holds the
layer, with its backward written out. Predictions take many draws: they are computed without a K x B x P tensor, in
chunks of draws that stay in cache.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fdn_kernels import reference
from fdn_kernels.reference import WeightGaussian, hypernet_order, split_parameters

CHUNK_ELEMENTS = 1 << 16  # hypernetwork outputs alive at once in predictions


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``weight x + bias`` over (..., k, B, ·) with weight (..., n, m): one GEMM per replicate."""
    flat = x.flatten(-3, -2)  # (..., k B, m)
    if flat.dim() == weight.dim() == 3 and len(flat) == len(weight):
        out = torch.baddbmm(bias.unsqueeze(-2), flat, weight.mT)
    else:
        out = flat @ weight.mT + bias.unsqueeze(-2)
    return out.unflatten(-2, x.shape[-3:-1])  # (..., k, B, n)


def matvec(theta: Tensor, a: Tensor) -> Tensor:
    """As :func:`fdn_kernels.reference.matvec`."""
    weight, bias = split_parameters(theta, a.shape[-1])  # (..., k, b, d_out, d_in), (..., k, b, d_out)
    k, b, d_out = weight.shape[-4:-1]
    if b == 1 and k == 1:  # the same weights for all
        return affine(a, weight.squeeze(-3).squeeze(-3), bias.squeeze(-2).squeeze(-2))
    if b == 1:  # one matrix per draw
        y = a @ weight.squeeze(-3).mT  # (..., K, B, d_out)
        return y + bias if torch.is_grad_enabled() else y.add_(bias)
    if k == 1 and a.shape[-3] > 1 and d_out > 1:  # one matrix per example: GEMMs over the draws
        return (a.transpose(-3, -2) @ weight.squeeze(-4).mT).transpose(-3, -2) + bias
    return (weight * a.unsqueeze(-2)).sum(-1) + bias


def gaussian_linear(a: Tensor, q: WeightGaussian, noise: str, eps: Tensor | None) -> Tensor:
    """As :func:`fdn_kernels.reference.gaussian_linear`."""
    if noise == "none":
        return matvec(q.mean, a)
    if noise == "local":
        return torch.addcmul(matvec(q.mean, a), matvec(q.scale.square(), a.square()).sqrt(), eps)
    k, b = q.mean.shape[-3:-1]
    if noise == "independent" or k == eps.shape[-3] or b == 1:
        return matvec(torch.addcmul(q.mean, q.scale, eps), a)
    # shared draws of weights that depend on the example only: the mean's part and the noise's part
    eps_w, eps_b = split_parameters(eps.squeeze(-2), a.shape[-1])  # (..., K, d_out, d_in), (..., K, d_out)
    scale_w, scale_b = split_parameters(q.scale, a.shape[-1])  # (..., 1, B, d_out, d_in), (..., 1, B, d_out)
    scale_w = scale_w.squeeze(-4)  # (..., B, d_out, d_in)
    if a.shape[-3] == 1:
        scaled = scale_w * a.squeeze(-3).unsqueeze(-2)  # (..., B, d_out, d_in)
        spread = torch.einsum("...koi,...boi->...kbo", eps_w, scaled)
    else:
        outputs = zip(eps_w.unbind(-2), scale_w.unbind(-2))  # (..., K, d_in), (..., B, d_in)
        spread = torch.stack([((a * e.unsqueeze(-2)) * s.unsqueeze(-3)).sum(-1) for e, s in outputs], dim=-1)
    return matvec(q.mean, a) + torch.addcmul(spread, scale_b, eps_b.unsqueeze(-2))  # (..., K, B, d_out)


def _hypernet_gaussian(z: Tensor, weight: Tensor, bias: Tensor, d_in: int, floor: float) -> WeightGaussian:
    """As :func:`fdn_kernels.reference.hypernet_gaussian`; both parts contiguous."""
    mean_weight, rho_weight = hypernet_order(weight, d_in, -2)  # (..., P, h)
    mean_bias, rho_bias = hypernet_order(bias, d_in, -1)  # (..., P)
    return WeightGaussian(
        affine(z, mean_weight, mean_bias), F.softplus(affine(z, rho_weight, rho_bias)).add_(floor)
    )


def _reduce(grad: Tensor, like: Tensor) -> Tensor:
    """Sum a gradient over the dimensions along which ``like`` was broadcast."""
    return grad.sum_to_size(like.shape) if grad.shape != like.shape else grad


class _FDNLinear(torch.autograd.Function):
    """The layer with sampled (shared, independent) or local noise and its analytic KL, backward by hand."""

    @staticmethod
    def forward(ctx, a, z, weight, bias, noise, eps, floor, prior_scale):
        d_in = a.shape[-1]
        ordered = torch.cat(hypernet_order(weight, d_in, -2), -2)  # (..., 2P, h)
        out = affine(z, ordered, torch.cat(hypernet_order(bias, d_in, -1), -1))  # (..., k, B, 2P)
        mean, rho = out.chunk(2, -1)  # (..., k, B, P)
        scale = F.softplus(rho).add_(floor)
        if noise == "local":
            y_scale = matvec(scale.square(), a.square()).sqrt_()  # (..., K, B, d_out)
            theta, y = mean, torch.addcmul(matvec(mean, a), y_scale, eps)
        else:
            theta, y_scale = torch.addcmul(mean, scale, eps), None  # (..., K, B, P)
            y = matvec(theta, a)
        precision = 1 / prior_scale**2
        squares = (mean.square() + scale.square()).sum(-1)
        kl = 0.5 * precision * squares - (scale / prior_scale).log_().sum(-1) - 0.5 * mean.shape[-1]  # (..., k, B)
        ctx.save_for_backward(a, z, weight, bias, ordered, mean, scale, theta, y_scale, eps)
        ctx.noise, ctx.floor, ctx.precision = noise, floor, precision
        return y, kl

    @staticmethod
    def backward(ctx, grad_y, grad_kl):
        a, z, weight, bias, ordered, mean, scale, theta, y_scale, eps = ctx.saved_tensors
        d_in = a.shape[-1]

        def outer(g: Tensor, x: Tensor) -> Tensor:  # d(W x + b)/d(W, b): (..., K, B, P)
            return torch.cat([(g.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2), g], -1)

        grad_theta = outer(grad_y, a)
        if ctx.noise == "local":
            grad_var = 0.5 * grad_y * eps / y_scale  # (..., K, B, d_out)
            grad_scale = 2 * scale * _reduce(outer(grad_var, a.square()), scale)
        else:
            grad_scale = _reduce(grad_theta * eps, scale)  # (..., k, B, P)
        grad_kl = grad_kl.unsqueeze(-1)  # (..., k, B, 1)
        grad_mean = _reduce(grad_theta, mean) + (ctx.precision * grad_kl) * mean
        grad_scale = grad_scale + grad_kl * (ctx.precision * scale - 1 / scale)
        grad_rho = grad_scale.mul_(-torch.expm1(ctx.floor - scale))  # softplus'(rho) = 1 - exp(-softplus(rho))
        grad_out = torch.cat([grad_mean, grad_rho], -1).flatten(-3, -2)  # (..., k B, 2P)

        grad_a = grad_z = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_a = (split_parameters(theta, d_in)[0] * grad_y.unsqueeze(-1)).sum(-2)  # (..., K, B, d_in)
            if ctx.noise == "local":
                variance, _ = split_parameters(scale.square(), d_in)
                grad_a = grad_a + 2 * a * (variance * grad_var.unsqueeze(-1)).sum(-2)
            grad_a = _reduce(grad_a, a)
        if ctx.needs_input_grad[1]:
            grad_z = _reduce((grad_out @ ordered).unflatten(-2, z.shape[-3:-1]), z)
        grad_ordered = grad_out.mT @ z.flatten(-3, -2)  # (..., 2P, h)
        grad_weight = _reduce(_hypernet_reorder(grad_ordered, d_in, -2), weight)
        grad_bias = _reduce(_hypernet_reorder(grad_out.sum(-2), d_in, -1), bias)
        return grad_a, grad_z, grad_weight, grad_bias, None, None, None, None


def _hypernet_reorder(t: Tensor, d_in: int, dim: int) -> Tensor:
    """The inverse of ``cat(hypernet_order(...))``."""
    p = t.shape[dim] // 2
    d_out = p // (d_in + 1)
    n = d_out * d_in
    weight_mean, bias_mean, weight_rho, bias_rho = t.split([n, d_out, n, d_out], dim)
    return torch.cat([weight_mean, weight_rho, bias_mean, bias_rho], dim)


def fdn_linear(
    a: Tensor,
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    noise: str,
    eps: Tensor | None,
    kl: str,
    floor: float,
    prior_scale: float,
) -> tuple[Tensor, Tensor | None]:
    """As :func:`fdn_kernels.reference.fdn_linear`."""
    if torch.is_grad_enabled():
        if kl == "analytic" and noise != "none":
            return _FDNLinear.apply(a, z, weight, bias, noise, eps, floor, prior_scale)
        return reference.fdn_linear(a, z, weight, bias, noise, eps, kl, floor, prior_scale)

    def part(a: Tensor, z: Tensor, eps: Tensor | None) -> tuple[Tensor, Tensor | None]:
        q = _hypernet_gaussian(z, weight, bias, a.shape[-1], floor)
        y = gaussian_linear(a, q, noise, eps)
        if kl == "none":
            return y, None
        return y, reference.gaussian_kl(q, prior_scale) if kl == "analytic" else reference.sampled_kl(q, eps, prior_scale)

    draws = z.shape[-3]
    if draws == 1:
        return part(a, z, eps)
    size = max(1, CHUNK_ELEMENTS // (z.shape[:-3].numel() * z.shape[-2] * weight.shape[-2]))  # draws at a time

    def chunk(t: Tensor | None, start: int) -> Tensor | None:
        return t if t is None or t.shape[-3] == 1 else t[..., start : start + size, :, :]

    parts = [part(chunk(a, k), chunk(z, k), chunk(eps, k)) for k in range(0, draws, size)]
    y = torch.cat([y for y, _ in parts], dim=-3)
    return y, None if kl == "none" else torch.cat([term for _, term in parts], dim=-2)
