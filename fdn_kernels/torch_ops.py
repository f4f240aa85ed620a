"""The CPU path: the numbers of :mod:`fdn_kernels.reference` in fewer passes and less memory.

Inside, a layer is laid out in columns (:mod:`fdn_kernels.columns`). Training is one autograd function with its backward
written out (:mod:`fdn_kernels.written_out`), in float64 on the CPU with the loops of :mod:`fdn_kernels.numba_ops`;
passes without gradients, and the op's functions :func:`linear` and :func:`linear_backward`, run in blocks of draws and
examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fdn_kernels import columns, loops, philox, reference
from fdn_kernels.given_weights import affine
from fdn_kernels.reference import WeightGaussian, split_parameters
from fdn_kernels.written_out import CompiledLinear, FDNLinear, layer_sizes

# Sampled parameters alive at once in a pass without gradients: four tensors of 256 KiB in float64. Tuned; on a core
# with 1.25 MiB of L2 times are within 12 % up to 1 << 17, and four times as long at 1 << 13.
CACHE_ELEMENTS = 1 << 15
BLOCK_ELEMENTS = 1 << 18  # parameters of one block of linear and linear_backward; ten such tensors are alive, 20 MiB


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


def _is_compiled(*tensors: Tensor, floor: float) -> bool:
    """Whether the layer is one for the compiled loops."""
    return floor >= columns.FLOOR and all(map(loops.is_plain, tensors)) and math.prod(tensors[0].shape) > 0


def _is_written_out(noise: str, kl: str, z_draws: int, draws: int) -> bool:
    """Whether :class:`FDNLinear` computes it.

    Not local noise whose draws share weights, where autograd's GEMMs are better.
    """
    return kl == "analytic" and (noise in ("shared", "independent") or noise == "local" and z_draws == draws)


def _forward(
    a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None, draws: int, noise: str, kl: str,
    floor: float, prior_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y and variance in columns (R, d_out, K, B), and the KL; without gradients, draws in chunks that stay in cache."""
    (r, _, batch, d_in), z_draws, p = a.shape, z.shape[1], weight.shape[1] // 2
    matrix, a = columns.hypernet_matrix(weight, bias, d_in), columns.of(a)
    y = a.new_empty(r, p // (d_in + 1), draws, batch)
    variance = torch.empty_like(y) if noise == "moments" else y.new_empty(0)
    term = y.new_empty((r, draws if kl == "sampled" else z_draws, batch) if kl != "none" else 0)
    sampled = noise in ("shared", "independent")
    in_loops = noise == "shared" and kl == "none" and _is_compiled(a, z, weight, bias, eps, floor=floor)
    a = a.contiguous() if in_loops else a
    step = _fitting(CACHE_ELEMENTS, r * p * batch, a)
    for k in philox.slices(z_draws, step):
        z1 = columns.with_one(z[:, k])
        if in_loops:
            gaussian = columns.hypernet(matrix, z1, batch)  # (R, 2P, k, B)
            scale = gaussian.narrow(1, p, p).exp_().add_(1).log_().add_(floor)  # in place of rho
            if not math.isfinite(scale.sum().item()):
                torch.add(F.softplus(columns.hypernet(matrix[:, p:], z1, batch)), floor, out=scale)
            sizes = {"C": min(k.stop, draws) - k.start, **layer_sizes(d_in, y.shape[1])}
            loops.call("sample", "RGCB RIkB RKP ROKB", gaussian, k.start, a, eps[:, :, 0], y, **sizes)
            continue
        gaussian, scale, log_sum = columns.gaussian(matrix, z1, batch, floor)
        mean = gaussian[:, :p]  # (R, P, k, B)
        if kl == "analytic":
            term[:, k] = columns.gaussian_kl(mean, scale, log_sum, prior_scale)
        for j in [k] if z_draws > 1 else philox.slices(draws, step if sampled else draws):
            x = a[:, :, j] if a.shape[2] > 1 else a  # (R, d_in, k, B)
            if sampled:
                e = columns.of(eps[:, j])  # (R, P, k, b)
                theta = torch.addcmul(mean, scale, e)
                y[:, :, j] = columns.apply(theta, x)
                if kl == "sampled":
                    log_ratio = 0.5 * ((theta / prior_scale).square_() - e.square()) - (scale / prior_scale).log_()
                    term[:, j] = log_ratio.sum(1)
                continue
            y[:, :, j] = columns.apply(mean, x)
            if noise == "local":
                y[:, :, j].addcmul_(columns.apply(scale.square(), x.square()).sqrt_(), columns.of(eps[:, j]))
            elif noise == "moments":
                variance[:, :, j] = columns.apply(scale.square(), x.square())
    return y, variance, term


def canonical(lead: Sequence[int], *tensors: tuple[Tensor | None, int]) -> list[Tensor | None]:
    """Each tensor (..., its last n dimensions) as (R, those), of replicates of the shape ``lead``; None stays."""

    def folded(t: Tensor, n: int) -> Tensor:
        sizes = t.shape[t.dim() - n :]
        return t.expand((*lead, *sizes)).reshape((math.prod(lead), *sizes))

    return [None if t is None else folded(t, n) for t, n in tensors]


def _fitting(elements: int, size: int, like: Tensor) -> int:
    """How many parts of ``size`` numbers are alive at once; a GPU needs more of them to be busy."""
    return max(1, (64 * elements if like.is_cuda else elements) // size)


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
    no_weights = noise in ("local", "none")
    rows = kl != "sampled" and a.shape[-3] > 1 < a.shape[-1] and a.stride(-1) == 1  # to columns would cost more
    if not training and not in_loops and z.shape[-3] == 1 and (no_weights or rows):
        q = reference.hypernet_gaussian(z, weight, bias, a.shape[-1], floor)
        if no_weights:
            y = gaussian_linear(a, q, noise, eps)
        else:
            draws = philox.slices(a.shape[-3], _fitting(CACHE_ELEMENTS, q.mean.numel(), a))
            y = torch.cat([gaussian_linear(a[..., k, :, :], q, noise, eps[..., k, :, :]) for k in draws], -3)
        return y, None if kl == "none" else reference.gaussian_kl(q, prior_scale)
    shapes = [t.shape[:-3] for t in (a, z, eps) if t is not None]
    lead = weight.shape[:-2]
    if len(lead) != 1 or any(shape != lead for shape in shapes):
        lead = torch.broadcast_shapes(lead, *shapes)
        a, z, weight, bias, eps = canonical(lead, (a, 3), (z, 3), (weight, 2), (bias, 1), (eps, 3))
    if training and in_loops:
        y, term = CompiledLinear.apply(a, z, weight, bias, eps, floor, prior_scale)
    elif training:
        y, term = FDNLinear.apply(a, z, weight, bias, eps, noise, floor, prior_scale)
    else:
        draws = max(t.shape[1] for t in (a, z, eps) if t is not None)
        y, _, term = _forward(a, z, weight, bias, eps, draws, noise, kl, floor, prior_scale)
        y = columns.rows(y)
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
    for k in philox.slices(draws, k_step):
        noise_block = None
        for b in philox.slices(batch, b_step):
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
            y[:, k, b] = columns.rows(found[0])
            if noise == "moments":
                variance[:, k, b] = columns.rows(found[1])
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
                found = FDNLinear.apply(*leaves, e, noise, floor, prior_scale)
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
