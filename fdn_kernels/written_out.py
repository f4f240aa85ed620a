"""The layer as autograd functions whose backward is written out, in columns."""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fdn_kernels import columns, loops

SAMPLED = "RGKB RPKB RIKB RPKb"  # gaussian, scale, a, eps in the layouts of loops with a distribution for every draw


def layer_sizes(d_in: int, d_out: int) -> dict[str, int]:
    """Sizes in the layouts of a layer's loops: inputs, outputs, parameters, and their means and rhos."""
    p = d_out * (d_in + 1)
    return {"I": d_in, "O": d_out, "P": p, "G": 2 * p}


def once_differentiable(backward):
    """A backward whose results raise where they are differentiated by one of ``ctx.inputs``.

    PyTorch's own decorator lets them pass as constants where the incoming gradient is one, as that of ``y.sum()``.
    """

    @functools.wraps(backward)
    def wrapper(ctx, *gradients):
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        return tuple(t if t is None else _Refusing.apply(t, *gradients, *ctx.inputs) for t in found)

    return wrapper


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t: Tensor, *inputs: Tensor) -> Tensor:
        return t.view_as(t)

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError(
            "the layer's written-out passes can be differentiated once, not twice; backend 'reference' gives second "
            "derivatives"
        )


class FDNLinear(torch.autograd.Function):
    """The layer with sampled (shared, independent) or local noise and its analytic KL, backward by hand."""

    @staticmethod
    def forward(ctx, a, z, weight, bias, eps, noise, floor, prior_scale):
        """y ``(R, K, B, d_out)`` and the KL ``(R, k, B)``."""
        ctx.inputs = a, z, weight, bias
        matrix, z1 = columns.hypernet_matrix(weight, bias, a.shape[3]), columns.with_one(z)
        p = matrix.shape[1] // 2
        gaussian, scale, log_sum = columns.gaussian(matrix, z1, a.shape[2], floor)  # (R, 2P, k, B), (R, P, k, B)
        mean = gaussian.narrow(1, 0, p)
        a, eps = columns.of(a), columns.of(eps)  # (R, d_in, K, B), (R, P, K, b) or (R, d_out, K, B)
        if noise == "local":
            y_scale = columns.apply(scale.square(), a.square()).sqrt_()  # (R, d_out, K, B)
            theta, y = mean, torch.addcmul(columns.apply(mean, a), y_scale, eps)
        else:
            theta, y_scale = torch.addcmul(mean, scale, eps), None  # (R, P, K, B)
            y = columns.apply(theta, a)
        theta = theta if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(a, z1, matrix, gaussian, scale, theta, y_scale, eps)
        ctx.precision, ctx.has_u = 1 / prior_scale**2, log_sum is not None
        return columns.rows(y), columns.gaussian_kl(mean, scale, log_sum, prior_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y, grad_kl):
        """Gradients of a, z, weight and bias."""
        a, z1, matrix, gaussian, scale, theta, y_scale, eps = ctx.saved_tensors
        d_in, p, k = a.shape[1], scale.shape[1], gaussian.shape[2]
        grad_y, grad_kl = columns.of(grad_y), grad_kl.unsqueeze(1)  # (R, d_out, K, B), (R, 1, k, B)
        out = torch.empty_like(gaussian)
        mean, rho = gaussian.narrow(1, 0, p), gaussian.narrow(1, p, p)  # (R, P, k, B)
        grad_mean, grad_scale = out.narrow(1, 0, p), out.narrow(1, p, p)
        if y_scale is None and k == grad_y.shape[2]:
            columns.outer(grad_y, a, grad_mean)
            torch.mul(grad_mean, eps, out=grad_scale)
        else:
            grad_theta = columns.outer(grad_y, a)  # (R, P, K, B)
            grad_mean.copy_(columns.sum_draws(grad_theta, k))
            if y_scale is None:
                grad_scale.copy_(columns.sum_draws(grad_theta.mul_(eps), k))
            else:
                y_scale = y_scale.masked_fill(y_scale == 0, math.inf)  # where nothing moves it
                grad_var = 0.5 * grad_y * eps / y_scale  # (R, d_out, K, B)
                torch.mul(scale, columns.sum_draws(columns.outer(grad_var, a.square()), k), out=grad_scale).mul_(2)
        grad_mean.addcmul_(mean, grad_kl, value=ctx.precision)  # dKL/dmu = mu / s0^2
        grad_scale.addcmul_(scale, grad_kl, value=ctx.precision)  # dKL/dsigma = sigma / s0^2 - 1 / sigma
        grad_scale.addcdiv_(grad_kl, scale, value=-1)
        if ctx.has_u:  # now the gradient of rho: dsigma/drho = sigmoid(rho) = 1 - 1 / u
            grad_scale.addcdiv_(grad_scale, rho, value=-1)
        else:
            grad_scale.mul_(rho.sigmoid())

        grad_a = None
        if ctx.needs_input_grad[0]:
            grad_a = columns.transposed(theta, grad_y, d_in)  # (R, d_in, K, B)
            if y_scale is not None:
                grad_a = grad_a + 2 * a * columns.transposed(scale.square(), grad_var, d_in)
            grad_a = columns.rows(columns.sum_draws(grad_a, a.shape[2]))
        grads = columns.hypernet_backward(out, matrix, z1, d_in, ctx.needs_input_grad[1])
        return grad_a, *grads, None, None, None, None


