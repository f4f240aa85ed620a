"""FDNs as scikit-learn estimators: fitted in the data's own units, saved without pickle and without training data."""

from fdn.estimators.regressor import FDNRegressor

__all__ = ["FDNRegressor"]
