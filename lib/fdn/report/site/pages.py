"""The site's pages as Markdown: every number in them is read from a results folder.

The sources are laid out as the repository is, so that links between its pages hold in the site as well.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jinja2
import nbformat
import pandas as pd

from fdn import paths
from fdn.arguments import seed_ranges
from fdn.data import TOY
from fdn.errors import UserError
from fdn.models import BASELINE, MODEL_NAMES, STOCHASTIC_MODELS
from fdn.protocol import PUBLISHED
from fdn.report import console, figures, findings, published
from fdn.report.comparison import score_table, uniformity_table
from fdn.report.site import markup
from fdn.report.site.figures import seed_points
from fdn.report.tables import REGION_COLUMNS, RESULT_COLUMNS, corrected_mean_error
from fdn.runs import experiment, extras, results

PACKAGES = ("fdn_kernels", "fdn")
NOT_DOCUMENTED = ("__main__", "fdn.report.site.conf")
PROTOCOL = PUBLISHED.label


@dataclass(frozen=True)
class _Site:
    """What all pages are made from, and where they go."""

    results: Path
    source: Path
    metrics: pd.DataFrame  # of the published protocol
    comparison: pd.DataFrame

    @property
    def shown_results(self) -> str:
        """The results folder as a command names it."""
        return findings.place(self.results.resolve())

    @property
    def datasets(self) -> list[str]:
        """The paper's data sets that have results, in the paper's order."""
        present = set(self.metrics["dataset"])
        return [name for name in published.DATASETS if name in present]


def write(folder: Path, source: Path) -> None:
    """Write the sources of all pages, and the data and figures they link to, below ``source``.

    Args:
        folder: a results folder.
        source: an empty folder.

    Raises:
        FileNotFoundError: if the folder holds no results.
        UserError: if it holds none of the published protocol.
    """
    metrics = extras.read(folder)
    console.check_protocol(metrics, PROTOCOL, folder)
    comparison = published.with_reasons(published.compare(metrics, PROTOCOL), published.load_reasons())
    site = _Site(folder, source, metrics[metrics["protocol"] == PROTOCOL], comparison)
    _results(site)
    _comparison(site)
    documents = _documents(site)
    notebooks = _notebooks(site)
    _api(site)
    _provenance(site)
    _render(site, "index.md", documents=documents, notebooks=notebooks)


def modules() -> list[str]:
    """Every module of the project whose documentation the site shows."""
    names = []
    for package in map(importlib.import_module, PACKAGES):
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        names += [package.__name__, *(module.name for module in found)]
    return [name for name in names if not name.endswith(NOT_DOCUMENTED)]


def _render(site: _Site, target: str, template: str | None = None, **values: object) -> None:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["table"] = markup.from_table
    score = {(row["by"], row["name"]): row for row in published.score(site.comparison).to_dict("records")}
    shared = {"folder": site.shown_results, "datasets": site.datasets, "score": score, "total": score["total", "total"]}
    path = site.source / target
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(environment.get_template(template or target).render(**shared, **values), encoding="utf-8")


def _csv(site: _Site, frame: pd.DataFrame, name: str) -> None:
    path = site.source / name
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False, lineterminator="\n")


def number_rows(comparison: pd.DataFrame, keys: Iterable[str]) -> tuple[list[str], list[list[markup.Cell]]]:
    """Columns and rows of published numbers beside the seeds', the text columns ``keys`` first."""
    columns = [*(key.capitalize() if key != "dataset" else "Data set" for key in keys),
               "Published", "Median", "5 %", "95 %", "Min", "Max", "Seeds", "Place", "Verdict", "Reason"]  # fmt: skip
    rows = [
        [*(RESULT_COLUMNS.get(row[key], row[key]) for key in keys), markup.Printed(row["printed"], row["published"]),
         *(float(row[name]) for name in ("median", "q05", "q95", "min", "max")), int(row["n_seeds"]),
         None if pd.isna(row["place"]) else markup.Printed(f"{row['place']:.2f}", row["place"]),
         row["verdict"], row["reason"] or None]
        for row in comparison.to_dict("records")
    ]  # fmt: skip
    if not any(row[-1] for row in rows):
        return columns[:-1], [row[:-1] for row in rows]
    return columns, rows


