"""FDN layers in networks that were trained without them, beside MC dropout and an ensemble.

What notebook 08 and docs/layers.md read from ``data/layers``. Here: how the methods are trained, and tables, where the
last layers of a multilayer perceptron become FDN layers; :mod:`fdn.runs.digits` has the classifier. Every choice
(epoch, beta, dropout rate, and the observation noise or the softmax temperature) is made on validation rows.
"""

from __future__ import annotations

import copy
import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fdn import metrics, paths
from fdn.data.dataset import Dataset
from fdn.devices import undisturbed
from fdn.errors import UserError
from fdn.nn import elbo_loss, forward, sample, to_fdn
from fdn.runs import experiment, results
from fdn.streams import seed_sequence

BATCH, DRAWS, MEMBERS = 64, 100, 5
BETAS = (0.01, 0.1, 1.0)  # the KL is divided by the number of training rows
RATES = (0.05, 0.2)  # of MC dropout
EVERY, LOOK = 5, 20  # epochs between looks at the validation rows, draws at each
VARIANCES = np.geomspace(1e-4, 10, 101)  # of the observation noise; the target's variance is about 1
PLAIN, DROPOUT, ENSEMBLE = "plain network", "MC dropout", f"ensemble of {MEMBERS}"


class Variant(NamedTuple):
    """Which layers of the plain network become FDN layers, the others frozen, and options of :func:`fdn.nn.to_fdn`."""

    layers: Sequence[str]
    options: Mapping[str, Any] = {}


LOW_RANK = {"structure": "low_rank", "rank": 4, "residual": True}
VARIANTS = {  # layers of `perceptron`
    "FDN, last layer": Variant(["9"]),
    "FDN, last two": Variant(["6", "9"]),
    "FDN adapter, last two": Variant(["6", "9"], LOW_RANK),
}


@dataclass
class Fitted:
    """A method as trained for one seed: its networks, and what the validation rows chose."""

    networks: Sequence[nn.Module]
    each: int  # draws of each network
    chosen: float = 0.0  # beta or dropout rate
    number: float = 1.0  # that `Task.score` fits to the draws
    seconds: float = 0.0  # of processor time to train, all choices included

    def draws(self, x: Tensor) -> Tensor:
        """Outputs ``(K, N, d_out)``."""
        return torch.cat([sample(net, x, self.each) for net in self.networks])


@dataclass(frozen=True)
class Task:
    """What is learned and what is measured.

    Attributes:
        x, y, x_val, y_val: training and validation rows.
        network: of a dropout rate.
        nll: of outputs ``(B, d_out)``, targets ``(B,)`` and the number that ``score`` fits: ``(B,)``.
        score: of draws ``(K, N, d_out)`` and targets ``(N,)``: their NLL, and the number that is fitted to them.
        measure: rows of what a method says of the test rows.
        epochs: of a plain network, and of FDN layers in it.
    """

    name: str
    x: Tensor
    y: Tensor
    x_val: Tensor
    y_val: Tensor
    network: Callable[[float], nn.Module]
    nll: Callable[[Tensor, Tensor, float], Tensor]
    score: Callable[[Tensor, Tensor], tuple[float, float]]
    measure: Callable[[Fitted], list[dict[str, Any]]]
    variants: Mapping[str, Variant]
    epochs: tuple[int, int]


def train(
    task: Task, net: nn.Module, epochs: int, draws: int = LOOK, number: float = 1.0, beta: float = 0.0
) -> float:  # fmt: skip
    """Train a network, with or without FDN layers, leave it where its validation score is best, and return that."""
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    best, kept, n = np.inf, {}, len(task.x)
    for epoch in range(epochs + 1):
        if epoch % EVERY == 0 or epoch == epochs:
            score, _ = task.score(sample(net, task.x_val, draws), task.y_val)
            if score < best:
                best, kept = score, copy.deepcopy(net.state_dict())
        if epoch == epochs:
            break
        for rows in torch.randperm(n).split(BATCH):
            output, kl = forward(net, task.x[rows])
            loss = elbo_loss(task.nll(output, task.y[rows], number), kl, n_train=n, beta=beta)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    net.load_state_dict(kept)
    return best


def _start_stream(task: Task, method: str, seed: int, purpose: str) -> None:
    torch.manual_seed(int(seed_sequence(task.name, method, seed, purpose).generate_state(1)[0]))


def _best(networks: Sequence[nn.Module], scores: Sequence[float], values: Sequence[float]) -> Fitted:
    return Fitted([networks[np.argmin(scores)]], DRAWS, values[np.argmin(scores)])


def fit(task: Task, seed: int) -> dict[str, Fitted]:
    """Every method for one seed; each variant starts from the plain network, the first of the ensemble."""
    found: dict[str, Fitted] = {}

    def enter(method: str, make: Callable[[], Fitted]) -> None:
        _start_stream(task, method, seed, "train")
        start = time.process_time()
        found[method] = made = make()
        made.seconds = time.process_time() - start
        _, made.number = task.score(made.draws(task.x_val), task.y_val)

    def ensemble() -> Fitted:
        networks = [task.network(0.0) for _ in range(MEMBERS)]
        for net in networks:
            train(task, net, task.epochs[0], draws=1)
        return Fitted(networks, 1)

    def dropout() -> Fitted:
        networks = [task.network(rate) for rate in RATES]
        return _best(networks, [train(task, net, task.epochs[0]) for net in networks], RATES)

    def adapted(layers: Sequence[str], options: Mapping[str, Any]) -> Fitted:
        plain = found[PLAIN]
        networks = [to_fdn(plain.networks[0], layers, freeze="others", **options) for _ in BETAS]
        scores = [train(task, net, task.epochs[1], LOOK, plain.number, beta) for net, beta in zip(networks, BETAS)]
        return _best(networks, scores, BETAS)

    enter(ENSEMBLE, ensemble)
    enter(PLAIN, lambda: Fitted(found[ENSEMBLE].networks[:1], 1))
    found[PLAIN].seconds = found[ENSEMBLE].seconds / MEMBERS
    enter(DROPOUT, dropout)
    for name, variant in task.variants.items():
        enter(name, functools.partial(adapted, *variant))
    return {method: found[method] for method in (PLAIN, DROPOUT, ENSEMBLE, *task.variants)}


