"""The page of all published numbers, and the same as a file of numbers."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fdn.report import published
from fdn.report.comparison import compare, miss_table, number_table, score_table, seed_counts, uniformity_table
from fdn.runs import results


def comparison_page(metrics: pd.DataFrame, protocol: str) -> str:
    """The page of all published numbers, Markdown."""
    comparison = published.compare(metrics, protocol)
    parts = [
        "# The published numbers, one by one",
        f"Published (Appendix F) beside our seeds under protocol `{protocol}`: {seed_counts(comparison)}. Written by "
        "`fdn compare --out`; the reasons are kept by hand in `reasons.csv`, everything else is computed.",
        score_table(comparison).to_markdown(),
        uniformity_table(metrics, protocol).to_markdown(),
        miss_table(comparison).to_markdown(),
    ]
    for dataset in published.DATASETS:
        numbers = published.rows_of(comparison, dataset=dataset)
        table = number_table(numbers, f"numbers_{dataset}", f"Every number of {dataset}")
        parts += [f"## {dataset}", table.to_markdown()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write_comparison(folder: Path, metrics: pd.DataFrame, protocol: str) -> list[Path]:
    """Write ``compare.csv``, a row per published number, and the page ``compare.md``; return their paths."""
    comparison = published.with_reasons(published.compare(metrics, protocol))
    if "where" in metrics:
        comparison["where"] = compare(metrics, protocol)["where"]
    table = folder / "compare.csv"
    with results.atomic(table) as path:
        comparison.to_csv(path, index=False, float_format="%.6g")
    return [table, results.write(folder / "compare.md", comparison_page(metrics, protocol))]
