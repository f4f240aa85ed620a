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
# # 6 · The layer as one kernel
#
# > For each layer $\ell$, FDN places a diagonal-Gaussian over its weights whose parameters are produced by a
# > small Hypernetwork. — *Section 3.2*
#
# Every example has its own weights, and every draw of every example its own sample of them. Written down
# literally this fills any memory; it need not be written down at all. This notebook derives the fused layer
# `fdn_kernels.fdn_linear`, forward and backward, and checks it piece by piece. All of it is **ours**: the
# paper says what to compute, not how.
#
# Nothing here needs a GPU. The Triton kernel runs in its interpreter, and is compiled for two GPUs without
# having one. What this notebook measures, it measures on the CPU that runs it; no speed of a GPU is claimed
# but where section 6.8 shows a table that was measured on one.
#
# 1 The cost · 2 Why `local` is exact · 3 What is never written to memory · 4 The noise · 5 The kernel in its
# interpreter · 6 Registers, spills, shared memory · 7 Memory and time against K and d · 8 Measured

# %%
# %matplotlib inline
import functools
import importlib.util
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

os.environ["KINETO_LOG_LEVEL"] = "99"  # PyTorch's profiler writes to stderr otherwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from fdn import paths
from fdn.arguments import check_parameters
from fdn.report.figures.drawing import STYLE
from fdn.settings import Count, Whole, checked, parsed
from fdn_kernels import fdn_linear, ops
from fdn_kernels.bench import evaluate
from fdn_kernels.philox import philox4x32, standard_normal
from fdn_kernels.reference import hypernet_gaussian, hypernet_order, matvec, split_parameters
from fdn_kernels.rivals import PEAKS, Case, forward_bound_ms, make_inputs

# %% tags=["parameters"]
interpret: bool = True  # run the Triton kernel in its interpreter (section 5)
compile_tiles: bool = True  # compile the shipped tiles for two GPUs (section 6)
draws: str = "1,4,16,64,128"  # numbers of draws K that are measured (section 7), comma-separated
widths: str = "8,16,32"  # widths d of the layers that are measured, comma-separated
examples: int = 64  # examples B of the layers that are measured
seed: int = 0  # of every random number of the checks that is not Philox's
out: str = ""  # folder for the table of what is measured, as CSV; empty means none

# %%
check_parameters(In)
K_list, d_list = ([parsed("a number of draws or width", n, Count) for n in text.split(",")] for text in (draws, widths))
examples = checked("examples", examples, Count)
torch.set_default_dtype(torch.float64)
rng = np.random.default_rng(checked("seed", seed, Whole))
plt.style.use(STYLE)
has_triton = importlib.util.find_spec("triton") is not None


def normal(*shape):
    """Standard normal numbers as a tensor."""
    return torch.from_numpy(rng.standard_normal(shape))


def agree(*pairs, tolerance=1e-10):
    """Whether every pair of tensors agrees to the tolerance, relative to its size."""
    return all(bool((a - b).abs().max() <= tolerance * (1 + b.abs().max())) for a, b in pairs)


# %% [markdown]
# ## 6.1 What the layer costs
#
# One layer takes $B$ examples, $K$ draws, $d_{\mathrm{in}}$ inputs to $d_{\mathrm{out}}$ outputs, and a
# hypernetwork with $h=h_{\mathrm{hyp}}$ hidden units $z$ (in this notebook not the split feature). With
# $Q=d_{\mathrm{out}}(d_{\mathrm{in}}+1)$ weights and biases,
#
# $$(\mu_W,\rho_W,\mu_b,\rho_b)=Uz+c\in\mathbb R^{2Q},\qquad\sigma=\sigma_{\min}+\operatorname{softplus}(\rho),
# \qquad\theta=\mu+\sigma\odot\varepsilon,\qquad y=Wa+b .$$
#
# IC: $z$ comes from $x$, so there is one $(\mu,\sigma)$ per example. LP: $z$ comes from $a^{(k)}$, so there
# is one per draw and example. Let $S=KBQ$ be the number of sampled weights.
#
# **What a materialising program holds** at $d=256$, $h=16$, $B=1024$, $K=100$ in float32: the
# hypernetwork's output (2), $\sigma$ (1), $\varepsilon$ (1) and $\theta$ (1 number per weight). The shapes come
# from the reference itself, run on PyTorch's `meta` device, where tensors have sizes but no contents.

# %% tags=["nbval-check-output"]
big = functools.partial(Case, "", R=1, K=100, B=1024, d_in=256, d_out=256, h=16)
for conditioning in ("IC", "LP"):
    case = big(conditioning, "independent")
    K, B, Q, h = case.K, case.B, case.P, case.h
    with torch.device("meta"):
        numbers = functools.partial(torch.empty, dtype=torch.float32)
        a, z = numbers(K, B, case.d_in), numbers(K if case.per_draw else 1, B, h)
        weight, bias, eps = numbers(2 * Q, h), numbers(2 * Q), numbers(K, B, Q)
        q = hypernet_gaussian(z, weight, bias, case.d_in, 1e-3)
        theta = q.mean + q.scale * eps
        y = matvec(theta, a)
    held = sum(t.nbytes for t in (q.mean, q.scale, q.scale, eps, theta))  # mean, rho, sigma, eps, theta
    n = K * B * Q if case.per_draw else B * Q
    assert held == 4 * (3 * n + 2 * K * B * Q)
    needed = sum(t.nbytes for t in (a, z, weight, bias, y))
    print(f"{conditioning}: {held / 1e9:.0f} GB held; inputs and outputs are {needed / 1e9:.2f} GB")

