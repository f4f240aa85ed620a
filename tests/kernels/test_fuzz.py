"""Random calls of the public ops against plain equations in float64: every output and every gradient."""

from __future__ import annotations

import math
import random

import pytest
import torch

from fdn_kernels import Moments, WeightGaussian, fdn_linear, gaussian_linear, ops, philox

CASES, BLOCK = 480, 40  # in blocks, so that a failure names few
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
HALF = (torch.bfloat16, torch.float16)


# -- the equations -----------------------------------------------------------------------------------------------------


def _apply(theta, a):
    """W a + b of parameters (..., P), weights before biases."""
    d_out = theta.shape[-1] // (a.shape[-1] + 1)
    weight = theta[..., : d_out * a.shape[-1]].unflatten(-1, (d_out, a.shape[-1]))
    return torch.einsum("...oi,...i->...o", weight, a) + theta[..., d_out * a.shape[-1] :]


def _draw(a, mean, scale, eps, noise):
    if noise == "moments":
        return [_apply(mean, a), _apply(scale**2, a**2)]
    if noise == "none":
        return [_apply(mean, a)]
    if noise == "local":
        return [_apply(mean, a) + _apply(scale**2, a**2) ** 0.5 * eps]
    return [_apply(mean + scale * eps, a)]


def _layer(a, z, weight, bias, eps, noise, kl, floor, prior):
    """y (or its moments) and the KL, from torch.distributions."""
    d_in = a.shape[-1]
    p = weight.shape[-2] // 2
    n = p // (d_in + 1) * d_in
    out = torch.einsum("...kbh,...ph->...kbp", z, weight)
    out = out + bias[..., None, None, :]
    mean = torch.cat([out[..., :n], out[..., 2 * n : p + n]], -1)
    rho = torch.cat([out[..., n : 2 * n], out[..., p + n :]], -1)
    scale = floor + torch.logaddexp(rho, torch.zeros_like(rho))
    found = _draw(a, mean, scale, eps, noise)
    if kl == "none":
        return found
    q, p0 = torch.distributions.Normal(mean, scale), torch.distributions.Normal(0.0, torch.tensor(prior).double())
    if kl == "analytic":
        return [*found, torch.distributions.kl_divergence(q, p0).sum(-1)]
    theta = mean + scale * eps
    return [*found, (q.log_prob(theta) - p0.log_prob(theta)).sum(-1)]


# -- a case ------------------------------------------------------------------------------------------------------------


class _Case:
    """Sizes, and tensors in any memory layout, of one number."""

    def __init__(self, number: int) -> None:
        torch.manual_seed(number)
        self.choose = random.Random(number).choice
        self.dtype = self.choose((torch.float64, torch.float64, torch.float32, *HALF))
        self.lead = self.choose(((), (), (1,), (2,), (2, 3), (0,)))
        self.draws, self.batch = self.choose((1, 2, 3, 5)), self.choose((0, 1, 2, 3, 7))
        self.d_in, self.d_out, self.h = (
            self.choose((0, 1, 1, 2, 4)),
            self.choose((0, 1, 1, 2, 3)),
            self.choose((1, 2, 5)),
        )
        self.p = self.d_out * (self.d_in + 1)
        self.backend = self.choose(("auto", "torch", "reference"))
        self.leaves, self.views = [], []

    def tensor(self, *shape: int, positive: bool = False, broadcast: bool = True) -> torch.Tensor:
        """One more leaf, and what the op is given of it: itself, or a view of other strides."""
        lead = tuple(self.choose((1, n)) if broadcast else n for n in self.lead)
        shape = (*lead, *shape)
        layout = self.choose(("plain", "transposed", "strided", "expanded", "flipped"))
        stored = list(shape)
        if layout == "strided":
            stored[-1] *= 2
        if layout == "expanded":
            stored[self.choose(range(len(shape)))] = 1
        if layout in ("transposed", "flipped"):
            stored.reverse()
        leaf = torch.rand(stored) + 0.1 if positive else torch.randn(stored)
        leaf = leaf.to(self.dtype).requires_grad_()
        view = {
            "plain": lambda t: t, "strided": lambda t: t[..., ::2], "expanded": lambda t: t.expand(shape),
            "transposed": lambda t: t.permute(*reversed(range(t.dim()))),
            "flipped": lambda t: t.permute(*reversed(range(t.dim()))),
        }[layout]  # fmt: skip
        self.leaves.append(leaf)
        self.views.append(view)
        return view(leaf)

    def noise(self, noise: str, kl: str) -> dict:
        """eps or a seed; ``self.eps`` gives the float64 noise of the equations from the leaves."""
        if noise in ("none", "moments"):
            self.eps = lambda exact: None
            return {"draws": self.draws}
        if self.choose((True, False)):
            seed = torch.arange(math.prod(self.lead)).view(self.lead) if self.choose((True, False)) else 7
            kind = "local" if noise == "independent" and kl != "sampled" else noise
            sizes = {"draws": range(self.draws), "examples": range(self.batch), "d_in": self.d_in, "d_out": self.d_out}
            drawn = philox.standard_normal(seed, kind, **sizes, stream=3, dtype=torch.float64)
            self.eps = lambda exact: drawn
            return {"seed": seed, "stream": 3, "draws": self.draws}
        shape = {"shared": (1, self.p), "independent": (self.batch, self.p), "local": (self.batch, self.d_out)}[noise]
        self.tensor(self.draws, *shape)
        leaf = self.leaves.pop()
        leaf = leaf.float() if self.dtype in HALF and self.choose((True, False)) else leaf
        differentiable = self.dtype not in HALF and not self.registered
        self.leaves.append(leaf.detach().requires_grad_(differentiable))
        self.eps = lambda exact: exact[-1]
        return {"eps": self.views[-1](self.leaves[-1])}

    def check(self, number: int, outputs: list, exactly) -> None:
        """Compare outputs, and gradients of all leaves for random incoming ones, with those of the equations."""
        exact = [t.detach().double().requires_grad_(t.requires_grad) for t in self.leaves]
        expected = exactly(*(view(t) for view, t in zip(self.views, exact)))
        assert [t.shape for t in outputs] == [t.shape for t in expected], number
        incoming = [torch.randint(-4, 5, t.shape) / 4 for t in outputs]  # exact in every type
        wanted = [i for i, t in enumerate(exact) if t.requires_grad]

        def gradients(found, leaves):
            weights = [w.to(t.dtype) for w, t in zip(incoming, found)]
            leaves = [leaves[i] for i in wanted]
            return torch.autograd.grad(found, leaves, weights, allow_unused=True, materialize_grads=True)

        pairs = [*zip(outputs, expected), *zip(gradients(outputs, self.leaves), gradients(expected, exact))]
        for i, (found, right) in enumerate(pairs):
            assert found.shape == right.shape
            error = (found.double() - right).abs().max() if right.numel() else torch.tensor(0.0)
            scale = right.abs().max().clamp(min=1.0) if right.numel() else 1.0
            assert error <= TOLERANCES[self.dtype] * scale, f"case {number}, result {i}: {error} of {scale}"


