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
fit.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow
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
POINTS = {"z": float, "y": float, "region": str, "mean": float, "var": float, "mse": float, "crps": float}
_CELL = {
    **dict.fromkeys(KEY, str),
    **dict.fromkeys(("numerics", "seed", "best_epoch", "n_params", "n_draws"), int), "fingerprint": str,
}  # fmt: skip
_METRICS = {**dict.fromkeys(KEY, str), **dict.fromkeys(("seed", "best_epoch", "n_params", "n_draws"), int)}
_SIDECAR = {"seeds": list, "seconds": dict, "environment": dict}


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


def _path(out: Path, kind: str, protocol: str, dataset: str, model: str, seed: int | str, suffix: str) -> Path:
    return Path(out, kind, segment(protocol), segment(dataset), segment(model), f"{segment(str(seed))}.{suffix}")


def check_writable(out: Path, protocol: str, dataset: str, model: str) -> None:
    """Raise UserError unless the results of a block can be written."""
    for kind in ("cells", "points", "sidecar", "fits"):
        probe = _path(out, kind, protocol, dataset, model, "writable", "probe")
        with atomic(probe):
            pass
        probe.unlink(missing_ok=True)  # another run in this folder may have been quicker


def _read_json(path: Path, kinds: dict[str, type | tuple[type, ...]]) -> dict | None:
    """The object in a file, None if there is no file; UserError unless its values are of these kinds, by name."""
    try:
        # NumPy's own check, for what will be a column
        content = json.loads(path.read_text(encoding="utf-8"), parse_int=lambda digits: int(np.int64(int(digits))))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        raise UserError(f"{path} is damaged ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged (it holds no object)")
    _check_kinds(path, content, kinds)
    return content


def _check_kinds(path: Path, content: dict, kinds: dict[str, type | tuple[type, ...]]) -> None:
    for name, kind in kinds.items():
        if not isinstance(content.get(name, kinds), kind) or isinstance(content[name], bool):
            raise UserError(f"{path} is damaged (its {name!r} is missing or of another type)")


_IS = {str: (is_string, is_large_string), int: (is_integer,), float: (is_floating, is_integer)}


