"""The page of the runs beyond the published tables, ``data/extras/README.md``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.arguments import parse_seeds
from fdn.data import PAPER_DATASETS
from fdn.models import BASELINE, PAPER_MODELS
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.report import findings, published
from fdn.report.tables import DASH
from fdn.runs import extras, groups, results
from fdn.runs.extras import EXTRAS, Extra
from fdn.typesetting import Table


def write(out: Path, folder: Path | None = None) -> list[Path]:
    """Keep the extras' cells of a results folder, by default in ``data/extras``, and write the page; the paths."""
    return [*groups.collect(EXTRAS, out, paths.EXTRAS if folder is None else folder), update(folder)]


def update(folder: Path | None = None) -> Path:
    """Write the page anew from the folder's files and the main results, and return its path."""
    folder = paths.EXTRAS if folder is None else folder
    text = page(extras.with_extras(folder=folder), results.read_sidecars(folder))
    return results.write(folder / "README.md", text)


def page(metrics: pd.DataFrame, blocks: Sequence[dict]) -> str:
    """The page as Markdown: every group's medians beside those of the published protocol with the same seeds.

    Args:
        metrics: from :func:`fdn.runs.extras.with_extras`.
        blocks: of the extras, from :func:`fdn.runs.results.read_sidecars`.
    """
    parts = [
        "# Beyond the published tables",
        "Written by `fdn extras`, which computes what is missing of these runs. Where a group changes the protocol, "
        "its seeds are compared with the same seeds under `published`. Times are those of one thread, over all seeds "
        "of a group; `sidecar.json` has them for every block of seeds, with the environment.",
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
        same = published.rows_of(metrics, seed=parse_seeds(extra.seeds))
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
    compared = [published.compare(metrics[metrics["seed"] < n]) for n in counts]
    rows = []
    for dataset in extra.datasets:
        scores = [published.score(published.rows_of(numbers, dataset=dataset)).iloc[-1] for numbers in compared]
        cells = [(f"{s['minmax']}", f"{s['expected_minmax'] * s['n']:.0f}") if s["n"] else (DASH, DASH) for s in scores]
        rows.append((dataset, str(scores[-1]["n"]), *cells[0], *cells[1]))
    caption = "By chance: if the published run were simply one more seed."
    columns = ("Data set", "Numbers", *(head for n in counts for head in (f"Inside with {n} seeds", "By chance")))
    return Table(
        extra.name, "Published numbers inside the range of our seeds", caption, columns, tuple(rows), "lrrrrr"
    ).to_markdown()


def _initialisation(metrics: pd.DataFrame, label: str) -> str:
    """Published numbers inside the range of runs from the published seed's parameters, per model and data set."""
    comparison = published.compare(metrics, label)
    computed = comparison[comparison["n_seeds"] > 0]
    inside = computed.assign(inside=computed["verdict"] != published.OUTSIDE)
    counts = inside.pivot_table(index="model", columns="dataset", values="inside", aggfunc="sum")
    if not len(counts):
        return "Not computed."
    columns = [name for name in PAPER_DATASETS if name in counts]
    counts = counts.loc[[model for model in PAPER_MODELS if model in counts.index], columns]
    rows = [(model, *(DASH if pd.isna(n) else f"{n:.0f}" for n in cells)) for model, *cells in counts.itertuples()]
    total = published.score(comparison).iloc[-1]
    caption = (
        "Of 7 numbers each. All runs start from `torch.manual_seed(published seed)` in float64 (an ensemble's "
        "members from it and the seeds after it) and differ in the order of examples and the noise. Together "
        f"{total['minmax']} of {total['n']}; {total['expected_minmax']:.0%} would be inside if the published run "
        "were one more of these."
    )
    title = "Published numbers inside the range of runs from the published seed"
    return Table(
        "initialisation", title, caption, ("Model", *columns), tuple(rows), "l" + "r" * len(columns)
    ).to_markdown()
