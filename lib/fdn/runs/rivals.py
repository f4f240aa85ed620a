"""What people use for a table where FDN would be used too, measured alike; read from ``data/rivals``.

Each method is a generator function of a data set and a seed, which trains and then yields a name and a function that
predicts. Choices are made on validation rows. Methods that need these for nothing else, or not any more, are then
trained on training and validation rows.
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from scipy.interpolate import interp1d
from scipy.special import ndtri
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fdn import data, metrics, paths
from fdn.data.dataset import Dataset
from fdn.devices import undisturbed
from fdn.runs import adapters, results
from fdn.streams import seed_sequence

LEVELS = np.arange(1, 100) / 100  # of the predicted quantiles
GP_TUNED, GP_ROWS = 1000, 2000  # most rows for the hyperparameters of a Gaussian process, and for its predictions
WIDTH, BATCH, RATE, EPOCHS, PATIENCE = 64, 64, 3e-3, 300, 20  # of all networks, which have two hidden layers
MEMBERS, DRAWS, TREES, ROUNDS = 10, 100, 100, 2000
BOOSTED = np.array([0.01, *np.arange(1, 20) / 20, 0.99])  # levels with a model of their own, linear between
ITERATIONS = (50, 100, 200, 400)  # of boosting
LEAVES = (1, 3, 10)  # least rows in a leaf of a forest
DROPOUT = (0.02, 0.1, 0.2)


class Prediction(NamedTuple):
    """Of N rows: quantiles at ``LEVELS`` (99, N), mean (N,) and, if there is a density, its logarithm at targets."""

    quantiles: np.ndarray
    mean: np.ndarray
    log_density: Callable[[np.ndarray], np.ndarray] | None = None


Predict = Callable[[np.ndarray], Prediction]  # of inputs (N, d)
Fits = Iterator[tuple[str, Predict, object]]  # with what was chosen


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


def measured(
    dataset: Dataset, quantiles: np.ndarray, mean: np.ndarray, log_density: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """A row of metrics for each region of the test rows, in units of the standardised target.

    Args:
        quantiles: at ``LEVELS``, (99, N).
        mean: of the prediction, (N,); RMSE is of this one.
        log_density: at the targets, (N,); without it the NLL is NaN.
    """
    y, low, high = dataset.y_test, quantiles[4], quantiles[94]
    points = {
        "rmse": np.square(mean - y), "crps": crps(quantiles, y),
        "nll": np.full(len(y), np.nan) if log_density is None else -log_density,
        "coverage_90": (low <= y) & (y <= high), "width_90": high - low,
    }  # fmt: skip
    rows = []
    for region, chosen in (("id", dataset.id_test), ("ood", ~dataset.id_test)):
        row = {name: float(of[chosen].mean()) for name, of in points.items()}
        rows.append({"region": region} | row | {"rmse": row["rmse"] ** 0.5})
    return rows


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


def _all_rows(d: Dataset) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([d.x_train, d.x_val]), np.concatenate([d.y_train, d.y_val])


def gaussian_process(d: Dataset, seed: int) -> Fits:
    """Matern 5/2 with a length for each input, and white noise; where there are many rows, a random part of them."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    x, y = _all_rows(d)
    rows = np.random.default_rng(seed).permutation(len(y))
    kernel = ConstantKernel() * Matern(np.ones(d.n_features), (1e-2, 1e3), 2.5) + WhiteKernel(0.1, (1e-6, 10))
    tuned = GaussianProcessRegressor(kernel, normalize_y=True).fit(x[rows[:GP_TUNED]], y[rows[:GP_TUNED]])
    model = GaussianProcessRegressor(tuned.kernel_, optimizer=None, normalize_y=True)
    model.fit(x[rows[:GP_ROWS]], y[rows[:GP_ROWS]])
    yield "GP", lambda x: gaussian(*model.predict(x, return_std=True)), ""


