"""A whole training step of a stack of networks, and the draws of one, as compiled loops.

Arrays of one replicate are (rows, B) with the B examples last; P = d_out (d_in + 1) parameters of a layer, weights
(out, in) before biases; a hypernetwork has hidden activations z (h, B) and output rows in the order weight means,
weight rhos, bias means, bias rhos. ``layers`` is a table of integers with a row for each layer and the columns
``KIND``, ``D_IN``, ...
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fdn_kernels.compiling import FAST, INNER, njit
from fdn_kernels.vector_math import softplus, weighted_sum

# Draws: examples of a block (13 vectors of 8), and columns (draws x examples) alive at once after the first layer and
# in those after it. Tuned; flat on a core with 48 KiB of L1 and 1.25 MiB of L2: times within 10 % from half to twice
# the first, within 20 % from a quarter to four times the others.
_EXAMPLES = 104
_COLUMNS, _CACHED = 64 * _EXAMPLES, 4 * _EXAMPLES
POINT, FREE, LATENT, INPUT, PREVIOUS = range(5)  # where a layer's weight distribution comes from
# Columns of a table of layers; the last four say where the layer begins among all parameters, sampled weights, units of
# hypernetworks, and inputs of layers
KIND, D_IN, D_OUT, HYPER, SIGNAL, PARAMETERS, WEIGHTS, HIDDEN, INPUTS = range(9)


@njit(**INNER)
def _affine(w, bias, x, out):
    """out = w x + bias, w flat (d_out d_in)."""
    if len(x) > 1:
        np.dot(w.reshape(len(out), len(x)), x, out)
    for o in range(len(out)):
        if len(x) > 1:
            for b in range(out.shape[1]):
                out[o, b] += bias[o]
        else:
            for b in range(out.shape[1]):
                out[o, b] = w[o] * x[0, b] + bias[o]


@njit(**INNER)
def _affine_backward(w, x, grad_out, grad_w, grad_bias, need_x, grad_x):
    """Sets the gradients of w and bias, and adds that of x."""
    d_in, batch = x.shape
    if d_in > 1:
        np.dot(grad_out, x.T, grad_w.reshape(len(grad_out), d_in))
    for o in range(len(grad_out)):
        total, product = 0.0, 0.0
        for b in range(batch):
            total += grad_out[o, b]
            product += grad_out[o, b] * x[0, b]
        grad_bias[o] = total
        if d_in == 1:
            grad_w[o] = product
        for i in range(d_in if need_x else 0):
            weight = w[o * d_in + i]
            for b in range(batch):
                grad_x[i, b] += weight * grad_out[o, b]


@njit(**INNER)
def _relu(x):
    for i in range(x.shape[0]):
        for b in range(x.shape[1]):
            x[i, b] = 0.0 if x[i, b] < 0 else x[i, b]


@njit(**INNER)
def _relu_backward(x, scale, grad):
    """The gradient after a ReLU (and dropout, which multiplied kept units by ``scale``) becomes that before it."""
    for i in range(x.shape[0]):
        for b in range(x.shape[1]):
            grad[i, b] = 0.0 if x[i, b] <= 0 else grad[i, b] * scale


@njit(**INNER)
def _rows(p, n, d_out):
    """Output rows of a hypernetwork that hold mean and rho of parameter p; n of the P are weights."""
    return (p, n + p) if p < n else (n + p, n + p + d_out)


@njit(**INNER)
def _distribution(w, bias, z, d_out, floor, outputs, slope):
    """A layer's weights: outputs w z + bias of its hypernetwork, w flat (2P h), in (2P, B), with sigma in place of rho.

    slope, dsigma/drho, has P rows, the biases' last, and may have no columns.
    """
    rows, n = outputs.shape[0], outputs.shape[0] // 2 - d_out
    np.dot(w.reshape(rows, z.shape[0]), z, outputs)
    for q in range(rows):
        for b in range(z.shape[1]):
            outputs[q, b] += bias[q]
    softplus(outputs[n : 2 * n].reshape(-1), slope[:n].reshape(-1), floor)
    softplus(outputs[rows - d_out :].reshape(-1), slope[n:].reshape(-1), floor)


@njit(**INNER)
def _sample_fdn(outputs, eps, a, at, out):
    """out = W a + b, (W, b) = mean + sigma eps, for the columns of :func:`_distribution`, from ``at`` on."""
    d_in, d_out, batch = a.shape[0], out.shape[0], outputs.shape[1]
    n = d_in * d_out
    for o in range(d_out):
        m, s, e = 2 * n + o, 2 * n + d_out + o, eps[n + o]
        for b in range(batch):
            out[o, at + b] = outputs[m, b] + outputs[s, b] * e
        for i in range(0, d_in - 1, 2):
            m = o * d_in + i
            s, e, f = n + m, eps[m], eps[m + 1]
            for b in range(batch):
                first = (outputs[m, b] + outputs[s, b] * e) * a[i, at + b]
                out[o, at + b] += first + (outputs[m + 1, b] + outputs[s + 1, b] * f) * a[i + 1, at + b]
        if d_in % 2:
            m = (o + 1) * d_in - 1
            s, e = n + m, eps[m]
            for b in range(batch):
                out[o, at + b] += (outputs[m, b] + outputs[s, b] * e) * a[d_in - 1, at + b]


@njit(**INNER)
def _sample_fdn_backward(
    grad_out, kl_weight, precision, w, z, a, eps, outputs, slope, need_a,
    grad_outputs, grad_w, grad_bias, grad_z, grad_a,
):  # fmt: skip
    """Sets the gradients of outputs, w, bias and z, and adds that of a.

    ``kl_weight`` is the KL's weight for each example.
    """
    d_in, batch = a.shape
    h, d_out = z.shape[0], grad_out.shape[0]
    n = d_in * d_out
    for o in range(d_out):
        for i in range(d_in + 1):
            p = o * d_in + i if i < d_in else n + o
            m, s = _rows(p, n, d_out)
            e, mean_sum, rho_sum = eps[p], 0.0, 0.0
            for b in range(batch):
                g = grad_out[o, b] * (a[i, b] if i < d_in else 1.0)
                grad_mean = g + kl_weight * outputs[m, b] * precision  # dKL/dmu = mu / s0^2
                # dKL/dsigma = sigma / s0^2 - 1 / sigma
                grad_rho = (g * e + kl_weight * (outputs[s, b] * precision - 1 / outputs[s, b])) * slope[p, b]
                grad_outputs[m, b], grad_outputs[s, b] = grad_mean, grad_rho
                mean_sum += grad_mean
                rho_sum += grad_rho
            grad_bias[m], grad_bias[s] = mean_sum, rho_sum
            if need_a and i < d_in:
                for b in range(batch):
                    grad_a[i, b] += (outputs[m, b] + outputs[s, b] * e) * grad_out[o, b]
    np.dot(grad_outputs, z.T, grad_w.reshape(2 * slope.shape[0], h))
    np.dot(w.reshape(2 * slope.shape[0], h).T, grad_outputs, grad_z)


@njit(**INNER)
def _hypernet_parts(parameters, at, signal, h, n_outputs):
    """Hidden weight and bias, output weight and bias, flat, from where a hypernetwork begins."""
    one = at + h * signal
    two, three = one + h, one + h + n_outputs * h
    return parameters[at:one], parameters[one:two], parameters[two:three], parameters[three : three + n_outputs]


@njit(**INNER)
def _sample_global(layer, parameters, eps, exponential, floor, z, mean, scale, slope, theta):
    """theta = mean + scale eps of a layer whose weights are the same for all examples; z (h, 1)."""
    p, d_out, at = theta.size, layer[D_OUT], layer[PARAMETERS]
    if layer[KIND] == POINT:
        theta[:] = parameters[at : at + p]
        return
    if layer[KIND] == FREE:
        mean[:], scale[:] = parameters[at : at + p], parameters[at + p : at + 2 * p]
    else:
        latent = parameters[at : at + layer[SIGNAL]].copy().reshape(layer[SIGNAL], 1)
        hidden_w, hidden_b, w, bias = _hypernet_parts(
            parameters, at + layer[SIGNAL], layer[SIGNAL], layer[HYPER], 2 * p
        )
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
        softplus(scale, slope, floor)
    for q in range(p):
        theta[q] = mean[q] + scale[q] * eps[q]


@njit(**INNER)
def _sample_global_backward(layer, parameters, grad_theta, beta, precision, eps, z, mean, scale, slope, grad):
    """Sets the gradients of the layer's parameters in grad."""
    p, d_out, at = grad_theta.size, layer[D_OUT], layer[PARAMETERS]
    if layer[KIND] == POINT:
        grad[at : at + p] = grad_theta
        return
    grad_outputs = np.empty((2 * p, 1))
    free = layer[KIND] == FREE
    for q in range(p):
        mean_row, rho_row = (q, p + q) if free else _rows(q, p - d_out, d_out)
        grad_outputs[mean_row, 0] = grad_theta[q] + beta * mean[q] * precision
        grad_outputs[rho_row, 0] = (grad_theta[q] * eps[q] + beta * (scale[q] * precision - 1 / scale[q])) * slope[q]
    if free:
        grad[at : at + 2 * p] = grad_outputs[:, 0]
        return
    signal, h = layer[SIGNAL], layer[HYPER]
    latent, grad_latent = parameters[at : at + signal].copy().reshape(signal, 1), np.zeros((signal, 1))
    hidden_w, _, w, _ = _hypernet_parts(parameters, at + signal, signal, h, 2 * p)
    grad_hidden_w, grad_hidden_b, grad_w, grad_b = _hypernet_parts(grad, at + signal, signal, h, 2 * p)
    grad_z = np.zeros((h, 1))
    _affine_backward(w, z, grad_outputs, grad_w, grad_b, True, grad_z)
    _relu_backward(z, 1.0, grad_z)
    _affine_backward(hidden_w, latent, grad_z, grad_hidden_w, grad_hidden_b, True, grad_latent)
    grad[at : at + signal] = grad_latent[:, 0]


