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

# %% [markdown]
# # 11 · Beside what people use
#
# > […] we benchmark FDN against strong Bayesian, ensemble, dropout, and hypernetwork baselines […] — *Section 1*
#
# The paper compares FDN with networks of its own size. A person with a table has other choices: Gaussian processes,
# boosted trees, forests, ensembles of larger networks. This notebook fits them, measures them and the recommended FDN
# by one function, and shows all of `data/rivals`. Where FDN loses, [notebook 10](10_what_makes_fdn_work.ipynb) says so.
#
# 1 One measure · 2 The sets that judge · 3 The methods · 4 A small check · 5 All numbers
#
# `-p recompute True` computes the rows for `dataset`, `methods` and `seeds` that `out` lacks. Four of the methods need a package of the extra `rivals`: `pip install 'fdn[rivals]'`.

# %%
import dataclasses
import functools
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown, display
from scipy.interpolate import interp1d
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.neural_network import MLPRegressor
from torch.utils.data import DataLoader, TensorDataset

import fdn
from fdn import paths
from fdn.arguments import check_parameters, parse_names, parse_seeds
from fdn.data import feature_band_split
from fdn.errors import UserError
from fdn.nn import sample
from fdn.report import rivals as report
from fdn.runs import adapters, rivals
from fdn.typesetting import Table

# %% tags=["parameters"]
dataset: str = "diabetes"  # sets to compute, comma-separated; empty means the eight of data/rivals
methods: str = "GP,MC dropout"  # methods to compute, comma-separated, "FDN" among them; empty means all
seeds: str = "0"  # of the rows to compute
recompute: bool = False  # record what `out` lacks; else rows are computed to be compared with the committed ones
out: str = ""  # folder of the rows; empty means out/rivals

# %%
check_parameters(In)
numbers = parse_seeds(seeds)
sets = parse_names(dataset, report.SETS, "data set") if dataset else report.SETS
known = ("FDN", *rivals.METHODS)
chosen = parse_names(methods, known, "method") if methods else known
folder = paths.DEFAULT_OUT / "rivals" if not out else Path(out)

# %% [markdown]
# ## 11.1 One measure
#
# A method is asked for 99 quantiles of the target at each test row, for its mean and, if it has one, its density. The
# rest is the same for all (`fdn.runs.rivals.measured`): RMSE of the mean, CRPS as the integral of the pinball loss over
# the quantiles, coverage and width of the interval from the 5th to the 95th, and the NLL. For a Gaussian all of these
# are known, so the function can be checked:

# %%
y = np.array([-1.0, 0.0, 2.5])
found = rivals.gaussian(np.zeros(3), np.ones(3))
exact = torch.distributions.Normal(0.0, 1.0)
z = torch.tensor(y)
crps = z * (2 * exact.cdf(z) - 1) + 2 * exact.log_prob(z).exp() - np.pi**-0.5
print("CRPS from quantiles", rivals.crps(found.quantiles, y).round(4), "exact", crps.numpy().round(4))
np.testing.assert_allclose(rivals.crps(found.quantiles, y), crps, rtol=3e-3)

# %% [markdown]
# ## 11.2 The sets that judge
#
# By airfoil, energy, CCPP and diabetes settings may have been chosen. By four more sets none was: bicycles rented in
# an hour, split by the temperature (H. Fanaee-T and J. Gama, 2014; a file of the package ISLP); prices of diamonds,
# split by the carat (ggplot2's set; a file of plotnine); Friedman's first function (1991), split by its fourth input;
# and a sine whose noise grows outwards, split by x. Categories become 0, 1, 2 and so on in their natural order.

# %%
ORDERS = {
    "mnth": ["Jan", "Feb", "March", "April", "May", "June", "July", "Aug", "Sept", "Oct", "Nov", "Dec"],
    "weathersit": ["clear", "cloudy/misty", "light rain/snow", "heavy rain/snow"],
    "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
    "color": list("JIHGFED"),
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
}


def packaged(package, file):
    """A table in the folder of a package, which is not imported: pip install --no-deps will do."""
    if (spec := find_spec(package)) is None:
        raise UserError(f"{file} is a file of the package {package}: pip install --no-deps {package}")
    table = pd.read_csv(Path(spec.origin).parent / "data" / file)
    ordered = {name: pd.Categorical(table[name], ORDERS[name]).codes for name in ORDERS if name in table}
    return table.assign(**ordered)


# %%
def bikeshare():
    table = packaged("ISLP", "Bikeshare.csv").drop(columns=["casual", "registered"])  # the target is their sum
    return fdn.from_frame(table, target="bikers", split_column="temp", name="bikeshare")


def diamonds():
    table = packaged("plotnine", "diamonds.csv")
    rows = np.random.default_rng(0).choice(len(table), 5000, replace=False)
    return fdn.from_frame(table.iloc[rows], target="price", split_column="carat", name="diamonds")


