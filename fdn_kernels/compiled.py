"""The elementwise loops of the CPU path, compiled by Numba: one pass over memory where a tensor library takes ten.

Arrays are float64 and in *columns* (draws and examples last, see :mod:`fdn_kernels.torch_ops`); a Gaussian's are (R, P, k, B),
weights before biases. Matrix products, exponentials and logarithms of whole tensors stay with the libraries that do them best.
The innermost loops run over contiguous numbers, so that the compiler vectorises them.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

# Sums may be reordered and multiply-adds contracted; NaN and infinity keep their meaning.
_compiled = njit(fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy", cache=True)
_GROUP = 32  # standard deviations multiplied before a logarithm is taken


@_compiled
def sample_with_kl(gaussian, scale, a, eps, prior_scale, y, kl):
    """y = W a + b with (W, b) = mu + sigma eps, and the KL to N(0, prior_scale^2).

    gaussian (R, 2P, K, B) with mu in its first P rows, scale (R, P, K, B), a (R, d_in, K, B), eps (R, P, K, 1 or B) to
    y (R, d_out, K, B), kl (R, K, B). The logarithm of sigma is taken of products of ``_GROUP``: where these leave the range of
    numbers, the KL is not finite.
    """
    (replicates, d_in, draws, batch), d_out = a.shape, y.shape[1]
    n_weights, shared = d_in * d_out, eps.shape[3] == 1
    squares, product, log_sum = np.empty(batch), np.empty(batch), np.empty(batch)
    constant = scale.shape[1] * (math.log(prior_scale) - 0.5)
    for r in range(replicates):
        for k in range(draws):
            squares[:], product[:], log_sum[:] = 0.0, 1.0, 0.0
            for o in range(d_out):
                y[r, o, k, :] = 0.0
                for i in range(d_in + 1):
                    p = o * d_in + i if i < d_in else n_weights + o
                    e = eps[r, p, k, 0]
                    for b in range(batch):
                        mean, sigma = gaussian[r, p, k, b], scale[r, p, k, b]
                        squares[b] += sigma * sigma + mean * mean
                        product[b] *= sigma
                    if shared and i < d_in:
                        for b in range(batch):
                            y[r, o, k, b] += (gaussian[r, p, k, b] + scale[r, p, k, b] * e) * a[r, i, k, b]
                    elif shared:
                        for b in range(batch):
                            y[r, o, k, b] += gaussian[r, p, k, b] + scale[r, p, k, b] * e
                    else:
                        for b in range(batch):
                            x = a[r, i, k, b] if i < d_in else 1.0
                            y[r, o, k, b] += (gaussian[r, p, k, b] + scale[r, p, k, b] * eps[r, p, k, b]) * x
                    if (o * (d_in + 1) + i) % _GROUP == _GROUP - 1:
                        for b in range(batch):
                            log_sum[b] += math.log(product[b])
                            product[b] = 1.0
            for b in range(batch):
                kl[r, k, b] = squares[b] * (0.5 / prior_scale**2) + constant - log_sum[b] - math.log(product[b])


@_compiled
def sample_with_kl_backward(grad_y, grad_kl, gaussian, scale, a, eps, prior_scale, need_a, grad, grad_a):
    """Gradients of :func:`sample_with_kl`'s mu and of rho (first and last P rows of grad, (R, 2P, K, B)) and, added to grad_a, of a.

    The last P rows of gaussian are u = 1 + e^rho: dsigma/drho = 1 - 1 / u.
    """
    (replicates, d_in, draws, batch), d_out, n = a.shape, grad_y.shape[1], scale.shape[1]
    n_weights, precision, shared = d_in * d_out, 1 / prior_scale**2, eps.shape[3] == 1
    for r in range(replicates):
        for k in range(draws):
            for o in range(d_out):
                for i in range(d_in + 1):
                    p = o * d_in + i if i < d_in else n_weights + o
                    for b in range(batch):
                        x = a[r, i, k, b] if i < d_in else 1.0
                        mean, sigma, g = gaussian[r, p, k, b], scale[r, p, k, b], grad_y[r, o, k, b] * x
                        e = eps[r, p, k, 0] if shared else eps[r, p, k, b]
                        grad[r, p, k, b] = g + grad_kl[r, k, b] * mean * precision  # dKL/dmu = mu / s0^2
                        # dKL/dsigma = sigma / s0^2 - 1 / sigma
                        grad_sigma = g * e + grad_kl[r, k, b] * (sigma * precision - 1 / sigma)
                        grad[r, n + p, k, b] = grad_sigma * (1 - 1 / gaussian[r, n + p, k, b])
                    if need_a and i < d_in:
                        for b in range(batch):
                            e = eps[r, p, k, 0] if shared else eps[r, p, k, b]
                            grad_a[r, i, k, b] += (gaussian[r, p, k, b] + scale[r, p, k, b] * e) * grad_y[r, o, k, b]


@_compiled
def sample(gaussian, a, eps, y):
    """y = W a + b with one draw of the noise for all examples.

    gaussian (R, 2P, k, B) with mu and sigma, a (R, d_in, ka, B) with k, ka in {1, K}, eps (R, K, P) to y (R, d_out, K, B).
    """
    (replicates, d_out, draws, batch), d_in, n = y.shape, a.shape[1], eps.shape[2]
    n_weights = d_in * d_out
    for r in range(replicates):
        for k in range(draws):
            kq, ka = k if gaussian.shape[2] > 1 else 0, k if a.shape[2] > 1 else 0
            for o in range(d_out):
                e = eps[r, k, n_weights + o]
                for b in range(batch):
                    y[r, o, k, b] = gaussian[r, n_weights + o, kq, b] + gaussian[r, n + n_weights + o, kq, b] * e
                for i in range(d_in):
                    p = o * d_in + i
                    e = eps[r, k, p]
                    for b in range(batch):
                        y[r, o, k, b] += (gaussian[r, p, kq, b] + gaussian[r, n + p, kq, b] * e) * a[r, i, ka, b]
