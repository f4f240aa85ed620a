"""The README's results: every number in it is written here, from the committed results."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from lib import paths, published, results
from lib.errors import UserError
from lib.models import BASELINE, STOCHASTIC_MODELS
from lib.tables import corrected_mean_error, plain_number

BEGIN, END = "<!-- results: written by `make publish` -->", "<!-- end of results -->"


def results_block(metrics: pd.DataFrame, protocol: str = "published") -> str:
    """The score of the published numbers and the errors inside the training band, as Markdown."""
    comparison = published.compare(metrics, protocol)
    score = published.score(comparison).set_index(["by", "name"])
    total = score.loc[("total", "total")]
    n, seeds = int(total["n"]), comparison.groupby("dataset", sort=False)["n_seeds"].max()
    counts = ", ".join(f"{dataset} {count}" for dataset, count in seeds.items())
    lines = [
        f"Of the 252 published numbers, {n} are compared: **{int(total['inside_minmax'])} lie inside the range of our seeds** "
        f"({int(total['inside_minmax']) / n:.0%}; if the published run were simply one more seed, "
        f"{total['expected_share']:.0%} would be expected), and **{int(total['inside_widened'])}** ({int(total['inside_widened']) / n:.0%}) "
        "inside that range widened by 30 % of the larger end's magnitude plus 0.06 (Spearman: plus 0.05 only). "
        f"Seeds: {counts}. Inside the widened range, per model and data set (of 7 numbers each):",
        "",
        "| model | " + " | ".join(published.DATASETS) + " | all |",
        "|---|" + "--:|" * (len(published.DATASETS) + 1),
    ]
    for model in published.MODELS:
        chosen = comparison[comparison["model"] == model]
        inside = chosen.groupby("dataset")["inside_widened"].sum()
        cells = [str(int(inside[dataset])) for dataset in published.DATASETS]
        row = score.loc[("model", model)]
        lines.append(f"| {model} | " + " | ".join(cells) + f" | {int(row['inside_widened'])} / {int(row['n'])} |")
    lines += [
        "",
        "Mean squared error inside the training band, median over seeds: of a single draw / of the predictive mean "
        "(corrected for Var / K). Real sets in units of the target's variance over the training rows.",
        "",
        "| model | " + " | ".join(published.DATASETS) + " |",
        "|---|" + "--:|" * len(published.DATASETS),
    ]
    for model in (BASELINE, *STOCHASTIC_MODELS):
        cells = []
        for dataset in published.DATASETS:
            run = metrics[
                (metrics["dataset"] == dataset) & (metrics["model"] == model) & (metrics["protocol"] == protocol)
            ]
            single, mean = run["mse_id"].median(), corrected_mean_error(run, "id").median()
            one = plain_number(single)
            cells.append(one if model == BASELINE else f"{one} / {plain_number(mean)}")
        lines.append(f"| {model} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def update(readme: Path | None = None, folder: Path | None = None) -> None:
    """Write the results block of the README anew from a results folder (default: the committed one).

    Raises:
        UserError: if the README has lost its markers.
    """
    readme = readme or paths.ROOT / "README.md"
    text = readme.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise UserError(f"{readme.name} should hold the markers {BEGIN!r} and {END!r} once each")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    block = results_block(results.load_metrics(folder or paths.COMMITTED_RESULTS))
    with results.atomic(readme) as path:
        path.write_text(f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}")
