"""The elementwise loops of the CPU path, compiled by Numba: one pass over memory where a tensor library takes ten.

Arrays are float64 and in *columns* (draws and examples last, see :mod:`fdn_kernels.columns`); a Gaussian's are (R, P,
k, B), weights before biases. Matrix products, exponentials and logarithms of whole tensors stay with the libraries that
do them best. The innermost loops run over contiguous numbers, so that the compiler vectorises them.
"""

from __future__ import annotations

import math

import numpy as np

from fdn_kernels.compiling import FAST, INNER, njit
from fdn_kernels.vector_math import weighted_sum

_compiled = njit(**FAST)
_GROUP = 32  # standard deviations multiplied before a logarithm is taken: from 1e-9 to 1e9 each, within 1e308


@_compiled
def sample_with_kl(gaussian, scale, a, eps, prior_scale, y, kl):
    """y = W a + b with (W, b) = mu + sigma eps, and the KL to N(0, prior_scale^2).

    gaussian (R, 2P, K, B) with mu in its first P rows, scale (R, P, K, B), a (R, d_in, K, B), eps (R, P, K, 1 or B) to
    y (R, d_out, K, B), kl (R, K, B). The logarithm of sigma is taken of products of ``_GROUP``: where these leave the
    range of numbers, the KL is not finite.
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
    """Gradients of :func:`sample_with_kl`.

    Of mu and rho to the first and last P rows of grad (R, 2P, K, B); that of a is added to grad_a. The last P rows of
    gaussian are u = 1 + e^rho: dsigma/drho = 1 - 1 / u.
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
def sample(gaussian, first, a, eps, y):
    """y = W a + b with one draw of the noise for all examples.

    gaussian (R, 2P, k, B) with mu and sigma of all draws (k = 1) or of k draws from the ``first`` on, a (R, d_in, 1 or
    K, B), eps (R, K, P) to those draws of y (R, d_out, K, B).
    """
    (replicates, d_out, draws, batch), d_in, n = y.shape, a.shape[1], eps.shape[2]
    n_weights = d_in * d_out
    for r in range(replicates):
        for k in range(first, first + gaussian.shape[2] if gaussian.shape[2] > 1 else draws):
            kq, ka = k - first if gaussian.shape[2] > 1 else 0, k if a.shape[2] > 1 else 0
            for o in range(d_out):
                e = eps[r, k, n_weights + o]
                for b in range(batch):
                    y[r, o, k, b] = gaussian[r, n_weights + o, kq, b] + gaussian[r, n + n_weights + o, kq, b] * e
                for i in range(d_in):
                    p = o * d_in + i
                    e = eps[r, k, p]
                    for b in range(batch):
                        y[r, o, k, b] += (gaussian[r, p, kq, b] + gaussian[r, n + p, kq, b] * e) * a[r, i, ka, b]


@_compiled
def mlp(theta, widths, x, y):
    """A ReLU network with weights of its own for every draw.

    theta (R, K, P of all layers), per layer weights (out, in) before biases; widths of all activations; x (1 or R, d,
    B) to y (R, K, d_out, B). Where there is one output, the units of the last hidden layer are added to it as soon as
    they are there.
    """
    block = min(256, x.shape[2])  # examples: 4 KiB a unit, 1.25 MiB of L2 hold 300 units
    n_layers = widths.size - 1
    one = n_layers > 1 and widths[n_layers] == 1
    activations = np.zeros((2, widths.max() + 1, block))  # the last row stays 0
    for r in range(theta.shape[0]):
        for k in range(theta.shape[1]):
            for start in range(0, x.shape[2], block):
                batch, at = min(block, x.shape[2] - start), 0
                for i in range(widths[0]):
                    for b in range(batch):
                        activations[0, i, b] = x[r if x.shape[0] > 1 else 0, i, start + b]
                for layer in range(n_layers):
                    d_in, d_out, before = widths[layer], widths[layer + 1], activations[layer % 2]
                    if one and layer == n_layers - 2:
                        _units_and_output(theta[r, k, at:], d_in, d_out, before, y[r, k, 0, start : start + batch])
                        break
                    for o in range(d_out):
                        out = activations[1 - layer % 2, o, :batch]
                        if layer == n_layers - 1:
                            out = y[r, k, o, start : start + batch]
                        weighted_sum(theta[r, k], at + o * d_in, theta[r, k, at + d_out * d_in + o], before, d_in, out)
                        for b in range(batch if layer < n_layers - 1 else 0):
                            out[b] = 0.0 if out[b] < 0 else out[b]
                    at += d_out * (d_in + 1)


