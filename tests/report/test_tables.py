"""Tables: numbers as the paper prints them, marks for what is missing or undefined, three sound formats."""

from __future__ import annotations

import csv
import dataclasses
import html
import importlib
import io
import re

import numpy as np
import pandas as pd
import pytest
import torch
from markdown_it import MarkdownIt
from torch.utils.flop_counter import FlopCounterMode

from fdn import data, paths
from fdn.metrics import SUMMARY_COLUMNS
from fdn.models import BASELINE, MODEL_NAMES, STOCHASTIC_MODELS, count_parameters, model_spec, multiply_accumulates
from fdn.protocol import AS_WRITTEN, PUBLISHED, Protocol
from fdn.report import tables
from fdn.runs import experiment, extras
from fdn.typesetting import Table, literal, plain, to_latex_text

# last row of table "step-unified"
PAPER_STEP_LP = ["1.000", "1.04", "-17.93", "468.5", "6306.7", "6529.4", "8.774"]


def metrics_frame(dataset: str = "step", models=(*MODEL_NAMES, BASELINE), seeds=(0, 1, 2)) -> pd.DataFrame:
    """Every metric of seed s is 1.23456 + s, whatever the model."""
    rows = [
        {"dataset": dataset, "model": model, "protocol": "published", "seed": seed, "n_params": 1000}
        | dict.fromkeys(SUMMARY_COLUMNS, 1.23456 + seed)
        | {"n_draws": {"DeepEnsembleNet": 10}.get(model, 100 if model in STOCHASTIC_MODELS else 1)}
        for model in models
        for seed in seeds
    ]
    return pd.DataFrame(rows)


def row_of(table: Table, *first: str) -> tuple[str, ...]:
    [row] = [row for row in table.rows if row[: len(first)] == first]
    return row


def test_result_cells_hold_the_published_value_the_median_and_the_range_with_the_paper_s_decimals():
    table = tables.result_table(metrics_frame(), "step")
    assert table.columns[2:] == ("ρ", "b", "a", "AURC ↓", "ΔVar ↑", "ΔMSE ↓", "ΔCRPS ↓")
    assert [row[0] for row in table.rows] == list(STOCHASTIC_MODELS)
    cells = [cell.split("\n") for cell in row_of(table, "LP-FDNet")[2:]]
    assert [lines[0] for lines in cells] == PAPER_STEP_LP
    assert [lines[1] for lines in cells] == ["2.235", "2.23", "2.23", "2.2", "2.2", "2.2", "2.235"]
    assert cells[0][2] == "[1.235, 3.235]" and cells[3][2] == "[1.2, 3.2]"
    assert "3 seeds" in table.caption and not table.notes


def test_decimals_follow_the_table_of_the_paper():
    ccpp = row_of(tables.result_table(metrics_frame("ccpp"), "ccpp"), "BayesNet")
    assert ccpp[2:] == (
        "0.470\n2.235\n[1.235, 3.235]", "1.75\n2.23\n[1.23, 3.23]", "0.099\n2.235\n[1.235, 3.235]",
        "0.201\n2.235\n[1.235, 3.235]", "0.065\n2.235\n[1.235, 3.235]", "0.132\n2.235\n[1.235, 3.235]",
        "0.045\n2.235\n[1.235, 3.235]",
    )  # fmt: skip


def test_a_data_set_the_paper_does_not_have_gets_no_published_line():
    table = tables.result_table(metrics_frame("diabetes"), "diabetes")
    cells = ("median\n[min, max]", "2.235\n[1.235, 3.235]", "2.23\n[1.23, 3.23]")
    assert row_of(table, "BayesNet")[1:4] == cells
    assert "not a data set of the paper" in table.caption


def test_undefined_is_a_dash_missing_is_named_and_partly_undefined_is_marked():
    frame = metrics_frame(models=[m for m in STOCHASTIC_MODELS if m != "IC-FDNet"])
    frame.loc[frame["model"] == "BayesNet", "spearman"] = np.nan
    frame.loc[(frame["model"] == "LP-FDNet") & (frame["seed"] == 2), "spearman"] = np.nan
    table = tables.result_table(frame, "step")
    assert row_of(table, "BayesNet")[2] == "0.987\n—"
    assert row_of(table, "LP-FDNet")[2] == "1.000\n1.735†\n[1.235, 2.235]"
    assert {cell.split("\n")[1] for cell in row_of(table, "IC-FDNet")[2:]} == {"n/a"}
    assert len(table.notes) == 3
    assert table.notes[0].startswith("n/a: not computed: IC-FDNet on step")
    assert "nan" not in table.to_markdown().lower()


