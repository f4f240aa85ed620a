r"""Noise from a seed: Philox4x32-10 in plain torch, and standard normals whose values depend on their place only.

A number belongs to a parameter (or output), an example, a draw and a stream. That place is Philox's 128-bit counter,
and the seed its key, so the number is the same whatever batch, tile or device it is computed in, and the backward draws
the forward's noise again instead of storing it:

======= ====================================================================================================
word    holds
======= ====================================================================================================
key     the seed's low and high 32 bits
c0      parameter p in [0, P): weight (o, i) is o d_in + i, bias o is d_out d_in + o; for local noise, output o
c1      example b; 0 for shared noise
c2      k // 4, k being the Monte Carlo draw
c3      stream: what keeps apart layers, or passes, that share a seed
======= ====================================================================================================

The four words x0 .. x3 that come out belong to draws 4 (k // 4) + 0 .. 3. They are made uniform as in ``tl.rand``, and
the pairs (x0, x1) and (x2, x3) normal: n0, n1 = r cos(2 pi u1), r sin(2 pi u1) with r = sqrt(-2 ln u0) (Box and
Muller).

Source: J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
KEY_STEPS = 0x9E3779B9, 0xBB67AE85
WORD = 0xFFFFFFFF
CHUNK = 1 << 14  # counters at once: 128 KiB a word in int64; more is as fast, 1 << 12 takes twice as long

Words = int | Tensor  # 32-bit words in int64


def philox4x32(
    counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox4x32: four words for every counter, all int64 in [0, 2^32).

    Counter and key words broadcast; a word is expanded only from the round on in which it meets the others.

    >>> [f"{int(x):08x}" for x in philox4x32((torch.tensor(0), 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p2 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # 64-bit products; low words are cut out when they are used
        c0, c1, c2, c3 = ((p2 >> 32) ^ c1 ^ k0) & WORD, p2, ((p0 >> 32) ^ c3 ^ k1) & WORD, p0
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return c0, c1 & WORD, c2, c3 & WORD


def _uniform(words: Tensor) -> Tensor:
    """Numbers in [0, 1), float32, from 32-bit words, as ``tl.uint_to_uniform_float`` makes them."""
    signed = words.to(torch.int32)
    return (signed ^ (signed >> 31)).float() * 4.6566127342e-10  # x, or -x - 1 where x is negative


def slices(size: int, step: int) -> list[slice]:
    """The whole of ``size`` in slices of at most ``step``."""
    return [slice(i, min(i + step, size)) for i in range(0, size, step)]


def standard_normal(
    seed: int | Tensor,
    noise: str,
    *,
    draws: range,
    examples: range,
    d_in: int,
    d_out: int,
    stream: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """The noise of a layer for some of its draws and examples, the same numbers as in the noise for all of them.

    Args:
        seed: an int, or an int64 tensor ``(...)`` with one seed per replicate.
        noise: ``"shared"``, ``"independent"`` or ``"local"``.
        draws, examples: ranges of step 1. Draws are computed in groups of four: ask for whole groups where there are
            many.
        d_in, d_out, stream: give a number its place, see the table above.
        dtype: of the result; uniforms are float32, their transform float64.
        device: of the result; a tensor of seeds has its own.

    Returns:
        ``(..., len(draws), 1, P)`` for shared, ``(..., len(draws), len(examples), P)`` for independent and
        ``(..., len(draws), len(examples), d_out)`` for local noise.
    """
    if isinstance(seed, Tensor):
        device, seed = seed.device, seed[..., None, None, None]  # (..., 1, 1, 1)
        lead = seed.shape[:-3]
    else:
        lead = torch.Size()
    key = seed & WORD, (seed >> 32) & WORD
    n = d_out if noise == "local" else d_out * (d_in + 1)
    examples = range(1) if noise == "shared" else examples
    groups = range(draws.start // 4, -(-draws.stop // 4))
    out = torch.empty(*lead, len(groups), 4, len(examples), n, dtype=dtype, device=device)

    c0 = torch.arange(n, device=device)
    c1 = torch.arange(examples.start, examples.stop, device=device)[:, None]
    c2 = torch.arange(groups.start, groups.stop, device=device)[:, None, None]
    n_step = max(1, CHUNK // max(1, lead.numel()))
    b_step = max(1, n_step // max(1, n))
    g_step = max(1, b_step // max(1, len(examples)))
    for g, b, p in itertools.product(slices(len(groups), g_step), slices(len(examples), b_step), slices(n, n_step)):
        words = philox4x32((c0[p], c1[b], c2[g], stream), key)  # (..., groups, examples, parameters) each
        for lane, (x, y) in enumerate((words[:2], words[2:])):
            radius = _uniform(x).clamp_(min=1e-7).double().log_().mul_(-2).sqrt_()
            angle = _uniform(y).double().mul_(2 * math.pi)
            torch.mul(radius, angle.cos(), out=out[..., g, 2 * lane, b, p])
            torch.mul(radius, angle.sin_(), out=out[..., g, 2 * lane + 1, b, p])
    first = draws.start - 4 * groups.start
    return out.flatten(-4, -3)[..., first : first + len(draws), :, :]
