"""One training step of a stack of networks, and the draws of an FDN, as one compiled loop each.

A network of a thousand parameters takes a microsecond per example, and a tensor library a thousand times that per call. So where the
protocol is the usual one (float64 on the CPU, the beta-ELBO, one draw, shared noise, a homoscedastic likelihood) the step, gradient
by hand, clipping and Adam included, is computed replicate by replicate in :func:`_train`. The numbers are those of autograd up to
rounding (``tests/test_fused.py``), which computes everything else.

Below, arrays of one replicate are (rows, B) with the B examples last; P = d_out (d_in + 1) parameters of a layer, weights (out, in)
before biases; a hypernetwork has hidden activations z (h, B) and output rows in the order weight means, weight rhos, bias means,
bias rhos.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn import Module

from fdn_kernels.torch_ops import FLOOR
from lib.models import Network, Noise
from lib.objectives import HomoscedasticGaussian, Likelihood
from lib.posteriors import FDNLinear, GaussianLinear, LatentGaussianLinear, PointLinear
from lib.protocol import Protocol
from lib.stacking import Stack

_POINT, _FREE, _LATENT, _INPUT, _PREVIOUS = range(5)  # where a layer's weight distribution comes from
_KIND, _D_IN, _D_OUT, _HYPER, _SIGNAL, _PARAMETERS, _WEIGHTS, _HIDDEN, _INPUTS = range(9)  # columns of a table of layers; the last
# four say where the layer begins among all parameters, sampled weights, units of hypernetworks, and inputs of layers

# Sums may be reordered and multiply-adds contracted; NaN and infinity keep their meaning.
_OPTIONS = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy", "cache": True}
_EXACT = {"fastmath": {"contract"}, "error_model": "numpy", "forceinline": True, "cache": True}

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # ln 2 in two parts, the first with 20 zeros at its end
_EXP = tuple(1 / math.factorial(n) for n in range(12, -1, -1))
_LOG = tuple(2 / n for n in range(21, 0, -2))
_FRACTION, _ONE, _SQRT_HALF = np.int64((1 << 52) - 1), np.int64(0x3FF0000000000000), np.int64(0x3FE6A09E667F3BCD)  # bits of float64


@njit(**_EXACT)
def _exp(x):
    """e^x for x in [-700, 700], without branches: 2^k times a Taylor polynomial on |r| <= ln(2) / 2."""
    k = np.floor(x * (1 / math.log(2)) + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = 0.0
    for c in _EXP:
        p = p * r + c
    return p * np.int64((np.int64(k) + 1023) << 52).view(np.float64)


@njit(**_EXACT)
def _log(x):
    """ln x for positive normal finite x: k ln 2 + 2 artanh((m - 1) / (m + 1)) with m in [sqrt(1/2), sqrt(2))."""
    bits = np.float64(x).view(np.int64) + (_ONE - _SQRT_HALF)
    k = (bits >> 52) - 1023
    m = np.int64((bits & _FRACTION) + _SQRT_HALF).view(np.float64)
    s = (m - 1) / (m + 1)
    s2, p = s * s, 0.0
    for c in _LOG:
        p = p * s2 + c
    return k * _LN2_HIGH + (s * p + k * _LN2_LOW)


@njit(**_EXACT)
def _one_plus_exp(rho):
    return 1 + _exp(min(max(rho, -700.0), 700.0))


@njit(**_EXACT)
def _sigma(rho, u, floor):
    """floor + softplus(rho) as floor + ln u with u = 1 + e^rho, whose rounding is nothing beside the floor."""
    soft = _log(u)
    return floor + (soft if soft > rho else rho)  # rho itself where e^rho overflows, and NaN


@njit(**_OPTIONS)
def _softplus(rho, slope, floor):
    """sigma in place of rho and, where slope has a size, slope = dsigma/drho; flat arrays."""
    if slope.size:
        for b in range(rho.size):
            u = _one_plus_exp(rho[b])
            slope[b] = 1 - 1 / u
            rho[b] = _sigma(rho[b], u, floor)
    else:
        for b in range(rho.size):
            rho[b] = _sigma(rho[b], _one_plus_exp(rho[b]), floor)


@njit(**_OPTIONS)
def _affine(w, bias, x, out):
    """out = w x + bias, w flat (d_out d_in)."""
    d_in, batch = x.shape
    for o in range(out.shape[0]):
        at = o * d_in
        for b in range(batch):
            out[o, b] = bias[o]
        for i in range(0, d_in - 3, 4):  # four inputs for each time the sum is read and written
            v, u, t, s = w[at + i], w[at + i + 1], w[at + i + 2], w[at + i + 3]
            for b in range(batch):
                out[o, b] += v * x[i, b] + u * x[i + 1, b] + t * x[i + 2, b] + s * x[i + 3, b]
        for i in range(d_in - d_in % 4, d_in):
            for b in range(batch):
                out[o, b] += w[at + i] * x[i, b]


@njit(**_OPTIONS)
def _mean_and_rho(w, bias, mean_row, rho_row, z, mean, rho):
    """Two output rows of a hypernetwork, each w z + bias, (B,)."""
    h, batch = z.shape
    m, r = mean_row * h, rho_row * h
    for b in range(batch):
        mean[b], rho[b] = bias[mean_row], bias[rho_row]
    for j in range(0, h - 1, 2):
        m0, m1, r0, r1 = w[m + j], w[m + j + 1], w[r + j], w[r + j + 1]
        for b in range(batch):
            mean[b] += m0 * z[j, b] + m1 * z[j + 1, b]
            rho[b] += r0 * z[j, b] + r1 * z[j + 1, b]
    if h % 2:
        for b in range(batch):
            mean[b] += w[m + h - 1] * z[h - 1, b]
            rho[b] += w[r + h - 1] * z[h - 1, b]


@njit(**_OPTIONS)
def _affine_backward(w, x, grad_out, grad_w, grad_bias, need_x, grad_x):
    """Sets the gradients of w and bias, and adds that of x."""
    d_in, batch = x.shape
    for o in range(grad_out.shape[0]):
        total = 0.0
        for b in range(batch):
            total += grad_out[o, b]
        grad_bias[o] = total
        for i in range(d_in):
            total = 0.0
            for b in range(batch):
                total += grad_out[o, b] * x[i, b]
            grad_w[o * d_in + i] = total
            if need_x:
                weight = w[o * d_in + i]
                for b in range(batch):
                    grad_x[i, b] += weight * grad_out[o, b]


@njit(**_OPTIONS)
def _relu(x):
    for i in range(x.shape[0]):
        for b in range(x.shape[1]):
            x[i, b] = 0.0 if x[i, b] < 0 else x[i, b]


@njit(**_OPTIONS)
def _relu_backward(x, scale, grad):
    """Gradient before a ReLU (and dropout, whose kept units were multiplied by ``scale``) from that after it, in place."""
    for i in range(x.shape[0]):
        for b in range(x.shape[1]):
            grad[i, b] = 0.0 if x[i, b] <= 0 else grad[i, b] * scale


@njit(**_OPTIONS)
def _rows(p, n, d_out):
    """Output rows of a hypernetwork that hold mean and rho of parameter p; n of the P are weights."""
    return (p, n + p) if p < n else (n + p, n + p + d_out)


@njit(**_OPTIONS)
def _sample_fdn(w, bias, z, a, eps, floor, fresh, mean, scale, slope, out):
    """A layer whose weights N(mean, scale^2) are outputs w z + bias of a hypernetwork, w flat (2P h).

    If not ``fresh``, mean and scale (P, B) are there already; slope may be (P, 0).
    """
    d_in, batch = a.shape
    d_out = out.shape[0]
    n = d_in * d_out
    out[:, :] = 0.0
    for o in range(d_out):
        for i in range(d_in + 1):
            p = o * d_in + i if i < d_in else n + o
            if fresh:
                mean_row, rho_row = _rows(p, n, d_out)
                _mean_and_rho(w, bias, mean_row, rho_row, z, mean[p], scale[p])
                _softplus(scale[p], slope[p], floor)
            e = eps[p]
            if i < d_in:
                for b in range(batch):
                    out[o, b] += (mean[p, b] + scale[p, b] * e) * a[i, b]
            else:
                for b in range(batch):
                    out[o, b] += mean[p, b] + scale[p, b] * e


@njit(**_OPTIONS)
def _sample_fdn_backward(
    grad_out, kl_weight, precision, w, z, a, eps, mean, scale, slope, need_a, grad_w, grad_bias, grad_z, grad_a
):
    """Sets the gradients of w and bias, and adds those of z and a; ``kl_weight`` is the KL's weight for each example."""
    d_in, batch = a.shape
    h, d_out = z.shape[0], grad_out.shape[0]
    n = d_in * d_out
    grad_mean, grad_rho = np.empty(batch), np.empty(batch)
    for o in range(d_out):
        for i in range(d_in + 1):
            p = o * d_in + i if i < d_in else n + o
            mean_row, rho_row = _rows(p, n, d_out)
            e, mean_sum, rho_sum = eps[p], 0.0, 0.0
            for b in range(batch):
                g = grad_out[o, b] * (a[i, b] if i < d_in else 1.0)
                grad_mean[b] = g + kl_weight * mean[p, b] * precision  # dKL/dmu = mu / s0^2
                # dKL/dsigma = sigma / s0^2 - 1 / sigma
                grad_rho[b] = (g * e + kl_weight * (scale[p, b] * precision - 1 / scale[p, b])) * slope[p, b]
                mean_sum += grad_mean[b]
                rho_sum += grad_rho[b]
            grad_bias[mean_row], grad_bias[rho_row] = mean_sum, rho_sum
            for j in range(h):
                w_mean, w_rho, mean_sum, rho_sum = w[mean_row * h + j], w[rho_row * h + j], 0.0, 0.0
                for b in range(batch):
                    mean_sum += grad_mean[b] * z[j, b]
                    rho_sum += grad_rho[b] * z[j, b]
                    grad_z[j, b] += w_mean * grad_mean[b] + w_rho * grad_rho[b]
                grad_w[mean_row * h + j], grad_w[rho_row * h + j] = mean_sum, rho_sum
            if need_a and i < d_in:
                for b in range(batch):
                    grad_a[i, b] += (mean[p, b] + scale[p, b] * e) * grad_out[o, b]