@undisturbed()
def study(task: Task, seeds: Iterable[int]) -> pd.DataFrame:
    """A row for each method, seed and part of the test rows.

    ``chosen`` is beta or the dropout rate, ``number`` the noise variance (or temperature), ``seconds`` those of
    training, all choices included.
    """
    rows = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            for method, fitted in fit(task, seed).items():
                _start_stream(task, method, seed, "test")
                of = {"dataset": task.name, "method": method, "seed": seed, "chosen": fitted.chosen,
                      "number": fitted.number, "seconds": fitted.seconds,
                      "parameters": sum(p.numel() for net in fitted.networks for p in net.parameters())}  # fmt: skip
                rows += [of | row for row in task.measure(fitted)]
    return pd.DataFrame(rows)


def write(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """``NAME.csv`` of one task, and ``NAME.json``: median seconds of training a method, and the environment."""
    table, sidecar = (Path(folder) / f"{frame['dataset'].iloc[0]}.{suffix}" for suffix in ("csv", "json"))
    seconds = frame.groupby("method", sort=False)["seconds"].median().round(2).to_dict()
    environment = {key: value for key, value in experiment.environment().items() if key != "argv"}
    results.write(table, frame.drop(columns="seconds").to_csv(index=False, float_format="%.6g"))
    return [table, results.write_json(sidecar, {"seconds": seconds, "environment": environment})]


def load(name: str, folder: Path | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows and sidecar as :func:`write` wrote them, by default those committed; UserError if there are none."""
    folder = paths.LAYERS if folder is None else Path(folder)
    if not (folder / f"{name}.csv").exists():
        raise UserError(f"{folder.name} holds no results of {name}; `fdn adapters --dataset {name}` computes them")
    return pd.read_csv(folder / f"{name}.csv"), json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def perceptron(n_features: int, rate: float = 0.0) -> nn.Sequential:
    """Three hidden layers of 64 units, dropout after each; the last two linear layers are ``"6"`` and ``"9"``."""
    widths = [n_features, 64, 64, 64]
    hidden = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(rate))]
    return nn.Sequential(*hidden, nn.Linear(64, 1))


def observation_noise(draws: Tensor, y: Tensor) -> tuple[float, float]:
    """The least NLL of targets ``(N,)`` under the draws' ``(K, N, 1)`` mixture over noise variances, and which it is.

    For a single draw the variance is the mean squared residual; else one of ``VARIANCES``.
    """
    squares = (draws.squeeze(-1) - y).square().double()  # (K, N)
    variances = squares.mean().view(1, 1, 1) if len(draws) == 1 else torch.tensor(VARIANCES)[:, None, None]
    log_kernel = -0.5 * (squares / variances + (2 * np.pi * variances).log())  # (V, K, N)
    nll = (np.log(len(draws)) - log_kernel.logsumexp(1)).mean(-1)  # (V,)
    best = int(nll.argmin())
    return float(nll[best]), float(variances[best])


def gaussian_nll(output: Tensor, y: Tensor, variance: float) -> Tensor:
    """-log N(y; f, variance) of outputs ``(B, 1)`` and targets ``(B,)``."""
    return 0.5 * ((output.squeeze(-1) - y).square() / variance + np.log(2 * np.pi * variance))


def table_task(dataset: Dataset, epochs: int | None = None, variants: Mapping[str, Variant] = VARIANTS) -> Task:
    """A regression table as a task; of its validation rows those in distribution decide."""
    arrays = dataset.x_train, dataset.y_train, dataset.x_val[dataset.id_val], dataset.y_val[dataset.id_val]
    return Task(
        dataset.name, *(torch.tensor(array, dtype=torch.float32) for array in arrays),
        functools.partial(perceptron, dataset.n_features), gaussian_nll, observation_noise,
        functools.partial(measure, dataset), variants, (epochs or 100, epochs or 40),
    )  # fmt: skip


def measure(dataset: Dataset, fitted: Fitted) -> list[dict[str, Any]]:
    """A row for each region of test rows. CRPS, coverage and width are those of the target: noise is included."""
    draws = fitted.draws(torch.tensor(dataset.x_test, dtype=torch.float32))
    f, y = draws.repeat(DRAWS // len(draws), 1, 1).squeeze(-1).double().numpy(), dataset.y_test  # (K, N), (N,)
    targets = f + np.sqrt(fitted.number) * np.random.default_rng(0).standard_normal(f.shape)
    points = {"crps": metrics.crps(targets, y), "nll": metrics.nll(f, y, fitted.number),
              "coverage_90": metrics.covered(targets, y), "width_90": metrics.width(targets, y)}  # fmt: skip
    rows = []
    for region, chosen in (("id", dataset.id_test), ("ood", ~dataset.id_test)):
        rmse = np.sqrt(metrics.sqerr_mean(f, y)[chosen].mean())
        rows.append({"region": region, "rmse": rmse} | {name: of[chosen].mean() for name, of in points.items()})
    return rows
