"""The public ops: they check their arguments, choose a backend and say nothing about models.

``fdn_linear`` brings its arguments into one canonical form (one replicate axis, explicit draws) for the registered op
``torch.ops.fdn.linear``, which compilers, function transforms and the Triton kernel see. Small problems on the torch
backends skip it: there the time goes into calls, not into numbers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fdn_kernels import philox, reference, torch_ops
from fdn_kernels.reference import WeightGaussian

NOISES = ("shared", "independent", "local", "none")
KLS = ("analytic", "sampled", "none")
PRECISIONS = ("tf32x3", "tf32", "ieee")  # the default first
BACKENDS = ("auto", "triton", "torch", "reference")
TRITON_WIDTH = 64  # widest hypernetwork of the Triton kernel
LARGE = 1 << 23  # hypernetwork outputs or sampled weights that are not held all at once

_MODULES = {"torch": torch_ops, "reference": reference}
_HALF = (torch.bfloat16, torch.float16)
_TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


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
        y, ``(..., K, B, d_out)``.

    Raises:
        ValueError: for an unknown noise or backend, both or neither of eps and seed, or shapes that do not fit.

    Source: paper, section 3.2 (sampling by reparameterisation).
    """
    if a.dim() == q.mean.dim() - 1:
        a = a.unsqueeze(-3)  # (..., 1, B, d_in)
    batch, d_in = a.shape[-2:]
    d_out, rest = divmod(q.mean.shape[-1], d_in + 1)
    if a.dim() < q.mean.dim() or rest or q.scale.shape != q.mean.shape or q.mean.shape[-2] not in (1, batch):
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
    if seed is not None:
        eps = _noise_of_seed(seed, noise, draws, a, d_out, stream)
    return _MODULES["torch" if backend == "auto" else backend].gaussian_linear(a, q, noise, eps)


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
        a: layer inputs, ``(..., K or 1, B, d_in)``, or ``(..., B, d_in)`` without the draw axis.
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
        backend: ``"auto"`` (Triton for float32 and bfloat16 on a GPU that runs it, else torch), ``"triton"``,
            ``"torch"`` or ``"reference"``.

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
    device = a.device
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
        a, z, weight, bias = (t if t.dtype == torch.float64 else t.to(dtype) for t in (a, z, weight, bias))
        with torch.autocast(device.type, enabled=False):
            return fdn_linear(
                a, z, weight, bias, noise=noise, draws=draws, eps=eps, seed=seed, stream=stream, kl=kl, moments=moments,
                floor=floor, prior_scale=prior_scale, precision=precision, backend=backend,
            )  # fmt: skip
    _check_choices(noise, kl, precision, backend)
    if not (_is(floor, Real) and 0 <= floor < math.inf):
        raise ValueError(f"floor is {floor!r}; expected a number of at least 0")
    if not (_is(prior_scale, Real) and 1e-150 <= prior_scale <= 1e150):
        raise ValueError(f"prior_scale is {prior_scale!r}; expected a positive number from 1e-150 to 1e150")
    if moments and noise != "none":
        raise ValueError(f"moments are those of all draws together: they need noise 'none', not {noise!r}")
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
    backend = _choose_backend(backend, a, z.shape[-1])
    if 0 in (*lead, a.shape[-2], d_out):  # no replicates, examples or outputs: nothing to be quick about
        backend = "reference"

    if not _is_direct(backend, a, z, weight, noise, draws, lead):
        settings = draws, noise, kl, float(floor), float(prior_scale), stream, precision, backend
        y, variance, term = _registered(lead, a, z, weight, bias, eps, seed, *settings)
    elif moments:
        q, matvec = reference.hypernet_gaussian(z, weight, bias, a.shape[-1], floor), _MODULES[backend].matvec
        y, variance = matvec(q.mean, a), matvec(q.scale.square(), a.square())
        term = reference.gaussian_kl(q, prior_scale) if kl == "analytic" else None
    else:
        if seed is not None:
            eps = _noise_of_seed(seed, noise, draws, a, d_out, stream)
        y, term = _MODULES[backend].fdn_linear(a, z, weight, bias, noise, eps, kl, floor, prior_scale)
    return (Moments(y, variance), term) if moments else (y, term)


