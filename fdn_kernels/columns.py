"""The layer's formulas in *columns*, draws and examples last: parameters ``(R, P, k, B)``, inputs ``(R, d_in, k, B)``.

Every elementwise pass is then contiguous, one number of ``eps`` scales a whole row, and sums over inputs or parameters
run over rows.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

from fdn_kernels import loops

FLOOR = 1e-3  # smallest floor beside which the rounding of log(1 + exp(rho)) is nothing
LOG_GROUP = 64  # standard deviations multiplied before one logarithm: 1e-3^64 = 1e-192 is still a normal float64


def of(t: Tensor) -> Tensor:
    """(R, k, B, n) as (R, n, k, B), examples last in memory."""
    t = t.permute(0, 3, 1, 2)
    return t if t.shape[3] == 1 or t.stride(3) == 1 else t.contiguous()


def rows(t: Tensor) -> Tensor:
    """(R, n, k, B) as (R, k, B, n)."""
    return t.permute(0, 2, 3, 1)


def with_one(z: Tensor) -> Tensor:
    """[z, 1], (R, h + 1, k B), of z (R, k, B, h)."""
    z = z.permute(0, 3, 1, 2).flatten(2)  # (R, h, k B)
    return torch.cat([z, z.new_ones(len(z), 1, z.shape[2])], 1)


@functools.lru_cache(maxsize=256)
def _order(p: int, d_in: int, inverse: bool, device: torch.device) -> Tensor:
    """Rows (weight means, weight rhos, bias means, bias rhos) as (weight means, bias means, weight rhos, bias rhos)."""
    d_out = p // (d_in + 1)
    n = d_out * d_in
    sizes = [n, d_out, n, d_out] if inverse else [n, n, d_out, d_out]
    first, second, third, fourth = torch.arange(2 * p, device=device).split(sizes)
    return torch.cat([first, third, second, fourth])


def _reordered(matrix: Tensor, d_in: int, inverse: bool = False) -> Tensor:
    """Rows of (R, 2P, ...) in the order of :func:`_order`; what tracers or CUDA graphs made of it is not kept."""
    order = _order if matrix.is_cpu and type(matrix) is Tensor else _order.__wrapped__
    return matrix.index_select(1, order(matrix.shape[1] // 2, d_in, inverse, matrix.device))


def hypernet_matrix(weight: Tensor, bias: Tensor, d_in: int) -> Tensor:
    """[weight, bias] in the order weight means, bias means, weight rhos, bias rhos: (R, 2P, h + 1)."""
    return _reordered(torch.cat([weight, bias.unsqueeze(2)], 2), d_in)


def hypernet(matrix: Tensor, z1: Tensor, batch: int) -> Tensor:
    """Outputs (R, n, k, B) from [z, 1], (R, h + 1, k B), for rows (R, n, h + 1) of the matrix."""
    return torch.bmm(matrix, z1).view(*matrix.shape[:2], -1, batch)


def hypernet_backward(
    grad: Tensor, matrix: Tensor, z1: Tensor, d_in: int, need_z: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of z (R, k, B, h), weight and bias from that of the hypernetwork's outputs, (R, 2P, k, B)."""
    flat, grad_z = grad.flatten(2), None  # (R, 2P, k B)
    if need_z:
        grad_z = torch.bmm(matrix.mT, flat)[:, :-1]  # (R, h, k B)
        grad_z = rows(grad_z.unflatten(2, grad.shape[2:]))
    grad_matrix = _reordered(torch.bmm(flat, z1.mT), d_in, inverse=True)  # (R, 2P, h + 1)
    return grad_z, grad_matrix[..., :-1], grad_matrix[..., -1]


