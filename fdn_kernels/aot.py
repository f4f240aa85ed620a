"""Ahead-of-time compilation of every shipped tile: registers, spills, shared memory and instructions, without a GPU.

``python -m fdn_kernels.aot`` prints the table and exits with 1 where a kernel spills or needs more memory than the
architecture has. With ``--cost`` it counts the instructions of the benchmark's largest layers, and exits with 1 where
one takes longer than its target or a kernel spills. It must run outside Triton's interpreter.

The count is static: what a launch executes is known from the machine code's loops (backward branches) and the launch's
arguments. From it follows a time below which an H100 cannot stay, the *floor*: that of the busiest of the instruction
schedulers (an instruction of a warp per cycle), the special function units (a warp's in 8 cycles) and the tensor cores.
Real times are about twice a floor, since nobody waits here: for memory, barriers, or other warps.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from fdn_kernels.ops import PRECISIONS
from fdn_kernels.triton import launch as launcher
from fdn_kernels.triton import layer as op
from fdn_kernels.triton.launch import KERNELS

# Bytes a block may have (CUDA programming guide, compute capabilities): A100, H100, B200, RTX 50
SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
TENSOR_MEMORY = 512  # columns a block may have, on sm_100
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


# -- launches, recorded ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A call of the op, one replicate; its dtype plays no part, since kernels see float32."""

    conditioning: str  # "IC" or "LP"
    noise: str
    kl: str
    precision: str = PRECISIONS[0]
    draws: int = 8
    examples: int = 64
    d_in: int = 20
    d_out: int = 24
    h: int = 16


@dataclass(frozen=True)
class Launch:
    """One launch: what would be handed to Triton."""

    kernel: str
    backward: bool
    grid: tuple[int, int, int]
    arguments: dict

    @property
    def variant(self) -> str:
        """The arguments that are compiled in, but for the tile's."""
        names = ("NOISE", "KL", "LP", "BH", "LOCAL", "ADD", "PRECISION")
        values = {name: self.arguments[name] for name in names if name in self.arguments}
        texts = {
            "LP": "LP" if values.get("LP") else "IC",
            "BH": f"h{values.get('BH')}",
            "LOCAL": "local" if values.get("LOCAL") else "shared",
        }
        return " ".join(
            str(texts.get(name, value)) for name, value in values.items() if value is not False or name in texts
        )


class Traffic(TorchDispatchMode):
    """Adds up the bytes that PyTorch's own operations read and write; expanded axes are read once."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.name()
        if not function.is_view and "empty" not in name and "detach" not in name:
            tensors = [*tree_leaves((args, kwargs)), *tree_leaves(result)]
            if result is not None and any(result is x for x in args):  # in place: it is among the arguments already
                tensors.append(result)
            for t in tensors:
                if isinstance(t, torch.Tensor):
                    self.bytes += t.itemsize * math.prod(n for n, step in zip(t.shape, t.stride()) if step)
        return result


def launches(layer: Layer, traffic: Traffic | None = None) -> list[Launch]:
    """Those of a forward and a backward, recorded on tensors without memory.

    ``traffic`` counts what PyTorch does between them.
    """
    seen, backward = [], False

    class Recorder:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, grid):
            return lambda **arguments: seen.append(Launch(self.name, backward, grid, arguments))

    draws, examples, h, n = layer.draws, layer.examples, layer.h, 2 * layer.d_out * (layer.d_in + 1)
    z_draws = draws if layer.conditioning == "LP" else 1
    shapes = (1, draws, examples, layer.d_in), (1, z_draws, examples, h), (1, n, h), (1, n)
    inputs = [torch.empty(shape, dtype=torch.float32, device="meta") for shape in shapes]
    seed = torch.empty(1, dtype=torch.int64, device="meta")
    settings = None, seed, draws, layer.noise, layer.kl, 1e-3, 1.0, 0, layer.precision
    kept, launcher.KERNELS = launcher.KERNELS, {name: Recorder(name) for name in KERNELS}
    try:
        with traffic or nullcontext():
            outputs = op.linear(*inputs, *settings, keep_variance=layer.noise == "local")
            backward = True
            variance = {"variance": outputs[1]} if layer.noise == "local" else {}
            op.linear_backward(*map(torch.empty_like, outputs), *inputs, *settings, True, True, **variance)
    finally:
        launcher.KERNELS = kept
    return seen


# -- compilation -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Usage:
    """What a compiled kernel needs: registers and spills per thread, shared and tensor memory per block."""

    registers: int
    spills: int
    shared_bytes: int
    tensor_columns: int = 0


def fits(arch: int, usage: Usage) -> bool:
    """Whether nothing spills and the memory suffices."""
    enough = usage.shared_bytes <= SHARED_MEMORY[arch] and usage.tensor_columns <= TENSOR_MEMORY
    return usage.spills == 0 and enough


@contextmanager
def pretended_gpu(arch: int) -> Iterator[None]:
    """Triton binds and compiles as on a GPU of this architecture."""

    class Driver:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", arch, 32))
        get_current_device = staticmethod(lambda: arch)  # compiled kernels are kept per device
        get_current_stream = staticmethod(lambda device=0: 0)
        get_active_torch_device = staticmethod(lambda: torch.device("cpu"))

    before, driver._active = driver._active, Driver()
    try:
        yield
    finally:
        driver._active = before


def compile_launch(launch: Launch, arch: int):
    """The kernel that this launch would start."""
    with pretended_gpu(arch):
        return KERNELS[launch.kernel].warmup(grid=launch.grid, **launch.arguments)


@functools.lru_cache(maxsize=64)  # layers share kernels
def inspect(compiled) -> tuple[Usage, str]:
    """What a compiled kernel needs, and its machine code as ``nvdisasm -c`` writes it."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run([TOOLS / tool, flag, file.name], capture_output=True, encoding="utf-8", check=True)
            for tool, flag in (("cuobjdump", "-res-usage"), ("nvdisasm", "-c"))
        )
    registers, code = int(re.search(r"REG:(\d+)", usage.stdout + usage.stderr)[1]), code.stdout
    spills = len(re.findall(r"\b(?:LDL|STL)\b", code))
    return Usage(registers, spills, compiled.metadata.shared, getattr(compiled.metadata, "tmem_size", None) or 0), code


