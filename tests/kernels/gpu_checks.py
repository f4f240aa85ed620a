"""What a GPU alone can show of the kernel: run by ``tests/kernels/on_gpu.py``, a check a process.

Without a GPU the same checks run in Triton's interpreter (TRITON_INTERPRET=1, set before triton is imported), with
small sizes and stand-ins for what PyTorch's CUDA does: see ``tests/kernels/test_on_gpu.py``.
"""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace

import pytest
import torch
from recording import Recording

from fdn_kernels import fdn_linear, philox
from fdn_kernels.reference import split_parameters

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
assert INTERPRETED or torch.cuda.is_available(), "run through tests/kernels/test_on_gpu.py or make gpu"
TOLERANCE = 1e-4  # of the largest entry
SIZES = (2, 3, 2, 2, 2) if INTERPRETED else (8, 200, 60, 50, 16)  # draws, examples, inputs, outputs, h
every_mode = pytest.mark.parametrize(
    ("conditioning", "noise"), [("LP", "local"), ("LP", "shared"), ("IC", "shared"), ("IC", "local")]
)


def make(conditioning, draws, batch, d_in, d_out, h, dtype=torch.float32):
    """Inputs a, z, weight and bias of a layer, to be differentiated."""
    generator, n = torch.Generator(DEVICE).manual_seed(0), 2 * d_out * (d_in + 1)
    shapes = (draws, batch, d_in), (draws if conditioning == "LP" else 1, batch, h), (n, h), (n,)
    scales = 1, 1, (h * d_in) ** -0.5, 1
    return [
        (scale * torch.randn(shape, dtype=dtype, device=DEVICE, generator=generator)).requires_grad_()
        for scale, shape in zip(scales, shapes)
    ]


def eager(inputs, seed, noise, draws, backend="triton"):
    """y and KL, and the gradients of fixed functionals of them."""
    y, kl = fdn_linear(*inputs, seed=seed, noise=noise, draws=draws, backend=backend)
    return [y, kl, *torch.autograd.grad((y, kl), inputs, (weights(y), weights(kl)))]


def weights(t):
    """Numbers between -1 and 1, each another."""
    return torch.linspace(-1, 1, t.numel(), device=t.device).to(t.dtype).view_as(t)


def assert_same(found, expected, tolerance=TOLERANCE):
    for x, y in zip(found, expected, strict=True):
        error = (x.double() - y.double()).abs().max() / y.double().abs().max().clamp_min(1e-3)
        assert x.shape == y.shape and error <= tolerance, error  # NaN fails too


@every_mode
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (3, 63, 14, 3, 5), (2, 64, 15, 4, 16), (2, 65, 16, 5, 17)])
def test_edges_of_tiles(conditioning, noise, sizes):
    draws = sizes[0]
    inputs, seed = make(conditioning, *sizes), torch.tensor(2**40 + 5, device=DEVICE)
    wide = [t.detach().double().requires_grad_() for t in inputs]
    assert_same(eager(inputs, seed, noise, draws), eager(wide, seed, noise, draws, backend="reference"))


# -- CUDA graphs -------------------------------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch):
    """PyTorch's CUDA graphs; without a GPU a recorder of its operations."""
    if not INTERPRETED:
        return

    @contextlib.contextmanager
    def graph(recording, stream):
        with recording:
            yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "CUDAGraph": Recording, "graph": graph, "Stream": lambda: stream, "current_stream": lambda: stream,
        "stream": lambda stream: contextlib.nullcontext(), "synchronize": lambda: None,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)


