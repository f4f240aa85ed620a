"""Parameter counts, widths for a budget, and the limits in which one model becomes another."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fdn.errors import UserError
from fdn.models import (
    BASELINE,
    MODEL_NAMES,
    MODELS,
    STOCHASTIC_MODELS,
    ModelSpec,
    build_network,
    count_parameters,
    initial_network,
    model_grid,
    model_spec,
    published_spec,
    solve_widths,
)
from fdn.protocol import AS_WRITTEN, PUBLISHED, get_protocol
from fdn.streams import Streams, seed_sequence

COUNTS = {  # dropout, ensemble, Bayes, GaussHyper, IC, LP at the published widths
    1: (1000, 1000, 998, 994, 1004, 1011),
    5: (2332, 2320, 2326, 2146, 2340, 2183),
    4: (1999, 1990, 1994, 1858, 2006, 1890),
    8: (3331, 3310, 3322, 3010, 3342, 3062),
}


def streams(lead: tuple[int, ...] = ()) -> Streams:
    count = int(torch.tensor(lead).prod()) if lead else 1
    return Streams([seed_sequence("d", "m", s, "train") for s in range(count)], lead, torch.float64)


@pytest.mark.parametrize("n_features", COUNTS)
def test_published_parameter_counts(n_features):
    counts = {row["model"]: row["n_params"] for row in model_grid(n_features, PUBLISHED)}
    assert tuple(counts[m] for m in STOCHASTIC_MODELS) == COUNTS[n_features]


def test_counted_parameters_are_those_that_train():
    for name in MODEL_NAMES:
        spec = model_spec(name, 5, PUBLISHED)
        network = build_network(spec, 5, PUBLISHED)
        assert count_parameters(spec, 5, PUBLISHED) == spec.members * sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize("n_features", [1, 4, 5, 8])
def test_as_written_widths_meet_the_budget(n_features):
    for row in model_grid(n_features, AS_WRITTEN):
        assert abs(row["n_params"] - 1000) <= 50


def test_solved_widths_lower_the_hyper_width_only_when_they_must():
    assert model_spec("LP-FDNet", 8, AS_WRITTEN) == ModelSpec("LP-FDNet", (9,), hyper=4)
    assert count_parameters(model_spec("LP-FDNet", 8, AS_WRITTEN), 8, AS_WRITTEN) == 986
    with pytest.raises(UserError, match="no hidden width within 5% of 20 parameters"):
        solve_widths(model_spec("DeepEnsembleNet", 1, PUBLISHED), 8, 20, PUBLISHED)


def test_solved_width_is_the_nearest():
    spec = model_spec("IC-FDNet", 5, AS_WRITTEN)
    near = [count_parameters(replace(spec, hidden=(spec.hidden[0] + i,)), 5, AS_WRITTEN) for i in (-1, 0, 1)]
    assert min(near, key=lambda c: abs(c - 1000)) == near[1]


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("hidden", [(3,), (4, 3), (4, 3, 2)])
@pytest.mark.parametrize("noise", ["shared", "local", "independent", "none"])
def test_any_depth_and_inputs_and_replicates(name, hidden, noise):
    """Three networks stacked along a leading dimension give what each gives alone."""
    spec = ModelSpec(name, hidden, hyper=2, latent=2)
    torch.manual_seed(0)
    networks = [build_network(spec, 2, PUBLISHED, n_outputs=2).double() for _ in range(3)]
    state = {k: torch.stack([n.state_dict()[k] for n in networks]) for k in networks[0].state_dict()}
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    drawn = networks[0].draw_noise(streams((3,)), noise, draws=4, batch=5, training=True)
    with torch.no_grad():
        stacked, stacked_kl = torch.func.functional_call(networks[0], state, (x, drawn, "analytic"))
        for r, network in enumerate(networks):
            own = drawn._replace(
                eps=tuple(None if e is None else e[r] for e in drawn.eps),
                masks=tuple(None if m is None else m[r] for m in drawn.masks),
            )
            alone, kl = network(x[r], own, "analytic")
            draws = 4 if network.stochastic and noise != "none" or name == "MLPDropoutNet" else 1
            assert alone.shape == (draws, 5, 2)
            torch.testing.assert_close(stacked[r], alone)
            assert (kl is None) == (stacked_kl is None)
            if kl is not None:
                torch.testing.assert_close(stacked_kl[r], kl)


def test_hypernetworks_are_as_many_times_as_wide():
    double = replace(PUBLISHED, hyper_factor=2.0)
    assert model_spec("LP-FDNet", 1, double) == ModelSpec("LP-FDNet", (24,), hyper=10)
    assert model_spec("LP-FDNet", 1, replace(PUBLISHED, hyper_factor=0.01)).hyper == 1
    assert model_spec("BayesNet", 1, double) == model_spec("BayesNet", 1, PUBLISHED)
    half = replace(double, widths="budget")
    assert half.label == "published+widths=budget+hyper_factor=2.0"
    assert abs(count_parameters(model_spec("LP-FDNet", 1, half), 1, half) - 1000) <= 50


def _copy_hypernet(source, target):
    target.hypernet.hidden.load_state_dict(source.hypernet.hidden.state_dict())


def test_limit_sigma_zero_is_hypernet():
    """Appendix A: as sigma goes to 0 an LP-FDN is a deterministic layer-conditioned hypernetwork."""
    protocol = get_protocol("published", floor=0.0)
    torch.manual_seed(1)
    fdn = build_network(ModelSpec("LP-FDNet", (4,), hyper=3), 2, protocol).double()
    hyper = build_network(ModelSpec("HyperNet", (4,), hyper=3), 2, protocol).double()
    for source, target in zip(fdn.layers, hyper.layers):
        n, d_out = source.d_out * source.d_in, source.d_out
        weight, bias = source.hypernet.output.weight, source.hypernet.output.bias
        _copy_hypernet(source, target)
        with torch.no_grad():
            for t in (weight, bias):
                t[n : 2 * n], t[2 * n + d_out :] = 0, 0
            bias[n : 2 * n], bias[2 * n + d_out :] = -1000, -1000  # rho
            target.hypernet.output.weight.copy_(torch.cat([weight[:n], weight[2 * n : 2 * n + d_out]]))
            target.hypernet.output.bias.copy_(torch.cat([bias[:n], bias[2 * n : 2 * n + d_out]]))
    x = torch.randn(6, 2, dtype=torch.float64)
    drawn = fdn.draw_noise(streams(), "shared", 3, 6, training=False)
    torch.testing.assert_close(fdn(x, drawn)[0], hyper(x)[0].expand(3, -1, -1))


@pytest.mark.parametrize("name", ["IC-FDNet", "LP-FDNet"])
def test_limit_constant_hypernet_is_bayesnet(name):
    """A hypernetwork that ignores its input gives a global Gaussian: outputs and KL are BayesNet's."""
    protocol = get_protocol("published", global_scale="softplus")
    torch.manual_seed(2)
    fdn = build_network(ModelSpec(name, (4,), hyper=3), 2, protocol).double()
    bayes = build_network(ModelSpec("BayesNet", (4,)), 2, protocol).double()
    for source, target in zip(fdn.layers, bayes.layers):
        n, d_out = source.d_out * source.d_in, source.d_out
        with torch.no_grad():
            source.hypernet.output.weight.zero_()
            bias = source.hypernet.output.bias
            target.mean.copy_(torch.cat([bias[:n], bias[2 * n : 2 * n + d_out]]))
            target.rho.copy_(torch.cat([bias[n : 2 * n], bias[2 * n + d_out :]]))
    x = torch.randn(6, 2, dtype=torch.float64)
    drawn = fdn.draw_noise(streams(), "shared", 3, 6, training=False)
    (y, kl), (expected, expected_kl) = fdn(x, drawn, "analytic"), bayes(x, drawn, "analytic")
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(kl, expected_kl.expand_as(kl))


