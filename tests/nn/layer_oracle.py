"""An FDN layer written out in float64, example by example, from its parameters: what the tests hold layers to."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from fdn.nn import FDNLinear

# every structure, with what it needs; "full" goes through the fused op
STRUCTURES = {
    "full": {},
    "full, tanh": {"activation": "tanh"},
    "full, Fourier": {"frequencies": 2},
    "full, no bias": {"bias": False},
    "full, residual": {"residual": True},
    "low rank": {"structure": "low_rank", "rank": 2},
    "low rank, no bias": {"structure": "low_rank", "rank": 2, "bias": False},
    "low rank, residual": {"structure": "low_rank", "rank": 2, "residual": True},
    "rows": {"structure": "rows"},
    "rows, residual": {"structure": "rows", "residual": True},
    "columns": {"structure": "columns"},
    "columns, tanh": {"structure": "columns", "activation": "tanh"},
}


def layer_of(name: str, d_in: int = 3, d_out: int = 2, dtype=torch.float64, **options) -> FDNLinear:
    """A layer with parameters that are nowhere 0 or alike."""
    layer = FDNLinear(d_in, d_out, hyper=4, dtype=dtype, **STRUCTURES[name], **options)
    generator = torch.Generator().manual_seed(d_in)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(0.6 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return layer


def gaussians(layer: FDNLinear, s: Tensor) -> list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]]:
    """Of one signal ``(d_signal,)``: mean and standard deviation of each factor's matrix and of its biases."""
    q, net = layer.posterior, layer.posterior.hypernet
    structure, d_in, d_out = getattr(q, "structure", "fused"), layer.in_features, layer.out_features
    parts = [s]
    for trigonometric in (torch.sin, torch.cos):
        parts += [trigonometric(s * (2**j * math.pi)) for j in range(q.frequencies)]
    activation = {"relu": torch.relu, "tanh": torch.tanh}[net.activation]
    hidden = net.hidden.weight @ torch.cat(parts) + net.hidden.bias

    def output(extra: Tensor | float = 0.0) -> Tensor:
        return net.output.weight @ activation(hidden + extra) + net.output.bias

    def sigma(rho: Tensor) -> Tensor:
        return q.floor + (1 + rho.exp()).log()

    if structure == "fused":
        mw, rw, mb, rb = output().split([d_in * d_out, d_in * d_out, d_out, d_out])
        return [(mw.view(d_out, d_in), sigma(rw).view(d_out, d_in), mb, sigma(rb))]
    if structure == "rows":
        rows = torch.stack([output(e) for e in q.embedding])  # (d_out, 2 (d_in + 1))
        mean, rho = rows[:, : d_in + 1], rows[:, d_in + 1 :]
        return [(mean[:, :-1], sigma(rho[:, :-1]), mean[:, -1], sigma(rho[:, -1]))]
    if structure == "columns":
        columns = torch.stack([output(e) for e in q.embedding])  # (d_in + 1, 2 d_out)
        mean, rho = columns[:, :d_out].T, columns[:, d_out:].T
        return [(mean[:, :-1], sigma(rho[:, :-1]), mean[:, -1], sigma(rho[:, -1]))]
    shapes = [(2, d_in), (d_out, 2)] if structure == "low_rank" else [(d_out, d_in)]
    mean, rho = output().chunk(2)
    found, start = [], 0
    for i, (n, m) in enumerate(shapes):
        weight = slice(start, start + n * m)
        bias = slice(start + n * m, start + n * m + (n if layer.bias and i == len(shapes) - 1 else 0))
        start = bias.stop
        biases = (mean[bias], sigma(rho[bias])) if bias.start < bias.stop else (None, None)
        found.append((mean[weight].view(n, m), sigma(rho[weight]).view(n, m), *biases))
    return found


def forward(layer: FDNLinear, a: Tensor, s: Tensor, eps: Tensor | None, noise: str) -> tuple[Tensor, Tensor]:
    """Output ``(d_out,)`` and KL of one example, with its noise of the kind asked for."""
    y, kl, used = a, torch.zeros((), dtype=a.dtype), 0
    for mw, sw, mb, sb in gaussians(layer, s):
        n, m = mw.shape
        for mean, std in ((mw, sw), (mb, sb)):
            if mean is not None:
                kl = kl + kl_divergence(Normal(mean, std), Normal(torch.zeros_like(mean), m**-0.5)).sum()
        if noise == "none":
            y = mw @ y + (0 if mb is None else mb)
        elif noise == "local":
            e, used = eps[used : used + n], used + n
            variance = sw.square() @ y.square() + (0 if sb is None else sb.square())
            y = mw @ y + (0 if mb is None else mb) + variance.sqrt() * e
        else:
            size = n * m + (0 if mb is None else n)
            e, used = eps[used : used + size], used + size
            weight = mw + sw * e[: n * m].view(n, m)
            y = weight @ y + (0 if mb is None else mb + sb * e[n * m :])
    base = getattr(layer.posterior, "base", None)
    return y if base is None else y + base(a), kl
