"""The public ops: they check their arguments, choose a backend and say nothing about models."""

from __future__ import annotations

from torch import Tensor

from fdn_kernels import reference, torch_ops
from fdn_kernels.reference import WeightGaussian

NOISES = ("shared", "independent", "local", "none")
KLS = ("analytic", "sampled", "none")
_BACKENDS = {"auto": torch_ops, "torch": torch_ops, "reference": reference}


def gaussian_linear(
    a: Tensor, q: WeightGaussian, *, noise: str, eps: Tensor | None = None, backend: str = "auto"
) -> Tensor:
    r"""Linear layer with Gaussian weights, y = W a + b with (W, b) ~ q.

    Args:
        a: inputs, ``(..., K or 1, B, d_in)``.
        q: the weights' distribution, ``(..., k, b, P)`` with ``k`` in {1, K} and ``b`` in {1, B}.
        noise: ``"shared"`` (theta = mu + sigma eps, one eps per weight and draw, used for every example),
            ``"independent"`` (a fresh eps per example), ``"local"`` (the distribution of ``independent``, drawn after
            the matvec: y ~ N(mu_W a + mu_b, sigma_W^2 a^2 + sigma_b^2)) or ``"none"`` (the mean).
        eps: standard normal numbers, ``(..., K, 1, P)`` for shared, ``(..., K, B, P)`` for independent,
            ``(..., K, B, d_out)`` for local, ``None`` for none.
        backend: ``"auto"``, ``"torch"`` or ``"reference"``.

    Returns:
        y, ``(..., K, B, d_out)``.

    Raises:
        ValueError: for an unknown noise or backend, or noise of another shape.

    Source: paper, section 3.2 (sampling by reparameterisation).
    """
    d_in = a.shape[-1]
    _check(a, q.mean.shape[-1] // (d_in + 1), d_in, noise, eps, "none", backend)
    return _BACKENDS[backend].gaussian_linear(a, q, noise, eps)


def fdn_linear(
    a: Tensor,
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    noise: str,
    eps: Tensor | None = None,
    kl: str = "analytic",
    floor: float = 1e-3,
    prior_scale: float = 1.0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    r"""One FDN layer: weights drawn from N(mu(s), sigma(s)^2), applied to a, with their KL to N(0, prior_scale^2).

    (mu_W, rho_W, mu_b, rho_b) = weight z + bias, sigma = floor + softplus(rho), theta = mu + sigma eps, y = W a + b,
    where z is the hypernetwork's hidden activation at the conditioning signal s.

    Args:
        a: layer inputs, ``(..., K or 1, B, d_in)``.
        z: hypernetwork hidden activations, ``(..., 1, B, h)`` (IC: the same for all draws) or ``(..., K, B, h)`` (LP).
        weight, bias: output layer of the hypernetwork, ``(..., 2P, h)`` and ``(..., 2P)``, in the order weight means,
            weight rhos, bias means, bias rhos. Leading dimensions are replicates.
        noise, eps, backend: as in :func:`gaussian_linear`.
        kl: ``"analytic"`` (closed form), ``"sampled"`` (log q - log p0 at the draw; needs shared or independent noise) or
            ``"none"``.
        floor: added to softplus(rho).
        prior_scale: standard deviation of the prior, sigma_0.

    Returns:
        y ``(..., K, B, d_out)`` and the KL summed over the layer's weights and biases, ``(..., k, B)`` (None for ``kl="none"``).

    Raises:
        ValueError: for an unknown noise, kl or backend, shapes that do not fit, or a sampled KL without sampled weights.

    Source: paper, section 3.2 and algorithm 1; the local form is exact because each sampled weight is used once.
    """
    d_in, n_out = a.shape[-1], weight.shape[-2]
    if n_out % (2 * (d_in + 1)) or bias.shape[-1] != n_out or z.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"fdn_linear: weight (..., 2P, h) = {tuple(weight.shape)} with bias {tuple(bias.shape)} does not fit inputs of "
            f"width d_in = {d_in} and z of width {z.shape[-1]}; 2P must be a multiple of 2 (d_in + 1)"
        )
    _check(a, n_out // (2 * (d_in + 1)), d_in, noise, eps, kl, backend)
    return _BACKENDS[backend].fdn_linear(a, z, weight, bias, noise, eps, kl, floor, prior_scale)


def _check(a: Tensor, d_out: int, d_in: int, noise: str, eps: Tensor | None, kl: str, backend: str) -> None:
    for value, allowed, name in ((noise, NOISES, "noise"), (kl, KLS, "kl"), (backend, tuple(_BACKENDS), "backend")):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")
    if kl == "sampled" and noise not in ("shared", "independent"):
        raise ValueError(f"a sampled KL needs sampled weights: noise 'shared' or 'independent', not {noise!r}")
    if noise == "none":
        return
    batch = a.shape[-2]
    expected = {
        "shared": (1, d_out * (d_in + 1)),
        "independent": (batch, d_out * (d_in + 1)),
        "local": (batch, d_out),
    }[noise]
    if eps is None or eps.dim() < 3 or tuple(eps.shape[-2:]) != expected or a.shape[-3] not in (1, eps.shape[-3]):
        given = None if eps is None else tuple(eps.shape)
        raise ValueError(
            f"{noise} noise for inputs (..., K, B, d_in) = {tuple(a.shape)} has shape (..., K, {expected[0]}, {expected[1]}); "
            f"given {given}"
        )
