"""The CPU path: the numbers of :mod:`fdn_kernels.reference` in fewer passes and less memory.

Inside, a layer is laid out in *columns*, draws and examples last: parameters ``(R, P, k, B)``, inputs
``(R, d_in, k, B)``. Every elementwise pass is then contiguous, one number of ``eps`` scales a whole row, and sums over
inputs or parameters run over rows. Training is one autograd function with its backward written out, in float64 on the
CPU with the loops of :mod:`fdn_kernels.compiled`; passes without gradients, and the op's functions :func:`linear` and
:func:`linear_backward`, run in blocks of draws and examples.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from fdn_kernels import loops as numba_ops
from fdn_kernels import philox, reference
from fdn_kernels.derivatives import once_differentiable
from fdn_kernels.reference import WeightGaussian, split_parameters
from fdn_kernels.shapes import check_shapes

CACHE_ELEMENTS = 1 << 15  # sampled parameters alive at once in a pass without gradients
BLOCK_ELEMENTS = 1 << 18  # parameters of one block of linear and linear_backward, which hold about ten such tensors
FLOOR = 1e-3  # smallest floor beside which the rounding of log(1 + exp(rho)) is nothing
LOG_GROUP = 64  # standard deviations multiplied before one logarithm is taken


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``weight x + bias`` over (..., k, B, ·) with weight (..., n, m): one GEMM per replicate.

    Raises:
        ValueError: where x has not m columns, or bias (..., n) another n.
    """
    _check_affine("affine", x, weight, bias)
    flat = x.flatten(-3, -2)  # (..., k B, m)
    if flat.dim() == weight.dim() == 3 and len(flat) == len(weight):
        out = torch.baddbmm(bias.unsqueeze(-2), flat, weight.mT)
    else:
        out = flat @ weight.mT + bias.unsqueeze(-2)
    return out.unflatten(-2, x.shape[-3:-1])  # (..., k, B, n)