def test_gaussian_initialisation_of_bayesnet():
    torch.manual_seed(3)
    network = build_network(ModelSpec("BayesNet", (4000,)), 1, PUBLISHED)
    mean = torch.cat([layer.mean for layer in network.layers])
    assert abs(mean.std().item() - 0.1) < 0.003 and abs(mean.mean().item()) < 0.003
    assert all(torch.equal(layer.rho, torch.full_like(layer.rho, -3.0)) for layer in network.layers)


def test_ic_layers_see_the_input_and_lp_layers_the_activation():
    ic = build_network(model_spec("IC-FDNet", 5, PUBLISHED), 5, PUBLISHED)
    lp = build_network(model_spec("LP-FDNet", 5, PUBLISHED), 5, PUBLISHED)
    assert [layer.hypernet.hidden.in_features for layer in ic.layers] == [5, 5]
    assert [layer.hypernet.hidden.in_features for layer in lp.layers] == [5, 24]


def test_unknown_names_and_widths_are_user_errors():
    with pytest.raises(UserError, match="unknown model 'LPFDNet'; did you mean 'LP-FDNet'. choose from MLPNet"):
        model_spec("LPFDNet", 1, PUBLISHED)
    with pytest.raises(UserError, match=f"unknown model '{BASELINE}'; choose from {', '.join(MODEL_NAMES)}$"):
        published_spec(BASELINE, PUBLISHED)  # it has no layers
    with pytest.raises(UserError, match="hidden is .0,.; expected a tuple, each of them a whole number"):
        ModelSpec("IC-FDNet", (0,), hyper=2)
    with pytest.raises(UserError, match="noise is 'loud'"):
        get_protocol("published", noise="loud")
    with pytest.raises(UserError, match="unknown protocol"):
        get_protocol("as-written")


