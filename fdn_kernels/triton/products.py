"""Products with matrices: of any strides, and with scales that shared noise multiplies."""

from __future__ import annotations

import triton.language as tl

from fdn_kernels.triton.tile import kernel


@kernel
def product_kernel(
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


@kernel
def contract_kernel(
    scale, eps, x, out, s_r, s_b, s_p, s_q, e_r, e_k, x_r, x_k, o_r, o_k, draws, examples, P, Q,
    BB: tl.constexpr, BK: tl.constexpr, BP: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """out[k, b, p] = sum over q of scale[b, p, q] eps[k, p, q] x[k, b, q] (IC, shared noise).

    Examples are a warp's threads, and sums stay within a thread.
    """
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


@kernel
def correlate_kernel(
    w, x, eps, out, w_r, w_k, x_r, x_k, e_r, e_k, draws, examples, DO, DI,
    BB: tl.constexpr, BK: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
):  # fmt: skip
    """out[b, o, i] = sum over k of w[k, b, o] x[k, b, i] eps[k, o, i].

    The gradient of :func:`contract_kernel`'s scale.
    """
    r = tl.program_id(2).to(tl.int64)
    b = tl.program_id(1).to(tl.int64) * BB + tl.arange(0, BB)
    o0, i0 = (tl.program_id(0) // (DI // BI)) * BO, (tl.program_id(0) % (DI // BI)) * BI
    o, i = o0 + tl.arange(0, BO), i0 + tl.arange(0, BI)
    total = tl.zeros((BO, BI, BB), tl.float32)
    for k0 in range(0, draws, BK):
        k = k0 + tl.arange(0, BK)
        exists, k = (k < draws)[:, None, None], k.to(tl.int64)[:, None, None]
        at_w = w + r * w_r + k * w_k + b[None, None, :] * DO + o[None, :, None]
        at_x = x + r * x_r + k * x_k + b[None, None, :] * DI + i[None, :, None]
        at_eps = eps + r * e_r + k * e_k + o[None, :, None] * DI + i[None, None, :]
        left = tl.load(at_w, mask=exists, other=0.0)  # (BK, BO, BB)
        right = tl.load(at_x, mask=exists, other=0.0)  # (BK, BI, BB)
        noise = tl.load(at_eps, mask=exists, other=0.0)  # (BK, BO, BI)
        total += tl.sum(left[:, :, None, :] * right[:, None, :, :] * noise[:, :, :, None], axis=0)
    first = (r * (tl.num_programs(1) * BB) + b)[None, None, :] * DO + o[:, None, None]
    tl.store(out + first * DI + i[None, :, None], total)
