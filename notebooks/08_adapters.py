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
# # 8 · FDN layers in a network that is already trained
#
# > FDN is layer-local, so one can restrict stochastic, input-conditioned weights to a small subset of higher
# > layers (or even just the predictive head), keeping earlier blocks deterministic and frozen. […] a narrow,
# > trainable “uncertainty adapter’’ is inserted on top of a largely fixed backbone — *Appendix G,
# > “Middle-layer usage and adapter-style deployment”*
#
# The paper proposes it and does not try it. Here it is tried, on a network of three hidden layers of 64 units, and
# on a classifier of rotated digits, beside what costs less thought: the plain network with the residuals of its
# validation rows as noise, MC dropout, an ensemble.
#
# 1 Where it helps and where not · 2 Two lines · 3 What it costs · 4 A loop of one's own · 5 In and out of
# distribution · 6 Rotated digits
#
# The tables and figures read `data/layers`, which `fdn adapters --out data/layers` computed on one core in
# some minutes a data set. `-p recompute True` computes those of `dataset` here, with `-p epochs 5` in a moment.
# Sections 2 to 4 train one network each time the notebook runs.

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": None}
from pathlib import Path

import torch
from IPython.display import Markdown, display

from fdn import data, paths
from fdn.arguments import check_parameters, parse_seeds
from fdn.errors import UserError
from fdn.nn import costs, elbo_loss, forward, sample, to_fdn
from fdn.report import layers as report
from fdn.runs import adapters
from fdn.settings import Whole, checked, choose


def show(*texts):
    """Tables and sentences, typeset."""
    display(Markdown("\n\n".join(t if isinstance(t, str) else t.to_markdown() for t in texts)))


# %% tags=["parameters"]
dataset: str = "airfoil"  # airfoil, ccpp, energy or diabetes, which needs no download
layers: str = "9"  # names of the layers that become FDN layers in sections 2 to 4, comma-separated: of 0, 3, 6 and 9
freeze: str = "others"  # others: the rest of the network stays as it was; nothing: it is trained on
seeds: str = "0:10"  # of the results that are shown or computed
epochs: int = 0  # of training here; 0 means the usual number
recompute: bool = False  # compute the results of `dataset` here instead of reading them
out: str = ""  # folder of results; empty means data/layers, or out/layers with recompute

# %%
check_parameters(In)
choose(dataset, data.REAL, "real data set")
names, numbers = [name.strip() for name in layers.split(",")], parse_seeds(seeds)
epochs = checked("epochs", epochs, Whole)
kept = None if choose(freeze, ("others", "nothing"), "value of freeze") == "nothing" else freeze
folder = Path(out) if out else paths.DEFAULT_OUT / "layers" if recompute else paths.LAYERS
if recompute:
    task = adapters.table_task(data.load(dataset), epochs or None)
    adapters.write(adapters.study(task, numbers), folder)
frame, sidecar = adapters.load(dataset, folder)
frame = frame[frame["seed"].isin(numbers)]
if frame.empty:
    raise UserError(f"the results of {dataset} hold none of the seeds {seeds}; add -p recompute True")
METRICS = "rmse", "crps", "nll", "coverage_90"
print(f"{dataset}: {frame['seed'].nunique()} seeds, computed with torch {sidecar['environment']['packages']['torch']}")

# %% [markdown]
# ## 8.1 Where it helps and where not
#
# Worse and better are differences over seeds whose 95 % interval leaves 0 out (paired, Student's t); of the
# coverage of 90 % intervals its distance from 0.9. *Not told apart* is no proof of safety: where single seeds
# explode, the interval is too wide to leave anything out. So the seeds come first, one by one. Then the plain
# network, and the ensemble, which costs five trainings and no new idea. The intervals are not corrected for their
# number; after each list stands what chance alone would make of as many.

# %%
show(report.worst_table(frame, "rmse", ("id", "ood")))
show(*report.verdicts(frame, METRICS))
show(*report.verdicts(frame, METRICS, adapters.ENSEMBLE))

# %% [markdown]
# ## 8.2 Two lines
#
# A network is trained, as anybody would. Then `to_fdn` exchanges the named layers and leaves the others as they
# were. A new layer's Gaussian begins around the trained weights, whatever the input: $\mu(s)=W$ for every $s$,
# with a small $\sigma$. **Check:** with its noise off the new network is the old one.

