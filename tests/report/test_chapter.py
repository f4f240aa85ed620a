"""What notebooks 3 and 4 say under what they show: hand-made runs in, sentences with an order out."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from test_findings import points, runs

from fdn import data, paths
from fdn import metrics as measures
from fdn.errors import UserError
from fdn.models import BASELINE, FDN_MODELS, MODEL_NAMES, PAPER_MODELS
from fdn.protocol import PUBLISHED
from fdn.report import chapter, findings, published, tables
from fdn.report.claims.statements import CLAIMS
from fdn.report.findings import DatasetResults
from fdn.runs import results


def study(**frames):
    named = {name.replace("_", "-"): frame for name, frame in frames.items()}
    return DatasetResults("step", "published", runs(models=list(named)), 0, named)


def order(text, models):
    return sorted(models, key=text.index)


def book(metrics, models=PAPER_MODELS, names=("step",), absent=()):
    return chapter.Chapter(list(names), list(models), PUBLISHED, paths.ROOT, metrics, metrics, list(absent))


def test_bands_are_measured_by_the_targets_they_hold_and_by_the_targets_own_spread():
    narrow, wide = points([1, 1, 3, 3], [0.25, 0.25, 1, 1]), points([1, 1, 3, 3], [4, 4, 9, 9])
    for frame in (narrow, wide):
        frame["y"] = [0.0, 2.0, 0.0, 0.0]  # sd 1 inside
    text = chapter.of_uncertainty(study(BayesNet=narrow, IC_FDNet=wide))
    assert "BayesNet 100% / 0%" in text and "IC-FDNet 100% / 100%" in text
    assert "larger than that of the targets for IC-FDNet (2.0)" in text
    assert "all standard deviations are smaller" in chapter.of_uncertainty(study(BayesNet=narrow))


def test_the_share_of_var_is_that_of_the_sum_and_of_every_point():
    text = chapter.of_scatter(study(IC_FDNet=points([0.1] * 4, [1.0] * 4), BayesNet=points([2.0] * 4, [1, 1, 1, 1])))
    assert text.endswith("IC-FDNet 99%, 100%; BayesNet 20%, 0%.")
    mixed = points([0.1, 0.1, 0.1, 5.0], [1.0, 1.0, 1.0, 200.0])  # 89 % of the whole, and of single points
    mixed.loc[0, ["var", "mse"]] = 0.01, 0.02
    assert "IC-FDNet 89%, 75%" in chapter.of_scatter(study(IC_FDNet=mixed)), "most of the MSE, and not every point"


def test_the_variance_is_held_against_the_error_of_the_mean():
    text = chapter.of_bias(study(LP_FDNet=points([3, 2, 1, 0], [10, 20, 30, 40])))
    assert "LP-FDNet 1.000 and -1.000" in text
    assert "no FDN" in chapter.of_bias(study(BayesNet=points([1, 2], [1, 2])))


def test_intervals_are_told_apart_by_what_they_hold():
    inside = {"BayesNet": 0.9, "IC-FDNet": 1.0, "LP-FDNet": 0.5}
    metrics = runs(models=list(inside), coverage_90_id=lambda m, s: inside[m], coverage_90_ood=0.9)
    text = chapter.of_intervals(DatasetResults("step", "published", metrics, 0, {}))
    near, far = text.split(". And ")
    assert "right for BayesNet (90%); too many for IC-FDNet (100%); too few for LP-FDNet (50%)" in near
    assert far == "outside, about right for BayesNet (90%), IC-FDNet (90%) and LP-FDNet (90%)."


def test_models_are_ordered_by_their_area_and_by_their_delta():
    frames = {"BayesNet": points([0, 1, 2, 3], [1, 2, 3, 4]), "IC_FDNet": points([0, 5, 6, 7], [1, 2, 3, 4]),
              "LP_FDNet": points([0, 0, 0, 0.1], [1, 2, 3, 4])}  # fmt: skip
    assert order(chapter.of_risk(study(**frames)), ["BayesNet", "IC-FDNet", "LP-FDNet"]) == [
        "LP-FDNet", "BayesNet", "IC-FDNet",
    ]  # fmt: skip
    given = study(**frames)
    grown = {"BayesNet": 2.0, "IC-FDNet": 9.0, "LP-FDNet": 5.0}
    frame = given.runs.assign(delta_var=given.runs["model"].map(grown), delta_mse=10.0)
    text = chapter.of_deltas(DatasetResults("step", "published", frame, 0, {}))
    assert order(text, grown) == ["IC-FDNet", "LP-FDNet", "BayesNet"] and "IC-FDNet 9.000 of 10.00" in text


def test_a_conclusion_ranks_only_where_intervals_over_seeds_are_apart():
    error = {"BayesNet": 0.1, "IC-FDNet": 0.1, "LP-FDNet": 0.9}
    metrics = runs(
        models=[*error, BASELINE], seeds=range(20), n_draws=100, var_id=0.0,
        sqerr_mean_id=lambda m, s: error.get(m, 1.0) + s / 1000 + (m == "IC-FDNet") / 1000,
        mse_id=lambda m, s: {"LP-FDNet": 2.0, BASELINE: 1.0}.get(m, 0.5),
        coverage_90_ood=lambda m, s: 0.95 if m == "LP-FDNet" else 0.5,
    )  # fmt: skip
    text = chapter.conclusion(book(metrics), "step")
    assert "inside is that of BayesNet, from which IC-FDNet cannot be told apart" in text
    assert "; LP-FDNet is behind" in text
    assert re.search(r"outside for LP-FDNet\.", text) and text.endswith("draw by draw: LP-FDNet.")


def test_the_verdict_on_a_statement_is_that_over_the_data_sets_of_the_chapter():
    metrics = findings.read(paths.COMMITTED_RESULTS)
    book_of = lambda names: dataclasses.replace(book(metrics, names=names), folder=paths.COMMITTED_RESULTS)
    draw, mean = chapter.verdicts(book_of(data.TOY), "FDN is ID-competitive")
    assert draw.endswith("**does not hold**: on step, sine and quad.")
    assert mean.endswith("**holds in part**: does not hold on step; holds on sine; not measured on quad.")
    draw, mean = chapter.verdicts(book_of(data.UCI), "FDN is ID-competitive")
    assert all(one.endswith("**does not hold**: on airfoil, ccpp and energy.") for one in (draw, mean))
    assert chapter.verdicts(book(runs(), names=("diabetes",)), "FDN is ID-competitive") == []


def test_each_of_the_claims_that_matter_is_one_of_the_paper_s():
    words = {beginning: [c for c in CLAIMS if c.words.startswith(beginning)] for beginning in chapter.THAT_MATTER}
    assert len(words) == 10 and all(words.values())
    metrics = runs(seeds=range(2))
    table = chapter.claims_that_matter(book(metrics, names=("step", "diabetes")))
    assert any("strong triage" in row[0] for row in table.rows) and {row[2] for row in table.rows} == {"step"}


def test_all_committed_runs_are_not_judged_again_and_say_the_same(monkeypatch):
    chosen = "sine", "energy"
    asked = (",".join(chosen), ",".join(MODEL_NAMES), "", "published", 0, False, "")
    whole = chapter.open_chapter("data set", data.NAMES, asked[0], f"{BASELINE},{asked[1]}", *asked[2:])
    assert whole.all_committed
    monkeypatch.setattr(chapter, "THAT_MATTER", ("and exhibits strong calibration", "Deep ensembles show smaller"))
    read = chapter.claims_that_matter(whole)
    judged = chapter.claims_that_matter(dataclasses.replace(whole, folder=paths.ROOT))
    assert read == judged and [row[2] for row in read.rows] == ["sine\nenergy", "sine"]


def asked(tmp_path, **changes):
    given = {"dataset": "step", "models": "BayesNet,IC-FDNet", "seeds": "", "protocol": "published", "epochs": 0,
             "recompute": False, "out": str(tmp_path)}  # fmt: skip
    return chapter.open_chapter("toy task", data.TOY, *(given | changes).values())


def test_a_chapter_holds_the_models_and_seeds_that_were_asked_for(tmp_path):
    results.write_metrics(tmp_path, runs(models=["BayesNet", "IC-FDNet", "LP-FDNet"], seeds=(0, 1, 2)))
    everything, some = asked(tmp_path), asked(tmp_path, seeds="1,7")
    assert set(everything.metrics["model"]) == {"BayesNet", "IC-FDNet"} and everything.absent == []
    assert set(some.metrics["seed"]) == {1} and some.absent == ["step, seeds 7: every model asked for"]
    assert "Seeds: step 0:3." in everything.base() and "recompute" not in everything.base()
    assert "every model asked for" in some.base()


@pytest.mark.parametrize("changes", [{"epochs": 5}, {"protocol": "as_written"}, {"models": "LP-FDNet"}, {"seeds": "9"}])
def test_what_a_folder_does_not_hold_is_answered_with_what_to_do(tmp_path, changes):
    results.write_metrics(tmp_path, runs(models=["BayesNet", "IC-FDNet"]))
    with pytest.raises(UserError, match="holds no run of .* add -p recompute True"):
        asked(tmp_path, **changes)


def test_tables_leave_out_what_was_not_asked_for_and_say_when_like_does_not_stand_beside_like():
    label = "published+epochs=5"
    metrics = runs(models=["BayesNet", "LP-FDNet"], protocol=label)
    shown = tables.result_table(metrics, "step", label, ["BayesNet"])
    assert [row[0] for row in shown.rows] == ["BayesNet"] and "Not like with like" in shown.caption
    assert label in shown.caption
    ours = tables.result_table(metrics.assign(protocol="published"), "step")
    assert "Not like" not in ours.caption and len(ours.rows) == len(PAPER_MODELS)
    assert "Not like" not in tables.result_table(metrics.assign(dataset="own"), "own", label).caption
    regions = tables.region_table(metrics, "step", label, ["BayesNet"])
    assert {row[0] for row in regions.rows} == {"BayesNet"}
    assert tables.region_table(metrics, "step", label).rows[0][0] == BASELINE


def test_numbers_of_a_sentence_are_those_of_the_points():
    frame = points(np.zeros(4), [1.0, 1.0, 4.0, 4.0])
    text = chapter.of_risk(study(BayesNet=frame))
    areas = [float(x) for x in re.findall(r"BayesNet (\d\.\d+)", text)]
    assert areas == pytest.approx([np.trapezoid(np.cumsum([1, 1, 4, 4]) / [1, 2, 3, 4], dx=0.25)], abs=1e-3)


def test_the_score_names_the_model_that_is_reached_least(monkeypatch):
    rows = [{"dataset": "step", "model": model, "metric": "aurc", "n_seeds": 3, "verdict": verdict}
            for model, verdict in (("BayesNet", published.OUTSIDE), ("LP-FDNet", published.RANGE))]  # fmt: skip
    text = chapter.of_score(pd.DataFrame(rows))
    assert (
        "1 of 2 lie within" in text
        and "1 would by chance" in text
        and "lowest for BayesNet (0%), and on step (50%)." in text
    )


def test_protocols_are_compared_in_the_order_given():
    metrics = pd.concat([runs(models=["LP-FDNet"], best_epoch=40, mse_id=4.0),
                         runs(models=["LP-FDNet"], protocol="as_written", best_epoch=8, mse_id=1.5)])  # fmt: skip
    text = chapter.of_protocols(metrics, "step", ["published", "as_written"])
    assert "LP-FDNet is kept at epoch 40 to 8, its ID MSE goes from 4.000 to 1.500" in text
    assert "alone" in chapter.of_protocols(metrics, "step", ["published"])


def test_the_answers_to_the_exercises_are_what_the_committed_points_say():
    metrics = findings.read(paths.COMMITTED_RESULTS)
    found = {d: findings.dataset_results(paths.COMMITTED_RESULTS, metrics, d, "published") for d in ("step", "ccpp")}
    for model in FDN_MODELS:
        frame = found["step"].points[model]
        near, outside = frame[frame["z"].abs() <= 2], frame[frame["z"].abs() > 1]
        fits = [measures.linear_fit(part["var"], part["mse"]) for part in (frame, near)]
        assert abs(fits[0][0]) > 100 and abs(fits[1][0]) < 1, "a shrinks from hundreds to less than one"
        if model == "LP-FDNet":
            assert all(abs(b - 1) < 0.05 for _, b in fits)
        else:
            assert abs(fits[1][1] - 1) < abs(fits[0][1] - 1)
        distance, bias2 = outside["z"].abs() - 1, (outside["mean"] - outside["y"]) ** 2
        assert measures.spearman(distance, outside["mse"]) > measures.spearman(outside["var"], outside["mse"]) - 0.05
        assert measures.spearman(distance, bias2) > measures.spearman(outside["var"], bias2)
        frame = found["ccpp"].points[model].query("region == 'ID'")
        bias2 = (frame["mean"] - frame["y"]) ** 2
        left = [measures.aurc(frame["var"], e) / e.mean() for e in (frame["mse"], bias2)]
        assert left[0] < 0.76 and left[1] > 0.95 and abs(measures.spearman(frame["var"], bias2)) < 0.1
