"""The benchmark: bounds as counted by hand, a gate that lets nothing wrong through, tidy rows."""

from __future__ import annotations

import csv
import dataclasses
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from fdn_kernels import bench, rivals
from fdn_kernels.rivals import PEAKS, PROVIDERS, Case

CPU = torch.device("cpu")
H100 = PEAKS["NVIDIA H100 80GB HBM3"]
SMALL = Case("small", "LP", "shared", 2, 5, 7, 3, 4, 2, "float64", "ieee")
MODES = [("IC", "local"), ("IC", "shared"), ("LP", "local"), ("LP", "shared")]


@pytest.mark.parametrize(
    ("d", "draws", "conditioning", "noise", "microseconds"),
    [
        (64, 16, "IC", "local", 3),  # memory
        (64, 16, "IC", "shared", 4),  # multiply and add
        (64, 16, "IC", "independent", 102),  # instructions of the normal numbers
        (64, 16, "LP", "local", 33),  # special functions
        (256, 100, "IC", "local", 78),  # matrix products
        (256, 100, "IC", "shared", 400),
        (256, 100, "IC", "independent", 10_000),
        (256, 100, "LP", "local", 3200),
    ],
)
def test_bound_is_that_of_the_busiest_unit(d, draws, conditioning, noise, microseconds):
    case = Case("", conditioning, noise, 1, draws, 1024, d, d, 16, precision="tf32")
    assert 1e3 * rivals.forward_bound_ms(case, H100) == pytest.approx(microseconds, rel=0.2)
    twice = dataclasses.replace(case, R=2)
    assert rivals.forward_bound_ms(twice, H100) == pytest.approx(2 * rivals.forward_bound_ms(case, H100), rel=1e-9)
    assert rivals.bound_ms(case, "forward+backward", H100) == 3.5 * rivals.bound_ms(case, "forward", H100)


def test_accurate_products_and_wide_numbers_raise_the_bound():
    tf32 = Case("", "IC", "local", 1, 100, 1024, 256, 256, 16, precision="tf32")
    changed = [dataclasses.replace(tf32, precision=precision) for precision in ("tf32", "tf32x3", "ieee")]
    bounds = [rivals.forward_bound_ms(case, H100) for case in changed]
    assert bounds[1] == pytest.approx(3 * bounds[0]) and bounds[2] == pytest.approx(400 / 67 * bounds[0])
    moved = Case("", "IC", "local", 1, 100, 1024, 256, 1, 16, precision="tf32")  # bound by memory: a is large
    half = dataclasses.replace(moved, dtype="bfloat16")
    assert rivals.forward_bound_ms(moved, H100) == pytest.approx(2 * rivals.forward_bound_ms(half, H100))


@pytest.mark.parametrize("quick", [True, False])
def test_cases_have_names_of_their_own_and_none_is_repeated(quick):
    for cases in (rivals.gpu_cases(quick), rivals.cpu_cases(quick)):
        assert len({case.name for case in cases}) == len(cases)
        assert len({dataclasses.replace(case, name="") for case in cases}) == len(cases)
    names = {case.name for case in rivals.gpu_cases(quick=False)}
    assert {case.name for case in rivals.gpu_cases(quick=True)} < names


def test_cpu_cases_have_the_widths_of_the_paper():
    from fdn.models import published_spec
    from fdn.protocol import PUBLISHED

    for case in rivals.cpu_cases(quick=False):
        spec = published_spec(f"{case.conditioning}-FDNet", PUBLISHED)
        assert ({case.d_in, case.d_out}, case.h) == ({1, *spec.hidden}, spec.hyper)
        assert (case.noise, case.dtype) == (PUBLISHED.noise, PUBLISHED.dtype)
        draws, batch = (PUBLISHED.train_draws, PUBLISHED.batch_size) if case.training else (PUBLISHED.eval_draws, 256)
        assert (case.K, case.B) == (draws, batch)


@pytest.mark.parametrize(("conditioning", "noise"), MODES)
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("limit", [1, 300, 10**9])
def test_parts_cover_every_draw_and_example_once(conditioning, noise, sampled, limit):
    case = dataclasses.replace(SMALL, conditioning=conditioning, noise=noise)
    seen = torch.zeros(1, case.K, case.B)
    for part in rivals.parts(case, limit, sampled):
        rivals.cut(seen, part).add_(1)
    assert (seen == 1).all()
    assert len(rivals.parts(case, 10**9, sampled)) == 1