# %% [markdown]
# Autograd keeps most of that for the backward, and adds gradients of the same sizes. **What is computed** is
# no less for being fused; the fused layer only does not store it:
#
# | term | IC | LP |
# |:---|:---|:---|
# | hypernetwork, FLOP forward / backward | $4BQh$ / $12BQh$ | $4Sh$ / $12Sh$ |
# | softplus (the backward adds a sigmoid) | $BQ$ | $S$ |
# | matvec, FLOP: sampled weights, or two products for `local` | $4S$ | $4S$ |
# | normal numbers: independent / shared / local | $S$ / $KQ$ / $KBd_{\mathrm{out}}$ | the same |
#
# The backward computes the forward's hypernetwork again, hence 12 and not 8. **Check:** PyTorch's FLOP
# counter on the reference with `local` noise finds the first and the third row. (It sees products only: the
# matvec's biases are sums, so that it counts $4KBd_{\mathrm{out}}d_{\mathrm{in}}$.)

# %% tags=["nbval-check-output"]
K, B, d_in, d_out, h = 6, 5, 4, 3, 7
Q = d_out * (d_in + 1)
for conditioning, k in (("IC", 1), ("LP", K)):
    inputs = normal(K, B, d_in), normal(k, B, h), normal(2 * Q, h), normal(2 * Q)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        fdn_linear(*inputs, noise="local", eps=normal(K, B, d_out), backend="reference")
    expected = 4 * k * B * Q * h + 4 * K * B * d_out * d_in
    print(f"{conditioning}: counted {counter.get_total_flops()} FLOP, expected {expected}")
    assert counter.get_total_flops() == expected

# %% [markdown]
# **Bounds.** No program can be faster than its busiest unit. For an H100 at its peaks (memory, tensor cores,
# float32 units, special functions, instructions; `fdn_kernels.rivals.forward_bound_ms` says how each is
# counted) the forward takes *at least* this long. These are computed, not measured; how near a kernel comes is
# what a benchmark has to say. `tf32x3`, the default, is the accurate product of three TF32 products.

# %% tags=["nbval-check-output"]
peaks = PEAKS["NVIDIA H100 80GB HBM3"]
modes = [("IC", "local"), ("IC", "shared"), ("IC", "independent"), ("LP", "local"), ("LP", "shared")]
bounds = pd.DataFrame(index=[" ".join(mode) for mode in modes])
for d, K in ((64, 16), (256, 100)):
    for precision in ("tf32", "tf32x3"):
        cases = [big(*mode, K=K, d_in=d, d_out=d, precision=precision) for mode in modes]
        bounds[f"d={d} K={K} {precision}"] = [1e3 * forward_bound_ms(case, peaks) for case in cases]
print("computed lower bounds of the forward on an H100, in microseconds (h=16, B=1024)")
print(bounds.to_string(float_format="{:.0f}".format))
assert bounds.loc["IC independent"].gt(10 * bounds.loc["IC shared"]).all()

# %% [markdown]
# Two conclusions. Independent noise costs a normal number per sampled weight, which dwarfs the rest: it should
# be *computed* as `local`, and from a seed it is. And LP evaluates its hypernetwork per draw; there it is the
# softplus that binds, and there the materialised tensors are largest. That is where fusing has most to gain.
#
# ## 6.2 Why `local` is exact
#
# Take one layer, one example and one draw: $y_o=\sum_i W_{oi}a_i+b_o$. Given $a$ and $z$,
#
# 1. $y_o$ is a sum of independent Gaussians, hence Gaussian, with
#    $m_o=\sum_i\mu_{oi}a_i+\mu_o$ and $v_o=\sum_i\sigma_{oi}^2a_i^2+\sigma_o^2$;
# 2. $y_o$ and $y_{o'}$ use different rows of $W$ and different biases, so they are independent;
# 3. with independent noise the weights of another example or draw are other random numbers, so outputs of
#    different examples and draws are independent too.
#
# So $y=m+\sqrt v\odot n$ with $n\sim\mathcal N(0,I)$ has the law of the sampled layer, *jointly* over outputs,
# examples and draws. The next layer sees the previous one through $a$ alone (under LP, $z$ is a function of
# $a$), so the same step repeats layer by layer: whole networks have the same law. It needs that a sampled weight
# is used once. That fails where one draw serves several examples (`shared`),
#
# $$\operatorname{Cov}(y_{ob},y_{ob'})=\sum_i\sigma_{oi}(b)\,\sigma_{oi}(b')\,a_{ib}\,a_{ib'}+\sigma_o(b)\,\sigma_o(b')\ne0,$$
#
# and where the sampled weights themselves are wanted (the IWAE's density ratio).

