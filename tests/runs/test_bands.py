"""Curves of all seeds: each against the sum or the sorted list that it stands for."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from small_models import toy2

from fdn import data, metrics
from fdn.cli import main
from fdn.errors import UserError
from fdn.protocol import PUBLISHED
from fdn.report.pages import seeds as page_of_seeds
from fdn.runs import bands, experiment, results


@pytest.fixture(scope="module")
def dataset():
    return toy2(60)


@pytest.fixture(scope="module")
def draws(dataset) -> np.ndarray:
    """(K, N): wide outside the band, and off by as much as they are wide."""
    rng = np.random.default_rng(1)
    spread = np.where(dataset.id_test, 0.1, 1.0) * rng.lognormal(size=len(dataset.y_test))
    return dataset.y_test + spread * (rng.normal(size=len(spread)) + rng.normal(size=(9, len(spread))))


def exactly(values: np.ndarray) -> list[Fraction]:
    return [Fraction(float(value)) for value in values]


def test_numbers_of_a_region_are_those_of_exact_arithmetic(dataset, draws):
    found = bands.curves_of_draws(draws, dataset)
    for region, chosen in (("ID", dataset.id_test), ("OOD", ~dataset.id_test), ("all", dataset.id_test >= 0)):
        columns = [(exactly(column), Fraction(float(y))) for column, y in zip(draws.T[chosen], dataset.y_test[chosen])]
        means = [sum(column) / len(column) for column, _ in columns]
        var = [sum((v - m) ** 2 for v in column) / len(column) for (column, _), m in zip(columns, means)]
        bias2 = [(m - y) ** 2 for (_, y), m in zip(columns, means)]
        share = sum(var) / sum(v + b for v, b in zip(var, bias2))
        assert found["share", region][1][0] == pytest.approx(float(share), rel=1e-12)
        ranks = [np.argsort(np.argsort([float(x) for x in values])) for values in (var, bias2)]
        assert found["rho_bias2", region][1][0] == pytest.approx(np.corrcoef(*ranks)[0, 1], rel=1e-12)
        centred = [v - sum(var) / len(var) for v in var]
        slope = sum(c * b for c, b in zip(centred, bias2)) / sum(c * c for c in centred)
        assert found["slope_bias2", region][1][0] == pytest.approx(float(slope), rel=1e-9)
        for level, share in zip(*found["coverage", region]):
            ends = [metrics.interval(np.array(column, float)[:, None], [float(y)], level) for column, y in columns]
            inside = [low[0] <= float(y) <= high[0] for (low, high), (_, y) in zip(ends, columns)]
            assert share == pytest.approx(np.mean(inside), rel=1e-12)
        assert found["pit", region][1].sum() == pytest.approx(1)
    slope_of_mse = metrics.linear_fit(metrics.variance(draws, dataset.y_test), metrics.mse(draws, dataset.y_test))[1]
    assert found["slope_bias2", "all"][1][0] == pytest.approx(slope_of_mse - 1, rel=1e-9)  # b = 1 + b'


def test_a_table_s_means_are_averaged_over_neighbours_and_a_toy_task_s_are_its_points(dataset, draws):
    found = bands.curves_of_draws(draws, dataset)
    z = np.sort(np.unique(dataset.x_test[:, dataset.split_feature]))
    groups = np.array_split(z, bands.MOST_PLACES)
    assert len(found["mean", ""][0]) == len(groups) == 40
    for group, place, mean in zip(groups, *found["mean", ""], strict=True):
        inside = np.isin(dataset.x_test[:, dataset.split_feature], group)
        assert place == pytest.approx(group.mean()) and mean == pytest.approx(draws[:, inside].mean())
    step = data.load("step")
    found = bands.curves_of_draws(np.stack([step.y_test, step.y_test + 2]), step)
    x, mean = found["mean", ""]
    np.testing.assert_array_equal(x, step.x_test[::5, 0])
    np.testing.assert_array_equal(mean, step.y_test[::5] + 1)
    assert set(found["sd", ""][1]) == {1.0}


def test_bands_are_quantiles_over_seeds_with_the_representative_one_beside():
    values = {3: [1.0, np.nan], 5: [2.0, 5.0], 8: [4.0, np.inf]}
    found = {seed: {("risk", "all"): (np.array([0.5, 1.0]), np.array(v))} for seed, v in values.items()}
    frame = bands.over_seeds(found, 5)
    assert frame["middle"].tolist() == [2.0, 5.0] and frame["shown"].tolist() == [2.0, 5.0]
    assert frame["low"].tolist() == pytest.approx([1.1, 5.0]) and frame["high"].tolist() == pytest.approx([3.8, 5.0])
    assert set(frame["seeds"]) == {3}
    assert bands.over_seeds(found, 9)["shown"].isna().all()


def test_draws_like_the_target_fill_the_pit_evenly_and_narrow_ones_its_ends():
    rng = np.random.default_rng(0)
    y = rng.normal(size=20_000)
    for draws in (4, 10, 23):  # none of which divides into ten bins
        even = metrics.pit(rng.normal(size=(draws, len(y))), y).mean(axis=0)
        np.testing.assert_allclose(even, 0.1, atol=0.01)
        narrow = metrics.pit(0.1 * rng.normal(size=(draws, len(y))), y).mean(axis=0)
        assert narrow[[0, -1]].min() > 2 * narrow[2:8].max()
    tied = metrics.pit(np.zeros((3, 1)), [0.0], bins=4)
    np.testing.assert_array_equal(tied, [[0.25] * 4])  # anywhere
    assert np.isnan(metrics.pit([[np.nan], [1.0]], [0.0])).all()
    with pytest.raises(ValueError, match="at least 1"):
        metrics.pit([[0.0]], [0.0], bins=0)


def test_the_command_keeps_the_curves_of_a_run_s_fits(tmp_path, capsys, monkeypatch):
    """Trains both FDNs for a few epochs, since curves come from kept fits."""
    monkeypatch.setattr(bands, "PUBLISHED", short := PUBLISHED.__class__(base="published", epochs=20))
    monkeypatch.setattr(page_of_seeds, "PUBLISHED", short)
    models = ("IC-FDNet", "LP-FDNet")
    experiment.run(["step"], models, [0, 1, 2], short, tmp_path, workers=1)
    asked = []
    monkeypatch.setattr(page_of_seeds.published, "representative_seed", lambda *given: asked.append(given) or 1)
    assert main(["seeds", "--results", str(tmp_path), "--to", str(tmp_path), "--dataset", "step"]) == 0
    frame = bands.load(tmp_path)
    assert set(frame["model"]) == set(models) and set(frame["seeds"]) == {3} and asked
    scores = np.stack([results.load_fit(tmp_path, "step", "LP-FDNet", short.label, seed)[1] for seed in (0, 1, 2)])
    kept = frame[(frame["kind"] == "score") & (frame["model"] == "LP-FDNet")]
    np.testing.assert_allclose(kept["middle"], np.median(scores, axis=0), rtol=1e-5)
    np.testing.assert_allclose(kept["shown"], scores[1], rtol=1e-5)
    points = results.load_points(tmp_path, "step", "LP-FDNet", short.label, 1)
    mean = frame[(frame["kind"] == "mean") & (frame["model"] == "LP-FDNet")]
    np.testing.assert_allclose(mean["shown"], points.sort_values("z")["mean"].to_numpy()[::5], rtol=1e-5)
    empty = tmp_path / "empty"
    results.write_metrics(empty, results.load_metrics(tmp_path))
    assert main(["seeds", "--results", str(empty), "--to", str(empty)]) == 2
    assert "keeps no fits" in capsys.readouterr().err


def test_writing_again_replaces_a_data_set_s_rows_and_leaves_the_others(tmp_path):
    def rows(dataset, middle):
        values = ["LP-FDNet", "risk", "", 1.0, 0.0, middle, 9.0, 1.0, 3]
        return pd.DataFrame([[dataset, *values]], columns=list(bands.COLUMNS))

    bands.write(tmp_path, pd.concat([rows("sine", 1.0), rows("step", 2.0)]))
    bands.write(tmp_path, rows("step", 3.0))
    assert bands.load(tmp_path).set_index("dataset")["middle"].to_dict() == {"sine": 1.0, "step": 3.0}
    assert bands.of(tmp_path, "step", "published") is not None
    assert bands.of(tmp_path, "step", "as_written") is None and bands.of(tmp_path, "quad", "published") is None


def test_an_unknown_folder_has_no_bands(tmp_path, monkeypatch):
    monkeypatch.setattr("fdn.paths.COMMITTED_RESULTS", tmp_path)
    assert bands.load(tmp_path) is None and bands.of(tmp_path, "step", "published") is None
    with pytest.raises(UserError, match=r"has no bands\.parquet"):
        page_of_seeds.write(tmp_path)