def shipped(every: bool = False) -> list[Layer]:
    """Layers that launch every tile in every precision, in its heaviest variants.

    ``every`` gives all variants and widths.
    """
    noises = {"local": ("analytic", "none"), "moments": ("analytic", "none"), "none": ("analytic", "none"),
              "shared": ("analytic", "sampled", "none"), "independent": ("sampled", "analytic", "none")}  # fmt: skip
    pairs = [(noise, kl) for noise, kls in noises.items() for kl in kls]
    heavy = [("local", "analytic"), ("shared", "analytic"), ("independent", "sampled")]
    found = itertools.product(("LP", "IC"), pairs if every else heavy, PRECISIONS, (16, 32, 64) if every else (16,))
    if not every:
        found = [*found, *(("LP", pair, PRECISIONS[0], h) for pair in heavy for h in (32, 64))]
    return [Layer(conditioning, *pair, precision, h=h) for conditioning, pair, precision, h in found
            if conditioning == "LP" or pair[0] != "independent" and pair[1] != "sampled"]  # fmt: skip


def compile_layer(layer: Layer, arch: int) -> list[tuple[str, str, int, Usage]]:
    """Kernel, variant, architecture and needs of all that a layer launches."""
    found = ((launch, inspect(compile_launch(launch, arch))[0]) for launch in launches(layer))
    return list(dict.fromkeys((launch.kernel, launch.variant, arch, usage) for launch, usage in found))


def compile_all(
    layers: Iterable[Layer], archs: Iterable[int] = tuple(SHARED_MEMORY), processes: int = 1
) -> list[tuple[str, str, int, Usage]]:
    """Compile what layers launch, each kernel once."""
    work = list(zip(*itertools.product(layers, archs)))
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) if processes > 1 else nullcontext() as pool:
        results = pool.map(compile_layer, *work, chunksize=2) if pool else map(compile_layer, *work)
        return list(dict.fromkeys(itertools.chain.from_iterable(results)))


# -- instructions ------------------------------------------------------------------------------------------------------

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


def count(code: str, trips: Sequence[float]) -> Count:
    """What one warp executes of a machine code, every branch that is no loop taken.

    ``trips`` says how often each loop runs whenever it is entered; loops are in the order of their first instruction.

    Raises:
        ValueError: if the machine code has another number of loops.
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
    if len(loops) != len(trips):
        raise ValueError(f"the machine code has {len(loops)} loops, and {len(trips)} trip counts are given")
    total = Count()
    for n, text in enumerate(instructions):
        runs = math.prod(t for (first, last), t in zip(loops, trips) if first <= n <= last)
        shape = re.search(r"\bHG?MMA\.(?:64x(\d+)x(\d+)|(16)8(\d))", text)  # 64 rows of four warps; 16 rows, 8 columns
        tensor = 0.0
        if shape:
            columns, depth = (int(shape[1]), int(shape[2])) if shape[1] else (8, int(shape[4]))
            tensor = 16 * columns * depth / TENSOR_FMAS
        total += Count(1, SPECIAL_CYCLES * ("MUFU" in text), tensor) * runs
    return total


def loop_trips(launch: Launch) -> tuple[float, ...]:
    """How often each loop of a launch's programs runs when it is entered, on average."""
    n, splits = launch.arguments, launch.grid[1]
    trips = {
        "forward": lambda: (n["DO"] / n["BO"] / splits, n["DI"] / n["BI"]),
        "rows": lambda: (n["DI"] / n["BI"] / splits, n["DO"] / n["BO"]),
        "weights": lambda: (n["draws"] * n["examples"] / n["BB"] / splits,),
        "product": lambda: (math.ceil(n["K"] / n["BK"]),),
        "contract": lambda: (n["Q"] / n["BQ"],),
        "correlate": lambda: (math.ceil(n["draws"] / n["BK"]),),
        "noise": tuple,
    }
    return trips[launch.kernel]()


