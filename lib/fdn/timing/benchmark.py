"""Where the study's processor time goes, against the plain program of :mod:`fdn.timing.plain`; its growth; its memory.

Both programs run the same cells in one process on one thread, in turns. On a GPU only this program runs, and its wall
time counts; the plain program stays on the CPU. Nothing is timed before both have given the
same numbers. What is measured is a sample: few epochs of one block of seeds, and of one seed for the plain program;
the whole study is that sample times epochs and seeds.
"""

from __future__ import annotations

import math
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import torch
from torch.nn.utils import vector_to_parameters
from tqdm import tqdm

from fdn.arguments import parse_seeds
from fdn.data.dataset import Dataset
from fdn.devices import CPU, clock, device_name, undisturbed
from fdn.models import FDN_MODELS, ModelSpec, count_parameters, model_spec
from fdn.models.posteriors import FDNLinear
from fdn.protocol import PUBLISHED, STUDY_SEEDS, Protocol
from fdn.runs import experiment, results
from fdn.runs.experiment import Block
from fdn.timing.clocks import exponent, processor_clock
from fdn.timing.plain import plain_fit
from fdn.training.loop import fit
from fdn.training.prediction import Prediction
from fdn.typesetting import Table

PHASES = ("training", "validation", "selection", "test", "overhead")
SIZES = {"seeds": (1, 5, 20, 100), "draws": (10, 100, 1000), "examples": (256, 1024, 4096), "width": (1, 2, 4)}
QUICK_SIZES = {"seeds": (1, 20), "draws": (10, 100), "examples": (256, 1024), "width": (1, 2)}
EPOCHS = {"cpu": 5, "cuda": 50}  # of the sample; a GPU records its graphs in the first ones
CHECKED_EPOCHS = 5  # at most: rounding grows with every step
GROWTH_SEEDS = 5  # where something else than seeds grows
MEMORY_LIMIT = 4.0  # GB
MEMORY_CASES = ((20, 50), (1000, 50), (1, 100_000))  # seeds, test points
QUICK_MEMORY_CASES = ((20, 50), (1, 100_000))