def _perceptron(seed: int):
    from sklearn.neural_network import MLPRegressor

    return MLPRegressor(
        hidden_layer_sizes=(WIDTH, WIDTH), batch_size=BATCH, learning_rate_init=RATE, max_iter=EPOCHS,
        early_stopping=True, n_iter_no_change=PATIENCE, tol=1e-5, random_state=seed,
    )  # fmt: skip


def perceptrons(d: Dataset, seed: int) -> Fits:
    """Their spread alone; and with one noise variance, the likeliest for the validation rows."""
    networks = [_perceptron(MEMBERS * seed + i).fit(d.x_train, d.y_train) for i in range(MEMBERS)]

    def outputs(x: np.ndarray) -> np.ndarray:
        return np.stack([net.predict(x) for net in networks])  # (10, N)

    def spread(x: np.ndarray) -> Prediction:
        f = outputs(x)
        return Prediction(np.quantile(f, LEVELS, axis=0, method="averaged_inverted_cdf"), f.mean(0))

    _, variance = adapters.observation_noise(torch.tensor(outputs(d.x_val))[..., None], torch.tensor(d.y_val))
    yield "10 MLPs", spread, ""
    yield "10 MLPs + noise", lambda x: mixture(outputs(x), variance), ""


def conformal(d: Dataset, seed: int) -> Fits:
    """One MLP; central intervals from its errors on the validation rows, of as many levels as these allow."""
    from mapie.regression import SplitConformalRegressor

    shares = np.arange(98, 0, -2) / 100
    shares = shares[shares < 1 - 1 / len(d.y_val)]
    net = _perceptron(MEMBERS * seed).fit(d.x_train, d.y_train)
    model = SplitConformalRegressor(net, confidence_level=list(shares), prefit=True).conformalize(d.x_val, d.y_val)

    def predict(x: np.ndarray) -> Prediction:
        mean, ends = model.predict_interval(x)  # (N,), (N, 2, shares)
        lower, upper = ends[:, 0].T, ends[:, 1].T[::-1]
        found = np.concatenate([lower, mean[None], upper])
        beyond = (len(LEVELS) - len(found)) // 2  # levels outside the widest interval have its ends
        return Prediction(np.pad(found, [(beyond, beyond), (0, 0)], mode="edge"), mean)

    yield "MLP + MAPIE", predict, ""