def _registered(
    lead: tuple[int, ...], a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None, seed: int | Tensor | None,
    *settings,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The registered op on replicates of any shape."""
    r = math.prod(lead)

    def canonical(t: Tensor | None, n: int) -> Tensor | None:  # (..., n dimensions) to (R, n dimensions)
        if t is None:
            return None
        sizes = t.shape[t.dim() - n :]
        return t.expand((*lead, *sizes)).reshape((r, *sizes))

    if seed is not None:
        seed = seed.to(a.device) if isinstance(seed, Tensor) else torch.full((), int(seed), device=a.device)
    inputs = (canonical(t, n) for t, n in ((a, 3), (z, 3), (weight, 2), (bias, 1), (eps, 3), (seed, 0)))
    transformed = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    op = _Transformed.apply if transformed else torch.ops.fdn.linear
    y, variance, term = (t.reshape(*lead, *t.shape[1:]) if t.dim() > 1 else None for t in op(*inputs, *settings))
    return y, variance, term


# -- arguments ---------------------------------------------------------------------------------------------------------


def _is(value: object, kind: type) -> bool:
    """Whether a value is a number of this kind; a truth value is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


def _check_choices(noise: str, kl: str, precision: str, backend: str) -> None:
    if noise in NOISES and kl in KLS and precision in PRECISIONS and backend in BACKENDS:
        return
    for name, value, allowed in (
        ("noise", noise, NOISES), ("kl", kl, KLS), ("precision", precision, PRECISIONS), ("backend", backend, BACKENDS)
    ):  # fmt: skip
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")


def _check_inputs(a: Tensor, z: Tensor, weight: Tensor, bias: Tensor) -> tuple[tuple[int, ...], bool, int, int]:
    """Replicate shape of the weight, whether the others' is the same, draws of z and d_out, from four inputs that fit."""
    dims = weight.dim()
    if not 2 < dims + 1 == a.dim() == z.dim() == bias.dim() + 2:
        raise ValueError(
            f"fdn_linear: with weight (..., 2P, h) = {tuple(weight.shape)}, a is (..., K, B, d_in) or (..., B, d_in), z "
            f"alike and bias (..., 2P), with as many replicate dimensions; given {tuple(a.shape)}, {tuple(z.shape)} and "
            f"{tuple(bias.shape)}"
        )
    *lead, n_out, h = weight.shape
    *a_lead, _, batch, d_in = a.shape
    *z_lead, z_draws, z_batch, z_width = z.shape
    *bias_lead, n_bias = bias.shape
    d_out, rest = divmod(n_out, 2 * (d_in + 1))
    if rest or n_bias != n_out or z_width != h or z_batch != batch:
        raise ValueError(
            f"fdn_linear: weight (..., 2P, h) = {tuple(weight.shape)} with bias {tuple(bias.shape)} does not fit inputs "
            f"(..., B, d_in) = {tuple(a.shape)} and z (..., B, h) = {tuple(z.shape)}; 2P must be a multiple of 2 (d_in + 1)"
        )
    dtype = a.dtype
    if not dtype == z.dtype == weight.dtype == bias.dtype or not dtype.is_floating_point:
        raise ValueError(
            f"fdn_linear: a, z, weight and bias share one floating-point type, not {dtype}, {z.dtype}, {weight.dtype} and "
            f"{bias.dtype}"
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
        if eps.dtype != a.dtype and not (a.dtype in _HALF and eps.dtype == torch.float32):
            raise ValueError(f"eps has the type of the inputs, {a.dtype}, not {eps.dtype}")
        k = shape[-3]
    else:
        if isinstance(seed, Tensor):
            if seed.dtype != torch.int64 or seed.dim() > len(lead):
                raise ValueError(
                    f"seed is an int or an int64 tensor of at most {len(lead)} replicate dimensions, not {seed.dtype} of "
                    f"shape {tuple(seed.shape)}"
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
            f"{given} do not fit inputs of {a_draws} and hypernetwork activations or weights of {q_draws} draws: the number "
            "of draws is one positive integer K, and K or 1 there"
        )
    return noise, eps, seed, k


def _broadcast_replicates(
    lead: tuple[int, ...],
    a: Tensor,
    z: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: Tensor | None,
    seed: int | Tensor | None,
) -> tuple[tuple[int, ...], Tensor, Tensor, Tensor, Tensor]:
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


# -- backends ----------------------------------------------------------------------------------------------------------


def _triton_obstacle(a: Tensor, h: int) -> str | None:
    """Why the Triton kernel cannot compute on inputs a with hypernetworks of width h; None where it can."""
    if not _TRITON_INSTALLED:
        return "the package triton is not installed (pip install triton, Linux only)"
    if a.dtype not in (torch.float32, torch.bfloat16):
        return f"it computes in float32 and bfloat16, and the inputs are {a.dtype}"
    if h > TRITON_WIDTH:
        return f"it takes hypernetworks of width up to {TRITON_WIDTH}, not {h}"
    if a.device.type != "cuda":
        interpreted = a.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
        return None if interpreted else f"the inputs are on the device {a.device.type!r}, and it needs a CUDA GPU"
    gpu = torch.cuda.get_device_properties(a.device)
    return (
        None if gpu.major in (8, 9) else f"it is compiled for compute capability 8 and 9, not {gpu.major}.{gpu.minor}"
    )


def _choose_backend(backend: str, a: Tensor, h: int) -> str:
    if backend == "auto":
        return "triton" if a.device.type == "cuda" and _triton_obstacle(a, h) is None else "torch"
    if backend == "triton" and (obstacle := _triton_obstacle(a, h)):
        raise RuntimeError(
            f"fdn_linear: backend 'triton' cannot run here: {obstacle}; backend 'auto' uses torch instead"
        )
    return backend


def _is_direct(
    backend: str, a: Tensor, z: Tensor, weight: Tensor, noise: str, draws: int, lead: tuple[int, ...]
) -> bool:
    """Whether the problem is small and plain enough to be computed without the registered op."""
    if (
        torch.compiler.is_compiling()
        or backend == "triton"
        or a.dtype in _HALF
        or torch._C._are_functorch_transforms_active()
    ):
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


# -- the registered op -------------------------------------------------------------------------------------------------

_INPUTS = "Tensor a, Tensor z, Tensor weight, Tensor bias, Tensor? eps, Tensor? seed"
_SETTINGS = "int draws, str noise, str kl, float floor, float prior_scale, int stream, str precision, str backend"


@contextlib.contextmanager
def _autograd():
    """Autograd, which the dispatcher switches off inside an op, for backward passes that compute the forward again."""
    key = torch._C.DispatchKey.AutogradFunctionality
    before = torch._C._dispatch_tls_is_dispatch_key_excluded(key)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(key, before)


def _run(name: str, tensors: tuple[Any, ...], settings: tuple, *flags: bool) -> tuple[Tensor, ...]:
    """``linear`` or ``linear_backward`` of a backend; half types are computed in float32 outside Triton."""
    *others, precision, backend = settings
    with torch.autocast(tensors[0].device.type, enabled=False):
        if backend == "triton":
            from fdn_kernels.triton import layer

            return getattr(layer, name)(*tensors, *others, precision, *flags)
        tensors = tuple(t.float() if t is not None and t.dtype in _HALF else t for t in tensors)
        with _autograd():
            return getattr(_MODULES[backend], name)(*tensors, *others, *flags)


@torch.library.custom_op(
    "fdn::linear",
    mutates_args=(),
    device_types=("cpu", "cuda"),
    schema=f"({_INPUTS}, {_SETTINGS}) -> (Tensor y, Tensor variance, Tensor kl)",
)
def _linear(a, z, weight, bias, eps, seed, *settings):
    """The layer on canonical shapes, R replicates and K draws.

    a ``(R, K or 1, B, d_in)``, z ``(R, K or 1, B, h)``, weight ``(R, 2P, h)``, bias ``(R, 2P)``, eps ``(R, K, 1 or B,
    n)``, seed ``(R,)`` to y ``(R, K, B, d_out)``, variance (its shape for noise ``"moments"``, else ``(0,)``) and KL
    ``(R, k, B)`` (``(0,)`` for ``"none"``).
    """
    y, variance, term = _run("linear", (a, z, weight, bias, eps, seed), settings)
    return y.to(a.dtype).contiguous(), variance.to(a.dtype).contiguous(), term.contiguous()


@_linear.register_fake
def _(a, z, weight, bias, eps, seed, draws, noise, kl, *settings):
    (r, _, batch, d_in), z_draws = a.shape, z.shape[1]
    y = a.new_empty(r, draws, batch, weight.shape[1] // (2 * (d_in + 1)))
    shape = (0,) if kl == "none" else (r, draws if kl == "sampled" else z_draws, batch)
    term = a.new_empty(shape, dtype=torch.float64 if a.dtype == torch.float64 else torch.float32)
    return y, torch.empty_like(y) if noise == "moments" else a.new_empty(0), term


@torch.library.custom_op(
    "fdn::linear_backward",
    mutates_args=(),
    device_types=("cpu", "cuda"),
    schema=f"(Tensor grad_y, Tensor grad_variance, Tensor grad_kl, {_INPUTS}, {_SETTINGS}, bool need_a, bool need_z) "
    "-> (Tensor da, Tensor dz, Tensor dweight, Tensor dbias)",
)
def _linear_backward(grad_y, grad_variance, grad_kl, a, z, weight, bias, eps, seed, *settings):
    """Gradients of :func:`_linear`'s inputs, ``(0,)`` for an a or z that needs none."""
    *others, need_a, need_z = settings
    incoming = grad_y.contiguous(), grad_variance.contiguous(), grad_kl.contiguous()
    gradients = _run("linear_backward", (*incoming, a, z, weight, bias, eps, seed), tuple(others), need_a, need_z)
    return tuple(g.to(a.dtype).contiguous() for g in gradients)


@_linear_backward.register_fake
def _(grad_y, grad_variance, grad_kl, a, z, weight, bias, *settings):
    *_, need_a, need_z = settings
    needed = ((a, need_a), (z, need_z), (weight, True), (bias, True))
    return tuple(t.new_empty(t.shape if need else (0,)) for t, need in needed)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.settings = inputs[6:]


def _backward(ctx, *gradients):
    need_a, need_z, _, _, need_eps, *_ = ctx.needs_input_grad
    if need_eps:
        raise RuntimeError(
            "fdn_linear: the registered op (large problems, half types, compilation, function transforms, Triton) "
            "has no derivative of eps; detach eps, or split the examples"
        )
    op = _TransformedBackward.apply if torch._C._are_functorch_transforms_active() else torch.ops.fdn.linear_backward
    da, dz, dweight, dbias = op(*gradients, *ctx.saved_tensors, *ctx.settings, need_a, need_z)
    return da if need_a else None, dz if need_z else None, dweight, dbias, None, None, *(None for _ in ctx.settings)


def _second_backward(ctx, *gradients):
    raise RuntimeError("fdn_linear can be differentiated once through the registered op, not twice")


_linear.register_autograd(_backward, setup_context=_setup_context)
_linear_backward.register_autograd(_second_backward)


class _Transformed(torch.autograd.Function):
    """The registered op under torch.func transforms, which do not see its registered backward."""

    generate_vmap_rule = True
    setup_context = staticmethod(_setup_context)
    backward = staticmethod(_backward)

    @staticmethod
    def forward(*inputs):
        return torch.ops.fdn.linear(*inputs)


class _TransformedBackward(torch.autograd.Function):
    generate_vmap_rule = True
    backward = staticmethod(_second_backward)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        """Nothing is needed of the inputs."""

    @staticmethod
    def forward(*inputs):
        return torch.ops.fdn.linear_backward(*inputs)


def _register_vmap(op) -> None:
    """The mapped axis becomes part of the replicate axis."""

    @op.register_vmap
    def _(info, in_dims, *inputs):
        def fold(x, dim):
            if not isinstance(x, Tensor):
                return x
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)  # (N, R, ...)
            return x.flatten(0, 1)

        outputs = op(*map(fold, inputs, in_dims))
        absent = [t.dim() == 1 for t in outputs]  # (0,)
        split = tuple(t if none else t.unflatten(0, (info.batch_size, -1)) for t, none in zip(outputs, absent))
        return split, tuple(None if none else 0 for none in absent)


_register_vmap(_linear)
_register_vmap(_linear_backward)