def _read_parquet(path: Path, columns: Mapping[str, type], footer_only: bool = False) -> pd.DataFrame | None:
    """The table in a file, None if there is no file; UserError unless it can be read and has these columns, of these types.

    With ``footer_only`` nothing else is read, which is where a file cut short has nothing.
    """
    try:
        with path.open("rb") as file:  # pyarrow takes names for UTF-8
            footer = pyarrow.parquet.read_metadata(file)
            found = {
                field.name: getattr(field.type, "value_type", field.type) for field in footer.schema.to_arrow_schema()
            }
            if missing := [name for name in columns if name not in found]:
                raise ValueError(f"it has no column {missing[0]!r}")
            for name, kind in columns.items():  # of no rows types are not known
                if footer.num_rows and not any(is_it(found[name]) for is_it in _IS[kind]):
                    raise ValueError(f"its {name!r} is of the type {found[name]}")
            return pd.DataFrame(columns=list(found)) if footer_only else pd.read_parquet(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged ({' '.join(str(error).split())})") from error


def _or_none(read: Callable[..., T], *given: object) -> T | None:
    """What can be read; None and a word for what is damaged."""
    try:
        return read(*given)
    except UserError as error:
        logging.getLogger(__name__).warning("%s and does not count", error)
        return None


def write_cell(out: Path, row: dict[str, object], points: pd.DataFrame, fingerprint: str) -> None:
    """Write one cell: its points first, its metrics last.

    Args:
        out: results folder.
        row: the values of ``COLUMNS``.
        points: per test point z, y, region, mean, var, mse, crps.
        fingerprint: of the data set; a cell of other data under the same name does not count.
    """
    key = (row["protocol"], row["dataset"], row["model"], row["seed"])
    with atomic(_path(out, "points", *key, "parquet")) as path:
        path.write_bytes(points.to_parquet(index=False))
    values = {c: None if isinstance(row[c], float) and math.isnan(row[c]) else row[c] for c in COLUMNS}
    cell = {"numerics": NUMERICS, "fingerprint": fingerprint, **values}
    with atomic(_path(out, "cells", *key, "json")) as path:
        path.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")


def lacking(cell: Mapping[str, object]) -> tuple[str, ...]:
    """The metrics that a cell lacks, as they were added after it was computed."""
    return tuple(column for column in SUMMARY_COLUMNS if column not in cell)


def write_fit(
    out: Path, protocol: str, dataset: str, model: str, seed: int, parameters: np.ndarray, scores: np.ndarray
) -> None:
    """The kept parameters of one cell, ``(n,)`` or ``(M, n)``, and the validation score of every epoch."""
    with atomic(_path(out, "fits", protocol, dataset, model, seed, "npz")) as path, path.open("wb") as file:
        np.savez_compressed(file, parameters=parameters, scores=scores)


def load_fit(out: Path, protocol: str, dataset: str, model: str, seed: int) -> tuple[np.ndarray, np.ndarray] | None:
    """What :func:`write_fit` wrote; None where there is nothing, or nothing that can be read."""
    path = _path(out, "fits", protocol, dataset, model, seed, "npz")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            parameters, scores = found["parameters"], found["scores"]
        cell = read_cell(out, protocol, dataset, model, seed)
        if cell and (parameters.size != cell["n_params"] or scores.ndim != 1 or not np.isfinite(parameters).all()):
            raise ValueError(f"its arrays of shapes {parameters.shape} and {scores.shape} are not those of the cell")
        return parameters, scores
    except FileNotFoundError:
        return None
    except Exception as error:  # an archive can be damaged in many ways
        logging.getLogger(__name__).warning("%s is damaged (%s) and does not count", path, error)
        return None


def read_cell(out: Path, protocol: str, dataset: str, model: str, seed: int) -> dict | None:
    """A cell of these numerics, None if there is none that can be read."""
    return _or_none(_read_cell, _path(out, "cells", protocol, dataset, model, seed, "json"))


def has_cell(out: Path, protocol: str, dataset: str, model: str, seed: int, fingerprint: str) -> bool:
    """Whether a cell of these numerics and data can be read, and its points too."""
    cell = read_cell(out, protocol, dataset, model, seed)
    return cell is not None and cell["fingerprint"] == fingerprint and has_points(out, dataset, model, protocol, seed)


def _read_cell(path: Path) -> dict | None:
    """A cell, None if there is none or if it is of other numerics; UserError if it is damaged or another place's."""
    cell = _read_json(path, {"numerics": int})
    if cell is None or cell["numerics"] != NUMERICS:
        return None
    metrics = {column: (int, float, type(None)) for column in SUMMARY_COLUMNS if column in cell}
    _check_kinds(path, cell, _CELL | metrics)
    own = _path(path.parents[4], "cells", cell["protocol"], cell["dataset"], cell["model"], cell["seed"], "json")
    if path != own:
        raise UserError(f"{path} is the cell of another place, {own.relative_to(path.parents[3])},")
    return cell


def write_sidecar(out: Path, protocol: str, dataset: str, model: str, seeds: str, content: dict) -> None:
    """Run times and environment of a block of seeds."""
    content = {"protocol": protocol, "dataset": dataset, "model": model, **content}
    with atomic(_path(out, "sidecar", protocol, dataset, model, seeds, "json")) as path:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_sidecars(folder: Path) -> list[dict]:
    """What every block left: protocol, dataset, model, seeds, seconds and environment (less the command, which names folders).

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
            content["environment"].pop("argv", None)
            named = dict(
                zip(("protocol", "dataset", "model"), path.relative_to(folder / "sidecar").parts)
            )  # by older versions
            blocks.append({**named, **content})
    return blocks


def _read_all_sidecars(folder: Path) -> dict | None:
    try:
        return _read_json(folder / "sidecar.json", {"numerics": int, "environments": list, "blocks": list})
    except UserError as error:
        raise UserError(
            f"{error}; take it from the repository again, or make it anew as its folder's README says"
        ) from error


def numerics_of(folder: Path) -> int | None:
    """The numerics of the blocks in the ``sidecar.json`` of a folder, None if it has none."""
    content = _read_all_sidecars(Path(folder))
    return content and content["numerics"]


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
    target, body = Path(folder) / "sidecar.json", ",\n  ".join(lines)
    with atomic(target) as path:
        path.write_text(f'{head},\n "blocks": [\n  {body}\n ]\n}}\n', encoding="utf-8")
    return target


def _order(names: tuple[str, ...]) -> dict[str, int]:
    return {name: i for i, name in enumerate(names)}


def collect(out: Path) -> pd.DataFrame:
    """Gather all cells of a folder into its ``metrics.parquet`` and return them; damaged ones do not count.

    Any number of runs may do so at once: who wrote last has seen every cell that was complete by then.
    """
    before = None
    while (found := _cells(out)) != before:  # written since we looked, by a run whose file we may have replaced
        cells = [cell for path in sorted(found) if (cell := _or_none(_read_cell, path))]
        frame = pd.DataFrame(cells, columns=list(COLUMNS))
        frame = sort(frame.astype(dict.fromkeys(SUMMARY_COLUMNS, "float64")))
        write_metrics(out, frame)
        before = found
    if short := [names for cell in cells if (names := lacking(cell))]:
        logging.getLogger(__name__).warning(
            "of %s cells in %s %s lack %s, added after they were computed; `fdn run` fills in those whose fits were kept",
            len(cells), out, len(short), ", ".join(dict.fromkeys(name for names in short for name in names)),
        )  # fmt: skip
    return frame


def _cells(out: Path) -> dict[Path, int]:
    """When each cell was written, in ns."""
    return {path: path.lstat().st_mtime_ns for path in Path(out).glob("cells/*/*/*/*.json")}


def sort(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order of the paper's data sets and models, then protocol and seed; unknown names last, by name."""
    orders = {
        "dataset": _order(data.NAMES),
        "model": _order((BASELINE, *MODEL_NAMES)),
        "protocol": _order(tuple(PROTOCOLS)),
    }
    by = pd.DataFrame({c: frame[c].map(order).fillna(len(order)) for c, order in orders.items()})
    by = pd.concat([by, frame[list(KEY)].add_prefix("name_")], axis=1)
    return frame.loc[by.sort_values(list(by.columns)).index].reset_index(drop=True)


def write_metrics(folder: Path, frame: pd.DataFrame) -> Path:
    """Write the ``metrics.parquet`` of a folder and return its path."""
    target = Path(folder) / "metrics.parquet"
    with atomic(target) as path:
        path.write_bytes(frame.to_parquet(index=False))
    return target


def of_blocks(metrics: pd.DataFrame, wanted: Set[tuple[str, str, str]]) -> pd.DataFrame:
    """The rows whose (data set, model, protocol) is wanted."""
    return metrics[pd.MultiIndex.from_frame(metrics[["dataset", "model", "protocol"]]).isin(wanted)]


def load_metrics(out: Path) -> pd.DataFrame:
    """The metrics of a results folder, one row per (dataset, model, protocol, seed), without columns that none of its cells has.

    Raises:
        FileNotFoundError: if the folder holds no ``metrics.parquet``.
        UserError: if the file is damaged.
    """
    try:
        frame = _read_metrics(Path(out) / "metrics.parquet")
    except UserError as error:
        cells = any(Path(out).glob("cells/*/*/*/*.json"))
        mend = (
            f"`fdn collect --out {out}` writes it anew from the cells"
            if cells
            else "it has to be copied or computed again"
        )
        raise UserError(f"{error}; {mend}") from error
    if frame is None:
        raise FileNotFoundError(f"{out} holds no results (metrics.parquet); run `fdn run --out {out}` first")
    return frame


def _read_metrics(path: Path) -> pd.DataFrame | None:
    frame = _read_parquet(path, _METRICS)
    if frame is not None:
        if odd := [c for c in frame.columns.intersection(SUMMARY_COLUMNS) if not is_numeric_dtype(frame[c])]:
            raise UserError(f"{path} is damaged (its {odd[0]!r} is of the type {frame[odd[0]].dtype})")
        if frame[list(KEY)].isna().any(axis=None) or frame.duplicated(list(KEY)).any():
            raise UserError(f"{path} is damaged (it holds a cell twice, or one without a name)")
    return frame


def has_points(out: Path, dataset: str, model: str, protocol: str, seed: int) -> bool:
    """Whether the per-point results of a cell are there and, as far as their footer says, can be read."""
    return (
        _or_none(_read_parquet, _path(out, "points", protocol, dataset, model, seed, "parquet"), POINTS, True)
        is not None
    )


def load_points(out: Path, dataset: str, model: str, protocol: str, seed: int) -> pd.DataFrame:
    """Per test point: z (split feature), y, region ("ID" or "OOD"), mean, var, mse, crps.

    Raises:
        FileNotFoundError: if the folder does not hold them.
        UserError: if the file is damaged.
    """
    path = _path(out, "points", protocol, dataset, model, seed, "parquet")
    frame = _read_parquet(path, POINTS)
    if frame is None:
        raise FileNotFoundError(f"{out} holds no per-point results of {dataset}, {model}, {protocol}, seed {seed}")
    return frame
