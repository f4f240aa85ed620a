"""The noise of a seed: Random123's and Triton's integers, normal numbers, and each number's place."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
import torch

from fdn_kernels import philox
from fdn_kernels.philox import philox4x32, standard_normal

D_IN, D_OUT = 3, 2


def _words(counter, key):
    return [int(x) for x in philox4x32(tuple(torch.tensor(c) for c in counter), key)]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)  # fmt: skip
def test_known_answers_of_random123(counter, key, expected):
    assert [f"{x:08x}" for x in _words(counter, key)] == expected.split()


TRITON = """
import json, torch, triton, triton.language as tl

@triton.jit
def kernel(seeds, out, c0, c1, c2, c3, N: tl.constexpr):
    i = tl.arange(0, N)
    x0, x1, x2, x3 = tl.philox(
        tl.load(seeds + i), tl.load(c0 + i).to(tl.uint32), tl.load(c1 + i).to(tl.uint32), tl.load(c2 + i).to(tl.uint32),
        tl.load(c3 + i).to(tl.uint32)
    )
    tl.store(out + i, x0.to(tl.int64))
    tl.store(out + N + i, x1.to(tl.int64))
    tl.store(out + 2 * N + i, x2.to(tl.int64))
    tl.store(out + 3 * N + i, x3.to(tl.int64))

@triton.jit
def uniform(words, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.uint_to_uniform_float(tl.load(words + i).to(tl.uint32)))

n = 64
generator = torch.Generator().manual_seed(0)
counters = torch.randint(2**32, (4, n), generator=generator)
counters[:, :2] = torch.tensor([0, 2**32 - 1])
seeds = torch.randint(-2**63, 2**63 - 1, (n,), generator=generator)
seeds[:2] = torch.tensor([0, -1])
out = torch.empty(4, n, dtype=torch.int64)
kernel[(1,)](seeds, out, *counters, N=n)
words = out.flatten().clone()
words[:4] = torch.tensor([0, 2**31 - 1, 2**31, 2**32 - 1])
uniforms = torch.empty(4 * n)
uniform[(1,)](words, uniforms, N=4 * n)
print(json.dumps([t.tolist() for t in (seeds, counters, out, words, uniforms)]))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="the package triton is not installed")
def test_integers_and_uniforms_of_triton(tmp_path):
    """Takes as long as importing Triton does, in a process of its own."""
    script = tmp_path / "script.py"  # the interpreter reads a kernel's source from its file
    script.write_text(TRITON, encoding="utf-8")
    environment = os.environ | {"TRITON_INTERPRET": "1"}  # before triton is imported
    found = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, encoding="utf-8", check=True
    ).stdout
    seeds, counters, integers, words, uniforms = json.loads(found)
    seeds = torch.tensor(seeds)
    ours = philox4x32(tuple(torch.tensor(counters)), (seeds & philox.WORD, (seeds >> 32) & philox.WORD))
    assert torch.equal(torch.stack(ours), torch.tensor(integers))
    assert torch.equal(philox._uniform(torch.tensor(words)), torch.tensor(uniforms))


def test_a_number_is_the_function_of_its_place_that_the_table_says():
    seed, stream, draws, examples = 2**40 + 7, 5, range(3, 9), range(2, 4)
    for noise in ("shared", "independent", "local"):
        found = standard_normal(
            seed, noise, draws=draws, examples=examples, d_in=D_IN, d_out=D_OUT, stream=stream, dtype=torch.float64
        )
        n = D_OUT if noise == "local" else D_OUT * (D_IN + 1)
        assert found.shape == (6, 1 if noise == "shared" else 2, n)
        for (i, k), j, p in itertools.product(enumerate(draws), range(found.shape[1]), range(n)):
            example = 0 if noise == "shared" else examples[j]
            words = np.array(_words((p, example, k // 4, stream), (seed % 2**32, seed // 2**32)), dtype=np.uint32)
            x, y = words[2 * (k % 4 // 2) :][:2].view(np.int32)
            u, v = (np.float32(-int(w) - 1 if w < 0 else w) * np.float32(4.6566127342e-10) for w in (x, y))
            radius = np.sqrt(-2 * np.log(np.float64(max(u, np.float32(1e-7)))))
            expected = radius * (np.sin, np.cos)[k % 2 == 0](2 * np.pi * np.float64(v))
            assert float(found[i, j, p]) == pytest.approx(expected, rel=1e-12)


def _noise(seed, noise, draws=range(8), examples=range(6), stream=0, d_in=D_IN, d_out=D_OUT):
    return standard_normal(seed, noise, draws=draws, examples=examples, d_in=d_in, d_out=d_out, stream=stream)


@pytest.mark.parametrize("noise", ["shared", "independent", "local"])
def test_parts_replicates_and_chunks_change_no_number(noise, monkeypatch):
    whole = _noise(11, noise)
    b = slice(None) if noise == "shared" else slice(1, 4)
    for start, stop in itertools.combinations(range(9), 2):
        assert torch.equal(_noise(11, noise, range(start, stop), range(1, 4)), whole[start:stop, b])
    seeds = torch.tensor([[3, 11], [11, -4]])
    stacked = _noise(seeds, noise)
    assert stacked.shape == (2, 2, *whole.shape) and torch.equal(stacked[0, 0], _noise(3, noise))
    assert torch.equal(stacked[0, 1], whole) and torch.equal(stacked[1, 0], whole)
    assert torch.equal(stacked[1, 1], _noise(2**64 - 4, noise)) and not torch.equal(stacked[1, 1], whole)
    for chunk in (1, 5, 37):
        monkeypatch.setattr(philox, "CHUNK", chunk)
        assert torch.equal(_noise(11, noise), whole) and torch.equal(_noise(seeds, noise), stacked)


def test_a_wider_layer_keeps_its_numbers_of_local_noise():
    assert torch.equal(_noise(1, "local", d_in=9, d_out=5)[..., :D_OUT], _noise(1, "local"))


def test_numbers_are_standard_normal():
    n = _noise(2024, "independent", range(40), range(50), d_in=9, d_out=20).double().flatten()  # 400,000
    assert scipy.stats.kstest(n.numpy(), "norm").pvalue > 1e-3
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((n**power).mean() - moment) < 4 * (variance / len(n)) ** 0.5
    assert n.abs().max() < 5.68  # sqrt(-2 ln 1e-7)


def test_draws_examples_parameters_streams_and_seeds_are_uncorrelated():
    many = {"draws": range(8), "examples": range(4), "d_in": 0, "d_out": 4000}
    parts = [
        standard_normal(seed, "local", stream=stream, **many).flatten(0, 1)  # (32, 4000)
        for seed, stream in ((0, 0), (0, 1), (1, 0), (2**32, 0))
    ]
    n = torch.cat([*parts, parts[0].roll(1, 1)]).double()
    correlation = torch.corrcoef(n) - torch.eye(len(n))
    assert correlation.abs().max() < 5 / 4000**0.5
    squares = torch.corrcoef(n.square()) - torch.eye(len(n))
    assert squares.abs().max() < 6 / 4000**0.5