def gaussian(matrix: Tensor, z1: Tensor, batch: int, floor: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs of :func:`hypernet`, whose last P rows are rho; sigma (R, P, k, B); the sum of log sigma, (R, k, B).

    In float64 on the CPU this takes fewer transcendental functions: sigma = floor + log u with u = 1 + exp(rho), whose
    rounding is nothing beside a floor of 1e-3, and one logarithm of a product of up to 64 sigmas, which is at least
    1e-192. Whatever overflows, and any NaN, makes the sum infinite or NaN: then, and for other types, the plain
    formulas are used and the sum is None. Otherwise u is returned in place of rho.
    """
    out, p = hypernet(matrix, z1, batch), matrix.shape[1] // 2
    rho = out.narrow(1, p, p)
    if floor >= FLOOR and loops.is_plain(out):
        scale = rho.exp_().add_(1).log().add_(floor)
        n = p // LOG_GROUP * LOG_GROUP
        log_sum = scale.narrow(1, n, p - n).prod(1).log_()
        if n:
            log_sum += scale[:, :n].unflatten(1, (LOG_GROUP, -1)).prod(1).log_().sum(1)
        if math.isfinite(log_sum.sum().item()):
            return out, scale, log_sum
        out = hypernet(matrix, z1, batch)
        rho = out.narrow(1, p, p)
    return out, F.softplus(rho).add_(floor), None


def apply(theta: Tensor, a: Tensor) -> Tensor:
    """W a + b in columns: (R, P, k, b) and (R, d_in, k, b) to (R, d_out, K, B)."""
    d_in = a.shape[1]
    d_out = theta.shape[1] // (d_in + 1)
    weight, bias = theta.narrow(1, 0, d_out * d_in), theta.narrow(1, d_out * d_in, d_out)
    if d_in == 1:
        return torch.addcmul(bias, weight, a)
    if d_out == 1:
        return (weight * a).sum(1, keepdim=True).add_(bias)
    weight = weight.unflatten(1, (d_out, d_in))
    if theta.shape[2] == 1 < a.shape[2]:  # the same weights for all draws: a GEMM per example
        return torch.einsum("roib,rikb->rokb", weight.squeeze(3), a).add_(bias)
    return (weight * a.unsqueeze(1)).sum(2).add_(bias)


def outer(g: Tensor, a: Tensor, out: Tensor | None = None) -> Tensor:
    """d(W a + b)/d(W, b) times g: (R, d_out, K, B) and (R, d_in, k, B) to (R, P, K, B)."""
    d_out, d_in = g.shape[1], a.shape[1]
    n = d_out * d_in
    if out is None:
        out = g.new_empty(len(g), n + d_out, *g.shape[2:])
    if d_in == 1 or d_out == 1:
        torch.mul(g, a, out=out.narrow(1, 0, n))
    else:
        torch.mul(g.unsqueeze(2), a.unsqueeze(1), out=out[:, :n].unflatten(1, (d_out, d_in)))
    out.narrow(1, n, d_out).copy_(g)
    return out


def transposed(theta: Tensor, g: Tensor, d_in: int) -> Tensor:
    """W^T g: (R, P, k, b) and (R, d_out, K, B) to (R, d_in, K, B)."""
    d_out = g.shape[1]
    weight = theta.narrow(1, 0, d_out * d_in)
    return weight * g if d_out == 1 else (weight.unflatten(1, (d_out, d_in)) * g.unsqueeze(2)).sum(1)


def gaussian_kl(mean: Tensor, scale: Tensor, log_sum: Tensor | None, prior_scale: float) -> Tensor:
    """As :func:`fdn_kernels.reference.gaussian_kl`, (R, k, B), from columns."""
    squares = scale.square().addcmul_(mean, mean).sum(1)
    constant = mean.shape[1] * (math.log(prior_scale) - 0.5)
    return squares.mul_(0.5 / prior_scale**2).add_(constant).sub_(scale.log().sum(1) if log_sum is None else log_sum)


def sum_draws(t: Tensor, draws: int) -> Tensor:
    """Sum (R, n, K, B) over the draws where only one is wanted."""
    return t.sum(2, keepdim=True) if draws == 1 < t.shape[2] else t