def friedman1():
    x, y = make_friedman1(n_samples=2000, noise=1.0, random_state=0)
    return feature_band_split(x, y, split_feature=3, name="friedman1")


def heteroscedastic_sine():
    rng = np.random.default_rng(0)
    x, e = rng.uniform(-1, 1, 1500), rng.standard_normal(1500)
    return feature_band_split(x[:, None], np.sin(6 * x) + (0.05 + 0.4 * x**2) * e, name="heteroscedastic_sine")


JUDGING = {made.__name__: made for made in (bikeshare, diamonds, friedman1, heteroscedastic_sine)}
assert tuple(JUDGING) == report.JUDGING
print(friedman1(), heteroscedastic_sine(), sep="\n")


def load(name):
    return JUDGING[name]() if name in JUDGING else fdn.load(name)


# %% [markdown]
# ## 11.3 The methods
#
# Each is a function of a data set and a seed: it trains, then gives a name, a function that predicts, and what it
# chose. Choices are made by the validation rows, which are inside the band here; methods that need these for nothing
# else, or not any more, are then trained on training and validation rows.


# %%
def all_rows(d):
    return np.concatenate([d.x_train, d.x_val]), np.concatenate([d.y_train, d.y_val])


# %% [markdown]
# **A Gaussian process** with a Matérn 5/2 kernel, a length for each input, and white noise. Its hyperparameters come
# from at most 1,000 rows, its predictions from at most 2,000, both drawn at random.

# %%
GP_TUNED, GP_ROWS = 1000, 2000


def gaussian_process(d, seed):
    x, y = all_rows(d)
    rows = np.random.default_rng(seed).permutation(len(y))
    kernel = ConstantKernel() * Matern(np.ones(d.n_features), (1e-2, 1e3), 2.5) + WhiteKernel(0.1, (1e-6, 10))
    tuned = GaussianProcessRegressor(kernel, normalize_y=True).fit(x[rows[:GP_TUNED]], y[rows[:GP_TUNED]])
    model = GaussianProcessRegressor(tuned.kernel_, optimizer=None, normalize_y=True)
    model.fit(x[rows[:GP_ROWS]], y[rows[:GP_ROWS]])
    yield "GP", lambda x: rivals.gaussian(*model.predict(x, return_std=True)), ""


# %% [markdown]
# **Ten multilayer perceptrons** of two hidden layers of 64, trained by Adam until 20 epochs bring nothing. Their spread
# alone is the forecast; and, as a second method, with one noise variance, the likeliest for the validation rows.

# %%
MEMBERS = 10


def perceptron(seed):
    return MLPRegressor(
        hidden_layer_sizes=(64, 64), batch_size=64, learning_rate_init=3e-3, max_iter=300,
        early_stopping=True, n_iter_no_change=20, tol=1e-5, random_state=seed,
    )  # fmt: skip


def perceptrons(d, seed):
    networks = [perceptron(MEMBERS * seed + i).fit(d.x_train, d.y_train) for i in range(MEMBERS)]

    def outputs(x):
        return np.stack([net.predict(x) for net in networks])  # (10, N)

    def spread(x):
        f = outputs(x)
        return rivals.Prediction(np.quantile(f, rivals.LEVELS, axis=0, method="averaged_inverted_cdf"), f.mean(0))

    _, variance = adapters.observation_noise(torch.tensor(outputs(d.x_val))[..., None], torch.tensor(d.y_val))
    yield "10 MLPs", spread, ""
    yield "10 MLPs + noise", lambda x: rivals.mixture(outputs(x), variance), ""


# %% [markdown]
# **Boosted trees**: a model of the pinball loss for each twentieth and for both ends, linear between, and one of squared
# errors for the mean.

# %%
BOOSTED = np.array([0.01, *np.arange(1, 20) / 20, 0.99])  # with a model of their own
ITERATIONS = (50, 100, 200, 400)


def quantile_boosting(d, seed):

    def fitted(x, y, n, level=None):
        options = {"loss": "squared_error"} if level is None else {"loss": "quantile", "quantile": level}
        return HistGradientBoostingRegressor(**options, max_iter=n, early_stopping=False, random_state=seed).fit(x, y)

    losses = np.zeros(max(ITERATIONS))
    for level in (0.1, 0.5, 0.9):
        stages = np.stack([*fitted(d.x_train, d.y_train, max(ITERATIONS), level).staged_predict(d.x_val)])
        losses += rivals.pinball(level, d.y_val - stages).mean(1)
    n = min(ITERATIONS, key=lambda n: losses[n - 1])
    models, mean = [fitted(*all_rows(d), n, level) for level in BOOSTED], fitted(*all_rows(d), n)

    def predict(x):
        at_levels = np.sort([model.predict(x) for model in models], axis=0)  # sorted: models may cross
        return rivals.Prediction(interp1d(BOOSTED, at_levels, axis=0)(rivals.LEVELS), mean.predict(x))

    yield "quantile boosting", predict, n


