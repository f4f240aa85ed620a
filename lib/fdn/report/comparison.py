"""The published numbers beside ours, as tables: what is reached, by chance and in fact, and what is not and why.

Ours are those of a results folder, and where it has none the committed ones.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.report import published
from fdn.report.tables import DASH, plain_number
from fdn.runs import extras, results
from fdn.typesetting import Table

HERE, COMMITTED, MISSING = "here", "committed", "missing"


def with_committed(folder: Path) -> pd.DataFrame:
    """Metrics of a folder, and committed ones for each (dataset, model, protocol) it lacks.

    The column ``where`` says "here" or "committed". The committed folder itself, whose further seeds are those of
    data/extras, is committed throughout.

    Raises:
        FileNotFoundError: if the folder holds no results.
    """
    committed = paths.COMMITTED_RESULTS
    frame = extras.read(folder)
    if folder.resolve() == committed.resolve():
        return frame.assign(where=COMMITTED)
    frame = frame.assign(where=HERE)
    if not (committed / "metrics.parquet").exists():
        return frame
    key = ["dataset", "model", "protocol"]
    others = extras.read(committed).assign(where=COMMITTED)
    known = pd.MultiIndex.from_frame(others[key]).isin(pd.MultiIndex.from_frame(frame[key]))
    return results.sort(pd.concat([frame, others[~known]], ignore_index=True))


def compare(metrics: pd.DataFrame, protocol: str) -> pd.DataFrame:
    """:func:`fdn.report.published.compare` with a column ``where``: "here", "committed" or "missing".

    Args:
        metrics: from :func:`with_committed`.
    """
    comparison = published.compare(metrics, protocol)
    chosen = published.rows_of(metrics, protocol=protocol)
    where = chosen.drop_duplicates(["dataset", "model"]).set_index(["dataset", "model"])["where"]
    keys = pd.MultiIndex.from_frame(comparison[["dataset", "model"]])
    return comparison.assign(where=where.reindex(keys).fillna(MISSING).to_numpy())


def seed_counts(comparison: pd.DataFrame) -> str:
    """How many seeds the published numbers of each data set are compared with, in words."""
    counts = comparison.groupby("dataset", sort=False)["n_seeds"].max()
    return ", ".join(f"{dataset} {count}" for dataset, count in counts.items())


def score_table(comparison: pd.DataFrame) -> Table:
    """:func:`fdn.report.published.score` as a table."""
    rows = []
    score = published.score(comparison)
    for row in score[score["n"] + score["missing"] > 0].itertuples():
        shares = [
            f"{count} ({count / row.n:.0%})" if row.n else DASH for count in (row.central, row.minmax, row.outside)
        ]
        chance = [f"{share:.0%}" if row.n else DASH for share in (row.expected_central, row.expected_minmax)]
        by = "" if row.by == row.name else row.by
        rows.append((by, row.name, str(row.n), shares[0], chance[0], shares[1], chance[1], shares[2], str(row.missing)))
    return Table(
        name="score",
        title="How many of the published numbers are reached",
        caption="A published value counts give or take half a unit of its last digit. 5–95 % and min–max: between "
        "these quantiles, or ends, of our seeds; by chance: the share that would be there if the published run were "
        "one more of n seeds, (n − 1)/(n + 1) for min–max and 0.9 times that for 5–95 %.",
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
        title="Where the published runs lie among our seeds",
        caption="A number's place is the share of other runs below it; distance is the mean of |2 place − 1|, from 0 "
        "in the middle to 1 beyond all; expected is its mean if each (data set, model) takes any of its runs, "
        "published or ours, with equal chance, and p the chance of a distance of at least the published one. The "
        "seven numbers of a run stay together, so that their dependence does no harm.",
        columns=("By", "", "Groups", "Distance", "Expected", "p"),
        rows=tuple(rows),
        align="llrrrr",
        notes=(f"Published numbers in the five fifths of the places, lowest first (expected): {spread}.",),
    )  # fmt: skip


def misses(comparison: pd.DataFrame) -> pd.DataFrame:
    """The numbers outside the range of the seeds; undefined and missing ones do not count."""
    return published.rows_of(comparison, verdict=published.OUTSIDE)


def miss_list(comparison: pd.DataFrame) -> str:
    """The numbers outside the seeds' range, a Markdown line for each run, with the first sentence of the reason."""
    explained = published.with_reasons(misses(comparison))
    if explained.empty:
        return "Every compared number lies inside the range of the seeds."
    lines = []
    for (dataset, model), group in explained.groupby(["dataset", "model"], sort=False):
        numbers = [f"{row.metric} {row.printed} (ours {_interval(row.min, row.max)})" for row in group.itertuples()]
        reason = next((reason.split(". ")[0].rstrip(".") for reason in group["reason"] if reason), "No reason given")
        lines.append(f"- **{dataset}, {model}**: {', '.join(numbers)}. {reason}.")
    return "\n".join(lines)


def miss_table(comparison: pd.DataFrame) -> Table:
    """The numbers outside the seeds' range, how far outside they lie, and why."""
    explained = published.with_reasons(misses(comparison))
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
    comparison = published.with_reasons(comparison)
    rows = [
        (row.dataset, row.model, row.metric, row.printed, plain_number(row.median), _interval(row.q05, row.q95),
         _interval(row.min, row.max), str(row.n_seeds), DASH if pd.isna(row.place) else f"{row.place:.2f}",
         row.verdict, row.reason)
        for row in comparison.itertuples()
    ]  # fmt: skip
    return Table(
        name=name,
        title=title,
        caption="Place: the share of seeds below the published value, equal ones (to half a unit of the last printed "
        "digit) counted half.",
        columns=("Data set", "Model", "Metric", "Published", "Median", "5–95 %", "Min–max", "Seeds", "Place",
                 "Verdict", "Reason"),
        rows=tuple(rows),
        align="lll" + "r" * 6 + "ll",
    )  # fmt: skip
