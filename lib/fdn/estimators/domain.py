"""Whether a row lies where the training rows lie, in all inputs at once, told without keeping them."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import pairwise_distances_argmin_min

INSIDE = 0.995  # share of rows like the training rows that pass each of the two tests
MOST_ROWS, MOST_CENTRES = 6000, 300  # read, and kept
ROWS_A_CENTRE, FEWEST = 10, 3  # on average; a centre of fewer rows would be one of them


class Domain(NamedTuple):
    """Centres and ranges of the training rows, and how far beyond them a row may lie.

    Half of the rows, some thousand at most, are gathered around centres (k-means). The other half, which is as new to
    these centres and to the first half's ranges as the rows to predict are, tells how far from the nearest centre, and
    how far beyond the range of an input, rows lie that are like them: the quantile ``INSIDE`` of each.

    A row of a new place may be near in most inputs and far in one, which a distance in all of them hardly sees; a new
    combination of usual values is within all ranges. So both are asked. Centres are means of several rows: of
    the training rows themselves only the smallest and largest value of an input are kept, and these where no row of the
    second half lies beyond the first half's.
    """

    centres: np.ndarray  # in standardised inputs, (m, d)
    radius: np.ndarray  # the largest distance from the nearest centre, ()
    low: np.ndarray  # bounds of every input, standardised, (d,)
    high: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, seed: int) -> Self:
        """The domain of standardised training rows ``(N, d)``, N of at least 2."""
        rows = x[np.random.default_rng(seed).permutation(len(x))[:MOST_ROWS]]
        first, second = np.array_split(rows, 2)
        most = min(MOST_CENTRES, len(first) // ROWS_A_CENTRE, len(np.unique(first, axis=0)))
        found = KMeans(max(1, most), n_init=1, random_state=seed).fit(first)
        enough = np.bincount(found.labels_, minlength=len(found.cluster_centers_)) >= FEWEST
        centres = found.cluster_centers_[enough] if enough.any() else first.mean(0, keepdims=True)
        margin = np.quantile(_excess(second, first.min(0), first.max(0)).max(1), INSIDE)
        radius = np.quantile(_distance(second, centres), INSIDE)
        return cls(centres, radius, x.min(0) - margin, x.max(0) + margin)

    def far(self, x: np.ndarray) -> np.ndarray:
        """Whether each row of standardised inputs ``(N, d)`` is too far from all centres, ``(N,)`` bool."""
        return _distance(x, self.centres) > self.radius * (1 + 1e-9)

    def beyond(self, x: np.ndarray) -> np.ndarray:
        """How far each input is beyond its bounds, ``(N, d)``, 0 within them."""
        return _excess(x, self.low, self.high)


def _distance(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return pairwise_distances_argmin_min(x, centres)[1]


def _excess(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.maximum(np.maximum(low - x, x - high), 0)