# %% [markdown]
# **A quantile forest**: quantiles over the training rows in the leaves that a row falls into (Meinshausen, 2006).

# %%
TREES, LEAVES = 100, (1, 3, 10)  # least rows in a leaf


def forest(d, seed):
    from quantile_forest import RandomForestQuantileRegressor

    def fitted(x, y, leaf):
        model = RandomForestQuantileRegressor(
            TREES, min_samples_leaf=leaf, max_samples_leaf=None, random_state=seed
        ).fit(x, y)
        return lambda x: rivals.Prediction(model.predict(x, list(rivals.LEVELS)).T, model.predict(x, "mean"))

    scores = {
        leaf: rivals.crps(fitted(d.x_train, d.y_train, leaf)(d.x_val).quantiles, d.y_val).mean() for leaf in LEAVES
    }
    leaf = min(scores, key=scores.__getitem__)
    yield "random forest", fitted(*all_rows(d), leaf), leaf


# %% [markdown]
# **MC dropout**, with the network and the training of [notebook 08](08_adapters.ipynb): three hidden layers of 64, 100
# epochs, of which the best for the validation rows is kept. Dropout stays on in prediction. Rate and noise variance are
# the likeliest for the validation rows.

# %%
DROPOUT, DRAWS = (0.02, 0.1, 0.2), 100


def dropout(d, seed):
    task = adapters.table_task(d)
    networks = {rate: task.network(rate) for rate in DROPOUT}
    scores = {rate: adapters.train(task, net, task.epochs[0]) for rate, net in networks.items()}
    rate = min(scores, key=scores.__getitem__)
    _, variance = task.score(sample(networks[rate], task.x_val, DRAWS), task.y_val)

    def predict(x):
        f = sample(networks[rate], torch.tensor(x, dtype=torch.float32), DRAWS)  # (K, N, 1); dropout stays on
        return rivals.mixture(f.squeeze(-1).double().numpy(), variance)

    yield "MC dropout", predict, rate


# %% [markdown]
# **A Laplace approximation** of the last layer of such a network, prior precision and noise by marginal likelihood.


# %%
def laplace(d, seed):
    from laplace import FullLLLaplace

    task = adapters.table_task(d)
    net = task.network(0.0)
    adapters.train(task, net, task.epochs[0], draws=1)
    model = FullLLLaplace(net.eval(), "regression")
    model.fit(DataLoader(TensorDataset(task.x, task.y[:, None]), batch_size=512))
    logs = torch.tensor([0.0, np.log(0.3)], requires_grad=True)  # of prior precision and noise
    optimiser = torch.optim.Adam([logs], lr=0.1)
    for _ in range(200):
        optimiser.zero_grad()
        (-model.log_marginal_likelihood(logs[0].exp(), logs[1].exp())).backward()
        optimiser.step()
    model.prior_precision, model.sigma_noise = logs.detach().exp()

    def predict(x):
        inputs = torch.tensor(x, dtype=torch.float32)
        mean, variance = (part.detach().flatten().double().numpy() for part in model(inputs))
        return rivals.gaussian(mean, np.sqrt(variance + float(model.sigma_noise) ** 2))

    yield "Laplace", predict, ""


# %% [markdown]
# **NGBoost**: boosted Gaussians, as many rounds as are best for the validation rows, then with all rows.

# %%
ROUNDS = 2000


def ngboost(d, seed):
    from ngboost import NGBRegressor

    options = {"verbose": False, "random_state": seed}
    first = NGBRegressor(n_estimators=ROUNDS, **options)
    first.fit(d.x_train, d.y_train, X_val=d.x_val, Y_val=d.y_val, early_stopping_rounds=50)
    n = (first.best_val_loss_itr or 0) + 1
    model = NGBRegressor(n_estimators=n, **options).fit(*all_rows(d))

    def predict(x):
        found = model.pred_dist(x)
        return rivals.gaussian(found.loc, found.scale)

    yield "NGBoost", predict, n


# %% [markdown]
# **Split conformal intervals** around one perceptron, by MAPIE: central ones of as many levels as the validation rows
# allow. Levels beyond the widest interval have its ends.


