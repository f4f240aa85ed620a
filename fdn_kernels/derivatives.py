"""A backward that has no derivative of its own says so."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def once_differentiable(backward):
    """A backward whose results raise where they are differentiated.

    PyTorch's own decorator lets them pass as constants where the incoming gradient is one, as that of ``y.sum()``.
    """

    @functools.wraps(backward)
    def wrapper(ctx, *gradients):
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return found
        several = isinstance(found, tuple)
        anchor = torch.zeros((), requires_grad=True)
        marked = [t if t is None else _Refusing.apply(anchor, t) for t in (found if several else (found,))]
        return tuple(marked) if several else marked[0]

    return wrapper


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, anchor: Tensor, t: Tensor) -> Tensor:
        return t.view_as(t)

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError(
            "the compiled passes can be differentiated once, not twice; use backend 'reference' for second derivatives"
        )
