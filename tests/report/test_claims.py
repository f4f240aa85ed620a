"""The paper's claims: criteria put to the published tables, and to frames made to meet and to miss them."""

import re

import numpy as np
import pandas as pd
import pytest

from fdn.metrics import SUMMARY_COLUMNS
from fdn.models import BASELINE, MODEL_NAMES, STOCHASTIC_MODELS
from fdn.report import claims
from fdn.report.claims import CLAIMS, FACTS, FDN, OTHERS, Evidence, published_frame, variant
from fdn.report.published import DATASETS
from fdn.timing import latency


def claim(dataset, words, section=""):
    found = [c for c in CLAIMS if dataset in c.datasets and words in c.words and section in c.section]
    assert len(found) == 1
    return found[0]


def fact(words):
    found = [f for f in FACTS if words in f.words]
    assert len(found) == 1
    return found[0]


def runs(values, datasets=("step",), seeds=(0, 1, 2, 3, 4)):
    """Metrics of 1 everywhere but where ``values(dataset, row, seed)`` says otherwise; a row per name of ``rows``."""
    rows = []
    for dataset in datasets:
        for row, seed in ((row, seed) for row in (BASELINE, *MODEL_NAMES, *VARIANTS) for seed in seeds):
            model, plus, changes = row.partition("+")
            key = {"dataset": dataset, "model": model, "protocol": f"published{plus}{changes}", "seed": seed}
            rest = dict.fromkeys(SUMMARY_COLUMNS, 1.0) | {"n_draws": 100, "n_params": 1000, "best_epoch": 40}
            rows.append(key | rest | values(dataset, row, seed))
    return pd.DataFrame(rows)


VARIANTS = [variant(model, beta_max=beta) for model in FDN for beta in (0.01, 0.1, 10.0)]


def judged(found, words, dataset="step", section=""):
    chosen = [f for f in found if words in f.words and dataset in f.dataset and section in f.section]
    assert len(chosen) == 1
    return chosen[0]


def frame(**columns):
    """A row per model; each column as (value of the FDNs, value of the others)."""
    values = {m: [pair[m not in FDN] for pair in columns.values()] for m in STOCHASTIC_MODELS}
    return pd.DataFrame.from_dict(values, orient="index", columns=list(columns), dtype=float)


@pytest.mark.parametrize("dataset, words, holds", [
    ("step", "slopes closer", False),  # GaussHyperNet has 1.02 and MLPDropoutNet 1.34, IC-FDNet 2.52
    ("quad", "slopes closer", True),  # both FDNs 1.42, GaussHyperNet 2.81
    ("sine", "faster than its variance", True),  # 1.73 and 1.05
    ("sine", "ranking can be weaker", True),  # 0.632
    ("quad", "AURC [is] broadly comparable", False),  # 377.8 against 142.5
    ("quad", "ΔCRPS [is] broadly comparable", True),  # 14.1 against 15.1
    ("airfoil", "somewhat larger ΔMSE", False),  # 25.3 against 0.8
    ("airfoil", "somewhat larger] ΔCRPS", True),  # 0.363, 0.493 against 0.335
    ("energy", "variances remain shift-aware", True),
    ("step", "consistently high rank", True),
    ("ccpp", "consistently high rank", True),  # LP-FDNet 0.902
    ("sine", "all methods degrade", False),  # ΔCRPS of DeepEnsembleNet -0.179
    ("step", "input-aware weight stochasticity", True),  # 1725 and 6307 against 167
    ("ccpp", "input-aware weight stochasticity", False),  # 2.9 and 2.1 against 7.1
    ("ccpp", "larger increases in predictive variance", False),  # LP 2.1, IC 2.9
    ("energy", "can still under-react", True),
    ("quad", "near-ideal scale", False),  # 1.42
])  # fmt: skip
def test_verdict_on_the_published_table(dataset, words, holds):
    assert claim(dataset, words).judge(published_frame(dataset)) is holds


def test_a_slope_and_its_inverse_are_equally_far_from_one_and_negative_slopes_farthest():
    slopes = claim("step", "slopes closer")
    assert slopes.judge(frame(slope_b=(1.9, 0.5)))
    assert not slopes.judge(frame(slope_b=(2.1, 0.5)))
    assert slopes.judge(frame(slope_b=(50.0, -1.0)))
    assert not slopes.judge(frame(slope_b=(-1.0, 50.0)))


def test_nothing_is_said_without_the_numbers():
    competitive = [c for c in CLAIMS if c.words == "FDN is ID-competitive"]
    assert [c.judge(published_frame("step")) for c in competitive] == [None] * 2
    ranking = claim("sine", "excellent ranking", "4.5")
    assert ranking.judge(frame(spearman=(0.96, 0.0)).drop(index="BayesNet")) is None
    assert ranking.judge(frame(spearman=(np.nan, 0.0))) is False


