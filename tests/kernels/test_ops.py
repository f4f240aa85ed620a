"""The public op around its backends.

Seeds, draws, moments, routes, transforms, compilation, mixed precision, errors.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys

import pytest
import torch
import torch._dynamo.testing
from torch import nn

from fdn.models.posteriors import FDNLinear
from fdn_kernels import WeightGaussian, backends, fdn_linear, gaussian_linear, ops, reference
from fdn_kernels.philox import standard_normal

K, B, D_IN, D_OUT, H = 3, 4, 2, 3, 2
P = D_OUT * (D_IN + 1)
SEEDS = torch.tensor([5, 2**40 + 6])
BACKENDS = ("reference", "torch")
KINDS = [  # noise, kl
    ("shared", "analytic"), ("shared", "sampled"), ("shared", "none"), ("independent", "sampled"),
    ("local", "analytic"), ("local", "none"), ("none", "analytic"), ("none", "none"),
]  # fmt: skip


def _case(lead=(), a_draws=K, z_draws=1, dtype=torch.float64):
    shapes = (a_draws, B, D_IN), (z_draws, B, H), (2 * P, H), (2 * P,)
    return [torch.randn(*lead, *shape, dtype=dtype) for shape in shapes]


def _leaves(tensors):
    return [t.detach().clone().requires_grad_() for t in tensors]


def _eps(seed, noise, draws=K, **options):
    sizes = {"draws": range(draws), "examples": range(B), "d_in": D_IN, "d_out": D_OUT, "dtype": torch.float64}
    return standard_normal(seed, noise, **sizes | options)


def _loss(y, kl):
    """A functional that tells all numbers apart."""
    parts = [t for t in (*y, kl) if t is not None] if isinstance(y, tuple) else [t for t in (y, kl) if t is not None]
    return sum(
        (t * torch.arange(1.0, 1 + t.numel(), dtype=t.dtype, device=t.device).view(t.shape).sin()).sum() for t in parts
    )


def _results(tensors, **options):
    """Outputs and the four gradients."""
    leaves = _leaves(tensors)
    y, kl = fdn_linear(*leaves, **options)
    outputs = [t for t in (*(y if isinstance(y, tuple) else (y,)), kl) if t is not None]
    gradients = torch.autograd.grad(_loss(y, kl), leaves, allow_unused=True, materialize_grads=True)
    return [t.detach() for t in (*outputs, *gradients)]


def _assert_close(found, expected, **tolerances):
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected):
        torch.testing.assert_close(got, wanted, **tolerances)


@pytest.fixture(params=["direct", "registered"])
def route(request, monkeypatch):
    """Both ways through the torch backend, whatever the problem's size."""
    monkeypatch.setattr(ops, "LARGE", 2**62 if request.param == "direct" else -1)


# -- noise -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "kl"), KINDS[:6])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_seed_is_its_noise_tensor_number_by_number(noise, kl, backend, route):
    torch.manual_seed(0)
    for z_draws, stream in ((1, 0), (K, 3)):
        inputs = _case((2,), z_draws=z_draws)
        options = {"noise": noise, "kl": kl, "backend": backend}
        seeded = _results(inputs, seed=SEEDS, stream=stream, **options)
        _assert_close(
            seeded, _results(inputs, eps=_eps(SEEDS, noise, stream=stream), **options), rtol=1e-12, atol=1e-12
        )
        other = _results(inputs, seed=SEEDS + 1, stream=stream, **options)
        assert not torch.isclose(other[0], seeded[0]).any()
        with torch.no_grad():
            predicted = [t for t in fdn_linear(*inputs, seed=SEEDS, stream=stream, **options) if t is not None]
        _assert_close(predicted, seeded[: len(predicted)], rtol=1e-12, atol=1e-12)


def test_independent_noise_of_a_seed_is_local_unless_the_weights_are_needed(route):
    torch.manual_seed(1)
    inputs = _case()
    y, _ = fdn_linear(*inputs, noise="independent", seed=3)
    assert torch.equal(y, fdn_linear(*inputs, noise="local", seed=3)[0])
    y, _ = fdn_linear(*inputs, noise="independent", seed=3, kl="sampled")
    torch.testing.assert_close(y, fdn_linear(*inputs, noise="independent", eps=_eps(3, "independent"))[0])
    q = WeightGaussian(torch.randn(1, B, P).double(), torch.rand(1, B, P).double())
    a = torch.randn(B, D_IN).double()
    y = gaussian_linear(a, q, noise="independent", seed=3, draws=K)
    torch.testing.assert_close(y, gaussian_linear(a, q, noise="local", eps=_eps(3, "local")))


