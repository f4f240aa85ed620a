"""Data sets by name: toy tasks, UCI sets and a real set that needs no download.

>>> load("step")
Dataset(step: 1024 train, 512 validation (256 ID), 2001 test (201 ID), 1 feature)
"""

from __future__ import annotations

from fdn.data import tabular, toy, uci
from fdn.data.dataset import Dataset
from fdn.data.splits import feature_band_split
from fdn.data.tabular import from_frame
from fdn.settings import choose

TOY = tuple(toy.FUNCTIONS["published"])
UCI = tuple(uci.SOURCES)
REAL = (*UCI, *tabular.TABLES)
NAMES = tabular.BUILT_IN
PAPER_DATASETS = ("step", "sine", "quad", "airfoil", "ccpp", "energy")  # in the order of its tables


def load(name: str, functions: str = "published", toy_validation: str = "published") -> Dataset:
    """Data set by name.

    ``functions`` and ``toy_validation`` ("published" or "printed") concern the toy tasks; see ``toy.toy``.

    Raises:
        UserError: unknown name or choice; a file that is damaged, or missing and not to be downloaded.
    """
    check_name(name)
    if name in TOY:
        return toy.toy(name, functions, toy_validation)
    return uci.load(name) if name in UCI else tabular.TABLES[name]()


def check_name(name: str) -> None:
    """Raise a UserError that lists the names and the closest one, unless ``name`` is among them."""
    choose(name, NAMES, "data set")


def available(name: str) -> bool:
    """Whether a data set can be had without a download; a damaged file counts, so that loading it says so."""
    check_name(name)
    return name not in UCI or uci.find(name) is not None


def missing() -> tuple[str, ...]:
    """The data sets whose files are not on disk; ``uci.SOURCES[name].how_to_get`` says what to do."""
    return tuple(name for name in NAMES if not available(name))
