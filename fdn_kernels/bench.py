"""Benchmark of the layer that times nothing it has not checked: ``python -m fdn_kernels.bench``.

Every provider first has to give the float64 reference's y, KL and gradients at the very size that is timed, from the
same noise (:mod:`fdn_kernels.philox`); one that does not is reported, not timed, and the exit code is 1. What does
not fit into memory, fails or is skipped has a row that says so. Timed runs compute the KL, and on a GPU draw their
noise, since that is part of the kernel's work; on the CPU all are handed it, as in the paper's runs. forward+backward
gives the gradients of all four inputs.

=====================  ============================================================================================
provider               computes
=====================  ============================================================================================
ours                   ``fdn_linear(..., backend="auto")``, on a GPU with ``seed=...``
materialised           hypernetwork output and sampled weights as tensors: one GEMM, softplus, bmm
chunked                the same for parts whose tensors stay in cache; the backward computes each part again
reference              the op's definition (CPU only)
...-compiled           through torch.compile (chunked: each part)
=====================  ============================================================================================
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import gc
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata

import torch
import torch.nn.functional as F
from torch import Tensor

from fdn_kernels import backend_of, fdn_linear
from fdn_kernels.philox import standard_normal
from fdn_kernels.reference import split_parameters

FLOOR = 1e-3  # of sigma; the prior is N(0, 1)
DIRECTIONS = ("forward", "forward+backward")

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


CASE_COLUMNS = tuple(field.name for field in dataclasses.fields(Case))[:11]  # what a row says of its case
COLUMNS = (
    *CASE_COLUMNS, "matmul_tf32", "provider", "backend", "direction", "p20_ms", "p50_ms", "p80_ms", "peak_mib",
    "bound_share", "error", "status", "device", "torch", "triton",
)  # fmt: skip


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
    instructions = {
        "independent": (NORMAL + 2) * W,
        "shared": NORMAL * R * K * P,
        "local": NORMAL * R * K * B * case.d_out,
    }
    elements = R * (K * B * (case.d_in + case.d_out) + k * B * h + 2 * P * (h + 1))
    seconds = (
        elements * getattr(torch, case.dtype).itemsize / peaks.bandwidth,
        gemm * TF32_PRODUCTS.get(case.precision, 1) / peaks.tf32,
        fma / peaks.fp32,
        2 * n / (SPECIAL * peaks.cycles),
        instructions[case.noise] / (LANES * peaks.cycles),
    )
    return 1e3 * max(seconds)


def bound_ms(case: Case, direction: str, peaks: Peaks) -> float:
    """:func:`forward_bound_ms`, 3.5 times that for forward+backward (a backward is 2 to 3 times as much)."""
    return forward_bound_ms(case, peaks) * (1 if direction == "forward" else 3.5)


# -- providers -------------------------------------------------------------------------------------------------------


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
    for rho in _blocks(case, bias)[1::2]:
        rho -= 2.0  # sigma is about 0.13
    grad_y = normal(R, K, B, case.d_out).to(dtype)
    grad_kl = normal(R, z.shape[1], B) if case.training else None
    return tuple(t.to(dtype) for t in (a, z, weight, bias)), (grad_y, grad_kl)


def _blocks(case: Case, t: Tensor, dim: int = 1) -> tuple[Tensor, ...]:
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
    mean_w, rho_w, mean_b, rho_b = _blocks(case, out, -1)
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


def _cut(t: Tensor, part: tuple[slice, slice]) -> Tensor:
    """The part's draws and examples of a tensor (R, K or 1, B or 1, ...)."""
    draws, examples = part
    return t[:, draws if t.shape[1] > 1 else slice(None), examples if t.shape[2] > 1 else slice(None)]


class _Chunked(torch.autograd.Function):
    """A layer computed part by part; its backward computes every part again."""

    @staticmethod
    def forward(ctx, layer, case, parts, a, z, weight, bias, eps):
        ctx.layer, ctx.parts = layer, parts
        ctx.save_for_backward(a, z, weight, bias, eps)
        y = a.new_empty(case.R, case.K, case.B, case.d_out)
        kl = y.new_empty(z.shape[:3], dtype=torch.promote_types(y.dtype, torch.float32)) if case.training else None
        for part in parts:
            y_part, kl_part = layer(_cut(a, part), _cut(z, part), weight, bias, _cut(eps, part))
            _cut(y, part).copy_(y_part)
            if case.training:
                _cut(kl, part).copy_(kl_part)
        return y, kl

    @staticmethod
    def backward(ctx, grad_y, grad_kl):
        a, z, weight, bias, eps = ctx.saved_tensors
        inputs = (a, z, weight, bias)
        grads = [torch.zeros_like(t, dtype=torch.promote_types(t.dtype, torch.float32)) for t in inputs]
        for part in ctx.parts:
            leaves = [t.detach().requires_grad_() for t in (_cut(a, part), _cut(z, part), weight, bias)]
            with torch.enable_grad():
                outputs = ctx.layer(*leaves, _cut(eps, part))
            found = torch.autograd.grad(outputs, leaves, (_cut(grad_y, part), _cut(grad_kl, part)))
            for total, grad in zip((_cut(grads[0], part), _cut(grads[1], part), *grads[2:]), found):
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


