"""The public ops: they check their arguments, choose a backend and say nothing about models.

``fdn_linear`` brings its arguments into one canonical form (one replicate axis, explicit draws) for the registered op
``torch.ops.fdn.linear``, which compilers, function transforms and the Triton kernel see. Small problems on the torch
backends skip it: there the time goes into calls, not into numbers.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import NamedTuple

import torch
from torch import Tensor

from fdn_kernels import philox, reference, registered
from fdn_kernels.backends import BACKENDS, HALF, choose, computed_type, is_autocast
from fdn_kernels.reference import WeightGaussian
from fdn_kernels.registered import MODULES

NOISES = ("shared", "independent", "local", "none")
KLS = ("analytic", "sampled", "none")
PRECISIONS = ("tf32x3", "tf32", "ieee")  # the default first
LARGE = 1 << 23  # hypernetwork outputs or sampled weights that are not held all at once


class Moments(NamedTuple):
    """Mean and variance of a layer's output given its input and the conditioning signal."""

    mean: Tensor  # (..., K, B, d_out)
    variance: Tensor  # (..., K, B, d_out)


def gaussian_linear(
    a: Tensor,
    q: WeightGaussian,
    *,
    noise: str,
    draws: int | None = None,
    eps: Tensor | None = None,
    seed: int | Tensor | None = None,
    stream: int = 0,
    backend: str = "auto",
) -> Tensor:
    r"""Linear layer with Gaussian weights, y = W a + b with (W, b) ~ q.

    Args:
        a: inputs, ``(..., K or 1, B, d_in)``, or ``(..., B, d_in)`` without the draw axis.
        q: the weights' distribution, ``(..., k, b, P)`` with ``k`` in {1, K} and ``b`` in {1, B}.
        noise: ``"shared"`` (theta = mu + sigma eps, one eps per weight and draw, used for every example),
            ``"independent"`` (a fresh eps per example), ``"local"`` (the distribution of ``independent``, drawn after
            the matvec: y ~ N(mu_W a + mu_b, sigma_W^2 a^2 + sigma_b^2)) or ``"none"`` (the mean; eps and seed are
            ignored).
        eps: standard normal numbers, ``(..., K, 1, P)`` for shared, ``(..., K, B, P)`` for independent,
            ``(..., K, B, d_out)`` for local; may be differentiated, as a and q.
        seed: instead of eps: an int, or an int64 tensor with one seed per replicate; equal seeds give equal noise. (In
            a CUDA graph: a tensor on the device, since an int is fixed at capture.) Independent noise from a seed is
            computed as local, its distribution with d_in + 1 times fewer numbers.
        draws: K, where neither eps nor a nor q says it.
        stream: keeps apart layers or passes that share a seed.
        backend: ``"auto"``, ``"torch"`` or ``"reference"``.

    Returns:
        y, ``(..., K, B, d_out)``; half types are computed in float32.

    Raises:
        ValueError: for an unknown noise or backend, both or neither of eps and seed, or shapes that do not fit.

    Source: paper, section 3.2 (sampling by reparameterisation).
    """
    if a.dim() == q.mean.dim() - 1:
        a = a.unsqueeze(-3)  # (..., 1, B, d_in)
    batch, d_in = a.shape[-2:]
    d_out, p = q.mean.shape[-1] // (d_in + 1), q.mean.shape[-1]
    if (
        a.dim() < q.mean.dim()
        or p != d_out * (d_in + 1)
        or q.scale.shape != q.mean.shape
        or q.mean.shape[-2] not in (1, batch)
    ):
        raise ValueError(
            f"gaussian_linear: inputs (..., K, B, d_in) = {tuple(a.shape)} do not fit weights (..., k, b, P) = "
            f"{tuple(q.mean.shape)} of scales {tuple(q.scale.shape)}; P must be a multiple of d_in + 1, b is 1 or B, "
            "and replicates of q are replicates of a"
        )
    _check_choices(noise, "none", PRECISIONS[0], backend)
    if backend == "triton":
        raise ValueError("gaussian_linear has no backend 'triton'; use 'auto', 'torch' or 'reference'")
    noise, eps, seed, draws = _resolve_noise(noise, eps, seed, draws, stream, "none", a, q.mean.shape[-3], d_out)
    if draws > 1 == a.shape[-3] == q.mean.shape[-3] and noise == "none":
        a = a.expand(*a.shape[:-3], draws, batch, d_in)
    dtype = a.dtype
    if dtype in HALF:
        a, q, eps = a.float(), WeightGaussian(*(t.float() for t in q)), eps if eps is None else eps.float()
    if seed is not None:
        eps = _noise_of_seed(seed, noise, draws, a, d_out, stream)
    return MODULES["torch" if backend == "auto" else backend].gaussian_linear(a, q, noise, eps).to(dtype)