@njit(**_OPTIONS)
def _hypernet_parts(parameters, at, signal, h, n_outputs):
    """Hidden weight and bias, output weight and bias, flat, from where a hypernetwork begins."""
    one = at + h * signal
    two, three = one + h, one + h + n_outputs * h
    return parameters[at:one], parameters[one:two], parameters[two:three], parameters[three : three + n_outputs]


@njit(**_OPTIONS)
def _sample_global(layer, parameters, eps, exponential, floor, z, mean, scale, slope, theta):
    """theta = mean + scale eps of a layer whose weights are the same for all examples; z (h, 1)."""
    p, d_out, at = theta.size, layer[_D_OUT], layer[_PARAMETERS]
    if layer[_KIND] == _POINT:
        theta[:] = parameters[at : at + p]
        return
    if layer[_KIND] == _FREE:
        mean[:], scale[:] = parameters[at : at + p], parameters[at + p : at + 2 * p]
    else:
        latent = parameters[at : at + layer[_SIGNAL]].copy().reshape(layer[_SIGNAL], 1)
        hidden_w, hidden_b, w, bias = _hypernet_parts(parameters, at + layer[_SIGNAL], layer[_SIGNAL], layer[_HYPER], 2 * p)
        _affine(hidden_w, hidden_b, latent, z)
        _relu(z)
        outputs = np.empty((2 * p, 1))
        _affine(w, bias, z, outputs)
        for q in range(p):
            mean_row, rho_row = _rows(q, p - d_out, d_out)
            mean[q], scale[q] = outputs[mean_row, 0], outputs[rho_row, 0]
    if exponential:
        for q in range(p):
            scale[q] = slope[q] = math.exp(scale[q])
    else:
        _softplus(scale, slope, floor)
    for q in range(p):
        theta[q] = mean[q] + scale[q] * eps[q]


