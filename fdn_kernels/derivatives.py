"""A backward that has no derivative of its own says so."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


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
