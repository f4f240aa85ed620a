"""What the commands print: published beside reproduced, with what was computed here and what is committed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from fdn import paths
from fdn.errors import UserError
from fdn.report import published
from fdn.report.tables import DASH, plain_number, result_table
from fdn.runs import results
from fdn.typesetting import Table

HERE, COMMITTED, MISSING = "here", "committed", "missing"


def read_metrics(folder: Path) -> pd.DataFrame:
    """The metrics of a results folder.

    Raises:
        FileNotFoundError: if there are none.
        UserError: if the file is damaged.
    """
    return results.load_metrics(folder)


def find_results(folder: Path | None) -> Path:
    """The folder to read: the one given, else the default output if it holds results, else the committed."""
    if folder is not None:
        return folder
    has_own = (paths.DEFAULT_OUT / "metrics.parquet").exists()
    return paths.DEFAULT_OUT if has_own or not paths.in_checkout() else paths.COMMITTED_RESULTS


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
    """:func:`fdn.report.published.compare` with a column ``where``: "here", "committed" or "missing".

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
    lines = [("data set", "model", "seeds", *published.PUBLISHED_METRICS)]
    for (dataset, model, _), runs in metrics.groupby(["dataset", "model", "protocol"], sort=False):
        numbers = (plain_number(runs[metric].median()) for metric in published.PUBLISHED_METRICS)
        lines.append((dataset, model, str(len(runs)), *numbers))
    return _aligned(lines, "llr" + "r" * len(published.PUBLISHED_METRICS))


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


def score_table(comparison: pd.DataFrame) -> Table:
    """:func:`fdn.report.published.score` as a table."""
    rows = []
    score = published.score(comparison)
    for row in score[score["n"] + score["missing"] > 0].itertuples():
        shares = [f"{count} ({count / row.n:.0%})" if row.n else DASH for count in (row.central, row.minmax, row.outside)]
        chance = [f"{share:.0%}" if row.n else DASH for share in (row.expected_central, row.expected_minmax)]
        by = "" if row.by == row.name else row.by
        rows.append((by, row.name, str(row.n), shares[0], chance[0], shares[1], chance[1], shares[2], str(row.missing)))
    return Table(
        name="score",
        title="How many of the published numbers are reached",
        caption="A published value counts give or take half a unit of its last digit. 5–95 % and min–max: between these "
        "quantiles, or ends, of our seeds; by chance: the share that would be there if the published run were one more of "
        "n seeds, (n − 1)/(n + 1) for min–max and 0.9 times that for 5–95 %.",
        columns=("By", "", "Compared", "In 5–95 %", "By chance", "In min–max", "By chance", "Outside", "Missing"),
        rows=tuple(rows),
        align="llrrrrrrr",
    )  # fmt: skip


def uniformity_table(metrics: pd.DataFrame, protocol: str) -> Table:
    """:func:`fdn.report.published.uniformity` in total, per data set and per model, as a table."""
    test = published.uniformity(metrics, protocol)
    rows = [
        ("" if row.by == row.name else row.by, row.name, str(row.groups), f"{row.distance:.3f}", f"{row.expected:.3f}",
         f"{row.p:.3f}")
        for row in test[test["by"] != "group"].itertuples()
    ]  # fmt: skip
    fifths = published.fifths(metrics, protocol)
    spread = ", ".join(f"{row.published} ({row.expected:.0f})" for row in fifths.itertuples())
    return Table(
        name="uniformity",
        title="Do the published runs lie among our seeds like one more seed?",
        caption="A number's place is the share of other runs below it; distance is the mean of |2 place − 1|, from 0 in the "
        "middle to 1 beyond all; expected is its mean if each (data set, model) takes any of its runs, published or ours, "
        "with equal chance, and p the chance of a distance of at least the published one. The seven numbers of a run stay "
        "together, so that their dependence does no harm.",
        columns=("By", "", "Groups", "Distance", "Expected", "p"),
        rows=tuple(rows),
        align="llrrrr",
        notes=(f"Published numbers in the five fifths of the places, lowest first (expected): {spread}.",),
    )  # fmt: skip


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


def misses(comparison: pd.DataFrame) -> pd.DataFrame:
    """The numbers outside the range of the seeds; undefined and missing ones are none."""
    return comparison[comparison["verdict"] == published.OUTSIDE]


def miss_table(comparison: pd.DataFrame) -> Table:
    """The numbers outside the seeds' range, how far outside they lie, and why."""
    explained = published.with_reasons(misses(comparison), published.load_reasons())
    rows = []
    for row in explained.itertuples():
        above, below = row.published - row.half_unit - row.max, row.min - row.published - row.half_unit
        distance, side = (above, "above the largest") if above > below else (below, "below the smallest")
        width = row.max - row.min
        times = f", {distance / width:.1f} times the seeds' range" if width > 0 else ""
        explanation = f"{plain_number(distance)} {side} of {row.n_seeds} seed{'s' * (row.n_seeds > 1)}{times}"
        key = (row.dataset, row.model, row.metric, row.printed)
        rows.append((*key, plain_number(row.median), _interval(row.min, row.max), explanation, row.reason or DASH))
    return Table(
        name="misses",
        title=f"Outside the range of our seeds: {len(rows)}",
        caption="Published numbers that our seeds do not reach, and why.",
        columns=("Data set", "Model", "Metric", "Published", "Median", "Range", "Distance", "Reason"),
        rows=tuple(rows),
        align="lllrrrll",
    )


