"""The Triton kernels without a GPU: in the interpreter, and compiled ahead of time for sm_80 and sm_90."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux; without it the op runs in PyTorch")

CHECKS = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-x",
    "-o",
    "addopts=",
    "-p",
    "no:cacheprovider",
    str(Path(__file__).parent / "triton_checks.py"),
]


@pytest.mark.parametrize("which", ["not check", pytest.param("check", marks=pytest.mark.check)])
@pytest.mark.parametrize("conditioning", ["IC", "not IC"])
def test_kernels_in_the_interpreter_equal_the_reference(conditioning, which):
    """Long, for the interpreter goes through a program in Python; apart, for it is chosen before triton is imported."""
    command = [*CHECKS, "-k", conditioning, "-m", which]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, encoding="utf-8")
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:]


def test_kernels_on_a_gpu_equal_the_reference():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    assert subprocess.run(CHECKS, env=os.environ | {"TRITON_INTERPRET": "0"}).returncode == 0


def test_one_variant_of_every_tile_compiles_without_spills_and_fits():
    """Takes as long as a compiler does."""
    from fdn_kernels import aot

    builds = list({(build.kernel, build.form): build for build in reversed(list(aot.shipped()))}.values())
    assert {(build.kernel, build.form) for build in builds} == set(aot.TILES)
    results = aot.compile_all(builds, processes=1)
    assert not [(build, usage) for build, usage in results if not aot.fits(build, usage)]


@pytest.mark.check
def test_every_shipped_tile_compiles_without_spills_and_fits():
    """Takes as long as a compiler does."""
    from fdn_kernels import aot

    builds = list(aot.shipped())
    assert {(b.kernel, b.form, b.precision, b.arch) for b in builds} == {
        (*tile, precision, arch) for tile in aot.TILES for precision in aot.PRECISIONS for arch in aot.SHARED_MEMORY
    }
    results = aot.compile_all(builds, processes=os.cpu_count() or 1)
    assert not [(build, usage) for build, usage in results if not aot.fits(build, usage)]


class _Compiled:
    """A kernel that is bound and compiled as by a launch on an H100, but not started."""

    def __init__(self, function, seen: list) -> None:
        self.function, self.seen = function, seen
        self.arg_names = function.arg_names

    def __getitem__(self, grid):
        assert all(0 < n < limit for n, limit in zip(grid, (2**31, 2**16, 2**16), strict=True))
        return lambda **arguments: self.seen.append(self.function.warmup(grid=grid, **arguments))


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
@pytest.mark.parametrize(("noise", "kl", "given", "dtype"), [
    ("local", "analytic", False, "float32"), ("shared", "sampled", False, "bfloat16"), ("shared", "analytic", True, "float32"),
    ("moments", "none", False, "float32"),
])  # fmt: skip
def test_launches_bind_and_compile_as_on_a_gpu(conditioning, noise, kl, given, dtype, monkeypatch):
    """What neither the interpreter nor ahead-of-time compilation sees.

    The launch's own arguments and specialisation.
    """
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    from fdn_kernels import aot, triton_ops

    class H100:
        get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))
        get_current_device = staticmethod(lambda: 0)
        get_current_stream = staticmethod(lambda device=0: 0)
        get_active_torch_device = staticmethod(lambda: torch.device("cpu"))

    seen = []
    monkeypatch.setattr(driver, "_active", H100())
    monkeypatch.setattr(triton_ops, "KERNELS", {k: _Compiled(f, seen) for k, f in triton_ops.KERNELS.items()})
    draws, batch, d_in, h = 5, 7, 3, 17  # to 4 outputs
    shapes = (2, 1, batch, d_in), (2, draws if conditioning == "LP" else 1, batch, h), (2, 32, h), (2, 32)
    inputs = [torch.randn(shape, dtype=getattr(torch, dtype)) for shape in shapes]
    eps = torch.randn(2, draws, 1, 16, dtype=inputs[0].dtype) if given else None
    settings = (eps, torch.ones(2, dtype=torch.int64), draws, noise, kl, 1e-3, 1.0, 2**32 - 1, "tf32x3")
    outputs = triton_ops.linear(*inputs, *settings)
    triton_ops.linear_backward(*map(torch.zeros_like, outputs), *inputs, *settings, True, True)
    kernels = [kernel.src.fn.__name__ for kernel in seen]
    assert set(kernels) == {f"_{name}_kernel" for name in aot.KERNELS}
    assert kernels.count("_weights_kernel") == 2  # means and rhos
    for kernel in seen:  # one compiled kernel for all sizes and alignments: what is compiled ahead of time
        assert not any(kernel.src.attrs.values())
        integers = {
            name: kind for name, kind in kernel.src.signature.items() if name in triton_ops.STRIDES + triton_ops.SIZES
        }
        assert set(integers.values()) == {"i32"}


def test_a_spilling_tile_is_seen(monkeypatch):
    from fdn_kernels import aot

    build = aot.Build("weights", "LP sampled", "shared analytic rho")
    monkeypatch.setitem(
        aot.TILES, (build.kernel, build.form), replace(aot.TILES[build.kernel, build.form], BO=4, BI=32)
    )
    usage = aot.compile_one(build)
    assert usage.spills > 0 and not aot.fits(build, usage)
