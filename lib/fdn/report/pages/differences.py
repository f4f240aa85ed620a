"""The page of what separates the print from the published runs, ``data/differences/README.md``."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fdn.metrics import heading, metric_of
from fdn.protocol import PUBLISHED
from fdn.report.published import rows_of
from fdn.report.tables import band_text
from fdn.runs import groups, results
from fdn.runs.differences import DIFFERENCES, FOLDER, MEASURED, Difference
from fdn.typesetting import pipe_table

SOURCE = "running the author's public program and comparing its output with the published tables"
SHOWN = {
    metric: f"{metric_of(metric).heading}, ID" if metric.endswith("_id") else heading(metric)
    for metric in ("mse_id", "var_id", "delta_mse", "delta_var", "slope_b", "spearman")
}


def write(out: Path, folder: Path = FOLDER) -> list[Path]:
    """Keep the cells of a results folder that are behind the page, and write it, ``README.md``; return the paths."""
    written = groups.collect(MEASURED, out, folder)
    return [results.write(folder / "README.md", page(results.load_metrics(folder))), *written]


def effects(metrics: pd.DataFrame, difference: Difference) -> pd.DataFrame:
    """Medians over seeds with range, as published and as printed, per data set, model and metric."""
    rows = []
    for dataset in difference.datasets:
        for model in difference.models:
            labels = (PUBLISHED.label, difference.protocol.label)
            runs = [rows_of(metrics, dataset=dataset, model=model, protocol=label) for label in labels]
            common = set(runs[0]["seed"]) & set(runs[1]["seed"])
            runs = [rows_of(run, seed=common) for run in runs]
            effect = {SHOWN[metric]: "\n→ ".join(_spread(run[metric]) for run in runs) for metric in SHOWN}
            rows.append({"Data set": dataset, "Model": model, "Seeds": len(common), **effect})
    return pd.DataFrame(rows)


def _spread(values: pd.Series) -> str:
    low, middle, high = values.quantile([0, 0.5, 1])
    return "-" if pd.isna(middle) else band_text(middle, low, high)


def page(metrics: pd.DataFrame) -> str:
    """The page as Markdown: every difference, and for the measured ones published → printed medians [min, max]."""
    lines = [
        "# Where the print and the published runs differ",
        "",
        "The published tables were computed with the settings in the column *published runs*, established by "
        f"{SOURCE}.",
        "Protocol `published` follows the runs, protocol `as_written` the print. For each difference that can be run "
        "on its",
        "own, the tables below give the median over seeds [min, max] under `published` → with that one setting as "
        "printed.",
        "This page is written by `fdn differences`.",
        "",
    ]
    rows = []
    for i, d in enumerate(DIFFERENCES, 1):
        effect = f"[measured](#{i}-{_anchor(d.name)})" if d.field else d.remark
        rows.append((str(i), d.name, d.where, d.printed, d.published, f"`{d.field}`" if d.field else "-", effect))
    columns = ("#", "Topic", "Where", "Print", "Published runs", "Protocol field", "Effect")
    lines += pipe_table(columns, rows, "|--:|" + "---|" * 6)
    for i, d in enumerate(DIFFERENCES, 1):
        if d.field is None:
            continue
        table = effects(metrics, d)
        lines += ["", f"## {i} {d.name}", "", f"`{d.protocol.label}`. {d.remark}".strip(), ""]
        lines += pipe_table(table.columns, table.astype(str).to_numpy(), "|" + "---|" * len(table.columns))
    return "\n".join(lines) + "\n"


def _anchor(text: str) -> str:
    return "".join(c for c in text.lower().replace(" ", "-") if c.isalnum() or c == "-")