def test_a_finding_counts_the_seeds_in_which_a_claim_holds():
    runs = []
    for seed, mse in ((0, 0.5), (1, 3.0), (2, 0.9)):
        for model, value in (dict.fromkeys(STOCHASTIC_MODELS, mse) | {BASELINE: 1.0}).items():
            key = {"dataset": "step", "model": model, "protocol": "published", "seed": seed}
            key |= {"n_draws": 101, "best_epoch": 46}
            # of the squared errors 0.5 + seed / 10 of the FDNs' means, chance explains 10 / 100
            spread, error = (10.0, 0.5 + seed / 10) if model in FDN else (0.0, 0.5)
            runs.append(key | {"mse_id": value, "var_id": spread, "sqerr_mean_id": error})
    frames = list(claims.seed_frames(pd.DataFrame(runs), "step").values())
    on_step = [claims.judging.judge(c, "step", published_frame("step"), frames) for c in CLAIMS if "step" in c.datasets]
    found = [(f.published, f.numbers, f.conclusion) for f in on_step if "ID-comp" in f.words]
    assert found == [("—", "2 of 3 seeds", "holds in part"), ("—", "3 of 3 seeds", "holds")]
    assert {(f.numbers, f.conclusion) for f in on_step if "ρ" in f.criterion} == {("", "not measured")}  # not given


def test_every_data_set_of_the_paper_has_claims_and_others_have_none():
    assert {dataset for c in CLAIMS for dataset in c.datasets} == set(DATASETS)


def test_the_models_are_the_paper_s():
    assert {*FDN, *OTHERS} == set(STOCHASTIC_MODELS)


def test_changed_settings_are_rows_of_their_own():
    spread = {"": 1.0, "+beta_max=0.1": 0.5, "+beta_max=10.0": 3.0, "+beta_max=0.01": 0.1}

    def values(dataset, row, seed):
        level = next((v for suffix, v in spread.items() if row == row.split("+")[0] + suffix), 1.0)
        falls = row == "LP-FDNet+beta_max=10.0" and seed == 0  # in one seed LP's variance falls again
        return {"var_id": 0.2 if falls else level, "var_ood": 10 * level}

    found = claims.findings(runs(values), None)
    tuned = judged(found, "can be tuned via β")
    assert (tuned.held, tuned.seeds, tuned.median, tuned.conclusion) == (4, 5, "yes", "holds")
    assert judged(found, "can be tuned via […] hypernetwork").conclusion == "not measured"


def test_a_claim_across_data_sets_takes_the_seeds_they_share():
    level = {"airfoil": 2.0, "ccpp": 1.0, "energy": 1.0}

    def values(dataset, row, seed):
        moved = 3.0 if dataset == "energy" and seed == 0 else level[dataset]
        return {"delta_mse": moved, "delta_crps": moved}

    metrics = runs(values, datasets=level)
    metrics = metrics[(metrics["dataset"] != "ccpp") | (metrics["seed"] < 3)]
    moderate = judged(claims.findings(metrics, None), "more moderate values", "airfoil, ccpp, energy")
    assert (moderate.held, moderate.seeds, moderate.published, moderate.conclusion) == (2, 3, "yes", "holds in part")


def test_conclusions_follow_the_share_of_seeds():
    for slopes, conclusion in (([1.0] * 4 + [9.0], "holds"), ([1.0] * 3 + [9.0] * 2, "holds in part"),
                               ([1.0] + [9.0] * 4, "does not hold")):  # fmt: skip
        found = claims.findings(runs(lambda d, row, seed: {"slope_b": slopes[seed]}), None)
        near = judged(found, "near-ideal scale")
        assert near.conclusion == conclusion and near.held == slopes.count(1.0)
        assert near.median == ("yes" if slopes.count(1.0) >= 3 else "no") and near.published == "no"


def test_nll_is_compared_with_crps_over_models_and_regions():
    order = {model: i + 1.0 for i, model in enumerate(STOCHASTIC_MODELS)}

    def values(dataset, row, seed):
        size = order.get(row, 1.0)
        nll = 100 * size**3 if seed else -size
        return {"nll_id": nll, "nll_ood": 10 * nll, "crps_id": size, "crps_ood": 10 * size, "mse_id": 1 / size}

    found = claims.findings(runs(values), None)
    assert (judged(found, "correlated with CRPS").held, judged(found, "(ii) much more sensitive").held) == (4, 4)
    assert judged(found, "] MSE", section="H").held == 0


