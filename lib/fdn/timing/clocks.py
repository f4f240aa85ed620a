"""The clock of processor time, and the exponent with which times grow; wall time is :func:`fdn.devices.clock`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from fdn.devices import CPU, clock


def processor_clock(device: torch.device = CPU) -> float:
    """Seconds of this process's processor time; on a GPU, where that says nothing, of wall time."""
    return time.process_time() if device == CPU else clock(device)


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The p of time = c size^p, fitted to the logarithms by least squares.

    >>> round(exponent([1, 2, 4], [3.0, 12.0, 48.0]), 6)
    2.0
    """
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