# %% tags=["nbval-check-output"]
n, B, d_in, d_out, h = 200_000, 2, 3, 2, 4
Q = d_out * (d_in + 1)
layer = normal(1, B, d_in), normal(1, B, h).relu(), normal(2 * Q, h), normal(2 * Q)
a, (mean, scale) = layer[0], hypernet_gaussian(*layer[1:], d_in, 1e-3)  # (1, B, Q)
m, v = (t.flatten() for t in fdn_linear(*layer, noise="none", moments=True)[0])  # (B d_out,)
spread = (scale * torch.cat([a.repeat(1, 1, d_out), torch.ones(1, B, d_out)], -1))[0]  # sigma_j a_j, (B, Q)
products = torch.cat([split_parameters(spread.prod(0), d_in)[0].T, spread.prod(0)[None, -d_out:]])
shared = products.sum(0) / v.unflatten(0, (B, d_out)).prod(0).sqrt()  # correlation of two examples, (d_out,)
noises = {"independent": {"eps": normal(n, B, Q)}, "local": {"seed": 1, "draws": n}, "shared": {"eps": normal(n, 1, Q)}}
table = {}
for noise, source in noises.items():
    y = fdn_linear(*layer, noise=noise, kl="none", **source)[0].flatten(1)  # (n, B d_out)
    r = torch.corrcoef(y.T).unflatten(0, (B, d_out)).unflatten(2, (B, d_out))  # (B, d_out, B, d_out)
    examples_r = r[0, :, 1].diagonal() - (shared if noise == "shared" else 0)
    off = [(y.mean(0) - m) / (v / n).sqrt(), (y.var(0) / v - 1) / (2 / n) ** 0.5, r[:, 0, :, 1].diagonal() * n**0.5]
    off += [examples_r * n**0.5, (((y - m) ** 4).mean(0) / v**2 - 3) / (96 / n) ** 0.5]
    table[noise] = [e.abs().max() for e in off]
    assert max(table[noise]) < 4.5
print("largest distance from the formulas, in standard errors")
columns = ["mean", "variance", "corr. of outputs", "corr. of examples", "fourth moment"]
print(pd.DataFrame(table, index=columns, dtype=float).T.to_string(float_format="{:.1f}".format))
print("correlation of two examples: independent, local 0; shared", [round(float(c), 2) for c in shared])

# %% [markdown]
# All three agree with $m$, $v$ and a normal's fourth moment; outputs of an example are uncorrelated in all;
# examples are correlated under `shared` alone, as the formula says. The gradient through $y=m+\sqrt v\,n$ is
# another unbiased estimate of the same expectation as that through sampled weights (Kingma, Salimans and
# Welling, 2015, local reparameterisation), so training may use it too.

# %% [markdown]
# ## 6.3 What is never written to memory
#
# Of a layer's sums over weights those over the means need no means. Count the bias as input number $d_{\mathrm{in}}$,
# whose activation is 1, and the hypernetwork's $c$ as hidden unit number $h$, whose activation is 1: with
# $\tilde a=(a,1)$ and $\tilde z=(z,1)$ the mean of a weight is $\mu_{oi}=\sum_jU_{oij}\tilde z_j$, and $U$ below is
# the part of the hypernetwork's matrix that gives the means, $d_{\mathrm{out}}\times(d_{\mathrm{in}}+1)\times(h+1)$.
#
# **The mean of an output is one matrix product.** Put the second sum into the first:
#
# $$m_o=\sum_i\mu_{oi}\tilde a_i=\sum_{i,j}U_{oij}\,\tilde a_i\tilde z_j .$$
#
# $U$ is the same for every draw and example. So all the means of a layer are one product of a matrix
# $d_{\mathrm{out}}\times(d_{\mathrm{in}}+1)(h+1)$ with the vectors $\tilde a\otimes\tilde z$, one for each draw and
# example. It takes the multiplications of the hypernetwork, $Q(h+1)$, saves those of the matvec, and is the kind of
# product that a GPU does best. (Where draws share $z$, IC, the means of an example serve all its draws, and are
# written once.) **Check** against the means, written out.


# %% tags=["nbval-check-output"]
def with_one(t):
    """(t, 1) along the last dimension."""
    return torch.cat([t, torch.ones_like(t[..., :1])], -1)


K, B, d_in, d_out, h = 3, 5, 4, 2, 6
a, z, U = normal(K, B, d_in), normal(K, B, h), normal(d_out, d_in + 1, h + 1)
mu = torch.einsum("oij,kbj->kboi", U, with_one(z))  # every mean
outer = torch.einsum("kbi,kbj->kbij", with_one(a), with_one(z))
m = outer.flatten(2) @ U.flatten(1).T  # (K, B, d_out)
checks = agree((m, torch.einsum("kboi,kbi->kbo", mu, with_one(a))))
print("mean of the outputs by one product:", checks)
assert checks

