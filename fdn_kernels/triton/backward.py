"""Gradients through the scales, and of a sampled KL through the means."""

from __future__ import annotations

import triton
import triton.language as tl

from fdn_kernels.triton.tile import hypernet, kernel, paired, place, reciprocal, scale_of, slope, weight_noise


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
        gradient += kl * (scale * precision - reciprocal(scale))
    elif KL == "sampled":
        gradient -= kl * reciprocal(scale)
    return gradient


@kernel
def rows_kernel(
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
    k, b = place(tl.program_id(0), examples, BB)
    rows, j, n = tl.arange(0, BB), tl.arange(0, BH), tl.arange(0, N)
    z_tile = tl.load(z + r * z_r + k * z_k + b * BH + rows[:, None] * BH + j[None, :])  # (BB, BH)
    row = (r * draws + k) * examples + b
    x += r * x_r + k * x_k + b * DI
    eps += r * e_r + k * e_k + b * e_b
    matrix = r * DO * DI
    rho += matrix * BH
    rho_t += matrix * BH
    rho_bias += matrix
    mean += matrix * BH
    mean_t += matrix * BH
    mean_bias += matrix
    kl = tl.zeros((BB, 1), tl.float32)
    if KL != "none":
        kl = tl.load(grad_kl + row + rows)[:, None]
    precision = inverse_prior * inverse_prior
    z_sum = tl.zeros((BB, BH), tl.float32)
    for i0 in range(tl.program_id(1) * BI, DI, tl.num_programs(1) * BI):
        i = i0 + tl.arange(0, BI)
        if SPREAD:
            inputs = tl.load(x + rows[:, None] * DI + i[None, :])  # (BB, BI)
            x_sum = tl.zeros((BB, BI), tl.float32)
        for o0 in range(0, DO, BO):
            first = (r * 0 + o0) * DI + i0  # in 64 bits
            at = (n // BI) * DI + n % BI
            first_t = (first - i0) * BH + i0
            at_t = j[:, None] * DI + ((n // BI) * (DI * BH) + n % BI)[None, :]
            raw = hypernet(z_tile, rho, rho_bias, first, at, BB, N, BH, PRECISION)
            scale, e = scale_of(raw, floor)  # (BB, N)
            noise = scale
            theta = scale
            if SAMPLED and LP:
                noise = weight_noise(eps + first, n, BB, e_b, DI, NOISE == "independent", BI)
            if KL == "sampled":
                theta = hypernet(z_tile, mean, mean_bias, first, at, BB, N, BH, PRECISION) + scale * noise
            gradient = tl.zeros((BB, N), tl.float32)
            if SPREAD:
                factor = scale * noise  # noise is the scale itself for local
                outputs = tl.load(w + row * DO + o0 + rows[:, None] * DO + tl.arange(0, BO)[None, :])  # (BB, BO)
                x_sum += tl.sum(tl.reshape(factor, (BB, BO, BI)) * outputs[:, :, None], axis=1)
                gradient = tl.reshape(outputs[:, :, None] * inputs[:, None, :], (BB, N))
            elif NOISE != "none":
                at_factors = grad_factors + ((r * examples + b + rows) * DO)[:, None] * DI
                gradient = tl.load(at_factors + (first + at)[None, :])
            if KL == "sampled":
                v = tl.load(mean_t + first_t + at_t)  # (BH, N)
                z_sum = tl.dot(paired(kl * precision * theta, BB, N), tl.trans(v), z_sum, input_precision=PRECISION)
            gradient = _scale_gradient(gradient, noise, scale, theta, kl, precision, NOISE, KL, LP) * slope(raw, e)
            u = tl.load(rho_t + first_t + at_t)  # (BH, N)
            z_sum = tl.dot(paired(gradient, BB, N), tl.trans(u), z_sum, input_precision=PRECISION)
        if SPREAD:
            tl.store(grad_x + row * DI + rows[:, None] * DI + i[None, :], x_sum)
    part = (tl.program_id(1) * tl.num_programs(2) + r) * draws + k  # (splits, R, k, B, BH)
    tl.store(grad_z + (part * examples + b) * BH + rows[:, None] * BH + j[None, :], z_sum)


@kernel
def weights_kernel(
    z, z_t, rho, rho_bias, mean, mean_bias, x, eps, w, grad_factors, grad_kl,  # inputs
    grad_rho, grad_rho_bias, grad_mean, grad_mean_bias,  # outputs: partial sums
    z_r, z_k, x_r, x_k, e_r, e_k, e_b,
    draws, examples, DO, DI, floor, inverse_prior,
    NOISE: tl.constexpr, KL: tl.constexpr, LP: tl.constexpr, PRECISION: tl.constexpr,
    BB: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """Gradients of the matrix that gives the rhos, and for a sampled KL its part of that of the means' matrix.

    A program owns weights, and walks over draws and examples.
    """
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
        k, b = place(tile, examples, BB)
        row = (r * draws + k) * examples + b
        z_tile = tl.load(z + r * z_r + k * z_k + b * BH + rows[:, None] * BH + j[None, :])  # (BB, BH)
        raw = tl.dot(u, tl.trans(z_tile), tl.zeros((N, BB), tl.float32) + c, input_precision=PRECISION)  # (N, BB)
        scale, e = scale_of(raw, floor)
        noise = scale
        theta = scale
        kl = tl.zeros((1, BB), tl.float32)
        if KL != "none":
            kl = tl.load(grad_kl + row + rows)[None, :]
        if SAMPLED and LP:
            at_eps = eps + r * e_r + k * e_k + b * e_b + (first - r * DO * DI)
            noise = tl.trans(weight_noise(at_eps, n, BB, e_b, DI, NOISE == "independent", BI))  # (N, 1 or BB)
        z_pairs = tl.load(z_t + r * z_r + k * z_k + b + j[:, None] * examples + rows[None, :])  # (BH, BB)
        if KL == "sampled":
            theta = tl.dot(v, tl.trans(z_tile), tl.zeros((N, BB), tl.float32) + d, input_precision=PRECISION)
            theta += scale * noise
            grad_theta = kl * precision * theta
            mean_bias_sum += grad_theta
            mean_sum = tl.dot(paired(grad_theta, N, BB), tl.trans(z_pairs), mean_sum, input_precision=PRECISION)
        gradient = tl.zeros((N, BB), tl.float32)
        if SPREAD:
            at_x = x + r * x_r + k * x_k + b * DI + i0
            inputs = tl.load(at_x + rows[None, :] * DI + tl.arange(0, BI)[:, None])  # (BI, BB)
            outputs = tl.load(w + row * DO + o0 + rows[None, :] * DO + tl.arange(0, BO)[:, None])  # (BO, BB)
            gradient = tl.reshape(outputs[:, None, :] * inputs[None, :, :], (N, BB))
        elif NOISE != "none":
            at_factors = grad_factors + ((r * examples + b + rows) * DO)[None, :] * DI
            gradient = tl.load(at_factors + (first - r * DO * DI + at)[:, None])
        gradient = _scale_gradient(gradient, noise, scale, theta, kl, precision, NOISE, KL, LP) * slope(raw, e)
        bias_sum += gradient
        rho_sum = tl.dot(paired(gradient, N, BB), tl.trans(z_pairs), rho_sum, input_precision=PRECISION)
    part = tl.program_id(1) * tl.num_programs(2) * DO * DI + first  # (splits, R, DO, DI, BH)
    tl.store(grad_rho + part * BH + at[:, None] * BH + j[None, :], rho_sum)
    tl.store(grad_rho_bias + part + at, tl.sum(bias_sum, axis=1))
    if KL == "sampled":
        tl.store(grad_mean + part * BH + at[:, None] * BH + j[None, :], mean_sum)
        tl.store(grad_mean_bias + part + at, tl.sum(mean_bias_sum, axis=1))
