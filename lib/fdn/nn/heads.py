"""Gaussian likelihoods for one or more targets, and what their draws say together (paper, appendix D)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal

from fdn.errors import UserError
from fdn.settings import Count, NonNegative, checked


class Predictive(NamedTuple):
    """Mean and covariance of p(y | x), a mixture over K draws, in the units of y: :meth:`GaussianHead.predictive`."""

    mean: Tensor  # (..., B, d_y)
    aleatoric: Tensor  # (..., B, d_y, d_y), mean of the likelihood's covariance
    epistemic: Tensor  # (..., B, d_y, d_y), covariance of its mean over the draws (divided by K)

    @property
    def covariance(self) -> Tensor:
        """Cov[Y | x] = aleatoric + epistemic, ``(..., B, d_y, d_y)``."""
        return self.aleatoric + self.epistemic


class GaussianHead(nn.Module):
    r"""p(y | x, theta) = N(y; mu, Sigma) of what a network puts out.

    ========== ============================================== =================== ==========================
    covariance Sigma                                          outputs D_y         noise
    ========== ============================================== =================== ==========================
    fixed      ``variance`` I, diag ``variance`` or a matrix  d_y                 homoscedastic
    isotropic  sigma^2 I                                      d_y + 1             heteroscedastic, as below
    diagonal   diag sigma^2                                   2 d_y               sigma = floor + softplus(rho)
    full       L L^T, L lower triangular                      d_y (d_y + 3) / 2   L_ii = floor + softplus(rho_i)
    ========== ============================================== =================== ==========================

    Outputs are the mean, then rho, then the entries of L below the diagonal, row by row.

    Args:
        n_targets: d_y.
        covariance: see the table.
        variance: of ``"fixed"``: a number, ``(d_y,)`` or ``(d_y, d_y)``.
        floor: least standard deviation (of L's diagonal).
        log_variance_range: log sigma^2 is clipped to it (stability trick ii).
        rho_decay: weight of the mean of rho^2 in :meth:`nll` (stability trick i).

    Raises:
        UserError: for options that do not go together.

    Source: paper, appendix D.

    >>> head = GaussianHead(3, "full")
    >>> head.n_outputs
    9
    >>> head(torch.zeros(5, 9)).covariance_matrix.shape
    torch.Size([5, 3, 3])
    """

    root: Tensor  # L of "fixed", (d_y, d_y)

    def __init__(
        self, n_targets: int = 1, covariance: str = "diagonal", *, variance: float | Tensor = 1.0, floor: float = 1e-3,
        log_variance_range: tuple[float, float] | None = None, rho_decay: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        d = self.n_targets = checked("n_targets", n_targets, Count)
        self.covariance = checked("covariance", covariance, Literal["fixed", "isotropic", "diagonal", "full"])
        self.floor, self.rho_decay = checked("floor", floor, NonNegative), checked("rho_decay", rho_decay, NonNegative)
        self.log_variance_range = log_variance_range
        if log_variance_range is not None and not log_variance_range[0] < log_variance_range[1]:
            raise UserError(f"log_variance_range is {log_variance_range}; expected (low, high)")
        self.n_rho = {"fixed": 0, "isotropic": 1}.get(self.covariance, d)
        self.n_outputs = d + self.n_rho + (d * (d - 1) // 2 if self.covariance == "full" else 0)
        if self.covariance == "fixed":
            variance = torch.as_tensor(variance, dtype=torch.get_default_dtype())
            if variance.shape not in ((), (d,), (d, d)):
                raise UserError(f"variance has shape {tuple(variance.shape)}; expected a number, ({d},) or ({d}, {d})")
            root, failed = torch.linalg.cholesky_ex(variance if variance.dim() == 2 else variance.expand(d).diag())
            if failed:
                raise UserError("variance is not positive definite")
            self.register_buffer("root", root, persistent=False)

    def _rho(self, output: Tensor) -> Tensor:
        return output[..., self.n_targets : self.n_targets + self.n_rho]

    def forward(self, output: Tensor) -> Distribution:
        """The likelihood at outputs ``(..., D_y)``: a distribution over ``(d_y,)`` of batch shape ``(...)``.

        Raises:
            UserError: for outputs of another width.
        """
        d = self.n_targets
        if output.shape[-1] != self.n_outputs:
            raise UserError(f"outputs have shape {tuple(output.shape)}; expected (..., {self.n_outputs})")
        mean = output[..., :d]
        if self.covariance == "fixed":
            return MultivariateNormal(mean, scale_tril=self.root.to(output), validate_args=False)
        sigma = self.floor + F.softplus(self._rho(output))  # (..., 1 or d_y)
        if self.log_variance_range is not None:
            sigma = (2 * sigma.log()).clamp(*self.log_variance_range).mul(0.5).exp()
        sigma = sigma.expand_as(mean)
        if self.covariance != "full":
            return Independent(Normal(mean, sigma, validate_args=False), 1, validate_args=False)
        below = torch.tril_indices(d, d, -1, device=output.device)
        root = sigma.diag_embed()
        root[..., below[0], below[1]] = output[..., 2 * d :]
        return MultivariateNormal(mean, scale_tril=root, validate_args=False)

    def nll(self, output: Tensor, y: Tensor) -> Tensor:
        """-log N(y; mu, Sigma) in nats, ``(..., B)``, plus the decay on rho; y ``(..., B, d_y)``.

        Raises:
            UserError: for targets of another shape (which would broadcast).
        """
        if y.shape[-1:] != (self.n_targets,) or y.dim() < output.dim() - 1 or y.shape[-2:-1] != output.shape[-2:-1]:
            given, expected = tuple(y.shape), f"(..., B, {self.n_targets})"
            raise UserError(f"targets {given} do not fit outputs {tuple(output.shape)}; expected {expected}")
        nll = -self(output).log_prob(y)
        return nll + self.rho_decay * self._rho(output).square().mean(-1) if self.rho_decay and self.n_rho else nll

    def predictive(self, outputs: Tensor) -> Predictive:
        """Mean, and aleatoric and epistemic covariance, of draws ``(K, ..., D_y)``.

        Source: paper, appendix D, "Predictive variance decomposition" and "Monte Carlo estimators".

        >>> GaussianHead(2).predictive(torch.zeros(100, 5, 4)).covariance.shape  # K = 100 draws at 5 points
        torch.Size([5, 2, 2])
        """
        each = self(outputs)
        mean = each.mean.mean(0)
        apart = each.mean - mean  # (K, ..., d_y)
        sigma = each.covariance_matrix if isinstance(each, MultivariateNormal) else each.variance.diag_embed()
        epistemic = torch.einsum("k...i,k...j->...ij", apart, apart) / len(outputs)
        return Predictive(mean, sigma.mean(0), epistemic)
