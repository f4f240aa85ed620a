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
# With its default parameters this notebook reads the committed results and trains nothing. With
# `-p recompute True` it trains whatever its results folder does not hold yet, for example
# `papermill notebooks/03_toy.ipynb mine.ipynb -p recompute True -p dataset step -p seeds 0:20`.
#
# 1 The tasks · 2 Published beside reproduced · 3 Against the training mean · 4 MSE against Var · 5 What a
# slope of one says · 6 Predictive means · 7 Risk and coverage · 8 Calibration curves · 9 The paper's claims

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": None}
from IPython.display import Markdown, display

from fdn import data
from fdn.arguments import check_parameters, parse_names, parse_protocol, parse_seeds
from fdn.models import BASELINE, MODEL_NAMES
from fdn.report import figures, findings, tables
from fdn.report.claims import claims_table
from fdn.runs import experiment


def show(*texts):
    """Tables and sentences, typeset."""
    display(Markdown("\n\n".join(t if isinstance(t, str) else t.to_markdown() for t in texts)))


# %% tags=["parameters"]
dataset: str = "step,sine,quad"  # toy tasks to show, comma-separated: step, sine, quad
models: str = "TrainingMean,MLPNet,HyperNet,MLPDropoutNet,DeepEnsembleNet,BayesNet,GaussHyperNet,IC-FDNet,LP-FDNet"  # models to train and draw; tables hold all there is
seeds: str = "0:5"  # model seeds: a half-open range such as 0:5, numbers such as 3,7, or both
protocol: str = "published"  # settings: published (of the runs behind the published numbers) or as_written
epochs: int = 0  # training epochs; 0 means the protocol's own, any other number is an ablation
recompute: bool = False  # train the cells that the results folder does not hold yet
out: str = ""  # results folder; empty means data/results, or out with recompute

# %%
check_parameters(In)
names = parse_names(dataset, data.TOY, "toy task")
chosen = parse_names(models, (BASELINE, *MODEL_NAMES), "model")
numbers = parse_seeds(seeds)
settings = parse_protocol(protocol, epochs=epochs or None)
folder = findings.results_folder(out, recompute)

# %%
if recompute:
    experiment.run(names, chosen, numbers, settings, folder)

everything = findings.read(folder)
metrics = everything[everything["seed"].isin(numbers)]
absent = findings.missing_cells(everything, names, chosen, numbers, settings.label)
print(f"{findings.place(folder)}, protocol {settings.label}, seeds {seeds}")
print(*(["missing, to be trained with -p recompute True:", *absent] if absent else ["complete"]), sep="\n  ")

# %% [markdown]
# ## 3.1 The tasks
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
    print(experiment.load_dataset(name, settings))

# %% [markdown]
# ## 3.2 Published beside reproduced
#
# A published table is one run. Ours is a distribution over seeds, which is what can be reproduced: our
# generators differ from those of the published runs, so the seeds' numbers name other streams.

# %%
for name in names:
    show(tables.result_table(metrics, name, settings.label))

# %%
show(*(findings.score_of(metrics, name, settings.label) for name in names))
show("How far single runs are from each other:")
show(*(findings.spread_over_seeds(metrics, name, settings.label) for name in names))

# %% [markdown]
# ## 3.3 Against the training mean
#
# The published tables leave out what a model achieves in either region. **Ours:** the absolute numbers,
# beside a model that knows nothing of $x$ and predicts the mean of the training targets. $\mathrm{MSE}_i$
# is the error of a *single draw*; what one would use is the predictive mean, whose error is in the next
# column, less what $K$ draws add to it by chance (so that it can come out slightly negative).

# %%
for name in names:
    show(tables.region_table(metrics, name, settings.label))

# %%
show(*(findings.against_training_mean(metrics, name, settings.label) for name in names))

# %% [markdown]
# ## 3.4 MSE against Var
#
# > We visualize these diagnostics via MSE–Var scatter plots in the ID and OOD regions. — *Section 4.4*
#
# Figures of one seed show the representative one: for each FDN the coordinate-wise median over seeds of
# $(\mathrm{MSE}_\mathrm{OOD},\mathrm{Var}_\mathrm{OOD},\Delta\mathrm{CRPS},\mathrm{AURC})$, then the seed
# closest to both medians. Nothing lies below the dashed line, by definition of $\mathrm{MSE}_i$; section
# 3.5 comes back to it.