def fdn_linear(
    a: Tensor,
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    noise: str,
    draws: int | None = None,
    eps: Tensor | None = None,
    seed: int | Tensor | None = None,
    stream: int = 0,
    kl: str = "analytic",
    moments: bool = False,
    floor: float = 1e-3,
    prior_scale: float = 1.0,
    precision: str = PRECISIONS[0],
    backend: str = "auto",
) -> tuple[Tensor | Moments, Tensor | None]:
    r"""One FDN layer: weights drawn from N(mu(s), sigma(s)^2), applied to a, with their KL to N(0, prior_scale^2).

    (mu_W, rho_W, mu_b, rho_b) = weight z + bias, sigma = floor + softplus(rho), theta = mu + sigma eps, y = W a + b,
    where z is the hypernetwork's hidden activation at the conditioning signal s.

    Args:
        a: layer inputs, ``(..., K or 1, B, d_in)``, or ``(..., B, d_in)`` without the draw axis: an a with as many
            dimensions as the weight has none, and its leading ones are replicates, however many draws are asked for.
        z: hypernetwork hidden activations, ``(..., 1, B, h)`` or ``(..., B, h)`` (IC: the same for all draws), or
            ``(..., K, B, h)`` (LP).
        weight, bias: output layer of the hypernetwork, ``(..., 2P, h)`` and ``(..., 2P)``, in the order weight means,
            weight rhos, bias means, bias rhos. Leading dimensions are replicates; those of all arguments broadcast, and
            a and z may have more of them.
        noise, draws, eps, seed, stream: as in :func:`gaussian_linear`. A sampled KL needs the weights: with it,
            independent noise from a seed stays independent. Derivatives of eps are for problems of moderate size,
            outside of Triton, compilation, function transforms and half types.
        kl: ``"analytic"`` (closed form), ``"sampled"`` (log q - log p0 at the draw; needs shared or independent noise)
            or ``"none"``.
        moments: with noise ``"none"``: the mean and the variance of y given a and z instead of a draw.
        floor: added to softplus(rho), a number of at least 0.
        prior_scale: standard deviation of the prior, sigma_0, from 1e-150 to 1e150.
        precision: of the Triton kernel's float32 matrix products: ``"tf32"``, ``"tf32x3"`` or ``"ieee"``.
        backend: ``"auto"`` (Triton on a GPU that runs it, else torch: :func:`fdn_kernels.backend_of` says which),
            ``"triton"``, ``"torch"`` or ``"reference"``.

    Returns:
        y ``(..., K, B, d_out)``, or the :class:`Moments` of y, and the KL summed over the layer's weights and biases,
        ``(..., k, B)``: k is K for LP or a sampled KL, else 1 (None for ``kl="none"``).

    float64, float32, bfloat16 and float16; half types are computed in float32, and their KL is float32. Under
    ``torch.autocast`` the four inputs are cast to its type.

    Raises:
        ValueError: for an unknown noise, kl, precision or backend, both or neither of eps and seed, inputs of different
            types, shapes that do not fit, a sampled KL without sampled weights, moments of a draw, or a floor or
            prior_scale outside its range.
        RuntimeError: for backend ``"triton"`` where it cannot run, and in the backward for a derivative of eps that is
            not computed.

    Source: paper, section 3.2 and algorithm 1; the local form is exact because each sampled weight is used once.
    """
    _check_choices(noise, kl, precision, backend)
    _check_numbers(floor, prior_scale)
    if moments and noise != "none":
        raise ValueError(f"moments are those of all draws together: they need noise 'none', not {noise!r}")
    inputs: tuple[Tensor, ...] = a, z, weight, bias
    source = noise, eps, seed, draws, stream
    settings = kl, moments, float(floor), float(prior_scale), precision, backend
    if not is_autocast(a):
        return _layer(inputs, source, *settings)
    inputs = tuple(t.to(computed_type(t)) for t in inputs)
    with torch.autocast(a.device.type, enabled=False):
        return _layer(inputs, source, *settings)


