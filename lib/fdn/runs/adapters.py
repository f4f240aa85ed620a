"""FDN layers in networks that were trained without them, beside MC dropout and an ensemble.

Two studies, which notebook 08 and docs/layers.md read from ``data/layers``: tables, where the last layers of a
multilayer perceptron become FDN layers, and scikit-learn's digits, where the head of a convolutional classifier does,
and the test digits are rotated. Every choice (epoch, beta, dropout rate, observation noise, softmax temperature) is
made on validation rows.
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
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor, nn

from fdn import data, metrics, paths
from fdn.data.dataset import Dataset
from fdn.devices import undisturbed
from fdn.nn import elbo_loss, forward, sample, to_fdn
from fdn.runs import experiment, results
from fdn.settings import choose
from fdn.streams import seed_sequence

BATCH, DRAWS, MEMBERS = 64, 100, 5
BETAS = (0.01, 0.1, 1.0)  # the KL is divided by the number of training rows
RATES = (0.05, 0.2)  # of MC dropout
EVERY = 5  # epochs from one look at the validation rows to the next
LOOKS = 20  # draws at each
ANGLES = tuple(range(0, 91, 15))  # degrees
VARIANCES = np.geomspace(1e-4, 10, 101)  # of the observation noise; the target's variance is about 1
TEMPERATURES = np.geomspace(0.2, 5, 41)
PLAIN, DROPOUT, ENSEMBLE = "plain network", "MC dropout", "ensemble of 5"


class Variant(NamedTuple):
    """Which layers of the plain network become FDN layers, and how: arguments of :func:`fdn.nn.to_fdn`."""

    layers: Sequence[str]
    options: Mapping[str, Any] = {}
    freeze: str | None = "others"


LOW_RANK = {"structure": "low_rank", "rank": 4, "residual": True}
TABLE_VARIANTS = {  # layers of `perceptron`
    "FDN, last layer": Variant(["9"]),
    "FDN, last two": Variant(["6", "9"]),
    "FDN adapter, last two": Variant(["6", "9"], LOW_RANK),
}
DIGIT_VARIANTS = {  # layers of `classifier`
    "FDN head": Variant(["9"]),
    "FDN adapter, last two": Variant(["7", "9"], LOW_RANK),
}


@dataclass(frozen=True)
class Task:
    """What is learned: training and validation rows, the network, its likelihood, and the score that decides.

    Attributes:
        network: of a dropout rate.
        nll: of outputs ``(B, d_out)``, targets ``(B,)`` and the number that ``score`` fits: ``(B,)``.
        score: of draws ``(K, N, d_out)`` and targets ``(N,)``: their NLL, and the number with which it is least.
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
    epochs: tuple[int, int]


@dataclass
class Fitted:
    """A method as trained for one seed: its networks, and what the validation rows chose."""

    networks: Sequence[nn.Module]
    each: int  # draws of each network
    chosen: float = 0.0  # beta or dropout rate
    number: float = 1.0  # that the score fits to the draws
    seconds: float = 0.0  # of training, all choices included

    def draws(self, x: Tensor) -> Tensor:
        """``(K, N, d_out)``"""
        return torch.cat([sample(net, x, self.each) for net in self.networks])


def train(task: Task, net: nn.Module, epochs: int, number: float = 1.0, beta: float = 0.0) -> float:
    """Train a network, with or without FDN layers, leave it where its validation score is best, and return that."""
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    best, n = (np.inf, {}), len(task.x)
    for epoch in range(epochs + 1):
        if epoch % EVERY == 0 or epoch == epochs:
            score, _ = task.score(sample(net, task.x_val, LOOKS), task.y_val)
            best = min(best, (score, copy.deepcopy(net.state_dict())), key=lambda pair: pair[0])
        if epoch == epochs:
            break
        for rows in torch.randperm(n).split(BATCH):
            output, kl = forward(net, task.x[rows])
            loss = elbo_loss(task.nll(output, task.y[rows], number), kl, n_train=n, beta=beta)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    net.load_state_dict(best[1])
    return best[0]


def _plain(task: Task) -> list[nn.Module]:
    """An ensemble, whose first member is the plain network of all other methods."""
    networks = [task.network(0.0) for _ in range(MEMBERS)]
    for net in networks:
        train(task, net, task.epochs[0])
    return networks


def _dropout(task: Task) -> Fitted:
    networks = [task.network(rate) for rate in RATES]
    scores = [train(task, net, task.epochs[0]) for net in networks]
    return Fitted([networks[np.argmin(scores)]], DRAWS, RATES[np.argmin(scores)])


def _adapted(task: Task, plain: Fitted, variant: Variant) -> Fitted:
    layers, options, freeze = variant
    networks = [to_fdn(plain.networks[0], layers, freeze=freeze, **options) for _ in BETAS]
    scores = [train(task, net, task.epochs[1], plain.number, beta) for net, beta in zip(networks, BETAS)]
    return Fitted([networks[np.argmin(scores)]], DRAWS, BETAS[np.argmin(scores)])


