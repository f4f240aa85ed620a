"""The sampled linear layer of FDN as one op: hypernetwork output, reparameterised sampling, matvec and KL."""

from fdn_kernels.backends import backend_of
from fdn_kernels.given_weights import affine, dropout_linear, mlp, relu_affine
from fdn_kernels.ops import Moments, fdn_linear, gaussian_linear
from fdn_kernels.reference import WeightGaussian
from fdn_kernels.torch_ops import matvec

__all__ = [
    "Moments", "WeightGaussian", "affine", "backend_of", "dropout_linear", "fdn_linear", "gaussian_linear", "matvec",
    "mlp", "relu_affine",
]  # fmt: skip
