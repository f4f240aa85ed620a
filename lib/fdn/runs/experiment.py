"""From names to results: which cells are missing, computing them in blocks of seeds, one process per core."""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from fdn import data, metrics, paths
from fdn.data.dataset import Dataset
from fdn.devices import CPU, choose_device, device_name, undisturbed
from fdn.errors import UserError
from fdn.models import BASELINE, MODEL_NAMES, MODELS, check_model, model_spec
from fdn.protocol import Protocol
from fdn.runs import results
from fdn.settings import Count, check_seeds, checked
from fdn.training.loop import Fit, fit, restore
from fdn.training.prediction import Prediction

BLOCK_SEEDS = 50  # seeds trained as one stack: bounds memory at any number of seeds


@dataclass(frozen=True)
class Block:
    """Seeds of one (dataset, model, protocol) that are trained together, or whose kept fits are tested again."""

    dataset: Dataset
    model: str
    protocol: Protocol
    seeds: tuple[int, ...]
    kept: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Of its cells, less the seed."""
        return self.dataset.name, self.model, self.protocol.label

    @property
    def name(self) -> str:
        """For messages."""
        return f"{' '.join(self.key)} seeds {', '.join(map(str, self.seeds))}"

    @property
    def cost(self) -> float:
        """Rough relative cost, to start the longest blocks first."""
        cost = 0.0 if self.model == BASELINE else MODELS[self.model].cost * self.protocol.epochs
        return (0.01 if self.kept else 1.0) * cost * len(self.seeds) * len(self.dataset.x_train)


def load_dataset(name: str, protocol: Protocol) -> Dataset:
    """A named data set with the toy functions and validation points of the protocol."""
    return data.load(name, functions=protocol.toy_functions, toy_validation=protocol.toy_validation)


def datasets_of(metrics: pd.DataFrame, protocol: Protocol) -> dict[str, Dataset | None]:
    """The data sets with results under a protocol, as it sees them; None where the files are not here."""
    names = metrics.loc[metrics["protocol"] == protocol.label, "dataset"].unique()
    here = {name for name in names if name in data.NAMES and data.available(name)}
    return {name: load_dataset(name, protocol) if name in here else None for name in names}


def blocks_of(seeds: Sequence[int]) -> list[Sequence[int]]:
    """Seeds in their order, as many at a time as one stack holds."""
    return [seeds[first : first + BLOCK_SEEDS] for first in range(0, len(seeds), BLOCK_SEEDS)]


def plan(
    datasets: Sequence[Dataset],
    models: Sequence[str],
    seeds: Sequence[int],
    protocol: Protocol,
    out: Path,
    recompute: bool = False,
) -> list[Block]:
    """The blocks of cells that ``out`` does not hold yet, or of all cells to ``recompute``.

    Cells that lack a metric are tested again where their fit was kept; where none was, the gathered results say what
    they lack.
    """
    blocks = []
    for dataset, model in product(datasets, models):
        missing, short = [], []
        for seed in seeds:
            key = (dataset.name, model, protocol.label, seed)
            cell = None if recompute else results.complete_cell(out, *key, dataset.fingerprint)
            if cell is None or model == BASELINE and results.lacking(cell):
                missing.append(seed)
            elif results.lacking(cell) and results.has_fit(out, *key):
                short.append(seed)
        blocks += [Block(dataset, model, protocol, tuple(some)) for some in blocks_of(missing)]
        blocks += [Block(dataset, model, protocol, tuple(some), kept=True) for some in blocks_of(short)]
    return blocks


@undisturbed()
def run_block(block: Block, out: Path, progress: bool = False, device: str | torch.device = CPU) -> None:
    """Train, test and write the cells of one block, on a device of :func:`fdn.devices.choose_device`.

    Raises:
        FloatingPointError: naming the seeds that never had a finite validation score; the others are written.
    """
    device, start, trained = choose_device(device), time.perf_counter(), None
    dataset, model, protocol = block.dataset, block.model, block.protocol
    if block.kept:
        trained = kept_fits(out, dataset, model, protocol, block.seeds, device)
        block = replace(block, seeds=trained.seeds if trained else ())  # those that can be read
    elif model != BASELINE:
        spec = model_spec(model, dataset.n_features, protocol)
        trained = fit(spec, dataset, protocol, block.seeds, progress=progress, device=device)
    testing, failed = time.perf_counter(), []
    for i, seed in enumerate(block.seeds):
        if trained is None:
            write_prediction(block, seed, 0, 1, _training_mean(block), out)
        elif trained.best_epoch[i] == 0:
            failed.append(seed)
        else:
            if not block.kept:
                results.write_fit(out, (*block.key, seed), trained.flat[i].cpu().numpy(), trained.scores[i])
            prediction, n_params = trained.predict(seed, dataset.x_test), trained.flat[0].numel()
            write_prediction(block, seed, int(trained.best_epoch[i]), n_params, prediction, out)
    if not block.kept:  # else run times and environment stay those of the training
        end = time.perf_counter()
        seconds = {**(trained.seconds if trained else {}), "test": end - testing, "total": end - start}
        sidecar = {"seeds": block.seeds, "seconds": seconds, "environment": environment(device)}
        results.write_sidecar(out, *block.key, sidecar)
    if failed:
        raise FloatingPointError(f"{block.name}: validation was never finite for seeds {failed}; nothing kept for them")


def kept_fits(
    out: Path, dataset: Dataset, model: str, protocol: Protocol, seeds: Sequence[int], device: torch.device = CPU
) -> Fit | None:
    """Those fits of these seeds that a results folder keeps, as one; None if it keeps none."""
    found = {s: kept for s in seeds if (kept := results.load_fit(out, dataset.name, model, protocol.label, s))}
    if not found:
        return None
    parameters, scores = map(np.stack, zip(*found.values()))
    spec = model_spec(model, dataset.n_features, protocol)
    return restore(spec, dataset, protocol, tuple(found), parameters, scores, device)


def _training_mean(block: Block) -> Prediction:
    """The baseline's: the mean of the training targets everywhere, (1, N)."""
    mean = float(np.mean(block.dataset.y_train))
    draws = torch.full((1, len(block.dataset.x_test)), mean, dtype=torch.float64)
    return Prediction(draws, torch.full_like(draws, block.protocol.observation_variance))


