from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fake_results import nasty_folder
from projects import OVERVIEW, TRAINING, do, write_pair

from fdn import paths
from fdn.data import uci
from fdn.report.pages import readme
from fdn.workflow import engine, study

tmp_path = nasty_folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with small notebooks, without results, without UCI files and without a network."""
    root = tmp_path / "project"
    for name in ("PUBLISHED_TABLES", "REASONS"):
        place = root / getattr(paths, name).relative_to(paths.ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(getattr(paths, name), place)
    places = {"ROOT": "", "NOTEBOOKS": "notebooks", "COMMITTED_RESULTS": "data/results", "FIGURES": "figures",
              "DATA_RAW": "data/raw", "DEFAULT_OUT": "out", "COMPARISON": "data/comparison",
              "CLAIMS": "data/claims", "EXTRAS": "data/extras"}  # fmt: skip
    for name, place in places.items():
        monkeypatch.setattr(paths, name, root / place)
    monkeypatch.setattr(uci, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setenv("FDN_ROOT", str(root))  # for the kernels and jobs
    monkeypatch.setenv("FDN_OFFLINE", "1")
    monkeypatch.delenv("FDN_DATA_DIR", raising=False)
    for name in ("03_toy", "04_uci"):
        write_pair(root / "notebooks", name, TRAINING)
    write_pair(root / "notebooks", study.OVERVIEW, OVERVIEW)
    for page in (root / "README.md", root / "docs" / "results.md"):
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"# A title\n\n{readme.BEGIN}\n{readme.END}\n", encoding="utf-8")
    return root


@pytest.fixture
def steps(monkeypatch):
    """What a stand-in for Snakemake did, and the names of steps that are to fail."""
    done, failing = [], []

    def run(out: Path, profile: Path) -> bool:
        names, all_done = do(out, failing)
        done.extend(names)
        return all_done

    monkeypatch.setattr(engine, "_snakemake", run)
    return done, failing