def _interval(low: float, high: float) -> str:
    return DASH if pd.isna(low) else f"[{plain_number(low)}, {plain_number(high)}]"


def number_table(comparison: pd.DataFrame, name: str, title: str) -> Table:
    """Each number: published, median, 5-95 % and range of the seeds, its place among them, verdict and reason."""
    comparison = published.with_reasons(comparison, published.load_reasons())
    rows = [
        (row.dataset, row.model, row.metric, row.printed, plain_number(row.median), _interval(row.q05, row.q95),
         _interval(row.min, row.max), str(row.n_seeds), DASH if pd.isna(row.place) else f"{row.place:.2f}",
         row.verdict, row.reason)
        for row in comparison.itertuples()
    ]  # fmt: skip
    return Table(
        name=name,
        title=title,
        caption="Place: the share of seeds below the published value, equal ones (to half a unit of the last printed digit) "
        "counted half.",
        columns=("Data set", "Model", "Metric", "Published", "Median", "5–95 %", "Min–max", "Seeds", "Place", "Verdict", "Reason"),
        rows=tuple(rows),
        align="lll" + "r" * 6 + "ll",
    )


def numbers(comparison: pd.DataFrame) -> str:
    """Each number, published and reproduced, with its verdict and reason, as text."""
    return text_of(number_table(comparison, "numbers", ""))


def open_questions(comparison: pd.DataFrame) -> str:
    """Numbers outside that lack a reason, and reasons whose number is not outside."""
    reasons = published.load_reasons()
    outside = misses(published.with_reasons(comparison, reasons))
    unexplained = outside[outside["reason"] == ""]
    stale = published.stale_reasons(comparison, reasons)
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
        f"More than two standard deviations off: {len(far)} of {len(found)}{': ' if far else ''}{', '.join(far)}{together}",
        f"Nearest of our seeds: {seeds[nearest]}, {distances[nearest]:.2f} standard deviations away per number",
    ])  # fmt: skip


def more_seeds(metrics: pd.DataFrame, more: pd.DataFrame, protocol: str) -> str:
    """How many published numbers ``more`` results reach, where they have further seeds of a data set; "" if they have none."""
    few, many = published.compare(metrics, protocol), published.compare(more, protocol)
    seeds = many.groupby("dataset", sort=False)["n_seeds"].max()
    grown = seeds[seeds > few.groupby("dataset", sort=False)["n_seeds"].max()]
    if not len(grown):
        return ""
    total = published.score(many).iloc[-1]
    counts = ", ".join(f"{dataset} {count}" for dataset, count in grown.items())
    return (
        f"With the further seeds of data/extras ({counts}) {total['minmax']} of {total['n']} are inside min–max "
        f"({total['minmax'] / total['n']:.0%}; by chance {total['expected_minmax']:.0%}), {total['central']} of them inside 5–95 % "
        f"({total['central'] / total['n']:.0%}; {total['expected_central']:.0%})."
    )


def comparison_page(metrics: pd.DataFrame, protocol: str, more: pd.DataFrame | None = None) -> str:
    """The page of all published numbers, Markdown; what ``more`` results reach, which have further seeds, comes second."""
    comparison = published.compare(metrics, protocol)
    parts = [
        "# The published numbers, one by one",
        f"Published (Appendix F) beside our seeds under protocol `{protocol}`. Written by `fdn compare --out`; the reasons are "
        "kept by hand in `reasons.csv`, everything else is computed.",
        score_table(comparison).to_markdown(),
        uniformity_table(metrics, protocol).to_markdown(),
        miss_table(comparison).to_markdown(),
    ]
    if more is not None and (said := more_seeds(metrics, more, protocol)):
        many = published.compare(more, protocol)
        tables = [
            replace(score_table(many), name="score_more", title="How many are reached with all seeds there are"),
            replace(uniformity_table(more, protocol), name="uniformity_more", title="The same test with all seeds there are"),
            number_table(misses(many), "misses_more", "Outside the range of all seeds"),
        ]
        parts += ["## With further seeds", said, *(table.to_markdown() for table in tables)]
    for dataset in published.DATASETS:
        table = number_table(comparison[comparison["dataset"] == dataset], f"numbers_{dataset}", f"Every number of {dataset}")
        parts += [f"## {dataset}", table.to_markdown()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_comparison(folder: Path, metrics: pd.DataFrame, protocol: str, more: pd.DataFrame | None = None) -> list[Path]:
    """Write ``compare.csv``, a row per published number, and the page ``compare.md``; return their paths.

    Args:
        folder: takes both.
        metrics: results, whose numbers the files hold.
        protocol: of the results.
        more: the results with further seeds, which the page counts as well.
    """
    comparison = published.with_reasons(published.compare(metrics, protocol), published.load_reasons())
    if "where" in metrics:
        comparison["where"] = compare(metrics, protocol)["where"]
    table, page = folder / "compare.csv", folder / "compare.md"
    with results.atomic(table) as path:
        comparison.to_csv(path, index=False, float_format="%.6g")
    with results.atomic(page) as path:
        path.write_text(comparison_page(metrics, protocol, more), encoding="utf-8")
    return [table, page]


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
