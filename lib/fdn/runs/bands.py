"""What the seeds of a study say together: quantiles over seeds of the curves that figures and pages show.

A results folder may hold ``bands.parquet``, a row per data set, model, kind of curve, region and place ``x``:

- ``mean``, ``sd``, ``target``: predictive mean, root of Var and target over the split feature, of a point of a toy
  task, else averaged over points next to one another;
- ``risk``: mean MSE_i of the most confident points over the share of them that is kept;
- ``bin_var``, ``bin_mse``, ``bin_bias2``: mean Var_i, MSE_i and Bias_i^2 in quantile bins of Var_i, by number;
- ``rho_mse``, ``rho_bias2``: rank correlation of Var_i with MSE_i and with Bias_i^2; ``slope_bias2``: slope b' of
  Bias_i^2 against Var_i; ``share``: the sum of Var_i in units of that of MSE_i; x is 0;
- ``pit``: the histogram of :func:`fdn.metrics.pit` over the lower ends of its bins;
- ``coverage``, ``width``: of central intervals of the draws, over their level;
- ``score``: validation score over the epoch.

``low``, ``middle`` and ``high`` are the 5, 50 and 95 % quantiles over ``seeds`` seeds, ``shown`` is the representative
seed's own value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fdn import metrics
from fdn.data import TOY
from fdn.data.dataset import Dataset
from fdn.protocol import PUBLISHED
from fdn.runs import experiment, results
from fdn.training.loop import Fit

QUANTILES = (0.05, 0.5, 0.95)
LEVELS = (0.5, 0.9, 0.95)  # of intervals
COVERAGES = np.arange(1, 101) / 100  # at which risks are kept
MOST_PLACES = 40  # along the split feature of a table
EVERY = 5  # point of a toy task's test grid is kept
DIGITS = 6  # that are kept
COLUMNS = ("dataset", "model", "kind", "region", "x", "low", "middle", "high", "shown", "seeds")
FILE = "bands.parquet"

Curve = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]  # (kind, region) to x and the values there


def load(folder: Path) -> pd.DataFrame | None:
    """The bands of a results folder, None if it has none."""
    path = Path(folder) / FILE
    return pd.read_parquet(path) if path.exists() else None


def of(folder: Path, dataset: str, protocol: str) -> pd.DataFrame | None:
    """The bands of one data set; None for another protocol than the published one, of which alone they are."""
    bands = load(folder) if protocol == PUBLISHED.label else None
    bands = None if bands is None else bands[bands["dataset"] == dataset]
    return None if bands is None or bands.empty else bands


def write(folder: Path, bands: pd.DataFrame) -> Path:
    """Write the bands to a results folder; the rows of other data sets and models that it has stay."""
    old, key = load(folder), ["dataset", "model"]
    if old is not None:
        new = pd.MultiIndex.from_frame(bands[key])
        bands = pd.concat([old[~pd.MultiIndex.from_frame(old[key]).isin(new)], bands])
    bands = bands.sort_values(["dataset", "model"], kind="stable").reset_index(drop=True)
    return results.write(Path(folder) / FILE, bands.to_parquet(index=False))


def compute(
    out: Path, dataset: Dataset, models: Sequence[str], seeds: Sequence[int], representative: int
) -> pd.DataFrame:
    """The bands of a data set, of the models and seeds whose fits a results folder keeps.

    ``shown`` is NaN where the representative seed is not among them.
    """
    frames = []
    for model in models:
        if fits := experiment.kept_fits(out, dataset, model, PUBLISHED, seeds):
            frames.append(over_seeds(dict(curves(fits, dataset)), representative).assign(model=model))
    return pd.concat(frames).assign(dataset=dataset.name)[list(COLUMNS)] if frames else pd.DataFrame(columns=COLUMNS)


def curves(fits: Fit, dataset: Dataset) -> Iterator[tuple[int, Curve]]:
    """Each seed, and every curve of its run."""
    for seed, scores in zip(fits.seeds, fits.scores, strict=True):
        draws = fits.predict(seed, dataset.x_test).draws.double().numpy()  # (K, N)
        found = curves_of_draws(draws, dataset, fits.protocol.variance_offset)
        yield seed, found | {("score", ""): (np.arange(1, len(scores) + 1), scores)}


def curves_of_draws(draws: np.ndarray, dataset: Dataset, variance_offset: float = 0.0) -> Curve:
    """Every curve of one run's draws (K, N) at the test points."""
    y, levels, edges = dataset.y_test, np.array(LEVELS), np.arange(10) / 10
    points = metrics.pointwise(draws, y, variance_offset) | {"bias2": metrics.sqerr_mean(draws, y)}
    var, mse, bias2 = points["var"], points["mse"], points["bias2"]
    pit = metrics.pit(draws, y, bins=len(edges))  # (N, bins)
    ends = [metrics.interval(draws, y, level) for level in LEVELS]
    covered = np.stack([(low <= y) & (y <= high) for low, high in ends])  # (levels, N)
    width = np.stack([high - low for low, high in ends])
    found: Curve = _along(dataset, {"mean": points["mean"], "sd": np.sqrt(var), "target": y})
    found["risk", ""] = COVERAGES, np.interp(COVERAGES, *metrics.risk_coverage(var, mse))
    for region, chosen in (("all", slice(None)), ("ID", dataset.id_test), ("OOD", ~dataset.id_test)):
        v, m, b = var[chosen], mse[chosen], bias2[chosen]
        found |= {("bin_" + name, region): bins for name, bins in _bins(v, {"var": v, "mse": m, "bias2": b}).items()}
        numbers = {
            "rho_mse": metrics.spearman(v, m), "rho_bias2": metrics.spearman(v, b),
            "slope_bias2": metrics.linear_fit(v, b)[1], "share": v.sum() / m.sum(),
        }  # fmt: skip
        found |= {(name, region): (np.zeros(1), np.array([number])) for name, number in numbers.items()}
        found["pit", region] = edges, pit[chosen].mean(axis=0)
        found["coverage", region] = levels, covered[:, chosen].mean(axis=1)
        found["width", region] = levels, width[:, chosen].mean(axis=1)
    return found


