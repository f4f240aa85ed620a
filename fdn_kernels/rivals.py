"""Layers to time, the least time that a GPU could take for them, and the programs that are timed beside ours.

=====================  ============================================================================================
provider               computes
=====================  ============================================================================================
ours                   ``fdn_linear(..., backend="auto")``, on a GPU with ``seed=...``
materialised           hypernetwork output and sampled weights as tensors: one GEMM, softplus, bmm
chunked                the same for parts of 2^28 numbers; the backward computes each part again (GPU only)
cached                 the same for parts that stay in cache
reference              the op's definition (CPU only)
...-compiled           through torch.compile (of parts: each part)
=====================  ============================================================================================
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fdn_kernels import fdn_linear
from fdn_kernels.reference import split_parameters

FLOOR = 1e-3  # of sigma; the prior is N(0, 1)
CHUNK = 1 << 28  # numbers alive at once: a part takes a few GB of a GPU's memory
PROVIDERS = (
    "ours", "cached", "chunked", "materialised", "reference",
    "cached-compiled", "chunked-compiled", "materialised-compiled",
)  # fmt: skip

Inputs = tuple[Tensor, ...]  # a, z, weight, bias as in fdn_linear, with one replicate axis
Output = tuple[Tensor, Tensor | None]  # y, KL
Layer = Callable[[Inputs, Tensor | None], Output]  # of the inputs and the noise; None: draws its own


# -- cases -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One layer: R replicates, K draws, B examples, d_in to d_out, hypernetwork width h."""

    name: str
    conditioning: str  # "IC" or "LP"
    noise: str  # "shared" or "local"; independent noise is computed as local
    R: int
    K: int
    B: int
    d_in: int
    d_out: int
    h: int
    dtype: str = "float32"
    precision: str = "tf32x3"  # of matrix products on a GPU; PyTorch's own use TF32 for "tf32" only
    training: bool = True  # KL and a backward; else a forward without KL
    first: bool = False  # the network's first layer: its input is the same for all draws

    @property
    def P(self) -> int:
        """The layer's weights and biases."""
        return self.d_out * (self.d_in + 1)

    @property
    def kl(self) -> str:
        return "analytic" if self.training else "none"

    @property
    def per_draw(self) -> bool:
        """Whether the weights' distribution depends on the draw."""
        return self.conditioning == "LP" and not self.first

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (self.R, self.K, 1, self.P) if self.noise == "shared" else (self.R, self.K, self.B, self.d_out)


def _square(conditioning: str, noise: str, d: int, K: int, **changes: object) -> Case:
    case = Case(f"{conditioning.lower()}-{noise}-d{d}-K{K}", conditioning, noise, 1, K, 1024, d, d, 16)
    suffix = "".join(f"-{value}" for value in changes.values())
    return dataclasses.replace(case, name=case.name + suffix, **changes)


def gpu_cases(quick: bool) -> list[Case]:
    """Hidden layers that fill a GPU, and one of the paper's with 20 seeds stacked."""
    modes = [("LP", "local"), ("IC", "shared"), ("IC", "local"), ("LP", "shared")]
    targets = [_square(*mode, 256, 100) for mode in modes]
    paper = Case("lp-shared-paper", "LP", "shared", 20, 1, 64, 24, 1, 5)
    if quick:
        return [*targets, _square("LP", "local", 256, 100, precision="tf32"), paper]
    return [
        *targets,
        *(_square(*mode, 256, 100, precision="tf32") for mode in modes),
        *(_square(*mode, d, K) for d, K in ((256, 16), (64, 100), (64, 16)) for mode in modes),
        _square("LP", "local", 1024, 16),
        _square("LP", "local", 256, 100, dtype="bfloat16", precision="tf32"),
        paper,
    ]


