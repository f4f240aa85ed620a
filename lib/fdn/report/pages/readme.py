"""The results of the README and of docs/results.md: every number in them is written here, from committed results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.errors import UserError
from fdn.models import BASELINE, PAPER_MODELS
from fdn.protocol import PUBLISHED
from fdn.report import claims, comparison, published
from fdn.report.published import DATASETS
from fdn.report.tables import DASH, band, band_text, corrected_mean_error, plain_number
from fdn.runs import extras, results
from fdn.typesetting import pipe_table

BEGIN, END = "<!-- results: written by `make publish` -->", "<!-- end of results -->"


def results_block(metrics: pd.DataFrame, numbers: pd.DataFrame, judged: str) -> str:
    """The score of the published numbers and the errors inside the training band, as Markdown: docs/results.md."""
    score = published.score(numbers)
    total, p = score.iloc[-1], published.uniformity(metrics)["p"].iloc[0]
    n = total["n"]
    inside = numbers[numbers["verdict"].isin([published.CENTRAL, published.RANGE])].groupby(["model", "dataset"]).size()
    reached, errors = [], []
    for model in PAPER_MODELS:
        reached.append((model, *(str(inside.get((model, name), 0)) for name in DATASETS), _reached(score, model)))
    for model in (BASELINE, *PAPER_MODELS):
        runs = [published.rows_of(metrics, dataset=name, model=model) for name in DATASETS]
        cells = [plain_number(run["mse_id"].median()) for run in runs]
        if model != BASELINE:  # whose one draw is its mean
            means = [band_text(*band(corrected_mean_error(run, "id"))) for run in runs]
            cells = [f"{one} / {mean}" for one, mean in zip(cells, means)]
        errors.append((model, *cells))
    lines = [
        f"Of the 252 published numbers, {n} are compared: **{total['minmax']} lie inside the range of our "
        f"seeds** ({total['minmax'] / n:.0%}; if the published run were simply one more seed, "
        f"{total['expected_minmax']:.0%} would), {total['central']} of them between their 5 and 95 % quantiles "
        f"({total['central'] / n:.0%}; {total['expected_central']:.0%}). As a whole the published runs lie "
        f"{'as far out as our own seeds do' if p > 0.05 else 'further out than our own seeds do'} "
        f"(randomisation test over (data set, model): p = {p:.2f}). Seeds: {comparison.seed_counts(numbers)}. "
        "Every number, with its place among the seeds and, where it is outside, the reason: "
        "[data/comparison/compare.md](data/comparison/compare.md). Inside the range, per model and data set (of 7 "
        "numbers each):",
        "",
        *_table(("model", *DATASETS, "all"), reached),
        "",
        "Mean squared error inside the training band, median over seeds: of a single draw / of the predictive mean, "
        "corrected for Var / K, with its 5 to 95 % band (one that reaches 0 is below what the draws resolve; where "
        "bands overlap, nothing is ranked). Real sets in units of the target's variance over the training rows.",
        "",
        *_table(("model", *DATASETS), errors),
        "",
        f"And the paper's sentences: {judged}",
    ]
    return "\n".join(lines)


def _reached(score: pd.DataFrame, model: str) -> str:
    row = published.rows_of(score, by="model", name=model).iloc[0]
    return f"{row['minmax']} / {row['n']}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return pipe_table(columns, rows, "|---|" + "--:|" * (len(columns) - 1))


def summary_block(metrics: pd.DataFrame, numbers: pd.DataFrame, judged: str) -> str:
    """The README's results as Markdown: the score, the sentences judged, and one table, of all committed seeds."""
    score = published.score(numbers)
    total = score.iloc[-1]
    rows = []
    for model in (BASELINE, *PAPER_MODELS):
        runs = [published.rows_of(metrics, dataset=name, model=model) for name in DATASETS]
        cells = [plain_number(corrected_mean_error(run, "id").median()) if len(run) else DASH for run in runs]
        rows.append((model, *cells, DASH if model == BASELINE else _reached(score, model)))
    lines = [
        f"**{total['minmax']} of {total['n']} published numbers lie in the range of our seeds** (by chance "
        f"{total['expected_minmax'] * total['n']:.0f} would; seeds: {comparison.seed_counts(numbers)}). The paper's "
        f"sentences: {judged}",
        "",
        "Squared error of the predictive mean inside the training range, median over seeds; TrainingMean predicts the "
        "mean of the training targets:",
        "",
        *_table(("model", *DATASETS, "published numbers reached"), rows),
    ]
    return "\n".join(lines)


def update(root: Path | None = None) -> None:
    """Write the results of README.md and docs/results.md anew from the committed ones.

    Args:
        root: where the two are; default: the project.

    Raises:
        UserError: if one has lost its markers.
    """
    metrics = published.rows_of(extras.read(paths.COMMITTED_RESULTS), protocol=PUBLISHED.label)
    numbers = published.compare(metrics)
    found = pd.read_csv(paths.CLAIMS / "claims.csv", keep_default_na=False).itertuples()
    judged = f"{claims.summary(found)} ([data/claims](data/claims/README.md))."
    full = results_block(metrics, numbers, judged).replace("](data/", "](../data/")
    for name, block in (("README.md", summary_block(metrics, numbers, judged)), ("docs/results.md", full)):
        _write((paths.ROOT if root is None else root) / name, block)


def _write(page: Path, block: str) -> None:
    text = page.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{page.name} should hold the markers {BEGIN!r} and {END!r} once each")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    results.write(page, f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}")
