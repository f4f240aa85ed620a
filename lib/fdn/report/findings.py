"""What a results folder says about a data set: the computed pieces of the notebooks' tables and prose.

Sentences are made from the numbers, so that they stay true whatever was run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.arguments import seed_ranges
from fdn.errors import UserError
from fdn.models import BASELINE, PAPER_MODELS, STOCHASTIC_MODELS
from fdn.report import published
from fdn.report.tables import DASH, MISSING, band, plain_number, with_mean_errors
from fdn.runs import bands, extras, results
from fdn.typesetting import Table, literal

PROTOCOL_COLUMNS = {
    "spearman": "ρ",
    "slope_b": "b",
    "aurc": "AURC",
    "delta_var": "ΔVar",
    "delta_mse": "ΔMSE",
    "delta_crps": "ΔCRPS",
    "mse_id": "MSE, ID",
    "mean_id": "error of the mean, ID",
    "crps_id": "CRPS, ID",
    "best_epoch": "epoch kept",
}


@dataclass(frozen=True)
class DatasetResults:
    """One data set under one protocol: its runs, and the per-point results of the seed that figures show."""

    dataset: str
    protocol: str  # label
    runs: pd.DataFrame  # a row per model and seed
    seed: int | None  # the representative one; None if there are no per-point results
    points: Mapping[str, pd.DataFrame]  # model: a row per test point
    remark: str = ""  # what is shown, or why there is nothing to show
    true_function: Callable | None = None  # of a toy task
    bands: pd.DataFrame | None = None  # of :mod:`fdn.runs.bands`, if the folder has them

    @property
    def title(self) -> str:
        """Of its figures of one seed: whose they are, and how extreme each model is there."""
        lines = f"{self.dataset}, seed {self.seed}, protocol {self.protocol}", self.places
        return "\n".join(filter(None, lines))

    @property
    def places(self) -> str:
        """The ranks of the seed by OOD MSE and OOD Var, model by model, in one line; "" if it is alone."""
        ranks, most = [], 1
        for model, run in published.of_stochastic(self.runs).items():
            run = run.set_index("seed")
            if self.seed in run.index:
                places = [(run[metric] < run.at[self.seed, metric]).sum() + 1 for metric in ("mse_ood", "var_ood")]
                ranks.append(f"{model} {places[0]}, {places[1]}")
                most = max(most, len(run))
        return f"Its rank among {most} seeds by OOD MSE, OOD Var: {'; '.join(ranks)}" if most > 1 else ""


def read(folder: Path) -> pd.DataFrame:
    """The metrics of a results folder; of the committed one all that is committed (:func:`fdn.runs.extras.read`).

    Raises:
        UserError: if there are none, or if the file is damaged.
    """
    try:
        return extras.read(folder)
    except FileNotFoundError as error:
        raise UserError(str(error)) from error


def results_folder(out: str, recompute: bool) -> Path:
    """Where a notebook reads: ``out``, by default the committed results or, with ``recompute``, ``out/``.

    Raises:
        UserError: if a parameter is of another kind than it should be.
    """
    if not isinstance(recompute, bool):
        raise UserError(f"recompute is {recompute!r}; expected True or False")
    if not isinstance(out, str):
        raise UserError(f"out is {out!r}; expected a folder, or nothing for the default one")
    return Path(out) if out else paths.DEFAULT_OUT if recompute else paths.COMMITTED_RESULTS


def place(folder: Path) -> str:
    """A folder for the reader: relative to the project if inside, else its name alone.

    >>> place(paths.ROOT / "data" / "results")
    'data/results'
    """
    absolute = Path(os.path.abspath(folder))
    root = Path(os.path.abspath(paths.ROOT))
    return absolute.relative_to(root).as_posix() if absolute.is_relative_to(root) else absolute.name


def dataset_results(
    folder: Path, metrics: pd.DataFrame, dataset: str, protocol: str, models: Sequence[str] = PAPER_MODELS
) -> DatasetResults:
    """The runs of a data set by those ``models`` that are stochastic, and their points for one seed.

    That is the representative seed of all in the folder. Where the paper's rule has no answer, since one of
    the FDNs is missing, or the answer has no points, the first seed with points stands in, and ``remark`` says so.
    """
    here = published.rows_of(metrics, dataset=dataset, protocol=protocol)
    drawn = [model for model in STOCHASTIC_MODELS if model in models]
    runs = published.rows_of(here, model=drawn).reset_index(drop=True)
    try:
        chosen = published.representative_seed(metrics, dataset, protocol)
        why = f"the representative seed, {chosen}, was kept without its points"
    except UserError:
        chosen, why = None, "there is no representative seed without both FDNs"
    others = sorted(map(int, runs["seed"].unique()))
    for seed in others if chosen is None else [chosen, *others]:
        cells = {model: (folder, dataset, model, protocol, seed) for model in drawn}
        points = {m: results.load_points(*cell) for m, cell in cells.items() if results.has_points(*cell)}
        if points:
            remark = f"figures of one seed show seed {seed}, the representative one of {here['seed'].nunique()}"
            remark = remark if seed == chosen else f"{why}; figures show seed {seed}"
            found = bands.of(folder, dataset, protocol)
            return DatasetResults(dataset, protocol, runs, seed, points, f"{dataset}: {remark}.", bands=found)
    remark = f"{dataset}: {place(folder)} holds nothing to draw ({protocol})."
    return DatasetResults(dataset, protocol, runs, None, {}, remark)


def missing_cells(
    metrics: pd.DataFrame, datasets: Sequence[str], models: Sequence[str], seeds: Sequence[int], protocol: str
) -> list[str]:
    """A line for each group of cells that was asked for and is not in the metrics."""
    chosen = published.rows_of(metrics, protocol=protocol)
    known = set(zip(chosen["dataset"], chosen["model"], chosen["seed"]))
    lines = []
    for dataset in datasets:
        groups: dict[str, list[str]] = {}
        for model in models:
            if absent := [s for s in seeds if (dataset, model, s) not in known]:
                groups.setdefault(seed_ranges(absent), []).append(model)
        for absent, names in groups.items():
            who = "every model asked for" if len(names) == len(models) else ", ".join(names)
            lines.append(f"{dataset}, seeds {absent}: {who}")
    return lines


def listing(items: Sequence[str]) -> str:
    """Items as a phrase.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


