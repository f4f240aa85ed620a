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
# All that the paper tabulates and draws, from one results folder: the committed results, unless `out` names
# another one. Notebooks 3 and 4 discuss what is only shown here.
#
# 1 The score · 2 What is not reached · 3 Result tables · 4 The two protocols · 5 Settings, models and data
# · 6 The layer · 7 MSE against Var · 8 The linear fit · 9 Deltas · 10 Predictive means · 11 Risk and
# coverage · 12 Seeds · 13 Calibration curves

# %%
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": None}
from IPython.display import Markdown, display

from fdn import data
from fdn.arguments import check_parameters, parse_protocol
from fdn.protocol import PROTOCOLS
from fdn.report import console, figures, findings, published, tables
from fdn.report.comparison import miss_table, score_table, uniformity_table
from fdn.runs import experiment


def show(*texts):
    """Tables and sentences, typeset."""
    display(Markdown("\n\n".join(t if isinstance(t, str) else t.to_markdown() for t in texts)))


# %% tags=["parameters"]
out: str = ""  # results folder; empty means data/results
protocol: str = "published"  # results to show: published, as_written, or the label of an ablation

# %%
check_parameters(In)
folder = findings.results_folder(out, recompute=False)
metrics = findings.read(folder)
settings = parse_protocol(protocol)
protocol = settings.label
console.check_protocol(metrics, protocol, folder)
runs = metrics[metrics["protocol"] == protocol]
names = [name for name in data.NAMES if name in set(runs["dataset"])]
for name, part in runs.groupby("dataset", sort=False):
    print(f"{name}: {part['model'].nunique()} models, seeds {findings.seed_ranges(part['seed'])}")

# %% [markdown]
# ## 5.1 The score
#
# The six result tables hold 252 numbers. If the published run were one more seed of ours, it would fall
# into the range of $n$ seeds with probability $(n-1)/(n+1)$: that is what the share in the range is to be
# held against, not 100 %.

# %%
comparison = published.compare(metrics, protocol)
show(score_table(comparison), uniformity_table(metrics, protocol))

# %% [markdown]
# ## 5.2 What is not reached

# %%
show(miss_table(comparison))

# %% [markdown]
# ## 5.3 Result tables

# %%
for name in names:
    show(tables.result_table(metrics, name, protocol))

# %% [markdown]
# Inside and outside the training band, with the training mean as the model to beat.

# %%
for name in names:
    show(tables.region_table(metrics, name, protocol))

# %% [markdown]
# ## 5.4 The two protocols
#
# `published` has the settings of the runs behind the published numbers, `as_written` those in print, where
# the two can be told apart. It is a different experiment: other toy functions, 200 updates of warm-up,
# fresh noise for every example, and on the real data sets models of 1,000 parameters.

# %%
for name in names:
    show(findings.protocol_table(metrics, name, list(dict.fromkeys([protocol, *PROTOCOLS]))))

# %% [markdown]
# ## 5.5 Settings, models and data

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

# %%
show(tables.notation_table())

# %% [markdown]
# ## 5.6 The layer
#
# Figures are the files of `figures/`, drawn anew. Those of one seed show the representative seed of their
# data set.

# %%
display(figures.layer_diagram())
studies = [findings.dataset_results(folder, metrics, name, protocol) for name in names]
print(*(study.remark for study in studies), sep="\n")
studies = [study for study in studies if study.points]
toy = [study for study in studies if study.dataset in data.TOY]
real = [study for study in studies if study.dataset not in data.TOY]

# %% [markdown]
# ## 5.7 MSE against Var

# %%
for study in studies:
    display(figures.mse_against_var(study.points, study.title))

# %% [markdown]
# ## 5.8 The linear fit

# %%
for study in studies:
    display(figures.mse_against_var_fit(study.points, study.title))

# %% [markdown]
# ## 5.9 Deltas

# %%
for study in real:
    display(figures.delta_bars(study.runs, study.seed, f"{study.title}; whiskers: all seeds"))

# %% [markdown]
# ## 5.10 Predictive means

# %%
for study in toy:
    truth = experiment.load_dataset(study.dataset, settings).true_function
    display(figures.means_of_function(study.points, truth, study.title))
for study in real:
    display(figures.means_of_data(study.points, study.title))

# %% [markdown]
# ## 5.11 Risk and coverage

# %%
for study in studies:
    display(figures.risk_coverage(study.points, study.title))

# %% [markdown]
# ## 5.12 Seeds

# %%
for study in studies:
    title = f"{study.dataset}, all seeds, protocol {study.protocol}"
    display(figures.seeds_scatter(study.runs, study.seed, title))

# %% [markdown]
# ## 5.13 Calibration curves

# %%
for study in studies:
    display(figures.calibration(study.points, study.title))
