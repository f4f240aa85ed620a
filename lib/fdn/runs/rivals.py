"""What predicts a table's target, measured alike: FDN as recommended, and what people use; the rows of ``data/rivals``.

Notebook 11 has the methods that people use, notebook 10 the steps and settings of FDN.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.special import ndtri

from fdn import metrics, paths
from fdn.data.dataset import Dataset
from fdn.devices import undisturbed
from fdn.models import ModelSpec, model_spec
from fdn.protocol import RECOMMENDED, Protocol
from fdn.runs import results
from fdn.streams import seed_sequence
from fdn.training import recipe
from fdn.training.loop import fit

FDN = "FDN, recommended"
METHODS = ("GP", "10 MLPs", "quantile boosting", "random forest", "MC dropout", "Laplace", "NGBoost", "MLP + MAPIE")
FILE, KEY = "results.csv", ["dataset", "method", "seed", "region"]  # of the table, and of a row in it
LEVELS = np.arange(1, 100) / 100  # of the predicted quantiles
LOW, MEDIAN, HIGH = 4, 49, 94  # places among them of 5, 50 and 95 %


class Prediction(NamedTuple):
    """Of N rows: quantiles at ``LEVELS`` (99, N), mean (N,) and, if there is a density, its logarithm at targets."""

    quantiles: np.ndarray
    mean: np.ndarray
    log_density: Callable[[np.ndarray], np.ndarray] | None = None


Predict = Callable[[np.ndarray], Prediction]  # of inputs (N, d)
Fits = Callable[[Dataset, int], Iterable[tuple[str, Predict, object]]]  # trains with a seed; last comes what was chosen


def pinball(level: np.ndarray | float, error: np.ndarray) -> np.ndarray:
    """Loss of a quantile that is too low by ``error``."""
    return np.maximum(level * error, (level - 1) * error)


def crps(quantiles: np.ndarray, y: np.ndarray) -> np.ndarray:
    """CRPS at each of N targets from quantiles (99, N): twice the integral of the pinball loss over levels.

    By the trapezoidal rule, with the first and last quantiles as the ends of the distribution.
    """
    levels = np.concatenate([[0], LEVELS, [1]])[:, None]
    error = y - np.concatenate([quantiles[:1], quantiles, quantiles[-1:]])  # (101, N)
    return 2 * np.trapezoid(pinball(levels, error), levels, axis=0)


def measured(dataset: Dataset, prediction: Prediction) -> pd.DataFrame:
    """A row of metrics for each region of the test rows, in units of the standardised target; RMSE is of the mean."""
    quantiles, mean, log_density = prediction
    y, low, high = dataset.y_test, quantiles[LOW], quantiles[HIGH]
    points = {
        "rmse": np.square(mean - y), "crps": crps(quantiles, y), "nll": -log_density(y) if log_density else np.nan,
        "coverage_90": (low <= y) & (y <= high), "width_90": high - low,
    }  # fmt: skip
    found = pd.DataFrame(points).groupby(np.where(dataset.id_test, "id", "ood")).mean()
    return found.assign(rmse=found["rmse"] ** 0.5).rename_axis("region").reset_index()


def _recorded(dataset: Dataset, method: str, seed: int, predict: Predict, fit_s: float, chosen: object) -> pd.DataFrame:
    """What is recorded of a fit; seconds are of processor time."""
    start = time.process_time()
    prediction = predict(dataset.x_test)
    predict_s = time.process_time() - start
    key = {"dataset": dataset.name, "method": method, "seed": seed}
    found = measured(dataset, prediction).assign(**key, fit_s=fit_s, predict_s=predict_s, chosen=chosen)
    return found.set_index(KEY).reset_index()  # the key first


def gaussian(mean: np.ndarray, std: np.ndarray) -> Prediction:
    """Of N(mean, std^2), both (N,)."""
    return Prediction(
        mean + std * ndtri(LEVELS)[:, None], mean,
        lambda y: -0.5 * np.square((y - mean) / std) - np.log(std) - 0.5 * np.log(2 * np.pi),
    )  # fmt: skip


def mixture(f: np.ndarray, variance: float | np.ndarray) -> Prediction:
    """Of the mixture of N(f_k, variance_k), f and the variance (K, N), or one variance for all.

    Its quantiles are those of 2,000 equally likely points, evenly spread in each normal distribution and, by multiples
    of the golden ratio, in all of them together.
    """
    each = -(-2000 // len(f))
    within = (np.arange(len(f)) * (5**0.5 - 1) / 2 + 0.5) % 1  # (K,)
    z = ndtri((np.arange(each) + np.clip(within, 1e-3, 1 - 1e-3)[:, None]) / each)  # (K, each)
    std = np.sqrt(np.broadcast_to(variance, f.shape))
    points = (f[:, None] + std[:, None] * z[..., None]).reshape(-1, f.shape[1])
    return Prediction(np.quantile(points, LEVELS, axis=0), f.mean(0), lambda y: -metrics.nll(f, y, variance))


@undisturbed()
def rows_of(dataset: Dataset, method: str, seed: int, fits: Fits) -> pd.DataFrame:
    """What is recorded of a method of notebook 11, trained with a random stream of its own."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(int(seed_sequence(dataset.name, method, seed, "train").generate_state(1)[0]))
        warnings.simplefilter("ignore")  # of optimisers that stop at their last iteration
        start = time.process_time()
        found = list(fits(dataset, seed))
        fit_s = time.process_time() - start
        return pd.concat([_recorded(dataset, name, seed, predict, fit_s, chosen) for name, predict, chosen in found])