def test_protocol_labels():
    assert PUBLISHED.label == "published" and AS_WRITTEN.label == "as_written"
    assert replace(PUBLISHED, noise="independent", epochs=7).label == "published+noise=independent+epochs=7"


def test_runs_may_start_where_torch_does_for_the_published_seed():
    spec, protocol = model_spec("MLPDropoutNet", 1, PUBLISHED), replace(PUBLISHED, initialisation="published")
    state = torch.random.get_rng_state()
    first, second = (initial_network(spec, "quad", 1, protocol, seed) for seed in (0, 1))
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_default_dtype() == torch.float32
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        expected = [torch.nn.Linear(1, 333, dtype=torch.float64), torch.nn.Linear(333, 1, dtype=torch.float64)]
    parameters = [p.flatten() for linear in expected for p in (linear.weight, linear.bias)]
    for network in (first, second):
        assert torch.equal(torch.cat([p.flatten() for p in network.parameters()]), torch.cat(parameters).detach())
    with pytest.raises(UserError, match="diabetes has no published seed"):
        initial_network(spec, "diabetes", 10, protocol, 0)


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_row_of_a_model_says_whether_its_draws_differ(name):
    spec = model_spec(name, 2, PUBLISHED)
    assert MODELS[name].stochastic == (build_network(spec, 2, PUBLISHED).stochastic or spec.members > 1)


def test_a_model_without_a_width_it_needs_is_refused():
    with pytest.raises(UserError, match=r"GaussHyperNet needs the width 'latent', as in ModelSpec\(.*latent=9"):
        ModelSpec("GaussHyperNet", (24,), hyper=5)


@pytest.mark.parametrize("name", MODEL_NAMES)
@pytest.mark.parametrize("training", [True, False])
def test_a_pass_depends_on_its_noise_and_on_nothing_else(name, training):
    network = build_network(model_spec(name, 2, PUBLISHED), 2, PUBLISHED).double()
    drawn = network.draw_noise(streams(), "shared", 3, 6, training)
    x = torch.randn(6, 2, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(network(x, drawn)[0], network(x, drawn)[0])
