r"""The layer in Triton: hypernetwork output, softplus, KL and what they are multiplied with in one pass; the backward
recomputes what it needs.

With z~ = (z, 1) and a~ = (a, 1) every parameter (o, i) has a mean m_oi = U_oi z~ and a scale s_oi = floor +
softplus(R_oi z~); input number d_in is the bias's 1. The output is a mean and a *spread*,

    y_o = sum_i m_oi a~_i + spread,    spread = sum_i f_oi x_i, f = s eps and x = a~ (sampled weights),
                                       spread = eps_o sqrt(sum_i f_oi x_i), f = s^2 and x = a~^2 (local),

and only s needs work per weight:

- LP (z depends on the draw): the mean is one matrix product, (a~ outer z~) with U. The spread's tiles of f live in
  registers.
- IC (z does not): means and f of a block of examples are written once for all draws, and multiplied with the draws'
  inputs.
- The KL's sum of m^2 is z~' G z~ with the Gram matrix G of U, (h + 1)^2, whatever the number of parameters.

Nothing of size B x 2P or K x B x P is alive at once: calls run in chunks of draws and examples whose scratch fits
``SCRATCH``. Inside, tensors are float32 and padded to whole tiles with zeros, so kernels have no masks and offsets are
64-bit where they are large: (R, k, B, d_in + 1) inputs, (R, d_out, d_in + 1, h) matrices. No atomics: sums over
programs are written as partial sums and added afterwards, so results are the same from run to run.

Shapes in comments are of tiles; N = BO BI is a tile of weights.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
PROGRAMS = 528  # wanted at once: four for each of an H100's 132 multiprocessors
SCRATCH = 1 << 26  # elements of intermediate results alive at once (256 MiB)

SIZES = (
    "draws",
    "examples",
    "d_in",
    "d_out",
    "kl_draws",
    "first_draw",
    "first_example",
    "noise_stream",
    "DO",
    "M",
    "N",
    "K",
    "P",
    "Q",
)


def _kernel(function):
    """One compiled kernel for all sizes: those are not compiled in.

    Strides are multiples of 16 by padding, and known as such.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return triton.jit(function, do_not_specialize=[name for name in names if name in SIZES])


# -- noise: fdn_kernels.philox, number by number -----------------------------------------------------------------------


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


