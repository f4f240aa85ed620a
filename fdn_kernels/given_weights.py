"""Layers and networks whose weights are given: affine maps, ReLU networks, and dropout drawn by subsets of units."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from fdn_kernels import loops, reference


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
    if torch.is_grad_enabled() or masks or not all(map(loops.is_plain, (x, *thetas))) or not x.numel():
        return _mlp_of_layers(x, thetas, masks, rate)
    *lead, draws = torch.broadcast_shapes((*x.shape[:-2], 1), *(t.shape[:-2] for t in thetas))
    theta = torch.cat([t.expand(*lead, draws, 1, t.shape[-1]) for t in thetas], -1)
    theta = theta.reshape(-1, draws, theta.shape[-1])  # (R, K, P)
    x = x.expand(*lead, *x.shape[-2:]).reshape(-1, *x.shape[-2:]) if x.dim() > 2 else x[None]
    y = x.new_empty(len(theta), draws, widths[-1], x.shape[1])
    loops.call(
        "mlp", "RKP L rIB RKOB", theta, np.array(widths), x.mT.contiguous(), y,
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
    loops.check_shapes("subsets", "N", dropped, N=n)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (a, weight, bias))
    if not a.is_cpu or differentiable or loops.is_transformed():
        return affine(a * _kept(live, groups, torch.from_numpy(dropped).to(a.device), draws) / (1 - rate), weight, bias)
    y = a.new_empty(draws, a.shape[1], len(weight), dtype=torch.float64)
    arguments = a.detach().double().contiguous(), dropped, rate, weight.detach().double(), bias.detach().double(), y
    loops.call("dropout_linear", "kBI N OI O KBO", *arguments, N=n, K=draws)
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