@njit(**INNER)
def _units_and_output(theta, d_in, width, x, out):
    """A layer of ReLUs and the one output after it, (B,), from the parameters of both.

    x has at least d_in + 1 rows, the last 0. Two units share what is read, and with one, five or six inputs they never
    leave the registers.
    """
    biases, outputs, zero, units = d_in * width, (d_in + 1) * width, x.shape[0] - 1, np.empty((2, out.size))
    w, rows = np.zeros((2, 6)), np.full(6, zero)
    for b in range(out.size):
        out[b] = theta[outputs + width]
    for o in range(0, width, 2):
        pair = o + 1 < width
        one, two = theta[biases + o], theta[biases + o + 1] if pair else 0.0
        v, u = theta[outputs + o], theta[outputs + o + 1] if pair else 0.0
        if d_in == 1:
            w0, w1 = theta[o], theta[o + 1] if pair else 0.0
            for b in range(out.size):
                h, g = one + w0 * x[0, b], two + w1 * x[0, b]
                out[b] += v * (0.0 if h < 0 else h) + u * (0.0 if g < 0 else g)
        elif 5 <= d_in <= 6:
            for i in range(d_in):
                rows[i], w[0, i], w[1, i] = i, theta[o * d_in + i], theta[(o + 1) * d_in + i] if pair else 0.0
            v0, v1, v2, v3, v4, v5 = w[0, 0], w[0, 1], w[0, 2], w[0, 3], w[0, 4], w[0, 5]
            u0, u1, u2, u3, u4, u5 = w[1, 0], w[1, 1], w[1, 2], w[1, 3], w[1, 4], w[1, 5]
            i, j, k, l, m, n = rows[0], rows[1], rows[2], rows[3], rows[4], rows[5]
            for b in range(out.size):
                h = one + v0 * x[i, b] + v1 * x[j, b] + v2 * x[k, b] + v3 * x[l, b] + v4 * x[m, b] + v5 * x[n, b]
                g = two + u0 * x[i, b] + u1 * x[j, b] + u2 * x[k, b] + u3 * x[l, b] + u4 * x[m, b] + u5 * x[n, b]
                out[b] += v * (0.0 if h < 0 else h) + u * (0.0 if g < 0 else g)
        else:
            weighted_sum(theta, o * d_in, one, x, d_in, units[0])
            weighted_sum(theta, (o + pair) * d_in, two, x, d_in, units[1])
            for b in range(out.size):
                h, g = units[0, b], units[1, b]
                out[b] += v * (0.0 if h < 0 else h) + u * (0.0 if g < 0 else g)


@_compiled
def dropout_linear(a, subsets, rate, weight, bias, y):
    """weight (dropout of a) + bias, see :mod:`fdn_kernels.given_weights`.

    That is the sum over all units that are not 0, less the dropped ones. Draws that share their activations look up
    the sums of the subsets of eight units. a (1 or K, B, d_in), weight (d_out, d_in), bias (d_out,) to y (K, B, d_out).
    """
    (draws, batch, d_out), d_in, each = y.shape, a.shape[2], y.shape[0] // a.shape[0]
    total, products, dropped = np.empty(d_out), np.empty((d_in + 7, d_out)), np.empty((each, d_out))
    sums, one, at = np.zeros(256), np.empty(each), 0
    for b in range(batch):
        for first in range(0, draws, each):
            size = 0
            total[:], dropped[:], one[:] = 0.0, 0.0, 0.0
            for i in range(d_in):
                activation = a[first // each, b, i]
                for o in range(d_out):  # without a branch: what is 0 is overwritten by the next
                    products[size, o] = weight[o, i] * activation
                    total[o] += products[size, o]
                size += activation != 0
            products[size : size + 7] = 0.0
            for start in range(0, size, 8):
                if d_out == 1 and each > 8:
                    for j in range(8):
                        product, count = products[start + j, 0], 1 << j
                        for s in range(count):
                            sums[count + s] = sums[s] + product
                    for k in range(each):
                        one[k] += sums[subsets[at + k]]
                else:
                    for k in range(each):
                        subset, i = subsets[at + k], start
                        while subset > 0:
                            if subset & 1:
                                for o in range(d_out):
                                    dropped[k, o] += products[i, o]
                            subset, i = subset >> 1, i + 1
                at += each
            for k in range(each):
                for o in range(d_out):
                    y[first + k, b, o] = (total[o] - dropped[k, o] - one[k]) / (1 - rate) + bias[o]