def cache_elements(device: torch.device, dtype: torch.dtype) -> int:
    """Numbers that fill half of a GPU's L2 cache, or the part of a CPU's that :mod:`fdn_kernels.torch_ops` uses."""
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
    if provider.startswith("chunked"):
        limit = cache_elements(device, getattr(torch, case.dtype))
        layer = functools.partial(_Chunked.apply, layer, case, parts(case, limit, sampled=case.noise == "shared"))

    def run(inputs: Inputs, eps: Tensor | None) -> Output:
        if eps is None:
            eps = torch.randn(case.noise_shape, dtype=inputs[0].dtype, device=device)
        return layer(*inputs, eps)

    return run


PROVIDERS = ("ours", "chunked", "materialised", "reference", "chunked-compiled", "materialised-compiled")


@functools.cache
def compiler_problem(device: torch.device) -> str | None:
    """Why torch.compile does not work here, or None; tried once."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(64, device=device))
    except Exception as error:  # whatever is missing: a C++ compiler, Python.h, Triton
        return _reason(error)
    return None


# -- gate ------------------------------------------------------------------------------------------------------------

TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "tf32": 3e-2, "bfloat16": 1e-1}


def tolerance(case: Case, device: torch.device) -> float:
    """Largest error allowed, see :func:`error_of`."""
    tf32 = device.type == "cuda" and case.dtype == "float32" and case.precision == "tf32"
    return TOLERANCES["tf32" if tf32 else case.dtype]


def error_of(got: Tensor, expected: Tensor) -> float:
    """Largest |got - expected| in units of |expected| + its root mean square: absolute for small entries.

    Raises:
        ValueError: if the shapes differ.
    """
    if got.shape != expected.shape:
        raise ValueError(f"shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    scale = expected.abs() + expected.square().mean().sqrt()
    return float(((got.double() - expected).abs() / scale).nan_to_num(nan=math.inf).max())


def evaluate(case: Case, run: Layer, direction: str, inputs: Inputs, grads: Output, eps: Tensor | None) -> Inputs:
    """y and KL (without a KL: y), for forward+backward followed by the gradients of a, z, weight and bias."""
    if direction == "forward":
        with torch.no_grad():
            return tuple(t for t in run(inputs, eps) if t is not None)
    leaves = tuple(t.detach().requires_grad_() for t in inputs)
    outputs = run(leaves, eps)
    gradients = torch.autograd.grad(outputs, leaves, grads)
    return tuple(t.detach() for t in (*outputs, *gradients))


def named(case: Case, tensors: Inputs) -> dict[str, Tensor]:
    """The tensors of :func:`evaluate`; gradients of means and of rhos, which differ in scale, by themselves."""
    names = ("y", "kl", "da", "dz", "dweight", "dbias")
    found = {}
    for name, tensor in zip(names, tensors):
        if name in ("dweight", "dbias"):
            blocks = ("weight means", "weight rhos", "bias means", "bias rhos")
            found |= {f"{name} of {block}": t for block, t in zip(blocks, _blocks(case, tensor))}
        else:
            found[name] = tensor
    return found


def expected_values(case: Case, inputs: Inputs, grads: Output, eps: Tensor) -> Inputs:
    """The float64 reference, in parts that fit into memory: y, KL and gradients."""
    limit = 1 << (21 if eps.device.type == "cpu" else 25)
    chunks = parts(case, limit, sampled=True)
    layer = functools.partial(_Chunked.apply, functools.partial(reference, case), case, chunks)
    grads = tuple(t if t is None else t.double() for t in grads)
    direction = DIRECTIONS[case.training]
    return evaluate(case, lambda t, e: layer(*t, e), direction, tuple(t.double() for t in inputs), grads, eps)


def worst_error(case: Case, got: Inputs, expected: Inputs) -> tuple[float, str]:
    """The largest error and where it is."""
    wanted = named(case, expected)
    return max((error_of(t, wanted[name]), name) for name, t in named(case, got).items())


# -- measuring -------------------------------------------------------------------------------------------------------

QUANTILES = (0.2, 0.5, 0.8)
SLOW = 0.25  # seconds; slower functions run three more times and no warm-up


def timed(function: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def times_ms(function: Callable[[], object], device: torch.device, quick: bool) -> list[float]:
    """Quantiles 0.2, 0.5 and 0.8 of the time in ms: on a GPU with a cold L2 cache, on a CPU on one thread."""
    if timed(function, device) > SLOW:
        return [1e3 * t for t in sorted(timed(function, device) for _ in range(3))]
    if device.type == "cuda":
        from triton.testing import do_bench

        return do_bench(function, warmup=25, rep=100, quantiles=list(QUANTILES))
    from torch.utils.benchmark import Timer

    timer = Timer("function()", globals={"function": function})  # one thread unless told otherwise
    seconds = timer.blocked_autorange(min_run_time=0.3 if quick else 1.0).times
    return (1e3 * torch.tensor(seconds).quantile(torch.tensor(QUANTILES))).tolist()


def peak_mib(function: Callable[[], Inputs], device: torch.device) -> float | None:
    """Largest memory in use beyond inputs and outputs; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = function()
    torch.cuda.synchronize()
    return max(0, torch.cuda.max_memory_allocated() - before - sum(t.nbytes for t in outputs)) / 2**20


