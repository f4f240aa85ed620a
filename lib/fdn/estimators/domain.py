"""Whether a row lies where the training rows lie, in all inputs at once, told without keeping them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import pairwise_distances_argmin_min

INSIDE = 0.99  # share of rows like the training rows that count as inside
MOST_ROWS, MOST_CENTRES = 6000, 300  # read, and kept
ROWS_A_CENTRE, FEWEST = 10, 3  # on average; a centre of fewer rows would be one of them


@dataclass(frozen=True, eq=False)
class Domain:
    """Centres of the training rows, and how far from the nearest one a row may lie.

    Half of the rows, at most some thousand, are gathered around centres (k-means); the distance is the quantile
    ``INSIDE`` of those of the other half, which are new to the centres as the rows to predict are. Centres are means
    of several rows, so no training row is kept.

    Attributes:
        centres: in standardised inputs, ``(m, d)``.
        radius: the largest distance of a row inside.
    """

    centres: np.ndarray
    radius: float

    @classmethod
    def of(cls, x: np.ndarray, seed: int) -> Domain:
        """The domain of standardised training rows ``(N, d)``, N of at least 2."""
        rows = x[np.random.default_rng(seed).permutation(len(x))[:MOST_ROWS]]
        first, second = np.array_split(rows, 2)
        most = min(MOST_CENTRES, len(first) // ROWS_A_CENTRE, len(np.unique(first, axis=0)))
        found = KMeans(max(1, most), n_init=1, random_state=seed).fit(first)
        enough = np.bincount(found.labels_, minlength=len(found.cluster_centers_)) >= FEWEST
        centres = found.cluster_centers_[enough] if enough.any() else first.mean(0, keepdims=True)
        return cls(centres, float(np.quantile(_distance(second, centres), INSIDE)))

    def holds(self, x: np.ndarray) -> np.ndarray:
        """Whether each row of standardised inputs ``(N, d)`` is inside, ``(N,)`` bool."""
        return _distance(x, self.centres) <= self.radius * (1 + 1e-9)


def _distance(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return pairwise_distances_argmin_min(x, centres)[1]
