"""The op's functions on canonical shapes.

The reference's numbers, whatever the blocks, in memory that does not grow.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from torch.utils import _python_dispatch

from fdn_kernels import affine, fdn_linear, reference, relu_affine, torch_ops

FLOAT64 = {"dtype": torch.float64}
SEED = torch.tensor([3, -8])
SETTINGS = [
    *((noise, kl) for noise in ("shared", "independent") for kl in ("analytic", "sampled", "none")),
    *((noise, kl) for noise in ("local", "none", "moments") for kl in ("analytic", "none")),
]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few draws and examples, so that every border is crossed."""
    monkeypatch.setattr(torch_ops, "CACHE_ELEMENTS", 40)
    monkeypatch.setattr(torch_ops, "BLOCK_ELEMENTS", 600)


def _case(r: int, a_draws: int, z_draws: int, batch: int, d_in: int, d_out: int, h: int, **kind) -> list[torch.Tensor]:
    n = 2 * d_out * (d_in + 1)
    shapes = (r, a_draws, batch, d_in), (r, z_draws, batch, h), (r, n, h), (r, n)
    return [torch.randn(shape, **(kind or FLOAT64)) for shape in shapes]


def _eps(noise: str, r: int, draws: int, batch: int, d_in: int, d_out: int, **kind) -> torch.Tensor | None:
    p = d_out * (d_in + 1)
    shapes = {"shared": (1, p), "independent": (batch, p), "local": (batch, d_out)}
    return torch.randn(r, draws, *shapes[noise], **(kind or FLOAT64)) if noise in shapes else None


def _outputs_and_gradients(module, inputs, eps, seed, settings):
    outputs = module.linear(*inputs, eps, seed, *settings)
    incoming = [torch.arange(1.0, 1 + t.numel(), dtype=t.dtype).view_as(t).sin() for t in outputs]
    return outputs, module.linear_backward(*incoming, *inputs, eps, seed, *settings, True, True)


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize(("noise", "kl"), SETTINGS)
def test_blocks_equal_the_reference(noise, kl, seeded, small_blocks):
    torch.manual_seed(0)
    r = 2
    sizes = [(1, 1, 1, 1, 1), (6, 5, 1, 3, 2), (11, 7, 3, 2, 1), (11, 23, 3, 1, 2)]  # K, B, d_in, d_out, h
    for (draws, batch, *widths), a_all, z_all in itertools.product(sizes, (False, True), (False, True)):
        inputs = _case(r, draws if a_all else 1, draws if z_all else 1, batch, *widths)
        seed = SEED if seeded and noise not in ("none", "moments") else None
        eps = None if seed is not None else _eps(noise, r, draws, batch, *widths[:2])
        settings = draws, noise, kl, 1e-3, 0.7, 5
        expected, found = (_outputs_and_gradients(m, inputs, eps, seed, settings) for m in (reference, torch_ops))
        for e, f in zip((*expected[0], *expected[1]), (*found[0], *found[1])):
            torch.testing.assert_close(f, e, rtol=1e-9, atol=1e-9)


