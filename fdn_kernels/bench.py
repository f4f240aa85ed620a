"""Benchmark of the layer that times nothing it has not checked: ``python -m fdn_kernels.bench``.

Every provider (:mod:`fdn_kernels.rivals`) first has to give the float64 reference's y, KL and gradients at the very
size that is timed, from the same noise (:mod:`fdn_kernels.philox`); one that does not is reported, not timed, and the
exit code is 1. What does not fit into memory, fails or is skipped has a row that says so. Timed runs compute the KL,
and on a GPU draw their noise, since that is part of the kernel's work; on the CPU all are handed it, as in the paper's
runs. forward+backward gives the gradients of all four inputs.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch
from importlib import metadata
from importlib.util import find_spec

import torch
from torch import Tensor

from fdn_kernels import backend_of, rivals
from fdn_kernels.philox import standard_normal
from fdn_kernels.rivals import PEAKS, Case, Inputs, Layer, Output

DIRECTIONS = ("forward", "forward+backward")
CASE_COLUMNS = ("name", "conditioning", "noise", "R", "K", "B", "d_in", "d_out", "h", "dtype", "precision")
COLUMNS = (
    *CASE_COLUMNS, "matmul_tf32", "provider", "backend", "direction", "p20_ms", "p50_ms", "p80_ms", "peak_mib",
    "bound_share", "error", "status", "device", "torch", "triton",
)  # fmt: skip


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


def evaluate(run: Layer, direction: str, inputs: Inputs, grads: Output, eps: Tensor | None) -> Inputs:
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
    found = dict(zip(("y", "kl", "da", "dz", "dweight", "dbias"), tensors))
    for name in found.keys() & {"dweight", "dbias"}:
        split = zip(("weight means", "weight rhos", "bias means", "bias rhos"), rivals.blocks(case, found.pop(name)))
        found |= {f"{name} of {block}": t for block, t in split}
    return found


def expected_values(case: Case, inputs: Inputs, grads: Output, eps: Tensor) -> Inputs:
    """The float64 reference, in parts that fit into memory: y, KL and gradients."""
    chunks = rivals.parts(case, 1 << (21 if eps.device.type == "cpu" else 25), sampled=True)
    layer = functools.partial(rivals.InParts.apply, functools.partial(rivals.reference, case), case, chunks)
    inputs, grads = (tuple(t if t is None else t.double() for t in tensors) for tensors in (inputs, grads))
    return evaluate(lambda t, e: layer(*t, e), DIRECTIONS[case.training], inputs, grads, eps)


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
    return standard_normal(rivals.seeds_of(case, device), case.noise, **size, dtype=torch.float64).contiguous()


def prepare(case: Case, device: torch.device, known: dict[str, Inputs]) -> tuple[Inputs, Output, Tensor, Inputs]:
    """Inputs, gradients of y and KL, noise in their dtype, expected values (``known`` keeps them on the host)."""
    inputs, grads = rivals.make_inputs(case, device)
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
            errors[direction], where = worst_error(case, evaluate(run, direction, inputs, grads, eps), expected)
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
        step = functools.partial(evaluate, run, direction, inputs, grads, handed)
        try:
            row["peak_mib"] = peak_mib(step, device)
            row |= dict(zip(("p20_ms", "p50_ms", "p80_ms"), times_ms(step, device, quick)))
            if device.type == "cuda" and (peaks := PEAKS.get(torch.cuda.get_device_name(device))):
                row["bound_share"] = rivals.bound_ms(case, direction, peaks) / row["p50_ms"]
        except Exception as caught:
            row["status"] = _reason(caught)
        yield row


# -- command line ----------------------------------------------------------------------------------------------------


@functools.cache
def compiler_problem(device: torch.device) -> str | None:
    """Why torch.compile does not work here, or None; tried once."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(64, device=device))
    except Exception as error:  # whatever is missing: a C++ compiler, Python.h, Triton
        return _reason(error)
    return None


def run_all(
    cases: Sequence[Case], providers: Sequence[str], device: torch.device, quick: bool, budget: float
) -> Iterator[dict]:
    """All rows. Compiled providers come last: they take longest to start, and go first when time runs out."""
    start = time.perf_counter()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU, 1 thread"
    common = {
        "device": name,
        "torch": torch.__version__,
        "triton": metadata.version("triton") if find_spec("triton") else "",
    }
    compiled = [provider for provider in providers if provider.endswith("-compiled")]
    known: dict[str, Inputs] = {}  # expected values, kept on the host
    for group in ([provider for provider in providers if provider not in compiled], compiled):
        for case in cases:
            tf32 = torch.backends.cuda.matmul.allow_tf32 = case.precision == "tf32"
            described = {column: getattr(case, column) for column in CASE_COLUMNS} | {"matmul_tf32": tf32}
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
                    found = list(rows_of(case, rivals.build(provider, case, device), problem, device, quick))
                except Exception as caught:  # of the reference, say
                    found = [{"status": _reason(caught)}]
                yield from (row | it for it in found)
                gc.collect()  # tensors in tracebacks
                if device.type == "cuda":
                    torch.cuda.empty_cache()


HEAD = ("case", "provider", "direction", "ms", "20 % .. 80 %", "peak MiB", "of bound", "error", "status")


def table(rows: Sequence[dict]) -> str:
    """The rows in Markdown."""
    forms = {"ms": ".4g", "spread": "", "peak_mib": ".0f", "bound_share": ".0%", "error": ".0e"}
    lines = [HEAD]
    for row in rows:
        if "p50_ms" in row:
            row = row | {"ms": row["p50_ms"], "spread": f"{row['p20_ms']:.4g} .. {row['p80_ms']:.4g}"}
        numbers = ("" if row.get(name) is None else format(row[name], form) for name, form in forms.items())
        lines.append((row["name"], row["provider"], row.get("direction", ""), *numbers, row["status"]))
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths))} |" for line in lines)


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
    cases = (rivals.gpu_cases if kind == "cuda" else rivals.cpu_cases)(args.quick)
    names = selected([case.name for case in cases], args.case, "case")
    cases = [case for case in cases if case.name in names]
    same = "chunked" if kind == "cpu" else "reference"  # on a CPU as materialised; too large for a GPU
    available = [provider for provider in rivals.PROVIDERS if not provider.startswith(same)]
    providers = selected(available, args.provider, "provider")
    budget = (170.0 if args.quick else math.inf) if args.budget is None else args.budget
    rows = []
    with open(args.out or os.devnull, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for row in run_all(cases, providers, device, args.quick, budget):
            rows.append(row)
            writer.writerow(row)
            file.flush()
            time_ms = f", {row['p50_ms']:.4g} ms" if "p50_ms" in row else ""
            print(f"{row['name']} {row['provider']} {row.get('direction', '')}: {row['status']}{time_ms}", flush=True)
    order = [(case.name, provider) for case in cases for provider in providers]
    rows.sort(key=lambda row: order.index((row["name"], row["provider"])))
    print(f"\n{rows[0]['device']}, torch {rows[0]['torch']}, triton {rows[0]['triton'] or 'not installed'}\n")
    print(table(rows))
    return int(any(row["status"].startswith(("WRONG", "failed")) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