OUT_OF_MEMORY = "out of memory"


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if OUT_OF_MEMORY in text or "can't allocate memory" in text:  # of CUDA; of the CPU's allocator
        return OUT_OF_MEMORY
    return f"failed: {type(error).__name__}: {text[:200]}"


def noise_of(case: Case, device: torch.device) -> Tensor:
    """The noise that ``ours`` makes from its seeds, in float64."""
    size = {"draws": range(case.K), "examples": range(case.B), "d_in": case.d_in, "d_out": case.d_out}
    return standard_normal(seeds_of(case, device), case.noise, **size, dtype=torch.float64).contiguous()


def prepare(case: Case, device: torch.device, known: dict[str, Inputs]) -> tuple[Inputs, Output, Tensor, Inputs]:
    """Inputs, gradients of y and KL, noise in their dtype, expected values (``known`` keeps them on the host)."""
    inputs, grads = make_inputs(case, device)
    eps = noise_of(case, device)
    if case.name not in known:
        known[case.name] = tuple(t.cpu() for t in expected_values(case, inputs, grads, eps))
    return inputs, grads, eps.to(inputs[0].dtype), tuple(t.to(device) for t in known[case.name])


def rows_of(case: Case, run: Layer, problem: tuple, device: torch.device, quick: bool) -> Iterator[dict]:
    """One provider's rows for one case: what the gate says if it does not pass, else times per direction.

    ``problem`` comes from :func:`prepare`. A direction that does not fit into memory leaves the other to be timed.
    """
    inputs, grads, eps, expected = problem
    limit, errors = tolerance(case, device), {}
    for direction in DIRECTIONS if case.training else DIRECTIONS[:1]:
        try:
            errors[direction], where = worst_error(case, evaluate(case, run, direction, inputs, grads, eps), expected)
            passed = errors[direction] <= limit
            status = None if passed else f"WRONG: {where} off by {errors[direction]:.1e}, limit {limit:.0e}"
        except Exception as caught:
            status = _reason(caught)
        if status:
            yield {"direction": direction, "error": errors.pop(direction, None), "status": status}
        if status not in (None, OUT_OF_MEMORY):
            return
    for direction, error in errors.items():
        row = {"direction": direction, "error": error, "status": "ok"}
        handed = eps if device.type == "cpu" else None
        step = functools.partial(evaluate, case, run, direction, inputs, grads, handed)
        try:
            row["peak_mib"] = peak_mib(step, device)
            row |= dict(zip(("p20_ms", "p50_ms", "p80_ms"), times_ms(step, device, quick)))
            peaks = PEAKS.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
            if peaks:
                row["bound_share"] = bound_ms(case, direction, peaks) / row["p50_ms"]
        except Exception as caught:
            row["status"] = _reason(caught)
        yield row


# -- command line ----------------------------------------------------------------------------------------------------