# %% [markdown]
# **The KL's sum of squares is a quadratic form.** Write $U_p$ for the row of the weight $p=(o,i)$. Then
#
# $$\sum_p\mu_p^2=\sum_p(U_p\tilde z)^2=\tilde z^\top G\,\tilde z,\qquad G=\sum_pU_p^\top U_p .$$
#
# The Gram matrix $G$ has $(h+1)^2$ numbers however many weights there are, and is made once a call; after that an
# example takes some $(h+1)^2$ multiplications, and no mean. The gradients follow. With weights $\kappa$ on the
# examples, those of $\tfrac12\sum\kappa\,\tilde z^\top G\tilde z$ are $\kappa\,G\tilde z$ for $\tilde z$ and
# $U_pM$ for $U_p$, with the moments $M=\sum\kappa\,\tilde z\tilde z^\top$ of the examples. **Check** the value
# against the means, and the gradients against autograd.

# %% tags=["nbval-check-output"]
G, z_one, kappa = torch.einsum("oij,oik->jk", U, U), with_one(z), normal(K, B)
squares = torch.einsum("kbi,ij,kbj->kb", z_one, G, z_one)
checks = [agree((squares, mu.square().sum((2, 3))))]
leaves = [t.clone().requires_grad_() for t in (z_one, U)]
half = 0.5 * (kappa * torch.einsum("oij,kbj->kboi", leaves[1], leaves[0]).square().sum((2, 3))).sum()
moments = torch.einsum("kb,kbi,kbj->ij", kappa, z_one, z_one)
dz, dU = torch.autograd.grad(half, leaves)
checks.append(agree((kappa[..., None] * z_one @ G, dz), (U @ moments, dU)))
print("sum of squared means by the Gram matrix, and its gradients:", *checks)
assert all(checks)

# %% [markdown]
# What is left is $\sigma=\sigma_{\min}+\operatorname{softplus}(\rho)$: it bends, so that no sum can be taken first, and
# **only $\sigma$ takes work per weight**. That is the kernel. A program of the forward owns a tile of examples, and of
# draws where $z$ depends on them (LP), and walks over the weights.
#
# ```text
# m  = (a outer z) times U's rows of the means             one matrix product; IC: means once for all draws
# KL = z' G z / (2 s0^2) + ...                             G = sum of U_p' U_p over the rows of the means
# for each tile of outputs o:
#     v = 0
#     for each tile of inputs i, the bias last:
#         rho   = rows of (U, c) times z                   one small product, in registers
#         sigma = floor + softplus(rho);  KL += its terms  the logarithm of products of sigmas
#         local, moments:       v += sigma^2 a^2
#         shared, independent:  v += sigma eps a           eps from Philox
#     y = m + sqrt(v) n                                    local: n from Philox;  sampled: y = m + v
# write y and the KL of each example
# ```
#
# Of each weight only a tile's worth exists at a time; read are $a,z,U,c$, written are $y$ and the KL (IC writes the
# $\mu$ and $\sigma$ of a block of examples, once for all its draws). The backward keeps nothing per weight either: it
# has the same inputs, makes the same $\rho$ again, and Philox gives the same noise again.
#
# **Formulas.** Let $g=\partial L/\partial y$ and $\kappa=\partial L/\partial\mathrm{KL}$. Write $p=(o,i)$ for
# weights and $\tilde a$ for $a$ with the bias's 1. With
# $\mathrm{KL}=\tfrac12\sum_p[(\sigma_p^2+\mu_p^2)/\sigma_0^2-1-\log(\sigma_p^2/\sigma_0^2)]$,

# %% [markdown]
# $$\begin{aligned}
# \text{sampled:}\quad&d\mu_p=\textstyle\sum_kg_o\tilde a_i+\kappa\,\mu_p/\sigma_0^2,&
# d\sigma_p&=\textstyle\sum_kg_o\tilde a_i\varepsilon_p+\kappa\,(\sigma_p/\sigma_0^2-1/\sigma_p),\\
# \text{local:}\quad&d\mu_p=\text{the same},\qquad g^v_o=\frac{g_on_o}{2\sqrt{v_o}},&
# d\sigma_p&=2\sigma_p\textstyle\sum_kg^v_o\tilde a_i^2+\kappa\,(\sigma_p/\sigma_0^2-1/\sigma_p),\\
# \text{both:}\quad&d\rho_p=d\sigma_p\operatorname{sigmoid}(\rho_p),&
# dz&=U_\mu^\top d\mu+U_\rho^\top d\rho,\\
# &dU=\textstyle\sum_{b}(d\mu,d\rho)\,z^\top,&dc&=\textstyle\sum_b(d\mu,d\rho),\\
# &da_i=\textstyle\sum_o\theta_{oi}g_o\ \text{(sampled)},&
# da_i&=\textstyle\sum_o\mu_{oi}g_o+2a_i\sum_o\sigma_{oi}^2g^v_o\ \text{(local)}.
# \end{aligned}$$
#
# The sum over $k$ is for IC, whose draws share $\mu$ and $\sigma$; for LP every draw has its own, and $dU$ and
# $dc$ sum over $k$ as well. The KL's terms need nothing but $\mu$ and $\sigma$ and so cost no pass of their own.
#
# The sums run in two directions, so there are kernels of **two kinds**: those that own examples and draws and walk
# over weights ($da$, $dz$), and those that own weights and walk over examples and draws ($dU$, $dc$). Each number
# has one owner. Where there are too few owners to fill a GPU, a walk is cut into parts, whose sums are written side
# by side and added afterwards. There are no atomic additions, so two runs give the same bits. For `local` the
# backward first needs $g^v$, and for it the variance $v$, which has the size of $y$: the forward can hand it over, or
# it is computed again. Both directions work through chunks of draws and examples, so that what they write per draw
# and example ($\tilde a\otimes\tilde z$, $g^v$, parts of sums) stays below a constant (section 6.6 prints it),
# whatever $K$ and $B$.
#
# **Check:** the formulas against autograd of the equations, in float64.


