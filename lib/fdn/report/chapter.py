"""What notebooks 3 and 4 have in common: the runs that were asked for, and a sentence or two under what is shown.

Sentences are made from the numbers, so that they stay true whatever was run; each is a Markdown bullet.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import pandas as pd

from fdn import metrics as measures
from fdn import paths
from fdn.arguments import parse_names, parse_protocol, parse_seeds, seed_ranges
from fdn.errors import UserError
from fdn.models import BASELINE, FDN_MODELS, MODEL_NAMES, STOCHASTIC_MODELS
from fdn.protocol import PUBLISHED, Protocol
from fdn.report import findings, published
from fdn.report.claims.judging import SHARES, Finding, judge, overall, published_frame, seed_frames
from fdn.report.claims.statements import CLAIMS
from fdn.report.findings import DatasetResults, listing
from fdn.report.published import DATASETS, rows_of
from fdn.report.tables import DASH, band, corrected_mean_error, plain_number
from fdn.runs import experiment
from fdn.typesetting import Table, literal

MOST = 0.8
FIRST_SEEDS = "0:5"  # trained where none were asked for
THAT_MATTER = (  # beginnings of the ten statements that the notebooks show; the page of claims has all
    "FDN is ID-competitive",
    "and exhibits strong calibration under shift",
    "providing strongly input-dependent",
    "This input-aware weight stochasticity",
    "predictive densities that remain sharp",
    "consistently high rank correlation",
    "which makes FDN a strong triage signal",
    "MSE–Var slopes closer to the ideal",
    "Deep ensembles show smaller",
    "FDN achieves reasonable in-distribution MSE",
)


@dataclass(frozen=True)
class Chapter:
    """The runs a notebook shows."""

    names: list[str]  # data sets
    models: list[str]
    settings: Protocol
    folder: Path
    everything: pd.DataFrame  # all that the folder holds
    metrics: pd.DataFrame  # of it the models and seeds asked for
    absent: list[str]  # lines on cells that were asked for and are not there

    @property
    def label(self) -> str:
        """Of the protocol."""
        return self.settings.label

    @property
    def all_committed(self) -> bool:
        """Whether these are all committed runs behind the published numbers."""
        complete = len(self.metrics) == len(self.everything) and self.label == PUBLISHED.label
        return complete and self.folder.resolve() == paths.COMMITTED_RESULTS.resolve()

    def studies(self) -> list[DatasetResults]:
        """Of each data set that has something to draw, the runs and the points of the seed that figures show."""
        found = [
            findings.dataset_results(self.folder, self.everything, name, self.label, self.models) for name in self.names
        ]
        return [study for study in found if study.points]

    def base(self) -> str:
        """Which runs these are, in a sentence, and which are not there."""
        here = rows_of(self.metrics, protocol=self.label, model=STOCHASTIC_MODELS)
        seeds = {name: seed_ranges(rows_of(here, dataset=name)["seed"]) for name in self.names}
        counts = [f"{literal(name)} {numbers or 'none'}" for name, numbers in seeds.items()]
        words = f"From {findings.place(self.folder)}, protocol `{self.label}`. Seeds: {', '.join(counts)}."
        if self.absent:
            words += " Not there (`-p recompute True` trains them): " + "; ".join(self.absent) + "."
        return words


def open_chapter(
    what: str, known: Collection[str], dataset: str, models: str, seeds: str, protocol: str, epochs: int,
    recompute: bool, out: str,
) -> Chapter:  # fmt: skip
    """The runs that a notebook's parameters ask for; with ``recompute`` what is missing is trained first.

    Raises:
        UserError: for a parameter that cannot be read, or if the folder holds nothing of what was asked for.
    """
    names = parse_names(dataset, known, what)
    chosen = parse_names(models, (BASELINE, *MODEL_NAMES), "model")
    numbers = parse_seeds(seeds or FIRST_SEEDS) if seeds or recompute else None
    settings = parse_protocol(protocol, epochs=epochs or None)
    folder = findings.results_folder(out, recompute)
    if recompute:
        experiment.run(names, chosen, numbers, settings, folder)
    everything = findings.read(folder)
    metrics = rows_of(everything, model=chosen)
    if numbers is not None:
        metrics = metrics[metrics["seed"].isin(numbers) | metrics["model"].eq(BASELINE)]
    here = rows_of(metrics, dataset=names)
    if rows_of(here, protocol=settings.label)["model"].eq(BASELINE).all():
        others = ", ".join(f"{name!r}" for name in here["protocol"].unique())
        raise UserError(
            f"{findings.place(folder)} holds no run of {', '.join(chosen)} on {', '.join(names)} with the protocol "
            f"{settings.label!r}{f' and seeds {seeds}' if seeds else ''} (there: {others or 'nothing'}); "
            "add -p recompute True to train them, or ask for what is there"
        )
    absent = [] if numbers is None else findings.missing_cells(everything, names, chosen, numbers, settings.label)
    return Chapter(names, chosen, settings, folder, everything, metrics, absent)


def of_uncertainty(study: DatasetResults) -> str:
    """How many targets the bands of two standard deviations hold, and how wide they are beside the targets."""
    parts, widths = [], {}
    for model, frame in study.points.items():
        near = (frame["mean"] - frame["y"]).abs() <= 2 * frame["var"] ** 0.5
        shares = [near[frame["region"] == region].mean() for region in ("ID", "OOD")]
        inside = frame[frame["region"] == "ID"]
        widths[model] = (inside["var"] ** 0.5).mean() / inside["y"].std(ddof=0)
        parts.append(f"{model} {shares[0]:.0%} / {shares[1]:.0%}")
    wide = [f"{model} ({width:.1f})" for model, width in widths.items() if width > 1]
    words = f"- **{literal(study.dataset)}**: targets within the band inside / outside: {', '.join(parts)}. "
    return words + (
        f"Inside, the standard deviation is larger than that of the targets for {listing(wide)}, in units of it."
        if wide else "Inside, all standard deviations are smaller than that of the targets."
    )  # fmt: skip


def of_scatter(study: DatasetResults) -> str:
    """How near points lie to the line MSE = Var: the share of Var in MSE, of all points together and point by point."""
    parts = []
    for model, frame in study.points.items():
        near = (frame["var"] >= MOST * frame["mse"]).mean()
        parts.append(f"{model} {frame['var'].sum() / frame['mse'].sum():.0%}, {near:.0%}")
    return (
        f"- **{literal(study.dataset)}**, share of Var in the MSE of all points together, and share of the points "
        f"where it is at least {MOST:.0%}, which are those on the line or close above it: {'; '.join(parts)}."
    )


def of_bias(study: DatasetResults) -> str:
    """What Var says of the squared error of the mean, which does not contain it."""
    parts = []
    for model in (m for m in FDN_MODELS if m in study.points):
        frame = study.points[model]
        rhos = [measures.spearman(frame["var"], e) for e in (frame["mse"], (frame["mean"] - frame["y"]) ** 2)]
        parts.append(f"{model} {plain_number(rhos[0])} and {plain_number(rhos[1])}")
    if not parts:
        return f"- **{literal(study.dataset)}**: no FDN is here."
    return (
        f"- **{literal(study.dataset)}**, seed {study.seed}: ρ(Var, MSE) and ρ(Var, Bias²) are {listing(parts)}: the "
        "second is what the variance tells of the error of the mean."
    )


def of_intervals(study: DatasetResults) -> str:
    """Whose 90 % intervals hold about 90 % of the targets, whose more, whose less: medians over seeds."""
    parts = []
    for column, words in (("coverage_90_id", "inside"), ("coverage_90_ood", "outside")):
        kinds: dict[str, list[str]] = {"about right": [], "too many": [], "too few": []}
        for model, run in published.of_stochastic(study.runs).items():
            share = run[column].median()
            kind = "too many" if share > 0.95 else "too few" if share < 0.85 else "about right"
            kinds[kind].append(f"{model} ({share:.0%})")
        others = [f"; {kind} for {listing(kinds[kind])}" for kind in ("too many", "too few") if kinds[kind]]
        parts.append(f"{words}, about right for {listing(kinds['about right']) or 'none'}{''.join(others)}")
    return f"- **{literal(study.dataset)}**, targets in the 90 % intervals: {'. And '.join(parts)}."


def of_risk(study: DatasetResults) -> str:
    """The models in the order of their AURC, and how much of the risk rejecting saves."""
    areas = {m: measures.aurc(frame["var"], frame["mse"]) for m, frame in study.points.items()}
    saved = {m: 1 - areas[m] / frame["mse"].mean() for m, frame in study.points.items()}
    order = [f"{m} {plain_number(areas[m])} ({saved[m]:.0%})" for m in sorted(areas, key=areas.get)]
    return (
        f"- **{literal(study.dataset)}**, AURC from the lowest, and in brackets what ranking by Var saves against a "
        f"random order: {', '.join(order)}."
    )


def of_deltas(study: DatasetResults) -> str:
    """The models in the order of their median ΔVar, and how much of ΔMSE that is."""
    medians = study.runs.groupby("model")[["delta_var", "delta_mse"]].median()
    order = medians.sort_values("delta_var", ascending=False)
    parts = [
        f"{row.Index} {plain_number(row.delta_var)} of {plain_number(row.delta_mse)}" for row in order.itertuples()
    ]
    return f"- **{literal(study.dataset)}**, median ΔVar of ΔMSE, from the largest: {', '.join(parts)}."


def of_score(comparison: pd.DataFrame) -> str:
    """How many published numbers are reached, and where the share is lowest, of models and of data sets."""
    score = published.score(comparison).set_index(["by", "name"])
    total = score.loc[("total", "total")]
    if not total["n"]:
        return "- None of the published numbers can be compared."
    said = []
    for kind in ("model", "dataset"):
        share = (score.loc[kind, "minmax"] / score.loc[kind, "n"]).dropna().round(2)  # as the table shows it
        said.append(f"{listing(list(share.index[share == share.min()]))} ({share.min():.0%})")
    return (
        f"- {total['minmax']:.0f} of {total['n']:.0f} lie within the range of our seeds, where "
        f"{total['expected_minmax'] * total['n']:.0f} would by chance. The share is lowest for {said[0]}, and on "
        f"{said[1]}."
    )


def of_protocols(metrics: pd.DataFrame, dataset: str, protocols: Sequence[str]) -> str:
    """What becomes of the FDNs' kept epoch and of the error of a draw from the first protocol to the others."""
    parts = []
    for model in FDN_MODELS:
        runs = [rows_of(metrics, dataset=dataset, model=model, protocol=protocol) for protocol in protocols]
        if len(runs) > 1 and all(len(run) for run in runs):
            epochs = " to ".join(f"{run['best_epoch'].median():.0f}" for run in runs)
            errors = " to ".join(plain_number(run["mse_id"].median()) for run in runs)
            parts.append(f"{model} is kept at epoch {epochs}, its ID MSE goes from {errors}")
    if not parts:
        return f"- **{literal(dataset)}**: one protocol alone is there."
    return f"- **{literal(dataset)}**, from `{'` to `'.join(protocols)}`: {'; '.join(parts)}."


