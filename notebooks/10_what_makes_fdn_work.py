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
# # 10 · What makes FDN work
#
# > A practical limitation of our approach is the sensitivity of optimization to stochasticity and KL pressure. —
# > *Section 6*
#
# As published, FDN is less accurate inside the data than plain networks of its size, and a single draw of it is worse
# than the mean of the training targets (notebook 04). How much of that is the layer, and how much its start, its
# objective and its training? This notebook goes from the published LP-FDNet to the protocol `recommended` a change at
# a time, takes the changes back one by one, the layer itself among them, and ends with the verdict beside what people
# use for tables.
#
# 1 Where it starts · 2 The path · 3 What each setting is worth · 4 Beta, and how it is chosen · 5 The verdict ·
# 6 What was tried and left out · 7 On data of one's own
#
# Tables and figures read `data/rivals`. Sections 2 to 4 computed what they show of it: `-p recompute True` trains it
# again, on `dataset`, into `out/rivals`. [Notebook 11](11_rivals.ipynb) has the methods of section 5.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": None}
import dataclasses
import functools

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import Markdown, display
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

import fdn
from fdn import paths
from fdn.arguments import check_parameters, parse_seeds
from fdn.data import feature_band_split
from fdn.models import initial_network
from fdn.protocol import PUBLISHED, RECOMMENDED
from fdn.report import rivals as report
from fdn.report.figures import styled
from fdn.report.figures.drawing import STYLE
from fdn.runs import rivals
from fdn.settings import Whole, checked
from fdn.streams import Streams, seed_sequence
from fdn.training import recipe


def show(*texts):
    """Tables and sentences, typeset."""
    display(Markdown("\n\n".join(t if isinstance(t, str) else t.to_markdown() for t in texts)))


# %% tags=["parameters"]
dataset: str = ""  # a name that fdn.load knows: section 7 trains on it; empty means a sine whose noise grows outwards
seeds: str = "0:10"  # of the results that are shown or computed
epochs: int = 100  # of training here; 0 means the protocol's
recompute: bool = False  # train what sections 2 to 4 show on `dataset` here instead of reading data/rivals

# %%
check_parameters(In)
numbers, epochs = parse_seeds(seeds), checked("epochs", epochs, Whole)
shorter = {"epochs": epochs} if epochs else {}
if dataset:
    data = fdn.load(dataset)
else:
    rng = np.random.default_rng(0)
    x, e = rng.uniform(-1, 1, 1500), rng.standard_normal(1500)
    data = feature_band_split(x[:, None], np.sin(6 * x) + (0.05 + 0.4 * x**2) * e, name="heteroscedastic_sine")


def results(study, compared, model=None):
    """Rows of data/rivals, or those of protocols by name, trained here; `model` in place of LP-FDNet for some."""
    if not recompute:
        found = rivals.load(paths.RIVALS / study)
        return found[found["seed"].isin(numbers)]
    folder = paths.DEFAULT_OUT / "rivals" / (f"{study}, {epochs} epochs" if epochs else study)
    for name, protocol in compared.items():
        options = {"protocol": protocol, "spec": (model or {}).get(name)}
        rivals.complete(data, name, numbers, functools.partial(rivals.fdn_rows, data, name, **options), folder)
    return rivals.load(folder)


# %% [markdown]
# ## 10.1 Where it starts
#
# Three things stand against the published model, and each can be seen before any training.
#
# 1. **Its weights begin as noise.** A hypernetwork as PyTorch makes it gives $\rho\approx0$, so
#    $\sigma=\sigma_{\min}+\operatorname{softplus}(0)\approx0.69$ for every weight, whatever the width.
# 2. **Its noise is shared.** One draw of the weights serves a whole minibatch, so the gradient's noise does not
#    average out over examples. Algorithm 1 prints a draw for each.
# 3. **Its KL outweighs the data.** The KL sums over all weights of an example and enters with $\beta=1$, beside a
#    squared error of about 1. Narrow weights cost more of it: the recommended start has the larger KL, and only a
#    beta of some thousandths affords it.
#
# Below, of untrained networks: the spread of the outputs, beside the target's standard deviation of 1, and the KL.
# The recommended one is larger too: width 50 in place of 24, hypernetworks of 8, and five networks.

