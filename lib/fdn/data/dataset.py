"""The one type that every data source returns and every model is trained on."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fdn.errors import UserError

ARRAYS = ("x_train", "y_train", "x_val", "y_val", "x_test", "y_test", "id_val", "id_test")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Train, validation and test arrays of one regression task, with ID/OOD flags and provenance.

    Inputs and targets are float64 as the models see them: standardised for real data, raw for toy tasks.
    ``x * x_std + x_mean`` and ``y * y_std + y_mean`` return to the original units, which are given in
    brackets in ``feature_names`` and ``target_name``. The training points are all in-distribution.

    Raises:
        ValueError: if the shapes of the arrays do not fit together.
        UserError: if the name is not text, or holds control characters.
    """

    name: str
    x_train: np.ndarray  # (N_train, d)
    y_train: np.ndarray  # (N_train,)
    x_val: np.ndarray  # (N_val, d)
    y_val: np.ndarray  # (N_val,)
    x_test: np.ndarray  # (N_test, d)
    y_test: np.ndarray  # (N_test,)
    id_val: np.ndarray  # (N_val,) bool: the points that decide the checkpoint
    id_test: np.ndarray  # (N_test,) bool
    feature_names: tuple[str, ...]
    target_name: str
    split_feature: int  # column whose band separates ID from OOD
    x_mean: np.ndarray  # (d,)
    x_std: np.ndarray  # (d,)
    y_mean: float
    y_std: float
    true_function: Callable[[np.ndarray], np.ndarray] | None = None  # elementwise; toy tasks only
    source: str = ""  # where the data come from, licence, checksum
    weight_train: np.ndarray | None = None  # (N_train,), of the training points in the loss, 1 on average

    def __post_init__(self) -> None:
        if (
            not isinstance(self.name, str)
            or not self.name.strip()
            or any(unicodedata.category(c) in ("Cc", "Cs") for c in self.name)
        ):
            raise UserError(
                f"a data set cannot be named {self.name!r}; expected text on one line, without control characters"
            )
        d = len(self.feature_names)
        for part in ("train", "val", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if x.shape != (len(y), d) or y.ndim != 1:
                raise ValueError(f"x_{part} {x.shape} and y_{part} {y.shape} should be (N, {d}) and (N,)")
        if self.weight_train is not None and self.weight_train.shape != self.y_train.shape:
            raise ValueError(f"weights {self.weight_train.shape} should be {self.y_train.shape}")
        for flags, y in ((self.id_val, self.y_val), (self.id_test, self.y_test)):
            if flags.shape != y.shape or flags.dtype != bool:
                raise ValueError(f"ID flags {flags.shape} of {flags.dtype} should be {y.shape} of bool")
        if self.x_mean.shape != (d,) or self.x_std.shape != (d,):
            raise ValueError(f"x_mean {self.x_mean.shape} and x_std {self.x_std.shape} should be ({d},)")
        if not 0 <= self.split_feature < d:
            raise ValueError(f"split_feature {self.split_feature} should lie in 0..{d - 1}")

    def __repr__(self) -> str:
        return (
            f"Dataset({self.name}: {len(self.y_train)} train, {len(self.y_val)} validation "
            f"({self.id_val.sum()} ID), {len(self.y_test)} test ({self.id_test.sum()} ID), "
            f"{self.n_features} feature{'s' * (self.n_features > 1)})"
        )

    @property
    def n_features(self) -> int:
        """Number of input columns d."""
        return len(self.feature_names)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that a training run and its evaluation see of the data.

        Names, shapes and values of the inputs, targets and ID flags enter, the values rounded to six
        decimals: the last bits of a sine or a mean differ between processors and are no other data set.
        """
        digest = hashlib.sha256()
        for name in ARRAYS:
            values = np.round(getattr(self, name).astype("<f8"), 6) + 0.0  # + 0.0: no negative zeros
            digest.update(f"{name}{values.shape}".encode())
            digest.update(values.tobytes())
        return digest.hexdigest()
