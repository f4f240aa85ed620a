"""The benchmark: a plain program that gives the same numbers, a check that lets nothing wrong through, honest sums."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from small_models import SMALL, small, toy2

from fdn.cli import main
from fdn.data.dataset import Dataset
from fdn.devices import CPU
from fdn.errors import UserError
from fdn.models import PAPER_MODELS
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.runs import experiment
from fdn.timing import benchmark, clocks
from fdn.timing.plain import _layer, plain_fit
from fdn.training.loop import Fit, fit

CHANGES = SMALL | {"epochs": 4}
PROTOCOLS = [replace(PUBLISHED, **CHANGES), replace(AS_WRITTEN, **CHANGES)]


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    """100 training points, in batches of 64 and 36."""
    return toy2(100)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.base)
@pytest.mark.parametrize("name", ["MLPNet", "HyperNet", *PAPER_MODELS])
def test_stacked_training_is_the_plain_program(dataset, name, protocol):
    """One module, one optimiser, weights in the open, the same streams: the same scores and parameters to rounding.

    The first may compile the training loops."""
    stacked = fit(small(name), dataset, protocol, [4, 8])
    plain = plain_fit(small(name), dataset, protocol, 4, program_noise=True)
    kept = plain.history[stacked.best_epoch[0] - 1]
    torch.testing.assert_close(stacked.flat[0].reshape(kept.shape), kept, rtol=1e-9, atol=1e-11)
    if name != "MLPDropoutNet":  # each draws the masks of its predictions itself
        np.testing.assert_allclose(stacked.scores[0], plain.scores, rtol=1e-9)
        assert stacked.best_epoch[0] == plain.best_epoch
        ends = [torch.nn.utils.parameters_to_vector(network.parameters()) for network in plain.networks]
        assert torch.equal(torch.stack(ends), plain.history[plain.best_epoch - 1])


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_with_random_numbers_of_its_own_the_plain_program_learns_as_much(dataset, name):
    protocol = replace(PUBLISHED, **{**CHANGES, "epochs": 30, "beta_max": 1e-4, "eval_draws": 50}, learning_rate=1e-2)
    torch.manual_seed(0)
    scores = [plain_fit(small(name), dataset, protocol, seed).scores.min() for seed in range(4)]
    assert np.mean(scores) == pytest.approx(fit(small(name), dataset, protocol, range(4)).scores.min(1).mean(), rel=0.2)


def test_a_prediction_too_large_for_one_batch_is_cut_into_groups_of_draws(dataset, monkeypatch):
    plain = plain_fit(small("LP-FDNet"), dataset, PROTOCOLS[0], 0)
    whole = plain.predict(dataset.x_test)
    monkeypatch.setattr("fdn.timing.plain.BATCH_ELEMENTS", 3 * len(dataset.x_test) * 6 * 3)  # width 6 of 3 parameters
    torch.manual_seed(1)
    cut = plain.predict(dataset.x_test)
    assert cut.shape == whole.shape == (7, len(dataset.x_test))
    assert len(torch.unique(cut, dim=0)) == 7


def test_check_passes_what_agrees_and_nothing_else(dataset, monkeypatch):
    protocol = replace(PROTOCOLS[0], eval_draws=100)
    for name in PAPER_MODELS:
        benchmark.check(small(name), dataset, protocol, [0, 1])
    original = benchmark.fit
    for change in ({"learning_rate": 1.001e-3}, {"clip_norm": 0.1}, {"beta_max": 1.01}):
        changed = lambda s, d, p, seeds, device, c=change: original(s, d, replace(p, **c), seeds)
        monkeypatch.setattr(benchmark, "fit", changed)
        with pytest.raises(AssertionError):
            benchmark.check(small("LP-FDNet"), dataset, protocol, [0])


def test_moments_of_draws_are_compared_as_far_as_draws_tell():
    torch.manual_seed(0)
    centre = torch.randn(500)
    first, second = (centre + torch.randn(100, 500) for _ in range(2))
    benchmark._same_moments(first, second)
    for wrong in (second + 0.2, centre + 1.1 * (second - centre), centre.expand(100, -1) + 0.5 * (second - centre)):
        with pytest.raises(AssertionError, match="draws differ"):
            benchmark._same_moments(first, wrong)


def test_check_notices_another_dropout_rate(dataset, monkeypatch):
    predict = Fit.predict

    def too_wide(self, seed, x, draws=None):
        prediction = predict(self, seed, x, draws)
        return replace(prediction, draws=prediction.mean + 1.2 * (prediction.draws - prediction.mean))

    monkeypatch.setattr(Fit, "predict", too_wide)
    with pytest.raises(AssertionError, match=r"ratio of their variances 1\.[345]"):  # 1.44 of 100 draws
        benchmark.check(small("MLPDropoutNet"), dataset, replace(PROTOCOLS[0], eval_draws=100), [0])


def test_phases_are_shares_of_the_processor_time_and_add_up():
    phases = benchmark._processor_time({"training": 3.0, "validation": 2.0, "test": 1.0}, wall_total=8.0, total=4.0)
    assert phases == {"training": 1.5, "validation": 1.0, "selection": 0.0, "test": 0.5, "overhead": 1.0}


def test_the_study_is_the_sample_times_epochs_and_seeds(monkeypatch):
    """100 seeds in blocks of B: training, validation, selection times 400 / 5 epochs and 100 / B; the rest 100 / B."""
    times = dict(zip(benchmark.PHASES, (2.0, 3.0, 1.0, 4.0, 5.0)))
    monkeypatch.setitem(benchmark.STUDY_SEEDS, "step", "0:100")
    monkeypatch.setattr(benchmark, "check", lambda *args: None)
    monkeypatch.setattr(benchmark, "_start_up", lambda device: 1.0)
    monkeypatch.setattr(benchmark, "_program", lambda block, out, device: times)
    monkeypatch.setattr(benchmark, "_plain", lambda block, out: {phase: 2 * t for phase, t in times.items()})
    frame = benchmark.study(["step"], ["LP-FDNet", "DeepEnsembleNet"], PUBLISHED, 5, 1)
    cell = frame[frame["model"] == "LP-FDNet"].set_index("phase")
    block = cell["block"].iloc[0]
    assert list(cell["program"] * block / 100) == pytest.approx([160, 240, 80, 4, 5])
    assert list(cell["plain"] / 100) == pytest.approx([320, 480, 160, 8, 10])
    assert list(cell["ratio"]) == pytest.approx([2 * block] * 5)
    ensemble = frame[frame["model"] == "DeepEnsembleNet"].set_index("phase")
    assert set(ensemble["epochs"]) == {40} and ensemble.loc["training", "plain"] == pytest.approx(100 * 4 * 8)
    once = frame[frame["model"] == "all"].set_index("phase")
    assert list(once.index) == ["start-up", "data"] and once.loc["start-up", "plain"] == 1.0
    assert benchmark.total_ratio(frame) == pytest.approx(frame["plain"].sum() / frame["program"].sum())


def test_resized_data_are_cut_or_repeated_and_keep_the_points_that_count(dataset):
    step = experiment.load_dataset("step", PUBLISHED)
    changed = benchmark.resized(step, train=2000, validation=300, test=7)
    assert (len(changed.x_train), len(changed.x_val), len(changed.x_test)) == (2000, 300, 7)
    assert changed.id_val.all() and np.array_equal(changed.x_val[:256], step.x_val[step.id_val])
    assert np.array_equal(changed.x_train[1024:], step.x_train[:976])
    assert np.array_equal(changed.y_test, step.y_test[:7])
    assert benchmark.resized(dataset).fingerprint == dataset.fingerprint


def test_growth_sees_seeds_draws_examples_and_width(monkeypatch):
    def fits(spec, blocks, device):
        [protocol], [points] = {block.protocol for block in blocks}, {len(block.dataset.x_train) for block in blocks}
        seconds = sum(len(block.seeds) for block in blocks) * protocol.eval_draws**2 * points * spec.hidden[0] ** 3
        return pd.Series({**dict.fromkeys(benchmark.PHASES, 0.0), "training": seconds})

    monkeypatch.setattr(benchmark, "_fits", fits)
    monkeypatch.setattr(benchmark, "fit", lambda *args, **options: None)
    step = experiment.load_dataset("step", PUBLISHED)
    frame = benchmark.growth(["LP-FDNet", "DeepEnsembleNet"], step, PUBLISHED, 1, 1, benchmark.SIZES)
    table = benchmark.growth_table(frame)
    assert table.rows[0][1:] == (
        "1 / 5 / 20 / 1e+02", "1.00", "1 / 1e+02 / 1e+04", "2.00", "1 / 4 / 16", "1.00", "1 / 8 / 64", "3.00",
    )  # fmt: skip
    assert table.rows[1][3:5] == ("-", "-")  # an ensemble's draws are its members


def test_memory_grows_little_enough_for_100_000_test_points():
    """In a process of its own, whatever this one holds: 5,000 more points need the difference of its peaks.

    It trains four times.
    """
    held = np.ones(150_000_000)  # 1.2 GB
    step, protocol = experiment.load_dataset("step", PUBLISHED), replace(PUBLISHED, epochs=1)
    sizes = {points: benchmark.resized(step, train=65, validation=50, test=points) for points in (500, 5_500)}
    runs = [(size, model) for size in sizes for model in ("LP-FDNet", "MLPDropoutNet")]
    first, _, _, last = benchmark.peak_memory([(sizes[size], model, protocol, 1, CPU) for size, model in runs])
    assert 0.1 < first < held.nbytes / 1e9
    assert first + (last - first) / 5_000 * 100_000 < benchmark.MEMORY_LIMIT


def test_fdn_bench_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    """Long, for it measures."""
    monkeypatch.setattr(benchmark, "QUICK_SIZES", {"width": (1, 2)})
    monkeypatch.setattr(benchmark, "peak_memory", lambda runs: [0.5 for _ in runs])
    arguments = ["--dataset", "step", "--models", "DeepEnsembleNet,LP-FDNet", "--epochs", "1"]
    assert main(["bench", "--quick", *arguments, "--out", str(tmp_path)]) == 0
    frames = {name: pd.read_csv(tmp_path / f"{name}.csv") for name in ("phases", "growth", "memory", "op")}
    phases = frames["phases"]
    cells = phases[phases["model"] != "all"]
    assert list(cells["phase"]) == 2 * list(benchmark.PHASES) and set(cells["seeds"]) == {20}
    assert (phases.loc[phases["phase"] != "selection", ["program_sample", "plain_sample"]] > 0).all(axis=None)
    assert len(frames["growth"]) == 4 and (frames["growth"]["total"] > 0).all()
    assert set(frames["memory"]["model"]) == {"LP-FDNet"} and set(frames["memory"]["gigabytes"]) == {0.5}
    assert set(frames["op"]["model"]) == {"LP-FDNet"} and (frames["op"]["ratio"] > 0).all()
    page, printed = (tmp_path / "README.md").read_text(encoding="utf-8"), capsys.readouterr().out
    assert f"{phases['plain'].sum() / phases['program'].sum():.1f} times as much" in page
    assert benchmark.ran_on(CPU) in page and benchmark.ran_on(CPU) in printed
    for title in ("Where the time goes", "Growth", "Peak memory", "The op"):
        assert title in page and title in printed


def test_fdn_bench_knows_the_study_only(capsys):
    assert main(["bench", "--models", "MLPNet"]) == 2
    assert "MLPNet" in capsys.readouterr().err


def test_a_gpu_is_given_this_program_and_nothing_is_timed_that_failed_its_check(monkeypatch):
    """The plain program stays on the CPU; here the CPU stands in for the GPU, under its name."""
    gpu, given = torch.device("cuda", 0), []

    def stand_in(original):
        def on_cpu(*arguments, device, **options):
            given.append(device)
            return original(*arguments, **options)

        return on_cpu

    monkeypatch.setattr(benchmark, "fit", stand_in(fit))
    monkeypatch.setattr(experiment, "run_block", stand_in(experiment.run_block))
    monkeypatch.setattr(benchmark, "_start_up", lambda device: given.append(device) or 1.0)
    monkeypatch.setattr(benchmark, "peak_memory", lambda runs: given.append(runs[0][-1]) or [0.5])
    for module in (benchmark, clocks):
        monkeypatch.setattr(module, "clock", lambda device: time.perf_counter())
    monkeypatch.setattr(benchmark, "QUICK_SIZES", {"seeds": (1, 2)})
    for module in (benchmark, experiment):
        monkeypatch.setattr(module, "device_name", lambda device: "Some GPU" if device == gpu else "cpu")
    frames = benchmark.measure(["step"], ["LP-FDNet"], PUBLISHED, 1, quick=True, device=gpu)
    assert set(given) == {gpu}
    page = benchmark.page(frames, 60.0, gpu)
    assert "device: Some GPU; the plain program on the CPU" in page and "of the GPU's memory" in page
    assert page.count("wall time of this program on the Some GPU, processor time of the plain program on the CPU") == 4
    monkeypatch.setattr(benchmark, "fit", lambda s, d, p, seeds, device: fit(s, d, replace(p, clip_norm=0.1), seeds))
    monkeypatch.setattr(experiment, "run_block", lambda *arguments, **options: pytest.fail("was timed"))
    with pytest.raises(AssertionError):
        benchmark.study(["step"], ["LP-FDNet"], PUBLISHED, 1, 1, device=gpu)


def test_the_plain_program_takes_no_model_for_another():
    with pytest.raises(UserError, match="does not know the model BayesLastNet"):
        _layer(1, 1, 1, SimpleNamespace(name="BayesLastNet"), PUBLISHED)
