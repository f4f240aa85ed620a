"""Runs beyond the published tables: the print read literally, other objectives and settings, the deterministic models.

They show what the tables leave open and are the evidence for the paper's sentences about beta, hypernetwork capacity,
warm-up and IWAE. ``data/extras`` holds their metrics, run times and environments, and the page made from them.
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
from fdn.errors import UserError
from fdn.models import BASELINE, PAPER_MODELS
from fdn.protocol import AS_WRITTEN, PUBLISHED, Protocol
from fdn.report import console, findings, published
from fdn.report.tables import DASH
from fdn.runs import experiment, results
from fdn.typesetting import Table

FDN = published.REPRESENTED_MODELS
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
        "deterministic", "The models that the tables omit, beside dropout and the ensemble.", published.DATASETS,
        ("MLPNet", "HyperNet", BASELINE), (PUBLISHED,), beside=("MLPDropoutNet", "DeepEnsembleNet"),
    ),
    Extra(
        "as_written", "The paper read literally, beside what the published numbers were computed with.",
        published.DATASETS, PAPER_MODELS, (AS_WRITTEN,),
    ),
    Extra("more-seeds", "CCPP and energy with 20 seeds in place of three.", ("ccpp", "energy"), PAPER_MODELS,
          (PUBLISHED,), "3:20"),
    Extra("hundred-seeds", "Every task with as many seeds as airfoil has.", ("step", "sine", "quad", "ccpp", "energy"),
          PAPER_MODELS, (PUBLISHED,), "20:100"),
    Extra("initialisation", "Do runs look like the published one if they start from the parameters that torch draws for its seed?",
          published.DATASETS, PAPER_MODELS, _changes(initialisation=("published",))),
    Extra(
        "iwae", "The beta-ELBO against the importance-weighted bound with K draws (appendix B).", ABLATED, FDN,
        (*_changes(train_draws=(5, 20)), *_changes(objective=("iwae",), train_draws=(1, 5, 20))),
    ),
    Extra("beta", "Does beta trade sharpness inside the band against caution outside (section 4.5)?", ABLATED, FDN,
          _changes(beta_max=(0.01, 0.1, 10.0))),
    Extra("hypernetwork", "Does the width of the hypernetworks (section 4.5)?", ABLATED, FDN,
          _changes(hyper_factor=(0.5, 2.0))),
    Extra("warm-up", "Does it matter how the KL term is scheduled (section 5)?", ABLATED, FDN, _changes(warmup=(0,))),
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


def write(out: Path, folder: Path | None = None) -> list[Path]:
    """Write ``metrics.parquet`` and ``sidecar.json`` from a results folder, and the page ``README.md``; return their paths."""
    folder = paths.EXTRAS if folder is None else folder
    metrics = results.load_metrics(out)
    wanted = set().union(*(extra.keys for extra in EXTRAS))
    used = results.sort(metrics[pd.MultiIndex.from_frame(metrics[["dataset", "model", "protocol"]]).isin(wanted)])
    with results.atomic(folder / "metrics.parquet") as path:
        path.write_bytes(used.to_parquet(index=False))
    blocks = [block for block in results.read_sidecars(out) if _key(block) in wanted]
    return [folder / "metrics.parquet", results.write_sidecars(folder, blocks), update(folder)]


def update(folder: Path | None = None) -> Path:
    """Write the page anew from the folder's files and the main results, and return its path."""
    folder = paths.EXTRAS if folder is None else folder
    target = folder / "README.md"
    text = page(pool(folder=folder), results.read_sidecars(folder))
    with results.atomic(target) as path:
        path.write_text(text, encoding="utf-8")
    return target


def pool(committed: Path | None = None, folder: Path | None = None) -> pd.DataFrame:
    """All committed metrics: the main results, and the extras' cells that those do not hold.

    Raises:
        FileNotFoundError: if there are no main results.
    """
    return with_extras(console.read_metrics(paths.COMMITTED_RESULTS if committed is None else committed), folder)


def with_extras(metrics: pd.DataFrame, folder: Path | None = None) -> pd.DataFrame:
    """Metrics, and the committed extras' cells that they do not hold."""
    folder = paths.EXTRAS if folder is None else folder
    if not (folder / "metrics.parquet").exists():
        return metrics
    both = pd.concat([metrics, console.read_metrics(folder)], ignore_index=True)
    return results.sort(both.drop_duplicates(list(results.KEY)))


