"""The page for choosing task, model and seed: function and band, MSE against Var, risk and coverage.

Its numbers lie in ``data/explore``, a file per toy task. They are made by ``fdn run --dataset step,sine,quad
--seeds 0:10 --out FOLDER``, then ``python -m fdn.report.site.explore FOLDER``.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np

from fdn import paths
from fdn.data import TOY
from fdn.models import MODELS, PAPER_MODELS
from fdn.report.published import rows_of
from fdn.report.site.base import PROTOCOL, Site
from fdn.runs import results
from fdn.runs.bands import rounded

FOLDER = paths.ROOT / "data" / "explore"
NUMBERS = ("spearman", "slope_b", "aurc")
FINE, COARSE, NEAR = 2, 10, 2.0  # every which test point is kept where abs(x) <= NEAR, and elsewhere
DIGITS = 4


def write(site: Site) -> None:
    """Write the page and the numbers it loads."""
    files = [FOLDER / f"{task}.json" for task in TOY]
    (site.source / "explore").mkdir()
    shutil.copytree(FOLDER, site.source / "data" / "explore", dirs_exist_ok=True)
    for path in files:
        text = path.read_text(encoding="utf-8").strip()
        script = site.source / "explore" / f"{path.stem}.js"  # a script loads from a disk as well, a JSON does not
        script.write_text(f"fdnExplore({json.dumps(path.stem)}, {text});\n", encoding="utf-8")
    seeds = sorted(map(int, json.loads(files[0].read_text(encoding="utf-8"))["models"][PAPER_MODELS[0]]))
    colours = {model: MODELS[model].style[0] for model in PAPER_MODELS}
    site.render("explore.md", tasks=list(TOY), models=PAPER_MODELS, shown=seeds, colours=colours)


def collect(out: Path, target: Path = FOLDER) -> list[Path]:
    """Keep of a results folder's toy tasks what the page shows; returns the written files."""
    metrics = rows_of(results.load_metrics(out), protocol=PROTOCOL)
    written = []
    for task in [name for name in TOY if name in set(metrics["dataset"])]:
        runs = rows_of(metrics, dataset=task, model=PAPER_MODELS)
        models: dict[str, dict[str, object]] = {}
        for model, seed in runs[["model", "seed"]].itertuples(index=False):
            points = results.load_points(out, task, model, PROTOCOL, seed).sort_values("z", ignore_index=True)
            points["weight"] = np.where(points["z"].abs() <= NEAR, FINE, COARSE)
            kept = points[points.index % points["weight"] == 0]
            shown = {"numbers": rows_of(runs, model=model, seed=seed)[list(NUMBERS)].iloc[0],
                     "error": kept["mean"] - kept["y"], "var": kept["var"]}  # fmt: skip
            models.setdefault(model, {})[str(seed)] = {name: rounded(some, DIGITS) for name, some in shown.items()}
        inside = kept.loc[kept["region"] == "ID", "z"]
        shared = {"x": rounded(kept["z"], DIGITS), "y": rounded(kept["y"], DIGITS),
                  "band": [inside.min(), inside.max()], "weight": kept["weight"].tolist()}  # fmt: skip
        target.mkdir(parents=True, exist_ok=True)
        path = target / f"{task}.json"
        path.write_text(json.dumps(shared | {"models": models}, separators=(",", ":")) + "\n", encoding="utf-8")
        written.append(path)
    return written


if __name__ == "__main__":
    for path in collect(Path(sys.argv[1])):
        print(path)