def check(
    spec: ModelSpec, dataset: Dataset, protocol: Protocol, seeds: Sequence[int], device: torch.device = CPU
) -> None:
    """Raise AssertionError unless the stacked and the plain program give the same numbers, to 1e-6.

    Compared are the validation score of every epoch and the kept parameters. Where a prediction draws dropout masks,
    each program its own, scores agree to a few percent and the predictions' mean and variance as far as K draws tell.
    """
    stacked = fit(spec, dataset, protocol, seeds, device=device)
    own_masks = spec.name == "MLPDropoutNet"
    for r, seed in enumerate(seeds):
        plain = plain_fit(spec, dataset, protocol, seed, program_noise=True)
        kept = plain.history[stacked.best_epoch[r] - 1]  # (M, n)
        torch.testing.assert_close(stacked.flat[r].cpu().reshape(kept.shape), kept, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(stacked.scores[r], plain.scores, rtol=0.1 if own_masks else 1e-6)
        if own_masks:
            vector_to_parameters(kept[0], plain.networks[0].parameters())
            x = dataset.x_test[dataset.id_test]
            _same_moments(stacked.predict(seed, x).draws, plain.predict(x))


def _same_moments(first: torch.Tensor, second: torch.Tensor) -> None:
    """Draws (K, N) of two programs, independent over N: means apart by standard errors, variances by a few percent."""
    variances = [draws.var(0) for draws in (first, second)]  # (N,)
    squared_error = sum(v / len(draws) for v, draws in zip(variances, (first, second)))
    distance = ((first.mean(0) - second.mean(0)).square() / squared_error).mean().item()
    ratio = (variances[0].sum() / variances[1].sum()).item()
    spread = math.sqrt(1 / len(first) + 1 / len(second)) / math.sqrt(first.shape[1])  # of the ratio, a little less
    if not (0.5 < distance < 1.5 and abs(ratio - 1) < 0.03 + 10 * spread):
        raise AssertionError(
            f"two programs' draws differ: squared distance of their means {distance:.3g} squared standard errors, "
            f"expected about 1; ratio of their variances {ratio:.3g}"
        )


def _processor_time(wall: dict[str, float], wall_total: float, total: float) -> dict[str, float]:
    """Phases that a program measured as wall time, as shares of its processor time; overhead is the rest."""
    phases = {phase: wall.get(phase, 0.0) * total / wall_total for phase in PHASES[:-1]}
    return {**phases, "overhead": total - sum(phases.values())}


def _program(block: Block, out: Path, device: torch.device) -> dict[str, float]:
    start = processor_clock(device)
    experiment.run_block(block, out, device=device)
    total = processor_clock(device) - start
    [sidecar] = results.read_sidecars(out)
    return _processor_time(sidecar["seconds"], sidecar["seconds"]["total"], total)


def _plain(block: Block, out: Path) -> dict[str, float]:
    dataset, protocol, [seed] = block.dataset, block.protocol, block.seeds
    spec = model_spec(block.model, dataset.n_features, protocol)
    n_params = count_parameters(spec, dataset.n_features, protocol)
    start = processor_clock()
    trained = plain_fit(spec, dataset, protocol, seed)
    fitted = processor_clock()
    draws = trained.predict(dataset.x_test)
    prediction = Prediction(draws, torch.full_like(draws, protocol.observation_variance))
    experiment.write_prediction(block, seed, trained.best_epoch, n_params, prediction, out)
    test = processor_clock() - fitted
    return {**trained.seconds, "test": test, "overhead": fitted - start - sum(trained.seconds.values())}


@undisturbed()
def study(
    datasets: Sequence[str],
    models: Sequence[str],
    protocol: Protocol,
    epochs: int,
    repeats: int,
    device: torch.device = CPU,
) -> pd.DataFrame:
    """Seconds (see the module) of every phase of the study, of both programs, a row per data set, model and phase.

    Columns: ``dataset``, ``model``, ``phase``; ``seeds`` and ``epochs`` of the study; ``block`` (seeds) and ``sample``
    (epochs) as run; ``program_sample`` for that block and ``plain_sample`` for one seed, medians over repeats;
    ``program`` and ``plain`` for the whole study; ``ratio``, plain / program. Training, validation and selection grow
    with epochs and seeds, test and overhead with seeds. Start-up and data come once a process and once a data set.

    Raises:
        AssertionError: if the programs disagree, see :func:`check`.
    """
    rows, loaded = [], {}
    processes = experiment.available_cores() if device == CPU else 1
    rows.append(_once("all", "start-up", _start_up(device), 1 if processes == 1 else processes + 1))
    for name in datasets:
        start = processor_clock()
        loaded[name] = experiment.load_dataset(name, protocol)
        rows.append(_once(name, "data", processor_clock() - start, 1))
    pairs = [(dataset, model) for dataset in loaded.values() for model in models]
    for dataset, model in tqdm(pairs, unit="model", disable=None, leave=False):
        spec = model_spec(model, dataset.n_features, protocol)
        sample = replace(protocol, epochs=epochs * spec.members)
        seeds, full = parse_seeds(STUDY_SEEDS[dataset.name]), protocol.epochs // spec.members
        times: dict[str, list[dict[str, float]]] = {"program": [], "plain": []}
        with tempfile.TemporaryDirectory() as folder:
            blocks = experiment.plan([dataset], [model], seeds, sample, Path(folder))
            block = max(blocks, key=lambda one: len(one.seeds))
            check(spec, dataset, _at_most_checked(sample, spec.members), block.seeds[:1], device)
            for i in range(repeats):
                times["program"].append(_program(block, Path(folder, f"program{i}"), device))
                times["plain"].append(_plain(replace(block, seeds=block.seeds[:1]), Path(folder, f"plain{i}")))
        for phase in PHASES:
            program, plain = (float(np.median([t[phase] for t in times[kind]])) for kind in ("program", "plain"))
            growing = full / epochs if phase in PHASES[:3] else 1.0
            rows.append({
                "dataset": dataset.name, "model": model, "phase": phase, "seeds": len(seeds), "epochs": full,
                "block": len(block.seeds), "sample": epochs, "program_sample": program, "plain_sample": plain,
                "program": program * growing * len(seeds) / len(block.seeds), "plain": plain * growing * len(seeds),
            })  # fmt: skip
    frame = pd.DataFrame(rows).astype(dict.fromkeys(("seeds", "epochs", "block", "sample"), "Int64"))
    return frame.assign(ratio=frame["plain"] / frame["program"])


def _at_most_checked(protocol: Protocol, members: int = 1) -> Protocol:
    return replace(protocol, epochs=min(protocol.epochs, CHECKED_EPOCHS * members))


def _once(dataset: str, phase: str, seconds: float, processes: int) -> dict[str, object]:
    row = {"dataset": dataset, "model": "all", "phase": phase, "program_sample": seconds, "plain_sample": seconds}
    return {**row, "program": seconds * processes, "plain": seconds}


def _start_up(device: torch.device) -> float:
    """Seconds of a fresh process that trains for a moment: until everything is loaded."""
    import resource  # not on Windows

    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), clock(CPU)
    moment = f"from fdn.timing import benchmark; benchmark.train_for_a_moment({device.type!r})"
    subprocess.run([sys.executable, "-c", moment], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if device != CPU:
        return clock(CPU) - start
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def train_for_a_moment(device: str) -> None:
    """One epoch of one seed; torch loads parts of itself with the first optimiser."""
    protocol = replace(PUBLISHED, epochs=1)
    fit(model_spec("LP-FDNet", 1, protocol), experiment.load_dataset("step", protocol), protocol, [0], device=device)


def resized(
    dataset: Dataset, train: int | None = None, validation: int | None = None, test: int | None = None
) -> Dataset:
    """The data set with other numbers of points, its own cut or repeated; validation points are those that count."""
    changes: dict[str, np.ndarray] = {}
    kept = {"train": slice(None), "val": dataset.id_val, "test": slice(None)}
    for part, n in (("train", train), ("val", validation), ("test", test)):
        if n is not None:
            names = [f"{kind}_{part}" for kind in ("x", "y", "id") if hasattr(dataset, f"{kind}_{part}")]
            arrays = {name: getattr(dataset, name)[kept[part]] for name in names}
            changes |= {name: np.resize(array, (n, *array.shape[1:])) for name, array in arrays.items()}
    return replace(dataset, **changes)


@undisturbed()
def growth(
    models: Sequence[str],
    dataset: Dataset,
    protocol: Protocol,
    epochs: int,
    repeats: int,
    sizes: dict[str, Sequence[int]],
    device: torch.device = CPU,
) -> pd.DataFrame:
    """Seconds of training with validation against seeds, draws, examples and width.

    Seeds run in the program's blocks; elsewhere 5 seeds. ``examples`` are training points, and a quarter as many for
    validation; ``width`` multiplies the hidden layer's. An ensemble's draws are its members and do not grow.
    Columns: ``dataset``, ``model``, ``axis``, ``size``, a column for each phase, and ``total``.
    """
    cases = [
        (model, axis, size) for model in models for axis in sizes for size in sizes[axis]
        if not (axis == "draws" and model == "DeepEnsembleNet")
    ]  # fmt: skip
    rows = []
    for model, axis, size in tqdm(cases, unit="size", disable=None, leave=False):
        spec = model_spec(model, dataset.n_features, protocol)
        if axis == "width":
            spec = replace(spec, hidden=tuple(size * width for width in spec.hidden))
        sample = replace(protocol, epochs=epochs * spec.members, **({"eval_draws": size} if axis == "draws" else {}))
        data = resized(dataset, size, size // 4) if axis == "examples" else dataset
        seeds = range(size if axis == "seeds" else GROWTH_SEEDS)
        with tempfile.TemporaryDirectory() as folder:
            blocks = experiment.plan([data], [model], seeds, sample, Path(folder))
        fit(spec, data, replace(sample, epochs=spec.members), blocks[0].seeds, device=device)  # warm up
        times = pd.DataFrame([_fits(spec, blocks, device) for _ in range(repeats)]).median()
        rows.append({"dataset": data.name, "model": model, "axis": axis, "size": size, **times, "total": times.sum()})
    return pd.DataFrame(rows).drop(columns="test")


def _fits(spec: ModelSpec, blocks: Sequence[Block], device: torch.device) -> pd.Series:
    """Seconds of the phases of training all blocks."""
    total = pd.Series(0.0, PHASES)
    for block in blocks:
        start = clock(device), processor_clock(device)
        trained = fit(spec, block.dataset, block.protocol, block.seeds, device=device)
        wall, used = clock(device) - start[0], processor_clock(device) - start[1]
        total += pd.Series(_processor_time(trained.seconds, wall, used))
    return total


def op_backends(
    models: Sequence[str], dataset: Dataset, protocol: Protocol, epochs: int, repeats: int, device: torch.device = CPU
) -> pd.DataFrame:
    """Stacked training of models with FDN layers, with the op's definition in place of its fast path.

    Columns: ``dataset``, ``model``, ``phase``, ``fast`` and ``reference`` in seconds, ``ratio``.

    Raises:
        AssertionError: if the two disagree by more than 1e-6 in a parameter.
    """
    rows = []
    sample = replace(protocol, epochs=epochs)
    for model in [model for model in models if model in FDN_MODELS]:
        spec = model_spec(model, dataset.n_features, protocol)
        block = Block(dataset, model, sample, tuple(range(GROWTH_SEEDS)))
        kept, times = {}, {"fast": [], "reference": []}
        for backend, name in (("auto", "fast"), ("reference", "reference")) * repeats:
            with mock.patch.object(FDNLinear, "backend", backend):
                if name not in kept:
                    kept[name] = fit(spec, dataset, _at_most_checked(sample), block.seeds, device=device).flat
                times[name].append(_fits(spec, [block], device))
        torch.testing.assert_close(kept["fast"], kept["reference"], rtol=1e-6, atol=1e-8)
        medians = {name: pd.DataFrame(of).median() for name, of in times.items()}
        rows += [
            {"dataset": dataset.name, "model": model, "phase": phase, **{name: t[phase] for name, t in medians.items()}}
            for phase in ("training", "validation")
        ]
    frame = pd.DataFrame(rows, columns=["dataset", "model", "phase", "fast", "reference"])
    return frame.assign(ratio=frame["reference"] / frame["fast"])


Run = tuple[Dataset, str, Protocol, int, torch.device]  # data, model, protocol, number of seeds, device


def peak_memory(runs: Sequence[Run]) -> list[float]:
    """The most memory, in GB, that each run's process has held, from its start-up on.

    On a GPU: what PyTorch has reserved of the GPU's memory.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_peak, runs))


def _peak(run: Run) -> float:
    dataset, model, protocol, seeds, device = run
    with tempfile.TemporaryDirectory() as folder:
        options = {"workers": 1, "progress": False, "device": device}
        experiment.run([dataset], [model], range(seeds), protocol, Path(folder), **options)
    if device != CPU:
        return torch.cuda.max_memory_reserved(device) / 1e9
    status = Path("/proc/self/status")
    if status.exists():  # rusage would count the parent's memory at the fork as well
        [line] = [line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024 / 1e9
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)


def memory(
    models: Sequence[str],
    dataset: Dataset,
    protocol: Protocol,
    cases: Sequence[tuple[int, int]],
    device: torch.device = CPU,
) -> pd.DataFrame:
    """Peak memory of one epoch of two batches with few validation points, for numbers of seeds and of test points.

    Columns: ``dataset``, ``model``, ``seeds``, ``test_points``, ``gigabytes``.
    """
    rows = []
    grid = [(model, *case) for model in models for case in cases]
    for model, seeds, points in tqdm(grid, unit="case", disable=None, leave=False):
        data = resized(dataset, train=protocol.batch_size + 1, validation=50, test=points)
        [gigabytes] = peak_memory([(data, model, replace(protocol, epochs=1), seeds, device)])
        rows.append({
            "dataset": data.name, "model": model, "seeds": seeds, "test_points": points, "gigabytes": gigabytes,
        })  # fmt: skip
    return pd.DataFrame(rows)


def total_ratio(frame: pd.DataFrame) -> float:
    """How many times the study's processor time the plain program takes, from :func:`study`."""
    return float(frame["plain"].sum() / frame["program"].sum())


def _clocks(device: torch.device) -> str:
    if device == CPU:
        return "processor time"
    return f"wall time of this program on the {device_name(device)}, processor time of the plain program on the CPU"


def ratio_table(frame: pd.DataFrame, device: torch.device = CPU) -> Table:
    """Plain / program of the whole study, per data set and model and in total."""
    cells = frame[frame["model"] != "all"]
    datasets, rows = list(cells["dataset"].unique()), []
    for model, of in (*cells.groupby("model", sort=False), ("all", cells)):
        ratios = [total_ratio(of[of["dataset"] == dataset]) for dataset in datasets]
        rows.append((model, *(f"{ratio:.1f}" for ratio in (*ratios, total_ratio(frame if of is cells else of)))))
    return Table(
        "ratios", "Plain program / this program", f"For the whole study; {_clocks(device)}.",
        ("model", *datasets, "all"), tuple(rows), "l" + "r" * (len(datasets) + 1),
        ("The last number counts start-up and loading of data too.",),
    )  # fmt: skip


def phase_table(frame: pd.DataFrame, device: torch.device = CPU) -> Table:
    """Share of each phase, seconds and ratio, per data set and model; what comes once at the end."""
    rows = []
    cells = frame[frame["model"] != "all"].groupby(["dataset", "model"], sort=False)
    for names, of in (*cells, (("all", "all"), frame)):
        seconds = of.groupby("phase")[["program", "plain"]].sum()
        total = seconds.sum()
        shares = (seconds / total).loc[list(PHASES)]
        texts = [f"{share.program:.0%} / {share.plain:.0%}" for share in shares.itertuples()]
        rows.append((*names, *texts, *_amounts(total)))
    for phase, of in frame[frame["model"] == "all"].groupby("phase", sort=False):
        rows.append(("all", phase, *[""] * len(PHASES), *_amounts(of[["program", "plain"]].sum())))
    return Table(
        "phases", "Where the time goes",
        f"Shares of the time, this program / plain program; seconds for the whole study; {_clocks(device)}.",
        ("data set", "model", *PHASES, "program s", "plain s", "ratio"), tuple(rows), "ll" + "r" * (len(PHASES) + 3),
    )  # fmt: skip


def _amounts(seconds: pd.Series) -> tuple[str, ...]:
    program, plain = seconds["program"], seconds["plain"]
    return f"{program:.1f}", f"{plain:.1f}", f"{plain / program:.1f}"


def growth_table(frame: pd.DataFrame, device: torch.device = CPU) -> Table:
    """Times in units of the smallest size's, and the fitted exponent."""
    axes = list(frame["axis"].unique())
    rows = []
    for model, of_model in frame.groupby("model", sort=False):
        row = [model]
        for axis in axes:
            of = of_model[of_model["axis"] == axis]
            ratios = " / ".join(f"{time / of['total'].iloc[0]:.2g}" for time in of["total"])
            row += [ratios, f"{exponent(of['size'], of['total']):.2f}"] if len(of) else ["-", "-"]
        rows.append(tuple(row))
    sizes = {axis: " / ".join(map(str, frame.loc[frame["axis"] == axis, "size"].unique())) for axis in axes}
    columns = [title for axis in axes for title in (f"{axis} {sizes[axis]}", "exponent")]
    caption = f"Time of training with validation in units of the smallest size's, on {frame['dataset'].iloc[0]}."
    return Table("growth", "Growth", caption, ("model", *columns), tuple(rows), "l" + "r" * len(columns))


def memory_table(frame: pd.DataFrame, device: torch.device = CPU) -> Table:
    """Peak memory in GB."""
    whose = "" if device == CPU else "of the GPU's memory, as reserved by PyTorch, "
    cases = frame[["seeds", "test_points"]].drop_duplicates()
    titles = [f"{_times(c.seeds, 'seed')}, {_times(c.test_points, 'test point')}" for c in cases.itertuples()]
    rows = [(model, *(f"{value:.2f}" for value in of["gigabytes"])) for model, of in frame.groupby("model", sort=False)]
    caption = f"In GB, {whose}of a process of its own from start-up to results; the limit is {MEMORY_LIMIT:g}."
    return Table("memory", "Peak memory", caption, ("model", *titles), tuple(rows), "l" + "r" * len(titles))


def op_table(frame: pd.DataFrame, device: torch.device = CPU) -> Table:
    """The op's definition against its fast path in the whole training program."""
    rows = tuple((row.model, row.phase, f"{row.ratio:.1f}") for row in frame.itertuples())
    caption = "Stacked training with the op's definition in place of its fast path: how many times as long it takes."
    return Table("op", "The op", caption, ("model", "phase", "ratio"), rows, "llr")


TABLES = {"phases": (ratio_table, phase_table), "growth": (growth_table,), "memory": (memory_table,), "op": (op_table,)}


def measure(
    datasets: Sequence[str],
    models: Sequence[str],
    protocol: Protocol,
    epochs: int,
    quick: bool,
    device: torch.device = CPU,
) -> dict[str, pd.DataFrame]:
    """Everything: ``phases`` of the study, and ``growth``, ``memory`` and ``op`` on the first data set.

    ``quick`` repeats nothing, and takes fewer sizes and, for memory, the last model only.
    """
    repeats, sizes, cases = (1, QUICK_SIZES, QUICK_MEMORY_CASES) if quick else (3, SIZES, MEMORY_CASES)
    first = experiment.load_dataset(datasets[0], protocol)
    return {
        "phases": study(datasets, models, protocol, epochs, repeats, device),
        "growth": growth(models, first, protocol, epochs, repeats, sizes, device),
        "memory": memory(models[-1:] if quick else models, first, protocol, cases, device),
        "op": op_backends(models, first, protocol, epochs, repeats, device),
    }


def tables(frames: dict[str, pd.DataFrame], device: torch.device = CPU) -> list[Table]:
    """All tables of :func:`measure`'s frames that are not empty."""
    return [make(frames[name], device) for name, makers in TABLES.items() if len(frames[name]) for make in makers]


def ran_on(device: torch.device) -> str:
    """What ran where."""
    if device != CPU:
        return f"{device_name(device)}; the plain program on the CPU"
    if torch.cuda.is_available():
        return f"CPU; the {torch.cuda.get_device_name()} was not used"
    return "CPU; there is no GPU"


def page(frames: dict[str, pd.DataFrame], seconds: float, device: torch.device = CPU) -> str:
    """The page as Markdown, with where the numbers come from."""
    phases, environment = frames["phases"], experiment.environment(device)
    clocks = _clocks(device)
    sample = phases[phases["model"] != "all"]
    epochs = _times(sample["sample"].iloc[0], "epoch")
    start_up = phases.loc[phases["phase"] == "start-up", "program_sample"].item()
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    head = f"""\
# Where the time goes

The study takes **{phases["program"].sum():,.0f} s**, the plain program **{phases["plain"].sum():,.0f} s**: \
{total_ratio(phases):.1f} times as much ({clocks}).

The plain program (`lib/fdn/timing/plain.py`) is the study as one would first write it in PyTorch: one module, one
optimiser and one seed at a time, an ensemble's members one after the other, torch's defaults, the draws of a
prediction in one batch. Before anything was timed, both programs gave the same validation scores and kept
parameters to 1e-6 from the same random numbers; each draws the dropout masks of predictions itself, and
there mean and variance agree.

Measured: {epochs} of one block of seeds and, in turns, of one seed of the plain program; {clocks},
one thread, medians over three repeats (`--quick`: one). For the whole study training, validation (the draws)
and selection (their score and the best epoch) are multiplied by epochs and seeds, test (draws, metrics,
writing) and overhead by seeds.
Start-up of a process takes {start_up:.1f} s; it counts once for each process of `fdn run`, and once for the
plain program.

- command: `{" ".join(environment["argv"])}`, {seconds / 60:.1f} minutes
- device: {ran_on(device)}
- processor: {environment["processor"]}, {environment["cores"]} cores, one thread used
- Python {environment["python"]}, {packages}
- commit: {environment["commit"] or "unknown"}

The numbers behind the tables: {", ".join(f"[{name}.csv]({name}.csv)" for name in frames)}.

"""
    return head + "\n".join(table.to_markdown() for table in tables(frames, device))


def _times(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def write(frames: dict[str, pd.DataFrame], seconds: float, out: Path, device: torch.device = CPU) -> list[Path]:
    """Write the page, ``README.md``, and a CSV file for each frame."""
    csv = {"index": False, "float_format": "%.4g", "lineterminator": "\n"}
    written = [results.write(out / f"{name}.csv", frame.to_csv(**csv)) for name, frame in frames.items()]
    return [results.write(out / "README.md", page(frames, seconds, device)), *written]