def page(metrics: pd.DataFrame, blocks: Sequence[dict]) -> str:
    """The page as Markdown: every group's medians beside those of the published protocol with the same seeds.

    Args:
        metrics: from :func:`pool`.
        blocks: of the extras, from :func:`fdn.runs.results.read_sidecars`.
    """
    parts = [
        "# Beyond the published tables",
        "Written by `fdn extras`, which computes what is missing of these runs. Where a group changes the protocol, its seeds "
        "are compared with the same seeds under `published`. Times are those of one thread, over all seeds of a group; `sidecar.json` "
        "has them for every block of seeds, with the environment.",
    ]
    for extra in EXTRAS:
        labels = [protocol.label for protocol in extra.protocols]
        minutes = extra.seconds(blocks) / 60
        parts.append(f"## {extra.name}\n\n{extra.question} `fdn extras --only {extra.name}`, {minutes:.1f} minutes.")
        if parse_seeds(extra.seeds)[0] > 0:  # those that follow the main results'
            parts.append(_more_seeds(metrics, extra))
            continue
        if extra.name == "initialisation":
            parts.append(_initialisation(metrics, labels[0]))
            continue
        shown = [model for model in (*extra.models, *extra.beside) if model != BASELINE]
        same = metrics[metrics["seed"].isin(parse_seeds(extra.seeds))]
        for dataset in extra.datasets:
            table = findings.protocol_table(same, dataset, list(dict.fromkeys([PUBLISHED.label, *labels])), shown)
            parts.append(table.to_markdown())
        if AS_WRITTEN in extra.protocols and same["protocol"].eq(AS_WRITTEN.label).any():
            parts.append(_reached(same))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _reached(metrics: pd.DataFrame) -> str:
    counts = []
    for protocol in (PUBLISHED, AS_WRITTEN):
        total = published.score(published.compare(metrics, protocol.label)).iloc[-1]
        p = published.uniformity(metrics, protocol.label)["p"].iloc[0]
        counts.append(f"`{protocol.label}` {total['minmax']} of {total['n']} (p = {p:.3f})")
    return (
        f"Published numbers inside the range of these seeds: {findings.listing(counts)}; one more seed would have "
        f"{total['expected_minmax']:.0%} there. p: the randomisation test of the page of published numbers."
    )


def _more_seeds(metrics: pd.DataFrame, extra: Extra) -> str:
    """Published numbers inside the range of the seeds before the group's own, and of those with them, per data set."""
    seeds = parse_seeds(extra.seeds)
    counts = [seeds[0], seeds[-1] + 1]
    scores = [published.score(published.compare(metrics[metrics["seed"] < n])).set_index(["by", "name"]) for n in counts]
    rows = []
    for dataset in extra.datasets:
        cells = [score.loc[("dataset", dataset)] for score in scores]
        shown = [(f"{c['minmax']:.0f}", f"{c['expected_minmax'] * c['n']:.0f}") if c["n"] else (DASH, DASH) for c in cells]
        rows.append((dataset, str(int(cells[-1]["n"])), *shown[0], *shown[1]))
    caption = "By chance: if the published run were simply one more seed."
    columns = ("Data set", "Numbers", *(head for n in counts for head in (f"Inside with {n} seeds", "By chance")))
    return Table(extra.name, "Published numbers inside the range of our seeds", caption, columns, tuple(rows), "lrrrrr").to_markdown()


def _initialisation(metrics: pd.DataFrame, label: str) -> str:
    """Published numbers inside the range of runs that differ in their order of examples and noise only, per model and data set."""
    comparison = published.compare(metrics, label)
    computed = comparison[comparison["n_seeds"] > 0]
    inside = computed.assign(inside=computed["verdict"] != published.OUTSIDE)
    counts = inside.pivot_table(index="model", columns="dataset", values="inside", aggfunc="sum")
    if not len(counts):
        return "Not computed."
    columns = [name for name in published.DATASETS if name in counts]
    rows = [
        (model, *(DASH if pd.isna(counts.at[model, name]) else str(int(counts.at[model, name])) for name in columns))
        for model in PAPER_MODELS if model in counts.index
    ]  # fmt: skip
    total = published.score(comparison).iloc[-1]
    caption = (
        "Of 7 numbers each. All runs start from `torch.manual_seed(published seed)` in float64 (an ensemble's members from it and the "
        f"seeds after it) and differ in the order of examples and the noise. Together {total['minmax']} of {total['n']}; "
        f"{total['expected_minmax']:.0%} would be inside if the published run were one more of these."
    )
    title = "Published numbers inside the range of runs from the published seed"
    return Table("initialisation", title, caption, ("Model", *columns), tuple(rows), "l" + "r" * len(columns)).to_markdown()
