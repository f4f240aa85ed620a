"""The pages of the data sets, of all published numbers, and their tables."""

from __future__ import annotations

import shutil

import pandas as pd

from fdn import paths
from fdn.arguments import seed_ranges
from fdn.data import TOY
from fdn.errors import UserError
from fdn.models import BASELINE, MODEL_NAMES, STOCHASTIC_MODELS
from fdn.protocol import PUBLISHED
from fdn.report import figures, published
from fdn.report.comparison import misses, score_table, uniformity_table
from fdn.report.site import claims, markup
from fdn.report.site.base import PROTOCOL, Site
from fdn.report.site.figures import seed_points
from fdn.report.tables import REGION_COLUMNS, RESULT_COLUMNS, with_mean_errors
from fdn.runs import bands, experiment, results

TASKS = {
    "step": "A step from −1 to 1 at x = 0",
    "sine": "A sine of 2.39 periods per unit of x and amplitude 1.54",
    "quad": "A parabola, about 0.43 x² − 0.41",
    "airfoil": "The sound pressure of an airfoil in a wind tunnel, from five of its settings",
    "ccpp": "The electrical output of a combined-cycle power plant, from four measurements of the air around it",
    "energy": "The heating load of a building, from eight of its proportions",
}

FILES = {"runs": "seeds.csv", "points": "points.csv", "bands": "bands.csv"}  # by what a figure needs


def number_table(name: str, caption: str, comparison: pd.DataFrame, keys: list[str]) -> str:
    """Published numbers beside the seeds', the text columns ``keys`` first; why one is outside unfolds below it."""
    columns = [*(key.capitalize() if key != "dataset" else "Data set" for key in keys), "Verdict",
               "Published", "Median", "5 %", "95 %", "Min", "Max", "Seeds", "Place"]  # fmt: skip
    rows = [
        [*(RESULT_COLUMNS.get(row[key], row[key]) for key in keys), row["verdict"],
         markup.Printed(row["printed"], row["published"]),
         *(float(row[name]) for name in ("median", "q05", "q95", "min", "max")), int(row["n_seeds"]),
         None if pd.isna(row["place"]) else markup.Printed(f"{row['place']:.2f}", row["place"])]
        for row in comparison.to_dict("records")
    ]  # fmt: skip
    reasons = [("Why it is outside", reason) if reason else None for reason in comparison["reason"]]
    return markup.sortable_table(name, caption, columns, rows, heads=len(keys), more=reasons)


def region_rows(metrics: pd.DataFrame) -> tuple[list[str], list[list[markup.Cell]]]:
    """Columns and rows of medians over seeds, inside and outside the training band side by side, a row per model."""
    columns = ["Model", *(f"{heading}, {region}" for heading in REGION_COLUMNS.values() for region in ("ID", "OOD"))]
    names = [f"{metric}_{region}" for metric in REGION_COLUMNS for region in ("id", "ood")]
    medians = with_mean_errors(metrics).groupby("model")[names].median()
    return columns, [[model, *medians.loc[model]] for model in (BASELINE, *MODEL_NAMES) if model in medians.index]


def write(site: Site, found: list[claims.Statement]) -> None:
    """Write a page per data set, the one that leads to them, and that of all published numbers."""
    drawn = _figures(site)
    for name in site.datasets:
        _dataset(site, name, found, drawn)
    site.render(
        "results/index.md", score_table=score_table(site.comparison),
        uniformity=uniformity_table(site.metrics, PROTOCOL), tasks=TASKS,
    )  # fmt: skip
    site.csv(site.comparison, "comparison.csv")
    keys = ["dataset", "model", "metric"]
    caption = f"Published numbers beside those of our {site.seeds}"
    site.render(
        "comparison.md",
        outside=misses(site.comparison).to_dict("records"),
        table=number_table("comparison", caption, site.comparison, keys),
    )


