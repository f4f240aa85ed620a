"""docs/layers.md: its code runs, its formulas are the counted costs, its numbers are those of data/layers.

So are those sentences of notebook 08 that say the same.

``python tests/nn/test_docs.py`` writes the tables anew.
"""

from __future__ import annotations

import itertools
import re

import pandas as pd
import pytest
import torch
from torch import nn

from fdn import paths
from fdn.nn import FDNLinear, costs, sample, to_fdn
from fdn.report.layers import differences, results_table
from fdn.runs import adapters

PAGE = paths.ROOT / "docs" / "layers.md"
TEXT = PAGE.read_text(encoding="utf-8")
FORMULAS = re.findall(r"^\| `(structure=.*?)` \| `(.*?)` \| `(.*?)` \|$", TEXT, re.MULTILINE)


def rows(markdown: str) -> str:
    return "\n".join(line for line in markdown.splitlines() if line.startswith("|") or not line)


def tables() -> dict[str, str]:
    airfoil, digits = adapters.load("airfoil")[0], adapters.load("digits")[0]
    found = {
        "airfoil": results_table(airfoil, ("rmse", "nll", "coverage_90"), ("id", "ood")).to_markdown(),
        "digits": results_table(digits, ("accuracy", "nll", "ece"), (0, 45)).to_markdown(),
        "peers": (paths.LAYERS / "README.md").read_text(encoding="utf-8"),
    }
    return {name: re.sub("\n{2,}", "\n\n", rows(text)).strip() for name, text in found.items()}


def test_the_code_runs():
    torch.manual_seed(0)
    names: dict = {}
    for code in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        exec(code, names)
    assert names["draws"].shape == (100, 200, 1) and names["draws"].std(0).min() > 0
    assert names["probabilities"].sum(-1).sub(1).abs().max() < 1e-5
    assert names["outputs"].shape == (2, 200, 1) and names["kls"].shape == (2, 200)
    assert not torch.equal(*names["outputs"])
    assert torch.isfinite(names["loss"])


@pytest.mark.parametrize(("options", "parameters", "products"), FORMULAS)
def test_formulas_are_the_counted_costs(options, parameters, products):
    i, o, h, r = 7, 5, 3, 2
    made = to_fdn(nn.Sequential(nn.Linear(i, o)), init="fresh", hyper=h, **eval(f"dict({options})", {"r": r}))
    values = {"i": i, "o": o, "s": i, "h": h, "P": o * (i + 1), "r": r}
    layer, _ = costs(made)
    assert (layer.parameters, layer.products) == (eval(parameters, values), eval(products, values))


def test_for_one_output_columns_are_the_cheapest_and_a_low_rank_never_is():
    assert 'For one output `"columns"` has the fewest parameters, with the products of `"full"`; a low rank' in TEXT
    ranks = {f"rank {r}": {"structure": "low_rank", "rank": r} for r in (1, 4)}
    named = {name: {"structure": name} for name in ("full", "rows", "columns")} | ranks
    made = {name: costs(nn.Sequential(FDNLinear(64, 1, hyper=8, **options)))[0] for name, options in named.items()}
    found = {name: (cost.parameters, cost.products) for name, cost in made.items()}
    assert min(found.values()) == found.pop("columns") == (1058, found["full"][1]) and found["full"][0] == 1690
    assert all(found[name] > found["full"] and found[name][1] > found["full"][1] for name in ranks)


@pytest.mark.parametrize("width", [16, 256])
def test_a_draw_moves_a_layer_by_a_tenth_where_weights_are_of_fan_in_size(width):
    torch.manual_seed(0)
    with torch.no_grad():
        assert moved_by_a_draw(width) == pytest.approx(0.1, rel=0.1)


def moved_by_a_draw(width: int) -> float:
    """Deviation over draws of a layer's outputs, in units of the outputs."""
    linear, x = nn.Linear(width, 50), torch.randn(50, width)
    nn.init.normal_(linear.weight, std=width**-0.5)
    moved = sample(to_fdn(nn.Sequential(linear)), x, 50).std(0).square().mean().sqrt()
    return float(moved / linear(x).square().mean().sqrt())