def test_other_protocols_and_data_sets_stay_out():
    strange = metrics_frame().assign(protocol="as_written", spearman=0.0)
    frame = pd.concat([metrics_frame(), strange, metrics_frame("sine").assign(spearman=0.5)])
    assert tables.result_table(frame, "step").rows == tables.result_table(metrics_frame(), "step").rows


def test_numbers_are_never_scientific_or_minus_zero():
    frame = metrics_frame(seeds=[0]).assign(slope_b=-1e-9, delta_mse=123456789.123)
    row = row_of(tables.result_table(frame, "step"), "LP-FDNet")
    assert row[3] == "1.04\n0.00\n[0.00, 0.00]" and row[7].split("\n")[1] == "123456789.1"
    settings = tables.hyperparameter_table()
    assert not re.search(r"\de[-+]?\d", "".join("".join(row) for row in settings.rows))


def test_region_table_corrects_the_error_of_the_mean_for_the_number_of_draws():
    frame = metrics_frame(seeds=[0]).assign(sqerr_mean_id=2.0, var_id=9.9, sqerr_mean_ood=2.0, var_ood=0.0)
    table = tables.region_table(frame, "step")
    column = table.columns.index("squared error of the mean")
    assert row_of(table, "LP-FDNet", "ID")[column] == "1.900 [1.900, 1.900]"  # 2 - 9.9 / 99
    assert row_of(table, "LP-FDNet", "OOD")[column] == "2.000 [2.000, 2.000]"
    assert row_of(table, "DeepEnsembleNet", "ID")[column] == "2.000 [2.000, 2.000]"
    assert row_of(table, "MLPNet", "ID")[column] == "2.000 [2.000, 2.000]"
    assert [row[0] for row in table.rows[::2]] == [BASELINE, *MODEL_NAMES]


def test_region_table_names_what_was_not_computed():
    table = tables.region_table(metrics_frame(models=["LP-FDNet"]), "step")
    assert row_of(table, BASELINE, "ID")[2:] == ("n/a",) * 7
    older = metrics_frame(models=["LP-FDNet"]).filter(regex="^(?!coverage_90|width_90)")
    row = row_of(tables.region_table(older, "step"), "LP-FDNet", "ID")
    assert "n/a" not in row[:-2] and row[-2:] == ("n/a", "n/a")
    assert f"{BASELINE}, MLPDropoutNet, DeepEnsembleNet" in table.notes[0]
    assert "LP-FDNet" not in table.notes[0]
    assert "MLPNet" not in {row[0] for row in table.rows}  # optional: shown only where computed


def test_hyperparameters_are_the_fields_of_the_protocols_and_differences_are_marked():
    table = tables.hyperparameter_table()
    names = [field.name for field in dataclasses.fields(Protocol) if field.name != "base"]
    assert [row[0] for row in table.rows] == [f"`{name}`" for name in names]
    marked = {row[0].strip("`") for row in table.rows if row[-1] == "≠"}
    assert marked == {name for name in names if getattr(PUBLISHED, name) != getattr(AS_WRITTEN, name)}
    assert row_of(table, "`train_draws`")[1:3] == ("1", "1")  # 1 is a number, not "yes"
    assert row_of(table, "`clip_norm`")[1:3] == ("1", "none")
    assert row_of(table, "`variance_offset`")[1:3] == ("0.000001", "0")


def test_split_sizes_and_absent_files():
    table = tables.split_table({"step": data.load("step"), "airfoil": None})
    assert table.rows[0] == ("step", "1", "x", "1024", "512", "256", "2001", "201", "1800", "3537")
    assert table.rows[1] == ("airfoil", *["n/a"] * 9)
    assert table.notes == ("n/a: the files of airfoil are not here.",)


def test_model_table_holds_the_paper_s_counts():
    table = tables.model_table(PUBLISHED, [1, 5])
    counts = {(row[0], row[1]): int(row[6]) for row in table.rows}
    assert [counts["1", model] for model in STOCHASTIC_MODELS] == [1000, 1000, 998, 994, 1004, 1011]
    assert [counts["5", model] for model in STOCHASTIC_MODELS] == [2332, 2320, 2326, 2146, 2340, 2183]
    assert row_of(table, "1", "GaussHyperNet")[2:6] == ("24", "5", "9", "1")
    assert row_of(table, "1", "BayesNet")[3:5] == ("—", "—")


