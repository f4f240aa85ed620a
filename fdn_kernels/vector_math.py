"""What compiled loops share: elementary functions as polynomials without branches, which compilers vectorise, sums of
rows, and random numbers.

Exact to a few units in the last place over the arguments that the loops give them
(``tests/kernels/test_vector_math.py``).
"""

from __future__ import annotations

import math

import numpy as np

from fdn_kernels.compiling import EXACT, INNER, njit

# ln 2 in two parts, the first with 20 zeros at its end
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 1.5 * 2.0**52  # added to a number, it leaves the nearest integer in the last bits
# Best polynomials: e^r for |r| <= ln(2) / 2, relative error 3e-18; 2 artanh(s) / s in s^2 for s <= 1/3, 5e-17.
_EXP = (
    2.4994304347480526e-08, 2.763229329868497e-07, 2.755762253336655e-06, 2.4801486521382106e-05, 1.984126943267508e-04,
    1.3888888951224016e-03, 8.333333333559274e-03, 4.166666666649277e-02, 1.666666666666617e-01, 5.000000000000018e-01,
    1.0, 1.0,
)  # fmt: skip
_LOG1P = (
    0.1779700388903034, 0.09872679747941564, 0.13592992397460388, 0.1536348705480556, 0.18182872163861863,
    0.22222190386917814, 0.28571429121879555, 0.39999999995177327, 0.6666666666668303, 2.0,
)  # fmt: skip


@njit(forceinline=True, **EXACT)
def exp_minus(t):
    """e^-t for t >= 0, not below e^-708, without branches: 2^k times a polynomial."""
    t = -(708.0 if t > 708.0 else t)
    shifted = t * (1 / math.log(2)) + _ROUND
    k = shifted - _ROUND
    r = (t - k * _LN2_HIGH) - k * _LN2_LOW
    p = 0.0
    for c in _EXP:
        p = p * r + c
    return np.int64(np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)).view(np.float64)


@njit(forceinline=True, **EXACT)
def log1p_exp(rho, e):
    """softplus(rho) = max(rho, 0) + ln(1 + e) with e = e^-|rho|; NaN stays NaN."""
    s = e / (2 + e)  # ln(1 + e) = 2 artanh(s)
    s2, p = s * s, 0.0
    for c in _LOG1P:
        p = p * s2 + c
    return (0.0 if rho < 0 else rho) + p * s


@njit(**INNER)
def softplus(rho, slope, floor):
    """sigma = floor + softplus(rho) in place of rho and, where slope has a size, slope = dsigma/drho; flat arrays."""
    if slope.size:
        for b in range(rho.size):
            e = exp_minus(abs(rho[b]))
            slope[b] = (e if rho[b] < 0 else 1.0) / (1 + e)
            rho[b] = floor + log1p_exp(rho[b], e)
    else:
        for b in range(rho.size):
            rho[b] = floor + log1p_exp(rho[b], exp_minus(abs(rho[b])))


@njit(**INNER)
def weighted_sum(w, at, bias, x, n, out):
    """out = bias + sum of w[at + i] x[i] over i < n, (B,); four terms for each time the sum is read and written."""
    first = 4 if n > 3 else 1
    v, u, t, s = w[at], w[at + 1] if n > 3 else 0.0, w[at + 2] if n > 3 else 0.0, w[at + 3] if n > 3 else 0.0
    if n > 3:
        for b in range(out.size):
            out[b] = bias + v * x[0, b] + u * x[1, b] + t * x[2, b] + s * x[3, b]
    else:
        for b in range(out.size):
            out[b] = bias + v * x[0, b]
    for i in range(first, n - 3, 4):
        v, u, t, s = w[at + i], w[at + i + 1], w[at + i + 2], w[at + i + 3]
        for b in range(out.size):
            out[b] += v * x[i, b] + u * x[i + 1, b] + t * x[i + 2, b] + s * x[i + 3, b]
    for i in range(first + (n - first) // 4 * 4, n):
        v = w[at + i]
        for b in range(out.size):
            out[b] += v * x[i, b]


# Best polynomials, their coefficients from the highest power on:
# 2 artanh(s) / s in s^2 for s^2 <= 0.0295; sin(r) / r and cos(r) in r^2 for |r| <= pi / 4; relative errors below 1e-16.
_LOG = tuple(2 / n for n in range(21, 0, -2))
_SIN = (
    1.5894136388404916e-10, -2.5050705846729523e-08, 2.755731329901784e-06, -1.984126982840214e-04,
    8.333333333320002e-03, -1.6666666666666616e-01, 1.0,
)  # fmt: skip
_COS = (
    -1.1352123206932069e-11, 2.0875555145727978e-09, -2.755731286569692e-07, 2.480158728289947e-05,
    -1.3888888888858961e-03, 4.166666666666643e-02, -0.5, 1.0,
)  # fmt: skip
# bits of float64
_FRACTION, _ONE, _SQRT_HALF = np.int64((1 << 52) - 1), np.int64(0x3FF0000000000000), np.int64(0x3FE6A09E667F3BCD)


@njit(forceinline=True, **EXACT)
def log(x):
    """ln x for positive normal finite x: k ln 2 + 2 artanh((m - 1) / (m + 1)) with m in [sqrt(1/2), sqrt(2))."""
    bits = np.float64(x).view(np.int64) + (_ONE - _SQRT_HALF)
    k = (bits >> 52) - 1023
    m = np.int64((bits & _FRACTION) + _SQRT_HALF).view(np.float64)
    s = (m - 1) / (m + 1)
    s2, p = s * s, 0.0
    for c in _LOG:
        p = p * s2 + c
    return k * math.log(2) + s * p


@njit(**EXACT)
def normal(words, out):
    """Standard normal numbers from as many (an even number of) 64-bit words.

    Box and Muller's transform, 53 bits each.
    """
    n = out.size // 2
    for i in range(n):
        radius = math.sqrt(-2 * log((np.int64(words[i] >> np.uint64(11)) + 1) * 2.0**-53))
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
def alias(words, table, out):
    """Draws from 256 outcomes by Walker's method, from 32-bit words.

    8 bits choose a column, 24 one of its two outcomes.
    """
    for i in range(out.size):
        column = words[i] & np.uint32(255)
        entry = table[column]
        out[i] = column if words[i] >> np.uint32(8) < entry >> np.uint32(8) else entry & np.uint32(255)
