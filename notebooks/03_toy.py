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
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 3 · The toy tasks
#
# > We first benchmark on 1D toy regression tasks, where the ground-truth function […] is known. […] We
# > report all metrics separately on the ID split […], the OOD split […], and on the full test set. This
# > protocol ensures that “OOD” strictly corresponds to extrapolation in input space. — *Section 4.1*
#
# What do models say where they were not trained, the paper's six and the two that its tables omit, and how far can
# one believe it? First what they predict, then which of their epochs that was, then the paper's numbers, then what its
# measures of calibration measure.
#
# With its default parameters this notebook reads the committed results, all seeds of them, and trains nothing. With
# `-p recompute True` it trains whatever its results folder does not hold yet, for example
# `papermill notebooks/03_toy.ipynb mine.ipynb -p recompute True -p dataset step -p seeds 0:20`.
#
# 1 Means and bands · 2 The tasks · 3 The epoch that is kept · 4 Published beside reproduced · 5 Against the training
# mean · 6 MSE against Var · 7 What a slope of one says · 8 Intervals · 9 Risk and coverage · 10 The paper's claims ·
# 11 Conclusion · Exercises

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": None, "dpi": 110}
import pandas as pd
from IPython.display import Markdown, display

from fdn import data
from fdn.arguments import check_parameters
from fdn.report import chapter, checkpoints, figures, findings, tables
from fdn.report import seeds as over_seeds
from fdn.runs import experiment


def show(*texts):
    """Tables and sentences, typeset."""
    display(Markdown("\n\n".join(t if isinstance(t, str) else t.to_markdown() for t in texts if t)))


def draw(figure, has=lambda study: True):
    """A figure of each data set that has what it needs."""
    for study in filter(has, studies):
        display(figure(study))


# %% tags=["parameters"]
dataset: str = "step,sine,quad"  # toy tasks to show, comma-separated: step, sine, quad
models: str = "TrainingMean,MLPNet,HyperNet,MLPDropoutNet,DeepEnsembleNet,BayesNet,GaussHyperNet,IC-FDNet,LP-FDNet"  # models to train and show
seeds: str = ""  # model seeds: a half-open range such as 0:5, numbers such as 3,7, or both; empty means all there are
protocol: str = "published"  # settings: published (of the runs behind the published numbers) or as_written
epochs: int = 0  # training epochs; 0 means the protocol's own, any other number is an ablation
recompute: bool = False  # train the cells that the results folder does not hold yet
out: str = ""  # results folder; empty means data/results, or out with recompute

# %%
check_parameters(In)
asked = (dataset, models, seeds, protocol, epochs, recompute, out)
book = chapter.open_chapter("toy task", data.TOY, *asked)
names, metrics, label, studies = book.names, book.metrics, book.label, book.studies()
has_bands = lambda study: study.bands is not None  # quantiles over seeds: `fdn seeds` makes them

# %% [markdown]
# ## 3.1 Means and bands
#
# Each panel: the predictive mean and two standard deviations around it, the targets, and shaded the band of the
# training inputs. One seed, the representative one by the paper's rule (section 2.10); the line below the title says
# how extreme it is among all.

# %%
draw(figures.uncertainty)

# %%
show(*map(chapter.of_uncertainty, studies))

# %% [markdown]
# That was one seed. Over all seeds: the median of the predictive means, where 90 % of them lie, and the median spread.

# %%
draw(figures.uncertainty_seeds, has_bands)

# %% [markdown]
# ## 3.2 The tasks
#
# | task | in print (section 4.1) | in the published runs (`fdn.data.toy`) |
# |:---|:---|:---|
# | step | $H(x)=\mathbf 1\{x\ge 0\}$ | $-1$ for $x\le 0$, $+1$ for $x>0$ |
# | sine | $1.54\sin(2.39\,x)$ | $1.5441\sin(2\pi\cdot 2.38875\,x)$: 2.39 counts cycles, not radians |
# | quad | $0.43\,x^2-0.41$ | the same before rounding, $0.42622\,x^2-0.41017$ |
#
# Training inputs are uniform on $[-1,1]$, test inputs an even grid on $[-10,10]$; there is no observation
# noise. Two things follow. All spread of a prediction is epistemic. And at $|x|=10$ a network is nine
# half-widths of the training band away from the nearest training point, so OOD numbers say how a model
# extrapolates from one function class to another, and are dominated by the far end of the grid.

# %%
for name in names:
    print(experiment.load_dataset(name, book.settings))
show(book.base())