# %%
diabetes = fdn.load("diabetes")
for name, protocol in (("published", PUBLISHED), ("recommended", RECOMMENDED)):
    spec = fdn.model_spec("LP-FDNet", diabetes.n_features, protocol)
    network = initial_network(spec, "diabetes", diabetes.n_features, protocol, seed=0)
    x = torch.tensor(diabetes.x_val, dtype=getattr(torch, protocol.dtype))
    streams = Streams([seed_sequence("diabetes", spec.name, 0, "test")], (), x.dtype)
    noise = network.draw_noise(streams, "shared", 100, len(x), training=False)
    with torch.no_grad():
        output, kl = network(x, noise, kl="analytic")  # (K, N, 1), (K, N)
    print(
        f"{name:12} sd of the draws {output[..., 0].std(0).mean():6.3f}, KL of an example {kl.mean():6.0f} nats, "
        f"{fdn.models.count_parameters(spec, diabetes.n_features, protocol):6,} parameters"
    )

# %% [markdown]
# ## 10.2 The path
#
# Each row adds one change to the row above it. CRPS is of the predicted target, the likelihood's noise included, in
# units of the standardised target: whoever ignores the inputs and says $N(0,1)$ has $1/\sqrt\pi\approx0.56$ where
# the target is Gaussian. (The mean of the training targets as a single number has 0.9 to 1.0: notebook 04.) These are
# development sets, on which the settings were chosen. A step can do harm that a later one mends: look at airfoil,
# outside, where the small start lets weights grow far away and bounded hypernetworks stop them.
# [Notebook 07](07_options.ipynb) has single changes on sine too.

# %%
STEPS = {
    "published": {},
    "+ small start, prior by fan-in": {"init_sigma": "auto", "prior_scale": "fan_in"},
    "+ fresh noise for each example": {"noise": "independent"},
    "+ noise that is learned, for each input": {"likelihood": "heteroscedastic", "score": "observation"},
    "+ chosen beta, no warm-up": {"beta_max": "auto", "beta_schedule": "constant"},
    "+ width 50, hypernetworks of 8, cycle of the rate, no clipping": {
        "width": 50, "hyper": 8, "rate_schedule": "one_cycle", "learning_rate": 3e-3, "epochs": 300,
        "most_updates": 3000, "clip_norm": None, "dtype": "float32", "look": 5},
    "+ bounded hypernetworks": {"hyper_activation": "tanh"},
    "+ five networks": {"members": 5},
    "+ fitted noise = recommended": {"fit_observation_noise": True},
}  # fmt: skip
protocols, now = {}, PUBLISHED
for name, changes in STEPS.items():
    now = dataclasses.replace(now, **changes)
    protocols[name] = dataclasses.replace(now, **shorter)
assert dataclasses.replace(now, base="recommended") == RECOMMENDED
path = results("path", protocols)

# %%
crps = report.crps_intervals(path)["mean"].unstack(["dataset", "region"]).reindex(STEPS)
crps = crps.reindex(columns=[(name, region) for name in path["dataset"].unique() for region in report.WHERE])
display(crps.rename(columns=report.WHERE, level="region").round(3))
print(f"CRPS, geometric means over {path['seed'].nunique()} seeds")

# %%
# The path's steps top to bottom: CRPS inside and outside, geometric means and 90 % intervals, a panel a data set.
COLOURS = {"id": "#0072B2", "ood": "#D55E00"}  # inside, outside


