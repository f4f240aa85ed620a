"""docs/estimator.md: its code runs, and what its comments and sentences say is so."""

from __future__ import annotations

import importlib.util
import re

import numpy as np
import pytest

from fdn import FDNRegressor, paths
from fdn.estimators import domain, regressor
from fdn.models import MODEL_NAMES
from fdn.protocol import RECOMMENDED

TEXT = (paths.ROOT / "docs" / "estimator.md").read_text(encoding="utf-8")
HAVE_MAPIE = importlib.util.find_spec("mapie") is not None  # which is no dependency of ours


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> dict:
    """The names that the page's code leaves behind; it fits four models."""
    names: dict = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        for code in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
            if HAVE_MAPIE or "mapie" not in code:
                exec(code, names)
    return names


def test_results_have_the_shapes_that_comments_say(page):
    assert page["interval"].shape == (300, 2) and page["quantiles"].shape == (300, 3)
    assert page["functions"].shape == page["outcomes"].shape == (20, 300)
    assert ", ".join(page["table"]) in TEXT
    np.testing.assert_array_equal(page["same"].predict(page["X"]), page["model"].predict(page["X"]))
    if HAVE_MAPIE:
        assert page["intervals"].shape == (300, 2, 1) and np.ptp(np.diff(page["intervals"], axis=1)) < 1e-6


def test_rows_outside_are_those_that_comments_say(page):
    assert page["model"].in_domain([[0, 0, 0], [0, 3, 0]]).tolist() == [True, False]
    [reason] = page["model"].why_outside([[0, 3, 0]])
    [said] = re.findall(r"# \['(.*)\.\.\.'\]", TEXT)
    assert reason.startswith(said)
    assert domain.INSIDE == 0.995 and "99.5 % of new rows" in TEXT


def test_settings_left_open_are_what_the_docstring_says():
    said = " ".join(FDNRegressor.__doc__.split())
    assert RECOMMENDED.members == 5 and '``"auto"``: 5 for an FDN, 10 for DeepEnsembleNet' in said
    assert (RECOMMENDED.epochs, RECOMMENDED.most_updates) == (300, 3000) and "300, or as many as 3,000" in said
    batches = RECOMMENDED.batch_size, regressor.LARGEST_BATCH, regressor.BATCHES
    assert batches == (64, 256, 50) and "a fiftieth of the rows, from 64 to 256" in said
    assert regressor.MOST_VALIDATION_ROWS == 2000 and "2,000 at most" in said
    assert RECOMMENDED.rate_schedule == "one_cycle" and "the peak of a one-cycle schedule" in said
    defaults = FDNRegressor()
    assert (defaults.hidden_layer_sizes, defaults.hyper) == ((RECOMMENDED.width,), RECOMMENDED.hyper)
    assert (defaults.likelihood, defaults.learning_rate) == (RECOMMENDED.likelihood, RECOMMENDED.learning_rate)


def test_every_other_model_is_named():
    [row] = re.findall(r"^\| `model` \|.*$", TEXT, re.MULTILINE)
    assert set(re.findall(r'"(\w+)"', row)) == {name for name in MODEL_NAMES if "FDN" not in name}