def write_prediction(
    block: Block, seed: int, best_epoch: int, n_params: int, prediction: Prediction, out: Path
) -> None:
    """Write one seed's cell: the metrics of its draws at the test points."""
    dataset, protocol = block.dataset, block.protocol
    draws = prediction.draws.double().numpy()  # (K, N)
    y, id_test, offset = dataset.y_test, dataset.id_test, protocol.variance_offset
    constant = protocol.likelihood == "homoscedastic" or block.model == BASELINE
    observation_variance = (
        protocol.observation_variance if constant else prediction.observation_variance.double().numpy()
    )  # (K, N)
    row = {
        "dataset": dataset.name,
        "model": block.model,
        "protocol": protocol.label,
        "seed": seed,
        **metrics.summary(draws, y, id_test, variance_offset=offset, observation_variance=observation_variance),
        "best_epoch": best_epoch,
        "n_params": n_params,
        "n_draws": len(draws),
    }
    points = pd.DataFrame(
        {
            "z": dataset.x_test[:, dataset.split_feature],
            "y": y,
            "region": np.where(id_test, "ID", "OOD"),
            **metrics.pointwise(draws, y, variance_offset=offset),
        }
    )
    results.write_cell(out, row, points, dataset.fingerprint)


def check_models(models: Sequence[str]) -> None:
    """Raise UserError unless every name is a model's or the baseline's."""
    for model in models:
        check_model(model, (*MODEL_NAMES, BASELINE))