def _layer(
    inputs: tuple[Tensor, ...], source: tuple, kl: str, moments: bool, floor: float, prior_scale: float,
    precision: str, backend: str,
) -> tuple[Tensor | Moments, Tensor | None]:  # fmt: skip
    """:func:`fdn_linear` on inputs of the type to compute with; ``source`` is noise, eps, seed, draws and stream."""
    (a, z, weight, bias), (noise, eps, seed, draws, stream) = inputs, source
    dims = weight.dim()
    a = a.unsqueeze(-3) if a.dim() == dims else a  # (..., K or 1, B, d_in)
    z = z.unsqueeze(-3) if z.dim() == dims else z  # (..., K or 1, B, h)
    if (extra := a.dim() - dims - 1) > 0:  # one layer for replicates of its inputs
        weight, bias = weight[(None,) * extra], bias[(None,) * extra]
    lead, alike, z_draws, d_out = _check_inputs(a, z, weight, bias)
    noise, eps, seed, draws = _resolve_noise(noise, eps, seed, draws, stream, kl, a, z_draws, d_out)
    if noise == "none" and draws > 1 == z_draws == a.shape[-3]:
        a = a.expand(*a.shape[:-3], draws, *a.shape[-2:])
    if not alike or lead and (seed is not None or eps is not None and eps.shape[:-3] != lead):
        lead, a, z, weight, bias = _broadcast_replicates(lead, a, z, weight, bias, eps, seed)
    noise = "moments" if moments else noise
    backend = choose(a, z, kl, backend)
    if 0 in (*lead, a.shape[-2], d_out) and backend == "torch":  # nothing to be quick about
        backend = "reference"

    if not _is_direct(backend, a, z, weight, noise, draws, lead):
        settings = draws, noise, kl, floor, prior_scale, stream, precision, backend
        y, variance, term = registered.layer(lead, a, z, weight, bias, eps, seed, *settings)
    elif moments:
        q, matvec = reference.hypernet_gaussian(z, weight, bias, a.shape[-1], floor), MODULES[backend].matvec
        y, variance = matvec(q.mean, a), matvec(q.scale.square(), a.square())
        term = reference.gaussian_kl(q, prior_scale) if kl == "analytic" else None
    else:
        if seed is not None:
            eps = _noise_of_seed(seed, noise, draws, a, d_out, stream)
        y, term = MODULES[backend].fdn_linear(a, z, weight, bias, noise, eps, kl, floor, prior_scale)
    return (Moments(y, variance), term) if moments else (y, term)


# -- arguments ---------------------------------------------------------------------------------------------------------


