"""Runs beyond the published tables: the print read literally, other objectives and settings, the deterministic models.

They show what the tables leave open and are the evidence for the paper's sentences about beta, hypernetwork capacity,
warm-up and IWAE. ``data/extras`` holds their metrics, run times and environments, and the page that
:mod:`fdn.report.pages.extras` makes of them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.arguments import parse_seeds
from fdn.data import PAPER_DATASETS
from fdn.errors import UserError
from fdn.models import BASELINE, FDN_MODELS, PAPER_MODELS
from fdn.protocol import AS_WRITTEN, PUBLISHED, Protocol
from fdn.runs import experiment, results

ABLATED = ("step", "energy")


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

    @functools.cached_property
    def keys(self) -> set[tuple[str, str, str]]:
        """(data set, model, label of the protocol) of its cells."""
        return set(product(self.datasets, self.models, (protocol.label for protocol in self.protocols)))

    def seconds(self, blocks: Sequence[dict]) -> float:
        """Run time of its cells, given the blocks of :func:`fdn.runs.results.read_sidecars`."""
        seeds = set(parse_seeds(self.seeds))
        return sum(b["seconds"]["total"] for b in blocks if _key(b) in self.keys and not seeds.isdisjoint(b["seeds"]))


def _key(block: dict) -> tuple[str, str, str]:
    return block["dataset"], block["model"], block["protocol"]


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
    Extra("initialisation", "Do runs look like the published one if they start from the parameters that torch draws for its seed?",
          PAPER_DATASETS, PAPER_MODELS, _changes(initialisation=("published",))),
    Extra(
        "iwae", "The beta-ELBO against the importance-weighted bound with K draws (appendix B).", ABLATED, FDN_MODELS,
        (*_changes(train_draws=(5, 20)), *_changes(objective=("iwae",), train_draws=(1, 5, 20))),
    ),
    Extra("beta", "Does beta trade sharpness inside the band against caution outside (section 4.5)?", ABLATED, FDN_MODELS,
          _changes(beta_max=(0.01, 0.1, 10.0))),
    Extra("hypernetwork", "Does the width of the hypernetworks (section 4.5)?", ABLATED, FDN_MODELS,
          _changes(hyper_factor=(0.5, 2.0))),
    Extra("warm-up", "Does it matter how the KL term is scheduled (section 5)?", ABLATED, FDN_MODELS, _changes(warmup=(0,))),
)  # fmt: skip


def choose(names: Sequence[str] | None) -> list[Extra]:
    """The extras of these names, in the order of EXTRAS; all if None. UserError for an unknown name."""
    known = [extra.name for extra in EXTRAS]
    if unknown := [name for name in names or () if name not in known]:
        raise UserError(f"unknown group {unknown[0]!r}; choose from {', '.join(known)}")
    return [extra for extra in EXTRAS if names is None or extra.name in names]


def run(
    extras: Sequence[Extra],
    out: Path,
    seeds: str | None = None,
    workers: int | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Compute the cells that ``out`` lacks; ``seeds`` replaces every group's own."""
    for extra in extras:
        start, numbers = time.perf_counter(), parse_seeds(extra.seeds if seeds is None else seeds)
        for protocol in extra.protocols:
            experiment.run(extra.datasets, extra.models, numbers, protocol, out, workers)
        say(f"{extra.name}: {time.perf_counter() - start:.0f} s")


def collect(out: Path, folder: Path | None = None) -> list[Path]:
    """Write ``metrics.parquet`` and ``sidecar.json`` of the extras' cells in a results folder; return their paths."""
    folder = paths.EXTRAS if folder is None else folder
    metrics = results.load_metrics(out)
    wanted = set().union(*(extra.keys for extra in EXTRAS))
    blocks = [block for block in results.read_sidecars(out) if _key(block) in wanted]
    used = results.sort(results.of_blocks(metrics, wanted))
    return [results.write_metrics(folder, used), results.write_sidecars(folder, blocks)]


def pool(committed: Path | None = None, folder: Path | None = None) -> pd.DataFrame:
    """All committed metrics: the main results, and the extras' cells that those do not hold.

    Raises:
        FileNotFoundError: if there are no main results.
    """
    return with_extras(results.load_metrics(paths.COMMITTED_RESULTS if committed is None else committed), folder)


def with_extras(metrics: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    """Metrics, and the committed extras' cells that they do not hold."""
    folder = paths.EXTRAS if folder is None else folder
    if not (folder / "metrics.parquet").exists():
        return metrics
    both = pd.concat([metrics, results.load_metrics(folder)], ignore_index=True)
    return results.sort(both.drop_duplicates(list(results.KEY)))
