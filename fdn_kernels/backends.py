"""Which backend computes a call, and why."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import warnings

import torch
from torch import Tensor

BACKENDS = ("auto", "triton", "torch", "reference")
HALF = (torch.bfloat16, torch.float16)
TRITON_WIDTH = {"analytic": 128, "none": 128, "sampled": 64}  # widest hypernetwork of the Triton kernel, by kl
TRITON_VERSION = 3, 5  # 3.2 and 3.4 cannot compile all kernels; 3.5, 3.6, 3.7 and 3.9 do
CAPABILITIES = 8, 9, 10, 12  # of NVIDIA GPUs, their first number: kernels up to h = 64 compile for them without spills

_TRITON_INSTALLED = importlib.util.find_spec("triton") is not None


def backend_of(a: Tensor, z: Tensor, kl: str = "analytic", backend: str = "auto") -> tuple[str, str]:
    """The backend with which :func:`fdn_kernels.fdn_linear` computes a (..., B, d_in) and z (..., B, h), and why.

    Raises:
        ValueError: for an unknown kl or backend.
        RuntimeError: for backend ``"triton"`` where it cannot run.
    """
    if kl not in TRITON_WIDTH or backend not in BACKENDS:
        kls, names = ", ".join(TRITON_WIDTH), ", ".join(BACKENDS)
        raise ValueError(f"kl is {kl!r} and backend {backend!r}; expected one of {kls}, and one of {names}")
    if backend in ("torch", "reference"):
        return backend, "it was asked for"
    obstacle = _obstacle(a, z.shape[-1], kl)
    if backend == "triton":
        if obstacle:
            raise RuntimeError(
                f"fdn_linear: backend 'triton' cannot run here: {obstacle}; backend 'auto' uses torch instead"
            )
        return backend, "it was asked for"
    if obstacle or a.device.type != "cuda":
        return "torch", obstacle or "Triton's interpreter is for tests"
    return "triton", "the inputs are on a GPU for which it compiles"


def choose(a: Tensor, z: Tensor, kl: str, backend: str) -> str:
    """The name that :func:`backend_of` gives; says once why a GPU's work does not go to Triton."""
    if backend == "auto" and a.device.type in ("cpu", "meta"):
        return "torch"
    name, reason = backend_of(a, z, kl, backend)
    if name == "torch" != backend:
        _warn(reason)
    return name


def is_autocast(t: Tensor) -> bool:
    return t.device.type != "meta" and torch.is_autocast_enabled(t.device.type)


def computed_type(t: Tensor) -> torch.dtype:
    """The type in which a call takes a tensor: its own, or that of autocast; float64 stays, as elsewhere."""
    return torch.get_autocast_dtype(t.device.type) if is_autocast(t) and t.dtype != torch.float64 else t.dtype


def _obstacle(a: Tensor, h: int, kl: str) -> str | None:
    """Why the Triton kernel cannot compute on inputs a with hypernetworks of width h; None where it can."""
    if not _TRITON_INSTALLED:
        return "the package triton is not installed (pip install triton, Linux only)"
    if (dtype := computed_type(a)) not in (torch.float32, *HALF):
        return f"it computes in float32, bfloat16 and float16, and the inputs are {dtype}"
    if h > (widest := TRITON_WIDTH[kl]):
        return f"it takes hypernetworks of width up to {widest} for kl {kl!r}, not {h}"
    if a.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    if a.device.type != "cuda":
        return f"the inputs are on the device {a.device.type!r}, and it needs an NVIDIA GPU"
    return _gpu_obstacle(a.device)


def _once(function):
    """Called once for an argument. For torch.compile the result is a constant.

    So it is with torch.compiler.assume_constant_result, which imports Triton.
    """
    cached = functools.cache(function)

    def call(argument):
        return cached(argument)

    call.__dict__.update(_dynamo_marked_constant=True, forget=cached.cache_clear)
    return call


@_once
def _gpu_obstacle(device: torch.device) -> str | None:
    """Why the kernel does not run on a device of type cuda."""
    if torch.version.hip:
        return f"the device is an AMD GPU (ROCm {torch.version.hip}), and it is written for NVIDIA's"
    try:
        version = importlib.import_module("triton").__version__
    except Exception as error:  # a broken installation, whatever is broken about it
        return f"the package triton cannot be imported ({type(error).__name__}: {error})"
    if tuple(int(part) for part in version.split(".")[:2]) < TRITON_VERSION:
        return f"it needs Triton {'.'.join(map(str, TRITON_VERSION))} or newer (PyTorch 2.9), not {version}"
    gpu = torch.cuda.get_device_properties(device)
    if gpu.major not in CAPABILITIES:
        known = ", ".join(f"{major}.x" for major in CAPABILITIES)
        return f"it is compiled for compute capabilities {known}, and {gpu.name} has {gpu.major}.{gpu.minor}"
    return None


@_once
def _warn(reason: str) -> None:
    warnings.warn(f"fdn_linear computes with PyTorch's operations, not with the Triton kernel: {reason}", stacklevel=6)
