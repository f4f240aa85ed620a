"""What stacking buys: stacked training against the plain loop over seeds, in one process on one thread.

The plain loop is Algorithm 1 as one would first write it: one module, one optimiser, one seed at a time, the op's
reference backend. Nothing is timed before both have given the same numbers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pandas as pd
import torch

from lib import metrics
from lib.data.dataset import Dataset
from lib.models import ModelSpec, build_network
from lib.noise import Streams, seed_sequence
from lib.objectives import beta_at
from lib.posteriors import FDNLinear
from lib.prediction import noise_kind
from lib.protocol import Protocol
from lib.training import fit


@dataclass(frozen=True)
class PlainFit:
    """Result of :func:`plain_fit`: parameters ``(n,)`` of the best epoch, all scores, seconds."""

    flat: torch.Tensor
    best_epoch: int
    scores: np.ndarray  # (epochs,)
    seconds: dict[str, float]


def plain_fit(spec: ModelSpec, dataset: Dataset, protocol: Protocol, seed: int, validate: bool = True) -> PlainFit:
    """Train one seed of a model that is no ensemble with the beta-ELBO (paper, algorithm 1); what :func:`lib.training.fit` stacks.

    Same random streams, so the same numbers up to rounding.
    """
    p, dtype = protocol, getattr(torch, protocol.dtype)
    shuffle, train_noise, val_noise = (
        Streams([seed_sequence(dataset.name, spec.name, seed, purpose)], (), dtype)
        for purpose in ("shuffle", "train", "validate")
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed_sequence(dataset.name, spec.name, seed, "init").generate_state(1)[0]))
        network = build_network(spec, dataset.n_features, p).to(dtype)
    for layer in network.layers:
        layer.backend = "reference"
    adam = torch.optim.Adam(network.parameters(), lr=p.learning_rate)
    x_train, y_train = (torch.as_tensor(t, dtype=dtype) for t in (dataset.x_train, dataset.y_train))
    x_val = torch.as_tensor(dataset.x_val[dataset.id_val], dtype=dtype)
    y_val = dataset.y_val[dataset.id_val]
    kind, draws, update = noise_kind(p.noise), p.eval_draws if network.stochastic else 1, 0
    best, best_epoch, kept, scores = np.inf, 0, None, []
    seconds = {"training": 0.0, "validation": 0.0}
    for epoch in range(1, p.epochs + 1):
        start = time.perf_counter()
        for batch in shuffle.permutations(len(x_train)).split(p.batch_size):
            update += 1
            beta = beta_at(epoch if p.warmup_unit == "epochs" else update, p.beta_schedule, p.warmup, p.beta_max)
            noise = network.draw_noise(train_noise, kind, p.train_draws, len(batch), training=True)
            output, kl = network(x_train[batch], noise, "analytic")  # (K, B, 1), (k, b)
            loss = (output[..., 0] - y_train[batch]).square().mean()
            if kl is not None:
                loss = loss + beta * kl.mean()
            adam.zero_grad()
            loss.backward()
            if p.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(network.parameters(), p.clip_norm)
            adam.step()
        trained = time.perf_counter()
        seconds["training"] += trained - start
        if validate:
            with torch.no_grad():
                noise = network.draw_noise(val_noise, kind, draws, len(x_val), training=False)
                sampled = network(x_val, noise)[0][..., 0].numpy()  # (K, N_val)
            score = (metrics.crps if draws > 1 else metrics.mse)(sampled, y_val).mean()
            scores.append(score)
            if score < best:
                best, best_epoch = score, epoch
                kept = torch.nn.utils.parameters_to_vector(network.parameters()).detach().clone()
            seconds["validation"] += time.perf_counter() - trained
    flat = torch.nn.utils.parameters_to_vector(network.parameters()).detach() if kept is None else kept
    return PlainFit(flat, best_epoch, np.array(scores), seconds)


def stacking(specs: Sequence[ModelSpec], dataset: Dataset, protocol: Protocol, seeds: Sequence[int]) -> pd.DataFrame:
    """How many times longer the plain loop takes than stacked training, per model, and stacked training with the op's reference
    backend than with its fast one (``op_``).

    Raises:
        AssertionError: if the two disagree by more than 1e-6 in any parameter.
    """
    torch.set_num_threads(1)
    rows = []
    for spec in specs:
        plain = [plain_fit(spec, dataset, protocol, seed) for seed in seeds]
        stacked = fit(spec, dataset, protocol, seeds)
        for r, one in enumerate(plain):
            torch.testing.assert_close(stacked.flat[r], one.flat, rtol=1e-6, atol=1e-8)
        row: dict[str, object] = {"dataset": dataset.name, "model": spec.name, "seeds": len(seeds)}
        totals = {"plain": 0.0, "stacked": 0.0}
        for phase in ("training", "validation"):
            times = {"plain": sum(one.seconds[phase] for one in plain), "stacked": stacked.seconds[phase]}
            for name, value in times.items():
                totals[name] += value
            row[f"{phase}_ratio"] = times["plain"] / times["stacked"]
        row["total_ratio"] = totals["plain"] / totals["stacked"]
        if any(isinstance(layer, FDNLinear) for layer in stacked.stack.network.layers):  # the same stacked training with the op's definition in place of its fast path
            with mock.patch.object(FDNLinear, "backend", "reference"):
                reference = fit(spec, dataset, protocol, seeds)
            torch.testing.assert_close(stacked.flat, reference.flat, rtol=1e-6, atol=1e-8)
            for phase in ("training", "validation"):
                row[f"op_{phase}_ratio"] = reference.seconds[phase] / stacked.seconds[phase]
        rows.append(row)
    return pd.DataFrame(rows)