def region_rows(metrics: pd.DataFrame) -> tuple[list[str], list[list[markup.Cell]]]:
    """Columns and rows of medians over seeds, inside and outside the training band side by side, a row per model."""
    columns = ["Model", *(f"{heading}, {region}" for heading in REGION_COLUMNS.values() for region in ("ID", "OOD"))]
    rows = []
    for model in (BASELINE, *MODEL_NAMES):
        run = metrics[metrics["model"] == model]
        if run.empty:
            continue
        medians = []
        for metric in REGION_COLUMNS:
            for region in ("id", "ood"):
                values = corrected_mean_error(run, region) if metric == "mean" else run[f"{metric}_{region}"]
                medians.append(float(values.median()))
        rows.append([model, *medians])
    return columns, rows


def _results(site: _Site) -> None:
    kinds = {path.stem for path in _figures(site)}
    for name in site.datasets:
        runs, numbers = (published.rows_of(frame, dataset=name) for frame in (site.metrics, site.comparison))
        drawn = seed_points(runs, numbers, f"{name}, all seeds, protocol {PROTOCOL}")
        figures.save(drawn, site.source / "figures" / f"{name}_points")
        points = _points(site, name, runs)
        _csv(site, runs, f"results/{name}/seeds.csv")
        _csv(site, numbers, f"results/{name}/comparison.csv")
        if points is not None:
            _csv(site, points, f"results/{name}/points.csv")
        counts = runs[runs["model"].isin(STOCHASTIC_MODELS)].groupby("model")["seed"].nunique()
        _render(
            site, f"results/{name}.md", "results/dataset.md", name=name, toy=name in TOY,
            seeds=seed_ranges(runs["seed"].unique()), row=published.score(numbers).to_dict("records")[-1],
            numbers=markup.sortable_table(
                f"numbers-{name}", f"Published numbers of {name} beside {counts.max()} seeds",
                *number_rows(numbers, ["model", "metric"]), heads=2,
            ),
            regions=markup.sortable_table(
                f"regions-{name}", f"Medians over seeds on {name}, inside (ID) and outside (OOD) the training band",
                *region_rows(runs),
            ),
            figures={kind: figure for kind, figure in figures.FIGURES.items() if f"{name}_{kind}" in kinds},
            has_points=points is not None,
        )  # fmt: skip
    _render(
        site, "results/index.md", score_table=score_table(site.comparison),
        uniformity=uniformity_table(site.metrics, PROTOCOL),
    )  # fmt: skip


def _figures(site: _Site) -> list[Path]:
    """The usual figures as PNG: the published ones if these are the committed results, else drawn now."""
    target = site.source / "figures"
    if site.results.resolve() == paths.COMMITTED_RESULTS.resolve():
        target.mkdir()
        return [Path(shutil.copy(path, target)) for path in sorted(paths.FIGURES.glob("*.png"))]
    loaded = experiment.datasets_of(site.metrics, PUBLISHED)
    loaded = {name: loaded[name] for name in site.datasets}
    drawn, _ = figures.write_figures(site.results, site.metrics, loaded, PUBLISHED, target)
    return [path for path in drawn if path.suffix == ".png"]


def _points(site: _Site, dataset: str, runs: pd.DataFrame) -> pd.DataFrame | None:
    """Per-point results behind the figures of one seed, all models below one another; None if there are none."""
    try:
        seed = published.representative_seed(site.metrics, dataset, PROTOCOL)
    except UserError:  # the models that decide are not there, and there are no such figures
        return None
    frames = []
    for model in runs.loc[(runs["seed"] == seed) & runs["model"].isin(STOCHASTIC_MODELS), "model"]:
        cell = (site.results, dataset, model, PROTOCOL, seed)
        if results.has_points(*cell):
            frames.append(results.load_points(*cell).assign(model=model, seed=seed).round(6))
    return pd.concat(frames) if frames else None