# %%
def backward_by_hand(g, g_kl, a, z, U, c, eps, noise, floor=1e-3, s0=1.0):
    """da, dz, dU and dc of one layer; a (K, B, d_in), z (k, B, h), g (K, B, d_out), g_kl (k, B)."""
    d_in = a.shape[-1]
    mu, rho = hypernet_order(z @ U.mT + c, d_in, -1)  # (k, B, Q)
    sigma, kappa = floor + F.softplus(rho), g_kl[..., None]
    outer = lambda g, x: torch.cat([(g[..., None] * x[..., None, :]).flatten(-2), g], -1)  # (K, B, Q)
    over_draws = lambda t: t.sum(0, keepdim=True) if len(z) == 1 else t  # (k, B, Q)
    transposed = lambda theta, g: torch.einsum("...oi,...o->...i", split_parameters(theta, d_in)[0], g)
    if noise == "local":
        g_v = g * eps / (2 * matvec(sigma**2, a**2).sqrt())  # (K, B, d_out)
        d_sigma = 2 * sigma * over_draws(outer(g_v, a**2))
        d_a = transposed(mu, g) + 2 * a * transposed(sigma**2, g_v)
    else:
        d_sigma = over_draws(outer(g, a) * eps)
        d_a = transposed(mu + sigma * eps, g)
    d_mu = over_draws(outer(g, a)) + kappa * mu / s0**2
    d_rho = (d_sigma + kappa * (sigma / s0**2 - 1 / sigma)) * rho.sigmoid()
    n = g.shape[-1] * d_in  # back to the order mu_W, rho_W, mu_b, rho_b
    d_out = torch.cat([d_mu[..., :n], d_rho[..., :n], d_mu[..., n:], d_rho[..., n:]], -1)  # (k, B, 2Q)
    return d_a, d_out @ U, torch.einsum("kbp,kbh->ph", d_out, z), d_out.sum((0, 1))


# %% tags=["nbval-check-output"]
K, B, d_in, d_out, h = 6, 5, 4, 3, 7
Q, s0 = d_out * (d_in + 1), 1.7
for conditioning, k in (("IC", 1), ("LP", K)):
    for noise, shape in (("shared", (K, 1, Q)), ("independent", (K, B, Q)), ("local", (K, B, d_out))):
        leaves = [t.requires_grad_() for t in (normal(K, B, d_in), normal(k, B, h), normal(2 * Q, h), normal(2 * Q))]
        eps, g, g_kl = normal(*shape), normal(K, B, d_out), normal(k, B)
        outputs = fdn_linear(*leaves, noise=noise, eps=eps, prior_scale=s0, backend="reference")
        expected = torch.autograd.grad(outputs, leaves, (g, g_kl))
        with torch.no_grad():
            found = backward_by_hand(g, g_kl, *leaves, eps, noise, s0=s0)
        same = agree(*zip(found, expected))
        print(f"{conditioning} {noise:12} da, dz, dU, dc by hand = autograd: {same}")
        assert same

# %% [markdown]
# ## 6.4 The noise
#
# A kernel that draws its noise twice, forward and backward, must draw the same numbers, however its tiles
# lie. So a number's value depends on its *place* only. Philox4x32-10 (Salmon et al., 2011) maps a 128-bit counter
# and a 64-bit key to four 32-bit words; the place is the counter and the seed the key:
#
# | word | holds |
# |:---|:---|
# | key | the seed's low and high 32 bits |
# | $c_0$ | weight $(o,i)$: $o\,d_{\mathrm{in}}+i$; bias $o$: $d_{\mathrm{out}}d_{\mathrm{in}}+o$; for `local`: output $o$ |
# | $c_1$ | example $b$; 0 for `shared` |
# | $c_2$ | $\lfloor k/4\rfloor$ |
# | $c_3$ | stream: keeps apart layers or passes that share a seed |
#
# The four words $x_0,\dots,x_3$ belong to draws $4\lfloor k/4\rfloor+0,\dots,3$. Each becomes a uniform $u$ in
# $[0,1)$, and the pairs $(u_0,u_1)$ and $(u_2,u_3)$ become normals (Box and Muller, 1958):
#
# $$n_0=\sqrt{-2\ln u_0}\,\cos2\pi u_1,\qquad n_1=\sqrt{-2\ln u_0}\,\sin2\pi u_1 .$$
#
# **Check** the generator on its authors' known-answer vectors, and one number written out from the table.

