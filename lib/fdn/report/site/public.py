"""What users import, in the order of its page: an equation where one says it, and an example that runs."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Entry:
    """A public name of a package."""

    package: str
    name: str
    example: str = ""
    equation: str = ""
    words: str = ""  # of a name that is a value

    @cached_property
    def thing(self) -> object:
        """What the name stands for."""
        return getattr(importlib.import_module(self.package), self.name)

    @property
    def kind(self) -> str:
        """How the documentation takes it in; "" if it is a value."""
        return "autoclass" if inspect.isclass(self.thing) else "autofunction" if callable(self.thing) else ""

    @property
    def module(self) -> str:
        """Where it is defined."""
        return getattr(self.thing, "__module__", "fdn.models.zoo")  # MODELS, a dict, does not say

    @property
    def summary(self) -> str:
        """One line."""
        return self.words or (inspect.getdoc(self.thing) or "").split("\n\n")[0].replace("\n", " ")


_LAYER = """import torch
from fdn_kernels import fdn_linear

B, d_in, d_out, h, K = 16, 3, 2, 5, 10
P = d_out * (d_in + 1)  # weights and biases of the layer
a, z = torch.randn(B, d_in), torch.randn(B, h).relu()  # inputs; hidden units of the hypernetwork
weight, bias = 0.1 * torch.randn(2 * P, h), torch.zeros(2 * P)  # its output layer
y, kl = fdn_linear(a, z, weight, bias, noise="local", seed=0, draws=K)
assert y.shape == (K, B, d_out) and kl.shape == (1, B)"""

ENTRIES = (
    Entry("fdn_kernels", "fdn_linear", _LAYER,
          r"(\mu, \rho) = A z + c, \qquad \sigma = \varepsilon_0 + \log(1 + e^{\rho}), \qquad "
          r"\theta = \mu + \sigma \odot \varepsilon, \qquad y = W_\theta\, a + b_\theta"),
    Entry("fdn_kernels", "gaussian_linear", """from fdn_kernels import WeightGaussian, gaussian_linear

q = WeightGaussian(mean=torch.zeros(1, 1, P), scale=torch.ones(1, 1, P))  # one distribution for all examples
y = gaussian_linear(a, q, noise="shared", seed=0, draws=K)
assert y.shape == (K, B, d_out)""",
          r"\theta \sim \mathcal{N}(\mu, \mathrm{diag}(\sigma^2)), \qquad y = W_\theta\, a + b_\theta"),
    Entry("fdn_kernels", "WeightGaussian"),
    Entry("fdn_kernels", "Moments", """moments, kl = fdn_linear(a, z, weight, bias, noise="none", moments=True)
assert moments.mean.shape == moments.variance.shape == (1, B, d_out)""",
          r"\mathbb{E}[y_i] = \sum_j \mu_{ij} a_j + \mu_i, \qquad "
          r"\mathrm{Var}[y_i] = \sum_j \sigma_{ij}^2 a_j^2 + \sigma_i^2"),
    Entry("fdn_kernels", "backend_of", """from fdn_kernels import backend_of

name, why = backend_of(a[None], z[None])
print(name, why)"""),
    Entry("fdn_kernels", "affine", """from fdn_kernels import affine

assert affine(a[None], torch.ones(d_out, d_in), torch.zeros(d_out)).shape == (1, B, d_out)""", "y = W x + b"),
    Entry("fdn_kernels", "relu_affine", """from fdn_kernels import relu_affine

assert (relu_affine(a[None], torch.ones(d_out, d_in), torch.zeros(d_out)) >= 0).all()""", r"y = \max(0, W x + b)"),
    Entry("fdn_kernels", "matvec", """from fdn_kernels import matvec

assert matvec(torch.ones(K, 1, P), a[None]).shape == (K, B, d_out)  # a layer's parameters: weights, then biases""",
          r"y = W_\theta\, a + b_\theta"),
    Entry("fdn_kernels", "mlp", """from fdn_kernels import mlp

widths = (d_in, 4, 1)
thetas = [torch.randn(K, 1, n * (m + 1)) for m, n in zip(widths, widths[1:])]
assert mlp(a, thetas, widths).shape == (K, B, 1)"""),
    Entry("fdn_kernels", "dropout_linear", """import numpy as np
from fdn_kernels import dropout_linear

rng = np.random.default_rng(0)


def subsets(n):  # eight units a number, each dropped with probability 1/2
    return rng.integers(0, 256, n, dtype=np.uint8)


y = dropout_linear(a[None], subsets, 0.5, torch.ones(d_out, d_in), torch.zeros(d_out), draws=K)
assert y.shape == (K, B, d_out)"""),
    Entry("fdn", "load", """import fdn

step = fdn.load("step")
print(step)"""),
    Entry("fdn", "from_frame", """import pandas as pd

table = pd.DataFrame({"temperature": np.linspace(0, 1, 60), "y": np.linspace(0, 1, 60) ** 2})
data = fdn.from_frame(table, target="y", split_column="temperature")
print(data)"""),
    Entry("fdn", "Dataset"),
    Entry("fdn", "MODELS", "print(*fdn.MODELS)", words="Every model by its name: its layers, widths and looks."),
    Entry("fdn", "model_spec", """spec = fdn.model_spec("LP-FDNet", data.n_features, fdn.PUBLISHED)
print(spec)"""),
    Entry("fdn", "ModelSpec"),
    Entry("fdn", "PUBLISHED", """from dataclasses import replace

quick = replace(fdn.PUBLISHED, epochs=2)  # an ablation is a protocol with one field replaced
print(quick.label)""", words="The protocol of the published runs; `AS_WRITTEN` is that of the paper read literally."),
    Entry("fdn", "AS_WRITTEN", words="The protocol that the paper prints."),
    Entry("fdn", "RECOMMENDED", words="The protocol for data of one's own; notebook 10 says what each setting brings."),
    Entry("fdn", "Protocol"),
    Entry("fdn", "get_protocol", """assert fdn.get_protocol("published") == fdn.PUBLISHED"""),
    Entry("fdn", "fit", """trained = fdn.fit(spec, data, quick, seeds=range(2))
print(trained.seeds)""",
          r"\mathcal{L} = \frac{1}{B} \sum_i \big( y_i - f_\theta(x_i) \big)^2 "
          r"+ \beta\, \mathrm{KL}\big( q_\phi \,\|\, p_0 \big), \qquad \theta \sim q_\phi(\theta \mid x_i)"),
    Entry("fdn", "Fit"),
    Entry("fdn", "Prediction", """prediction = trained.predict(seed=0, x=data.x_test)
assert prediction.mean.shape == prediction.epistemic.shape == (len(data.x_test),)""",
          r"\mathrm{Var}[y \mid x] = \mathbb{E}_\theta\, \sigma_\theta(x)^2 + \mathrm{Var}_\theta\, f_\theta(x)"),
    Entry("fdn", "FDNRegressor", """x = np.linspace(-1, 1, 60)[:, None]
model = fdn.FDNRegressor(max_epochs=2, random_state=0).fit(x, x[:, 0] ** 2)
assert model.predict_interval(x, coverage=0.9).shape == (60, 2)""",
          r"p(y \mid x) = \frac{1}{K} \sum_k \mathcal{N}\big( f_{\theta_k}(x), \sigma_{\theta_k}(x)^2 \big)"),
    Entry("fdn", "UserError", """try:
    fdn.load("stepp")
except fdn.UserError as error:
    print(error)"""),
)  # fmt: skip
