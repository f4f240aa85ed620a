"""A convolutional classifier of scikit-learn's digits whose head becomes an FDN layer; its test digits are rotated."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor, nn

from fdn.nn import sample
from fdn.runs.adapters import LOW_RANK, Fitted, Task, Variant

ANGLES = tuple(range(0, 91, 15))  # degrees
TEMPERATURES = np.geomspace(0.5, 2, 17)
VARIANTS = {  # layers of `classifier`
    "FDN head": Variant(["9"]),
    "FDN adapter, last two": Variant(["7", "9"], LOW_RANK),
}


def classifier(rate: float = 0.0) -> nn.Sequential:
    """Two convolutions, each with pooling, and two linear layers, ``"7"`` and ``"9"``, the head."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # (B, 8, 4, 4)
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),  # (B, 16, 2, 2)
        nn.Sequential(nn.Flatten(), nn.Dropout(rate)), nn.Linear(64, 32),
        nn.Sequential(nn.ReLU(), nn.Dropout(rate)), nn.Linear(32, 10),
    )  # fmt: skip


def expected_calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """Distance between confidence and accuracy in equal bins of confidence, of probabilities ``(N, C)``.

    ECE = sum over bins of (share of the points) |accuracy - mean confidence|, between 0, the best, and 1.

    >>> round(expected_calibration_error(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])), 6)
    0.45

    Source: C. Guo et al., On calibration of modern neural networks, 2017, equation (3).
    """
    confidence, said = probabilities.double().max(-1)
    gap = (said == labels).double() - confidence  # (N,)
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1  # of (0, 1/15], (1/15, 2/15], ...
    return float(gap.new_zeros(bins).index_add(0, bin_of, gap).abs().sum() / len(labels))


def tempered(draws: Tensor, temperature: float) -> Tensor:
    """Mean over draws ``(K, N, C)`` of softmax(logits / temperature), ``(N, C)``."""
    return (draws.double() / temperature).softmax(-1).mean(0)


def score(draws: Tensor, labels: Tensor) -> tuple[float, float]:
    """NLL of labels ``(N,)`` under draws ``(K, N, C)``, and the temperature with which it would be least."""
    nll = [float(F.nll_loss(tempered(draws, t).log(), labels)) for t in (1.0, *TEMPERATURES)]
    return nll[0], float(TEMPERATURES[int(np.argmin(nll[1:]))])


def load() -> dict[str, tuple[np.ndarray, Tensor]]:
    """1,797 images ``(N, 8, 8)`` between 0 and 1 with labels, 60 : 20 : 20, the same for every seed."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    parts = np.split(np.random.default_rng(0).permutation(len(labels)), [1078, 1437])
    return {
        part: (images[rows].reshape(-1, 8, 8) / 16, torch.tensor(labels[rows]))
        for part, rows in zip(("train", "validation", "test"), parts)
    }


def as_input(images: np.ndarray) -> Tensor:
    """Images ``(N, 8, 8)`` as ``(N, 1, 8, 8)``."""
    return torch.tensor(images[:, None], dtype=torch.float32)


def nll(output: Tensor, labels: Tensor, _: float) -> Tensor:
    """Cross-entropy of each example; the temperature has no part in training."""
    return F.cross_entropy(output, labels, reduction="none")


def digits_task(epochs: int | None = None) -> Task:
    """The digits as a task."""
    parts = load()
    (x, y), (x_val, y_val) = ((as_input(images), labels) for images, labels in list(parts.values())[:2])
    return Task("digits", x, y, x_val, y_val, classifier, nll, score, measure, VARIANTS, (epochs or 20, epochs or 15))


def measure(fitted: Fitted) -> list[dict[str, Any]]:
    """A row for each angle by which the test digits are rotated; ``_tempered``: with the fitted temperature."""
    images, labels = load()["test"]
    rows = []
    for angle in ANGLES:
        turned = ndimage.rotate(images, angle, (2, 1), reshape=False, order=1)
        draws = _draws(fitted, as_input(turned))
        said = {kind: tempered(draws, t) for kind, t in (("", 1.0), ("_tempered", fitted.number))}
        row = {"angle": angle, "accuracy": float((said[""].argmax(-1) == labels).double().mean())}
        for kind, p in said.items():
            row[f"nll{kind}"] = float(F.nll_loss(p.clamp_min(1e-30).log(), labels))
            row[f"ece{kind}"] = expected_calibration_error(p, labels)
        rows.append(row)
    return rows


@torch.no_grad()
def _draws(fitted: Fitted, x: Tensor) -> Tensor:
    """As :meth:`Fitted.draws`; the convolutions hold no noise and run once for all draws."""
    return torch.cat([sample(net[6:], net[:6](x), fitted.each) for net in fitted.networks])
