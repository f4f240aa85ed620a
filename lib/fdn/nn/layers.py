"""The FDN layer as a module that stands where ``nn.Linear`` does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fdn.errors import UserError
from fdn.models.posteriors import FDNLinear as Full
from fdn.models.structures import StructuredFDNLinear
from fdn.nn import passes
from fdn.settings import Count, Whole, checked


class FDNLinear(nn.Module):
    r"""``nn.Linear`` with weights drawn from a Gaussian that a small hypernetwork makes of a signal s.

    (mu, rho) = A(s), sigma = floor + softplus(rho), (W, b) = mu + sigma eps, y = W x + b.

    It takes inputs ``(..., in_features)`` with any batch axes and returns ``(..., out_features)``, each position with
    fresh noise; inside :func:`fdn.nn.forward` and :func:`fdn.nn.sample` noise is theirs, and the KL is reported.

    Args:
        in_features, out_features, bias: as of ``nn.Linear``.
        condition: s is the layer's own input (``"layer"``, LP-FDNet), the network's input (``"input"``, IC-FDNet; of
            ``input_features``, by default ``in_features``, numbers for an example), or a signal of the given width
            that is passed as ``context``.
        hyper: width of the hypernetwork, or an ``nn.Linear`` from the signal that several layers share.
        structure: what the hypernetwork makes: the ``"full"`` matrix, ``"low_rank"`` factors of rank ``rank``, or
            ``"rows"`` or ``"columns"`` one by one; see :class:`fdn.models.structures.StructuredFDNLinear`.
        residual: add ordinary weights, which the generated ones perturb.
        activation: of the hypernetwork, ``"relu"``, or ``"tanh"``, which keeps weights bounded far from the data.
        frequencies: the hypernetwork sees the signal's sines and cosines at so many octaves too.
        init_sigma: standard deviation of the weights at the start: a number, or ``"auto"``, 0.1 / sqrt(in_features);
            None for what PyTorch's initialisation of the hypernetwork gives, as in the published runs (about 0.69:
            deep or wide networks explode).
        prior_scale: sigma_0 of the prior N(0, sigma_0^2): a number (the paper has 1), or ``"fan_in"``,
            1 / sqrt(in_features).
        floor: least standard deviation.

    Raises:
        UserError: for a value outside its range, or options that do not go together.

    Source: paper, section 3.2; structures: appendix G; frequencies: sections 5 and 6.

    >>> layer = FDNLinear(4, 2)
    >>> layer(torch.randn(5, 3, 4)).shape
    torch.Size([5, 3, 2])
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, condition: str | int = "layer",
        input_features: int | None = None, hyper: int | nn.Linear = 8, structure: str = "full",
        rank: int | None = None, residual: bool = False, activation: str = "relu", frequencies: int = 0,
        init_sigma: float | str | None = "auto", prior_scale: float | str = "fan_in", floor: float = 1e-3,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        d_in, d_out = checked("in_features", in_features, Count), checked("out_features", out_features, Count)
        self.in_features, self.out_features, self.bias = d_in, d_out, checked("bias", bias, bool)
        if condition not in ("layer", "input"):
            condition = checked("condition, unless 'layer' or 'input',", condition, Count)
        if input_features is not None and condition != "input":
            raise UserError(f"input_features is {input_features}; it goes with condition='input' alone")
        input_features = d_in if input_features is None else checked("input_features", input_features, Count)
        self.condition = condition
        self.signal_features = condition if isinstance(condition, int) else input_features
        n_seen = self.signal_features * (2 * checked("frequencies", frequencies, Whole) + 1)
        if not isinstance(hyper, nn.Module):
            hyper = checked("hyper", hyper, Count)
        elif getattr(hyper, "in_features", None) != n_seen:
            raise UserError(f"hyper is {hyper}; expected a width, or an nn.Linear of the signal's {n_seen} features")
        signal = "layer" if condition == "layer" else "input"
        arguments = d_in, d_out, hyper, signal, self.signal_features, floor, prior_scale
        options: dict[str, Any] = {"init_sigma": init_sigma, "activation": activation, "frequencies": frequencies}
        if (structure, rank, residual, bias) == ("full", None, False, True):
            self.posterior: Any = Full(*arguments, **options)
        else:
            options |= {"structure": structure, "rank": rank, "residual": residual, "bias": bias}
            self.posterior = StructuredFDNLinear(*arguments, **options)
        self.to(device=device, dtype=dtype)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Outputs ``(..., out_features)`` at x ``(..., in_features)``.

        Args:
            context: the signal, ``(..., width)`` with leading axes that broadcast to x's: needed for a condition of a
                given width, allowed for ``"input"``.

        Raises:
            UserError: for a signal that is missing, not asked for, or of another width.
        """
        run, lead = passes.current(), x.shape[:-1]
        a = run.rows(x, self.in_features)  # (K, rows, d_in)
        s = self._signal(a, lead, context, run).to(a.dtype)  # (K or 1, rows, d_signal)
        eps = run.normal(self.posterior, a.shape[1], a)
        y, kl = self.posterior(a, s, run.noise, eps, run.kl)  # (K, rows, d_out), (k, rows)
        run.record(kl, lead, any(p.requires_grad for p in self.parameters()))
        return y.reshape(*lead, self.out_features)

    def _signal(self, a: Tensor, lead: torch.Size, context: Tensor | None, run: passes.Pass) -> Tensor:
        if self.condition == "layer":
            if context is not None:
                raise UserError("FDNLinear(condition='layer') sees its own input; context goes with another condition")
            return a
        if context is None and self.condition == "input":
            return run.network_input(lead, self.signal_features)
        if context is None or context.shape[-1] != self.signal_features:
            given = "none" if context is None else f"one of shape {tuple(context.shape)}"
            raise UserError(f"the layer needs a context (..., {self.signal_features}), and was given {given}")
        return context.expand(*lead, self.signal_features).reshape(*a.shape[:2], self.signal_features)

    @torch.no_grad()
    def start_at(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Begin with the weights ``(d_out, d_in)`` and biases of a trained layer as the mean, whatever the signal.

        Raises:
            UserError: for a structure that cannot.
        """
        self.posterior.start_at(weight, bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, condition={self.condition!r}"
