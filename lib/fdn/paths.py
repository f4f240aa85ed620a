"""Where things lie, whatever directory the reader, papermill or pytest runs in.

Of our environment variables, FDN_ROOT, FDN_DATA_DIR and FDN_OFFLINE, an empty one counts as unset, as in a shell.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(os.environ.get("FDN_ROOT") or Path(__file__).resolve().parents[2])
DATA_RAW = ROOT / "data" / "raw"  # UCI files the user puts here; ignored by git
COMMITTED_RESULTS = ROOT / "data" / "results"
PUBLISHED_TABLES = ROOT / "data" / "published_tables.csv"
COMPARISON = ROOT / "data" / "comparison"  # published against reproduced, with the reasons kept by hand
REASONS = COMPARISON / "reasons.csv"
CLAIMS = ROOT / "data" / "claims"  # the paper's sentences, judged
EXTRAS = ROOT / "data" / "extras"  # runs beyond the published tables: other protocols, objectives, models
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
DEFAULT_OUT = ROOT / "out"  # where runs write; ignored by git


def program() -> list[Path]:
    """The files of this package: a table, figure or notebook older than one of them is made anew."""
    return sorted(Path(__file__).parent.rglob("*.py"))
