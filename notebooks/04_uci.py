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
# # 4 · The UCI data sets
#
# > For each dataset we follow a consistent preprocessing and ID/OOD protocol: we choose a single “ID
# > feature” $z$ with a natural interpretation […], define the interpolation band as the 20th–80th
# > percentiles of this feature and treat the extremes as extrapolation […] and standardize all inputs and
# > targets using training statistics. — *Section 4.2*
#
# The questions of [notebook 3](03_toy.ipynb) in its order, put to real data, where the shift is one feature among
# several and milder than nine half-widths of the band. What was explained there is not explained again.
#
# With its default parameters this notebook reads the committed results, all seeds of them, trains nothing and needs no
# data file. With `-p recompute True` it trains whatever its results folder does not hold yet. `-p dataset diabetes`
# shows a real set that needs no download and that the paper does not have.
#
# 1 Means and bands · 2 The data sets · 3 The epoch that is kept · 4 Published beside reproduced · 5 Against the
# training mean · 6 MSE against Var · 7 What a slope of one says · 8 Intervals · 9 Risk and coverage · 10 Deltas ·
# 11 Seeds · 12 The paper's claims · 13 Conclusion · Exercises

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
dataset: str = "airfoil,ccpp,energy"  # data sets to show, comma-separated: airfoil, ccpp, energy, diabetes
models: str = "TrainingMean,MLPNet,HyperNet,MLPDropoutNet,DeepEnsembleNet,BayesNet,GaussHyperNet,IC-FDNet,LP-FDNet"  # models to train and show
seeds: str = ""  # model seeds: a half-open range such as 0:5, numbers such as 3,7, or both; empty means all there are
protocol: str = "published"  # settings: published (of the runs behind the published numbers) or as_written
epochs: int = 0  # training epochs; 0 means the protocol's own, any other number is an ablation
recompute: bool = False  # train the cells that the results folder does not hold yet; needs the data files
out: str = ""  # results folder; empty means data/results, or out with recompute

# %%
check_parameters(In)
asked = (dataset, models, seeds, protocol, epochs, recompute, out)
book = chapter.open_chapter("real data set", data.REAL, *asked)
names, metrics, label, studies = book.names, book.metrics, book.label, book.studies()
has_bands = lambda study: study.bands is not None  # quantiles over seeds: `fdn seeds` makes them

# %% [markdown]
# ## 4.1 Means and bands
#
# The predictive mean and two standard deviations at each test point against the split feature, the targets, and shaded
# the band of the training rows.

# %%
draw(figures.uncertainty)

# %%
show(*map(chapter.of_uncertainty, studies))

# %% [markdown]
# That was one seed. Over all seeds: the median of the predictive means, where 90 % of them lie, and the median spread.

# %%
draw(figures.uncertainty_seeds, has_bands)

# %% [markdown]
# ## 4.2 The data sets
#
# | data set | target | split feature $z$ | inputs |
# |:---|:---|:---|---:|
# | airfoil | sound pressure level [dB] | frequency [Hz] | 5 |
# | ccpp | electrical energy output PE [MW] | ambient temperature AT [°C] | 4 |
# | energy | heating load Y1 [kWh/m²] | relative compactness X1 | 8 |
# | diabetes (ours) | disease progression after a year | body mass index [kg/m²] | 10 |
#
# Inside the band of $z$, the published runs shuffle the rows and cut 60 : 20 : 20 into training, validation
# and ID test; all rows outside the band are OOD test rows. Energy has 12 different values of $z$ and
# airfoil 21, so points share them. Everything below is in standardised units of the training rows: a target
# variance of about 1.

# %%
here = {name: experiment.load_dataset(name, book.settings) if data.available(name) else None for name in names}
show(tables.split_table(here), book.base())

# %% [markdown]
# ## 4.3 The epoch that is kept
#
# The same question as in section 3.3: with which β were the models trained that the tables show?

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
# ## 4.4 Published beside reproduced
#
# The published runs kept the toy tasks' widths here, so that the models of the table have between 1,858 and 3,342
# parameters and not the 1,000 in print. Column ρ is ρ(Var, MSE); section 4.7 has that with the error of the mean.

# %%
for name in names:
    show(tables.result_table(metrics, name, label, book.models))

# %%
if label == "published":
    show(*(findings.score_of(metrics, name, label) for name in names))
show("How far single runs are from each other:")
show(*(findings.spread_over_seeds(metrics, name, label) for name in names))

# %% [markdown]
# ## 4.5 Against the training mean
#
# The absolute errors inside and outside, with the training mean as the model to beat.

# %%
for name in names:
    show(tables.region_table(metrics, name, label, book.models))

# %%
show(over_seeds.error_table(metrics, names, label))
show(*(findings.against_training_mean(metrics, name, label) for name in names))

# %% [markdown]
# ## 4.6 MSE against Var
#
# > On Airfoil, for example, FDN’s ID scatter lies close to the ideal MSE$=$Var line and spreads out
# > smoothly OOD, with strong Spearman correlation. — *Section 4.5*

# %%
draw(figures.mse_against_var)

# %%
show(*map(chapter.of_scatter, studies))

# %% [markdown]
# ## 4.7 What a slope of one says, and whether Var ranks the errors of the mean
#
# By section 3.7 $b=1+b'$, where $b'$ is the slope of $\mathrm{Bias}_i^2$, and where the variance makes up most of
# $\mathrm{MSE}_i$, $b\approx1$ and $\rho(\mathrm{Var},\mathrm{MSE})\approx1$ are arithmetic. What a variance is worth is
# how well it ranks $\mathrm{Bias}_i^2$.

