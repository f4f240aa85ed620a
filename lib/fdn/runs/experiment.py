"""From names to results: which cells are missing, computing them in blocks of seeds, one process per core."""

from __future__ import annotations

import multiprocessing
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm import tqdm

from fdn import data, metrics, paths
from fdn.arguments import seed_ranges
from fdn.data.dataset import Dataset
from fdn.devices import CPU, choose_device, device_name, undisturbed
from fdn.errors import UserError
from fdn.models import BASELINE, MODEL_NAMES, MODELS, check_model, model_spec
from fdn.protocol import Protocol
from fdn.runs import results
from fdn.settings import Count, check_seeds, checked
from fdn.training.loop import fit, restore
from fdn.training.prediction import Prediction

BLOCK_SEEDS = 50  # seeds trained as one stack: bounds memory at any number of seeds
BLOCK_NAME = 120  # characters in which a block's seeds can be typed: bounds the names of files that list them


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
        return self.protocol.label, self.dataset.name, self.model

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.dataset.name} {self.model} {self.protocol.label} seeds {', '.join(map(str, self.seeds))}"

    @property
    def cost(self) -> float:
        """Rough relative cost, to start the longest blocks first."""
        cost = 0.0 if self.model == BASELINE else MODELS[self.model].cost
        return (0.01 if self.kept else 1.0) * cost * len(self.seeds) * len(self.dataset.x_train)


def load_dataset(name: str, protocol: Protocol) -> Dataset:
    """A named data set with the toy functions and validation points of the protocol."""
    return data.load(name, functions=protocol.toy_functions, toy_validation=protocol.toy_validation)


def datasets_of(metrics: pd.DataFrame, protocol: Protocol) -> dict[str, Dataset | None]:
    """The data sets with results under a protocol, as it sees them; None where the files are not here."""
    names = metrics.loc[metrics["protocol"] == protocol.label, "dataset"].unique()
    here = {name for name in names if name in data.NAMES and data.available(name)}
    return {name: load_dataset(name, protocol) if name in here else None for name in names}


def blocks_of(seeds: Sequence[int], most: int = BLOCK_SEEDS) -> Iterator[list[int]]:
    """Seeds in their order, as many at a time as one stack holds and a file can be called by."""
    block: list[int] = []
    for seed in seeds:
        new_range = block and seed != block[-1] + 1
        if len(block) == most or new_range and len(seed_ranges([*block, seed])) > BLOCK_NAME:
            yield block
            block = []
        block.append(seed)
    if block:
        yield block


def plan(
    datasets: Sequence[Dataset],
    models: Sequence[str],
    seeds: Sequence[int],
    protocol: Protocol,
    out: Path,
    recompute: bool = False,
) -> list[Block]:
    """The blocks of cells that ``out`` does not hold yet, or of all cells to ``recompute``, longest first.

    Cells that lack a metric are tested again where their fit was kept; where none was, the gathered results say what
    they lack.
    """
    blocks = []
    for dataset in datasets:
        for model in models:
            key = (protocol.label, dataset.name, model)
            missing = [s for s in seeds if recompute or not results.has_cell(out, *key, s, dataset.fingerprint)]
            short = [s for s in seeds if s not in set(missing) and results.lacking(results.read_cell(out, *key, s))]
            if model == BASELINE:
                missing += short
            fits = [s for s in short if model != BASELINE and results.load_fit(out, *key, s)]
            blocks += [Block(dataset, model, protocol, tuple(some)) for some in blocks_of(missing)]
            blocks += [Block(dataset, model, protocol, tuple(some), kept=True) for some in blocks_of(fits)]
    return sorted(blocks, key=lambda b: -b.cost)


@undisturbed()
def run_block(block: Block, out: Path, progress: bool = False, device: str | torch.device = CPU) -> None:
    """Train, test and write the cells of one block, on a device of :func:`fdn.devices.choose_device`.

    Raises:
        FloatingPointError: naming the seeds that never had a finite validation score; the others are written.
    """
    device = choose_device(device)
    dataset, protocol, start = block.dataset, block.protocol, time.perf_counter()
    seconds: dict[str, float] = {}
    if block.model == BASELINE:
        draws = torch.full((1, len(dataset.x_test)), float(np.mean(dataset.y_train)), dtype=torch.float64)
        noise_variance = torch.full_like(draws, protocol.noise_variance)
        predictions = [Prediction(draws, noise_variance)] * len(block.seeds)
        best_epoch, n_params = [0] * len(block.seeds), 1
    else:
        spec = model_spec(block.model, dataset.n_features, protocol)
        if block.kept:
            parameters, scores = zip(*(results.load_fit(out, *block.key, seed) for seed in block.seeds), strict=True)
            trained = restore(spec, dataset, protocol, block.seeds, np.stack(parameters), np.stack(scores), device)
        else:
            trained = fit(spec, dataset, protocol, block.seeds, progress=progress, device=device)
        seconds, best_epoch = dict(trained.seconds), trained.best_epoch
        predictions = (trained.predict(seed, dataset.x_test) for seed in block.seeds)
        n_params = trained.flat[0].numel()
    failed, testing = [], time.perf_counter()
    for seed, epoch, prediction in zip(block.seeds, best_epoch, predictions):
        if epoch == 0 and block.model != BASELINE:
            failed.append(seed)
            continue
        if block.model != BASELINE and not block.kept:
            at = block.seeds.index(seed)
            results.write_fit(out, *block.key, seed, trained.flat[at].cpu().numpy(), trained.scores[at])
        write_prediction(block, seed, int(epoch), n_params, prediction, out)
    seconds["test"] = time.perf_counter() - testing
    seconds["total"] = time.perf_counter() - start
    if block.kept:  # run times and environment stay those of the training
        return
    seeds = "-".join(map(str, block.seeds))
    sidecar = {"seeds": block.seeds, "seconds": seconds, "environment": environment(device)}
    results.write_sidecar(out, protocol.label, dataset.name, block.model, seeds, sidecar)
    if failed:
        raise FloatingPointError(f"{block.name}: validation was never finite for seeds {failed}; nothing kept for them")


