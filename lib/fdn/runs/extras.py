"""Runs beyond the published tables: the print read literally, other objectives and settings, the deterministic models.

They show what the tables leave open and are the evidence for the paper's sentences about beta, hypernetwork capacity,
warm-up and IWAE. ``data/extras`` holds their metrics, run times and environments, and the page that
:mod:`fdn.report.pages.extras` makes of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.arguments import parse_seeds
from fdn.data import PAPER_DATASETS
from fdn.models import BASELINE, FDN_MODELS, PAPER_MODELS
from fdn.protocol import AS_WRITTEN, PUBLISHED, Protocol
from fdn.runs import groups, results

ABLATED = ("step", "energy")
FEWER_DRAWS = replace(PUBLISHED, eval_draws=20)
# One change each: appendices B, D and G, section 6, and two that deep or wide layers need
OPTIONS: dict[str, Protocol] = {
    name: replace(FEWER_DRAWS, **settings)
    for name, settings in {
        "published setting": {},
        "low rank, r = 2": {"structure": "low_rank", "rank": 2},
        "ordinary weights + low rank": {"structure": "low_rank", "rank": 2, "residual": True},
        "by rows": {"structure": "rows"},
        "by columns": {"structure": "columns"},
        "shared hypernetwork": {"shared_hypernet": True},
        "heteroscedastic": {"likelihood": "heteroscedastic"},
        "beta of the last layer / 10": {"layer_beta": 0.1},
        "beta of the last layer x 10": {"layer_beta": 10.0},
        "temperature 1/2": {"temperature": 0.5},
        "temperature 2": {"temperature": 2.0},
        "Fourier features": {"frequencies": 3},
        "fresh noise for each example": {"noise": "independent"},
        "bounded hypernetwork": {"hyper_activation": "tanh"},
        "small initial sigma": {"init_sigma": "auto"},
        "small initial sigma, prior by fan-in": {"init_sigma": "auto", "prior_scale": "fan_in"},
    }.items()
}
# median over the seeds and both FDNs of the epoch that the published protocol keeps; beta there is a 200th of it
KEPT_EPOCHS = {"step": 46, "sine": 44, "quad": 46, "airfoil": 88, "ccpp": 25, "energy": 171}


@dataclass(frozen=True)
class Extra:
    """A group of runs that answers one question, and what is shown beside it."""

    name: str
    question: str
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    protocols: tuple[Protocol, ...]
    seeds: str = "0:5"
    beside: tuple[str, ...] = ()  # models shown beside it, from the main results

    def seconds(self, sidecars: Sequence[dict]) -> float:
        """Run time of its cells, given what :func:`fdn.runs.results.read_sidecars` reads."""
        seeds, own = set(parse_seeds(self.seeds)), groups.blocks_of(self)
        return sum(s["seconds"]["total"] for s in sidecars
                   if groups.block_of(s) in own and not seeds.isdisjoint(s["seeds"]))  # fmt: skip


def _changes(**settings: Sequence[object]) -> tuple[Protocol, ...]:
    return tuple(replace(PUBLISHED, **dict(zip(settings, values))) for values in product(*settings.values()))


EXTRAS = (
    Extra(
        "deterministic", "The models that the tables omit, beside dropout and the ensemble.", PAPER_DATASETS,
        ("MLPNet", "HyperNet", BASELINE), (PUBLISHED,), beside=("MLPDropoutNet", "DeepEnsembleNet"),
    ),
    Extra(
        "as_written", "The paper read literally, beside what the published numbers were computed with.",
        PAPER_DATASETS, PAPER_MODELS, (AS_WRITTEN,),
    ),
    Extra("more-seeds", "CCPP and energy with 20 seeds in place of three.", ("ccpp", "energy"), PAPER_MODELS,
          (PUBLISHED,), "3:20"),
    Extra("hundred-seeds", "Every task with as many seeds as airfoil has.", ("step", "sine", "quad", "ccpp", "energy"),
          PAPER_MODELS, (PUBLISHED,), "20:100"),
    Extra("initialisation",
          "Do runs look like the published one if they start from the parameters that torch draws for its seed?",
          PAPER_DATASETS, PAPER_MODELS, _changes(initialisation=("published",))),
    Extra(
        "iwae", "The beta-ELBO against the importance-weighted bound with K draws (appendix B).", ABLATED, FDN_MODELS,
        (*_changes(train_draws=(5, 20)), *_changes(objective=("iwae",), train_draws=(1, 5, 20))),
    ),
    Extra("beta", "Does beta trade sharpness inside the band against caution outside (section 4.5)?", ABLATED,
          FDN_MODELS, _changes(beta_max=(0.01, 0.1, 10.0))),
    Extra("hypernetwork", "Does the width of the hypernetworks (section 4.5)?", ABLATED, FDN_MODELS,
          _changes(hyper_factor=(0.5, 2.0))),
    Extra("options", "What does each option of the layer change (appendices B, D and G, section 6)?",
          ("sine", "airfoil"), FDN_MODELS, tuple(p for p in OPTIONS.values() if not p.shared_hypernet)),
    Extra("shared-hypernetwork", "Can the layers of IC-FDNet share one hypernetwork (appendix G)?", ("sine", "airfoil"),
          ("IC-FDNet",), (OPTIONS["shared hypernetwork"],)),
    Extra("last-epoch", "What do the models become if the last epoch is kept in place of the best one?", PAPER_DATASETS,
          PAPER_MODELS, _changes(keep=("last",))),
    *(Extra(f"beta-held-{dataset}",
            f"The FDNs on {dataset} if beta stays at {epoch / PUBLISHED.warmup:g}, as at the median epoch kept.",
            (dataset,), FDN_MODELS,
            _changes(beta_max=(epoch / PUBLISHED.warmup,), warmup=(epoch,), keep=("best", "last")))
      for dataset, epoch in KEPT_EPOCHS.items()),
    Extra("warm-up", "Does it matter how the KL term is scheduled (section 5)?", ABLATED, FDN_MODELS,
          _changes(warmup=(0,))),
)  # fmt: skip


def read(folder: Path) -> pd.DataFrame:
    """The metrics of a results folder; those of the committed one with the further seeds and protocols kept beside it.

    Raises:
        FileNotFoundError: if the folder holds no results.
    """
    metrics = results.load_metrics(folder)
    return with_extras(metrics) if Path(folder).resolve() == paths.COMMITTED_RESULTS.resolve() else metrics


def with_extras(metrics: pd.DataFrame | None = None, folder: Path | None = None) -> pd.DataFrame:
    """Metrics, by default the committed main results, and the committed extras' cells that they do not hold.

    Raises:
        FileNotFoundError: if there are no main results.
    """
    metrics = results.load_metrics(paths.COMMITTED_RESULTS) if metrics is None else metrics
    folder = paths.EXTRAS if folder is None else folder
    if not (folder / "metrics.parquet").exists():
        return metrics
    both = pd.concat([metrics, results.load_metrics(folder)], ignore_index=True)
    return results.sort(both.drop_duplicates(list(results.KEY)))