def times(**ratios):
    """Measurements: quantity, model and size joined by "|", each with a ratio."""
    rows = [(*name.split("|")[:2], float((name.split("|") + ["nan"])[2]), value) for name, value in ratios.items()]
    return pd.DataFrame(rows, columns=list(latency.COLUMNS))


def test_facts_about_time_need_every_number():
    step = {f"step|{model}": 3.0 for model in FDN} | {f"step|{latency.BASE_MLP}": 1.0, "step|MLPNet": 1.5}
    none = pd.DataFrame()
    assert fact("small constant factor").judge(Evidence(none, times(**step)))[0] is True
    slow = times(**step | {"step|LP-FDNet": 4.1})
    verdict, numbers = fact("small constant factor").judge(Evidence(none, slow))
    assert verdict is False and f"LP-FDNet over {latency.BASE_MLP} 4.100" in numbers
    assert fact("small constant factor").judge(Evidence(none, times(**{"step|LP-FDNet": 3.0})))[0] is None
    grown = times(**{f"prediction|{model}|{k}": k / 10 for model in FDN for k in (1, 100)})
    assert fact("latency trade-off").judge(Evidence(none, grown))[0] is True


def test_growth_of_cost_is_judged_by_counted_operations_and_times_stand_beside(monkeypatch):
    slow = times(**{f"{what} exponent|{m}": 2.9 for what in ("width", "examples") for m in latency.SINGLE})
    evidence = Evidence(pd.DataFrame(), slow)
    for words, most in (("quadratically in the layer widths", 2.0), ("linearly in the number", 1.0),
                        ("remains linear in N", 1.0), ("scales linearly with M", 1.0)):  # fmt: skip
        verdict, numbers = fact(words).judge(evidence)
        counted = [float(x) for x in re.findall(r"Net (\d\.\d+)", numbers.split(";")[0])]
        assert verdict is True and max(counted) <= most + 0.001 and min(counted) > 0.9
    assert "LP-FDNet 2.900" in fact("quadratically").judge(evidence)[1]
    # two hidden layers of d units on one input: d + d d + d products
    widths = np.array([256.0, 512, 1024])
    slope = np.polyfit(np.log(widths), np.log(widths**2 + 2 * widths), 1)[0]
    assert f"counted operations: MLPNet {slope:.3f}," in fact("quadratically").judge(evidence)[1]
    assert fact("no cubic").judge(evidence)[0] is True
    monkeypatch.setattr("fdn.report.claims.facts.count_parameters", lambda spec, *_: spec.hidden[0] ** 3)
    monkeypatch.setattr("fdn.report.claims.facts.multiply_accumulates", lambda spec, *_: (spec.hidden[0] ** 3, 0))
    assert fact("no cubic").judge(evidence)[0] is False and fact("quadratically").judge(evidence)[0] is False


def test_draws_are_those_that_the_sentence_is_about():
    evidence = Evidence(pd.DataFrame(), None)
    assert fact("In all experiments we use K = 1").judge(evidence)[0] is True  # the cost of training
    assert fact("we keep K small").judge(evidence)[0] is False  # sampling when testing


@pytest.mark.parametrize("words, low, high, held, conclusion", [
    ("near-ideal scale", 9.0, 1.0, 3, "holds in part"),  # always: 0.8 of the seeds
    ("typically widens", -1.0, 1.0, 3, "holds"),  # often: half
    ("typically widens", -1.0, 1.0, 2, "holds in part"),
    ("can under-scale", 0.5, 1.5, 3, "holds"),  # can: half, of one data set
    ("can under-scale", 0.5, 1.5, 1, "holds in part"),
    ("can under-scale", 0.5, 1.5, 0, "does not hold"),
])  # fmt: skip
def test_what_is_said_often_needs_fewer_seeds_than_what_is_said_always(words, low, high, held, conclusion):
    def values(dataset, row, seed):
        number = high if seed < held else low
        return {"slope_b": number, "delta_var": number}

    dataset = {"near": "step", "typi": "airfoil", "can ": "sine"}[words[:4]]
    found = judged(claims.findings(runs(values, (dataset,)), None), words, dataset)
    assert (found.held, found.conclusion) == (held, conclusion)


def test_what_can_be_holds_if_it_does_on_one_data_set_alone():
    def values(dataset, row, seed):
        return {"delta_var": 0.5 if row == "BayesNet" and dataset == "sine" else 1.0}

    found = claims.findings(runs(values, ("step", "sine")), None)
    group = [f for f in found if "can under-react off-support" in f.words]
    assert [f.conclusion for f in group] == ["does not hold", "holds", *["not measured"] * 4]
    assert claims.judging.verdict(group) == "holds"