def relu_affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``relu(weight x + bias)`` over (..., k, B, ·) with weight (..., n, m); examples last in memory.

    Raises:
        ValueError: where x has not m columns, or bias (..., n) another n.
    """
    _check_affine("relu_affine", x, weight, bias)
    flat = x.flatten(-3, -2).mT  # (..., m, k B)
    bias = bias.unsqueeze(-1)
    if weight.shape[-1] == 1:
        out = (weight * flat).add_(bias)
    elif flat.dim() == weight.dim() == 3 and len(flat) == len(weight):
        out = torch.baddbmm(bias, weight, flat)
    else:
        out = weight @ flat + bias
    return out.relu_().mT.unflatten(-2, x.shape[-3:-1])  # (..., k, B, n)


def _check_affine(op: str, x: Tensor, weight: Tensor, bias: Tensor) -> None:
    if x.dim() < 3 or x.shape[-1] != weight.shape[-1] or bias.shape[-1:] != weight.shape[-2:-1]:
        raise ValueError(
            f"{op}: weight (..., n, m) = {tuple(weight.shape)} takes inputs (..., k, B, m) and a bias (..., n), not "
            f"{tuple(x.shape)} and {tuple(bias.shape)}"
        )


def mlp(
    x: Tensor, thetas: Sequence[Tensor], widths: Sequence[int], masks: Sequence[Tensor | None] = (), rate: float = 0.0
) -> Tensor:
    """A ReLU network with given parameters, the same for all examples.

    Args:
        x: inputs, ``(B, d)`` or ``(..., B, d)``.
        thetas: per layer, ``(..., K, 1, P)``, weights before biases.
        widths: of all activations, inputs and outputs included.
        masks: per hidden activation, bool ``(..., K, B, width)``, True where kept; what is kept is divided by 1 - rate.
        rate: in [0, 1).

    Returns:
        ``(..., K, B, d_out)``.

    Raises:
        ValueError: for shapes that do not fit the widths, masks that are not bool, or a rate outside its range.
    """
    masks = [m for m in masks if m is not None]
    _check_network(x, thetas, widths, masks, rate)
    if torch.is_grad_enabled() or masks or not all(map(_is_plain, (x, *thetas))) or not x.numel():
        return _mlp_of_layers(x, thetas, masks, rate)
    *lead, draws = torch.broadcast_shapes((*x.shape[:-2], 1), *(t.shape[:-2] for t in thetas))
    theta = torch.cat([t.expand(*lead, draws, 1, t.shape[-1]) for t in thetas], -1)
    theta = theta.reshape(-1, draws, theta.shape[-1])  # (R, K, P)
    x = x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) if x.dim() > 2 else x[None]
    y = x.new_empty(len(theta), draws, widths[-1], x.shape[1])
    _call(
        numba_ops.mlp, "RKP L rIB RKOB", theta, np.array(widths), x.mT.contiguous(), y,
        P=theta.shape[-1], I=widths[0], O=widths[-1], L=len(widths),
    )  # fmt: skip
    return y.mT.reshape(*lead, draws, x.shape[1], widths[-1])


def _check_network(
    x: Tensor, thetas: Sequence[Tensor], widths: Sequence[int], masks: Sequence[Tensor], rate: float
) -> None:
    parameters = [(1, d_out * (d_in + 1)) for d_in, d_out in itertools.pairwise(widths)]
    hidden = [(*x.shape[-2:-1], d) for d in widths[1:-1]] if masks else []
    shapes = [tuple(t.shape[-2:]) for t in (*thetas, *masks)]
    bool_masks = all(m.dtype == torch.bool for m in masks)
    if x.dim() < 2 or x.shape[-1] != widths[0] or shapes != parameters + hidden or not bool_masks:
        given = ", ".join(str(tuple(t.shape)) for t in (x, *thetas, *masks))
        raise ValueError(
            f"mlp: a network of widths {', '.join(map(str, widths))} takes inputs (..., B, {widths[0]}), parameters "
            f"{', '.join(f'(..., K, 1, {n})' for _, n in parameters)} and no masks or bool ones (..., K, B, width) of "
            f"every hidden activation; given {given}"
        )
    if not 0 <= rate < 1:
        raise ValueError(f"rate is {rate}; expected a rate in [0, 1)")


def _mlp_of_layers(x: Tensor, thetas: Sequence[Tensor], masks: Sequence[Tensor], rate: float) -> Tensor:
    """:func:`mlp`, layer by layer: any type, device and order of differentiation."""
    a = x.unsqueeze(-3)  # (..., 1, B, d)
    for i, theta in enumerate(thetas):
        if i > 0:
            a = a.relu() * masks[i - 1] / (1 - rate) if masks else a.relu()
        a = reference.matvec(theta, a)
    return a


def dropout_linear(
    a: Tensor, subsets: Callable[[int], np.ndarray], rate: float, weight: Tensor, bias: Tensor, draws: int
) -> Tensor:
    """weight (dropout of a) + bias: a (1 or K, B, d_in) to (K, B, d_out), a mask for each draw and example.

    Only the units of an example that are not 0 are given masks, eight at a time: ``subsets(n)`` gives n numbers, uint8,
    whose bits are set, each with probability ``rate``, where units are dropped. They are used example by example; for
    each, eight units after eight, and for these draw by draw (if a has draws, first draw by draw). Where derivatives
    are asked for, the masks are written out.

    Raises:
        ValueError: for shapes that do not fit, draws that are not a multiple of a's, or a rate outside [0, 1).
    """
    _check_affine("dropout_linear", a, weight, bias)
    if a.dim() != 3 or bias.dim() != 1 or weight.dim() != 2:
        raise ValueError(
            f"dropout_linear: inputs (1 or K, B, d_in), weight (d_out, d_in) and bias (d_out,) do not fit; given "
            f"{tuple(a.shape)}, {tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    if draws < 1 or len(a) not in (1, draws) or not 0 <= rate < 1:
        raise ValueError(
            f"dropout_linear: {draws} draws at the rate {rate} of inputs of {len(a)} draws; expected K of at least 1, "
            "inputs of K or 1, and a rate in [0, 1)"
        )
    live = a != 0
    groups = (live.sum(-1) + 7) // 8  # (1 or K, B)
    n = _total(groups) * (draws // len(a))
    dropped = subsets(n)
    check_shapes("subsets", "N", dropped, N=n)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (a, weight, bias))
    if not a.is_cpu or differentiable or _transformed():
        return affine(a * _kept(live, groups, torch.from_numpy(dropped).to(a.device), draws) / (1 - rate), weight, bias)
    y = a.new_empty(draws, a.shape[1], len(weight), dtype=torch.float64)
    arguments = a.detach().double().contiguous(), dropped, rate, weight.detach().double(), bias.detach().double(), y
    _call(numba_ops.dropout_linear, "kBI N OI O KBO", *arguments, N=n, K=draws)
    return y.to(a.dtype)


def _total(counts: Tensor) -> int:
    return int(counts.sum())


def _kept(live: Tensor, groups: Tensor, dropped: Tensor, draws: int) -> Tensor:
    """The masks of :func:`dropout_linear` written out, ``(K, B, d_in)``."""
    each = draws // len(live)  # draws that share a
    ends = (groups.mT.flatten().cumsum(0) * each).view(groups.mT.shape).mT  # (1 or K, B)
    rank = (live.cumsum(-1) - 1).clamp(min=0)  # (1 or K, B, d_in)
    draw = torch.arange(each, device=live.device)[:, None, None]
    if not len(dropped):  # nothing is alive, or there are no examples
        return live.expand(draws, -1, -1)
    group = dropped[
        ((ends - groups * each)[..., None] + rank // 8 * each + draw).clamp(max=len(dropped) - 1)
    ]  # (K, B, d_in)
    return ((group >> (rank % 8)) & 1) == 0


def matvec(theta: Tensor, a: Tensor) -> Tensor:
    """As :func:`fdn_kernels.reference.matvec`."""
    weight, bias = split_parameters(theta, a.shape[-1])  # (..., k, b, d_out, d_in), (..., k, b, d_out)
    k, b, d_out = weight.shape[-4:-1]
    if b == 1 and k == 1:  # the same weights for all
        return affine(a, weight.squeeze(-3).squeeze(-3), bias.squeeze(-2).squeeze(-2))
    if b == 1 and a.shape[-1] == 1:  # one column per draw
        return torch.addcmul(bias, weight.squeeze(-1), a)
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
        return torch.addcmul(matvec(q.mean, a), reference.root(matvec(q.scale.square(), a.square())), eps)
    return matvec(torch.addcmul(q.mean, q.scale, eps), a)


def _transformed() -> bool:
    """Whether tensors may be more than their memory: tangents of forward mode, function transforms."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _is_plain(t: Tensor) -> bool:
    """Whether compiled loops may read a tensor's memory: float64, on the CPU, no tracer's, and all there is to it."""
    return t.dtype == torch.float64 and t.is_cpu and type(t) in (Tensor, Parameter) and not _transformed()


