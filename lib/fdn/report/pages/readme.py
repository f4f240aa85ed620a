"""The README's results: every number in it is written here, from the committed results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.errors import UserError
from fdn.models import BASELINE, PAPER_MODELS
from fdn.report import claims, comparison, published
from fdn.report.tables import band, band_text, corrected_mean_error, plain_number
from fdn.runs import extras, results
from fdn.typesetting import pipe_table

BEGIN, END = "<!-- results: written by `make publish` -->", "<!-- end of results -->"


def results_block(metrics: pd.DataFrame, protocol: str = "published") -> str:
    """The score of the published numbers and the errors inside the training band, as Markdown."""
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


def update(readme: Path | None = None, folder: Path | None = None) -> None:
    """Write the results block of the README anew from a results folder (default: the committed one).

    Raises:
        UserError: if the README has lost its markers.
    """
    readme = paths.ROOT / "README.md" if readme is None else readme
    text = readme.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{readme.name} should hold the markers {BEGIN!r} and {END!r} once each")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    block = results_block(extras.read(paths.COMMITTED_RESULTS if folder is None else folder))
    with results.atomic(readme) as path:
        path.write_text(f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}", encoding="utf-8")