@pytest.mark.parametrize(("conditioning", "noise"), MODES)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_eager_baselines_and_the_op_equal_the_whole_reference(monkeypatch, conditioning, noise, first, training):
    case = dataclasses.replace(SMALL, conditioning=conditioning, noise=noise, first=first, training=training)
    limits = {"cached": 100, "chunked": 200}  # several parts
    monkeypatch.setattr(rivals, "part_limit", lambda provider, device, dtype: limits.get(provider))
    inputs, grads = rivals.make_inputs(case, CPU)
    eps = bench.noise_of(case, CPU)
    direction = bench.DIRECTIONS[training]
    whole = bench.evaluate(rivals.build("reference", case, CPU), direction, inputs, grads, eps)
    assert len(whole) == (6 if training else 1)
    torch.testing.assert_close(bench.expected_values(case, inputs, grads, eps), whole, rtol=1e-12, atol=1e-12)
    for provider in ("ours", "cached", "chunked", "materialised"):
        got = bench.evaluate(rivals.build(provider, case, CPU), direction, inputs, grads, eps)
        torch.testing.assert_close(got, whole, rtol=1e-10, atol=1e-10)


def test_parts_fill_a_cache_or_a_share_of_the_memory(monkeypatch):
    gpu = SimpleNamespace(type="cuda")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=50 * 2**20))
    limits = {name: rivals.part_limit(name, gpu, torch.float32) for name in PROVIDERS}
    assert limits["ours"] is limits["materialised"] is limits["materialised-compiled"] is None
    assert limits["cached"] == limits["cached-compiled"] == 25 * 2**20 / 4
    assert limits["chunked"] == limits["chunked-compiled"] == 2**28
    assert rivals.part_limit("cached", CPU, torch.float32) < limits["cached"]
    for case in rivals.gpu_cases(quick=False):
        sampled = case.noise == "shared"
        fewer, more = (len(rivals.parts(case, limits[name], sampled)) for name in ("chunked", "cached"))
        assert 1 <= fewer <= more and (fewer < more or case.name == "lp-shared-paper")


def test_error_is_relative_for_large_and_absolute_for_small_entries():
    expected = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)  # root mean square: sqrt(3)
    assert bench.error_of(expected + torch.tensor([0, 0.1, 0]), expected) == pytest.approx(0.1 / 3**0.5)
    assert bench.error_of(expected + torch.tensor([0.1, 0, 0]), expected) == pytest.approx(0.1 / (3 + 3**0.5))
    assert bench.error_of(expected * torch.nan, expected) == math.inf
    with pytest.raises(ValueError, match=r"shape \(3, 1\) instead of \(3,\)"):
        bench.error_of(expected[:, None], expected)


def run(monkeypatch, tmp_path, *arguments: str, cases: list[Case]) -> tuple[int, list[dict[str, str]]]:
    monkeypatch.setattr(rivals, "cpu_cases", lambda quick: cases)
    file = tmp_path / "rows.csv"
    code = bench.main(["--device", "cpu", "--quick", "--out", str(file), *arguments])
    with open(file, newline="", encoding="utf-8") as f:
        return code, list(csv.DictReader(f))


EAGER = "ours,cached,materialised,reference"


def test_rows_are_tidy(monkeypatch, tmp_path, capsys):
    """Long, for it measures."""
    predict = dataclasses.replace(SMALL, name="predict", training=False)
    code, rows = run(monkeypatch, tmp_path, "--provider", EAGER, cases=[SMALL, predict])
    assert code == 0
    assert len(rows) == 4 * (2 + 1)  # no backward in prediction
    for row in rows:
        assert tuple(row) == bench.COLUMNS
        assert row["status"] == "ok" and float(row["error"]) < 1e-9
        assert 0 < float(row["p20_ms"]) <= float(row["p50_ms"]) <= float(row["p80_ms"])
        assert (row["peak_mib"], row["bound_share"], row["torch"]) == ("", "", torch.__version__)
        assert row["backend"] == ("torch" if row["provider"] == "ours" else "")
    keys = {(row["name"], row["provider"], row["direction"]) for row in rows}
    assert len(keys) == len(rows)
    assert {key[1] for key in keys} == set(EAGER.split(","))
    printed = capsys.readouterr().out.splitlines()
    shown = [tuple(line.strip("| ").split(" | ")) for line in printed if line.startswith("| ")]
    assert [cell.strip() for cell in shown[0]] == list(bench.HEAD)
    assert [tuple(cell.strip() for cell in line[:3]) for line in shown[2:]] == [
        (row["name"], row["provider"], row["direction"]) for row in rows
    ]