@styled
def intervals_figure(found, methods, xlabel, title, line=np.nan):
    sets = found.index.unique("dataset")
    fig = Figure(layout="constrained", figsize=(3.2 + 1.9 * len(sets), 0.9 + 0.3 * len(methods)))
    axes = fig.subplots(1, len(sets), sharey=True, squeeze=False)[0]
    for ax, name in zip(axes, sets):
        ax.axvline(line, color="black", linewidth=0.7)
        for (region, colour), shift in zip(COLOURS.items(), (-0.12, 0.12)):
            mean, low, high = found.loc[name].loc[region].reindex(methods).to_numpy().T
            y = np.arange(len(methods)) + shift
            spread = np.abs([mean - low, high - mean])
            ax.errorbar(mean, y, xerr=spread, fmt="o", color=colour, label=report.WHERE[region])
        ax.set(xscale="log", xlabel=xlabel, title=name)
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.xaxis.set_major_formatter("{x:g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
    axes[0].set_yticks(range(len(methods)), methods)
    axes[0].invert_yaxis()
    axes[-1].legend()
    fig.suptitle(title)
    return fig


said = f"90 % intervals, {path['seed'].nunique()} seeds"
intervals_figure(report.crps_intervals(path), list(STEPS), "CRPS", f"CRPS along the path, {said}")


# %%
def gains(frame, region):
    """Factors of the CRPS from each step to the next, geometric means over seeds."""
    crps = report.crps_intervals(frame)["mean"].xs(region, level="region")
    steps = list(frame["method"].unique())
    return {n: {b: crps[n, b] / crps[n, a] for a, b in zip(steps, steps[1:])} for n in frame["dataset"].unique()}


for region, where in report.WHERE.items():
    for name, factors in gains(path, region).items():
        most = min(factors, key=factors.get)
        total = np.prod(list(factors.values()))
        print(f"{name}, {where}: CRPS x {total:.2f} in all; most from '{most}' (x {factors[most]:.2f})")

# %% [markdown]
# ## 10.3 What each setting is worth
#
# The order of a path decides what each step seems to bring. So settings are taken back alone, the others being
# kept, beta too. Right of 1 is worse than the recommended protocol. The last row takes the layer away: plain
# networks of the same width, number and training, which have a fifteenth of the parameters or less; larger ones are
# among the methods of section 5.

# %%
PLAIN, WHOLE = "without FDN layers: plain networks of that width", "nothing left out"
WITHOUT = {
    WHOLE: {},
    "without the small start": {"init_sigma": None},
    "without fresh noise": {"noise": "shared"},
    "without noise of its own for each input": {"likelihood": "learned"},
    "without fitted noise": {"fit_observation_noise": False},
    "without bounded hypernetworks": {"hyper_activation": "relu"},
    "without the mixture": {"members": 1},
    "without the rate's cycle": {"rate_schedule": "constant", "learning_rate": 1e-3},
    "with beta of the paper's weight": {"beta_max": 1.0},
}
spec = fdn.model_spec("LP-FDNet", data.n_features, RECOMMENDED)
whole = dataclasses.replace(RECOMMENDED, **shorter)
whole = recipe.chosen(spec, data, whole) if recompute else whole  # beta chosen with all settings
WITHOUT[PLAIN] = {"epochs": whole.epochs * whole.members}  # which `fit` divides among the networks
protocols = {name: dataclasses.replace(whole, **changes) for name, changes in WITHOUT.items()}
plain = dataclasses.replace(spec, name="DeepEnsembleNet", hyper=None)
without = results("without", protocols, {PLAIN: plain})

# %%
# CRPS without one setting each, relative to the recommended protocol, with 90 % intervals; right of 1 is worse.
changes = report.crps_intervals(without, WHOLE)
intervals_figure(
    changes, list(WITHOUT)[1:], "ratio of CRPS", f"CRPS relative to the recommended protocol, {said}", line=1
)

# %%
apart = (changes["low"] > 1) | (changes["high"] < 1)
words = [f"{ratio:.2f}" + " *" * out for ratio, out in zip(changes["mean"], apart)]
ratios = changes.assign(words=words)["words"].unstack(["dataset", "region"]).reindex(list(WITHOUT)[1:])
ratios = ratios.reindex(columns=crps.columns).rename(columns=report.WHERE, level="region")
display(ratios)
print("Ratio of CRPS, worse above 1; * where its 90 % interval, as in the figure, leaves 1 out")
chance = f"if nothing differed, about {(1 - report.LEVEL) * len(changes):.1f} would"
print(f"Of these {len(changes)} intervals {apart.sum()} leave 1 out; {chance}.")

# %% [markdown]
# ## 10.4 Beta, and how it is chosen
#
# A small beta lets the weights follow the data: sharp inside. A large one holds them near the prior: smoother, and
# often better outside and from few rows. No one value suits all.

# %%
betas = {f"beta {beta:g}": dataclasses.replace(RECOMMENDED, beta_max=beta, **shorter) for beta in (*recipe.BETAS, 0.1)}
by_beta = results("beta", betas)
verdict = rivals.load()
verdict = verdict[verdict["seed"].isin(numbers)]

# %%
# CRPS inside and outside against beta, a panel a data set; the line is the beta that the rehearsal chose.
chosen = {
    name: float(of["chosen"].iloc[0].split()[1])
    for name, of in verdict[verdict["method"].eq(rivals.FDN)].groupby("dataset", sort=False)
}


@styled
def beta_figure(found):
    sets = found.index.unique("dataset")
    fig = Figure(layout="constrained", figsize=(2.6 * len(sets), 2.8))
    for ax, name in zip(fig.subplots(1, len(sets), squeeze=False)[0], sets):
        for region, colour in COLOURS.items():
            of = found.loc[name].loc[region].rename(lambda label: float(label.split()[1])).sort_index()
            ax.fill_between(of.index, of["low"], of["high"], color=colour, alpha=0.2, linewidth=0)
            ax.plot(of.index, of["mean"], "o-", color=colour, label=report.WHERE[region])
        ax.axvline(chosen[name], color="black", linewidth=0.8, linestyle="--", label="chosen")
        ax.set(xscale="log", yscale="log", xlabel=r"$\beta$", ylabel="CRPS", title=name)
    fig.axes[-1].legend()
    return fig


crps = report.crps_intervals(by_beta)
beta_figure(crps)

# %% [markdown]
# It is chosen from the training and validation rows alone. The outer fifth of them, by the split feature, plays the
# rows outside; each beta is trained on the inner ones, and the least product of the two CRPS wins
# (`fdn.training.recipe`). How far was the choice from the best of those tried, judged with hindsight by the same
# product on the test rows?

# %%
product = crps["mean"].unstack("region").prod(axis=1)
for name, of in product.groupby(level="dataset", sort=False):
    own = of[name, f"beta {chosen[name]:g}"]
    best = of.idxmin()[1]
    print(f"{name}: chosen beta {chosen[name]:g}; best {best}; product of the CRPS x {own / of.min():.2f} of the best")

# %% [markdown]
# ## 10.5 The verdict
#
# Settings were tried on airfoil, energy, CCPP and diabetes, whose test rows are therefore no test any more. The
# verdict rests on the four other sets, which were opened once the protocol was fixed. FDN is LP-FDNet here. It
# loses to a method on a set where its mean CRPS over seeds is worse by more than the intervals of both together
# allow; ± is half of a 90 % interval over seeds, and methods that depend on no seed have none. How each method is
# fitted, [notebook 11](11_rivals.ipynb) shows.

# %%
show(*report.losses(verdict), report.aims(verdict))
show(report.table(verdict, "crps", "id"), report.table(verdict, "crps", "ood"))
show(report.table(verdict, "coverage_90", "id"), report.table(verdict, "coverage_90", "ood"))
covered = report.summary(verdict, "coverage_90", "ood")[0].loc[rivals.FDN]
print(
    f"Outside, intervals that should hold 0.9 of the targets hold {covered.min():.2f} on {covered.idxmin()}, the worst."
)

# %% [markdown]
# All metrics, times and methods: [data/rivals](../data/rivals/README.md).
#
# ## 10.6 What was tried and left out
#
# In single runs on the development sets, and so no more than hints:
#
# - **A KL at perturbed inputs**, the idea of noise-contrastive priors (Hafner et al., 2020): it acts as a larger
#   beta does, coverage outside is bought with sharpness inside.
# - **More draws in training** (K = 4): no gain for its cost. **IC instead of LP**: worse outside on airfoil and
#   energy. **A prior of scale 1** and **a smaller start**: no difference.
# - **ReLU hypernetworks**: their weights grow without bound away from the data; see section 3.
#
# ## 10.7 On data of one's own
#
# `fdn.FDNRegressor` does all of this behind `fit` and `predict`, and notebook 09 goes from a file to a report. Here
# the protocol by hand, on a task with one input, so that the band can be seen.

# %%
protocol = dataclasses.replace(RECOMMENDED, **shorter)
scores = recipe.rehearsed(spec, data, protocol)  # CRPS, by beta
display(scores.round(3))
beta = float(np.log(scores).sum(axis=1).idxmin())  # what fdn.fit does for itself where beta is "auto"
fit = fdn.fit(spec, data, dataclasses.replace(protocol, beta_max=beta), [0])
print(f"chosen beta {beta:g}, kept epoch {fit.best_epoch[0]}, noise x {fit.observation_factor[0]:.2f}")

# %%
# Test rows of the task, the median and the 90 % interval of the recommended FDN, shaded where it was trained.
drawn = fit.predict(0, data.x_test)
draws, variance = drawn.draws.double().numpy(), drawn.observation_variance.double().numpy()  # (K, N)
prediction = rivals.mixture(draws, variance)
quantiles = prediction.quantiles
z = data.x_test[:, data.split_feature]
with plt.style.context(STYLE):
    fig, ax = plt.subplots(figsize=(6, 2.8), layout="constrained")
    inside = z[data.id_test]
    ax.axvspan(inside.min(), inside.max(), color="0.93", label="inside")
    ax.vlines(
        z,
        quantiles[rivals.LOW],
        quantiles[rivals.HIGH],
        color="#0072B2",
        alpha=0.25,
        linewidth=1,
        label="90 % interval",
    )
    ax.plot(z, quantiles[rivals.MEDIAN], ".", color="#0072B2", markersize=2, label="median")
    ax.plot(z, data.y_test, ".", color="black", markersize=2, label="target")
    ax.set(xlabel=f"{data.feature_names[data.split_feature]} (standardised)", ylabel=data.target_name)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))