# %% [markdown]
# ## 3.3 The epoch that is kept
#
# > Stochastic Checkpoint: minimum CRPS in interpolation. — *Appendix F, table of hyperparameters*
#
# After every epoch the validation CRPS is computed with 100 draws, and the epoch with the smallest is what every table
# and figure shows. Meanwhile $\beta_t$ rises over 200 epochs. The more the KL weighs, the wider the weights and, from
# some epoch on, the worse the CRPS. So where the best epoch lies decides which β a model was trained with, and the
# paper does not say where it lies.

# %%
draw(figures.checkpoint, has_bands)

# %%
if label == "published":
    show(checkpoints.kept_table(metrics, names), checkpoints.kept_sentence(metrics, names))

# %% [markdown]
# What if the last epoch were kept instead, or β held at the value where the best one was found? Extra runs, same seeds
# (`-p` parameters do not reach them).

# %%
for name in names:
    if checkpoints.last_table(metrics, name).rows:
        show(checkpoints.last_table(metrics, name))
if checkpoints.last_sentence(metrics, names):
    show(checkpoints.last_sentence(metrics, names))

# %% [markdown]
# ## 3.4 Published beside reproduced
#
# A published table is one run. Ours is a distribution over seeds, which is what can be reproduced: our
# generators differ from those of the published runs, so the seeds' numbers name other streams. Where the settings come
# from: the [author's public program](https://github.com/Haq94/Functional-Distribution-Networks).

# %%
for name in names:
    show(tables.result_table(metrics, name, label, book.models))

# %%
if label == "published":
    show(*(findings.score_of(metrics, name, label) for name in names))
show("How far single runs are from each other:")
show(*(findings.spread_over_seeds(metrics, name, label) for name in names))

# %% [markdown]
# ## 3.5 Against the training mean
#
# The published tables leave out what a model achieves in either region. **Ours:** the absolute numbers,
# beside a model that knows nothing of $x$ and predicts the mean of the training targets. $\mathrm{MSE}_i$
# is the error of a *single draw*; what one would use is the predictive mean, whose error is in the next
# column, less what $K$ draws add to it by chance. That correction can make it negative, outside by much where draws are
# far apart: the error is then smaller than what $K$ draws can resolve, and which of two such errors is the smaller one
# cannot be said.

# %%
for name in names:
    show(tables.region_table(metrics, name, label, book.models))

# %%
show(over_seeds.error_table(metrics, names, label))
show(*(findings.against_training_mean(metrics, name, label) for name in names))

# %% [markdown]
# ## 3.6 MSE against Var
#
# > We visualize these diagnostics via MSE–Var scatter plots in the ID and OOD regions. — *Section 4.4*
#
# Nothing lies below the dashed line, by definition of $\mathrm{MSE}_i$; section 3.7 comes back to it. Outside, Var and
# MSE grow together over decades because a ReLU network with fixed weights continues as a straight line, and an FDN's
# weights are themselves piecewise linear in their signal: a first layer of weights $\propto x$ times its input $x$, then
# a second of weights $\propto x$ (IC) or $\propto a_1\sim x^2$ (LP). Draws can therefore grow like $x^3$ (IC) and $x^4$
# (LP), variances like $x^6$ and $x^8$.

# %%
draw(figures.mse_against_var)

# %%
show(*map(chapter.of_scatter, studies))

# %% [markdown]
# ## 3.7 What a slope of one says, and whether Var ranks the errors of the mean
#
# > the ideal fit has $a\approx0$ and $b\approx1$. — *Appendix H*
#
# **Ours.** Appendix H defines $\mathrm{MSE}_i$ as the mean over *draws* of $(y_i^{(k)}-y_i)^2$. It
# therefore contains the variance it is compared with:
#
# $$\mathrm{MSE}_i=\mathrm{Var}_i+\mathrm{Bias}_i^2,\qquad\text{hence}\qquad b=1+b',\quad
# b'=\text{slope of }\mathrm{Bias}_i^2\text{ against }\mathrm{Var}_i .$$
#
# Whenever the variance dominates the squared bias, $b\approx1$ and $\rho(\mathrm{Var},\mathrm{MSE})\approx1$ follow,
# whatever the errors are. And $b=1$ means $b'=0$: the error of the predictive mean does not grow with the variance at
# all. If the target were distributed like one more draw, $\mathbb E\,\mathrm{Bias}_i^2=\mathrm{Var}_i$, so
# $b'=1$ and $b=2$. The informative question is whether $\mathrm{Var}_i$ ranks and scales
# $\mathrm{Bias}_i^2$. The mean of $K$ draws has a chance error of $\mathrm{Var}_i/K$, so $b'$ near $1/K$
# (0.01 for the 100 draws of all models but the ensemble) is no bias at all.

