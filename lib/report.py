"""What the commands print: published beside reproduced, with what was computed here and what is committed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lib import paths, published, results
from lib.errors import UserError
from lib.tables import DASH, plain_number, result_table
from lib.typesetting import Table

HERE, COMMITTED, MISSING = "here", "committed", "missing"


def read_metrics(folder: Path) -> pd.DataFrame:
    """The metrics of a results folder.

    Raises:
        FileNotFoundError: if there are none.
        UserError: if the file is damaged.
    """
    try:
        return results.load_metrics(folder)
    except ValueError as error:  # pyarrow's are such
        raise UserError(
            f"{folder / 'metrics.parquet'} is damaged; delete it and run again, cells are kept"
        ) from error


def find_results(folder: Path | None) -> Path:
    """The folder to read: the one given, else the default output if it holds results, else the committed."""
    if folder is not None:
        return folder
    has_own = (paths.DEFAULT_OUT / "metrics.parquet").exists()
    return paths.DEFAULT_OUT if has_own else paths.COMMITTED_RESULTS


def with_committed(folder: Path) -> pd.DataFrame:
    """Metrics of a folder, and committed ones for each (dataset, model, protocol) it lacks.

    The column ``where`` says "here" or "committed". The committed folder itself is committed throughout.

    Raises:
        FileNotFoundError: if the folder holds no results.
    """
    committed = paths.COMMITTED_RESULTS
    frame = read_metrics(folder)
    if folder.resolve() == committed.resolve():
        return frame.assign(where=COMMITTED)
    frame = frame.assign(where=HERE)
    if not (committed / "metrics.parquet").exists():
        return frame
    key = ["dataset", "model", "protocol"]
    others = read_metrics(committed).assign(where=COMMITTED)
    known = pd.MultiIndex.from_frame(others[key]).isin(pd.MultiIndex.from_frame(frame[key]))
    return results.sort(pd.concat([frame, others[~known]], ignore_index=True))


def compare(metrics: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """:func:`lib.published.compare` with a column ``where``: "here", "committed" or "missing".

    Args:
        metrics: from :func:`with_committed`.
    """
    comparison = published.compare(metrics, protocol)
    chosen = metrics[metrics["protocol"] == protocol]
    where = chosen.drop_duplicates(["dataset", "model"]).set_index(["dataset", "model"])["where"]
    keys = pd.MultiIndex.from_frame(comparison[["dataset", "model"]])
    return comparison.assign(where=where.reindex(keys).fillna(MISSING).to_numpy())


def text_of(table: Table) -> str:
    """A table as aligned plain text; a cell of several lines takes several lines."""
    rows = [[cell.split("\n") for cell in row] for row in (table.columns, *table.rows)]
    lines = [
        [cell[i] if i < len(cell) else "" for cell in row] for row in rows for i in range(max(map(len, row)))
    ]
    return _aligned(lines, table.align)


def _aligned(lines: Sequence[Sequence[str]], align: str) -> str:
    widths = [max(map(len, column)) for column in zip(*lines)]
    sides = {"l": str.ljust, "r": str.rjust, "c": str.center}
    cells = [[sides[a](cell, w) for cell, w, a in zip(line, widths, align)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def medians(metrics: pd.DataFrame) -> str:
    """Medians over seeds of the published metrics, a line per dataset, model and protocol."""
    lines = [("data set", "model", "seeds", *published.METRICS)]
    for (dataset, model, _), runs in metrics.groupby(["dataset", "model", "protocol"], sort=False):
        numbers = (plain_number(runs[metric].median()) for metric in published.METRICS)
        lines.append((dataset, model, str(len(runs)), *numbers))
    return _aligned(lines, "llr" + "r" * len(published.METRICS))


def results_of(metrics: pd.DataFrame, dataset: str, protocol: str) -> str:
    """Published, median and range of every number of a data set, and which of them were not computed here."""
    chosen = metrics[(metrics["dataset"] == dataset) & (metrics["protocol"] == protocol)]
    committed = list(chosen.loc[chosen["where"] == COMMITTED, "model"].unique())
    if not len(chosen):
        origin = "no results"
    elif len(committed) == chosen["model"].nunique():
        origin = "committed results, not computed here"
    else:
        origin = "computed here" + (f", except {', '.join(committed)}: committed" if committed else "")
    table = result_table(metrics, dataset, protocol)
    count = chosen["seed"].nunique()
    seeds = f"{count} seed{'s' * (count != 1)}, protocol {protocol}"
    return "\n".join([f"{table.title}: {origin}, {seeds}", "", text_of(table), *table.notes])


def scores(comparison: pd.DataFrame) -> str:
    """How many published numbers are reached, per model, data set and metric and in total."""
    lines = [("", "", "inside widened", "inside range", "expected", "missing")]
    score = published.score(comparison)
    for row in score[score["n"] + score["missing"] > 0].itertuples():
        shares = [
            f"{count:3d} of {row.n:3d} {count / row.n:4.0%}" if row.n else DASH
            for count in (row.inside_widened, row.inside_minmax)
        ]
        expected = f"{row.expected_share:.0%}" if row.n else DASH
        lines.append(("" if row.by == row.name else row.by, row.name, *shares, expected, str(row.missing)))
    where = comparison["where"].value_counts()
    here, committed, missing = (where.get(kind, 0) for kind in (HERE, COMMITTED, MISSING))
    counts = f"{here} computed here, {committed} committed, {missing} missing"
    rules = (
        "widened: the seeds' range, wider at both ends by 30 % of the larger end and 0.06 (Spearman: 0.05)",
        "expected: the chance that one more seed lies inside the range",
    )
    return "\n".join([f"{len(comparison)} published numbers: {counts}", _aligned(lines, "llrrrr"), *rules])


def misses(comparison: pd.DataFrame) -> pd.DataFrame:
    """The numbers outside the widened range of the seeds; undefined and missing ones are none."""
    return comparison[comparison["inside_widened"].eq(False).fillna(False).astype(bool)]


def numbers(comparison: pd.DataFrame) -> str:
    """Published, median and range of each number; ``x`` marks those outside the widened range."""
    outside = misses(comparison).index
    lines = [("data set", "model", "metric", "published", "median", "min", "max", "seeds", "where", "")]
    for row in comparison.itertuples():
        spread = map(plain_number, (row.median, row.min, row.max))
        key = (row.dataset, row.model, row.metric, row.printed)
        lines.append((*key, *spread, str(row.n_seeds), row.where, "x" if row.Index in outside else ""))
    return _aligned(lines, "lllrrrrrll")


def check_protocol(metrics: pd.DataFrame, protocol: str, folder: Path) -> None:
    """Raise UserError, naming the protocols there are, unless some result has this one."""
    known = list(metrics["protocol"].unique())
    if protocol not in known:
        raise UserError(
            f"{folder} holds no results of protocol {protocol!r}; it holds {', '.join(known) or 'none'}"
        )


def shown_path(path: Path) -> str:
    """A path as a person in the current folder would write it."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
