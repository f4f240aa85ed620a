"""The generated pages hold what the committed results say, and every difference of the protocols is explained."""

from __future__ import annotations

import dataclasses
import re

import pandas as pd
import pytest

from fdn import paths
from fdn.errors import UserError
from fdn.protocol import AS_WRITTEN, PUBLISHED
from fdn.report import claims, comparison, published
from fdn.report.pages import differences as page_of_differences
from fdn.report.pages import extras as page_of_extras
from fdn.report.pages import readme
from fdn.report.pages import seeds as page_of_seeds
from fdn.report.pages.comparison import write_comparison
from fdn.runs import bands, differences, extras, results

README = paths.ROOT / "README.md"


def test_readme_holds_the_committed_results():
    block = README.read_text(encoding="utf-8").split(readme.BEGIN)[1].split(readme.END)[0]
    assert block.strip() == readme.results_block(extras.read(paths.COMMITTED_RESULTS))


def test_readme_update_is_repeatable_and_needs_its_markers(tmp_path):
    copy = tmp_path / "README.md"
    copy.write_text(README.read_text(encoding="utf-8"), encoding="utf-8")
    readme.update(copy)
    assert copy.read_text(encoding="utf-8") == README.read_text(encoding="utf-8")
    copy.write_text("no markers", encoding="utf-8")
    with pytest.raises(UserError, match="should hold the markers"):
        readme.update(copy)


def test_readme_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8")):
        assert (paths.ROOT / target).exists(), target


def test_readme_commands_exist():
    text = README.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (paths.ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"make ([a-z-]+)", text)) <= targets
    from fdn.cli import COMMANDS

    assert set(re.findall(r"(?<!from )fdn ([a-z]+) ", text)) <= set(COMMANDS)


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
            assert (page_of_differences.effects(metrics, difference)["seeds"] > 0).all(), difference.topic


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
    table = page_of_differences.effects(pd.DataFrame(rows), difference).set_index(["dataset", "model"])
    row = table.loc[("step", "LP-FDNet")]
    assert row["seeds"] == 2 and row["mse_id"] == "2.000 [1.000, 3.000] -> 3.000 [2.000, 4.000]"
