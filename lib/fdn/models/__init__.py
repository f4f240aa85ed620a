"""The eight models: a family of weight distributions, one network skeleton, and a row for each model."""

from fdn.models.network import Network, Noise
from fdn.models.zoo import (
    BASELINE,
    ENSEMBLES,
    FDN_MODELS,
    MODEL_NAMES,
    MODELS,
    PAPER_MODELS,
    STOCHASTIC_MODELS,
    ModelSpec,
    build_network,
    check_model,
    count_parameters,
    initial_network,
    model_grid,
    model_spec,
    multiply_accumulates,
    published_spec,
    solve_widths,
)