# %%
display(rivals.measured(data, prediction).set_index("region").round(3))

# %% [markdown]
# ## Exercises
#
# **1.** Before looking at the figure of section 3: which setting, taken back alone, costs most on energy inside, and
# which on airfoil outside? Which of the nine matters least?
#
# <details><summary>Answer</summary>
#
# The small start by far, in both places: from weights that are noise, 300 epochs with a small beta do not find back.
# Next come beta inside, and on airfoil outside the bounded hypernetworks. The noise fitted afterwards moves CRPS by two
# hundredths at most: it is for coverage.
# </details>

# %% [markdown]
# **2.** Judge the rehearsal by the sum of the two CRPS in place of their product, `recipe.rehearsed(spec, data,
# protocol).sum(axis=1)`, on energy and on airfoil. Predict whether another beta is chosen.
#
# <details><summary>Answer</summary>
#
# No: 0.001 has the least of both on both sets. The rule matters where one beta is better inside and another outside, which
# is where CRPS inside and outside are of different sizes: a sum then listens to the larger one alone.
# </details>

# %% [markdown]
# **3.** Take for the rehearsal's outer rows not those at both ends of the split feature but those far from the middle in all
# features, `recipe.rehearsed(spec, data, protocol, outward=np.linalg.norm(x, axis=1))` with the training and ID validation
# rows `x`. What becomes of the CRPS outside on energy, and of the choice?
#
# <details><summary>Answer</summary>
#
# At beta 0.001 it is more than six times as large, 0.16 for 0.025: rows that are unusual in several features at once are
# harder than rows at the end of one. The choice is the same. `fdn.FDNRegressor`, which knows of no split feature, uses the
# distance.
# </details>
