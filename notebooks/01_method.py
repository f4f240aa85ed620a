# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,-all
#     formats: ipynb,py:percent
#     notebook_metadata_filter: jupytext,kernelspec,-all
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 1 · The method
#
# Trained on one range of inputs, a neural network answers outside of it, too, and nothing in its answer says that it
# is guessing. The paper's remedy, in its own words:
#
# > Functional Distribution Networks (FDN) place input-conditioned distributions over network weights,
# > producing predictive mixtures whose dispersion adapts to the input; we train them with a Monte Carlo
# > $\beta$–ELBO objective. — *Abstract*
#
# So an FDN is a network whose weights are random and depend on the input. In each layer a small second network, the
# hypernetwork, reads a signal and says the mean and the standard deviation of every weight; a draw of all weights gives
# one prediction, a hundred draws a spread. In IC-FDNet every layer's signal is the input $x$, in LP-FDNet it is the
# activation of the layer before.
#
# This notebook builds that piece by piece: the problem, then layer and training loop in the open, then
# what the paper says about each part, with an equation, code short enough to read, and a check you can run.
# Checks print how far two things are apart. Quotes are the [paper](https://arxiv.org/abs/2510.17794)'s; **ours**
# marks what is not in it. Settings are those of the published runs, which come from the
# [author's public program](https://github.com/Haq94/Functional-Distribution-Networks) where the paper is silent or
# says otherwise.
#
# 1 The problem · 2 Symbols and settings · 3 Template · 4 Layer · 5 Training loop · 6 Algorithm 1 · 7 IC and LP ·
# 8 KL · 9 β-ELBO · 10 IWAE · 11 Shared, independent and local noise · 12 Limits of Appendix A · 13 Cost ·
# 14 Replicates · 15 Shared and independent draws, seen · Exercises

# %%
# %matplotlib inline
import inspect
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from IPython.display import Markdown, display
from torch import nn
from torch.distributions import MultivariateNormal, Normal, kl_divergence
from torch.utils.flop_counter import FlopCounterMode

from fdn import data, metrics, models
from fdn.arguments import check_parameters, parse_names
from fdn.models import Noise, build_network, model_spec, posteriors
from fdn.models.stacking import Stack
from fdn.protocol import AS_WRITTEN, PUBLISHED, PUBLISHED_SEEDS
from fdn.report import figures, tables
from fdn.report.figures.drawing import BAND, STYLE
from fdn.settings import Whole, checked
from fdn.timing.plain import plain_fit
from fdn.training import objectives
from fdn.training.fused import FusedStep
from fdn.training.loop import fit
from fdn.training.prediction import Prediction
from fdn_kernels import fdn_linear
from fdn_kernels.reference import hypernet_gaussian, matvec, moments

# %% tags=["parameters"]
dataset: str = "step"  # toy task that is trained on: step, sine or quad
seed: int = 0  # model seed of what is trained
out: str = ""  # folder for the figures of what is trained, as PDF and PNG; empty means none

# %%
check_parameters(In)
(name,) = parse_names(dataset, data.TOY, "toy task")
seed, task = checked("seed", seed, Whole), data.load(name)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)  # initial weights
rng = np.random.default_rng(0)  # every other random number of this notebook
plt.style.use(STYLE)


def normal(*shape):
    """Standard normal numbers as a tensor."""
    return torch.from_numpy(rng.standard_normal(shape))


def show(thing):
    """The source of a class or function of the library."""
    display(Markdown(f"```python\n{inspect.getsource(thing)}```"))


def same(what, *pairs, below=1e-10):
    """Print by how much tensors that should be equal differ, relative to their size; stop if that is too much."""
    gap = max(float((a - b).detach().abs().max() / (1 + b.detach().abs().max())) for a, b in pairs)
    print(f"{what}: largest relative difference {gap:.0e}")
    assert gap <= below, what


# %% [markdown]
# ## 1.1 The problem
#
# > Modern neural predictors are often deployed under dataset shift, where test inputs depart from the training
# > distribution. In such regimes, deterministic networks and common stochastic heuristics frequently become
# > *overconfident*. — *Section 1*
#
# Train on $[-1,1]$, ask on $[-10,10]$. A network answers anywhere, and outside the shaded band nothing in its
# answer says that it is guessing. An ensemble of ten disagrees a little; a band of two standard deviations around
# its mean is what it admits not to know. An FDN draws its weights from a distribution that depends on the input.


# %%
def points_of(trained):
    """What figures are made from: mean and variance at the test points."""
    p = trained.predict(seed, task.x_test)
    region = np.where(task.id_test, "ID", "OOD")
    columns = {"z": task.x_test[:, 0], "y": task.y_test, "region": region, "mean": p.mean, "var": p.epistemic}
    return pd.DataFrame(columns)


epochs = {"MLPNet": 60, "DeepEnsembleNet": PUBLISHED.epochs, "LP-FDNet": PUBLISHED.epochs}  # 60 suffice an MLP
protocols = {model: replace(PUBLISHED, epochs=n) for model, n in epochs.items()}
fits = {model: fit(model_spec(model, 1, p), task, p, seeds=[seed]) for model, p in protocols.items()}
points = {model: points_of(trained) for model, trained in fits.items()}
no_runs = pd.DataFrame(columns=["model", "seed"])
study = figures.DatasetResults(name, "published", no_runs, seed, points, true_function=task.true_function)
opening = figures.uncertainty(study)
if out:
    figures.save(opening, Path(out) / f"{name}_opening")
display(opening)

# %% tags=["nbval-ignore-output"]
rows = {}
for model, frame in points.items():
    near = (frame["mean"] - frame["y"]).abs() <= 2 * frame["var"] ** 0.5
    regions = frame["region"], pd.DataFrame({"sd": frame["var"] ** 0.5, "share of targets in the band": near})
    rows[model] = regions[1].groupby(regions[0]).mean().unstack()
print(pd.DataFrame(rows).T.to_string(float_format="{:.2f}".format))

# %% [markdown]
# The scale is linear over the targets and logarithmic beyond. The FDN's band does what the others' do not: outside,
# it is wide enough. It is also wide *inside*, where there are data; whether that is a good bargain is what the rest
# of this book measures.
#
# ## 1.2 Symbols and settings
#
# All symbols of the paper's table of notation (Appendix C) and their names in the code. They mean the same in all
# notebooks. Three are ours, to keep apart what the paper writes alike: the floor of $\sigma$ is $\sigma_{\min}$, as
# in its section 4.3, and not $\varepsilon$, which is the noise; $Q_\ell=P_\ell/2$ is the number of weights and biases
# of a layer; and Spearman's $\rho(\cdot,\cdot)$ is about two things, where $\rho_W,\rho_b$ are parameters. (The op of
# notebook 6 calls the hypernetwork's hidden units $z$ and their number $h$.)

# %%
display(Markdown(tables.notation_table().to_markdown()))

# %% [markdown]
# The settings (Appendix F, table "Monte Carlo and training Hyperparameters"), as the published runs had them and as
# the paper prints them. Where they differ, the published column is what made the numbers; notebook 2 goes on.

