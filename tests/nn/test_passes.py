"""forward and sample: what reaches the layers, what comes back, and whose noise it is."""

from __future__ import annotations

import threading

import pytest
import torch
from layer_oracle import STRUCTURES, layer_of
from torch import nn

from fdn.errors import UserError
from fdn.nn import FDNLinear, forward, sample


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(condition: str = "layer", **options) -> nn.Sequential:
    width = {"input_features": 3} if condition == "input" else {}
    options |= {"condition": condition, "dtype": torch.float64}
    return nn.Sequential(FDNLinear(3, 6, **width, **options), nn.ReLU(), FDNLinear(6, 2, **width, **options))


def inputs(batch: int = 5) -> torch.Tensor:
    return torch.randn(batch, 3, dtype=torch.float64)


def test_the_kl_is_summed_over_layers_and_kept_apart_on_request():
    model, x = network(), inputs()
    _, total = forward(model, x, generator())
    _, apart = forward(model, x, generator(), per_layer=True)
    assert total.shape == (5,) and apart.shape == (5, 2)
    torch.testing.assert_close(apart.sum(-1), total)
    hidden, first = forward(model[0], x, generator())
    torch.testing.assert_close(apart[:, 0], first)


@pytest.mark.parametrize("condition", ["layer", "input"])
def test_draws_add_an_axis_and_each_is_a_pass(condition):
    model, x = network(condition), inputs()
    y, kl = forward(model, x, generator(), draws=7)
    assert y.shape == (7, 5, 2) and kl.shape == (7, 5)
    mean, mean_kl = forward(model, x, draws=7, noise="none")
    torch.testing.assert_close(mean[3], forward(model, x, noise="none")[0])
    torch.testing.assert_close(mean_kl[6], forward(model, x, noise="none")[1])
    assert y[:, 0, 0].unique().numel() == 7
    one = forward(model, x, draws=1)[0]
    assert one.shape == (1, 5, 2)