def fit(task: Task, seed: int, variants: Mapping[str, Variant]) -> dict[str, Fitted]:
    """Every method for one seed; each variant starts from the plain network, with the beta that validation prefers."""
    found: dict[str, Fitted] = {}

    def enter(method: str, make: Callable[[], Fitted]) -> None:
        torch.manual_seed(int(seed_sequence(task.name, method, seed, "train").generate_state(1)[0]))
        start = time.process_time()
        found[method] = made = make()
        made.seconds = time.process_time() - start
        made.number = task.score(made.draws(task.x_val), task.y_val)[1]

    enter(ENSEMBLE, lambda: Fitted(_plain(task), 1))
    enter(PLAIN, lambda: Fitted(found[ENSEMBLE].networks[:1], 1))
    found[PLAIN].seconds = found[ENSEMBLE].seconds / MEMBERS
    enter(DROPOUT, lambda: _dropout(task))
    for name, variant in variants.items():
        enter(name, functools.partial(_adapted, task, found[PLAIN], variant))
    return found


# Tables


def perceptron(n_features: int, rate: float = 0.0) -> nn.Sequential:
    """Three hidden layers of 64 units, dropout after each; the last two linear layers are ``"6"`` and ``"9"``."""
    widths = [n_features, 64, 64, 64]
    hidden = [part for a, b in zip(widths, widths[1:]) for part in (nn.Linear(a, b), nn.ReLU(), nn.Dropout(rate))]
    return nn.Sequential(*hidden, nn.Linear(64, 1))


def observation_noise(draws: Tensor, y: Tensor) -> tuple[float, float]:
    """The least NLL of targets ``(N,)`` under the draws' ``(K, N, 1)`` mixture over noise variances, and which it is.

    For draws that are all the same the variance is the mean squared residual; else one of ``VARIANCES``.
    """
    squares = (draws.squeeze(-1) - y).square().double()  # (K, N)
    same = bool((draws == draws[:1]).all())
    variances = squares.mean().view(1, 1, 1) if same else torch.tensor(VARIANCES)[:, None, None]
    log_kernel = -0.5 * (squares / variances + (2 * np.pi * variances).log())  # (V, K, N)
    nll = (np.log(len(draws)) - log_kernel.logsumexp(1)).mean(-1)  # (V,)
    best = int(nll.argmin())
    return float(nll[best]), float(variances[best])


def table_task(dataset: Dataset, epochs: int | None = None) -> Task:
    """A regression table as a task; of its validation rows those in distribution decide."""
    arrays = dataset.x_train, dataset.y_train, dataset.x_val[dataset.id_val], dataset.y_val[dataset.id_val]

    def nll(output: Tensor, y: Tensor, variance: float) -> Tensor:
        return 0.5 * ((output.squeeze(-1) - y).square() / variance + np.log(2 * np.pi * variance))

    network = functools.partial(perceptron, dataset.n_features)
    rows = [torch.tensor(array, dtype=torch.float32) for array in arrays]
    return Task(dataset.name, *rows, network, nll, observation_noise, (epochs or 100, epochs or 40))


