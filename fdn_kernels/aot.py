"""Ahead-of-time compilation of every shipped tile: registers, spills and shared memory, without a GPU.

``python -m fdn_kernels.aot`` prints the table and exits with 1 where a kernel spills or needs more shared memory than
the architecture has. It must run outside Triton's interpreter.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple, dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fdn_kernels.ops import PRECISIONS
from fdn_kernels.triton_ops import KERNELS, OPTIONS, TILES

SHARED_MEMORY = {
    80: 163 * 1024,
    90: 227 * 1024,
}  # bytes a block may have (CUDA programming guide, compute capabilities)
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


def compile_one(build: Build) -> Usage:
    """Compile one kernel as :mod:`fdn_kernels.triton_ops` launches it, and read the machine code."""
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
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "-res-usage", file.name], capture_output=True, encoding="utf-8", check=True
        )
        code = subprocess.run([TOOLS / "nvdisasm", "-c", file.name], capture_output=True, encoding="utf-8", check=True)
    registers = int(re.search(r"REG:(\d+)", usage.stdout + usage.stderr)[1])
    return Usage(registers, len(re.findall(r"\b(?:LDL|STL)\b", code.stdout)), compiled.metadata.shared)


def compile_all(builds: Iterable[Build], processes: int = 1) -> list[tuple[Build, Usage]]:
    """Compile many, in their order."""
    builds = list(builds)
    if processes == 1:
        return [(build, compile_one(build)) for build in builds]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return list(zip(builds, pool.map(compile_one, builds, chunksize=4)))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fdn_kernels.aot", description=__doc__.split("\n\n")[0])
    parser.add_argument("--arch", type=int, nargs="*", default=list(SHARED_MEMORY), choices=list(SHARED_MEMORY))
    parser.add_argument("--every", action="store_true", help="all variants too (a quarter of an hour)")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(arguments)
    results = compile_all(shipped(options.arch, options.every), options.processes)
    print(*(field.name for kind in (Build, Usage) for field in fields(kind)), sep=",")
    for build, usage in results:
        print(*astuple(build), *astuple(usage), sep=",")
    bad = [build for build, usage in results if not fits(build, usage)]
    print(f"{len(results)} kernels, {len(bad)} that spill or do not fit", file=sys.stderr)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