class PlainLayer(torch.nn.Module):
    """A layer whose weights come from Linear - ReLU - Linear for every point, as matrix products."""

    def __init__(self, d_in: int, d_out: int, d_signal: int, hyper: int, parts: int) -> None:
        super().__init__()
        self.shape = (d_out, d_in)
        self.first = torch.nn.Linear(d_signal, hyper)
        self.second = torch.nn.Linear(hyper, parts * d_out * (d_in + 1))

    def forward(self, a: torch.Tensor, signal: torch.Tensor) -> torch.Tensor:
        d_out, d_in = self.shape
        theta = self.second(self.first(signal).relu())  # (B, parts P)
        weight = theta[:, : d_out * d_in].reshape(-1, d_out, d_in)
        return torch.bmm(weight, a[:, :, None])[:, :, 0]  # (B, d_out)


@pytest.mark.parametrize("d", [1, 5])
@pytest.mark.parametrize(("model", "parts"), [("HyperNet", 1), ("IC-FDNet", 2), ("LP-FDNet", 2)])
def test_multiply_accumulates_agree_with_a_counted_forward_pass(model: str, parts: int, d: int):
    spec = model_spec(model, d, PUBLISHED)
    (hidden,), hyper, batch = spec.hidden, spec.hyper, 7
    first = PlainLayer(d, hidden, d, hyper, parts)
    second = PlainLayer(hidden, 1, d if model == "IC-FDNet" else hidden, hyper, parts)
    x = torch.ones(batch, d)
    with FlopCounterMode(display=False) as counter:
        a = first(x, x).relu()
        second(a, x if model == "IC-FDNet" else a)
    assert multiply_accumulates(spec, d, PUBLISHED) == (counter.get_total_flops() / 2 / batch, 0)
    assert sum(p.numel() for m in (first, second) for p in m.parameters()) == count_parameters(spec, d, PUBLISHED)


def test_multiply_accumulates_of_models_without_an_input_hypernetwork():
    found = {name: multiply_accumulates(model_spec(name, 3, PUBLISHED), 3, PUBLISHED) for name in MODEL_NAMES}
    assert found["MLPDropoutNet"] == (3 * 333 + 333, 0)
    assert found["DeepEnsembleNet"] == (3 * 33 + 33, 0)
    hyper = 9 * 5 + 5 * 2 * (3 * 24 + 24) + 9 * 5 + 5 * 2 * (24 + 1)
    assert found["GaussHyperNet"] == (3 * 24 + 24, hyper)
    spec = model_spec("GaussHyperNet", 3, PUBLISHED)
    biases_and_latents = 2 * 9 + 2 * 5 + 2 * (3 * 24 + 24 + 24 + 1)
    assert count_parameters(spec, 3, PUBLISHED) == hyper + biases_and_latents


def test_notation_names_exist_in_the_code():
    for row in tables.notation_table().rows:
        parts = row[-1].strip("`").split(".")
        depth = next(i for i in range(len(parts), 0, -1) if _importable(".".join(parts[:i])))
        here = importlib.import_module(".".join(parts[:depth]))
        for part in parts[depth:]:
            if not hasattr(here, part):
                assert _is_attribute(here, part), row
                break
            here = getattr(here, part)


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def _is_attribute(owner: type, name: str) -> bool:
    """Fields without a default and attributes set in __init__ are not attributes of the class."""
    return name in getattr(owner, "__annotations__", {}) or name in owner.__init__.__code__.co_names


EXAMPLE = Table(
    "a_b", "Title of 5 % & more", "Caption with `code_x` and $x_1$", ("Model", "ρ ↓"),
    (("MLP_1", "-0.5\n[0.1, 0.2]"), ("a|b", "—")), "lr", ("a note",),
)  # fmt: skip


def test_markdown():
    lines = EXAMPLE.to_markdown().splitlines()
    assert lines[0] == "**Title of 5 % & more.** Caption with `code_x` and $x_1$"
    assert lines[2:4] == ["| Model | ρ ↓ |", "|:---|---:|"]
    assert lines[4:6] == ["| MLP_1 | -0.5<br>[0.1, 0.2] |", r"| a\|b | — |"]
    assert lines[-1] == "a note"


def test_csv_reads_back_as_the_cells():
    read = list(csv.reader(io.StringIO(EXAMPLE.to_csv())))
    assert read == [["Model", "ρ ↓"], ["MLP_1", "-0.5 / [0.1, 0.2]"], ["a|b", "—"]]


def test_latex_rows():
    text = EXAMPLE.to_latex()
    assert r"\caption{Title of 5 \% \& more. Caption with \texttt{code\_x} and $x_1$}" in text
    assert r"Model & $\rho$ $\downarrow$ \\" in text
    assert r"MLP\_1 & \makecell[r]{$-$0.5 \\ {[}0.1, 0.2{]}} \\" in text
    assert r"\label{tab:a-b}" in text


