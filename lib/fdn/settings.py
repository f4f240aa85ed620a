"""The values that a setting may have: declared once, as its type, and checked wherever a value is given.

``budget: Count = 1000`` declares a field; :func:`check_fields` holds a whole dataclass to its declarations,
:func:`checked` one value, :func:`parsed` what a person typed.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import reprlib
import types
import typing
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from fdn.errors import UserError


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``; an open end is not one of them, and infinity and NaN never are.

    >>> 0.0 in Range(0), 1.0 in Range(0, 1, open_high=True), math.nan in Range(0)
    (True, False, False)
    >>> str(Range(0, 1, open_high=True))
    'of at least 0 and below 1'
    """

    low: float
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and abs(value) < math.inf

    def __str__(self) -> str:
        low = f"above {self.low}" if self.open_low else f"of at least {self.low}"
        if not math.isfinite(self.high):
            return low
        if not self.open_low and not self.open_high:
            return f"from {self.low} to {self.high}"
        return f"{low} and {'below' if self.open_high else 'at most'} {self.high}"


MOST = 999_999_999  # more is a slip of the keyboard
Count = Annotated[int, Range(1, MOST)]
Whole = Annotated[int, Range(0, MOST)]
Positive = Annotated[float, Range(0, open_low=True)]
Factor = Annotated[float, Range(0, 1e6, open_low=True)]  # of a width
Scale = Annotated[float, Range(1e-150, 1e150)]  # positive, and its square a number too
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Part = Annotated[float, Range(0, 1, open_low=True, open_high=True)]
Rate = Annotated[float, Range(0, 1, open_high=True)]

_NAMES = {int: "a whole number", float: "a number", bool: "True or False", str: "text", types.NoneType: "none"}
_WORDS = {"none": None, "true": True, "false": False}
_MISFIT = object()


def checked(name: str, value: object, kind: Any) -> Any:
    """The value as the plain Python object that its kind asks for: a number in its range, a word of a choice, None, ...

    A number may be NumPy's; a truth value or text is none, and a whole number has no decimal point.

    >>> checked("floor", 0, NonNegative), checked("clip_norm", None, Positive | None)
    (0.0, None)
    >>> checked("epochs", 2.5, Count)
    Traceback (most recent call last):
    fdn.errors.UserError: epochs is 2.5; expected a whole number from 1 to 999999999

    Raises:
        UserError: naming the value and what was expected.
    """
    for option in _options(kind):
        if (found := _read(value, option)) is not _MISFIT:
            return found
    raise UserError(f"{name} is {value!r}; expected {described(kind)}")


def parsed(name: str, text: str, kind: Any) -> Any:
    """:func:`checked` for what a person typed: numbers in digits, ``none``, ``true`` or ``false``.

    >>> parsed("warmup", "50", Whole), parsed("clip_norm", "none", Positive | None)
    (50, None)

    Raises:
        UserError: naming the text and what was expected.
    """
    word = text.strip().lower()
    for meaning in (_WORDS.__getitem__, int, float):
        with suppress(KeyError, ValueError):  # UserError among them
            return checked(name, meaning(word), kind)
    return checked(name, text, kind)


def choose(name: str, known: Collection[str], what: str) -> str:
    """The name, if it is known.

    >>> choose("lp-fdn", ["IC-FDNet", "LP-FDNet"], "model")
    Traceback (most recent call last):
    fdn.errors.UserError: unknown model 'lp-fdn'; did you mean 'LP-FDNet'? choose from IC-FDNet, LP-FDNet

    Raises:
        UserError: naming the closest known name and all of them.
    """
    if isinstance(name, str) and name in known:
        return name
    lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    raise UserError(f"unknown {what} {name!r}; {hint}choose from {', '.join(known)}")


def check_seeds(seeds: Any) -> tuple[int, ...]:
    """The seeds, one or more different whole numbers of at least 0.

    >>> check_seeds(range(3))
    (0, 1, 2)

    Raises:
        UserError: for anything else.
    """
    try:
        found = tuple(checked("a seed", seed, Whole) for seed in seeds)
    except (TypeError, UserError):
        found = ()
    if not found or len(set(found)) < len(found):
        given = reprlib.repr(seeds)
        raise UserError(f"seeds are {given}; expected one or more different integers of at least 0, as in range(5)")
    return found


def check_fields(instance: Any) -> None:
    """Hold every field of a frozen dataclass to its type, and keep it as the plain Python object of that type.

    Raises:
        UserError: naming the first field that does not fit.
    """
    cls: Any = type(instance)
    for name, kind in kinds(cls).items():
        object.__setattr__(instance, name, checked(name, getattr(instance, name), kind))


@cache
def kinds(cls: type) -> Mapping[str, Any]:
    """The declared kind of each field of a dataclass."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return types.MappingProxyType({field.name: hints[field.name] for field in dataclasses.fields(cls)})


def described(kind: Any) -> str:
    """A kind in words, for ``expected ...``.

    >>> described(Positive | None), described(Literal["shared", "independent"])
    ('a number above 0 or none', 'one of shared, independent')
    """
    return " or ".join(map(_described, _options(kind)))


def _options(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the kind alone."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _base(kind: Any) -> Any:
    """int of Count, tuple of tuple[Count, ...], Literal of a choice, and other kinds themselves."""
    origin = typing.get_origin(kind)
    return typing.get_args(kind)[0] if origin is Annotated else origin or kind


def _read(value: object, kind: Any) -> Any:
    base = _base(kind)
    if base is Literal:  # the plain word, whatever subclass of str was given
        return next((word for word in typing.get_args(kind) if isinstance(value, str) and word == value), _MISFIT)
    if base is tuple:
        if not isinstance(value, (tuple, list)):
            return _MISFIT
        members = tuple(_read(member, typing.get_args(kind)[0]) for member in value)
        return _MISFIT if any(member is _MISFIT for member in members) else members
    if base not in (int, float):
        return value if isinstance(value, base) else _MISFIT
    if isinstance(value, bool) or not isinstance(value, Integral if base is int else Real):
        return _MISFIT
    try:
        number = base(value) + 0  # no negative zero: equal settings have one label
    except OverflowError:
        return _MISFIT
    fits = abs(number) < math.inf and all(number in limits for limits in typing.get_args(kind)[1:])
    return number if fits else _MISFIT


def _described(kind: Any) -> str:
    base, arguments = _base(kind), typing.get_args(kind)
    if base is Literal:
        return f"one of {', '.join(arguments)}"
    if base is tuple:
        return f"a tuple, each of them {described(arguments[0])}"
    return " ".join([_NAMES.get(base, str(base)), *map(str, arguments[1:])])