@_kernel
def _noise_kernel(
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


# -- a tile of weights -------------------------------------------------------------------------------------------------


@triton.jit
def _scale(rho, floor):
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
def _reciprocal(x):
    """1 / x for positive x, in two instructions."""
    root = tl.rsqrt(x)
    return root * root


@triton.jit
def _slope(rho, e):
    """The derivative of softplus."""
    return tl.where(rho >= 0, 1.0, e) * _reciprocal(1.0 + e)


@triton.jit
def _times(product, exponent, factor):
    """product times factor, both positive, the product kept in [1, 2) and the powers of two counted."""
    bits = (product * factor).to(tl.int32, bitcast=True)
    return ((bits & 0x007FFFFF) | 0x3F800000).to(tl.float32, bitcast=True), exponent + (bits >> 23) - 127


@triton.jit
def _paired(t, M: tl.constexpr, N: tl.constexpr):
    """Columns 0 .. 7 as 0 2 4 6 1 3 5 7, and so on.

    What a thread has of a product is then what it needs of a factor.
    """
    return tl.reshape(tl.permute(tl.reshape(t, (M, N // 8, 4, 2)), (0, 1, 3, 2)), (M, N))


@triton.jit
def _place(tile, examples, BB: tl.constexpr):
    """A program's draw and first example, in 64 bits."""
    tiles = examples // BB
    return (tile // tiles).to(tl.int64), (tile % tiles).to(tl.int64) * BB


@triton.jit
def _weight_noise(eps, n, BB: tl.constexpr, e_b, DI, INDEPENDENT: tl.constexpr, BI: tl.constexpr):
    """Noise of a tile of weights, (1, N), or (BB, N) if independent."""
    offsets = (n // BI) * DI + n % BI
    if INDEPENDENT:
        return tl.load(eps + tl.arange(0, BB)[:, None].to(tl.int64) * e_b + offsets[None, :])
    else:
        return tl.load(eps + offsets)[None, :]


# -- forward -----------------------------------------------------------------------------------------------------------


@_kernel
def _forward_kernel(
    z, rho, rho_bias, mean, mean_bias, x, eps,  # inputs
    spread, factors, kl,  # outputs
    z_r, z_k, x_r, x_k, e_r, e_k, e_b,
    draws, examples, d_in, d_out, DO, DI, kl_draws, floor, inverse_prior,
    NOISE: tl.constexpr, KL: tl.constexpr, LP: tl.constexpr, PRECISION: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """LP: the spread; IC: its factors, s^2 (local) or s. And partial sums of the KL without its sum of means squared.

    A program owns examples of one draw, and walks over outputs and inputs.
    """
    N: tl.constexpr = BO * BI
    SAMPLED: tl.constexpr = NOISE == "shared" or NOISE == "independent"
    r = tl.program_id(2).to(tl.int64)
    k, b = _place(tl.program_id(0), examples, BB)
    rows, j, n = tl.arange(0, BB), tl.arange(0, BH), tl.arange(0, N)
    z_tile = tl.load(z + r * z_r + k * z_k + b * BH + rows[:, None] * BH + j[None, :])  # (BB, BH)
    x += r * x_r + k * x_k + b * DI
    eps += r * e_r + k * e_k + b * e_b
    rho += r * DO * DI * BH
    rho_bias += r * DO * DI
    row = (r * draws + k) * examples + b
    squares = tl.zeros((BB, N), tl.float32)
    product = tl.zeros((BB, N), tl.float32) + 1.0
    exponent = tl.zeros((BB, N), tl.int32)
    has_kl = k < kl_draws
    for o0 in range(tl.program_id(1) * BO, DO, tl.num_programs(1) * BO):
        total = tl.zeros((BB, N), tl.float32)
        for i0 in range(0, DI, BI):
            first = (r * 0 + o0) * DI + i0  # in 64 bits
            at = (n // BI) * DI + n % BI
            u = tl.load(rho + first * BH + at[:, None] * BH + j[None, :])  # (N, BH)
            start = tl.zeros((BB, N), tl.float32) + tl.load(rho_bias + first + at)[None, :]
            scale, _ = _scale(tl.dot(z_tile, tl.trans(u), start, input_precision=PRECISION), floor)  # (BB, N)
            factor = scale * scale
            if SAMPLED and LP:
                noise = _weight_noise(eps + first, n, BB, e_b, DI, NOISE == "independent", BI)
                factor = scale * noise
            if LP and NOISE != "none":
                inputs = tl.load(x + rows[:, None] * DI + (i0 + tl.arange(0, BI))[None, :])  # (BB, BI)
                total += factor * tl.reshape(tl.broadcast_to(inputs[:, None, :], (BB, BO, BI)), (BB, N))
            elif not LP:
                kept = scale if SAMPLED else factor
                tl.store(factors + ((r * examples + b + rows) * DO)[:, None] * DI + (first + at)[None, :], kept)
            if KL != "none":
                exists = ((i0 + n % BI <= d_in) & (o0 + n // BI < d_out))[None, :]
                ratio = tl.where(exists, scale * inverse_prior, 1.0)
                product, exponent = _times(product, exponent, ratio)
                if KL == "sampled":
                    v = tl.load(mean + (r * DO * DI + first) * BH + at[:, None] * BH + j[None, :])
                    start = tl.zeros((BB, N), tl.float32) + tl.load(mean_bias + r * DO * DI + first + at)[None, :]
                    theta = (tl.dot(z_tile, tl.trans(v), start, input_precision=PRECISION) + factor) * inverse_prior
                    squares += tl.where(exists, theta * theta - noise * noise, 0.0)
                else:
                    squares += ratio * ratio - 1.0
        if LP and NOISE != "none":
            o = tl.arange(0, BO)
            at_spread = spread + row * DO + o0 + rows[:, None] * DO + o[None, :]
            tl.store(at_spread, tl.sum(tl.reshape(total, (BB, BO, BI)), axis=2))
    if KL != "none":
        if has_kl:
            logs = 0.6931471805599453 * (exponent.to(tl.float32) + tl.log2(product))
            part = (tl.program_id(1) * tl.num_programs(2) + r) * kl_draws + k  # (splits, R, k, B)
            tl.store(kl + part * examples + b + rows, tl.sum(0.5 * squares - logs, axis=1))


# -- backward ----------------------------------------------------------------------------------------------------------


@triton.jit
def _scale_gradient(
    gradient, noise, scale, theta, kl, precision, NOISE: tl.constexpr, KL: tl.constexpr, LP: tl.constexpr
):
    """Gradient of the scales from that of the factors (IC with noise "shared": of the scales) and of the KL."""
    SAMPLED: tl.constexpr = NOISE == "shared" or NOISE == "independent"
    if KL == "sampled":
        gradient += kl * precision * theta
    if SAMPLED:
        gradient = gradient * noise if LP else gradient
    else:
        gradient = gradient * (2.0 * scale)
    if KL == "analytic":
        gradient += kl * (scale * precision - _reciprocal(scale))
    elif KL == "sampled":
        gradient -= kl * _reciprocal(scale)
    return gradient


@_kernel
def _rows_kernel(
    z, rho, rho_bias, rho_t, mean, mean_bias, mean_t, x, eps, w, grad_factors, grad_kl,  # inputs
    grad_x, grad_z,  # outputs; grad_z: partial sums
    z_r, z_k, x_r, x_k, e_r, e_k, e_b,
    draws, examples, DO, DI, floor, inverse_prior,
    NOISE: tl.constexpr, KL: tl.constexpr, LP: tl.constexpr, PRECISION: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Gradients of x (LP) and, through the scales, of z.

    A program owns examples of a draw, and walks over inputs and outputs.
    """
    N: tl.constexpr = BO * BI
    SAMPLED: tl.constexpr = NOISE == "shared" or NOISE == "independent"
    SPREAD: tl.constexpr = LP and NOISE != "none"
    r = tl.program_id(2).to(tl.int64)
    k, b = _place(tl.program_id(0), examples, BB)
    rows, j, n = tl.arange(0, BB), tl.arange(0, BH), tl.arange(0, N)
    z_tile = tl.load(z + r * z_r + k * z_k + b * BH + rows[:, None] * BH + j[None, :])  # (BB, BH)
    row = (r * draws + k) * examples + b
    eps += r * e_r + k * e_k + b * e_b
    kl = tl.zeros((BB, 1), tl.float32)
    if KL != "none":
        kl = tl.load(grad_kl + row + rows)[:, None]
    precision = inverse_prior * inverse_prior
    z_sum = tl.zeros((BB, BH), tl.float32)
    for i0 in range(tl.program_id(1) * BI, DI, tl.num_programs(1) * BI):
        i = i0 + tl.arange(0, BI)
        if SPREAD:
            inputs = tl.load(x + r * x_r + k * x_k + b * DI + rows[:, None] * DI + i[None, :])  # (BB, BI)
            x_sum = tl.zeros((BB, BI), tl.float32)
        for o0 in range(0, DO, BO):
            first = (r * DO + o0) * DI + i0
            at = (n // BI) * DI + n % BI
            at_t = (n // BI) * (DI * BH) + n % BI
            u = tl.load(rho + first * BH + at[:, None] * BH + j[None, :])  # (N, BH)
            start = tl.zeros((BB, N), tl.float32) + tl.load(rho_bias + first + at)[None, :]
            raw = tl.dot(z_tile, tl.trans(u), start, input_precision=PRECISION)
            scale, e = _scale(raw, floor)  # (BB, N)
            noise = scale
            theta = scale
            if SAMPLED and LP:
                noise = _weight_noise(eps + (first - r * DO * DI), n, BB, e_b, DI, NOISE == "independent", BI)
            if KL == "sampled":
                v = tl.load(mean + first * BH + at[:, None] * BH + j[None, :])
                start = tl.zeros((BB, N), tl.float32) + tl.load(mean_bias + first + at)[None, :]
                theta = tl.dot(z_tile, tl.trans(v), start, input_precision=PRECISION) + scale * noise
            gradient = tl.zeros((BB, N), tl.float32)
            if SPREAD:
                factor = scale * noise  # noise is the scale itself for local
                outputs = tl.load(w + row * DO + o0 + rows[:, None] * DO + tl.arange(0, BO)[None, :])  # (BB, BO)
                x_sum += tl.sum(tl.reshape(factor, (BB, BO, BI)) * outputs[:, :, None], axis=1)
                gradient = tl.reshape(outputs[:, :, None] * inputs[:, None, :], (BB, N))
            elif NOISE != "none":
                gradient = tl.load(
                    grad_factors + ((r * examples + b + rows) * DO)[:, None] * DI + (first - r * DO * DI + at)[None, :]
                )
            if KL == "sampled":
                v = tl.load(mean_t + first * BH - (i0 * BH - i0) + j[:, None] * DI + at_t[None, :])  # (BH, N)
                z_sum = tl.dot(_paired(kl * precision * theta, BB, N), tl.trans(v), z_sum, input_precision=PRECISION)
            gradient = _scale_gradient(gradient, noise, scale, theta, kl, precision, NOISE, KL, LP) * _slope(raw, e)
            u = tl.load(rho_t + first * BH - (i0 * BH - i0) + j[:, None] * DI + at_t[None, :])  # (BH, N)
            z_sum = tl.dot(_paired(gradient, BB, N), tl.trans(u), z_sum, input_precision=PRECISION)
        if SPREAD:
            tl.store(grad_x + row * DI + rows[:, None] * DI + i[None, :], x_sum)
    part = (tl.program_id(1) * tl.num_programs(2) + r) * draws + k  # (splits, R, k, B, BH)
    tl.store(grad_z + (part * examples + b) * BH + rows[:, None] * BH + j[None, :], z_sum)


@_kernel
def _weights_kernel(
    z, z_t, rho, rho_bias, mean, mean_bias, x, eps, w, grad_factors, grad_kl,  # inputs
    grad_rho, grad_rho_bias, grad_mean, grad_mean_bias,  # outputs: partial sums
    z_r, z_k, x_r, x_k, e_r, e_k, e_b,
    draws, examples, DO, DI, floor, inverse_prior,
    NOISE: tl.constexpr, KL: tl.constexpr, LP: tl.constexpr, PRECISION: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Gradients of the matrix that gives the rhos (for a sampled KL also its part of the means'): a program owns weights, and
    walks over draws and examples."""
    N: tl.constexpr = BO * BI
    SAMPLED: tl.constexpr = NOISE == "shared" or NOISE == "independent"
    SPREAD: tl.constexpr = LP and NOISE != "none"
    r = tl.program_id(2).to(tl.int64)
    o0, i0 = (tl.program_id(0) // (DI // BI)) * BO, (tl.program_id(0) % (DI // BI)) * BI
    rows, j, n = tl.arange(0, BB), tl.arange(0, BH), tl.arange(0, N)
    first = (r * DO + o0) * DI + i0
    at = (n // BI) * DI + n % BI
    u = tl.load(rho + first * BH + at[:, None] * BH + j[None, :])  # (N, BH)
    c = tl.load(rho_bias + first + at)[:, None]
    if KL == "sampled":
        v = tl.load(mean + first * BH + at[:, None] * BH + j[None, :])
        d = tl.load(mean_bias + first + at)[:, None]
        mean_sum = tl.zeros((N, BH), tl.float32)
        mean_bias_sum = tl.zeros((N, BB), tl.float32)
    precision = inverse_prior * inverse_prior
    rho_sum = tl.zeros((N, BH), tl.float32)
    bias_sum = tl.zeros((N, BB), tl.float32)
    tiles = examples // BB
    for tile in range(tl.program_id(1), tiles * draws, tl.num_programs(1)):
        k, b = _place(tile, examples, BB)
        row = (r * draws + k) * examples + b
        z_tile = tl.load(z + r * z_r + k * z_k + b * BH + rows[:, None] * BH + j[None, :])  # (BB, BH)
        raw = tl.dot(u, tl.trans(z_tile), tl.zeros((N, BB), tl.float32) + c, input_precision=PRECISION)  # (N, BB)
        scale, e = _scale(raw, floor)
        noise = scale
        theta = scale
        kl = tl.zeros((1, BB), tl.float32)
        if KL != "none":
            kl = tl.load(grad_kl + row + rows)[None, :]
        if SAMPLED and LP:
            at_eps = eps + r * e_r + k * e_k + b * e_b + (first - r * DO * DI)
            noise = tl.trans(_weight_noise(at_eps, n, BB, e_b, DI, NOISE == "independent", BI))  # (N, 1 or BB)
        z_pairs = tl.load(z_t + r * z_r + k * z_k + b + j[:, None] * examples + rows[None, :])  # (BH, BB)
        if KL == "sampled":
            theta = (
                tl.dot(v, tl.trans(z_tile), tl.zeros((N, BB), tl.float32) + d, input_precision=PRECISION)
                + scale * noise
            )
            grad_theta = kl * precision * theta
            mean_bias_sum += grad_theta
            mean_sum = tl.dot(_paired(grad_theta, N, BB), tl.trans(z_pairs), mean_sum, input_precision=PRECISION)
        gradient = tl.zeros((N, BB), tl.float32)
        if SPREAD:
            at_x = x + r * x_r + k * x_k + b * DI + i0
            inputs = tl.load(at_x + rows[None, :] * DI + tl.arange(0, BI)[:, None])  # (BI, BB)
            outputs = tl.load(w + row * DO + o0 + rows[None, :] * DO + tl.arange(0, BO)[:, None])  # (BO, BB)
            gradient = tl.reshape(outputs[:, None, :] * inputs[None, :, :], (N, BB))
        elif NOISE != "none":
            gradient = tl.load(
                grad_factors + ((r * examples + b + rows) * DO)[None, :] * DI + (first - r * DO * DI + at)[:, None]
            )
        gradient = _scale_gradient(gradient, noise, scale, theta, kl, precision, NOISE, KL, LP) * _slope(raw, e)
        bias_sum += gradient
        rho_sum = tl.dot(_paired(gradient, N, BB), tl.trans(z_pairs), rho_sum, input_precision=PRECISION)
    part = tl.program_id(1) * tl.num_programs(2) * DO * DI + first  # (splits, R, DO, DI, BH)
    tl.store(grad_rho + part * BH + at[:, None] * BH + j[None, :], rho_sum)
    tl.store(grad_rho_bias + part + at, tl.sum(bias_sum, axis=1))
    if KL == "sampled":
        tl.store(grad_mean + part * BH + at[:, None] * BH + j[None, :], mean_sum)
        tl.store(grad_mean_bias + part + at, tl.sum(mean_bias_sum, axis=1))


# -- products ----------------------------------------------------------------------------------------------------------


@_kernel
def _product_kernel(
    x, w, out, x_r, x_b, x_m, x_k, w_r, w_b, w_k, w_n, o_r, o_b, o_m, o_n, M, N, K,
    ADD: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """out = x w (+ out) for matrices (M, K) and (K, N) of any strides, in batches (R, B)."""
    n_tiles = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * n_tiles
    tile, b, r = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(2).to(tl.int64)
    m = (tile // n_tiles) * BM + tl.arange(0, BM)
    n = (tile % n_tiles) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    x += r * x_r + b * x_b
    w += r * w_r + b * w_b
    out += r * o_r + b * o_b
    at_x = x + m.to(tl.int64)[:, None] * x_m + k.to(tl.int64)[None, :] * x_k
    at_w = w + k.to(tl.int64)[:, None] * w_k + n.to(tl.int64)[None, :] * w_n
    step = r * 0 + BK  # in 64 bits
    m_exists, n_exists = (m < M)[:, None], (n < N)[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        exists = k0 + k < K
        left = tl.load(at_x, mask=m_exists & exists[None, :], other=0.0)
        right = tl.load(at_w, mask=n_exists & exists[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        at_x += step * x_k
        at_w += step * w_k
    at_out = out + m.to(tl.int64)[:, None] * o_m + n.to(tl.int64)[None, :] * o_n
    if ADD:
        total += tl.load(at_out, mask=m_exists & n_exists, other=0.0)
    tl.store(at_out, total, mask=m_exists & n_exists)


@_kernel
def _contract_kernel(
    scale, eps, x, out, s_r, s_b, s_p, s_q, e_r, e_k, x_r, x_k, o_r, o_k, draws, examples, P, Q,
    BB: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """out[k, b, p] = sum over q of scale[b, p, q] eps[k, p, q] x[k, b, q] (IC, shared noise). Examples are a warp's threads, and
    sums stay within a thread."""
    r = tl.program_id(2).to(tl.int64)
    k_tiles = tl.cdiv(draws, BK)
    tile = tl.program_id(0)
    k = (tile % k_tiles) * BK + tl.arange(0, BK)
    b = (tile // k_tiles) * BB + tl.arange(0, BB)
    p = tl.program_id(1) * BP + tl.arange(0, BP)
    q = tl.arange(0, BQ)
    k_exists = (k < draws)[:, None]
    at_scale = scale + r * s_r + b.to(tl.int64)[None, None, :] * s_b + p[None, :, None] * s_p + q[:, None, None] * s_q
    at_eps = eps + r * e_r + k.to(tl.int64)[None, None, :] * e_k + p[None, :, None] * s_p + q[:, None, None] * s_q
    at_x = x + r * x_r + k.to(tl.int64)[None, :, None] * x_k + b.to(tl.int64)[None, None, :] * Q + q[:, None, None]
    total = tl.zeros((BP, BK, BB), tl.float32)
    for _ in range(0, Q, BQ):
        s = tl.load(at_scale)  # (BQ, BP, BB)
        e = tl.load(at_eps, mask=(k < draws)[None, None, :], other=0.0)  # (BQ, BP, BK)
        t = tl.load(at_x, mask=k_exists[None, :, :], other=0.0)  # (BQ, BK, BB)
        total += tl.sum(s[:, :, None, :] * e[:, :, :, None] * t[:, None, :, :], axis=0)
        at_scale += BQ * s_q
        at_eps += BQ * s_q
        at_x += BQ
    at_out = out + r * o_r + k.to(tl.int64)[None, :, None] * o_k + b.to(tl.int64)[None, None, :] * P + p[:, None, None]
    tl.store(at_out, total, mask=k_exists[None, :, :])


@_kernel
def _correlate_kernel(
    w, x, eps, out, w_r, w_k, x_r, x_k, e_r, e_k, draws, examples, DO, DI,
    BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """out[b, o, i] = sum over k of w[k, b, o] x[k, b, i] eps[k, o, i].

    The gradient of :func:`_contract_kernel`'s scale.
    """
    r = tl.program_id(2).to(tl.int64)
    b = tl.program_id(1).to(tl.int64) * BB + tl.arange(0, BB)
    o0, i0 = (tl.program_id(0) // (DI // BI)) * BO, (tl.program_id(0) % (DI // BI)) * BI
    o, i = o0 + tl.arange(0, BO), i0 + tl.arange(0, BI)
    total = tl.zeros((BO, BI, BB), tl.float32)
    for k0 in range(0, draws, BK):
        k = k0 + tl.arange(0, BK)
        exists, k = k < draws, k.to(tl.int64)
        left = tl.load(
            w + r * w_r + k[:, None, None] * w_k + b[None, None, :] * DO + o[None, :, None],
            mask=exists[:, None, None],
            other=0.0,
        )
        right = tl.load(
            x + r * x_r + k[:, None, None] * x_k + b[None, None, :] * DI + i[None, :, None],
            mask=exists[:, None, None],
            other=0.0,
        )
        noise = tl.load(
            eps + r * e_r + k[:, None, None] * e_k + o[None, :, None] * DI + i[None, None, :],
            mask=exists[:, None, None],
            other=0.0,
        )
        total += tl.sum(left[:, :, None, :] * right[:, None, :, :] * noise[:, :, :, None], axis=0)
    first = (r * (tl.num_programs(1) * BB) + b)[None, None, :] * DO + o[:, None, None]
    tl.store(out + first * DI + i[None, :, None], total)


# -- launchers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """A program's warps and the sizes of its tile, by the kernel's names.

    Registers suffice (see :mod:`fdn_kernels.aot`).
    """

    warps: int
    sizes: dict[str, int]

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]

    def get(self, name: str, default: int) -> int:
        return self.sizes.get(name, default)


def tile(warps: int, **sizes: int) -> Tile:
    """As a ``Tile`` is written down.

    Raises:
        ValueError: for sizes that are no powers of two, or below 16 where products need 16.
    """
    depths = [sizes.get(name, 16) for name in ("BM", "BN")] + ([sizes["BK"]] if "BM" in sizes else [])
    if "BB" in sizes and "BO" in sizes and "BK" not in sizes:
        depths += [sizes["BB"], sizes["BO"] * sizes["BI"]]
    if any(size & (size - 1) for size in sizes.values()) or min(depths) < 16:
        raise ValueError(
            f"a tile's sizes are powers of two, and its matrix products at least 16 deep and wide; given {sizes}"
        )
    return Tile(warps, sizes)


# Four warps with 64 rows each share one asynchronous product of Hopper's: fewer rows would be computed several times.
TILES = {
    "forward": tile(4, BB=64, BO=2, BI=16),  # examples, outputs, inputs
    "rows": tile(4, BB=64, BO=2, BI=16),
    "weights": tile(4, BB=32, BO=4, BI=16),
    "wide forward": tile(
        8, BB=64, BO=1, BI=16
    ),  # for hypernetworks wider than 32, or a sampled KL, which needs means too
    "wide rows": tile(8, BB=16, BO=2, BI=16),
    "wide weights": tile(8, BB=16, BO=2, BI=16),
    "product": tile(8, BM=128, BN=64, BK=32),
    "contract": tile(4, BB=64, BK=8, BP=16, BQ=1),
    "correlate": tile(4, BB=32, BK=2, BO=8, BI=16),
    "noise": tile(4, BN=512),
}
KERNELS = {"forward": _forward_kernel, "rows": _rows_kernel, "weights": _weights_kernel, "product": _product_kernel,
           "contract": _contract_kernel, "correlate": _correlate_kernel, "noise": _noise_kernel}  # fmt: skip
OPTIONS = {"num_stages": 1, "maxnreg": 255}  # with a limit of 255 ptxas does not spill to stay below 128
GRID_LIMIT = (1 << 16) - 1  # programs along the second and third axis


def _launch(name: str, grid: tuple[int, int, int], **arguments) -> None:
    """Start the kernel of a tile."""
    tile = TILES[name]
    if math.prod(grid) > 0:
        KERNELS[name.removeprefix("wide ")][grid](**arguments, **tile.sizes, num_warps=tile.warps, **OPTIONS)


def _ceil(n: int, step: int) -> int:
    """The smallest multiple of step that is at least n."""
    return -(-n // step) * step


def _padded(t: Tensor, *sizes: int) -> Tensor:
    """t in float32, contiguous, its last dimensions padded with zeros."""
    sizes = (*t.shape[: t.dim() - len(sizes)], *sizes)
    if t.shape == sizes:
        return t.float().contiguous()
    out = t.new_zeros(sizes, dtype=torch.float32)
    out[tuple(slice(n) for n in t.shape)] = t
    return out


def _split_rows(t: Tensor, d_in: int) -> tuple[Tensor, Tensor]:
    """Rows (R, 2P, ...) as those of means and of rhos, each (R, d_out, d_in + 1, ...), the bias last."""
    d_out = t.shape[1] // (2 * (d_in + 1))
    n = d_out * d_in
    parts = t.split([n, n, d_out, d_out], 1)
    return tuple(
        torch.cat([weights.unflatten(1, (d_out, d_in)), biases.unsqueeze(2)], 2)
        for weights, biases in zip(parts[:2], parts[2:])
    )


def _join_rows(means: Tensor, rhos: Tensor) -> Tensor:
    """The inverse of :func:`_split_rows`."""
    return torch.cat(
        [
            t
            for part in (slice(None, -1), slice(-1, None))
            for t in (means[:, :, part].flatten(1, 2), rhos[:, :, part].flatten(1, 2))
        ],
        1,
    )


def _pairs(t: Tensor) -> Tensor:
    """The last dimension in the order of :func:`_paired`."""
    return t.unflatten(-1, (-1, 4, 2)).transpose(-1, -2).flatten(-3).contiguous()


def _product(x: Tensor, w: Tensor, out: Tensor, precision: str, add: bool = False) -> Tensor:
    """out = x w (+ out) for (R, B, M, K) and (R, B, K, N), float32 and of any strides.

    A batch axis of 1 is one for all.
    """
    (replicates, batch, m, n), depth, tile = out.shape, x.shape[3], TILES["product"]
    programs = triton.cdiv(m, tile["BM"]) * triton.cdiv(n, tile["BN"]) * batch
    strides = {}
    for name, t in (("x", x), ("w", w), ("o", out)):
        axes = {"x": "mk", "w": "kn", "o": "mn"}[name]
        step = [t.stride(0), t.stride(1) if t.shape[1] > 1 else 0, t.stride(2), t.stride(3)]
        strides |= dict(zip((f"{name}_r", f"{name}_b", *(f"{name}_{axis}" for axis in axes)), step))
    _launch(
        "product",
        (programs, 1, replicates),
        x=x,
        w=w,
        out=out,
        **strides,
        M=m,
        N=n,
        K=depth,
        ADD=add,
        PRECISION=precision,
    )
    return out


@dataclass(frozen=True)
class _Chunk:
    """Draws and examples that are computed at once."""

    draws: slice
    examples: slice

    def of(self, t: Tensor) -> Tensor:
        """The part of (R, K or 1, B or 1, ...)."""
        return t[:, self.draws if t.shape[1] > 1 else slice(None), self.examples if t.shape[2] > 1 else slice(None)]


class _Call:
    """One call: its matrices in the kernels' order, and the steps that forward and backward share."""

    def __init__(self, a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision):
        self.a, self.z = a, z
        self.R, _, self.B, self.d_in = a.shape
        self.K, self.h = draws, z.shape[-1]
        if self.R > GRID_LIMIT:
            raise ValueError(f"the Triton kernel takes up to {GRID_LIMIT} replicates at once, not {self.R}: split them")
        self.d_out = weight.shape[-2] // (2 * (self.d_in + 1))
        self.noise, self.kl, self.stream, self.precision = noise, kl, stream, precision
        self.settings = {"floor": floor, "inverse_prior": 1 / prior_scale}
        self.precision_of_prior = prior_scale**-2
        self.spread = noise != "none"
        self.squared = noise in ("local", "moments")
        self.drawn = noise not in ("none", "moments")
        # one draw needs no second kind; without a distribution that draws share there is nothing to hold
        self.LP = z.shape[1] > 1 or draws == 1 or kl == "sampled" or noise == "independent"
        self.kl_draws = draws if z.shape[1] > 1 or kl == "sampled" else 1
        self.BH = max(16, triton.next_power_of_2(self.h))
        self.wide = "wide " if self.BH > 32 or kl == "sampled" else ""
        names = [self.wide + name for name in ("forward", "rows", "weights")]
        tiles = [
            TILES[name] for name in (*names, *(("contract", "correlate") if noise == "shared" and not self.LP else ()))
        ]
        self.DO = _ceil(self.d_out, max(t.get(name, 1) for t in tiles for name in ("BO", "BP", "BQ")))
        self.DI = _ceil(self.d_in + 1, max(t.get(name, 1) for t in tiles for name in ("BI", "BP", "BQ")))
        self.examples = max(t["BB"] for t in tiles)  # examples are padded to multiples of these, those of the tiles
        if self.DO * self.DI * (self.examples if noise == "independent" else 1) >= 2**31:
            raise ValueError(
                f"the Triton kernel counts a layer's parameters{' times 64 examples' if noise == 'independent' else ''} in 31 bits; "
                f"given {self.d_in} inputs and {self.d_out} outputs: split the outputs"
            )
        self.shared_noise = None  # of the last draws
        self.mean, self.rho = (_padded(t, self.DO, self.DI, self.BH) for t in _split_rows(weight, self.d_in))
        self.mean_bias, self.rho_bias = (_padded(t, self.DO, self.DI) for t in _split_rows(bias, self.d_in))
        self.eps = eps if self.drawn else None
        self.seed = (
            seed
            if seed is not None or not self.drawn or eps is not None
            else torch.zeros(self.R, dtype=torch.int64, device=a.device)
        )
        self.nothing = torch.empty(16, dtype=torch.float32, device=a.device)  # a stand-in that is never read

    def chunks(self) -> Iterator[_Chunk]:
        """Rectangles of draws and examples whose scratch fits ``SCRATCH``; IC.

        All draws, so that each mean and scale is made once.
        """
        per_pair = 3 * self.DI + 4 * self.DO
        if self.noise == "independent":
            per_pair += self.DO * self.DI
        if self.LP:
            pairs = SCRATCH // (self.R * per_pair)
            b_step = max(64, min(_ceil(self.B, 64), pairs // self.K // 64 * 64))
            k_step = max(4, pairs // b_step // 4 * 4)
            if self.noise == "shared":
                k_step = max(4, min(k_step, SCRATCH // (self.R * self.DO * self.DI) // 4 * 4))
        else:
            b_step = max(64, SCRATCH // (self.R * (self.K * per_pair + 4 * self.DO * self.DI)) // 64 * 64)
            k_step = self.K
        for k in range(0, self.K, k_step):
            for b in range(0, self.B, b_step):
                yield _Chunk(slice(k, min(k + k_step, self.K)), slice(b, min(b + b_step, self.B)))


class _Part:
    """A chunk's inputs, padded: examples to whole tiles."""

    def __init__(self, call: _Call, chunk: _Chunk):
        self.call, self.chunk = call, chunk
        self.draws = chunk.draws.stop - chunk.draws.start
        self.n = chunk.examples.stop - chunk.examples.start
        self.examples = _ceil(self.n, call.examples)
        self.z = _padded(chunk.of(call.z), self.examples, call.BH)  # (R, 1 or k, B, BH)
        a = chunk.of(call.a)
        self.a1 = a.new_zeros((*a.shape[:2], self.examples, call.DI), dtype=torch.float32)  # (a, 1)
        self.a1[:, :, : self.n, : call.d_in] = a
        self.a1[:, :, : self.n, call.d_in] = 1
        self.x = self.a1.square() if call.squared else self.a1
        self.eps = call.nothing
        if call.noise == "shared":
            if call.shared_noise is None or call.shared_noise[0] != chunk.draws:
                call.shared_noise = chunk.draws, self._noise()
            self.eps = call.shared_noise[1]
        elif call.drawn:
            self.eps = self._noise()

    def _noise(self) -> Tensor:
        """(R, k, B, d_out) for local, else (R, k, 1 or B, DO, DI)."""
        call, chunk = self.call, self.chunk
        local = call.noise == "local"
        b = {"shared": 1, "independent": self.examples, "local": self.n}[call.noise]
        if call.eps is not None:
            eps = chunk.of(call.eps)
            if local:
                return eps.float()
            weights, biases = eps.split([call.d_out * call.d_in, call.d_out], -1)
            eps = torch.cat([weights.unflatten(-1, (call.d_out, call.d_in)), biases.unsqueeze(-1)], -1)
            return _padded(eps, b, call.DO, call.DI)
        eps = self.empty(call.R, self.draws, b, *((call.d_out,) if local else (call.DO, call.DI)))
        first, tile = chunk.draws.start, TILES["noise"]
        groups = (chunk.draws.stop + 3) // 4 - first // 4
        programs = triton.cdiv(math.prod(eps.shape[2:]), tile["BN"])
        _launch(
            "noise", (programs, groups, call.R), seeds=call.seed.contiguous(), eps=eps, draws=self.draws,
            examples=b, d_in=call.d_in, d_out=call.d_out, DO=call.DO, DI=call.DI, first_draw=first,
            first_example=0 if call.noise == "shared" else chunk.examples.start, noise_stream=call.stream - (call.stream >> 31 << 32),
            LOCAL=local,
        )  # fmt: skip
        return eps

    @property
    def arguments(self) -> dict:
        """What the kernels that compute scales take."""
        call = self.call
        weights_eps = call.drawn and call.noise != "local"
        e = self.eps.stride() if weights_eps else (0, 0, 0)
        return call.settings | {
            "z": self.z, "rho": call.rho, "rho_bias": call.rho_bias, "mean": call.mean, "mean_bias": call.mean_bias, "x": self.x,
            "eps": self.eps if weights_eps else call.nothing,
            "z_r": self.z.stride(0), "z_k": self.z.stride(1) if self.z.shape[1] > 1 else 0,
            "x_r": self.x.stride(0), "x_k": self.x.stride(1) if self.x.shape[1] > 1 else 0,
            "e_r": e[0], "e_k": e[1], "e_b": e[2] if call.noise == "independent" else 0,
            "draws": self.scale_draws, "examples": self.examples, "DO": call.DO, "DI": call.DI,
            "NOISE": call.noise, "LP": call.LP, "PRECISION": call.precision, "BH": call.BH,
        }  # fmt: skip

    @property
    def scale_draws(self) -> int:
        """Draws that have scales of their own."""
        return self.draws if self.call.LP else 1

    @property
    def kl_draws(self) -> int:
        """Draws of this chunk that have a KL."""
        return max(0, min(self.chunk.draws.stop, self.call.kl_draws) - self.chunk.draws.start)

    def kl_gradient(self, grad_kl: Tensor) -> Tensor:
        """The KL's gradient for every scale, (R, k, B), zero for draws without a KL."""
        out = torch.zeros(self.call.R, self.scale_draws, self.examples, dtype=torch.float32, device=grad_kl.device)
        if self.kl_draws > 0 and self.call.kl != "none":
            found = grad_kl[:, self.chunk.draws, self.chunk.examples]
            out[:, : found.shape[1], : self.n] = found
        return out

    def empty(self, *sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.float32, device=self.call.a.device)

    # -- scales

    def spreads(self, kl: str) -> tuple[Tensor, Tensor]:
        """LP: sums of factors times inputs, (R, k, B, DO); IC: the factors, (R, B, DO, DI).

        And the KL's part, (R, k, B).
        """
        call, tile = self.call, TILES[self.call.wide + "forward"]
        programs = self.scale_draws * self.examples // tile["BB"]
        splits = _splits(programs * call.R, call.DO // tile["BO"])
        shape = (call.R, self.draws, self.examples, call.DO) if call.LP else (call.R, self.examples, call.DO, call.DI)
        found = self.empty(*shape)
        parts = self.empty(splits, call.R, self.kl_draws if kl != "none" else 0, self.examples)
        if call.LP and not call.spread and kl == "none":
            return found, parts[0]
        _launch(call.wide + "forward", (programs, splits, call.R), **self.arguments, spread=found, factors=found, kl=parts, d_in=call.d_in, d_out=call.d_out,
                kl_draws=self.kl_draws, KL=kl if self.kl_draws else "none")  # fmt: skip
        return found, parts.sum(0)

    # -- means

    def outer_parts(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """LP: draws, examples, and (a, 1) outer z for them, (R, 1, n, DI BH), in parts that fit the scratch."""
        call = self.call
        rows = max(64, SCRATCH // (call.R * call.DI * call.BH))
        b_step = min(self.examples, rows)
        k_step = max(1, rows // b_step)
        for k in range(0, self.draws, k_step):
            for b in range(0, self.examples, b_step):
                at = _Chunk(slice(k, min(k + k_step, self.draws)), slice(b, min(b + b_step, self.examples)))
                a1, z = (at.of(t).expand(-1, at.draws.stop - k, -1, -1).flatten(1, 2) for t in (self.a1, self.z))
                yield at, a1, z, (a1.unsqueeze(3) * z.unsqueeze(2)).flatten(2).unsqueeze(1)

    def means(self) -> Tensor:
        """IC: (R, B, DO, DI)."""
        call = self.call
        out = self.empty(call.R, 1, self.examples, call.DO * call.DI)
        _product(self.z, call.mean.flatten(1, 2).mT.unsqueeze(1), out, call.precision)
        return out.squeeze(1).unflatten(2, (call.DO, call.DI)).add_(call.mean_bias.unsqueeze(1))

    def mean_outputs(self) -> Tensor:
        """(R, k, B, DO)."""
        call = self.call
        y = self.empty(call.R, self.draws, self.examples, call.DO)
        if not call.LP:
            _product(self.by_example(self.a1), self.means().mT, self.by_example(y), call.precision)
            return y
        for at, a1, _, outer in self.outer_parts():
            part = self.empty(call.R, 1, a1.shape[1], call.DO)
            _product(outer, call.mean.flatten(2).mT.unsqueeze(1), part, call.precision)
            _product(a1.unsqueeze(1), call.mean_bias.mT.unsqueeze(1), part, call.precision, add=True)
            at.of(y).copy_(part.view(at.of(y).shape))
        return y

    # -- IC: factors times inputs, and the gradients of both

    def contract(self, factors: Tensor, x: Tensor | None = None) -> Tensor:
        """Sums over inputs, (R, k, B, DO), of factors times inputs.

        Or for x (R, k, B, DO) the sums over outputs, (R, k, B, DI).
        """
        call, tile = self.call, TILES["contract"]
        over_inputs = x is None
        x = self.x.expand(-1, self.draws, -1, -1) if over_inputs else x
        out = self.empty(call.R, self.draws, self.examples, call.DO if over_inputs else call.DI)
        if call.squared:
            _product(self.by_example(x), factors.mT if over_inputs else factors, self.by_example(out), call.precision)
            return out
        programs = self.examples // tile["BB"] * triton.cdiv(self.draws, tile["BK"])
        _launch("contract", (programs, out.shape[3] // tile["BP"], call.R), scale=factors, eps=self.eps, x=x, out=out,
                s_r=factors.stride(0), s_b=factors.stride(1), s_p=call.DI if over_inputs else 1, s_q=1 if over_inputs else call.DI,
                e_r=self.eps.stride(0), e_k=self.eps.stride(1), x_r=x.stride(0), x_k=x.stride(1), o_r=out.stride(0), o_k=out.stride(1),
                draws=self.draws, examples=self.examples, P=out.shape[3], Q=x.shape[3])  # fmt: skip
        return out

    def correlate(self, w: Tensor) -> Tensor:
        """Gradient of the factors (of the scales for shared noise) from that of the sums, (R, B, DO, DI)."""
        call, tile = self.call, TILES["correlate"]
        x = self.x.expand(-1, self.draws, -1, -1)
        if call.squared:
            out = self.x.new_zeros(call.R, self.examples, call.DO, call.DI)
            _product(self.by_example(w).mT, self.by_example(x), out[:, : self.n], call.precision)
            return out
        out = self.empty(call.R, self.examples, call.DO, call.DI)
        programs = call.DO // tile["BO"] * (call.DI // tile["BI"])
        _launch("correlate", (programs, self.examples // tile["BB"], call.R), w=w, x=x, eps=self.eps, out=out, w_r=w.stride(0), w_k=w.stride(1),
                x_r=x.stride(0), x_k=x.stride(1), e_r=self.eps.stride(0), e_k=self.eps.stride(1), draws=self.draws, examples=self.examples,
                DO=call.DO, DI=call.DI)  # fmt: skip
        return out

    def by_example(self, t: Tensor) -> Tensor:
        """(R, 1 or k, B, n) as a matrix (k, n) for every example that is no padding, (R, B, k, n)."""
        return t.expand(-1, self.draws, -1, -1)[:, :, : self.n].transpose(1, 2)

    def cut(self, t: Tensor) -> Tensor:
        """(R, k, B, DO) without padding."""
        return t[:, :, : self.n, : self.call.d_out]


def _splits(programs: int, most: int) -> int:
    """Into how many parts a program's walk is cut, to keep the device busy where there are few programs."""
    return max(1, min(PROGRAMS // max(1, programs), most, GRID_LIMIT))


def _gram(call: _Call) -> Tensor:
    """G = sum of u u^T over the parameters' rows u of (mean matrix, mean bias): (R, BH + 1, BH + 1) in float64."""
    u = torch.cat([call.mean.flatten(1, 2), call.mean_bias.flatten(1, 2).unsqueeze(2)], 2).double()
    return u.mT @ u


def _with_one(z: Tensor, BH: int) -> Tensor:
    """(z, 1), (R, k, B, BH + 1), in float64."""
    z = z.double()
    return torch.cat([F.pad(z, (0, BH - z.shape[-1])), torch.ones_like(z[..., :1])], -1)


def linear(
    a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None, seed: Tensor | None, draws: int, noise: str,
    kl: str, floor: float, prior_scale: float, stream: int, precision: str, keep_variance: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op ``fdn::linear`` on canonical shapes; see :mod:`fdn_kernels.ops`.

    ``keep_variance``: for local noise, give the variance too; the backward, given it, need not compute it again.
    """
    call = _Call(a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision)
    shape = (call.R, draws, call.B, call.d_out)
    y = a.new_empty(shape)
    keep_variance &= noise == "local"
    variance = a.new_empty(
        shape if noise == "moments" or keep_variance else 0, dtype=torch.float32 if keep_variance else a.dtype
    )
    term = torch.zeros((call.R, call.kl_draws, call.B) if kl != "none" else 0, dtype=torch.float32, device=a.device)
    with torch.cuda.device_of(a):
        for chunk in call.chunks():
            part = _Part(call, chunk)
            mean = part.mean_outputs()
            spread, kl_part = part.spreads(kl)
            if call.spread:
                if not call.LP:
                    spread = part.contract(spread)
                spread = part.cut(spread)
            mean = part.cut(mean)
            if noise == "local":
                chunk.of(y).copy_(torch.addcmul(mean, spread.sqrt(), part.eps))
            else:
                chunk.of(y).copy_(mean + spread if call.drawn else mean)
            if variance.dim() > 1:
                chunk.of(variance).copy_(spread)
            if kl_part.numel():
                term[:, chunk.draws, chunk.examples][:, : part.kl_draws] = kl_part[..., : part.n]
        if kl == "analytic":
            z1 = _with_one(z, call.BH)
            term += (0.5 * call.precision_of_prior * ((z1 @ _gram(call).unsqueeze(1)) * z1).sum(-1)).float()
    return y, variance, term


class _Gradients:
    """Sums over the chunks of a backward, float32 and padded: of the matrices, and of one chunk's (a, 1) and z."""

    def __init__(self, call: _Call):
        self.call = call
        self.mean, self.rho = torch.zeros_like(call.mean), torch.zeros_like(call.rho)
        self.mean_bias, self.rho_bias = torch.zeros_like(call.mean_bias), torch.zeros_like(call.rho_bias)

    def begin(self, part: _Part) -> None:
        self.a1 = part.empty(self.call.R, part.draws, part.examples, self.call.DI)
        self.z = torch.zeros_like(part.z)

    def of_means(self, part: _Part, g: Tensor, need_a: bool, need_z: bool) -> None:
        """Through the mean output, whose gradient is g (R, k, B, DO)."""
        call = self.call
        if not call.LP:
            means = part.empty(call.R, part.n, call.DO, call.DI)
            _product(part.by_example(g).mT, part.by_example(part.a1), means, call.precision)
            if need_a:
                _product(part.by_example(g), part.means(), part.by_example(self.a1), call.precision)
            if need_z:  # sums over the inputs of each output, then over outputs
                each = part.empty(call.R, call.DO, part.n, call.BH)
                self.z[:, :, : part.n] += _product(means.transpose(1, 2), call.mean, each, call.precision).sum(
                    1, keepdim=True
                )
            _product(means.permute(0, 2, 3, 1), part.z[:, :, : part.n], self.mean, call.precision, add=True)
            self.mean_bias += means.sum(1)
            return
        for at, a1, z, outer in part.outer_parts():
            rows = at.of(g).flatten(1, 2).unsqueeze(1)  # (R, 1, n, DO)
            _product(rows.mT, outer, self.mean.flatten(2).unsqueeze(1), call.precision, add=True)
            _product(rows.mT, a1.unsqueeze(1), self.mean_bias.unsqueeze(1), call.precision, add=True)
            if need_a or need_z:
                t = _product(rows, call.mean.flatten(2).unsqueeze(1), outer, call.precision).view(
                    call.R, -1, call.DI, call.BH
                )
                grad_a1 = _product(
                    rows, call.mean_bias.unsqueeze(1), part.empty(call.R, 1, a1.shape[1], call.DI), call.precision
                )
                grad_a1 = grad_a1.squeeze(1) + (t @ z.unsqueeze(3)).squeeze(3)
                at.of(self.a1).copy_(grad_a1.view(at.of(self.a1).shape))
                grad_z = (a1.unsqueeze(2) @ t).view(call.R, at.draws.stop - at.draws.start, -1, call.BH)
                at.of(self.z).add_(grad_z if self.z.shape[1] > 1 else grad_z.sum(1, keepdim=True))

    def of_scales(self, part: _Part, w: Tensor, grad_kl: Tensor, kl: str, need_a: bool, need_z: bool) -> None:
        """Through the spread, whose sums have the gradient w (R, k, B, DO), and the KL."""
        call = self.call
        grad_x, grad_factors = call.nothing, call.nothing
        if call.spread and not call.LP:
            grad_factors = part.correlate(w)
            if need_a:
                grad_x = part.contract(part.spreads("none")[0], w)
        elif call.spread:
            grad_x = torch.empty_like(self.a1)
        given = part.arguments | {"w": w, "grad_factors": grad_factors, "grad_kl": grad_kl, "KL": kl}
        if need_z or need_a and call.LP:
            tile = TILES[call.wide + "rows"]
            programs = part.scale_draws * part.examples // tile["BB"]
            splits = _splits(programs * call.R, call.DI // tile["BI"])
            parts = part.empty(splits, call.R, part.scale_draws, part.examples, call.BH)
            _launch(call.wide + "rows", (programs, splits, call.R), **given, rho_t=_pairs(call.rho.mT), mean_t=_pairs(call.mean.mT) if kl == "sampled" else call.nothing,
                    grad_x=grad_x, grad_z=parts)  # fmt: skip
            parts = parts.sum(0)
            self.z += parts if self.z.shape[1] > 1 else parts.sum(1, keepdim=True)
        if call.spread and need_a:
            self.a1 += grad_x if not call.squared else 2 * part.a1 * grad_x
        tile = TILES[call.wide + "weights"]
        programs = call.DO // tile["BO"] * (call.DI // tile["BI"])
        splits = _splits(programs * call.R, part.scale_draws * part.examples // tile["BB"])
        shape = (splits, *call.rho.shape)
        rho, rho_bias = part.empty(*shape), part.empty(*shape[:-1])
        mean, mean_bias = (part.empty(*shape), part.empty(*shape[:-1])) if kl == "sampled" else 2 * [call.nothing]
        _launch(call.wide + "weights", (programs, splits, call.R), **given, z_t=_pairs(part.z.mT), grad_rho=rho, grad_rho_bias=rho_bias, grad_mean=mean,
                grad_mean_bias=mean_bias)  # fmt: skip
        self.rho += rho.sum(0)
        self.rho_bias += rho_bias.sum(0)
        if kl == "sampled":
            self.mean += mean.sum(0)
            self.mean_bias += mean_bias.sum(0)


def linear_backward(
    grad_y: Tensor, grad_variance: Tensor, grad_kl: Tensor, a: Tensor, z: Tensor, weight: Tensor, bias: Tensor,
    eps: Tensor | None, seed: Tensor | None, draws: int, noise: str, kl: str, floor: float, prior_scale: float, stream: int,
    precision: str, need_a: bool, need_z: bool, variance: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The op ``fdn::linear_backward`` on canonical shapes.

    ``variance`` from :func:`linear` spares local noise a pass.
    """
    call = _Call(a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision)
    grad_a = torch.zeros(a.shape if need_a else 0, dtype=torch.float32, device=a.device)
    grad_z = torch.zeros(z.shape if need_z else 0, dtype=torch.float32, device=a.device)
    sums = _Gradients(call)
    with torch.cuda.device_of(a):
        for chunk in call.chunks():
            part = _Part(call, chunk)
            sums.begin(part)
            g = chunk.of(grad_y)
            sums.of_means(part, _padded(g, part.examples, call.DO), need_a, need_z)
            if noise == "local":
                if variance is None:
                    spread = part.spreads("none")[0]
                    spread = part.cut(spread if call.LP else part.contract(spread))
                else:
                    spread = chunk.of(variance)
                w = 0.5 * g.float() * part.eps * spread.rsqrt()
            else:
                w = chunk.of(grad_variance) if noise == "moments" else g
            if call.spread or kl != "none":
                part_kl = part.kl_gradient(grad_kl)
                sums.of_scales(part, _padded(w, part.examples, call.DO), part_kl, kl, need_a, need_z)
            if need_a:
                found = sums.a1[:, :, : part.n, : call.d_in]
                chunk.of(grad_a).add_(found if a.shape[1] > 1 else found.sum(1, keepdim=True))
            if need_z:
                chunk.of(grad_z).add_(sums.z[:, :, : part.n, : call.h])
        if kl == "analytic":
            z1, weighted = (
                _with_one(z, call.BH),
                call.precision_of_prior * grad_kl.double().unsqueeze(3),
            )  # (R, k, B, BH + 1), (R, k, B, 1)
            if need_z:
                grad_z += (weighted * (z1 @ _gram(call).unsqueeze(1)))[..., : call.h].float()
            moment = z1.flatten(1, 2).mT @ (weighted * z1).flatten(1, 2)  # (R, BH + 1, BH + 1)
            rows = torch.cat([call.mean, call.mean_bias.unsqueeze(3)], 3).double() @ moment.unsqueeze(1)
            sums.mean += rows[..., :-1].float()
            sums.mean_bias += rows[..., -1].float()
    keep = (slice(None), slice(call.d_out), slice(call.d_in + 1))
    grad_weight = _join_rows(sums.mean[keep], sums.rho[keep])[..., : call.h]
    grad_bias = _join_rows(sums.mean_bias[keep], sums.rho_bias[keep])
    return grad_a.to(a.dtype), grad_z.to(z.dtype), grad_weight.to(weight.dtype), grad_bias.to(bias.dtype)