def all_built() -> list[Table]:
    frame = metrics_frame(models=[*MODEL_NAMES[:-1], BASELINE]).assign(spearman=np.nan)
    sets = {"step": data.load("step"), "airfoil": None}
    return [
        tables.result_table(frame, "step"), tables.region_table(frame, "step"), tables.hyperparameter_table(),
        tables.split_table(sets), tables.model_table(AS_WRITTEN, [1]), tables.notation_table(), EXAMPLE,
    ]  # fmt: skip


@pytest.mark.parametrize("table", all_built(), ids=lambda table: table.name)
def test_latex_is_balanced_escaped_and_plain_ascii(table: Table):
    text = table.to_latex()
    assert text.isascii()
    plain = re.sub(r"\\[\\{}%&#_$]", "", text)  # what is left of these characters has its LaTeX meaning
    depth = np.cumsum([{"{": 1, "}": -1}.get(c, 0) for c in plain])
    assert depth.min() >= 0 and depth[-1] == 0
    assert plain.count("$") % 2 == 0
    begun, ended = (re.findall(rf"\\{kind}\{{(\w+)\}}", plain) for kind in ("begin", "end"))
    assert begun == ended[::-1] and "tabular" in begun
    outside = re.sub(r"\$[^$]*\$", "", plain)
    assert "_" not in outside and "^" not in outside and "#" not in outside
    assert outside.count("%") == 1  # the comment that names the packages
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == len(table.rows)
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(table.columns) - 1}
    assert not re.search(r"\\\\\s*\[", text)  # would be read as an optional argument


def test_special_characters_survive_latex():
    assert to_latex_text(r"\{}%&#_$^~") == (r"\textbackslash{}\{\}\%\&\#\_\$\textasciicircum{}\textasciitilde{}")
    assert to_latex_text("a-1 -1 IC-FDNet") == "a-1 $-$1 IC-FDNet"


def test_a_ragged_table_is_refused():
    with pytest.raises(ValueError, match="row 0 has 1 entries, expected 2"):
        Table("x", "t", "c", ("a", "b"), (("1",),), "ll")
    with pytest.raises(ValueError, match="align"):
        Table("x", "t", "c", ("a", "b"), (("1", "2"),), "l")


def test_all_tables_writes_three_formats_of_each_and_the_same_bytes_twice(tmp_path):
    sets = {"step": data.load("step"), "airfoil": None}
    written = [tables.all_tables(metrics_frame(), sets, "published", tmp_path / run) for run in "ab"]
    names = {path.name for path in written[0]}
    stems = [f"{kind}_{name}" for name in sets for kind in ("results", "regions")]
    stems += ["hyperparameters", "splits", "models_published", "models_as_written", "notation"]
    assert names == {stem + suffix for stem in stems for suffix in (".md", ".tex", ".csv")}
    assert [p.read_bytes() for p in written[0]] == [p.read_bytes() for p in written[1]]
    assert "n/a" in (tmp_path / "a" / "results_airfoil.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    ["$x$", "a_b", "_a_", "`code`", "a*b*c", "<b>", "x\\y", "\\$", "a & b", "数据", "{x}%#~^", "a$b", "~~a~~", "a|b"],
)
def test_names_of_any_signs_stand_in_tables_as_they_are(name, tmp_path):
    table = Table(f"results_{name}", f"On {literal(name)}", "c", ("A",), ((literal(name),),), "l")
    assert list(csv.reader(io.StringIO(table.to_csv())))[1] == [name] == [plain(literal(name))]
    rendered = MarkdownIt().enable("table").render(table.to_markdown())
    assert html.unescape(re.search("<td.*?>(.*?)</td>", rendered)[1]) == name  # no sign has a meaning
    latex = table.to_latex()
    assert (
        "texttt" not in latex
        and latex.count("{") == latex.count("}")
        and not re.search(r"(?<!\\)[%&#_]", latex.partition("caption")[2])
    )
    assert not re.search(r"[$%#&~^{}\\_]", re.search(r"label\{tab:(.*)\}", latex)[1])
    assert [path.parent for path in table.write(tmp_path)] == [tmp_path] * 3


def test_the_committed_tables_are_those_of_the_committed_results(tmp_path):
    """Every table of the study: some seconds."""
    metrics = extras.read(paths.COMMITTED_RESULTS)
    made = tables.all_tables(metrics, experiment.datasets_of(metrics, PUBLISHED), PUBLISHED.label, tmp_path)
    committed = paths.COMMITTED_RESULTS / "tables"
    assert {path.name for path in made} == {path.name for path in committed.iterdir()}
    need_files = ("splits", "models_published", "models_as_written") if data.missing() else ()
    made = [path for path in made if path.stem not in need_files]
    assert [path.name for path in made if path.read_bytes() != (committed / path.name).read_bytes()] == []
