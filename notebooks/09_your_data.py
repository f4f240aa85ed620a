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

# %% [markdown] tags=["book"]
# # 9 · Your data: from a table to a decision
#
# A table has a column to predict. For each new row we want a number, how far off it may be, and a warning where
# the row is unlike all rows that the model has seen. At the end stands a decision: which predictions to act on, and
# which rows to look at ourselves.
#
# 1 The table · 2 The fit · 3 The check · 4 Calibration · 5 Intervals · 6 Rows outside · 7 How far to trust it ·
# 8 A decision · Exercises
#
# By default the table is scikit-learn's diabetes set: ten measurements of patients, and how far the disease has
# gone a year later. `-p path FILE -p target COLUMN -p split_column COLUMN` reads another one, CSV, Parquet or Excel.
# The same from a shell, where `fdn report` makes one page of sections 1 to 8:
#
# ```console
# $ fdn fit houses.csv --target price --split-column area --out model
# $ fdn predict model new.csv --out pred.csv
# $ fdn report model --out report.html
# ```

# %% tags=["book"]
# %matplotlib inline
# %config InlineBackend.print_figure_kwargs = {"bbox_inches": None}
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import display
from scipy.stats import binomtest
from sklearn.datasets import load_diabetes

from fdn import paths
from fdn.arguments import check_parameters
from fdn.errors import UserError
from fdn.estimators.tables import INSIDE, OUTSIDE, TRAIN, TableModel
from fdn.report.tables import plain_number
from fdn.settings import Count, NonNegative, Whole, checked
from fdn.typesetting import drawn

COLOURS = {INSIDE: "#0072B2", OUTSIDE: "#D55E00"}
pd.set_option("display.max_colwidth", None)
plt.rcParams |= {"figure.figsize": (7, 3.2), "figure.constrained_layout.use": True, "font.size": 8}
plt.rcParams |= {"axes.spines.top": False, "axes.spines.right": False}


def label(put, text):
    """Text of a figure as it stands, whatever is in it."""
    shown, options = drawn(text)
    put(shown, **options)


# %% tags=["parameters"]
path: str = ""  # a table; empty means scikit-learn's diabetes set
target: str = ""  # the column of it to predict
split_column: str = ""  # its 20-80 % band is trained on and the rows beyond it are held out; empty: no such column
model: str = ""  # folder that `fdn fit` wrote; empty means to fit here
epochs: int = 60  # of training here, at most
beta: float = 0.003  # weight of the KL divergence in training here; 0 means chosen from the training rows, by more fits
seed: int = 0  # of the split and the training here

# %% tags=["book"]
check_parameters(In)
if not (path or model):
    path, target, split_column = str(paths.DEFAULT_OUT / "09_your_data" / "diabetes.csv"), "progression", "bmi"
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    diabetes = load_diabetes(as_frame=True, scaled=False)
    diabetes.data.assign(progression=diabetes.target).to_csv(path, index=False)
if model:
    fitted = TableModel.load(Path(model))
else:
    if not target:
        raise UserError("target is empty; name the column to predict")
    settings = {"seed": checked("seed", seed, Whole), "max_epochs": checked("epochs", epochs, Count)}
    settings["beta"] = checked("beta", beta, NonNegative) or "auto"
    fitted = TableModel.fit(Path(path), target, split_column or None, **settings)
table, y, part = fitted.table(Path(path) if path else None)
X, _ = fitted.encoded(table)
predicted = fitted.predict(table)

# %% [markdown]
# ## 9.1 The table
#
# Numbers are standardised with the rows that are trained on. A date becomes a number of days. A category becomes a
# column of 0 and 1 for each of its texts. A missing number is replaced by the median, and a column says that it was
# missing. A fifth of the rows is held out; with a split column only the rows in its 20-80 % band are trained on, and
# those beyond it are held out too: they show what the model does outside its data.

# %%
rows = {}
for column in fitted.inputs:
    values = table[column.name]
    kind = {"category": f"{len(column.texts)} texts", "date": f"date, {column.format}"}.get(column.kind, "number")
    ends = ("", "")
    if column.kind != "category":
        numbers = column.values(values, fitted.reading.decimal)
        ends = np.nanmin(numbers), np.nanmax(numbers)
        if column.kind == "date":
            ends = [f"{pd.Timestamp(0) + pd.Timedelta(days=end):%Y-%m-%d}" for end in ends]
        else:
            ends = [plain_number(end) for end in ends]
    rows[column.name] = {"read as": kind, "missing": values.isna().sum(), "smallest": ends[0], "largest": ends[1]}
display(pd.DataFrame(rows).T)
for remark in fitted.remarks:
    print(remark)
