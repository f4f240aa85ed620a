"""Random streams: every (dataset, model, seed) owns five, so its numbers never depend on which seeds share its block."""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from fdn_kernels.compiled import EXACT

PURPOSES = ("init", "shuffle", "train", "validate", "test")


def seed_sequence(dataset: str, model: str, seed: int, purpose: str, member: int = 0) -> np.random.SeedSequence:
    """The root of one random stream: of a dataset, model, seed and purpose and, in an ensemble, of a member."""
    names = (zlib.crc32(dataset.encode()), zlib.crc32(model.encode()))
    return np.random.SeedSequence([seed, *names, PURPOSES.index(purpose), member])


# Best polynomials, their coefficients from the highest power on:
# 2 artanh(s) / s in s^2 for s^2 <= 0.0295; sin(r) / r and cos(r) in r^2 for |r| <= pi / 4; relative errors below 1e-16.
_ARTANH = tuple(2 / n for n in range(21, 0, -2))
_SIN = (
    1.5894136388404916e-10, -2.5050705846729523e-08, 2.755731329901784e-06, -1.984126982840214e-04, 8.333333333320002e-03,
    -1.6666666666666616e-01, 1.0,
)  # fmt: skip
_COS = (
    -1.1352123206932069e-11, 2.0875555145727978e-09, -2.755731286569692e-07, 2.480158728289947e-05, -1.3888888888858961e-03,
    4.166666666666643e-02, -0.5, 1.0,
)  # fmt: skip
_FRACTION, _ONE, _SQRT_HALF = np.int64((1 << 52) - 1), np.int64(0x3FF0000000000000), np.int64(0x3FE6A09E667F3BCD)  # bits of float64


@njit(forceinline=True, **EXACT)
def _log(x):
    """ln x for positive normal finite x: k ln 2 + 2 artanh((m - 1) / (m + 1)) with m in [sqrt(1/2), sqrt(2))."""
    bits = np.float64(x).view(np.int64) + (_ONE - _SQRT_HALF)
    k = (bits >> 52) - 1023
    m = np.int64((bits & _FRACTION) + _SQRT_HALF).view(np.float64)
    s = (m - 1) / (m + 1)
    s2, p = s * s, 0.0
    for c in _ARTANH:
        p = p * s2 + c
    return k * math.log(2) + s * p


@njit(**EXACT)
def _normal(words, out):
    """Standard normal numbers from as many (an even number of) 64-bit words: Box and Muller's transform, 53 bits each."""
    n = out.size // 2
    for i in range(n):
        radius = math.sqrt(-2 * _log((np.int64(words[i] >> np.uint64(11)) + 1) * 2.0**-53))
        turn = np.int64(words[n + i] >> np.uint64(11)) * 2.0**-51  # in quarters
        quarter = np.floor(turn + 0.5)
        r = (turn - quarter) * (math.pi / 2)
        r2, sin, cos = r * r, 0.0, 0.0
        for c in _SIN:
            sin = sin * r2 + c
        for c in _COS:
            cos = cos * r2 + c
        sin *= r
        q = np.int64(quarter)
        x, y = (sin, cos) if q & 1 else (cos, sin)
        out[i] = radius * (-x if (q + 1) & 2 else x)
        out[n + i] = radius * (-y if q & 2 else y)


@njit(**EXACT)
def _alias(words, table, out):
    """Draws from 256 outcomes by Walker's method, from 32-bit words: 8 bits choose a column, 24 one of its two outcomes."""
    for i in range(out.size):
        column = words[i] & np.uint32(255)
        entry = table[column]
        out[i] = column if words[i] >> np.uint32(8) < entry >> np.uint32(8) else entry & np.uint32(255)


@functools.lru_cache
def _subset_table(rate: float) -> np.ndarray:
    """Walker's table for the subsets of eight things that are each in with probability ``rate`` (Vose, 1991), (256,), uint32.

    A column's own outcome has the upper 24 bits as its probability, of 2^24, and the outcome in the lower 8 the rest.
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
    """Dropout masks of K draws that are drawn when they are used, eight units at a time; of one replicate."""

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
                _normal(generator.bit_generator.random_raw(len(part)), part)
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
        """Of one replicate, n subsets of eight units, uint8: bit j is set, unit j dropped, with probability ``rate`` (to 2^-32)."""
        out, bits = np.empty(n, dtype=np.uint8), self.generators[0].bit_generator
        for start in range(0, n, self.BLOCK):  # of a size that stays in cache
            part = out[start : start + self.BLOCK]
            _alias(bits.random_raw(-(-len(part) // 2)).view(np.uint32), _subset_table(rate), part)
        return out

    def permutations(self, n: int) -> Tensor:
        """One permutation of 0..n-1 per replicate, ``(*lead, n)``, int64."""
        return self._each(lambda g: g.permutation(n)).view(*self.lead, n)