class CompiledLinear(torch.autograd.Function):
    """The layer with sampled weights, a distribution for every draw (k = K), in compiled loops."""

    @staticmethod
    def forward(ctx, a, z, weight, bias, eps, floor, prior_scale):
        """y ``(R, K, B, d_out)`` and the KL ``(R, k, B)``."""
        ctx.inputs = a, z, weight, bias
        a, eps = columns.of(a).contiguous(), columns.of(eps).contiguous()  # (R, d_in, K, B), (R, P, K, b)
        matrix, z1 = columns.hypernet_matrix(weight, bias, a.shape[1]), columns.with_one(z)
        (r, _, k, batch), p = a.shape, eps.shape[1]
        gaussian = columns.hypernet(matrix, z1, batch)  # (R, 2P, K, B)
        rho = gaussian.narrow(1, p, p)
        scale = rho.exp_().add_(1).log().add_(floor)  # (R, P, K, B); u = 1 + exp(rho) takes rho's place
        y, kl = a.new_empty(r, p // (a.shape[1] + 1), k, batch), a.new_empty(r, k, batch)
        sizes = layer_sizes(a.shape[1], y.shape[1])
        loops.call("sample_with_kl", f"{SAMPLED} ROKB RKB", gaussian, scale, a, eps, prior_scale, y, kl, **sizes)
        if not math.isfinite(kl.sum().item()):  # out of the range of exp or of the product of sigmas, or NaN
            scale = F.softplus(columns.hypernet(matrix[:, p:], z1, batch)).add_(floor)
            loops.call("sample_with_kl", f"{SAMPLED} ROKB RKB", gaussian, scale, a, eps, prior_scale, y, kl, **sizes)
            kl = columns.gaussian_kl(gaussian.narrow(1, 0, p), scale, None, prior_scale)
        ctx.save_for_backward(a, z1, matrix, gaussian, scale, eps)
        ctx.prior_scale = prior_scale
        return columns.rows(y), kl

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y, grad_kl):
        """Gradients of a, z, weight and bias."""
        a, z1, matrix, gaussian, scale, eps = ctx.saved_tensors
        need_a, need_z = ctx.needs_input_grad[:2]
        grad, grad_a = torch.empty_like(gaussian), torch.zeros_like(a) if need_a else a
        incoming = columns.of(grad_y).contiguous(), grad_kl.contiguous()
        arguments = gaussian, scale, a, eps, ctx.prior_scale, need_a, grad, grad_a
        layout, sizes = f"ROKB RKB {SAMPLED} RGKB RIKB", layer_sizes(a.shape[1], grad_y.shape[-1])
        loops.call("sample_with_kl_backward", layout, *incoming, *arguments, **sizes)
        grad_z, grad_weight, grad_bias = columns.hypernet_backward(grad, matrix, z1, a.shape[1], need_z)
        return columns.rows(grad_a) if need_a else None, grad_z, grad_weight, grad_bias, None, None, None
