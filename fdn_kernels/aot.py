"""Ahead-of-time compilation of every shipped tile: registers, spills, shared memory and instructions, without a GPU.

``python -m fdn_kernels.aot`` prints the table and exits with 1 where a kernel spills or needs more shared memory than the
architecture has; with ``--cost`` it counts the instructions of the benchmark's largest layers. It must run outside Triton's
interpreter.

The count is static: what a launch executes is known from the machine code's loops (backward branches) and the launch's
arguments. From it follows a time below which an H100 cannot stay, the *floor*: that of the busiest of the instruction
schedulers (an instruction of a warp per cycle), the special function units (a warp's in 8 cycles) and the tensor cores. Real
times are about twice a floor, since nobody waits here: for memory, barriers, or other warps.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fdn_kernels import triton_ops
from fdn_kernels.ops import PRECISIONS
from fdn_kernels.triton_ops import KERNELS, OPTIONS, TILES

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}  # bytes a block may have (CUDA programming guide, compute capabilities)
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True)
class Build:
    """One kernel as it is compiled."""

    kernel: str
    form: str
    variant: str  # NOISE, KL and OUTPUT or PART
    precision: str = PRECISIONS[0]
    dtype: str = "fp32"
    arch: int = 90
    eps: bool = False  # the noise is given, not drawn


@dataclass(frozen=True)
class Usage:
    """What a compiled kernel needs, per thread (registers, spilling instructions) and per block (bytes of shared memory)."""

    registers: int
    spills: int
    shared_bytes: int


def fits(build: Build, usage: Usage) -> bool:
    """Whether nothing spills and the shared memory suffices."""
    return usage.spills == 0 and usage.shared_bytes <= SHARED_MEMORY[build.arch]


def variants(kernel: str, form: str) -> list[str]:
    """Every combination of noise, KL and output that a tile is launched with, the heaviest first."""
    noises = ("independent", "shared") if form.endswith("sampled") else ("local", "moments", "none")
    kls = {"independent": ("sampled", "analytic", "none"), "shared": ("sampled", "analytic", "none")}
    pairs = [(noise, kl) for noise in noises for kl in kls.get(noise, ("analytic", "none"))]
    if kernel == "forward":
        found = [f"{noise} {kl} {'moments' if noise == 'moments' else 'y'}" for noise, kl in pairs]
        return found + ["local none grad_variance"] * ("local" in noises)
    if kernel == "inputs":  # has no KL
        return [f"{noise} none -" for noise in noises]
    if kernel == "conditioning":
        return [f"{noise} {kl} -" for noise, kl in pairs]
    return [f"{noise} {kl} {part}" for noise, kl in pairs for part in ("rho", "mean")]


def shipped(archs: Iterable[int] = tuple(SHARED_MEMORY), every: bool = False) -> Iterator[Build]:
    """Every tile in every precision and architecture, in its heaviest variant; in the default precision also with
    bfloat16 inputs and with given noise.

    ``every`` gives all variants.
    """
    for (kernel, form), arch in ((tile, arch) for tile in TILES for arch in archs):
        for name in variants(kernel, form)[: None if every else 1]:
            for precision in PRECISIONS:
                yield Build(kernel, form, name, precision, "fp32", arch)
            yield Build(kernel, form, name, PRECISIONS[0], "bf16", arch)
            yield Build(kernel, form, name, PRECISIONS[0], "fp32", arch, eps=True)


@lru_cache(maxsize=None)
def assemble(build: Build) -> tuple[Usage, str]:
    """Compile one kernel as :mod:`fdn_kernels.triton_ops` launches it: what it needs, and its machine code."""
    function = KERNELS[build.kernel]
    noise, kl, last = build.variant.split()
    constants = asdict(TILES[build.kernel, build.form]) | {
        "NOISE": noise, "KL": kl, "OUTPUT": last, "PART": last, "LP": build.form.startswith("LP"), "EPS": build.eps,
        "PRECISION": build.precision, "FAST": True,
    }  # fmt: skip
    single = {"kl", "grad_kl", "grad_z", "grad_weight", "grad_bias"}  # float32 whatever the inputs' dtype
    if noise == "local":
        single |= {"grad_variance"}
    if last == "grad_variance":
        single |= {"variance"}
    signature = {}
    for name, parameter in zip(function.arg_names, function.params, strict=True):
        if parameter.is_constexpr:
            signature[name] = "constexpr"
        elif name in ("a", "z", "weight", "bias", "eps", "y", "variance", "kl") or name.startswith("grad_"):
            signature[name] = "*fp32" if name in single else f"*{build.dtype}"
        else:
            signature[name] = {"seeds": "*i64", "floor": "fp32", "inverse_prior": "fp32"}.get(name, "i32")
    source = ASTSource(function, signature, {k: v for k, v in constants.items() if k in function.arg_names}, {})
    compiled = triton.compile(source, target=GPUTarget("cuda", build.arch, 32), options=OPTIONS)
    return inspect(compiled)


def inspect(compiled) -> tuple[Usage, str]:
    """What a compiled kernel needs, and its machine code as ``nvdisasm -c`` writes it."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, text=True, check=True)
        code = subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True).stdout
    registers = int(re.search(r"REG:(\d+)", usage.stdout + usage.stderr)[1])
    return Usage(registers, len(re.findall(r"\b(?:LDL|STL)\b", code)), compiled.metadata.shared), code


