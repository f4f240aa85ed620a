"""A study as one graph of steps: cells, their collection, tables, figures, comparison and notebooks.

The process that starts a run writes OUT/workflow/plan.json once; ``workflow/Snakefile`` makes a rule of each of its
steps, on this machine or on a cluster. A finished step leaves a mark in OUT/workflow/done, which holds its command.
Snakemake is told of these marks alone: it deletes the outputs it knows before a step runs and after one that fails, and
results are not its to delete. Nor is it told of the program's files, in whose folder it would take braces for
wildcards.

Marks of an earlier run are not trusted: :func:`prepare` holds each against the command, the cells and the files that it
stands for, and against the age of the program. The mark of complete cells is as old as the newest of them, so that only
what shows new cells is made anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fdn import data, paths
from fdn.arguments import parse_protocol, parse_seeds, seed_ranges
from fdn.data import uci
from fdn.errors import UserError
from fdn.protocol import STUDY_SEEDS

PLAN = Path("workflow", "plan.json")
OVERVIEW = "05_figures_and_tables"
STAND_IN = "diabetes"  # the real data set that needs no download
LEAST = 5e6  # cost from which a job is worth its process: 7 s of training, where a start takes 3


@dataclass(frozen=True)
class Step:
    """A command of the program, run once the steps before it are done."""

    name: str  # of its mark and its log, and for messages
    command: tuple[str, ...]  # the words after `fdn`, in the results folder
    needs: tuple[str, ...] = ()  # steps; done again after any of them
    follows: tuple[str, ...] = ()  # steps that it waits for, if they have to be done
    cost: float = 0.0  # rough and relative; the greatest first
    product: str | None = None  # what it leaves in the results folder, besides cells
    source: str | None = None  # the notebook that it runs
    dataset: str | None = None  # of the cells that it computes
    models: tuple[str, ...] = ()
    seeds: str = ""

    @property
    def rule(self) -> str:
        """The name of its rule in the Snakefile."""
        return re.sub(r"\W", "_", self.name)

    @property
    def words(self) -> str:
        """The command as its mark holds it."""
        return "".join(f"{word}\n" for word in self.command)

    @property
    def mark(self) -> str:
        """The file that says it is done."""
        return f"workflow/done/{self.name}"

    @property
    def log(self) -> str:
        """What it said."""
        return f"workflow/log/{self.name}.log"


@dataclass(frozen=True)
class Study:
    """What a run of the workflow does. Paths are relative to the results folder."""

    label: str  # of the protocol
    datasets: tuple[str, ...]
    missing: tuple[str, ...]  # data sets whose files cannot be had
    steps: tuple[Step, ...]

    @property
    def pieces(self) -> list[Step]:
        """The steps that compute cells."""
        return [step for step in self.steps if step.dataset]

    def keys(self, name: str | None = None) -> list[tuple[str, str, str, int]]:
        """Of the cells of a piece, or of all."""
        return [(piece.dataset, model, self.label, seed) for piece in self.pieces if name in (None, piece.name)
                for model in piece.models for seed in parse_seeds(piece.seeds)]  # fmt: skip

    def without(self, absent: Collection[str]) -> Study:
        """The study without these pieces and what shows no others, to show what there is."""
        kept = []
        for step in self.steps:
            needs = tuple(name for name in step.needs if name not in absent)
            if step.name not in absent and (needs or not step.needs):
                kept.append(replace(step, needs=needs))
        return replace(self, steps=tuple(kept))


def plan(
    out: Path,
    tasks: Mapping[str, str] = STUDY_SEEDS,
    models: Sequence[str] | None = None,
    protocol: str = "published",
    epochs: int | None = None,
    required: bool = False,
    stand_in: str | None = None,
) -> Study:
    """What a run is to do.

    Args:
        out: results folder.
        tasks: seeds of each data set, as :func:`fdn.arguments.parse_seeds` reads them.
        models: model names; by default the paper's six and the training mean.
        protocol: its name.
        epochs: fewer than the protocol has; the results then count as an ablation.
        required: whether a data set that cannot be had is an error, as it was asked for by name.
        stand_in: seeds of the diabetes set, if any other set cannot be had.

    Raises:
        UserError: for an unknown name, seeds that cannot be read, or a required data set that cannot be had.
    """
    from fdn.models import BASELINE, PAPER_MODELS
    from fdn.runs import experiment  # jobs, which only read the plan, need not wait for PyTorch

    settings = parse_protocol(protocol, epochs=epochs)
    models = (BASELINE, *PAPER_MODELS) if models is None else tuple(models)
    experiment.check_models(models)
    seeds = {name: parse_seeds(text) for name, text in tasks.items()}
    missing = _cannot_be_had(tasks, required)
    if missing and stand_in is not None:
        seeds[STAND_IN] = parse_seeds(stand_in)
    seeds = {name: numbers for name, numbers in seeds.items() if name not in missing}
    common = {"protocol": settings.label, "out": out}
    pieces, shown = [], [_notebook(OVERVIEW, OVERVIEW, common, ("collect",))]
    for name, numbers in seeds.items():
        dataset, source = experiment.load_dataset(name, settings), "03_toy" if name in data.TOY else "04_uci"
        for block in experiment.blocks_of(numbers):
            ranges = seed_ranges(block)
            costs = [(model, experiment.Block(dataset, model, settings, tuple(block)).cost) for model in models]
            new = [_piece(name, some, ranges, settings.label, cost) for some, cost in _bundles(costs)]
            parameters = {"dataset": name, "models": ",".join(models), "seeds": ranges, **common}
            needs = tuple(piece.name for piece in new)
            notebook = paths.segment(f"{source}-{name}-{ranges}")
            shown.append(_notebook(notebook, source, parameters, needs, ("collect",)))
            pieces += new
    needs, reading = tuple(piece.name for piece in pieces), ("--results", ".", "--protocol", settings.label, "--out")
    products = [Step("collect", ("collect", "--out", "."), needs, product="metrics.parquet")]
    for name, place in (("tables", "tables"), ("figures", "figures"), ("compare", "comparison")):
        products.append(Step(name, (name, *reading, place), ("collect",), product=place))
    return Study(settings.label, tuple(seeds), missing, (*pieces, *products, *shown))


def _piece(dataset: str, models: tuple[str, ...], seeds: str, label: str, cost: float) -> Step:
    """The step that computes these cells."""
    names = ",".join(models)
    which = ("--dataset", dataset, "--models", names, "--seeds", seeds, "--protocol", label)
    command = ("run", *which, "--workers", "1", "--cells-only", "--out", ".")
    name = f"{dataset}/{names}/{paths.segment(seeds)}"
    return Step(name, command, cost=cost, dataset=dataset, models=models, seeds=seeds)


def _notebook(
    name: str, source: str, parameters: Mapping[str, object], needs: tuple[str, ...], follows: tuple[str, ...] = ()
) -> Step:
    """The step that runs a notebook."""
    target, words = f"notebooks/{name}.ipynb", [w for p in parameters.items() for w in ("--set", f"{p[0]}={p[1]}")]
    command = ("notebook", source, "--out", target, *words)
    return Step(f"notebook/{name}", command, needs, follows, product=target, source=source)


def _cannot_be_had(names: Iterable[str], required: bool) -> tuple[str, ...]:
    missing = []
    for name in names:
        data.check_name(name)
        try:
            if name in data.UCI:
                uci.fetch(name)
        except UserError:
            if required:
                raise
            missing.append(name)
    return tuple(missing)


def _bundles(costs: Iterable[tuple[str, float]]) -> list[tuple[tuple[str, ...], float]]:
    """Models in their order, as many together as make a job worth its start."""
    bundles: list[tuple[tuple[str, ...], float]] = []
    for model, cost in costs:
        before, sum_before = bundles.pop() if bundles and bundles[-1][1] < LEAST else ((), 0.0)
        bundles.append(((*before, model), sum_before + cost))
    return bundles


def absent_cells(study: Study, out: Path) -> dict[str, int]:
    """By name, the pieces that are not complete, and how many cells each lacks."""
    from fdn.runs import experiment

    settings = parse_protocol(study.label)
    datasets = {name: experiment.load_dataset(name, settings) for name in study.datasets}
    absent = {}
    for piece in study.pieces:
        blocks = experiment.plan([datasets[piece.dataset]], piece.models, parse_seeds(piece.seeds), settings, out)
        if blocks:
            absent[piece.name] = sum(len(block.seeds) for block in blocks)
    return absent


def prepare(study: Study, out: Path) -> dict[str, int]:
    """Write the plan and set the marks by what the results folder holds; returns :func:`absent_cells`.

    Raises:
        UserError: for a folder that cannot be written.
    """
    from fdn.runs import results

    absent, cells = absent_cells(study, out), results.cells(out)
    program = max(path.stat().st_mtime_ns for path in paths.program())
    for step in study.steps:
        mark = out / step.mark
        current, done = text(mark) == step.words, mark.stat().st_mtime_ns if mark.exists() else 0
        if step.product:
            made_from = max(cells.values(), default=0) if step.name == "collect" else program
            if step.source:
                made_from = max(made_from, (paths.NOTEBOOKS / f"{step.source}.ipynb").stat().st_mtime_ns)
            if not (current and (out / step.product).exists() and made_from <= done):
                mark.unlink(missing_ok=True)
        elif step.name in absent:
            mark.unlink(missing_ok=True)
        else:
            newest = max(cells[results.cell_path(out, *key)] for key in study.keys(step.name))
            if newest > done or not current:
                os.utime(results.write(mark, step.words), ns=(newest, newest))
        if not mark.exists():
            (out / step.log).unlink(missing_ok=True)
    results.write_json(out / PLAN, asdict(study))
    return absent


def text(path: Path) -> str:
    """What a program wrote, whatever its encoding; nothing if there is no file."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def read(out: Path) -> Study:
    """The plan that the starting process wrote."""

    def made(kind: type, content: dict) -> object:
        return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in content.items()})

    content = json.loads((out / PLAN).read_text(encoding="utf-8"))
    return made(Study, content | {"steps": [made(Step, step) for step in content["steps"]]})
