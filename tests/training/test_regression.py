"""The numbers of a cell change only together with ``results.NUMERICS``.

After a deliberate change raise ``NUMERICS`` and record the new numbers: ``python tests/training/test_regression.py``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fdn.metrics import SUMMARY_COLUMNS
from fdn.models import BASELINE, MODEL_NAMES
from fdn.protocol import PROTOCOLS
from fdn.runs import experiment, results

RECORD = Path(__file__).with_name("regression.json")
# Without vector instructions PyTorch rounds the float32 draws of the initial weights differently: losses move by 1e-6,
# and what is a difference of two numbers, such as a bias, by up to 1e-4 of itself.
TOLERANCE = 3e-4 if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else 1e-5
CHANGES = {"epochs": 3, "warmup": 2, "eval_draws": 5, "ensemble_members": 3}
EXACT = {"recommended": {"dtype": "float64", "beta_max": 1e-3}}  # in float32 processors would differ by more


def compute(protocol: str, out: Path) -> dict[str, dict[str, float]]:
    """Metrics of every model on step and diabetes after a few epochs."""
    changed = replace(PROTOCOLS[protocol], **CHANGES, **EXACT.get(protocol, {}))
    frame = experiment.run(["step", "diabetes"], (BASELINE, *MODEL_NAMES), [1], changed, out, workers=1, progress=False)
    rows = frame.set_index(frame["dataset"] + " " + frame["model"])[[*SUMMARY_COLUMNS, "best_epoch"]]
    return {name: {k: v for k, v in row.items() if v == v} for name, row in rows.to_dict("index").items()}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_numbers_change_only_with_the_version_of_the_numerics(protocol, tmp_path):
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    assert record["numerics"] == results.NUMERICS, f"record the new numbers: {__doc__}"
    found, expected = compute(protocol, tmp_path), record[protocol]
    assert found.keys() == expected.keys()
    for name, row in expected.items():
        recorded = {metric: found[name].get(metric) for metric in row}  # a metric added later is not in the record
        assert recorded == pytest.approx(row, rel=TOLERANCE, abs=1e-9), f"{name}: {__doc__}"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        numbers = {p: compute(p, Path(folder)) for p in PROTOCOLS}
    RECORD.write_text(json.dumps({"numerics": results.NUMERICS, **numbers}, indent=1) + "\n", encoding="utf-8")
