"""An FDN, or one of the paper's other networks, as a scikit-learn regressor whose predictions are distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from fdn.data.dataset import Dataset
from fdn.devices import choose_device
from fdn.errors import UserError
from fdn.estimators import saving
from fdn.estimators.domain import Domain
from fdn.estimators.quantiles import mixture_quantiles
from fdn.models import ENSEMBLES, FDN_MODELS, MODELS, ModelSpec, check_model
from fdn.protocol import RECOMMENDED, Protocol
from fdn.settings import MOST, Count, NonNegative, Part, Positive, Scale, checked
from fdn.training.loop import fit, restore
from fdn.training.recipe import BETAS, chosen

ROWS = 4096  # predicted at a time
MOST_VALIDATION_ROWS = 2000
FEWEST_REHEARSED = 20  # rows, below which the largest beta is taken and none is tried
BATCHES, LARGEST_BATCH = 50, 256  # of "auto": an epoch has so many, of the recommended size at least and this at most


class Trained(NamedTuple):
    """What is kept of the training of one target."""

    spec: ModelSpec
    protocol: Protocol
    parameters: np.ndarray  # (1, n) or (1, M, n)
    scores: np.ndarray  # (1, epochs)
    observation_factor: np.ndarray  # (1,)


class FDNRegressor(RegressorMixin, BaseEstimator):
    r"""Regression with a distribution for every row: (1/K) sum_k N(f_k(x), sigma_k(x)^2), f_k drawn from the network.

    Inputs and targets are in their own units: they are standardised inside, with the training rows. Several targets,
    y of shape ``(n, T)``, are a model each; every result then has T as its last axis. Rows are independent: what is
    predicted for one does not depend on those it is predicted with.

    Args:
        condition: what the hypernetworks see: ``"layer"`` (LP-FDNet: the layer's own input) or ``"input"`` (IC-FDNet).
        hidden_layer_sizes: widths, any number of layers.
        hyper: width of the hypernetworks.
        likelihood: ``"gaussian"``, noise of one size, or ``"heteroscedastic"``, noise that depends on the row.
        observation_noise: of ``"gaussian"``: ``"learned"``, or its standard deviation in units of y.
        beta: weight of the KL divergence of an example beside its negative log-likelihood. ``"auto"``: chosen from the
            training rows (:mod:`fdn.training.recipe`), of which the outermost play those outside; where weights are the
            same for all rows (BayesNet, GaussHyperNet) it is 1 / n, the ELBO.
        init_sigma: standard deviation of FDN weights at the start; ``"auto"``: 0.1 / sqrt(inputs of the layer).
        prior_scale: standard deviation of the weights' prior; ``"fan_in"``: 1 / sqrt(inputs of the layer).
        members: networks, started apart and trained side by side; their draws are one mixture. ``"auto"``: 5 for an
            FDN, 10 for DeepEnsembleNet, else 1.
        max_epochs: ``"auto"``: 300, or as many as 3,000 minibatches make.
        learning_rate: the peak of a one-cycle schedule.
        batch_size: ``"auto"``: a fiftieth of the rows, from 64 to 256.
        early_stopping: whether rows are held out: the epoch that predicts them best is kept, and the noise is fitted to
            them where it was learned.
        validation_fraction: the share of rows held out, 2,000 at most, where ``fit`` is given no others.
        draws: K.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        random_state: of the start, the held-out rows, training and the draws.
        verbose: above 0: a progress bar on a terminal.
        model: one of the paper's other networks instead: ``"BayesNet"``, ``"MLPDropoutNet"``, ``"DeepEnsembleNet"``,
            ``"GaussHyperNet"``, or any name of :data:`fdn.MODELS`. ``condition`` and ``init_sigma`` are then not used.

    Attributes:
        n_features_in_: number of input columns.
        feature_names_in_: their names, of a table.
        target_names_: columns of y.
        best_epoch_: the kept epoch of each target, ``(T,)``.
        trained_: what was learned of each target.
        domain_: where the training rows lie.

    A column that does not vary in training is ignored, and a row that has another value there is out of domain.

    Example:
        >>> import numpy as np
        >>> from fdn import FDNRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(-1, 1, (200, 2))
        >>> y = 100 * X[:, 0] + 5 * rng.standard_normal(200)
        >>> model = FDNRegressor(max_epochs=30, random_state=0).fit(X, y)
        >>> mean, std = model.predict(X, return_std=True)  # (200,), (200,), in units of y
        >>> model.predict_interval(X, coverage=0.9).shape, model.predict_frame(X).shape
        ((200, 2), (200, 8))
    """

    def __init__(
        self, condition: Literal["layer", "input"] = "layer", hidden_layer_sizes: Sequence[int] = (50,), hyper: int = 8,
        likelihood: Literal["gaussian", "heteroscedastic"] = "heteroscedastic",
        observation_noise: float | Literal["learned"] = "learned", beta: float | Literal["auto"] = "auto",
        init_sigma: float | Literal["auto"] = "auto", prior_scale: float | Literal["fan_in"] = "fan_in",
        members: int | Literal["auto"] = "auto", max_epochs: int | Literal["auto"] = "auto",
        learning_rate: float = 3e-3, batch_size: int | Literal["auto"] = "auto", early_stopping: bool = True,
        validation_fraction: float = 0.2, draws: int = 100, device: str = "cpu", random_state: Any = None,
        verbose: int = 0, model: str | None = None,
    ) -> None:  # fmt: skip
        self.condition = condition
        self.hidden_layer_sizes = hidden_layer_sizes
        self.hyper = hyper
        self.likelihood = likelihood
        self.observation_noise = observation_noise
        self.beta = beta
        self.init_sigma = init_sigma
        self.prior_scale = prior_scale
        self.members = members
        self.max_epochs = max_epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.draws = draws
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.model = model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None) -> Self:
        """Train on rows ``(n, d)`` with targets ``(n,)`` or ``(n, T)``.

        Args:
            sample_weight: of the rows in the loss, ``(n,)``, not negative; a row of weight 0 is left out.
            X_val, y_val: rows that choose the epoch, in place of some that are held out.

        Raises:
            UserError: for settings outside their range, and columns that cannot be standardised.
            ValueError: scikit-learn's, for inputs that are no table of finite numbers.
        """
        names = list(getattr(y, "columns", [getattr(y, "name", None)]))
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        self.single_target_, y = y.ndim == 1, y.astype(np.float64).reshape(len(X), -1)
        named = len(names) == y.shape[1] and None not in names
        self.target_names_ = [str(name) if named else f"y{t}" for t, name in enumerate(names if named else y.T)]
        self.seed_ = int(check_random_state(self.random_state).randint(MOST))
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        X, y, weight = X[weight > 0], y[weight > 0], weight[weight > 0]
        if len(X) < 2:
            raise UserError(f"{len(X)} rows have a weight above 0; expected two or more")
        train, held = self._split(len(X))
        X_held, y_held = X[held], y[held]
        if X_val is not None and y_val is not None:
            train, X_held = np.arange(len(X)), validate_data(self, X_val, reset=False, dtype=np.float64)
            y_held = np.asarray(y_val, dtype=np.float64).reshape(len(X_held), -1)
            if y_held.shape[1] != y.shape[1]:
                raise UserError(f"y_val has {y_held.shape[1]} columns; y has {y.shape[1]}")
        elif X_val is not None or y_val is not None:
            raise UserError("X_val and y_val go together; only one was given")
        y, weight = y[train], None if np.ptp(weight) == 0 else weight[train]
        self.x_mean_, self.x_scale_ = _moments(X[train], weight, "column", constant=np.inf)
        self.y_mean_, self.y_scale_ = _moments(y, weight, "target", constant=1.0)
        X, X_held = self._standardised(X), self._standardised(X_held)
        y, y_held = ((part - self.y_mean_) / self.y_scale_ for part in (y, y_held))
        self.domain_ = Domain.of(X, self.seed_)
        self.trained_, self.best_epoch_ = [], np.zeros(y.shape[1], int)
        for t, y_scale in enumerate(self.y_scale_):
            data = _dataset(f"target {t}", X[train], y[:, t], X_held, y_held[:, t], weight)
            spec, protocol = self._settings(len(train), y_scale)
            distance = np.linalg.norm(np.concatenate([data.x_train, data.x_val]), axis=1)
            outward = pd.Series(distance).rank(method="first").to_numpy()  # there are outer rows in any case
            if protocol.beta_max == "auto" and len(outward) < FEWEST_REHEARSED:
                protocol = replace(protocol, beta_max=max(BETAS))
            elif protocol.beta_max == "auto":
                protocol = chosen(spec, data, protocol, choose_device(self.device), outward)
            done = fit(spec, data, protocol, [self.seed_], progress=self.verbose > 0, device=self.device)
            self.trained_.append(Trained(spec, protocol, done.flat.cpu().numpy(), done.scores, done.observation_factor))
            self.best_epoch_[t] = done.best_epoch[0]
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predictive mean ``(n,)``, with ``return_std`` also the standard deviation of y, noise included."""
        found = self._predicted(X, lambda mean, variance: np.stack(_moments_of(mean, variance)[:2], -1), [1, 0])
        return (found[:, 0], found[:, 1]) if return_std else found[:, 0]

    def predict_quantiles(self, X: Any, q: Sequence[float]) -> np.ndarray:
        """Quantiles of the predictive mixture, exact, for probabilities q ``(Q,)``: ``(n, Q)``, in units of y."""
        levels = np.array([checked("q", level, Part) for level in np.ravel(q)])
        return self._predicted(X, lambda m, v: mixture_quantiles(m, np.sqrt(v), levels), np.ones(len(levels)))

    def predict_interval(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """The interval that the predictive mixture leaves on either side with the same probability, ``(n, 2)``."""
        coverage = checked("coverage", coverage, Part)
        return self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])

    def sample(self, X: Any, n: int, noise: bool = True) -> np.ndarray:
        """n draws of y at all rows, ``(n, n_rows)``; without noise draws of f, each one function of all rows.

        The noise is drawn for row after row, so that a row's draws depend on its place in X.
        """
        n = checked("n", n, Count)
        parts = self._predicted(X, lambda m, v: np.stack([m, np.sqrt(v)], -1).reshape(len(m), -1), [1, 0] * n, draws=n)
        f, std = parts[:, 0::2], parts[:, 1::2]  # (n_rows, n[, T])
        if noise:
            f = f + std * np.random.default_rng(self.seed_).standard_normal(f.shape)
        return f.swapaxes(0, 1)

    def predict_frame(self, X: Any) -> pd.DataFrame:
        """A table of mean, std, epistemic, aleatoric, q05, q50, q95 and in_domain, with the index of X if it has one.

        All but the last are in units of y: std^2 = epistemic^2 + aleatoric^2, what the draws of f differ by and the
        noise of y. Of several targets the columns start with the target's name. ``in_domain``: :meth:`in_domain`.
        """
        q = np.array([0.05, 0.5, 0.95])
        found = self._predicted(
            X,
            lambda m, v: np.column_stack([*_moments_of(m, v), mixture_quantiles(m, np.sqrt(v), q)]),
            [1, 0, 0, 0, 1, 1, 1],
        )
        names = ["mean", "std", "epistemic", "aleatoric", "q05", "q50", "q95"]
        if not self.single_target_:
            names = [f"{target}_{name}" for target in self.target_names_ for name in names]
            found = found.swapaxes(1, 2).reshape(len(found), -1)
        frame = pd.DataFrame(found, columns=names, index=getattr(X, "index", None))
        return frame.assign(in_domain=self.in_domain(X))

    def in_domain(self, X: Any) -> np.ndarray:
        """Whether each row lies where the training rows lie, ``(n,)`` bool.

        It does within the range of every input and near enough to the training rows in all inputs together, both as
        99.5 % of rows like them are (:class:`fdn.estimators.domain.Domain`).
        """
        return self.why_outside(X) == ""

    def why_outside(self, X: Any) -> np.ndarray:
        """Why each row is out of domain, in words, ``(n,)``; empty for a row inside."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", [f"column {j + 1}" for j in range(self.n_features_in_)])
        X = validate_data(self, X, reset=False, dtype=np.float64)
        z, constant = self._standardised(X), np.isinf(self.x_scale_)
        beyond = self.domain_.beyond(z)  # (n, d)
        beyond[:, constant] = np.where(X[:, constant] == self.x_mean_[constant], 0, np.inf)
        scale = np.where(constant, 0, self.x_scale_)
        low, high = self.x_mean_ + self.domain_.low * scale, self.x_mean_ + self.domain_.high * scale
        reasons = np.where(self.domain_.far(z), "far from all training rows", "").astype(object)
        for i in np.flatnonzero(beyond.any(1)):
            j = beyond[i].argmax()
            side, bound = ("above", high[j]) if X[i, j] > high[j] else ("below", low[j])
            reasons[i] = f"{names[j]} is {X[i, j]:.6g}, {side} {bound:.6g}"
        return reasons

    def save(self, folder: str | Path) -> None:
        """Write the fitted model to a folder, made if need be: JSON and safetensors, and no training rows.

        Raises:
            UserError: where the folder holds other things, or cannot be written.
        """
        saving.write(folder, *self._kept())

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Self:
        """The model that :meth:`save` wrote, which predicts what it did.

        Raises:
            UserError: where the folder holds none, or one of another version.
        """
        return cls._of(*saving.read(folder), device)

    def _kept(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a fitted model is: values for JSON, and arrays by name."""
        check_is_fitted(self)
        fitted = {name: value for name, value in vars(self).items() if name.endswith("_")}
        domain, trained = fitted.pop("domain_"), fitted.pop("trained_")
        arrays = {name: fitted.pop(name) for name in _ARRAYS}
        arrays |= {f"domain.{name}": array for name, array in domain._asdict().items()}
        for t, of in enumerate(trained):
            arrays |= {f"{name}.{t}": getattr(of, name) for name in Trained._fields[2:]}
        parameters = self.get_params()
        if not isinstance(self.random_state, (int, np.integer)):  # a generator, say
            parameters["random_state"] = None
        targets = [{"spec": t.spec, "protocol": t.protocol} for t in trained]
        return {"parameters": parameters, "targets": targets, "fitted": fitted}, arrays

    @classmethod
    def _of(cls, kept: dict[str, Any], arrays: dict[str, np.ndarray], device: str) -> Self:
        self = cls(**kept["parameters"]).set_params(device=device)
        if isinstance(self.hidden_layer_sizes, list):  # JSON has no tuples
            self.hidden_layer_sizes = tuple(self.hidden_layer_sizes)
        for name, value in (kept["fitted"] | {name: arrays[name] for name in _ARRAYS}).items():
            setattr(self, name, np.array(value, dtype=object) if name == "feature_names_in_" else value)
        self.domain_ = Domain(*(arrays[f"domain.{name}"] for name in Domain._fields))
        self.trained_ = []
        for i, t in enumerate(kept["targets"]):
            spec = ModelSpec(**t["spec"] | {"hidden": tuple(t["spec"]["hidden"])})
            numbers = (arrays[f"{name}.{i}"] for name in Trained._fields[2:])
            self.trained_.append(Trained(spec, Protocol(**t["protocol"]), *numbers))
        return self

    def _split(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train on, and rows that choose the epoch."""
        fraction = checked("validation_fraction", self.validation_fraction, Part)
        rows = np.random.default_rng(self.seed_).permutation(n)
        held, others = np.split(rows, [min(MOST_VALIDATION_ROWS, max(1, int(fraction * n)))])
        return others if self.early_stopping else rows, held

    def _settings(self, n: int, y_scale: float) -> tuple[ModelSpec, Protocol]:
        """The model and the protocol of a target, of which n rows and its standard deviation are known."""

        def auto(name: str, kind: Any, otherwise: Any) -> Any:
            value = getattr(self, name)
            return otherwise if isinstance(value, str) and value == "auto" else checked(name, value, kind)

        condition = checked("condition", self.condition, Literal["layer", "input"])
        name = ("LP-FDNet" if condition == "layer" else "IC-FDNet") if self.model is None else self.model
        check_model(name)
        usual = RECOMMENDED.members if name in FDN_MODELS else 10 if name in ENSEMBLES else 1
        members = auto("members", Count, usual)
        likelihood = checked("likelihood", self.likelihood, Literal["gaussian", "heteroscedastic"])
        noise = checked("observation_noise", self.observation_noise, Positive | Literal["learned"])
        beta: Any = auto("beta", NonNegative, "auto" if name in FDN_MODELS else 1 / n)
        kind: Any = "learned" if likelihood == "gaussian" else likelihood
        variance = RECOMMENDED.observation_variance
        if noise != "learned":
            if likelihood != "gaussian":
                raise UserError(f"observation_noise is {noise}: noise of one size goes with likelihood='gaussian'")
            kind, variance = "homoscedastic", (noise / y_scale) ** 2
            beta = beta if beta == "auto" else 2 * variance * beta  # as its loss is so many times the likelihood's
        held_out = checked("early_stopping", self.early_stopping, bool)
        epochs = auto("max_epochs", Count, RECOMMENDED.epochs)
        protocol = replace(
            RECOMMENDED, members=members, likelihood=kind, observation_variance=variance, beta_max=beta,
            init_sigma=auto("init_sigma", Positive, "auto"),
            prior_scale=checked("prior_scale", self.prior_scale, Scale | Literal["fan_in"]),
            epochs=epochs * (members if name in ENSEMBLES else 1),  # which `fit` divides among the members
            most_updates=RECOMMENDED.most_updates if self.max_epochs == "auto" else None,
            learning_rate=checked("learning_rate", self.learning_rate, Positive),
            batch_size=auto("batch_size", Count, int(np.clip(n // BATCHES, RECOMMENDED.batch_size, LARGEST_BATCH))),
            keep="best" if held_out else "last", fit_observation_noise=held_out and kind != "homoscedastic",
        )  # fmt: skip
        hidden = tuple(np.atleast_1d(self.hidden_layer_sizes).tolist())
        hyper = self.hyper if MODELS[name].hyper else None
        checked("draws", self.draws, Count)
        return ModelSpec(name, hidden, hyper, MODELS[name].latent, members), protocol

    def _standardised(self, X: np.ndarray) -> np.ndarray:
        return (X - self.x_mean_) / self.x_scale_

    def _predicted(
        self, X: Any, compute: Callable[[np.ndarray, np.ndarray], np.ndarray], moved: Sequence[float] | np.ndarray,
        draws: int | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Columns computed of the components' means and variances ``(b, K)``, in units of y, part after part.

        ``moved``: 1 for columns that are values of y, 0 for those that are sizes. Noise is drawn once for all rows, and
        computed with in float64, so that parts and rows asked for together make no difference.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        count = checked("draws", draws or self.draws, Count)
        fits = []
        for t, it in enumerate(self.trained_):
            whole = replace(it.protocol, dtype="float64")
            data = _dataset(f"target {t}", *(np.empty(s) for s in ((0, X.shape[1]), 0) * 2))
            parameters = it.parameters.astype(np.float64)
            given = it.spec, data, whole, (self.seed_,), parameters, it.scores, self.device, it.observation_factor
            fits.append(restore(*given))
            fits[-1].stack.network.functions = True
        parts = []
        for start in range(0, len(X), ROWS):
            z, columns = self._standardised(X[start : start + ROWS]), []
            for done, mean, scale in zip(fits, self.y_mean_, self.y_scale_):
                prediction = done.predict(self.seed_, z, count)
                f, variance = (t.mT.numpy() for t in (prediction.draws, prediction.observation_variance))  # (b, K)
                if draws is not None:
                    k = _turns(f.shape[1], done.spec.members, draws)
                    f, variance = f[:, k], variance[:, k]
                columns.append(compute(f, variance) * scale + np.asarray(moved) * mean)
            parts.append(np.stack(columns, -1))  # (b, columns, T)
        found = np.concatenate(parts)
        return found[..., 0] if self.single_target_ else found


# Attributes that are arrays of numbers
_ARRAYS = "x_mean_", "x_scale_", "y_mean_", "y_scale_", "best_epoch_"


def _dataset(
    name: str, x: np.ndarray, y: np.ndarray, x_val: np.ndarray, y_val: np.ndarray, weight: np.ndarray | None = None
) -> Dataset:
    """Standardised rows as the training loop takes them."""
    d = x.shape[1]
    return Dataset(
        name=name, x_train=x, y_train=y, x_val=x_val, y_val=y_val, x_test=np.empty((0, d)), y_test=np.empty(0),
        id_val=np.ones(len(y_val), bool), id_test=np.ones(0, bool), feature_names=tuple(f"x{j}" for j in range(d)),
        target_name="y", split_feature=0, x_mean=np.zeros(d), x_std=np.ones(d), y_mean=0.0, y_std=1.0,
        weight_train=None if weight is None else weight / weight.mean(),
    )  # fmt: skip


def _moments(rows: np.ndarray, weight: np.ndarray | None, what: str, constant: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every column; of one that does not vary its value, and ``constant``."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.average(rows, axis=0, weights=weight)
        std = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weight))
    same = (rows == rows[0]).all(0)
    mean, std = np.where(same, rows[0], mean), np.where(same, constant, std)
    for j in np.flatnonzero(~same):
        if not 0 < std[j] < np.inf or not np.isfinite(mean[j]):
            raise UserError(f"{what} {j + 1} has numbers of a size that cannot be standardised; rescale it")
    return mean, std


def _moments_of(mean: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, ...]:
    """Mean, standard deviation and its two parts, epistemic and aleatoric, of mixtures ``(b, K)``, each ``(b,)``."""
    epistemic, aleatoric = mean.var(1), variance.mean(1)
    return mean.mean(1), np.sqrt(epistemic + aleatoric), np.sqrt(epistemic), np.sqrt(aleatoric)


def _turns(components: int, members: int, n: int) -> np.ndarray:
    """Which components n draws take: the members in turn, and from the start again where there are too few."""
    members = members if components % members == 0 else 1
    order = np.arange(components).reshape(members, -1).T.ravel()
    return order[np.arange(n) % components]
