"""Quantiles of mixtures of Gaussians, as roots of their distribution function."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

NEWTON, BISECTIONS = 20, 100  # steps at most; the second follow where the first have not settled
TOLERANCE = 1e-13  # of the last step, relative to the quantile and to the components' standard deviations


def mixture_quantiles(mean: np.ndarray, std: np.ndarray, q: np.ndarray) -> np.ndarray:
    r"""The x with (1/K) sum_k Phi((x - mean_k) / std_k) = q, for every row and q.

    Newton's steps inside a bracket, the smallest and the largest of the components' own quantiles; a step that leaves
    it is replaced by its middle. A row is settled on its own, so that its result does not depend on the others.

    Args:
        mean: of the components, ``(N, K)``.
        std: theirs, ``(N, K)``, positive.
        q: probabilities between 0 and 1, ``(Q,)``.

    Returns:
        ``(N, Q)``

    >>> mixture_quantiles(np.array([[0.0, 0.0]]), np.array([[1.0, 1.0]]), np.array([0.5, 0.975])).round(3)
    array([[0.  , 1.96]])
    """
    found = np.empty((len(mean), len(q)))
    for column, level in zip(found.T, q):
        sign = 1 if level <= 0.5 else -1  # from the side where the function's small values are exact
        column[:] = sign * _lower_quantile(sign * mean, std, min(level, 1 - level))
    return found


def _lower_quantile(mean: np.ndarray, std: np.ndarray, level: float) -> np.ndarray:
    ends = mean + std * ndtri(level)  # (N, K)
    low, high, x = ends.min(1), ends.max(1), ends.mean(1)  # (N,)
    rows = np.arange(len(x))
    for step in range(NEWTON + BISECTIONS):
        before, m, s = x[rows], mean[rows], std[rows]
        t = (before[:, None] - m) / s
        excess = ndtr(t).mean(1) - level
        density = (np.exp(-0.5 * t**2) / s).mean(1) / math.sqrt(2 * math.pi)
        low[rows], high[rows] = np.where(excess < 0, before, low[rows]), np.where(excess < 0, high[rows], before)
        newton = before - np.divide(excess, density, out=np.full_like(before, np.inf), where=density > 0)
        inside = (low[rows] <= newton) & (newton <= high[rows]) & (step < NEWTON)
        x[rows] = np.where(inside, newton, (low[rows] + high[rows]) / 2)
        rows = rows[np.abs(x[rows] - before) > TOLERANCE * (np.abs(before) + s.mean(1))]
        if not rows.size:
            break
    return x
