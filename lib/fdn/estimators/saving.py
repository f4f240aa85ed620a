"""A fitted model as a folder: what it is in JSON, its numbers in safetensors. Nothing in it is run when it is read."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from fdn.errors import UserError

FORMAT, VERSION = "fdn-regressor", 3
DESCRIPTION, NUMBERS = "model.json", "model.safetensors"


def write(folder: str | Path, described: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a model; a folder of other things is left alone.

    Raises:
        UserError: for such a folder, for one that cannot be written, and for parameters that JSON cannot hold.
    """
    folder = Path(folder)
    try:
        text = json.dumps({"format": FORMAT, "version": VERSION, **described}, indent=2, default=_plain)
    except TypeError as error:
        raise UserError(f"the model cannot be saved: {error}; give parameters as numbers and text") from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not (folder / DESCRIPTION).exists():
            raise UserError(f"{folder} holds other things; save to a new folder, an empty one or that of a model")
        (folder / DESCRIPTION).unlink(missing_ok=True)  # a model is there once its description is, which comes last
        save_file({name: np.array(array, order="C") for name, array in arrays.items()}, folder / NUMBERS)
        (folder / DESCRIPTION).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error


def read(folder: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What :func:`write` was given.

    Raises:
        UserError: for a folder without a model, a damaged one, and one that another version wrote.
    """
    folder = Path(folder)
    try:
        described = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is no folder of a saved model: it has no {DESCRIPTION} that can be read") from error
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise UserError(f"{folder / DESCRIPTION} describes no model of this package (format {FORMAT!r})")
    if (version := described.get("version")) != VERSION:
        raise UserError(
            f"{folder} was saved in version {version} of the format, and this package reads {VERSION}; fit it again, "
            "or install the package that saved it"
        )
    try:
        return described, load_file(folder / NUMBERS)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder / NUMBERS} cannot be read: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"a {type(value).__name__} is no value of JSON")