def test_a_verdict_says_where_its_runs_are_kept():
    def values(dataset, row, seed):
        return {"best_epoch": 1 if row == "DeepEnsembleNet" else 44 + 2 * (row == "LP-FDNet")}

    metrics = runs(values, ("sine",))
    found = claims.findings(metrics, None)
    assert judged(found, "FDN preserves excellent", "sine").checkpoint == "FDNs at β = 0.225"
    assert judged(found, "smaller ΔMSE and hence", "sine").checkpoint == "FDNs at β = 0.225, ensemble at epoch 1 of 40"
    page = claims.page(found, metrics)
    assert "FDNs at β = 0.225" in page and "below 1: in every seed of both FDNs on sine" in page


def test_an_error_alike_to_others_that_are_no_better_than_the_training_mean_is_remarked():
    def values(level):
        def of_run(dataset, row, seed):
            return {"var_id": 0.0, "sqerr_mean_id": {BASELINE: 2.0, "MLPDropoutNet": 1.0}.get(row, level)}

        return of_run

    def remark(level):
        return judged(claims.findings(runs(values(level), ("sine",)), None), "remains competitive", "sine").remark

    assert remark(1.95) == (
        "there only MLPDropoutNet (1.000) of the six is more than 5% below the error of predicting the training mean "
        "(2.000)"
    )
    assert remark(1.2) == ""


def test_likeness_is_judged_by_the_medians_over_seeds():
    def values(dataset, row, seed):
        return {"mse_id": 4.0 ** ((seed + 2 * (row == "IC-FDNet")) % 5)}  # the same five numbers, in another order

    found = judged(claims.findings(runs(values), None), "two variants achieve similar")
    assert (found.held, found.median, found.conclusion) == (0, "yes", "holds")


def test_an_error_below_what_the_draws_resolve_is_no_win():
    def values(level):
        def of_run(dataset, row, seed):
            negative = row == "LP-FDNet" and seed < level
            return {"sqerr_mean_id": 0.5, "var_id": 99.0 if negative else 0.0}  # 0.5 - 99 / 99 is below 0

        return of_run

    for level, conclusion in ((1, "holds"), (2, "not measured")):
        found = judged(claims.findings(runs(values(level)), None), "remains competitive in accuracy")
        assert found.conclusion == conclusion and found.seeds == found.held == 5 - level
        assert f"in {level} more an error is not above 0" in found.numbers


def test_facts_about_counts():
    metrics = runs(
        lambda dataset, row, seed: {"n_params": 3000 if dataset == "energy" else 1000}, ("step", "energy"), (0,)
    )
    verdict, numbers = fact("parameter budget").judge(Evidence(metrics, None))
    assert verdict is False and numbers == "of the published runs: step 1000 to 1000, energy 3000 to 3000"
    only = metrics[metrics["dataset"] == "step"]
    assert fact("parameter budget").judge(Evidence(only, None))[0] is True
    assert fact("comparable to d_").judge(Evidence(metrics, None))[0] is False  # 10 to 24 times as large
    assert fact("parameter updates").judge(Evidence(metrics, None))[0] is True


def test_a_typical_representative_seed_is_near_the_line():
    def values(dataset, row, seed):
        return {"mse_ood": np.exp(seed), "var_ood": np.exp(seed + (seed == 3)), "delta_crps": 1.0, "aurc": 1.0}

    metrics = runs(values, ("airfoil",), range(7))  # seed 3 is the median, and off the line
    verdict, numbers = fact("representative seed").judge(Evidence(metrics, None))
    assert verdict is False and numbers.startswith("seed 3,")
    assert fact("representative seed").judge(Evidence(metrics[metrics["seed"] < 4], None))[0] is None


def test_the_page_and_the_file_hold_every_claim(tmp_path):
    written = claims.write(tmp_path, runs(lambda *key: {}))
    table, text = pd.read_csv(written[0], keep_default_na=False), written[1].read_text(encoding="utf-8")
    assert "Written by `fdn claims` from the committed results" in text
    elsewhere = claims.page(claims.findings(runs(lambda *key: {}), None), runs(lambda *key: {}), "`out`")
    assert "Written by `fdn claims` from `out` and times" in elsewhere and "committed results" not in elsewhere
    assert len(table) == sum(1 if c.across else len(c.datasets) for c in CLAIMS) + len(FACTS)
    rows = [line for line in text.splitlines() if line.startswith("| “")]
    assert len(rows) == len({(c.section, c.words, c.criterion) for c in (*CLAIMS, *FACTS)}) == len(CLAIMS) + len(FACTS)
    assert text.startswith("# What the paper says") and f"Of {len(rows)} statements " in text
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert (
        sections[0] == "Abstract" and sections[-1] == "Appendix H" and sections == list(dict.fromkeys(table["section"]))
    )
