r"""The layer in Triton: hypernetwork output, softplus, KL and what they are multiplied with in one pass; the backward
recomputes what it needs.

With z~ = (z, 1) and a~ = (a, 1) every parameter (o, i) has a mean m_oi = U_oi z~ and a scale s_oi = floor +
softplus(R_oi z~); input number d_in is the bias's 1. The output is a mean and a *spread*,

    y_o = sum_i m_oi a~_i + spread,    spread = sum_i f_oi x_i, f = s eps and x = a~ (sampled weights),
                                       spread = eps_o sqrt(sum_i f_oi x_i), f = s^2 and x = a~^2 (local),

and only s needs work per weight:

- LP (z depends on the draw): the mean is one matrix product, (a~ outer z~) with U. The spread's tiles of f live in
  registers.
- IC (z does not): means and f of a block of examples are written once for all draws, and multiplied with the draws'
  inputs.
- The KL's sum of m^2 is z~' G z~ with the Gram matrix G of U, (h + 1)^2, whatever the number of parameters.

Nothing of size B x 2P or K x B x P is alive at once: calls run in chunks of draws and examples whose scratch fits
``SCRATCH``. Inside, tensors are float32 and padded to whole tiles with zeros, so kernels have no masks and offsets are
64-bit where they are large: (R, k, B, d_in + 1) inputs, (R, d_out, d_in + 1, h) matrices. No atomics: sums over
programs are written as partial sums and added afterwards, so results are the same from run to run.

Shapes in comments are of tiles; N = BO BI is a tile of weights.
"""

from __future__ import annotations