@njit(**_OPTIONS)
def _sample_global_backward(layer, parameters, grad_theta, beta, precision, eps, z, mean, scale, slope, grad):
    """Sets the gradients of the layer's parameters in grad."""
    p, d_out, at = grad_theta.size, layer[_D_OUT], layer[_PARAMETERS]
    if layer[_KIND] == _POINT:
        grad[at : at + p] = grad_theta
        return
    grad_outputs = np.empty((2 * p, 1))
    free = layer[_KIND] == _FREE
    for q in range(p):
        mean_row, rho_row = (q, p + q) if free else _rows(q, p - d_out, d_out)
        grad_outputs[mean_row, 0] = grad_theta[q] + beta * mean[q] * precision
        grad_outputs[rho_row, 0] = (grad_theta[q] * eps[q] + beta * (scale[q] * precision - 1 / scale[q])) * slope[q]
    if free:
        grad[at : at + 2 * p] = grad_outputs[:, 0]
        return
    signal, h = layer[_SIGNAL], layer[_HYPER]
    latent, grad_latent = parameters[at : at + signal].copy().reshape(signal, 1), np.zeros((signal, 1))
    hidden_w, _, w, _ = _hypernet_parts(parameters, at + signal, signal, h, 2 * p)
    grad_hidden_w, grad_hidden_b, grad_w, grad_b = _hypernet_parts(grad, at + signal, signal, h, 2 * p)
    grad_z = np.zeros((h, 1))
    _affine_backward(w, z, grad_outputs, grad_w, grad_b, True, grad_z)
    _relu_backward(z, 1.0, grad_z)
    _affine_backward(hidden_w, latent, grad_z, grad_hidden_w, grad_hidden_b, True, grad_latent)
    grad[at : at + signal] = grad_latent[:, 0]


