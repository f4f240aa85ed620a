"""The results of the README and of docs/results.md: every number in them is written here, from committed results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.errors import UserError
from fdn.models import BASELINE, PAPER_MODELS
from fdn.report import claims, comparison, published
from fdn.report.tables import DASH, band, band_text, corrected_mean_error, plain_number
from fdn.runs import extras, results
from fdn.typesetting import pipe_table

BEGIN, END = "<!-- results: written by `make publish` -->", "<!-- end of results -->"


def results_block(metrics: pd.DataFrame, protocol: str = "published") -> str:
    """The score of the published numbers and the errors inside the training band, as Markdown: docs/results.md."""
    numbers = published.compare(metrics, protocol)
    score = published.score(numbers).set_index(["by", "name"])
    total = score.loc[("total", "total")]
    n = int(total["n"])
    test = published.uniformity(metrics, protocol).set_index(["by", "name"]).loc[("total", "total")]
    lines = [
        f"Of the 252 published numbers, {n} are compared: **{int(total['minmax'])} lie inside the range of our "
        f"seeds** ({total['minmax'] / n:.0%}; if the published run were simply one more seed, "
        f"{total['expected_minmax']:.0%} would), {int(total['central'])} of them between their 5 and 95 % quantiles "
        f"({total['central'] / n:.0%}; {total['expected_central']:.0%}). As a whole the published runs lie "
        f"{'as far out as our own seeds do' if test['p'] > 0.05 else 'further out than our own seeds do'} "
        f"(randomisation test over (data set, model): p = {test['p']:.2f}). Seeds: {comparison.seed_counts(numbers)}. "
        "Every number, with its place among the seeds and, where it is outside, the reason: "
        "[data/comparison/compare.md](data/comparison/compare.md). Inside the range, per model and data set (of 7 "
        "numbers each):",
        "",
    ]
    lines += _inside(numbers, score)
    lines += [
        "",
        "Mean squared error inside the training band, median over seeds: of a single draw / of the predictive mean, "
        "corrected for Var / K, with its 5 to 95 % band (one that reaches 0 is below what the draws resolve; where "
        "bands overlap, nothing is ranked). Real sets in units of the target's variance over the training rows.",
        "",
    ]
    lines += _errors(metrics, protocol)
    if (judged := paths.CLAIMS / "claims.csv").exists():
        found = pd.read_csv(judged, keep_default_na=False).itertuples()
        lines += ["", f"And the paper's sentences: {claims.summary(found)} ([data/claims](data/claims/README.md))."]
    return "\n".join(lines)


def _inside(numbers: pd.DataFrame, score: pd.DataFrame) -> list[str]:
    """The table of numbers inside the range, per model and data set."""
    inside = numbers[numbers["verdict"].isin([published.CENTRAL, published.RANGE])]
    counts = inside.groupby(["model", "dataset"]).size()
    rows = []
    for model in PAPER_MODELS:
        row, cells = score.loc[("model", model)], [str(counts.get((model, d), 0)) for d in published.DATASETS]
        rows.append((model, *cells, f"{int(row['minmax'])} / {int(row['n'])}"))
    return _table(("model", *published.DATASETS, "all"), rows)


def _errors(metrics: pd.DataFrame, protocol: str) -> list[str]:
    """The table of errors of one draw and of the mean, which for the training mean are the same."""
    rows = []
    for model in (BASELINE, *PAPER_MODELS):
        runs = [published.rows_of(metrics, dataset=d, model=model, protocol=protocol) for d in published.DATASETS]
        cells = [plain_number(run["mse_id"].median()) for run in runs]
        if model != BASELINE:
            means = [band_text(*band(corrected_mean_error(run, "id"))) for run in runs]
            cells = [f"{one} / {mean}" for one, mean in zip(cells, means)]
        rows.append((model, *cells))
    return _table(("model", *published.DATASETS), rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return pipe_table(columns, rows, "|---|" + "--:|" * (len(columns) - 1))


def summary_block(metrics: pd.DataFrame, protocol: str = "published") -> str:
    """The README's results as Markdown: the score, the sentences judged, and one table, of all committed seeds."""
    runs = published.rows_of(metrics, protocol=protocol)
    numbers = published.compare(metrics, protocol)
    score = published.score(numbers).set_index(["by", "name"])
    total = score.loc[("total", "total")]
    compared, inside = int(total["n"]), int(total["minmax"])
    rows = []
    for model in (BASELINE, *PAPER_MODELS):
        cells = []
        for dataset in published.DATASETS:
            run = published.rows_of(runs, dataset=dataset, model=model)
            cells.append(plain_number(corrected_mean_error(run, "id").median()) if len(run) else DASH)
        reached = DASH
        if model != BASELINE:
            reached = "{} / {}".format(*score.loc[("model", model), ["minmax", "n"]].astype(int))
        rows.append((model, *cells, reached))
    lines = [
        f"**{inside} of {compared} published numbers lie in the range of our seeds** (by chance "
        f"{total['expected_minmax'] * compared:.0f} would; seeds: {comparison.seed_counts(numbers)}).",
    ]
    if (judged := paths.CLAIMS / "claims.csv").exists():
        found = pd.read_csv(judged, keep_default_na=False).itertuples()
        lines[0] += f" The paper's sentences: {claims.summary(found)} ([data/claims](data/claims/README.md))."
    lines += [
        "",
        "Squared error of the predictive mean inside the training range, median over seeds; TrainingMean predicts the "
        "mean of the training targets:",
        "",
        *_table(("model", *published.DATASETS, "published numbers reached"), rows),
    ]
    return "\n".join(lines)


def update(folder: Path | None = None, root: Path | None = None) -> None:
    """Write the results of README.md and docs/results.md anew from a results folder (default: the committed one).

    Args:
        root: where the two are; default: the project.

    Raises:
        UserError: if one has lost its markers.
    """
    root = paths.ROOT if root is None else root
    metrics = extras.read(paths.COMMITTED_RESULTS if folder is None else folder)
    full = results_block(metrics).replace("](data/", "](../data/")
    for name, block in (("README.md", summary_block(metrics)), ("docs/results.md", full)):
        _write(root / name, block)


def _write(page: Path, block: str) -> None:
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{page.name} should hold the markers {BEGIN!r} and {END!r} once each")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    with results.atomic(page) as path:
        path.write_text(f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}", encoding="utf-8")