@njit(**INNER)
def _clip(grad, limit):
    total = 0.0
    for i in range(grad.size):
        total += grad[i] * grad[i]
    factor = limit / (math.sqrt(total) + 1e-6)
    if factor < 1:
        for i in range(grad.size):
            grad[i] *= factor


@njit(**INNER)
def _adam(parameters, grad, first, second, step, rate):
    """Adam with beta = (0.9, 0.999) and epsilon = 1e-8 (Kingma and Ba, 2015, algorithm 1)."""
    size, root = rate / (1 - 0.9**step), math.sqrt(1 - 0.999**step)
    for i in range(grad.size):
        first[i] = 0.9 * first[i] + 0.1 * grad[i]
        second[i] = 0.999 * second[i] + 0.001 * grad[i] * grad[i]
        parameters[i] -= size * first[i] / (math.sqrt(second[i]) / root + 1e-8)


class _Work(NamedTuple):
    """What a step keeps of one replicate: of an FDN's weights for every example, of others' one of each."""

    a: np.ndarray  # inputs of all layers, (units, B)
    grad_a: np.ndarray
    z: np.ndarray  # hidden units of all hypernetworks, (units, B or 1)
    grad_z: np.ndarray  # of one hypernetwork
    outputs: np.ndarray  # FDN: means and sigmas, (2P, B)
    grad_outputs: np.ndarray
    slope: np.ndarray  # FDN: dsigma/drho, (P, B)
    mean: np.ndarray  # others: (P,)
    scale: np.ndarray
    scale_slope: np.ndarray
    theta: np.ndarray
    grad_theta: np.ndarray


