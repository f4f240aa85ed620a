"""The page of what all seeds say together, ``data/seeds/README.md``, and the curves behind it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.errors import UserError
from fdn.models import STOCHASTIC_MODELS
from fdn.protocol import PUBLISHED
from fdn.report import checkpoints, published, seeds
from fdn.runs import bands, experiment, extras, results


def gather(out: Path, to: Path, datasets: Sequence[str]) -> None:
    """Compute the bands of a run's data sets from the fits that it keeps, and write them to a results folder.

    The representative seed is that of all metrics of the folder they are written to, if it has some.

    Raises:
        UserError: if the run keeps no fits of these data sets.
    """
    metrics = extras.read(to if (to / "metrics.parquet").exists() else out)
    frames = []
    for name in datasets:
        runs = published.rows_of(metrics, dataset=name, model=STOCHASTIC_MODELS, protocol=PUBLISHED.label)
        if len(runs):
            seed = published.representative_seed(metrics, name)
            some = sorted(runs["seed"].unique())
            frames.append(bands.compute(out, experiment.load_dataset(name, PUBLISHED), STOCHASTIC_MODELS, some, seed))
    if not any(len(frame) for frame in frames):
        raise UserError(f"{out} keeps no fits of {', '.join(datasets)}; `fdn run` or `fdn paper` writes them there")
    bands.write(to, pd.concat(frames))


def write(folder: Path | None = None) -> Path:
    """Write the page from the committed results and curves, and return its path.

    Raises:
        UserError: if there are no curves.
    """
    curves = bands.load(paths.COMMITTED_RESULTS)
    if curves is None:
        raise UserError(f"{paths.COMMITTED_RESULTS} has no {bands.FILE}; `fdn seeds --results out` writes it")
    text = page(extras.read(paths.COMMITTED_RESULTS), curves)
    return results.write((paths.SEEDS if folder is None else folder) / "README.md", text)


def page(metrics: pd.DataFrame, curves: pd.DataFrame) -> str:
    """The page as Markdown."""
    datasets = [name for name in published.DATASETS if name in set(metrics["dataset"])]
    last = [checkpoints.last_table(metrics, name) for name in datasets]
    parts = [
        "# What all seeds say together",
        "Written by `fdn seeds` from the committed results and from curves over seeds, `data/results/bands.parquet`, "
        "which it makes of the fits that a run keeps. Protocol `published`; tables count their seeds.",
        "## Which epoch is kept",
        "After each epoch the models are scored on the validation points, and the epoch with the smallest CRPS is "
        "kept, while β, the weight of the KL term, still rises. The choice of the epoch is thus a choice of β. "
        + checkpoints.kept_sentence(metrics, datasets),
        checkpoints.kept_table(metrics, datasets).to_markdown(),
        "## The last epoch, and β held",
        checkpoints.last_sentence(metrics, datasets),
        *(table.to_markdown() for table in last if table.rows),
        "## Does Var say anything of the error of the mean?",
        seeds.bias_sentence(curves),
        seeds.bias_table(curves).to_markdown(),
        "## What intervals cover",
        *(seeds.interval_table(curves, name).to_markdown() for name in datasets if name in set(curves["dataset"])),
        "## Errors of the mean",
        seeds.error_table(metrics, datasets).to_markdown(),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"
