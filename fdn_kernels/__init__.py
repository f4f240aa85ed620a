"""The sampled linear layer of FDN as one op: hypernetwork output, reparameterised sampling, matvec and KL."""

from fdn_kernels.ops import Moments, fdn_linear, gaussian_linear
from fdn_kernels.reference import WeightGaussian
from fdn_kernels.torch_ops import affine, matvec, relu_affine

__all__ = ["Moments", "WeightGaussian", "affine", "fdn_linear", "gaussian_linear", "matvec", "relu_affine"]
