"""Every figure: functions of results that return a matplotlib `Figure`, and `FIGURES`, which lists them.

A model has the same colour and marker everywhere (Okabe-Ito colours). In a notebook, `%matplotlib inline` makes
a figure at the end of a cell show itself. A figure that would show nothing raises a UserError that says why.
"""

from fdn.report.figures.catalogue import FIGURES, save, write_figures
from fdn.report.figures.drawing import FigureKind, styled
from fdn.report.figures.one_seed import (
    calibration,
    layer_diagram,
    means_of_data,
    means_of_function,
    mse_against_var,
    mse_against_var_fit,
    risk_coverage,
    uncertainty,
)
from fdn.report.figures.over_seeds import (
    checkpoint,
    delta_bars,
    mse_var_seeds,
    pit,
    risk_coverage_seeds,
    seeds_scatter,
    uncertainty_seeds,
)
from fdn.report.findings import DatasetResults
