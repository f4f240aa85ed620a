"""Training objectives of one's own loop (paper, appendix B)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fdn.errors import UserError
from fdn.settings import Count, NonNegative, checked
from fdn.training.objectives import importance_bound


def elbo_loss(nll: Tensor, kl: Tensor, n_train: int, beta: float | Tensor | Sequence[float] = 1.0) -> Tensor:
    r"""Negative beta-ELBO of an example: mean of the NLL + beta / n_train x mean of the KL, a scalar.

    Args:
        nll: -log p(y | x, theta) of each example, ``(B,)`` or ``(K, B)``, in nats; not yet averaged.
        kl: from :func:`fdn.nn.forward`, ``(B,)`` or ``(K, B)``; with ``per_layer``, one more axis.
        n_train: N, where the KL is paid once for the N training examples, as in a Bayesian network whose weights are
            drawn once. The paper's bound is that of one example, whose weights are its own: n_train=1 (appendix B).
        beta: weight of the KL; with ``per_layer``, a weight for each layer (the remark in appendix B).

    Raises:
        UserError: for a negative beta, and where the shapes do not fit; a broadcast would be another loss.

    >>> nll, kl = torch.tensor([1.0, 3.0]), torch.tensor([10.0, 30.0])
    >>> elbo_loss(nll, kl, n_train=10)
    tensor(4.)

    Source: paper, appendix B, equation (A).
    """
    n_train = checked("n_train", n_train, Count)
    beta = checked("beta", beta, NonNegative) if isinstance(beta, (int, float)) else beta
    weights = torch.as_tensor(beta, dtype=kl.dtype, device=kl.device)
    if weights.dim() == 1:
        if kl.shape[-1:] != weights.shape:
            raise UserError(f"beta has {len(weights)} weights for a KL {tuple(kl.shape)}; expected (..., layers)")
        kl, weights = (kl * weights).sum(-1), torch.ones(())
    if nll.dim() not in (1, 2) or kl.dim() not in (1, 2) or nll.shape[-1] != kl.shape[-1]:
        given = f"nll {tuple(nll.shape)} and kl {tuple(kl.shape)}"
        raise UserError(f"{given} are not of the same B examples, (B,) or (K, B)")
    return nll.mean() + weights * kl.mean() / n_train


def iwae_loss(log_prob: Tensor, log_ratio: Tensor) -> Tensor:
    r"""Negative importance-weighted bound, -log (1/K) sum_k p(y | x, theta_k) p0(theta_k) / q(theta_k | x), a scalar.

    Args:
        log_prob: log p(y | x, theta_k), ``(K, B)``.
        log_ratio: log q - log p0 at the draws, ``(K, B)``: what ``forward(..., kl="sampled")`` gives.

    Raises:
        UserError: for tensors of other shapes.

    Source: paper, appendix B, equation (B).

    >>> iwae_loss(torch.tensor([[-1.0], [-3.0]]), torch.zeros(2, 1))  # -log of the mean of e^-1 and e^-3
    tensor(1.5662)
    """
    if log_prob.dim() != 2 or log_prob.shape != log_ratio.shape:
        raise UserError(f"expected two tensors (K, B); given {tuple(log_prob.shape)} and {tuple(log_ratio.shape)}")
    return importance_bound(log_prob, log_ratio)