# %%
both = (PUBLISHED, AS_WRITTEN)
of = lambda setting: [getattr(p, setting) for p in both]
settings = {
    "MC samples (train) $K_{train}$": of("train_draws"),
    "MC samples (validate, test) $K_{val}$, $K_{test}$": of("eval_draws"),
    "epochs": of("epochs"),
    "epochs of each of the $M$ members": [p.epochs // p.ensemble_members for p in both],
    "ensemble size $M$": of("ensemble_members"),
    "optimiser": ["Adam"] * 2,
    r"learning rate $\eta$": of("learning_rate"),
    "batch size $B$": of("batch_size"),
    "gradient norm clipped to": of("clip_norm"),
    r"weight prior std $\sigma_0$": of("prior_scale"),
    r"floor $\sigma_{\min}$": of("floor"),
    r"observation noise $\sigma^2$, in squared units of $y$": [
        f"{PUBLISHED.observation_variance}: MSE + KL",
        "not stated",
    ],
    r"KL schedule $\beta_t$": of("beta_schedule"),
    r"maximum $\beta_{\max}$": of("beta_max"),
    "warm-up": [f"{p.warmup} {p.warmup_unit}" for p in both],
    "noise of a pass": of("noise"),
    "toy grid seed": [0] * 2,
    f"model seed of {', '.join(PUBLISHED_SEEDS)}": [", ".join(map(str, PUBLISHED_SEEDS.values())), "the same"],
    "checkpoint (stochastic)": ["epoch of the smallest CRPS on the ID validation points"] * 2,
    "checkpoint (deterministic)": ["epoch of the smallest MSE there"] * 2,
}
rows = "".join(f"| {what} | {a} | {b} |\n" for what, (a, b) in settings.items())
display(Markdown("| setting | published runs | in print |\n|:---|:---|:---|\n" + rows))

# %% [markdown]
# The seeds' numbers name streams of another generator than ours: what we reproduce are distributions over seeds
# (section 2.7). And $\sigma^2$ is large beside what it is the noise of. The toy targets have none, and vary by:

# %%
for toy in data.TOY:
    v = data.load(toy).y_train.var()
    print(f"{toy:5} var(y) = {v:.3f}, sigma^2 / var(y) = {PUBLISHED.observation_variance / v:.1f}")

# %% [markdown]
# ## 1.3 The template
#
# > Rather than treating weights as fixed (or globally random), FDN places an input-conditioned distribution
# > over weights: […] all input dependence is carried by an amortized posterior $q_\phi(\theta\mid x)$
# > implemented via small Hypernetworks. — *Section 1*
#
# $$p(y\mid x)=\int p(y\mid x,\theta)\,q_\phi(\theta\mid x)\,d\theta\approx\frac1K\sum_{k=1}^K
# p\big(y\mid x,\theta^{(k)}\big),\qquad\theta^{(k)}\sim q_\phi(\theta\mid x).\tag{App. A}$$
#
# Appendix A writes the competitors in the same form, and so does the code: a model is a choice of $q$, layer
# by layer, and nothing else in training, prediction or evaluation asks which model it has.
#
# | model | $q_\phi(\theta\mid x)$ | layer in `fdn.models.posteriors` |
# |:---|:---|:---|
# | MLPNet | $\delta(\theta-\hat\theta)$ | `PointLinear` |
# | HyperNet | $\delta(\theta-G_\phi(x))$ | `HyperLinear` |
# | MLPDropoutNet | $\hat\theta$ under random masks | `PointLinear` |
# | DeepEnsembleNet | $\frac1M\sum_m\delta(\theta-\theta_m)$ | `PointLinear`, $M$ times |
# | BayesNet | $\mathcal N(\mu,\sigma^2)$, one for all $x$ | `GaussianLinear` |
# | GaussHyperNet | $\mathcal N(\mu(h),\sigma^2(h))$, $h$ a trained vector | `LatentGaussianLinear` |
# | IC-FDNet | $\prod_\ell\mathcal N(\mu_\ell(x),\sigma_\ell^2(x))$ | `FDNLinear`, `"input"` |
# | LP-FDNet | $\prod_\ell\mathcal N(\mu_\ell(a_{\ell-1}),\sigma_\ell^2(a_{\ell-1}))$ | `FDNLinear`, `"layer"` |

# %%
show(models.build_network)
print(*models.MODEL_NAMES, sep=", ")

# %% [markdown]
# ## 1.4 The layer
#
# > For each layer $\ell$, FDN places a diagonal-Gaussian over its weights whose parameters are produced by a
# > small Hypernetwork $A_\ell(\cdot)$. — *Section 3.2*
#
# $$(\mu_W,\rho_W,\mu_b,\rho_b)=A_\ell(s_\ell),\qquad\sigma=\sigma_{\min}+\operatorname{softplus}(\rho),\qquad
# \theta=\mu+\sigma\odot\varepsilon,\qquad a_\ell=W a_{\ell-1}+b .$$
#
# $A_\ell$ is Linear – ReLU – Linear with $h_{\mathrm{hyp}}$ hidden units (Appendix G), and
# $\sigma_{\min}=10^{-3}$.

# %%
figures.layer_diagram()


# %% [markdown]
# The equations, typed in. Tensors are `(K, B, ·)`: draws, examples, features.


# %%
class Layer(nn.Module):
    """One FDN layer, straight from section 3.2."""

    def __init__(self, d_in, d_out, d_s, h, floor=1e-3):
        super().__init__()
        self.d_in, self.d_out, self.floor = d_in, d_out, floor
        self.sizes = [d_out * d_in, d_out * d_in, d_out, d_out]  # mu_W, rho_W, mu_b, rho_b
        self.A = nn.Sequential(nn.Linear(d_s, h), nn.ReLU(), nn.Linear(h, sum(self.sizes)))

    def forward(self, a, s, eps_W, eps_b):
        mu_W, rho_W, mu_b, rho_b = self.A(s).split(self.sizes, -1)  # (k, B, ·)
        sigma_W, sigma_b = self.floor + F.softplus(rho_W), self.floor + F.softplus(rho_b)
        W = (mu_W + sigma_W * eps_W).unflatten(-1, (self.d_out, self.d_in))  # (K, B, d_out, d_in)
        b = mu_b + sigma_b * eps_b  # (K, B, d_out)
        mu, sigma = torch.cat([mu_W, mu_b], -1), torch.cat([sigma_W, sigma_b], -1)
        kl = 0.5 * (sigma**2 + mu**2 - 1 - (sigma**2).log()).sum(-1)  # (k, B)
        return (W @ a.unsqueeze(-1)).squeeze(-1) + b, kl


# %% [markdown]
# In the library the same layer is one op, `fdn_kernels.fdn_linear`, with two implementations: `reference`
# defines it in einsum, `torch` has a hand-written backward pass and, in prediction, never holds a whole
# $K\times B\times P$ tensor. **Check:** outputs, KL and every gradient agree with the equations, with one
# $\varepsilon$ per example (`independent`) and with one $\varepsilon$ for the whole minibatch (`shared`).


# %% tags=["nbval-ignore-output"]
def value_and_gradients(f, leaves):
    """Outputs of f and the gradients of a fixed functional of them."""
    y, kl = f()
    loss = (y.sin() * torch.arange(1.0, y.numel() + 1).reshape(y.shape)).sum() + 0.1 * kl.square().sum()
    return [y, kl, *torch.autograd.grad(loss, leaves)]


K, B, d_in, d_out, h = 3, 7, 4, 5, 6
layer = Layer(d_in, d_out, d_in, h)
a = normal(K, B, d_in).requires_grad_()
V, U = layer.A[0], layer.A[2]
leaves = [a, V.weight, V.bias, U.weight, U.bias]
for noise, b in (("independent", B), ("shared", 1)):
    eps = normal(K, b, d_out * (d_in + 1))  # weights first, then biases
    ours = value_and_gradients(lambda: layer(a, a, *eps.split([d_out * d_in, d_out], -1)), leaves)
    for backend in ("reference", "torch"):
        options = {"noise": noise, "eps": eps, "backend": backend}
        op = lambda: fdn_linear(a, V(a).relu(), U.weight, U.bias, **options)
        what = f"{noise:12} {backend:10} y, KL and {len(leaves)} gradients"
        same(what, *zip(value_and_gradients(op, leaves), ours))

# %% [markdown]
# The module around the op adds only the choice of the conditioning signal:

# %%
show(posteriors.FDNLinear)

# %% [markdown]
# ## 1.5 The training loop
#
# Two such layers with a ReLU between them are the network, and this is all of its training under the published
# protocol: one draw per update, mean squared error plus $\beta_t$ KL, Adam, and the epoch with the smallest
# validation CRPS kept. (The loss has no noise variance $\sigma^2$ of its own: section 1.9 says which one it implies.)
# `lib/fdn/timing/plain.py` is the same loop for all models; the results come from one that trains all seeds at once
# (section 1.14).


# %%
class Net(nn.Module):
    """LP-FDNet with one hidden layer; the noise of a draw is shared by all examples."""

    def __init__(self, d_x=1, width=24, h=5):
        super().__init__()
        self.layers = nn.ModuleList([Layer(d_x, width, d_x, h), Layer(width, 1, width, h)])

    def forward(self, x, draws=1):
        a, total = x.expand(draws, *x.shape), 0.0  # (K, B, d_x)
        for layer in self.layers:
            a = a if layer is self.layers[0] else a.relu()
            n_W, n_b = layer.d_out * layer.d_in, layer.d_out
            a, kl = layer(a, a, torch.randn(draws, 1, n_W), torch.randn(draws, 1, n_b))
            total = total + kl
        return a[..., 0], total  # (K, B), (K, B)


# %%
def train(net, task, epochs, warmup=200):
    """Validation CRPS of every epoch and the epoch kept, whose parameters the network has in the end."""
    x, y = torch.from_numpy(task.x_train), torch.from_numpy(task.y_train)
    x_val, y_val = torch.from_numpy(task.x_val[task.id_val]), task.y_val[task.id_val]
    optimiser, scores, best = torch.optim.Adam(net.parameters(), lr=1e-3), [], None
    for epoch in range(1, epochs + 1):
        beta = min(epoch / warmup, 1)
        for batch in torch.randperm(len(x)).split(64):
            output, kl = net(x[batch])
            loss = (output - y[batch]).square().mean() + beta * kl.mean()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimiser.step()
        with torch.no_grad():
            scores.append(metrics.crps(net(x_val, draws=100)[0].numpy(), y_val).mean())
        if scores[-1] == min(scores):
            best = epoch, {name: value.clone() for name, value in net.state_dict().items()}
    net.load_state_dict(best[1])
    return np.array(scores), best[0]


# %%
# Validation CRPS of the loop above and of the library's run, and β, against the epoch; dotted, the kept epoch.
torch.manual_seed(seed)
net = Net()
ours, _ = train(net, task, epochs=100)
library = fits["LP-FDNet"]  # of section 1.1: the same model, 400 epochs
scores, kept = np.array(library.scores[0]), int(library.best_epoch[0])
epochs = np.arange(1, len(scores) + 1)
beta = np.minimum(epochs / PUBLISHED.warmup, 1)
fig, ax = plt.subplots(figsize=(5, 2.4), layout="constrained")
ax.plot(epochs, scores, color="0.6", label="library, section 1.1")
ax.plot(epochs[: len(ours)], ours, color="#D55E00", label="the loop above")
ax.axvline(kept, color="black", linestyle=":", linewidth=0.9)
ax.set(xlabel="epoch", ylabel="validation CRPS")
ax.set_title(f"library: kept epoch {kept} of {len(scores)}, where β = {beta[kept - 1]:.2f}")
ax.legend(loc="lower right")
beta_axis = ax.twinx()
beta_axis.plot(epochs, beta, color="#0072B2")
beta_axis.set(ylabel="β", ylim=(0, 1.05))
plt.show()

# %% [markdown]
# The loop above (orange) stops after 100 epochs; the same model of section 1.1 (grey, other random numbers) went on to
# the end, long after β (blue) had reached 1. Look where its kept epoch lies (dotted): β is still on its way up. The more
# it weighs, the wider the weights and the worse the CRPS, so the checkpoint is chosen *inside* the warm-up, and what the
# tables call FDN was trained with a β well below 1. Sections [3.3](03_toy.ipynb) and [4.3](04_uci.ipynb) show this for
# all tasks and seeds, and what other choices of the epoch do.
#
# **Check.** The plain program against the stacked one that made the results: with the same random numbers, the
# validation scores of three epochs and the parameters after them.

# %% tags=["nbval-ignore-output"]
short = replace(PUBLISHED, epochs=3, eval_draws=10)
spec = model_spec("LP-FDNet", 1, short)
plain = plain_fit(spec, task, short, seed, program_noise=True)
stacked = fit(spec, task, short, seeds=[seed])
kept_by_plain = torch.nn.utils.parameters_to_vector(plain.networks[0].parameters()).detach()
same("validation scores", (torch.from_numpy(plain.scores), torch.as_tensor(stacked.scores[0])))
same("parameters", (kept_by_plain, stacked.flat[0]))

# %% [markdown]
# ## 1.6 Algorithm 1
#
# Appendix E gives one training step for both variants. With its line numbers:
#
# | line | Algorithm 1 | in the library |
# |---:|:---|:---|
# | 2, 3 | for each step, sample a minibatch $\mathcal B$ | `fdn.training.loop.fit`: reshuffled epochs of batches of 64 |
# | 4, 5 | for each $(x,y)\in\mathcal B$, for $k=1,\dots,K$ | axes `B` and `K` of every tensor |
# | 6–8 | $h_0\gets x$; $c_l\gets x$ (IC) or $h_{l-1}^{(k)}$ (LP) | `FDNLinear.condition` |
# | 9 | $\varepsilon\sim\mathcal N(0,I)$, $\theta_l\gets\mu(c_l)+\sigma(c_l)\odot\varepsilon$ | `Network.draw_noise`, `fdn_linear` |
# | 10 | $h_l\gets\text{layer}_l(h_{l-1};\theta_l)$, ReLU between layers | `Network.forward` |
# | 11 | $\Sigma_{\mathrm{KL}}\mathrel{+}=KL(q(\theta_l\mid c_l)\,\Vert\,p_0)$ | summed over layers in `Network.forward` |
# | 13–16 | $\Sigma_{\mathrm{NLL}}\mathrel{+}=-\frac1K\sum_k\log\mathcal N(y;\mu^{(k)},\sigma^2)$ | `HomoscedasticGaussian.log_prob` |
# | 18 | $\mathcal L\gets\frac1N(\Sigma_{\mathrm{NLL}}+\beta_t\Sigma_{\mathrm{KL}})$, backprop | `fdn.training.objectives.beta_elbo` |
# | 20 | predict: average the densities of $K$ draws | `fdn.training.prediction.Prediction.mixture` |
#
# **Ours.** Taken literally, line 11 sums the KL over $k$ while line 16 averages the likelihood, so the
# balance of the two would depend on $K$; and line 18 divides a minibatch's sum by the size $N$ of the data
# set. We read both as averages, over draws and over the minibatch, as Appendix B says in words ("averages
# over the minibatch", "averaged over this upstream randomness").


# %%
def algorithm_1(network, x, y, eps, beta, variance, variant):
    """Lines 4-18 as loops; eps holds per layer the noise (K, B, Q_l)."""
    K, B = eps[0].shape[:2]
    nll = kl = 0.0
    for i in range(B):  # line 4
        for k in range(K):  # line 5
            h = x[i]  # line 6
            for l, layer in enumerate(network.layers):  # line 7
                c = x[i] if variant == "IC" else h  # line 8
                out = layer.hypernet.output
                z = layer.hypernet.hidden(c).relu()[None, None]  # (1, 1, h)
                q = hypernet_gaussian(z, out.weight, out.bias, layer.d_in, layer.floor)
                theta = q.mean + q.scale * eps[l][k, i]  # line 9, (1, 1, Q_l)
                h = matvec(theta, h[None, None])[0, 0]  # line 10, (d_l,)
                h = h.relu() if l < len(network.layers) - 1 else h
                kl += kl_divergence(Normal(*q), Normal(0.0, 1.0)).sum() / K  # line 11
            nll -= Normal(h, variance**0.5).log_prob(y[i]).sum() / K  # lines 13-16
    return (nll + beta * kl) / B  # line 18


# %% [markdown]
# **Check.** The loops against the library's batched forward pass, for both variants with the paper's widths.
# The library's loss is $2\sigma^2$ times the algorithm's, less a constant; section 1.9 says why.

# %% tags=["nbval-ignore-output"]
x, y, K, s2, beta = normal(5, 1), normal(5), 3, 0.5, 0.3
likelihood = objectives.HomoscedasticGaussian(s2)
for variant in ("IC", "LP"):
    network = build_network(model_spec(f"{variant}-FDNet", 1, PUBLISHED), 1, PUBLISHED)
    eps = tuple(normal(K, len(x), layer.d_out * (layer.d_in + 1)) for layer in network.layers)
    literal = algorithm_1(network, x, y, eps, beta, s2, variant)
    output, kl = network(x, Noise("independent", eps), kl="analytic")  # (K, B, 1), (k, B)
    loss = objectives.beta_elbo(output, y, kl, 2 * s2 * beta, likelihood)
    pair = loss / (2 * s2) + 0.5 * np.log(2 * np.pi * s2), literal
    same(f"{variant}-FDNet, KL of shape {tuple(kl.shape)}: loops and batched pass", pair)

# %% [markdown]
# ## 1.7 IC and LP
#
# > *IC-FDNet* […] uses the raw input $x$ at every layer […] so all layers see the same features when sampling
# > weights. *LP-FDNet* […] instead uses hidden activations. — *Section 3.2*
#
# > This induces a first-order Markov structure in depth, allowing uncertainty to expand as signals propagate.
# > — *Appendix A*
#
# The shapes above tell them apart. Under IC, $q(\theta\mid x)=\prod_\ell q(\theta_\ell\mid x)$ has
# independent layers and one KL per example, `(1, B)`. Under LP the second layer's Gaussian is itself random,
# $q(\theta\mid x)=q(\theta_1\mid x)\,q(\theta_2\mid a_1(\theta_1))$: a mixture, no longer Gaussian in
# $\theta_2$, with one KL per draw and example, `(K, B)`. **Check:** how much of the second layer's $\sigma$
# at a fixed $x$ changes from draw to draw.

# %% tags=["nbval-ignore-output"]
x_star = torch.tensor([[0.8]])  # (1, 1)
for variant in ("IC", "LP"):
    torch.manual_seed(1)
    network = build_network(model_spec(f"{variant}-FDNet", 1, PUBLISHED), 1, PUBLISHED)
    first, second = network.layers
    a1 = first(x_star[None], x_star[None], "shared", normal(1000, 1, 2 * first.d_out), "none")[0].relu()
    signal = x_star[None] if variant == "IC" else a1  # (1, 1, 1) or (1000, 1, d_1)
    out = second.hypernet.output
    z = second.hypernet.hidden_activation(signal)
    sigma = hypernet_gaussian(z, out.weight, out.bias, second.d_in, second.floor).scale  # (k, 1, Q_2)
    moves = (sigma.std(0, correction=0) / sigma.mean(0)).mean().item()
    print(f"{variant}: {len(sigma):4} distribution(s) of layer 2 at one x; sigma varies by {moves:.1%} between draws")
    assert (moves > 0) == (variant == "LP")

# %% [markdown]
# ## 1.8 The KL term
#
# > We regularize $q_\phi(\theta\mid x)$ toward a simple reference $p_0(\theta)=\prod_\ell\mathcal
# > N(0,\sigma_0^2I)$ […] We sum this over all layers and parameters (both $W_\ell$ and $b_\ell$). — *Section
# > 3.2*
#
# $$KL=\tfrac12\sum_j\Big(\frac{\sigma_j^2+\mu_j^2}{\sigma_0^2}-1-\log\frac{\sigma_j^2}{\sigma_0^2}\Big).$$
#
# **Check** against `torch.distributions`, with $\sigma_0\ne1$ so that no term can hide; and against its
# one-sample estimate $\log q(\theta)-\log p_0(\theta)$, which the IWAE bound needs.

# %% tags=["nbval-ignore-output"]
n, s0 = 200_000, 1.7
z = normal(1, 1, h).relu()  # one example
a = normal(1, 1, d_in)
op = {"weight": U.weight.detach(), "bias": U.bias.detach(), "prior_scale": s0, "noise": "shared"}
q = hypernet_gaussian(z, op["weight"], op["bias"], d_in, 1e-3)
exact = kl_divergence(Normal(*q), Normal(0.0, s0)).sum(-1)  # (1, 1)
_, closed = fdn_linear(a, z, eps=normal(1, 1, q.mean.shape[-1]), kl="analytic", **op)
_, sampled = fdn_linear(a, z, eps=normal(n, 1, q.mean.shape[-1]), kl="sampled", **op)  # (n, 1)
error = (sampled.mean() - exact).abs() / (sampled.std() / n**0.5)
same("closed form and torch.distributions", (closed, exact))
print(f"mean of {n} one-sample estimates: {error.item():.1f} standard errors away")
assert error < 4

# %% [markdown]
# ## 1.9 The β-ELBO
#
# > Under this likelihood, the $\beta$–ELBO reduces (up to constants) to a weighted squared-error term plus a
# > KL penalty, yielding a $MSE+\beta\,KL$ objective. — *Section 3.1*
#
# $$\underbrace{2\sigma^2\Big[-\tfrac1K\textstyle\sum_k\log\mathcal N(y;f_{\theta^{(k)}}(x),\sigma^2)+KL\Big]
# }_{2\sigma^2\,\mathcal L_{\mathrm{ELBO}}}=\tfrac1K\textstyle\sum_k\big(y-f_{\theta^{(k)}}(x)\big)^2
# +2\sigma^2\,KL+\sigma^2\log(2\pi\sigma^2)\tag{App. D}$$
#
# So $\beta=2\sigma^2$, and MSE + $\beta$ KL with $\beta=1$ is standard variational inference under a noise
# variance of ½. (**Ours** to spell out: the paper absorbs $\sigma^2$ into $\beta$ and never states it. Where
# a density is needed, we use ½.) The KL is scaled in exactly one place:

# %%
show(objectives.beta_elbo)

# %% tags=["nbval-ignore-output"]
network = build_network(model_spec("LP-FDNet", 1, PUBLISHED), 1, PUBLISHED)
eps = tuple(normal(4, 5, layer.d_out * (layer.d_in + 1)) for layer in network.layers)
output, kl = network(x, Noise("independent", eps), kl="analytic")
for s2 in (0.1, 0.5, 2.0):
    log_p = Normal(output[..., 0], s2**0.5).log_prob(y)  # (K, B)
    elbo_loss = -log_p.mean() + kl.mean()
    mse_loss = objectives.beta_elbo(output, y, kl, 2 * s2, objectives.HomoscedasticGaussian(s2))
    pair = 2 * s2 * elbo_loss, mse_loss + s2 * np.log(2 * np.pi * s2)
    same(f"sigma^2 = {s2}: 2 sigma^2 ELBO loss and MSE + 2 sigma^2 KL + constant", pair)

# %% [markdown]
# β warms up linearly to 1, over "200 updates" in the paper's table but over 200 **epochs** in the runs behind
# its numbers. With 16 minibatches an epoch that is the difference between the 13th epoch and the 200th:

# %%
for epoch in (1, 13, 100, 200, 400):
    by_epoch = objectives.beta_at(epoch, "linear", warmup=200)
    by_update = objectives.beta_at(16 * epoch, "linear", warmup=200)
    print(f"epoch {epoch:3}: beta = {by_epoch:.3f} counted in epochs, {by_update:.3f} in updates")

# %% [markdown]
# ## 1.10 The IWAE bound
#
# > IWAE variant (log of means; tighter bound). […] which implicitly accounts for the KL via the weights and
# > typically needs no extra $\beta$ […]. We report main results with (A) for simplicity and stability.
# > — *Appendix B*
#
# $$\mathcal L_{\mathrm{IWAE}}=-\log\frac1K\sum_{k=1}^K\frac{p_0(\theta^{(k)})\,p(y\mid
# x,\theta^{(k)})}{q_\phi(\theta^{(k)}\mid x)}\tag{App. B, variant B}$$

# %%
show(objectives.iwae)

# %% [markdown]
# A single FDN layer with one output can be solved by hand, which makes a good test bench (**ours**). With
# $\varphi=(x,1)$ the network is $f_\theta(x)=\theta^\top\varphi$, so under the prior
# $y\mid x\sim\mathcal N(0,\sigma^2+\sigma_0^2\lVert\varphi\rVert^2)$, and the posterior given this one
# $(x,y)$ is Gaussian too. **Checks:** (i) the ELBO misses the evidence by exactly
# $KL(q(\theta\mid x)\,\Vert\,p(\theta\mid x,y))$; (ii) IWAE with $K=1$ is the ELBO with a sampled KL.

# %% tags=["nbval-ignore-output"]
s2, x0, y0 = 0.5, torch.tensor([[0.7]]), torch.tensor([1.5])
layer = posteriors.FDNLinear(1, 1, hyper=4, condition="input", d_signal=1, floor=1e-3, prior_scale=1.0)
out, phi = layer.hypernet.output, torch.tensor([0.7, 1.0])
q = hypernet_gaussian(layer.hypernet.hidden_activation(x0[None]), out.weight, out.bias, 1, 1e-3)
mu, sigma = (t.detach().flatten() for t in q)  # (2,): weight, bias

evidence = Normal(0.0, (s2 + phi @ phi).sqrt()).log_prob(y0)
posterior = MultivariateNormal(phi * y0 / (s2 + phi @ phi), precision_matrix=torch.eye(2) + torch.outer(phi, phi) / s2)
data_term = Normal(phi @ mu, s2**0.5).log_prob(y0) - (phi**2 @ sigma**2) / (2 * s2)  # exact E_q log p
elbo = data_term - kl_divergence(Normal(mu, sigma), Normal(0.0, 1.0)).sum()
gap = kl_divergence(MultivariateNormal(mu, torch.diag(sigma**2)), posterior)
same("(i)  ELBO and log p(y | x) - KL(q || posterior)", (elbo, evidence - gap))

# %% tags=["nbval-ignore-output"]
likelihood = objectives.HomoscedasticGaussian(s2)
output, log_ratio = layer(x0[None], x0[None], "shared", normal(1, 1, 2), "sampled")
one = 2 * s2 * objectives.iwae(output, y0, log_ratio, likelihood)
sampled = objectives.beta_elbo(output, y0, log_ratio, 2 * s2, likelihood) + s2 * np.log(2 * np.pi * s2)
same("(ii) IWAE with K = 1 and sampled ELBO", (one, sampled))

# %% [markdown]
# (iii) In expectation the bound rises with $K$, from the ELBO to the evidence.

# %%
with torch.no_grad():
    bounds = []
    for K in (1, 4, 16, 64, 256):
        a, eps = x0.expand(4000, 1, 1, 1), normal(4000, K, 1, 2)  # 4000 replicates of K draws
        output, log_ratio = layer(a, a, "shared", eps, "sampled")  # (R, K, 1, 1), (R, K, 1)
        bounds.append(-objectives.iwae(output, y0, log_ratio, likelihood).mean())
        print(f"K = {K:3}: {bounds[-1]:.2f}")
print(f"ELBO {elbo.item():.2f}, log p(y | x) {evidence.item():.2f}")
assert all(low < high for low, high in zip(bounds, bounds[1:])) and bounds[-1] < evidence + 0.01

# %% [markdown]
# **Ours**, and worth keeping in mind: check (i) says what training does at $\beta=2\sigma^2$. The evidence
# $p(y\mid x)$ under $p_0$ contains nothing trainable, so all progress is $q(\theta\mid x)$ moving towards
# $p(\theta\mid x,y)$, the posterior given *one* example: here the prior, narrowed along the single direction
# $\varphi$. More data make $q$ a better amortisation; they do not make it narrower. FDN's weights are a
# per-example latent variable, as in a VAE whose encoder does not see $y$. (BayesNet's posterior would narrow
# with $N$ if the $N$ examples shared its one KL; the published runs do not divide it, so there it does not
# either.)

# %% [markdown]
# ## 1.11 Shared, independent and local noise
#
# Algorithm 1 draws $\varepsilon$ inside the loop over examples: **independent** noise. The runs behind the
# published numbers used **shared** noise: one $\varepsilon$ per weight and pass, applied to every example's
# own $(\mu,\sigma)$, so that draw $k$ is one function over all $x$. At a single $x$ the two have the same
# law. Across examples they do not.
#
# **Ours:** with independent noise each sampled weight meets one activation and is never seen again. The
# output given the input is then exactly
#
# $$y\mid a\sim\mathcal N\big(\mu_Wa+\mu_b,\ \sigma_W^2a^2+\sigma_b^2\big),\quad\text{independent over outputs},$$
#
# and drawing it directly, $d_{\mathrm{out}}$ numbers instead of $d_{\mathrm{out}}(d_{\mathrm{in}}+1)$, is no
# approximation. The library calls this **local** and uses it wherever the protocol says independent (but for
# the IWAE, which weighs the sampled weights themselves).

# %%
n, d_in, d_out, h = 200_000, 2, 2, 4
layer = posteriors.FDNLinear(d_in, d_out, h, "layer", d_in, floor=1e-3, prior_scale=1.0)
layer.requires_grad_(False)
a, out = normal(1, 2, d_in), layer.hypernet.output  # two examples
q = hypernet_gaussian(layer.hypernet.hidden_activation(a), out.weight, out.bias, d_in, 1e-3)
mean, var = (m[0] for m in moments(a, q))  # (2, d_out) each
gain = torch.cat([a[0].repeat(1, d_out), torch.ones(2, d_out)], -1) * q.scale[0]  # sigma_j a_j, (2, Q)
shared_cov = (gain[0] * gain[1])[[0, 1, 4]].sum()  # output 0 has weights 0, 1 and bias 4
rows = {"exact, one example": [mean[0, 0], var[0, 0], 0.0, np.nan]}
for noise, shape in (("shared", (1, 6)), ("independent", (2, 6)), ("local", (2, 2))):
    y = layer(a, a, noise, normal(n, *shape), "none")[0]  # (n, 2, d_out)
    c = torch.cov(y[:, 0].T)  # over outputs, at example 0
    rows[noise] = [y[:, 0, 0].mean(), c[0, 0], c[0, 1], torch.cov(y[..., 0].T)[0, 1]]
    expected = torch.tensor([mean[0, 0], var[0, 0], 0.0, shared_cov if noise == "shared" else 0.0])
    assert torch.allclose(torch.tensor(rows[noise]), expected, atol=0.05, rtol=0.02)
columns = ["mean", "variance", "cov of two outputs", "cov of two examples"]
table = pd.DataFrame(rows, index=columns, dtype=float).T
print(table.to_string(float_format="{:z.2f}".format, na_rep=""))
print(f"shared, covariance of two examples by hand: {shared_cov:.2f}")

# %% [markdown]
# Why the choice matters for training: sixty-four fresh draws average out within a minibatch, a shared draw
# does not. **Check:** total variance of the gradient over 200 noise draws, same network, same minibatch. (The
# 200 passes are one, with the network's parameters repeated along a leading axis; section 1.14.)

# %%
torch.manual_seed(2)
step = data.load("step")
x, y = torch.from_numpy(step.x_train[:64]), torch.from_numpy(step.y_train[:64])
stack = Stack([build_network(model_spec("LP-FDNet", 1, PUBLISHED), 1, PUBLISHED)], (1,))
spread = {}
for kind, b in (("shared", 1), ("independent", 64)):
    flat = stack.flat.expand(200, -1).clone().requires_grad_()  # (200, n)
    eps = tuple(normal(200, 1, b, layer.d_out * (layer.d_in + 1)) for layer in stack.network.layers)
    output, kl = stack(flat, x.expand(200, 64, 1), Noise(kind, eps), kl="analytic")
    objectives.beta_elbo(output, y, kl, 0.1, likelihood).sum().backward()
    spread[kind] = flat.grad.var(0).sum()
ratio = spread["shared"] / spread["independent"]
print(f"gradient variance, shared over independent: about {ratio:.0f}")
assert ratio > 10

# %% [markdown]
# ## 1.12 The limits of Appendix A
#
# > Note, in the limit $\sigma_\ell\to0$ for all $\ell$, the model collapses to a deterministic
# > layer-conditioned Hypernetwork. — *Appendix A*
#
# **Check.** Give LP-FDNet's means to a HyperNet, remove the floor and send $\rho\to-\infty$. The draws
# approach HyperNet's output at the rate of $\sigma$ and reach it at $\rho=-\infty$.


# %% tags=["nbval-ignore-output"]
def with_constant_rho(layer, rho):
    """The FDN layer with a constant rho, and the deterministic hypernetwork of its means."""
    n, out = layer.d_out * layer.d_in, layer.hypernet.output
    twin = posteriors.HyperLinear(layer.d_in, layer.d_out, out.in_features)
    is_mean = torch.ones(len(out.bias), dtype=torch.bool)
    is_mean[n : 2 * n] = is_mean[-layer.d_out :] = False  # order: mu_W, rho_W, mu_b, rho_b
    with torch.no_grad():
        out.weight[~is_mean], out.bias[~is_mean] = 0.0, rho
        twin.hypernet.hidden.load_state_dict(layer.hypernet.hidden.state_dict())
        twin.hypernet.output.weight[:], twin.hypernet.output.bias[:] = out.weight[is_mean], out.bias[is_mean]
    return layer, twin


x = torch.linspace(-3, 3, 13)[:, None]
lp = build_network(model_spec("LP-FDNet", 1, PUBLISHED), 1, replace(PUBLISHED, floor=0.0))
eps = tuple(normal(50, 1, layer.d_out * (layer.d_in + 1)) for layer in lp.layers)
for rho in (-4.0, -8.0, -16.0, -np.inf):
    pairs = [with_constant_rho(layer, rho) for layer in lp.layers]
    hypernet = models.Network([twin for _, twin in pairs])
    draws, limit = lp(x, Noise("shared", eps))[0], hypernet(x)[0]
    if rho > -np.inf:
        distance = (draws - limit).abs().max().item()
        print(f"sigma = {F.softplus(torch.tensor(rho)):.0e}: largest distance of a draw {distance:.0e}")
same("sigma = 0: draws and HyperNet", (draws, limit.expand_as(draws)))

# %% [markdown]
# (**Ours:** the limit belongs to the family, not to the objective. The KL contains $-\log\sigma$ per weight,
# so for any $\beta>0$ the loss diverges on the way there.)
#
# > a **global** posterior […] independent of the query $x$ (but dependent on a learnable latent task vector
# > $h$) — *Appendix A, Gaussian HyperNetwork*
#
# > A standard variational BNN uses an **$x$-independent** approximate posterior. — *Appendix A*
#
# **Check.** An FDN layer whose hypernetwork ignores its input is BayesNet's layer; one whose input is a
# trained vector is GaussHyperNet's. Outputs and KL are the same numbers.

# %% tags=["nbval-ignore-output"]
d_in, d_out, B, K = 3, 2, 6, 4
a = normal(1, B, d_in)
eps = normal(K, 1, d_out * (d_in + 1))
settings = {"link": "softplus", "floor": 1e-3, "prior_scale": 1.0}

bayes = posteriors.GaussianLinear(d_in, d_out, **settings)
fdn = posteriors.FDNLinear(d_in, d_out, 5, "layer", d_in, floor=1e-3, prior_scale=1.0)
mu_W, mu_b = bayes.mean.split([d_out * d_in, d_out])
rho_W, rho_b = bayes.rho.split([d_out * d_in, d_out])
with torch.no_grad():
    fdn.hypernet.output.weight.zero_()
    fdn.hypernet.output.bias[:] = torch.cat([mu_W, rho_W, mu_b, rho_b])
(y1, kl1), (y2, kl2) = (layer(a, a, "shared", eps, "analytic") for layer in (bayes, fdn))
same("constant hypernetwork and BayesNet layer", (y2, y1), (kl2, kl1.expand_as(kl2)))

latent = posteriors.LatentGaussianLinear(d_in, d_out, hyper=5, latent=9, **settings)
fdn = posteriors.FDNLinear(d_in, d_out, 5, "input", 9, floor=1e-3, prior_scale=1.0)
fdn.hypernet.load_state_dict(latent.hypernet.state_dict())
y1, kl1 = latent(a, a, "shared", eps, "analytic")
y2, kl2 = fdn(a, latent.latent.expand(1, B, 9), "shared", eps, "analytic")  # s = h for every example
same("signal a trained vector, and GaussHyperNet layer", (y2, y1), (kl2, kl1.expand_as(kl2)))

# %% [markdown]
# > An $M$-member ensemble of MLPs corresponds to a **finite mixture of deltas**. — *Appendix A*
#
# Members take the place of draws, and every formula for $K$ draws holds for $M$ members. **Check:** the
# predictive density of ten stacked MLPs is the mean of their ten densities.

# %% tags=["nbval-ignore-output"]
M, s2, y = 10, 0.5, normal(len(x))
members = [build_network(model_spec("MLPNet", 1, PUBLISHED), 1, PUBLISHED) for _ in range(M)]
stack = Stack(members, (M,))
draws = stack(stack.flat, x)[0][:, 0, :, 0]  # (M, 1, N, 1) to (M, N)
prediction = Prediction(draws, torch.full_like(draws, s2))
density = torch.stack([Normal(net(x)[0][0, :, 0], s2**0.5).log_prob(y).exp() for net in members])  # (M, N)
same("members as draws", (prediction.mixture().log_prob(y).exp(), density.mean(0)))

# %% [markdown]
# The law of total variance splits the mixture's variance (Appendix D),
#
# $$\mathrm{Var}[Y\mid x]=\underbrace{\mathbb E_\theta[\sigma^2_\theta(x)]}_{\text{aleatoric}}
# +\underbrace{\mathrm{Var}_\theta[\mu_\theta(x)]}_{\text{epistemic}}.$$
#
# **Check** with a heteroscedastic head, where neither part is constant, against `torch.distributions`.

# %% tags=["nbval-ignore-output"]
head = objectives.HeteroscedasticGaussian()
network = build_network(model_spec("LP-FDNet", 1, PUBLISHED), 1, PUBLISHED, n_outputs=head.n_outputs)
eps = tuple(normal(100, 1, layer.d_out * (layer.d_in + 1)) for layer in network.layers)
output = network(x, Noise("shared", eps))[0].detach()  # (K, N, 2)
prediction = Prediction(head.mean(output), head.observation_variance(output))
total = prediction.mixture().variance
same("aleatoric + epistemic and variance of the mixture", (prediction.aleatoric + prediction.epistemic, total))

# %% [markdown]
# ## 1.13 What it costs
#
# > The three bracketed terms correspond to (i) the Hypernetwork input transform, (ii) projection to the $P_\ell$
# > Gaussian parameters, and (iii) the base-layer matrix–vector product. — *Appendix G*
#
# Multiply-accumulates per example and draw of the paper's formulas, and the parameters of the hypernetworks:
#
# $$C_{\mathrm{MLP}}=\sum_\ell d_{\ell-1}d_\ell,\qquad C_{\mathrm{FDN}}=\sum_\ell\big(d_{s,\ell}h_{\mathrm{hyp}}
# +h_{\mathrm{hyp}}P_\ell+d_{\ell-1}d_\ell\big),\qquad P^{\mathrm{hyper}}_\ell=d_{s,\ell}h_{\mathrm{hyp}}
# +h_{\mathrm{hyp}}P_\ell .$$
#
# **Check** against PyTorch's FLOP counter on the network of section 1.5 (two FLOP are one multiply-accumulate), and
# against the number of its weights without biases. Two hidden layers of width $d$, so that the quadratic term shows.


# %%
class DeepNet(Net):
    """The same with two hidden layers."""

    def __init__(self, width, h=5):
        nn.Module.__init__(self)
        places = ((1, width), (width, width), (width, 1))
        self.layers = nn.ModuleList(Layer(a, b, a, h) for a, b in places)


B, h, rows = 64, 5, {}
for d in (8, 16, 32, 64):
    deep = DeepNet(d)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        deep(torch.zeros(B, 1))
    places = [(layer.d_in, layer.d_out, 2 * (layer.d_in + 1) * layer.d_out) for layer in deep.layers]  # with P_l
    mlp = sum(a * b for a, b, _ in places)
    fdn = sum(a * h + h * P + a * b for a, b, P in places)
    weights = sum(p.numel() for name, p in deep.named_parameters() if "weight" in name)
    rows[f"d = {d}"] = [mlp, fdn, counter.get_total_flops() // (2 * B), fdn / mlp, fdn - mlp, weights]
    assert fdn == counter.get_total_flops() / (2 * B) and weights == fdn - mlp
columns = ["MLP", "FDN by the formula", "FDN counted", "FDN / MLP", "hypernetworks' weights", "counted"]
print(pd.DataFrame(rows, index=columns).T.to_string(float_format="{:.0f}".format))

# %% [markdown]
# Formula and count agree to the unit. Both grow with $d^2$, parameters too: no cubic dependence on width, as the
# paper says, because $h_{\mathrm{hyp}}$ does not grow with $d$. But the factor over an MLP of the same widths is about
# $1+2h_{\mathrm{hyp}}$ and not the "small constant factor (typically 2–4×)": that is true of run times of small
# networks, which are spent elsewhere, not of operations. With $K$ draws, (iii) is paid $K$ times, and (i) and (ii) once
# under IC, $K$ times under LP behind the first layer.

# %% [markdown]
# ## 1.14 Replicates are leading dimensions
#
# A network of 1000 parameters keeps a processor busy with overhead. **Ours:** the modules broadcast over
# leading dimensions of their parameters, so twenty seeds (or ten members, or 200 noise draws as above) are
# one program with a bigger tensor. `Stack` holds the parameters of all replicates in one matrix, one row
# each. **Check:** twenty LP-FDNets in one pass give what twenty modules give one by one, gradients included.

# %% tags=["nbval-ignore-output"]
R, K = 20, 3
networks = [build_network(model_spec("LP-FDNet", 1, PUBLISHED), 1, PUBLISHED) for _ in range(R)]
x, y = normal(R, 64, 1), normal(R, 64)  # every replicate has its own minibatch and its own noise
eps = tuple(normal(R, K, 1, layer.d_out * (layer.d_in + 1)) for layer in networks[0].layers)
stack = Stack(networks, (R,))
flat = stack.flat.clone().requires_grad_()  # (R, n)
output, kl = stack(flat, x, Noise("shared", eps), kl="analytic")  # (R, K, B, 1), (R, K, B)
objectives.beta_elbo(output, y, kl, 0.1, likelihood).sum().backward()
pairs = []
for r, network in enumerate(networks):
    alone, alone_kl = network(x[r], Noise("shared", tuple(e[r] for e in eps)), kl="analytic")
    objectives.beta_elbo(alone, y[r], alone_kl, 0.1, likelihood).backward()
    gradient = torch.cat([p.grad.flatten() for p in network.parameters()])
    pairs += [(output[r], alone), (kl[r], alone_kl), (flat.grad[r], gradient)]
same(f"{R} networks of {flat.shape[1]} parameters, one pass and {R} passes", *pairs)

# %% [markdown]
# **What made the results.** Under the published protocol, one draw and shared noise, a training step of all
# replicates is one compiled loop, `fdn_kernels.numba_networks.train`, with the gradient written by hand; the
# draws for validation and test are another. Whatever these do not take runs on the op. **Check:** the loop's
# gradient is that of the op.

# %% tags=["nbval-ignore-output"]
one_draw = Noise("shared", tuple(e[:, :1] for e in eps))
flat.grad = None
output, kl = stack(flat, x, one_draw, kl="analytic")  # (R, 1, B, 1), (R, 1, B)
objectives.beta_elbo(output, y, kl, 0.1, likelihood).sum().backward()
by_the_loop = FusedStep(stack, PUBLISHED).gradient(x, y, one_draw, 0.1)  # (R, n)
same("gradient of the compiled step and of the op", (by_the_loop, flat.grad))

# %% [markdown]
# ## 1.15 Shared and independent draws, seen
#
# The LP-FDNet of section 1.1, drawn from in both ways. The training inputs lie in $[-1,1]$, shaded below.

# %%
# Draws of one trained LP-FDNet with shared and with independent noise, their mean, two standard deviations, the target.
trained = fits["LP-FDNet"]
fresh = replace(trained, protocol=replace(PUBLISHED, noise="independent"))  # same weights, other noise
grid, colour = np.linspace(-3, 3, 601), models.MODELS["LP-FDNet"].style[0]
fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), sharey=True, layout="constrained")
titles = ("shared noise: a draw is a function", "independent noise")
for ax, run, title in zip(axes, (trained, fresh), titles):
    p = run.predict(seed, grid[:, None], draws=400)
    mean, sd = p.mean, p.epistemic.sqrt()
    ax.axvspan(-1, 1, color=BAND, zorder=0)
    ax.fill_between(grid, mean - 2 * sd, mean + 2 * sd, color="0.5", alpha=0.25, linewidth=0)
    if run is trained:
        ax.plot(grid, p.draws[:12].T, color=colour, linewidth=0.7, alpha=0.7)
    else:
        ax.plot(grid[::5], p.draws[:12, ::5].T, ".", color=colour, markersize=1.5, alpha=0.6)
    ax.plot(grid, mean, color="black", linewidth=1.6)
    ax.plot(grid, task.true_function(grid), color="black", linestyle=":")
    ax.set(title=title, xlabel="x", ylim=(-20, 20))
