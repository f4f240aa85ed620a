"""Stacked training: all seeds (and ensemble members) of a model in one program, with the best epoch of each kept."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fdn.data.dataset import Dataset
from fdn.devices import CPU, choose_device, clock, mean_score, to_device, undisturbed
from fdn.errors import UserError
from fdn.models import ENSEMBLES, ModelSpec, Network, initial_network
from fdn.models.stacking import Stack
from fdn.protocol import Protocol
from fdn.settings import Count, check_seeds, checked
from fdn.streams import Streams, seed_sequence
from fdn.training.fused import FusedStep
from fdn.training.objectives import LIKELIHOODS, Likelihood, beta_at, rate_at
from fdn.training.prediction import Prediction, as_numbers, noise_kind, predict_outputs
from fdn.training.steps import AutogradStep, ReplayedStep


@dataclass(frozen=True)
class Fit:
    """A model trained on one data set with R seeds.

    Attributes:
        flat: the kept parameters, ``(R, n)``, or ``(R, M, n)`` for an ensemble of M members; where it was trained.
        best_epoch: the kept epoch of each seed, ``(R,)``, counted from 1; 0 where no epoch had a finite score.
        scores: validation score of every epoch, ``(R, epochs)``: CRPS, or MSE for a deterministic model.
        observation_factor: of the likelihood's variance in predictions, ``(R,)``: 1 unless fitted
            (``Protocol.fit_observation_noise``).
        seconds: wall time spent on ``training``, ``validation`` (draws) and ``selection`` (their CRPS, keeping the best
            epoch).
    """

    spec: ModelSpec
    protocol: Protocol
    dataset: str
    feature_names: tuple[str, ...]
    seeds: tuple[int, ...]
    likelihood: Likelihood
    stack: Stack
    flat: Tensor
    best_epoch: np.ndarray
    scores: np.ndarray
    observation_factor: np.ndarray
    seconds: dict[str, float]

    @undisturbed()
    def network(self, seed: int, member: int = 0) -> Network:
        """The trained network of one seed (and ensemble member) as an ordinary module.

        Raises:
            UserError: for a seed or member that was not trained.
        """
        row, members = self._row(seed), self.spec.members
        if _index(member) not in range(members):
            raise UserError(f"{self.spec.name} has no member {member!r}; it has {members}, counted from 0")
        return self.stack.extract(row[member] if members > 1 else row)

    @undisturbed()
    def predict(self, seed: int, x: object, draws: int | None = None) -> Prediction:
        """Prediction of one seed at inputs ``(N, d)`` with K draws (default: the protocol's; an ensemble: its members).

        Computed where the parameters are, and brought to the CPU.

        Args:
            seed: one of those trained.
            x: an array, list, table or tensor of finite numbers in the units of the training inputs. A table whose
                columns have names has those of the data set, in its order.
            draws: K.

        Raises:
            UserError: for an unknown seed, draws that are no positive integer, columns of other names, or inputs that
                :func:`fdn.training.prediction.as_numbers` refuses.
        """
        row, draws = self._row(seed), self.protocol.eval_draws if draws is None else checked("draws", draws, Count)
        columns = tuple(getattr(x, "columns", ()))
        if columns != self.feature_names and any(isinstance(column, str) for column in columns):
            names = f"{', '.join(map(str, columns))}; trained on {', '.join(self.feature_names)}"
            raise UserError(f"x has the columns {names}: pass these, in this order, or x.to_numpy()")
        x = as_numbers(x, "x", self.stack.network.layers[0].d_in, row.dtype, row.device)
        prediction = self._drawn(row, x, self._streams((int(seed),), "test"), draws)
        factor, variance = float(self.observation_factor[self.seeds.index(seed)]), prediction.observation_variance.cpu()
        return Prediction(prediction.draws.cpu(), variance if factor == 1 else factor * variance)

    @undisturbed()
    def observed(self, seed: int, x: object, draws: int | None = None) -> Tensor:
        """Draws of Y, ``(K, N)``: those of :meth:`predict`, whose arguments it takes, with the likelihood's noise."""
        return self.predict(seed, x, draws).observed(self._streams((int(seed),), "validate"))

    def _row(self, seed: int) -> Tensor:
        if _index(seed) not in self.seeds:
            run, seeds = f"{self.spec.name} was not trained on {self.dataset}", ", ".join(map(str, self.seeds))
            raise UserError(f"{run} with seed {seed!r}; seeds are {seeds}")
        return self.flat[self.seeds.index(seed)]

    def _streams(self, seeds: Sequence[int], purpose: str, lead: tuple[int, ...] | None = None) -> Streams:
        """Streams of several seeds, or of one, of shape () or, for an ensemble, (M,).

        The members of an ensemble have their own where ``lead`` has room for them.
        """
        lead = tuple(self.flat.shape[1:-1]) if lead is None else lead
        members = range(1 if lead and lead[-1] == 1 and self.spec.members > 1 else self.spec.members)
        roots = [seed_sequence(self.dataset, self.spec.name, seed, purpose, m) for seed in seeds for m in members]
        return Streams(roots, lead, getattr(torch, self.protocol.dtype))

    def _drawn(self, rows: Tensor, x: Tensor, streams: Streams, draws: int) -> Prediction:
        """Prediction with parameters of one seed, or of several, where these are."""
        each = draws if self.spec.name in ENSEMBLES else -(-draws // self.spec.members)
        out = predict_outputs(self.stack, rows, x, streams, each, noise_kind(self.protocol.noise))
        out = out.flatten(-4, -3) if self.spec.members > 1 else out  # (..., K or M, N, n_outputs)
        return Prediction(self.likelihood.mean(out), self.likelihood.observation_variance(out))

    def _with_noise(self, dataset: Dataset) -> Self:
        """Its noise factors fitted to the validation points, where the protocol asks for it."""
        if not self.protocol.fit_observation_noise:
            return self
        _, _, x_val, y_val = _training_data(dataset, self.flat.dtype, self.flat.device)
        streams = [self._streams((seed,), "validate") for seed in self.seeds]
        found = [self._drawn(row, x_val, own, self.protocol.eval_draws) for row, own in zip(self.flat, streams)]
        return replace(self, observation_factor=np.array([one.observation_factor(y_val) for one in found]))


def _index(value: Any) -> int | None:
    """The integer, of whichever library; None for what is none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _stack(dataset: Dataset, spec: ModelSpec, seeds: Sequence[int], protocol: Protocol, n_outputs: int) -> Stack:
    """Freshly initialised networks of every seed and member, each from its own stream."""
    networks = [
        initial_network(spec, dataset.name, dataset.n_features, protocol, seed, member, n_outputs)
        for seed in seeds
        for member in range(spec.members)
    ]
    return Stack(networks, (len(seeds),) if spec.members == 1 else (len(seeds), spec.members))


def _training_data(dataset: Dataset, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training inputs and targets, and those of the validation points that count: their targets stay float64."""
    name, d, chosen = dataset.name, dataset.n_features, dataset.id_val
    for what, n in (("training", len(dataset.y_train)), ("ID validation", chosen.sum())):
        if n == 0:
            raise UserError(f"{name} has no {what} points; expected at least one")
    return (
        as_numbers(dataset.x_train, f"x_train of {name}", d, dtype, device),
        as_numbers(dataset.y_train, f"y_train of {name}", None, dtype, device),
        as_numbers(dataset.x_val[chosen], f"x_val of {name}", d, dtype, device),
        as_numbers(dataset.y_val[chosen], f"y_val of {name}", None, torch.float64, device),
    )


def _step(
    stack: Stack, protocol: Protocol, likelihood: Likelihood, device: torch.device, unusual: bool
) -> Callable[..., None]:
    """What trains the stack on a minibatch: the compiled loops if they compute this, else autograd."""
    if not unusual and FusedStep.supports(stack, protocol, likelihood):
        return FusedStep(stack, protocol)
    by_autograd = AutogradStep(stack, protocol, likelihood)
    return by_autograd if device == CPU else ReplayedStep(by_autograd)


def _checked_likelihood(spec: object, dataset: object, protocol: Protocol, likelihood: object) -> Likelihood:
    """The likelihood, by default the protocol's; UserError for an argument of :func:`fit` of another type."""
    given = {"spec": (spec, ModelSpec), "dataset": (dataset, Dataset), "protocol": (protocol, Protocol)}
    for name, (value, cls) in given.items():
        if not isinstance(value, cls):
            raise UserError(f"{name} is {reprlib.repr(value)}; expected a {cls.__name__} of {cls.__module__}")
    likelihood = LIKELIHOODS[protocol.likelihood](protocol) if likelihood is None else likelihood
    if not isinstance(likelihood, Likelihood):
        raise UserError(f"likelihood is {reprlib.repr(likelihood)}; expected one of {Likelihood}, or None")
    return likelihood


@undisturbed()
def fit(
    spec: ModelSpec,
    dataset: Dataset,
    protocol: Protocol,
    seeds: Sequence[int],
    likelihood: Likelihood | None = None,
    progress: bool = False,
    device: str | torch.device = CPU,
    betas: Sequence[float] | None = None,
) -> Fit:
    r"""Train a model with every seed at once and keep, for each seed, the epoch with the best validation score.

    The loss is the likelihood's data term, by default the squared error, + beta KL (or the IWAE bound); Adam; gradient
    norm clipped per network. A beta that the protocol leaves open is chosen first (:mod:`fdn.training.recipe`). After
    each epoch, or some (``protocol.look``), K draws are taken at the validation points and the smallest mean CRPS
    (deterministic models: MSE) wins, or the last epoch does where ``protocol.keep`` says so.

    Args:
        spec: model and widths, e.g. from :func:`fdn.models.model_spec`.
        dataset: data; ``id_val`` marks the validation points that count.
        protocol: every setting.
        seeds: R different seeds; a seed's result does not depend on the others.
        likelihood: default: the protocol's.
        progress: show a bar on a terminal.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``; on a GPU whole steps are CUDA graphs. Numbers agree to rounding.
        betas: ``beta_max`` of each seed, in place of the protocol's.

    Results depend on the arguments only: global settings and random numbers of the caller neither enter nor change.

    Raises:
        UserError: for arguments of another type, seeds that are not different integers of at least 0, a device that is
            not there, weights or betas beside the IWAE bound, and data without training or ID validation points or with
            numbers that are not finite.

    Source: paper, algorithm 1, appendix B and the hyperparameter table.
    """
    likelihood = _checked_likelihood(spec, dataset, protocol, likelihood)
    p, device, seeds = protocol, choose_device(device), check_seeds(seeds)
    x_train, y_train, x_val, y_val = _training_data(dataset, getattr(torch, p.dtype), device)
    if p.beta_max == "auto" and betas is None:
        from fdn.training.recipe import chosen  # which fits, too

        p = chosen(spec, dataset, p, device)
    stack = _stack(dataset, spec, seeds, p, likelihood.n_outputs)
    stack.flat = to_device(stack.flat, device)
    most = 1.0 if betas is not None or p.beta_max == "auto" else p.beta_max
    own_beta = None if betas is None else torch.tensor(betas).to(x_train).view(-1, *[1] * (stack.flat.dim() - 2))
    weight = None if dataset.weight_train is None else torch.tensor(dataset.weight_train).to(x_train)  # (N,)
    if p.objective == "iwae" and not (own_beta is None and weight is None):
        raise UserError("the IWAE bound takes neither weights of the rows nor betas; choose the objective 'elbo'")
    take_step = _step(stack, p, likelihood, device, own_beta is not None or weight is not None)
    rows = stack.flat.detach()  # (*lead, n), which steps write to
    lead = tuple(rows.shape[:-1])  # (R,) or (R, M)
    epochs, update, batches = _epochs(spec, p, len(x_train)), 0, -(-len(x_train) // p.batch_size)
    scores, best = np.full((len(seeds), epochs), np.nan), np.full(len(seeds), np.inf)
    best_epoch, running = np.zeros(len(seeds), int), np.full(len(seeds), True)
    kept, seconds = rows.clone(), dict.fromkeys(("training", "validation", "selection"), 0.0)
    names, factors = (dataset.name, dataset.feature_names), np.ones(len(seeds))
    found = Fit(spec, p, *names, seeds, likelihood, stack, kept, best_epoch, scores, factors, seconds)  # filled below
    order_lead = (len(seeds), 1) if spec.members > 1 and p.ensemble_order == "common" else lead
    shuffles, train_noise = found._streams(seeds, "shuffle", order_lead), found._streams(seeds, "train", lead)
    if device == CPU or stack.network.draws_masks_late:
        each = [found._streams((seed,), "validate") for seed in seeds]
        validated = [(range(r, r + 1), rows[r], streams) for r, streams in enumerate(each)]
    else:  # all at once
        validated = [(range(len(seeds)), rows, found._streams(seeds, "validate", lead))]
    kind = noise_kind(p.noise, sampled_weights=p.objective == "iwae")

    @contextmanager
    def timed(what: str) -> Iterator[None]:
        start = clock(device)
        yield
        seconds[what] += clock(device) - start

    title, shown = f"{dataset.name} {spec.name}", None if progress else True
    for epoch in tqdm(range(1, epochs + 1), desc=title, disable=shown, leave=False):
        with timed("training"):
            order = to_device(shuffles.permutations(len(x_train)), device)  # (*order_lead, N)
            x_epoch, y_epoch = x_train[order], y_train[order]  # (*order_lead, N, d), (*order_lead, N)
            w_epoch = [None] * batches if weight is None else weight[order].split(p.batch_size, dim=-1)
            parts = x_epoch.split(p.batch_size, dim=-2), y_epoch.split(p.batch_size, dim=-1), w_epoch
            for x, y, w in zip(*parts):
                update += 1
                step = epoch if p.warmup_unit == "epochs" else update
                noise = stack.network.draw_noise(train_noise, kind, p.train_draws, x.shape[-2], training=True)
                beta: float | Tensor = beta_at(step, p.beta_schedule, p.warmup, most)
                beta = beta if own_beta is None else beta * own_beta  # (R,) or (R, 1)
                take_step(x, y, noise, beta, rate_at(update, epochs * batches, p.rate_schedule, p.learning_rate), w)
        for group, row, streams in validated if epoch % p.look == 0 or epoch == epochs else ():
            with timed("validation"):
                prediction = found._drawn(row, x_val, streams, p.eval_draws)
                draws = prediction.draws if p.score == "function" else prediction.observed(streams)  # (..., K, N_val)
            with timed("selection"):
                for r, score in zip(group, mean_score(draws, y_val).ravel()):
                    if running[r]:
                        scores[r, epoch - 1] = score
                        if score < best[r] or p.keep == "last" and np.isfinite(score):
                            best[r], best_epoch[r] = score, epoch
                            kept[r] = rows[r]
                        running[r] = p.patience is None or epoch - best_epoch[r] < p.patience
        if not running.any():
            break
    return found._with_noise(dataset)


def _epochs(spec: ModelSpec, protocol: Protocol, n: int) -> int:
    """Epochs of training on n rows."""
    epochs = max(1, protocol.epochs // spec.members) if spec.name in ENSEMBLES else protocol.epochs
    most = epochs if protocol.most_updates is None else protocol.most_updates * protocol.batch_size // max(1, n)
    return min(epochs, max(1, most))


def restore(
    spec: ModelSpec,
    dataset: Dataset,
    protocol: Protocol,
    seeds: Sequence[int],
    parameters: np.ndarray,
    scores: np.ndarray,
    device: str | torch.device = CPU,
    observation_factor: np.ndarray | None = None,
) -> Fit:
    """A fit from its kept parameters, ``(R, n)`` or ``(R, M, n)``, and scores, ``(R, epochs)``.

    It predicts what it did. Without the noise factors, ``(R,)``, they are fitted again, to the validation points.
    """
    likelihood = LIKELIHOODS[protocol.likelihood](protocol)
    stack = _stack(dataset, spec, seeds, protocol, likelihood.n_outputs)
    stack.flat = to_device(torch.from_numpy(parameters), choose_device(device))
    finite, epochs = np.isfinite(scores), np.arange(scores.shape[1]) + 1
    if protocol.keep == "last":
        best_epoch = np.where(finite, epochs, 0).max(axis=1)
    else:
        best_epoch = np.where(finite.any(1), np.argmin(np.where(np.isnan(scores), np.inf, scores), 1) + 1, 0)
    what = spec, protocol, dataset.name, dataset.feature_names, tuple(seeds), likelihood
    factors = np.ones(len(seeds)) if observation_factor is None else observation_factor
    found = Fit(*what, stack, stack.flat, best_epoch, scores, factors, seconds={})
    return found._with_noise(dataset) if observation_factor is None else found