@pytest.mark.parametrize("block", range(CASES // BLOCK))
def test_layers_of_any_kind_equal_the_equations(block, monkeypatch):
    for number in range(BLOCK * block, BLOCK * (block + 1)):
        case = _Case(number)
        case.registered = case.backend != "reference" and case.choose((True, False))
        monkeypatch.setattr(ops, "LARGE", -1 if case.registered else 1 << 23)
        noise = case.choose(("shared", "independent", "local", "none", "moments"))
        kl = case.choose(
            ("analytic", "sampled", "none") if noise in ("shared", "independent") else ("analytic", "none")
        )
        floor, prior = case.choose((1e-3, 0.1)), case.choose((0.5, 1.0, 2.0))
        inputs = (
            case.tensor(case.choose((1, case.draws)), case.batch, case.d_in),
            case.tensor(case.choose((1, case.draws)), case.batch, case.h),
            case.tensor(2 * case.p, case.h), case.tensor(2 * case.p, broadcast=False),
        )  # fmt: skip
        given = case.noise(noise, kl)
        y, term = fdn_linear(
            *inputs, noise="none" if noise == "moments" else noise, moments=noise == "moments", kl=kl, floor=floor,
            prior_scale=prior, backend=case.backend, **given,
        )  # fmt: skip
        outputs = [*(y if isinstance(y, Moments) else [y]), *([] if term is None else [term])]
        kind = "local" if noise == "independent" and "seed" in given and kl != "sampled" else noise
        draws = max(case.draws, 1)

        def exactly(a, z, weight, bias, *eps):
            *found, last = _layer(a, z, weight, bias, case.eps(eps), kind, kl, floor, prior)
            n = 1 if noise != "moments" else 2
            found = [*found, last]
            wide = [t.expand(*case.lead, draws, *t.shape[-2:]) for t in found[:n]]
            k = draws if kl == "sampled" else z.shape[-3]
            return wide + [t.expand(*case.lead, k, t.shape[-1]) for t in found[n:]]

        case.check(number, outputs, exactly)


@pytest.mark.parametrize("block", range(3))
def test_gaussian_layers_of_any_kind_equal_the_equations(block):
    for number in range(10_000 + BLOCK * block, 10_000 + BLOCK * (block + 1)):
        case = _Case(number)
        case.registered = False
        noise = case.choose(("shared", "independent", "local", "none"))
        shape = case.choose((1, case.draws)), case.choose((1, case.batch)), case.p
        a = case.tensor(case.choose((1, case.draws)), case.batch, case.d_in, broadcast=False)
        q = WeightGaussian(case.tensor(*shape, broadcast=False), case.tensor(*shape, positive=True, broadcast=False))
        given = case.noise(noise, "none")
        y = gaussian_linear(a, q, noise=noise, backend=case.backend, **given)
        kind = "local" if noise == "independent" and "seed" in given else noise

        def exactly(a, mean, scale, *eps):
            [found] = _draw(a, mean, scale, case.eps(eps), kind)
            return [found.expand(*case.lead, case.draws, *found.shape[-2:])]

        case.check(number, [y], exactly)