def compile_one(build: Build) -> Usage:
    """What a kernel needs as :mod:`fdn_kernels.triton_ops` launches it."""
    return assemble(build)[0]


def compile_all(builds: Iterable[Build], processes: int = 1) -> list[tuple[Build, Usage]]:
    """Compile many, in their order."""
    builds = list(builds)
    if processes == 1:
        return [(build, compile_one(build)) for build in builds]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(zip(builds, pool.map(compile_one, builds, chunksize=4)))


# -- instructions --------------------------------------------------------------------------------------------------------

SCHEDULERS = 132 * 4 * 1.755e9  # of an H100, cycles per second
SPECIAL_CYCLES = 8  # of a scheduler, per instruction of a warp: 4 of its 32 threads at a time
TENSOR_FMAS = 256  # TF32, per scheduler and cycle


@dataclass(frozen=True)
class Count:
    """What one warp executes, in cycles of its scheduler: instructions issued, special functions, tensor products."""

    issued: float = 0.0
    special: float = 0.0
    tensor: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(*(x + y for x, y in zip(astuple(self), astuple(other))))

    def __mul__(self, times: float) -> Count:
        return Count(*(times * x for x in astuple(self)))

    @property
    def floor_ms(self) -> float:
        """Of that many cycles on the schedulers of a whole H100."""
        return 1e3 * max(astuple(self)) / SCHEDULERS


def count(code: str, trips: Callable[[int], Sequence[int]]) -> Count:
    """What one warp executes of a machine code, every branch that is no loop taken.

    ``trips(n)`` says how often each of n loops runs whenever it is entered; loops are in the order of their first instruction.
    """
    labels, instructions, loops = {}, [], set()
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append(found[1])
    for n, text in enumerate(instructions):
        branch = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", text)
        if branch and labels[branch[1]] < n:
            loops.add((labels[branch[1]], n))
    loops = sorted(loops, key=lambda loop: (loop[0], -loop[1]))
    times = trips(len(loops))
    total = Count()
    for n, text in enumerate(instructions):
        runs = math.prod(t for (first, last), t in zip(loops, times, strict=True) if first <= n <= last)
        shape = re.search(r"\bHG?MMA\.(?:64x(\d+)x(\d+)|(16)8(\d))", text)  # 64 rows of four warps; 16 rows, 8 columns
        tensor = 0.0
        if shape:
            columns, depth = (int(shape[1]), int(shape[2])) if shape[1] else (8, int(shape[4]))
            tensor = 16 * columns * depth / TENSOR_FMAS
        total += Count(1, SPECIAL_CYCLES * ("MUFU" in text), tensor) * runs
    return total


def loop_trips(kernel: str, arguments: dict, splits: int) -> Callable[[int], Sequence[int]]:
    """How often the loops of a launch run, see :func:`count`; slices of hidden units beside the walks over tiles."""
    n = {name: arguments[name] for name in ("d_in", "d_out", "h", "BB", "BK", "BO", "BI")}
    slices = triton.cdiv(n["h"], 16)
    outputs, inputs = n["d_out"] / n["BO"], math.ceil((n["d_in"] + (kernel != "inputs")) / n["BI"])
    if kernel != "weights":
        walks = {"forward": (outputs / splits, inputs), "inputs": (inputs / splits, outputs),
                 "conditioning": (inputs * slices / splits, outputs)}[kernel]  # fmt: skip
        return lambda loops: [*walks, *[slices] * (loops - 2)]
    draws = arguments["k_last"] - arguments["k_first"]
    rows = math.ceil((arguments["b_last"] - arguments["b_first"]) / n["BB"]) * (draws if arguments["LP"] else 1) * slices / splits
    last = [] if arguments["LP"] else [math.ceil(draws / n["BK"])]
    return lambda loops: [rows, *[slices] * (loops - 1 - len(last)), *last]