def conclusion(chapter: Chapter, dataset: str) -> str:
    """Of a data set: who is most accurate inside, which FDNs are behind, whose intervals cover outside."""
    here = rows_of(chapter.metrics, dataset=dataset, protocol=chapter.label)
    present = published.of_stochastic(here)
    if len(present) < 2:
        return f"- **{literal(dataset)}**: one model or none, so that there is nothing to conclude."
    errors = {m: band(corrected_mean_error(run, "id")) for m, run in present.items()}  # middle, low, high
    best = min(errors, key=lambda m: errors[m][0])
    level = [m for m in present if m != best and errors[m][1] <= errors[best][2]]
    behind = [m for m in FDN_MODELS if m in present and m != best and m not in level]
    near = f", from which {listing(level)} cannot be told apart by their intervals over seeds" if level else ""
    far = f"; {listing(behind)} {'are' if len(behind) > 1 else 'is'} behind" if behind else ""
    enough = [m for m, run in present.items() if run["coverage_90_ood"].median() >= 0.9]
    baseline = rows_of(here, model=BASELINE)["mse_id"].median()
    worse = [m for m, run in present.items() if run["mse_id"].median() > baseline]
    return (
        f"- **{literal(dataset)}**: the most accurate mean inside is that of {best}{near}{far}. 90 % intervals hold at "
        f"least 90 % of the targets outside for {listing(enough) or 'none'}. Worse than the training mean inside, draw "
        f"by draw: {listing(worse) or 'none'}."
    )


