"""The generated pages hold what the committed results say, and every difference of the protocols is explained."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import mannwhitneyu

import fdn
from fdn import paths
from fdn.data import UCI
from fdn.errors import UserError
from fdn.metrics import spearman
from fdn.models import BASELINE, FDN_MODELS
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.report import claims, comparison, findings, published
from fdn.report.pages import differences as page_of_differences
from fdn.report.pages import extras as page_of_extras
from fdn.report.pages import readme
from fdn.report.pages import seeds as page_of_seeds
from fdn.report.pages.comparison import write_comparison
from fdn.report.published import DATASETS
from fdn.report.rivals import JUDGING
from fdn.report.tables import corrected_mean_error
from fdn.runs import bands, differences, extras, results, rivals

README = paths.ROOT / "README.md"
PAGES = [README, *sorted((paths.ROOT / "docs").glob("*.md"))]


def marked(page: Path) -> str:
    return page.read_text(encoding="utf-8").split(readme.BEGIN)[1].split(readme.END)[0].strip()


def test_readme_and_the_page_of_results_hold_the_committed_results(tmp_path):
    """Long, for every published number is compared with all committed seeds."""
    (tmp_path / "docs").mkdir()
    pages = [Path("README.md"), Path("docs/results.md")]
    for page in pages:
        (tmp_path / page).write_text(f"{readme.BEGIN}{readme.END}", encoding="utf-8")
    readme.update(root=tmp_path)
    for page in pages:
        assert marked(paths.ROOT / page) == marked(tmp_path / page)
        assert page.name == "README.md" or "](data/" not in marked(tmp_path / page), "links lead from docs/"
    (tmp_path / "README.md").write_text("no markers", encoding="utf-8")
    with pytest.raises(UserError, match="should hold the markers"):
        readme.update(root=tmp_path)


def test_readme_has_at_most_nine_hundred_words():
    assert len(README.read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_pages_for_readers_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)\s:]+)\)", page.read_text(encoding="utf-8"))
    assert targets
    for target in targets:
        name, _, anchor = target.partition("#")
        there = page.parent / name if name else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def anchors(page: Path) -> set[str]:
    """Of the headings of a Markdown page, as a code host makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_pages_for_readers_exist(page):
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (paths.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    from fdn.cli import COMMANDS

    assert set(re.findall(r"(?<!from )(?<!import )\bfdn ([a-z]+) ", text)) <= set(COMMANDS)


def code_of(page: str) -> str:
    (block,) = re.findall(r"```python\n(.*?)```", (paths.ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return block


def test_the_code_of_the_pages_for_readers_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(fdn, "PUBLISHED", dataclasses.replace(PUBLISHED, epochs=2, eval_draws=3), raising=False)
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    pd.DataFrame(rng.normal(size=(60, 3)), columns=["temperature", "x", "y"]).to_csv("mine.csv", index=False)
    for page in ("README.md", "docs/own_data.md"):
        found = {}
        exec(code_of(page), found)
        prediction = found["prediction"]
        assert prediction.draws.shape[0] == 3 and prediction.mean.shape == prediction.epistemic.shape
    K, B, P, h = 4, 5, 2 * (3 + 1), 6
    found = {"K": K, "a": torch.randn(K, B, 3), "z": torch.rand(B, h), "weight": torch.randn(2 * P, h),
             "bias": torch.randn(2 * P)}  # fmt: skip
    exec(code_of("docs/op.md"), found)
    assert found["y"].shape == (K, B, 2) and found["kl"].shape == (1, B)


def test_every_page_of_docs_is_on_its_index_and_within_reach_of_the_readme():
    index = (paths.ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+\.md)\)", index)) == {p.name for p in PAGES if p.parent.name == "docs"} - {
        "README.md"
    }
    assert "(docs/README.md)" in README.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def medians():
    """Median over all committed seeds, by data set and model, under the published protocol."""
    metrics = extras.with_extras()
    metrics = metrics[metrics["protocol"] == PUBLISHED.label]
    metrics = metrics.assign(mean_id=corrected_mean_error(metrics, "id"))
    return metrics, metrics.groupby(["dataset", "model"]).median(numeric_only=True)


def test_the_readme_counts_the_tables_on_which_our_settings_are_best():
    table = rivals.load()
    table = table[table["dataset"].isin(JUDGING)]
    mean = table.groupby(["region", "dataset", "method"])["crps"].mean().unstack()
    best = mean.idxmin(axis=1).eq("FDN, recommended").groupby("region").sum()
    number = dict(zip(range(11), "none one two three four five six seven eight nine ten".split()))
    methods, tables = number[mean.shape[1]], number[len(mean.loc["id"])]
    words = f"on {tables} tables held back, is the least of {methods} methods' inside on {number[best['id']]}"
    assert f"{words}, outside on {number[best['ood']]}." in re.sub(r"\s+", " ", README.read_text(encoding="utf-8"))


def test_the_readme_s_verdict_is_what_the_committed_results_say(medians):
    metrics, median = medians
    low, high = (metrics.groupby(["dataset", "model"])["mean_id"].quantile(q).unstack() for q in (0.05, 0.95))
    widths = metrics.assign(widening=metrics["width_90_ood"] / metrics["width_90_id"])
    widening = widths.groupby(["dataset", "model"])["widening"].median().unstack()
    text = re.sub(r"\s+", " ", README.read_text(encoding="utf-8"))
    for name in DATASETS:
        here, spread = median.loc[name], metrics[metrics["dataset"] == name].groupby("model")["delta_var"]
        for model in FDN_MODELS:
            row = here.loc[model]
            assert row["delta_var"] > max(0, *here.loc[["MLPDropoutNet", "DeepEnsembleNet", "BayesNet"], "delta_var"])
            assert row["coverage_90_ood"] >= 0.9 and row["coverage_90_id"] >= 0.9
            assert row["width_90_id"] > width_of_targets(name), "wider than the targets' own spread"
            assert row["mse_id"] > here.at[BASELINE, "mse_id"], "a draw is worse than the training mean"
            assert (low.at[name, model] > high.at[name, "MLPDropoutNet"]) == (name != "quad"), "intervals apart"
            assert high.at[name, model] > low.at[name, "DeepEnsembleNet"], "on none shown to be more accurate"
            wider = widening.loc[name, ["MLPDropoutNet", "DeepEnsembleNet"]] > widening.at[name, model]
            assert wider.all() if name in UCI else wider.any(), "in proportion to the width inside"
            assert row["best_epoch"] < PUBLISHED.warmup, "kept inside the warm-up"
            assert (row["delta_var"] < here.at["GaussHyperNet", "delta_var"]) or name not in ("ccpp", "energy")
            assert (row["crps_ood"] > here.at[BASELINE, "crps_ood"]) == (name not in ("quad", "ccpp"))
            assert spread.max()[model] > 3 * abs(spread.min()[model]), "several-fold between seeds"
    for words in (
        "on every task, its variance by more than that of dropout, ensembles and BayesNet",
        "90 % bands cover the targets", "In proportion to their width inside, bands of dropout and ensembles widen "
        "more on every UCI set, and of one of the two on every toy task", "By 5 to 95 % intervals over seeds",
        "GaussHyperNet, whose weights do not see the input, widens by more on ccpp and energy",
        "worse outside than predicting the training mean on step, sine, airfoil and energy",
        "wider than the targets' own spread", "a draw is worse than predicting the training mean",
        "dropout's on all tasks but the quadratic", "more accurate than the ensemble's on none",
        "inside the warm-up of beta", "they differ several-fold",
    ):  # fmt: skip
        assert words in text
    too_narrow = median["coverage_90_ood"].unstack("model")[["MLPDropoutNet", "DeepEnsembleNet"]] < 0.9
    assert too_narrow.mean().gt(0.5).all() and "those of dropout and ensembles usually are" in text


def test_what_a_reader_should_know_is_what_the_committed_results_say(medians):
    text = re.sub(r"\s+", " ", (paths.ROOT / "docs" / "score.md").read_text(encoding="utf-8"))
    assert "two to sixteen times that of predicting the training mean (more on the quadratic)" in text
    metrics, median = medians
    draw = median["mse_id"].unstack()
    ratio = draw[[*FDN_MODELS, "GaussHyperNet"]].div(draw[BASELINE], axis=0)
    assert ratio.drop("quad").round().ge(2).all(axis=None) and ratio.drop("quad").round().le(16).all(axis=None)
    assert (ratio.loc["quad"] > 16).all()
    assert "IC-FDNet's beats the training mean on step and the UCI sets, LP-FDNet's on step and ccpp alone" in text
    low, high = (metrics.groupby(["dataset", "model"])["mean_id"].quantile(q).unstack() for q in (0.05, 0.95))
    for model, where in (("IC-FDNet", {"step", *UCI}), ("LP-FDNet", {"step", "ccpp"})):
        assert set(high.index[high[model] < draw[BASELINE]]) == where and (low[model] < draw[BASELINE]).all()
    step = metrics[(metrics["dataset"] == "step") & (metrics["model"] != BASELINE)].groupby("model")["delta_var"]
    spread = step.max() / step.min().clip(lower=1e-9)
    assert (spread["LP-FDNet"] > 10 * spread[["MLPDropoutNet", "BayesNet"]]).all()


def width_of_targets(name: str) -> float:
    """Of the central 90 % of a normal with the variance of the training targets, which TrainingMean's error is."""
    level = results.load_metrics(paths.COMMITTED_RESULTS).query("model == @BASELINE and dataset == @name")["mse_id"]
    return 2 * 1.645 * float(level.median()) ** 0.5


def test_variance_says_less_of_the_error_of_the_mean_and_tells_regions_apart_no_better_than_simpler_models():
    metrics = findings.read(paths.COMMITTED_RESULTS)
    for name in DATASETS:
        study = findings.dataset_results(paths.COMMITTED_RESULTS, metrics, name, PUBLISHED.label)
        apart = {}
        for model, frame in study.points.items():
            outside = (frame["region"] == "OOD").to_numpy()
            apart[model] = mannwhitneyu(frame["var"][outside], frame["var"][~outside]).statistic
            if model in FDN_MODELS:
                rho = [spearman(frame["var"], e) for e in (frame["mse"], (frame["mean"] - frame["y"]) ** 2)]
                assert rho[1] < rho[0], (name, model)
        assert max(apart[m] for m in ("MLPDropoutNet", "DeepEnsembleNet")) > 0.99 * max(apart[m] for m in FDN_MODELS)


def test_inside_the_band_the_variance_says_little_or_nothing_of_the_error_of_the_mean():
    found = bands.load(paths.COMMITTED_RESULTS)
    inside = found[(found["kind"] == "rho_bias2") & (found["region"] == "ID") & found["model"].isin(FDN_MODELS)]
    assert len(inside) and (inside["middle"] < 0.3).all()
    assert "and inside, little or nothing" in README.read_text(encoding="utf-8")


def test_page_of_published_numbers_holds_the_committed_results(tmp_path):
    metrics = comparison.with_committed(paths.COMMITTED_RESULTS)
    for path in write_comparison(tmp_path, metrics, "published"):
        assert path.read_text(encoding="utf-8") == (paths.COMPARISON / path.name).read_text(encoding="utf-8"), path.name


def test_page_of_claims_holds_the_committed_results(tmp_path):
    """Long, for every sentence is judged in all of some 3,000 cells."""
    for path in claims.write(tmp_path):
        assert path.read_text(encoding="utf-8") == (paths.CLAIMS / path.name).read_text(encoding="utf-8"), path.name


def test_page_of_all_seeds_holds_the_committed_results_and_curves():
    page = (paths.SEEDS / "README.md").read_text(encoding="utf-8")
    curves = bands.load(paths.COMMITTED_RESULTS)
    metrics = extras.read(paths.COMMITTED_RESULTS)
    assert page == page_of_seeds.page(metrics, curves)
    for dataset in published.DATASETS:  # curves show the seed that figures show
        assert curves.loc[curves["dataset"] == dataset, "shown"].notna().any(), dataset
        seed = published.representative_seed(metrics, dataset)
        assert sorted(path.stem for path in paths.COMMITTED_RESULTS.glob(f"points/published/{dataset}/LP-FDNet/*")) == [
            str(seed)
        ]


@pytest.mark.skipif(not (paths.EXTRAS / "README.md").exists(), reason="no extras were run yet: `fdn extras`")
def test_page_of_extras_holds_the_committed_results():
    """Long, for every group of runs is compared with the published numbers."""
    blocks = results.read_sidecars(paths.EXTRAS)
    assert (paths.EXTRAS / "README.md").read_text(encoding="utf-8") == page_of_extras.page(extras.with_extras(), blocks)


def test_every_differing_setting_is_on_the_page_of_differences():
    names = [f.name for f in dataclasses.fields(PUBLISHED) if f.name != "base"]
    differing = {name for name in names if getattr(PUBLISHED, name) != getattr(AS_WRITTEN, name)}
    assert {d.field for d in differences.DIFFERENCES if d.field} == differing


def test_page_of_differences_holds_its_results():
    metrics = results.load_metrics(differences.FOLDER)
    page = (differences.FOLDER / "README.md").read_text(encoding="utf-8")
    assert page == page_of_differences.page(metrics)
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):  # a stray bar would shift the cells
        assert len({line.count("|") for line in table.splitlines()}) == 1, table
    for difference in differences.DIFFERENCES:
        if difference.field:
            assert (page_of_differences.effects(metrics, difference)["Seeds"] > 0).all(), difference.name


def test_effects_compare_the_same_seeds():
    difference = next(d for d in differences.DIFFERENCES if d.field == "clip_norm")
    rows = [
        {"dataset": "step", "model": "LP-FDNet", "protocol": label, "seed": seed,
         **dict.fromkeys(page_of_differences.SHOWN, value)}
        for label, seed, value in (
            ("published", 0, 1.0), ("published", 1, 3.0), ("published", 2, 99.0),
            (difference.protocol.label, 0, 2.0), (difference.protocol.label, 1, 4.0),
        )
    ]  # fmt: skip
    table = page_of_differences.effects(pd.DataFrame(rows), difference).set_index(["Data set", "Model"])
    row = table.loc[("step", "LP-FDNet")]
    assert row["Seeds"] == 2 and row["MSE, ID"] == "2.000 [1.000, 3.000]\n→ 3.000 [2.000, 4.000]"
