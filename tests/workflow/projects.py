"""Small notebooks, and a stand-in for Snakemake that does a plan's steps at once."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import jupytext
from fake_results import write_results

from fdn.arguments import parse_seeds
from fdn.workflow import study as graph

TRAINING = """# %% tags=["parameters"]
dataset: str = "step"  # data set
models: str = "LP-FDNet"  # names
seeds: str = "0:5"  # seeds
protocol: str = "published"  # settings
epochs: int = 0  # 0: the protocol's
recompute: bool = False  # train
out: str = ""  # folder

# %%
from fdn.runs import experiment
from fdn.arguments import parse_protocol, parse_seeds

settings = parse_protocol(protocol, epochs=epochs or None)
frame = experiment.run([dataset], models.split(","), parse_seeds(seeds), settings, out, workers=1)
len(frame)
"""

OVERVIEW = """# %% tags=["parameters"]
out: str = ""  # folder
protocol: str = "published"  # settings

# %%
import sys
from pathlib import Path
import pandas as pd
from fdn import paths

frame = pd.read_parquet((Path(out) if out else paths.COMMITTED_RESULTS) / "metrics.parquet")
print(len(frame), "rows of", paths.ROOT / "somewhere", "by", sys.executable, object())
"""


def write_pair(folder: Path, name: str, script: str) -> None:
    notebook = jupytext.reads(script, "py:percent")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for i, cell in enumerate(notebook.cells):
        cell.id = f"cell-{i}"
    folder.mkdir(parents=True, exist_ok=True)
    jupytext.write(notebook, folder / f"{name}.ipynb")
    jupytext.write(notebook, folder / f"{name}.py", fmt="py:percent")


def finish(step: graph.Step, out: Path) -> None:
    """Leave the mark of a step, and a product if there is none."""
    (out / step.mark).parent.mkdir(parents=True, exist_ok=True)
    (out / step.mark).write_text(step.words, encoding="utf-8")
    if step.product and not (out / step.product).exists():
        (out / step.product).parent.mkdir(parents=True, exist_ok=True)
        (out / step.product).touch()


def do(out: Path, failing: Collection[str] = ()) -> tuple[list[str], bool]:
    """The steps done of the plan in a folder, with random cells, and whether none of those ``failing`` was needed."""
    study, done = graph.read(out), []
    pieces = {piece.name: piece for piece in study.pieces}
    for step in study.steps:
        mark, needs = (
            out / step.mark,
            [out / study_step.mark for study_step in study.steps if study_step.name in step.needs],
        )
        if not all((out / s.mark).exists() for s in study.steps if s.name in (*step.needs, *step.follows)):
            continue
        if mark.exists() and all(need.stat().st_mtime_ns <= mark.stat().st_mtime_ns for need in needs):
            continue
        log = out / step.log
        log.parent.mkdir(parents=True, exist_ok=True)
        if step.name in failing:
            log.write_text("a warning\nfdn: some cells could not be computed:\nwhy\n", encoding="utf-8")
            continue
        log.touch()
        if piece := pieces.get(step.name):
            write_results(out, [piece.dataset], piece.models, parse_seeds(piece.seeds), study.label)
        finish(step, out)
        done.append(step.name)
    return done, all((out / step.mark).exists() for step in study.steps)
