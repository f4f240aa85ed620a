"""The one exception that a person at the keyboard is meant to read, and what more than one module is strict about."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

import numpy as np


class UserError(ValueError):
    """A request that cannot be carried out as given; the message says what was given, expected and to do.

    The command line prints the message as one sentence and exits with status 2.
    """


def check_count(name: str, value: int) -> int:
    """The number, a positive integer.

    >>> check_count("draws", 0)
    Traceback (most recent call last):
    fdn.errors.UserError: draws is 0; expected a positive integer

    Raises:
        UserError: for anything else.
    """
    if not is_integer(value) or value < 1:
        raise UserError(f"{name} is {value!r}; expected a positive integer")
    return int(value)


def check_seeds(seeds: Iterable[int]) -> tuple[int, ...]:
    """The seeds, one or more different integers of at least 0.

    >>> check_seeds(range(3))
    (0, 1, 2)

    Raises:
        UserError: for anything else.
    """
    found = list(seeds) if isinstance(seeds, Iterable) else []
    if not found or not all(map(is_integer, found)) or min(found) < 0 or len(set(found)) < len(found):
        given = reprlib.repr(seeds)
        raise UserError(f"seeds are {given}; expected one or more different integers of at least 0, as in range(5)")
    return tuple(map(int, found))


def is_integer(value: object) -> bool:
    """Whether it is an integer of Python, NumPy or PyTorch, and no bool or array of them."""
    return hasattr(value, "__index__") and not isinstance(value, bool | np.bool_ | np.ndarray)
