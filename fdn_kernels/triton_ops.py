r"""The layer in Triton: hypernetwork output, sampling, matvec and KL in one pass; the backward recomputes what it needs.

A program owns a tile of examples (BB) and draws (BK) and walks over tiles of outputs (BO) and inputs (BI). The bias is
input number d_in, whose activation is 1. Means and rhos of a tile of weights live in registers only: nothing of size
B x 2P or K x B x P is written. No atomics: sums over programs are written as partial sums and added afterwards, so
results are the same from run to run.

Names: IC (input-conditioned): z is the same for all draws, its weights are computed once for BK draws. LP: z depends on
the draw, BK = 1. Shapes in comments are of tiles; N = BO BI is a tile of weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") == "1"
PROGRAMS = 528  # wanted at once: four for each of an H100's 132 multiprocessors
SCRATCH = 1 << 23  # elements of intermediate results alive at once in the backward (32 MiB)

STRIDES = ("a_r", "a_k", "z_r", "z_k", "w_r", "c_r", "e_r", "e_k", "e_b", "v_r", "v_k", "g_r", "g_k")
SIZES = (
    "draws",
    "examples",
    "d_in",
    "d_out",
    "k_first",
    "k_last",
    "b_first",
    "b_last",
    "kl_draws",
    "noise_stream",
    "h",
)


def _kernel(function):
    """One compiled kernel for all sizes: integers and alignment are not compiled in."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    runtime = [name for name in names if name not in function.__annotations__]  # the others are tl.constexpr
    sizes = [name for name in runtime if name in STRIDES + SIZES]
    return triton.jit(function, do_not_specialize=sizes, do_not_specialize_on_alignment=runtime)


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


