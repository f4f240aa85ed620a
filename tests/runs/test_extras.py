"""Runs beyond the published tables: what is run, what is kept and what the page says."""

from dataclasses import replace

import pandas as pd
from fake_results import write_results

from fdn.cli import main
from fdn.models import FDN_MODELS, STOCHASTIC_MODELS
from fdn.protocol import PUBLISHED
from fdn.report import published
from fdn.report.claims import CLAIMS
from fdn.report.pages import extras as page_of_extras
from fdn.runs import differences, experiment, extras, groups, results


def test_groups_are_chosen_by_name(monkeypatch, capsys, tmp_path):
    chosen = []
    monkeypatch.setattr(groups, "run", lambda found, *rest: chosen.append([extra.name for extra in found]))
    monkeypatch.setattr(page_of_extras, "write", lambda *places: [])
    for only in (["--only", "iwae,beta"], []):
        assert main(["extras", *only, "--out", str(tmp_path)]) == 0
    assert chosen == [["iwae", "beta"], [extra.name for extra in extras.EXTRAS]]
    assert main(["extras", "--only", "gamma"]) == 2
    assert "unknown group 'gamma'; choose from deterministic" in capsys.readouterr().err


def test_every_variant_that_a_claim_needs_is_run():
    run = {
        (dataset, f"{model}{protocol.label.removeprefix('published')}")
        for extra in extras.EXTRAS for protocol in extra.protocols
        for dataset in extra.datasets for model in extra.models
    }  # fmt: skip
    for claim in CLAIMS:
        names = [name for name in claim.models if "/" not in name and name not in STOCHASTIC_MODELS]
        assert {(dataset, name) for dataset in claim.datasets for name in names} <= run, claim.words