@njit(**INNER)
def _weights(layer):
    """Where a layer's weights and biases lie among those of all layers."""
    return slice(layer[WEIGHTS], layer[WEIGHTS] + layer[D_OUT] * (layer[D_IN] + 1))


@njit(**INNER)
def _forward(layer, parameters, eps, exponential, floor, work, out):
    """A layer's outputs, (d_out, B), with weights drawn by eps, (all P,)."""
    d_in, d_out, h, signal, p = layer[D_IN], layer[D_OUT], layer[HYPER], layer[SIGNAL], _weights(layer)
    inputs, hidden = work.a[layer[INPUTS] : layer[INPUTS] + d_in], work.z[layer[HIDDEN] : layer[HIDDEN] + h]
    if layer[KIND] >= INPUT:
        n_outputs, rows = 2 * d_out * (d_in + 1), slice(2 * p.start, 2 * p.stop)
        hidden_w, hidden_b, w, bias = _hypernet_parts(parameters, layer[PARAMETERS], signal, h, n_outputs)
        _affine(hidden_w, hidden_b, inputs if layer[KIND] == PREVIOUS else work.a[:signal], hidden)
        _relu(hidden)
        _distribution(w, bias, hidden, d_out, floor, work.outputs[rows], work.slope[p])
        _sample_fdn(work.outputs[rows], eps[p], inputs, 0, out)
    else:
        theta, n = work.theta[p], d_out * d_in
        gaussian = work.mean[p], work.scale[p], work.scale_slope[p]
        _sample_global(layer, parameters, eps[p], exponential, floor, hidden, *gaussian, theta)
        _affine(theta[:n], theta[n:], inputs, out)