print(f"To predict: {fitted.target}, from {plain_number(y.min())} to {plain_number(y.max())}, in {len(y)} rows.")
print("; ".join(f"{name}: {np.sum(part == name)} rows" for name in (TRAIN, INSIDE, OUTSIDE)))
if fitted.band:
    low, high = fitted.band
    print(f"The band: {fitted.split_column} from {plain_number(low)} to {plain_number(high)}.")

# %% [markdown]
# ## 9.2 The fit
#
# Every few epochs the network predicts validation rows, a fifth of those to train on, and the epoch that predicts them
# best is kept. The score is the CRPS, an absolute error that counts the whole predicted distribution, of the
# standardised target. If the best epoch is the last one, more epochs may help. A curve that rises after its minimum
# says that the model begins to learn the rows by heart. The learning rate goes up and down again in the course of the
# training: where it is high, a curve may climb and come back.

# %%
[trained], [best] = fitted.regressor.trained_, fitted.regressor.best_epoch_
scores = trained.scores[0]
fig, ax = plt.subplots(figsize=(7, 2.6))
looked = np.flatnonzero(np.isfinite(scores))
ax.plot(looked + 1, scores[looked], ".-", color="#0072B2")
ax.axvline(best, color="0.5", lw=0.8)
ax.set(xlabel="epoch", ylabel="CRPS, validation rows", title=f"kept: epoch {best} of {len(scores)}")
plt.show()

# %% [markdown]
# ## 9.3 The check
#
# On held-out rows, in units of the target: the error (RMSE) of the predicted mean, beside that of always predicting
# the training rows' mean, and that of boosted trees, scikit-learn's, which give no uncertainty; the CRPS; the share of
# targets in the 90 % intervals, and the intervals' mean width.

# %%
check = fitted.check(Path(path) if path else None)
display(check.map(plain_number).assign(rows=check["rows"]))

# %% [markdown]
# ## 9.4 Calibration
#
# A 90 % interval should cover 90 % of the targets, a 50 % interval half of them. On the diagonal a share is as
# promised, below it the intervals are too narrow, above it too wide. The bars are 90 % intervals of the share itself:
# few rows cannot tell much.

# %%
levels = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
shares = {}
fig, ax = plt.subplots(figsize=(3.6, 3.4))
for name, colour in COLOURS.items():
    if not (some := part == name).any():
        continue
    quantiles = fitted.regressor.predict_quantiles(X[some], [*(1 - levels) / 2, *(1 + levels) / 2])
    low, high = np.split(quantiles, 2, axis=1)
    hits = ((low <= y[some, None]) & (y[some, None] <= high)).sum(0)
    tests = [binomtest(int(k), int(some.sum())) for k in hits]
    bounds = np.array([tuple(test.proportion_ci(0.9)) for test in tests])
    share = np.array([test.statistic for test in tests])
    shares[name] = some.sum(), share[-1], *bounds[-1]
    ax.errorbar(levels, share, np.abs(bounds.T - share), fmt="o-", color=colour, ms=4, lw=1, label=name)
ax.plot([0, 1], [0, 1], color="0.6", lw=0.8)
ax.set(xlabel="promised share", ylabel="share covered", xlim=(0, 1), ylim=(0, 1), aspect="equal")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## 9.5 Intervals
#
# Held-out rows with their 90 % intervals, along the split column if there is one, else by their predicted mean. Dots
# are targets. At most 150 rows are drawn.

# %%
held = np.flatnonzero(part != TRAIN)
held = np.sort(np.random.default_rng(0).permutation(held)[:150])
along = fitted.split_column or "predicted mean"
places = predicted["mean"].to_numpy()
if fitted.split_column:
    column = next(column for column in fitted.inputs if column.name == along)
    places = column.values(table[along], fitted.reading.decimal)
fig, ax = plt.subplots()
for name, colour in COLOURS.items():
    some = held[part[held] == name]
    ax.vlines(places[some], predicted["q05"].iloc[some], predicted["q95"].iloc[some], color=colour, lw=1.2, alpha=0.5)
    ax.plot(places[some], y[some], ".", color=colour, ms=4, label=name if len(some) else None)
label(ax.set_xlabel, along)
label(ax.set_ylabel, fitted.target)
ax.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)  # above, where no row and no exponent is
plt.show()

# %% [markdown]
# ## 9.6 Rows outside the data
#
# A row is outside if one of its values lies beyond those of the rows trained on, if it is far from all of them in all
# columns together, or if it has a text, or lacks a value, as no such row does. All columns are looked at, not the
# split column alone.