def _is(value: object, kind: type) -> bool:
    """Whether a value is a number of this kind; a truth value is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_choices(noise: str, kl: str, precision: str, backend: str) -> None:
    for name, value, allowed in (
        ("noise", noise, NOISES), ("kl", kl, KLS), ("precision", precision, PRECISIONS), ("backend", backend, BACKENDS)
    ):  # fmt: skip
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")


def _check_numbers(floor: float, prior_scale: float) -> None:
    if not (_is(floor, Real) and 0 <= floor < math.inf):
        raise ValueError(f"floor is {floor!r}; expected a number of at least 0")
    if not (_is(prior_scale, Real) and 1e-150 <= prior_scale <= 1e150):
        raise ValueError(f"prior_scale is {prior_scale!r}; expected a positive number from 1e-150 to 1e150")


def _check_inputs(a: Tensor, z: Tensor, weight: Tensor, bias: Tensor) -> tuple[tuple[int, ...], bool, int, int]:
    """Replicate shape of the weight, whether the others' is the same, draws of z and d_out, of inputs that fit."""
    dims = weight.dim()
    if not 2 < dims + 1 == a.dim() == z.dim() == bias.dim() + 2:
        raise ValueError(
            f"fdn_linear: with weight (..., 2P, h) = {tuple(weight.shape)}, a is (..., K, B, d_in) or (..., B, d_in), "
            f"z alike and bias (..., 2P), with as many replicate dimensions; given {tuple(a.shape)}, "
            f"{tuple(z.shape)} and {tuple(bias.shape)}"
        )
    *lead, n_out, h = weight.shape
    *a_lead, _, batch, d_in = a.shape
    *z_lead, z_draws, z_batch, z_width = z.shape
    *bias_lead, n_bias = bias.shape
    d_out = n_out // (2 * (d_in + 1))  # divmod is not for torch.compile, whose sizes may be symbols
    if n_out != d_out * 2 * (d_in + 1) or n_bias != n_out or z_width != h or z_batch != batch:
        raise ValueError(
            f"fdn_linear: weight (..., 2P, h) = {tuple(weight.shape)} with bias {tuple(bias.shape)} does not fit "
            f"inputs (..., B, d_in) = {tuple(a.shape)} and z (..., B, h) = {tuple(z.shape)}; 2P must be a multiple of "
            "2 (d_in + 1)"
        )
    dtype = a.dtype
    if not dtype == z.dtype == weight.dtype == bias.dtype or not dtype.is_floating_point:
        raise ValueError(
            f"fdn_linear: a, z, weight and bias share one floating-point type, not {dtype}, {z.dtype}, "
            f"{weight.dtype} and {bias.dtype}"
        )
    return tuple(lead), lead == a_lead == z_lead == bias_lead, z_draws, d_out


