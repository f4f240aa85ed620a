"""How long predictions and training steps take, as ratios: the evidence for the paper's sentences on cost.

Everything is timed on one thread, and what is compared is timed in turn, many times; a ratio is one of medians.
Nothing is timed before its output has the right shape and is finite.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from fdn import paths
from fdn.data.dataset import Dataset
from fdn.devices import CPU, clock, undisturbed
from fdn.errors import UserError
from fdn.models import PAPER_MODELS, ModelSpec, count_parameters, model_spec
from fdn.protocol import PUBLISHED, Protocol
from fdn.runs import experiment, results
from fdn.timing.clocks import exponent
from fdn.training.loop import Fit, fit

COLUMNS = ("quantity", "model", "size", "ratio")
TIMED = replace(PUBLISHED, epochs=1, eval_draws=2)  # one epoch; validation is not what is timed
ENSEMBLE = "DeepEnsembleNet"
SINGLE = ("MLPNet", "HyperNet", *(name for name in PAPER_MODELS if name != ENSEMBLE))  # of which the paper speaks
BASE_MLP = "MLPNet of the FDN's width"


@undisturbed()
def measure(quick: bool = False) -> pd.DataFrame:
    """Ratios of times: columns quantity, model, size, ratio.

    - ``prediction``: K = size draws at the 2001 test points of step, in units of MLPNet's one pass; an ensemble's size
      is its number of members M.
    - ``prediction exponent``: slope of log time against log K (or log M) over all sizes.
    - ``step``: a training step (batch 64, K = 1, step task) in units of MLPNet's.
    - ``width``: a training step with two hidden layers of ``size`` units, in units of the smallest size; ``width
      exponent`` over the largest three sizes, and ``parameter exponent`` of the parameter count over the same.
    - ``examples``: an epoch on ``size`` training points, in units of the smallest size; ``examples exponent``.

    "MLPNet of the FDN's width" has the 24 hidden units of LP-FDNet instead of the same number of parameters.

    Args:
        quick: fewer repeats and sizes.
    """
    step = experiment.load_dataset("step", TIMED)
    rows = [*_predictions(step, quick), *_steps(step, quick), *_widths(step, quick), *_examples(step, quick)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write(frame: pd.DataFrame, folder: Path | None = None) -> list[Path]:
    """Write ``latency.csv`` and the environment it was measured in, ``latency.json``; return their paths."""
    folder = paths.CLAIMS if folder is None else folder
    table = results.write(folder / "latency.csv", frame.to_csv(index=False, float_format="%.4g"))
    return [table, results.write_json(folder / "latency.json", experiment.environment())]


def load(folder: Path | None = None) -> pd.DataFrame | None:
    """The committed measurements, or None if there are none.

    Raises:
        UserError: if the file has other columns.
    """
    path = (paths.CLAIMS if folder is None else folder) / "latency.csv"
    if not path.exists():
        return None
    frame = pd.read_csv(path)
    if list(frame.columns) != list(COLUMNS):
        raise UserError(
            f"{path} has columns {list(frame.columns)}, expected {', '.join(COLUMNS)}; run `fdn latency` again"
        )
    return frame


def interleaved(timed: Mapping[Hashable, Callable[[], float]], repeats: int) -> dict[Hashable, float]:
    """Median seconds of each of the callables, which time themselves, called in turn; a first round does not count."""
    rounds = [{name: call() for name, call in timed.items()} for _ in range(repeats + 1)]
    return {name: float(np.median([one[name] for one in rounds[1:]])) for name in timed}


def _fit(spec: ModelSpec, dataset: Dataset, protocol: Protocol = TIMED) -> Fit:
    trained = fit(spec, dataset, protocol, (0,))
    if not (torch.isfinite(trained.flat).all() and np.isfinite(trained.scores).all()):
        raise FloatingPointError(f"{spec.name} did not train to finite numbers; its time would mean nothing")
    return trained


def _training(spec: ModelSpec, dataset: Dataset) -> Callable[[], float]:
    """One epoch, in seconds of its training part."""
    return lambda: _fit(spec, dataset).seconds["training"]


def _prediction(trained: Fit, x: np.ndarray, draws: int, expected: int) -> Callable[[], float]:
    """A prediction with ``draws`` draws, which must give ``expected``: an ensemble's are its members."""

    def timed() -> float:
        start = clock(CPU)
        sampled = trained.predict(0, x, draws).draws
        seconds = clock(CPU) - start
        if sampled.shape != (expected, len(x)) or not torch.isfinite(sampled).all():
            raise FloatingPointError(
                f"{trained.spec.name}: {tuple(sampled.shape)} draws or not finite; expected {(expected, len(x))}"
            )
        return seconds

    return timed


