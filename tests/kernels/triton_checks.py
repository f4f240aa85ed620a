"""The Triton kernels against the float64 reference: in Triton's interpreter, or on a GPU.

Run by ``tests/kernels/test_triton.py``.

TRITON_INTERPRET=1 must be set before triton is imported, hence the process of its own and the name that pytest does not
collect. There the cost is per program, not per number: few tiles, odd sizes.
"""

from __future__ import annotations

import os
import random

import other_tiles
import pytest
import torch
from torch.utils import deterministic

from fdn_kernels import fdn_linear, philox
from fdn_kernels.triton import launch, layer, parts

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
assert INTERPRETED or torch.cuda.is_available(), "run through tests/kernels/test_triton.py"
torch.set_num_threads(1)
if not INTERPRETED:
    torch.set_default_device("cuda")
TOLERANCE = 2e-5 if INTERPRETED else 1e-4  # a GPU has an approximate logarithm

SIZES = {  # R, K, B, d_in, d_out, h
    "one": ((), 1, 1, 1, 1, 1),
    "odd": ((), 3, 5, 7, 3, 5),
    "replicates, beyond one tile": ((2,), 2, 17, 16, 3, 17),
    "a tile's own": ((), 4, 8, 7, 9, 16),
}
FEW = [("shared", "analytic"), ("independent", "sampled"), ("local", "analytic"), ("moments", "none")]
CASES = [
    pytest.param(size, noise, kl, marks=() if size == "one" or (noise, kl) in FEW else pytest.mark.check)
    for size in ("one", "odd") for noise in ("shared", "independent", "local", "none", "moments")
    for kl in ("analytic", "none", "sampled") if kl != "sampled" or noise in ("shared", "independent")
] + [
    pytest.param(size, noise, kl, marks=pytest.mark.check) for size in ("replicates, beyond one tile", "a tile's own")
    for noise, kl in (("shared", "sampled"), ("local", "analytic"), ("moments", "none"))
]  # fmt: skip


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Uninitialised memory is NaN."""
    torch.use_deterministic_algorithms(True)
    deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def make(lead, draws, batch, d_in, d_out, h, conditioning="LP", a_draws=None, dtype=torch.float32):
    torch.manual_seed(0)
    n = 2 * d_out * (d_in + 1)
    sizes = (a_draws or draws, batch, d_in), (draws if conditioning == "LP" else 1, batch, h), (n, h), (n,)
    return [torch.randn(*lead, *size).to(dtype) for size in sizes]


def noise_tensor(noise, lead, draws, batch, d_in, d_out):
    sizes = {"shared": (1, d_out * (d_in + 1)), "independent": (batch, d_out * (d_in + 1)), "local": (batch, d_out)}
    return torch.randn(*lead, draws, *sizes[noise]) if noise in sizes else None


def outputs_and_gradients(inputs, noise, kl, eps, dtype, backend, **options):
    """Everything the op gives, and the gradients of fixed random functionals of it."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in inputs]
    eps = eps if eps is None else eps.to(dtype)
    found = "none" if noise == "moments" else noise
    y, term = fdn_linear(
        *leaves, noise=found, moments=noise == "moments", eps=eps, kl=kl, prior_scale=0.8, backend=backend, **options
    )
    outputs = [*(y if noise == "moments" else (y,)), *([] if term is None else [term])]
    generators = [torch.Generator("cpu").manual_seed(i) for i in range(len(outputs))]
    weights = [torch.randn(t.shape, generator=g, device="cpu").to(t.device, dtype) for g, t in zip(generators, outputs)]
    gradients = torch.autograd.grad([(w * t).sum() for w, t in zip(weights, outputs)], leaves)
    return [*outputs, *gradients]


