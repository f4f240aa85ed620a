"""Results as tidy files: one cell per (dataset, model, protocol, seed), written last and atomically.

Layout of a results folder::

    metrics.parquet                                      all cells, one row each
    cells/<protocol>/<dataset>/<model>/<seed>.json       one cell's metrics: where it exists, the cell is done
    points/<protocol>/<dataset>/<model>/<seed>.parquet   z, y, region, mean, var, mse, crps of every test point
    sidecar/<protocol>/<dataset>/<model>/<seeds>.json    run times and environment, kept out of the results themselves

Numbers are the same to the byte from run to run; nothing that exists is computed again.
"""

from __future__ import annotations

import io
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from fdn import data
from fdn.errors import UserError
from fdn.metrics import SUMMARY_COLUMNS
from fdn.models import BASELINE, MODEL_NAMES
from fdn.protocol import PROTOCOLS

NUMERICS = 3  # raised by hand when the same cell gets other numbers; tests/test_regression.py guards it

KEY = ("dataset", "model", "protocol", "seed")
COLUMNS = (*KEY, *SUMMARY_COLUMNS, "best_epoch", "n_params", "n_draws")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place once the block ends without an error.

    Raises:
        UserError: if the folder cannot be written.
    """
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
    return Path(out) / kind / protocol / dataset / model / f"{seed}.{suffix}"


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
        path.write_bytes(points.to_parquet(index=False))  # pyarrow takes names for UTF-8
    values = {c: None if isinstance(row[c], float) and math.isnan(row[c]) else row[c] for c in COLUMNS}
    cell = {"numerics": NUMERICS, "fingerprint": fingerprint, **values}
    with atomic(_path(out, "cells", *key, "json")) as path:
        path.write_text(json.dumps(cell, indent=1) + "\n", encoding="utf-8")


def has_cell(out: Path, protocol: str, dataset: str, model: str, seed: int, fingerprint: str) -> bool:
    """Whether a cell of these numerics and data exists; one that cannot be read, as after a power cut, does not."""
    cell = _read_cell(_path(out, "cells", protocol, dataset, model, seed, "json"))
    return cell is not None and cell["fingerprint"] == fingerprint


def _read_cell(path: Path) -> dict | None:
    try:
        cell = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return cell if cell["numerics"] == NUMERICS else None


def write_sidecar(out: Path, protocol: str, dataset: str, model: str, seeds: str, content: dict) -> None:
    """Run times and environment of a block of seeds."""
    with atomic(_path(out, "sidecar", protocol, dataset, model, seeds, "json")) as path:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_sidecars(folder: Path) -> list[dict]:
    """What every block left: protocol, dataset, model, seeds, seconds and environment (less the command, which names folders).

    From the ``sidecar.json`` of :func:`write_sidecars` if the folder holds one, else from the files of a results folder.
    """
    folder = Path(folder)
    if (folder / "sidecar.json").exists():
        content = json.loads((folder / "sidecar.json").read_text(encoding="utf-8"))
        return [{**block, "environment": content["environments"][block["environment"]]} for block in content["blocks"]]
    blocks = []
    for path in sorted(folder.glob("sidecar/*/*/*/*.json")):
        protocol, dataset, model, _ = path.relative_to(folder / "sidecar").parts
        content = json.loads(path.read_text(encoding="utf-8"))
        content["environment"].pop("argv", None)
        blocks.append({"protocol": protocol, "dataset": dataset, "model": model, **content})
    return blocks


def numerics_of(folder: Path) -> int | None:
    """The numerics of the blocks in the ``sidecar.json`` of a folder, None if it has none."""
    path = Path(folder) / "sidecar.json"
    return json.loads(path.read_text(encoding="utf-8"))["numerics"] if path.exists() else None


def write_sidecars(folder: Path, blocks: Iterable[dict]) -> Path:
    """All blocks in one file, ``sidecar.json``, sorted, each environment once; the last of equal ones (but for times) counts."""
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
    """Gather all cells of a folder into its ``metrics.parquet`` and return them.

    Any number of runs may do so at once: who wrote last has seen every cell that was complete by then.
    """
    before = None
    while (found := _cells(out)) != before:  # written since we looked, by a run whose file we may have replaced
        frame = pd.DataFrame(filter(None, map(_read_cell, sorted(found))), columns=list(COLUMNS))
        frame = sort(frame.astype({c: "float64" for c in SUMMARY_COLUMNS}))
        with atomic(Path(out) / "metrics.parquet") as path:
            path.write_bytes(frame.to_parquet(index=False))
        before = found
    return frame


def _cells(out: Path) -> dict[Path, int]:
    """When each cell was written, in ns."""
    return {path: path.stat().st_mtime_ns for path in Path(out).glob("cells/*/*/*/*.json")}


def sort(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows in the order of the paper's data sets and models, then protocol and seed; unknown names last, by name."""
    orders = {
        "dataset": _order(data.NAMES),
        "model": _order((BASELINE, *MODEL_NAMES)),
        "protocol": _order(tuple(PROTOCOLS)),
    }
    by = pd.DataFrame({c: frame[c].map(order).fillna(len(order)) for c, order in orders.items()})
    by = pd.concat([by, frame[list(KEY)].add_prefix("name_")], axis=1)
    return frame.loc[by.sort_values(list(by.columns)[:2] + list(by.columns)[2:]).index].reset_index(drop=True)


def load_metrics(out: Path) -> pd.DataFrame:
    """The metrics of a results folder, one row per (dataset, model, protocol, seed).

    Raises:
        FileNotFoundError: if the folder holds no ``metrics.parquet``.
    """
    path = Path(out) / "metrics.parquet"
    if not path.exists():
        raise FileNotFoundError(f"{out} holds no results (metrics.parquet); run `fdn run --out {out}` first")
    return pd.read_parquet(io.BytesIO(path.read_bytes()))


def has_points(out: Path, dataset: str, model: str, protocol: str, seed: int) -> bool:
    """Whether the per-point results of a cell are there."""
    return _path(out, "points", protocol, dataset, model, seed, "parquet").exists()


def load_points(out: Path, dataset: str, model: str, protocol: str, seed: int) -> pd.DataFrame:
    """Per test point: z (split feature), y, region ("ID" or "OOD"), mean, var, mse, crps.

    Raises:
        FileNotFoundError: if the folder does not hold them.
    """
    path = _path(out, "points", protocol, dataset, model, seed, "parquet")
    if not path.exists():
        raise FileNotFoundError(f"{out} holds no per-point results of {dataset}, {model}, {protocol}, seed {seed}")
    return pd.read_parquet(io.BytesIO(path.read_bytes()))