# %%
name = dataset if data.available(dataset) else "diabetes"
table = data.load(name)
task = adapters.table_task(table, epochs or None)
torch.manual_seed(0)
plain = task.network(0.0)
adapters.train(task, plain, min(task.epochs[0], 30), draws=1)
noise = task.score(sample(plain, task.x_val, 1), task.y_val)[1]  # mean squared residual of validation rows

fdn = to_fdn(plain, names, freeze=kept)
off, _ = forward(fdn, task.x_val, noise="none")
spread = sample(fdn, task.x_val).std(0).mean()
print(f"{name}: largest difference with the noise off {(off - plain(task.x_val)).abs().max():.1g}, "
      f"spread of draws {spread:.2f}, residual noise {noise**0.5:.2f}")  # fmt: skip
assert torch.allclose(off, plain(task.x_val), atol=1e-5)
print(fdn)

# %% [markdown]
# ## 8.3 What it costs
#
# The paper counts a hypernetwork of width $h$ on a signal of $d_s$ numbers as
#
# $$P^{\text{hyper}}=d_sh+h\cdot2(d_{\text{in}}d_{\text{out}}+d_{\text{out}})$$
#
# parameters (Appendix G), without its biases, which are $h+2(d_{\text{in}}d_{\text{out}}+d_{\text{out}})$ more.
# An adapter of rank $r$ generates $W_0+UV^\top$: $2(rd_{\text{in}}+rd_{\text{out}}+d_{\text{out}})$ numbers in
# place of $2(d_{\text{in}}d_{\text{out}}+d_{\text{out}})$, beside the ordinary weights. **Check** against what
# `fdn.nn.costs` counts.

# %%
h, rank = 8, adapters.LOW_RANK["rank"]
variants = {"whole matrices": {}, f"adapter, rank {rank}": adapters.LOW_RANK}
print(f"{'layer':18} {'kind':16} {'parameters':>10} {'by formula':>10} {'of nn.Linear':>12} {'products':>9}")
for kind, options in variants.items():
    rows = costs(to_fdn(plain, ["6", "9"], freeze="others", **options))
    for row in rows[:-1]:
        d_in, d_out = 64, row.plain_parameters // 65
        generated = 2 * (d_in * d_out + d_out) if not options else 2 * (rank * (d_in + d_out) + d_out)
        formula = d_in * h + h * generated + (h + generated) + (row.plain_parameters if options else 0)
        assert row.parameters == formula
        counted = f"{row.parameters:10,} {formula:10,} {row.plain_parameters:12,} {row.products:9,}"
        print(f"{row.name:18} {kind:16} {counted}")
    print(f"{rows[-1].name:18} {kind:16} {rows[-1].parameters:10,} {'':10} {rows[-1].plain_parameters:12,}")

# %% [markdown]
# *A small fraction of the backbone* it is not, here: whole matrices of the last two layers are several times the
# network that they were put in, since $h$ numbers are kept for each weight and standard deviation. The adapter
# generates less, and the head alone has few weights to generate. The paper's sentence needs a backbone much
# larger than its head.
#
# ## 8.4 A loop of one's own
#
# The loss of a minibatch is the mean of $-\log p(y\mid f)$ plus $\frac{\beta}{N}$ times the mean KL. The
# observation noise is that of the validation rows; only the hypernetworks are trained. **Check:** no frozen
# number has moved.

# %%
before = {key: p.clone() for key, p in fdn.named_parameters() if not p.requires_grad}
optimiser = torch.optim.Adam([p for p in fdn.parameters() if p.requires_grad], lr=3e-3)
for _ in range(min(task.epochs[1], 20)):
    for rows in torch.randperm(len(task.x)).split(64):
        f, kl = forward(fdn, task.x[rows])  # (B, 1), (B,)
        nll = adapters.gaussian_nll(f, task.y[rows], noise)  # (B,)
        optimiser.zero_grad()
        elbo_loss(nll, kl, n_train=len(task.x), beta=0.1).backward()
        optimiser.step()

assert all(torch.equal(p, fdn.get_parameter(key)) for key, p in before.items())
for net, draws in ((plain, 1), (fdn, 100)):
    fitted = adapters.Fitted([net], draws)
    _, fitted.number = task.score(fitted.draws(task.x_val), task.y_val)
    inside, outside = adapters.measure(table, fitted)
    said = ", ".join(f"{key} {inside[key]:.2f} / {outside[key]:.2f}" for key in ("rmse", "nll", "coverage_90"))
    print(f"{'plain' if net is plain else 'FDN':6} ID / OOD: {said}")

