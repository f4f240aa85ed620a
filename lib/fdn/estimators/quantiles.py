"""Quantiles of mixtures of Gaussians, as roots of their distribution function."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr, ndtri

NEWTON, BISECTIONS = 20, 100  # steps at most; the second follow where the first have not settled
TOLERANCE = 1e-14  # of the last step, relative to the size of the components


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
        ends = mean + std * ndtri(level)  # (N, K)
        low, high = ends.min(1), ends.max(1)
        close = TOLERANCE * (np.abs(ends).max(1) + std.max(1))
        column[:] = np.clip(ends.mean(1), low, high)
        rows = np.flatnonzero(high > low)
        for step in range(NEWTON + BISECTIONS):
            if not rows.size:
                break
            x = column[rows]
            t = (x[:, None] - mean[rows]) / std[rows]
            excess = ndtr(t).mean(1) - level
            density = (np.exp(-0.5 * t**2) / std[rows]).mean(1) / math.sqrt(2 * math.pi)
            low[rows], high[rows] = np.where(excess < 0, x, low[rows]), np.where(excess < 0, high[rows], x)
            middle = (low[rows] + high[rows]) / 2
            newton = x - np.divide(excess, density, out=np.full_like(x, np.inf), where=density > 0)
            inside = (low[rows] <= newton) & (newton <= high[rows]) & (step < NEWTON)
            column[rows] = np.where(inside, newton, middle)
            rows = rows[np.abs(column[rows] - x) > close[rows]]
    return found
