"""docs/layers.md: its code runs, its formulas are the counted costs, its numbers are those of data/layers.

``python tests/nn/test_docs.py`` writes the tables anew.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from fdn import paths
from fdn.nn import costs, to_fdn
from fdn.report.layers import results_table
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


@pytest.mark.parametrize("name", ["airfoil", "digits", "peers"])
def test_numbers_are_those_of_the_results(name):
    [shown] = re.findall(f"<!-- {name} -->\n(.*?)\n<!-- end -->", TEXT, re.DOTALL)
    assert shown == tables()[name], "write them anew: python tests/nn/test_docs.py"


def test_sentences_are_those_of_the_results():
    frame = adapters.load("airfoil")[0].query("region == 'ood'").set_index(["method", "seed"])["rmse"]
    assert "above 100 in 5 of 10 seeds" in TEXT and (frame["FDN adapter, last two"] > 100).sum() == 5
    assert frame["FDN, last layer"].max() < 1 and frame.groupby("method").mean().idxmin() == adapters.ENSEMBLE
    digits = adapters.load("digits")[0]
    assert "six seeds" in TEXT and digits["seed"].nunique() == 6
    means = digits.groupby(["angle", "method"])[["nll", "ece", "ece_tempered"]].mean()
    assert means.loc[0, :].ece["FDN head"] < means.loc[0, :].ece[adapters.PLAIN]
    assert all(means.loc[a, :].nll["FDN head"] > means.loc[a, :].nll[adapters.PLAIN] for a in (45, 60, 75))


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