# %% [markdown]
# ## 8.5 In and out of distribution
#
# Each seed trains a network of three hidden layers of 64 units (five of them, for the ensemble, whose first is
# the plain network of all other methods), two with dropout, and three for each kind of FDN layer. **Chosen on
# validation rows alone:** the epoch that is kept, of dropout the rate, of FDN layers $\beta\in\{0.01,0.1,1\}$
# (by NLL), and of *every* method the variance of the observation noise, by NLL. The target is standardised.
#
# Where the least or the largest $\beta$ was chosen, a wider choice might have done better.

# %%
show(report.results_table(frame, ("rmse", "crps", "nll"), ("id", "ood")))
show(report.results_table(frame, ("coverage_90", "width_90"), ("id", "ood")))
show(report.edges(frame))

# %% [markdown]
# All methods, as far as a linear axis can show them: one whose seeds explode is far off to the right, and the others
# are pressed together.

# %%
display(report.differences_figure(frame))

# %% [markdown]
# The same differences without the methods whose RMSE is above 3 in some seed.

# %%
largest = frame.groupby("method")["rmse"].max()
calm = largest.index[largest < 3]
display(report.differences_figure(frame[frame["method"].isin(calm)]))

# %%
show(report.cost_table(frame, sidecar["seconds"]))

# %% [markdown]
# ## 8.6 Rotated digits
#
# A convolutional classifier of scikit-learn's 8 × 8 digits; its head, or its last two layers, become FDN layers,
# trained by cross-entropy in place of the Gaussian NLL. Test digits are rotated, which no training row is.
# Calibration is also shown with a softmax temperature fitted on validation rows, which anybody can do to any of
# these methods. It is fitted to upright digits, like everything else.

# %%
digits, made = adapters.load("digits")
show(*report.verdicts(digits, ("accuracy", "nll", "ece")))
show(report.results_table(digits, ("accuracy", "nll", "ece"), (0, 45)))
show(report.results_table(digits, ("nll_tempered", "ece_tempered"), (0, 45)))
show(*report.verdicts(digits, ("nll_tempered", "ece_tempered")))
means = digits[digits["angle"] == 45].groupby("method", sort=False)[["nll", "nll_tempered"]].mean()
changes = (f"{name} {before:.3f} → {after:.3f}" for name, before, after in means.itertuples())
show("What the temperature does to the NLL at 45 deg: " + ", ".join(changes) + ".", report.edges(digits))

# %%
display(report.angles_figure(digits))

# %%
show(report.cost_table(digits, made["seconds"]))

# %% [markdown]
# ## Takeaway
#
# With the committed results: one table (airfoil, ten seeds) and one set of images (digits, six). Where a bullet names
# one of them, it says nothing about the other, nor about any third.
#
# - **On airfoil it does not do what one hopes for.** Last layers made FDN and trained on in-distribution rows give no
#   better RMSE, CRPS or NLL out of distribution. The ensemble of five is better in distribution, and as good or better
#   out of it.
# - **On airfoil two stacked FDN layers are dangerous.** The adapter explodes in half of the seeds, whole matrices in a
#   few, and coverage that looks better there is that of enormous intervals. Validation rows in distribution show nothing
#   of it. Likely, though not tested here: each layer makes weights of its own input and multiplies them with it, which
#   grows as a power of the distance from the data, and the adapter has two factors.
# - **The last layer alone** costs little, and on airfoil it is not told apart from the plain network: no harm was seen,
#   nor any good. On upright digits it is better calibrated than the plain head, as is the plain head with a softmax
#   temperature. Between 45° and 75° its NLL is worse than the plain head's. The temperature is no remedy there: it
#   raises the plain head's NLL, so that with one for each the FDN head's is no longer worse.
#   These are few of many comparisons, and their intervals leave 0 out by little.
# - **On rotated digits the ensemble does better.** From 30° to 60° its NLL is lower than that of either kind of FDN layer,
#   while neither has a temperature; with one for each they are not told apart.
# - *A small fraction of the backbone* is a matter of the backbone: here the layers outweigh it.
#
# What was not tried: the network's input as the signal, `activation="tanh"`, which bounds the weights, a larger
# backbone, and a validation set with shifted rows.
