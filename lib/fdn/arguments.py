"""What a person types, on a command line or as a notebook parameter: seeds, names and settings."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import math
import re
import typing
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from fdn.errors import UserError
from fdn.protocol import PROTOCOLS, Protocol

SEEDS_SYNTAX = "a half-open range such as 0:5, numbers such as 3,7, or both as in 0:3,7"
MOST_SEEDS = 100_000  # more is a slip of the keyboard


def parse_seeds(text: str | int) -> list[int]:
    """Seeds from half-open ranges and single numbers, in the order given.

    >>> parse_seeds("0:3, 7")
    [0, 1, 2, 7]

    Raises:
        UserError: for a range without seeds, a seed given twice, or anything but numbers of at least 0.
    """
    seeds: list[int] = []
    for part in str(text).split(","):
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*(?::\s*([0-9]{1,9})\s*)?", part)
        if not found:
            raise UserError(f"cannot read {part.strip()!r} in seeds {text!r}; expected {SEEDS_SYNTAX}")
        start = int(found[1])
        end = start + 1 if found[2] is None else int(found[2])
        if end <= start:
            raise UserError(
                f"the range {part.strip()!r} in seeds {text!r} holds no seed; its end is not included "
                "and needs to be greater than its start"
            )
        if len(seeds) + end - start > MOST_SEEDS:
            raise UserError(f"seeds {text!r} are more than {MOST_SEEDS}; expected {SEEDS_SYNTAX}")
        seeds += range(start, end)
    seed, times = Counter(seeds).most_common(1)[0]
    if times > 1:
        raise UserError(f"seeds {text!r} hold {seed} twice; give every seed once")
    return seeds


def seed_ranges(seeds: Iterable[int]) -> str:
    """Seeds as one would type them, in ascending order.

    >>> seed_ranges([2, 3, 4, 7])
    '2:5,7'
    """
    numbers = set(seeds)
    starts = sorted(s for s in numbers if s - 1 not in numbers)
    ends = sorted(s + 1 for s in numbers if s + 1 not in numbers)
    return ",".join(f"{a}:{b}" if b > a + 1 else str(a) for a, b in zip(starts, ends, strict=True))


def choose(name: str, known: Collection[str], what: str) -> str:
    """The name, if it is known.

    >>> choose("lp-fdn", ["IC-FDNet", "LP-FDNet"], "model")
    Traceback (most recent call last):
    fdn.errors.UserError: unknown model 'lp-fdn'; did you mean 'LP-FDNet'? choose from IC-FDNet, LP-FDNet

    Raises:
        UserError: naming the closest known name and all of them.
    """
    if name in known:
        return name
    lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"did you mean {lower[close[0]]!r}? " if close else ""
    raise UserError(f"unknown {what} {name!r}; {hint}choose from {', '.join(known)}")


def parse_names(text: str, known: Collection[str], what: str) -> list[str]:
    """Names from a comma-separated list, in the order given.

    >>> parse_names("step, quad", ["step", "sine", "quad"], "data set")
    ['step', 'quad']

    Raises:
        UserError: for an unknown name, one given twice, or none.
    """
    names = [part.strip() for part in text.split(",")]
    for name in names:
        if not name:
            raise UserError(f"a {what} is missing in {text!r}; choose from {', '.join(known)}")
        choose(name, known, what)
        if names.count(name) > 1:
            raise UserError(f"{text!r} holds {name!r} twice; give every {what} once")
    return names


def parse_protocol(name: str, settings: Sequence[str] = (), epochs: int | None = None) -> Protocol:
    """The named protocol with settings replaced, each given as ``field=value``.

    >>> parse_protocol("published", ["warmup=50", "clip_norm=none"], epochs=3).label
    'published+warmup=50+epochs=3+clip_norm=None'

    Raises:
        UserError: for an unknown protocol or field, or a value that does not fit the field.
    """
    choose(name, PROTOCOLS, "protocol")
    types = typing.get_type_hints(Protocol)
    fields = [field.name for field in dataclasses.fields(Protocol) if field.name != "base"]
    changes: dict[str, object] = {}
    for setting in [*settings, *([] if epochs is None else [f"epochs={epochs}"])]:
        field, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise UserError(f"cannot read the setting {setting!r}; expected field=value such as warmup=50")
        choose(field, fields, "setting")
        if field in changes:
            raise UserError(f"the setting {field!r} is given twice; give it once")
        changes[field] = _parse_value(field, value, types[field])
    return dataclasses.replace(PROTOCOLS[name], **changes)


def _parse_value(field: str, text: str, kind: type) -> object:
    if kind is str:
        return text
    optional = type(None) in typing.get_args(kind)
    if optional and text.lower() == "none":
        return None
    number, expected = (int, "a whole number") if kind is int else (float, "a number")
    try:
        value = number(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{field} is {text!r}; expected {expected}{' or none' if optional else ''}")
    return value


def check_parameters(cells: Sequence[str]) -> None:
    """Refuse parameters that papermill has injected into a running notebook but the notebook does not have.

    papermill itself only warns. A notebook calls this after its parameters, with IPython's list ``In`` of the
    sources it has run so far: the injected cell begins with the comment ``# Parameters`` and follows the cell
    of defaults.

    >>> check_parameters(["seeds: str = '0:5'  # which", "# Parameters\\nsedes = '0:20'"])
    Traceback (most recent call last):
    fdn.errors.UserError: unknown notebook parameter 'sedes'; did you mean 'seeds'? choose from seeds

    Raises:
        UserError: naming the parameters that there are.
    """
    for defaults, injected in zip(cells, cells[1:]):
        if injected.startswith("# Parameters\n"):
            known = _assigned(defaults)
            for name in _assigned(injected):
                choose(name, known, "notebook parameter")


def _assigned(source: str) -> list[str]:
    targets = []
    for node in ast.parse(source).body:
        targets += node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
