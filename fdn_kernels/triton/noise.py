"""The noise of a seed: :mod:`fdn_kernels.philox`, number by number."""

from __future__ import annotations

import triton
import triton.language as tl

from fdn_kernels.triton.tile import kernel


@triton.jit
def _normal_pair(x, y):
    """Two standard normals from two random words.

    Box and Muller, with sine and cosine by quadrant and Taylor series.
    """
    u = tl.maximum(tl.uint_to_uniform_float(x), 1e-7)
    radius = tl.sqrt(-2.0 * tl.log(u))
    quarters = 4.0 * tl.uint_to_uniform_float(y)
    nearest = tl.floor(quarters + 0.5)
    t = (quarters - nearest) * 1.5707963267948966  # in [-pi/4, pi/4]
    t2 = t * t
    sine = t * (1.0 + t2 * (-1.0 / 6 + t2 * (1.0 / 120 + t2 * (-1.0 / 5040))))
    cosine = 1.0 + t2 * (-0.5 + t2 * (1.0 / 24 + t2 * (-1.0 / 720 + t2 * (1.0 / 40320))))
    quadrant = nearest.to(tl.int32) & 3
    odd = (quadrant & 1) == 1
    cos = tl.where(odd, sine, cosine) * tl.where((quadrant == 1) | (quadrant == 2), -1.0, 1.0)
    sin = tl.where(odd, cosine, sine) * tl.where(quadrant >= 2, -1.0, 1.0)
    return radius * cos, radius * sin


@kernel
def noise_kernel(
    seeds, eps, draws, examples, d_in, d_out, DO, DI, first_draw, first_example, noise_stream,
    LOCAL: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Noise of four draws: (examples, d_out) for local, else (examples, DO, DI), whose padding has noise too."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    group, r = first_draw // 4 + tl.program_id(1), tl.program_id(2).to(tl.int64)
    width = d_out if LOCAL else DO * DI
    b, column = n // width, n % width
    o, i = column // DI, column % DI
    index = column if LOCAL else tl.where(i < d_in, o * d_in + i, d_out * d_in + o)
    example, place = (first_example + b).to(tl.uint32), (n * 0 + group).to(tl.uint32)
    x0, x1, x2, x3 = tl.philox(tl.load(seeds + r), index.to(tl.uint32), example, place, noise_stream)
    n0, n1 = _normal_pair(x0, x1)
    n2, n3 = _normal_pair(x2, x3)
    k = group * 4 - first_draw
    e_k = (examples * width).to(tl.int64)
    at, exists = eps + (r * draws + k) * e_k + n, n < examples * width
    tl.store(at, n0, mask=exists & (k >= 0) & (k < draws))
    tl.store(at + e_k, n1, mask=exists & (k + 1 >= 0) & (k + 1 < draws))
    tl.store(at + 2 * e_k, n2, mask=exists & (k + 2 >= 0) & (k + 2 < draws))
    tl.store(at + 3 * e_k, n3, mask=exists & (k + 3 >= 0) & (k + 3 < draws))
