"""Results folders for tests of what comes after training: cells of random draws, written in milliseconds."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fdn import data, metrics
from fdn.runs import results

# The name of a folder, and a template, a pattern and a quotation to others
NASTY = "we{i}rd {{name}} [a] %s 'q' \"d\" $X ~ #1 ü"
SIDECAR = {"seconds": {"total": 1.23456}, "environment": {"python": "3.11", "argv": ["fdn", "/some/folder"]}}


@pytest.fixture
def nasty_folder(tmp_path: Path) -> Path:
    """A folder whose name no part of the program may take for more than a name."""
    folder = tmp_path / NASTY
    folder.mkdir()
    return folder


def write_results(
    out: Path,
    datasets: Iterable[str],
    models: Iterable[str],
    seeds: Iterable[int],
    protocol: str = "published",
) -> pd.DataFrame:
    """Cells, points, sidecars and metrics of every combination."""
    for name in datasets:
        dataset = data.load(name)
        for model in models:
            for seed in seeds:
                rng = np.random.default_rng([seed, zlib.crc32(model.encode())])
                spread = 0.1 + np.abs(dataset.x_test[:, dataset.split_feature])  # (N,)
                draws = dataset.y_test + spread * rng.normal(size=(5, len(dataset.y_test)))  # (K, N)
                key = {"dataset": name, "model": model, "protocol": protocol, "seed": seed}
                row = key | metrics.summary(draws, dataset.y_test, dataset.id_test)
                row |= {"best_epoch": 1, "n_params": 1000, "n_draws": len(draws)}
                points = pd.DataFrame({
                    "z": dataset.x_test[:, dataset.split_feature],
                    "y": dataset.y_test,
                    "region": np.where(dataset.id_test, "ID", "OOD"),
                    **metrics.pointwise(draws, dataset.y_test),
                })  # fmt: skip
                results.write_cell(out, row, points, dataset.fingerprint)
            results.write_sidecar(out, name, model, protocol, {"seeds": list(seeds), **SIDECAR})
    return results.collect(out)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