def run(
    datasets: Sequence[str | Dataset],
    models: Sequence[str],
    seeds: Sequence[int],
    protocol: Protocol | Sequence[Protocol],
    out: Path,
    workers: int | None = None,
    progress: bool = True,
    recompute: bool = False,
    device: str | torch.device = CPU,
    gather: bool = True,
) -> pd.DataFrame:
    """Compute whatever cells are missing in ``out`` and return the metrics of the cells asked for.

    Args:
        datasets: names, or data sets of your own (see :func:`fdn.data.from_frame`).
        models: model names.
        seeds: model seeds; numbers do not depend on which seeds run together.
        protocol: settings, or several.
        out: results folder (layout: :mod:`fdn.runs.results`).
        workers: processes, each with one thread; default one per core, or one that has the GPU.
        progress: show bars on a terminal.
        recompute: compute cells that exist again; each is kept until its successor is complete.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        gather: write ``metrics.parquet``; one of many jobs in the same folder leaves it to `fdn collect`.

    Raises:
        UserError: for an unknown name, a device that is not there, seeds that are not different integers of at least
            0, or an output that cannot be written.
        RuntimeError: if blocks failed, naming each and why; what succeeded is kept.
    """
    check_models(models)
    device, seeds, workers = choose_device(device), check_seeds(seeds), checked("workers", workers, Count | None)
    out, blocks, keys = Path(out), [], []
    for settings in [protocol] if isinstance(protocol, Protocol) else protocol:
        loaded = [d if isinstance(d, Dataset) else load_dataset(d, settings) for d in datasets]
        results.check_writable(out)
        keys += product([dataset.name for dataset in loaded], models, [settings.label], seeds)
        blocks += plan(loaded, models, seeds, settings, out, recompute)
    blocks.sort(key=lambda b: -b.cost)  # longest first
    if again := sum(len(block.seeds) for block in blocks if block.kept):
        logging.getLogger(__name__).warning("%s cells are tested again from their kept fits, for new metrics", again)
    workers = min(workers or (available_cores() if device == CPU else 1), len(blocks))
    outcomes = _in_turn(blocks, out, progress, device) if workers <= 1 else \
        _in_processes(workers, blocks, out, progress, device)  # fmt: skip
    failures = [f"{block.name}: {error}" for block, error in outcomes if error]
    if gather:
        results.collect(out)
    if failures:
        raise RuntimeError("some cells could not be computed:\n" + "\n".join(failures))
    return results.frame_of(cell for key in keys if (cell := results.read_cell(out, *key)))


Outcomes = Iterator[tuple[Block, str | None]]  # each block, once it is done, and the error that it ended with


def _in_turn(blocks: Sequence[Block], out: Path, progress: bool, device: torch.device) -> Outcomes:
    for block in blocks:
        try:
            run_block(block, out, progress, device)
            yield block, None
        except (FloatingPointError, MemoryError) as error:
            yield block, str(error) or repr(error)


def _in_processes(workers: int, blocks: Sequence[Block], out: Path, progress: bool, device: torch.device) -> Outcomes:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
        with _interrupts_ignored():  # workers inherit this; they are ended below instead
            futures = {pool.submit(run_block, block, out, False, device): block for block in blocks}
        bar = tqdm(total=sum(len(b.seeds) for b in blocks), unit="cell", disable=None if progress else True)
        try:
            for future in as_completed(futures):
                error = future.exception()
                if isinstance(error, UserError):
                    raise error
                yield futures[future], error and repr(error)
                bar.update(len(futures[future].seeds))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            bar.close()


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # where handlers cannot be set
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_worker() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()  # a killed parent would leave workers waiting for ever
    os._exit(1)


def environment(device: torch.device = CPU) -> dict[str, object]:
    """Library versions, processor, device, threads and commit: what a number's provenance needs."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "device": device_name(device),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "packages": {name: version(name) for name in ("torch", "numpy", "scipy", "pandas")},
        "commit": _commit(),
        "argv": [Path(sys.argv[0]).name.replace("__main__.py", "fdn"), *sys.argv[1:]],  # of `python -m fdn` too
    }


def _commit() -> str | None:
    """Of the program, where it lies in a checkout and git is there to ask."""
    if not (paths.in_checkout() and shutil.which("git")):
        return None
    command = ["git", "-C", str(paths.ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip() or None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    named = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or "unknown"