def assert_same(got, expected, tolerance=TOLERANCE):
    assert len(got) == len(expected)
    for g, e in zip(got, expected):
        assert g.shape == e.shape
        error = (g.double() - e.double()).abs().max() / e.double().abs().max().clamp_min(1e-3)
        assert error < tolerance, error  # NaN fails too


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
@pytest.mark.parametrize(("size", "noise", "kl"), CASES)
def test_outputs_and_gradients_equal_the_reference(size, noise, kl, conditioning):
    lead, draws, batch, d_in, d_out, h = SIZES[size]
    for a_draws in {1, draws} if size == "odd" else {draws}:
        inputs = make(*SIZES[size], conditioning, a_draws)
        eps = noise_tensor(noise, lead, draws, batch, d_in, d_out)
        options = {"draws": draws} if noise in ("none", "moments") else {}
        expected = outputs_and_gradients(inputs, noise, kl, eps, torch.float64, "reference", **options)
        got = outputs_and_gradients(inputs, noise, kl, eps, torch.float32, "triton", **options)
        assert_same(got, expected)


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
@pytest.mark.parametrize("noise", ["shared", pytest.param("independent", marks=pytest.mark.check), "local"])
def test_seeds_give_the_noise_of_philox_forward_and_backward(noise, conditioning):
    lead, draws, batch, d_in, d_out, h = (2,), 5, 3, 4, 3, 4
    inputs = make(lead, draws, batch, d_in, d_out, h, conditioning)
    seed = torch.tensor([3, 2**40 + 5])
    kl = "sampled" if noise == "independent" else "analytic"  # else independent is computed as local
    counted = {"draws": range(draws), "examples": range(batch), "d_in": d_in, "d_out": d_out, "stream": 2**32 - 9}
    eps = philox.standard_normal(seed, noise, dtype=torch.float64, **counted)
    expected = outputs_and_gradients(inputs, noise, kl, eps, torch.float64, "reference")
    got = outputs_and_gradients(inputs, noise, kl, None, torch.float32, "triton", seed=seed, stream=2**32 - 9)
    assert_same(got, expected)


@pytest.mark.parametrize("noise", ["shared", "local"])
def test_normals_equal_those_of_the_cpu(noise):
    """With mean 0, scale 1 and one input 1 the layer's output is its noise (and the bias's)."""
    draws, batch = 100, 40
    rho = torch.tensor(1.0).expm1().log()  # softplus(rho) = 1
    z, weight = torch.zeros(1, batch, 1), torch.zeros(4, 1)
    bias = torch.tensor([0.0, rho, 0.0, -200.0])
    y, _ = fdn_linear(
        torch.ones(1, batch, 1),
        z,
        weight,
        bias,
        noise=noise,
        seed=11,
        draws=draws,
        floor=0.0,
        kl="none",
        backend="triton",
    )
    options = {
        "draws": range(draws),
        "examples": range(batch),
        "d_in": 1,
        "d_out": 1,
        "stream": 0,
        "dtype": torch.float64,
        "device": z.device,
    }
    expected = philox.standard_normal(11, noise, **options)[..., :1]
    assert (y.double() - expected).abs().max() < 1e-5


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
@pytest.mark.parametrize(("noise", "dtype"), [("shared", torch.bfloat16), ("local", torch.float16)])
def test_half_types_and_a_hundred_draws(noise, dtype, conditioning):
    draws = 100 if conditioning == "IC" else 6  # LP: a program for each
    inputs = make((), draws, 3, 2, 2, 4, conditioning, a_draws=1, dtype=dtype)
    expected = outputs_and_gradients(inputs, noise, "analytic", None, torch.float64, "reference", seed=1, draws=draws)
    got = outputs_and_gradients(inputs, noise, "analytic", None, dtype, "triton", seed=1, draws=draws)
    assert [t.dtype for t in got] == [dtype, torch.float32] + 4 * [dtype]
    assert_same(got, expected, tolerance=4 * torch.finfo(dtype).eps)


