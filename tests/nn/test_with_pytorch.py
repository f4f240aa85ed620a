"""FDN layers with what PyTorch does to modules: compile, export, transform, checkpoint, autocast, distribute."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from layer_oracle import STRUCTURES, layer_of
from torch import nn
from torch.utils.checkpoint import checkpoint

from fdn.nn import FDNLinear, checkpoint_contexts, elbo_loss, forward, sample

every_structure = pytest.mark.parametrize("name", ["full", "full, no bias", "low rank, residual", "rows", "columns"])


def network(name: str = "full", **options) -> nn.Sequential:
    return nn.Sequential(layer_of(name, dtype=torch.float32, **options), nn.Tanh(), layer_of(name, 2, 2, torch.float32))


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def fresh(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one != other).all())


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(f, backend="aot_eager"):
    return torch.compile(f, fullgraph=True, backend=backend)


@pytest.mark.parametrize("name", ["full", pytest.param("rows", marks=pytest.mark.check)])
def test_a_compiled_module_draws_afresh_and_reports_its_kl(name):
    """Traced anew for each kind of pass."""
    model, x = network(name), torch.randn(4, 3)
    fast = compiled(model)
    assert fresh(fast(x), fast(x))
    y, kl = forward(fast, x)
    again, _ = forward(fast, x)
    assert fresh(y, again)
    mean = forward(model, x, noise="none")
    torch.testing.assert_close(forward(fast, x, noise="none"), mean, rtol=1e-5, atol=1e-5)
    drawn = sample(model, x, 6, generator=generator())
    torch.testing.assert_close(sample(fast, x, 6, generator=generator()), drawn, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("condition", ["layer", "input"])
def test_a_whole_training_step_compiles(condition):
    model, x = FDNLinear(3, 2, condition=condition), torch.randn(4, 3)

    def step(x):
        y, kl = forward(model, x)
        return elbo_loss(y.square().sum(-1), kl, 10)

    fast = compiled(step)
    losses = [fast(x) for _ in range(3)]
    assert len({loss.item() for loss in losses}) == 3
    losses[0].backward()
    found = model.posterior.hypernet.output.bias.grad
    assert found.isfinite().all() and found.abs().max() > 0


@pytest.mark.check
@every_structure
def test_inductor_compiles_what_autograd_computes(name):
    """The real compiler, C++ included, on the pass without noise, whose numbers and gradients are known."""
    model, x = network(name), torch.randn(4, 3)

    def loss(x):
        y, kl = forward(model, x, noise="none")
        return elbo_loss(y.square().sum(-1), kl, 10)

    gradients = []
    for f in (loss, compiled(loss, "inductor")):
        model.zero_grad()
        f(x).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
    fast = compiled(model, "inductor")
    assert fresh(fast(x), fast(x)) and fresh(forward(fast, x)[0], forward(fast, x)[0])


@pytest.mark.parametrize("name", ["full", "rows"])
def test_a_module_is_exported_with_any_batch(name):
    model, x = network(name), torch.randn(4, 3)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch", min=2)},)).module()
    assert fresh(program(x), program(x)) and program(torch.randn(9, 3)).shape == (9, 2)


@every_structure
def test_an_ensemble_is_mapped_over_its_parameters(name):
    models, x = [network(name) for _ in range(3)], torch.randn(4, 3)
    for i, model in enumerate(models):
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + 0.1 * i)
    stacked, _ = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def one(parameters, x):
        return forward(lambda x: torch.func.functional_call(base, parameters, (x,)), x, noise="none")

    found = torch.vmap(one, in_dims=(0, None))(stacked, x)
    expected = [forward(model, x, noise="none") for model in models]
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*expected))), rtol=1e-5, atol=1e-5)

    def drawn(parameters, x):
        return torch.func.functional_call(base, parameters, (x,))

    y = torch.vmap(drawn, in_dims=(0, None), randomness="different")(stacked, x)
    assert fresh(y, torch.vmap(drawn, in_dims=(0, None), randomness="different")(stacked, x))


@every_structure
def test_gradients_of_each_example_sum_to_the_whole(name):
    model, x = network(name), torch.randn(4, 3)
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        y, kl = forward(lambda x: torch.func.functional_call(model, parameters, (x,)), x[None], noise="none")
        return y.square().sum() + kl.sum()

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    y, kl = forward(model, x, noise="none")
    (y.square().sum() + kl.sum()).backward()
    for key, p in model.named_parameters():
        torch.testing.assert_close(each[key].sum(0), p.grad, rtol=1e-4, atol=1e-4)


@every_structure
@pytest.mark.parametrize("source", ["global", "generator"])
def test_checkpointing_draws_what_was_drawn(name, source):
    model, x = network(name), torch.randn(4, 3)
    gradients = []
    for block in (model, lambda x: checkpoint(model, x, use_reentrant=False, context_fn=checkpoint_contexts)):
        torch.manual_seed(5)
        model.zero_grad()
        y, kl = forward(block, x, generator() if source == "generator" else None)
        after = torch.rand(())  # later noise, which the second run must not take
        (y.square().sum() + kl.sum() + after).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


def test_checkpointing_a_plain_call_draws_what_was_drawn():
    model, x = network(), torch.randn(4, 3)
    gradients = []
    for f in (model, lambda x: checkpoint(model, x, use_reentrant=False, context_fn=checkpoint_contexts)):
        torch.manual_seed(5)
        model.zero_grad()
        f(x).square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)


@pytest.mark.parametrize("condition", ["layer", "input"])
def test_checkpointing_that_would_draw_anew_is_refused(condition):
    model = FDNLinear(3, 2, condition=condition)
    x = torch.randn(4, 3, requires_grad=True)
    y, kl = forward(lambda x: checkpoint(model, x, use_reentrant=False), x)
    with pytest.raises(RuntimeError, match="context_fn=fdn.nn.checkpoint_contexts"):
        (y.sum() + kl.sum()).backward()
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        forward(lambda x: checkpoint(model, x, use_reentrant=True), x)


@every_structure
def test_the_kl_is_float32_under_autocast(name):
    model, x = network(name), torch.randn(6, 3)
    with torch.autocast("cpu", torch.bfloat16):
        y, kl = forward(model, x, noise="none")
    exact, exact_kl = forward(model, x, noise="none")
    assert kl.dtype == torch.float32
    torch.testing.assert_close(y.float(), exact, rtol=0.1, atol=0.2)
    torch.testing.assert_close(kl, exact_kl, rtol=0.05, atol=0.1)
    (y.float().sum() + kl.sum()).backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("name", STRUCTURES)
def test_an_ordinary_loop_learns_a_line(name):
    """AdamW on y = 2 x0 - x1 + 1: the error falls from about 6 to below 0.2."""
    torch.manual_seed(0)
    x = torch.randn(256, 3)
    y = (2 * x[:, 0] - x[:, 1] + 1)[:, None]
    model = nn.Sequential(FDNLinear(3, 16, **STRUCTURES[name]), nn.ReLU(), FDNLinear(16, 1, **STRUCTURES[name]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(300):
        optimizer.zero_grad()
        output, kl = forward(model, x)
        elbo_loss((output - y).square().sum(-1), kl, n_train=256, beta=0.1).backward()
        optimizer.step()
    error = (sample(model, x, 20).mean(0) - y).square().mean()
    assert error < 0.2


@pytest.mark.check
def test_two_processes_train_one_model(tmp_path):
    """DistributedDataParallel over gloo: both processes hold the same parameters after steps on different data."""
    script = Path(__file__).with_name("ddp_checks.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    torch.testing.assert_close(one["parameters"], two["parameters"], rtol=0, atol=0)
    assert not torch.equal(one["start"], one["parameters"]) and one["kl"] != two["kl"]


def test_the_noise_of_samples_is_an_op_that_pytorch_accepts():
    op = torch.ops.fdn.standard_normal
    seed = torch.tensor(7)
    for noise in ("shared", "local", "independent"):
        torch.library.opcheck(op, (seed, noise, 2, 5, 3, 4, 1, torch.float64))
    whole = op(seed, "local", 0, 9, 3, 4, 1, torch.float64)
    torch.testing.assert_close(op(seed, "local", 5, 3, 3, 4, 1, torch.float64), whole[5:8], rtol=0, atol=0)
