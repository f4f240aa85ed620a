"""The page of all published numbers, and the same as a file of numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd

from fdn.report import published
from fdn.report.comparison import compare, miss_table, misses, more_seeds, number_table, score_table, uniformity_table
from fdn.runs import results


def comparison_page(metrics: pd.DataFrame, protocol: str, more: pd.DataFrame | None = None) -> str:
    """The page of all published numbers, Markdown.

    What ``more`` results reach, which have further seeds, comes second.
    """
    comparison = published.compare(metrics, protocol)
    parts = [
        "# The published numbers, one by one",
        f"Published (Appendix F) beside our seeds under protocol `{protocol}`. Written by `fdn compare --out`; the "
        "reasons are kept by hand in `reasons.csv`, everything else is computed.",
        score_table(comparison).to_markdown(),
        uniformity_table(metrics, protocol).to_markdown(),
        miss_table(comparison).to_markdown(),
    ]
    if more is not None and (said := more_seeds(metrics, more, protocol)):
        many = published.compare(more, protocol)
        tables = [
            replace(score_table(many), name="score_more", title="How many are reached with all seeds there are"),
            replace(
                uniformity_table(more, protocol), name="uniformity_more", title="The same test with all seeds there are"
            ),
            number_table(misses(many), "misses_more", "Outside the range of all seeds"),
        ]
        parts += ["## With further seeds", said, *(table.to_markdown() for table in tables)]
    for dataset in published.DATASETS:
        table = number_table(
            comparison[comparison["dataset"] == dataset], f"numbers_{dataset}", f"Every number of {dataset}"
        )
        parts += [f"## {dataset}", table.to_markdown()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_comparison(
    folder: Path, metrics: pd.DataFrame, protocol: str, more: pd.DataFrame | None = None
) -> list[Path]:
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
