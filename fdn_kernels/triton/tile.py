"""What the kernels have in common: one compilation for all sizes, and what is done with a tile of weights."""

from __future__ import annotations

import triton
import triton.language as tl

# Arguments that are not compiled in, whatever their value
SIZES = ("draws", "examples", "d_in", "d_out", "kl_draws", "first_draw", "first_example", "noise_stream",
         "DO", "M", "N", "K", "P", "Q")  # fmt: skip


def kernel(function):
    """One compiled kernel for all sizes: those are not compiled in.

    Strides are multiples of 16 by padding, and known as such.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return triton.jit(function, do_not_specialize=[name for name in names if name in SIZES])


@triton.jit
def scale_of(rho, floor):
    """floor + softplus(rho), and softplus's derivative up to a factor: (1, e) / (1 + e) with e = exp(-|rho|).

    log(1 + e) = e p(e), p of degree 8 with a relative error of 4e-8 on [0, 1]: no logarithm, no branch.
    """
    e = tl.exp2(tl.abs(rho) * -1.4426950408889634)
    p = -0.02899195638274512 + e * 0.005105825797362219
    p = 0.07738073837147252 + e * p
    p = -0.13590600235286926 + e * p
    p = 0.19071309583607632 + e * p
    p = -0.24833945457008672 + e * p
    p = 0.33317934322027754 + e * p
    p = -0.49999435690457805 + e * p
    p = 0.9999999651599156 + e * p
    positive = tl.maximum(rho, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return positive + floor + e * p, e


@triton.jit
def reciprocal(x):
    """1 / x for positive x, in two instructions."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def slope(rho, e):
    """The derivative of softplus."""
    return tl.where(rho >= 0, 1.0, e) * reciprocal(1.0 + e)


@triton.jit
def times(product, exponent, factor):
    """product times factor, both positive, the product kept in [1, 2) and the powers of two counted."""
    bits = (product * factor).to(tl.int32, bitcast=True)
    return ((bits & 0x007FFFFF) | 0x3F800000).to(tl.float32, bitcast=True), exponent + (bits >> 23) - 127


@triton.jit
def paired(t, M: tl.constexpr, N: tl.constexpr):
    """Columns 0 .. 7 as 0 2 4 6 1 3 5 7, and so on.

    What a thread has of a product is then what it needs of a factor.
    """
    return tl.reshape(tl.permute(tl.reshape(t, (M, N // 8, 4, 2)), (0, 1, 3, 2)), (M, N))


@triton.jit
def place(tile, examples, BB: tl.constexpr):
    """A program's draw and first example, in 64 bits."""
    tiles = examples // BB
    return (tile // tiles).to(tl.int64), (tile % tiles).to(tl.int64) * BB


@triton.jit
def weight_noise(eps, n, BB: tl.constexpr, e_b, DI, INDEPENDENT: tl.constexpr, BI: tl.constexpr):
    """Noise of a tile of weights, (1, N), or (BB, N) if independent."""
    at = (n // BI) * DI + n % BI
    if INDEPENDENT:
        return tl.load(eps + tl.arange(0, BB)[:, None].to(tl.int64) * e_b + at[None, :])
    else:
        return tl.load(eps + at)[None, :]


@triton.jit
def hypernet(
    z_tile, matrix, bias, first, at, BB: tl.constexpr, N: tl.constexpr, BH: tl.constexpr, PRECISION: tl.constexpr
):
    """Outputs of the hypernetwork for examples (BB, BH) and the weights at ``first + at``, (BB, N)."""
    u = tl.load(matrix + first * BH + at[:, None] * BH + tl.arange(0, BH)[None, :])  # (N, BH)
    start = tl.zeros((BB, N), tl.float32) + tl.load(bias + first + at)[None, :]
    return tl.dot(z_tile, tl.trans(u), start, input_precision=PRECISION)