# %%
def conformal(d, seed):
    from mapie.regression import SplitConformalRegressor

    shares = np.arange(98, 0, -2) / 100
    shares = shares[shares < 1 - 1 / len(d.y_val)]
    net = perceptron(MEMBERS * seed).fit(d.x_train, d.y_train)
    model = SplitConformalRegressor(net, confidence_level=list(shares), prefit=True).conformalize(d.x_val, d.y_val)

    def predict(x):
        mean, ends = model.predict_interval(x)  # (N,), (N, 2, shares)
        lower, upper = ends[:, 0].T, ends[:, 1].T[::-1]
        found = np.concatenate([lower, mean[None], upper])
        beyond = (len(rivals.LEVELS) - len(found)) // 2  # levels outside the widest interval have its ends
        return rivals.Prediction(np.pad(found, [(beyond, beyond), (0, 0)], mode="edge"), mean)

    yield "MLP + MAPIE", predict, ""


# %%
FITS = {
    "GP": gaussian_process, "10 MLPs": perceptrons, "quantile boosting": quantile_boosting, "random forest": forest,
    "MC dropout": dropout, "Laplace": laplace, "NGBoost": ngboost, "MLP + MAPIE": conformal,
}  # fmt: skip
assert tuple(FITS) == rivals.METHODS
PACKAGES = {"random forest": "quantile_forest", "Laplace": "laplace", "NGBoost": "ngboost", "MLP + MAPIE": "mapie"}
absent = {name: package for name, package in PACKAGES.items() if find_spec(package) is None}
for name in sorted(absent):
    print(f"{name} is left out: it needs the package {absent[name]}")


def batches(d, name):
    """Seeds that are fitted together: FDN's are one stack; without chance in a method one seed is enough."""
    few = len(d.y_train) + len(d.y_val) <= GP_TUNED  # then no rows are left out
    if name == "FDN":
        return [numbers]
    fixed = name in ("quantile boosting", "NGBoost") or name == "GP" and few
    return [[seed] for seed in (numbers[:1] if fixed else numbers)]


def fitted(d, name, seeds):
    if name == "FDN":
        return rivals.fdn_rows(d, rivals.FDN, seeds)
    return pd.concat([rivals.rows_of(d, name, seed, FITS[name]) for seed in seeds])


# %%
asked = [(d, name) for d in map(load, sets) for name in chosen if name not in absent]
for d, name in asked if recompute else []:
    for batch in batches(d, name):
        label = rivals.FDN if name == "FDN" else name
        rivals.complete(d, label, batch, functools.partial(fitted, d, name), folder)

# %% [markdown]
# ## 11.4 A small check
#
# Every method whose package is here, fitted to 60 rows of diabetes: its quantiles increase with their level, its
# median is near its mean, and its density is finite where it has one.

# %%
d = fdn.load("diabetes")
(x, y), n = all_rows(d), 60
small = dataclasses.replace(
    d, x_train=x[:n], y_train=y[:n], x_val=x[n : 2 * n], y_val=y[n : 2 * n],
    id_val=np.full(n, True), x_test=d.x_test[:40], y_test=d.y_test[:40], id_test=d.id_test[:40],
)  # fmt: skip


def checked(fits):
    """The method, its predictions looked at."""

    def looked_at(d, seed):
        for name, predict, choice in fits(d, seed):
            quantiles, mean, log_density = predict(d.x_test)
            assert quantiles.shape == (99, len(mean)) and (np.diff(quantiles, axis=0) >= -1e-12).all()
            assert np.abs(quantiles[rivals.MEDIAN] - mean).mean() < 1
            assert log_density is None or np.isfinite(log_density(d.y_test)).all()
            yield name, predict, choice

    return looked_at


frames = [rivals.rows_of(small, name, 0, checked(fits)) for name, fits in FITS.items() if name not in absent]
display(pd.concat(frames).pivot(index="method", columns="region", values=["crps", "coverage_90"]).round(2))

# %% [markdown]
# And the rows asked for above, computed here and as they are in `data/rivals`:

# %%
frames = [fitted(d, name, batch) for d, name in asked if not recompute for batch in batches(d, name)]
if frames:
    both = pd.concat(frames).merge(rivals.load(), on=rivals.KEY, suffixes=(" here", " committed"))
    shown = ["crps here", "crps committed", "coverage_90 here", "coverage_90 committed"]
    cells = both[rivals.KEY].astype(str).join(both[shown].map("{:.3f}".format))
    rows = tuple(cells.itertuples(index=False, name=None))
    display(Table("check", "Computed here and committed", "", tuple(cells), rows, "llrlrrrr"))

# %% [markdown]
# ## 11.5 All numbers
#
# In units of the standardised target; ± is half of a 90 % interval over seeds by Student's t, bold the best mean.
# Methods that depend on no seed have one number. Columns are data sets: by the first four settings may have been chosen,
# by the last four none was.

# %%
frame = rivals.load(folder) if recompute else rivals.load()
for metric in report.METRICS:
    for region in report.REGIONS:
        display(Markdown(report.table(frame, metric, region).to_markdown()))
display(Markdown(report.times(frame).to_markdown()))
