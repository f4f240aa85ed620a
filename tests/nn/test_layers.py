"""FDNLinear: its numbers against a float64 definition, its initialisation, and where it may stand."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from layer_oracle import STRUCTURES, forward, layer_of
from torch import nn

import fdn.nn as nn_names
from fdn.errors import UserError
from fdn.models.posteriors import FDNLinear as StudyLayer
from fdn.models.posteriors import multiply_accumulates, noise_shape
from fdn.nn import FDNLinear, sample
from fdn.nn import forward as run

every_structure = pytest.mark.parametrize("name", STRUCTURES)


def draw(layer: FDNLinear, batch: int, noise: str, k: int = 2):
    """Inputs ``(k, batch, d_in)`` and noise for them."""
    a = torch.randn(k, batch, layer.in_features, dtype=torch.float64)
    shape = noise_shape(layer.posterior, noise, k, batch)
    return a, None if shape is None else torch.randn(shape, dtype=torch.float64)


@every_structure
@pytest.mark.parametrize("noise", ["local", "shared", "independent", "none"])
@pytest.mark.parametrize("d_out", [1, 2])
def test_outputs_and_kl_are_those_of_the_definition(name, noise, d_out):
    layer = layer_of(name, d_out=d_out)
    a, eps = draw(layer, 3, noise)
    y, kl = layer.posterior(a, a, noise, eps, "analytic")
    for k in range(2):
        for b in range(3):
            e = None if eps is None else eps[k, 0 if noise == "shared" else b]
            expected, expected_kl = forward(layer, a[k, b], a[k, b], e, noise)
            torch.testing.assert_close(y[k, b], expected, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(kl[k, b], expected_kl, rtol=1e-10, atol=1e-10)


@every_structure
@pytest.mark.parametrize("noise", ["local", "shared"])
def test_gradients_of_every_parameter_are_those_of_the_definition(name, noise):
    layer, (a, eps) = layer_of(name), (None, None)
    a, eps = draw(layer, 3, noise, k=1)
    y, kl = layer.posterior(a, a, noise, eps, "analytic")
    (y.square().sum() + kl.sum()).backward()
    found = {key: p.grad.clone() for key, p in layer.named_parameters()}
    layer.zero_grad()
    pairs = [forward(layer, a[0, b], a[0, b], eps[0, 0 if noise == "shared" else b], noise) for b in range(3)]
    sum(y.square().sum() + kl for y, kl in pairs).backward()
    for key, p in layer.named_parameters():
        torch.testing.assert_close(found[key], p.grad, rtol=1e-8, atol=1e-10)
        assert found[key].abs().max() > 0, key


@every_structure
def test_a_sampled_kl_is_right_on_average(name):
    layer = layer_of(name)
    a, eps = draw(layer, 1, "independent", k=40_000)
    a = a[:1].expand_as(a)
    exact = layer.posterior(a[:1], a[:1], "none", None, "analytic")[1]
    if "low rank" in name:  # its first factor's draws do not enter the second one's KL
        assert layer.posterior.n_local > layer.out_features
    ratios = layer.posterior(a, a, "independent", eps, "sampled")[1]
    error = (ratios.mean() - exact.mean()).abs() / (ratios.std() / 200)
    assert error < 5


@every_structure
def test_blocks_of_examples_give_the_numbers_of_the_whole(name, monkeypatch):
    layer = layer_of(name)
    a, eps = draw(layer, 11, "local")
    _, shared = draw(layer, 11, "shared")
    for noise, e in (("local", eps), ("shared", shared), ("none", None)):
        whole = layer.posterior(a, a, noise, e, "analytic")
        with monkeypatch.context() as patch, torch.no_grad():
            patch.setattr("fdn.models.structures.LARGE", 4 * 9)
            parts = layer.posterior(a, a, noise, e, "analytic")
        for one, other in zip(whole, parts):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_it_is_the_layer_of_the_study():
    """One class computes both: equal parameters and noise give equal numbers."""
    layer = FDNLinear(4, 3, hyper=5, dtype=torch.float64, prior_scale=1.0)
    study = StudyLayer(4, 3, 5, "layer", 4, 1e-3, 1.0).double()
    study.load_state_dict(layer.posterior.state_dict())
    x = torch.randn(6, 4, dtype=torch.float64)
    y, kl = run(layer, x, torch.Generator().manual_seed(3))
    eps = torch.randn(1, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected, expected_kl = study(x[None], x[None], "local", eps, "analytic")
    torch.testing.assert_close(y, expected[0], rtol=0, atol=0)
    torch.testing.assert_close(kl, expected_kl[0], rtol=0, atol=0)


@every_structure
def test_any_batch_axes_are_rows(name):
    layer = layer_of(name)
    x = torch.randn(2, 5, 3, dtype=torch.float64)

    def of(x):
        return run(layer, x, torch.Generator().manual_seed(1))

    y, kl = of(x)  # (B, T, d): an example is a sequence
    flat, flat_kl = of(x.flatten(0, 1))
    assert y.shape == (2, 5, 2) and kl.shape == (2,)
    torch.testing.assert_close(y.flatten(0, 1), flat, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(kl, flat_kl.view(2, 5).sum(1), rtol=1e-12, atol=1e-12)
    assert layer(x[0, 0]).shape == (2,) and layer(x[:, None, :, None]).shape == (2, 1, 5, 1, 2)
    assert layer(x[:0]).shape == (0, 5, 2) and run(layer, x[:0])[1].shape == (0,)


def test_a_plain_call_draws_afresh_for_every_position():
    layer = FDNLinear(3, 4, init_sigma=0.5)
    x = torch.ones(6, 3)
    y = nn.Sequential(layer, nn.ReLU(), FDNLinear(4, 1))(x)
    assert y.shape == (6, 1)
    outputs = torch.cat([layer(x), layer(x)])
    assert len(outputs[:, 0].unique()) == 12
    torch.manual_seed(5)
    first = layer(x)
    torch.manual_seed(5)
    torch.testing.assert_close(layer(x), first, rtol=0, atol=0)


@pytest.mark.parametrize("width", [24, 128, 512])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("condition", ["layer", "input"])
def test_draws_of_deep_and_wide_networks_begin_close_together(width, depth, condition):
    options = {"condition": condition, "input_features": 5 if condition == "input" else None}
    widths = [5, *[width] * depth, 1]
    layers = [layer for n, m in zip(widths, widths[1:]) for layer in (FDNLinear(n, m, **options), nn.ReLU())]
    x = torch.randn(10, 5)
    for shared in (True, False) if width < 512 else (False,):
        spread = sample(nn.Sequential(*layers[:-1]), x, draws=20, shared=shared).std(0)
        assert spread.max() < 3 and spread.min() > 0


def test_the_published_initialisation_is_an_option_and_explodes():
    """What the default is for: at width 512 and three hidden layers draws are about 1e8 apart."""
    widths = [5, 512, 512, 512, 1]
    layers = [
        layer for n, m in zip(widths, widths[1:])
        for layer in (FDNLinear(n, m, init_sigma=None, prior_scale=1.0), nn.ReLU())
    ]  # fmt: skip
    assert sample(nn.Sequential(*layers[:-1]), torch.randn(5, 5), draws=10, shared=False).std() > 1e6


@every_structure
@pytest.mark.parametrize("init_sigma", ["auto", 0.2])
def test_weights_begin_with_the_standard_deviation_that_was_asked_for(name, init_sigma):
    torch.manual_seed(1)
    layer = FDNLinear(16, 6, init_sigma=init_sigma, dtype=torch.float64, **STRUCTURES[name])
    z = torch.rand(1, 7, layer.posterior.hypernet.hidden.in_features // (2 * layer.posterior.frequencies + 1))
    z = z.double()
    if hasattr(layer.posterior, "gaussians"):
        from fdn.models.posteriors import fourier_features

        found = layer.posterior.gaussians(fourier_features(z, layer.posterior.frequencies))
        fan_in = [factor.d_in for factor in layer.posterior.factors]
        scales = [q.scale for q in found]
    else:  # noise 1 for one weight at a time reads them off
        fan_in, a, eps = [16], torch.eye(16, dtype=torch.float64)[None], torch.ones(1, 16, 6, dtype=torch.float64)
        mean, drawn = (layer.posterior(a, a, noise, eps, "none")[0] for noise in ("none", "local"))
        scales = [(drawn - mean) / 2**0.5]  # of a weight and a bias alike
    for scale, n in zip(scales, fan_in, strict=True):
        expected = 0.1 / n**0.5 if init_sigma == "auto" else init_sigma
        torch.testing.assert_close(scale, torch.full_like(scale, expected), rtol=1e-6, atol=0)


@every_structure
def test_outputs_begin_with_the_size_of_a_plain_layers(name):
    torch.manual_seed(0)
    x = torch.randn(400, 64)
    plain = torch.stack([nn.Linear(64, 32)(x) for _ in range(5)]).std()
    with torch.no_grad():
        ours = torch.stack([run(FDNLinear(64, 32, **STRUCTURES[name]), x, noise="none")[0] for _ in range(5)]).std()
    low_rank = "low rank" in name and "residual" not in name
    assert (0.1 if low_rank else 0.5) < ours / plain < 2


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", [n for n in STRUCTURES if "rows" not in n and "columns" not in n or "residual" in n])
@pytest.mark.parametrize("init_sigma", [1e-9, None])
def test_a_trained_layer_is_reproduced_as_sigma_goes_to_zero(name, bias, init_sigma):
    """With PyTorch's own initialisation too the mean is the trained layer's."""
    if not bias and "rows" in name:
        pytest.skip("rows make biases")
    options = STRUCTURES[name] | {"floor": 0.0, "init_sigma": init_sigma, "bias": bias}
    if "rank" in options and "residual" not in name:
        options["rank"] = 7  # more than the matrix has
    plain, layer = nn.Linear(5, 4, bias), FDNLinear(5, 4, **options)
    layer.start_at(plain.weight, plain.bias)
    x = torch.randn(30, 5)
    mean = run(layer, x, noise="none")[0]
    assert (mean - plain(x)).abs().max() < 1e-6
    if init_sigma is not None:
        assert (layer(x) - plain(x)).abs().max() < 1e-6


def test_a_low_rank_layer_begins_at_the_nearest_matrix():
    plain, layer = nn.Linear(6, 5).double(), FDNLinear(6, 5, structure="low_rank", rank=2, dtype=torch.float64)
    layer.start_at(plain.weight, plain.bias)
    columns = run(layer, torch.eye(6, dtype=torch.float64), noise="none")[0] - plain.bias
    left = torch.linalg.svdvals(columns.T - plain.weight)  # Eckart and Young: the values that were left out
    torch.testing.assert_close(left[:3], torch.linalg.svdvals(plain.weight)[2:], rtol=1e-9, atol=1e-9)


def formulas(name: str, n: int, m: int, d_s: int, h: int, r: int = 2) -> tuple[int, int]:
    """Parameters and multiply-accumulates of appendix G, biases of the hypernetwork counted too."""
    generated, pieces, own = m * (n + 1), 1, n * m
    if "low rank" in name:
        generated, own = r * n + m * (r + 1), r * (n + m)
    if "rows" in name:
        generated, pieces = n + 1, m
    if "columns" in name:
        generated, pieces = m, n + 1
    if "no bias" in name:
        generated -= m
    residual = m * (n + 1) if "residual" in name else 0
    embedding = pieces * h if "rows" in name or "columns" in name else 0
    d_s *= 5 if "Fourier" in name else 1
    parameters = (d_s + 1) * h + embedding + (h + 1) * 2 * generated + residual
    products = d_s * h + pieces * h * 2 * generated + own + (n * m if "residual" in name else 0)
    return parameters, products


@every_structure
@pytest.mark.parametrize(("n", "m"), [(3, 2), (7, 1), (1, 9), (64, 64)])
@pytest.mark.parametrize("condition", ["layer", "input", 6])
def test_parameters_and_products_are_those_of_the_papers_formulas(name, n, m, condition):
    given = {"input_features": 5} if condition == "input" else {}
    layer = FDNLinear(n, m, hyper=4, condition=condition, **given, **STRUCTURES[name])
    signal = {"layer": n, "input": 5}.get(condition, 6)
    counted = sum(p.numel() for p in layer.parameters()), sum(multiply_accumulates(layer.posterior))
    assert counted == formulas(name, n, m, signal, 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"condition": "output"}, "condition.*'output'"),
        ({"condition": 0}, "condition.*is 0"),
        ({"input_features": 3}, "goes with condition='input'"),
        ({"hyper": 0}, "hyper is 0"),
        ({"hyper": nn.Linear(4, 8)}, "nn.Linear of the signal's 3 features"),
        ({"structure": "diagonal"}, "one of full, low_rank, rows, columns"),
        ({"structure": "low_rank"}, "rank goes with 'low_rank'"),
        ({"rank": 2}, "rank goes with 'low_rank'"),
        ({"structure": "rows", "bias": False}, "makes biases too"),
        ({"init_sigma": 1e-4}, "above the floor 0.001"),
        ({"init_sigma": "small"}, "init_sigma is 'small'"),
        ({"prior_scale": -1.0}, "prior_scale is -1.0"),
        ({"frequencies": -1}, "frequencies is -1"),
        ({"activation": "gelu"}, "one of relu, tanh"),
    ],
)
def test_options_that_do_not_fit_are_answered_in_a_sentence(options, said):
    with pytest.raises(UserError, match=said):
        FDNLinear(3, 2, **options)


def test_inputs_and_signals_that_do_not_fit_are_answered_in_a_sentence():
    layer = FDNLinear(3, 2)
    with pytest.raises(ValueError, match=r"takes inputs \(..., 3\), not \(4, 2\)"):
        layer(torch.ones(4, 2))
    with pytest.raises(UserError, match="sees its own input"):
        layer(torch.ones(4, 3), context=torch.ones(4, 3))
    with pytest.raises(UserError, match="needs a context"):
        FDNLinear(3, 2, condition=5)(torch.ones(4, 3))
    with pytest.raises(UserError, match=r"of shape \(4, 3\)"):
        FDNLinear(3, 2, condition=5)(torch.ones(4, 3), torch.ones(4, 3))
    with pytest.raises(UserError, match="sees the network's input inside"):
        FDNLinear(3, 2, condition="input")(torch.ones(4, 3))
    with pytest.raises(UserError, match="cannot start at trained weights"):
        FDNLinear(3, 2, structure="rows").start_at(torch.ones(2, 3), torch.ones(2))


def test_a_context_conditions_each_row_and_broadcasts():
    layer = layer_of("full", condition=2)
    x, context = torch.randn(4, 5, 3, dtype=torch.float64), torch.randn(4, 1, 2, dtype=torch.float64)
    y, _ = run(lambda x: layer(x, context), x, noise="none")
    for b in range(4):
        torch.testing.assert_close(y[b, 2], forward(layer, x[b, 2], context[b, 0], None, "none")[0])


def test_layers_that_share_a_hypernetwork_hold_it_once():
    trunk = nn.Linear(5, 8)
    layers = [FDNLinear(n, m, condition="input", input_features=5, hyper=trunk) for n, m in ((5, 4), (4, 1))]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    expected = trunk.weight.numel() + 8 + (8 + 1) * 2 * (4 * 6 + 1 * 5)
    assert sum(p.numel() for p in model.parameters()) == expected
    run(model, torch.randn(3, 5))[0].sum().backward()
    again = copy.deepcopy(model)
    assert again[0].posterior.hypernet.hidden is again[2].posterior.hypernet.hidden


@pytest.mark.parametrize("name", [name for name in nn_names.__all__ if name not in ("Cost", "Predictive")])
def test_every_public_name_shows_an_example_and_says_where_it_is_from(name):
    thing = getattr(nn_names, name)
    assert ">>> " in thing.__doc__
    ours = name not in ("checkpoint_contexts", "parameter_groups")  # of PyTorch's world
    assert not ours or "Source:" in thing.__doc__


@every_structure
def test_a_layer_is_copied_pickled_saved_and_moved(name):
    layer = layer_of(name, dtype=torch.float32)
    x = torch.randn(4, 3)
    run(layer, x)[1].sum().backward()
    expected = run(layer, x, noise="none")
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other = FDNLinear(3, 2, hyper=4, **STRUCTURES[name])
    other.load_state_dict(torch.load(buffer, weights_only=True, map_location="cpu"))
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), other):
        torch.testing.assert_close(run(copied, x, noise="none"), expected, rtol=0, atol=0)
    assert not list(layer.buffers())
    on_meta = copy.deepcopy(layer).to("meta")
    assert on_meta(x.to("meta")).shape == (4, 2)
    half = copy.deepcopy(layer).to(torch.bfloat16)
    y, kl = run(half, x.bfloat16(), noise="none")
    assert (y.dtype, kl.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(y.float(), expected[0], rtol=0.1, atol=0.1)
    torch.testing.assert_close(kl, expected[1], rtol=0.1, atol=0.1)
    made = FDNLinear(3, 2, device="meta", dtype=torch.float64, **STRUCTURES[name])
    assert {(p.device.type, p.dtype) for p in made.parameters()} == {("meta", torch.float64)}
