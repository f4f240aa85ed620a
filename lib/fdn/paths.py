"""Where things lie, whatever directory the reader, papermill or pytest runs in.

An empty environment variable (FDN_ROOT, FDN_DATA_DIR, FDN_OFFLINE) counts as unset, as in a shell.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
from pathlib import Path

_GIVEN = os.environ.get("FDN_ROOT")
CHECKOUT = Path(_GIVEN or Path(__file__).resolve().parents[2]).absolute()  # of the repository, if this is one


def in_checkout() -> bool:
    """Whether the repository's own files are at hand; an installed package has them where FDN_ROOT names a checkout."""
    return (CHECKOUT / "data" / "published_tables.csv").is_file()  # no other project has it


def report() -> Path:
    """The notebook behind ``fdn report``, which an installed package has too."""
    installed = Path(sysconfig.get_path("data"), "share", "fdn")
    return (NOTEBOOKS if in_checkout() else installed) / "09_your_data.ipynb"


ROOT = CHECKOUT if _GIVEN or in_checkout() else Path.cwd()  # an installed package writes to where it is called
DATA_RAW = ROOT / "data" / "raw"  # UCI files the user puts here; ignored by git
COMMITTED_RESULTS = ROOT / "data" / "results"
PUBLISHED_TABLES = ROOT / "data" / "published_tables.csv"
COMPARISON = ROOT / "data" / "comparison"  # published against reproduced, with the reasons kept by hand
REASONS = COMPARISON / "reasons.csv"
CLAIMS = ROOT / "data" / "claims"  # the paper's sentences, judged
EXTRAS = ROOT / "data" / "extras"  # runs beyond the published tables: other protocols, objectives, models
SEEDS = ROOT / "data" / "seeds"  # the page of what all seeds say together
LAYERS = ROOT / "data" / "layers"  # FDN layers in networks that were trained without them
RIVALS = ROOT / "data" / "rivals"  # FDN as recommended beside what people use
FIGURES = ROOT / "figures"
NOTEBOOKS = ROOT / "notebooks"
DEFAULT_OUT = ROOT / "out"  # where runs write; ignored by git


_LONGEST = 200  # bytes of a segment, of the 255 that file systems take: suffixes and temporary names need some


def segment(name: str) -> str:
    """Any name as one segment of a path: itself if it is short and legal, else its beginning and a hash.

    A legal name has no slash and no control character, and neither begins nor ends with a dot or a blank. Two names
    never share a segment: one that looks like a shortened name is shortened too.

    >>> segment("published+warmup=50"), segment("2024/05")
    ('published+warmup=50', '2024_05~4f6e1bad2f48')
    """
    encoded = name.encode("utf-8", "surrogatepass")
    odd = re.search(r"[\x00-\x1f\x7f/\ud800-\udfff]|^[.\s]|[.\s]$|^$|~[0-9a-f]{12}$", name)
    if len(encoded) <= _LONGEST and not odd:
        return name
    start = re.sub(r"[\x00-\x1f\x7f/\ud800-\udfff]", "_", name).strip(" .").encode()[:100].decode(errors="ignore")
    return f"{start}~{hashlib.sha256(encoded).hexdigest()[:12]}"


def program() -> list[Path]:
    """The files of this package: a table, figure or notebook older than one of them is made anew."""
    return sorted(Path(__file__).parent.rglob("*.py"))