@pytest.mark.check
@pytest.mark.parametrize(
    ("noise", "conditioning"), [("shared", "IC"), ("local", "IC"), ("moments", "IC"), ("local", "LP")]
)
def test_chunks_splits_and_tiles_change_nothing(noise, conditioning, monkeypatch):
    draws, batch = 5, 65
    inputs = make((), draws, batch, 3, 3, 4, conditioning, a_draws=1)
    options = {"seed": 5} if noise != "moments" else {}

    def run():
        return outputs_and_gradients(inputs, noise, "analytic", None, torch.float32, "triton", draws=draws, **options)

    expected = run()
    calls = []
    monkeypatch.setattr(
        parts.Call,
        "chunks",
        lambda self, chunks=parts.Call.chunks: calls.append([*chunks(self)]) or calls[-1],
    )
    monkeypatch.setattr(launch, "PROGRAMS", 1)
    monkeypatch.setattr(parts, "SCRATCH", 100)
    for kernel, tile in other_tiles.TILES.items():
        monkeypatch.setitem(launch.TILES, kernel, tile)
    changed = run()
    assert all(len(chunks) >= 2 for chunks in calls)
    assert_same(changed, expected)
    assert all(torch.equal(x, y) for x, y in zip(run(), changed)), "not the same from run to run"