def test_local_noise_of_a_seed_has_the_distribution_of_sampled_weights():
    torch.manual_seed(2)
    draws = 30_000
    inputs = _case(a_draws=1)
    with torch.no_grad():
        eps = torch.randn(draws, B, P, dtype=torch.float64)
        sampled, _ = fdn_linear(*inputs, noise="independent", eps=eps, kl="none")
        seeded, _ = fdn_linear(*inputs, noise="independent", seed=7, draws=draws, kl="none")
        (mean, variance), _ = fdn_linear(*inputs, noise="none", moments=True)
    mean, variance = mean.flatten(), variance.flatten()  # (B d_out,)
    for y in (sampled.flatten(1), seeded.flatten(1)):  # (draws, B d_out)
        assert ((y.mean(0) - mean).abs() < 5 * (variance / draws).sqrt()).all()
        assert ((y.var(0) / variance - 1).abs() < 5 * (2 / draws) ** 0.5).all()
        assert (torch.corrcoef(y.T) - torch.eye(len(mean))).abs().max() < 5 / draws**0.5
        fourth = ((y - mean) ** 4).mean(0) / variance**2  # of a normal: 3
        assert ((fourth - 3).abs() < 5 * (96 / draws) ** 0.5).all()


@pytest.mark.parametrize("noise", ["shared", "local"])
def test_equal_seeds_give_equal_noise_whatever_else_is_in_the_stack(noise, route):
    torch.manual_seed(3)
    one = _case()
    stack = [torch.stack([t.roll(1), t, t]) for t in one]
    alone, _ = fdn_linear(*one, noise=noise, seed=9)
    y, _ = fdn_linear(*stack, noise=noise, seed=torch.tensor([1, 9, 2]))
    torch.testing.assert_close(y[1], alone)
    assert not torch.isclose(y[2], alone).any()
    y, _ = fdn_linear(*stack, noise=noise, seed=9)  # one seed for all
    torch.testing.assert_close(y[1:], alone.expand(2, -1, -1, -1))
    more, _ = fdn_linear(one[0][:1], *one[1:], noise=noise, seed=9, draws=2 * K)
    fewer, _ = fdn_linear(one[0][:1], *one[1:], noise=noise, seed=9, draws=K)
    torch.testing.assert_close(more[:K], fewer)


# -- shapes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["shared", "local", "none"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_draw_axes_may_be_left_out(noise, backend, route):
    torch.manual_seed(4)
    for lead in ((), (2,), (2, 3)):
        a, z, weight, bias = _case(lead, a_draws=1)
        for draws in (1, 5):
            options = {"noise": noise, "seed": None if noise == "none" else 8, "draws": draws, "backend": backend}
            y, kl = fdn_linear(a, z, weight, bias, **options)
            assert y.shape == (*lead, draws, B, D_OUT) and kl.shape == (*lead, 1, B)
            short = fdn_linear(a.squeeze(-3), z.squeeze(-3), weight, bias, **options)
            _assert_close(short, (y, kl), rtol=0, atol=0)
            (mean, variance), _ = fdn_linear(a.squeeze(-3), z, weight, bias, noise="none", moments=True, draws=draws)
            assert mean.shape == variance.shape == y.shape
    y, kl = fdn_linear(*_case(z_draws=K, a_draws=1), noise="none", backend=backend)
    assert y.shape == (K, B, D_OUT) and kl.shape == (K, B)