def version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def run_all(
    cases: Sequence[Case], providers: Sequence[str], device: torch.device, quick: bool, budget: float
) -> Iterator[dict]:
    """All rows. Compiled providers come last: they take longest to start, and go first when time runs out."""
    start = time.perf_counter()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, 1 thread"
    common = {"device": name, "torch": torch.__version__, "triton": version_of("triton")}
    compiled = [provider for provider in providers if provider.endswith("-compiled")]
    known: dict[str, Inputs] = {}  # expected values, kept on the host
    for group in ([provider for provider in providers if provider not in compiled], compiled):
        for case in cases:
            torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
            described = {column: getattr(case, column) for column in CASE_COLUMNS}
            described["matmul_tf32"] = torch.backends.cuda.matmul.allow_tf32
            problem = None
            for provider in group:
                row = described | {"provider": provider} | common
                if time.perf_counter() - start > budget:
                    yield row | {"status": f"skipped: the time budget of {budget:.0f} s is used up"}
                    continue
                if provider in compiled and compiler_problem(device):
                    yield row | {"status": f"skipped: torch.compile {compiler_problem(device)}"}
                    continue
                try:
                    problem = problem or prepare(case, device, known)
                    if provider == "ours":
                        row["backend"], _ = backend_of(*problem[0][:2], case.kl)
                    found = list(rows_of(case, build(provider, case, device), problem, device, quick))
                except Exception as caught:  # of the reference, say
                    found = [{"status": _reason(caught)}]
                yield from (row | it for it in found)
                gc.collect()  # tensors in tracebacks
                if device.type == "cuda":
                    torch.cuda.empty_cache()


def table(rows: Sequence[dict]) -> str:
    """The rows as aligned text."""
    head = ("case", "provider", "direction", "ms", "20 % .. 80 %", "peak MiB", "of bound", "error", "")

    def number(row: dict, column: str, form: str) -> str:
        return "" if row.get(column) is None else format(row[column], form)

    lines = [head]
    for row in rows:
        spread = f"{row['p20_ms']:.4g} .. {row['p80_ms']:.4g}" if "p50_ms" in row else ""
        lines.append((
            row["name"], row["provider"], row.get("direction", ""), number(row, "p50_ms", ".4g"), spread,
            number(row, "peak_mib", ".0f"), number(row, "bound_share", ".0%"), number(row, "error", ".0e"),
            "" if row["status"] == "ok" else row["status"],
        ))  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths)] + [line[-1]] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def selected(names: Sequence[str], patterns: str, what: str) -> list[str]:
    """Names that match one of the comma-separated patterns (``lp-*,ic-local-d64-K16``), in their order.

    Raises:
        SystemExit: for a pattern that matches nothing.
    """
    for pattern in patterns.split(","):
        if not any(fnmatch(name, pattern) for name in names):
            raise SystemExit(f"no {what} is called {pattern!r}; there are: {', '.join(names)}")
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns.split(","))]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns 1 if a provider was wrong or failed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m fdn_kernels.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--out", metavar="FILE.csv", help="write the rows there too, each as soon as it is measured")
    parser.add_argument("--quick", action="store_true", help="fewer cases, at most 4 minutes")
    parser.add_argument("--budget", type=float, metavar="S", help="seconds after which nothing starts (--quick: 170)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--case", default="*", help="names or patterns, separated by commas")
    parser.add_argument("--provider", default="*", help="names or patterns, separated by commas")
    args = parser.parse_args(arguments)
    kind = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA GPU here; --device cpu runs the paper's layers on the CPU")
    elif os.environ.get("TRITON_INTERPRET") == "1":
        parser.error("TRITON_INTERPRET=1 would time Triton's interpreter; unset it")
    device = torch.device(kind, 0 if kind == "cuda" else None)
    cases = (gpu_cases if kind == "cuda" else cpu_cases)(args.quick)
    names = selected([case.name for case in cases], args.case, "case")
    cases = [case for case in cases if case.name in names]
    available = [provider for provider in PROVIDERS if kind == "cpu" or provider != "reference"]
    providers = selected(available, args.provider, "provider")
    budget = (170.0 if args.quick else math.inf) if args.budget is None else args.budget
    rows = []
    with ExitStack() as stack:
        writer = None
        if args.out:
            file = stack.enter_context(open(args.out, "w", newline="", encoding="utf-8"))
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
        for row in run_all(cases, providers, device, args.quick, budget):
            rows.append(row)
            if writer:
                writer.writerow(row)
                file.flush()
            time_ms = f", {row['p50_ms']:.4g} ms" if "p50_ms" in row else ""
            direction = row.get("direction", "")
            print(f"{row['name']} {row['provider']} {direction}: {row['status']}{time_ms}", flush=True)
    order = [(case.name, provider) for case in cases for provider in providers]
    rows.sort(key=lambda row: order.index((row["name"], row["provider"])))
    print(f"\n{rows[0]['device']}, torch {rows[0]['torch']}, triton {rows[0]['triton'] or 'not installed'}\n")
    print(table(rows))
    return int(any(row["status"].startswith(("WRONG", "failed")) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
