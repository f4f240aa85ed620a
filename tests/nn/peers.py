"""FDN layers beside bayesian-torch and laplace-torch: tasks in lines of code, and costs; writes data/layers/README.md.

Run by hand, in an environment that has both (``pip install bayesian-torch laplace-torch``):
``OMP_NUM_THREADS=1 python tests/nn/peers.py``. Every snippet is run before its lines are counted.
"""

from __future__ import annotations

import copy
import inspect
import io
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fdn import nn as fdn_nn
from fdn import paths
from fdn.runs import experiment
from fdn.typesetting import pipe_table

BATCH, DRAWS, WIDTHS = 64, 100, (64, 512)
TURNS = {64: (15, 5), 512: (4, 2)}  # of steps and of predictions
MOPED = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0,
         "type": "Reparameterization", "moped_enable": True, "moped_delta": 0.1}  # fmt: skip


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))


# The tasks. Of each function the lines after the first are counted.


def ours_swap(net):
    from fdn.nn import to_fdn

    return to_fdn(net)


def ours_kl(model, x):
    from fdn.nn import forward

    y, kl = forward(model, x)
    return kl.mean()


def ours_predict(model, x):
    from fdn.nn import sample

    return sample(model, x, draws=100)


def ours_save_and_load(model, net, file):
    from fdn.nn import to_fdn

    torch.save(model.state_dict(), file)
    file.seek(0)
    again = to_fdn(net)
    again.load_state_dict(torch.load(file, weights_only=True))
    return again


def ours_freeze(net):
    from fdn.nn import to_fdn

    return to_fdn(net, "4", freeze="others")


def bayesian_swap(net):
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    dnn_to_bnn(net, MOPED)
    return net


def bayesian_kl(model, x):
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    y = model(x)  # noqa: F841 - the pass belongs to the step, as ours does
    return get_kl_loss(model)


def bayesian_predict(model, x):
    with torch.no_grad():
        return torch.stack([model(x) for _ in range(100)])


def bayesian_save_and_load(model, net, file):
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    torch.save(model.state_dict(), file)
    file.seek(0)
    dnn_to_bnn(net, MOPED)
    net.load_state_dict(torch.load(file, weights_only=True))
    return net


def bayesian_freeze(net):
    from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn

    net.requires_grad_(False)
    head = nn.Sequential(net[4])  # dnn_to_bnn changes the children of what it is given, all of them
    dnn_to_bnn(head, MOPED)
    net[4] = head[0].requires_grad_()
    return net


def laplace_swap(net, loader):
    from laplace import Laplace

    la = Laplace(net, "regression", subset_of_weights="all", hessian_structure="diag")
    la.fit(loader)
    return la


def laplace_predict(la, x):
    return la.predictive_samples(x, n_samples=100)


def laplace_save_and_load(la, net, file):
    from laplace import Laplace

    torch.save(la.state_dict(), file)
    file.seek(0)
    again = Laplace(net, "regression", subset_of_weights="all", hessian_structure="diag")
    again.load_state_dict(torch.load(file))
    return again


def laplace_freeze(net, loader):
    from laplace import Laplace

    la = Laplace(net, "regression", subset_of_weights="last_layer")
    la.fit(loader)
    return la


def lines(snippet: Callable) -> str:
    """Lines of code of a function's body, without blank ones."""
    return str(sum(bool(line.strip()) for line in inspect.getsource(snippet).splitlines()[1:]))


def run_snippets() -> None:
    """Every snippet, with what it should have done."""
    torch.manual_seed(0)
    x, y, trained = torch.randn(8, 3), torch.randn(8, 1), network()
    loader = DataLoader(TensorDataset(x, y), 4)
    for swap, kl, predict, reload, freeze in (
        (ours_swap, ours_kl, ours_predict, ours_save_and_load, ours_freeze),
        (bayesian_swap, bayesian_kl, bayesian_predict, bayesian_save_and_load, bayesian_freeze),
    ):
        model = swap(copy.deepcopy(trained))
        assert kl(model, x) > 0
        drawn = predict(model, x)
        assert drawn.shape == (100, 8, 1) and drawn.std(0).min() > 0
        again = reload(model, copy.deepcopy(trained), io.BytesIO())
        found = []
        for one in (model, again):
            torch.manual_seed(1)
            found.append(predict(one, x))
        assert torch.equal(*found)
        head = freeze(copy.deepcopy(trained))
        kept = {id(p) for p in head[:4].parameters()}
        assert kept and not any(p.requires_grad for p in head.parameters() if id(p) in kept)
        assert any(p.requires_grad for p in head[4].parameters()) and predict(head, x).std(0).min() > 0
    la = laplace_swap(copy.deepcopy(trained), loader)
    drawn = laplace_predict(la, x)
    assert drawn.shape == (100, 8, 1) and drawn.std(0).min() > 0
    again = laplace_save_and_load(la, copy.deepcopy(trained), io.BytesIO())
    torch.testing.assert_close(again.posterior_precision, la.posterior_precision)
    last = laplace_freeze(copy.deepcopy(trained), loader)
    assert last.n_params == 17 and laplace_predict(last, x).std(0).min() > 0