@njit(**INNER)
def _backward(layer, parameters, eps, beta, precision, need_a, grad_out, work, grad):
    """Sets the gradients of a layer's parameters in grad and adds that of its inputs to work's."""
    d_in, d_out, h, signal, p = layer[D_IN], layer[D_OUT], layer[HYPER], layer[SIGNAL], _weights(layer)
    before, hidden = slice(layer[INPUTS], layer[INPUTS] + d_in), work.z[layer[HIDDEN] : layer[HIDDEN] + h]
    inputs, grad_inputs = work.a[before], work.grad_a[before]
    if layer[KIND] >= INPUT:
        n_outputs, at, rows = 2 * d_out * (d_in + 1), layer[PARAMETERS], slice(2 * p.start, 2 * p.stop)
        hidden_w, _, w, _ = _hypernet_parts(parameters, at, signal, h, n_outputs)
        grad_hidden_w, grad_hidden_b, grad_w, grad_b = _hypernet_parts(grad, at, signal, h, n_outputs)
        _sample_fdn_backward(
            grad_out, beta / grad_out.shape[1], precision, w, hidden, inputs, eps[p], work.outputs[rows], work.slope[p],
            need_a, work.grad_outputs[rows], grad_w, grad_b, work.grad_z[:h], grad_inputs,
        )  # fmt: skip
        _relu_backward(hidden, 1.0, work.grad_z[:h])
        previous = layer[KIND] == PREVIOUS
        conditioned_on, need_signal = inputs if previous else work.a[:signal], previous and need_a
        _affine_backward(
            hidden_w, conditioned_on, work.grad_z[:h], grad_hidden_w, grad_hidden_b, need_signal, grad_inputs
        )
    else:
        theta, grad_theta, n = work.theta[p], work.grad_theta[p], d_out * d_in
        _affine_backward(theta[:n], inputs, grad_out, grad_theta[:n], grad_theta[n:], need_a, grad_inputs)
        gaussian = work.mean[p], work.scale[p], work.scale_slope[p]
        _sample_global_backward(layer, parameters, grad_theta, beta, precision, eps[p], hidden, *gaussian, grad)


@njit(**FAST)
def train(
    layers, flat, x, y, eps, keep, beta, dropout, exponential, floor, prior_scale, clip, rate, step, first, second,
    grads, memory,
):  # fmt: skip
    """The gradient of every replicate, (R, n), and, for step > 0, an update of flat (R, n) and Adam's moments.

    x (R' or R, B, d) and y (R' or R, B), where R' divides R and consecutive replicates share them; eps (R, all P), keep
    (R, hidden units, B) or empty; clip <= 0: none; memory: 5 numbers for every weight and example of an FDN, else 5.
    """
    n_layers, batch, last = len(layers), x.shape[1], layers[-1]
    n_weights, n_inputs = last[WEIGHTS] + last[D_OUT] * (last[D_IN] + 1), last[INPUTS] + last[D_IN]
    rows, columns = (n_weights, batch) if layers[0, KIND] >= INPUT else (1, 1)
    size = rows * columns
    work = _Work(
        np.empty((n_inputs, batch)), np.empty((n_inputs, batch)),
        np.empty((last[HIDDEN] + last[HYPER], columns)), np.empty((max(layers[:, HYPER]), columns)),
        memory[: 2 * size].reshape(2 * rows, columns), memory[3 * size : 5 * size].reshape(2 * rows, columns),
        memory[2 * size : 3 * size].reshape(rows, columns),
        np.empty(n_weights), np.empty(n_weights), np.empty(n_weights), np.empty(n_weights), np.empty(n_weights),
    )  # fmt: skip
    out, grad_out = np.empty((1, batch)), np.empty((1, batch))
    precision, kept_scale = 1 / prior_scale**2, 1 / (1 - dropout)
    for r in range(len(flat)):
        rx = r // (len(flat) // len(x))
        for i in range(layers[0, D_IN]):
            for b in range(batch):
                work.a[i, b] = x[rx, b, i]
        for l in range(n_layers):
            d_out, at = layers[l, D_OUT], layers[l, INPUTS] + layers[l, D_IN]
            after = out if l == n_layers - 1 else work.a[at : at + d_out]
            _forward(layers[l], flat[r], eps[r], exponential, floor, work, after)
            if l < n_layers - 1:
                _relu(after)
                if keep.size:
                    unit = at - layers[0, D_IN]  # read here: in the loop it would keep the loop from being vectorised
                    for i in range(d_out):
                        for b in range(batch):
                            after[i, b] *= kept_scale if keep[r, unit + i, b] else 0.0
        for b in range(batch):
            grad_out[0, b] = 2 * (out[0, b] - y[rx, b]) / batch
        work.grad_a[:, :] = 0.0
        for l in range(n_layers - 1, -1, -1):
            incoming = grad_out
            if l < n_layers - 1:
                at = layers[l, INPUTS] + layers[l, D_IN]
                units = slice(at, at + layers[l, D_OUT])
                incoming = work.grad_a[units]
                _relu_backward(work.a[units], kept_scale if keep.size else 1.0, incoming)
            _backward(layers[l], flat[r], eps[r], beta, precision, l > 0, incoming, work, grads[r])
        if step > 0:
            if clip > 0:
                _clip(grads[r], clip)
            _adam(flat[r], grads[r], first[r], second[r], step, rate)


