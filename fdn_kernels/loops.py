"""The way to the compiled loops, which check nothing themselves: whose memory they may read, and of which shapes.

:mod:`fdn_kernels.numba_ops` is imported at the first call: who needs no loop needs no Numba.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter


def check_shapes(loop: str, layout: str, *arrays: np.ndarray, **sizes: int) -> None:
    """Raise ValueError unless the arrays have the shapes that a loop's layout gives them.

    The layout has one word an array and one letter an axis: equal capitals are equal sizes, a small letter is 1 or its
    capital's size, and 0 is 0. ``sizes`` are those that are known, or that follow from other numbers.

    >>> check_shapes("apply", "OI kIB KOB", np.ones((3, 2)), np.ones((1, 2, 5)), np.ones((4, 3, 5)))
    >>> check_shapes("apply", "OI IB", np.ones((3, 2)), np.ones((1, 5)), O=3)
    Traceback (most recent call last):
    ValueError: the loop apply takes arrays of shapes OI IB with O = 3; given (3, 2) (1, 5)
    """
    shapes = tuple([array.shape for array in arrays])
    if not _fit(layout, shapes, tuple(sizes.items())):
        known = " with " * bool(sizes) + ", ".join(f"{letter} = {n}" for letter, n in sizes.items())
        given = " ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"the loop {loop} takes arrays of shapes {layout}{known}; given {given}")


@functools.lru_cache(maxsize=1024)  # a step asks the same over and over
def _fit(layout: str, shapes: tuple[tuple[int, ...], ...], sizes: tuple[tuple[str, int], ...]) -> bool:
    known, words = {"0": 0, **dict(sizes)}, layout.split()
    if [len(word) for word in words] != [len(shape) for shape in shapes]:
        return False
    axes = [(letter, n) for word, shape in zip(words, shapes) for letter, n in zip(word, shape)]
    if any(known.setdefault(letter, n) != n for letter, n in axes if not letter.islower()):
        return False
    return all(n in (1, known.get(letter.upper())) for letter, n in axes if letter.islower())


def call(loop: str, layout: str, *arguments: object, **sizes: int) -> None:
    """A loop of :mod:`fdn_kernels.numba_ops` on tensors and arrays of the shapes of its layout."""
    from fdn_kernels import numba_ops

    arguments = [t.numpy() if isinstance(t, Tensor) else t for t in arguments]
    check_shapes(loop, layout, *(t for t in arguments if isinstance(t, np.ndarray)), **sizes)
    getattr(numba_ops, loop)(*arguments)


def is_transformed() -> bool:
    """Whether tensors may be more than their memory: tangents of forward mode, function transforms."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def is_plain(t: Tensor) -> bool:
    """Whether loops may read a tensor's memory: float64, on the CPU, no tracer's, and all there is to it."""
    return t.dtype == torch.float64 and t.is_cpu and type(t) in (Tensor, Parameter) and not is_transformed()