axes[0].set_ylabel("y")
plt.show()

# %% [markdown]
# Twelve draws (colour), predictive mean ± 2 sd over 400 draws (black, grey), the true function (dotted). Both panels
# show the same network; at each $x$ the draws have the same law, and left and right differ only in how they
# hang together. **Check:** the bands agree up to Monte Carlo error, and the spread widens outside the
# training band.

# %% tags=["nbval-ignore-output"]
inside = np.abs(grid) <= 1
bands = [run.predict(seed, grid[:, None], draws=2000).epistemic.sqrt().numpy() for run in (trained, fresh)]
apart = np.abs(bands[0] / bands[1] - 1).mean()
widening = bands[0][~inside].mean() / bands[0][inside].mean()
print(f"mean relative difference of the two bands: {apart:.1%}")
print(f"mean sd outside over mean sd inside: {widening:.1f}")
assert apart < 0.1 and widening > 1.5

# %% [markdown]
# A single draw is a poor predictor even where there are data: its spread is of the order of the target
# itself. What that does to the scores is the subject of the [next notebook](02_protocol.ipynb).

# %% [markdown]
# ## Summary
#
# - An FDN layer is a hypernetwork that turns a signal, $x$ (IC) or the previous activation (LP), into a Gaussian over
#   the layer's weights; a network is two of them with a ReLU between.
# - It is trained by MSE + $\beta_t$ KL with one draw per update, $\beta_t$ rising over 200 epochs; the epoch with the
#   smallest validation CRPS is kept, and usually lies inside that rise.
# - Its KL is per example: more data make $q(\theta\mid x)$ a better guess, not a narrower one. Its bands are wide
#   where there are data, too.
# - MLP, ensemble, BayesNet, GaussHyperNet and HyperNet are choices or limits of the same $q$.

