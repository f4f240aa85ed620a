"""The README's results: every number in it is written here, from the committed results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.errors import UserError
from fdn.models import BASELINE, PAPER_MODELS
from fdn.report import claims, comparison, published
from fdn.report.tables import corrected_mean_error, plain_number
from fdn.runs import extras, results

BEGIN, END = "<!-- results: written by `make publish` -->", "<!-- end of results -->"


def results_block(metrics: pd.DataFrame, protocol: str = "published") -> str:
    """The score of the published numbers and the errors inside the training band, as Markdown."""
    numbers = published.compare(metrics, protocol)
    score = published.score(numbers).set_index(["by", "name"])
    total = score.loc[("total", "total")]
    n, seeds = int(total["n"]), numbers.groupby("dataset", sort=False)["n_seeds"].max()
    counts = ", ".join(f"{dataset} {count}" for dataset, count in seeds.items())
    more = comparison.more_seeds(metrics, extras.with_extras(metrics), protocol)
    more = more.replace("data/extras", "[data/extras](data/extras/README.md)") + " " if more else ""
    test = published.uniformity(metrics, protocol).set_index(["by", "name"]).loc[("total", "total")]
    lines = [
        f"Of the 252 published numbers, {n} are compared: **{int(total['minmax'])} lie inside the range of our "
        f"seeds** ({total['minmax'] / n:.0%}; if the published run were simply one more seed, "
        f"{total['expected_minmax']:.0%} would), {int(total['central'])} of them between their 5 and 95 % quantiles "
        f"({total['central'] / n:.0%}; {total['expected_central']:.0%}). As a whole the published runs lie "
        f"{'as far out as our own seeds do' if test['p'] > 0.05 else 'further out than our own seeds do'} "
        f"(randomisation test over (data set, model): p = {test['p']:.2f}). Seeds: {counts}. {more}Every number, "
        "with its place among the seeds and, where it is outside, the reason: "
        "[data/comparison/compare.md](data/comparison/compare.md). Inside the range, per model and data set (of 7 "
        "numbers each):",
        "",
        "| model | " + " | ".join(published.DATASETS) + " | all |",
        "|---|" + "--:|" * (len(published.DATASETS) + 1),
    ]
    inside = numbers["verdict"].isin([published.CENTRAL, published.RANGE])
    for model in PAPER_MODELS:
        chosen = inside[numbers["model"] == model].groupby(numbers["dataset"]).sum()
        cells = [str(int(chosen[dataset])) for dataset in published.DATASETS]
        row = score.loc[("model", model)]
        lines.append(f"| {model} | " + " | ".join(cells) + f" | {int(row['minmax'])} / {int(row['n'])} |")
    lines += [
        "",
        "Mean squared error inside the training band, median over seeds: of a single draw / of the predictive mean "
        "(corrected for Var / K). Real sets in units of the target's variance over the training rows.",
        "",
        "| model | " + " | ".join(published.DATASETS) + " |",
        "|---|" + "--:|" * len(published.DATASETS),
    ]
    for model in (BASELINE, *PAPER_MODELS):
        cells = []
        for dataset in published.DATASETS:
            run = metrics[
                (metrics["dataset"] == dataset) & (metrics["model"] == model) & (metrics["protocol"] == protocol)
            ]
            single, mean = run["mse_id"].median(), corrected_mean_error(run, "id").median()
            one = plain_number(single)
            cells.append(one if model == BASELINE else f"{one} / {plain_number(mean)}")
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    if (judged := paths.CLAIMS / "claims.csv").exists():
        found = pd.read_csv(judged, keep_default_na=False).itertuples()
        lines += ["", f"And the paper's sentences: {claims.summary(found)} ([data/claims](data/claims/README.md))."]
    return "\n".join(lines)


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
    block = results_block(results.load_metrics(paths.COMMITTED_RESULTS if folder is None else folder))
    with results.atomic(readme) as path:
        path.write_text(f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}", encoding="utf-8")