def test_run_asks_for_every_cell_and_seed(monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(experiment, "run", lambda *args: asked.append(args))
    found = [extra for extra in extras.EXTRAS if extra.name in ("hypernetwork", "more-seeds")]
    groups.run(found, tmp_path)
    assert [([protocol.label for protocol in args[3]], len(args[2])) for args in asked] == [
        (["published"], 17), (["published+hyper_factor=0.5", "published+hyper_factor=2.0"], 5),
    ]  # fmt: skip
    groups.run(found[1:], tmp_path, seeds="7")
    assert asked[-1][2] == [7] and len(capsys.readouterr().out.splitlines()) == 3
    groups.run(differences.MEASURED[:1], tmp_path)
    assert [protocol.label for protocol in asked[-1][3]] == ["published", "published+toy_functions=printed"]


def test_the_page_shows_changed_beside_published(tmp_path, monkeypatch):
    main, out, folder = tmp_path / "main", tmp_path / "out", tmp_path / "extras"
    monkeypatch.setattr("fdn.paths.COMMITTED_RESULTS", main)
    write_results(main, ["step"], STOCHASTIC_MODELS, [0, 1, 9])
    changed = replace(PUBLISHED, beta_max=0.1).label
    write_results(out, ["step"], FDN_MODELS, [0, 1], protocol=changed)
    write_results(out, ["step"], ["MLPNet"], [0, 1])
    write_results(out, ["step"], ["BayesNet"], [0, 1], protocol=changed)  # nobody asked for it
    metrics, _, page = page_of_extras.write(out, folder)
    kept = pd.read_parquet(metrics)
    assert set(zip(kept["model"], kept["protocol"])) == {
        ("IC-FDNet", changed),
        ("LP-FDNet", changed),
        ("MLPNet", "published"),
    }
    blocks = results.read_sidecars(folder)
    found = [(b["model"], b["seeds"], b["seconds"]["total"]) for b in blocks]
    assert found == [(model, [0, 1], 1.23) for model in ("MLPNet", "IC-FDNet", "LP-FDNet")]
    assert {tuple(b["environment"]) for b in blocks} == {("python",)}  # not the command, which names folders
    text = page.read_text(encoding="utf-8")
    beta = text.split("## beta")[1].split("## ")[0]
    row = next(line for line in beta.splitlines() if line.startswith(f"| LP-FDNet | `{changed}`"))
    assert "| 2 |" in row and "n/a" not in row
    assert "| LP-FDNet | `published` | 2 |" in beta  # the same seeds, not all three
    assert "| MLPNet | `published` | 2 |" in text.split("## deterministic")[1].split("## ")[0]
    assert page_of_extras.update(folder).read_text(encoding="utf-8") == text


def test_further_seeds_are_counted_beside_the_first(tmp_path, monkeypatch):
    main, out, folder = tmp_path / "main", tmp_path / "out", tmp_path / "extras"
    monkeypatch.setattr("fdn.paths.COMMITTED_RESULTS", main)
    published_rows = published.load_published().query("dataset == 'step' and model == 'BayesNet'")
    numbers = published_rows.set_index("metric")["published"]
    for place, seeds, factor in ((main, [0, 1, 2], 2.0), (out, [25, 30], 0.5)):
        frame = write_results(place, ["step"], ["BayesNet"], seeds)
        for metric in published.PUBLISHED_METRICS:  # all seeds on one side, but for AURC with the further ones
            frame[metric] = numbers[metric] * (factor if metric == "aurc" else 2.0)
        frame.to_parquet(place / "metrics.parquet")
    _, _, page = page_of_extras.write(out, folder)
    blocks = results.read_sidecars(folder)
    assert [extra.name for extra in extras.EXTRAS if extra.seconds(blocks)] == ["hundred-seeds"]
    text = page.read_text(encoding="utf-8").split("## hundred-seeds")[1].split("## ")[0]
    assert "Inside with 20 seeds" in text and "Inside with 100 seeds" in text
    assert "| step | 7 | 0 | 4 | 1 | 5 |" in text  # chance: 7 (3 - 1) / (3 + 1) and 7 (5 - 1) / (5 + 1)


def test_main_results_come_before_the_extras(tmp_path, monkeypatch):
    main, out = tmp_path / "main", tmp_path / "out"
    monkeypatch.setattr("fdn.paths.COMMITTED_RESULTS", main)
    monkeypatch.setattr("fdn.paths.EXTRAS", tmp_path / "none")
    first = write_results(main, ["step"], ["MLPNet"], [0])
    assert extras.with_extras().equals(first)
    second = write_results(out, ["step"], ["MLPNet", "HyperNet"], [0, 1]).assign(mse_id=-1.0)
    second.to_parquet(out / "metrics.parquet")
    both = extras.with_extras(folder=out).set_index(["model", "seed"])["mse_id"]
    assert len(both) == 4 and both["MLPNet", 0] == first["mse_id"][0] and both["MLPNet", 1] == -1
    assert list(both.index.get_level_values("model")[:2]) == ["MLPNet", "MLPNet"]
    assert results.load_metrics(main).equals(first)


def test_the_page_counts_published_numbers_inside_runs_from_the_published_seed(tmp_path, monkeypatch):
    main, out, folder = tmp_path / "main", tmp_path / "out", tmp_path / "extras"
    monkeypatch.setattr("fdn.paths.COMMITTED_RESULTS", main)
    write_results(main, ["step"], STOCHASTIC_MODELS, [0])
    label = replace(PUBLISHED, initialisation="published").label
    frame = write_results(out, ["step", "quad"], ["BayesNet"], [0, 1, 2], protocol=label)
    numbers = published.load_published().set_index(["dataset", "model", "metric"])["published"]
    for metric in ("aurc", "delta_var"):  # a range that holds the published value
        frame[metric] = numbers["quad", "BayesNet", metric] * (0.9 + 0.1 * frame["seed"])
    frame.to_parquet(out / "metrics.parquet")
    _, _, page = page_of_extras.write(out, folder)
    text = page.read_text(encoding="utf-8").split("## initialisation")[1].split("## ")[0]
    inside = published.compare(frame, label).query("verdict != 'outside' and n_seeds > 0").groupby("dataset").size()
    assert inside["quad"] >= 2
    assert f"| BayesNet | {inside.get('step', 0)} | {inside['quad']} |" in text
    assert f"Together {inside.sum()} of 14; 50% would be inside" in text