def test_rows_of_a_gpu_have_memory_and_the_share_of_the_bound(monkeypatch):
    """The GPU's branches, with a device whose answers are known."""
    case = dataclasses.replace(SMALL, dtype="float32", precision="tf32")
    assert bench.tolerance(case, CPU) < bench.tolerance(case, SimpleNamespace(type="cuda"))
    answers = {
        "synchronize": None,
        "reset_peak_memory_stats": None,
        "memory_allocated": 2**20,
        "max_memory_allocated": 5 * 2**20,
        "get_device_name": "NVIDIA H100 80GB HBM3",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    testing = SimpleNamespace(do_bench=lambda function, warmup, rep, quantiles: [1.0, 2.0, 3.0])
    monkeypatch.setitem(sys.modules, "triton.testing", testing)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(testing=testing))
    problem = bench.prepare(case, CPU, {})
    run = rivals.build("materialised", case, CPU)
    rows = list(bench.rows_of(case, run, problem, SimpleNamespace(type="cuda"), quick=True))
    assert [row["direction"] for row in rows] == list(bench.DIRECTIONS)
    outputs = 4 * (2 * 5 * 7 * 4 + 2 * 5 * 7)  # bytes of y and KL
    assert rows[0]["peak_mib"] == pytest.approx(4 - outputs / 2**20)
    assert rows[1]["peak_mib"] == pytest.approx(4 - (outputs + sum(t.nbytes for t in problem[0])) / 2**20)
    for row in rows:
        assert (row["p20_ms"], row["p50_ms"], row["p80_ms"], row["status"]) == (1.0, 2.0, 3.0, "ok")
        assert row["bound_share"] == rivals.bound_ms(case, row["direction"], H100) / 2.0


@pytest.mark.parametrize("tensor", range(6))
def test_nothing_wrong_is_timed(monkeypatch, tmp_path, capsys, tensor):
    """A provider that is off by 1e-6 in one of y, KL and the gradients."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, by):
            ctx.by = by
            return t.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.by, None

    def wrong(case, seeds, *inputs):
        factors = [1 + 1e-6 * (i == tensor) for i in range(6)]
        inputs = [Wrong.apply(t, by) for t, by in zip(inputs, factors[2:])]
        y, kl = rivals.reference(case, *inputs, bench.noise_of(case, CPU))
        return y + (factors[0] - 1), kl * factors[1]

    monkeypatch.setattr(rivals, "ours", wrong)
    code, rows = run(monkeypatch, tmp_path, "--provider", "ours,reference", cases=[SMALL])
    assert code == 1
    ours = [row for row in rows if row["provider"] == "ours"]
    where = ("y", "kl", "da", "dz", "dweight", "dbias")[tensor]
    assert [row["status"].startswith(f"WRONG: {where}") for row in ours] == [True]
    assert {row["p50_ms"] for row in ours} == {""}
    assert [row["status"] for row in rows if row["provider"] == "reference"] == ["ok", "ok"]
    assert "| WRONG" in capsys.readouterr().out.splitlines()[-3]


def test_what_fails_or_does_not_fit_has_a_row(monkeypatch, tmp_path):
    """Long, for it measures."""

    def no_memory(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")

    def broken(*_):
        raise RuntimeError("no\nluck")

    monkeypatch.setattr(rivals, "ours", no_memory)
    code, rows = run(monkeypatch, tmp_path, "--provider", "ours", cases=[SMALL])
    assert (code, [row["status"] for row in rows]) == (0, ["out of memory"] * 2)
    monkeypatch.setattr(rivals, "ours", broken)
    code, rows = run(monkeypatch, tmp_path, "--provider", "ours", cases=[SMALL])
    assert (code, [row["status"] for row in rows]) == (1, ["failed: RuntimeError: no luck"])
    monkeypatch.setattr(rivals, "reference", broken)
    code, rows = run(monkeypatch, tmp_path, "--provider", "ours,cached", cases=[SMALL])
    assert (code, [row["status"] for row in rows]) == (1, ["failed: RuntimeError: no luck"] * 2)


def test_without_a_compiler_or_time_there_are_rows_that_say_so(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "compiler_problem", lambda device: "failed: no C++ compiler")
    code, rows = run(monkeypatch, tmp_path, "--provider", "*-compiled", cases=[SMALL])
    assert code == 0
    assert [row["provider"] for row in rows] == ["cached-compiled", "materialised-compiled"]
    assert {row["status"] for row in rows} == {"skipped: torch.compile failed: no C++ compiler"}
    code, rows = run(monkeypatch, tmp_path, "--budget", "0", cases=[SMALL])
    assert code == 0
    assert [row["provider"] for row in rows] == [name for name in PROVIDERS if "chunked" not in name]
    assert all(row["status"].startswith("skipped: the time budget") for row in rows)


def test_names_select_cases_and_providers(monkeypatch, tmp_path):
    other = dataclasses.replace(SMALL, name="other")
    with pytest.raises(SystemExit, match="no case is called 'nothing'; there are: small, other"):
        run(monkeypatch, tmp_path, "--case", "nothing", cases=[SMALL, other])
    _, rows = run(monkeypatch, tmp_path, "--case", "o*", "--provider", "reference", cases=[SMALL, other])
    assert {(row["name"], row["provider"]) for row in rows} == {("other", "reference")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_an_error(capsys):
    with pytest.raises(SystemExit):
        bench.main(["--device", "cuda"])
    assert "no CUDA GPU" in capsys.readouterr().err
