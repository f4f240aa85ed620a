"""The paper's sentences about counts, times or all seeds at once, each with a criterion of ours.

A sentence is judged by what it is about: how cost grows by counted multiply-accumulates (times follow them only where
arithmetic dominates, and are shown beside), how fast something is by measured times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fdn.models import PAPER_MODELS, ModelSpec, count_parameters, model_spec, multiply_accumulates
from fdn.protocol import PUBLISHED
from fdn.report import published
from fdn.report.claims.statements import FDN
from fdn.report.published import DATASETS
from fdn.report.tables import DASH, plain_number
from fdn.timing import latency
from fdn.timing.clocks import exponent
from fdn.timing.latency import BASE_MLP

KINDS = {
    "identity": "follows from a definition",
    "count": "parameters, updates, draws or operations, counted",
    "time": "measured on one thread",
    "result": "numbers of the runs",
}
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
        rows = published.rows_of(self.times, quantity=quantity, model=model)
        rows = rows[rows["size"].isna()] if size is None else rows[rows["size"] == size]
        return float(rows["ratio"].iloc[0]) if len(rows) else np.nan


@dataclass(frozen=True)
class Fact:
    """A sentence, of which kind it is, its criterion, and how the evidence judges it."""

    section: str
    kind: str  # of KINDS
    words: str
    criterion: str
    judge: Callable[[Evidence], Judged]
    published: str = DASH


def _verdict(numbers: Iterable[float], test: Callable[[float], bool]) -> bool | None:
    numbers = list(numbers)
    return None if not numbers or np.isnan(numbers).any() else all(map(test, numbers))


def _named(numbers: dict[str, float]) -> str:
    return ", ".join(f"{name} {plain_number(value)}" for name, value in numbers.items())


def _counts(evidence: Evidence) -> pd.DataFrame:
    """The least and the greatest parameter count of the published runs of the paper's models, per data set."""
    runs = published.rows_of(evidence.metrics, protocol=PUBLISHED.label, model=PAPER_MODELS, dataset=DATASETS)
    return runs.groupby("dataset")["n_params"].agg(["min", "max"]).reindex(DATASETS).dropna().astype(int)


def _parameters(evidence: Evidence) -> Judged:
    counts = _counts(evidence)
    words = ", ".join(f"{row.Index} {row.min} to {row.max}" for row in counts.itertuples())
    return _verdict(counts.to_numpy().ravel(), lambda count: 950 <= count <= 1050), f"of the published runs: {words}"


def _updates(evidence: Evidence) -> Judged:
    members, epochs = PUBLISHED.ensemble_members, PUBLISHED.epochs
    each = epochs // members
    return members * each == epochs, f"{epochs} epochs of each model; {members} members of {each} epochs"


def _step_costs(evidence: Evidence) -> Judged:
    models = [model for model in PAPER_MODELS if model != latency.ENSEMBLE]
    ratios = {model: evidence.time("step", model) / evidence.time("step", "BayesNet") for model in models}
    spread = max(ratios.values()) / min(ratios.values())
    return _verdict([spread], lambda value: value <= 2), f"training step in units of BayesNet's: {_named(ratios)}"


def _wide(model: str, width: int) -> ModelSpec:
    """A model with two hidden layers of this width."""
    return replace(model_spec(model, 1, PUBLISHED), hidden=(width, width))


def _operations(model: str, width: int, n: int) -> float:
    """Multiply-accumulates of the forward passes of an epoch on n examples, of a model of this width."""
    spec = _wide(model, width)
    per_point, per_pass = multiply_accumulates(spec, 1, PUBLISHED)
    return spec.members * (n * per_point + n / PUBLISHED.batch_size * per_pass)


def _growth(
    what: str, models: Sequence[str], sizes: Sequence[int], count: Callable[[str, int], float], most: float
) -> Callable[[Evidence], Judged]:
    """Whether the exponent of counted operations in the size is at most ``most``; with that of times beside it."""

    def judge(evidence: Evidence) -> Judged:
        counted = {model: exponent(sizes, [count(model, size) for size in sizes]) for model in models}
        timed = {model: evidence.time(f"{what} exponent", model) for model in models}
        words = f"exponent of counted operations: {_named(counted)}; of times, not judged: {_named(timed)}"
        return _verdict(counted.values(), lambda value: value <= most), words

    return judge