def quantile_boosting(d: Dataset, seed: int) -> Fits:
    """A model for each twentieth and for both ends, linear between; for the mean one of squared errors."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    def fitted(x: np.ndarray, y: np.ndarray, n: int, level: float | None = None) -> Any:
        options = {"loss": "squared_error"} if level is None else {"loss": "quantile", "quantile": level}
        return HistGradientBoostingRegressor(**options, max_iter=n, early_stopping=False, random_state=seed).fit(x, y)

    losses = np.zeros(max(ITERATIONS))
    for level in (0.1, 0.5, 0.9):
        stages = np.stack([*fitted(d.x_train, d.y_train, max(ITERATIONS), level).staged_predict(d.x_val)])
        losses += pinball(level, d.y_val - stages).mean(1)
    n = min(ITERATIONS, key=lambda n: losses[n - 1])
    models, mean = [fitted(*_all_rows(d), n, level) for level in BOOSTED], fitted(*_all_rows(d), n)

    def predict(x: np.ndarray) -> Prediction:
        at_levels = np.sort([model.predict(x) for model in models], axis=0)  # sorted: models may cross
        return Prediction(interp1d(BOOSTED, at_levels, axis=0)(LEVELS), mean.predict(x))

    yield "quantile boosting", predict, n


def forest(d: Dataset, seed: int) -> Fits:
    """Quantiles over the training rows in the leaves that a row falls into (Meinshausen 2006)."""
    from sklearn.ensemble import RandomForestRegressor

    def fitted(x: np.ndarray, y: np.ndarray, leaf: int) -> Predict:
        model = RandomForestRegressor(TREES, min_samples_leaf=leaf, random_state=seed).fit(x, y)
        order, starts = np.argsort(y), np.cumsum([0] + [tree.tree_.node_count for tree in model.estimators_])

        def leaves(x: np.ndarray) -> sparse.csr_array:
            """1 for each leaf (of all trees' nodes) that holds a row."""
            columns = model.apply(x) + starts[:-1]
            at = np.arange(0, columns.size + 1, TREES)
            return sparse.csr_array((np.ones(columns.size), columns.ravel(), at), shape=(len(x), starts[-1]))

        own = leaves(x[order])
        share = (own / np.maximum(own.sum(0), 1)).T.tocsr()  # (nodes, training rows)

        def predict(x: np.ndarray) -> Prediction:
            found, mean = [], []
            for some in np.array_split(x, len(x) // 500 + 1):
                weight = (leaves(some) @ share).toarray() / TREES  # (rows, training rows)
                at = [np.searchsorted(row, LEVELS - 1e-9) for row in weight.cumsum(1)]
                found.append(y[order][np.minimum(at, len(y) - 1)])
                mean.append(weight @ y[order])
            return Prediction(np.concatenate(found).T, np.concatenate(mean))

        return predict

    scores = [crps(fitted(d.x_train, d.y_train, leaf)(d.x_val).quantiles, d.y_val).mean() for leaf in LEAVES]
    leaf = LEAVES[np.argmin(scores)]
    yield "random forest", fitted(*_all_rows(d), leaf), leaf


def _tensor(x: np.ndarray) -> Tensor:
    return torch.tensor(x, dtype=torch.float32)


def _network(d: Dataset, rate: float = 0.0) -> nn.Sequential:
    """A network trained with squared errors, as it was when it was best for the validation rows."""
    widths = [d.n_features, WIDTH, WIDTH]
    hidden = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(rate))]
    net = nn.Sequential(*hidden, nn.Linear(WIDTH, 1))
    x, y, x_val, y_val = _tensor(d.x_train), _tensor(d.y_train)[:, None], _tensor(d.x_val), _tensor(d.y_val)[:, None]
    optimiser = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)
    best, kept, since = np.inf, {}, 0
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimiser.zero_grad()
            mse_loss(net(x[rows]), y[rows]).backward()
            optimiser.step()
        with torch.no_grad():
            score = float(mse_loss(net.eval()(x_val), y_val))
        net.train()
        since = 0 if score < best else since + 1
        if score < best:
            best, kept = score, copy.deepcopy(net.state_dict())
        if since == PATIENCE:
            break
    net.load_state_dict(kept)
    return net


def dropout(d: Dataset, seed: int) -> Fits:
    """Rate and noise variance are those likeliest for the validation rows."""

    def outputs(net: nn.Module, x: np.ndarray) -> Tensor:
        with torch.no_grad():
            return torch.stack([net(_tensor(x)) for _ in range(DRAWS)])  # (K, N, 1); dropout stays on

    def found(rate: float) -> tuple[float, float, nn.Module, float]:
        net = _network(d, rate)
        return *adapters.observation_noise(outputs(net, d.x_val), _tensor(d.y_val)), net, rate

    _, variance, net, rate = min(map(found, DROPOUT), key=lambda of: of[0])
    yield "MC dropout", lambda x: mixture(outputs(net, x).squeeze(-1).double().numpy(), variance), rate


def laplace(d: Dataset, seed: int) -> Fits:
    """Of the last layer; prior precision and noise by marginal likelihood."""
    from laplace import FullLLLaplace
    from torch.utils.data import DataLoader, TensorDataset

    model = FullLLLaplace(_network(d).eval(), "regression")
    model.fit(DataLoader(TensorDataset(_tensor(d.x_train), _tensor(d.y_train)[:, None]), batch_size=512))
    logs = torch.tensor([0.0, np.log(0.3)], requires_grad=True)  # of prior precision and noise
    optimiser = torch.optim.Adam([logs], lr=0.1)
    for _ in range(200):
        optimiser.zero_grad()
        (-model.log_marginal_likelihood(logs[0].exp(), logs[1].exp())).backward()
        optimiser.step()
    model.prior_precision, model.sigma_noise = logs.detach().exp()

    def predict(x: np.ndarray) -> Prediction:
        mean, variance = (part.detach().flatten().double().numpy() for part in model(_tensor(x)))
        return gaussian(mean, np.sqrt(variance + float(model.sigma_noise) ** 2))

    yield "Laplace", predict, ""


