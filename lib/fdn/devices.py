"""Where training and prediction run, the CPU or a GPU, and with which settings.

Random numbers come from the host's streams on both. A GPU is given every number that the CPU would draw, so that a
seed's results agree to rounding. During training only scores come back from it, through :func:`to_host`, and the
number of units where dropout masks are drawn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fdn import metrics
from fdn.errors import UserError

DEVICES = ("cpu", "cuda", "auto")
CPU = torch.device("cpu")


def choose_device(name: str | torch.device) -> torch.device:
    """The device of a name: ``"cpu"``, ``"cuda"`` (the current GPU) or ``"auto"`` (a GPU if there is one).

    >>> choose_device("cpu")
    device(type='cpu')

    Raises:
        UserError: for another name, and for ``"cuda"`` where PyTorch finds no GPU.
    """
    if isinstance(name, torch.device) and _is_there(name):
        return name
    if not isinstance(name, str) or name not in DEVICES:
        raise UserError(f"unknown device {name!r}; choose from {', '.join(DEVICES)}")  # no guess: gpu looks like cpu
    if name == "cpu" or name == "auto" and not torch.cuda.is_available():
        return CPU
    if not torch.cuda.is_available():
        why = "finds none" if torch.version.cuda else "was built without CUDA"
        raise UserError(f"the device cuda needs an NVIDIA GPU, and PyTorch {torch.__version__} {why}; use cpu or auto")
    return torch.device("cuda", torch.cuda.current_device())


def _is_there(device: torch.device) -> bool:
    try:
        return not torch.empty(0, device=device).is_meta
    except (RuntimeError, AssertionError):  # NotImplementedError among them
        return False


_PRODUCTS = getattr(torch.backends.mkldnn, "matmul", None), torch.backends.cuda.matmul
_FLOAT32_PRODUCTS = [products for products in _PRODUCTS if hasattr(products, "fp32_precision")]


@contextmanager
def undisturbed() -> Iterator[None]:
    """Compute with fixed settings, and give the caller's back at the end; also a decorator.

    float32 is PyTorch's default type, multiplied as such, and the CPU its default device, on one thread, with gradients
    and without inference mode or autocast; NumPy and autograd leave NaN and infinity to those who look for them.
    """
    changes = [
        (torch.set_default_dtype, torch.get_default_dtype(), torch.float32),
        (torch.set_num_threads, torch.get_num_threads(), 1),
        *((partial(torch.set_autocast_enabled, t), torch.is_autocast_enabled(t), False) for t in ("cpu", "cuda")),
        *((partial(setattr, p, "fp32_precision"), p.fp32_precision, "ieee") for p in _FLOAT32_PRODUCTS),
    ]
    device = nullcontext() if torch.get_default_device() == CPU else CPU  # a device context slows every call in it
    with (
        torch.inference_mode(False), np.errstate(all="ignore"), torch.autograd.set_detect_anomaly(False), device,
        ExitStack() as settings,
    ):  # fmt: skip
        for change, before, value in changes:
            settings.callback(change, before)
            change(value)
        yield


def device_name(device: torch.device) -> str:
    """``"cpu"``, or what the GPU calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def staged(t: Tensor, device: torch.device) -> Tensor:
    """The tensor in memory from which it can be copied to the device without waiting: pinned, for a GPU."""
    if device.type == "cpu" or not t.is_cpu:
        return t
    return torch.empty(t.shape, dtype=t.dtype, device=CPU, pin_memory=device.type == "cuda").copy_(t)


def to_device(t: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device, copied there without waiting."""
    return staged(t, device).to(device, non_blocking=True)


def to_host(t: Tensor) -> np.ndarray:
    """The tensor's numbers, once the device has computed them."""
    return t.cpu().numpy()


def clock(device: torch.device) -> float:
    """Seconds of wall time, once the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def mean_score(draws: Tensor, y: Tensor) -> np.ndarray:
    """Mean CRPS over the points, of one draw the mean squared error: draws ``(..., K, N)``, y ``(N,)`` to ``(...)``."""
    if draws.is_cpu:
        score = metrics.crps if draws.shape[-2] > 1 else metrics.mse
        return score(draws.numpy(), y.numpy()).mean(-1)
    return to_host((crps(draws, y) if draws.shape[-2] > 1 else (draws - y).square().mean(-2)).mean(-1))


def crps(draws: Tensor, y: Tensor) -> Tensor:
    """:func:`fdn.metrics.crps` on a device: draws ``(..., K, N)``, y ``(N,)`` to ``(..., N)``."""
    n_draws = draws.shape[-2]
    errors = (draws.mT.double() - y[:, None]).sort(-1).values  # (..., N, K)
    ranks = torch.arange(1 - n_draws, n_draws, 2, dtype=errors.dtype, device=errors.device)  # (K,)
    return errors.abs().mean(-1) - errors @ (ranks / n_draws**2)
