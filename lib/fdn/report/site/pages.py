"""The site's pages as Markdown: every number in them is read from a results folder.

The sources are laid out as the repository is, so that links between its pages hold in the site as well.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pandas as pd

from fdn import paths
from fdn.report.comparison import misses
from fdn.report.published import score
from fdn.report.site import claims, datasets, explore, guides, markup, notebooks
from fdn.report.site.base import Site
from fdn.report.site.glossary import TERMS
from fdn.report.site.public import ENTRIES
from fdn.runs import experiment, results

PACKAGES = ("fdn_kernels", "fdn")
NOT_DOCUMENTED = ("__main__", "fdn.report.site.conf")


def write(folder: Path, source: Path) -> None:
    """Write the sources of all pages, and the data and figures they link to, below ``source``.

    Args:
        folder: a results folder.
        source: an empty folder.

    Raises:
        FileNotFoundError: if the folder holds no results.
        UserError: if it holds none of the published protocol.
    """
    site = Site.of(folder, source)
    found = claims.statements()
    datasets.write(site, found)
    explore.write(site)
    written = notebooks.write(site)
    copied = guides.write(site)
    claims.write(site, found)
    _api(site)
    _provenance(site)
    site.render("start.md", here=experiment.environment(), citation=_citation())
    site.render("glossary.md", terms=TERMS)
    _index(site, found, notebooks=written, **copied)


def modules() -> list[str]:
    """Every module of the project whose documentation the site shows."""
    names = []
    for package in map(importlib.import_module, PACKAGES):
        found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        names += [package.__name__, *(module.name for module in found)]
    return [name for name in names if not name.endswith(NOT_DOCUMENTED)]


def _index(site: Site, found: list[claims.Statement], **pages: object) -> None:
    """The front page: the verdict and the findings are those of README and ``docs``, the numbers of the results."""
    said = {"verdict": ("README.md", guides.VERDICT), "figure": ("README.md", guides.FIGURE),
            "findings": ("docs/score.md", guides.FINDINGS)}  # fmt: skip
    reasons = misses(site.comparison)["reason"]
    known = len(reasons) and (reasons != "").all()
    gpu = (paths.ROOT / "data" / "gpu" / "README.md").read_text(encoding="utf-8")
    site.render(
        "index.md", **{name: guides.passage(site, *where) for name, where in said.items()},
        counts=claims.counts(found), first=_first(site), n_statements=len(found),
        on_gpu="Not run yet" not in gpu,  # until `make gpu`
        n_open=reasons.str.startswith("Open").sum() if known else None,
        op=pd.read_csv(paths.ROOT / "data" / "benchmark" / "op.csv")["ratio"],
        competitive=[one for one in found if "ID-competitive" in one.words], **pages,
    )  # fmt: skip


def _citation() -> dict[str, str]:
    """Fields of CITATION.cff."""
    text = (paths.ROOT / "CITATION.cff").read_text(encoding="utf-8")
    field = lambda name: re.search(rf'^[ -]*{name}: "?([^"\n]+)"?$', text, re.MULTILINE).group(1)
    return {"title": field("title"), "author": field("name"), "version": field("version"), "license": field("license")}


def _first(site: Site) -> dict[str, dict[str, float]]:
    """Per data set, the score of the seeds that `fdn paper` computes, where there are further ones."""
    seeds = site.first.groupby("dataset")["n_seeds"].max()
    rows = {row["name"]: row | {"seeds": seeds[row["name"]]} for row in score(site.first).to_dict("records")
            if row["by"] == "dataset"}  # fmt: skip
    return {} if site.first["n_seeds"].equals(site.comparison["n_seeds"]) else rows


def _api(site: Site) -> None:
    rows = []
    for name in modules():
        rows.append((name, _plain((inspect.getdoc(importlib.import_module(name)) or "").split("\n\n")[0])))
        site.render(f"api/{name}.md", "api/module.md", module=name)
    site.render("api/public.md", entries=ENTRIES)
    site.render("api/index.md", modules=rows, public=[(entry.name, _plain(entry.summary)) for entry in ENTRIES])


def _plain(text: str) -> str:
    """A line of a docstring for Markdown, which knows no roles."""
    return re.sub(r":[\w:]+:`~?([^`]+)`", r"`\1`", text.replace("``", "`").replace("\n", " "))


def _provenance(site: Site) -> None:
    environments, blocks = [], []
    for sidecar in results.read_sidecars(site.results):
        environment = sidecar["environment"]
        if environment not in environments:
            environments.append(environment)
        blocks.append({
            **{key: sidecar[key] for key in ("protocol", "dataset", "model")},
            "seeds": len(sidecar["seeds"]), "environment": environments.index(environment) + 1, **sidecar["seconds"],
        })  # fmt: skip
    columns = ["Number", "Commit", "Python", "Platform", "Processor", "Cores", "Threads", "Packages"]
    rows = [
        [number, *(it.get(key) for key in ("commit", "python", "platform", "processor", "cores", "threads")),
         ", ".join(f"{name} {version}" for name, version in it.get("packages", {}).items())]
        for number, it in enumerate(environments, 1)
    ]  # fmt: skip
    times = ""
    if blocks:
        frame = pd.DataFrame(blocks)
        site.csv(frame, "provenance/run_times.csv")
        times = markup.sortable_table(
            "run-times", "Run times, one thread, summed over blocks of seeds", *_run_times(frame), heads=3
        )
    environments_table = markup.sortable_table(
        "environments", "Environments that the results were computed in", columns, rows
    )
    site.render(
        "provenance.md", here=experiment.environment(), numerics=results.NUMERICS,
        environments=environments_table, times=times, hours=sum(block["total"] for block in blocks) / 3600,
    )  # fmt: skip


def _run_times(blocks: pd.DataFrame) -> tuple[list[str], list[list[markup.Cell]]]:
    """Columns and rows of the seconds of every phase, a row per protocol, data set and model."""
    key = ["protocol", "dataset", "model"]
    phases = [name for name in blocks.columns if name not in {*key, "seeds", "environment", "total"}]
    grouped = blocks.groupby(key, sort=False)
    used = grouped["environment"].agg(lambda numbers: ", ".join(map(str, sorted(set(numbers)))))
    sums = grouped[["seeds", *phases, "total"]].sum().assign(used=used)
    rows = [
        [*names, seeds, *seconds, total, total / seeds, used]
        for names, seeds, *seconds, total, used in sums.itertuples(name=None)
    ]
    headings = ["Protocol", "Data set", "Model", "Seeds", *(f"{name.capitalize()} [s]" for name in phases)]
    return [*headings, "Total [s]", "Per seed [s]", "Environment"], rows
