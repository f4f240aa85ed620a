"""The paper in one call: data, notebooks through papermill, tables, figures and a comparison.

What an earlier call has computed is kept, and a call that finds everything done computes nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fdn import data, paths
from fdn.arguments import parse_protocol, parse_seeds
from fdn.data import uci
from fdn.errors import UserError
from fdn.models import BASELINE, MODEL_NAMES
from fdn.protocol import Protocol
from fdn.report import comparison, console, tables
from fdn.report.figures import write_figures
from fdn.runs import experiment, results
from fdn.runs.experiment import datasets_of
from fdn.workflow import notebooks

ALL_MODELS = (BASELINE, *MODEL_NAMES)
STAND_IN = "diabetes"  # the real data set that needs no download
TOY_NOTEBOOK, REAL_NOTEBOOK, OVERVIEW_NOTEBOOK = "03_toy.ipynb", "04_uci.ipynb", "05_figures_and_tables.ipynb"


@dataclass(frozen=True)
class Task:
    """A notebook to run with parameters for one data set."""

    dataset: str
    source: Path
    target: Path
    parameters: dict[str, object]


def reproduce(
    out: Path,
    seeds: str = "0:5",
    ccpp_seeds: str = "0:2",
    epochs: int | None = None,
    datasets: Sequence[str] | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Run the paper's tasks under the published protocol and report published beside reproduced.

    Args:
        out: where results, notebooks, tables and figures go.
        seeds: seeds of every data set but ccpp, as :func:`fdn.arguments.parse_seeds` reads them.
        ccpp_seeds: seeds of ccpp, the largest one.
        epochs: fewer epochs than the protocol has; the results then count as an ablation.
        datasets: names; by default the paper's six, or what of them can be had and then diabetes as well.
        say: takes the lines of the report.

    Raises:
        UserError: for bad seeds, an unknown data set, or one asked for by name that cannot be had.
        RuntimeError: once all else is done, if a notebook failed.
    """
    start = time.perf_counter()
    protocol = parse_protocol("published", epochs=epochs)
    parse_seeds(seeds), parse_seeds(ccpp_seeds)
    names, missing = _get_data(datasets)
    out = Path(os.path.abspath(out))
    failures = []
    tasks = [_task(name, ccpp_seeds if name == "ccpp" else seeds, protocol, epochs, out) for name in names]
    for task in tasks:
        failures += _run(task, is_current=_is_current(task, protocol, out), say=say)
    if not (out / "metrics.parquet").exists():
        raise RuntimeError("nothing could be computed:\n" + "\n".join(failures))
    overview = {"out": str(out), "protocol": protocol.label}
    target = out / "notebooks" / OVERVIEW_NOTEBOOK
    task = Task("overview", paths.NOTEBOOKS / OVERVIEW_NOTEBOOK, target, overview)
    current = _is_newer(target, task, out / "metrics.parquet")
    say("tables and figures ...")
    with ThreadPoolExecutor(1) as pool:  # drawn while the notebook runs in its kernel
        drawing = pool.submit(_tables_and_figures, protocol, out)
        failures += _run(task, is_current=current, say=say)
        notes = drawing.result()

    metrics = comparison.with_committed(out)
    shown = [*names, *missing]
    for name in sorted(shown, key=data.NAMES.index):
        say("\n" + console.results_of(metrics, name, protocol.label))
    numbers = comparison.compare(metrics, protocol.label)
    numbers = numbers[numbers["dataset"].isin(shown)]
    say("\n" + console.scores(numbers))
    outside = comparison.misses(numbers)
    say(f"\nOutside the range of our seeds: {len(outside)}")
    if len(outside):
        say(console.numbers(outside))
    if missing:
        say(f"\nNot computed here, for want of their files: {', '.join(missing)} (above: committed results).")
        say("\n".join(f"  {name}: {uci.SOURCES[name].how_to_get}" for name in missing))
        say("The same command then computes what is missing and nothing else.")
    for note in notes:
        say(f"Not drawn: {note}")
    say("\n" + _places(out))
    say(f"Total time: {_duration(time.perf_counter() - start)}")
    if failures:
        raise RuntimeError("\n".join(failures))


