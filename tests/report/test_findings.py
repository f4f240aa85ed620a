"""What notebooks say about results: hand-made metrics in, sentences and tables out."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fdn import paths
from fdn.errors import UserError
from fdn.metrics import SUMMARY_COLUMNS
from fdn.models import BASELINE, STOCHASTIC_MODELS
from fdn.report import findings
from fdn.runs import results


def runs(dataset="step", models=STOCHASTIC_MODELS, seeds=(0, 1, 2), protocol="published", **values):
    """Metrics that are 1 everywhere but for ``values``; one that is callable gets (model, seed)."""
    rows = []
    for model in models:
        for seed in seeds:
            row = dict.fromkeys(SUMMARY_COLUMNS, 1.0) | {"best_epoch": 7, "n_params": 1000, "n_draws": 100}
            row |= {name: value(model, seed) if callable(value) else value for name, value in values.items()}
            rows.append({"dataset": dataset, "model": model, "protocol": protocol, "seed": seed} | row)
    return pd.DataFrame(rows)


def points(bias, var):
    """A points frame with targets 0, the first half ID."""
    bias, var = np.asarray(bias, float), np.asarray(var, float)
    region = np.where(np.arange(len(bias)) < len(bias) // 2, "ID", "OOD")
    return pd.DataFrame({"z": np.arange(len(bias)), "y": 0.0, "region": region, "mean": bias, "var": var,
                         "mse": var + bias**2, "crps": 0.0})  # fmt: skip


def write_points(folder, model, seed, dataset="step"):
    path = results._path(folder, "points", dataset, model, "published", seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    points([1, 2, 3, 4], [1, 2, 3, 5]).to_parquet(path)


def test_the_committed_folder_is_read_with_all_its_seeds(monkeypatch, tmp_path):
    main, more = tmp_path / "main", tmp_path / "more"
    monkeypatch.setattr("fdn.paths.COMMITTED_RESULTS", main)
    monkeypatch.setattr("fdn.paths.EXTRAS", more)
    for folder, seeds in ((main, (0, 1)), (more, (1, 2, 3))):
        results.write_metrics(folder, runs(models=["BayesNet"], seeds=seeds))
    assert list(findings.read(main)["seed"]) == [0, 1, 2, 3]
    assert list(findings.read(more)["seed"]) == [1, 2, 3]  # any other folder is read as it is


def test_the_place_of_a_seed_is_its_rank_among_all():
    metrics = runs(models=["BayesNet"], seeds=range(5), mse_ood=lambda m, s: [3, 9, 1, 7, 5][s], var_ood=1.0)
    places = lambda runs, seed: findings.DatasetResults("step", "published", runs, seed, {}).places
    assert places(metrics, 3) == "Its rank among 5 seeds by OOD MSE, OOD Var: BayesNet 4, 1"
    assert places(metrics[metrics["seed"] == 3], 3) == places(metrics, 9) == places(metrics, None) == ""


@pytest.mark.parametrize("out, recompute", [("", "yes"), (3, False), ("", 1)])
def test_parameters_of_the_wrong_kind_are_refused(out, recompute):
    with pytest.raises(UserError, match="expected"):
        findings.results_folder(out, recompute)


def test_the_results_folder_defaults_to_what_the_run_is_for():
    assert findings.results_folder("", False) == paths.COMMITTED_RESULTS
    assert findings.results_folder("", True) == paths.DEFAULT_OUT
    assert findings.results_folder("mine", True) == Path("mine")


def test_an_empty_folder_is_the_reader_s_mistake(tmp_path):
    with pytest.raises(UserError, match="holds no results"):
        findings.read(tmp_path)


def test_no_path_of_the_machine_is_shown(tmp_path):
    assert findings.place(tmp_path / "mine") == "mine"
    assert findings.place(paths.ROOT / "out") == "out"


def test_missing_cells_are_grouped_by_seeds():
    metrics = runs(models=["BayesNet", "LP-FDNet"], seeds=(0, 1))
    asked = ["BayesNet", "LP-FDNet", "IC-FDNet"]
    assert findings.missing_cells(metrics, ["step"], asked[:2], [0, 1], "published") == []
    lines = findings.missing_cells(metrics, ["step", "quad"], asked, [0, 1, 2, 3, 7], "published")
    assert lines == [
        "step, seeds 2:4,7: BayesNet, LP-FDNet",
        "step, seeds 0:4,7: IC-FDNet",
        "quad, seeds 0:4,7: every model asked for",
    ]
    assert findings.missing_cells(metrics, ["step"], ["BayesNet"], [0], "as_written")


def test_results_of_a_data_set_show_the_representative_seed(tmp_path):
    metrics = runs(var_ood=lambda model, seed: {0: 1.0, 1: 5.0, 2: 9.0}[seed])
    for seed in (0, 1):
        write_points(tmp_path, "LP-FDNet", seed)
    found = findings.dataset_results(tmp_path, metrics, "step", "published")
    assert (found.seed, list(found.points)) == (1, ["LP-FDNet"])
    assert "representative one of 3" in found.remark and found.title.startswith(
        "step, seed 1, protocol published\nIts rank"
    )
    assert set(found.runs["model"]) == set(STOCHASTIC_MODELS)


def test_results_of_a_data_set_without_both_fdns_say_so(tmp_path):
    metrics = runs(models=["BayesNet", "LP-FDNet"])
    write_points(tmp_path, "BayesNet", 2)
    found = findings.dataset_results(tmp_path, metrics, "step", "published", ["BayesNet"])
    assert (found.seed, list(found.points), set(found.runs["model"])) == (2, ["BayesNet"], {"BayesNet"})
    assert "no representative seed" in found.remark and "seed 2" in found.remark


def test_results_of_nothing_say_so(tmp_path):
    found = findings.dataset_results(tmp_path, runs(), "quad", "published")
    assert found.seed is None and not found.points and "nothing to draw" in found.remark


def test_models_are_sorted_by_the_training_mean():
    level = {BASELINE: 1.0, "BayesNet": 0.2, "LP-FDNet": 4.0}
    metrics = runs(
        models=list(level), mse_id=lambda model, seed: level[model], sqerr_mean_id=lambda m, s: level[m] / 5,
        var_id=0.0,
    )  # fmt: skip
    inside, _ = findings.against_training_mean(metrics, "step", "published").split("\n")
    assert "squared error of 1.000" in inside
    assert "one draw is worse: LP-FDNet (4.000); better: BayesNet (0.200)" in inside
    assert "the predictive mean is better: BayesNet (0.040) and LP-FDNet (0.800)" in inside
    assert "missing" in findings.against_training_mean(metrics, "quad", "published")


def test_spread_is_largest_over_smallest():
    values = {"BayesNet": (1, 2, 3), "IC-FDNet": (-1, 1, 2), "LP-FDNet": (-3, -2, -1)}
    metrics = runs(models=list(values), delta_var=lambda model, seed: values[model][seed])
    sentence = findings.spread_over_seeds(metrics, "step", "published")
    assert sentence.endswith("BayesNet 3.0, IC-FDNet changes sign and LP-FDNet —.")
    assert "nothing can be said" in findings.spread_over_seeds(runs(seeds=(0,)), "step", "published")


def test_the_score_of_a_data_set_is_counted_against_chance():
    sentence = findings.score_of(runs(models=["BayesNet"], spearman=0.987), "step", "published")
    # one of seven numbers inside, seven times (3 - 1) / (3 + 1) expected
    assert "of 7 published numbers (35 missing), 1 lie" in sentence and "where 4 would" in sentence
    assert "nothing computed" in findings.score_of(runs(), "quad", "published")
    assert "not a data set of the paper" in findings.score_of(runs(), "diabetes", "published")


def test_protocols_stand_side_by_side():
    as_written = runs(models=["BayesNet"], protocol="as_written", seeds=(0,))
    metrics = pd.concat([runs(models=["BayesNet"], mse_id=0.5), as_written])
    table = findings.protocol_table(metrics, "step", ["published", "as_written"])
    column = table.columns.index("MSE, ID")
    rows = {row[:2]: row for row in table.rows}
    assert rows["BayesNet", "`published`"][column] == "0.500" and rows["BayesNet", "`published`"][2] == "3"
    assert rows["BayesNet", "`as_written`"][column] == "1.000" and rows["BayesNet", "`as_written`"][-1] == "7"
    assert rows["LP-FDNet", "`published`"][column] == "n/a" and table.notes