# %%
studies = [findings.dataset_results(folder, everything, name, settings.label, chosen) for name in names]
print(*(study.remark for study in studies), sep="\n")
studies = [study for study in studies if study.points]
for study in studies:
    display(figures.mse_against_var(study.points, study.title))

# %% [markdown]
# The same with both regions together and the fit $\mathrm{MSE}_i\approx a+b\,\mathrm{Var}_i$ of the tables.
# Points of large variance dominate a least-squares fit, so the far end of the grid decides on $a$ and $b$.

# %%
for study in studies:
    display(figures.mse_against_var_fit(study.points, study.title))

# %% [markdown]
# ## 3.5 What a slope of one says
#
# > the ideal fit has $a\approx0$ and $b\approx1$. — *Appendix H*
#
# **Ours.** Appendix H defines $\mathrm{MSE}_i$ as the mean over *draws* of $(y_i^{(k)}-y_i)^2$. It
# therefore contains the variance it is compared with:
#
# $$\mathrm{MSE}_i=\mathrm{Var}_i+\mathrm{Bias}_i^2,\qquad\text{hence}\qquad b=1+b',\quad
# b'=\text{slope of }\mathrm{Bias}_i^2\text{ against }\mathrm{Var}_i .$$
#
# Whenever the variance dominates the squared bias, $b\approx1$ and $\rho\approx1$ follow, whatever the
# errors are. And $b=1$ means $b'=0$: the error of the predictive mean does not grow with the variance at
# all. If the target were distributed like one more draw, $\mathbb E\,\mathrm{Bias}_i^2=\mathrm{Var}_i$, so
# $b'=1$ and $b=2$. The informative question is whether $\mathrm{Var}_i$ ranks and scales
# $\mathrm{Bias}_i^2$. The mean of $K$ draws has a chance error of $\mathrm{Var}_i/K$, so $b'$ near $1/K$
# (0.01 for the 100 draws of all models but the ensemble) is no bias at all.

# %%
show(*(findings.mean_error_table(study) for study in studies))

# %% [markdown]
# ## 3.6 Predictive means
#
# > Shaded region corresponds to the interpolation/ ID points. — *Figure of the predictive means, Appendix F*
#
# Left, all of the test grid; right (ours), the band itself, which the scale of the left panel hides.
# Outside the band a ReLU network with fixed weights continues as a straight line. An FDN's weights are
# themselves piecewise linear in their conditioning signal: a first layer of weights $\propto x$ times its
# input $x$, then a second one of weights $\propto x$ (IC) or $\propto a_1\sim x^2$ (LP). Draws and their
# mean can therefore grow like $x^3$ (IC) and $x^4$ (LP, and HyperNet, whose OOD errors are in the tables
# above), variances like $x^6$ and $x^8$.

# %%
for study in studies:
    truth = experiment.load_dataset(study.dataset, settings).true_function
    display(figures.means_of_function(study.points, truth, study.title))

# %% [markdown]
# ## 3.7 Risk and coverage
#
# > Lower AURC is better: for a fixed difficulty, it means that as we keep only high-confidence predictions,
# > the resulting risk drops more quickly. — *Appendix H*
#
# The curve's right end is the mean MSE itself, so the area mixes how well a model ranks its points with how
# large its errors are. The height of a curve shows the second, its shape the first.

# %%
for study in studies:
    display(figures.risk_coverage(study.points, study.title))

# %% [markdown]
# ## 3.8 Calibration curves
#
# > we form *variance–MSE calibration curves* by binning test points into $B$ quantiles of predicted variance.
# > — *Appendix H*
#
# Defined in the paper and not shown there. A curve along the dashed line has
# $\mathrm{Bias}^2\ll\mathrm{Var}$ in every bin; the distance above it, on log axes, is
# $1+\mathrm{Bias}^2/\mathrm{Var}$.

# %%
for study in studies:
    display(figures.calibration(study.points, study.title))

# %% [markdown]
# ## 3.9 The paper's claims
#
# What the abstract and section 4.5 say about each task, with a criterion that numbers can meet or miss. The
# words are the paper's, the criteria ours. A criterion is put to the published table itself and to every
# seed of ours, so that one sees whether a claim describes the published numbers, and whether it survives
# another seed.

# %%
show(*(claims_table(metrics, name, settings.label) for name in names))