def _is_compiled(*tensors: Tensor, floor: float) -> bool:
    """Whether the layer is one for the compiled loops."""
    return floor >= FLOOR and all(map(_is_plain, tensors)) and math.prod(tensors[0].shape) > 0


def _columns(t: Tensor) -> Tensor:
    """(R, k, B, n) as (R, n, k, B), examples last in memory."""
    t = t.permute(0, 3, 1, 2)
    return t if t.shape[3] == 1 or t.stride(3) == 1 else t.contiguous()


def _rows(t: Tensor) -> Tensor:
    """(R, n, k, B) as (R, k, B, n)."""
    return t.permute(0, 2, 3, 1)


def _with_one(z: Tensor) -> Tensor:
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


def _hypernet_matrix(weight: Tensor, bias: Tensor, d_in: int) -> Tensor:
    """[weight, bias] in the order weight means, bias means, weight rhos, bias rhos: (R, 2P, h + 1)."""
    return _reordered(torch.cat([weight, bias.unsqueeze(2)], 2), d_in)


def _hypernet(matrix: Tensor, z1: Tensor, batch: int) -> Tensor:
    """Outputs (R, n, k, B) from [z, 1], (R, h + 1, k B), for rows (R, n, h + 1) of the matrix."""
    return torch.bmm(matrix, z1).view(*matrix.shape[:2], -1, batch)


