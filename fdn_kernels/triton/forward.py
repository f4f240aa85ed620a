"""The spread of the outputs and the KL."""

from __future__ import annotations

import triton.language as tl

from fdn_kernels.triton.tile import hypernet, kernel, place, scale_of, times, weight_noise


@kernel
def forward_kernel(
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
    k, b = place(tl.program_id(0), examples, BB)
    rows, j, n = tl.arange(0, BB), tl.arange(0, BH), tl.arange(0, N)
    z_tile = tl.load(z + r * z_r + k * z_k + b * BH + rows[:, None] * BH + j[None, :])  # (BB, BH)
    x += r * x_r + k * x_k + b * DI
    eps += r * e_r + k * e_k + b * e_b
    matrix = r * DO * DI
    rho += matrix * BH
    rho_bias += matrix
    mean += matrix * BH
    mean_bias += matrix
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
            scale, _ = scale_of(hypernet(z_tile, rho, rho_bias, first, at, BB, N, BH, PRECISION), floor)  # (BB, N)
            factor = scale * scale
            if SAMPLED and LP:
                noise = weight_noise(eps + first, n, BB, e_b, DI, NOISE == "independent", BI)
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
                product, exponent = times(product, exponent, ratio)
                if KL == "sampled":
                    drawn = hypernet(z_tile, mean, mean_bias, first, at, BB, N, BH, PRECISION) + factor
                    theta = drawn * inverse_prior
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
