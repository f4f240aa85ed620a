"""Models of few units and a data set of two inputs, for tests that train."""

from __future__ import annotations

import numpy as np

from fdn import data
from fdn.data.dataset import Dataset
from fdn.models import ModelSpec

SMALL = {"warmup": 3, "eval_draws": 7, "ensemble_members": 2}


def small(name: str) -> ModelSpec:
    """The model with few units."""
    hyper = 3 if "Hyper" in name or "FDN" in name else None
    latent = 2 if name == "GaussHyperNet" else None
    return ModelSpec(name, (6,), hyper, latent, members=2 if name == "DeepEnsembleNet" else 1)


def toy2(n_train: int) -> Dataset:
    """So many training points of a function of two inputs."""
    n = 4 * n_train
    x = np.random.default_rng(0).uniform(-1, 1, (n, 2))
    fractions = (n_train + 0.5) / (0.6 * n), 0.2
    return data.feature_band_split(x, np.sin(3 * x[:, 0]) + x[:, 1], name="toy2", fractions=fractions)
