"""to_fdn, costs and parameter_groups: FDN layers in a network that exists."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fdn.errors import UserError
from fdn.nn import FDNLinear, costs, elbo_loss, forward, parameter_groups, sample, to_fdn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x))


def kinds(model: nn.Module) -> dict[str, str]:
    found = {name: type(m).__name__ for name, m in model.named_modules() if name.count(".") < 2}
    return {name: kind for name, kind in found.items() if "Linear" in kind and "posterior" not in name}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (None, {"body.0", "body.2", "head"}),
        ("head", {"head"}),
        (["head", "body.2"], {"body.2", "head"}),
        ("body.*", {"body.0", "body.2"}),
    ],
)
def test_the_layers_that_are_named_become_fdn_layers(layers, expected):
    net = Net()
    made = to_fdn(net, layers)
    assert {name for name, kind in kinds(made).items() if kind == "FDNLinear"} == expected
    assert set(kinds(net).values()) == {"Linear"}  # the model itself is left alone
    assert to_fdn(net, layers, inplace=True) is net and kinds(net) == kinds(made)


@pytest.mark.parametrize(
    "options", [{}, {"condition": "input", "input_features": 4}, {"structure": "low_rank", "rank": 2, "residual": True}]
)
def test_a_trained_network_is_reproduced_as_sigma_goes_to_zero(options):
    net, x = Net(), torch.randn(50, 4)
    made = to_fdn(net, floor=0.0, init_sigma=1e-9, **options)
    assert (sample(made, x, 3) - net(x)).abs().max() < 1e-6
    fresh = to_fdn(net, init="fresh", floor=0.0, init_sigma=1e-9, **options)
    assert (sample(fresh, x, 3) - net(x)).abs().max() > 1e-2


def test_what_is_frozen_does_not_move_and_the_rest_does():
    net = Net().double()
    x, y = torch.randn(64, 4, dtype=torch.float64), torch.randint(3, (64,))
    made = to_fdn(net, ["head"], freeze="others", structure="low_rank", rank=2, residual=True)
    before = {name: p.clone() for name, p in made.named_parameters()}
    optimizer = torch.optim.AdamW(parameter_groups(made, 0.01), lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        output, kl = forward(made, x)
        elbo_loss(nn.functional.cross_entropy(output, y, reduction="none"), kl, 64).backward()
        optimizer.step()
    moved = {name for name, p in made.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "hypernet" in name}


def test_the_device_the_type_and_the_mode_are_kept():
    made = to_fdn(Net().to("meta", torch.float64).eval(), "head")
    assert {(p.device.type, p.dtype) for p in made.parameters()} == {("meta", torch.float64)}
    assert not made.head.training and not made.head.posterior.training


def test_a_transformers_fused_path_does_not_pass_the_layers_by():
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0).eval()
    encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 5, 8)
    exact = to_fdn(encoder, "layers.*.linear?", floor=0.0, init_sigma=1e-9)
    loud = to_fdn(encoder, "layers.*.linear?", init_sigma=0.3)
    with torch.no_grad():
        assert (exact(x) - encoder(x)).abs().max() < 1e-5
        assert (loud(x) - loud(x)).abs().min() > 0
    output, kl = forward(loud, x)
    assert output.shape == x.shape and kl.shape == (3,)
    assert sample(loud, x, 4).shape == (4, 3, 5, 8)


def test_layers_that_are_fdn_already_are_left_as_they_are():
    once = to_fdn(Net(), "head")
    twice = to_fdn(once)
    assert set(kinds(twice).values()) == {"FDNLinear"}
    assert sum(p.numel() for p in twice.head.parameters()) == sum(p.numel() for p in once.head.parameters())
    with pytest.raises(UserError, match="it has 'body.0', 'body.2'"):
        to_fdn(once, "head.posterior.hypernet.hidden")
    with pytest.raises(UserError, match="it has none"):
        to_fdn(to_fdn(nn.Linear(3, 2)))


def test_a_layer_of_two_names_stays_one_layer():
    shared = nn.Linear(4, 4)
    model = to_fdn(nn.ModuleDict({"one": shared, "two": shared, "three": nn.Linear(4, 4)}))
    assert model["one"] is model["two"] and isinstance(model["three"], FDNLinear) and model["three"] is not model["one"]


def test_a_linear_layer_by_itself_is_a_model_too():
    assert isinstance(to_fdn(nn.Linear(3, 2)), FDNLinear)


@pytest.mark.parametrize(
    ("layers", "options", "said"),
    [
        ("tail", {}, "no nn.Linear named 'tail'; it has 'body.0', 'body.2', 'head'"),
        (["head", "body"], {}, "no nn.Linear named 'body'"),
        (None, {"init": "moped"}, "init is 'moped'"),
        (None, {"freeze": "all"}, "freeze is 'all'"),
        (None, {"structure": "rows"}, "residual=True"),
    ],
)
def test_what_cannot_be_swapped_is_said(layers, options, said):
    with pytest.raises(UserError, match=said):
        to_fdn(Net(), layers, **options)


def test_costs_count_each_layer_and_the_whole():
    made = to_fdn(Net(), ["body.2", "head"], hyper=5)
    body, head, whole = costs(made)
    generated = 2 * 16 * 17
    assert body == ("body.2", 17 * 5 + 6 * generated, 16 * 17, 16 * 5 + 5 * generated + 256, 256)
    assert head.plain_parameters == 3 * 17 and head.plain_products == 48
    assert whole.parameters == sum(p.numel() for p in made.parameters())
    assert whole.plain_parameters == sum(p.numel() for p in Net().parameters())
    assert whole.products == 64 + body.products + head.products and whole.plain_products == 64 + 256 + 48


def test_a_shared_hypernetwork_is_counted_and_optimised_once():
    trunk = nn.Linear(4, 8)
    options = {"condition": "input", "input_features": 4, "hyper": trunk}
    model = nn.Sequential(FDNLinear(4, 6, **options), nn.ReLU(), FDNLinear(6, 1, **options))
    first, second, whole = costs(model)
    assert whole.parameters == first.parameters + second.parameters == sum(p.numel() for p in model.parameters())
    assert first.parameters - second.parameters == 40 + 9 * 2 * (30 - 7)
    torch.optim.Adam(parameter_groups(model, 0.1))  # which refuses a parameter that occurs twice


def test_weight_decay_moves_rho_unless_the_groups_keep_it_away():
    """5,000 steps of AdamW without a gradient: rho falls from sigma = 0.007 to the size of the paper's start."""
    sigmas = {}
    for name in ("all", "groups"):
        layer = FDNLinear(4, 1, init_sigma=0.0077, prior_scale=1.0)
        model = nn.Sequential(nn.Linear(4, 4), layer)
        groups = model.parameters() if name == "all" else parameter_groups(model, 0.3)
        optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.3)
        start = model[0].weight.detach().clone()
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        for _ in range(5000):
            optimizer.step()
        a = torch.zeros(1, 1, 4)
        with torch.no_grad():
            moments = [layer.posterior(a, a, noise, torch.ones(1, 1, 1), "none")[0] for noise in ("none", "local")]
        sigmas[name] = float(moments[1] - moments[0])  # of the bias
        assert model[0].weight.abs().max() < 0.3 * start.abs().max()
    assert sigmas["groups"] == pytest.approx(0.0077, rel=1e-4) and sigmas["all"] > 0.2