@pytest.mark.parametrize("noise", ["shared", "local"])
@pytest.mark.parametrize("rho", [-200.0, 200.0])
def test_extreme_scales_and_inputs(rho, noise):
    a = torch.tensor([[[0.0], [1.0], [1e15]]])
    z, weight = torch.zeros(1, 3, 1), torch.zeros(4, 1)
    bias = torch.tensor([0.5, rho, 0.0, rho])
    expected = outputs_and_gradients(
        (a, z, weight, bias), noise, "analytic", None, torch.float64, "reference", seed=1, draws=2
    )
    got = outputs_and_gradients((a, z, weight, bias), noise, "analytic", None, torch.float32, "triton", seed=1, draws=2)
    for g, e in zip(got, expected):
        torch.testing.assert_close(g.double(), e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
def test_certain_weights_have_gradients_under_local_noise(conditioning):
    size, d_in, d_out = (2, 3, 4, 3, 2), 4, 3
    a, z, weight, bias = make((), *size, conditioning)
    for rhos in (slice(d_in * d_out, 2 * d_in * d_out), slice(-d_out, None)):
        weight[rhos], bias[rhos] = 0, -1e4  # sigma = 0
    eps = noise_tensor("local", (), *size[:-1])
    settings = (a, z, weight, bias), "local", "none", eps
    got = outputs_and_gradients(*settings, torch.float32, "triton", floor=0.0)
    assert_same(got, outputs_and_gradients(*settings, torch.float64, "reference", floor=0.0))


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
@pytest.mark.parametrize("noise", ["shared", "local"])
def test_nan_passes_through_only_where_it_is(noise, conditioning):
    for which in (0, 1):  # in a, in z
        inputs = make((), 2, 3, 2, 2, 2, conditioning)
        inputs[which][:, 1, 0] = torch.nan
        expected = outputs_and_gradients(inputs, noise, "analytic", None, torch.float64, "reference", seed=1)
        got = outputs_and_gradients(inputs, noise, "analytic", None, torch.float32, "triton", seed=1)
        assert got[0][:, 1].isnan().all() and got[0][:, [0, 2]].isfinite().all()
        for g, e in zip(got, expected):
            assert torch.equal(g.isnan(), e.isnan())


@pytest.mark.check
def test_vmap_and_opcheck():
    inputs = make((2,), 2, 3, 2, 2, 3, "LP")
    seed = torch.arange(2)

    def layer(a, z, weight, bias, seed):
        return fdn_linear(a, z, weight, bias, noise="shared", seed=seed, backend="triton")

    mapped = torch.func.vmap(layer)(*inputs, seed)
    for i in range(2):
        expected = layer(*(t[i] for t in inputs), seed[i])
        assert all(torch.equal(m[i], e) for m, e in zip(mapped, expected))
    leaves = [t.requires_grad_() for t in inputs]
    settings = (2, "local", "analytic", 1e-3, 1.0, 0, "ieee", "triton")
    for keep in (True, False):
        torch.library.opcheck(torch.ops.fdn.linear, (*leaves, None, seed, *settings, keep))
    y, variance, kl = (torch.rand_like(t) for t in torch.ops.fdn.linear(*inputs, None, seed, *settings, True))
    arguments = y, variance, kl, variance, *(t.detach() for t in inputs), None, seed, *settings, True, True
    torch.library.opcheck(torch.ops.fdn.linear_backward, arguments)


@pytest.mark.check
def test_inputs_in_any_memory_layout():
    inputs = make((2,), 3, 5, 4, 2, 3, "LP")
    strided = [
        t.transpose(1, -1).contiguous().transpose(1, -1) if t.dim() > 2 else t.repeat_interleave(2, -1)[..., ::2]
        for t in inputs
    ]
    assert not any(t.is_contiguous() for t in strided)
    for noise in ("local", "shared"):
        found = [
            outputs_and_gradients(t, noise, "analytic", None, torch.float32, "triton", seed=1)
            for t in (inputs, strided)
        ]
        assert all(torch.equal(x, y) for x, y in zip(*found))


def test_gradients_that_are_not_needed_and_expanded_ones():
    a, z, weight, bias = make((), 4, 5, 3, 2, 3, "IC")
    weight.requires_grad_()
    y, kl = fdn_linear(a, z, weight, bias, noise="local", seed=1, backend="triton")
    (y.sum() + kl.sum()).backward()  # stride-0 gradients
    expected = outputs_and_gradients(
        (a, z, weight, bias), "local", "analytic", None, torch.float64, "reference", seed=1
    )
    assert weight.grad.isfinite().all() and expected[-2].shape == weight.grad.shape
    leaf = weight.detach().double().requires_grad_()
    y, kl = fdn_linear(a.double(), z.double(), leaf, bias.double(), noise="local", seed=1, backend="reference")
    assert_same([weight.grad], torch.autograd.grad(y.sum() + kl.sum(), leaf))


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
def test_a_kept_variance_gives_the_gradients_of_a_computed_one(conditioning):
    a, z, weight, bias = make((1,), 3, 5, 4, 2, 3, conditioning)
    settings = None, torch.tensor([7]), 3, "local", "analytic", 1e-3, 1.0, 0, "tf32x3"
    y, variance, kl = layer.linear(a, z, weight, bias, *settings, keep_variance=True)
    mean, expected, _ = layer.linear(a, z, weight, bias, None, None, 3, "moments", *settings[4:])
    assert_same([variance], [expected])
    incoming = torch.randn_like(y), y.new_empty(0), torch.randn_like(kl)
    found = [
        layer.linear_backward(*incoming, a, z, weight, bias, *settings, True, True, variance=kept)
        for kept in (None, variance)
    ]
    assert_same(found[1], found[0])


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
def test_the_op_keeps_the_variance_where_a_backward_may_follow(conditioning, monkeypatch):
    """And nowhere else: there it would cost the memory of an output."""
    inputs, kept = make((), 2, 3, 2, 2, 3, conditioning), []

    def watched(name, result):
        function = getattr(layer, name)

        def call(*arguments, **options):
            found = function(*arguments, **options)
            kept.append(found[1].shape if result else options["variance"])
            return found

        monkeypatch.setattr(layer, name, call)

    watched("linear", True)
    watched("linear_backward", False)
    options = {"noise": "local", "seed": 1, "backend": "triton"}
    fdn_linear(*inputs, **options)
    leaves = [t.clone().requires_grad_() for t in inputs]
    with torch.no_grad():
        fdn_linear(*leaves, **options)
    fdn_linear(*leaves, **options | {"noise": "shared"})
    y, _ = fdn_linear(*leaves, **options)
    assert kept == [(0,), (0,), (0,), (1, *y.shape)]
    y.sum().backward()
    assert kept[-1].dtype == torch.float32 and kept[-1].shape == (1, *y.shape)
    expected = outputs_and_gradients(inputs, "local", "none", None, torch.float64, "reference", seed=1)[1:]
    found = outputs_and_gradients(inputs, "local", "none", None, torch.float32, "triton", seed=1)[1:]
    assert_same(found, expected)
    (slope,) = torch.func.grad(lambda t: fdn_linear(t, *inputs[1:], **options)[0].sum())(inputs[0])[None]
    assert kept[-1] is not None
    assert_same([slope], [leaves[0].grad])
    gradient, *_ = torch.autograd.grad(fdn_linear(*leaves, **options)[0].sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(gradient.sum(), leaves)


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
@pytest.mark.parametrize(
    ("noise", "kl"),
    [("local", "none"), *(pytest.param(*it, marks=pytest.mark.check) for it in (FEW[0], FEW[1]))],
)
def test_nothing_in_gives_nothing_out(noise, kl, conditioning):
    """No replicates, examples, outputs or inputs, in the launcher itself."""
    for lead, batch, d_in, d_out in (((0,), 3, 2, 2), ((2,), 0, 2, 2), ((2,), 3, 2, 0), ((2,), 3, 0, 2)):
        draws = 3
        inputs = make(lead, draws, batch, d_in, d_out, 3, conditioning)
        expected = outputs_and_gradients(inputs, noise, kl, None, torch.float64, "reference", seed=1)
        got = outputs_and_gradients(inputs, noise, kl, None, torch.float32, "triton", seed=1)
        assert all(t.isfinite().all() for t in got)
        for g, e in zip(got, expected):
            torch.testing.assert_close(g.double(), e, rtol=2e-5, atol=2e-5)


@pytest.mark.check
@pytest.mark.parametrize("conditioning", ["IC", "LP"])
def test_the_widest_hypernetwork(conditioning):
    inputs = make((), 2, 3, 2, 2, 128, conditioning)
    for noise in ("local", "shared"):
        expected = outputs_and_gradients(inputs, noise, "analytic", None, torch.float64, "reference", seed=1)
        assert_same(outputs_and_gradients(inputs, noise, "analytic", None, torch.float32, "triton", seed=1), expected)


@pytest.mark.check
@pytest.mark.parametrize("number", range(40))
def test_random_calls_equal_the_reference(number):
    """Sizes about those of tiles, one of them large at a time; every noise, KL, type, and memory layout."""
    choose = random.Random(number).choice
    conditioning, dtype = choose(("IC", "LP")), choose((torch.float32, torch.float32, torch.bfloat16, torch.float16))
    noise = choose(("shared", "independent", "local", "none", "moments"))
    kl = choose(("analytic", "sampled", "none") if noise in ("shared", "independent") else ("analytic", "none"))
    edges = {"lead": ((2,), (3,)), "draws": (5, 8, 9), "batch": (31, 64, 65), "d_in": (15, 16, 17, 33),
             "d_out": (8, 9, 16, 17), "h": (15, 16, 17, 33, 64)}  # fmt: skip
    large = choose([*edges])
    sizes = {"lead": ()} | {name: choose((1, 2, 3)) for name in edges if name != "lead"} | {large: choose(edges[large])}
    lead, draws, batch, d_in, d_out, h = sizes.values()
    inputs = make(*sizes.values(), conditioning, choose((1, draws)), dtype)
    inputs = [t if choose((True, False)) else t.mT.contiguous().mT if t.dim() > 1 else t for t in inputs]
    eps = noise_tensor(noise, lead, draws, batch, d_in, d_out) if choose((True, False)) else None
    eps = eps if eps is None else eps.to(dtype)
    options = {} if eps is not None else {"draws": draws}
    options |= {"seed": number} if eps is None and noise not in ("none", "moments") else {}
    expected = outputs_and_gradients(inputs, noise, kl, eps, torch.float64, "reference", **options)
    got = outputs_and_gradients(inputs, noise, kl, eps, dtype, "triton", **options)
    assert_same(got, expected, TOLERANCE if dtype == torch.float32 else 4 * torch.finfo(dtype).eps)
