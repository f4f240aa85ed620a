"""The one network skeleton: layer, ReLU, layer; and the random numbers of a forward pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fdn.devices import to_device
from fdn.models.posteriors import noise_shape
from fdn.streams import Streams
from fdn_kernels import mlp


class Noise(NamedTuple):
    """The random numbers of one forward pass."""

    kind: str  # "shared", "independent", "local" or "none"
    eps: tuple[Tensor | None, ...] = ()  # per layer, (..., K, 1 or B, P or d_out)
    masks: tuple[Tensor | None, ...] = ()  # per hidden activation, (..., K, B, d), True where kept

    def to(self, device: torch.device) -> Noise:
        """The same numbers on a device."""
        if device.type == "cpu":
            return self
        eps, masks = (tuple(None if t is None else to_device(t, device) for t in part) for part in self[1:])
        return Noise(self.kind, eps, masks)


class Network(nn.Module):
    """Layer, ReLU, layer, ... , layer; the layers say how their weights are distributed.

    Args:
        layers: weight posteriors of :mod:`fdn.models.posteriors`, first to last.
        dropout: rate on hidden activations in training.
        predict_with_dropout: whether masks are drawn in prediction too.
        kl_weights: of each layer's KL in their sum; None for 1 (paper, appendix B, the remark on layer-specific beta).
        temperature: factor of the weights' standard deviation in prediction (paper, section 6).
        noise_rho: where the rho of the observations' noise starts, one more output, learned, the same for every input;
            None for none.

    Attributes:
        functions: whether in prediction a draw's noise and masks are the same for all examples, one function of them.
    """

    functions = False

    def __init__(
        self, layers: list[nn.Module], dropout: float = 0.0, predict_with_dropout: bool = False,
        kl_weights: Sequence[float] | None = None, temperature: float = 1.0, noise_rho: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers: Any = nn.ModuleList(layers)
        self.dropout, self.predict_with_dropout = dropout, predict_with_dropout
        self.kl_weights, self.temperature = tuple(kl_weights or (1.0,) * len(layers)), temperature
        self.noise_rho = None if noise_rho is None else nn.Parameter(torch.full((1,), noise_rho))

    @property
    def n_outputs(self) -> int:
        """Numbers for an example: the last layer's, and the rho of its noise where that is learned."""
        return self.layers[-1].d_out + (self.noise_rho is not None)

    @property
    def stochastic(self) -> bool:
        """Whether two predictions differ."""
        return any(layer.sampled for layer in self.layers) or self.dropout > 0 and self.predict_with_dropout

    @property
    def draws_masks_late(self) -> bool:
        """Whether predictions draw dropout masks for each example, which is done for one replicate at a time."""
        return self.dropout > 0 and self.predict_with_dropout and not self.functions

    @property
    def per_example_noise(self) -> bool:
        """Whether some layer's weight distribution depends on the example (so that noise can be fresh per example)."""
        return any(layer.sampled and layer.per_example for layer in self.layers)

    @property
    def global_weights(self) -> bool:
        """Whether every layer's weights are the same for all examples."""
        return all(hasattr(layer, "sample") for layer in self.layers)

    def draw_noise(
        self, streams: Streams, kind: str, draws: int, batch: int, training: bool, same_pass: Noise | None = None
    ) -> Noise:
        """Noise of the given kind for ``draws`` Monte Carlo draws over ``batch`` examples.

        ``same_pass`` is the noise of earlier examples of the same pass: what is drawn once per pass is taken from it.
        """
        eps, hidden = [], [layer.d_out for layer in list(self.layers)[:-1]]
        functions = self.functions and not training

        def for_all(t: Tensor) -> Tensor:
            return t[..., :1, :].expand(*t.shape[:-2], batch, t.shape[-1])

        for i, layer in enumerate(self.layers):
            shape = noise_shape(layer, kind, draws, 1 if functions else batch)
            once = kind == "shared" or not (layer.sampled and layer.per_example)
            if same_pass is not None and (once or functions):
                drawn = same_pass.eps[i]
            else:
                drawn = None if shape is None else streams.normal(*shape)
                drawn = drawn if drawn is None or training or self.temperature == 1 else self.temperature * drawn
            eps.append(drawn if once or not functions else for_all(drawn))
        masked = self.dropout > 0 and (training or self.predict_with_dropout)
        if masked and functions:
            masks = same_pass.masks if same_pass else [streams.keep(self.dropout, draws, d, 1).mT for d in hidden]
            masks = tuple(map(for_all, masks))
        else:
            masks = tuple(streams.keep(self.dropout, draws, d, batch).mT if masked else None for d in hidden)
        return Noise(kind, tuple(eps), masks)

    def forward(self, x: Tensor, noise: Noise | None = None, kl: str = "none") -> tuple[Tensor, Tensor | None]:
        """Outputs and KL.

        Args:
            x: inputs, ``(..., B, d_in)``.
            noise: from :meth:`draw_noise`; None propagates the mean weights.
            kl: ``"analytic"``, ``"sampled"`` or ``"none"``.

        Returns:
            outputs ``(..., K, B, n_outputs)`` and the KL summed over layers, ``(..., k, b)`` with k in {1, K}, b in
            {1, B}; None where it was not asked for or no layer has one.

        Raises:
            ValueError: for inputs of another width, or noise for another number of layers.

        Source: paper, algorithm 1 (inner loop over layers).
        """
        noise, n, d = Noise("none") if noise is None else noise, len(self.layers), self.layers[0].d_in
        if x.dim() < 2 or x.shape[-1] != d or len(noise.eps) not in (0, n) or len(noise.masks) not in (0, n - 1):
            raise ValueError(
                f"a network of {n} layers takes inputs (..., B, {d}), and noise of {n} eps or none and {n - 1} masks "
                f"or none; given inputs {tuple(x.shape)}, {len(noise.eps)} eps and {len(noise.masks)} masks"
            )
        eps, masks = noise.eps or (None,) * n, noise.masks or (None,) * (n - 1)
        if self.global_weights:
            drawn = [layer.sample(noise.kind, e, kl) for layer, e in zip(self.layers, eps)]
            widths = [self.layers[0].d_in, *(layer.d_out for layer in self.layers)]
            output = mlp(x, [theta for theta, _ in drawn], widths, masks, self.dropout)
            return self._with_rho(output), self._sum_kl([term for _, term in drawn])
        x = x.unsqueeze(-3)  # (..., 1, B, d_in)
        a, terms = x, []
        for i, layer in enumerate(self.layers):
            if i > 0:
                a = a.relu() if torch.is_grad_enabled() else a.relu_()  # (..., K, B, d)
                a = a if masks[i - 1] is None else a * masks[i - 1] / (1 - self.dropout)
            a, term = layer(a, x, noise.kind, eps[i], kl)  # (..., K, B, d_out), (..., k, b)
            terms.append(term)
        return self._with_rho(a), self._sum_kl(terms)

    def _with_rho(self, output: Tensor) -> Tensor:
        """``(..., K, B, n_outputs)``"""
        if self.noise_rho is None:
            return output
        rho = self.noise_rho[..., None, None, :]  # (..., 1, 1, 1)
        return torch.cat([output, rho.expand(*output.shape[:-1], 1)], -1)

    def _sum_kl(self, terms: list[Tensor | None]) -> Tensor | None:
        """Of layers that have one, by their weights."""
        weighted = zip(terms, self.kl_weights)
        found = [term if weight == 1 else weight * term for term, weight in weighted if term is not None]
        return functools.reduce(torch.add, found) if found else None

    def predict_with_masks(self, x: Tensor, streams: Streams, draws: int) -> Tensor:
        """Outputs ``(K, B, d_out)`` of point weights at x ``(B, d_in)``, with dropout masks for each draw and example.

        Only units that are not 0 are given a mask, so how many numbers the streams (of one replicate) give depends on
        the activations.
        """
        first, *others = self.layers
        a, _ = first(x.unsqueeze(-3), x, "none", None, "none")  # (1, B, d)
        for layer in others:
            a = layer.after_dropout(a.relu_(), streams, self.dropout, draws)  # (K, B, d)
        return a
