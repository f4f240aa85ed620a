"""What the recommended protocol leaves open, chosen from the training and validation rows alone.

Beta decides how far the weights follow the data, and no one value suits all: sharp predictions inside want a small one,
honest ones outside or from few rows a large one. Rows outside of the data there are none to learn from, but the outer
part of what there is can play them: every beta is tried on the inner rows, and judged on others, inner and outer.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import torch

from fdn import metrics
from fdn.data.dataset import Dataset
from fdn.devices import CPU
from fdn.models import ModelSpec
from fdn.protocol import Protocol
from fdn.training.loop import fit

BETAS = (1e-3, 3e-3, 1e-2, 3e-2)
NETWORKS = 3  # of a rehearsal
OUTER, INNER_TEST = 0.2, 0.2  # shares of the rows
MOST_ROWS = 1000


def rehearsal(dataset: Dataset, outward: np.ndarray | None = None) -> Dataset:
    """The training and validation rows as a task of their own: train and validate inside, test inside and outside.

    Args:
        outward: how far out each of these rows lies, ``(N_train + N_val,)``; by default by the split feature, from the
            median to both ends. Of rows that lie equally far all are outside, or none.
    """
    inside = dataset.id_val
    x = np.concatenate([dataset.x_train, dataset.x_val[inside]])
    y = np.concatenate([dataset.y_train, dataset.y_val[inside]])
    if outward is None:
        outward = np.abs(pd.Series(x[:, dataset.split_feature]).rank(pct=True).to_numpy() - 0.5)
    rows = np.random.default_rng(0).permutation(len(y))[:MOST_ROWS]
    far = pd.Series(-outward[rows]).rank(method="max", pct=True).to_numpy() <= OUTER  # (n,)
    near = rows[~far]
    n_test = max(1, int(INNER_TEST * len(near)))
    n_val = max(1, min(n_test, int(len(dataset.y_val[inside]) / len(y) * len(near))))
    test, val, train = np.split(near, [n_test, n_test + n_val])
    test = np.concatenate([test, rows[far]])
    return dataclasses.replace(
        dataset, name=f"{dataset.name}, rehearsed", x_train=x[train], y_train=y[train], x_val=x[val], y_val=y[val],
        x_test=x[test], y_test=y[test], id_val=np.full(len(val), True), id_test=np.arange(len(test)) < n_test,
        weight_train=None,
    )  # fmt: skip


def rehearsed(
    spec: ModelSpec, dataset: Dataset, protocol: Protocol, device: torch.device = CPU, outward: np.ndarray | None = None
) -> pd.DataFrame:
    """Mean CRPS of every beta in a rehearsal, one row a beta, columns ``"inside"`` and ``"outside"``.

    Half of the epochs and ``NETWORKS`` networks do: it is the order that counts.
    """
    task = rehearsal(dataset, outward)
    spec = dataclasses.replace(spec, members=min(NETWORKS, spec.members))
    protocol = dataclasses.replace(protocol, epochs=max(1, protocol.epochs // 2))
    fitted, found = fit(spec, task, protocol, range(len(BETAS)), device=device, betas=BETAS), []
    for seed in fitted.seeds:
        scores = metrics.crps(fitted.observed(seed, task.x_test).double().numpy(), task.y_test)  # (N,)
        found.append({"inside": scores[task.id_test].mean(), "outside": scores[~task.id_test].mean()})
    return pd.DataFrame(found, index=pd.Index(BETAS, name="beta"))


def chosen(
    spec: ModelSpec, dataset: Dataset, protocol: Protocol, device: torch.device = CPU, outward: np.ndarray | None = None
) -> Protocol:
    """The protocol with the beta whose CRPS, inside times outside, is the smallest in a rehearsal.

    The product weighs proportions: a tenth less inside is worth a tenth less outside, whatever their sizes.
    """
    scores = rehearsed(spec, dataset, protocol, device, outward)
    return dataclasses.replace(protocol, beta_max=float(np.log(scores).sum(axis=1).idxmin()))