# %% tags=["nbval-check-output"]
ones, pi = (0xFFFFFFFF,) * 6, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
known = {(0,) * 6: "6627e8d5 e169c58d bc57ac4c 9b00dbd8", ones: "408f276d 41c83b0e a20bc7c6 6d5451fd",
         pi: "d16cfe09 94fdcceb 5001e420 24126ea1"}  # fmt: skip
for (*counter, low, high), answer in known.items():
    words = philox4x32(tuple(map(torch.tensor, counter)), (low, high))
    found = " ".join(f"{int(word):08x}" for word in words)
    print("Philox4x32-10:", found, found == answer)
    assert found == answer


def one_number(seed, place, example, draw, stream):
    """The noise of one weight, one example and one draw, from the table."""
    counter = (torch.tensor(place), example, draw // 4, stream)
    words = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    x = [int(w) - (int(w) >> 31 << 32) for w in words]  # as signed numbers
    u = [float(np.float32(w if w >= 0 else -w - 1) * np.float32(4.6566127342e-10)) for w in x]
    first, second = u[:2] if draw % 4 < 2 else u[2:]
    wave = (np.cos, np.sin)[draw % 2]
    return np.sqrt(-2 * np.log(max(first, 1e-7))) * wave(2 * np.pi * second)


key, sizes = 2**40 + 7, {"d_in": 3, "d_out": 2, "stream": 5, "dtype": torch.float64}
whole = standard_normal(key, "independent", draws=range(10), examples=range(6), **sizes)  # (10, 6, Q)
for k, b, p in ((0, 0, 0), (5, 2, 7), (9, 5, 4)):
    assert np.isclose(float(whole[k, b, p]), one_number(key, p, b, k, 5), rtol=1e-12)
print("numbers written out from the table = the library's: True")

# %% [markdown]
# **Checks.** Parts of the noise are the parts of the whole, however it is cut; a seed given to the op is the
# same as its noise tensor; and the first four of a hundred draws are the four of four.

# %% tags=["nbval-check-output"]
part = standard_normal(key, "independent", draws=range(3, 9), examples=range(2, 4), **sizes)
print("a part, computed alone = that part of the whole:", torch.equal(part, whole[3:9, 2:4]))
assert torch.equal(part, whole[3:9, 2:4])

B, d_in, d_out, h = 6, 3, 2, 4
Q = d_out * (d_in + 1)
layer = normal(1, B, d_in), normal(1, B, h), normal(2 * Q, h), normal(2 * Q)
for noise in ("shared", "local"):
    eps = standard_normal(key, noise, draws=range(100), examples=range(B), **sizes)
    options = {"noise": noise, "kl": "none", "stream": 5}
    for backend in ("reference", "torch"):
        with torch.no_grad():
            seeded = fdn_linear(*layer, seed=key, draws=100, backend=backend, **options)[0]
            given = fdn_linear(*layer, eps=eps, backend=backend, **options)[0]
            four = fdn_linear(*layer, seed=key, draws=4, backend=backend, **options)[0]
        checks = agree((seeded, given)), agree((seeded[:4], four))
        print(
            f"{noise:6} {backend:9} seed = its noise tensor: {checks[0]}; draws 0..3 of 100 = those of 4: {checks[1]}"
        )
        assert all(checks)

# %% [markdown]
# The uniforms are the very float32 numbers of Triton's `tl.rand`, so the same seed means the same noise on a
# CPU and on a GPU, up to the rounding of one logarithm, root and sine. The next section shows that: both sides get a
# seed and no tensor of noise.
#
# ## 6.5 The kernel in its interpreter
#
# Triton can run a kernel on the CPU, block by block with NumPy, if `TRITON_INTERPRET=1` is set before Triton is
# imported; hence the process of its own. **Check:** outputs and every gradient of the Triton kernel in float32
# against the float64 reference, for sizes that fit no tile.

# %%
SCRIPT = """
import json
import torch
from fdn_kernels import fdn_linear

K, B, d_in, d_out, h = 6, 9, 5, 3, 7
Q = d_out * (d_in + 1)
generator = torch.Generator().manual_seed(0)

def values(backend, dtype, tensors, noise):
    leaves = [t.to(dtype).requires_grad_() for t in tensors]
    y, kl = fdn_linear(*leaves, noise=noise, seed=2**40 + 7, draws=K, backend=backend)
    loss = (y * y.detach().sin()).sum() + 0.1 * (kl * kl.detach().cos()).sum()
    return [t.detach().double() for t in (y, kl, *torch.autograd.grad(loss, leaves))]

errors = {}
for conditioning, k in (("IC", 1), ("LP", K)):
    for noise in ("local", "shared"):
        shapes = (K, B, d_in), (k, B, h), (2 * Q, h), (2 * Q,)
        tensors = [torch.randn(*shape, generator=generator) for shape in shapes]
        pairs = zip(values("triton", torch.float32, tensors, noise), values("reference", torch.float64, tensors, noise))
        errors[f"{conditioning} {noise}"] = [float((x - y).abs().max() / y.abs().max()) for x, y in pairs]
print(json.dumps(errors))
"""

# %%
if not has_triton:
    print("not run: the package triton is not installed (it exists for Linux only)")
elif interpret:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    errors = pd.DataFrame(json.loads(run.stdout), index=["y", "KL", "da", "dz", "dU", "dc"]).T
    print("largest error below 1e-5 of the largest entry")
    print((errors < 1e-5).to_string())
    assert (errors < 1e-5).all(axis=None)

# %% [markdown]
# What this does and does not show: the interpreter runs programs one after another, so it would not notice two
# programs that write to the same place (which is why each number has one owner), and it multiplies in full
# float32, so it says nothing of TF32. Both are for a GPU to confirm: the benchmark of section 6.8 makes the same
# comparison there, at full size, before it times anything.
#
# ## 6.6 Registers, spills, shared memory
#
# A tile that is too large does not fail: the compiler *spills* registers to memory, and the kernel is slow
# without a word. So each shipped tile is compiled ahead of time, and the machine code is read: registers per thread
# (255 at most), loads and stores of spilled registers, bytes of shared memory per block (163 KiB at most on an A100,
# 227 on an H100). This needs Triton, but no GPU. `python -m fdn_kernels.aot` does it for all tiles and precisions and
# four architectures (sm_80, sm_90, and of Blackwell sm_100 and sm_120), with `--every` in all variants. What is
# compiled is what the launcher would start: its launches are recorded on tensors without memory. Here is the most
# that each kernel needs in tf32x3 on an A100 and an H100.

# %%
if not has_triton:
    print("not compiled: the package triton is not installed (it exists for Linux only)")
elif compile_tiles:
    from fdn_kernels import aot
    from fdn_kernels.triton import parts

    modes = [(conditioning, noise) for conditioning in ("LP", "IC") for noise in ("local", "shared")]
    found = aot.compile_all([aot.Layer(*mode, "analytic") for mode in modes], archs=(80, 90))
    usage = pd.DataFrame([{"kernel": kernel, "sm": arch} | asdict(need) for kernel, _, arch, need in found])
    usage["KiB"] = usage["shared_bytes"] / 1024
    most = usage.groupby(["kernel", "sm"])[["registers", "spills", "KiB"]].max().unstack("sm")
    most.columns = [f"{name} sm_{arch}" for name, arch in most.columns]
    print(most.reset_index().to_string(index=False, float_format="{:.0f}".format))
    print(f"without a spill and within the shared memory: {sum(aot.fits(*pair[2:]) for pair in found)} of {len(found)}")
    print(f"scratch: at most {4 * parts.SCRATCH / 2**20:.0f} MiB at a time, beside partial sums")
    assert all(aot.fits(*pair[2:]) for pair in found)

# %% [markdown]
# **How long it would take, counted.** Without a GPU the machine code can still be counted: the instructions of each
# loop times its rounds, over what the schedulers of an H100 issue. That is a floor; real times are longer.
# `python -m fdn_kernels.aot --cost` prints it for every kernel of the largest layers, beside the bound of section 6.1
# and a target, beyond which `make check` fails: a slower kernel is noticed where there is no GPU to time it.

# %% [markdown]
# ## 6.7 Memory and time against K and d
#
# On the CPU `backend="torch"` takes Triton's place. It gives the same numbers with a backward written out by hand.
# Where a layer has few hypernetwork outputs per pass (`ops.LARGE` of them or fewer) it holds them all, since
# there the time goes into calls; beyond, it goes through blocks of draws and examples and computes each again in the
# backward. The reference always holds everything.
#
# **Measured here**, on square layers in float32, forward and backward: the peak of memory beyond the inputs, from
# PyTorch's record of every allocation, and the ratio of run times. The noise is given as a tensor to both. Memory is
# the same on each run; the ratios belong to the machine that ran the notebook and differ a little each time.

# %%
torch.set_num_threads(1)
BACKENDS = ("reference", "torch")
MODES = [("LP", "shared"), ("LP", "local"), ("IC", "shared"), ("IC", "local")]


def peak_bytes(function):
    """Largest sum of what is allocated and not yet freed while the function runs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        function()
    events = (e for e in record.profiler.kineto_results.events() if e.name() == "[memory]")
    return np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).max()


# %%
def seconds(function):
    """Run time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(case):
    """Peak bytes of both backends, and the run time of the reference over that of torch."""
    inputs, gradients = make_inputs(case, torch.device("cpu"))
    eps = torch.randn(case.noise_shape, dtype=torch.float32)
    layer = lambda b: lambda t, e: fdn_linear(*t, noise=case.noise, eps=e, backend=b)
    runs = [functools.partial(evaluate, layer(b), "forward+backward", inputs, gradients, eps) for b in BACKENDS]
    peaks = [peak_bytes(run) for run in runs]
    times, start = [], time.perf_counter()
    while len(times) < 2 or time.perf_counter() - start < 0.1:  # in turn, so that both meet the same disturbances
        times.append([seconds(run) for run in runs])
    slow, fast = np.min(times, 0)
    return {"reference": peaks[0], "torch": peaks[1], "ratio": slow / fast}


# %% tags=["run-times"]
rows = {}
for mode in MODES:
    for d in d_list:
        for K in K_list:
            rows[" ".join(mode), d, K] = measure(Case("", *mode, R=1, K=K, B=examples, d_in=d, d_out=d, h=16))
measured = pd.DataFrame(rows).T.rename_axis(["mode", "d", "K"]).sort_index()
for title, column in (
    ("memory, reference / torch", measured["reference"] / measured["torch"]),
    ("run time, reference / torch", measured["ratio"]),
):
    print(f"{title} (B={examples}, h=16)")
    print(column.unstack("K").to_string(float_format="{:.1f}".format), end="\n\n")
slower = measured[measured["ratio"] < 1].groupby("mode").size().to_dict()
print(f"torch is slower in {sum(slower.values())} of {len(measured)} layers: {slower}")

# %% [markdown]
# A ratio above 1 is in favour of `torch`. IC with `local` noise is the even case: its matvecs are matrix products over
# the draws in both, so that autograd of the plain equations is used up to `ops.LARGE`, and computing blocks again costs
# beyond. **Check** what blocks promise: for the largest layer, if it is beyond
# `ops.LARGE`, the memory of `torch` is a fraction of the reference's.

# %%
if out:
    Path(out).mkdir(parents=True, exist_ok=True)
    measured.to_csv(Path(out) / "measured.csv")

# %%
d, K = max(d_list), max(K_list)
for mode in ("LP shared", "LP local"):
    whole, blocks = measured.loc[(mode, d, K), BACKENDS[0]], measured.loc[(mode, d, K), BACKENDS[1]]
    beyond = K * examples * 2 * d * (d + 1) > ops.LARGE
    print(f"{mode}, d={d}, K={K}: {whole / 1e6:.0f} MB and {blocks / 1e6:.0f} MB")
    assert not beyond or blocks < whole / 4

# %%
# Peak memory and run time of the reference and of the op in PyTorch against the number of draws; above 1 the op is ahead.
fig, axes = plt.subplots(1, 2, figsize=(7, 2.9), layout="constrained")
mode, colours = "LP shared", plt.cm.viridis(np.linspace(0, 0.8, len(d_list)))
for d, colour in zip(d_list, colours):
    line = measured.loc[(mode, d)]
    axes[0].plot(line.index, line["reference"] / 1e6, "o--", color=colour, markerfacecolor="white")
    axes[0].plot(line.index, line["torch"] / 1e6, "o-", color=colour, label=f"d = {d}")
    axes[1].plot(line.index, line["ratio"], "o-", color=colour, label=f"d = {d}")
axes[0].plot([], [], "--", color="0.3", label="reference")
axes[0].plot([], [], "-", color="0.3", label="torch")
axes[1].axhline(1, color="black", linewidth=0.8, linestyle=":")
axes[0].set(yscale="log", ylabel="peak memory (MB)", title="memory, forward and backward")
axes[1].set(ylabel="run time, reference / torch", title="speed, forward and backward", ylim=(0, None))
for ax in axes:
    ax.set_xscale("log", base=2)
    ax.set(xlabel="draws K", xticks=K_list, xticklabels=K_list)
    ax.legend()
plt.show()

# %% [markdown]
# LP with `shared` noise, the published protocol's. Left: dashed the reference, solid `torch`. The reference grows
# with $K$ and with $d^2$; `torch` follows until the layer has more than `ops.LARGE` hypernetwork outputs, and from
# there on needs a few blocks however many draws there are. Right: above the dotted line `torch` is faster.
#
# ## 6.8 To be measured
#
# Speed on a GPU is for a GPU to tell. `fdn_kernels.bench` times nothing that has not first given the float64
# reference's outputs and gradients at the very size that is timed, and writes one row per layer, program
# and direction, with the device and the versions. Its rivals (`fdn_kernels.rivals`) are what one would write without
# a kernel: everything at once, parts of $2^{28}$ numbers, parts that stay in cache, each also through `torch.compile`.
# `make gpu` runs it on a machine with a GPU, after the checks that only a GPU can do (races, CUDA graphs, offsets
# beyond $2^{31}$), and keeps page and tables in `data/gpu/`:

# %%
tables = sorted((paths.ROOT / "data" / "gpu").glob("*.csv"))
if not tables:
    print("No speed has been measured on a GPU yet: data/gpu/ holds no table. On a machine that has one: make gpu")
for path in tables:
    table = pd.read_csv(path)
    for versions, rows in table.groupby(["device", "torch", "triton"], dropna=False, sort=False):
        print(f"data/gpu/{path.name}: {versions[0]}, torch {versions[1]}, triton {versions[2]}")
        columns = ["name", "provider", "direction", "p50_ms", "peak_mib", "bound_share", "error", "status"]
        print(rows[columns].to_string(index=False, na_rep="", float_format="{:.3g}".format), end="\n\n")

# %% [markdown]
# (`p50_ms`: median time; `peak_mib`: memory beyond inputs and outputs; `bound_share`: the computed bound of section
# 6.1 over the time; `error`: the largest, in units of an entry and the root mean square of all.)
