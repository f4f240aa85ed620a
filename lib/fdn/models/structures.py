"""FDN layers whose hypernetwork makes less than a whole weight matrix (paper, appendix G, "Architectural trade-offs").

They stand where :class:`fdn.models.posteriors.FDNLinear` does. The fused op does not know them: the Gaussian's
parameters of every example are written out, (K, B, P) numbers.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fdn.errors import UserError
from fdn.models.posteriors import Hypernet, Output, check_columns, fourier_features, initial_rho, prior_scale_of
from fdn.settings import Count, NonNegative, Whole, checked
from fdn_kernels import WeightGaussian, affine, gaussian_linear
from fdn_kernels.backends import HALF
from fdn_kernels.ops import LARGE
from fdn_kernels.reference import kl_term


class Factor(NamedTuple):
    """One drawn matrix of a layer, with or without biases."""

    d_in: int
    d_out: int
    bias: bool
    prior_scale: float

    @property
    def n_weights(self) -> int:
        return self.d_out * (self.d_in + self.bias)

    def draw(self, q: WeightGaussian, a: Tensor, noise: str, eps: Tensor | None, kl: str) -> Output:
        """The factor applied to a, ``(..., K, B, d_out)``, and its KL; q ``(..., k, B, n_weights)``."""
        term = kl_term(q, kl, eps, self.prior_scale)
        if not self.bias:  # biases that are 0 for certain
            q = WeightGaussian(*(_with_zeros(t, self.d_out) for t in q))
            eps = eps if eps is None or noise == "local" else _with_zeros(eps, self.d_out)
        return gaussian_linear(a, q, noise=noise, eps=eps), term


def _with_zeros(t: Tensor, n: int) -> Tensor:
    return torch.cat([t, t.new_zeros(*t.shape[:-1], n)], -1)


class StructuredFDNLinear(nn.Module):
    r"""The FDN layer with another generator of the same kind of distribution.

    ========== ====================================================== ==================================
    structure  weights                                                outputs of the hypernetwork
    ========== ====================================================== ==================================
    full       W, each weight by an output of its own                 2 (d_in d_out + d_out)
    low_rank   W = U V^T, Gaussians over U (d_out, r), V (d_in, r)    2 (r d_in + r d_out + d_out)
    rows       row i from (s, e_i), e_i learned, one network for all  2 (d_in + 1), d_out times
    columns    column j, the biases being one more, from (s, e_j)     2 d_out, d_in + 1 times
    ========== ====================================================== ==================================

    Args:
        d_in, d_out, hyper, condition, d_signal, floor, prior_scale, init_sigma, activation, frequencies: as in
            :class:`fdn.models.posteriors.FDNLinear`; ``"fan_in"`` and ``"auto"`` are those of each factor.
        structure: see the table.
        rank: r of ``"low_rank"``, and of no other.
        residual: add ordinary weights W_0, b_0: what is generated then perturbs them, from a mean of 0 at the start
            (the adapters of appendix G).
        bias: False for a layer without biases (``"full"`` and ``"low_rank"``).

    Raises:
        UserError: for options that do not go together.

    Source: paper, appendix G. The embedding e enters the hypernetwork's hidden layer, z = relu(V s + v + e).
    """

    sampled = True
    per_example = True

    def __init__(
        self, d_in: int, d_out: int, hyper: int | nn.Linear, condition: str, d_signal: int, floor: float,
        prior_scale: float | str, *, structure: str, rank: int | None = None, residual: bool = False,
        bias: bool = True, init_sigma: float | str | None = "auto", activation: str = "relu", frequencies: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.d_in, self.d_out, self.condition = d_in, d_out, checked("condition", condition, Literal["input", "layer"])
        self.structure = checked("structure", structure, Literal["full", "low_rank", "rows", "columns"])
        self.floor = checked("floor", floor, NonNegative)
        self.frequencies = checked("frequencies", frequencies, Whole)
        if (rank is None) == (structure == "low_rank"):
            raise UserError(f"rank is {rank} and structure {structure!r}; a rank goes with 'low_rank' alone")
        if not bias and structure in ("rows", "columns"):
            raise UserError(f"structure {structure!r} makes biases too; bias=False goes with 'full' and 'low_rank'")

        shapes = [(d_in, d_out, bias)]
        if structure == "low_rank":
            rank = checked("rank", rank, Count)
            shapes = [(d_in, rank, False), (rank, d_out, bias)]
        self.factors = [Factor(*shape, prior_scale_of(prior_scale, shape[0])) for shape in shapes]
        self.striped = structure in ("rows", "columns")
        self.pieces = {"rows": d_out, "columns": d_in + 1}.get(structure, 1)  # runs of the hypernetwork's output
        d_signal = (d_signal if condition == "input" else d_in) * (2 * self.frequencies + 1)
        self.hypernet = Hypernet(d_signal, hyper, 2 * self.n_weights // self.pieces, activation)
        if self.striped:
            self.embedding = nn.Parameter(torch.randn(self.pieces, self.hypernet.hidden.out_features))
        self.base = nn.Linear(d_in, d_out, bias) if residual else None
        if init_sigma is not None:
            self._start(init_sigma)

    @property
    def n_weights(self) -> int:
        """Weights and biases that are drawn."""
        return sum(factor.n_weights for factor in self.factors)

    @property
    def n_local(self) -> int:
        """Outputs that are drawn with local noise, those of a first factor included."""
        return sum(factor.d_out for factor in self.factors)

    @property
    def products(self) -> int:
        """Multiply-accumulates of the drawn and ordinary weights with one input."""
        own = sum(factor.d_in * factor.d_out for factor in self.factors)
        return own + (self.d_in * self.d_out if self.base is not None else 0)

    @torch.no_grad()
    def _start(self, init_sigma: float | str) -> None:
        """Means as of ``nn.Linear``, the same for every s, and standard deviations of ``init_sigma``.

        What perturbs ordinary weights has the mean 0, by its last factor. The means of rows and columns differ from the
        start, by their embeddings.
        """
        output, m = self.hypernet.output, self.n_weights // self.pieces
        output.weight.zero_()
        if self.striped and self.base is None:
            output.weight[:m].uniform_(-1, 1).mul_((self.d_in * output.in_features) ** -0.5)
        for factor, (mean, rho) in zip(self.factors, self._parts(output.bias)):
            rho.fill_(initial_rho(init_sigma, factor.d_in, self.floor))
            mean.uniform_(-1, 1).mul_(factor.d_in**-0.5 if not self.striped else 0)
        if self.base is not None:
            mean.zero_()

    def _parts(self, t: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Means and rhos of each factor, of parameters laid out (means, rhos) along the last axis."""
        sizes = [factor.n_weights for factor in self.factors] if not self.striped else t.shape[-1] // 2
        means, rhos = t.chunk(2, -1)
        return list(zip(means.split(sizes, -1), rhos.split(sizes, -1)))

    @torch.no_grad()
    def start_at(self, weight: Tensor, bias: Tensor | None) -> None:
        """Begin with trained weights ``(d_out, d_in)`` and biases ``(d_out,)`` as the mean, whatever the signal.

        With ordinary weights they are these. Without, ``"low_rank"`` takes the nearest matrix of its rank.

        Raises:
            UserError: for rows and columns without ordinary weights, which cannot be given a mean.
        """
        if self.striped and self.base is None:
            raise UserError(f"structure {self.structure!r} cannot start at trained weights; add residual=True")
        output, biases = self.hypernet.output, [] if bias is None else [bias]
        means = [mean for mean, _ in self._parts(output.bias)]
        output.weight[: self.n_weights // self.pieces] = 0
        if self.base is not None:
            for own, given in zip(self.base.parameters(), [weight, *biases]):
                own.copy_(given)
            means[-1].zero_()
            return
        matrices = [weight]
        if self.structure == "low_rank":
            rank = self.factors[0].d_out
            u, size, v = torch.linalg.svd(weight.double(), full_matrices=False)  # weight = u size v
            halves = u * size.sqrt(), v.mT * size.sqrt()
            u, v = (F.pad(t, (0, max(0, rank - t.shape[1])))[:, :rank] for t in halves)
            matrices = [v.mT, u]
        for mean, matrix in zip(means, matrices):
            mean[: matrix.numel()] = matrix.flatten()
        if biases:
            means[-1][-len(bias) :] = bias

    def gaussians(self, s: Tensor) -> list[WeightGaussian]:
        """The factors' distributions at signals ``(..., k, B, d_signal)``, each ``(..., k, B, n_weights)``."""
        net, batch = self.hypernet, s.shape[-2]
        if not self.striped:
            out = net(s)  # (..., k, B, 2 n_weights)
        else:
            v = affine(s, net.hidden.weight, net.hidden.bias).unsqueeze(-2)  # (..., k, B, 1, h)
            z = v + self.embedding[..., None, None, :, :]  # (..., k, B, pieces, h)
            z = z.relu() if net.activation == "relu" else z.tanh()
            out = affine(z.flatten(-3, -2), net.output.weight, net.output.bias).unflatten(-2, (batch, self.pieces))
        found = []
        for part in self._parts(out):
            mean, rho = (self._in_order(t.float() if t.dtype in HALF else t) for t in part)  # (..., k, B, n_weights)
            found.append(WeightGaussian(mean, self.floor + F.softplus(rho)))
        return found

    def _in_order(self, t: Tensor) -> Tensor:
        """Rows ``(..., d_out, d_in + 1)`` or columns ``(..., d_in + 1, d_out)`` as ``(..., P)``, biases last."""
        if self.structure == "rows":
            return torch.cat([t[..., :-1].flatten(-2), t[..., -1]], -1)
        if self.structure == "columns":
            return torch.cat([t[..., :-1, :].mT.flatten(-2), t[..., -1, :]], -1)
        return t

    def forward(self, a: Tensor, x: Tensor, noise: str, eps: Tensor | None, kl: str) -> Output:
        """As :meth:`fdn.models.posteriors.FDNLinear.forward`."""
        check_columns(self, a)
        size = max(1, LARGE // (self.n_weights * max(1, a.shape[-3], x.shape[-3])))
        if not torch.compiler.is_compiling() and not torch.is_grad_enabled() and a.shape[-2] > size:
            blocks = a.split(size, -2), x.split(size, -2)
            noises = eps.split(size, -2) if eps is not None and noise != "shared" else (eps,) * len(blocks[0])
            outputs, found = zip(*(self(*block, noise, e, kl) for *block, e in zip(*blocks, noises)))
            return torch.cat(outputs, -2), None if kl == "none" else torch.cat(found, -1)
        s = fourier_features(x if self.condition == "input" else a, self.frequencies)
        sizes = [f.d_out if noise == "local" else f.n_weights for f in self.factors]
        parts = [None] * len(sizes) if eps is None else eps.split(sizes, -1)
        y, terms = a, []
        for factor, q, part in zip(self.factors, self.gaussians(s), parts):
            y, term = factor.draw(q, y, noise, part, kl)  # (..., K, B, d_out), (..., k, B)
            terms.append(term)
        if self.base is not None:
            weight, bias = self.base.weight, self.base.bias
            y = y + affine(a, weight, weight.new_zeros(weight.shape[:-1]) if bias is None else bias)
        return y, None if kl == "none" else sum(terms)