def _gaussian(matrix: Tensor, z1: Tensor, batch: int, p: int, floor: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Outputs of :func:`_hypernet`, whose last P rows are rho; sigma (R, P, k, B); the sum of log sigma, (R, k, B).

    In float64 on the CPU this takes fewer transcendental functions: sigma = floor + log u with u = 1 + exp(rho), whose
    rounding is nothing beside a floor of 1e-3, and one logarithm of a product of up to 64 sigmas, which is at least
    1e-192. Whatever overflows, and any NaN, makes the sum infinite or NaN: then, and for other types, the plain
    formulas are used and the sum is None. Otherwise u is returned in place of rho.
    """
    out = _hypernet(matrix, z1, batch)
    rho = out.narrow(1, out.shape[1] - p, p)
    if floor >= FLOOR and _is_plain(out):
        scale = rho.exp_().add_(1).log().add_(floor)
        n = p // LOG_GROUP * LOG_GROUP
        log_sum = scale.narrow(1, n, p - n).prod(1).log_()
        if n:
            log_sum += scale[:, :n].unflatten(1, (LOG_GROUP, -1)).prod(1).log_().sum(1)
        if math.isfinite(log_sum.sum().item()):
            return out, scale, log_sum
        out = _hypernet(matrix, z1, batch)
        rho = out.narrow(1, out.shape[1] - p, p)
    return out, F.softplus(rho).add_(floor), None


def _apply(theta: Tensor, a: Tensor) -> Tensor:
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


def _outer(g: Tensor, a: Tensor, out: Tensor | None = None) -> Tensor:
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


def _transposed(theta: Tensor, g: Tensor, d_in: int) -> Tensor:
    """W^T g: (R, P, k, b) and (R, d_out, K, B) to (R, d_in, K, B)."""
    d_out = g.shape[1]
    weight = theta.narrow(1, 0, d_out * d_in)
    return weight * g if d_out == 1 else (weight.unflatten(1, (d_out, d_in)) * g.unsqueeze(2)).sum(1)


def _gaussian_kl(mean: Tensor, scale: Tensor, log_sum: Tensor | None, prior_scale: float) -> Tensor:
    """As :func:`fdn_kernels.reference.gaussian_kl`, (R, k, B), from columns."""
    squares = scale.square().addcmul_(mean, mean).sum(1)
    constant = mean.shape[1] * (math.log(prior_scale) - 0.5)
    return squares.mul_(0.5 / prior_scale**2).add_(constant).sub_(scale.log().sum(1) if log_sum is None else log_sum)


def _sum_draws(t: Tensor, draws: int) -> Tensor:
    """Sum (R, n, K, B) over the draws where only one is wanted."""
    return t.sum(2, keepdim=True) if draws == 1 < t.shape[2] else t


class _FDNLinear(torch.autograd.Function):
    """The layer with sampled (shared, independent) or local noise and its analytic KL, backward by hand."""

    @staticmethod
    def forward(ctx, a, z, weight, bias, eps, noise, floor, prior_scale):
        ctx.inputs = a, z, weight, bias
        matrix, z1 = _hypernet_matrix(weight, bias, a.shape[3]), _with_one(z)
        p = matrix.shape[1] // 2
        gaussian, scale, log_sum = _gaussian(matrix, z1, a.shape[2], p, floor)  # (R, 2P, k, B), (R, P, k, B)
        mean = gaussian.narrow(1, 0, p)
        a, eps = _columns(a), _columns(eps)  # (R, d_in, K, B), (R, P, K, b) or (R, d_out, K, B)
        if noise == "local":
            y_scale = _apply(scale.square(), a.square()).sqrt_()  # (R, d_out, K, B)
            theta, y = mean, torch.addcmul(_apply(mean, a), y_scale, eps)
        else:
            theta, y_scale = torch.addcmul(mean, scale, eps), None  # (R, P, K, B)
            y = _apply(theta, a)
        theta = theta if ctx.needs_input_grad[0] else None
        ctx.save_for_backward(a, z1, matrix, gaussian, scale, theta, y_scale, eps)
        ctx.precision, ctx.has_u = 1 / prior_scale**2, log_sum is not None
        return _rows(y), _gaussian_kl(mean, scale, log_sum, prior_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y, grad_kl):
        a, z1, matrix, gaussian, scale, theta, y_scale, eps = ctx.saved_tensors
        d_in, p, k = a.shape[1], scale.shape[1], gaussian.shape[2]
        grad_y, grad_kl = _columns(grad_y), grad_kl.unsqueeze(1)  # (R, d_out, K, B), (R, 1, k, B)
        out = torch.empty_like(gaussian)
        mean, rho = gaussian.narrow(1, 0, p), gaussian.narrow(1, p, p)  # (R, P, k, B)
        grad_mean, grad_scale = out.narrow(1, 0, p), out.narrow(1, p, p)
        if y_scale is None and k == grad_y.shape[2]:
            _outer(grad_y, a, grad_mean)
            torch.mul(grad_mean, eps, out=grad_scale)
        else:
            grad_theta = _outer(grad_y, a)  # (R, P, K, B)
            grad_mean.copy_(_sum_draws(grad_theta, k))
            if y_scale is None:
                grad_scale.copy_(_sum_draws(grad_theta.mul_(eps), k))
            else:
                y_scale = y_scale.masked_fill(y_scale == 0, math.inf)  # where nothing moves it
                grad_var = 0.5 * grad_y * eps / y_scale  # (R, d_out, K, B)
                torch.mul(scale, _sum_draws(_outer(grad_var, a.square()), k), out=grad_scale).mul_(2)
        grad_mean.addcmul_(mean, grad_kl, value=ctx.precision)  # dKL/dmu = mu / s0^2
        grad_scale.addcmul_(scale, grad_kl, value=ctx.precision)  # dKL/dsigma = sigma / s0^2 - 1 / sigma
        grad_scale.addcdiv_(grad_kl, scale, value=-1)
        if ctx.has_u:  # now the gradient of rho: dsigma/drho = sigmoid(rho) = 1 - 1 / u
            grad_scale.addcdiv_(grad_scale, rho, value=-1)
        else:
            grad_scale.mul_(rho.sigmoid())

        grad_a = None
        if ctx.needs_input_grad[0]:
            grad_a = _transposed(theta, grad_y, d_in)  # (R, d_in, K, B)
            if y_scale is not None:
                grad_a = grad_a + 2 * a * _transposed(scale.square(), grad_var, d_in)
            grad_a = _rows(_sum_draws(grad_a, a.shape[2]))
        grads = _hypernet_backward(out, matrix, z1, d_in, ctx.needs_input_grad[1])
        return grad_a, *grads, None, None, None, None


class _CompiledLinear(torch.autograd.Function):
    """The layer with sampled weights, a distribution for every draw (k = K), in compiled loops."""

    @staticmethod
    def forward(ctx, a, z, weight, bias, eps, floor, prior_scale):
        ctx.inputs = a, z, weight, bias
        a, eps = _columns(a).contiguous(), _columns(eps).contiguous()  # (R, d_in, K, B), (R, P, K, b)
        matrix, z1 = _hypernet_matrix(weight, bias, a.shape[1]), _with_one(z)
        (r, _, k, batch), p = a.shape, eps.shape[1]
        gaussian = _hypernet(matrix, z1, batch)  # (R, 2P, K, B)
        rho = gaussian.narrow(1, p, p)
        scale = rho.exp_().add_(1).log().add_(floor)  # (R, P, K, B); u = 1 + exp(rho) takes rho's place
        y, kl = a.new_empty(r, p // (a.shape[1] + 1), k, batch), a.new_empty(r, k, batch)
        sizes = _layer_sizes(a.shape[1], y.shape[1])
        _call(numba_ops.sample_with_kl, f"{_SAMPLED} ROKB RKB", gaussian, scale, a, eps, prior_scale, y, kl, **sizes)
        if not math.isfinite(kl.sum().item()):  # out of the range of exp or of the product of sigmas, or NaN
            scale = F.softplus(_hypernet(matrix[:, p:], z1, batch)).add_(floor)
            _call(
                numba_ops.sample_with_kl, f"{_SAMPLED} ROKB RKB", gaussian, scale, a, eps, prior_scale, y, kl, **sizes
            )
            kl = _gaussian_kl(gaussian.narrow(1, 0, p), scale, None, prior_scale)
        ctx.save_for_backward(a, z1, matrix, gaussian, scale, eps)
        ctx.prior_scale = prior_scale
        return _rows(y), kl

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y, grad_kl):
        a, z1, matrix, gaussian, scale, eps = ctx.saved_tensors
        need_a, need_z = ctx.needs_input_grad[:2]
        grad, grad_a = torch.empty_like(gaussian), torch.zeros_like(a) if need_a else a
        incoming = _columns(grad_y).contiguous(), grad_kl.contiguous()
        arguments = gaussian, scale, a, eps, ctx.prior_scale, need_a, grad, grad_a
        layout, sizes = f"ROKB RKB {_SAMPLED} RGKB RIKB", _layer_sizes(a.shape[1], grad_y.shape[-1])
        _call(numba_ops.sample_with_kl_backward, layout, *incoming, *arguments, **sizes)
        grad_z, grad_weight, grad_bias = _hypernet_backward(grad, matrix, z1, a.shape[1], need_z)
        return _rows(grad_a) if need_a else None, grad_z, grad_weight, grad_bias, None, None, None


def _hypernet_backward(
    grad: Tensor, matrix: Tensor, z1: Tensor, d_in: int, need_z: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradients of z (R, k, B, h), weight and bias from that of the hypernetwork's outputs, (R, 2P, k, B)."""
    flat, grad_z = grad.flatten(2), None  # (R, 2P, k B)
    if need_z:
        grad_z = torch.bmm(matrix.mT, flat)[:, :-1]  # (R, h, k B)
        grad_z = _rows(grad_z.unflatten(2, grad.shape[2:]))
    grad_matrix = _reordered(torch.bmm(flat, z1.mT), d_in, inverse=True)  # (R, 2P, h + 1)
    return grad_z, grad_matrix[..., :-1], grad_matrix[..., -1]


_SAMPLED = "RGKB RPKB RIKB RPKb"  # gaussian, scale, a, eps in the layouts of loops with a distribution for every draw


def _layer_sizes(d_in: int, d_out: int) -> dict[str, int]:
    """Sizes in the layouts of a layer's loops: inputs, outputs, parameters, and their means and rhos."""
    p = d_out * (d_in + 1)
    return {"I": d_in, "O": d_out, "P": p, "G": 2 * p}


def _call(loop, layout: str, *arguments, **sizes: int) -> None:
    """A compiled loop on tensors of the shapes of its layout, see :func:`fdn_kernels.shapes.check_shapes`."""
    arguments = [t.numpy() if isinstance(t, Tensor) else t for t in arguments]
    check_shapes(loop.__name__, layout, *(t for t in arguments if isinstance(t, np.ndarray)), **sizes)
    loop(*arguments)


def _is_written_out(noise: str, kl: str, z_draws: int, draws: int) -> bool:
    """Whether :class:`_FDNLinear` computes it.

    Not local noise whose draws share weights, where autograd's GEMMs are better.
    """
    return kl == "analytic" and (noise in ("shared", "independent") or noise == "local" and z_draws == draws)


def _forward(
    a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None, draws: int, noise: str, kl: str,
    floor: float, prior_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y and variance in columns (R, d_out, K, B), and the KL; without gradients, draws in chunks that stay in cache."""
    (r, _, batch, d_in), z_draws, p = a.shape, z.shape[1], weight.shape[1] // 2
    matrix, a = _hypernet_matrix(weight, bias, d_in), _columns(a)
    y = a.new_empty(r, p // (d_in + 1), draws, batch)
    variance = torch.empty_like(y) if noise == "moments" else y.new_empty(0)
    term = y.new_empty((r, draws if kl == "sampled" else z_draws, batch) if kl != "none" else 0)
    sampled = noise in ("shared", "independent")
    in_loops = noise == "shared" and kl == "none" and _is_compiled(a, z, weight, bias, eps, floor=floor)
    a = a.contiguous() if in_loops else a
    step = _fitting(CACHE_ELEMENTS, r * p * batch, a)
    for k in _slices(z_draws, step):
        z1 = _with_one(z[:, k])
        if in_loops:
            gaussian = _hypernet(matrix, z1, batch)  # (R, 2P, k, B)
            scale = gaussian.narrow(1, p, p).exp_().add_(1).log_().add_(floor)  # in place of rho
            if not math.isfinite(scale.sum().item()):
                torch.add(F.softplus(_hypernet(matrix[:, p:], z1, batch)), floor, out=scale)
            sizes = {"C": min(k.stop, draws) - k.start, **_layer_sizes(d_in, y.shape[1])}
            _call(numba_ops.sample, "RGCB RIkB RKP ROKB", gaussian, k.start, a, eps[:, :, 0], y, **sizes)
            continue
        gaussian, scale, log_sum = _gaussian(matrix, z1, batch, p, floor)
        mean = gaussian[:, :p]  # (R, P, k, B)
        if kl == "analytic":
            term[:, k] = _gaussian_kl(mean, scale, log_sum, prior_scale)
        for j in [k] if z_draws > 1 else _slices(draws, step if sampled else draws):
            x = _draws(a, j)  # (R, d_in, k, B)
            if sampled:
                e = _columns(eps[:, j])  # (R, P, k, b)
                theta = torch.addcmul(mean, scale, e)
                y[:, :, j] = _apply(theta, x)
                if kl == "sampled":
                    log_ratio = 0.5 * ((theta / prior_scale).square_() - e.square()) - (scale / prior_scale).log_()
                    term[:, j] = log_ratio.sum(1)
                continue
            y[:, :, j] = _apply(mean, x)
            if noise == "local":
                y[:, :, j].addcmul_(_apply(scale.square(), x.square()).sqrt_(), _columns(eps[:, j]))
            elif noise == "moments":
                variance[:, :, j] = _apply(scale.square(), x.square())
    return y, variance, term


def canonical(lead: Sequence[int], *tensors: tuple[Tensor | None, int]) -> list[Tensor | None]:
    """Each tensor (..., its last n dimensions) as (R, those), of replicates of the shape ``lead``; None stays."""
    found, r = [], math.prod(lead)
    for t, n in tensors:
        sizes = () if t is None else t.shape[t.dim() - n :]
        found.append(None if t is None else t.expand((*lead, *sizes)).reshape((r, *sizes)))
    return found


def _draws(t: Tensor, k: slice) -> Tensor:
    """Draws of (R, n, 1 or K, B)."""
    return t[:, :, k] if t.shape[2] > 1 else t


def _fitting(elements: int, size: int, like: Tensor) -> int:
    """How many parts of ``size`` numbers are alive at once; a GPU needs more of them to be busy."""
    return max(1, (64 * elements if like.is_cuda else elements) // size)


def _slices(n: int, step: int) -> Iterator[slice]:
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


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
    training = torch.is_grad_enabled()
    in_loops = (
        noise == "shared"
        and _is_compiled(a, z, weight, bias, eps, floor=floor)
        and (kl == "analytic" and a.shape[-3] == z.shape[-3] == eps.shape[-3] if training else kl == "none")
    )
    written_out = _is_written_out(noise, kl, z.shape[-3], eps.shape[-3] if eps is not None else 1)
    if training and (not in_loops and not written_out or eps is not None and eps.requires_grad):
        return reference.fdn_linear(a, z, weight, bias, noise, eps, kl, floor, prior_scale)
    no_weights, rows = noise in ("local", "none"), a.shape[-3] > 1 < a.shape[-1] and a.stride(-1) == 1
    if (
        not training and not in_loops and z.shape[-3] == 1 and (no_weights or rows and kl != "sampled")
    ):  # to columns would cost more
        q = reference.hypernet_gaussian(z, weight, bias, a.shape[-1], floor)
        if no_weights:
            y = gaussian_linear(a, q, noise, eps)
        else:
            draws = _slices(a.shape[-3], _fitting(CACHE_ELEMENTS, q.mean.numel(), a))
            y = torch.cat([gaussian_linear(a[..., k, :, :], q, noise, eps[..., k, :, :]) for k in draws], -3)
        return y, None if kl == "none" else reference.gaussian_kl(q, prior_scale)
    shapes = [t.shape[:-3] for t in (a, z, eps) if t is not None]
    lead = weight.shape[:-2]
    if len(lead) != 1 or any(shape != lead for shape in shapes):
        lead = torch.broadcast_shapes(lead, *shapes)
        a, z, weight, bias, eps = canonical(lead, (a, 3), (z, 3), (weight, 2), (bias, 1), (eps, 3))
    if training and in_loops:
        y, term = _CompiledLinear.apply(a, z, weight, bias, eps, floor, prior_scale)
    elif training:
        y, term = _FDNLinear.apply(a, z, weight, bias, eps, noise, floor, prior_scale)
    else:
        draws = max(t.shape[1] for t in (a, z, eps) if t is not None)
        y, _, term = _forward(a, z, weight, bias, eps, draws, noise, kl, floor, prior_scale)
        y = _rows(y)
    if len(lead) != 1:
        y, term = (t.reshape(*lead, *t.shape[1:]) if t.dim() > 1 else t for t in (y, term))
    return y, None if kl == "none" else term


def _blocks(
    eps: Tensor | None, seed: Tensor | None, draws: int, a: Tensor, weight: Tensor, noise: str, stream: int
) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Draws, examples and their noise, (R, k, 1 or b, n), block after block; the draws of shared noise are kept."""
    (r, _, batch, d_in), p = a.shape, weight.shape[1] // 2
    b_step = min(batch, _fitting(BLOCK_ELEMENTS, r * p * min(draws, 16), a))
    k_step = -(-_fitting(BLOCK_ELEMENTS, r * p * b_step, a) // 4) * 4  # a seed gives four draws at a time
    for k in _slices(draws, k_step):
        noise_block = None
        for b in _slices(batch, b_step):
            if eps is not None:
                noise_block = eps[:, k] if noise == "shared" else eps[:, k, b]
            elif seed is not None and (noise_block is None or noise != "shared"):
                noise_block = philox.standard_normal(
                    seed, noise, draws=range(k.start, k.stop), examples=range(b.start, b.stop), d_in=d_in,
                    d_out=p // (d_in + 1), stream=stream, dtype=a.dtype,
                )  # fmt: skip
            yield k, b, noise_block


def _block(t: Tensor, k: slice, b: slice) -> Tensor:
    """Draws and examples of (R, 1 or K, B, ...)."""
    return t[:, k, b] if t.shape[1] > 1 else t[:, :, b]


def linear(
    a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None, seed: Tensor | None, draws: int, noise: str,
    kl: str, floor: float, prior_scale: float, stream: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """As :func:`fdn_kernels.reference.linear`.

    Memory beyond inputs and outputs does not grow with draws or examples.
    """
    (r, _, batch, d_in), z_draws = a.shape, z.shape[1]
    y = a.new_empty(r, draws, batch, weight.shape[1] // (2 * (d_in + 1)))
    variance = torch.empty_like(y) if noise == "moments" else y.new_empty(0)
    term = y.new_empty((r, draws if kl == "sampled" else z_draws, batch) if kl != "none" else 0)
    with torch.no_grad():
        for k, b, e in _blocks(eps, seed, draws, a, weight, noise, stream):
            needed = kl if kl == "none" or k.start == 0 or len(term[0]) > 1 else "none"  # of IC once
            settings = k.stop - k.start, noise, needed, floor, prior_scale
            found = _forward(_block(a, k, b), _block(z, k, b), weight, bias, e, *settings)
            y[:, k, b] = _rows(found[0])
            if noise == "moments":
                variance[:, k, b] = _rows(found[1])
            if needed != "none":
                _block(term, k, b).copy_(found[2])
    return y, variance, term


def linear_backward(
    grad_y: Tensor, grad_variance: Tensor, grad_kl: Tensor, a: Tensor, z: Tensor, weight: Tensor, bias: Tensor,
    eps: Tensor | None, seed: Tensor | None, draws: int, noise: str, kl: str, floor: float, prior_scale: float,
    stream: int, need_a: bool, need_z: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of :func:`linear`'s inputs: every block is computed again, with autograd."""
    wanted = need_a, need_z, True, True
    gradients = [torch.zeros_like(t) if need else t.new_empty(0) for t, need in zip((a, z, weight, bias), wanted)]
    for k, b, e in _blocks(eps, seed, draws, a, weight, noise, stream):
        block = (_block(a, k, b), _block(z, k, b), weight, bias)
        incoming = [_block(grad_y, k, b)]
        if noise == "moments":
            incoming.append(_block(grad_variance, k, b))
        if kl != "none" and (k.start == 0 or grad_kl.shape[1] > 1):  # of IC once
            incoming.append(_block(grad_kl, k, b))
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(need) for t, need in zip(block, wanted)]
            if _is_written_out(noise, kl, block[1].shape[1], k.stop - k.start):
                found = _FDNLinear.apply(*leaves, e, noise, floor, prior_scale)
            else:
                found = reference.linear(*leaves, e, None, k.stop - k.start, noise, kl, floor, prior_scale, stream)
                found = [t for t in found if t.dim() > 1]
        needed = [t for t in leaves if t.requires_grad]
        found = torch.autograd.grad(found[: len(incoming)], needed, incoming, materialize_grads=True)
        sums = [t for t, need in zip(gradients, wanted) if need]
        for total, part in zip(sums, found):
            total = _block(total, k, b) if total.dim() == 4 else total
            total += part
    return tuple(gradients)