def launches(conditioning: str, noise: str, draws: int, examples: int, width: int, h: int) -> Iterator[tuple[str, tuple, dict]]:
    """Kernel, grid and arguments of all launches of a forward (with KL) and a backward, recorded on tensors without memory."""
    seen = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name, self.arg_names = name, KERNELS[name].arg_names

        def __getitem__(self, grid):
            return lambda **arguments: seen.append((self.name, grid, arguments))

    n = 2 * width * (width + 1)
    shapes = (1, draws, examples, width), (1, draws if conditioning == "LP" else 1, examples, h), (1, n, h), (1, n)
    inputs = [torch.empty(shape, device="meta") for shape in shapes]
    settings = None, torch.empty(1, dtype=torch.int64, device="meta"), draws, noise, "analytic", 1e-3, 1.0, 0, PRECISIONS[0]
    kept, triton_ops.KERNELS = triton_ops.KERNELS, {name: Recorder(name) for name in KERNELS}
    try:
        outputs = triton_ops.linear(*inputs, *settings)
        yield from seen
        seen.clear()
        triton_ops.linear_backward(*map(torch.empty_like, outputs), *inputs, *settings, True, True)
        yield from (("backward " + name, *rest) for name, *rest in seen)
    finally:
        triton_ops.KERNELS = kept


def costs(conditioning: str, noise: str, *sizes: int) -> dict[str, tuple[Usage, int, Count]]:
    """What each kernel needs, its warps in a program, and what all its launches execute."""
    found = {}
    for name, grid, arguments in launches(conditioning, noise, *sizes):
        kernel = name.split()[-1]
        variant = " ".join((arguments["NOISE"], arguments.get("KL", "none"), arguments.get("OUTPUT", arguments.get("PART", "-"))))
        build = Build(kernel, f"{conditioning} {'local' if noise == 'local' else 'sampled'}", variant)
        usage, code = assemble(build)
        each = count(code, loop_trips(kernel, arguments, grid[1])) * (math.prod(grid) * OPTIONS["num_warps"])
        before = found[f"{name} {variant}"][2] if f"{name} {variant}" in found else Count()
        found[f"{name} {variant}"] = usage, OPTIONS["num_warps"], before + each
    return found


def print_costs(draws: int = 100, examples: int = 1024, width: int = 256, h: int = 16) -> None:
    """Instructions per weight and floor of each kernel, and their sum beside the bound of :mod:`fdn_kernels.bench`."""
    from fdn_kernels.bench import Case, Peaks, bound_ms

    print(f"d {width}, h {h}, B {examples}, K {draws}, {PRECISIONS[0]}, forward and backward on an H100, by static count\n")
    print(f"{'kernel':52}registers  warps/SM  instructions  floor ms: issue special  tensor")
    weights = draws * examples * width * (width + 1)
    for conditioning, noise in (("LP", "local"), ("LP", "shared"), ("IC", "shared"), ("IC", "local")):
        total = 0.0
        for name, (usage, warps, cycles) in costs(conditioning, noise, draws, examples, width, h).items():
            blocks = min(65536 // (32 * warps * -(-usage.registers // 8) * 8), 233472 // (usage.shared_bytes + 1024), 32)
            floors = (1e3 * x / SCHEDULERS for x in astuple(cycles))
            print(f"{conditioning} {name:49}{usage.registers:9}{blocks * warps:10}{32 * cycles.issued / weights:14.2f}",
                  " " * 9, *(f"{x:7.2f}" for x in floors))  # fmt: skip
            total += cycles.floor_ms
        case = Case("", conditioning, noise, 1, draws, examples, width, width, h)
        print(f"{conditioning} {noise}: {total:.1f} ms, bound {bound_ms(case, 'forward+backward', Peaks()):.2f} ms\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fdn_kernels.aot", description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", type=int, nargs="*", default=list(SHARED_MEMORY), choices=list(SHARED_MEMORY))
    parser.add_argument("--every", action="store_true", help="all variants too (a quarter of an hour)")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="count instructions instead")
    options = parser.parse_args(arguments)
    if options.cost:
        print_costs()
        return 0
    results = compile_all(shipped(options.arch, options.every), options.processes)
    print(*(field.name for kind in (Build, Usage) for field in fields(kind)), sep=",")
    for build, usage in results:
        print(*astuple(build), *astuple(usage), sep=",")
    bad = [build for build, usage in results if not fits(build, usage)]
    print(f"{len(results)} kernels, {len(bad)} that spill or do not fit", file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
