"""From a run's folder to the tracked places: results, points, tables, figures and executed notebooks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd

from fdn import data, paths
from fdn.data import uci
from fdn.errors import UserError
from fdn.protocol import PAPER_PROTOCOLS, PUBLISHED
from fdn.report import claims, comparison, published, tables
from fdn.report.console import shown_path as show
from fdn.report.figures import write_figures
from fdn.report.pages import extras as page_of_extras
from fdn.report.pages import readme
from fdn.report.pages import seeds as page_of_seeds
from fdn.report.pages.comparison import write_comparison
from fdn.runs import bands, extras, results
from fdn.runs.experiment import datasets_of
from fdn.workflow import notebooks


def publish(out: Path) -> None:
    """Merge a run's results into the committed ones, and make anew what is made from those.

    A row replaces the committed row of the same data set, model, protocol and seed, unless both agree to rounding
    (:func:`fdn.runs.results.merged`). Per-point results are kept of the representative seeds alone. Results of
    ablations and of data sets of one's own stay where they are. Publishing the same folder twice changes no byte: a
    notebook that measures run times is not run.

    Raises:
        UserError: if there is nothing to publish, a notebook and its script differ, or the committed tables
            describe a data set whose files are missing.
        RuntimeError: if a notebook fails.
    """
    new = _publishable(Path(out))
    pairs = notebooks.check_pairs(paths.NOTEBOOKS)
    metrics = results.merged(paths.COMMITTED_RESULTS, new)
    if absent := [name for name in metrics["dataset"].unique() if not data.available(name)]:
        raise UserError(
            f"the committed tables describe {', '.join(absent)}, so that publishing needs the files; "
            + "; ".join(uci.SOURCES[name].how_to_get for name in absent)
        )
    committed = paths.COMMITTED_RESULTS
    results.write_metrics(committed, metrics)
    print(f"{show(committed / 'metrics.parquet')}: {len(new)} of {len(metrics)} rows are from this run")
    metrics = extras.with_extras(metrics)
    _copy_points(Path(out), metrics)
    blocks = results.merged_sidecars(committed, Path(out))
    published_blocks = [b for b in blocks if b["protocol"] in PAPER_PROTOCOLS and b["dataset"] in data.NAMES]
    results.write_sidecars(committed, published_blocks)
    datasets = datasets_of(metrics, PUBLISHED)
    tables.all_tables(metrics, datasets, PUBLISHED.label, committed / "tables")
    _, notes = write_figures(committed, metrics, datasets, PUBLISHED, paths.FIGURES)
    for note in notes:
        print(f"not drawn: {note}")
    print(f"tables: {show(committed / 'tables')}; figures: {show(paths.FIGURES)}")
    metrics = comparison.with_committed(committed)
    write_comparison(paths.COMPARISON, metrics, PUBLISHED.label)
    if (paths.EXTRAS / "metrics.parquet").exists():
        page_of_extras.update()
    if bands.load(committed) is not None:  # which `fdn seeds` makes
        page_of_seeds.write()
    claims.write()
    readme.update()
    for path in pairs:
        if notebooks.measures_run_times(path):
            print(f"left as it is: {show(path)}, which measures run times and shows no results")
            continue
        print(f"running {show(path)}")
        notebooks.run_in_place(path)


def _publishable(out: Path) -> pd.DataFrame:
    if not results.cells(out):
        raise UserError(f"{out} holds no results to publish; run `fdn reproduce --out {out}` first")
    frame = results.collect(out)  # cells of these numerics
    if frame.empty:
        raise UserError(f"all results in {out} are of another version of the numerics; run `fdn reproduce` again")
    known = frame["protocol"].isin(list(PAPER_PROTOCOLS)) & frame["dataset"].isin(data.NAMES)
    if left := sorted({f"{row.dataset} {row.protocol}" for row in frame[~known].itertuples()}):
        if not known.any():
            raise UserError(
                f"{out} holds only results that are not published: {', '.join(left)}; expected built-in data "
                f"sets under {' or '.join(PAPER_PROTOCOLS)} without changed settings"
            )
        print(f"left out, as ablations or data sets of your own: {', '.join(left)}")
    return frame[known].reset_index(drop=True)


def _copy_points(out: Path, metrics: pd.DataFrame) -> None:
    """Per-point results of every model for the representative seeds; all others are dropped."""
    folder = paths.COMMITTED_RESULTS / "points"
    with_metrics = {folder / protocol / dataset for protocol, dataset in zip(metrics["protocol"], metrics["dataset"])}
    for orphan in set(folder.glob("*/*")) - with_metrics:
        shutil.rmtree(orphan)
    for protocol, dataset in metrics[["protocol", "dataset"]].drop_duplicates().itertuples(index=False):
        try:
            seed = published.representative_seed(metrics, dataset, protocol)
        except UserError:  # the models that decide are not there; the figures say so
            continue
        kept = folder / protocol / dataset
        for source in sorted(out.glob(f"points/{protocol}/{dataset}/*/{seed}.parquet")):
            results.write(kept / source.parent.name / source.name, source.read_bytes())
        for path in kept.glob("*/*.parquet"):
            if path.stem != str(seed):
                path.unlink()