def test_shared_noise_is_one_function_and_local_noise_is_not():
    model = network()
    x = inputs(1).expand(4, 3)
    for noise, same in (("shared", True), ("local", False), ("independent", False)):
        y, _ = forward(model, x, draws=3, noise=noise)
        assert bool(y.std(1).max() < 1e-12) is same


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("condition", ["layer", "input"])
@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 100])
def test_samples_do_not_depend_on_the_chunk(condition, shared, chunk):
    model, x = network(condition), inputs()
    whole = sample(model, x, 10, shared, generator())
    parts = sample(model, x, 10, shared, generator(), chunk=chunk)
    assert whole.shape == (10, 5, 2) and not whole.requires_grad
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(sample(model, x, 4, shared, generator()), whole[:4], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", STRUCTURES)
def test_samples_of_every_structure_do_not_depend_on_the_chunk(name):
    model, x = nn.Sequential(layer_of(name), nn.Tanh(), layer_of(name, 2, 3)), inputs()
    whole = sample(model, x, 6, generator=generator())
    torch.testing.assert_close(sample(model, x, 6, generator=generator(), chunk=2), whole, rtol=1e-12, atol=1e-12)


def test_a_shared_draw_is_the_same_function_of_other_rows():
    model, x = network(), inputs(9)
    whole = sample(model, x, 6, generator=generator())
    torch.testing.assert_close(sample(model, x[4:6], 6, generator=generator()), whole[:, 4:6], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shared", [True, False])
def test_samples_have_the_moments_of_the_layer(shared):
    layer, x = layer_of("full"), inputs(2)
    draws = sample(layer, x, 40_000, shared, generator())
    q = layer.posterior
    z = q.hypernet.hidden_activation(x[None])
    from fdn_kernels.reference import hypernet_gaussian, moments

    gaussian = hypernet_gaussian(z, q.hypernet.output.weight, q.hypernet.output.bias, 3, q.floor)
    mean, variance = (t[0].detach() for t in moments(x[None], gaussian))
    assert ((draws.mean(0) - mean).abs() / (variance / 40_000).sqrt()).max() < 5
    assert (draws.var(0) / variance - 1).abs().max() < 5 * (2 / 40_000) ** 0.5


def test_a_temperature_scales_the_deviations_of_one_layer():
    layer, x = layer_of("full"), inputs()
    mean = forward(layer, x, noise="none")[0]
    apart = [sample(layer, x, 5, generator=generator(), temperature=t) - mean for t in (1.0, 0.5, 0.0)]
    torch.testing.assert_close(apart[1], 0.5 * apart[0])
    assert apart[2].abs().max() < 1e-12


def test_layers_that_share_a_pass_draw_different_noise():
    layer = layer_of("full", 3, 3)
    twice = nn.ModuleList([layer, layer])
    x = inputs()

    def both(x):
        return torch.stack([it(x) for it in twice], 1)

    for y in (forward(both, x)[0], sample(both, x, 3)[1], forward(both, x, generator())[0]):
        assert (y[:, 0] != y[:, 1]).all()


def test_noise_obeys_the_global_seed_or_a_generator_and_is_fresh_otherwise():
    model, x = network(), inputs()
    for of in (lambda g: forward(model, x, g)[0], lambda g: sample(model, x, 3, generator=g)):
        results = []
        for _ in range(2):
            torch.manual_seed(4)
            results.append((of(None), of(None), of(generator())))
        for one, again in zip(*results):
            torch.testing.assert_close(one, again, rtol=0, atol=0)
        assert (results[0][0] != results[0][1]).all()
        before = torch.random.get_rng_state()
        of(generator())
        assert torch.equal(before, torch.random.get_rng_state())  # a generator leaves the global state alone
        one = generator()
        assert (of(one) != of(one)).all()  # and moves on


def test_a_sampled_kl_belongs_to_its_draw():
    model, x = network(), inputs()
    y, ratio = forward(model, x, draws=2000, noise="independent", kl="sampled")
    _, exact = forward(model, x, draws=2000, noise="independent")
    assert y.shape == (2000, 5, 2) and ratio.shape == (2000, 5)
    error = (ratio.mean(0) - exact.mean(0)).abs() / (ratio.std(0) / 2000**0.5)
    assert error.max() < 5
    with pytest.raises(ValueError, match="needs sampled weights"):
        forward(model, x, kl="sampled")


def test_the_networks_input_reaches_every_layer_and_no_further():
    model, x = network("input"), inputs()
    y, _ = forward(model, x, noise="none")
    a = model[0](x, x)  # given by hand it is the same
    with pytest.raises(UserError, match="sees the network's input inside"):
        model[0](x)
    assert a.shape == (5, 6)
    images = x.view(5, 1, 3)  # any shape of an example is one vector
    wrapped = nn.Sequential(nn.Flatten(), *model)
    torch.testing.assert_close(forward(wrapped, images, noise="none")[0], y)
    sequences = torch.randn(5, 4, 3, dtype=torch.float64)  # position by position
    by_position = forward(model, sequences, noise="none")[0]
    torch.testing.assert_close(by_position[:, 2], forward(model, sequences[:, 2], noise="none")[0])


def test_an_input_that_does_not_fit_the_signal_is_answered_in_a_sentence():
    model = network("input")
    with pytest.raises(UserError, match="input_features=4"):
        forward(nn.Sequential(nn.Linear(4, 3).double(), *model), torch.ones(5, 4, dtype=torch.float64))
    with pytest.raises(UserError, match="one tensor of floating-point numbers"):
        forward(lambda pair: model(pair[0]), (inputs(), inputs()))
    with pytest.raises(UserError, match="one tensor of floating-point numbers"):
        forward(nn.Sequential(nn.Embedding(9, 3).double(), *model), torch.arange(5))


def test_passes_may_be_nested():
    """A model that samples another one inside its own pass gets its own input back."""
    inner, outer, x = network("input"), network("input"), inputs()
    seen = []

    def model(x):
        hidden = outer[0](x)
        seen.append(sample(inner, x + 1, 4).mean(0))
        with pytest.raises(ZeroDivisionError):
            forward(lambda x: 1 / 0, x)
        return outer[2](hidden.relu())

    y, kl = forward(model, x, noise="none")
    expected, expected_kl = forward(outer, x, noise="none")
    torch.testing.assert_close((y, kl), (expected, expected_kl))
    assert seen[0].shape == (5, 2)


def test_passes_of_several_threads_are_apart():
    model = network("input")
    xs = [inputs() + 10 * i for i in range(4)]
    expected = [forward(model, x, noise="none") for x in xs]
    found, barrier = [None] * 4, threading.Barrier(4)

    def slow(x):
        barrier.wait()
        return model(x)

    def work(i: int) -> None:
        for _ in range(20):
            found[i] = forward(slow, xs[i], noise="none")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


def test_layers_that_ran_in_another_thread_are_missed():
    model, x = network(), inputs()

    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x):
            result = []
            thread = threading.Thread(target=lambda: result.append(self.inner(x)))
            thread.start()
            thread.join()
            return result[0]

    with pytest.raises(RuntimeError, match="no FDN layer of the model ran"):
        forward(Elsewhere(), x)
    y, kl = forward(nn.Linear(3, 1).double(), x)  # a plain model has none, and a KL of 0
    assert kl.tolist() == [0.0] * 5


def test_a_batch_that_is_not_first_keeps_the_mean_kl_and_goes_draw_by_draw():
    model, x = network(), inputs()

    def time_first(x):  # (B, d) to (T, B, d) inside
        return model(torch.stack([x, 2 * x, 3 * x])).sum(0)

    _, kl = forward(time_first, x, noise="none")
    apart = [forward(model, scale * x, noise="none")[1].mean() for scale in (1, 2, 3)]
    torch.testing.assert_close(kl, sum(apart).expand(5))
    with pytest.raises(ValueError, match="put the batch first"):
        sample(time_first, x, 4)
    assert sample(time_first, x, 4, chunk=1).shape == (4, 5, 2)


def test_several_inputs_and_outputs_are_repeated_and_parted():
    layer = layer_of("full")

    def model(batch):
        y = layer(batch["a"]) + batch["b"][1]
        return {"y": y, "norm": y.norm(dim=-1)}

    x = {"a": inputs(), "b": (inputs(), torch.ones(5, 1, dtype=torch.float64))}
    output, kl = forward(model, x, draws=3)
    assert output["y"].shape == (3, 5, 2) and output["norm"].shape == (3, 5) and kl.shape == (3, 5)
    assert sample(model, x, 6, chunk=4)["norm"].shape == (6, 5)


def test_what_is_no_tensor_passes_through():
    layer = layer_of("full")

    def model(batch):
        return {"y": layer(batch["x"]) * batch["factor"], "note": batch["note"], "none": None}

    x = {"x": inputs(), "factor": 2.0, "note": "as it was"}
    output, _ = forward(model, x, draws=2)
    assert output["y"].shape == (2, 5, 2) and output["note"] == "as it was" and output["none"] is None
    assert sample(model, x, 6, chunk=4)["note"] == "as it was"
    assert forward(lambda pair: pair[1], (1.0, inputs()))[1].tolist() == [0.0] * 5


def test_one_example_without_a_batch_axis_has_the_mean_kl():
    layer, x = layer_of("full"), inputs()
    _, kl = forward(layer, x[0])
    torch.testing.assert_close(kl.mean(), forward(layer, x[:1])[1][0] / 3)


def test_a_frozen_layer_may_run_under_no_grad():
    model, x = network(), inputs()
    model[0].requires_grad_(False)

    def part(x):
        with torch.no_grad():
            hidden = model[0](x)
        return model[2](hidden.relu())

    forward(part, x)[1].sum().backward()
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match="its KL would be lost"):
        forward(part, x)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m, x: forward(m, torch.ones(())), "no tensor"),
        (lambda m, x: sample(m, {"x": 3}), "no tensor"),
        (lambda m, x: forward(m, x, draws=0), "draws is 0"),
        (lambda m, x: forward(m, x, noise="gauss"), "noise is 'gauss'"),
        (lambda m, x: forward(m, x, kl="exact"), "kl is 'exact'"),
        (lambda m, x: sample(m, x, 2.5), "draws is 2.5"),
        (lambda m, x: sample(m, x, 2, chunk=0), "chunk is 0"),
        (lambda m, x: sample(m, x, 2, temperature=-1), "temperature is -1"),
    ],
)
def test_arguments_out_of_range_are_answered_in_a_sentence(call, said):
    with pytest.raises(UserError, match=said):
        call(network(), inputs())
