"""What the commands print: tables and findings as plain text, and the places they were read from and written to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fdn import paths
from fdn.errors import UserError
from fdn.report import published
from fdn.report.comparison import COMMITTED, HERE, MISSING, misses, number_table, score_table, uniformity_table
from fdn.report.tables import plain_number, result_table
from fdn.typesetting import Table, plain


def find_results(folder: Path | None) -> Path:
    """The folder to read: the one given, else the default output if it holds results, else the committed."""
    if folder is not None:
        return folder
    has_own = (paths.DEFAULT_OUT / "metrics.parquet").exists()
    return paths.DEFAULT_OUT if has_own or not paths.in_checkout() else paths.COMMITTED_RESULTS


def text_of(table: Table) -> str:
    """A table as aligned plain text; a cell of several lines takes several lines."""
    rows = [[plain(cell).split("\n") for cell in row] for row in (table.columns, *table.rows)]
    lines = [[cell[i] if i < len(cell) else "" for cell in row] for row in rows for i in range(max(map(len, row)))]
    return _aligned(lines, table.align)


def _aligned(lines: Sequence[Sequence[str]], align: str) -> str:
    widths = [max(map(len, column)) for column in zip(*lines)]
    sides = {"l": str.ljust, "r": str.rjust, "c": str.center}
    cells = [[sides[a](cell, w) for cell, w, a in zip(line, widths, align)] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in cells)


def medians(metrics: pd.DataFrame) -> str:
    """Medians over seeds of the published metrics, a line per dataset, model and protocol."""
    lines = [("data set", "model", "seeds", *published.PUBLISHED_METRICS)]
    for (dataset, model, _), runs in metrics.groupby(["dataset", "model", "protocol"], sort=False):
        numbers = (plain_number(runs[metric].median()) for metric in published.PUBLISHED_METRICS)
        lines.append((dataset, model, str(len(runs)), *numbers))
    return _aligned(lines, "llr" + "r" * len(published.PUBLISHED_METRICS))


def results_of(metrics: pd.DataFrame, dataset: str, protocol: str) -> str:
    """Published, median and range of every number of a data set, and which of them were not computed here."""
    chosen = published.rows_of(metrics, dataset=dataset, protocol=protocol)
    committed = list(published.rows_of(chosen, where=COMMITTED)["model"].unique())
    if not len(chosen):
        origin = "no results"
    elif len(committed) == chosen["model"].nunique():
        origin = "committed results, not computed here"
    else:
        origin = "computed here" + (f", except {', '.join(committed)}: committed" if committed else "")
    table = result_table(metrics, dataset, protocol)
    count = chosen["seed"].nunique()
    seeds = f"{count} seed{'s' * (count != 1)}, protocol {protocol}"
    return "\n".join([f"{plain(table.title)}: {origin}, {seeds}", "", text_of(table), *table.notes])


def scores(comparison: pd.DataFrame) -> str:
    """How many published numbers are reached, per data set, model and metric and in total."""
    where = comparison["where"].value_counts()
    here, committed, missing = (where.get(kind, 0) for kind in (HERE, COMMITTED, MISSING))
    counts = f"{here} computed here, {committed} committed, {missing} missing"
    table = score_table(comparison)
    return "\n".join([f"{len(comparison)} published numbers: {counts}", text_of(table), table.caption])


def uniformity(metrics: pd.DataFrame, protocol: str) -> str:
    """The test of uniform places as text."""
    table = uniformity_table(metrics, protocol)
    return "\n".join([f"{table.title}", text_of(table), table.caption, *table.notes])


def numbers(comparison: pd.DataFrame) -> str:
    """Each number, published and reproduced, with its verdict and reason, as text."""
    return text_of(number_table(comparison, "numbers", ""))


def open_questions(comparison: pd.DataFrame) -> str:
    """Numbers outside that lack a reason, and reasons whose number is not outside."""
    unexplained = published.rows_of(published.with_reasons(misses(comparison)), reason="")
    stale = published.stale_reasons(comparison, published.load_reasons())
    lines = []
    for what, rows in (("Outside without a reason", unexplained), ("Reasons whose number is not outside", stale)):
        lines.append(f"{what}: {len(rows)}")
        lines += [f"  {row.dataset}, {row.model}, {row.metric}" for row in rows.itertuples()]
    return "\n".join(lines)


def diagnosis(metrics: pd.DataFrame, dataset: str, model: str, protocol: str) -> str:
    """Seed by seed: is a (data set, model) off in one number or in all, and does one of our seeds look like it?"""
    found = published.diagnosis(metrics, dataset, model, protocol)
    test = published.uniformity(metrics, protocol).set_index(["by", "name"])
    z_seeds = np.stack(found["z_seeds"])  # (7, seeds)
    seeds = [name for name in found.columns if isinstance(name, int)]
    # root mean square over the numbers of the difference in z
    distances = np.sqrt(np.nanmean((z_seeds - found["z"].to_numpy()[:, None]) ** 2, axis=0))  # (seeds,)
    nearest = int(np.nanargmin(distances))
    head = ("metric", "published", "z", "place", "verdict", "scale", *(f"seed {seed}" for seed in seeds))
    lines = [head]
    for row in found.to_dict("records"):
        values = (plain_number(row[seed]) for seed in seeds)
        shown = (row["metric"], row["printed"], f"{row['z']:+.2f}", f"{row['place']:.2f}", row["verdict"], row["scale"])
        lines.append((*shown, *values))
    far = found.loc[found["z"].abs() > 2, "metric"].to_list()
    group = ("group", f"{dataset} {model}")
    together = f"; as a whole: distance {test.at[group, 'distance']:.2f}, expected {test.at[group, 'expected']:.2f}, " \
        f"p {test.at[group, 'p']:.3f}" if group in test.index else ""  # fmt: skip
    return "\n".join([
        f"{model} on {dataset}, protocol {protocol}, {len(seeds)} seeds",
        _aligned(lines, "lrrrll" + "r" * len(seeds)),
        f"More than two standard deviations off: {len(far)} of "
        f"{len(found)}{': ' if far else ''}{', '.join(far)}{together}",
        f"Nearest of our seeds: {seeds[nearest]}, {distances[nearest]:.2f} standard deviations away per number",
    ])  # fmt: skip


def check_protocol(metrics: pd.DataFrame, protocol: str, folder: Path) -> None:
    """Raise UserError, naming the protocols there are, unless some result has this one."""
    known = list(metrics["protocol"].unique())
    if protocol not in known:
        raise UserError(f"{folder} holds no results of protocol {protocol!r}; it holds {', '.join(known) or 'none'}")


def shown_path(path: Path) -> str:
    """A path as a person in the current folder would write it."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
