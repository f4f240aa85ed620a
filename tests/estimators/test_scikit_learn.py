"""FDNRegressor as one of scikit-learn's estimators: its own checks, and the tools people put around estimators."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import make_regression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fdn import FDNRegressor, UserError

FEW = {"max_epochs": 40, "n_networks": 1, "hidden_layer_sizes": (16,), "hyper": 4, "draws": 10, "learning_rate": 0.02}
REPEATED = "minibatches differ between a row of weight 2 and two rows, as for SGDRegressor"
NOT_HELD = {
    "check_sample_weight_equivalence_on_dense_data": REPEATED,
}


@parametrize_with_checks([FDNRegressor(**FEW)], expected_failed_checks=lambda estimator: NOT_HELD)
def test_scikit_learns_checks(estimator, check):
    check(estimator)