def verdicts(chapter: Chapter, words: str) -> list[str]:
    """Of a statement of :data:`THAT_MATTER`: a bullet for each of its criteria, over all these data sets."""
    bullets = []
    found = _findings(chapter)
    for criterion, here in found[found["words"].str.startswith(words)].groupby("criterion", sort=False):
        total = overall(here["conclusion"], here["said"].iloc[0])
        parts = [f"{'' if kind == total else f'{kind} '}on {listing(list(some))}" for kind, some in
                 here.groupby("conclusion", sort=False)["dataset"]]  # fmt: skip
        bullets.append(f"- **“{words}”**, by “{criterion}”: **{total}**: {'; '.join(parts)}.")
    return bullets


def claims_that_matter(chapter: Chapter) -> Table:
    """The statements of :data:`THAT_MATTER` about these data sets: a row each, with a line for every data set."""
    rows = []
    for (words, criterion), found in _findings(chapter).groupby(["words", "criterion"], sort=False):
        columns = found[["dataset", "published", "numbers", "conclusion"]].replace({"numbers": {"": DASH}})
        about, *rest = ("\n".join(columns[column]) for column in columns)
        rows.append((f"“{words}”", criterion, about, *rest))
    return Table(
        name="claims_that_matter",
        title="The claims that matter most",
        caption="The words are the paper's, the criteria ours: put to the published table and to every seed of ours, "
        f"protocol `{chapter.label}`. The others are the paper's four other models. A sentence on what is so holds "
        f"from {SHARES['always'][0]:.0%} of the seeds on and does not up to {SHARES['always'][1]:.0%}; between them "
        "it holds in part."
        if rows else "None: these are not data sets of the paper.",
        columns=("The paper's words", "Our criterion", "Data set", "Published table", "Ours", "Conclusion"),
        rows=tuple(rows),
        align="llllll",
        notes=(f"{DASH}: not printed, or not computed.",) if any(DASH in "".join(row) for row in rows) else (),
    )  # fmt: skip


def _findings(chapter: Chapter) -> pd.DataFrame:
    """A row for each of these statements and data sets; those of all committed runs are not judged again."""
    names = [name for name in chapter.names if name in DATASETS]
    file = paths.CLAIMS / "claims.csv"
    if chapter.all_committed and file.exists():
        found = pd.read_csv(file, keep_default_na=False)
        return found[found["dataset"].isin(names) & found["words"].str.startswith(THAT_MATTER)]
    ours = {name: list(seed_frames(chapter.metrics, name, chapter.label).values()) for name in names}
    found = [
        judge(claim, name, published_frame(name), ours[name])
        for claim in CLAIMS
        if not claim.across and claim.words.startswith(THAT_MATTER)
        for name in claim.datasets
        if name in names
    ]
    return pd.DataFrame(found, columns=[field.name for field in fields(Finding)])