# %%
draw(figures.mse_var_seeds, has_bands)

# %%
known = [study.bands for study in studies if has_bands(study)]
if known:
    show(over_seeds.bias_table(pd.concat(known)), over_seeds.bias_sentence(pd.concat(known)))
    show("The one seed of the first figures is a draw from these distributions:")
show(*map(chapter.of_bias, studies))

# %% [markdown]
# ## 4.8 Intervals
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
# ## 4.9 Risk and coverage
#
# > on CCPP and Energy the predictive variances remain shift-aware and provide useful selective-risk
# > behavior, even when the absolute scale is not always better than the strongest baselines. — *Section
# > 4.5*

# %%
draw(figures.risk_coverage)

# %%
show(*map(chapter.of_risk, studies))

# %% [markdown]
# ## 4.10 Deltas
#
# > good uncertainty estimates should exhibit small $\Delta\mathrm{MSE}$ (robust accuracy), *large and
# > positive* $\Delta\mathrm{Var}$ (higher uncertainty OOD than ID), and small $\Delta\mathrm{CRPS}$. —
# > *Appendix H*
#
# Because $\mathrm{MSE}_i$ contains $\mathrm{Var}_i$,
# $\Delta\mathrm{MSE}=\Delta\mathrm{Var}+\Delta\mathrm{Bias}^2$: a large $\Delta\mathrm{Var}$ and a small
# $\Delta\mathrm{MSE}$ exclude each other unless the bias shrinks OOD. The scale is logarithmic beyond a
# small linear part around zero.

# %%
draw(figures.delta_bars)

# %%
show(*map(chapter.of_deltas, studies))

# %% [markdown]
# ## 4.11 Seeds
#
# > Each point summarizes one seed by its OOD MSE and OOD predictive variance, and the representative seed
# > used in the main-text plots lies close to the overall across-seed trend. — *Seed-aggregated scatter,
# > Appendix F*

# %%
draw(lambda study: figures.seeds_scatter(study, f"{study.dataset}, all seeds\n{study.places}"))

# %% [markdown]
# A seed's MSE contains its Var. Where Var is most of it, seeds lie along a line whatever they are, so that a seed close
# to the trend need not be a typical one. What tells is how far along the trend it lies: its ranks are in the line below
# each title.

# %% [markdown]
# ## 4.12 The paper's claims
#
# The ten statements that matter most, as far as they are about these data sets. [All of them](../data/claims/README.md),
# with the kind of statement each is, are a page of their own. A criterion is put to what the sentence says. Where one
# of ρ(Var, MSE) or b holds because Var is most of MSE (section 4.7), it holds by arithmetic, and says nothing of the
# error of the mean.

# %%
show(chapter.claims_that_matter(book))

# %% [markdown]
# ## 4.13 Conclusion

# %%
show(*(chapter.conclusion(book, name) for name in names), *chapter.verdicts(book, "FDN is ID-competitive"))

# %% [markdown]
# On real data the shift is milder, and so is the FDNs' answer to it: on ccpp and energy they are about as wide inside as
# outside, on airfoil several times as wide outside. Their intervals hold nearly every target because they are wide
# inside already. On ccpp and energy, ΔVar of GaussHyperNet, whose weights do not see the input, is larger than that of
# either FDN. Variance says much of the error of a draw, which it is part of, and little of the error of the mean.
#
# ## Exercises
#
# **1.** Stay inside the band of ccpp: `frame = studies[1].points["LP-FDNet"]`, rows with `region == "ID"`. Compare
# `metrics.aurc(frame["var"], frame["mse"])` with the mean of `mse`, and the same for `(frame["mean"] - frame["y"]) ** 2`
# (`from fdn import metrics`). Predict which of the two rejecting by variance lowers.
#
# <details><summary>Answer</summary>
#
# The first, by about a quarter; the second hardly at all. ρ(Var, MSE) is high because MSE is mostly Var, and
# ρ(Var, Bias²) is about zero inside: what the variance calls uncertain is no worse predicted.
# </details>

# %% [markdown]
# **2.** Divide every variance of `frame = studies[0].points["LP-FDNet"]` by 10 and recompute `mse` as `var + (mean - y)²`.
# Predict what happens to $b$, to $\rho(\mathrm{Var},\mathrm{MSE})$ and to $\rho(\mathrm{Var},\mathrm{Bias}^2)$.
#
# <details><summary>Answer</summary>
#
# $b'$ becomes ten times as large and so $b=1+b'$ moves away from 1; ρ(Var, MSE) falls, because less of MSE is Var now; and
# ρ(Var, Bias²) does not change at all, for ranks do not know of factors. Only the last is about the model's knowledge.
# </details>

# %% [markdown]
# **3.** Run `-p dataset diabetes -p recompute True -p seeds 0:3 -p out out/diabetes` (a minute or two). Predict from the
# number of its rows whether BayesNet, whose KL is not divided by the number of examples, beats the training mean.
#
# <details><summary>Answer</summary>
#
# See section 4.5 of your run: an undivided KL weighs the more the fewer examples there are, and diabetes has few. Compare
# with `-p protocol as_written`, which does not divide it either but warms β up in updates.
# </details>
#
# Next: [every figure and table](05_figures_and_tables.ipynb).