def _along(dataset: Dataset, values: dict[str, np.ndarray]) -> Curve:
    """Values along the split feature: of every few points of a toy task, else averaged over points of equal number."""
    z = dataset.x_test[:, dataset.split_feature]
    order = np.argsort(z, kind="stable")
    if dataset.name in TOY:
        kept = order[::EVERY]
        return {(name, ""): (z[kept], value[kept]) for name, value in values.items()}
    distinct = np.unique(z)
    groups = np.array_split(distinct, min(len(distinct), MOST_PLACES))
    which = np.searchsorted([group[-1] for group in groups], z)  # (N,)
    mean = lambda value: np.bincount(which, weights=value) / np.bincount(which)
    return {(name, ""): (mean(z), mean(value)) for name, value in values.items()}


def _bins(var: np.ndarray, values: dict[str, np.ndarray], bins: int = 10) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Means in quantile bins of the variance, numbered from 1; NaN where ties or few points leave fewer bins."""
    found = {}
    for name, value in values.items():
        means = metrics.calibration_curve(var, value, bins)[1]
        found[name] = np.arange(1, bins + 1), means if len(means) == bins else np.full(bins, np.nan)
    return found


def over_seeds(found: dict[int, Curve], representative: int) -> pd.DataFrame:
    """Quantiles over seeds of each curve, and the representative seed's own: a row per kind, region and x."""
    first, frames = next(iter(found.values())), []
    for (kind, region), (x, _) in first.items():
        values = np.stack([curve[kind, region][1] for curve in found.values()])  # (seeds, len(x))
        finite = pd.DataFrame(np.where(np.isfinite(values), values, np.nan))
        low, middle, high = finite.quantile(QUANTILES).to_numpy()
        shown = found[representative][kind, region][1] if representative in found else [np.nan] * len(x)
        numbers = {"low": low, "middle": middle, "high": high, "shown": shown}
        frame = pd.DataFrame({"x": x} | {name: rounded(value, DIGITS) for name, value in numbers.items()})
        frames.append(frame.assign(kind=kind, region=region, seeds=len(found)))
    return pd.concat(frames, ignore_index=True)


def rounded(values: Iterable[float], digits: int) -> list[float]:
    """Values of so many digits."""
    return [float(f"{value:.{digits}g}") for value in values]
