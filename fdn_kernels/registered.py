"""The registered op ``torch.ops.fdn.linear``, which compilers, function transforms and the Triton kernel see."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from fdn_kernels import philox, reference, torch_ops
from fdn_kernels.backends import HALF

MODULES = {"torch": torch_ops, "reference": reference}

_INPUTS = "Tensor a, Tensor z, Tensor weight, Tensor bias, Tensor? eps, Tensor? seed"
_SETTINGS = "int draws, str noise, str kl, float floor, float prior_scale, int stream, str precision, str backend"


def layer(
    lead: tuple[int, ...], a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor | None,
    seed: int | Tensor | None, *settings,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The op on replicates of any shape: y, the variance for noise ``"moments"``, and the KL; None where there is none.

    The Triton kernel keeps the variance of local noise for a backward that may follow.
    """
    if seed is not None:
        seed = seed.to(a.device) if isinstance(seed, Tensor) else torch.full((), int(seed), device=a.device)
    transformed = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in (a, z, weight, bias))
    inputs = torch_ops.canonical(lead, (a, 3), (z, 3), (weight, 2), (bias, 1), (eps, 3), (seed, 0))
    op = _Transformed.apply if transformed else torch.ops.fdn.linear
    outputs = op(*inputs, *settings, transformed or differentiable)
    y, variance, term = (t.reshape(*lead, *t.shape[1:]) if t.dim() > 1 else None for t in outputs)
    return y, variance, term


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


def _run(name: str, tensors: tuple[Any, ...], settings: tuple, *flags: bool, **kept) -> tuple[Tensor, ...]:
    """``linear`` or ``linear_backward`` of a backend; half types are computed in float32.

    ``kept`` is what forward and backward of Triton tell each other.
    """
    *others, precision, backend = settings
    with torch.autocast(tensors[0].device.type, enabled=False):
        if backend == "triton":
            from fdn_kernels.triton import layer

            return getattr(layer, name)(*tensors, *others, precision, *flags, **kept)
        tensors = tuple(t.float() if t is not None and t.dtype in HALF else t for t in tensors)
        empty = any(t is not None and 0 in t.shape[: t.dim() - 1] for t in tensors[-6:-1])
        with _autograd():
            return getattr(MODULES["reference" if empty else backend], name)(*tensors, *others, *flags)


def _keeps_variance(noise: str, backend: str, keep_variance: bool) -> bool:
    return keep_variance and noise == "local" and backend == "triton"


@torch.library.custom_op(
    "fdn::linear",
    mutates_args=(),
    schema=f"({_INPUTS}, {_SETTINGS}, bool keep_variance) -> (Tensor y, Tensor variance, Tensor kl)",
)
def _linear(a, z, weight, bias, eps, seed, *settings):
    """The layer on canonical shapes, R replicates and K draws.

    a ``(R, K or 1, B, d_in)``, z ``(R, K or 1, B, h)``, weight ``(R, 2P, h)``, bias ``(R, 2P)``, eps ``(R, K, 1 or B,
    n)``, seed ``(R,)`` to y ``(R, K, B, d_out)``, variance (its shape for noise ``"moments"``, and in float32 where
    Triton keeps that of local noise, else ``(0,)``) and KL ``(R, k, B)`` (``(0,)`` for ``"none"``).
    """
    *settings, keep = settings
    kept = _keeps_variance(settings[1], settings[-1], keep)
    y, variance, term = _run("linear", (a, z, weight, bias, eps, seed), settings, keep_variance=kept)
    variance = variance if kept else variance.to(a.dtype)
    return y.to(a.dtype).contiguous(), variance.contiguous(), term.contiguous()


@_linear.register_fake
def _(a, z, weight, bias, eps, seed, draws, noise, kl, *settings):
    (r, _, batch, d_in), z_draws = a.shape, z.shape[1]
    *_, backend, keep = settings
    y = a.new_empty(r, draws, batch, weight.shape[1] // (2 * (d_in + 1)))
    if _keeps_variance(noise, backend, keep):
        variance = torch.empty_like(y, dtype=torch.float32)
    else:
        variance = torch.empty_like(y) if noise == "moments" else a.new_empty(0)
    shape = (0,) if kl == "none" else (r, draws if kl == "sampled" else z_draws, batch)
    return y, variance, a.new_empty(shape, dtype=torch.float64 if a.dtype == torch.float64 else torch.float32)


@torch.library.custom_op(
    "fdn::linear_backward",
    mutates_args=(),
    schema=f"(Tensor grad_y, Tensor grad_variance, Tensor grad_kl, Tensor? variance, {_INPUTS}, {_SETTINGS}, "
    "bool need_a, bool need_z) -> (Tensor da, Tensor dz, Tensor dweight, Tensor dbias)",
)
def _linear_backward(grad_y, grad_variance, grad_kl, variance, a, z, weight, bias, eps, seed, *settings):
    """Gradients of :func:`_linear`'s inputs, ``(0,)`` for an a or z that needs none; variance is one that was kept."""
    *others, need_a, need_z = settings
    incoming = grad_y.contiguous(), grad_variance.contiguous(), grad_kl.contiguous()
    tensors = *incoming, a, z, weight, bias, eps, seed
    gradients = _run("linear_backward", tensors, tuple(others), need_a, need_z, variance=variance)
    return tuple(g.to(a.dtype).contiguous() for g in gradients)


@_linear_backward.register_fake
def _(grad_y, grad_variance, grad_kl, variance, a, z, weight, bias, *settings):
    *_, need_a, need_z = settings
    needed = ((a, need_a), (z, need_z), (weight, True), (bias, True))
    return tuple(t.new_empty(t.shape if need else (0,)) for t, need in needed)


def _setup_context(ctx, inputs, output) -> None:
    *ctx.settings, keep = inputs[6:]
    variance = output[1] if _keeps_variance(ctx.settings[1], ctx.settings[-1], keep) else None
    if variance is not None:
        ctx.mark_non_differentiable(variance)
    ctx.save_for_backward(variance, *inputs[:6])


def _backward(ctx, *gradients):
    need_a, need_z, _, _, need_eps, *_ = ctx.needs_input_grad
    if need_eps:
        raise RuntimeError(
            "fdn_linear: the registered op (large problems, half types, compilation, function transforms, Triton) "
            "has no derivative of eps; detach eps, or split the examples"
        )
    op = _TransformedBackward.apply if torch._C._are_functorch_transforms_active() else torch.ops.fdn.linear_backward
    da, dz, dweight, dbias = op(*gradients, *ctx.saved_tensors, *ctx.settings, need_a, need_z)
    return da if need_a else None, dz if need_z else None, dweight, dbias, *(None for _ in range(3 + len(ctx.settings)))


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


@torch.library.custom_op("fdn::standard_normal", mutates_args=())
def standard_normal(
    seed: Tensor, noise: str, first: int, draws: int, examples: int, n: int, stream: int, dtype: torch.dtype
) -> Tensor:
    """:func:`fdn_kernels.philox.standard_normal` of a seed ``()`` for draws from ``first`` on, ``(K, 1 or B, n)``."""
    sizes = {"draws": range(first, first + draws), "examples": range(examples), "d_in": 0, "d_out": n}
    return philox.standard_normal(seed, noise, **sizes, stream=stream, dtype=dtype).clone()  # no part of a larger one


@standard_normal.register_fake
def _(seed, noise, first, draws, examples, n, stream, dtype):
    return seed.new_empty(draws, 1 if noise == "shared" else examples, n, dtype=dtype)


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