TASKS = {
    "swap every linear layer of a trained network": (ours_swap, bayesian_swap, laplace_swap),
    "a pass with its KL": (ours_kl, bayesian_kl, None),
    "predict with 100 draws": (ours_predict, bayesian_predict, laplace_predict),
    "save and load": (ours_save_and_load, bayesian_save_and_load, laplace_save_and_load),
    "last layer only, the rest frozen": (ours_freeze, bayesian_freeze, laplace_freeze),
}


# Costs


def layers(width: int) -> dict[str, nn.Module]:
    from bayesian_torch.layers import LinearFlipout, LinearReparameterization

    plain = nn.Sequential(nn.Linear(width, width))
    low_rank = {"structure": "low_rank", "rank": 4, "residual": True}
    return {
        "plain": plain,
        "bayesian-torch, LinearReparameterization": LinearReparameterization(width, width),
        "bayesian-torch, LinearFlipout": LinearFlipout(width, width),
        "FDN, layer's input": fdn_nn.to_fdn(plain),
        "FDN, network's input": fdn_nn.to_fdn(plain, condition="input"),
        "FDN, low rank 4 beside frozen weights": fdn_nn.to_fdn(plain, freeze="others", **low_rank),
    }


def step(name: str, layer: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """Forward, backward and Adam."""
    optimiser = torch.optim.Adam([p for p in layer.parameters() if p.requires_grad])

    def run() -> None:
        optimiser.zero_grad()
        if name == "plain":
            loss = layer(x).square().sum(-1).mean()
        elif name.startswith("bayesian"):
            y, kl = layer(x)
            loss = y.square().sum(-1).mean() + kl / 1000
        else:
            y, kl = fdn_nn.forward(layer, x)
            loss = fdn_nn.elbo_loss(y.square().sum(-1), kl, n_train=1000)
        loss.backward()
        optimiser.step()

    return run


def prediction(name: str, layer: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    """DRAWS draws; of the plain layer, one pass."""

    @torch.no_grad()
    def run() -> None:
        if name == "plain":
            layer(x)
        elif name.startswith("bayesian"):
            torch.stack([layer(x, return_kl=False) for _ in range(DRAWS)])
        else:
            fdn_nn.sample(layer, x, DRAWS)

    return run


def medians(calls: dict[str, Callable[[], None]], turns: int) -> dict[str, float]:
    """Median seconds of processor time of each, all in turns; of more than two the first does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return {name: float(np.median(taken[turns > 2 :])) for name, taken in seconds.items()}


def costs() -> list[list[str]]:
    """A row for each layer: parameters, and times in units of the plain layer's, for each width."""
    rows: dict[str, list[str]] = {}
    for width in WIDTHS:
        torch.manual_seed(0)
        x, made = torch.randn(BATCH, width), layers(width)
        steps = medians({name: step(name, layer, x) for name, layer in made.items()}, TURNS[width][0])
        draws = medians({name: prediction(name, layer, x) for name, layer in made.items()}, TURNS[width][1])
        for name, layer in made.items():
            cells = [f"{sum(p.numel() for p in layer.parameters()):,}"]
            cells += [f"{taken[name] / taken['plain']:,.3g}".replace("e+0", "e") for taken in (steps, draws)]
            rows.setdefault(name, [name]).extend(cells)
        rows["plain"][0] = "plain `nn.Linear`"
    return list(rows.values())


def main() -> None:
    torch.set_num_threads(1)
    run_snippets()
    tasks = [[task, *("—" if s is None else lines(s) for s in snippets)] for task, snippets in TASKS.items()]
    told = experiment.environment()
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "bayesian-torch", "laplace-torch"))
    headings = [f"{what}, {width}" for width in WIDTHS for what in ("parameters", "step", f"{DRAWS} draws")]
    text = [
        "# FDN layers beside bayesian-torch and laplace-torch\n",
        "Written by `python tests/nn/peers.py`; lines are counted from the functions there, which were run.\n",
        "## Tasks, in lines of code (each with its imports)\n",
        *pipe_table(["task", "fdn.nn", "bayesian-torch", "laplace-torch"], tasks, "|:---|---:|---:|---:|"),
        "\nLaplace approximations are fitted after training and have no KL. In bayesian-torch a frozen backbone is the",
        "caller's work; `dnn_to_bnn` turns every convolution and linear layer below what it is given.\n",
        f"## Costs of one layer, batch {BATCH}, in units of the plain layer's\n",
        "A step is forward, backward and Adam. The plain layer predicts by one pass, the others by "
        f"{DRAWS} draws. Medians of processor time, all layers in turns, one thread.\n",
        *pipe_table(["layer", *headings], costs(), "|:---|" + "---:|" * len(headings)),
        f"\n{versions}; Python {told['python']}; {told['processor']}, {told['cores']} cores, one thread.",
    ]
    (paths.LAYERS / "README.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    sys.exit(main())