def smoke(say: Callable[[str], None] = print) -> None:
    """The whole path on two data sets with two seeds and two epochs, afresh, into out/smoke."""
    out = paths.DEFAULT_OUT / "smoke"
    shutil.rmtree(out, ignore_errors=True)
    reproduce(out, seeds="0:2", epochs=2, datasets=("step", STAND_IN), say=say)


def _get_data(datasets: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Names to compute, and names of those that cannot be had, which nobody asked for by name."""
    for name in datasets or ():
        data.check_name(name)
    names, missing = list(data.PAPER_DATASETS if datasets is None else datasets), []
    for name in [name for name in names if name in data.UCI]:
        try:
            uci.fetch(name)
        except UserError:
            if datasets is not None:
                raise
            missing.append(name)
    present = [name for name in names if name not in missing]
    return present + ([STAND_IN] if missing else []), missing


def _task(dataset: str, seeds: str, protocol: Protocol, epochs: int | None, out: Path) -> Task:
    source = paths.NOTEBOOKS / (TOY_NOTEBOOK if dataset in data.TOY else REAL_NOTEBOOK)
    parameters = {
        "dataset": dataset,
        "models": ",".join(ALL_MODELS),
        "seeds": seeds,
        "protocol": protocol.base,
        "epochs": 0 if epochs is None else epochs,
        "recompute": True,
        "out": str(out),
    }
    return Task(dataset, source, out / "notebooks" / f"{source.stem}-{dataset}.ipynb", parameters)


def _is_current(task: Task, protocol: Protocol, out: Path) -> bool:
    """Whether the notebook has run as it now is and no cell is missing."""
    seeds = parse_seeds(task.parameters["seeds"])
    dataset = experiment.load_dataset(task.dataset, protocol)
    return _is_newer(task.target, task) and not experiment.plan([dataset], ALL_MODELS, seeds, protocol, out)


def _is_newer(path: Path, task: Task, *sources: Path) -> bool:
    if notebooks.parameters_used(path) != task.parameters:
        return False
    return all(source.stat().st_mtime <= path.stat().st_mtime for source in (task.source, *sources, *paths.program()))


def _run(task: Task, is_current: bool, say: Callable[[str], None]) -> list[str]:
    if is_current:
        say(f"{task.dataset}: already in {console.shown_path(task.target)}")
        return []
    start = time.perf_counter()
    say(f"{task.dataset}: {task.source.name} ...")
    try:
        notebooks.run_with_parameters(task.source, task.target, task.parameters)
    except RuntimeError as error:
        say(f"{task.dataset}: failed")
        return [str(error)]
    say(f"{task.dataset}: {console.shown_path(task.target)} ({_duration(time.perf_counter() - start)})")
    return []


def _tables_and_figures(protocol: Protocol, out: Path) -> list[str]:
    """Write both unless they were made from these very results; returns what could not be drawn."""
    metrics = results.load_metrics(out)
    datasets = datasets_of(metrics, protocol)
    made_from = out / "made_from.json"
    content = {
        "metrics": hashlib.sha256((out / "metrics.parquet").read_bytes()).hexdigest(),
        "protocol": protocol.label,
        "files here": [name for name, dataset in datasets.items() if dataset is not None],
    }

    def whole(notes: list[str]) -> str:
        return json.dumps({**content, "not drawn": notes}, indent=1) + "\n"

    if made_from.exists() and made_from.stat().st_mtime >= max(path.stat().st_mtime for path in paths.program()):
        folders = (out / "tables", out / "figures")
        if made_from.read_text(encoding="utf-8", errors="replace") == whole([]) and all(f.is_dir() for f in folders):
            return []
    tables.all_tables(metrics, datasets, protocol.label, out / "tables")
    _, notes = write_figures(out, metrics, datasets, protocol, out / "figures")
    with results.atomic(made_from) as path:
        path.write_text(whole(notes), encoding="utf-8")
    return notes


def _places(out: Path) -> str:
    what = {
        "metrics.parquet": "all results, a row per data set, model, protocol and seed",
        "points": "per-point results",
        "notebooks": "the notebooks as they ran",
        "tables": "Markdown, LaTeX and CSV",
        "figures": "PDF and PNG",
    }
    lines = [f"  {console.shown_path(out / name)}: {text}" for name, text in what.items()]
    return "\n".join(["Written:", *lines])


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