def fdn_rows(
    dataset: Dataset, name: str, seeds: Sequence[int], protocol: Protocol = RECOMMENDED, spec: ModelSpec | None = None
) -> pd.DataFrame:
    """Rows of every seed, trained as one stack; LP-FDNet unless another model is given.

    The time to fit is the stack's divided by its seeds, with the choice of beta, which all share, counted in full.
    """
    start = time.process_time()
    spec = spec or model_spec("LP-FDNet", dataset.n_features, protocol)
    if protocol.beta_max == "auto":
        protocol = recipe.chosen(spec, dataset, protocol)
    chosen = time.process_time()
    fitted = fit(spec, dataset, protocol, seeds)
    fit_s = chosen - start + (time.process_time() - chosen) / len(seeds)

    def predict(x: np.ndarray, seed: int) -> Prediction:
        found = fitted.predict(seed, x)
        return mixture(found.draws.double().numpy(), found.observation_variance.double().numpy())

    beta = f"beta {protocol.beta_max:g}"
    return pd.concat([_recorded(dataset, name, seed, partial(predict, seed=seed), fit_s, beta) for seed in seeds])


def load(folder: Path = paths.RIVALS) -> pd.DataFrame:
    """The rows computed so far, by default those committed."""
    path = folder / FILE
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=KEY)


def record(new: pd.DataFrame, folder: Path) -> None:
    """Add rows to the table; they replace any of the same data set, method, seed and region."""
    there = load(folder)
    both = (pd.concat([there, new]) if len(there) else new).drop_duplicates(KEY, keep="last")
    results.write(folder / FILE, both.to_csv(index=False, float_format="%.6g"))


def complete(
    dataset: Dataset, method: str, seeds: Iterable[int], compute: Callable[[list[int]], pd.DataFrame], folder: Path
) -> None:
    """Record the rows of the seeds that the table lacks."""
    there = load(folder)
    done = set(there.loc[there["dataset"].eq(dataset.name) & there["method"].eq(method), "seed"])
    if missing := [seed for seed in seeds if seed not in done]:
        print(dataset.name, method, *missing, flush=True)
        record(compute(missing), folder)
