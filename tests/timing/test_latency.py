"""Times as ratios: what is timed is checked, and how medians, ratios and exponents are formed."""

import doctest

import numpy as np
import pandas as pd
import pytest
import torch

from fdn.errors import UserError
from fdn.models import ModelSpec
from fdn.runs import experiment
from fdn.timing import latency


def test_doctests():
    assert doctest.testmod(latency).failed == 0


def test_callables_take_turns_and_the_first_round_does_not_count():
    calls = []

    def timed(name, seconds):
        values = iter(seconds)
        return lambda: calls.append(name) or next(values)

    found = latency.interleaved({"a": timed("a", [99, 1, 5, 2]), "b": timed("b", [0, 8, 7, 9])}, repeats=3)
    assert found == {"a": 2, "b": 8} and calls == ["a", "b"] * 4


def test_ratios_and_exponents(monkeypatch):
    cost = {"MLPNet": 1.0, "HyperNet": 2.0, "LP-FDNet": 3.0, latency.BASE_MLP: 0.5}
    monkeypatch.setattr(latency, "interleaved", lambda timed, repeats: {key: seconds(key) for key in timed})
    monkeypatch.setattr(latency, "_fit", lambda spec, *rest: FakeFit(spec))

    def seconds(key):
        name, size = key if isinstance(key, tuple) else (key, 1)
        return cost.get(name, 1.0) * size**1.5

    frame = latency.measure(quick=True).set_index(["quantity", "model", "size"]).sort_index()["ratio"]
    assert frame["step", "LP-FDNet"].item() == 3.0 and frame["step", latency.BASE_MLP].item() == 0.5
    assert frame["prediction", "LP-FDNet", 100] == pytest.approx(3 * 100**1.5)
    assert frame["prediction exponent", "LP-FDNet"].item() == pytest.approx(1.5)
    assert frame["width", "HyperNet", 32] == pytest.approx(2**1.5)
    assert frame["width exponent", "HyperNet"].item() == pytest.approx(1.5)
    assert 1.7 < frame["parameter exponent", "LP-FDNet"].item() < 2.1
    assert ("prediction", "MLPNet", 10) not in frame.index  # one pass is all it has
    assert frame["prediction", latency.ENSEMBLE, 10] > frame["prediction", latency.ENSEMBLE, 2]


class FakeFit:
    def __init__(self, spec):
        self.spec = spec
        deterministic = spec.name in ("MLPNet", "HyperNet")
        network = type("Network", (), {"stochastic": not deterministic})
        self.stack = type("Stack", (), {"network": network})


def test_nothing_is_timed_that_is_wrong():
    step = experiment.load_dataset("step", latency.TIMED)
    trained = latency._fit(ModelSpec("BayesNet", (3,)), step)
    assert latency._prediction(trained, step.x_test, 4, expected=4)() > 0
    with pytest.raises(FloatingPointError, match="expected \\(5, 2001\\)"):
        latency._prediction(trained, step.x_test, 4, expected=5)()
    trained.flat.fill_(torch.inf)
    with pytest.raises(FloatingPointError, match="not finite"):
        latency._prediction(trained, step.x_test, 4, expected=4)()


def test_measurements_are_kept_with_their_environment(tmp_path):
    frame = pd.DataFrame([("step", "MLPNet", np.nan, 1.5)], columns=list(latency.COLUMNS))
    assert latency.load(tmp_path) is None
    table, environment = latency.write(frame, tmp_path)
    assert latency.load(tmp_path).equals(frame) and "processor" in environment.read_text(encoding="utf-8")
    table.write_text("quantity,model\n", encoding="utf-8")
    with pytest.raises(UserError, match="run `fdn latency` again"):
        latency.load(tmp_path)
