"""FDN layers for any PyTorch module.

>>> import torch
>>> from fdn.nn import FDNLinear, elbo_loss, forward, sample
>>> model = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.ReLU(), FDNLinear(16, 1))
>>> x, y = torch.randn(8, 3), torch.randn(8, 1)
>>> output, kl = forward(model, x)  # (8, 1), (8,)
>>> loss = elbo_loss((output - y).square().sum(-1), kl, n_train=1000)
>>> loss.backward()
>>> sample(model, x, draws=100).shape
torch.Size([100, 8, 1])
"""

from fdn.nn.convert import Cost, costs, parameter_groups, to_fdn
from fdn.nn.heads import GaussianHead, Predictive
from fdn.nn.layers import FDNLinear
from fdn.nn.losses import elbo_loss, iwae_loss
from fdn.nn.passes import checkpoint_contexts, forward, sample
from fdn.training.objectives import beta_at

__all__ = [
    "Cost", "FDNLinear", "GaussianHead", "Predictive", "beta_at", "checkpoint_contexts", "costs", "elbo_loss",
    "forward", "iwae_loss", "parameter_groups", "sample", "to_fdn",
]  # fmt: skip