def cpu_cases(quick: bool) -> list[Case]:
    """The layers of the paper's step task in float64, as :mod:`lib` computes it under the published protocol.

    Widths 1 - 23 - 1 with hypernetworks of 6 (IC-FDNet), 1 - 24 - 1 with 5 (LP-FDNet); shared noise. Training: 20
    seeds stacked, K = 1, batches of 64. Validation: K = 100 at the 256 ID points. Source: paper, table "Model
    configurations" and table of hyperparameters; the numbers of ``fdn.models`` and ``fdn.protocol``.
    """
    cases = []
    for kind, hidden, h in (("LP", 24, 5), ("IC", 23, 6)):
        for layer, d_in, d_out in (("hidden", 1, hidden), ("output", hidden, 1)):
            common = {"dtype": "float64", "precision": "ieee", "first": layer == "hidden"}
            train = Case(f"{kind.lower()}-train-{layer}", kind, "shared", 20, 1, 64, d_in, d_out, h, **common)
            validate = {"name": f"{kind.lower()}-validate-{layer}", "R": 1, "K": 100, "B": 256, "training": False}
            cases += [train, dataclasses.replace(train, **validate)]
    return [case for case in cases if case.conditioning == "LP"] if quick else cases


# -- bound -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peaks:
    """What a device can do per second."""

    fp32: float = 67e12  # FLOP
    tf32: float = 400e12  # FLOP of tensor cores, as large GEMMs reach it
    bandwidth: float = 3.0e12  # bytes, as large copies reach it
    cycles: float = 132 * 1.755e9  # multiprocessors times clock


PEAKS = {"NVIDIA H100 80GB HBM3": Peaks(), "NVIDIA H200": Peaks(bandwidth=4.3e12)}
SPECIAL, LANES = 16, 128  # special functions and instructions per multiprocessor and cycle
NORMAL = 43  # instructions of a normal number: its share of a Philox call and of a polynomial Box-Muller
TF32_PRODUCTS = {"tf32": 1, "tf32x3": 3}  # products per product


def forward_bound_ms(case: Case, peaks: Peaks) -> float:
    r"""Time below which no forward can stay: that of the busiest unit, each at its peak and without waiting.

    With W = R K B P, and n = W (LP) or R B P (IC) distributions of a weight:

    - memory: a, z, weight, bias and y once each, over the bandwidth;
    - matrix products: hypernetwork 4 n h FLOP, and for local IC noise two GEMMs, 4 W; on tensor cores for precision
      "tf32" (three times as many for "tf32x3"), in float32 units for "ieee";
    - float32 units: in the other modes 2 FMA for each sampled weight, 4 W FLOP;
    - special functions: an exponential and a logarithm for each softplus, 2 n, at 16 per multiprocessor and cycle
      (the KL's logarithm is not counted: it can be taken of products);
    - instructions: 43 for each normal number and, where each weight needs its own, 2 more; W (independent), R K P
      (shared) or R K B d_out (local) normals, at 128 per multiprocessor and cycle.

    >>> case = Case("", "IC", "local", R=1, K=100, B=1024, d_in=256, d_out=256, h=16, precision="tf32")
    >>> round(forward_bound_ms(case, PEAKS["NVIDIA H100 80GB HBM3"]), 3)
    0.078
    """
    R, K, B, P, h = case.R, case.K, case.B, case.P, case.h
    W = R * K * B * P
    k = K if case.per_draw else 1
    n = R * k * B * P
    gemm, fma = 4 * n * h, 4 * W
    if case.conditioning == "IC" and case.noise == "local":
        gemm, fma = gemm + fma, 0
    if case.precision == "ieee":
        gemm, fma = 0, gemm + fma
    normals = {"independent": W, "shared": R * K * P, "local": R * K * B * case.d_out}[case.noise]
    instructions = NORMAL * normals + (2 * W if case.noise == "independent" else 0)
    elements = R * (K * B * (case.d_in + case.d_out) + k * B * h + 2 * P * (h + 1))
    seconds = (
        elements * getattr(torch, case.dtype).itemsize / peaks.bandwidth,
        gemm * TF32_PRODUCTS.get(case.precision, 1) / peaks.tf32,
        fma / peaks.fp32,
        2 * n / (SPECIAL * peaks.cycles),
        instructions / (LANES * peaks.cycles),
    )
    return 1e3 * max(seconds)


def bound_ms(case: Case, direction: str, peaks: Peaks) -> float:
    """:func:`forward_bound_ms`, 3.5 times that for forward+backward (a backward is 2 to 3 times as much)."""
    return forward_bound_ms(case, peaks) * (1 if direction == "forward" else 3.5)


# -- inputs, and what computes with them -----------------------------------------------------------------------------


