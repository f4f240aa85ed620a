"""Every argument of every public op: the right derivative or an error, never none and never zero without a word."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad, gradcheck

from fdn_kernels import (
    WeightGaussian,
    affine,
    dropout_linear,
    fdn_linear,
    gaussian_linear,
    matvec,
    mlp,
    ops,
    relu_affine,
)

FLOAT64 = {"dtype": torch.float64}
K, B, D_IN, D_OUT, H = 3, 4, 2, 2, 3
P = D_OUT * (D_IN + 1)
EPS = {"shared": (1, P), "independent": (B, P), "local": (B, D_OUT)}
SAMPLED = ("analytic", "sampled", "none")
KLS = {"shared": SAMPLED, "independent": SAMPLED, "local": ("analytic", "none")}


def _tensors(*shapes):
    torch.manual_seed(0)
    return [torch.randn(shape, **FLOAT64) for shape in shapes]


def _fdn(noise, kl, backend, a, z, weight, bias, eps):
    y, term = fdn_linear(a, z, weight, bias, noise=noise, eps=eps, kl=kl, backend=backend)
    return y if term is None else (y, term)


def _gaussian(noise, backend, a, mean, scale, eps):
    return gaussian_linear(a, WeightGaussian(mean, scale.exp()), noise=noise, eps=eps, backend=backend)


def _network(masks, x, *thetas):
    return mlp(x, thetas, (D_IN, 3, D_OUT), masks, 0.5)


def _dropped(a, weight, bias):
    return dropout_linear(a, lambda n: np.arange(n, dtype=np.uint8), 0.3, weight, bias, K)


MASKS = (torch.arange(K * B * 3).view(K, B, 3) % 3 > 0,)
NETWORK = _tensors((B, D_IN), (K, 1, 9), (K, 1, 8))
CASES = {
    "affine": (affine, _tensors((1, B, D_IN), (D_OUT, D_IN), (D_OUT,))),
    "relu_affine": (relu_affine, _tensors((1, B, D_IN), (D_OUT, D_IN), (D_OUT,))),
    "relu_affine of one input": (relu_affine, _tensors((1, B, 1), (D_OUT, 1), (D_OUT,))),
    "matvec": (matvec, _tensors((K, 1, P), (1, B, D_IN))),
    "matvec of every example": (matvec, _tensors((1, B, P), (K, B, D_IN))),
    "mlp": (partial(_network, ()), NETWORK),
    "mlp with dropout": (partial(_network, MASKS), NETWORK),
    "dropout_linear": (_dropped, _tensors((1, B, D_IN), (D_OUT, D_IN), (D_OUT,))),
}
for _noise, _backend in itertools.product(EPS, ("torch", "reference")):
    _shapes = (1, B, D_IN), (1, B, P), (1, B, P), (K, *EPS[_noise])
    CASES[f"gaussian_linear {_noise} {_backend}"] = partial(_gaussian, _noise, _backend), _tensors(*_shapes)
    for _kl, _draws in itertools.product(KLS[_noise], (1, K)):
        _shapes = (K, B, D_IN), (_draws, B, H), (2 * P, H), (2 * P,), (K, *EPS[_noise])
        _op = partial(_fdn, _noise, _kl, _backend)
        CASES[f"fdn_linear {_noise} {_kl} {_draws} {_backend}"] = _op, _tensors(*_shapes)
ARGUMENTS = [(name, i) for name, (_, tensors) in CASES.items() for i in range(len(tensors))]


def _of(name, i):
    """The op as a function of its i-th argument, and that."""
    op, tensors = CASES[name]
    return lambda t: op(*tensors[:i], t, *tensors[i + 1 :]), tensors[i].clone()


def _tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize(("name", "i"), ARGUMENTS)
def test_an_argument_has_the_right_derivative(name, i):
    f, argument = _of(name, i)
    assert gradcheck(f, argument.requires_grad_(), fast_mode=True)


@pytest.mark.parametrize(("name", "i"), [case for case in ARGUMENTS if case[0].startswith("fdn_linear")])
def test_the_registered_op_has_it_or_says_that_it_has_none(name, i, monkeypatch):
    if "reference" not in name:
        monkeypatch.setattr(ops, "LARGE", -1)
    f, argument = _of(name, i)

    def loss(t):
        return sum(part.square().sum() for part in _tuple(f(t)))

    if i < 4:
        assert gradcheck(f, argument.requires_grad_(), fast_mode=True)
        (expected,) = torch.autograd.grad(loss(argument), argument)
        torch.testing.assert_close(torch.func.grad(loss)(argument.detach()), expected)
        return
    with pytest.raises(RuntimeError, match="has no derivative of eps"):
        torch.func.grad(loss)(argument)
    with pytest.raises(RuntimeError, match="has no derivative of eps"):
        torch.vmap(torch.func.grad(loss))(torch.stack([argument, argument]))
    if "reference" not in name:
        with pytest.raises(RuntimeError, match="has no derivative of eps"):
            loss(argument.requires_grad_()).backward()


@pytest.mark.parametrize("route", ["direct", "registered"])
@pytest.mark.parametrize(("name", "i"), ARGUMENTS)
def test_a_second_derivative_is_right_or_refused(name, i, route, monkeypatch):
    """Also of a sum, whose gradient is a constant, and beside other terms, so that a lost one would not be noticed."""
    f, argument = _of(name, i)
    if route == "registered" and "reference" not in name:
        monkeypatch.setattr(ops, "LARGE", -1)
        if name.startswith("fdn_linear") and i == 4:
            return  # it has no first derivative of eps

    def slope(t, **options):
        return torch.autograd.grad(sum(part.sum() for part in _tuple(f(t))), t, **options)[0]

    leaf = argument.clone().requires_grad_()
    try:
        (found,) = torch.autograd.grad(slope(leaf, create_graph=True).square().sum() + leaf.square().sum(), leaf)
    except RuntimeError as error:
        assert "once" in str(error)
        return
    ends = [slope((argument + step).requires_grad_()).square().sum() for step in (1e-5, -1e-5)]
    expected = (ends[0] - ends[1]) / 2e-5
    torch.testing.assert_close((found - 2 * argument).sum(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "i"), ARGUMENTS)
def test_tangents_are_not_lost(name, i):
    """Forward mode, also where no backward will follow: the right tangent or an error."""
    f, argument = _of(name, i)
    direction = torch.ones_like(argument)
    for mode in (torch.no_grad, torch.enable_grad):
        with forward_ad.dual_level(), mode():
            try:
                y = f(forward_ad.make_dual(argument, direction))
            except (RuntimeError, NotImplementedError):
                continue
            tangents = [forward_ad.unpack_dual(t).tangent for t in _tuple(y)]
        pairs = (_tuple(f(argument + sign * 1e-6 * direction)) for sign in (1, -1))
        for tangent, above, below in zip(tangents, *pairs):
            expected = (above - below) / 2e-6
            found = torch.zeros_like(expected) if tangent is None else tangent  # of a KL that does not depend on eps
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("mlp", "affine", "matvec"))])
def test_function_transforms_see_the_op(name):
    op, tensors = CASES[name]
    for i, argument in enumerate(tensors):
        f, _ = _of(name, i)
        stack = torch.stack([argument, 2 * argument])
        with torch.no_grad():
            torch.testing.assert_close(torch.vmap(f)(stack), torch.stack([f(argument), f(2 * argument)]))
        leaf = argument.clone().requires_grad_()
        (expected,) = torch.autograd.grad(f(leaf).square().sum(), leaf)
        torch.testing.assert_close(torch.func.grad(lambda t: f(t).square().sum())(argument), expected)


def test_numbers_that_would_lose_their_gradient_are_refused():
    a, z, weight, bias, eps = CASES["fdn_linear shared analytic 1 torch"][1]
    for name in ("floor", "prior_scale"):
        with pytest.raises(ValueError, match=rf"{name} is tensor\(0.5.*expected a"):
            fdn_linear(a, z, weight, bias, noise="shared", eps=eps, **{name: torch.tensor(0.5, requires_grad=True)})
    for name, values in {"floor": (-1.0, float("nan"), float("inf")), "prior_scale": (0.0, -1.0, float("nan"))}.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name} is {value}"):
                fdn_linear(a, z, weight, bias, noise="shared", eps=eps, **{name: value})
    with pytest.raises(ValueError, match="bool ones"):
        _network((MASKS[0].double().requires_grad_(),), *NETWORK)