def test_gradients_that_are_not_needed_are_empty(small_blocks):
    torch.manual_seed(1)
    inputs, eps = _case(2, 1, 1, 5, 3, 2, 2), _eps("shared", 2, 4, 5, 3, 2)
    settings = 4, "shared", "analytic", 1e-3, 1.0, 0
    y, variance, kl = torch_ops.linear(*inputs, eps, None, *settings)
    rest = torch_ops.linear_backward(y, variance, kl, *inputs, eps, None, *settings, False, False)
    assert [t.shape for t in rest[:2]] == [(0,), (0,)]
    everything = torch_ops.linear_backward(y, variance, kl, *inputs, eps, None, *settings, True, True)
    for e, f in zip(everything[2:], rest[2:]):
        torch.testing.assert_close(f, e)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_computed_in_float32(dtype, small_blocks):
    torch.manual_seed(2)
    inputs, eps = _case(2, 1, 6, 5, 3, 2, 2, dtype=dtype), _eps("shared", 2, 6, 5, 3, 2, dtype=dtype)
    settings = 6, "shared", "analytic", 1e-3, 1.0, 0
    op = torch.ops.fdn  # which widens them for the backend
    registered = SimpleNamespace(
        linear=lambda *t: op.linear(*t, "tf32x3", "torch", False),
        linear_backward=lambda *t: op.linear_backward(*t[:3], None, *t[3:-2], "tf32x3", "torch", *t[-2:]),
    )
    (y, _, kl), gradients = _outputs_and_gradients(registered, inputs, eps, None, settings)
    assert y.dtype == dtype and kl.dtype == torch.float32 and all(g.dtype == dtype for g in gradients)
    wide = torch_ops.linear(*(t.float() for t in inputs), eps.float(), None, *settings)
    torch.testing.assert_close(y, wide[0].to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(kl, wide[2], rtol=0, atol=0)


class _LargestTensor(_python_dispatch.TorchDispatchMode):
    """Elements of the largest tensor that any operation returns."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                self.largest = max(self.largest, t.untyped_storage().nbytes() // t.element_size())
        return out


@pytest.mark.parametrize("noise", ["shared", "local"])
@pytest.mark.parametrize("conditioning", ["IC", "LP"])
def test_no_tensor_grows_with_draws_times_examples_times_weights(noise, conditioning):
    """Long, for the layer must be large for its parts to be told apart."""
    batch, d_in, d_out, h = 300, 64, 64, 8
    p = d_out * (d_in + 1)
    for draws in (10, 40):
        torch.manual_seed(3)
        inputs = _case(1, draws, draws if conditioning == "LP" else 1, batch, d_in, d_out, h, dtype=torch.float32)
        settings = draws, noise, "analytic", 1e-3, 1.0, 0
        outside = draws * batch * max(d_in, d_out)  # elements of a and y
        with _LargestTensor() as mode:
            y, variance, kl = torch_ops.linear(*inputs, None, SEED[:1], *settings)
        assert mode.largest <= max(outside, 2 * torch_ops.BLOCK_ELEMENTS) < draws * batch * p / 4
        with _LargestTensor() as mode:
            torch_ops.linear_backward(y, variance, kl, *inputs, None, SEED[:1], *settings, True, True)
        assert mode.largest <= max(outside, 2 * torch_ops.BLOCK_ELEMENTS)


def _peak(draws: int) -> tuple[int, int]:
    """Bytes alive at once, beyond inputs and outputs, in a forward and a backward pass."""
    torch.manual_seed(4)
    inputs = _case(1, 1, 1, 60, 64, 16, 8, dtype=torch.float32)
    eps = _eps("shared", 1, draws, 60, 64, 16, dtype=torch.float32)
    settings = draws, "shared", "analytic", 1e-3, 1.0, 0
    y, variance, kl = torch_ops.linear(*inputs, eps, None, *settings)
    passes = (
        lambda: torch_ops.linear(*inputs, eps, None, *settings),
        lambda: torch_ops.linear_backward(y, variance, kl, *inputs, eps, None, *settings, True, True),
    )
    found = []
    for f in passes:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            kept = f()
        alive = peak = 0
        for event in sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
            if event.name() == "[memory]":
                alive += event.nbytes()
                peak = max(peak, alive)
        found.append(peak - sum(t.nbytes for t in kept))
    return found[0], found[1]


def test_peak_memory_does_not_grow_with_the_draws():
    few, many = _peak(40), _peak(160)
    for a, b, draws_bytes in zip(few, many, (2 * 120 * 60 * 16 * 4, 0)):  # the forward's y is laid out twice
        assert 0 < b < 1.2 * a + draws_bytes
        assert b < 160 * 60 * 16 * 65 * 4 / 2  # the sampled weights themselves


@pytest.fixture
def poisoned():
    """Uninitialised memory is NaN."""
    torch.use_deterministic_algorithms(True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("noise", "kl"), SETTINGS)
def test_uninitialised_memory_is_never_read(noise, kl, poisoned, small_blocks):
    assert torch.empty(3).isnan().all()
    torch.manual_seed(5)
    for z_draws, a_draws in itertools.product((1, 6), (1, 6)):
        inputs, eps = _case(2, a_draws, z_draws, 7, 3, 2, 2), _eps(noise, 2, 6, 7, 3, 2)
        outputs, gradients = _outputs_and_gradients(torch_ops, inputs, eps, None, (6, noise, kl, 1e-3, 1.0, 0))
        assert all(t.isfinite().all() for t in (*outputs, *gradients))
        if kl == "analytic" and eps is not None:  # the training path
            leaves = [t.requires_grad_() for t in inputs]
            y, term = fdn_linear(*leaves, noise=noise, eps=eps, kl=kl, backend="torch")
            assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum() + term.sum(), leaves))


@pytest.mark.parametrize("noise", ["shared", "independent", "local"])
@pytest.mark.parametrize("z_draws", [1, 6])
def test_nan_stays_with_its_example(noise, z_draws, small_blocks):
    torch.manual_seed(6)
    inputs, eps = _case(1, 6, z_draws, 7, 3, 2, 2), _eps(noise, 1, 6, 7, 3, 2)
    inputs[0][0, :, 4, 1] = torch.nan
    settings = 6, noise, "analytic", 1e-3, 1.0, 0
    y, _, kl = torch_ops.linear(*inputs, eps, None, *settings)
    others = [b for b in range(7) if b != 4]
    assert y[:, :, 4].isnan().all() and y[:, :, others].isfinite().all() and kl.isfinite().all()
    da, dz, *_ = torch_ops.linear_backward(y, y.new_empty(0), kl, *inputs, eps, None, *settings, True, True)
    assert da[:, :, others].isfinite().all() and dz[:, :, others].isfinite().all() and dz[:, :, 4].isnan().any()


@pytest.mark.parametrize("rho", [-200.0, 200.0])
@pytest.mark.parametrize("noise", ["shared", "local", "moments"])
def test_extreme_spreads_equal_the_reference(rho, noise, small_blocks):
    for dtype in (torch.float32, torch.float64):
        a, z = torch.ones(1, 1, 5, 2, dtype=dtype), torch.zeros(1, 1, 5, 1, dtype=dtype)
        weight = torch.zeros(1, 12, 1, dtype=dtype)
        bias = torch.full((1, 12), rho, dtype=dtype)
        given, settings = (
            [a, z, weight, bias, _eps(noise, 1, 3, 5, 2, 2, dtype=dtype)],
            (3, noise, "analytic", 1e-3, 1.0, 0),
        )
        exact = [t if t is None else t.double() for t in given]
        expected, found = (
            _outputs_and_gradients(m, t[:4], t[4], None, settings) for m, t in ((reference, exact), (torch_ops, given))
        )
        for e, f in zip((*expected[0], *expected[1]), (*found[0], *found[1])):
            assert f.isfinite().all()
            tolerance = {"rtol": 1e-5, "atol": 2e-4} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-9}
            torch.testing.assert_close(f.double(), e, **tolerance)


@pytest.mark.parametrize("d_in", [1, 3])
@pytest.mark.parametrize(("k", "b"), [(1, 1), (4, 1), (1, 5), (4, 5)])
def test_matvec_equals_the_reference(d_in, k, b):
    torch.manual_seed(8)
    for a_draws in (1, 4):
        shapes = (2, k, b, 3 * (d_in + 1)), (2, a_draws, 5, d_in)
        leaves = [torch.randn(shape, **FLOAT64, requires_grad=True) for shape in shapes]
        found = []
        for module in (reference, torch_ops):
            y = module.matvec(*leaves)
            found.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
        for expected, got in zip(*found):
            torch.testing.assert_close(got, expected)


def test_a_second_derivative_is_refused():
    torch.manual_seed(7)
    leaves = [t.requires_grad_() for t in _case(1, 1, 1, 3, 2, 2, 2)]
    y, kl = torch_ops.fdn_linear(*leaves, "shared", _eps("shared", 1, 2, 3, 2, 2), "analytic", 1e-3, 1.0)
    (gradient,) = torch.autograd.grad(y.square().sum() + kl.sum(), leaves[2], create_graph=True)
    with pytest.raises(RuntimeError, match="once, not twice"):
        gradient.sum().backward()


@pytest.mark.parametrize("d_in", [1, 3])
@pytest.mark.parametrize(("lead", "x_lead"), [((), ()), ((), (2,)), ((2,), ()), ((2,), (2,)), ((2, 3), (2, 1))])
def test_relu_affine_is_affine_then_relu(lead, x_lead, d_in):
    torch.manual_seed(9)
    shapes = (*x_lead, 4, 5, d_in), (*lead, 6, d_in), (*lead, 6)
    leaves = [torch.randn(shape, **FLOAT64, requires_grad=True) for shape in shapes]
    found = []
    for y in (affine(*leaves).relu(), relu_affine(*leaves)):
        found.append((y, *torch.autograd.grad(y.square().sum(), leaves)))
    for expected, got in zip(*found):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("d_out", [1, 32, 33, 70])  # 2, 64, 66 and 140 weights
@pytest.mark.parametrize(
    ("floor", "largest"), [(1e-3, 3.0), (1e-3, 705.0), (1e-3, 800.0), (0.0, 3.0), (50.0, 3.0), (1e6, 3.0)]
)
def test_spreads_of_any_size_equal_the_reference(d_out, floor, largest):
    """The sum of their logarithms too, however many, where products would overflow."""
    torch.manual_seed(10)
    inputs, eps = _case(2, 1, 1, 5, 1, d_out, 2), _eps("shared", 2, 1, 5, 1, d_out)
    inputs[1].abs_()
    inputs[3][:, d_out] = largest  # the first rho
    inputs[2][:, d_out] = 0
    inputs[3][1, d_out + 1 :: 2] = -30.0
    settings = 1, "shared", "analytic", floor, 0.7, 0
    expected, found = (_outputs_and_gradients(m, inputs, eps, None, settings) for m in (reference, torch_ops))
    for e, f in zip((*expected[0], *expected[1]), (*found[0], *found[1])):
        assert f.isfinite().all()
        torch.testing.assert_close(f, e, rtol=1e-10, atol=1e-10)


def test_one_overflow_leaves_the_other_examples_alone():
    torch.manual_seed(11)
    inputs, eps = _case(1, 1, 1, 5, 1, 4, 1), _eps("shared", 1, 1, 5, 1, 4)
    inputs[1][0, 0, 3] = 1e3  # rhos of example 3 beyond the largest exponent
    inputs[2].abs_().add_(1)
    settings = 1, "shared", "analytic", 1e-3, 1.0, 0
    expected, found = (_outputs_and_gradients(m, inputs, eps, None, settings) for m in (reference, torch_ops))
    for e, f in zip((*expected[0], *expected[1]), (*found[0], *found[1])):
        torch.testing.assert_close(f, e)
    assert found[0][0].isfinite().all()
