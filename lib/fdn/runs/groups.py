"""Groups of cells that each answer a question: computed in one folder, their results kept beside the page on them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Protocol as Kind

from fdn.arguments import parse_seeds
from fdn.protocol import Protocol
from fdn.runs import experiment, results


class Group(Kind):
    """Every combination of data sets, models, protocols and seeds."""

    name: str
    datasets: tuple[str, ...]
    models: tuple[str, ...]
    protocols: tuple[Protocol, ...]
    seeds: str


def blocks_of(group: Group) -> set[tuple[str, str, str]]:
    """(data set, model, label of the protocol) of its cells."""
    return set(product(group.datasets, group.models, (protocol.label for protocol in group.protocols)))


def block_of(sidecar: dict) -> tuple[str, str, str]:
    """The same of a sidecar of :func:`fdn.runs.results.read_sidecars`."""
    return sidecar["dataset"], sidecar["model"], sidecar["protocol"]


def run(groups: Iterable[Group], out: Path, seeds: str | None = None, workers: int | None = None) -> None:
    """Compute the cells that ``out`` lacks; ``seeds`` replaces every group's own."""
    for group in groups:
        start, numbers = time.perf_counter(), parse_seeds(group.seeds if seeds is None else seeds)
        experiment.run(group.datasets, group.models, numbers, group.protocols, out, workers)
        print(f"{group.name}: {time.perf_counter() - start:.0f} s")


def collect(groups: Iterable[Group], out: Path, folder: Path) -> list[Path]:
    """Merge the groups' cells of a results folder into the ``metrics.parquet`` and ``sidecar.json`` of another.

    Returns their paths. What the other folder holds of no group goes.
    """
    wanted = set().union(*map(blocks_of, groups))
    metrics = results.of_blocks(results.merged(folder, results.load_metrics(out)), wanted)
    sidecars = [sidecar for sidecar in results.merged_sidecars(folder, out) if block_of(sidecar) in wanted]
    return [results.write_metrics(folder, metrics), results.write_sidecars(folder, sidecars)]