def ngboost(d: Dataset, seed: int) -> Fits:
    """Gaussians, as many rounds as were best for the validation rows, with all rows."""
    from ngboost import NGBRegressor

    options = {"verbose": False, "random_state": seed}
    first = NGBRegressor(n_estimators=ROUNDS, **options)
    first.fit(d.x_train, d.y_train, X_val=d.x_val, Y_val=d.y_val, early_stopping_rounds=50)
    n = (first.best_val_loss_itr or 0) + 1
    model = NGBRegressor(n_estimators=n, **options).fit(*_all_rows(d))

    def predict(x: np.ndarray) -> Prediction:
        found = model.pred_dist(x)
        return gaussian(found.loc, found.scale)

    yield "NGBoost", predict, n


METHODS: dict[str, Callable[[Dataset, int], Fits]] = {  # by the first name that each yields
    "GP": gaussian_process, "10 MLPs": perceptrons, "quantile boosting": quantile_boosting, "random forest": forest,
    "MC dropout": dropout, "Laplace": laplace, "NGBoost": ngboost, "MLP + MAPIE": conformal,
}  # fmt: skip


def depends_on_seed(d: Dataset, method: str) -> bool:
    """Not so of boosting, and of a Gaussian process where no rows are left out."""
    few = len(d.y_train) + len(d.y_val) <= GP_TUNED
    return method not in ("quantile boosting", "NGBoost") and not (method == "GP" and few)


@undisturbed()
def study(d: Dataset, method: str, seed: int) -> list[dict[str, Any]]:
    """Rows of a method's metrics on a data set; ``fit_s`` and ``predict_s`` are seconds of processor time."""
    rows = []
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(int(seed_sequence(d.name, method, seed, "train").generate_state(1)[0]))
        warnings.simplefilter("ignore")  # of optimisers that stop at their last iteration
        start = time.process_time()
        fits = list(METHODS[method](d, seed))
        fit_s = time.process_time() - start
        for name, predict, chosen in fits:
            start = time.process_time()
            quantiles, mean, log_density = predict(d.x_test)
            seconds = {"fit_s": fit_s, "predict_s": time.process_time() - start, "chosen": chosen}
            density = log_density and log_density(d.y_test)
            of = {"dataset": d.name, "method": name, "seed": seed}
            rows += [of | row | seconds for row in measured(d, quantiles, mean, density)]
    return rows


def table(folder: Path | None = None) -> Path:
    """Where the rows are."""
    return Path(folder or paths.RIVALS) / "results.csv"


def load(folder: Path | None = None) -> pd.DataFrame:
    """The rows computed so far, by default those committed."""
    path = table(folder)
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["dataset", "method", "seed", "region"])


def record(rows: list[dict[str, Any]], folder: Path | None = None) -> Path:
    """Add rows of :func:`measured`, with data set, method and seed, to the table; they replace any of the same name."""
    path, there = table(folder), load(folder)
    both = pd.concat([there, pd.DataFrame(rows)]) if len(there) else pd.DataFrame(rows)
    both = both.drop_duplicates(["dataset", "method", "seed", "region"], keep="last")
    with results.atomic(path) as temporary:
        both.to_csv(temporary, index=False, float_format="%.6g")
    return path


def run(datasets: Iterable[str], methods: Sequence[str], seeds: Iterable[int], folder: Path | None = None) -> None:
    """Compute and record what is not there yet; a method whose numbers depend on no seed has seed 0 alone."""
    datasets = [data.load(name) for name in datasets]
    for seed in seeds:
        for d in datasets:
            for method in methods:
                done = load(folder)[["dataset", "method", "seed"]].eq([d.name, method, seed]).all(axis=1).any()
                if not done and (seed == 0 or depends_on_seed(d, method)):
                    print(d.name, method, seed, flush=True)
                    record(study(d, method, seed), folder)