@pytest.mark.parametrize("noise", ["shared", "local", "none"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_replicates_of_size_one_broadcast(noise, backend, route):
    torch.manual_seed(5)
    whole = _case((2, 3))
    seed = None if noise == "none" else torch.tensor([4, 5, 6])
    for single in itertools.product((False, True), repeat=4):
        if all(single):
            continue
        inputs = [t[:1] if s else t for t, s in zip(whole, single)]
        expanded = [t.expand(2, *t.shape[1:]) for t in inputs]
        found = _results(inputs, noise=noise, seed=seed, backend=backend)
        expected = _results(expanded, noise=noise, seed=seed, backend="reference")
        expected[2:] = [g.sum(0, keepdim=True) if s else g for g, s in zip(expected[2:], single)]
        _assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_one_layer_serves_replicates_of_its_inputs(route):
    torch.manual_seed(17)
    a, z, _, _ = _case((2, 3), z_draws=K)
    _, _, weight, bias = _case((3,))
    for options in ({"seed": torch.arange(6).view(2, 3)}, {"seed": 4}, {"eps": _eps(torch.arange(3), "local")}):
        found = _results((a, z, weight, bias), noise="local", **options)
        copies = weight.expand(2, *weight.shape), bias.expand(2, *bias.shape)
        *expected, dweight, dbias = _results((a, z, *copies), noise="local", backend="reference", **options)
        _assert_close(found, [*expected, dweight.sum(0), dbias.sum(0)])


@pytest.mark.parametrize("noise", ["shared", "local"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_strided_inputs_and_gradients(noise, backend, route):
    torch.manual_seed(6)
    inputs = _case((2,), z_draws=K)
    strided = [torch.empty(*t.shape[:-1], 2 * t.shape[-1], dtype=t.dtype)[..., ::2].copy_(t) for t in inputs]
    strided[0] = inputs[0].transpose(0, 2).contiguous().transpose(0, 2)
    expected = _results(inputs, noise=noise, seed=SEEDS, backend="reference")
    _assert_close(_results(strided, noise=noise, seed=SEEDS, backend=backend), expected)
    plain, expanded = _leaves(inputs), _leaves(inputs)
    y, kl = fdn_linear(*plain, noise=noise, seed=SEEDS, backend=backend)
    (y.sum() + kl.sum()).backward()  # gradients of stride 0
    y, kl = fdn_linear(*expanded, noise=noise, seed=SEEDS, backend="reference")
    torch.autograd.backward([y, kl], [torch.ones_like(y), torch.ones_like(kl)])
    _assert_close([t.grad for t in plain], [t.grad for t in expanded])


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_the_gradients_that_are_needed(backend, route):
    torch.manual_seed(7)
    inputs = _case((2,))
    expected = _results(inputs, noise="local", seed=SEEDS)[2:]
    for needed in ((2, 3), (0, 2), (1, 3), (0,), (1,)):
        leaves = [t.clone().requires_grad_(i in needed) for i, t in enumerate(inputs)]
        y, kl = fdn_linear(*leaves, noise="local", seed=SEEDS, backend=backend)
        found = torch.autograd.grad(_loss(y, kl), [leaves[i] for i in needed])
        _assert_close(found, [expected[i] for i in needed])


# -- moments and derivatives -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("z_draws", [1, K])
def test_moments_are_those_of_many_draws_and_of_the_definition(backend, z_draws, route):
    torch.manual_seed(8)
    inputs = _case((2,), z_draws=z_draws)
    (mean, variance), kl = fdn_linear(*inputs, noise="none", moments=True, backend=backend)
    q = reference.hypernet_gaussian(*inputs[1:], D_IN, 1e-3)
    _assert_close((mean, variance, kl), (*reference.moments(inputs[0], q), reference.gaussian_kl(q, 1.0)))
    options = {"noise": "none", "moments": True, "prior_scale": 0.5}
    _assert_close(_results(inputs, backend=backend, **options), _results(inputs, backend="reference", **options))
    n = 20_000
    for k in range(K):
        parts = inputs[0][:, k], inputs[1][:, min(k, z_draws - 1)], *inputs[2:]
        with torch.no_grad():
            y, _ = fdn_linear(*parts, noise="shared", seed=SEEDS, draws=n, kl="none")
        assert ((y.mean(1) - mean[:, k]).abs() < 5 * (variance[:, k] / n).sqrt()).all()
        assert ((y.var(1) / variance[:, k] - 1).abs() < 5 * (2 / n) ** 0.5).all()


@pytest.mark.parametrize(("noise", "kl"), [*KINDS[:6], ("moments", "analytic")])
@pytest.mark.parametrize("z_draws", [1, K])
def test_gradcheck_with_a_seed(noise, kl, z_draws, route):
    torch.manual_seed(9)
    options = {"noise": "none", "moments": True} if noise == "moments" else {"noise": noise, "seed": SEEDS}

    def layer(*inputs):
        y, term = fdn_linear(*inputs, kl=kl, **options)
        return [t for t in (*(y if isinstance(y, tuple) else (y,)), term) if t is not None]

    assert torch.autograd.gradcheck(layer, _leaves(_case((2,), z_draws=z_draws)), fast_mode=True)


def test_second_derivatives_are_refused_by_the_registered_op(monkeypatch):
    monkeypatch.setattr(ops, "LARGE", -1)
    leaves = _leaves(_case())
    gradient, *_ = torch.autograd.grad(_loss(*fdn_linear(*leaves, noise="local", seed=1)), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        torch.autograd.grad(gradient.square().sum(), leaves)

    def slope(bias):
        return torch.func.grad(lambda c: fdn_linear(*leaves[:3], c, noise="local", seed=1)[0].sin().sum())(bias).sum()

    with pytest.raises(RuntimeError, match="once"):
        torch.func.grad(slope)(leaves[3].detach())


# -- the registered op, transforms and compilation ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "kl"), [*KINDS, ("independent", "analytic"), ("moments", "analytic"), ("moments", "none")]
)
def test_the_registered_ops_pass_opcheck(noise, kl):
    torch.manual_seed(10)
    seeded = noise not in ("none", "moments")
    for backend, z_draws, dtype, need in (("reference", 1, torch.float64, False), ("torch", K, torch.float32, True)):
        inputs = _case((2,), z_draws=z_draws, dtype=dtype)
        eps = _eps(SEEDS, noise, dtype=dtype) if seeded and backend == "reference" else None
        source = eps, SEEDS if seeded and eps is None else None
        settings = K, noise, kl, 1e-3, 1.0, 0, "tf32x3", backend
        outputs = torch.ops.fdn.linear(*inputs, *source, *settings, True)
        torch.library.opcheck(torch.ops.fdn.linear, (*_leaves(inputs), *source, *settings, True))
        gradients = [torch.randn_like(t) for t in outputs]
        arguments = (*gradients, None, *inputs, *source, *settings, need, need)
        torch.library.opcheck(torch.ops.fdn.linear_backward, arguments)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("noise", ["shared", "local", "none", "moments"])
def test_vmap_and_grad_equal_the_loop_over_replicates(noise, backend):
    torch.manual_seed(11)
    stack = _case((2,), z_draws=K)
    options = {"noise": "none", "moments": True} if noise == "moments" else {"noise": noise}

    def loss(inputs, seed):
        return _loss(
            *fdn_linear(*inputs, seed=None if noise in ("none", "moments") else seed, backend=backend, **options)
        )

    separate = [_leaves(t[r] for t in stack) for r in range(2)]
    losses = [loss(leaves, seed) for leaves, seed in zip(separate, SEEDS)]
    gradients = [torch.autograd.grad(value, leaves) for value, leaves in zip(losses, separate)]
    gradients = [torch.stack(pair) for pair in zip(*gradients)]
    leaves = _leaves(stack)
    together = torch.vmap(loss)(leaves, SEEDS)
    torch.testing.assert_close(together, torch.stack(losses))
    _assert_close(torch.autograd.grad(together.sum(), leaves), gradients)
    _assert_close(torch.vmap(torch.func.grad(loss))(stack, SEEDS), gradients)
    _assert_close(torch.func.grad(lambda inputs: torch.vmap(loss)(inputs, SEEDS).sum())(stack), gradients)
    _assert_close(torch.func.grad(loss)([t[1] for t in stack], 2**40 + 6), [g[1] for g in gradients])


def test_vmap_over_some_arguments_and_inner_replicates():
    torch.manual_seed(12)
    _, z, weight, bias = _case((2,))
    many, seeds = torch.randn(B, D_IN, 5, dtype=torch.float64), torch.arange(10).view(2, 5)

    def layer(a, seed):
        return fdn_linear(a.expand(2, B, D_IN), z, weight, bias, noise="shared", seed=seed, draws=K)

    mapped = torch.vmap(layer, in_dims=(2, 1))(many, seeds)
    looped = [torch.stack(pair) for pair in zip(*(layer(many[..., i], seeds[:, i]) for i in range(5)))]
    _assert_close(mapped, looped)


class _Layer(nn.Module):
    """A seeded layer and its seed, which lives on the device as a tensor."""

    def __init__(self, noise: str) -> None:
        super().__init__()
        self.noise = noise
        self.hidden, self.output = nn.Linear(D_IN, H), nn.Linear(H, 2 * P)
        self.register_buffer("seed", torch.tensor(0))

    def forward(self, a):
        z = self.hidden(a).relu()
        return fdn_linear(a, z, self.output.weight, self.output.bias, noise=self.noise, seed=self.seed, draws=K)


@pytest.mark.parametrize("noise", ["shared", "local"])
def test_compiled_training_equals_eager_training_and_compiles_once(noise):
    torch._dynamo.reset()
    torch.manual_seed(13)
    layer, counter = _Layer(noise).double(), torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    twin = copy.deepcopy(layer)
    compiled = torch.compile(twin, fullgraph=True, backend=counter)
    a, losses = torch.randn(B, D_IN, dtype=torch.float64), []
    for module, call in ((layer, layer), (twin, compiled)):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for step in range(3):
            module.seed.fill_(step)
            y, kl = call(a)
            loss = y.square().mean() + 0.01 * kl.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == pytest.approx(losses[3:], rel=1e-10) and len({*losses[:3]}) == 3
    _assert_close(list(twin.parameters()), list(layer.parameters()))
    assert counter.frame_count == 1


@pytest.mark.parametrize("noise", ["shared", "local"])
def test_compilation_takes_symbolic_sizes_and_seeds_of_both_kinds(noise):
    """Long, for a compiler runs."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def layer(a, z, weight, bias, seed):
        return fdn_linear(a, z, weight, bias, noise=noise, seed=seed, draws=5)

    for batch, d_in, d_out, h in ((4, 2, 3, 6), (7, 3, 2, 4), (6, 8, 7, 9)):
        n = 2 * d_out * (d_in + 1)
        inputs = [torch.randn(shape) for shape in ((1, batch, d_in), (1, batch, h), (n, h), (n,))]
        leaves, twins = _leaves(inputs), _leaves(inputs)
        found, expected = layer(*leaves, torch.tensor(3)), fdn_linear(*twins, noise=noise, seed=3, draws=5)
        gradients = [torch.autograd.grad(_loss(*pair), x) for pair, x in ((found, leaves), (expected, twins))]
        _assert_close((*found, *gradients[0]), (*expected, *gradients[1]), rtol=1e-4, atol=1e-4)
    assert counter.frame_count <= 2
    static = torch.compile(lambda *x: fdn_linear(*x, noise=noise, seed=2**40), fullgraph=True, backend="aot_eager")
    _assert_close(static(*inputs), fdn_linear(*inputs, noise=noise, seed=2**40), rtol=1e-5, atol=1e-5)


def test_an_exported_layer_takes_other_batches():
    """Long, for a compiler runs."""
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"a": {0: batch}}
    layer, a = _Layer("local"), torch.randn(B, D_IN)
    program = torch.export.export(layer, (a,), dynamic_shapes=shapes)
    more = torch.randn(9, D_IN)
    _assert_close(program.module()(more), layer(more))


@pytest.mark.parametrize(("noise", "kl"), [*KINDS, ("moments", "analytic")])
def test_tensors_without_memory_give_sizes_and_gradients(noise, kl, route):
    inputs = [t.to("meta") for t in _case((2,), z_draws=K)]
    options = {"noise": "none", "moments": True} if noise == "moments" else {"noise": noise, "seed": SEEDS}
    if noise == "none":
        options = {"noise": "none"}
    for found, right in zip(_results(inputs, kl=kl, **options), _results(_case((2,), z_draws=K), kl=kl, **options)):
        assert found.is_meta and found.shape == right.shape


def test_leading_axes_of_inputs_without_draws_are_replicates_however_many_draws_there_are():
    a, z, weight, bias = _case((K,), a_draws=1)
    named, _ = fdn_linear(a.squeeze(1), z, weight, bias, noise="local", seed=1, draws=K)
    assert torch.equal(named, fdn_linear(a, z, weight, bias, noise="local", seed=1, draws=K)[0])
    one = fdn_linear(a.squeeze(1), z[0], weight[0], bias[0], noise="local", seed=1, draws=K)[0]  # a draw each
    assert one.shape == (K, B, D_OUT) and named.shape == (K, K, B, D_OUT)
    with pytest.raises(ValueError, match="draws = 2 do not fit inputs of 3"):
        fdn_linear(a.squeeze(1), z[0], weight[0], bias[0], noise="local", seed=1, draws=2)


def test_the_librarys_layer_compiles_and_is_copied_saved_and_loaded():
    torch._dynamo.reset()
    torch.manual_seed(14)
    layer = FDNLinear(D_IN, D_OUT, H, "layer", D_IN, 1e-3, 1.0).double()
    a, eps = torch.randn(1, B, D_IN).double(), torch.randn(K, 1, P).double()
    expected = layer(a, a, "shared", eps, "analytic")
    _assert_close(torch.compile(layer, fullgraph=True, backend="aot_eager")(a, a, "shared", eps, "analytic"), expected)
    fresh = FDNLinear(D_IN, D_OUT, H, "layer", D_IN, 1e-3, 1.0).double()
    fresh.load_state_dict(layer.state_dict())
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
        _assert_close(twin(a, a, "shared", eps, "analytic"), expected, rtol=0, atol=0)
        assert [n for n, _ in twin.named_parameters()] == [n for n, _ in layer.named_parameters()]


# -- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_half_types_are_computed_in_float32(dtype, backend):
    torch.manual_seed(15)
    inputs = [t.to(dtype) for t in _case((2,), dtype=torch.float32)]
    for options in (
        {"noise": "shared", "seed": 3},
        {"noise": "local", "eps": _eps(SEEDS, "local", dtype=torch.float32)},
    ):
        y, kl, *gradients = _results(inputs, backend=backend, **options)
        exact, exact_kl, *_ = _results([t.float() for t in inputs], backend=backend, **options)
        assert y.dtype == dtype and kl.dtype == torch.float32 and {g.dtype for g in gradients} == {dtype}
        torch.testing.assert_close(y, exact.to(dtype))
        torch.testing.assert_close(kl, exact_kl)
    (mean, variance), _ = fdn_linear(*inputs, noise="none", moments=True, backend=backend)
    assert mean.dtype == variance.dtype == dtype


def test_autocast_casts_the_inputs_and_nothing_inside():
    torch.manual_seed(16)
    inputs = _case((2,), dtype=torch.float32)
    leaves = _leaves(inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, kl = fdn_linear(*leaves, noise="local", seed=3)
        inside = torch.autograd.grad(_loss(y.float(), kl), leaves, retain_graph=True)
    outside = torch.autograd.grad(_loss(y.float(), kl), leaves)
    assert y.dtype == torch.bfloat16 and kl.dtype == torch.float32 and {g.dtype for g in inside} == {torch.float32}
    _assert_close(inside, outside, rtol=0, atol=0)
    rounded = [t.bfloat16().float() for t in inputs]  # all that is lost
    exact_y, exact_kl, *_ = _results(rounded, noise="local", seed=3)
    torch.testing.assert_close(y, exact_y.bfloat16())
    torch.testing.assert_close(kl, exact_kl)
    expected = _results(inputs, noise="local", seed=3)
    _assert_close((y.float(), kl, *inside), expected, rtol=0.1, atol=0.1 * max(float(t.abs().max()) for t in expected))
    with torch.autocast("cpu", dtype=torch.bfloat16):  # as elsewhere in autocast, float64 stays
        assert fdn_linear(*_case(), noise="none")[0].dtype == torch.float64


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "shared"}, "give exactly one of them; neither was given"),
        ({"noise": "local", "seed": 1, "eps": torch.zeros(K, B, D_OUT)}, "give exactly one of them; both was given"),
        ({"noise": "local", "eps": torch.zeros(K, 1, D_OUT)}, r"has shape \(..., K, 4, 3\); given \(3, 1, 3\)"),
        ({"noise": "local", "eps": torch.zeros(B, D_OUT)}, r"has shape \(..., K, 4, 3\); given \(4, 3\)"),
        ({"noise": "local", "eps": torch.zeros(K, B, D_OUT).double()}, "eps has the type of the inputs, torch.float32"),
        ({"noise": "local", "eps": torch.zeros(5, B, D_OUT)}, "draws = None and eps of 5 draws do not fit inputs of 3"),
        ({"noise": "shared", "seed": 1, "draws": 5}, "draws = 5 do not fit inputs of 3"),
        ({"noise": "none", "draws": 0}, "draws = 0 do not fit"),
        ({"noise": "shared", "seed": 2**63}, "expected a 64-bit signed integer"),
        ({"noise": "shared", "seed": 0.5}, "seed is 0.5; expected a 64-bit signed integer"),
        ({"noise": "shared", "seed": torch.tensor(1.0)}, "int64 tensor of at most 0 replicate dimensions, not torch.f"),
        ({"noise": "shared", "seed": torch.tensor([1])}, r"at most 0 replicate .* torch.int64 of shape \(1,\)"),
        ({"noise": "shared", "seed": 1, "stream": -1}, "stream is -1"),
        ({"noise": "local", "seed": 1, "kl": "sampled"}, "a sampled KL needs sampled weights"),
        ({"noise": "local", "seed": 1, "moments": True}, "moments .* need noise 'none', not 'local'"),
        ({"noise": "none", "kl": "exact"}, "kl is 'exact'; expected one of analytic, sampled, none"),
        ({"noise": "none", "precision": "fp16"}, "precision is 'fp16'; expected one of tf32"),
        ({"noise": "none", "backend": "cuda"}, "backend is 'cuda'; expected one of auto, triton"),
        ({"noise": "none", "a": torch.zeros(1, 1, B, D_IN)}, "as many replicate dimensions"),
        ({"noise": "none", "bias": torch.zeros(1, 2 * P)}, "as many replicate dimensions"),
        ({"noise": "none", "weight": torch.zeros(2 * P)}, "as many replicate dimensions"),
        ({"noise": "none", "a": torch.zeros(1, B, D_IN + 1)}, r"2P must be a multiple of 2 \(d_in \+ 1\)"),
        ({"noise": "none", "z": torch.zeros(1, B + 1, H)}, r"does not fit .* z \(..., B, h\) = \(1, 5, 2\)"),
        ({"noise": "none", "z": torch.zeros(1, B, H).double()}, "share one floating-point type, not torch.float32"),
    ],
)  # fmt: skip
def test_errors_say_what_was_given_and_what_is_wanted(options, message):
    inputs = dict(zip(("a", "z", "weight", "bias"), _case(dtype=torch.float32))) | options
    with pytest.raises(ValueError, match=message):
        fdn_linear(**inputs)


def test_errors_of_replicates_and_of_gaussian_linear():
    a, z, weight, bias = _case((2,))
    with pytest.raises(
        ValueError, match=r"do not broadcast: weight \(2,\), a \(2,\), z \(2,\), bias \(2,\), seed \(3,\)"
    ):
        fdn_linear(a, z, weight, bias, noise="local", seed=torch.arange(3))
    with pytest.raises(ValueError, match=r"do not broadcast: .* eps \(3,\)"):
        fdn_linear(a, z, weight, bias, noise="local", eps=_eps(torch.arange(3), "local"))
    q = WeightGaussian(torch.zeros(1, 1, P), torch.ones(1, 1, P))
    with pytest.raises(ValueError, match="no backend 'triton'"):
        gaussian_linear(torch.zeros(1, B, D_IN), q, noise="none", backend="triton")
    with pytest.raises(ValueError, match=r"P must be a multiple of d_in \+ 1"):
        gaussian_linear(torch.zeros(1, B, D_IN + 1), q, noise="none")
    with pytest.raises(ValueError, match="neither was given"):
        gaussian_linear(torch.zeros(1, B, D_IN), q, noise="shared")


def test_triton_says_why_it_cannot_run(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    inputs = _case(dtype=torch.float32)
    monkeypatch.setattr(backends, "_TRITON_INSTALLED", False)
    with pytest.raises(RuntimeError, match="triton is not installed"):
        fdn_linear(*inputs, noise="none", backend="triton")
    monkeypatch.setattr(backends, "_TRITON_INSTALLED", True)
    with pytest.raises(RuntimeError, match="inputs are on the device 'cpu', and it needs an NVIDIA GPU"):
        fdn_linear(*inputs, noise="none", backend="triton")
    with pytest.raises(
        RuntimeError, match="computes in float32, bfloat16 and float16, and the inputs are torch.float64"
    ):
        fdn_linear(*_case(), noise="none", backend="triton")
    wide = torch.zeros(1, B, 129), torch.zeros(2 * P, 129)
    with pytest.raises(RuntimeError, match="width up to 128 for kl .analytic., not 129"):
        fdn_linear(inputs[0], *wide, inputs[3], noise="none", backend="triton")
    y, _ = fdn_linear(*inputs, noise="none", backend="auto")
    assert torch.equal(y, fdn_linear(*inputs, noise="none", backend="torch")[0])


def test_the_package_neither_imports_nor_needs_triton():
    """Takes as long as importing PyTorch does, in two processes of their own."""
    script = """
import sys
{first}
import torch, fdn_kernels
assert not any(name == "triton" and module for name, module in sys.modules.items()), "triton was imported"
x = torch.ones(1, 2, 3), torch.ones(1, 2, 4), torch.ones(8, 4), torch.ones(8)
print(fdn_kernels.fdn_linear(*x, noise="shared", seed=0)[0].shape)
try:
    fdn_kernels.fdn_linear(*x, noise="none", backend="triton")
except RuntimeError as error:
    print(error)
"""
    found = [
        subprocess.run(
            [sys.executable, "-c", script.format(first=first)], capture_output=True, encoding="utf-8", check=True
        ).stdout
        for first in ("", 'sys.modules["triton"] = None')
    ]
    assert all("torch.Size([1, 2, 1])" in text and "backend 'triton' cannot run here" in text for text in found)
    assert "not installed" in found[1]


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("kl", ["analytic", "sampled", "none"])
def test_a_layer_without_outputs_has_none(backend, kl):
    a, z = torch.ones(3, 2, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64)
    weight, bias = torch.ones(0, 4, dtype=torch.float64), torch.ones(0, dtype=torch.float64)
    y, term = fdn_linear(a, z, weight, bias, noise="shared", seed=1, draws=2, kl=kl, backend=backend)
    assert y.shape == (2, 3, 0) and (kl == "none" or not term.any())


@pytest.mark.parametrize("setting", [
    {"draws": True}, {"draws": 2.0}, {"draws": "2"}, {"seed": True}, {"stream": True}, {"stream": 1.5},
    {"stream": None}, {"floor": True}, {"prior_scale": True}, {"prior_scale": 1e-200}, {"prior_scale": 1e200},
], ids=str)  # fmt: skip
def test_a_setting_of_another_type_or_without_a_square_is_refused(setting):
    a, z = torch.ones(3, 2, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64)
    weight, bias = torch.ones(12, 4, dtype=torch.float64), torch.ones(12, dtype=torch.float64)
    [name] = setting
    with pytest.raises(ValueError, match=f"{name} is .*; expected"):
        fdn_linear(a, z, weight, bias, **{"noise": "shared", "seed": 1, **setting})


def test_scales_and_examples_that_do_not_fit_are_refused():
    a, ones = torch.ones(3, 2, dtype=torch.float64), torch.ones(1, 1, 6, dtype=torch.float64)
    two = ones.expand(1, 2, 6)
    for mean, scale in ((ones, ones[..., :5]), (ones, ones[..., :1]), (two, two)):
        with pytest.raises(ValueError, match="do not fit weights"):
            gaussian_linear(a, WeightGaussian(mean, scale), noise="shared", seed=1, draws=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("z_draws", [1, K])
@pytest.mark.parametrize("kl", ["analytic", "none"])
def test_an_output_that_nothing_moves_has_gradients_under_local_noise(backend, z_draws, kl):
    """Its variance is 0 where the inputs are, and the biases all but certain: there the noise changes nothing."""
    a, z, weight, bias = _case(z_draws=z_draws)
    a[:, 0], weight[-D_OUT:], bias[-D_OUT:] = 0, 0, -460  # rhos of biases: sigma = 1e-200, and its square 0
    eps = torch.randn(K, B, D_OUT, dtype=torch.float64)
    options = {"noise": "local", "kl": kl, "backend": backend, "floor": 0.0}
    found = _results([a, z, weight, bias], eps=eps, **options)
    eps[:, 0] = 0
    expected = _results([a, z, weight, bias], eps=eps, **options)
    assert all(got.isfinite().all() for got in found)
    _assert_close(found, expected, rtol=1e-12, atol=1e-12)