def _resolve_noise(
    noise: str, eps: Tensor | None, seed: int | Tensor | None, draws: int | None, stream: int, kl: str,
    a: Tensor, q_draws: int, d_out: int,
) -> tuple[str, Tensor | None, int | Tensor | None, int]:  # fmt: skip
    """The noise to compute with, its eps or seed, and K."""
    if kl == "sampled" and noise not in ("shared", "independent"):
        raise ValueError(f"a sampled KL needs sampled weights: noise 'shared' or 'independent', not {noise!r}")
    *lead, a_draws, batch, d_in = a.shape
    if not (draws is None or _is(draws, Integral)):
        raise ValueError(f"draws is {draws!r}; expected a positive integer")
    k = draws
    if noise == "none":
        eps = seed = None
    elif (eps is None) == (seed is None):
        given = "neither" if eps is None else "both"
        raise ValueError(f"{noise} noise comes as eps or from a seed: give exactly one of them; {given} was given")
    elif eps is not None:
        examples = 1 if noise == "shared" else batch
        n = d_out if noise == "local" else d_out * (d_in + 1)
        shape = eps.shape
        if not 3 <= len(shape) <= len(lead) + 3 or shape[-2] != examples or shape[-1] != n:
            raise ValueError(
                f"{noise} noise for inputs (..., K, B, d_in) = {tuple(a.shape)} has shape (..., K, {examples}, {n}); "
                f"given {tuple(eps.shape)}"
            )
        if eps.dtype != a.dtype and not (a.dtype in HALF and eps.dtype == torch.float32):
            raise ValueError(f"eps has the type of the inputs, {a.dtype}, not {eps.dtype}")
        k = shape[-3]
    else:
        if isinstance(seed, Tensor):
            if seed.dtype != torch.int64 or seed.dim() > len(lead):
                raise ValueError(
                    f"seed is an int or an int64 tensor of at most {len(lead)} replicate dimensions, not {seed.dtype} "
                    f"of shape {tuple(seed.shape)}"
                )
        elif seed is None or not (_is(seed, Integral) and -(2**63) <= seed < 2**63):
            raise ValueError(f"seed is {seed}; expected a 64-bit signed integer")
        if not (_is(stream, Integral) and 0 <= stream < 2**32):
            raise ValueError(f"stream is {stream!r}; expected 0 to 2^32 - 1")
        if noise == "independent" and kl != "sampled":
            noise = "local"
    k = max(a_draws, q_draws) if k is None else k
    if k < 1 or draws is not None and draws != k or a_draws != 1 and a_draws != k or q_draws != 1 and q_draws != k:
        given = f"draws = {draws}" if eps is None else f"draws = {draws} and eps of {k} draws"
        raise ValueError(
            f"{given} do not fit inputs of {a_draws} and hypernetwork activations or weights of {q_draws} draws: the "
            "number of draws is one positive integer K, and K or 1 there"
        )
    return noise, eps, seed, k


def _broadcast_replicates(
    lead: tuple[int, ...], a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None,
    seed: int | Tensor | None,
) -> tuple[tuple[int, ...], Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The common replicate shape of all arguments, and the four inputs expanded to it; lead is the weight's."""
    shapes = [a.shape[:-3], z.shape[:-3], bias.shape[:-1]]
    if eps is not None:
        shapes.append(eps.shape[:-3])
    elif isinstance(seed, Tensor):
        shapes.append(seed.shape)
    if all(shape == lead for shape in shapes):
        return lead, a, z, weight, bias
    try:
        wide = torch.broadcast_shapes(lead, *shapes)
    except RuntimeError:
        names = ("weight", "a", "z", "bias", "seed" if eps is None else "eps")
        found = ", ".join(f"{name} {tuple(shape)}" for name, shape in zip(names, (lead, *shapes)))
        raise ValueError(f"fdn_linear: replicate dimensions do not broadcast: {found}") from None
    a, z, weight = (t.expand(*wide, *t.shape[-n:]) for t, n in ((a, 3), (z, 3), (weight, 2)))
    return wide, a, z, weight, bias.expand(*wide, bias.shape[-1])


def _noise_of_seed(seed: int | Tensor, noise: str, draws: int, a: Tensor, d_out: int, stream: int) -> Tensor:
    """The noise tensor of a whole call."""
    batch, d_in = a.shape[-2:]
    seed = seed.to(a.device) if isinstance(seed, Tensor) else int(seed)
    return philox.standard_normal(
        seed, noise, draws=range(draws), examples=range(batch), d_in=d_in, d_out=d_out, stream=stream, dtype=a.dtype,
        device=a.device,
    )  # fmt: skip


def _is_direct(
    backend: str, a: Tensor, z: Tensor, weight: Tensor, noise: str, draws: int, lead: tuple[int, ...]
) -> bool:
    """Whether the problem is small and plain enough to be computed without the registered op."""
    seen = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    if seen or backend == "triton" or a.dtype in HALF:
        return False
    if backend == "reference":
        return True
    if noise == "independent" or noise == "shared" and torch.is_grad_enabled():
        held = draws
    elif noise == "moments" or torch.is_grad_enabled():
        held = z.shape[-3]
    else:
        held = 1  # predictions go through the draws in chunks
    return math.prod(lead) * held * a.shape[-2] * weight.shape[-2] <= LARGE