def write_prediction(
    block: Block, seed: int, best_epoch: int, n_params: int, prediction: Prediction, out: Path
) -> None:
    """Write one seed's cell: the metrics of its draws at the test points."""
    dataset, protocol = block.dataset, block.protocol
    draws = prediction.draws.double().numpy()  # (K, N)
    y, id_test, offset = dataset.y_test, dataset.id_test, protocol.variance_offset
    constant = protocol.likelihood == "homoscedastic" or block.model == BASELINE
    noise_variance = protocol.noise_variance if constant else prediction.noise_variance.double().numpy()  # (K, N)
    row = {
        "dataset": dataset.name,
        "model": block.model,
        "protocol": protocol.label,
        "seed": seed,
        **metrics.summary(draws, y, id_test, variance_offset=offset, noise_variance=noise_variance),
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
    protocol: Protocol,
    out: Path,
    workers: int | None = None,
    progress: bool = True,
    recompute: bool = False,
    device: str | torch.device = CPU,
) -> pd.DataFrame:
    """Compute whatever cells are missing in ``out`` and return the metrics of the cells asked for.

    Args:
        datasets: names, or data sets of your own (see :func:`fdn.data.from_frame`).
        models: model names.
        seeds: model seeds; numbers do not depend on which seeds run together.
        protocol: settings.
        out: results folder (layout: :mod:`fdn.runs.results`).
        workers: processes, each with one thread; default one per core, or one that has the GPU.
        progress: show bars on a terminal.
        recompute: compute cells that exist again; each is kept until its successor is complete.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.

    Raises:
        UserError: for an unknown name, a device that is not there, seeds that are not different integers of at least
            0, or an output that cannot be written.
        RuntimeError: if blocks failed, naming each and why; what succeeded is kept.
    """
    seeds = check_seeds(seeds)
    try:
        compute(datasets, models, seeds, protocol, out, workers, progress, recompute, device)
    except RuntimeError:
        results.collect(out)
        raise
    frame = results.collect(out)
    names = [d.name if isinstance(d, Dataset) else d for d in datasets]
    wanted = frame["dataset"].isin(names) & frame["model"].isin(models) & frame["seed"].isin(seeds)
    return frame[wanted & (frame["protocol"] == protocol.label)].reset_index(drop=True)


def compute(
    datasets: Sequence[str | Dataset],
    models: Sequence[str],
    seeds: Sequence[int],
    protocol: Protocol,
    out: Path,
    workers: int | None = None,
    progress: bool = True,
    recompute: bool = False,
    device: str | torch.device = CPU,
) -> None:
    """:func:`run` without gathering the cells: for one of many jobs that write into the same folder."""
    check_models(models)
    device, seeds, workers = choose_device(device), check_seeds(seeds), checked("workers", workers, Count | None)
    loaded = [d if isinstance(d, Dataset) else load_dataset(d, protocol) for d in datasets]
    out = Path(out)
    for dataset, model in product(loaded, models):
        results.check_writable(out, protocol.label, dataset.name, model)
    blocks = plan(loaded, models, seeds, protocol, out, recompute)
    workers = min(workers or (available_cores() if device == CPU else 1), len(blocks))
    failures = []
    if workers <= 1:
        for block in blocks:
            try:
                run_block(block, out, progress, device)
            except (FloatingPointError, MemoryError) as error:
                failures.append(f"{block.name}: {error}")
    else:
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
                    if error is not None:
                        failures.append(f"{futures[future].name}: {error!r}")
                    bar.update(len(futures[future].seeds))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
            finally:
                bar.close()
    if failures:
        raise RuntimeError("some cells could not be computed:\n" + "\n".join(failures))


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
        "argv": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def _commit() -> str | None:
    """Of the program, where it lies in a checkout and git is there to ask."""
    if not (paths.in_checkout() and shutil.which("git")):
        return None
    command = ["git", "-C", str(paths.ROOT), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False).stdout.strip() or None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