def recorded(step):
    """A graph of a step, which ran before, for what it compiles and sets up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph


@every_mode
def test_a_graph_replayed_with_another_seed_is_the_eager_step(conditioning, noise, graphs):
    inputs, seed = make(conditioning, *SIZES), torch.tensor(1, device=DEVICE)
    held = [torch.zeros_like(t) for t in eager(inputs, seed, noise, SIZES[0])]

    def step():
        for kept, t in zip(held, eager(inputs, seed, noise, SIZES[0])):
            kept.copy_(t.detach())

    graph, before = recorded(step), held[0].clone()
    for number in (2, 2**40 + 5):
        seed.fill_(number)
        for t in held:
            t.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert_same(held, eager(inputs, torch.tensor(number, device=DEVICE), noise, SIZES[0]), tolerance=1e-6)
        assert not torch.equal(held[0], before)
        before = held[0].clone()


@every_mode
def test_reduce_overhead_gives_the_eager_numbers(conditioning, noise):
    inputs = make(conditioning, *SIZES)

    @torch.compile(mode="reduce-overhead", fullgraph=True)
    def layer(a, z, weight, bias, seed):
        return fdn_linear(a, z, weight, bias, seed=seed, noise=noise, draws=SIZES[0], backend="triton")

    for number in (1, 2, 3, 2**40 + 5):  # runs, is recorded, and is replayed
        seed = torch.tensor(number, device=DEVICE)
        torch.compiler.cudagraph_mark_step_begin()
        y, kl = layer(*inputs, seed)
        gradients = torch.autograd.grad((y, kl), inputs, (weights(y), weights(kl)))
        assert_same([y, kl, *gradients], eager(inputs, seed, noise, SIZES[0]), tolerance=1e-6)


# -- offsets -----------------------------------------------------------------------------------------------------------

MANY_INPUTS = {"draws": 64, "batch": 1 << 17, "d_in": 257, "d_out": 2, "h": 4}  # 2.2e9 numbers in a
MANY_WEIGHTS = {"draws": 2, "batch": 64, "d_in": 5888, "d_out": 5888, "h": 4}  # 2.2e9 scales
SMALL = {"draws": 2, "batch": 9, "d_in": 5, "d_out": 3, "h": 4}


def sizes_of(large, gib):
    """The large sizes on a GPU that has the memory, and small ones without a GPU."""
    if INTERPRETED:
        return SMALL
    there = torch.cuda.get_device_properties(0).total_memory / 2**30
    if there < gib:
        pytest.skip(f"needs {gib} GiB of GPU memory, and there are {there:.0f}")
    return large


def test_offsets_in_many_inputs():
    """LP; the first and last examples against the reference, sums over examples against the op in four parts."""
    n = sizes_of(MANY_INPUTS, gib=38)
    draws, batch = n["draws"], n["batch"]
    inputs = make("LP", **n, dtype=torch.float32 if INTERPRETED else torch.bfloat16)
    tolerance = TOLERANCE if INTERPRETED else 2e-2
    found = eager(inputs, 5, "local", draws)
    incoming = [weights(t) for t in found[:2]]

    def of_part(part, backend, dtype):  # y and KL of some examples, and the gradients
        leaves = [*(t[:, part.start : part.stop] for t in inputs[:2]), *inputs[2:]]
        leaves = [t.detach().to(dtype).requires_grad_() for t in leaves]
        place = {"draws": range(draws), "examples": part, "d_in": n["d_in"], "d_out": n["d_out"]}
        wide = torch.promote_types(dtype, torch.float32)
        eps = philox.standard_normal(5, "local", **place, dtype=wide, device=torch.device(DEVICE))
        outputs = fdn_linear(*leaves, eps=eps, noise="local", backend=backend)
        wanted = [t[:, part.start : part.stop].to(own.dtype) for t, own in zip(incoming, outputs)]
        return [t.detach() for t in (*outputs, *torch.autograd.grad(outputs, leaves, wanted))]

    for part in (range(2), range(batch - 2, batch)):
        rows = [t[:, part.start : part.stop] for t in found[:4]]
        assert_same(rows, of_part(part, "reference", torch.float64)[:4], tolerance)
    sums = [0.0, 0.0]
    for i in range(4):
        gradients = of_part(range(i * batch // 4, (i + 1) * batch // 4), "triton", inputs[0].dtype)[4:]
        sums = [total + gradient.double() for total, gradient in zip(sums, gradients)]
    assert_same(found[4:], sums, tolerance)


@pytest.mark.parametrize("noise", ["shared", "local"])
def test_offsets_in_many_weights(noise):
    """IC; everything against the reference, outputs by outputs."""
    n = sizes_of(MANY_WEIGHTS, gib=64)
    d_in, d_out, count = n["d_in"], n["d_out"], n["d_out"] * n["d_in"]
    inputs = make("IC", **n)
    shape = (n["draws"], 1, count + d_out) if noise == "shared" else (n["draws"], n["batch"], d_out)
    eps = torch.randn(shape, device=DEVICE)
    y, kl = fdn_linear(*inputs, eps=eps, noise=noise, backend="triton")
    found = torch.autograd.grad((y, kl), inputs, (weights(y), weights(kl)))
    sums = [torch.zeros_like(t, dtype=torch.float64) for t in (kl, *inputs[:2])]  # over outputs
    step = 2 if INTERPRETED else 64
    for start in range(0, d_out, step):
        part = slice(start, min(start + step, d_out))
        wanted = torch.arange(part.start * d_in, part.stop * d_in, device=DEVICE)
        own = torch.arange(part.start, part.stop, device=DEVICE)
        rows = torch.cat([wanted, count + wanted, 2 * count + own, 2 * count + d_out + own])
        leaves = [t.detach().double() for t in (*inputs[:2], inputs[2][rows], inputs[3][rows])]
        leaves = [t.requires_grad_() for t in leaves]
        if noise == "shared":
            matrix, bias = split_parameters(eps, d_in)
            drawn = torch.cat([matrix[..., part, :].flatten(-2), bias[..., part]], -1)
        else:
            drawn = eps[..., part]
        outputs = fdn_linear(*leaves, eps=drawn.double(), noise=noise, backend="reference")
        gradients = torch.autograd.grad(outputs, leaves, (weights(y)[..., part].double(), weights(kl).double()))
        assert_same([y[..., part]], outputs[:1])
        assert_same([t[rows] for t in found[2:]], gradients[2:])
        for total, t in zip(sums, (outputs[1].detach(), *gradients[:2])):
            total += t
    assert_same([kl, *found[:2]], sums)


# -- the study ---------------------------------------------------------------------------------------------------------


def test_a_block_of_the_study_has_the_metrics_of_the_cpu(tmp_path):
    pandas = pytest.importorskip("pandas")
    from fdn.cli import main

    block = ["--dataset", "step", "--models", "BayesNet,IC-FDNet,LP-FDNet", "--seeds", "0:3", "--epochs", "5"]
    frames = []
    for name, device in (("host", "cpu"), ("there", DEVICE)):
        out = str(tmp_path / name)
        assert main(["run", *block, "--workers", "1", "--device", device, "--out", out]) == 0
        frame = pandas.read_parquet(tmp_path / name / "metrics.parquet")
        frames.append(frame.sort_values(["model", "seed"], ignore_index=True))
    assert len(frames[0]) == 9
    pandas.testing.assert_frame_equal(*frames, rtol=1e-6, atol=1e-9)
