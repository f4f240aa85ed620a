"""Quantiles of mixtures of Gaussians, as roots of their distribution function."""

from __future__ import annotations

import numpy as np
from scipy.optimize.elementwise import find_root
from scipy.special import ndtr, ndtri


def mixture_quantiles(mean: np.ndarray, std: np.ndarray, q: np.ndarray) -> np.ndarray:
    r"""The x with (1/K) sum_k Phi((x - mean_k) / std_k) = q, for every row and q, each found on its own.

    Args:
        mean: of the components, ``(N, K)``.
        std: theirs, ``(N, K)``, positive.
        q: probabilities between 0 and 1, ``(Q,)``.

    Returns:
        ``(N, Q)``

    >>> mixture_quantiles(np.array([[0.0, 0.0]]), np.array([[1.0, 1.0]]), np.array([0.5, 0.975])).round(3)
    array([[0.  , 1.96]])
    """
    found, slack = np.empty((len(mean), len(q))), 1e-9 * std.min(1)  # (N,): equal components leave no bracket
    for column, level in zip(found.T, q):
        sign, tail = (1, level) if level <= 0.5 else (-1, 1 - level)  # from the side where small values are exact
        ends = sign * mean + std * ndtri(tail)  # (N, K), the components' own quantiles: the mixture's lies among them

        def excess(x: np.ndarray, row: np.ndarray, sign: int = sign, tail: float = tail) -> np.ndarray:
            return ndtr((x[:, None] - sign * mean[row]) / std[row]).mean(1) - tail

        bracket = ends.min(1) - slack, ends.max(1) + slack
        column[:] = sign * find_root(excess, bracket, args=(np.arange(len(mean)),)).x
    return found
