"""What a person types, on a command line or as a notebook parameter: seeds, names and settings."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from fdn.errors import UserError
from fdn.protocol import PROTOCOLS, Protocol
from fdn.settings import checked, choose, kinds, parsed

SEEDS_SYNTAX = "a half-open range such as 0:5, numbers such as 3,7, or both as in 0:3,7"
MOST_SEEDS = 100_000  # more is a slip of the keyboard


def check_text(what: str, value: object) -> str:
    """The value, which has to be text.

    YAML and papermill make numbers of some text: ``seeds: 5:10`` becomes 310, the seconds of 5 minutes and 10 seconds.
    Afterwards nobody can tell which was meant, so ``papermill -p seeds 7`` is refused as well; ``-r seeds 7`` is right.

    Raises:
        UserError: for any other type.
    """
    if not isinstance(value, str):
        raise UserError(
            f"{what} is {value!r}, not text: YAML and papermill's -p read 5:10 or 7 as a number and yes as True; "
            "put it in quotes in YAML, or use papermill's -r"
        )
    return value


def parse_seeds(text: str) -> list[int]:
    """Seeds from half-open ranges and single numbers, in the order given.

    >>> parse_seeds("0:3, 7")
    [0, 1, 2, 7]

    Raises:
        UserError: for a range without seeds, a seed given twice, or anything but the text of numbers of at least 0.
    """
    seeds: list[int] = []
    for part in check_text("seeds", text).split(","):
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


def parse_names(text: str, known: Collection[str], what: str) -> list[str]:
    """Names from a comma-separated list, in the order given.

    >>> parse_names("step, quad", ["step", "sine", "quad"], "data set")
    ['step', 'quad']

    Raises:
        UserError: for an unknown name, one given twice, none, or anything but text.
    """
    names = [part.strip() for part in check_text(what, text).split(",")]
    for name in names:
        if not name:
            raise UserError(f"a {what} is missing in {text!r}; choose from {', '.join(known)}")
        choose(name, known, what)
        if names.count(name) > 1:
            raise UserError(f"{text!r} holds {name!r} twice; give every {what} once")
    return names


# What settings were called before
FORMER = {"noise_variance": "observation_variance", "fit_noise": "fit_observation_noise", "networks": "members"}


def parse_protocol(name: str, settings: Sequence[str] = (), epochs: int | None = None) -> Protocol:
    """The protocol of a name or label, with settings replaced, each given as ``field=value``.

    >>> parse_protocol("published", ["warmup=50", "clip_norm=none"], epochs=3).label
    'published+warmup=50+epochs=3+clip_norm=None'
    >>> parse_protocol("published+prior_scale=1e+16").prior_scale
    1e+16

    Raises:
        UserError: for an unknown protocol or field, a field given twice, or a value that does not fit the field.
    """
    base, plus, label = check_text("the protocol", name).partition("+")
    choose(base, PROTOCOLS, "protocol")
    fields = {field: kind for field, kind in kinds(Protocol).items() if field != "base"}
    changes: dict[str, object] = {}
    # a plus may be part of a number: it ends a setting where the name of another one follows
    given = [*(re.split(r"\+(?=\s*[a-z_]+\s*=)", label) if plus else ()), *settings]
    for setting in given if epochs is None else [*given, f"epochs={epochs}"]:
        field, equals, value = (part.strip() for part in check_text("a setting", setting).partition("="))
        if not equals:
            raise UserError(f"cannot read the setting {setting!r}; expected field=value such as warmup=50")
        field = choose(FORMER.get(field, field), fields, "setting")
        if field in changes:
            raise UserError(f"the setting {field!r} is given twice; give it once")
        changes[field] = parsed(field, value, fields[field])
    return dataclasses.replace(PROTOCOLS[base], **changes)


PARAMETER_TYPES = {"str": str, "int": int, "float": float, "bool": bool}  # as notebooks annotate their parameters


def check_parameter(name: str, value: object, annotation: str | None) -> None:
    """Refuse a value of another type than a notebook's parameter has, and an empty one, which is not its default.

    Raises:
        UserError: naming the parameter, its value and what was expected.
    """
    if annotation == "str":
        if not check_text(name, value).strip():
            raise UserError(f"{name} is empty; leave it out for its default, or give a value")
    elif annotation in PARAMETER_TYPES:
        checked(name, value, PARAMETER_TYPES[annotation])


def parse_parameter(name: str, text: str, annotation: str | None) -> object:
    """The value of a notebook's parameter that a person typed; text stays text, whatever it looks like.

    >>> parse_parameter("seeds", "7", "str"), parse_parameter("epochs", "7", "int")
    ('7', 7)

    Raises:
        UserError: naming the parameter, the text and what was expected.
    """
    return parsed(name, text, PARAMETER_TYPES.get(annotation, str))


def check_parameters(cells: Sequence[str]) -> None:
    """Refuse parameters that papermill has injected into a running notebook but the notebook does not have so.

    papermill itself only warns of an unknown name, and takes a value of any type. A notebook calls this after its
    parameters, with IPython's list ``In`` of the sources it has run so far: the injected cell begins with the comment
    ``# Parameters`` and follows the cell of defaults, whose annotations are the types.

    >>> check_parameters(["seeds: str = '0:5'  # which", "# Parameters\\nsedes = '0:20'"])
    Traceback (most recent call last):
    fdn.errors.UserError: unknown notebook parameter 'sedes'; did you mean 'seeds'? choose from seeds

    Raises:
        UserError: naming the parameters that there are, or the type and value of one.
    """
    for defaults, injected in zip(cells, cells[1:]):
        if injected.startswith("# Parameters\n"):
            known = {name: annotation for name, annotation, _ in _assigned(defaults)}
            for name, _, value in _assigned(injected):
                choose(name, known, "notebook parameter")
                check_parameter(name, eval(value, {"float": float}), known[name])  # NaN is written float('nan')


def _assigned(source: str) -> list[tuple[str, str | None, str]]:
    """Name, annotation and value, as code, of the assignments at the top of a cell."""
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else None
            found += [(t.id, annotation, ast.unparse(node.value)) for t in targets if isinstance(t, ast.Name)]
    return found
