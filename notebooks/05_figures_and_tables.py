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
# # 5 · Every figure and table
#
# All that the paper tabulates and draws, in its own layouts, from one results folder: the committed results, unless
# `out` names another one. First how much of it is reached. Notebooks 3 and 4 discuss what is only shown here, with a
# panel for each model and over all seeds.
#
# 1 The score · 2 What is not reached · 3 Result tables · 4 The two protocols · 5 Settings, models and data
# · 6 The layer · 7 MSE against Var · 8 The linear fit · 9 Deltas · 10 Predictive means · 11 Risk and
# coverage · 12 Seeds

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": None, "dpi": 110}
from dataclasses import replace

from IPython.display import Markdown, display

from fdn import data
from fdn.arguments import check_parameters, parse_names, parse_protocol, parse_seeds
from fdn.protocol import PROTOCOLS
from fdn.report import chapter, console, figures, findings, published, tables
from fdn.report.comparison import miss_list, score_table, uniformity_table
from fdn.report.figures import grids
from fdn.runs import experiment


def show(*texts):
    """Tables and sentences, typeset."""
    display(Markdown("\n\n".join(t if isinstance(t, str) else t.to_markdown() for t in texts)))


# %% tags=["parameters"]
out: str = ""  # results folder; empty means data/results
protocol: str = "published"  # results to show: published, as_written, or the label of an ablation
dataset: str = ""  # data sets to show, comma-separated; empty means all there are
seeds: str = ""  # model seeds to show, such as 0:5; empty means all there are

# %%
check_parameters(In)
folder = findings.results_folder(out, recompute=False)
everything = findings.read(folder)
settings = parse_protocol(protocol)
protocol = settings.label
console.check_protocol(everything, protocol, folder)
names = parse_names(dataset, data.NAMES, "data set") if dataset else data.NAMES
metrics = everything[everything["dataset"].isin(names)]
if seeds:
    metrics = metrics[metrics["seed"].isin(parse_seeds(seeds)) | metrics["model"].eq("TrainingMean")]
runs = metrics[metrics["protocol"] == protocol]
names = [name for name in data.NAMES if name in set(runs["dataset"])]
for name, part in runs.groupby("dataset", sort=False):
    print(f"{name}: {part['model'].nunique()} models, seeds {findings.seed_ranges(part['seed'])}")

# %% [markdown]
# ## 5.1 The score
#
# The six result tables hold 252 numbers. If the published run were one more seed of ours, it would fall
# into the range of $n$ seeds with probability $(n-1)/(n+1)$: that is what the share in the range is to be
# held against, not 100 %. [How to read the score](../docs/score.md) goes on.

# %%
comparison = published.compare(metrics, protocol)
show(score_table(comparison), uniformity_table(metrics, protocol))
show(chapter.of_score(comparison))

# %% [markdown]
# ## 5.2 What is not reached
#
# A line for each run, with the reason in brief; [every number](../data/comparison/compare.md), with its place among the
# seeds and the whole reason, is a page.

# %%
show(miss_list(comparison))

# %% [markdown]
# ## 5.3 Result tables
#
# The paper's six result tables, the published value first in each cell.

# %%
for name in names:
    show(tables.result_table(metrics, name, protocol), findings.score_of(metrics, name, protocol))

# %% [markdown]
# Errors inside and outside the band, which the paper does not print, are in notebooks 3 and 4.
#
# ## 5.4 The two protocols
#
# `published` has the settings of the runs behind the published numbers, `as_written` those in print, where
# the two can be told apart. It is a different experiment: other toy functions, 200 updates of warm-up,
# fresh noise for every example, and on the real data sets models of 1,000 parameters.

# %%
for name in names:
    present = list(dict.fromkeys([protocol, *PROTOCOLS]))
    present = [p for p in present if len(published.rows_of(metrics, dataset=name, protocol=p))]
    show(findings.protocol_table(metrics, name, present), chapter.of_protocols(metrics, name, present))

# %% [markdown]
# ## 5.5 Settings, models and data
#
# [Each setting's meaning](../lib/fdn/protocol.py) stands beside it in the code. The third protocol, `recommended`, is
# ours, for data of one's own: [notebook 10](10_what_makes_fdn_work.ipynb).

# %%
show(tables.hyperparameter_table())

# %%
here = {name: data.available(name) for name in data.NAMES}
widths = dict.fromkeys(data.TOY, 1)
widths |= {name: len(source.columns) - 1 for name, source in data.uci.SOURCES.items()}
print("inputs:", *(f"{name} {d}" for name, d in widths.items()))
for grid in PROTOCOLS.values():
    show(tables.model_table(grid, sorted(set(widths.values()))))

# %% [markdown]
# The sizes of a data set whose file is not on this machine cannot be counted.

# %% tags=["nbval-ignore-output"]
show(tables.split_table({n: experiment.load_dataset(n, settings) if here[n] else None for n in data.NAMES}))

# %% [markdown]
# The table of notation is section 1.2.
#
# ## 5.6 The layer
#
# Figures show one seed, the representative one of each data set by the paper's rule, in the paper's layouts: a row for
# each data set, all models in the same axes.

# %%
display(figures.layer_diagram())
studies = [findings.dataset_results(folder, everything, name, protocol) for name in names]
print(*(study.remark for study in studies), sep="\n")
studies = [study for study in studies if study.points]
truths = {name: experiment.load_dataset(name, settings).true_function for name in data.TOY}
toy = [replace(study, true_function=truths[study.dataset]) for study in studies if study.dataset in truths]
real = [study for study in studies if study.dataset not in data.TOY]
kinds = [group for group in (toy, real) if group]

# %% [markdown]
# ## 5.7 MSE against Var

# %%
for group in kinds:
    display(grids.mse_against_var(group))

# %% [markdown]
# Points well above the dashed line have a mean that is off by more than the draws spread; none can lie below it. How
# many points of each model lie along it, sections 3.6 and 4.6 count: nearly all of the FDNs' and of GaussHyperNet's on
# airfoil and energy, far fewer on the toy tasks.
#
# ## 5.8 The linear fit

# %%
for group in kinds:
    display(grids.mse_against_var_fit(group))

# %% [markdown]
# Slopes near 1 belong to the models along the line, and say that their variance is most of their MSE (section 3.7).
#
# ## 5.9 Deltas

# %%
if real:
    display(grids.deltas(real))

# %% [markdown]
# Where ΔMSE and ΔVar are bars of one height, the growth of the error is the growth of the spread.
#
# ## 5.10 Predictive means

# %%
for group in kinds:
    display(grids.means(group))

# %% [markdown]
# ## 5.11 Risk and coverage

# %%
for group in kinds:
    display(grids.risk_coverage(group))

# %% [markdown]
# The right end of a curve is the mean MSE; a model with small errors lies low whatever it says of its certainty.
#
# ## 5.12 Seeds
#
# > Each point summarizes one seed by its OOD MSE and OOD predictive variance. — *Appendix F*

# %%
for study in studies:
    if study.dataset == "airfoil":
        display(figures.seeds_scatter(study, f"{study.dataset}, all seeds\n{study.places}"))