def _comparison(site: _Site) -> None:
    _csv(site, site.comparison, "comparison.csv")
    table = markup.sortable_table(
        "comparison",
        "Published numbers beside the seeds'",
        *number_rows(site.comparison, ["dataset", "model", "metric"]),
        heads=3,
    )
    _render(site, "comparison.md", table=table)


def _documents(site: _Site) -> list[str]:
    """Copy the generated pages of the repository (differences, claims, ...); returns their names."""
    documents = []
    for folder in sorted((paths.ROOT / "data").iterdir()):
        if (folder / "README.md").exists():
            target = site.source / "data" / folder.name
            shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.parquet"))
            documents.append(f"data/{folder.name}/README")
    return documents


def _notebooks(site: _Site) -> list[str]:
    """Copy the notebooks as executed, each with a line on how to get and run it; returns their names."""
    names = []
    for folder in ("notebooks", "downloads"):
        (site.source / folder).mkdir()
    for path in sorted(paths.NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        shutil.copyfile(path, site.source / "downloads" / path.name)
        words = (
            f"{{download}}`This notebook <../downloads/{path.name}>` as executed: a figure or table is made by the "
            "cell above it. The results it reads are on the pages of each [data set](../results/index.md), as CSV. "
            f"Run it: `papermill notebooks/{path.name} out/{path.name}`."
        )
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(words, id="how-to-run"))
        nbformat.write(notebook, site.source / "notebooks" / path.name)
        names.append(f"notebooks/{path.stem}")
    return names


def _api(site: _Site) -> None:
    rows = []
    for name in modules():
        summary = (inspect.getdoc(importlib.import_module(name)) or "").split("\n\n")[0]
        rows.append((name, summary.replace("\n", " ")))
        _render(site, f"api/{name}.md", "api/module.md", module=name)
    _render(site, "api/index.md", modules=rows)


def _provenance(site: _Site) -> None:
    environments, blocks = [], []
    for sidecar in results.read_sidecars(site.results):
        environment = sidecar["environment"]
        if environment not in environments:
            environments.append(environment)
        blocks.append({
            **{key: sidecar[key] for key in ("protocol", "dataset", "model")},
            "seeds": len(sidecar["seeds"]), "environment": environments.index(environment) + 1, **sidecar["seconds"],
        })  # fmt: skip
    columns = ["Number", "Commit", "Python", "Platform", "Processor", "Cores", "Threads", "Packages"]
    rows = [
        [number, *(it.get(key) for key in ("commit", "python", "platform", "processor", "cores", "threads")),
         ", ".join(f"{name} {version}" for name, version in it.get("packages", {}).items())]
        for number, it in enumerate(environments, 1)
    ]  # fmt: skip
    times = ""
    if blocks:
        frame = pd.DataFrame(blocks)
        _csv(site, frame, "provenance/run_times.csv")
        times = markup.sortable_table(
            "run-times", "Run times, one thread, summed over blocks of seeds", *_run_times(frame), heads=3
        )
    environments_table = markup.sortable_table(
        "environments", "Environments that the results were computed in", columns, rows
    )
    _render(
        site, "provenance.md", here=experiment.environment(), numerics=results.NUMERICS,
        environments=environments_table, times=times, hours=sum(block["total"] for block in blocks) / 3600,
    )  # fmt: skip


def _run_times(blocks: pd.DataFrame) -> tuple[list[str], list[list[markup.Cell]]]:
    """Columns and rows of the seconds of every phase, a row per protocol, data set and model."""
    key = ["protocol", "dataset", "model"]
    phases = [name for name in blocks.columns if name not in {*key, "seeds", "environment", "total"}]
    grouped = blocks.groupby(key, sort=False)
    used = grouped["environment"].agg(lambda numbers: ", ".join(map(str, sorted(set(numbers)))))
    sums = grouped[["seeds", *phases, "total"]].sum().assign(used=used)
    rows = [
        [*names, seeds, *seconds, total, total / seeds, used]
        for names, seeds, *seconds, total, used in sums.itertuples(name=None)
    ]
    headings = ["Protocol", "Data set", "Model", "Seeds", *(f"{name.capitalize()} [s]" for name in phases)]
    return [*headings, "Total [s]", "Per seed [s]", "Environment"], rows
