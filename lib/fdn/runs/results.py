"""Results as tidy files: one cell per (dataset, model, protocol, seed), written last and atomically.

Layout of a results folder::

    metrics.parquet                                      all cells, one row each
    cells/<protocol>/<dataset>/<model>/<seed>.json       one cell's metrics: where it exists, the cell is done
    points/<protocol>/<dataset>/<model>/<seed>.parquet   z, y, region, mean, var, mse, crps of every test point
    fits/<protocol>/<dataset>/<model>/<seed>.npz         the kept parameters, and the validation score of every epoch
    sidecar/<protocol>/<dataset>/<model>/<seeds>.json    run times and environment, kept out of the results themselves

Names that are long or no file name are shortened there (:func:`fdn.paths.segment`); the files hold them as they are.
Numbers are the same to the byte from run to run. Nothing that can be read is computed again; what is damaged does not
count, and a word is said about it. A cell computed before a metric was added lacks it until it is filled in from its
fit. Functions take the key of a cell in the order of ``KEY``.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import pandas as pd
import pyarrow.parquet
from pandas.api.types import is_numeric_dtype
from pyarrow.types import is_floating, is_integer, is_large_string, is_string

from fdn import data
from fdn.errors import UserError
from fdn.metrics import SUMMARY_COLUMNS
from fdn.models import BASELINE, MODEL_NAMES
from fdn.paths import segment
from fdn.protocol import PROTOCOLS

NUMERICS = 3  # raised by hand when the same cell gets other numbers; tests/training/test_regression.py guards it

T = TypeVar("T")

KEY = ("dataset", "model", "protocol", "seed")
COLUMNS = (*KEY, *SUMMARY_COLUMNS, "best_epoch", "n_params", "n_draws")
SUFFIXES = {"cells": "json", "points": "parquet", "fits": "npz", "sidecar": "json"}  # by kind of file
POINTS = {"z": float, "y": float, "region": str, "mean": float, "var": float, "mse": float, "crps": float}
_METRICS = {**dict.fromkeys(KEY, str), **dict.fromkeys(("seed", "best_epoch", "n_params", "n_draws"), int)}
_CELL = {**_METRICS, "numerics": int, "fingerprint": str}
_SIDECAR = {"seeds": list, "seconds": dict, "environment": dict}
_NUMBER = (int, float, type(None))

# Files: written whole or not at all, and read as far as they are what they should be


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place once the block ends without an error.

    Raises:
        UserError: if the folder cannot be written, or the path is one.
    """
    if path.is_dir():
        raise UserError(f"cannot write {path}: it is a folder; move it away, or choose another output folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise UserError(f"cannot write to {path.parent}: {error.strerror}; choose another output folder") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, content: str | bytes) -> Path:
    """Write a file by :func:`atomic`, text as UTF-8, and return its path."""
    with atomic(path) as temporary:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


def write_json(path: Path, content: dict) -> Path:
    """Write an object by :func:`write`, and return the file's path."""
    return write(path, json.dumps(content, indent=1) + "\n")


def _reader(read: Callable[..., T]) -> Callable[..., T | None]:
    """A function of a path from one of its open file: None if there is no file, UserError if it is damaged."""

    @functools.wraps(read)
    def from_path(path: Path, *wanted: object) -> T | None:
        try:
            with path.open("rb") as file:  # pyarrow takes names for UTF-8
                return read(file, *wanted)
        except FileNotFoundError:
            return None
        except Exception as error:  # a file can be damaged in many ways
            raise UserError(f"{path} is damaged ({' '.join(str(error).split())})") from error

    return from_path


def _or_none(read: Callable[..., T], *given: object) -> T | None:
    """What can be read; None and a word for what is damaged."""
    try:
        return read(*given)
    except UserError as error:
        logging.getLogger(__name__).warning("%s and does not count", error)
        return None


def _object(file: BinaryIO, kinds: Mapping[str, type]) -> dict:
    # NumPy's own check, for what will be a column
    content = json.loads(file.read().decode(), parse_int=lambda digits: int(np.int64(int(digits))))
    if not isinstance(content, dict):
        raise ValueError("it holds no object")
    return _checked(content, kinds)


def _checked(content: dict, kinds: Mapping[str, type | tuple[type, ...]]) -> dict:
    for name, kind in kinds.items():
        if not isinstance(content.get(name, kinds), kind) or isinstance(content[name], bool):
            raise ValueError(f"its {name!r} is missing or of another type")
    return content


_read_json = _reader(_object)
_IS = {str: (is_string, is_large_string), int: (is_integer,), float: (is_floating, is_integer)}


@_reader
def _read_parquet(file: BinaryIO, columns: Mapping[str, type], footer_only: bool = False) -> pd.DataFrame:
    """The table with these columns, of these types; ``footer_only``: one without rows, as a file cut short lacks its
    footer.
    """
    footer = pyarrow.parquet.read_metadata(file)
    found = {field.name: getattr(field.type, "value_type", field.type) for field in footer.schema.to_arrow_schema()}
    for name, kind in columns.items():
        if name not in found:
            raise ValueError(f"it has no column {name!r}")
        if footer.num_rows and not any(is_it(found[name]) for is_it in _IS[kind]):  # of no rows types are not known
            raise ValueError(f"its {name!r} is of the type {found[name]}")
    return pd.DataFrame(columns=list(found)) if footer_only else pd.read_parquet(file)


# Cells


def _path(out: Path, kind: str, dataset: str, model: str, protocol: str, seed: int | str) -> Path:
    name = f"{segment(str(seed))}.{SUFFIXES[kind]}"
    return Path(out, kind, segment(protocol), segment(dataset), segment(model), name)


def check_writable(out: Path) -> None:
    """Raise UserError unless results of every kind can be written."""
    for kind in SUFFIXES:
        probe = Path(out, kind, "writable")
        with atomic(probe):
            pass
        probe.unlink(missing_ok=True)  # another run in this folder may have been quicker


def write_cell(out: Path, row: dict[str, object], points: pd.DataFrame, fingerprint: str) -> None:
    """Write one cell: its points first, its metrics last.

    Args:
        out: results folder.
        row: the values of ``COLUMNS``.
        points: per test point z, y, region, mean, var, mse, crps.
        fingerprint: of the data set; a cell of other data under the same name does not count.
    """
    key = [row[name] for name in KEY]
    write(_path(out, "points", *key), points.to_parquet(index=False))
    values = {c: None if isinstance(row[c], float) and math.isnan(row[c]) else row[c] for c in COLUMNS}
    write_json(cell_path(out, *key), {"numerics": NUMERICS, "fingerprint": fingerprint, **values})


@_reader
def _read_cell(file: BinaryIO) -> dict | None:
    """A cell, None if it is of other numerics; damaged if it is another place's."""
    cell = _object(file, {"numerics": int})
    if cell["numerics"] != NUMERICS:
        return None
    _checked(cell, _CELL | {column: _NUMBER for column in SUMMARY_COLUMNS if column in cell})
    path = Path(file.name)
    own = cell_path(path.parents[4], *(cell[name] for name in KEY))
    if path != own:
        raise ValueError(f"it is the cell of another place, {own.relative_to(path.parents[3])}")
    return cell


def cell_path(out: Path, dataset: str, model: str, protocol: str, seed: int) -> Path:
    """Where a cell lies."""
    return _path(out, "cells", dataset, model, protocol, seed)


def read_cell(out: Path, dataset: str, model: str, protocol: str, seed: int) -> dict | None:
    """A cell of these numerics, None if there is none that can be read."""
    return _or_none(_read_cell, cell_path(out, dataset, model, protocol, seed))


def complete_cell(out: Path, dataset: str, model: str, protocol: str, seed: int, fingerprint: str) -> dict | None:
    """A cell of these numerics and data whose points can be read too; None if it has to be computed."""
    cell = read_cell(out, dataset, model, protocol, seed)
    if cell and cell["fingerprint"] == fingerprint and has_points(out, dataset, model, protocol, seed):
        return cell
    return None


def lacking(cell: Mapping[str, object]) -> tuple[str, ...]:
    """The metrics that a cell lacks, as they were added after it was computed."""
    return tuple(column for column in SUMMARY_COLUMNS if column not in cell)


def has_points(out: Path, dataset: str, model: str, protocol: str, seed: int) -> bool:
    """Whether the per-point results of a cell are there and, as far as their footer says, can be read."""
    path = _path(out, "points", dataset, model, protocol, seed)
    return _or_none(_read_parquet, path, POINTS, True) is not None


def load_points(out: Path, dataset: str, model: str, protocol: str, seed: int) -> pd.DataFrame:
    """Per test point: z (split feature), y, region ("ID" or "OOD"), mean, var, mse, crps.

    Raises:
        FileNotFoundError: if the folder does not hold them.
        UserError: if the file is damaged.
    """
    frame = _read_parquet(_path(out, "points", dataset, model, protocol, seed), POINTS)
    if frame is None:
        raise FileNotFoundError(f"{out} holds no per-point results of {dataset}, {model}, {protocol}, seed {seed}")
    return frame


def write_fit(out: Path, key: tuple[str, str, str, int], parameters: np.ndarray, scores: np.ndarray) -> None:
    """The kept parameters of one cell, ``(n,)`` or ``(M, n)``, and the validation score of every epoch."""
    with atomic(_path(out, "fits", *key)) as path, path.open("wb") as file:
        np.savez_compressed(file, parameters=parameters, scores=scores)


@_reader
def _read_fit(file: BinaryIO, n_params: int | None) -> tuple[np.ndarray, np.ndarray]:
    with np.load(file, allow_pickle=False) as found:
        parameters, scores = found["parameters"], found["scores"]
    if n_params not in (None, parameters.size) or scores.ndim != 1 or not np.isfinite(parameters).all():
        raise ValueError(f"its arrays of shapes {parameters.shape} and {scores.shape} are not those of the cell")
    return parameters, scores


def has_fit(out: Path, dataset: str, model: str, protocol: str, seed: int) -> bool:
    """Whether a fit was kept; :func:`load_fit` tells whether it can be read."""
    return _path(out, "fits", dataset, model, protocol, seed).exists()


def load_fit(out: Path, dataset: str, model: str, protocol: str, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """What :func:`write_fit` wrote; None where there is nothing, or nothing that can be read."""
    key = (dataset, model, protocol, seed)
    cell = read_cell(out, *key)
    return _or_none(_read_fit, _path(out, "fits", *key), cell and cell["n_params"])


# Sidecars


def write_sidecar(out: Path, dataset: str, model: str, protocol: str, content: dict) -> None:
    """Run times and environment of a block of seeds."""
    path = _path(out, "sidecar", dataset, model, protocol, "-".join(map(str, content["seeds"])))
    write_json(path, {"protocol": protocol, "dataset": dataset, "model": model, **content})


def read_sidecars(folder: Path) -> list[dict]:
    """What every block left: protocol, dataset, model, seeds, seconds, and environment less the command.

    From the ``sidecar.json`` of :func:`write_sidecars` if the folder holds one, else from the files of a results
    folder, where one that is damaged does not count.

    Raises:
        UserError: if the ``sidecar.json`` is damaged.
    """
    folder = Path(folder)
    if content := _read_all_sidecars(folder):
        return [{**block, "environment": content["environments"][block["environment"]]} for block in content["blocks"]]
    blocks = []
    for path in sorted(folder.glob("sidecar/*/*/*/*.json")):
        if content := _or_none(_read_json, path, _SIDECAR):
            content["environment"].pop("argv", None)  # which names folders
            named = zip(("protocol", "dataset", "model"), path.relative_to(folder / "sidecar").parts)
            blocks.append({**dict(named), **content})  # older versions leave the names to the folders
    return blocks


def _read_all_sidecars(folder: Path) -> dict | None:
    try:
        return _read_json(Path(folder) / "sidecar.json", {"numerics": int, "environments": list, "blocks": list})
    except UserError as error:
        raise UserError(
            f"{error}; take it from the repository again, or make it as its folder's README says"
        ) from error


def numerics_of(folder: Path) -> int | None:
    """The numerics of the blocks in the ``sidecar.json`` of a folder, None if it has none."""
    content = _read_all_sidecars(folder)
    return content and content["numerics"]


def merged_sidecars(folder: Path, out: Path) -> list[dict]:
    """The blocks of a folder, if it is of these numerics, and after them those of a results folder."""
    return [*(read_sidecars(folder) if numerics_of(folder) == NUMERICS else []), *read_sidecars(out)]


def write_sidecars(folder: Path, blocks: Iterable[dict]) -> Path:
    """All blocks in one file, ``sidecar.json``, sorted, each environment once.

    The last of equal ones (but for times) counts.
    """
    last = {(b["protocol"], b["dataset"], b["model"], tuple(b["seeds"])): b for b in blocks}
    environments: list[dict] = []
    lines = []
    for _, block in sorted(last.items()):
        if block["environment"] not in environments:
            environments.append(block["environment"])
        seconds = {name: round(value, 2) for name, value in block["seconds"].items()}
        lines.append(json.dumps({**block, "seconds": seconds, "environment": environments.index(block["environment"])}))
    head = json.dumps({"numerics": NUMERICS, "environments": environments}, indent=1)[:-2]
    body = ",\n  ".join(lines)
    return write(Path(folder) / "sidecar.json", f'{head},\n "blocks": [\n  {body}\n ]\n}}\n')


# The frame of metrics: one row per cell


def cells(out: Path) -> dict[Path, int]:
    """The files of all cells of a folder, and when each was written, in ns."""
    return {path: path.lstat().st_mtime_ns for path in Path(out).glob("cells/*/*/*/*.json")}


def frame_of(cells: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """Cells as rows, sorted."""
    return sort(pd.DataFrame(cells, columns=list(COLUMNS)).astype(dict.fromkeys(SUMMARY_COLUMNS, "float64")))


def sort(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order of the paper's data sets and models, then protocol and seed; unknown names last, by name."""
    frame = frame.reset_index(drop=True)
    orders = {"dataset": data.NAMES, "model": (BASELINE, *MODEL_NAMES), "protocol": tuple(PROTOCOLS)}
    by = pd.DataFrame({c: frame[c].map({n: i for i, n in enumerate(o)}).fillna(len(o)) for c, o in orders.items()})
    by = pd.concat([by, frame[list(KEY)].add_prefix("name_")], axis=1)
    return frame.loc[by.sort_values(list(by.columns)).index].reset_index(drop=True)


def of_blocks(metrics: pd.DataFrame, wanted: Set[tuple[str, str, str]]) -> pd.DataFrame:
    """The rows whose (data set, model, protocol) is wanted."""
    return metrics[pd.MultiIndex.from_frame(metrics[["dataset", "model", "protocol"]]).isin(wanted)]


def write_metrics(folder: Path, frame: pd.DataFrame) -> Path:
    """Write the ``metrics.parquet`` of a folder and return its path."""
    return write(Path(folder) / "metrics.parquet", frame.to_parquet(index=False))


def collect(out: Path) -> pd.DataFrame:
    """Gather all cells of a folder into its ``metrics.parquet`` and return them; damaged ones do not count.

    Any number of runs may do so at once: who wrote last has seen every cell that was complete by then.
    """
    before = None
    while (files := cells(out)) != before:  # written since we looked, by a run whose file we may have replaced
        found = [cell for path in sorted(files) if (cell := _or_none(_read_cell, path))]
        frame = frame_of(found)
        write_metrics(out, frame)
        before = files
    if short := [names for cell in found if (names := lacking(cell))]:
        logging.getLogger(__name__).warning(
            "%s of %s cells in %s are without %s, added after they were computed; `fdn run` fills in those whose "
            "fits were kept, and `fdn run --recompute` trains the others",
            len(short), len(found), out, ", ".join(dict.fromkeys(name for names in short for name in names)),
        )  # fmt: skip
    return frame


def merged(folder: Path, new: pd.DataFrame) -> pd.DataFrame:
    """The metrics of a folder of these numerics, if it has some, with new rows in the places of those of the same key.

    Another processor rounds otherwise: where all numbers agree to 1e-9, those of the folder stay as they are, and the
    new ones only fill in what they lack.
    """
    if numerics_of(folder) not in (None, NUMERICS) or not (Path(folder) / "metrics.parquet").exists():
        return sort(new)
    key = list(KEY)
    old, new = load_metrics(folder).set_index(key), new.set_index(key)
    both, shared = new.index.intersection(old.index), new.columns.intersection(old.columns)
    before, after = old.loc[both, shared], new.loc[both, shared]
    close = np.isclose(before.astype(float), after.astype(float), rtol=1e-9, atol=1e-9, equal_nan=True)
    same = both[(close | before.isna().to_numpy()).all(axis=1)]
    new.loc[same, shared] = before.loc[same].fillna(after.loc[same])
    return sort(pd.concat([old.drop(both), new]).reset_index())


def load_metrics(out: Path) -> pd.DataFrame:
    """The metrics of a results folder, one row per (dataset, model, protocol, seed).

    Raises:
        FileNotFoundError: if the folder holds no ``metrics.parquet``.
        UserError: if the file is damaged.
    """
    path = Path(out) / "metrics.parquet"
    try:
        frame = _read_parquet(path, _METRICS)
        if frame is None:
            raise FileNotFoundError(f"{out} holds no results (metrics.parquet); run `fdn run --out {out}` first")
        if odd := [c for c in frame.columns.intersection(SUMMARY_COLUMNS) if not is_numeric_dtype(frame[c])]:
            raise UserError(f"{path} is damaged (its {odd[0]!r} is of the type {frame[odd[0]].dtype})")
        if frame[list(KEY)].isna().any(axis=None) or frame.duplicated(list(KEY)).any():
            raise UserError(f"{path} is damaged (it holds a cell twice, or one without a name)")
    except UserError as error:
        mend = f"`fdn collect --out {out}` writes it anew from the cells" if cells(out) else "copy or compute it again"
        raise UserError(f"{error}; {mend}") from error
    return frame
