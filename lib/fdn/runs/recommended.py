"""FDN as recommended beside its rivals, and the steps that lead there from the published model.

Read from ``data/rivals``: the rows "FDN, recommended" of the rivals' table, and a folder for each other study.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fdn.data.dataset import Dataset
from fdn.models import model_spec
from fdn.protocol import PUBLISHED, RECOMMENDED, Protocol
from fdn.runs import rivals
from fdn.training import recipe
from fdn.training.loop import fit

FDN, MODEL = "FDN, recommended", "LP-FDNet"
PLAIN = "without FDN layers: plain networks of that width"

# The recommended protocol less one of its settings each
WITHOUT: Mapping[str, Mapping[str, Any]] = {
    "nothing left out": {},
    "without the small start": {"init_sigma": None},
    "without fresh noise": {"noise": "shared"},
    "without noise of its own for each input": {"likelihood": "learned"},
    "without fitted noise": {"fit_noise": False},
    "without bounded hypernetworks": {"hyper_activation": "relu"},
    "without the mixture": {"networks": 1},
    "without the rate's cycle": {"rate_schedule": "constant", "learning_rate": 1e-3},
    "with beta of the paper's weight": {"beta_max": 1.0},
    PLAIN: {"epochs": RECOMMENDED.epochs * RECOMMENDED.networks},  # `fit` divides these among members
}


def _path() -> dict[str, Protocol]:
    """From the published model to the recommended one, a change at a time."""
    steps = [
        ("published", {}),
        ("+ small start, prior by fan-in", {"init_sigma": "auto", "prior_scale": "fan_in"}),
        ("+ fresh noise for each example", {"noise": "independent"}),
        ("+ noise that is learned, for each input", {"likelihood": "heteroscedastic", "score": "observation"}),
        ("+ chosen beta, no warm-up", {"beta_max": "auto", "beta_schedule": "constant"}),
        ("+ width 50, hypernetworks of 8, cycle of the rate, no clipping", {
            "width": 50, "hyper": 8, "rate_schedule": "one_cycle", "learning_rate": 3e-3, "epochs": 300,
            "most_updates": 3000, "clip_norm": None, "dtype": "float32", "look": 5}),
        ("+ bounded hypernetworks", {"hyper_activation": "tanh"}),
        ("+ five networks", {"networks": 5}),
        ("+ fitted noise = recommended", {"fit_noise": True}),
    ]  # fmt: skip
    protocols, now = {}, PUBLISHED
    for name, changes in steps:
        protocols[name] = now = replace(now, **changes)
    return protocols


PATH = _path()


def protocols(study: str | None, dataset: Dataset) -> Mapping[str, Protocol]:
    """What a study compares on a data set, by name; without a study the recommended protocol alone.

    Args:
        study: ``"path"``, from the published protocol to the recommended one; ``"without"``, one of its settings left
            out, beta being that which is chosen with all of them; ``"beta"``, beta varied.
    """
    if study == "path":
        return PATH
    if study == "beta":
        return {f"beta {beta:g}": replace(RECOMMENDED, beta_max=beta) for beta in (*recipe.BETAS, 0.1)}
    if study is None:
        return {FDN: RECOMMENDED}
    whole = recipe.chosen(model_spec(MODEL, dataset.n_features, RECOMMENDED), dataset, RECOMMENDED)
    return {name: replace(whole, **changes) for name, changes in WITHOUT.items()}


def study(dataset: Dataset, name: str, protocol: Protocol, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Rows of metrics of every seed, trained as one stack.

    Seconds are of processor time: to fit, the stack's divided by its seeds, with the choice of beta, which all share,
    counted in full.
    """
    spec, start = model_spec(MODEL, dataset.n_features, protocol), time.process_time()
    if name == PLAIN:
        spec = replace(spec, name="DeepEnsembleNet", hyper=None)
    if protocol.beta_max == "auto":
        protocol = recipe.chosen(spec, dataset, protocol)
    choice = time.process_time() - start
    start = time.process_time()
    fitted = fit(spec, dataset, protocol, seeds)
    fit_s = choice + (time.process_time() - start) / len(seeds)
    rows = []
    for seed in seeds:
        start = time.process_time()
        prediction = fitted.predict(seed, dataset.x_test)
        draws, variance = prediction.draws.double().numpy(), prediction.noise_variance.double().numpy()  # (K, N)
        quantiles, mean, log_density = rivals.mixture(draws, variance)
        seconds = {"fit_s": fit_s, "predict_s": time.process_time() - start, "chosen": f"beta {protocol.beta_max:g}"}
        of = {"dataset": dataset.name, "method": name, "seed": seed}
        density = log_density(dataset.y_test) if log_density else None
        rows += [of | row | seconds for row in rivals.measured(dataset, quantiles, mean, density)]
    return rows


def run(dataset: Dataset, compared: Mapping[str, Protocol], seeds: Sequence[int], folder: Path) -> None:
    """Compute and record what is not in the table yet, a protocol at a time."""
    for label, protocol in compared.items():
        there = rivals.load(folder)
        done = set(there.loc[there["dataset"].eq(dataset.name) & there["method"].eq(label), "seed"])
        if missing := [seed for seed in seeds if seed not in done]:
            print(dataset.name, label, flush=True)
            rivals.record(study(dataset, label, protocol, missing), folder)