def make_inputs(case: Case, device: torch.device) -> tuple[Inputs, Output]:
    """Inputs of a layer whose means and spreads both matter, and gradients of its y and KL."""
    dtype = getattr(torch, case.dtype)
    wide = torch.promote_types(dtype, torch.float32)
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=generator, dtype=wide, device=device)

    R, K, B, P, h = case.R, case.K, case.B, case.P, case.h
    a = normal(R, 1 if case.first else K, B, case.d_in)
    z = normal(R, K if case.per_draw else 1, B, h).relu()
    weight = normal(R, 2 * P, h, scale=(h * case.d_in) ** -0.5)
    bias = normal(R, 2 * P, scale=case.d_in**-0.5)
    for rho in blocks(case, bias)[1::2]:
        rho -= 2.0  # sigma is about 0.13
    grad_y = normal(R, K, B, case.d_out).to(dtype)
    grad_kl = normal(R, z.shape[1], B) if case.training else None
    return tuple(t.to(dtype) for t in (a, z, weight, bias)), (grad_y, grad_kl)


def blocks(case: Case, t: Tensor, dim: int = 1) -> tuple[Tensor, ...]:
    """Weight means, weight rhos, bias means and bias rhos."""
    n = case.d_out * case.d_in
    return t.split([n, n, case.d_out, case.d_out], dim)