@njit(**_OPTIONS)
def _clip(grad, limit):
    total = 0.0
    for i in range(grad.size):
        total += grad[i] * grad[i]
    factor = limit / (math.sqrt(total) + 1e-6)
    if factor < 1:
        for i in range(grad.size):
            grad[i] *= factor


@njit(**_OPTIONS)
def _adam(parameters, grad, first, second, step, rate):
    """Adam with beta = (0.9, 0.999) and epsilon = 1e-8 (Kingma and Ba, 2015, algorithm 1)."""
    size, root = rate / (1 - 0.9**step), math.sqrt(1 - 0.999**step)
    for i in range(grad.size):
        first[i] = 0.9 * first[i] + 0.1 * grad[i]
        second[i] = 0.999 * second[i] + 0.001 * grad[i] * grad[i]
        parameters[i] -= size * first[i] / (math.sqrt(second[i]) / root + 1e-8)


@njit(**_OPTIONS)
def _train(layers, flat, x, y, eps, keep, beta, dropout, exponential, floor, prior_scale, clip, rate, step, first, second, grads):
    """The gradient of every replicate, (R, n), and, for step > 0, an update of flat (R, n) and Adam's moments.

    x (R' or R, B, d) and y (R' or R, B), where R' divides R and consecutive replicates share them; eps (R, all P), keep
    (R, hidden units, B) or empty; clip <= 0: none.
    """
    n_layers, batch = len(layers), x.shape[1]
    last = layers[-1]
    n_weights = last[_WEIGHTS] + last[_D_OUT] * (last[_D_IN] + 1)
    conditioned = layers[0, _KIND] >= _INPUT
    n_rows, columns = (n_weights, batch) if conditioned else (1, 1)
    mean, scale, slope = np.empty((n_rows, columns)), np.empty((n_rows, columns)), np.empty((n_rows, columns))
    means, scales, slopes, theta = np.empty(n_weights), np.empty(n_weights), np.empty(n_weights), np.empty(n_weights)
    grad_theta = np.empty(n_weights)
    z = np.empty((last[_HIDDEN] + last[_HYPER], columns))
    a, grad_a = np.empty((last[_INPUTS] + last[_D_IN], batch)), np.empty((last[_INPUTS] + last[_D_IN], batch))
    out, grad_out = np.empty((1, batch)), np.empty((1, batch))
    precision, kept_scale = 1 / prior_scale**2, 1 / (1 - dropout)
    for r in range(len(flat)):
        parameters, grad, rx = flat[r], grads[r], r // (len(flat) // len(x))
        for i in range(layers[0, _D_IN]):
            for b in range(batch):
                a[i, b] = x[rx, b, i]
        for l in range(n_layers):
            layer = layers[l]
            d_in, d_out, h, signal = layer[_D_IN], layer[_D_OUT], layer[_HYPER], layer[_SIGNAL]
            inputs = a[layer[_INPUTS] : layer[_INPUTS] + d_in]
            after = out if l == n_layers - 1 else a[layer[_INPUTS] + d_in : layer[_INPUTS] + d_in + d_out]
            p = slice(layer[_WEIGHTS], layer[_WEIGHTS] + d_out * (d_in + 1))
            hidden = z[layer[_HIDDEN] : layer[_HIDDEN] + h]
            if conditioned:
                n_outputs = 2 * d_out * (d_in + 1)
                hidden_w, hidden_b, w, bias = _hypernet_parts(parameters, layer[_PARAMETERS], signal, h, n_outputs)
                _affine(hidden_w, hidden_b, inputs if layer[_KIND] == _PREVIOUS else a[:signal], hidden)
                _relu(hidden)
                _sample_fdn(w, bias, hidden, inputs, eps[r, p], floor, True, mean[p], scale[p], slope[p], after)
            else:
                _sample_global(layer, parameters, eps[r, p], exponential, floor, hidden, means[p], scales[p], slopes[p], theta[p])
                n = d_out * d_in
                _affine(theta[p][:n], theta[p][n:], inputs, after)
            if l < n_layers - 1:
                _relu(after)
                if keep.size:
                    at = layer[_INPUTS] + d_in - layers[0, _D_IN]
                    for i in range(d_out):
                        for b in range(batch):
                            after[i, b] *= kept_scale if keep[r, at + i, b] else 0.0
        for b in range(batch):
            grad_out[0, b] = 2 * (out[0, b] - y[rx, b]) / batch
        grad_a[:, :] = 0.0
        for l in range(n_layers - 1, -1, -1):
            layer = layers[l]
            d_in, d_out, h, signal = layer[_D_IN], layer[_D_OUT], layer[_HYPER], layer[_SIGNAL]
            rows = slice(layer[_INPUTS], layer[_INPUTS] + d_in)
            inputs, grad_inputs = a[rows], grad_a[rows]
            p = slice(layer[_WEIGHTS], layer[_WEIGHTS] + d_out * (d_in + 1))
            hidden = z[layer[_HIDDEN] : layer[_HIDDEN] + h]
            if l == n_layers - 1:
                incoming = grad_out
            else:
                units = slice(layer[_INPUTS] + d_in, layer[_INPUTS] + d_in + d_out)
                incoming = grad_a[units]
                _relu_backward(a[units], kept_scale if keep.size else 1.0, incoming)
            if conditioned:
                n_outputs, at = 2 * d_out * (d_in + 1), layer[_PARAMETERS]
                hidden_w, _, w, _ = _hypernet_parts(parameters, at, signal, h, n_outputs)
                grad_hidden_w, grad_hidden_b, grad_w, grad_b = _hypernet_parts(grad, at, signal, h, n_outputs)
                grad_z = np.zeros((h, batch))
                _sample_fdn_backward(
                    incoming, beta / batch, precision, w, hidden, inputs, eps[r, p], mean[p], scale[p], slope[p],
                    l > 0, grad_w, grad_b, grad_z, grad_inputs,
                )  # fmt: skip
                _relu_backward(hidden, 1.0, grad_z)
                previous = layer[_KIND] == _PREVIOUS
                _affine_backward(
                    hidden_w, inputs if previous else a[:signal], grad_z, grad_hidden_w, grad_hidden_b, previous and l > 0,
                    grad_inputs,
                )  # fmt: skip
            else:
                n = d_out * d_in
                weights, gradients = theta[p], grad_theta[p]
                _affine_backward(weights[:n], inputs, incoming, gradients[:n], gradients[n:], l > 0, grad_inputs)
                _sample_global_backward(
                    layer, parameters, gradients, beta, precision, eps[r, p], hidden, means[p], scales[p], slopes[p], grad
                )
        if step > 0:
            if clip > 0:
                _clip(grad, clip)
            _adam(parameters, grad, first[r], second[r], step, rate)