# %%
draw(figures.mse_var_seeds, has_bands)

# %%
known = [study.bands for study in studies if has_bands(study)]
if known:
    show(over_seeds.bias_table(pd.concat(known)), over_seeds.bias_sentence(pd.concat(known)))
    show("The one seed of the first figures is a draw from these distributions:")
show(*map(chapter.of_bias, studies))

# %% [markdown]
# ## 3.8 Intervals
#
# Where a target lies among the draws (its PIT) would be uniform if it were one more draw. A hill in the middle says that
# the draws spread too widely, hills at the ends that they spread too little.

# %%
draw(figures.pit, has_bands)

# %%
for study in filter(has_bands, studies):
    show(over_seeds.interval_table(study.bands, study.dataset))
show(*map(chapter.of_intervals, studies))

# %% [markdown]
# ## 3.9 Risk and coverage
#
# > Lower AURC is better: for a fixed difficulty, it means that as we keep only high-confidence predictions,
# > the resulting risk drops more quickly. — *Appendix H*
#
# The curve's right end is the mean MSE itself, so the area mixes how well a model ranks its points with how
# large its errors are. The height of a curve shows the second, its shape the first.

# %%
draw(figures.risk_coverage)

# %%
show(*map(chapter.of_risk, studies))

# %% [markdown]
# ## 3.10 The paper's claims
#
# The ten statements that matter most, as far as they are about these data sets. [All of them](../data/claims/README.md),
# with the kind of statement each is, are a page of their own. A criterion is put to what the sentence says. Where one
# of ρ(Var, MSE) or b holds because Var is most of MSE (section 3.7), it holds by arithmetic, and says nothing of the
# error of the mean.

# %%
show(chapter.claims_that_matter(book))

# %% [markdown]
# ## 3.11 Conclusion

# %%
show(*(chapter.conclusion(book, name) for name in names), *chapter.verdicts(book, "FDN is ID-competitive"))

# %% [markdown]
# The FDNs are the cautious models: their intervals hold the targets far outside, where those of accurate models often do
# not, and they pay with a spread inside that is larger than the targets' own. $b\approx1$ and $\rho\approx1$ come from
# that spread. Which epoch was kept, and with it which β, is part of the result. Where a model is called competitive on
# sine, the others are no better than the training mean there (section 3.5), all but dropout.
#
# ## Exercises
#
# **1.** Remove the far end: read the per-point results of the step task,
# `frame = studies[0].points["LP-FDNet"]`, keep `frame[frame["z"].abs() <= 2]`, and fit `fdn.metrics.linear_fit` of
# `mse` on `var` again. Predict whether $b$ stays near 1.
#
# <details><summary>Answer</summary>
#
# For LP-FDNet it does: Var is still most of MSE among the points that are left, so that $b=1+b'$ does not need the far
# end. What shrinks, from hundreds to less than one, is $a$. For IC-FDNet $b$ moves towards 1, too: it was the far end,
# where its mean is far off, that had pulled it away.
# </details>

# %% [markdown]
# **2.** Replace the FDN's variance by one that knows nothing but the distance from the band,
# `np.maximum(frame["z"].abs() - 1, 0)`, and compute $\rho$ of it with `mse` and with `(frame["mean"] - frame["y"]) ** 2`.
# Take the points outside the band, and predict which of the two it ranks as well as Var does.
#
# <details><summary>Answer</summary>
#
# Outside the band distance ranks MSE nearly as well as Var does, and on step the squared error of the mean better: on
# one input, distance is all there is to know about extrapolation, and everything grows with it. On these tasks a high rank
# correlation cannot tell an uncertainty from a distance.
# </details>

# %% [markdown]
# **3.** Train LP-FDNet on the step task with `-p recompute True -p epochs 200 -p dataset step -p models IC-FDNet,LP-FDNet
# -p seeds 0:5 -p out out/short`. Predict what becomes of the kept epochs, and what the notebook says of the published
# values.
#
# <details><summary>Answer</summary>
#
# Nothing: kept epochs lie before the 100th in nearly every seed, and what comes later is not looked at again. Tables say
# that an ablation is not like the published runs, whatever its numbers.
# </details>
#
# Next: [real data](04_uci.ipynb).