def _matvec(theta: Tensor, a: Tensor) -> Tensor:
    """W a for weights (R, k, B, d_out, d_in) and inputs (R, k, B, d_in): (R, k, B, d_out)."""
    if theta.shape[1] < a.shape[1]:  # one matrix per example: a GEMM over its draws
        return (theta.squeeze(1) @ a.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    if torch.compiler.is_compiling() or theta.shape[-1] * theta.shape[-2] < 1024:
        return (theta * a.unsqueeze(-2)).sum(-1)  # compilers fuse it with the sampling; on small layers it beats bmm
    return (theta @ a.unsqueeze(-1)).squeeze(-1)


def materialised(case: Case, a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor) -> Output:
    """The layer as one would write it with matrix products, in the inputs' dtype; the KL is summed in float32."""
    if case.R == 1:
        out = F.linear(z, weight[0], bias[0])  # (1, k, B, 2P); its GEMM adds the bias
    else:
        out = torch.baddbmm(bias.unsqueeze(1), z.flatten(1, 2), weight.mT).unflatten(1, z.shape[1:3])  # (R, k, B, 2P)
    mean_w, rho_w, mean_b, rho_b = blocks(case, out, -1)
    scale_w, scale_b = FLOOR + F.softplus(rho_w), FLOOR + F.softplus(rho_b)
    kl = None
    if case.training:
        wide = torch.promote_types(out.dtype, torch.float32)
        kl = sum(
            (0.5 * (mean.square() + scale.square() - 1) - scale.log()).sum(-1, dtype=wide)
            for mean, scale in ((mean_w, scale_w), (mean_b, scale_b))
        )  # (R, k, B)
    matrix = (case.d_out, case.d_in)
    if case.noise == "local":
        variance = _matvec(scale_w.square().unflatten(-1, matrix), a.square()) + scale_b.square()
        return _matvec(mean_w.unflatten(-1, matrix), a) + mean_b + variance.sqrt() * eps, kl
    eps_w, eps_b = split_parameters(eps, case.d_in)  # (R, K, 1, d_out, d_in), (R, K, 1, d_out)
    theta = torch.addcmul(mean_w.unflatten(-1, matrix), scale_w.unflatten(-1, matrix), eps_w)  # (R, K, B, *matrix)
    return _matvec(theta, a) + torch.addcmul(mean_b, scale_b, eps_b), kl


def parts(case: Case, limit: int, sampled: bool) -> list[tuple[slice, slice]]:
    """Draws and examples of the parts of a layer in which at most ``limit`` numbers (or one example) are alive.

    An example has 2P numbers, for each draw where its weights' distribution depends on it, and P more per draw if
    weights are sampled. Parts of IC layers hold all draws, so that the hypernetwork runs once. Sizes are powers of
    two or everything.
    """
    R, K, B, P = case.R, case.K, case.B, case.P
    alive = R * P * ((2 + sampled) if case.per_draw else 2 + sampled * K)
    size = limit // alive  # of examples, or of pairs of a draw and an example
    examples = B if size >= B else 1 << max(0, int(math.log2(max(1, size))))
    draws = min(K, max(1, size // examples)) if case.per_draw else K
    starts = itertools.product(range(0, K, draws), range(0, B, examples))
    return [(slice(k, k + draws), slice(b, b + examples)) for k, b in starts]


def cut(t: Tensor, part: tuple[slice, slice]) -> Tensor:
    """The part's draws and examples of a tensor (R, K or 1, B or 1, ...)."""
    draws, examples = part
    return t[:, draws if t.shape[1] > 1 else slice(None), examples if t.shape[2] > 1 else slice(None)]


class InParts(torch.autograd.Function):
    """A layer computed part by part; its backward computes every part again."""

    @staticmethod
    def forward(ctx, layer, case, parts, a, z, weight, bias, eps):
        """Outputs and KL, part by part, of which no graph is kept."""
        ctx.layer, ctx.parts = layer, parts
        ctx.save_for_backward(a, z, weight, bias, eps)
        y = a.new_empty(case.R, case.K, case.B, case.d_out)
        kl = y.new_empty(z.shape[:3], dtype=torch.promote_types(y.dtype, torch.float32)) if case.training else None
        for part in parts:
            y_part, kl_part = layer(cut(a, part), cut(z, part), weight, bias, cut(eps, part))
            cut(y, part).copy_(y_part)
            if case.training:
                cut(kl, part).copy_(kl_part)
        return y, kl

    @staticmethod
    def backward(ctx, grad_y, grad_kl):
        """Sums over the parts of what autograd gives for each."""
        a, z, weight, bias, eps = ctx.saved_tensors
        inputs = (a, z, weight, bias)
        grads = [torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in inputs]
        for part in ctx.parts:
            leaves = [t.detach().requires_grad_() for t in (cut(a, part), cut(z, part), weight, bias)]
            with torch.enable_grad():
                outputs = ctx.layer(*leaves, cut(eps, part))
            found = torch.autograd.grad(outputs, leaves, (cut(grad_y, part), cut(grad_kl, part)))
            for total, grad in zip((cut(grads[0], part), cut(grads[1], part), *grads[2:]), found):
                total += grad
        return None, None, None, *(total.to(t.dtype) for total, t in zip(grads, inputs)), None


def reference(case: Case, a: Tensor, z: Tensor, weight: Tensor, bias: Tensor, eps: Tensor) -> Output:
    """The op's definition."""
    return fdn_linear(a, z, weight, bias, noise=case.noise, eps=eps, kl=case.kl, floor=FLOOR, backend="reference")


def ours(case: Case, noise: dict, a: Tensor, z: Tensor, weight: Tensor, bias: Tensor) -> Output:
    """The op under test; ``noise`` holds eps, or seeds to make it from."""
    return fdn_linear(
        a, z, weight, bias, noise=case.noise, draws=case.K, kl=case.kl, floor=FLOOR, precision=case.precision, **noise
    )


def part_limit(provider: str, device: torch.device, dtype: torch.dtype) -> int | None:
    """Numbers alive at once in a provider that computes in parts.

    Those of a cache fill half of a GPU's L2 cache, or the part of a CPU's that :mod:`fdn_kernels.torch_ops` uses.
    """
    if not provider.startswith("cached"):
        return CHUNK if provider.startswith("chunked") else None
    if device.type == "cpu":
        return 1 << 16
    return torch.cuda.get_device_properties(device).L2_cache_size // (2 * dtype.itemsize)


def seeds_of(case: Case, device: torch.device) -> Tensor:
    """One for each replicate."""
    return torch.arange(1, case.R + 1, device=device)


def build(provider: str, case: Case, device: torch.device) -> Layer:
    """A provider for a case."""
    if provider == "ours":
        seeds = seeds_of(case, device)
        return lambda inputs, eps: ours(case, {"seed": seeds} if device.type == "cuda" else {"eps": eps}, *inputs)
    layer = functools.partial(reference if provider == "reference" else materialised, case)
    if provider.endswith("-compiled"):
        torch.compiler.reset()  # Dynamo stops after a few graphs of the same code
        layer = torch.compile(layer, dynamic=False, fullgraph=True)
    if limit := part_limit(provider, device, getattr(torch, case.dtype)):
        layer = functools.partial(InParts.apply, layer, case, parts(case, limit, sampled=case.noise == "shared"))

    def run(inputs: Inputs, eps: Tensor | None) -> Output:
        if eps is None:
            eps = torch.randn(case.noise_shape, dtype=inputs[0].dtype, device=device)
        return layer(*inputs, eps)

    return run