def _dataset(site: Site, name: str, found: list[claims.Statement], drawn: set[str]) -> None:
    runs, numbers = (published.rows_of(frame, dataset=name) for frame in (site.metrics, site.comparison))
    all_seeds = seed_points(runs, numbers, f"{name}, all seeds, protocol {PROTOCOL}")
    figures.save(all_seeds, site.source / "figures" / f"{name}_points")
    site.csv(numbers, f"results/{name}/comparison.csv")
    behind = {"runs": runs, "points": _points(site, name, runs), "bands": bands.of(site.results, name, PROTOCOL)}
    data = dict.fromkeys(FILES, FILES["runs"])
    for kind, frame in behind.items():
        if frame is not None:
            data[kind] = FILES[kind]
            site.csv(frame, f"results/{name}/{FILES[kind]}")
    counts = runs.groupby("model")["seed"].nunique()
    n_seeds = counts[counts.index.isin(STOCHASTIC_MODELS)].max()
    fewer = ", ".join(f"{model} {n}" for model, n in counts.items() if n < n_seeds)
    medians = f"Medians over {n_seeds} seeds on {name}, inside (ID) and outside (OOD) the training band"
    site.render(
        f"results/{name}.md", "results/dataset.md", name=name, toy=name in TOY, task=TASKS[name], split=_split(name),
        runs=seed_ranges(runs["seed"].unique()), n_seeds=n_seeds,
        row=published.score(numbers).to_dict("records")[-1], judged=claims.about(found, name),
        outside=misses(numbers).to_dict("records"),
        numbers=number_table(
            f"numbers-{name}", f"Published numbers of {name} beside {n_seeds} seeds", numbers, ["model", "metric"]
        ),
        regions=markup.sortable_table(
            f"regions-{name}", f"{medians} (fewer seeds: {fewer})" if fewer else medians, *region_rows(runs)
        ),
        figures={kind: figure for kind, figure in figures.FIGURES.items() if f"{name}_{kind}" in drawn},
        pdf={kind for kind in figures.FIGURES if (site.source / "figures" / f"{name}_{kind}.pdf").exists()},
        data=data,
    )  # fmt: skip


def _split(name: str) -> dict[str, str]:
    """Sizes of a data set's parts, from the committed table of them."""
    table = paths.COMMITTED_RESULTS / "tables" / "splits.csv"
    names = ("name", "inputs", "feature", "train", "validation", "validation_id", "test", "id", "ood", "total")
    return pd.read_csv(table, names=names, header=0, dtype=str, index_col="name").loc[name].to_dict()


def _figures(site: Site) -> set[str]:
    """Copy the committed figures if the results are the committed ones, else draw them; returns their names."""
    target = site.source / "figures"
    if site.results.resolve() == paths.COMMITTED_RESULTS.resolve():
        shutil.copytree(paths.FIGURES, target)
    else:
        loaded = experiment.datasets_of(site.metrics, PUBLISHED)
        loaded = {name: loaded[name] for name in site.datasets}
        figures.write_figures(site.results, site.metrics, loaded, PUBLISHED, target)
    return {path.stem for path in target.glob("*.png")}


def _points(site: Site, dataset: str, runs: pd.DataFrame) -> pd.DataFrame | None:
    """Per-point results behind the figures of one seed, all models below one another; None if there are none."""
    for metrics in (results.load_metrics(site.results), site.metrics):  # of further seeds none may have been kept
        try:
            seed = published.representative_seed(metrics, dataset, PROTOCOL)
        except UserError:  # the models that decide are not there, and there are no such figures
            return None
        frames = []
        for model in published.rows_of(runs, seed=seed, model=STOCHASTIC_MODELS)["model"]:
            cell = (site.results, dataset, model, PROTOCOL, seed)
            if results.has_points(*cell):
                frames.append(results.load_points(*cell).assign(model=model, seed=seed).round(6))
        if frames:
            return pd.concat(frames)
    return None
