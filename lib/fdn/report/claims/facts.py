"""The paper's sentences about counts, settings, times or all seeds at once, each with a criterion of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from fdn.models import PAPER_MODELS, model_spec
from fdn.protocol import PUBLISHED
from fdn.report import published
from fdn.report.claims.statements import FDN
from fdn.report.published import DATASETS
from fdn.report.tables import DASH, plain_number
from fdn.timing import latency
from fdn.timing.latency import BASE_MLP

Judged = tuple[bool | None, str]  # whether it holds, None if it was not measured; the numbers in words


@dataclass(frozen=True)
class Evidence:
    """What facts are judged by: all metrics under the published protocol, and the measured times, if there are any."""

    metrics: pd.DataFrame
    times: pd.DataFrame | None

    def time(self, quantity: str, model: str, size: float | None = None) -> float:
        """One measured ratio or exponent of :func:`fdn.timing.latency.measure`; NaN if it was not measured."""
        if self.times is None:
            return np.nan
        rows = self.times[(self.times["quantity"] == quantity) & (self.times["model"] == model)]
        rows = rows[rows["size"].isna()] if size is None else rows[rows["size"] == size]
        return float(rows["ratio"].iloc[0]) if len(rows) else np.nan


@dataclass(frozen=True)
class Fact:
    """A sentence, its criterion, and how the evidence judges it."""

    section: str
    words: str
    criterion: str
    judge: Callable[[Evidence], Judged]
    published: str = DASH


def _verdict(numbers: Iterable[float], test: Callable[[float], bool]) -> bool | None:
    numbers = list(numbers)
    return None if not numbers or np.isnan(numbers).any() else all(map(test, numbers))


def _named(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {plain_number(value)}" for name, value in numbers.items())


def _parameters(evidence: Evidence) -> Judged:
    m = evidence.metrics
    runs = m[(m["protocol"] == PUBLISHED.label) & m["model"].isin(PAPER_MODELS) & m["dataset"].isin(DATASETS)]
    counts = runs.groupby("dataset")["n_params"].agg(["min", "max"]).reindex(DATASETS).dropna().astype(int)
    words = ", ".join(f"{row.Index} {row.min} to {row.max}" for row in counts.itertuples())
    return _verdict(counts.to_numpy().ravel(), lambda count: 950 <= count <= 1050), f"of the published runs: {words}"


def _updates(evidence: Evidence) -> Judged:
    members, epochs = PUBLISHED.ensemble_members, PUBLISHED.epochs
    each = epochs // members
    return members * each == epochs, f"{epochs} epochs of each model; {members} members of {each} epochs"


def _draws(evidence: Evidence) -> Judged:
    return PUBLISHED.eval_draws == PUBLISHED.ensemble_members, (
        f"K = {PUBLISHED.eval_draws} draws, but {PUBLISHED.ensemble_members} members of the ensemble"
    )


def _step_costs(evidence: Evidence) -> Judged:
    models = [model for model in PAPER_MODELS if model != latency.ENSEMBLE]
    ratios = {model: evidence.time("step", model) / evidence.time("step", "BayesNet") for model in models}
    spread = max(ratios.values()) / min(ratios.values())
    return _verdict([spread], lambda value: value <= 2), f"training step in units of BayesNet's: {_named(ratios)}"


def _exponents(quantity: str, models: Sequence[str], low: float, high: float) -> Callable[[Evidence], Judged]:
    def judge(evidence: Evidence) -> Judged:
        found = {model: evidence.time(quantity, model) for model in models}
        return _verdict(found.values(), lambda value: low <= value <= high), f"fitted {quantity}: {_named(found)}"

    return judge


def _overhead(evidence: Evidence) -> Judged:
    ratios = {
        f"{model} over {base}": evidence.time("step", model) / evidence.time("step", base)
        for model in FDN for base in (BASE_MLP, "MLPNet")
    }  # fmt: skip
    return _verdict(ratios.values(), lambda value: value <= 4), f"training step: {_named(ratios)}"


def _no_cubic(evidence: Evidence) -> Judged:
    kinds = ("width exponent", "parameter exponent")
    found = {f"{model}, {kind.split()[0]}": evidence.time(kind, model) for model in FDN for kind in kinds}
    shown = {name.replace("width", "time").replace("parameter", "parameters"): value for name, value in found.items()}
    return _verdict(found.values(), lambda value: value <= 2.3), f"fitted exponents of the width: {_named(shown)}"


def _latency_of_draws(evidence: Evidence) -> Judged:
    growth = {m: evidence.time("prediction", m, 100) / evidence.time("prediction", m, 1) for m in FDN}
    slopes = {f"exponent {m}": evidence.time("prediction exponent", m) for m in FDN}
    return _verdict(growth.values(), lambda value: value > 2), f"100 draws over one: {_named(growth)}; {_named(slopes)}"


def _slower(what: str, quantity: str, model: str, base: str, size: float | None = None) -> Callable[[Evidence], Judged]:
    def judge(evidence: Evidence) -> Judged:
        ratio = evidence.time(quantity, model, size) / evidence.time(quantity, base, size)
        return _verdict([ratio], lambda value: value > 1), f"{what}: {plain_number(ratio)}"

    return judge


def _hyper_products(evidence: Evidence) -> Judged:
    ratios = {}
    for model in FDN:
        spec = model_spec(model, 1, PUBLISHED)
        widths = (1, *spec.hidden, 1)
        for i, (a, b) in enumerate(zip(widths, widths[1:]), 1):
            ratios[f"{model} layer {i}"] = spec.hyper * 2 * (a * b + b) / (a * b)
    return max(ratios.values()) <= 3, f"h P over d d on one input: {_named(ratios)}"


def _representative(evidence: Evidence) -> Judged:
    m = evidence.metrics
    runs = m[(m["dataset"] == "airfoil") & (m["protocol"] == PUBLISHED.label) & m["model"].isin(FDN)]
    if runs.groupby("model")["seed"].nunique().reindex(FDN).fillna(0).min() < 5:
        return None, ""
    seed, off = published.representative_seed(runs, "airfoil"), {}
    for model, cells in runs.groupby("model"):
        x, y = (np.log(cells.set_index("seed")[f"{name}_ood"]) for name in ("mse", "var"))
        if x.nunique() < 2:
            return None, ""
        residual = y - np.polynomial.Polynomial.fit(x, y, 1)(x)
        off[model] = float(abs(residual[seed]) / residual.std())
    return max(off.values()) <= 1, f"seed {seed}, distance in residual standard deviations: {_named(off)}"


def _unmeasured(why: str) -> Callable[[Evidence], Judged]:
    return lambda evidence: (None, why)


def _draws_at_most(most: int) -> Callable[[Evidence], Judged]:
    train, test = PUBLISHED.train_draws, PUBLISHED.eval_draws
    return lambda evidence: (max(train, test) <= most, f"K = {train} in training, {test} in validation and test")


_FACTS: dict[str, tuple[tuple[object, ...], ...]] = {  # words, criterion, judge, published
    "1 Introduction": (
        ("Under matched parameter, update, and predictive-sample budgets", "as many draws as the ensemble has members",
         _draws, "no: K = 100, M = 10"),
    ),
    "4.3 Fairness": (
        ("fix the parameter budget to P ≈ 1000 (±5%) for all models", "950 to 1050 parameters on every task",
         _parameters, "yes: 994 to 1011"),
        ("the total number of parameter updates matched across models",
         "members times their epochs = epochs of the others", _updates, "yes: epochs divided by M"),
        ("keeping per-step cost comparable", "the slowest of the five single models at most twice the fastest",
         _step_costs),
    ),
    "4.3 Complexity": (
        ("For all models, the per-epoch training cost scales linearly in the number of examples N",
         "fitted exponent of an epoch's time between 0.8 and 1.2 for all",
         _exponents("examples exponent", latency.SINGLE, 0.8, 1.2)),
        ("and quadratically in the layer widths", "fitted exponent of a training step's time at most 2.3 for all",
         _exponents("width exponent", latency.SINGLE, -np.inf, 2.3)),
    ),
    "5 Limitations": (
        ("LP-FDN samples weights layer-by-layer, introducing additional latency relative to a deterministic forward "
         "pass", "one draw takes longer than the deterministic network of the same width",
         _slower(f"one draw over {BASE_MLP}", "prediction", "LP-FDNet", BASE_MLP, 1)),
        ("test-time sampling also incurs a compute–latency trade-off with the number of Monte Carlo samples K",
         "100 draws take more than twice as long as one, for both FDNs", _latency_of_draws),
        ("though we keep K small in our experiments", "K at most 10", _draws_at_most(10),
         "no: 100 for validation and test"),
    ),
    "Appendix A": (
        ("[Ensembles:] Inference cost scales linearly with M",
         "fitted exponent of the prediction's time between 0.8 and 1.2",
         _exponents("prediction exponent", [latency.ENSEMBLE], 0.8, 1.2)),
        ("[A deterministic hypernetwork] can increase per-example compute",
         "a training step of HyperNet takes longer than MLPNet's",
         _slower("training step over MLPNet's", "step", "HyperNet", "MLPNet")),
        ("matching ensemble-like diversity typically requires larger posterior variances or multiple posterior samples",
         DASH, _unmeasured("diversity of weights is not among the paper's metrics")),
    ),
    "Appendix B": (
        ("[IWAE:] tighter bound […] typically needs no extra β", DASH,
         _unmeasured("a property of the objective, not of its results; results under both are in data/extras")),
    ),
    "Appendix D": (
        ("To mitigate variance blow-up in early training […] use a short β warm-up", DASH,
         _unmeasured("about a heteroscedastic head, which the experiments do not have")),
    ),
    "Appendix F": (
        ("the representative seed used in the main-text plots lies close to the overall across-seed trend",
         "on airfoil, within one residual standard deviation of the line of log Var_OOD against log MSE_OOD, for both "
         "FDNs", _representative),
    ),
    "Appendix G": (
        ("In all experiments we use K = 1", "K = 1 in training, validation and test", _draws_at_most(1),
         "no: 100 for validation and test"),
        ("making h_hyp P_ℓ comparable to d_{ℓ−1} d_ℓ", "at most three times as large in every layer", _hyper_products),
        ("the training cost of IC-/LP-FDN remains linear in N",
         "fitted exponent of an epoch's time between 0.8 and 1.2", _exponents("examples exponent", FDN, 0.8, 1.2)),
        ("the runtime overhead relative to a deterministic MLP is a small constant factor (typically 2–4×)",
         "a training step at most four times as long as that of an MLP of the same width, and of the same size",
         _overhead),
        ("there is no cubic dependence on layer width", "fitted exponents of time and parameters at most 2.3",
         _no_cubic),
        ("[adapter-style] overhead of FDN remains a small fraction of the backbone", DASH,
         _unmeasured("no backbone is deep enough here")),
    ),
}  # fmt: skip

FACTS = tuple(Fact(section, *fact) for section, facts in _FACTS.items() for fact in facts)
