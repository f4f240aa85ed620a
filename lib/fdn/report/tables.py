"""Every table of the paper and of this reproduction, built from results, settings and data sets.

A dash is a number that is undefined (Spearman of a constant variance), a dagger one that is undefined for
some seeds, and `n/a` one that has not been computed; notes under the table say which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pandas as pd

from fdn.data.dataset import Dataset
from fdn.metrics import METRICS, heading
from fdn.models import (
    BASELINE,
    ENSEMBLES,
    MODEL_NAMES,
    PAPER_MODELS,
    STOCHASTIC_MODELS,
    model_grid,
    model_spec,
    multiply_accumulates,
)
from fdn.protocol import PAPER_PROTOCOLS, PUBLISHED, Protocol
from fdn.report.published import PUBLISHED_METRICS, load_published, rows_of
from fdn.typesetting import Table, literal

DASH = "—"
MISSING = "n/a"
PARTIAL = "†"

RESULT_COLUMNS = {metric: heading(metric) for metric in PUBLISHED_METRICS}  # of the paper's result tables
REGION_COLUMNS = {
    "mse": "MSE of one draw",
    "mean": "squared error of the mean",
    **{metric: METRICS[metric].heading for metric in ("var", "crps", "nll", "coverage_90", "width_90")},
}

NOTATION = (  # symbol, meaning, shape, name in the code
    ("$x$", "input", "(N, d_x)", "fdn.data.dataset.Dataset.x_train"),
    ("$y$", "target", "(N,)", "fdn.data.dataset.Dataset.y_train"),
    (r"$\mathcal{D}$", "training set", "N pairs (x, y)", "fdn.data.dataset.Dataset"),
    ("$N$", "number of training examples", "scalar", "fdn.data.dataset.Dataset.x_train"),
    ("$T$", "number of test examples", "scalar", "fdn.data.dataset.Dataset.x_test"),
    ("$d_x$", "number of inputs", "scalar", "fdn.data.dataset.Dataset.n_features"),
    ("$d_y$", "number of targets: 1 in all experiments", "scalar", "fdn.data.dataset.Dataset.y_train"),
    ("$D_y$", "outputs of the network that parametrise the likelihood", "scalar",
     "fdn.training.objectives.HomoscedasticGaussian.n_outputs"),
    ("$z$", "split feature: its band separates ID from OOD", "column of x",
     "fdn.data.dataset.Dataset.split_feature"),
    (r"$f_\theta$", "base network", "(K, B, D_y)", "fdn.models.Network"),
    (r"$\theta$", "weights and biases of the base network", "(K, 1 or B, weights)", "fdn_kernels.WeightGaussian"),
    (r"$\phi$", "trainable parameters, all replicates", "(R, P)", "fdn.training.loop.Fit.flat"),
    (r"$p(y \mid x, \theta)$", "likelihood", "(K, B)", "fdn.training.objectives.HomoscedasticGaussian"),
    (r"$p_0(\theta)$", "prior over weights", "its standard deviation", "fdn.protocol.Protocol.prior_scale"),
    (r"$q_\phi(\theta_\ell \mid s_\ell)$", "weight distribution of an FDN layer", "(K, B, weights)",
     "fdn.models.posteriors.FDNLinear"),
    (r"$\mu_\ell, \sigma_\ell$", "its mean and standard deviation", "(K, B, weights)", "fdn_kernels.WeightGaussian"),
    (r"$\rho_{W,\ell}, \rho_{b,\ell}$", r"$\sigma$ before the softplus, of weights and of biases", "(K, B, weights)",
     "fdn.models.posteriors.Hypernet"),
    (r"$\beta_t$", "weight of the KL term", "scalar", "fdn.training.objectives.beta_at"),
    (r"$\mathcal{L}_{\beta\text{-ELBO}}$", "training loss", "(R,)", "fdn.training.objectives.beta_elbo"),
    (r"$\mathcal{L}_{\mathrm{IWAE}}$", "its importance-weighted variant", "(R,)", "fdn.training.objectives.iwae"),
    ("$L$", "number of layers: one more than hidden ones", "scalar", "fdn.models.ModelSpec.hidden"),
    (r"$d_\ell$", "widths of the layers", "tuple", "fdn.models.ModelSpec.hidden"),
    (r"$a_\ell$", "activation of a layer; in Algorithm 1 $h_l$", "(K, B, d_l)", "fdn.models.Network"),
    (r"$s_\ell$", "conditioning signal: x (IC) or the previous activation (LP); in Algorithm 1 $c_l$", "(K, B, d_s)",
     "fdn.models.posteriors.FDNLinear.condition"),
    (r"$d_{s,\ell}$", "its width", "scalar", "fdn.models.posteriors.FDNLinear.condition"),
    (r"$A_\ell$", "hypernetwork of a layer", "d_s to P_l", "fdn.models.posteriors.Hypernet"),
    (r"$P_\ell$", r"outputs of it, $2(d_{\ell-1}d_\ell+d_\ell)$: two for each weight and bias", "scalar",
     "fdn.models.posteriors.Hypernet"),
    (r"$Q_\ell$", r"ours: weights and biases of a layer, $P_\ell/2$", "scalar", "fdn_kernels.WeightGaussian"),
    ("$P$", "number of all trainable parameters", "scalar", "fdn.models.count_parameters"),
    (r"$h_{\mathrm{hyp}}$", "hidden width of a hypernetwork", "scalar", "fdn.models.ModelSpec.hyper"),
    ("$d_h$", "width of GaussHyperNet's latent vector $h$", "scalar", "fdn.models.ModelSpec.latent"),
    ("$M$", "members of the ensemble", "scalar", "fdn.models.ModelSpec.members"),
    ("$K$", "draws per input: training", "scalar", "fdn.protocol.Protocol.train_draws"),
    ("$K$", "draws per input: validation and test", "scalar", "fdn.protocol.Protocol.eval_draws"),
    ("$B$", "examples of a minibatch", "scalar", "fdn.protocol.Protocol.batch_size"),
    (r"$\sigma_0$", "standard deviation of the prior over weights", "scalar",
     "fdn.protocol.Protocol.prior_scale"),
    (r"$\sigma^2$", "noise variance of the likelihood", "scalar", "fdn.protocol.Protocol.observation_variance"),
    (r"$\varepsilon^{(k)}$", "standard normal noise of a pass", "(K, 1 or B, weights)",
     "fdn.models.Noise.eps"),
    (r"$\sigma_{\min}$", r"floor in $\sigma = \sigma_{\min} + \mathrm{softplus}(\rho)$; the paper writes "
     r"$\varepsilon$ too", "scalar", "fdn.protocol.Protocol.floor"),
    (r"$\hat\mu_i$", "predictive mean", "(T,)", "fdn.metrics.predictive_mean"),
    (r"$\mathrm{Var}_i$", "predictive variance over the draws", "(T,)", "fdn.metrics.variance"),
    (r"$\mathrm{MSE}_i$", "mean squared error of the draws", "(T,)", "fdn.metrics.mse"),
    (r"$\mathrm{Bias}_i$", "error of the predictive mean", "(T,)", "fdn.metrics.bias"),
    (r"$\mathrm{CRPS}_i$", "continuous ranked probability score", "(T,)", "fdn.metrics.crps"),
    (r"$\mathrm{NLL}_i$", "negative log predictive density", "(T,)", "fdn.metrics.nll"),
    (r"$\rho(\cdot,\cdot)$", "Spearman correlation; alone, of Var and MSE", "scalar", "fdn.metrics.spearman"),
    ("$a, b$", "least-squares fit MSE = a + b Var", "scalars", "fdn.metrics.linear_fit"),
    ("$b'$", r"ours: slope of $\mathrm{Bias}_i^2$ against Var, $b-1$", "scalar", "fdn.metrics.linear_fit"),
    ("$R(c)$", "risk at coverage c", "(T,)", "fdn.metrics.risk_coverage"),
    (r"$\mathrm{AURC}$", "area under it", "scalar", "fdn.metrics.aurc"),
    (r"$\Delta(\cdot)$", "OOD mean less ID mean", "scalar", "fdn.metrics.summary"),
)  # fmt: skip


def plain_number(value: float) -> str:
    """A number with three decimals, fewer where it is large, more where it is small, never in scientific
    notation; NaN is a dash.

    >>> [plain_number(v) for v in (0.12345, -0.0001, 12.345, 123.45, 6306.7, float("nan"))]
    ['0.123', '-0.00010', '12.35', '123.5', '6307', '—']
    >>> [plain_number(v) for v in (0.0, 0.00034, 3.4e-8)]
    ['0.000', '0.00034', '<0.00001']
    """
    if np.isnan(value):
        return DASH
    size = abs(value)
    if 0 < size < 1e-5:
        return "<0.00001" if value > 0 else ">-0.00001"
    if 0 < size < 1e-2:
        return np.format_float_positional(value, precision=2, fractional=False, min_digits=2)
    return f"{value:z.{3 if size < 10 else 2 if size < 100 else 1 if size < 1000 else 0}f}"


def _spread(values: pd.Series, show: Callable[[float], str], join: str) -> str:
    """Median and [min, max] of the values that are defined, marked if some are not."""
    defined = values.dropna()
    if defined.empty:
        return DASH
    mark = PARTIAL if len(defined) < len(values) else ""
    return f"{show(defined.median())}{mark}{join}[{show(defined.min())}, {show(defined.max())}]"


def band(values: pd.Series | np.ndarray) -> tuple[float, float, float]:
    """Median, 5 and 95 % quantile of the values that are numbers; NaN if there are none."""
    numbers = np.asarray(values, dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    return tuple(np.quantile(numbers, [0.5, 0.05, 0.95])) if len(numbers) else (np.nan,) * 3


def band_text(middle: float, low: float, high: float) -> str:
    """A median and its band.

    >>> band_text(0.5, 0.25, 1.0)
    '0.500 [0.250, 1.000]'
    """
    return DASH if np.isnan(middle) else f"{plain_number(middle)} [{plain_number(low)}, {plain_number(high)}]"


def _runs(metrics: pd.DataFrame, dataset: str, protocol: str) -> dict[str, pd.DataFrame]:
    chosen = rows_of(metrics, dataset=dataset, protocol=protocol)
    return dict(list(chosen.groupby("model", observed=True)))


def _seed_text(runs: Mapping[str, pd.DataFrame]) -> str:
    counts = sorted({run["seed"].nunique() for run in runs.values()})
    if not counts:
        return "no seeds"
    return f"{'-'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seed{'s' * (counts[-1] > 1)}"


def _notes(rows: Sequence[Sequence[str]], missing: Sequence[str], where: str) -> tuple[str, ...]:
    notes = []
    if missing:
        notes.append(f"{MISSING}: not computed: {', '.join(missing)} {where}.")
    text = "".join(cell for row in rows for cell in row)
    if DASH in text:
        notes.append(f"{DASH}: undefined, as the rank correlation of a constant variance is.")
    if PARTIAL in text:
        notes.append(f"{PARTIAL}: undefined for some of the seeds, which are left out.")
    return tuple(notes)


def result_table(
    metrics: pd.DataFrame, dataset: str, protocol: str = "published", models: Sequence[str] = STOCHASTIC_MODELS
) -> Table:
    """A result table of the paper: published value, reproduced median and [min, max] over seeds in a cell.

    Rows are the paper's six models, and others that are stochastic where they were run, as far as they are among
    ``models``; columns rho, b, a, AURC, delta Var, delta MSE and delta CRPS, with the decimals the paper prints in that
    table. Runs of another protocol than the published numbers' are said to be. A data set the paper does not have
    gets the most decimals the paper prints for a column, and no published line. Source: tables "step-unified" to
    "energy-unified", Appendix F.
    """
    published = load_published()
    printed = published.set_index(["dataset", "model", "metric"])["printed"]
    known = rows_of(published, dataset=dataset)
    in_paper = len(known) > 0
    texts = (known if in_paper else published).groupby("metric")["printed"]
    decimals = texts.agg(lambda texts: max(len(text.partition(".")[2]) for text in texts))
    runs = _runs(metrics, dataset, protocol)
    rows = []
    order = (*PAPER_MODELS, *(m for m in STOCHASTIC_MODELS if m in runs and m not in PAPER_MODELS))
    models = [model for model in order if model in models]
    for model in models:
        in_print = in_paper and model in PAPER_MODELS
        cells = [model, "published\nmedian\n[min, max]" if in_print else "median\n[min, max]"]
        for metric in RESULT_COLUMNS:
            text = MISSING
            if model in runs:
                text = _spread(runs[model][metric], lambda v, digits=decimals[metric]: f"{v:z.{digits}f}", "\n")
            cells.append(f"{printed[dataset, model, metric]}\n{text}" if in_print else text)
        rows.append(tuple(cells))
    seeds = _seed_text({model: run for model, run in runs.items() if model in models})
    missing = [model for model in models if model not in runs]
    origin = "the published value, then " if in_paper else "not a data set of the paper; "
    warning = ""
    if in_paper and protocol != PUBLISHED.label:
        warning = (
            " **Not like with like**: the published numbers were computed with the protocol "
            f"`{PUBLISHED.label}`, these runs with `{protocol}`, so that they need not agree."
        )
    return Table(
        name=f"results_{dataset}",
        title=f"Calibration and uncertainty on {literal(dataset)}",
        caption=f"In each cell: {origin}median and [min, max] over {seeds} (protocol `{protocol}`). Lower is "
        f"better for AURC, ΔMSE and ΔCRPS (Δ = OOD − ID); the ideal fit MSE = a + b Var has a = 0, b = 1.{warning}",
        columns=("Model", "Value", *RESULT_COLUMNS.values()),
        rows=tuple(rows),
        align="ll" + "r" * len(RESULT_COLUMNS),
        notes=_notes(rows, missing, f"on {literal(dataset)}, protocol `{protocol}`"),
    )


def corrected_mean_error(run: pd.DataFrame, region: str) -> pd.Series:
    """Squared error of the predictive mean less what K draws add to it by chance, per seed.

    sqerr_mean - Var / (K - 1), with Var the population variance, estimates the error of the mean of
    infinitely many draws; K = `n_draws`. Shape (seeds,), unit of y squared. The members of an ensemble are
    all there is to average and a deterministic model has one draw: both stay as they are.
    """
    sampled = ~run["model"].isin(ENSEMBLES) & (run["n_draws"] > 1)
    correction = run[f"var_{region}"] / (run["n_draws"] - 1).where(sampled, np.inf)
    return run[f"sqerr_mean_{region}"] - correction


def with_mean_errors(metrics: pd.DataFrame) -> pd.DataFrame:
    """The metrics with :func:`corrected_mean_error` inside and outside as columns, mean_id and mean_ood."""
    return metrics.assign(**{f"mean_{region}": corrected_mean_error(metrics, region) for region in ("id", "ood")})


def region_table(
    metrics: pd.DataFrame, dataset: str, protocol: str = "published", models: Sequence[str] = (BASELINE, *MODEL_NAMES)
) -> Table:
    """Errors and scores inside and outside the training band, against predicting the training mean.

    One row per model of ``models`` and region; columns MSE_i of one draw, squared error of the predictive mean
    (corrected for Var / K), Var_i, CRPS_i, NLL_i, and the coverage and width of the draws' central 90 % intervals,
    averaged over the region: median and [min, max] over seeds.
    Source: ours, with the metrics of Appendix H.
    """
    runs = _runs(with_mean_errors(metrics), dataset, protocol)
    always = (BASELINE, *PAPER_MODELS)
    models = [m for m in (BASELINE, *MODEL_NAMES) if m in models and (m in runs or m in always)]
    rows = []
    for model in models:
        for region in ("id", "ood"):
            run, columns = runs.get(model, {}), [f"{metric}_{region}" for metric in REGION_COLUMNS]
            cells = [_spread(run[column], plain_number, " ") if column in run else MISSING for column in columns]
            rows.append((model, region.upper(), *cells))
    seeds = _seed_text({model: run for model, run in runs.items() if model != BASELINE})
    missing = [model for model in models if model not in runs]
    return Table(
        name=f"regions_{dataset}",
        title=f"Inside and outside the training band on {literal(dataset)}",
        caption=f"Median and [min, max] over {seeds} (protocol `{protocol}`); lower is better, except for Var, "
        "and for the coverage, which should be 0.9. "
        "MSE of one draw contains Var. The squared error of the mean is corrected for Var / K, the chance "
        "error of a mean of K draws (an ensemble's members are no sample: not corrected). "
        "Intervals are of the draws, without observation noise. "
        f"{BASELINE} predicts the mean of the training targets everywhere.",
        columns=("Model", "Region", *REGION_COLUMNS.values()),
        rows=tuple(rows),
        align="ll" + "r" * len(REGION_COLUMNS),
        notes=_notes(rows, missing, f"on {literal(dataset)}, protocol `{protocol}`"),
    )


def _setting(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return np.format_float_positional(value, trim="-") if isinstance(value, float) else str(value)


def hyperparameter_table() -> Table:
    """Every setting of the protocols side by side, one row per field of `Protocol`; differences are marked.

    Source: table "Monte Carlo and training Hyperparameters", Appendix F, for what the paper prints of it.
    """
    rows = []
    for field in fields(Protocol):
        if field.name != "base":
            values = [_setting(getattr(protocol, field.name)) for protocol in PAPER_PROTOCOLS.values()]
            rows.append((f"`{field.name}`", *values, "≠" if len(set(values)) > 1 else ""))
    return Table(
        name="hyperparameters",
        title="Settings of the protocols",
        caption="Names are the fields of `fdn.protocol.Protocol`; ≠ marks where the protocols differ.",
        columns=("Setting", *(f"`{name}`" for name in PAPER_PROTOCOLS), "Differs"),
        rows=tuple(rows),
        align="l" * (len(PAPER_PROTOCOLS) + 1) + "c",
    )


def split_table(datasets: Mapping[str, Dataset | None]) -> Table:
    """Sizes of the training, validation and test sets; None stands for a data set whose files are not here.

    Source: table "data_splits", Appendix F.
    """
    rows = []
    for name, data in datasets.items():
        if data is None:
            rows.append((literal(name), *[MISSING] * 9))
            continue
        train, val, test = len(data.y_train), len(data.y_val), len(data.y_test)
        id_val, id_test = data.id_val.sum(), data.id_test.sum()
        counts = (train, val, id_val, test, id_test, test - id_test, train + val + test)
        feature = data.feature_names[data.split_feature]
        rows.append((literal(name), str(data.n_features), literal(feature), *map(str, counts)))
    absent = [name for name, data in datasets.items() if data is None]
    return Table(
        name="splits",
        title="Data sets and splits",
        caption="Numbers of points; only the ID validation points choose the checkpoint.",
        columns=("Data set", "Inputs", "Split feature", "Train", "Validation", "of them ID",
                 "Test", "of them ID", "of them OOD", "Total"),
        rows=tuple(rows),
        align="lrl" + "r" * 7,
        notes=(f"{MISSING}: the files of {literal(', '.join(absent))} are not here.",) if absent else (),
    )  # fmt: skip


def model_table(protocol: Protocol, n_features: Sequence[int]) -> Table:
    """Widths, exact parameter counts and compute of the eight models for each number of inputs.

    Source: table "Model configurations and compute", Appendix F.
    """
    rows = []
    for d in n_features:
        for row in model_grid(d, protocol):
            optional = [DASH if row[width] is None else str(row[width]) for width in ("hyper", "latent")]
            per_point, per_pass = multiply_accumulates(model_spec(row["model"], d, protocol), d, protocol)
            counts = row["members"], row["n_params"], per_point, per_pass
            rows.append((str(d), str(row["model"]), str(row["hidden"]), *optional, *map(str, counts)))
    return Table(
        name=f"models_{protocol.label}",
        title=f"Models under protocol `{protocol.label}`",
        caption="Width of the hidden layer, of each hypernetwork and of its latent vector, ensemble members "
        "M, all trainable parameters P, and multiply-accumulates (MAC) of a forward pass: for each draw at "
        "each point, and once per pass.",
        columns=("Inputs", "Model", "Hidden", "Hyper", "Latent", "M", "P", "MAC per draw and point",
                 "MAC per pass"),
        rows=tuple(rows),
        align="rl" + "r" * 7,
    )  # fmt: skip


def notation_table() -> Table:
    """Symbols of the paper with their names in the code. Source: table "notation-core", Appendix C."""
    return Table(
        name="notation",
        title="Notation",
        caption="Shapes are those in the code: R replicates, B examples of a minibatch, K draws.",
        columns=("Symbol", "Meaning", "Shape", "In the code"),
        rows=tuple((symbol, meaning, shape, f"`{where}`") for symbol, meaning, shape, where in NOTATION),
        align="llll",
    )


def all_tables(
    metrics: pd.DataFrame, datasets: Mapping[str, Dataset | None], protocol: str, out_dir: Path
) -> list[Path]:
    """Write every table below `out_dir` as Markdown, LaTeX and CSV, and return the paths.

    `datasets` maps the data sets to report to their data, or to None where their files are not here.
    """
    widths = sorted({data.n_features for data in datasets.values() if data is not None})
    tables = [
        *(build(metrics, name, protocol) for name in datasets for build in (result_table, region_table)),
        hyperparameter_table(),
        split_table(datasets),
        *(model_table(settings, widths) for settings in PAPER_PROTOCOLS.values()),
        notation_table(),
    ]
    return [path for table in tables for path in table.write(out_dir)]