def _specs() -> dict[str, ModelSpec]:
    """The models that are no ensemble, and the deterministic base network of an FDN."""
    specs = {name: model_spec(name, 1, TIMED) for name in SINGLE}
    return specs | {BASE_MLP: ModelSpec("MLPNet", specs["LP-FDNet"].hidden)}


def _predictions(dataset: Dataset, quick: bool) -> list[tuple]:
    draws, members = ((1, 10, 100), (2, 10)) if quick else ((1, 3, 10, 30, 100, 300), (1, 2, 5, 10, 20))
    timed = {}
    for name, spec in _specs().items():
        trained = _fit(spec, dataset)
        for k in draws if trained.stack.network.stochastic else (1,):
            timed[name, k] = _prediction(trained, dataset.x_test, k, k)
    for m in members:
        # an epoch is split among the members: one of each
        protocol = replace(TIMED, ensemble_members=m, epochs=m)
        timed[ENSEMBLE, m] = _prediction(
            _fit(model_spec(ENSEMBLE, 1, protocol), dataset, protocol), dataset.x_test, 1, m
        )
    seconds = interleaved(timed, 3 if quick else 15)
    return [
        *(("prediction", name, size, value / seconds["MLPNet", 1]) for (name, size), value in seconds.items()),
        *_exponents("prediction exponent", seconds),
    ]


def _exponents(quantity: str, seconds: Mapping[tuple[str, int], float]) -> list[tuple]:
    rows = []
    for name in dict.fromkeys(name for name, _ in seconds):
        sizes = [size for model, size in seconds if model == name]
        if len(sizes) > 1:
            rows.append((quantity, name, np.nan, exponent(sizes, [seconds[name, size] for size in sizes])))
    return rows


def _steps(dataset: Dataset, quick: bool) -> list[tuple]:
    timed = {name: _training(spec, dataset) for name, spec in _specs().items()}
    seconds = interleaved(timed, 3 if quick else 15)
    return [("step", name, np.nan, value / seconds["MLPNet"]) for name, value in seconds.items()]


def _widths(dataset: Dataset, quick: bool) -> list[tuple]:
    widths = (16, 32, 64) if quick else (16, 32, 64, 128, 256)
    specs = {(name, d): replace(model_spec(name, 1, TIMED), hidden=(d, d)) for name in SINGLE for d in widths}
    seconds = interleaved({key: _training(spec, dataset) for key, spec in specs.items()}, 1 if quick else 5)
    counts = {key: count_parameters(spec, 1, TIMED) for key, spec in specs.items()}
    largest = [key for key in specs if key[1] in widths[-3:]]
    return [
        *(("width", name, d, seconds[name, d] / seconds[name, widths[0]]) for name, d in specs),
        *_exponents("width exponent", {key: seconds[key] for key in largest}),
        *_exponents("parameter exponent", {key: counts[key] for key in largest}),
    ]


def _examples(dataset: Dataset, quick: bool) -> list[tuple]:
    sizes = (256, 1024) if quick else (1024, 4096, 16384)
    timed = {}
    for n in sizes:
        rows = np.resize(np.arange(len(dataset.x_train)), n)
        many = replace(dataset, x_train=dataset.x_train[rows], y_train=dataset.y_train[rows])
        timed |= {(name, n): _training(model_spec(name, 1, TIMED), many) for name in SINGLE}
    seconds = interleaved(timed, 1 if quick else 3)
    return [
        *(("examples", name, n, value / seconds[name, sizes[0]]) for (name, n), value in seconds.items()),
        *_exponents("examples exponent", seconds),
    ]
