"""Which training steps and draws the compiled loops of :mod:`fdn_kernels.numba_networks` compute, and calls to them.

A network of a thousand parameters takes a microsecond per example, and a tensor library a thousand times that per call.
So where the protocol is the usual one (float64 on the CPU, the beta-ELBO, one draw, shared noise, a homoscedastic
likelihood) a whole step, gradient by hand, clipping and Adam included, is one loop over the replicates. The numbers are
those of autograd up to rounding (``tests/training/test_fused.py``), which computes everything else.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from fdn.models import Network, Noise
from fdn.models.posteriors import FDNLinear, GaussianLinear, LatentGaussianLinear, PointLinear
from fdn.models.stacking import Stack
from fdn.protocol import Protocol
from fdn.training.objectives import HomoscedasticGaussian, Likelihood
from fdn_kernels import numba_networks, numba_ops
from fdn_kernels.loops import check_shapes


@functools.lru_cache(maxsize=16)
def _table(network: Network) -> np.ndarray | None:
    """The table of a network's layers; None where a layer is of another kind or the kinds are mixed."""
    rows, parameters, weights, hidden, inputs = [], 0, 0, 0, 0
    hypernets = [id(layer.hypernet.hidden) for layer in network.layers if hasattr(layer, "hypernet")]
    shared = len(set(hypernets)) < len(hypernets)
    for layer in network.layers:
        p, hyper, signal = layer.d_out * (layer.d_in + 1), 0, 0
        if type(layer) is PointLinear:
            kind, size = numba_networks.POINT, p
        elif type(layer) is GaussianLinear:
            kind, size = numba_networks.FREE, 2 * p
        elif type(layer) in (LatentGaussianLinear, FDNLinear):
            if layer.hypernet.activation != "relu" or getattr(layer, "frequencies", 0) or shared:
                return None
            hyper, signal = (layer.hypernet.hidden.out_features, layer.hypernet.hidden.in_features)
            size = (signal + 1) * hyper + (hyper + 1) * 2 * p
            if type(layer) is FDNLinear:
                kind = numba_networks.PREVIOUS if layer.condition == "layer" else numba_networks.INPUT
            else:
                kind, size = numba_networks.LATENT, size + signal
        else:
            return None
        rows.append((kind, layer.d_in, layer.d_out, hyper, signal, parameters, weights, hidden, inputs))
        parameters, weights, hidden, inputs = parameters + size, weights + p, hidden + hyper, inputs + layer.d_in
    return np.array(rows) if len({row[numba_networks.KIND] for row in rows}) == 1 else None


def _weights(table: np.ndarray) -> int:
    """Number of weights and biases of all layers, P."""
    last = table[-1]
    return int(last[numba_networks.WEIGHTS] + last[numba_networks.D_OUT] * (last[numba_networks.D_IN] + 1))


def draws(stack: Stack, row: Tensor, x: Tensor, noise: Noise, out: Tensor) -> bool:
    """Outputs of one network with sampled weights at x ``(N, d)``.

    False, and nothing done, for what the loops do not compute.

    Args:
        row: its parameters, ``(n,)``.
        noise: where weights depend on the example it must be shared by all of them.
        out: takes the outputs, ``(K, N, n_outputs)``.

    Raises:
        ValueError: for shapes that do not fit the network.
    """
    table, layers = _table(stack.network) if stack.network.noise_rho is None else None, stack.network.layers
    plain = all(t.dtype == torch.float64 and t.is_cpu for t in (row, x)) and row.dim() == 1 and x.numel() > 0
    if (
        table is None
        or table[0, numba_networks.KIND] == numba_networks.POINT
        or any(e is None or e.shape[1] > 1 for e in noise.eps)
    ):
        return False
    if not plain or not _takes(layers) or any(mask is not None for mask in noise.masks):
        return False
    eps, floor = torch.cat([e[:, 0] for e in noise.eps], 1).numpy(), layers[0].floor  # (K, all P)
    parameters, x = row.detach().contiguous().numpy(), x.detach().contiguous().numpy()
    sizes = {"A": stack.flat.shape[-1], "I": layers[0].d_in, "P": _weights(table), "O": layers[-1].d_out}
    check_shapes("draws", "A NI KP KNO", parameters, x, eps, out, **sizes)
    if table[0, numba_networks.KIND] >= numba_networks.INPUT:
        numba_networks.draw(table, parameters, x, eps, floor, out.numpy())
        return True
    theta, y = np.empty((1, *eps.shape)), np.empty((1, len(eps), layers[-1].d_out, len(x)))
    numba_networks.draw_weights(table, parameters, eps, layers[0].link == "exp", floor, theta[0])
    numba_ops.mlp(
        theta, np.array([table[0, numba_networks.D_IN], *table[:, numba_networks.D_OUT]]), x.T.copy()[None], y
    )
    out.copy_(torch.from_numpy(y[0]).mT)
    return True