# %%
flagged = ~predicted["in_domain"].to_numpy()
error = np.abs(predicted["mean"].to_numpy() - y)
width = (predicted["q95"] - predicted["q05"]).to_numpy()
rows = {}
for name in (INSIDE, OUTSIDE):
    for called, some in (("in domain", ~flagged), ("outside", flagged)):
        if (some := some & (part == name)).any():
            covered = ((predicted["q05"] <= y) & (y <= predicted["q95"]))[some].mean()
            rows[f"{name}, called {called}"] = [some.sum(), error[some].mean(), width[some].mean(), covered]
columns = ["rows", "mean absolute error", "mean width", "coverage"]
display(pd.DataFrame(rows, columns).T.map(plain_number).assign(rows=[int(row[0]) for row in rows.values()]))
shown = predicted[flagged & (part != TRAIN)].sort_values("std", ascending=False).head(8)
if len(shown):
    shown = shown[["mean", "std"]].map(plain_number).assign(why=shown["why_outside"])
    display(shown.set_axis(shown.index + 1).rename_axis("data row"))

# %% [markdown]
# ## 9.7 How far to trust it


# %%
def verdict(name):
    """What held-out rows say of the model, in words."""
    n, share, low, high = shares[name]
    words = "as wide as they should be, as far as these can tell"
    if not low <= 0.9 <= high:
        words = "too narrow" if share < 0.9 else "too wide"
    it = check.loc[name]
    of_mean, of_trees = it["rmse"] / it["rmse of always the mean"], it["rmse"] / it["rmse of boosted trees"]
    yield f"{name.capitalize()} ({n} rows): the 90 % intervals cover {share:.0%} ({low:.0%} to {high:.0%}): {words}."
    use = "predicting the mean would do as well" if of_mean > 0.97 else "so the inputs tell something of the target"
    yield f"  The error is {of_mean:.2f} times that of always predicting the mean; {use}."
    use = "; for the mean alone, take those" if of_trees > 1.05 else ""
    yield f"  It is {of_trees:.2f} times that of boosted trees{use}."


for name in shares:
    print("\n".join(verdict(name)))
if OUTSIDE in shares:
    print(f"Of the rows beyond the band {flagged[part == OUTSIDE].mean():.0%} are called outside.")
    print("Other ways to be outside were not tested.")
else:
    print("Rows outside were not tested, for there is no split column.")
print("For a row called outside, the interval is a guess.")

# %% [markdown]
# ## 9.8 A decision
#
# A rule that needs no target: act on a prediction if its row is in domain and its interval is among the narrower half
# of those of the rows trained on; look at the others. The rule is worth something if the errors of the rows to act on
# are smaller.

# %%
limit = np.median(width[part == TRAIN])
act = ~flagged & (width <= limit)
rows = {}
for name in (INSIDE, OUTSIDE):
    for what, some in (("act", act), ("look", ~act)):
        if (some := some & (part == name)).any():
            rows[f"{name}: {what}"] = {"rows": some.sum(), "mean absolute error": error[some].mean()}
found = pd.DataFrame(rows).T
display(found.map(plain_number).assign(rows=found["rows"].astype(int)))
held = part != TRAIN
print(
    f"Act on {np.sum(act & held)} of {np.sum(held)} held-out rows, those with an interval of at most {plain_number(limit)}."
)
if (act & held).any() and (~act & held).any():
    ratio = error[act & held].mean() / error[~act & held].mean()
    print(f"The mean absolute error of these is {ratio:.2f} times that of the others"
          + (": the rule helps." if ratio < 0.95 else ": the rule does not help here."))  # fmt: skip

# %% [markdown] tags=["book"]
# ## Exercises
#
# **1.** Fit without a split column. Which sentence of section 7 changes, and what do you know less of?
#
# <details><summary>Answer</summary>
#
# All rows are alike then, a fifth is held out at random, and nothing is said of rows outside. The model has seen a wider
# range, so fewer new rows are outside; but what it does there nobody has looked at.
#
# </details>
#
# **2.** A hospital wants to know which patients may get much worse. Which column of `pred.csv` would you sort by, and
# why not by the mean?
#
# <details><summary>Answer</summary>
#
# By `q95`, what is exceeded with a probability of 5 %: it is large where the mean is large *or* little is known. By the
# mean a patient of whom nothing is known stands in the middle of the list.
#
# </details>
#
# **3.** Write `unknown` into one cell of the column `bmi` and fit. Then into most cells of a new column. What is said?
#
# <details><summary>Answer</summary>
#
# A column whose values are mostly numbers is refused in one sentence, which names the first cell that is none, and
# `--missing unknown` makes it a missing value. A column that is mostly text is a category.
#
# </details>
