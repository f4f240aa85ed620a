"""The Triton kernels without a GPU: in the interpreter, and compiled ahead of time for sm_80 and sm_90."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is for Linux; without it the op runs in PyTorch")

CHECKS = [sys.executable, "-m", "pytest", "-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", str(Path(__file__).parent / "triton_checks.py")]


def test_kernels_in_the_interpreter_equal_the_reference():
    """In processes of their own: the variable must be set before triton is imported."""
    command = [*CHECKS, "-k"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    halves = [subprocess.Popen([*command, half], env=environment, **options) for half in ("IC", "not IC")]
    for half in halves:
        output, _ = half.communicate()
        assert half.returncode == 0 and " passed" in output, output[-8000:]


def test_kernels_on_a_gpu_equal_the_reference():
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    assert subprocess.run(CHECKS, env=os.environ | {"TRITON_INTERPRET": "0"}).returncode == 0


def test_every_shipped_tile_compiles_without_spills_and_fits():
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
    """What neither the interpreter nor ahead-of-time compilation sees: the launch's own arguments and specialisation."""
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
        integers = {name: kind for name, kind in kernel.src.signature.items() if name in triton_ops.STRIDES + triton_ops.SIZES}
        assert set(integers.values()) == {"i32"}


def test_a_spilling_tile_is_seen(monkeypatch):
    from fdn_kernels import aot

    build = aot.Build("weights", "LP sampled", "shared analytic rho")
    monkeypatch.setitem(aot.TILES, (build.kernel, build.form), replace(aot.TILES[build.kernel, build.form], BO=4, BI=32))
    usage = aot.compile_one(build)
    assert usage.spills > 0 and not aot.fits(build, usage)


def test_static_count_follows_loops_within_loops():
    """A hand-written listing: 2 + 3 (2 + 5 * 3) instructions, one special function and one product in the inner loop."""
    from fdn_kernels import aot

    code = """
        /*0000*/ MOV R1, c[0x0][0x28] ;
    .L_x_1:
        /*0010*/ IADD3 R2, R2, 0x1, RZ ;
    .L_x_0:
        /*0020*/ MUFU.EX2 R3, R3 ;
        /*0030*/ HMMA.1688.F32.TF32 R4, R8, R10, R4 ;
        /*0040*/ @P0 BRA `(.L_x_0) ;
        /*0050*/ @P1 BRA `(.L_x_1) ;
    .L_x_2:
        /*0060*/ BRA `(.L_x_2) ;
    """
    found = aot.count(code, lambda loops: (3, 5)[:loops])
    assert found == aot.Count(issued=2 + 3 * (2 + 5 * 3), special=8 * 15, tensor=4 * 15)


def test_static_count_of_a_compiled_loop_grows_by_its_body():
    """A kernel whose loop adds one number per round: the count is linear in the trip count, with a small slope."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from fdn_kernels import aot

    @triton.jit
    def add_up(x, n):
        total = 0.0
        for i in range(0, n):
            total += tl.load(x + i * i)
        tl.store(x, total)

    source = ASTSource(add_up, {"x": "*fp32", "n": "i32"}, {}, {})
    _, code = aot.inspect(triton.compile(source, target=GPUTarget("cuda", 90, 32)))
    counts = [aot.count(code, lambda loops: [trips] * loops).issued for trips in (0, 1, 2)]
    assert 3 <= counts[1] - counts[0] == counts[2] - counts[1] <= 400