@triton.jit
def _normals(seed, index, example, k0, stream, BK: tl.constexpr):
    """Noise of draws k0 .. k0 + BK: counters (X, 1, Y) give (X, BK, Y).

    BK is 1 or a multiple of 4, then k0 is one too.
    """
    if BK == 1:
        group = (index.to(tl.int32) * 0 + k0 // 4).to(tl.uint32)  # (X, 1, Y)
        x0, x1, x2, x3 = tl.philox(seed, index, example, group, stream)
        lane = k0 % 4
        cos, sin = _normal_pair(tl.where(lane < 2, x0, x2), tl.where(lane < 2, x1, x3))
        return tl.where(lane % 2 == 0, cos, sin)
    else:
        groups = k0 // 4 + tl.arange(0, BK // 4)
        group = index * 0 + groups[None, :, None].to(tl.uint32)  # (X, BK / 4, Y)
        x0, x1, x2, x3 = tl.philox(seed, index + group * 0, example + group * 0, group, stream)
        n0, n1 = _normal_pair(x0, x1)
        n2, n3 = _normal_pair(x2, x3)
        n = tl.join(tl.join(n0, n2), tl.join(n1, n3))  # (X, BK / 4, Y, 2, 2)
        n = tl.permute(tl.reshape(n, (n0.shape[0], n0.shape[1], n0.shape[2], 4)), (0, 1, 3, 2))
        return tl.reshape(n, (n0.shape[0], BK, n0.shape[2]))


# -- a tile of weights -------------------------------------------------------------------------------------------------


@triton.jit
def _weight_rows(o0, i0, d_in, d_out, BO: tl.constexpr, BI: tl.constexpr):
    """Rows of the means and of the rhos in the hypernetwork's output, index of the parameter, and which exist.

    (N,) each.
    """
    n = tl.arange(0, BO * BI)
    o, i = o0 + n // BI, i0 + n % BI
    is_weight = i < d_in
    exists = (o < d_out) & (i <= d_in)
    n_weights = d_out * d_in
    index = tl.where(is_weight, o * d_in + i, n_weights + o)
    mean_row = tl.where(is_weight, index, n_weights + index)  # weight means, weight rhos, bias means, bias rhos
    rho_row = mean_row + tl.where(is_weight, n_weights, d_out)
    return mean_row, rho_row, index, exists


@triton.jit
def _columns(source, rows, exists, j0, h):
    """Columns j0 .. j0 + 16 of rows of a matrix of width h, (rows, 16), zero where they do not exist."""
    j = j0 + tl.arange(0, 16)
    mask = exists[:, None] & (j < h)[None, :]
    return tl.load(source + rows[:, None] * h + j[None, :], mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _affine(z, b_exists, weight, bias, rows, exists, h, PRECISION: tl.constexpr, BB: tl.constexpr):
    """Outputs ``rows`` of the hypernetwork for a tile of examples, (BB, N).

    16 hidden units at a time save registers.
    """
    c = tl.load(bias + rows, mask=exists, other=0.0).to(tl.float32)
    out = tl.zeros((BB, rows.shape[0]), tl.float32) + c[None, :]
    for j0 in range(0, h, 16):  # h known at run time only: an unrolled loop spills registers
        u = _columns(weight, rows, exists, j0, h)
        out = tl.dot(_columns(z, tl.arange(0, BB), b_exists, j0, h), tl.trans(u), out, input_precision=PRECISION)
    return out


@triton.jit
def _softplus(x, FAST: tl.constexpr):
    """log(1 + exp(x)) and its derivative."""
    e = tl.exp(-tl.abs(x))
    if FAST:  # the hardware's logarithm; the interpreter has no PTX
        log = 0.6931471805599453 * tl.inline_asm_elementwise(
            "lg2.approx.f32 $0, $1;", "=f,f", [1.0 + e], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        log = tl.log(1.0 + e)
    series = e * (1.0 + e * (-0.5 + e * (1.0 / 3 + e * (-0.25 + e * (0.2 - e * (1.0 / 6))))))
    log1p = tl.where(e < 0.1, series, log)
    return tl.maximum(x, 0.0) + log1p, tl.where(x >= 0, 1.0, e) / (1.0 + e)


@triton.jit
def _place(tile, k_first, k_last, b_first, b_last, BB: tl.constexpr, BK: tl.constexpr):
    """A program's first draw, its examples (BB,), which draws and examples exist, and the first of both in 64 bits."""
    n_b = tl.cdiv(b_last - b_first, BB)
    k0, b0 = k_first + (tile // n_b) * BK, b_first + (tile % n_b) * BB
    b = b0 + tl.arange(0, BB)
    return k0, b, k0 + tl.arange(0, BK) < k_last, b < b_last, k0.to(tl.int64), b0.to(tl.int64)


@triton.jit
def _load_inputs(a, a_k, k_exists, b_exists, i, d_in, BB: tl.constexpr, BK: tl.constexpr):
    """Activations (BB, BK, BI) from the tile's first one on; input d_in is the bias's 1."""
    mask = b_exists[:, None, None] & k_exists[None, :, None] & (i < d_in)[None, None, :]
    rows = tl.arange(0, BB)[:, None, None] * d_in + tl.arange(0, BK)[None, :, None] * a_k
    tile = tl.load(a + rows + i[None, None, :], mask=mask, other=0.0).to(tl.float32)
    return tl.where((i == d_in)[None, None, :], 1.0, tile)


@triton.jit
def _output_tile(per_draw, k_exists, b_exists, o, d_out, BB: tl.constexpr, BK: tl.constexpr):
    """Offsets and mask of (BB, BK, BO) in (draws, examples, d_out), from the tile's first output on."""
    mask = b_exists[:, None, None] & k_exists[None, :, None] & (o < d_out)[None, None, :]
    rows = tl.arange(0, BB)[:, None, None] * d_out + tl.arange(0, BK)[None, :, None] * per_draw
    return rows + o[None, None, :], mask


@triton.jit
def _load_kl_gradient(grad_kl, k0, examples, kl_draws, k_exists, b_exists, BB: tl.constexpr, BK: tl.constexpr):
    """(BB, BK), from the tile's first one on; zero beyond the draws that have a KL."""
    k = tl.arange(0, BK)
    mask = b_exists[:, None] & (k_exists & (k0 + k < kl_draws))[None, :]
    return tl.load(grad_kl + k[None, :] * examples + tl.arange(0, BB)[:, None], mask=mask, other=0.0)


@triton.jit
def _weight_noise(eps, seed, index, exists, k0, b, e_k, e_b, stream, draws, examples, NOISE: tl.constexpr,
                  EPS: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """Noise of a tile of weights: (1, BK, N) shared, (BB, BK, N) independent."""
    b = tl.arange(0, 1) if NOISE == "shared" else b
    if EPS:
        k = k0 + tl.arange(0, BK)
        mask = exists[None, None, :] & (k < draws)[None, :, None] & (b < examples)[:, None, None]
        rows = k.to(tl.int64)[None, :, None] * e_k + b.to(tl.int64)[:, None, None] * e_b
        return tl.load(eps + rows + index[None, None, :], mask=mask, other=0.0).to(tl.float32)
    counter = index.to(tl.uint32)[None, None, :] + b.to(tl.uint32)[:, None, None] * 0
    example = index.to(tl.uint32)[None, None, :] * 0 + b.to(tl.uint32)[:, None, None]
    return _normals(seed, counter, example, k0, stream, BK)


@triton.jit
def _output_noise(eps, seed, k0, b, o, e_k, e_b, stream, draws, examples, d_out, EPS: tl.constexpr, BK: tl.constexpr):
    """Noise of a tile of outputs, drawn after the matvec (local): (BB, BK, BO)."""
    if EPS:
        k = k0 + tl.arange(0, BK)
        mask = (b < examples)[:, None, None] & (k < draws)[None, :, None] & (o < d_out)[None, None, :]
        rows = k.to(tl.int64)[None, :, None] * e_k + b.to(tl.int64)[:, None, None] * e_b
        return tl.load(eps + rows + o[None, None, :], mask=mask, other=0.0).to(tl.float32)
    counter = o.to(tl.uint32)[None, None, :] + b.to(tl.uint32)[:, None, None] * 0
    example = o.to(tl.uint32)[None, None, :] * 0 + b.to(tl.uint32)[:, None, None]
    return _normals(seed, counter, example, k0, stream, BK)


# -- forward -----------------------------------------------------------------------------------------------------------


@_kernel
def _forward_kernel(
    a, z, weight, bias, eps, seeds,  # inputs
    y, variance, kl,  # outputs; for OUTPUT "grad_variance" y is the gradient of y, read
    a_r, a_k, z_r, z_k, w_r, c_r, e_r, e_k, e_b, v_r, v_k,
    draws, examples, d_in, d_out, k_first, k_last, b_first, b_last, kl_draws, floor, inverse_prior, noise_stream, h,
    NOISE: tl.constexpr, KL: tl.constexpr, OUTPUT: tl.constexpr, LP: tl.constexpr, EPS: tl.constexpr,
    PRECISION: tl.constexpr, FAST: tl.constexpr,
    BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """y, its variance, or the gradient of that variance; and partial sums of the KL over the program's outputs."""
    tile, split, r = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k0, b, k_exists, b_exists, first_k, first_b = _place(tile, k_first, k_last, b_first, b_last, BB, BK)
    a += r * a_r + first_k * a_k + first_b * d_in
    z += r * z_r + first_k * z_k + first_b * h
    weight += r * w_r
    bias += r * c_r
    eps += r * e_r
    row = (r * draws + first_k) * examples + first_b
    y += row * d_out
    if OUTPUT == "grad_variance":
        variance += r * v_r + (first_k - k_first) * v_k + (first_b - b_first) * d_out
    else:
        variance += row * d_out
    seed = tl.load(seeds + r)

    kl_sum = tl.zeros((BB, BK), tl.float32)
    owns_kl = k0 < kl_draws  # for IC the closed form belongs to the programs of the first draws
    for o0 in range(split * BO, d_out, tl.num_programs(1) * BO):
        o = o0 + tl.arange(0, BO)
        mean_sum = tl.zeros((BB, BK, BO), tl.float32)
        variance_sum = tl.zeros((BB, BK, BO), tl.float32)
        for i0 in range(0, d_in + 1, BI):
            i = i0 + tl.arange(0, BI)
            mean_row, rho_row, index, exists = _weight_rows(o0, i0, d_in, d_out, BO, BI)
            inputs = _load_inputs(a, a_k, k_exists, b_exists, i, d_in, BB, BK)  # (BB, BK, BI)
            if OUTPUT != "grad_variance":
                mean = _affine(z, b_exists, weight, bias, mean_row, exists, h, PRECISION, BB)  # (BB, N)
            if NOISE != "none" or KL != "none":
                rho = _affine(z, b_exists, weight, bias, rho_row, exists, h, PRECISION, BB)
                scale, _ = _softplus(rho, FAST)
                scale += floor  # (BB, N)
            if NOISE == "shared" or NOISE == "independent":
                noise = _weight_noise(
                    eps, seed, index, exists, k0, b, e_k, e_b, noise_stream, draws, b_last, NOISE, EPS, BK
                )
                theta = mean[:, None, :] + scale[:, None, :] * noise  # (BB, BK, N)
                mean_sum += tl.sum(tl.reshape(theta, (BB, BK, BO, BI)) * inputs[:, :, None, :], axis=3)
            elif LP:
                if OUTPUT != "grad_variance":
                    mean_sum += tl.sum(tl.reshape(mean, (BB, BK, BO, BI)) * inputs[:, :, None, :], axis=3)
                if NOISE != "none":
                    product = tl.reshape(scale, (BB, BK, BO, BI)) * inputs[:, :, None, :]
                    variance_sum += tl.sum(product * product, axis=3)
            else:
                if OUTPUT != "grad_variance":
                    matrix = tl.permute(tl.reshape(mean, (BB, BO, BI)), (0, 2, 1))  # (BB, BI, BO)
                    mean_sum = tl.dot(inputs, matrix, mean_sum, input_precision=PRECISION)
                if NOISE != "none":
                    matrix = tl.permute(tl.reshape(scale * scale, (BB, BO, BI)), (0, 2, 1))
                    variance_sum = tl.dot(inputs * inputs, matrix, variance_sum, input_precision=PRECISION)
            if KL == "analytic":
                if owns_kl:
                    squares = (mean * mean + scale * scale) * (inverse_prior * inverse_prior)
                    terms = 0.5 * squares - 0.5 - tl.log(scale * inverse_prior)
                    terms = tl.sum(tl.where(exists[None, :], terms, 0.0), axis=1)
                    kl_sum += terms[:, None]
            elif KL == "sampled":
                ratio = theta * inverse_prior
                terms = 0.5 * (ratio * ratio - noise * noise) - tl.log(scale * inverse_prior)[:, None, :]
                kl_sum += tl.sum(tl.where(exists[None, None, :], terms, 0.0), axis=2)
        offsets, mask = _output_tile(examples * d_out, k_exists, b_exists, o, d_out, BB, BK)
        if NOISE == "local":
            noise = _output_noise(eps, seed, k0, b, o, e_k, e_b, noise_stream, draws, b_last, d_out, EPS, BK)
            if OUTPUT == "grad_variance":
                gradient = tl.load(y + offsets, mask=mask, other=0.0).to(tl.float32)
                scratch, _ = _output_tile(v_k, k_exists, b_exists, o, d_out, BB, BK)
                tl.store(variance + scratch, 0.5 * gradient * noise / tl.sqrt(variance_sum), mask=mask)
            else:
                mean_sum += tl.sqrt(variance_sum) * noise
        if OUTPUT != "grad_variance":
            tl.store(y + offsets, mean_sum.to(y.dtype.element_ty), mask=mask)
        if OUTPUT == "moments":
            tl.store(variance + offsets, variance_sum.to(variance.dtype.element_ty), mask=mask)
    if KL != "none":
        if owns_kl:
            kl += ((split * tl.num_programs(2) + r) * kl_draws + first_k) * examples + first_b
            k_in = tl.arange(0, BK)
            mask = b_exists[:, None] & (k0 + k_in < kl_draws)[None, :]
            tl.store(kl + k_in[None, :] * examples + tl.arange(0, BB)[:, None], kl_sum, mask=mask)


# -- backward ----------------------------------------------------------------------------------------------------------


@triton.jit
def _outer(g, x, DOT: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, N: tl.constexpr):
    """Sum over draws of g x^T for each example: (BB, BK, BO) and (BB, BK, BI) to (BB, N)."""
    if DOT:
        return tl.reshape(tl.dot(tl.permute(g, (0, 2, 1)), x, input_precision=PRECISION), (BB, N))
    return tl.sum(tl.reshape(g[:, :, :, None] * x[:, :, None, :], (BB, BK, N)), axis=1)


@triton.jit
def _times_outputs(g, matrix, total, DOT: tl.constexpr, PRECISION: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr,
                   BO: tl.constexpr, BI: tl.constexpr):  # fmt: skip
    """total + g matrix for each example: (BB, BK, BO) and (BB, N) to (BB, BK, BI)."""
    if DOT:
        return tl.dot(g, tl.reshape(matrix, (BB, BO, BI)), total, input_precision=PRECISION)
    return total + tl.sum(tl.reshape(matrix, (BB, 1, BO, BI)) * g[:, :, :, None], axis=2)


@triton.jit
def _theta_gradient(y_gradient, inputs, theta, kl_gradient, precision, KL: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr,
                    N: tl.constexpr):  # fmt: skip
    """Gradient of the sampled weights (BB, BK, N); ``theta`` is read for the sampled KL only."""
    gradient = tl.reshape(y_gradient[:, :, :, None] * inputs[:, :, None, :], (BB, BK, N))
    if KL == "sampled":
        gradient += kl_gradient[:, :, None] * theta * precision
    return gradient


@triton.jit
def _load_gradients(grad_y, grad_variance, y_k, v_k, k_exists, b_exists, o, d_out, NOISE: tl.constexpr, BB: tl.constexpr,
                    BK: tl.constexpr):  # fmt: skip
    """Gradients of y and of its variance, (BB, BK, BO), from the tile's first ones on."""
    offsets, mask = _output_tile(y_k, k_exists, b_exists, o, d_out, BB, BK)
    first = tl.load(grad_y + offsets, mask=mask, other=0.0).to(tl.float32)
    if NOISE == "local" or NOISE == "moments":
        offsets, _ = _output_tile(v_k, k_exists, b_exists, o, d_out, BB, BK)
        return first, tl.load(grad_variance + offsets, mask=mask, other=0.0).to(tl.float32)
    return first, first


@_kernel
def _inputs_kernel(
    a, z, weight, bias, eps, seeds, grad_y, grad_variance,  # inputs
    grad_a,  # output
    a_r, a_k, z_r, z_k, w_r, c_r, e_r, e_k, e_b, v_r, v_k, g_r, g_k,
    draws, examples, d_in, d_out, k_first, k_last, b_first, b_last, floor, noise_stream, h,
    NOISE: tl.constexpr, LP: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
    BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """Gradient of a: a program owns examples, draws and inputs, and walks over the outputs."""
    SAMPLED: tl.constexpr = NOISE == "shared" or NOISE == "independent"
    DOT: tl.constexpr = not LP and not SAMPLED
    tile, split, r = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    k0, b, k_exists, b_exists, first_k, first_b = _place(tile, k_first, k_last, b_first, b_last, BB, BK)
    a += r * a_r + first_k * a_k + first_b * d_in
    z += r * z_r + first_k * z_k + first_b * h
    weight += r * w_r
    bias += r * c_r
    eps += r * e_r
    seed = tl.load(seeds + r)
    grad_y += ((r * draws + first_k) * examples + first_b) * d_out
    grad_variance += r * v_r + (first_k - k_first) * v_k + (first_b - b_first) * d_out
    grad_a += r * g_r + (first_k - k_first) * g_k + (first_b - b_first) * d_in

    for i0 in range(split * BI, d_in, tl.num_programs(1) * BI):
        i = i0 + tl.arange(0, BI)
        mean_part = tl.zeros((BB, BK, BI), tl.float32)
        variance_part = tl.zeros((BB, BK, BI), tl.float32)
        for o0 in range(0, d_out, BO):
            o = o0 + tl.arange(0, BO)
            mean_row, rho_row, index, exists = _weight_rows(o0, i0, d_in, d_out, BO, BI)
            y_gradient, variance_gradient = _load_gradients(
                grad_y, grad_variance, examples * d_out, v_k, k_exists, b_exists, o, d_out, NOISE, BB, BK
            )  # (BB, BK, BO)
            mean = _affine(z, b_exists, weight, bias, mean_row, exists, h, PRECISION, BB)  # (BB, N)
            if SAMPLED:
                scale, _ = _softplus(_affine(z, b_exists, weight, bias, rho_row, exists, h, PRECISION, BB), FAST)
                scale += floor
                noise = _weight_noise(
                    eps, seed, index, exists, k0, b, e_k, e_b, noise_stream, draws, b_last, NOISE, EPS, BK
                )
                theta = tl.reshape(mean[:, None, :] + scale[:, None, :] * noise, (BB, BK, BO, BI))
                mean_part += tl.sum(theta * y_gradient[:, :, :, None], axis=2)
            else:
                mean_part = _times_outputs(y_gradient, mean, mean_part, DOT, PRECISION, BB, BK, BO, BI)
                if NOISE != "none":
                    scale, _ = _softplus(_affine(z, b_exists, weight, bias, rho_row, exists, h, PRECISION, BB), FAST)
                    scale += floor
                    variance_part = _times_outputs(
                        variance_gradient, scale * scale, variance_part, DOT, PRECISION, BB, BK, BO, BI
                    )
        gradient = mean_part
        if NOISE != "none" and not SAMPLED:
            gradient += 2.0 * _load_inputs(a, a_k, k_exists, b_exists, i, d_in, BB, BK) * variance_part
        mask = b_exists[:, None, None] & k_exists[None, :, None] & (i < d_in)[None, None, :]
        rows = tl.arange(0, BB)[:, None, None] * d_in + tl.arange(0, BK)[None, :, None] * g_k
        tl.store(grad_a + rows + i[None, None, :], gradient.to(grad_a.dtype.element_ty), mask=mask)


@_kernel
def _conditioning_kernel(
    a, z, weight, bias, eps, seeds, grad_y, grad_variance, grad_kl,  # inputs
    grad_z,  # output: partial sums
    a_r, a_k, z_r, z_k, w_r, c_r, e_r, e_k, e_b, v_r, v_k,
    draws, examples, d_in, d_out, k_first, k_last, b_first, b_last, kl_draws, floor, inverse_prior, noise_stream, h,
    NOISE: tl.constexpr, KL: tl.constexpr, LP: tl.constexpr, EPS: tl.constexpr, PRECISION: tl.constexpr,
    FAST: tl.constexpr, BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """Gradient of z: a program owns examples, draws and 16 hidden units, and walks over the weights."""
    N: tl.constexpr = BO * BI
    SAMPLED: tl.constexpr = NOISE == "shared" or NOISE == "independent"
    DOT: tl.constexpr = not LP and not SAMPLED
    slices = tl.cdiv(h, 16)  # of hidden units
    tile, r = tl.program_id(0), tl.program_id(2).to(tl.int64)
    split, j0 = tl.program_id(1) // slices, (tl.program_id(1) % slices) * 16
    k0, b, k_exists, b_exists, first_k, first_b = _place(tile, k_first, k_last, b_first, b_last, BB, BK)
    a += r * a_r + first_k * a_k + first_b * d_in
    z += r * z_r + first_k * z_k + first_b * h
    weight += r * w_r
    bias += r * c_r
    eps += r * e_r
    seed = tl.load(seeds + r)
    grad_y += ((r * draws + first_k) * examples + first_b) * d_out
    grad_variance += r * v_r + (first_k - k_first) * v_k + (first_b - b_first) * d_out
    kl_gradient = tl.zeros((BB, BK), tl.float32)
    if KL != "none":
        grad_kl += (r * kl_draws + first_k) * examples + first_b
        kl_gradient = _load_kl_gradient(grad_kl, k0, examples, kl_draws, k_exists, b_exists, BB, BK)
    kl_total = tl.sum(kl_gradient, axis=1)[:, None]  # (BB, 1)
    precision = inverse_prior * inverse_prior

    total = tl.zeros((BB, 16), tl.float32)
    for i0 in range(split * BI, d_in + 1, tl.num_programs(1) // slices * BI):
        inputs = _load_inputs(a, a_k, k_exists, b_exists, i0 + tl.arange(0, BI), d_in, BB, BK)  # (BB, BK, BI)
        for o0 in range(0, d_out, BO):
            mean_row, rho_row, index, exists = _weight_rows(o0, i0, d_in, d_out, BO, BI)
            y_gradient, variance_gradient = _load_gradients(
                grad_y,
                grad_variance,
                examples * d_out,
                v_k,
                k_exists,
                b_exists,
                o0 + tl.arange(0, BO),
                d_out,
                NOISE,
                BB,
                BK,
            )  # (BB, BK, BO)
            if KL != "none":
                mean = _affine(z, b_exists, weight, bias, mean_row, exists, h, PRECISION, BB)  # (BB, N)
            if SAMPLED:
                scale, slope = _softplus(_affine(z, b_exists, weight, bias, rho_row, exists, h, PRECISION, BB), FAST)
                scale += floor
                noise = _weight_noise(
                    eps, seed, index, exists, k0, b, e_k, e_b, noise_stream, draws, b_last, NOISE, EPS, BK
                )
                theta = noise
                if KL == "sampled":
                    theta = mean[:, None, :] + scale[:, None, :] * noise  # (BB, BK, N)
                gradient = _theta_gradient(y_gradient, inputs, theta, kl_gradient, precision, KL, BB, BK, N)
                grad_mean = tl.sum(gradient, axis=1)  # (BB, N)
                grad_scale = tl.sum(gradient * noise, axis=1)
            else:
                grad_mean = _outer(y_gradient, inputs, DOT, PRECISION, BB, BK, N)
            if KL == "analytic":
                grad_mean += kl_total * mean * precision
            total = tl.dot(grad_mean, _columns(weight, mean_row, exists, j0, h), total, input_precision=PRECISION)
            if NOISE != "none" or KL != "none":
                if not SAMPLED:
                    scale, slope = _softplus(
                        _affine(z, b_exists, weight, bias, rho_row, exists, h, PRECISION, BB), FAST
                    )
                    scale += floor
                    grad_scale = tl.zeros((BB, N), tl.float32)
                    if NOISE != "none":
                        grad_scale = 2.0 * scale * _outer(variance_gradient, inputs * inputs, DOT, PRECISION, BB, BK, N)
                if KL == "analytic":
                    grad_scale += kl_total * (scale * precision - 1.0 / scale)
                elif KL == "sampled":
                    grad_scale -= kl_total / scale
                u = _columns(weight, rho_row, exists, j0, h)
                total = tl.dot(grad_scale * slope, u, total, input_precision=PRECISION)
    j = j0 + tl.arange(0, 16)
    n_k = tl.cdiv(k_last - k_first, BK)
    part = (split * tl.num_programs(2) + r) * n_k + (first_k - k_first) // BK  # (splits, R, tiles of draws, B, h)
    grad_z += (part * (b_last - b_first) + first_b - b_first) * h
    mask = b_exists[:, None] & (j < h)[None, :]
    tl.store(grad_z + tl.arange(0, BB)[:, None] * h + j[None, :], total, mask=mask)


@_kernel
def _weights_kernel(
    a, z, weight, bias, eps, seeds, grad_y, grad_variance, grad_kl,  # inputs
    grad_weight, grad_bias,  # outputs: partial sums, added to what is there
    a_r, a_k, z_r, z_k, w_r, c_r, e_r, e_k, e_b, v_r, v_k,
    draws, examples, d_in, d_out, k_first, k_last, b_first, b_last, kl_draws, floor, inverse_prior, noise_stream, h,
    NOISE: tl.constexpr, KL: tl.constexpr, LP: tl.constexpr, EPS: tl.constexpr,
    PART: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
    BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """Gradients of the rows of the hypernetwork's output layer that give means, or rhos (PART).

    A program owns weights, and walks over examples and draws.
    """
    N: tl.constexpr = BO * BI
    SAMPLED: tl.constexpr = NOISE == "shared" or NOISE == "independent"
    DOT: tl.constexpr = not LP and not SAMPLED
    slices = tl.cdiv(h, 16)  # of hidden units
    tile, r = tl.program_id(0), tl.program_id(2).to(tl.int64)
    split, j0 = tl.program_id(1) // slices, (tl.program_id(1) % slices) * 16
    n_i = tl.cdiv(d_in + 1, BI)
    o0, i0 = (tile // n_i) * BO, (tile % n_i) * BI
    o, i = o0 + tl.arange(0, BO), i0 + tl.arange(0, BI)
    mean_row, rho_row, index, exists = _weight_rows(o0, i0, d_in, d_out, BO, BI)
    a += r * a_r
    weight += r * w_r
    bias += r * c_r
    eps += r * e_r
    seed = tl.load(seeds + r)
    z += r * z_r
    precision = inverse_prior * inverse_prior

    u_sum = tl.zeros((N, 16), tl.float32)
    c_sum = tl.zeros((N,), tl.float32)
    n_b = tl.cdiv(b_last - b_first, BB)
    n_rows = n_b * (k_last - k_first) if LP else n_b  # tiles that share a z
    for row in range(split, n_rows, tl.num_programs(1) // slices):
        b0 = b_first + (row % n_b) * BB
        b = b0 + tl.arange(0, BB)
        b_exists, first_b = b < b_last, b0.to(tl.int64)
        k_start = k_first + row // n_b if LP else k_first
        k_stop = k_start + 1 if LP else k_last
        z_tile = z + (k_start.to(tl.int64) * z_k if LP else 0) + first_b * h
        if (PART == "mean" and KL != "none") or KL == "sampled":
            mean = _affine(z_tile, b_exists, weight, bias, mean_row, exists, h, PRECISION, BB)  # (BB, N)
        if PART == "rho" or KL == "sampled":
            rho = _affine(z_tile, b_exists, weight, bias, rho_row, exists, h, PRECISION, BB)
            scale, slope = _softplus(rho, FAST)
            scale += floor
        gradient = tl.zeros((BB, N), tl.float32)
        kl_total = tl.zeros((BB, 1), tl.float32)
        for k0 in range(k_start, k_stop, BK):
            k_exists, first_k = k0 + tl.arange(0, BK) < k_last, k0 + 0 * r  # 64 bits
            inputs = _load_inputs(
                a + first_k * a_k + first_b * d_in, a_k, k_exists, b_exists, i, d_in, BB, BK
            )  # (BB, BK, BI)
            y_gradient, variance_gradient = _load_gradients(
                grad_y + ((r * draws + first_k) * examples + first_b) * d_out,
                grad_variance + r * v_r + (first_k - k_first) * v_k + (first_b - b_first) * d_out,
                examples * d_out, v_k, k_exists, b_exists, o, d_out, NOISE, BB, BK,
            )  # fmt: skip
            kl_gradient = tl.zeros((BB, BK), tl.float32)
            if KL != "none":
                first = grad_kl + (r * kl_draws + first_k) * examples + first_b
                kl_gradient = _load_kl_gradient(first, k0, examples, kl_draws, k_exists, b_exists, BB, BK)
                kl_total += tl.sum(kl_gradient, axis=1)[:, None]
            if SAMPLED and (PART == "rho" or KL == "sampled"):
                noise = _weight_noise(
                    eps, seed, index, exists, k0, b, e_k, e_b, noise_stream, draws, b_last, NOISE, EPS, BK
                )
                theta = noise
                if KL == "sampled":
                    theta = mean[:, None, :] + scale[:, None, :] * noise  # (BB, BK, N)
                more = _theta_gradient(y_gradient, inputs, theta, kl_gradient, precision, KL, BB, BK, N)
                gradient += tl.sum(more * noise if PART == "rho" else more, axis=1)
            elif PART == "mean":
                gradient += _outer(y_gradient, inputs, DOT, PRECISION, BB, BK, N)
            elif NOISE != "none":
                gradient += _outer(variance_gradient, inputs * inputs, DOT, PRECISION, BB, BK, N)
        if PART == "mean":
            if KL == "analytic":
                gradient += kl_total * mean * precision
        else:
            if not SAMPLED:
                gradient *= 2.0 * scale
            if KL == "analytic":
                gradient += kl_total * (scale * precision - 1.0 / scale)
            elif KL == "sampled":
                gradient -= kl_total / scale
            gradient *= slope
        units = _columns(z_tile, tl.arange(0, BB), b_exists, j0, h)  # (BB, 16)
        u_sum = tl.dot(tl.trans(gradient), units, u_sum, input_precision=PRECISION)
        c_sum += tl.sum(gradient, axis=0)
    part = (split * tl.num_programs(2) + r) * (2 * d_out * (d_in + 1))  # (splits, R, 2P, h)
    rows = mean_row if PART == "mean" else rho_row
    j = j0 + tl.arange(0, 16)
    at, mask = grad_weight + part * h + rows[:, None] * h + j[None, :], exists[:, None] & (j < h)[None, :]
    tl.store(at, tl.load(at, mask=mask, other=0.0) + u_sum, mask=mask)
    at, mask = grad_bias + part + rows, exists & (j0 == 0)
    tl.store(at, tl.load(at, mask=mask, other=0.0) + c_sum, mask=mask)


# -- launchers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """Sizes of a program's tile; each fits into registers (see :mod:`fdn_kernels.aot`)."""

    BB: int  # examples
    BK: int  # draws; 1 for LP, a multiple of 4 for IC
    BO: int  # outputs
    BI: int  # inputs


OPTIONS = {
    "num_warps": 8,
    "num_stages": 1,
    "maxnreg": 255,
}  # with a limit of 255 ptxas does not spill to stay below 128
# (kernel, form) -> tile; a form is the conditioning and whether weights are sampled
TILES = {
    ("forward", "IC local"): Tile(8, 16, 8, 16),
    ("forward", "IC sampled"): Tile(32, 8, 2, 8),
    ("forward", "LP local"): Tile(64, 1, 2, 16),
    ("forward", "LP sampled"): Tile(64, 1, 2, 16),
    ("inputs", "IC local"): Tile(8, 16, 16, 8),
    ("inputs", "IC sampled"): Tile(32, 8, 2, 8),
    ("inputs", "LP local"): Tile(64, 1, 2, 16),
    ("inputs", "LP sampled"): Tile(64, 1, 2, 16),
    ("conditioning", "IC local"): Tile(16, 16, 8, 8),
    ("conditioning", "IC sampled"): Tile(16, 8, 2, 8),
    ("conditioning", "LP local"): Tile(32, 1, 2, 16),
    ("conditioning", "LP sampled"): Tile(32, 1, 2, 16),
    ("weights", "IC local"): Tile(16, 16, 8, 8),
    ("weights", "IC sampled"): Tile(16, 8, 2, 8),
    ("weights", "LP local"): Tile(32, 1, 2, 16),
    ("weights", "LP sampled"): Tile(64, 1, 1, 16),
}
KERNELS = {"forward": _forward_kernel, "inputs": _inputs_kernel, "conditioning": _conditioning_kernel,
           "weights": _weights_kernel}  # fmt: skip


def form(noise: str, per_draw: bool) -> str:
    """Which kind of tile a call needs.

    ``"IC"`` or ``"LP"``, ``"local"`` (also the mean and the moments) or ``"sampled"``.
    """
    return f"{'LP' if per_draw else 'IC'} {'sampled' if noise in ('shared', 'independent') else 'local'}"


def _dense(t: Tensor) -> Tensor:
    """t with its last two dimensions contiguous."""
    return t if t.stride()[-2:] == (t.shape[-1], 1) else t.contiguous()


class _Call:
    """What the kernels of one call share: arguments by name, sizes, and how to launch."""

    def __init__(self, a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision):
        self.a, self.z, self.weight, self.bias = _dense(a), _dense(z), _dense(weight), bias
        if bias.stride(-1) != 1:
            self.bias = bias.contiguous()
        self.replicates, _, self.examples, self.d_in = a.shape
        self.draws, self.h = draws, z.shape[-1]
        self.d_out = weight.shape[-2] // (2 * (self.d_in + 1))
        self.per_draw = z.shape[1] > 1 or draws == 1  # LP; one draw needs no second kind
        self.noise, self.kl = noise, kl
        self.kl_draws = draws if self.per_draw or kl == "sampled" else 1
        self.form = form(noise, self.per_draw)
        a_k = self.a.stride(1) if a.shape[1] > 1 else 0
        reach = max(t.BK for t in TILES.values()) * max(self.examples * max(self.d_in, self.d_out), a_k)
        if reach >= 2**31 or self.replicates >= 2**16:
            raise ValueError(
                f"the Triton kernel counts examples times width in 31 bits, {2**31 // 16} at most, and {2**16 - 1} replicates; "
                f"given {self.examples} examples, widths {self.d_in} and {self.d_out}, {self.replicates} replicates: split the batch"
            )
        given = eps is not None and noise not in ("none", "moments")
        eps = _dense(eps) if given else self.a  # a stand-in that is never read
        e = eps.stride() if given else (0, 0, 0)
        if seed is None:
            seed = torch.zeros(self.replicates, dtype=torch.int64, device=a.device)
        self.arguments = {
            "a": self.a, "z": self.z, "weight": self.weight, "bias": self.bias, "eps": eps, "seeds": seed.contiguous(),
            "a_r": self.a.stride(0), "a_k": a_k,
            "z_r": self.z.stride(0), "z_k": self.z.stride(1) if z.shape[1] > 1 else 0,
            "w_r": self.weight.stride(0), "c_r": self.bias.stride(0), "e_r": e[0], "e_k": e[1], "e_b": e[2],
            "draws": draws, "examples": self.examples, "d_in": self.d_in, "d_out": self.d_out, "kl_draws": self.kl_draws,
            "floor": floor, "inverse_prior": 1 / prior_scale,
            "noise_stream": stream - (stream >> 31 << 32),  # its 32 bits as a signed number
            "NOISE": noise, "KL": kl, "LP": self.per_draw, "EPS": given, "PRECISION": precision, "FAST": not INTERPRETED,
            "h": self.h,
        }  # fmt: skip

    def tile(self, kernel: str) -> Tile:
        return TILES[kernel, self.form]

    def splits(self, programs: int, most: int) -> int:
        """Into how many parts a program's walk is cut, to keep the device busy where there are few programs."""
        return max(1, min(PROGRAMS // max(1, programs * self.replicates), most))

    def launch(self, kernel: str, programs: int, splits: int, chunk: tuple[int, int, int, int], **more) -> None:
        if programs * self.replicates == 0:  # no examples
            return
        function, tile = KERNELS[kernel], vars(self.tile(kernel))
        arguments = self.arguments | tile | dict(zip(("k_first", "k_last", "b_first", "b_last"), chunk)) | more
        arguments = {name: arguments[name] for name in function.arg_names}
        function[programs, splits, self.replicates](**arguments, **OPTIONS)

    def forward(self, chunk: tuple[int, int, int, int], output: str, y: Tensor, variance: Tensor, v: tuple) -> Tensor:
        """Launch the forward kernel, which writes y or variance; returns the KL, (R, k, B) or (0,)."""
        k_first, k_last, b_first, b_last = chunk
        tile = self.tile("forward")
        programs = triton.cdiv(k_last - k_first, tile.BK) * triton.cdiv(b_last - b_first, tile.BB)
        splits = self.splits(programs, triton.cdiv(self.d_out, tile.BO))
        kl = "none" if output == "grad_variance" else self.kl
        shape = (splits, self.replicates, self.kl_draws, self.examples) if kl != "none" else (splits, 0)
        parts = y.new_empty(shape, dtype=torch.float32)
        self.launch("forward", programs, splits, chunk, y=y, variance=variance, kl=parts, v_r=v[0], v_k=v[1],
                    KL=kl, OUTPUT=output)  # fmt: skip
        return parts[0] if splits == 1 else parts.sum(0)


def linear(
    a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None, seed: Tensor | None, draws: int, noise: str,
    kl: str, floor: float, prior_scale: float, stream: int, precision: str,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The op ``fdn::linear`` on canonical shapes; see :mod:`fdn_kernels.ops`."""
    call = _Call(a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision)
    shape = (call.replicates, draws, call.examples, call.d_out)
    y = a.new_empty(shape)
    variance = a.new_empty(shape if noise == "moments" else 0)
    with torch.cuda.device_of(a):
        term = call.forward((0, draws, 0, call.examples), "moments" if noise == "moments" else "y", y, variance, (0, 0))
    return y, variance, term


def linear_backward(
    grad_y: Tensor, grad_variance: Tensor, grad_kl: Tensor, a: Tensor, z: Tensor, weight: Tensor, bias: Tensor,
    eps: Tensor | None, seed: Tensor | None, draws: int, noise: str, kl: str, floor: float, prior_scale: float, stream: int,
    precision: str, need_a: bool, need_z: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The op ``fdn::linear_backward`` on canonical shapes.

    Chunks of draws and examples whose scratch fits ``SCRATCH``.
    """
    call = _Call(a, z, weight, bias, eps, seed, draws, noise, kl, floor, prior_scale, stream, precision)
    R, B, d_in, d_out, h = call.replicates, call.examples, call.d_in, call.d_out, call.h
    grad_y, grad_variance, grad_kl = grad_y.contiguous(), grad_variance.contiguous(), grad_kl.contiguous().float()
    shared_a = a.shape[1] < draws
    single = {"dtype": torch.float32, "device": a.device}
    grad_a = torch.zeros(a.shape if need_a else 0, dtype=single["dtype"] if shared_a else a.dtype, device=a.device)
    accumulated = z.shape[1] == 1  # over tiles and chunks of draws
    grad_z = torch.zeros(z.shape if need_z else 0, dtype=single["dtype"] if accumulated else z.dtype, device=a.device)
    grad_weight, grad_bias = torch.zeros(weight.shape, **single), torch.zeros(bias.shape, **single)
    inputs, conditioning, weights = call.tile("inputs"), call.tile("conditioning"), call.tile("weights")
    slices = triton.cdiv(h, 16)
    per_pair = (noise == "local") * d_out + (need_a and shared_a) * d_in + need_z * triton.cdiv(h, conditioning.BK)
    with torch.cuda.device_of(a):
        for chunk in _chunks(draws, B, max(1, SCRATCH // max(1, R * per_pair))):
            k_first, k_last, b_first, b_last = chunk
            n_k, n_b = k_last - k_first, b_last - b_first
            if noise == "local":
                spread = grad_y.new_empty((R, n_k, n_b, d_out), dtype=torch.float32)
                call.forward(chunk, "grad_variance", grad_y, spread, spread.stride()[:2])
            elif noise == "moments":
                spread = grad_variance[:, k_first:, b_first:]
            else:
                spread = grad_y  # never read
            gradients = {"grad_y": grad_y, "grad_variance": spread, "grad_kl": grad_kl,
                         "v_r": spread.stride(0), "v_k": spread.stride(1)}  # fmt: skip
            if need_a:
                part = torch.empty((R, n_k, n_b, d_in), **single) if shared_a else grad_a[:, k_first:, b_first:]
                programs = triton.cdiv(n_k, inputs.BK) * triton.cdiv(n_b, inputs.BB)
                splits = call.splits(programs, triton.cdiv(d_in, inputs.BI))
                call.launch(
                    "inputs", programs, splits, chunk, **gradients, grad_a=part, g_r=part.stride(0), g_k=part.stride(1)
                )
                if shared_a:
                    grad_a[:, 0, b_first:b_last] += part.sum(1)
            if need_z:
                n_tiles = triton.cdiv(n_k, conditioning.BK)
                programs = n_tiles * triton.cdiv(n_b, conditioning.BB)
                splits = call.splits(programs * slices, triton.cdiv(d_in + 1, conditioning.BI))
                part = torch.empty((splits, R, n_tiles, n_b, h), **single)
                call.launch("conditioning", programs, splits * slices, chunk, **gradients, grad_z=part)
                if accumulated:
                    grad_z[:, 0, b_first:b_last] += part.sum((0, 2))
                else:
                    grad_z[:, k_first:k_last, b_first:b_last] = part.sum(0)
            programs = triton.cdiv(d_out, weights.BO) * triton.cdiv(d_in + 1, weights.BI)
            rows = triton.cdiv(n_b, weights.BB) * (n_k if call.per_draw else 1)
            splits = call.splits(programs * slices, rows)
            part_weight, part_bias = grad_weight, grad_bias  # the kernel adds to what is there
            if splits > 1:
                part_weight, part_bias = (t.new_zeros((splits, *t.shape)) for t in (grad_weight, grad_bias))
            for part in ("mean", "rho"):
                call.launch("weights", programs, splits * slices, chunk, **gradients, PART=part,
                            grad_weight=part_weight, grad_bias=part_bias)  # fmt: skip
            if splits > 1:
                grad_weight += part_weight.sum(0)
                grad_bias += part_bias.sum(0)
    return grad_a.to(a.dtype), grad_z.to(z.dtype), grad_weight.to(weight.dtype), grad_bias.to(bias.dtype)


def _chunks(draws: int, examples: int, pairs: int) -> list[tuple[int, int, int, int]]:
    """Rectangles (k_first, k_last, b_first, b_last) of at most ``pairs`` draws times examples.

    All draws where 64 examples fit.
    """
    if draws * examples <= pairs:
        return [(0, draws, 0, examples)]
    b_step = max(64, pairs // draws // 64 * 64)
    k_step = draws if b_step * draws <= pairs else max(32, pairs // b_step // 32 * 32)
    return [
        (k, min(k + k_step, draws), b, min(b + b_step, examples))
        for b in range(0, examples, b_step)
        for k in range(0, draws, k_step)
    ]
