"""Random streams.

Every (dataset, model, seed) owns five, so its numbers never depend on which seeds share its block.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fdn_kernels import vector_math

PURPOSES = ("init", "shuffle", "train", "validate", "test")


def seed_sequence(dataset: str, model: str, seed: int, purpose: str, member: int = 0) -> np.random.SeedSequence:
    """The root of one random stream: of a dataset, model, seed and purpose and, in an ensemble, of a member."""
    names = (zlib.crc32(dataset.encode()), zlib.crc32(model.encode()))
    return np.random.SeedSequence([seed, *names, PURPOSES.index(purpose), member])


@functools.lru_cache
def _subset_table(rate: float) -> np.ndarray:
    """Walker's alias table (Vose, 1991) of the subsets of eight things, each in with probability ``rate``.

    (256,), uint32. Column i gives subset i with the probability in its upper 24 bits (of 2^24), else the subset in its
    lower 8 bits.
    """
    members = np.array([bin(subset).count("1") for subset in range(256)])
    excess = 256 * rate**members * (1 - rate) ** (8 - members)
    table = np.arange(256, dtype=np.uint32)
    small, large = ([int(i) for i in np.flatnonzero(which)] for which in (excess < 1, excess >= 1))
    while small and large:
        i, j = small.pop(), large[-1]
        table[i] = min(round(excess[i] * (1 << 24)), (1 << 24) - 1) << 8 | j
        excess[j] -= 1 - excess[i]
        if excess[j] < 1:
            small.append(large.pop())
    return table


class Dropped(NamedTuple):
    """Dropout masks of one replicate for K draws, drawn only when they are used, eight units at a time."""

    streams: Streams
    draws: int


class Streams:
    """Noise for a stack of replicates, one generator each.

    Args:
        roots: one seed sequence per replicate, in C order over ``lead``.
        lead: leading (replicate) shape of every tensor drawn.
        dtype: of the normal numbers.

    Small requests are served from blocks of ``BLOCK`` numbers per replicate. What a replicate receives depends on
    its own root and the requests only.
    """

    BLOCK = 1 << 14

    def __init__(self, roots: Sequence[np.random.SeedSequence], lead: tuple[int, ...], dtype: torch.dtype) -> None:
        if math.prod(lead) != len(roots):
            raise ValueError(f"{len(roots)} random streams cannot serve replicates of shape {lead}")
        self.generators = [np.random.Generator(np.random.SFC64(root)) for root in roots]
        self.lead, self.dtype = tuple(lead), dtype
        self._block = torch.empty(len(roots), 0, dtype=dtype, device="cpu")
        self._used = 0

    def _each(self, draw: Callable[[np.random.Generator], np.ndarray]) -> Tensor:
        return torch.from_numpy(np.stack([draw(g) for g in self.generators]))

    def _normal(self, size: int) -> Tensor:
        """(replicates, size)"""
        numbers = np.empty((len(self.generators), size + size % 2))
        for generator, row in zip(self.generators, numbers):
            for start in range(0, len(row), self.BLOCK):  # of a size that stays in cache
                part = row[start : start + self.BLOCK]
                vector_math.normal(generator.bit_generator.random_raw(len(part)), part)
        return torch.from_numpy(numbers[:, :size]).to(self.dtype)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, ``(*lead, *shape)``."""
        size = math.prod(shape)
        if size > self.BLOCK:
            return self._normal(size).reshape(*self.lead, *shape)
        if self._used + size > self._block.shape[-1]:
            self._block, self._used = self._normal(self.BLOCK), 0
        taken = self._block[:, self._used : self._used + size]
        self._used += size
        return taken.reshape(*self.lead, *shape)

    def keep(self, rate: float, *shape: int) -> Tensor:
        """Dropout masks, bool, False with probability ``rate`` (to 1 part in 65,536), ``(*lead, *shape)``."""
        size, dropped = math.prod(shape), round(rate * 65536)
        words = -(-size // 4)  # 64 random bits are four masks
        mask = self._each(lambda g: g.bit_generator.random_raw(words).view(np.uint16)[:size] >= dropped)
        return mask.view(*self.lead, *shape)

    def subsets(self, rate: float, n: int) -> np.ndarray:
        """Of one replicate, n subsets of eight units, uint8.

        Bit j is set, unit j dropped, with probability ``rate`` (to 2^-32).
        """
        out, bits = np.empty(n, dtype=np.uint8), self.generators[0].bit_generator
        for start in range(0, n, self.BLOCK):  # of a size that stays in cache
            part = out[start : start + self.BLOCK]
            vector_math.alias(bits.random_raw(-(-len(part) // 2)).view(np.uint32), _subset_table(rate), part)
        return out

    def permutations(self, n: int) -> Tensor:
        """One permutation of 0..n-1 per replicate, ``(*lead, n)``, int64."""
        return self._each(lambda g: g.permutation(n)).view(*self.lead, n)