# %% [markdown]
# ## Exercises
#
# Change one thing, predict what happens, run it; then open the answer. Each takes seconds. The line to start from is
# `p = replace(PUBLISHED, epochs=60); run = fit(model_spec("LP-FDNet", 1, p), task, p, seeds=range(5))`, whose
# `run.scores` and `run.best_epoch` you compare before and after.

# %% [markdown]
# **1.** Let β rise in 20 epochs in place of 200 (`warmup=20`). Is the band inside $[-1,1]$ narrower or wider? Is the
# best CRPS better or worse?
#
# <details><summary>Answer</summary>
#
# Wider, and worse. KL to $\mathcal N(0,1)$ pulls every weight towards a standard deviation of 1; the sooner it has its
# full weight, the wider the weights are when the best epoch is chosen.
# </details>

# %% [markdown]
# **2.** Turn the KL off (`beta_max=0.0`). Does the band inside vanish within 60 epochs?
#
# <details><summary>Answer</summary>
#
# No, though it is narrower than with the KL, and the CRPS better. Without a KL nothing pulls σ up, but
# $\operatorname{softplus}(\rho)$ starts near $\ln2$ and the squared error shrinks it only slowly; the kept epochs are
# the last ones, for the loss is still falling.
# </details>

# %% [markdown]
# **3.** Draw noise afresh for every example (`noise="independent"`). Look at `run.scores`: what becomes of their jitter
# from epoch to epoch, and of the kept epochs?
#
# <details><summary>Answer</summary>
#
# The curves become several times smoother, and the best epoch comes earlier: with shared noise 100 draws are 100
# functions, so that their CRPS on all validation points moves up and down together; with fresh noise the points average
# it out. The lucky epochs that shared noise keeps are gone.
# </details>
