"""Results folders: names of any kind as paths, and what counts as a result after damage."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from fake_results import contents, write_results

from fdn import data
from fdn.arguments import parse_protocol, parse_seeds, seed_ranges
from fdn.cli import main
from fdn.data import from_frame
from fdn.errors import UserError
from fdn.models import BASELINE, MODEL_NAMES, model_spec
from fdn.paths import segment
from fdn.protocol import PUBLISHED
from fdn.runs import experiment, results
from fdn.training.loop import fit

CELL = ("step", "BayesNet", "published", 0)
ODD_NAMES = [
    "2024/05", "../escape", "..", ".", ".hidden", "/", " blank ", "ends.", "a" * 250, "数据" * 60, "nul\0",
    "line\nbreak", "~", "2024_05~4f6e1bad2f48", "tab\t", "\udcff", "",
]  # fmt: skip


@pytest.mark.parametrize(
    "name", ["published+warmup=50", "step", "LP-FDNet", "0-1-2", "my data.v2", "a,b", "数据", "{x}", "a%2Fb", "$HOME"]
)
def test_short_and_legal_names_are_their_own_segments(name):
    assert segment(name) == name


def test_other_names_get_segments_that_are_legal_and_their_own(tmp_path):
    segments = [segment(name) for name in ODD_NAMES]
    assert len(set(segments)) == len(ODD_NAMES) and segments == [segment(name) for name in ODD_NAMES]
    for name, found in zip(ODD_NAMES, segments):
        assert found != name or name == "~"
        assert segment(found) != found or name == "~"  # one that looks shortened is nobody's own
        (tmp_path / found).mkdir()
        assert (tmp_path / found).parent == tmp_path and len(found.encode()) <= 200
    assert len(list(tmp_path.iterdir())) == len(ODD_NAMES)


@pytest.mark.parametrize("name", ["2024/05", "../..", ".hidden", "名前" * 50, "a,b", "a+b=c", "{x}"])
def test_a_data_set_of_any_name_is_run_found_again_and_collected(name, tmp_path):
    n = np.arange(60.0)
    mine = from_frame(pd.DataFrame({"z": n, "y": n**2}), target="y", split_column="z", name=name)
    frame = experiment.run([mine], ["TrainingMean"], [0, 1], PUBLISHED, tmp_path / "out", progress=False)
    assert list(frame["dataset"]) == [name, name] and list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert experiment.plan([mine], ["TrainingMean"], [0, 1], PUBLISHED, tmp_path / "out") == []
    [block] = results.read_sidecars(tmp_path / "out")
    assert (block["dataset"], block["model"], block["protocol"]) == (name, "TrainingMean", "published")
    assert len(results.load_points(tmp_path / "out", name, "TrainingMean", "published", 1)) == len(mine.y_test)


@pytest.mark.parametrize("name", ["two\nlines", "nul\0", "\udcff", "  ", 5])
def test_names_that_are_no_line_of_text_are_refused(name):
    with pytest.raises(UserError, match="cannot be named"):
        from_frame(pd.DataFrame({"z": range(60), "y": range(60)}), target="y", split_column="z", name=name)


def test_many_seeds_and_settings_make_no_name_that_is_too_long(tmp_path):
    settings = ["warmup=7", "prior_scale=0.123456789", "floor=0.00123456", "observation_variance=0.123456789",
                "dropout=0.123456789", "beta_max=0.123456789", "learning_rate=0.000123456789", "batch_size=63",
                "ensemble_members=9", "eval_draws=99", "hyper_factor=0.123456789", "global_scale=softplus",
                "variance_offset=0.00000123", "beta_schedule=cosine", "warmup_unit=updates",
                "ensemble_dropout=0.123456789"]  # fmt: skip
    protocol, seeds = parse_protocol("published", settings), list(range(1000, 1050))
    assert len(protocol.label) > 255
    frame = experiment.run(["step"], ["TrainingMean"], seeds, protocol, tmp_path, progress=False)
    assert len(frame) == 50 and set(frame["protocol"]) == {protocol.label}
    assert experiment.plan([data.load("step")], ["TrainingMean"], seeds, protocol, tmp_path) == []
    assert results.read_sidecars(tmp_path)[0]["seeds"] == seeds


@pytest.mark.parametrize("seeds", [range(120), range(1001, 1130, 2), range(10**8, 10**9, 10**7), [5, 3, 4, 1], []])
def test_blocks_keep_the_seeds_in_order(seeds):
    blocks = experiment.blocks_of(seeds)
    assert [seed for block in blocks for seed in block] == list(seeds)
    for block in blocks:
        assert len(block) <= 50 and sorted(block) == parse_seeds(seed_ranges(block))


@pytest.mark.parametrize("kind", ["cells", "points", "sidecar"])
def test_a_place_that_cannot_be_written_is_said_before_anything_is_computed(kind, tmp_path, monkeypatch):
    (tmp_path / kind).write_text("a file in the place of the folder", encoding="utf-8")
    monkeypatch.setattr(experiment, "run_block", lambda *args: pytest.fail("computed"))
    with pytest.raises(UserError, match=f"cannot write to .*{kind}"):
        experiment.run(["step"], ["TrainingMean"], [0], PUBLISHED, tmp_path, progress=False)


GOOD = {"numerics": results.NUMERICS, "fingerprint": data.load("step").fingerprint}
NO_CELLS = [
    b"",
    b"null",
    b"{}",
    b"[]",
    b"7",
    b'"text"',
    b"{",
    b"\xff\xfe",
    b"[" * 5000,
    b"nan",
    json.dumps(GOOD).encode(),
]


@pytest.fixture
def folder(tmp_path):
    write_results(tmp_path, ["step"], ["BayesNet"], [0, 1])
    return tmp_path


def missing(folder) -> list[int]:
    """The seeds that a run would compute."""
    blocks = experiment.plan([data.load("step")], ["BayesNet"], [0, 1], PUBLISHED, folder)
    return [seed for block in blocks for seed in block.seeds]


@pytest.mark.parametrize("content", NO_CELLS)
def test_a_damaged_cell_is_said_not_collected_and_computed_again(content, folder, caplog):
    path = results._path(folder, "cells", *CELL)
    path.write_bytes(content)
    assert missing(folder) == [0]
    assert f"{path} is damaged" in caplog.text and caplog.text.count("does not count") == 1
    assert list(results.collect(folder)["seed"]) == [1]


def test_a_cell_with_a_value_of_another_type_is_damaged(folder):
    path = results._path(folder, "cells", *CELL)
    good = json.loads(path.read_text(encoding="utf-8"))
    for name, value in product(good, ([], {}, True, "7", 7)):
        if type(value) is not type(good[name]) and not (value == 7 and isinstance(good[name], float)):
            path.write_text(json.dumps(good | {name: value}), encoding="utf-8")
            with pytest.raises(UserError, match=f"its '{name}' is missing or of another type"):
                results._read_cell(path)
    assert missing(folder) == [0] and list(results.collect(folder)["seed"]) == [1]


@pytest.mark.parametrize("change", [{"seed": 1}, {"dataset": "quad"}, {"model": "LP-FDNet"}, {"protocol": "as_written"},
                                    {"dataset": "\ud800"}, {"best_epoch": 10**30}, {"mse_id": 10**400}],
                         ids=str)  # fmt: skip
def test_a_cell_of_another_place_or_with_a_number_that_no_column_holds_does_not_count(change, folder, caplog):
    path = results._path(folder, "cells", *CELL)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    assert missing(folder) == [0] and str(path) in caplog.text
    assert list(results.collect(folder)["seed"]) == [1]


def test_a_copy_of_a_cell_and_links_to_nothing_are_not_collected(folder):
    path = results._path(folder, "cells", *CELL)
    shutil.copy(path, path.with_name("5.json"))
    for name in ("6.json", "7.json"):
        path.with_name(name).symlink_to(name if name == "6.json" else "nothing")
    assert list(results.collect(folder)["seed"]) == [0, 1]


@pytest.mark.parametrize("kind", ["cells", "points"])
def test_a_folder_in_the_place_of_a_file_is_one_sentence(kind, tmp_path):
    experiment.run(["step"], ["TrainingMean"], [0], PUBLISHED, tmp_path, progress=False)
    [path] = tmp_path.glob(f"{kind}/*/*/*/0.*")
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match="cannot write .* it is a folder"):
        experiment.run(["step"], ["TrainingMean"], [0], PUBLISHED, tmp_path, workers=1, progress=False)


def test_cells_of_other_numerics_or_data_are_computed_again_without_a_word(folder, caplog):
    path = results._path(folder, "cells", *CELL)
    good = json.loads(path.read_text(encoding="utf-8"))
    for change in ({"numerics": results.NUMERICS - 1, "spearman": "of another format"}, {"fingerprint": "other"}):
        path.write_text(json.dumps(good | change), encoding="utf-8")
        assert missing(folder) == [0] and not caplog.text
    path.unlink()
    assert missing(folder) == [0] and not caplog.text


DAMAGES = {
    "emptied": lambda content: b"", "cut short": lambda content: content[:-20], "begun": lambda content: content[:50],
    "something else": lambda content: b"no parquet" * 100, "ends": lambda content: b"PAR1" + bytes(100) + b"PAR1",
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_cell_whose_points_are_damaged_is_computed_again(damage, folder, caplog):
    path = results._path(folder, "points", *CELL)
    path.write_bytes(damage(path.read_bytes()))
    assert missing(folder) == [0] and f"{path} is damaged" in caplog.text
    with pytest.raises(UserError, match="is damaged"):
        results.load_points(folder, "step", "BayesNet", "published", 0)
    path.unlink()
    assert missing(folder) == [0]


def test_points_with_a_damaged_page_are_said_when_they_are_read(folder):
    path = results._path(folder, "points", *CELL)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        results.load_points(folder, "step", "BayesNet", "published", 0)


def test_points_of_other_columns_are_damaged(folder):
    path = results._path(folder, "points", *CELL)
    pd.DataFrame({"z": [1.0]}).to_parquet(path)
    assert missing(folder) == [0]


ODD_COLUMNS = {
    "seed": "0", "dataset": 3, "model": None, "n_draws": 1.5, "mse_id": "x", "spearman": [[1.0], [2.0]],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_COLUMNS)
def test_metrics_of_another_type_are_damaged(name, folder):
    results.collect(folder).assign(**{name: ODD_COLUMNS[name]}).to_parquet(folder / "metrics.parquet")
    with pytest.raises(UserError, match=f"is damaged .*{name}.*fdn collect"):
        results.load_metrics(folder)


def test_metrics_that_hold_a_cell_twice_are_damaged_and_those_of_no_cells_are_none(folder):
    frame = results.collect(folder)
    pd.concat([frame, frame]).to_parquet(folder / "metrics.parquet")
    with pytest.raises(UserError, match="holds a cell twice"):
        results.load_metrics(folder)
    shutil.rmtree(folder / "cells")
    results.collect(folder)
    assert results.load_metrics(folder).empty


@pytest.mark.parametrize("name", ["mean", "region"])
def test_points_of_another_type_are_damaged(name, folder):
    path = results._path(folder, "points", *CELL)
    pd.read_parquet(path).assign(**{name: "a" if name == "mean" else 1.0}).to_parquet(path)
    assert missing(folder) == [0]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("command", ["compare", "tables", "figures"])
def test_damaged_metrics_are_one_sentence_that_says_how_to_mend_them(damage, command, folder, capsys):
    path = folder / "metrics.parquet"
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert (
        main([command, "--results", str(folder), *([] if command == "compare" else ["--out", str(folder / "new")])])
        == 2
    )
    said = capsys.readouterr().err
    assert "is damaged" in said and f"`fdn collect --out {folder}`" in said and "Traceback" not in said
    assert main(["collect", "--out", str(folder)]) == 0 and path.read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"", b"null", b"{}", b"[]", b'{"seeds": [0], "seconds": {}, "environment": []}', b"\xff"]
)
def test_a_damaged_sidecar_does_not_count(content, folder, caplog):
    [path] = folder.glob("sidecar/*/*/*/*.json")
    path.write_bytes(content)
    assert results.read_sidecars(folder) == [] and f"{path} is damaged" in caplog.text
    (folder / "sidecar.json").write_bytes(content)
    for read in (results.read_sidecars, results.numerics_of):
        with pytest.raises(UserError, match="sidecar.json is damaged"):
            read(folder)


def test_sidecars_of_older_versions_are_named_by_their_folders(folder):
    [path] = folder.glob("sidecar/*/*/*/*.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    names = {name: content.pop(name) for name in ("protocol", "dataset", "model")}
    path.write_text(json.dumps(content), encoding="utf-8")
    [block] = results.read_sidecars(folder)
    assert {name: block[name] for name in names} == names == dict(zip(names, ("published", "step", "BayesNet")))


def test_a_run_mends_what_is_damaged_and_leaves_the_rest(tmp_path):
    experiment.run(["step"], ["TrainingMean"], [0, 1, 2, 3], PUBLISHED, tmp_path, progress=False)
    before = {name: content for name, content in contents(tmp_path).items() if not name.startswith("sidecar")}
    cells = [results._path(tmp_path, "cells", "step", "TrainingMean", "published", seed) for seed in range(4)]
    cells[0].write_text("null", encoding="utf-8")
    points = results._path(tmp_path, "points", "step", "TrainingMean", "published", 1)
    points.write_bytes(b"")
    (tmp_path / "metrics.parquet").write_bytes(b"")
    left = cells[2].stat().st_mtime_ns
    experiment.run(["step"], ["TrainingMean"], [0, 1, 2, 3], PUBLISHED, tmp_path, progress=False)
    assert {name: content for name, content in contents(tmp_path).items() if not name.startswith("sidecar")} == before
    assert cells[2].stat().st_mtime_ns == left


@pytest.fixture
def older_cells(tmp_path):
    """Cells of every model, then as they were before NLL was a metric; and what they held."""
    protocol = replace(PUBLISHED, epochs=2, eval_draws=3, ensemble_members=2)
    models = (BASELINE, *MODEL_NAMES)
    experiment.run(["step"], models, [3, 1], protocol, tmp_path, workers=1, progress=False)
    complete = {path: path.read_bytes() for path in tmp_path.glob("cells/*/*/*/*.json")}
    for path, content in complete.items():
        cell = json.loads(content)
        path.write_text(json.dumps({k: v for k, v in cell.items() if not k.startswith("nll")}), encoding="utf-8")
    return tmp_path, protocol, models, complete


def test_a_metric_added_later_is_filled_in_from_the_kept_fits_to_the_byte(older_cells, monkeypatch):
    out, protocol, models, complete = older_cells
    monkeypatch.setattr(experiment, "fit", None)  # nothing is trained
    frame = experiment.run(["step"], models, [3, 1], protocol, out, workers=1, progress=False)
    assert {path: path.read_bytes() for path in complete} == complete and len(complete) == 2 * len(models)
    assert frame["nll_id"].notna().all()


def test_where_no_fit_was_kept_the_missing_metric_is_named(older_cells, caplog):
    out, protocol, models, complete = older_cells
    shutil.rmtree(out / "fits")
    frame = experiment.run(["step"], models, [3, 1], protocol, out, workers=1, progress=False)
    assert frame.loc[frame["model"] != BASELINE, "nll_id"].isna().all() and frame["crps_id"].notna().all()
    assert f"16 of 18 cells in {out} are without nll_id, nll_ood, nll_all" in caplog.text
    experiment.run(["step"], models, [3, 1], protocol, out, workers=1, progress=False, recompute=True)
    assert {path: path.read_bytes() for path in complete} == complete


def test_a_damaged_fit_is_none(older_cells, caplog):
    out, protocol, models, complete = older_cells
    (damaged,) = out.glob("fits/*/*/MLPNet/1.npz")
    damaged.write_bytes(damaged.read_bytes()[:100])
    frame = experiment.run(["step"], models, [3, 1], protocol, out, workers=1, progress=False)
    assert frame["nll_id"].isna().sum() == 1 and f"{damaged} is damaged" in caplog.text


NO_FITS = {
    "another size": {"parameters": np.ones(3)}, "not finite": {"parameters": np.full(1000, np.nan)},
    "another shape": {"scores": np.ones((2, 3))}, "objects": {"scores": np.array([{}])},
}  # fmt: skip


@pytest.mark.parametrize("arrays", NO_FITS.values(), ids=NO_FITS)
def test_a_fit_of_other_arrays_is_none(arrays, older_cells, caplog):
    out, protocol, *_ = older_cells
    (damaged,) = out.glob("fits/*/*/MLPNet/1.npz")
    with np.load(damaged) as found:
        np.savez(damaged, **{**found, **arrays})
    assert results.load_fit(out, "step", "MLPNet", protocol.label, 1) is None and f"{damaged} is damaged" in caplog.text


def test_a_fit_that_is_one_array_or_damaged_in_the_middle_is_none(older_cells):
    out, protocol, *_ = older_cells
    (damaged,) = out.glob("fits/*/*/MLPNet/1.npz")
    content = damaged.read_bytes()
    for at in range(30, len(content) - 200, 97):
        damaged.write_bytes(content[:at] + bytes(64) + content[at + 64 :])
        results.load_fit(out, "step", "MLPNet", protocol.label, 1)
    with damaged.open("wb") as file:
        np.save(file, np.ones(3))
    assert results.load_fit(out, "step", "MLPNet", protocol.label, 1) is None


@pytest.mark.parametrize("model", ["DeepEnsembleNet", "LP-FDNet"])
def test_a_likelihood_is_a_setting_and_its_variance_enters_the_nll(model, tmp_path):
    protocol = replace(PUBLISHED, epochs=20, eval_draws=5, ensemble_members=2, likelihood="heteroscedastic")
    frame = experiment.run(["step"], [model], [0], protocol, tmp_path, workers=1, progress=False)
    data_set = experiment.load_dataset("step", protocol)
    trained = fit(model_spec(model, 1, protocol), data_set, protocol, [0])
    prediction = trained.predict(0, data_set.x_test)
    assert prediction.observation_variance.std() > 0 and frame["n_params"].item() == trained.flat[0].numel()
    expected = -prediction.mixture().log_prob(torch.from_numpy(data_set.y_test)).mean().item()
    assert frame["nll_all"].item() == pytest.approx(expected, rel=1e-9)
    assert "+likelihood=heteroscedastic" in frame["protocol"].item()


def test_rows_that_agree_to_rounding_keep_their_digits_and_are_filled_in(tmp_path):
    old = write_results(tmp_path / "old", ["step"], ["BayesNet"], [0, 1, 2]).drop(columns=["width_90_id"])
    old.loc[old["seed"] == 2, "nll_id"] = np.nan
    results.write_metrics(tmp_path, old)
    new = write_results(tmp_path / "new", ["step"], ["BayesNet"], [1, 2, 3])
    rounded, again = new.copy(), new["seed"] < 3
    rounded.loc[again, "mse_id"] *= 1 + 1e-12
    both = results.merged(tmp_path, rounded).set_index("seed")
    assert list(both.index) == [0, 1, 2, 3]
    pd.testing.assert_frame_equal(both.loc[[1, 2, 3]].reset_index()[new.columns], new)
    assert both["width_90_id"].isna().tolist() == [True, False, False, False]
    other = new.copy()
    other.loc[other["seed"] == 1, "best_epoch"] += 1
    other.loc[other["seed"] == 1, "mse_id"] *= 1 + 1e-12
    both = results.merged(tmp_path, other).set_index("seed")
    assert both.loc[1, "mse_id"] == other.set_index("seed").loc[1, "mse_id"] and both["best_epoch"].dtype == int


def test_rows_are_sorted_whatever_their_index():
    rows = [("sine", "LP-FDNet", "published", seed) for seed in (1, 0)] + [("step", "MLPNet", "published", 0)]
    frame = pd.DataFrame(rows, columns=["dataset", "model", "protocol", "seed"], index=[0, 0, 1])
    found = results.sort(frame)
    assert list(found.itertuples(index=False, name=None)) == [rows[2], rows[1], rows[0]]