@njit(**_OPTIONS)
def _draw(layers, parameters, x, eps, floor, y):
    """Draws of a network of FDN layers: x (B, d), eps (K, all P) to y (K, B, d_out). What no draw changes is computed once."""
    batch, last, n_layers = x.shape[0], layers[-1], len(layers)
    n_blocks = -(-batch // 64)  # of examples whose activations stay in cache
    block = -(-batch // (8 * n_blocks)) * 8  # whole vectors
    n_weights = last[_WEIGHTS] + last[_D_OUT] * (last[_D_IN] + 1)
    mean, scale, slope = np.empty((n_weights, block)), np.empty((n_weights, block)), np.empty((n_weights, 0))
    z = np.empty((last[_HIDDEN] + last[_HYPER], block))
    a, out = np.zeros((last[_INPUTS] + last[_D_IN], block)), np.empty((last[_D_OUT], block))
    for start in range(0, batch, block):
        size = min(block, batch - start)  # the columns after these hold examples of the block before
        for i in range(x.shape[1]):
            for b in range(size):
                a[i, b] = x[start + b, i]
        for k in range(len(eps)):
            for l in range(n_layers):
                layer = layers[l]
                d_in, d_out, h, signal = layer[_D_IN], layer[_D_OUT], layer[_HYPER], layer[_SIGNAL]
                inputs = a[layer[_INPUTS] : layer[_INPUTS] + d_in]
                after = out if l == n_layers - 1 else a[layer[_INPUTS] + d_in : layer[_INPUTS] + d_in + d_out]
                p, hidden = slice(layer[_WEIGHTS], layer[_WEIGHTS] + d_out * (d_in + 1)), z[layer[_HIDDEN] : layer[_HIDDEN] + h]
                n_outputs = 2 * d_out * (d_in + 1)
                hidden_w, hidden_b, w, bias = _hypernet_parts(parameters, layer[_PARAMETERS], signal, h, n_outputs)
                fresh = k == 0 or l > 0 and layer[_KIND] == _PREVIOUS
                if fresh:
                    _affine(hidden_w, hidden_b, inputs if layer[_KIND] == _PREVIOUS else a[:signal], hidden)
                    _relu(hidden)
                _sample_fdn(w, bias, hidden, inputs, eps[k, p], floor, fresh, mean[p], scale[p], slope[p], after)
                if l < n_layers - 1:
                    _relu(after)
            for o in range(last[_D_OUT]):
                for b in range(size):
                    y[k, start + b, o] = out[o, b]


def _table(network: Network) -> np.ndarray | None:
    """The table of a network's layers; None where a layer is of another kind or the kinds are mixed."""
    rows, parameters, weights, hidden, inputs = [], 0, 0, 0, 0
    for layer in network.layers:
        p, hyper, signal = layer.d_out * (layer.d_in + 1), 0, 0
        if type(layer) is PointLinear:
            kind, size = _POINT, p
        elif type(layer) is GaussianLinear:
            kind, size = _FREE, 2 * p
        elif type(layer) in (LatentGaussianLinear, FDNLinear):
            hyper, signal = (layer.hypernet.hidden.out_features, layer.hypernet.hidden.in_features)
            size = (signal + 1) * hyper + (hyper + 1) * 2 * p
            if type(layer) is FDNLinear:
                kind = _PREVIOUS if layer.condition_on == "previous" else _INPUT
            else:
                kind, size = _LATENT, size + signal
        else:
            return None
        rows.append((kind, layer.d_in, layer.d_out, hyper, signal, parameters, weights, hidden, inputs))
        parameters, weights, hidden, inputs = parameters + size, weights + p, hidden + hyper, inputs + layer.d_in
    return np.array(rows) if len({row[_KIND] for row in rows}) == 1 else None


def draws(stack: Stack, row: Tensor, x: Tensor, noise: Noise) -> Tensor | None:
    """Outputs ``(K, N, n_outputs)`` of one network of FDN layers at x ``(N, d)`` with shared noise; None for any other.

    Args:
        row: its parameters, ``(n,)``.
    """
    table, layers = _table(stack.network), stack.network.layers
    plain = all(t.dtype == torch.float64 and t.is_cpu for t in (row, x)) and row.dim() == 1 and x.numel() > 0
    if table is None or table[0, _KIND] < _INPUT or noise.kind != "shared" or not plain or not _takes(layers):
        return None
    eps = torch.cat([e[:, 0] for e in noise.eps], 1)  # (K, all P)
    y = x.new_empty(len(eps), len(x), layers[-1].d_out)
    _draw(table, row.contiguous().numpy(), x.contiguous().numpy(), eps.numpy(), layers[0].floor, y.numpy())
    return y


def _takes(layers: Iterable[Module]) -> bool:
    """Whether the layers leave their backend open, and have one floor that :func:`_sigma` can do with."""
    floors = {layer.floor for layer in layers if layer.sampled and getattr(layer, "scale", "softplus") == "softplus"}
    open_backend = {getattr(layer, "backend", "auto") for layer in layers} <= {"auto", "torch"}
    return open_backend and len(floors) <= 1 and min(floors, default=1) >= FLOOR


class FusedStep:
    """Training steps of a stack in compiled loops.

    Args:
        stack: its ``flat`` is updated in place.
        protocol: settings; see :meth:`supports`.
    """

    def __init__(self, stack: Stack, protocol: Protocol) -> None:
        self.layers = _table(stack.network)
        self.flat = stack.flat.detach().view(-1, stack.flat.shape[-1]).numpy()  # (R, n), the stack's own memory
        self.moments = np.zeros_like(self.flat), np.zeros_like(self.flat)
        self.grad = np.empty_like(self.flat)
        self.protocol, self.dropout, self.steps = protocol, stack.network.dropout, 0
        self.exponential = getattr(stack.network.layers[0], "scale", "softplus") == "exp"

    @staticmethod
    def supports(stack: Stack, protocol: Protocol, likelihood: Likelihood) -> bool:
        """Whether the loops compute what the protocol asks for."""
        return (
            _table(stack.network) is not None and _takes(stack.network.layers)
            and (protocol.noise == "shared" or not stack.network.per_example_noise)
            and stack.flat.dtype == torch.float64 and stack.flat.is_cpu
            and protocol.objective == "elbo" and protocol.train_draws == 1
            and isinstance(likelihood, HomoscedasticGaussian)
        )  # fmt: skip

    def gradient(self, x: Tensor, y: Tensor, noise: Noise, beta: float) -> Tensor:
        """Gradient of the loss of every replicate, ``(R, n)``; arguments as in :meth:`__call__`."""
        self._run(x, y, noise, beta, 0)
        return torch.from_numpy(self.grad.copy())

    def __call__(self, x: Tensor, y: Tensor, noise: Noise, beta: float) -> None:
        """One step on a minibatch.

        Args:
            x: inputs ``(*lead, B, d)``; an axis of ``lead`` may be 1.
            y: targets ``(*lead, B)``.
            noise: of the pass.
            beta: weight of the KL.
        """
        self.steps += 1
        self._run(x, y, noise, beta, self.steps)

    def _run(self, x: Tensor, y: Tensor, noise: Noise, beta: float, step: int) -> None:
        p, r = self.protocol, len(self.flat)
        batch, eps = x.shape[-2], [e.reshape(r, -1) for e in noise.eps if e is not None]
        eps = torch.cat(eps, 1) if eps else torch.empty(r, int(sum(o * (i + 1) for i, o in self.layers[:, [_D_IN, _D_OUT]])))
        masks = [m.mT.reshape(r, -1, batch) for m in noise.masks if m is not None]
        keep = torch.cat(masks, 1) if masks else torch.empty(0, 0, 0, dtype=torch.bool)
        arrays = x.reshape(-1, *x.shape[-2:]), y.reshape(-1, batch), eps.double(), keep
        _train(
            self.layers, self.flat, *(t.contiguous().numpy() for t in arrays), beta, float(self.dropout), self.exponential,
            p.floor, p.prior_scale, -1.0 if p.clip_norm is None else p.clip_norm, p.learning_rate, step, *self.moments, self.grad,
        )  # fmt: skip