def _takes(layers: Iterable[Module]) -> bool:
    """Whether the layers leave their backend open and have one floor."""
    floors = {layer.floor for layer in layers if layer.sampled and getattr(layer, "link", "softplus") == "softplus"}
    open_backend = {getattr(layer, "backend", "auto") for layer in layers} <= {"auto", "torch"}
    return open_backend and len(floors) <= 1


class FusedStep:
    """Training steps of a stack in compiled loops.

    Args:
        stack: its ``flat`` is updated in place.
        protocol: settings; see :meth:`supports`.
    """

    def __init__(self, stack: Stack, protocol: Protocol) -> None:
        self.layers, self.lead = _table(stack.network), stack.flat.shape[:-1]
        hidden, d_in = int(self.layers[:-1, numba_networks.D_OUT].sum()), stack.network.layers[0].d_in
        self.sizes = {"A": stack.flat.shape[-1], "I": d_in, "P": _weights(self.layers), "H": hidden}
        self.flat = stack.flat.detach().view(-1, stack.flat.shape[-1]).numpy()  # (R, n), the stack's own memory
        self.moments = np.zeros_like(self.flat), np.zeros_like(self.flat)
        self.grad = np.empty_like(self.flat)
        self.work = np.empty(0)  # kept: fresh pages for the weights of every example cost more than computing with them
        self.protocol, self.dropout, self.steps = protocol, stack.network.dropout, 0
        self.exponential = getattr(stack.network.layers[0], "link", "softplus") == "exp"

    @staticmethod
    def supports(stack: Stack, protocol: Protocol, likelihood: Likelihood) -> bool:
        """Whether the loops compute what the protocol asks for."""
        return (
            _table(stack.network) is not None and _takes(stack.network.layers)
            and (protocol.noise == "shared" or not stack.network.per_example_noise)
            and stack.flat.dtype == torch.float64 and stack.flat.is_cpu
            and protocol.objective == "elbo" and protocol.train_draws == 1
            and isinstance(protocol.prior_scale, float) and set(stack.network.kl_weights) == {1.0}
            and type(likelihood) is HomoscedasticGaussian  # a subclass may have another loss
        )  # fmt: skip

    def gradient(self, x: Tensor, y: Tensor, noise: Noise, beta: float) -> Tensor:
        """Gradient of the loss of every replicate, ``(R, n)``; arguments as in :meth:`__call__`."""
        self._run(x, y, noise, beta, 0)
        return torch.from_numpy(self.grad.copy())

    def __call__(self, x: Tensor, y: Tensor, noise: Noise, beta: float, rate: float, weight: None = None) -> None:
        """One step on a minibatch.

        Args:
            x: inputs ``(*lead, B, d)``; an axis of ``lead`` may be 1.
            y: targets ``(*lead, B)``.
            noise: of the pass.
            beta: weight of the KL.
            rate: learning rate.
            weight: of the examples; there are none here.

        Raises:
            ValueError: for shapes that do not fit the stack.
        """
        self.steps += 1
        self._run(x, y, noise, beta, self.steps, rate)

    def _run(self, x: Tensor, y: Tensor, noise: Noise, beta: float, step: int, rate: float = 0.0) -> None:
        p, r, batch = self.protocol, len(self.flat), x.shape[-2]
        if not x.shape[:-2] == y.shape[:-1] in (self.lead, (*self.lead[:-1], 1)):  # neighbours may share a minibatch
            x, y = x.expand(*self.lead, *x.shape[-2:]), y.expand(*self.lead, y.shape[-1])
        eps = [e.reshape(r, -1) for e in noise.eps if e is not None]
        eps = torch.cat(eps, 1) if eps else torch.empty(r, self.sizes["P"], dtype=torch.float64, device="cpu")
        masks = [m.mT.reshape(r, -1, batch) for m in noise.masks if m is not None]
        keep = torch.cat(masks, 1) if masks else torch.empty(0, 0, 0, dtype=torch.bool, device="cpu")
        tensors = x.reshape(-1, *x.shape[-2:]), y.reshape(-1, y.shape[-1]), eps.double(), keep
        arrays = [t.contiguous().numpy() for t in tensors]
        layout = "RA XBI XB RP RHB" if masks else "RA XBI XB RP 000"
        check_shapes("train", layout, self.flat, *arrays, **self.sizes, R=r)
        size = 5 * (eps.shape[1] * batch if self.layers[0, numba_networks.KIND] >= numba_networks.INPUT else 1)
        self.work = self.work if self.work.size >= size else np.empty(size)
        numba_networks.train(
            self.layers, self.flat, *arrays, beta, float(self.dropout), self.exponential,
            p.floor, p.prior_scale, -1.0 if p.clip_norm is None else p.clip_norm, rate, step, *self.moments,
            self.grad, self.work,
        )  # fmt: skip