def table_rows(fitted: Fitted, dataset: Dataset) -> list[dict[str, Any]]:
    """A row for each region, of test rows. CRPS, coverage and width are those of the target: noise is included."""
    draws = fitted.draws(torch.tensor(dataset.x_test, dtype=torch.float32))
    f, y = draws.repeat(DRAWS // len(draws), 1, 1).squeeze(-1).double().numpy(), dataset.y_test  # (K, N), (N,)
    targets = f + np.sqrt(fitted.number) * np.random.default_rng(0).standard_normal(f.shape)
    points = {
        "crps": metrics.crps(targets, y), "nll": metrics.nll(f, y, fitted.number),
        "coverage_90": metrics.covered(targets, y), "width_90": metrics.width(targets, y),
    }  # fmt: skip
    rows = []
    for region, chosen in (("id", dataset.id_test), ("ood", ~dataset.id_test)):
        rmse = np.sqrt(metrics.sqerr_mean(f, y)[chosen].mean())
        rows.append({"region": region, "rmse": rmse} | {name: of[chosen].mean() for name, of in points.items()})
    return rows


# Digits


def classifier(rate: float = 0.0) -> nn.Sequential:
    """Two convolutions, each with pooling, and two linear layers, ``"7"`` and ``"9"``, the head."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # (B, 8, 4, 4)
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # (B, 16, 2, 2)
        nn.Sequential(nn.Flatten(), nn.Dropout(rate)), nn.Linear(64, 32),
        nn.Sequential(nn.ReLU(), nn.Dropout(rate)), nn.Linear(32, 10),
    )  # fmt: skip


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Mean distance between confidence and accuracy over equal bins of confidence; probabilities ``(N, C)``.

    ECE = sum over bins of (share of the points) |accuracy - mean confidence| (C. Guo et al., 2017).

    >>> expected_calibration_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
    0.45
    """
    confidence, said = probabilities.double().max(-1)
    gap = (said == labels).double() - confidence  # (N,)
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    return round(float(torch.zeros(bins).double().index_add(0, bin_of, gap).abs().sum() / len(labels)), 12)


def tempered(draws: Tensor, y: Tensor, temperatures: Sequence[float] = (1.0,)) -> tuple[float, float]:
    """The least NLL of labels ``(N,)`` under mean softmax probabilities over temperatures, and which it is."""
    nll = [float(F.nll_loss((draws / t).softmax(-1).mean(0).log(), y)) for t in temperatures]
    return min(nll), float(temperatures[int(np.argmin(nll))])


def load_digits() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """1,797 images ``(N, 8, 8)`` between 0 and 1 with labels, 60 : 20 : 20, the same for every seed."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    rows = np.split(np.random.default_rng(0).permutation(len(labels)), [1078, 1437])
    return {part: (images[r].reshape(-1, 8, 8) / 16, labels[r]) for part, r in zip(("train", "val", "test"), rows)}


def _images(images: np.ndarray) -> Tensor:
    return torch.tensor(images[:, None], dtype=torch.float32)  # (N, 1, 8, 8)


def digits_task(epochs: int | None = None) -> Task:
    """The digits as a task."""
    arrays = load_digits()
    rows = [part for name in ("train", "val") for part in (_images(arrays[name][0]), torch.tensor(arrays[name][1]))]

    def nll(output: Tensor, y: Tensor, _: float) -> Tensor:
        return F.cross_entropy(output, y, reduction="none")

    return Task("digits", *rows, classifier, nll, tempered, (epochs or 20, epochs or 15))


def digit_rows(fitted: Fitted) -> list[dict[str, Any]]:
    """A row for each angle by which the test digits are rotated."""
    images, labels = load_digits()["test"]
    rows, labels = [], torch.tensor(labels)
    for angle in ANGLES:
        draws = fitted.draws(_images(ndimage.rotate(images, angle, (2, 1), reshape=False, order=1)))
        p = (draws / fitted.number).softmax(-1).mean(0)  # (N, C)
        accuracy, nll = (p.argmax(-1) == labels).double().mean(), F.nll_loss(p.log(), labels)
        ece = expected_calibration_error(p, labels)
        rows.append({"angle": angle, "accuracy": float(accuracy), "nll": float(nll), "ece": ece})
    return rows


# Both


@undisturbed()
def study(
    name: str, seeds: Iterable[int], epochs: int | None = None, variants: Mapping[str, Variant] | None = None
) -> pd.DataFrame:
    """Every method on a table or ``"digits"``: a row per seed, method and region (or angle) of test rows.

    ``chosen`` is beta or the dropout rate, ``number`` the noise variance (or temperature), ``seconds`` those of
    training, all choices included. Of the digits' plain network there is a second row, its temperature fitted too.
    """
    task = digits_task(epochs) if name == "digits" else table_task(dataset := data.load(name), epochs)
    variants = (DIGIT_VARIANTS if name == "digits" else TABLE_VARIANTS) if variants is None else variants
    rows = []
    for seed in seeds:
        with torch.random.fork_rng(devices=[]):
            found = fit(task, seed, variants)
            if name == "digits":
                plain = found[PLAIN]
                _, number = tempered(plain.draws(task.x_val), task.y_val, TEMPERATURES)
                found["plain, tempered"] = Fitted(plain.networks, 1, number=number, seconds=plain.seconds)
            for method, fitted in found.items():
                of = {"dataset": name, "method": method, "seed": seed, "chosen": fitted.chosen, "number": fitted.number}
                of["parameters"] = sum(p.numel() for net in fitted.networks for p in net.parameters())
                measured = digit_rows(fitted) if name == "digits" else table_rows(fitted, dataset)
                rows += [of | row | {"seconds": fitted.seconds} for row in measured]
    return pd.DataFrame(rows)


def write(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """``NAME.csv`` of one data set, and ``NAME.json``: median seconds of training a method, and the environment."""
    [name] = frame["dataset"].unique()
    table, sidecar = (Path(folder) / f"{name}.{suffix}" for suffix in ("csv", "json"))
    seconds = frame.groupby("method", sort=False)["seconds"].median().round(2).to_dict()
    with results.atomic(table) as path:
        frame.drop(columns="seconds").to_csv(path, index=False, float_format="%.6g")
    with results.atomic(sidecar) as path:
        content = {"seconds": seconds, "environment": experiment.environment()}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return [table, sidecar]


def load(name: str, folder: Path | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What :func:`write` wrote, by default of the committed results."""
    folder = paths.LAYERS if folder is None else Path(folder)
    choose(name, sorted(path.stem for path in folder.glob("*.csv")), f"data set of {folder.name}")
    return pd.read_csv(folder / f"{name}.csv"), json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