@njit(**FAST)
def draw(layers, parameters, x, eps, floor, y):
    """Draws of a network of FDN layers: x (B, d), eps (K, all P) to y (K, B, d_out).

    What no draw changes is computed once. With the mean and the spreads of the first layer's outputs all its draws are
    one matrix product.
    """
    batch, draws, first, last, n_layers = x.shape[0], len(eps), layers[0], layers[-1], len(layers)
    n_blocks = -(-batch // _EXAMPLES)
    # whole vectors; the columns after a block's examples hold those of the block before
    block = -(-batch // (8 * n_blocks)) * 8
    # draws of the first layer, of the others
    many, few = min(draws, max(1, _COLUMNS // block)), min(draws, max(1, _CACHED // block))
    n_weights, d = last[WEIGHTS] + last[D_OUT] * (last[D_IN] + 1), x.shape[1]
    outputs, slope = np.empty((2 * n_weights, block)), np.empty((n_weights, 0))  # of layers that no draw changes
    columns = np.zeros((d, block))
    terms, factors = np.empty((first[D_OUT], d + 2, block)), np.empty((first[D_OUT], draws, d + 2))
    drawn = np.empty((first[D_OUT], many, block))  # by the first layer
    # the outputs of the layers, each contiguous
    work = np.empty((last[INPUTS] + last[D_IN] + last[D_OUT]) * few * block)
    for o in range(first[D_OUT]):
        for k in range(draws):
            factors[o, k, 0], factors[o, k, 1] = 1.0, eps[k, d * first[D_OUT] + o]
            for i in range(d):
                factors[o, k, 2 + i] = eps[k, o * d + i]
    for start in range(0, batch, block):
        for i in range(d):
            for b in range(min(block, batch - start)):
                columns[i, b] = x[start + b, i]
        for l in range(n_layers):
            if l == 0 or layers[l, KIND] == INPUT:
                p = _weights(layers[l])
                w, bias, z = _hypernet(layers[l], parameters, columns)
                _distribution(w, bias, z, layers[l, D_OUT], floor, outputs[2 * p.start : 2 * p.stop], slope[p])
        _first_layer_terms(outputs, columns, terms)
        for k in range(draws):
            if k % many == 0:
                n = min(many, draws - k)
                for o in range(first[D_OUT]):
                    np.dot(factors[o, k : k + n], terms[o], drawn[o, :n])
            if k % many % few > 0:
                continue
            n = min(few, draws - k, many - k % many)
            after = work[: first[D_OUT] * n * block].reshape(first[D_OUT], n * block)
            for o in range(first[D_OUT]):
                for j in range(n):
                    for b in range(block):
                        value = drawn[o, k % many + j, b]
                        after[o, j * block + b] = 0.0 if value < 0 and n_layers > 1 else value
            for l in range(1, n_layers):
                layer = layers[l]
                p = _weights(layer)
                at = (layer[INPUTS] - d + layer[D_IN]) * n * block
                inputs, after = after, work[at : at + layer[D_OUT] * n * block].reshape(layer[D_OUT], n * block)
                if layer[KIND] == INPUT:
                    for j in range(n):
                        _sample_fdn(outputs[2 * p.start : 2 * p.stop], eps[k + j, p], inputs, j * block, after)
                else:
                    w, bias, z = _hypernet(layer, parameters, inputs)
                    _sample_previous(w, bias, z, inputs, eps[k : k + n, p], floor, after)
                if l < n_layers - 1:
                    _relu(after)
            for j in range(n):
                for b in range(min(block, batch - start)):
                    for o in range(last[D_OUT]):
                        y[k + j, start + b, o] = after[o, j * block + b]


@njit(**INNER)
def _hypernet(layer, parameters, signal):
    """Output weight, flat, and bias of a layer's hypernetwork, and its hidden activations (h, B) at signals (d, B)."""
    n_outputs = 2 * layer[D_OUT] * (layer[D_IN] + 1)
    hidden_w, hidden_b, w, bias = _hypernet_parts(parameters, layer[PARAMETERS], layer[SIGNAL], layer[HYPER], n_outputs)
    z = np.dot(hidden_w.reshape(layer[HYPER], layer[SIGNAL]), signal)
    for i in range(z.shape[0]):
        for b in range(z.shape[1]):
            value = z[i, b] + hidden_b[i]
            z[i, b] = 0.0 if value < 0 else value
    return w, bias, z


@njit(**INNER)
def _first_layer_terms(outputs, x, terms):
    """Of each output: its mean, then the spreads that its bias and weights bring, which noise multiplies.

    (d_out, 2 + d_in, B).
    """
    (d_in, batch), d_out = x.shape, terms.shape[0]
    n = d_in * d_out
    for o in range(d_out):
        for b in range(batch):
            terms[o, 0, b], terms[o, 1, b] = outputs[2 * n + o, b], outputs[2 * n + d_out + o, b]
        for i in range(d_in):
            m = o * d_in + i
            for b in range(batch):
                terms[o, 0, b] += outputs[m, b] * x[i, b]
                terms[o, 2 + i, b] = outputs[n + m, b] * x[i, b]


@njit(**INNER)
def _sample_previous(w, bias, z, a, eps, floor, out):
    """:func:`_distribution` and :func:`_sample_fdn` in one.

    The columns of z, a and out are those of draws, one after the other.
    """
    d_in, h, d_out, draws = a.shape[0], z.shape[0], out.shape[0], len(eps)
    n, batch = d_in * d_out, a.shape[1] // draws
    mean, rho, slope = np.empty(a.shape[1]), np.empty(a.shape[1]), np.empty(0)
    for o in range(d_out):
        for i in range(-1, d_in):
            p = n + o if i < 0 else o * d_in + i
            mean_row, rho_row = _rows(p, n, d_out)
            weighted_sum(w, mean_row * h, bias[mean_row], z, h, mean)
            weighted_sum(w, rho_row * h, bias[rho_row], z, h, rho)
            softplus(rho, slope, floor)
            for k in range(draws):
                e = eps[k, p]
                if i < 0:
                    for b in range(k * batch, (k + 1) * batch):
                        out[o, b] = mean[b] + rho[b] * e
                else:
                    for b in range(k * batch, (k + 1) * batch):
                        out[o, b] += (mean[b] + rho[b] * e) * a[i, b]


@njit(**FAST)
def draw_weights(layers, parameters, eps, exponential, floor, theta):
    """Draws of a network's weights that are the same for all examples: eps to theta, (K, all P)."""
    last = layers[-1]
    n = last[WEIGHTS] + last[D_OUT] * (last[D_IN] + 1)
    mean, scale, slope, z = np.empty(n), np.empty(n), np.empty(n), np.empty((last[HIDDEN] + last[HYPER], 1))
    for l in range(len(layers)):
        layer = layers[l]
        p = _weights(layer)
        hidden = z[layer[HIDDEN] : layer[HIDDEN] + layer[HYPER]]
        _sample_global(
            layer, parameters, eps[0, p], exponential, floor, hidden, mean[p], scale[p], slope[p], theta[0, p]
        )
    for k in range(len(eps)):
        for q in range(n):
            theta[k, q] = mean[q] + scale[q] * eps[k, q]
