"""Shapes compared in Python before a compiled loop reads memory: the loops themselves check nothing."""

from __future__ import annotations

import functools

import numpy as np


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
