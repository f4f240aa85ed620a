"""Which epoch is kept, where the weight of the KL term stands there, and what other choices would have done.

The epoch with the smallest validation CRPS is kept while beta still rises, so that the choice decides which model is
tested. ``metrics`` are those of :func:`fdn.runs.extras.read`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from fdn.data import PAPER_DATASETS
from fdn.models import ENSEMBLES, FDN_MODELS, PAPER_MODELS
from fdn.protocol import PUBLISHED
from fdn.report.findings import PROTOCOL_COLUMNS, listing, median_cells
from fdn.report.published import rows_of
from fdn.report.tables import DASH, band, band_text, plain_number
from fdn.runs import extras
from fdn.training.objectives import beta_at
from fdn.typesetting import Table, literal

WITHOUT_BETA = ("MLPNet", "HyperNet", "MLPDropoutNet", *ENSEMBLES)  # no weight distribution, no KL term


def epochs_of(model: str) -> int:
    """How many epochs a model is trained for."""
    return PUBLISHED.epochs // PUBLISHED.ensemble_members if model in ENSEMBLES else PUBLISHED.epochs


def beta_kept(epoch: float) -> float:
    """The weight of the KL term in an epoch, which may lie between two.

    >>> beta_kept(46), beta_kept(400)
    (0.23, 1.0)
    """
    low, high = (
        beta_at(max(1, int(e)), PUBLISHED.beta_schedule, PUBLISHED.warmup, PUBLISHED.beta_max)
        for e in (np.floor(epoch), np.ceil(epoch))
    )
    return float(low + (high - low) * (epoch % 1))


def kept_at(metrics: pd.DataFrame, dataset: str, with_ensemble: bool = False) -> str:
    """Where the median FDN run of a data set is kept, and the median ensemble: what a verdict on them is about."""
    here = rows_of(metrics, dataset=dataset, protocol=PUBLISHED.label)
    fdns, ensembles = (rows_of(here, model=models)["best_epoch"] for models in (FDN_MODELS, ENSEMBLES))
    parts = [f"FDNs at β = {beta_kept(fdns.median()):.3g}"] if len(fdns) else []
    if with_ensemble and len(ensembles):
        parts.append(f"ensemble at epoch {ensembles.median():.0f} of {epochs_of(ENSEMBLES[0])}")
    return ", ".join(parts)


def kept_table(metrics: pd.DataFrame, datasets: Sequence[str] = PAPER_DATASETS) -> Table:
    """The kept epoch of every model over seeds, beta there, and how often it lies inside the warm-up."""
    rows = []
    for dataset in datasets:
        here = rows_of(metrics, dataset=dataset, protocol=PUBLISHED.label)
        for model in [m for m in PAPER_MODELS if m in set(here["model"])]:
            kept = rows_of(here, model=model)["best_epoch"]
            middle, low, high = band(kept)
            cells = [DASH, DASH]
            if model not in WITHOUT_BETA:
                betas = [beta_kept(epoch) for epoch in (middle, low, high)]
                cells = [band_text(*betas), f"{(kept < PUBLISHED.warmup).mean():.0%}"]
            epochs = f"{middle:.0f} [{low:.0f}, {high:.0f}] of {epochs_of(model)}"
            rows.append((literal(dataset), model, str(len(kept)), epochs, *cells))
    return Table(
        name="kept_epochs",
        title="Which epoch is kept",
        caption="The epoch with the smallest validation CRPS: median and 5 to 95 % band over seeds. β, the weight of "
        f"the KL term, rises over the first {PUBLISHED.warmup} epochs; models without a weight distribution have none.",
        columns=("Data set", "Model", "Seeds", "Kept epoch", "β there", "Inside the warm-up"),
        rows=tuple(rows),
        align="llrrrr",
    )


def kept_sentence(metrics: pd.DataFrame, datasets: Sequence[str] = PAPER_DATASETS) -> str:
    """What the kept epochs say of the FDNs and of the ensembles, in words."""
    here = rows_of(metrics, protocol=PUBLISHED.label, dataset=datasets)
    fdns = rows_of(here, model=FDN_MODELS)
    inside = fdns.assign(inside=fdns["best_epoch"] < PUBLISHED.warmup).groupby("dataset")["inside"].mean()
    always = [dataset for dataset in datasets if inside.get(dataset) == 1]
    others = [f"{dataset} ({inside[dataset]:.0%})" for dataset in datasets if inside.get(dataset, 1) < 1]
    medians = fdns.groupby("dataset")["best_epoch"].median()
    betas = [f"{beta_kept(medians[dataset]):.3g} on {dataset}" for dataset in datasets if dataset in medians]
    said = [f"The paper's objective has β = 1. In the median kept FDN β is {listing(betas)}."]
    if always:
        fewer = f"; fewer do on {listing(others)}" if others else ""
        said.append(f"Every kept FDN lies inside the warm-up on {listing(always)}{fewer}.")
    early = []
    for dataset in datasets:
        kept = rows_of(here, dataset=dataset, model="DeepEnsembleNet")["best_epoch"]
        if len(kept) and kept.median() <= epochs_of("DeepEnsembleNet") / 4:
            one = kept.nunique() == 1
            spread = f"epoch {kept.min()} in all" if one else f"epoch {kept.median():.0f} in the median of"
            early.append(f"{dataset} ({spread} {len(kept)} seeds)")
    if early:
        most = f"they could train for {epochs_of('DeepEnsembleNet')} epochs"
        said.append(f"The ensemble keeps barely trained members on {listing(early)}; {most}.")
    return " ".join(said)


def inside_words(metrics: pd.DataFrame, datasets: Sequence[str] = PAPER_DATASETS) -> str:
    """For which share of the seeds an FDN is kept inside the warm-up, in words; "" if none was run."""
    here = rows_of(metrics, protocol=PUBLISHED.label, model=FDN_MODELS)
    here = here.assign(inside=here["best_epoch"] < PUBLISHED.warmup)
    shares = here.groupby(["dataset", "model"])["inside"].mean().unstack("model")
    shares = shares.reindex([dataset for dataset in datasets if dataset in shares.index])
    every = shares.index[(shares == 1).all(axis=1)]
    words = [f"in every seed of both FDNs on {listing(list(every))}"] if len(every) else []
    for dataset, row in shares.drop(index=every).iterrows():
        words.append(f"on {dataset} in {listing([f'{share:.0%} of the seeds of {m}' for m, share in row.items()])}")
    return "; ".join(words)


def variants(dataset: str) -> dict[str, str]:
    """Labels of the protocols that ask what the choice of the epoch does, by what they are called here."""
    protocols = {extra.name: extra.protocols for extra in extras.EXTRAS}
    return {
        "best epoch (published)": PUBLISHED.label,
        "last epoch": protocols["last-epoch"][0].label,
        **{f"β held, {p.keep} epoch": p.label for p in protocols.get(f"beta-held-{dataset}", ())},
    }


LAST_COLUMNS = {
    "var_id": "Var, ID",
    **{name: PROTOCOL_COLUMNS[name] for name in ("mean_id", "crps_id", "delta_var", "spearman", "best_epoch")},
}


def last_table(metrics: pd.DataFrame, dataset: str) -> Table:
    """Medians over the same seeds with the best epoch kept, the last one, and beta held at the kept value."""
    rows = []
    for model in PAPER_MODELS:
        for name, run in _same_seeds(metrics, dataset, model).items():
            if len(run):
                rows.append((model, name, str(len(run)), *median_cells(run, LAST_COLUMNS)))
    held = extras.KEPT_EPOCHS.get(dataset)
    return Table(
        name=f"last_epoch_{dataset}",
        title=f"What the choice of the epoch does on {literal(dataset)}",
        caption="Medians over the same seeds; the error of the mean is corrected for Var / K. "
        + (f"β held: it stops rising at {beta_kept(held):.3g}, its value at the median epoch kept." if held else ""),
        columns=("Model", "Kept", "Seeds", *LAST_COLUMNS.values()),
        rows=tuple(rows),
        align="llr" + "r" * len(LAST_COLUMNS),
    )


def _same_seeds(metrics: pd.DataFrame, dataset: str, model: str) -> dict[str, pd.DataFrame]:
    """The runs of each variant, of the seeds that all variants of the model have; none without the last epoch."""
    runs = {n: rows_of(metrics, dataset=dataset, model=model, protocol=p) for n, p in variants(dataset).items()}
    seeds = [set(run["seed"]) for run in runs.values() if len(run)]
    common = set.intersection(*seeds) if len(runs["last epoch"]) else set()
    return {name: rows_of(run, seed=common) for name, run in runs.items()}


def last_sentence(metrics: pd.DataFrame, datasets: Sequence[str] = PAPER_DATASETS) -> str:
    """By which factor keeping the last epoch moves each FDN's numbers, in words; "" if it was not run."""
    parts = []
    for metric, name in (("var_id", "ID Var"), ("crps_id", "ID CRPS"), ("delta_var", "ΔVar")):
        said = []
        for dataset in datasets:
            factors = []
            for model in FDN_MODELS:
                best, last, *_ = (run[metric].median() for run in _same_seeds(metrics, dataset, model).values())
                factors += [plain_number(last / best)] if np.isfinite(last) else []
            said += [f"{' and '.join(factors)} on {dataset}"] if factors else []
        parts += [f"{name} {'; '.join(said)}"] if said else []
    if not parts:
        return ""
    return (f"With the last epoch in place of the best one the medians of {listing(FDN_MODELS)}, in this order, are "
            f"multiplied by: {'. '.join(parts)}.")  # fmt: skip
