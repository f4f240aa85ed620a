"""How a command is defined, and what several of them share: options, how these are read, what is printed."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fdn import data, devices, models, paths
from fdn.arguments import SEEDS_SYNTAX, parse_names
from fdn.errors import UserError
from fdn.protocol import PROTOCOLS
from fdn.report import console
from fdn.settings import Count, described, parsed

Option = Callable[[argparse.ArgumentParser], object]  # adds itself to the parser of a command


@dataclass(frozen=True)
class Command:
    """What a command does, in words and in code, and how it is called."""

    name: str
    text: str
    call: Callable[[argparse.Namespace], None]
    options: Sequence[Option]
    examples: Sequence[str]  # what follows the name
    checkout: bool  # whether it needs files of the repository, which an installed package lacks


DEFINED: dict[str, Command] = {}


def command(*options: Option, examples: Sequence[str] = ("",), checkout: bool = False) -> Callable:
    """Decorator: the function becomes the command of its name, its docstring what --help says of it."""

    def enter(call: Callable[[argparse.Namespace], None]) -> Callable[[argparse.Namespace], None]:
        name = call.__name__.strip("_")
        DEFINED[name] = Command(name, call.__doc__, call, options, examples, checkout)
        return call

    return enter


def option(names: str, text: str, **settings: object) -> Option:
    """An option or argument, with what else ``add_argument`` takes; a default that is a word or number is told."""
    if isinstance(settings.get("default"), str | int):
        text = f"{text} (default: %(default)s)"
    return lambda parser: parser.add_argument(*names.split(), help=text, **settings)


def one_of(*options: Option) -> Option:
    """Options of which at most one may be given."""

    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for one in options:
            one(group)

    return add


# How the text of an option is read


def filled(text: str) -> str:
    """The text given to an option or argument; an empty one comes of a shell variable that is not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is empty; leave it out for its default, or give a value")
    return text


def folder(text: str) -> Path:
    """An absolute path: libraries give a dash or tilde at the beginning a meaning of its own."""
    return Path(filled(text)).absolute()


def file(text: str) -> Path:
    """The path of a file, which may be there or not."""
    path = folder(text)
    if path.is_dir() or text.endswith(os.sep):
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; name a file, in it or elsewhere")
    return path


def _number(text: str) -> int:
    try:
        return parsed("it", text, Count)
    except UserError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {described(Count)}") from error


def named(text: str | None, known: Collection[str] = data.NAMES, what: str = "data set") -> list[str] | None:
    """Names of a comma-separated list, if one was given."""
    return None if text is None else parse_names(text, known, what)


FILE = {"type": file, "metavar": "FILE"}
FLAG = {"action": "store_true"}
FOLDER = {"type": folder, "metavar": "DIR"}
NUMBER = {"type": _number}
REPEATED = {"action": "append", "default": []}

# Options of several commands

ALL_MODELS = (*models.MODEL_NAMES, models.BASELINE)
DATASET = "--dataset --datasets"
PROTOCOL = option("--protocol", " or ".join(PROTOCOLS), default="published")
WORKERS = option("--workers", "processes (default: one per core)", **NUMBER)


def device(default: str) -> Option:
    """Where training and prediction run."""
    return option("--device", f"{', '.join(devices.DEVICES)}: where training and prediction run", default=default)


def seeds(default: str) -> Option:
    """Seeds by their numbers."""
    return option("--seeds", SEEDS_SYNTAX, default=default)


def out(inside: str = "", what: str = "", **kind: object) -> Option:
    """What to write to, by default in out; a folder if nothing else is said."""
    default = f"default: {Path('out', inside).as_posix()}"
    text = f"{what} ({default})" if what else default
    return option("--out", text, default=paths.DEFAULT_OUT / inside, **(kind or FOLDER))


def chosen_device(args: argparse.Namespace) -> torch.device:
    """The device of the option; a missing GPU is told to the person who hoped for one."""
    chosen = devices.choose_device(args.device)
    if args.device == "auto" and chosen == devices.CPU:
        print("There is no GPU that PyTorch can use; this runs on the CPU.", file=sys.stderr)
    return chosen


def say_written(files: Iterable[Path]) -> None:
    """Print the last line of a command that writes."""
    print("Written: " + ", ".join(map(console.shown_path, files)))
