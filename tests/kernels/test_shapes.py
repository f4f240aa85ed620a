"""No compiled loop is entered with shapes that nobody compared; no rows in, no rows out."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from numba.core.registry import CPUDispatcher

from fdn.models import MODEL_NAMES, ModelSpec, Noise, build_network
from fdn.models.stacking import Stack
from fdn.protocol import PUBLISHED
from fdn.streams import Streams, seed_sequence
from fdn.training import fused
from fdn.training.fused import FusedStep
from fdn.training.objectives import HeteroscedasticGaussian, HomoscedasticGaussian
from fdn_kernels import (
    WeightGaussian,
    affine,
    dropout_linear,
    fdn_linear,
    gaussian_linear,
    loops,
    matvec,
    mlp,
    numba_networks,
    numba_ops,
    ops,
    relu_affine,
)
from fdn_kernels.loops import check_shapes

FLOAT64 = {"dtype": torch.float64}
K, B, D = 3, 5, 2


def _spec(name: str) -> ModelSpec:
    hyper = 3 if "Hyper" in name or "FDN" in name else None
    return ModelSpec(name, (6,), hyper, 2 if name == "GaussHyperNet" else None)


def _stack(name: str) -> Stack:
    return Stack([build_network(_spec(name), D, PUBLISHED).double() for _ in range(4)], (4,))


def _streams(lead=()) -> Streams:
    return Streams([seed_sequence("d", "m", s, "train") for s in range(math.prod(lead))], lead, torch.float64)


def _layer(*, draws=K, batch=B, lead=(), dtype=torch.float64):
    shapes = (draws, batch, D), (draws, batch, 3), (18, 3), (18,)
    return [torch.randn(*lead, *shape, dtype=dtype) for shape in shapes]


def _train_layer(rho: float) -> None:
    leaves = [t.requires_grad_() for t in _layer()]
    with torch.no_grad():
        leaves[3][6:12] = rho
    y, kl = fdn_linear(*leaves, noise="shared", seed=1)
    (y.sum() + kl.sum()).backward()


def _network(masks=(), grad=False, x=None):
    x = torch.randn(B, D, **FLOAT64) if x is None else x
    thetas = [torch.randn(K, 1, n, **FLOAT64).requires_grad_(grad) for n in (12, 15, 4)]
    with torch.set_grad_enabled(grad):
        y = mlp(x, thetas, (D, 4, 3, 1), masks, 0.5)
    if grad:
        y.sum().backward()


def _predict_layer(draws: int) -> None:
    a, _, weight, bias = _layer()
    with torch.no_grad():
        fdn_linear(a, torch.randn(draws, B, 3, **FLOAT64), weight, bias, noise="shared", seed=1, kl="none")


def _drop() -> None:
    dropout_linear(torch.randn(1, B, 9, **FLOAT64), partial(_streams().subsets, 0.5), 0.5, torch.randn(2, 9, **FLOAT64),
                   torch.randn(2, **FLOAT64), K)  # fmt: skip


def _step(name: str, **changes) -> None:
    stack = _stack(name)
    noise = stack.network.draw_noise(_streams((4,)), "shared", 1, B, training=True)
    given = {"x": torch.randn(4, B, D, **FLOAT64), "y": torch.randn(4, B, **FLOAT64), "noise": noise} | changes
    FusedStep(stack, PUBLISHED)(given["x"], given["y"], given["noise"], 0.1, 1e-3)


def _draw(name: str, **changes) -> None:
    stack = _stack(name)
    noise = stack.network.draw_noise(_streams(), "shared", K, B, training=False)
    given = {"row": stack.flat[0], "x": torch.randn(B, D, **FLOAT64), "out": torch.empty(K, B, 1, **FLOAT64)} | changes
    assert fused.draws(stack, given["row"], given["x"], given.get("noise", noise), given["out"])


MASKS = [torch.rand(K, B, n) > 0.5 for n in (4, 3)]
WORK = {
    "sample_with_kl": partial(_train_layer, 0.0),
    "sample_with_kl again": partial(_train_layer, 800.0),
    "sample": partial(_predict_layer, K),
    "sample of one distribution": partial(_predict_layer, 1),
    "mlp": _network,
    "dropout_linear": _drop,
    "train": partial(_step, "LP-FDNet"),
    "train with masks": partial(_step, "MLPDropoutNet"),
    "draw": partial(_draw, "IC-FDNet"),
    "draw_weights": partial(_draw, "BayesNet"),
}


def _loops(module) -> set[str]:
    """The loops that Python calls."""
    values = vars(module).items()
    return {name for name, v in values if isinstance(v, CPUDispatcher) and not v.targetoptions.get("forceinline")}


LOOPS = _loops(numba_ops) | _loops(numba_networks)


@pytest.fixture
def checked(monkeypatch):
    """What was compared, and the loops that were entered, each only after a comparison."""
    calls, entered, pending = [], set(), []

    def check(loop, layout, *arrays, **sizes):
        check_shapes(loop, layout, *arrays, **sizes)
        calls.append((loop, layout, [a.shape for a in arrays], sizes))
        pending.append(loop)

    def watched(name, loop):
        def call(*arguments):
            assert pending, f"{name} was entered with shapes that nobody compared"
            entered.add(name)
            return loop(*arguments)

        call.__name__ = name
        return call

    for module in (loops, fused):
        monkeypatch.setattr(module, "check_shapes", check)
    for module in (numba_ops, numba_networks):
        for name in _loops(module):
            monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    return calls, entered, pending


@pytest.mark.check
def test_every_loop_is_entered_after_a_comparison_of_every_axis(checked):
    """Takes as long as every loop of the package does, with ever so many wrong shapes."""
    torch.manual_seed(0)
    calls, entered, pending = checked
    for work in WORK.values():
        pending.clear()
        work()
    assert entered == LOOPS
    for loop, layout, shapes, sizes in calls:
        check_shapes(loop, layout, *map(np.empty, shapes), **sizes)
        for i, shape in enumerate(shapes):
            for axis in range(len(shape)):
                longer = (*shape[:axis], shape[axis] + 1, *shape[axis + 1 :])
                with pytest.raises(ValueError, match=f"the loop {loop} takes"):
                    check_shapes(loop, layout, *map(np.empty, [*shapes[:i], longer, *shapes[i + 1 :]]), **sizes)
            with pytest.raises(ValueError, match=f"the loop {loop} takes"):
                check_shapes(loop, layout, *map(np.empty, [*shapes[:i], (*shape, 1), *shapes[i + 1 :]]), **sizes)


# -- what a person may get wrong ---------------------------------------------------------------------------------------

WIDE, NARROW = torch.randn(B, D + 1, **FLOAT64), torch.randn(B, D - 1, **FLOAT64)
EPS = torch.randn(4, 1, 1, 24, **FLOAT64)
NOTHING = partial(np.zeros, dtype=np.uint8)  # is dropped
WRONG = {
    "mlp, columns": lambda x: _network(x=x),
    "mlp, columns, training": lambda x: _network(x=x, grad=True),
    "affine": lambda x: affine(x[None], torch.ones(3, D, **FLOAT64), torch.ones(3, **FLOAT64)),
    "relu_affine": lambda x: relu_affine(x[None], torch.ones(3, D, **FLOAT64), torch.ones(3, **FLOAT64)),
    "relu_affine of one input": lambda x: relu_affine(WIDE[None], torch.ones(D + 1, 1, **FLOAT64), torch.ones(D + 1)),
    "matvec": lambda x: matvec(torch.ones(1, 1, 7, **FLOAT64), WIDE[None, :, :1]),
    "dropout_linear": lambda x: dropout_linear(x[None], NOTHING, 0.5, torch.ones(1, D), torch.ones(1), K),
    **{f"{n}, step": lambda x, n=n: _step(n, x=x.expand(4, B, -1)) for n in ("MLPDropoutNet", "BayesNet", "LP-FDNet")},
    **{f"{n}, draws": lambda x, n=n: _draw(n, x=x) for n in ("BayesNet", "GaussHyperNet", "IC-FDNet", "LP-FDNet")},
    **{f"{n}, forward": lambda x, n=n: build_network(_spec(n), D, PUBLISHED).double()(x) for n in MODEL_NAMES},
}


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_layer_takes_its_number_of_columns(name):
    layer = build_network(_spec(name), D, PUBLISHED).double().layers[0]
    for columns in (1, 5, 8):  # of which other layers have as many parameters
        a = torch.ones(1, B, columns, **FLOAT64)
        for x in (a, torch.ones(1, B, D, **FLOAT64)):
            with pytest.raises(ValueError, match="takes"):
                layer(a, x, "none", None, "none")


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("x", [WIDE, NARROW], ids=["wide", "narrow"])
def test_another_number_of_columns_is_refused(name, x):
    with pytest.raises(ValueError, match="takes|no layer of"):
        WRONG[name](x)


@pytest.mark.parametrize(
    "call",
    [
        lambda: affine(WIDE[None], torch.ones(2, 3), torch.ones(1)),
        lambda: relu_affine(WIDE[None, :, :1], torch.ones(2, 1), torch.ones(3)),
        lambda: affine(WIDE, torch.ones(2, 3), torch.ones(2)),
        lambda: _network(x=WIDE[0, :D]),
        lambda: _network(x=WIDE[0, :D], masks=MASKS),
        lambda: _network(masks=MASKS[:1]),
        lambda: _network(masks=MASKS[::-1]),
        lambda: _network(masks=[m[:, 1:] for m in MASKS]),
        lambda: mlp(WIDE, [torch.ones(K, 1, 13, **FLOAT64)], (D + 1, 3)),
        lambda: mlp(WIDE, [torch.ones(K, B, 12, **FLOAT64)], (D + 1, 3)),
        lambda: mlp(WIDE, [torch.ones(K, 1, 12, **FLOAT64)], (D + 1, 3, 1)),
        lambda: mlp(WIDE, [torch.ones(K, 1, 12, **FLOAT64)], (D + 1, 3), (), 1.0),
        lambda: dropout_linear(WIDE[None], lambda n: NOTHING(n - 1), 0.5, torch.ones(1, 3), torch.ones(1), K),
        lambda: dropout_linear(WIDE.expand(2, B, 3), NOTHING, 0.5, torch.ones(1, 3), torch.ones(1), K),
        lambda: dropout_linear(WIDE[None], NOTHING, 0.5, torch.ones(1, 3), torch.ones(1), 0),
        lambda: dropout_linear(WIDE[None], NOTHING, 1.0, torch.ones(1, 3), torch.ones(1), K),
        lambda: dropout_linear(WIDE[None], NOTHING, 0.5, torch.ones(1, 3), torch.ones(2), K),
        lambda: _step("LP-FDNet", y=torch.randn(4, B + 1, **FLOAT64)),
        lambda: _step("LP-FDNet", x=torch.randn(4, B + 1, D, **FLOAT64)),
        lambda: _step("LP-FDNet", noise=Noise("shared", (EPS[..., :18], EPS[..., :6]))),
        lambda: _step("MLPDropoutNet", noise=Noise("shared", (), (torch.ones(4, 1, B, 5, dtype=torch.bool),))),
        lambda: _draw("LP-FDNet", row=torch.randn(300, **FLOAT64)),
        lambda: _draw("LP-FDNet", out=torch.empty(K, B - 1, 1, **FLOAT64)),
        lambda: _draw("BayesNet", noise=Noise("shared", (EPS[0][..., :18], EPS[0][..., :6]), (None,))),
        lambda: build_network(_spec("BayesNet"), D, PUBLISHED)(NARROW, Noise("shared", (EPS[0],))),
        lambda: build_network(_spec("MLPNet"), D, PUBLISHED)(WIDE[:, :D].float(), Noise("none", (), MASKS)),
        lambda: build_network(_spec("LP-FDNet"), D, PUBLISHED)(WIDE[0, :D].float()),
        lambda: HomoscedasticGaussian().data_term(torch.ones(K, B, 1), torch.ones(B, 1)),
        lambda: HeteroscedasticGaussian().log_prob(torch.ones(K, B, 2), torch.ones(B, 1)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call):
    with pytest.raises(ValueError, match="expected|takes|do not fit"):
        call()


def test_minibatches_are_those_of_their_replicates_whichever_axis_is_shared():
    torch.manual_seed(0)
    networks = [build_network(_spec("MLPNet"), D, PUBLISHED).double() for _ in range(6)]
    step = FusedStep(Stack(networks, (2, 3)), PUBLISHED)
    noise = Noise("shared")
    for lead in ((2, 3), (2, 1), (1, 3), (1, 1)):
        x, y = torch.randn(*lead, B, D, **FLOAT64), torch.randn(*lead, B, **FLOAT64)
        found = step.gradient(x, y, noise, 0.1)
        expected = step.gradient(x.expand(2, 3, B, D).contiguous(), y.expand(2, 3, B).contiguous(), noise, 0.1)
        assert torch.equal(found, expected)


# -- no rows -----------------------------------------------------------------------------------------------------------

KINDS = [
    ("shared", "analytic"), ("shared", "sampled"), ("independent", "sampled"), ("independent", "none"),
    ("local", "analytic"), ("none", "analytic"), ("none", "none"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backend", ["torch", "reference", "auto"])
@pytest.mark.parametrize("route", ["direct", "registered"])
@pytest.mark.parametrize("empty", ["examples", "replicates"])
def test_a_layer_gives_no_rows_for_none_and_no_gradient(dtype, backend, route, empty, monkeypatch):
    if route == "registered":
        monkeypatch.setattr(ops, "LARGE", -1)
    batch, lead = (0, (2,)) if empty == "examples" else (B, (0,))
    for (noise, kl), draws, grad in itertools.product(KINDS, (1, K), (True, False)):
        leaves = [t.requires_grad_() for t in _layer(draws=draws, batch=batch, lead=lead, dtype=dtype)]
        options = {"noise": noise, "kl": kl, "backend": backend, "seed": None if noise == "none" else 4, "draws": draws}
        with torch.set_grad_enabled(grad):
            y, term = fdn_linear(*leaves, **options)
            assert y.shape == (*lead, draws, batch, 3) and (term is None or term.shape == (*lead, draws, batch))
            moments, _ = fdn_linear(*leaves, **options | {"noise": "none", "seed": None, "kl": "none"}, moments=True)
            assert moments.mean.shape == moments.variance.shape == y.shape
        if grad:
            total = y.sum() + (0 if term is None else term.sum())
            for leaf, gradient in zip(leaves, torch.autograd.grad(total, leaves, materialize_grads=True)):
                assert gradient.shape == leaf.shape and not gradient.any()


def test_the_other_ops_give_no_rows_for_none():
    x, weight, bias = torch.empty(2, 0, D, **FLOAT64), torch.ones(3, D, **FLOAT64), torch.ones(3, **FLOAT64)
    assert affine(x, weight, bias).shape == relu_affine(x, weight, bias).shape == (2, 0, 3)
    for b in (0, 1):
        assert matvec(torch.ones(2, b, 9, **FLOAT64), x).shape == (2, 0, 3)
    assert dropout_linear(x[:1], partial(_streams().subsets, 0.5), 0.5, weight, bias, K).shape == (K, 0, 3)
    for grad in (True, False):
        _network(x=x[0], grad=grad)
        _network(x=x[0], grad=grad, masks=[m[:, :0] for m in MASKS])
    for noise, examples in (("shared", 1), ("independent", 0), ("local", 0)):
        q = WeightGaussian(torch.ones(1, examples, 9, **FLOAT64), torch.ones(1, examples, 9, **FLOAT64))
        assert gaussian_linear(x, q, noise=noise, seed=1).shape == (2, 0, 3)


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("noise", ["shared", "independent", "local", "none"])
def test_networks_and_their_layers_give_no_rows_for_none(name, noise):
    network, x = build_network(_spec(name), D, PUBLISHED).double(), torch.empty(0, D, **FLOAT64)
    for kl, grad in itertools.product(("none", "analytic"), (True, False)):
        drawn = network.draw_noise(_streams(), noise, K, 0, training=False)
        with torch.set_grad_enabled(grad):
            y, term = network(x, drawn, kl)
            assert y.shape == (K if network.stochastic and noise != "none" or network.draws_masks_late else 1, 0, 1)
            assert term is None or term.numel() in (0, 1)
            layer = network.layers[0]
            assert layer(x[None], x[None], noise, drawn.eps[0], kl)[0].shape[-2:] == (0, 6)