def costs(layer: Layer, arch: int = 90) -> dict[str, tuple[Usage, int, int, Count]]:
    """For each kernel, forward and backward.

    What it needs, warps of a program, launches, and what all of these execute.
    """
    found, counted = {}, functools.cache(count)
    for launch in launches(layer):
        usage, code = inspect(compile_launch(launch, arch))
        warps = launch.arguments["num_warps"]
        each = counted(code, loop_trips(launch)) * (math.prod(launch.grid) * warps)
        name = f"{'backward' if launch.backward else 'forward'}: {launch.kernel}"
        before = found.get(name, (usage, warps, 0, Count()))
        found[name] = max(usage, before[0], key=astuple), warps, before[2] + 1, before[3] + each
    return found


# The benchmark's largest layers, and milliseconds that their floors may sum up to, forward and backward
TARGETS = {("LP", "local"): 40.0, ("LP", "shared"): 50.0, ("IC", "shared"): 4.0, ("IC", "local"): 2.0}
LARGEST = {mode: Layer(*mode, "analytic", draws=100, examples=1024, d_in=256, d_out=256) for mode in TARGETS}


def total_floor_ms(found: dict[str, tuple[Usage, int, int, Count]]) -> float:
    """Of kernels that run one after another, as :func:`costs` gives them."""
    return sum(count.floor_ms for *_, count in found.values())


def occupancy(usage: Usage, warps: int) -> int:
    """Warps that an H100's multiprocessor holds at a time, by registers, shared memory and their own number."""
    registers = 32 * warps * 8 * math.ceil(usage.registers / 8)
    return warps * min(65536 // registers, 233472 // (usage.shared_bytes + 1024), 64 // warps)


def print_costs() -> bool:
    """What each kernel of the largest layers executes, needs and takes, and their sums beside bound and target.

    Whether every sum is within its target and nothing spills. The bound is that of :mod:`fdn_kernels.rivals`.
    """
    from fdn_kernels.rivals import Case, Peaks, bound_ms

    one, good = LARGEST["LP", "local"], True
    weights = one.draws * one.examples * one.d_out * (one.d_in + 1)
    print(f"Static count for an H100: d {one.d_in}, h {one.h}, B {one.examples}, K {one.draws}, {one.precision}\n")
    columns = f"{'launches':>9}{'registers':>10}{'spills':>7}{'warps/SM':>9}{'instructions':>13}"
    print(f"{'':29}{columns}   floor ms: issue, special, tensor")
    for (conditioning, noise), layer in LARGEST.items():
        found, traffic = costs(layer), Traffic()
        for name, (usage, warps, times, each) in found.items():
            floors = "".join(f"{1e3 * cycles / SCHEDULERS:7.2f}" for cycles in astuple(each))
            print(
                f"{f'{conditioning} {noise} {name}':29}{times:9}{usage.registers:10}{usage.spills:7}"
                f"{occupancy(usage, warps):9}{32 * each.issued / weights:13.2f}   {floors}"
            )
            good &= usage.spills == 0
        launches(layer, traffic)
        case = Case("", conditioning, noise, 1, layer.draws, layer.examples, layer.d_in, layer.d_out, layer.h)
        bound = bound_ms(case, "forward+backward", Peaks())
        total, target = total_floor_ms(found), TARGETS[conditioning, noise]
        between = 1e3 * traffic.bytes / Peaks().bandwidth
        print(
            f"{conditioning} {noise}: {total:.1f} ms, target {target:g} ms, bound {bound:.2f} ms; beside them PyTorch "
            f"moves {traffic.bytes / 1e9:.1f} GB, {between:.1f} ms at the memory's peak\n"
        )
        good &= total <= target
    return good


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fdn_kernels.aot", description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", type=int, nargs="*", default=list(SHARED_MEMORY), choices=list(SHARED_MEMORY))
    parser.add_argument("--every", action="store_true", help="all variants and widths too (some ten minutes)")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cost", action="store_true", help="count instructions instead")
    options = parser.parse_args(arguments)
    if options.cost:
        return int(not print_costs())
    results = compile_all(shipped(options.every), options.arch, options.processes)
    print("kernel", "variant", "arch", *(field.name for field in fields(Usage)), sep=",")
    for kernel, variant, arch, usage in results:
        print(kernel, variant, arch, *astuple(usage), sep=",")
    bad = [result for result in results if not fits(*result[2:])]
    print(f"{len(results)} kernels, {len(bad)} that spill or do not fit", file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