@pytest.mark.parametrize("name", ["airfoil", "digits", "peers"])
def test_numbers_are_those_of_the_results(name):
    [shown] = re.findall(f"<!-- {name} -->\n(.*?)\n<!-- end -->", TEXT, re.DOTALL)
    assert shown == tables()[name], "write them anew: python tests/nn/test_docs.py"


def test_sentences_are_those_of_the_results():
    frame = adapters.load("airfoil")[0].query("region == 'ood'").set_index(["method", "seed"])["rmse"]
    assert "above 100 in 5 of 10 seeds" in TEXT and (frame["FDN adapter, last two"] > 100).sum() == 5
    assert frame["FDN, last layer"].max() < 1 and (frame["FDN, last two"] > 2).sum() == 3  # "a few" in notebook 08
    digits = adapters.load("digits")[0]
    assert "six seeds" in TEXT and digits["seed"].nunique() == 6
    means = digits.groupby(["angle", "method"])[["nll", "ece", "ece_tempered"]].mean()
    assert told_apart(digits, "ece", "FDN head", -1) == [0]
    assert means.loc[0, :].ece_tempered[adapters.PLAIN] < means.loc[0, :].ece[adapters.PLAIN]
    assert set(told_apart(digits, "nll", "FDN head", +1)) == {45, 60, 75}
    assert told_apart(digits, "nll_tempered", "FDN head", +1) == []
    for method in ("FDN head", "FDN adapter, last two"):  # beside the ensemble, in notebook 08
        assert {30, 45, 60} <= set(told_apart(digits, "nll", method, +1, adapters.ENSEMBLE))
        assert not any(told_apart(digits, "nll_tempered", method, sign, adapters.ENSEMBLE) for sign in (-1, +1))
    raised = digits.query("angle > 0").groupby(["angle", "method"])[["nll", "nll_tempered"]].mean()
    raised = raised.xs(adapters.PLAIN, level="method")
    assert "raises the plain network's NLL on rotated ones" in TEXT and (raised.nll_tempered > raised.nll).all()
    confidence = digits.groupby(["angle", "method"])[["accuracy", "ece"]].mean().sum(axis=1).unstack()  # or almost
    for method in (adapters.DROPOUT, adapters.ENSEMBLE):
        assert (confidence[method] < confidence[adapters.PLAIN])[1:].all()


def told_apart(frame: pd.DataFrame, metric: str, method: str, sign: int, other: str = adapters.PLAIN) -> list:
    """Where the difference from the other method has a sign, and its 95 % interval leaves 0 out."""
    found = differences(frame, metric, other).query("method == @method")
    return found["part"][sign * found["difference"] > found["half"]].tolist()


def test_the_ensemble_is_better_than_fdn_layers_in_distribution_and_not_worse_out_of_it():
    assert "The ensemble is better than these\nin distribution, and as good or better out of it." in TEXT
    frame = adapters.load("airfoil")[0]
    for metric, method in itertools.product(("rmse", "crps", "nll"), adapters.VARIANTS):
        assert "id" in told_apart(frame, metric, method, +1, adapters.ENSEMBLE)
        assert told_apart(frame, metric, method, -1, adapters.ENSEMBLE) == []
        assert told_apart(frame, metric, method, -1) == [], "notebook 08: none is better than the plain network"
    assert not any(told_apart(frame, m, "FDN, last layer", +1) for m in ("rmse", "crps", "nll", "coverage_90"))


def test_the_page_is_short_and_has_every_structure():
    assert len(FORMULAS) == 5
    prose = re.sub(r"^\|.*\n|```.*?```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= 1200


def write() -> None:
    text = TEXT
    for name, table in tables().items():
        text = re.sub(f"(<!-- {name} -->\n).*?(<!-- end -->)", rf"\1{table}\n\2", text, count=1, flags=re.DOTALL)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