def against_training_mean(metrics: pd.DataFrame, dataset: str, protocol: str) -> str:
    """Markdown bullets, one per region: which models predict better than the training mean, and which worse.

    By MSE_i of one draw, and by the squared error of the predictive mean, corrected for Var / K: a model is better or
    worse if its 5 to 95 % band over seeds lies wholly on that side, else the two are not told apart.
    """
    here = with_mean_errors(published.rows_of(metrics, dataset=dataset, protocol=protocol))
    baseline, models = published.rows_of(here, model=BASELINE), published.of_stochastic(here)
    if baseline.empty or not models:
        return f"- {literal(dataset)}: {BASELINE} or all stochastic models are missing; nothing to compare."
    bullets = []
    for region, words in (("id", "inside the band"), ("ood", "outside")):
        level = baseline[f"mse_{region}"].median()
        parts = []
        for what, metric in (("one draw", "mse"), ("the predictive mean", "mean")):
            sides: dict[str, list[str]] = {"worse": [], "better": [], "not told apart": []}
            for model, run in models.items():
                middle, low, high = band(run[f"{metric}_{region}"])
                side = "better" if high < level else "not told apart" if low <= level else "worse"
                sides[side].append(f"{model} ({plain_number(middle)})")
            parts.append(f"{what} is " + "; ".join(f"{side}: {listing(m)}" for side, m in sides.items() if m))
        bullets.append(
            f"- **{literal(dataset)}, {words}**, the training mean has a squared error of {plain_number(level)}. "
            f"Against it, {parts[0]}. And {parts[1]}."
        )
    return "\n".join(bullets)


def spread_over_seeds(metrics: pd.DataFrame, dataset: str, protocol: str) -> str:
    """A Markdown bullet: the largest over the smallest ΔVar among the seeds, for each model."""
    here = published.rows_of(metrics, dataset=dataset, protocol=protocol)
    factors = {}
    for model, run in published.of_stochastic(here).items():
        values = run["delta_var"].dropna()
        if len(values) > 1:
            low, high = values.min(), values.max()
            factors[model] = f"{high / low:.1f}" if low > 0 else "changes sign" if high > 0 else DASH
    if not factors:
        return f"- **{literal(dataset)}**: one seed or none, so that nothing can be said about the spread."
    words = listing([f"{model} {factor}" for model, factor in factors.items()])
    return f"- **{literal(dataset)}**, largest over smallest ΔVar among the seeds: {words}."


def score_of(metrics: pd.DataFrame, dataset: str, protocol: str) -> str:
    """A Markdown bullet: how many of the published numbers of a data set the seeds reach."""
    here = published.rows_of(published.compare(metrics, protocol), dataset=dataset)
    counts = published.score(here).iloc[-1]
    if not counts["n"]:
        reason = "nothing computed" if len(here) else "not a data set of the paper"
        return f"- **{literal(dataset)}**: {reason}, so that there is nothing to compare."
    missing = f" ({counts['missing']} missing)" if counts["missing"] else ""
    return (
        f"- **{literal(dataset)}**: of {counts['n']} published numbers{missing}, {counts['minmax']} lie within the "
        f"range of our seeds, where {counts['expected_minmax'] * counts['n']:.0f} would be expected of one more seed, "
        f"and {counts['central']} within 5–95 %, where {counts['expected_central'] * counts['n']:.0f} would be."
    )


def median_cells(run: pd.DataFrame, columns: Iterable[str]) -> list[str]:
    """Medians over seeds of these columns, one of which may be ``mean_id``; that of the epoch is a whole number."""
    medians = with_mean_errors(run)[list(columns)].median()
    return [f"{value:.0f}" if name == "best_epoch" else plain_number(value) for name, value in medians.items()]


def protocol_table(
    metrics: pd.DataFrame, dataset: str, protocols: Sequence[str], models: Sequence[str] = PAPER_MODELS
) -> Table:
    """Medians over seeds of the key metrics under several protocols, a row per model and protocol."""
    rows = []
    for model in models:
        for protocol in protocols:
            run = published.rows_of(metrics, dataset=dataset, model=model, protocol=protocol)
            cells = median_cells(run, PROTOCOL_COLUMNS) if len(run) else [MISSING] * len(PROTOCOL_COLUMNS)
            rows.append((model, f"`{protocol}`", str(len(run)), *cells))
    return Table(
        name=f"protocols_{dataset}",
        title=f"The protocols on {literal(dataset)}",
        caption="Medians over seeds; the error of the mean is corrected for Var / K.",
        columns=("Model", "Protocol", "Seeds", *PROTOCOL_COLUMNS.values()),
        rows=tuple(rows),
        align="llr" + "r" * len(PROTOCOL_COLUMNS),
        notes=(f"{MISSING}: not computed.",) if any(MISSING in row for row in rows) else (),
    )