def _in_examples(models: Sequence[str]) -> Callable[[Evidence], Judged]:
    return _growth("examples", models, (1024, 4096, 16384), lambda model, n: _operations(model, 64, n), 1.05)


def _in_members(evidence: Evidence) -> Judged:
    def count(model: str, members: int) -> float:
        spec = model_spec(model, 1, replace(PUBLISHED, ensemble_members=members))
        return members * multiply_accumulates(spec, 1, PUBLISHED)[0]

    return _growth("prediction", [latency.ENSEMBLE], (1, 2, 5, 10, 20), count, 1.05)(evidence)


def _overhead(evidence: Evidence) -> Judged:
    ratios = {
        f"{model} over {base}": evidence.time("step", model) / evidence.time("step", base)
        for model in FDN for base in (BASE_MLP, "MLPNet")
    }  # fmt: skip
    return _verdict(ratios.values(), lambda value: value <= 4), f"training step: {_named(ratios)}"


def _no_cubic(evidence: Evidence) -> Judged:
    widths = (64, 128, 256)
    counts = {model: [count_parameters(_wide(model, width), 1, PUBLISHED) for width in widths] for model in FDN}
    found = {model: exponent(widths, parameters) for model, parameters in counts.items()}
    return _verdict(found.values(), lambda value: value <= 2.05), f"exponent of the parameters: {_named(found)}"


def _latency_of_draws(evidence: Evidence) -> Judged:
    growth = {m: evidence.time("prediction", m, 100) / evidence.time("prediction", m, 1) for m in FDN}
    slopes = {f"exponent {m}": evidence.time("prediction exponent", m) for m in FDN}
    return _verdict(growth.values(), lambda value: value > 2), f"100 draws over one: {_named(growth)}; {_named(slopes)}"


def _more_per_example(evidence: Evidence) -> Judged:
    hyper, plain = pair = ("HyperNet", "MLPNet")
    counts = {model: multiply_accumulates(model_spec(model, 1, PUBLISHED), 1, PUBLISHED)[0] for model in pair}
    timed = evidence.time("step", hyper) / evidence.time("step", plain)
    words = f"multiply-accumulates on one input: {_named(counts)}; time of a training step, not judged: "
    return counts[hyper] > counts[plain], f"{words}{plain_number(timed)} times as long"


def _latency_of_a_draw(evidence: Evidence) -> Judged:
    ratio = evidence.time("prediction", "LP-FDNet", 1) / evidence.time("prediction", BASE_MLP, 1)
    return _verdict([ratio], lambda value: value > 1), f"one draw over {BASE_MLP}: {plain_number(ratio)}"


def _hyper_products(evidence: Evidence) -> Judged:
    ratios = {}
    for model in FDN:
        spec = model_spec(model, 1, PUBLISHED)
        widths = (1, *spec.hidden, 1)
        for i, (a, b) in enumerate(zip(widths, widths[1:]), 1):
            ratios[f"{model} layer {i}"] = spec.hyper * 2 * (a * b + b) / (a * b)
    return max(ratios.values()) <= 3, f"h P over d d on one input: {_named(ratios)}"


def _representative(evidence: Evidence) -> Judged:
    runs = published.rows_of(evidence.metrics, dataset="airfoil", protocol=PUBLISHED.label, model=FDN)
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


def _draws_at_most(most: int, draws: int) -> Callable[[Evidence], Judged]:
    train, test = PUBLISHED.train_draws, PUBLISHED.eval_draws
    return lambda evidence: (draws <= most, f"K = {train} in training, {test} in validation and test")


def _matched(evidence: Evidence) -> Judged:
    ratios = {row.Index: row.max / row.min for row in _counts(evidence).itertuples()}
    alike, (updated, updates) = _verdict(ratios.values(), lambda ratio: ratio <= 1.05 / 0.95), _updates(evidence)
    draws, members = PUBLISHED.eval_draws, PUBLISHED.ensemble_members
    words = f"largest over smallest P: {_named(ratios)}; {updates}; K = {draws} draws, but {members} members of the "
    return None if alike is None else alike and updated and draws == members, f"{words}ensemble"


