"""Figures: what is on the axes is what is in the results; one look everywhere; the same bytes twice."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text

from fdn import data, metrics, typesetting
from fdn.errors import UserError
from fdn.models import MODELS, PAPER_MODELS
from fdn.protocol import PUBLISHED
from fdn.report import figures
from fdn.report.figures import catalogue, drawing, over_seeds
from fdn.report.published import representative_seed
from fdn.runs import bands, results

SCALES = dict(zip(PAPER_MODELS, (0.03, 0.003, 0.05, 3.0, 10.0, 30.0), strict=True))


def make_points(scale: float, seed: int = 0) -> pd.DataFrame:
    """Heavy-tailed variances over several decades on a toy-like grid; MSE_i = Var_i + Bias_i^2."""
    rng = np.random.default_rng(seed)
    z = np.linspace(-10, 10, 201)
    y = np.sign(z)
    mean = y + 3 * z * rng.standard_normal()
    var = scale * (0.1 + z**2) * np.exp(rng.standard_normal(len(z)))
    frame = pd.DataFrame({"z": z, "y": y, "region": np.where(np.abs(z) <= 1, "ID", "OOD"), "mean": mean})
    return frame.assign(var=var, mse=var + (mean - y) ** 2, crps=np.abs(mean - y))


@pytest.fixture(scope="module")
def points() -> dict[str, pd.DataFrame]:
    return {model: make_points(scale, seed) for seed, (model, scale) in enumerate(SCALES.items())}


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for model, scale in SCALES.items():
        for seed in range(5):
            low, high, crps = scale * rng.lognormal(size=3)
            rows.append({
                "dataset": "energy", "model": model, "protocol": "published", "seed": seed, "aurc": 1.0,
                "var_ood": high, "mse_ood": high + low,
                "delta_var": high - low, "delta_mse": high, "delta_crps": -crps, "best_epoch": 30 + seed,
            })  # fmt: skip
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def curves() -> pd.DataFrame:
    """Bands of five made-up runs of each model on the diabetes data, whose features stand for those of any table."""
    dataset, frames = data.load("diabetes"), []
    for model, scale in SCALES.items():
        found = {}
        for seed in range(5):
            rng = np.random.default_rng([seed, int(1000 * scale)])
            spread = scale * (0.1 + np.abs(dataset.x_test[:, :1].T))
            draws = (
                dataset.y_test + scale * rng.normal() + spread * rng.normal(size=(20, len(dataset.y_test)))
            )  # (K, N)
            score = 1 + rng.random(60) * (np.arange(60) - 30) ** 2 / 900
            found[seed] = bands.curves_of_draws(draws, dataset) | {("score", ""): (np.arange(1, 61), score)}
        frames.append(bands.over_seeds(found, 2).assign(model=model, dataset="energy"))
    return pd.concat(frames)


@pytest.fixture(scope="module")
def all_kinds(points, runs, curves) -> dict[str, Figure]:
    real = figures.DatasetResults("energy", "published", runs, 2, points, bands=curves)
    made = {kind: figure.draw(real) for kind, figure in figures.FIGURES.items()}
    made |= {
        "means_of_function": figures.means_of_function(study_of(points, true_function=np.sign)),
        "layer": figures.layer_diagram(),
    }
    for fig in made.values():
        fig.draw_without_rendering()
    return made


def study_of(points, runs: pd.DataFrame | None = None, seed: int = 2, true_function=None) -> figures.DatasetResults:
    runs = pd.DataFrame({"model": [], "seed": []}) if runs is None else runs
    return figures.DatasetResults("energy", "published", runs, seed, points, true_function=true_function)


def legend_of(fig: Figure, ax_index: int | None = None) -> dict[str, str]:
    legend = fig.legends[0] if ax_index is None else fig.axes[ax_index].get_legend()
    return {text.get_text().split(":")[0]: text.get_text() for text in legend.get_texts()}


def scatters(ax) -> list[np.ndarray]:
    return [np.asarray(c.get_offsets()) for c in ax.collections if isinstance(c, PathCollection)]


def test_mse_against_var_shows_the_points_of_each_region_and_their_rho(points):
    fig = figures.mse_against_var(study_of(points))
    grid = np.array(fig.axes).reshape(2, len(points))
    for row, region in zip(grid, ("ID", "OOD"), strict=True):
        for ax, frame in zip(row, points.values(), strict=True):
            part = frame[frame["region"] == region]
            np.testing.assert_array_equal(scatters(ax)[0], part[["var", "mse"]].to_numpy())
            rho = f"{metrics.spearman(part['var'], part['mse']):.3f}".replace("-", "−")
            assert [text.get_text() for text in ax.texts] == [f"ρ = {rho}"]
            assert ax.get_xscale() == ax.get_yscale() == "log"
            diagonal = ax.lines[0]
            assert diagonal.get_linestyle() == "--"
            np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
            assert tuple(diagonal.get_xdata()) == ax.get_xlim() == ax.get_ylim() == fig.axes[0].get_xlim()
        assert row[0].get_ylabel() == f"{region}, n = {len(part)}"
    assert [ax.get_title().replace("\n", "") for ax in grid[0]] == list(points)


def test_crowded_panels_show_the_density_of_the_same_points(points):
    crowd = pd.concat([points["BayesNet"]] * 20)
    fig = figures.mse_against_var(study_of({"BayesNet": crowd}))
    for ax, region in zip(fig.axes, ("ID", "OOD"), strict=True):
        (density,) = [c for c in ax.collections if isinstance(c, PolyCollection)]
        assert density.get_array().sum() == (crowd["region"] == region).sum() and not scatters(ax)


def test_the_fit_is_a_straight_line_on_linear_axes_through_all_points(points):
    fig = figures.mse_against_var_fit(study_of(points))
    for ax, (model, frame) in zip(fig.axes, points.items(), strict=True):
        a, b = metrics.linear_fit(frame["var"], frame["mse"])
        np.testing.assert_array_equal(scatters(ax)[0], frame[["var", "mse"]].to_numpy())
        diagonal, fit = ax.lines
        np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
        np.testing.assert_allclose(fit.get_ydata(), a + b * fit.get_xdata())
        assert fit.get_xdata().tolist() == [0, frame["var"].max()] and ax.get_xscale() == ax.get_yscale() == "linear"
        assert ax.texts[0].get_text().startswith(f"b = {b:.2f}, a = {a:.2f}".replace("-", "−"))
        assert ax.get_title() == model


def test_constant_variance_and_zeros_are_left_out_and_said_so(points):
    bayes = points["BayesNet"]
    few_zeros = bayes.assign(var=bayes["var"].where(bayes["z"] < 9.65, 0.0))  # the last 4 points
    constant = points["LP-FDNet"].assign(var=1e-6)
    shown = {"MLPNet": constant, "BayesNet": few_zeros, "LP-FDNet": points["LP-FDNet"]}
    fig = figures.mse_against_var(study_of(shown))
    assert [len(scatters(ax)[0]) for ax in fig.axes[2:]] == [176, 180]
    assert fig.axes[0].get_title() == "BayesNet" and "omitted: MLPNet" in fig._supxlabel.get_text()
    assert fig.axes[2].texts[0].get_text().endswith("(4 omitted)")
    assert "omitted" not in fig.axes[0].texts[0].get_text()
    with pytest.raises(ValueError, match="MLPNet are constant: expected a stochastic model"):
        figures.calibration(study_of({"MLPNet": constant}))


def test_undefined_rho_is_a_dash(points):
    frame = points["BayesNet"]
    constant_inside = frame.assign(var=frame["var"].where(frame["region"] == "OOD", 1.0))
    fig = figures.mse_against_var(study_of({"BayesNet": constant_inside}))
    assert fig.axes[0].texts[0].get_text().startswith("ρ = —")


def test_infinite_points_do_not_break_the_axes(points):
    frame = points["LP-FDNet"].copy()
    frame.loc[3, ["var", "mse"]] = np.inf
    fig = figures.mse_against_var(study_of({"LP-FDNet": frame}))
    assert np.isfinite(fig.axes[0].get_xlim()).all()


def test_risk_coverage_and_calibration_are_the_curves_of_the_metrics(points):
    risk, calibration = figures.risk_coverage(study_of(points)), figures.calibration(study_of(points))
    for index, (model, frame) in enumerate(points.items()):
        line = risk.axes[0].lines[index]
        np.testing.assert_array_equal(line.get_xydata().T, metrics.risk_coverage(frame["var"], frame["mse"]))
        assert legend_of(risk)[model] == f"{model}: {metrics.aurc(frame['var'], frame['mse']):.2f}"
        bins = calibration.axes[0].lines[index].get_xydata().T
        np.testing.assert_array_equal(bins, metrics.calibration_curve(frame["var"], frame["mse"], bins=10))
    assert calibration.axes[0].lines[-1].get_linestyle() == "--"


def curve(curves, model, kind, region=""):
    return curves[(curves["model"] == model) & (curves["kind"] == kind) & (curves["region"] == region)]


def filled(collection) -> np.ndarray:
    """x, lower and upper ends of what fill_between drew."""
    corners = pd.DataFrame(collection.get_paths()[0].vertices, columns=["x", "y"]).groupby("x")["y"]
    return np.column_stack([corners.min().index, corners.min(), corners.max()])


def test_the_checkpoint_figure_marks_the_kept_epoch_on_the_representative_seed_s_curve(all_kinds, curves, runs):
    panels = [ax for ax in all_kinds["checkpoint"].axes if ax.get_title()]
    for ax, model in zip(panels, SCALES, strict=True):
        score = curve(curves, model, "score")
        np.testing.assert_allclose(filled(ax.collections[0]), score[["x", "low", "high"]])
        line, ticks, ring = ax.lines
        np.testing.assert_array_equal(line.get_xydata(), score[["x", "shown"]])
        assert sorted(ticks.get_xdata()) == [30, 31, 32, 33, 34]
        np.testing.assert_allclose(ring.get_xydata()[0], score.loc[score["x"] == 32, ["x", "shown"]].to_numpy()[0])
        says_beta = model in ("BayesNet", "GaussHyperNet", "IC-FDNet", "LP-FDNet")
        assert ax.get_title() == f"{model}\nkept: epoch 32" + (", β = 0.16" if says_beta else "")
    betas = [ax for ax in all_kinds["checkpoint"].axes if not ax.get_title()]
    assert len(betas) == 4 and betas[0].lines[0].get_ydata()[49] == 0.25  # epoch 50 of 200


def test_twins_show_medians_and_bands_over_seeds(all_kinds, curves):
    for index, model in enumerate(SCALES):
        ax = all_kinds["risk_coverage_seeds"].axes[0]
        risk = curve(curves, model, "risk")
        np.testing.assert_array_equal(ax.lines[index].get_xydata(), risk[["x", "middle"]])
        np.testing.assert_allclose(filled(ax.collections[index]), risk[["x", "low", "high"]])
        ax = all_kinds["mse_var_seeds"].axes[index]
        for line, (region, kind) in zip(
            ax.lines[1:], [(r, k) for r in ("ID", "OOD") for k in ("bin_mse", "bin_bias2")], strict=True
        ):
            np.testing.assert_array_equal(line.get_xdata(), curve(curves, model, "bin_var", region)["middle"])
            np.testing.assert_array_equal(line.get_ydata(), curve(curves, model, kind, region)["middle"])
        ax = all_kinds["uncertainty_seeds"].axes[index]
        np.testing.assert_array_equal(ax.lines[0].get_xydata(), curve(curves, model, "mean")[["x", "middle"]])
        bars = [all_kinds["pit"].axes[row * len(SCALES) + index].patches for row in (0, 1)]
        for region, shown in zip(("ID", "OOD"), bars, strict=True):
            heights = [bar.get_height() for bar in shown]
            np.testing.assert_allclose(heights, 10 * curve(curves, model, "pit", region)["middle"])
    words = all_kinds["pit"]._suptitle.get_text()
    assert "over 5 seeds" in words


def test_the_spread_is_two_standard_deviations_of_the_draws(points, runs):
    ax = figures.uncertainty(study_of({"LP-FDNet": points["LP-FDNet"]}, runs)).axes[0]
    frame = points["LP-FDNet"]
    ends = np.array([segment[:, 1] for segment in ax.collections[0].get_segments()])  # (points, 2)
    np.testing.assert_allclose(ends.mean(axis=1), frame["mean"])
    np.testing.assert_allclose(np.ptp(ends, axis=1), 4 * np.sqrt(frame["var"]))


def test_titles_say_how_extreme_each_model_is_at_the_seed_shown(all_kinds, runs):
    first = runs[runs["model"] == "MLPDropoutNet"].set_index("seed")
    ranks = [int(first[metric].rank()[2]) for metric in ("mse_ood", "var_ood")]
    words = all_kinds["mse_var"]._suptitle.get_text()
    assert f"rank among 5 seeds by OOD MSE, OOD Var: MLPDropoutNet {ranks[0]}, {ranks[1]};" in words.replace("\n", " ")


def test_delta_bars_are_one_seed_and_whiskers_all_seeds(runs):
    ax = figures.delta_bars(study_of({}, runs)).axes[0]
    heights = np.array([bar.get_height() for bar in ax.patches[:18]]).reshape(6, 3)
    columns = ["delta_mse", "delta_var", "delta_crps"]
    expected = runs[runs["seed"] == 2].set_index("model").loc[list(PAPER_MODELS), columns]
    np.testing.assert_array_equal(heights, expected)
    whiskers = np.array([lines.get_segments()[0][:, 1] for lines in ax.collections]).reshape(6, 3, 2)
    grouped = runs.groupby("model")[columns]
    np.testing.assert_array_equal(whiskers[..., 0], grouped.min().loc[list(PAPER_MODELS)])
    np.testing.assert_array_equal(whiskers[..., 1], grouped.max().loc[list(PAPER_MODELS)])
    assert [label.get_text() for label in ax.get_xticklabels()] == list(PAPER_MODELS)
    assert ax.get_yscale() == "symlog"


def test_means_of_function(points):
    shuffled = {model: frame.sample(frac=1, random_state=0) for model, frame in points.items()}
    whole, inside = figures.means_of_function(study_of(shuffled, true_function=np.sign)).axes
    for line, frame in zip(whole.lines, points.values(), strict=False):
        np.testing.assert_array_equal(line.get_xydata(), frame[["z", "mean"]])
    truth = whole.lines[len(points)]
    assert truth.get_label() == "true function"
    np.testing.assert_array_equal(truth.get_ydata(), np.sign(truth.get_xdata()))
    for ax in (whole, inside):
        band = ax.patches[0].get_extents().transformed(ax.transData.inverted())
        np.testing.assert_allclose((band.x0, band.x1), (-1, 1), atol=1e-9)
    np.testing.assert_allclose(inside.get_xlim(), (-1.2, 1.2), atol=0.11)  # the grid is 0.1 wide


def test_means_of_data_show_means_and_targets_of_each_model(points):
    fig = figures.means_of_data(study_of(points))
    assert len(fig.axes) == len(points)
    for ax, (model, frame) in zip(fig.axes, points.items(), strict=True):
        (means,) = scatters(ax)
        np.testing.assert_array_equal(means, frame[["z", "mean"]])
        np.testing.assert_array_equal(ax.lines[0].get_xydata(), frame[["z", "y"]])  # a function of z here
        assert ax.get_title() == model
    twice = pd.concat([points["LP-FDNet"]] * 2)
    ax = figures.means_of_data(study_of({"LP-FDNet": twice})).axes[0]
    targets, means = (c for c in ax.collections if isinstance(c, PathCollection))
    np.testing.assert_array_equal(targets.get_offsets(), twice[["z", "y"]])
    assert targets.get_zorder() < means.get_zorder()  # the targets do not hide the means
    four = dict(list(points.items())[:4])
    assert len(figures.means_of_data(study_of(four)).axes) == 4  # no empty panels


@pytest.mark.parametrize(("factor", "scale"), [(5.0, "linear"), (1000.0, "symlog")])
def test_means_far_beyond_the_targets_get_a_logarithmic_axis(points, factor: float, scale: str):
    frame = points["LP-FDNet"].assign(mean=lambda f: factor * f["y"])
    assert figures.means_of_data(study_of({"LP-FDNet": frame})).axes[0].get_yscale() == scale


def test_seeds_scatter_rings_the_representative_seed(runs):
    fig = figures.seeds_scatter(study_of({}, runs))
    shown = scatters(fig.axes[0])
    for index, model in enumerate(PAPER_MODELS):
        mine = runs[runs["model"] == model]
        np.testing.assert_array_equal(shown[2 * index], mine[["var_ood", "mse_ood"]])
        ringed = mine.loc[mine["seed"] == 2, ["var_ood", "mse_ood"]]
        np.testing.assert_array_equal(shown[2 * index + 1], ringed)
    assert "representative seed 2" in legend_of(fig)


def test_a_model_looks_the_same_in_every_figure(all_kinds):
    styles = {name: model.style for name, model in MODELS.items()}
    assert len(set(styles.values())) == len({colour for colour, _ in styles.values()}) == len(MODELS)
    seen = dict.fromkeys(all_kinds, 0)
    for kind, fig in all_kinds.items():
        for ax in fig.axes:
            for artist in (*ax.lines, *ax.collections):
                model = str(artist.get_label()).split(":")[0]
                if model in styles:
                    lines = hasattr(artist, "get_marker")
                    colour = artist.get_color() if lines else artist.get_facecolors()[0]
                    expected, marker = styles[model]
                    assert to_rgb(colour) == to_rgb(expected), (kind, model)
                    assert not lines or artist.get_marker() == marker
                    seen[kind] += 1
    bars = all_kinds["deltas"].axes[0].patches[:18]
    for model, bar in zip(np.repeat(PAPER_MODELS, 3), bars, strict=True):
        assert to_rgb(bar.get_edgecolor()) == to_rgb(styles[model][0])
    labelled = ("seeds", "risk_coverage", "risk_coverage_seeds", "calibration", "means_of_function")
    assert min(seen[kind] for kind in labelled) >= 6
    for kind in ("mse_var", "mse_var_fit", "means", "uncertainty", "uncertainty_seeds", "checkpoint", "pit"):
        named = {ax.get_title().replace("\n", "").split("kept")[0]: ax for ax in all_kinds[kind].axes if ax.get_title()}
        assert set(named) == set(PAPER_MODELS), kind
        for model, ax in named.items():
            assert to_rgb(ax.title.get_color()) == to_rgb(styles[model][0])


def texts(fig: Figure) -> list[Text]:
    """Visible texts other than tick labels, which lie outside the limits as often as inside."""
    axes = [axis for ax in fig.axes for axis in (ax.xaxis, ax.yaxis)]
    ticks = {label for axis in axes for label in axis.get_ticklabels(which="both")}
    found = fig.findobj(lambda artist: isinstance(artist, Text) and artist.get_visible())
    return [text for text in found if text.get_text().strip() and text not in ticks]


def extent(fig: Figure, artist) -> np.ndarray:
    return artist.get_window_extent(FigureCanvasAgg(fig).get_renderer()).extents


def test_everything_is_readable_and_inside_the_figure(all_kinds):
    for kind, fig in all_kinds.items():
        assert fig.axes, kind
        for text in fig.findobj(Text):
            assert text.get_fontsize() >= 8, (kind, text.get_text())
        for text in texts(fig):
            x0, y0, x1, y1 = extent(fig, text)
            inside = -1 <= x0 and -1 <= y0 and x1 <= fig.bbox.width + 1 and y1 <= fig.bbox.height + 1
            assert inside, (kind, text)


def test_legends_do_not_cover_data(all_kinds):
    for kind, fig in all_kinds.items():
        for legend in fig.findobj(Legend):
            x0, y0, x1, y1 = extent(fig, legend)
            for ax in fig.axes:
                if legend.axes not in (None, ax):
                    continue
                lines = [line.get_xydata() for line in ax.lines if line.get_linestyle() != "--"]
                for values in filter(len, [*scatters(ax), *lines]):
                    x, y = ax.transData.transform(values).T
                    assert not ((x0 < x) & (x < x1) & (y0 < y) & (y < y1)).any(), kind


def test_boxes_of_the_diagram_hold_their_texts(all_kinds):
    fig = all_kinds["layer"]
    patches = [patch for patch in fig.findobj(FancyBboxPatch) if patch.get_linestyle() in ("-", "solid")]
    boxes = [extent(fig, patch) for patch in patches]
    held = 0
    for text in texts(fig):
        x0, y0, x1, y1 = extent(fig, text)
        middle = (x0 + x1) / 2, (y0 + y1) / 2
        for bx0, by0, bx1, by1 in boxes:
            if bx0 < middle[0] < bx1 and by0 < middle[1] < by1:
                assert bx0 < x0 and x1 < bx1 and by0 < y0 and y1 < by1, text.get_text()
                held += 1
    assert held == len(boxes) == 5


def test_saved_files_are_small_undated_and_the_same_each_time(tmp_path, points):
    first = figures.save(figures.mse_against_var_fit(study_of(points)), tmp_path / "a" / "scatter.of")
    again = figures.mse_against_var_fit(study_of(points))
    figures.save(again, tmp_path / "b")
    second = figures.save(again, tmp_path / "c")  # a figure that was drawn before
    assert [path.name for path in first] == ["scatter.of.pdf", "scatter.of.png"]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
        assert one.stat().st_size < 300_000
    assert first[0].read_bytes().startswith(b"%PDF") and first[1].read_bytes().startswith(b"\x89PNG")
    assert not re.search(rb"CreationDate|ModDate|Matplotlib v", first[0].read_bytes() + first[1].read_bytes())


def write_figures(monkeypatch, metrics, load_points, sets, out) -> tuple[list[Path], list[str]]:
    """Of a folder that holds these points: (dataset, model, seed) to a frame, None where there is none."""
    of_cell = lambda folder, dataset, model, protocol, seed: load_points(dataset, model, seed)
    monkeypatch.setattr(results, "has_points", lambda *cell: of_cell(*cell) is not None)
    monkeypatch.setattr(results, "load_points", of_cell)
    return figures.write_figures(out, metrics, sets, PUBLISHED, out)


def test_write_figures_writes_what_it_can_and_tells_what_it_cannot(tmp_path, points, runs, monkeypatch):
    """Takes as long as drawing every figure does."""
    saved = {}
    monkeypatch.setattr(catalogue, "save", lambda fig, stem: saved.setdefault(stem.name, [stem]))
    sine = runs[runs["model"] == "BayesNet"].assign(dataset="sine")
    frame = pd.concat([runs, runs.assign(dataset="step"), sine])
    asked = []

    def load_points(dataset: str, model: str, seed: int) -> pd.DataFrame | None:
        asked.append((dataset, model, seed))
        return None if dataset == "step" and model == "IC-FDNet" else points[model]

    sets = {"energy": None, "step": data.load("step"), "sine": data.load("sine")}
    written, missing = write_figures(monkeypatch, frame, load_points, sets, tmp_path)
    kinds = ("uncertainty", "seeds", "mse_var", "mse_var_fit", "risk_coverage", "calibration", "means")
    twins = {
        kind for kind, figure in figures.FIGURES.items() if figure.needs == "bands"
    }  # of which there are none here
    stems = {"layer", "energy_deltas"} | {f"{name}_{kind}" for name in ("energy", "step") for kind in kinds}
    assert set(figures.FIGURES) == {*kinds, "deltas"} | twins
    assert set(saved) == stems and sorted(written) == sorted(tmp_path / stem for stem in stems)
    seed = representative_seed(frame, "step", "published")
    assert missing[0] == f"step: no points of IC-FDNet, seed {seed}"
    assert len(missing) == 2 and missing[1].startswith("sine: no figures: no results of IC-FDNet")
    assert {cell[2] for cell in asked if cell[0] == "step"} == {seed}


POINT_FIGURES = {
    "mse_var": figures.mse_against_var, "mse_var_fit": figures.mse_against_var_fit,
    "risk_coverage": figures.risk_coverage, "calibration": figures.calibration, "means": figures.means_of_data,
    "means of function": figures.means_of_function, "means and spread": figures.uncertainty,
}  # fmt: skip
NOTHING_TO_DRAW = re.compile("(are constant|are no positive numbers|are no numbers)")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", POINT_FIGURES)
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 1e300, 1e49, 5e-324])
def test_numbers_that_no_axis_shows_are_left_out_or_said(points, kind, value):
    """Of one model, with which the others are drawn, and of the only one; without a warning."""
    draw = lambda points: POINT_FIGURES[kind](study_of(points, true_function=np.sign))
    columns = ["z", "mean", "y"] if kind.startswith("means") else ["var", "mse"]
    few = {model: points[model][80:120] for model in ("BayesNet", "LP-FDNet")}
    bad = few["LP-FDNet"].assign(**dict.fromkeys(columns, value))
    assert isinstance(draw(few | {"LP-FDNet": bad}), Figure)
    try:
        assert isinstance(draw({"LP-FDNet": bad.assign(var=bad["var"] * np.arange(len(bad)))}), Figure)
    except UserError as error:
        assert NOTHING_TO_DRAW.search(str(error)), error


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", POINT_FIGURES)
def test_regions_and_test_sets_without_points_are_drawn_or_said(points, kind):
    frame = points["LP-FDNet"]
    for part in (frame[frame["region"] == "ID"], frame[frame["region"] == "OOD"], frame[:0], frame[100:101]):
        try:
            assert isinstance(POINT_FIGURES[kind](study_of({"LP-FDNet": part}, true_function=np.sign)), Figure)
        except UserError as error:
            assert NOTHING_TO_DRAW.search(str(error)), error


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, 1e300, 5e-324])
def test_runs_without_numbers_are_left_out_or_said(runs, value):
    for changed in (runs["seed"] == 2, runs["model"] == "BayesNet", runs["model"] != ""):
        for draw, columns in (
            (figures.delta_bars, list(over_seeds.DELTAS)),
            (figures.seeds_scatter, ["var_ood", "mse_ood"]),
        ):
            frame = runs.copy()
            frame.loc[changed, columns] = value
            try:
                assert isinstance(draw(study_of({}, frame)), Figure)
            except UserError as error:
                assert re.search("are no numbers|no seed has a positive", str(error)), error
    with pytest.raises(UserError, match="differences between OOD and ID of seed 9"):
        figures.delta_bars(study_of({}, runs, seed=9))


def test_one_draw_gives_the_figures_that_need_no_variance_and_names_the_others(tmp_path, points, runs, monkeypatch):
    monkeypatch.setattr(catalogue, "save", lambda fig, stem: [stem])
    single = {model: frame[80:120].assign(var=1e-6) for model, frame in points.items()}
    written, missing = write_figures(
        monkeypatch, runs, lambda dataset, model, seed: single[model], {"energy": None}, tmp_path
    )
    drawn, left_out = (
        {"seeds", "deltas", "risk_coverage", "means", "uncertainty"},
        {"mse_var", "mse_var_fit", "calibration"},
    )
    assert {path.name for path in written} == {"layer", *(f"energy_{kind}" for kind in drawn)}
    assert {note.rpartition(": ")[0].partition(": the")[0] for note in missing} == {
        f"energy: no {kind}" for kind in left_out
    }
    assert all("constant: expected a stochastic model" in note for note in missing)


def test_damaged_points_are_said_and_the_other_models_drawn(tmp_path, points, runs, monkeypatch):
    monkeypatch.setattr(catalogue, "save", lambda fig, stem: [stem])

    def load_points(dataset: str, model: str, seed: int) -> pd.DataFrame:
        if model == "BayesNet":
            raise UserError("0.parquet is damaged")
        return points[model][80:120]

    written, missing = write_figures(monkeypatch, runs, load_points, {"energy": None}, tmp_path)
    seed = representative_seed(runs, "energy", "published")
    assert len(written) == 9 and missing == [f"energy: no points of BayesNet, seed {seed}: 0.parquet is damaged"]


NAMES = ["数据", "😀", "العربية", "$x^2$", "a_b^c", "$", "{x}%&#~\\", "数" * 60, "Москва"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_any_script_and_sign_stand_as_they_are_or_as_codes(name, monkeypatch):
    monkeypatch.setattr(typesetting, "_other_fonts", list)  # whatever is installed here
    text, options = typesetting.drawn(name)
    assert options == {"parse_math": False}
    assert text == ("".join(f"[U+{ord(c):04X}]" for c in name) if "数" in name else name)


@pytest.mark.filterwarnings("error")
def test_names_are_drawn_without_a_warning(runs, monkeypatch):
    monkeypatch.setattr(typesetting, "_other_fonts", list)
    fig = figures.seeds_scatter(study_of({}, runs), " ".join(NAMES))
    FigureCanvasAgg(fig).draw()


def test_other_fonts_are_used_for_what_the_usual_one_lacks(monkeypatch):
    fonts = [("One", frozenset(map(ord, "数x"))), ("Two", frozenset(map(ord, "数据")))]
    monkeypatch.setattr(typesetting, "_other_fonts", lambda: fonts)
    text, options = typesetting.drawn("x 数据 語")
    assert text == "x 数据 [U+8A9E]" and options["family"][-2:] == ["One", "Two"]
    assert typesetting.drawn("x, seed 3") == ("x, seed 3", {"parse_math": False})


def test_large_numbers_in_legends_are_short():
    assert [drawing.number(value, 2) for value in (1e8, -1e9, 1e300, np.inf, np.nan, -0.001)] == \
        ["100000000.00", "−1.00e+09", "1.00e+300", "inf", "—", "0.00"]  # fmt: skip


def test_a_row_of_the_table_is_all_that_a_figure_needs(tmp_path, points, runs, monkeypatch):
    drawn = []
    needs = {"any": {"needs": "runs"}, "pointwise": {}, "real": {"needs": "runs", "for_toy": False}}
    rows = {
        kind: figures.FigureKind(lambda given, kind=kind: drawn.append((given.dataset, kind)), kind, "", **options)
        for kind, options in needs.items()
    }
    monkeypatch.setattr(catalogue, "FIGURES", rows)
    monkeypatch.setattr(catalogue, "save", lambda fig, stem: [stem])
    frame = pd.concat([runs.assign(dataset=name) for name in ("airfoil", "energy", "step")])
    sets = {"airfoil": None, "energy": None, "step": data.load("step")}
    load_points = lambda dataset, model, seed: None if dataset == "airfoil" else points[model]
    written, _ = write_figures(monkeypatch, frame, load_points, sets, tmp_path)
    expected = [("airfoil", "any"), ("airfoil", "real"), ("energy", "any"), ("energy", "pointwise"), ("energy", "real"),
                ("step", "any"), ("step", "pointwise")]  # fmt: skip
    assert drawn == expected
    assert [path.name for path in written] == ["layer", *(f"{name}_{kind}" for name, kind in expected)]
