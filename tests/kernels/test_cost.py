"""The kernel's speed as far as it can be counted without a GPU: a regression fails `make check`."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="Triton is for Linux; without it the op runs in PyTorch")

from fdn_kernels import aot


@pytest.mark.check
@pytest.mark.parametrize("mode", aot.TARGETS, ids=" ".join)
def test_the_largest_layers_stay_below_their_targets_without_a_spill(mode):
    """Takes as long as a compiler does."""
    layer = aot.LARGEST[mode]
    found = aot.costs(layer)
    assert {name.split(":")[0] for name in found} == {"forward", "backward"}
    assert [name for name, (usage, *_) in found.items() if usage.spills] == []
    total = aot.total_floor_ms(found)
    assert aot.TARGETS[mode] / 2 < total <= aot.TARGETS[mode]
    assert [kernel for kernel, _, arch, usage in aot.compile_layer(layer, 80) if not aot.fits(arch, usage)] == []


def test_a_layer_beyond_its_target_and_a_spill_end_the_command_with_1(monkeypatch, capsys):
    """Takes as long as it does to go through the largest layers on tensors without memory."""
    usage = aot.Usage(registers=100, spills=0, shared_bytes=2048)
    count = aot.Count(issued=aot.SCHEDULERS / 1e3)  # 1 ms

    def run(target, spills=0):
        found = {"forward: a": (replace(usage, spills=spills), 4, 2, count), "backward: b": (usage, 4, 2, count)}
        monkeypatch.setattr(aot, "costs", lambda layer: found)
        monkeypatch.setattr(aot, "TARGETS", dict.fromkeys(aot.TARGETS, target))
        return aot.main(["--cost"]), capsys.readouterr().out

    code, printed = run(target=2.1)
    assert code == 0 and printed.count(": 2.0 ms, target 2.1 ms, bound ") == len(aot.TARGETS)
    assert printed.splitlines()[3].split() == "LP local forward: a 2 100 0 16 4.40 1.00 0.00 0.00".split()
    assert run(target=1.9)[0] == 1
    assert run(target=2.1, spills=3)[0] == 1