_FACTS: dict[str, tuple[tuple[object, ...], ...]] = {  # kind, words, criterion, judge, published
    "1 Introduction": (
        ("count", "Under matched parameter, update, and predictive-sample budgets",
         "on each task the largest P within 1.05 / 0.95 of the smallest; as many updates; as many draws as members",
         _matched, "no: K = 100, M = 10"),
    ),
    "4.3 Fairness": (
        ("count", "fix the parameter budget to P ≈ 1000 (±5%) for all models", "950 to 1050 parameters on every task",
         _parameters, "yes: 994 to 1011"),
        ("count", "the total number of parameter updates matched across models",
         "members times their epochs = epochs of the others", _updates, "yes: epochs divided by M"),
        ("time", "keeping per-step cost comparable",
         "a training step of the slowest of the five single models takes at most twice as long as that of the fastest",
         _step_costs),
    ),
    "4.3 Complexity": (
        ("count", "For all models, the per-epoch training cost scales linearly in the number of examples N",
         "exponent of an epoch's multiply-accumulates at most 1.05 for all", _in_examples(latency.SINGLE)),
        ("count", "and quadratically in the layer widths",
         "exponent of an epoch's multiply-accumulates over widths of 256, 512 and 1024 at most 2.05 for all",
         _growth("width", latency.SINGLE, (256, 512, 1024), lambda model, d: _operations(model, d, 1024), 2.05)),
    ),
    "5 Limitations": (
        ("time", "LP-FDN samples weights layer-by-layer, introducing additional latency relative to a deterministic "
         "forward pass", "one draw takes longer than the deterministic network of the same width",
         _latency_of_a_draw),
        ("time", "test-time sampling also incurs a compute–latency trade-off with the number of Monte Carlo samples K",
         "100 draws take more than twice as long as one, for both FDNs", _latency_of_draws),
        ("count", "though we keep K small in our experiments", "K at most 10 in validation and test",
         _draws_at_most(10, PUBLISHED.eval_draws), "no: 100 for validation and test"),
    ),
    "Appendix A": (
        ("count", "[Ensembles:] Inference cost scales linearly with M",
         "exponent of a prediction's multiply-accumulates at most 1.05", _in_members),
        ("count", "[A deterministic hypernetwork] can increase per-example compute",
         "HyperNet has more multiply-accumulates per example than MLPNet", _more_per_example),
        ("result", "matching ensemble-like diversity typically requires larger posterior variances or multiple "
         "posterior samples", DASH, _unmeasured("diversity of weights is not among the paper's metrics")),
    ),
    "Appendix B": (
        ("identity", "[IWAE:] tighter bound […] typically needs no extra β", DASH,
         _unmeasured("the bound is tighter by Jensen's inequality, whatever the results; that it needs no β is advice; "
                     "results under both are in data/extras")),
    ),
    "Appendix D": (
        ("result", "To mitigate variance blow-up in early training […] use a short β warm-up", DASH,
         _unmeasured("about a heteroscedastic head, which the experiments do not have")),
    ),
    "Appendix F": (
        ("result", "the representative seed used in the main-text plots lies close to the overall across-seed trend",
         "on airfoil, within one residual standard deviation of the line of log Var_OOD against log MSE_OOD, for both "
         "FDNs", _representative),
    ),
    "Appendix G": (
        ("count", "In all experiments we use K = 1", "K = 1 in training, whose cost the appendix counts",
         _draws_at_most(1, PUBLISHED.train_draws), "yes"),
        ("count", "making h_hyp P_ℓ comparable to d_{ℓ−1} d_ℓ", "at most three times as large in every layer",
         _hyper_products),
        ("count", "the training cost of IC-/LP-FDN remains linear in N",
         "exponent of an epoch's multiply-accumulates at most 1.05", _in_examples(FDN)),
        ("time", "the runtime overhead relative to a deterministic MLP is a small constant factor (typically 2–4×)",
         "a training step at most four times as long as that of an MLP of the same width, and of the same size",
         _overhead),
        ("count", "there is no cubic dependence on layer width",
         "the parameters, of which the paragraph speaks, grow with an exponent of at most 2.05 over widths of 64 to "
         "256", _no_cubic),
        ("count", "[adapter-style] overhead of FDN remains a small fraction of the backbone", DASH,
         _unmeasured("no backbone is deep enough here")),
    ),
}  # fmt: skip

FACTS = tuple(Fact(section, *fact) for section, facts in _FACTS.items() for fact in facts)
