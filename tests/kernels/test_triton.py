"""The Triton kernels without a GPU: in the interpreter, and compiled ahead of time for sm_80 and sm_90."""

from __future__ import annotations

import math
import os
import random
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


MODES = [("LP", "local"), ("LP", "shared"), ("IC", "shared"), ("IC", "local")]


@pytest.mark.check
def test_every_shipped_tile_compiles_without_spills_and_fits():
    """Takes as long as a compiler does."""
    from fdn_kernels import aot

    results = aot.compile_all(aot.shipped(), processes=os.cpu_count() or 1)
    assert {(kernel, arch) for kernel, _, arch, _ in results} == {
        (kernel, arch) for kernel in aot.KERNELS for arch in aot.SHARED_MEMORY
    }
    for precision in aot.PRECISIONS:
        assert {kernel for kernel, variant, *_ in results if precision in variant.split()} == {
            "forward",
            "rows",
            "weights",
            "product",
        }
    assert not [result for result in results if not aot.fits(*result[2:])]


@pytest.mark.check
def test_tiles_of_other_tests_compile_too(monkeypatch):
    """The interpreter takes tiles that a GPU refuses."""
    import other_tiles

    from fdn_kernels import aot
    from fdn_kernels.triton import launch

    for kernel, tile in other_tiles.TILES.items():
        monkeypatch.setitem(launch.TILES, kernel, tile)
    for conditioning, noise in (("LP", "local"), ("IC", "shared")):
        assert aot.compile_layer(aot.Layer(conditioning, noise, "analytic"), 90)


@pytest.mark.parametrize(
    "sizes", [{"BB": 8, "BO": 2, "BI": 16}, {"BB": 64, "BO": 1, "BI": 4}, {"BM": 64, "BN": 64, "BK": 8}, {"BN": 48}]
)
def test_tiles_that_a_gpu_refuses_are_refused(sizes):
    from fdn_kernels.triton import launch

    with pytest.raises(ValueError, match="at least 16"):
        launch.Tile(4, sizes)


@pytest.mark.parametrize(("conditioning", "noise"), MODES)
def test_one_compiled_kernel_serves_all_sizes(conditioning, noise):
    """Sizes are not compiled in (products are, by which of their strides are 1 or multiples of 16)."""
    from fdn_kernels import aot

    def compiled(**sizes):
        found = aot.launches(aot.Layer(conditioning, noise, "analytic", **sizes))
        assert all(
            0 < n < limit for launch in found for n, limit in zip(launch.grid, (2**31, 2**16, 2**16), strict=True)
        )
        return {(x.kernel, aot.compile_launch(x, 90).hash) for x in found if x.kernel not in ("product", "contract")}

    first = compiled()
    assert first and first == compiled(draws=5, examples=77, d_in=3, d_out=1, h=9) == compiled(
        draws=1 + (conditioning == "IC"), d_in=40, d_out=2
    )


@pytest.mark.parametrize(("sizes", "noise"), [
    ({"d_in": 4096, "d_out": 4096, "h": 64}, "local"), ({"d_in": 8192, "d_out": 8192}, "shared"),
    ({"d_in": 3, "d_out": 5}, "shared"),
    pytest.param({"examples": 600_000, "d_in": 256, "d_out": 256, "draws": 2}, "local", marks=pytest.mark.check),
    ({"draws": 100_000, "d_in": 3}, "shared"),
])  # fmt: skip
@pytest.mark.parametrize("conditioning", ["IC", "LP"])
def test_large_calls_are_split_into_launches_whose_offsets_fit(conditioning, sizes, noise):
    """Recorded on tensors without memory. Offsets between tiles, and all of products, have 64 bits.

    Those within a tile 32.
    """
    from fdn_kernels import aot

    for launch in aot.launches(aot.Layer(conditioning, noise, "analytic", **sizes)):
        assert all(0 < n < limit for n, limit in zip(launch.grid, (2**31, 2**16, 2**16), strict=True)), launch.kernel
        n = launch.arguments
        if launch.kernel in ("forward", "rows", "weights"):
            assert max(n["BO"] * n["DI"] * n["BH"], n["BB"] * max(n["DI"], n["DO"])) < 2**31


@pytest.mark.parametrize("conditioning", ["IC", "LP"])
def test_offsets_of_32_bits_fit_in_calls_of_any_size(conditioning):
    """Recorded on tensors without memory."""
    from fdn_kernels import aot

    numbers = random.Random(0)
    for _ in range(40):
        noise = numbers.choice(["local", "shared", "independent", "moments"])
        kl = "sampled" if noise == "independent" else "analytic"
        limits = {"draws": 9, "examples": 19, "d_in": 12, "d_out": 12, "h": 7}  # powers of two
        sizes = {name: int(2 ** numbers.uniform(0, limit)) for name, limit in limits.items()}
        if math.prod(sizes.values()) / sizes["d_out"] > 2**32:  # as many launches as would take long to record
            continue
        for launch in aot.launches(aot.Layer(conditioning, noise, kl, **sizes)):
            assert all(0 < n < limit for n, limit in zip(launch.grid, (2**31, 2**16, 2**16), strict=True)), launch
            n = launch.arguments
            largest = {
                "product": lambda: max(n["M"], n["N"], n["K"]),
                "noise": lambda: n["examples"] * (n["d_out"] if n["LOCAL"] else n["DO"] * n["DI"]),
                "contract": lambda: n["P"] * n["Q"],
                "correlate": lambda: n["DO"] * n["DI"],
            }.get(launch.kernel, lambda: max(n["BO"] * n["DI"] * n["BH"], n["BB"] * max(n["DI"], n["DO"]),
                                             n["BH"] * n["examples"]))()  # fmt: skip
            assert largest < 2**31, launch


@pytest.mark.check
@pytest.mark.parametrize("arch", [80, 90, 100, 120])
def test_the_widest_hypernetworks_compile_without_spills_and_fit(arch):
    """Takes as long as a compiler does. On sm_100 one kernel (IC, local) spills 9 instructions: slower, not wrong."""
    from fdn_kernels import aot, backends

    for kl, widest in backends.TRITON_WIDTH.items():
        for conditioning, noise in MODES if kl != "sampled" else (("LP", "shared"), ("LP", "independent")):
            results = aot.compile_layer(aot.Layer(conditioning, noise, kl, h=widest), arch)
            few = 16 if arch == 100 else 0
            uses = [replace(use, spills=0) if use.spills <= few else use for *_, use in results]
            assert not [use for use in uses if not aot.fits(arch, use)]


def test_a_layer_too_large_to_count_is_refused():
    from fdn_kernels import aot

    with pytest.raises(ValueError, match="split the outputs"):
        aot.launches(aot.Layer("LP", "local", "none", d_in=50_000, d_out=50_000))


def test_a_spilling_tile_is_seen(monkeypatch):
    from fdn_kernels import aot
    from fdn_kernels.triton import launch

    monkeypatch.setitem(launch.TILES, "weights", launch.Tile(4, {"BB": 64, "BO": 8, "BI": 16}))
    results = aot.compile_layer(aot.Layer("LP", "shared", "analytic"), 90)
    assert ["weights"] == [kernel for kernel, _, arch, usage in results if not aot.fits(arch, usage)]


def test_static_count_follows_loops_within_loops():
    """A hand-written listing.

    2 + 3 (2 + 5 * 3) instructions, one special function and one product in the inner loop.
    """
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
    found = aot.count(code, (3, 5))
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
        while n > 0:  # of unknown length, so that it is not unrolled
            total += tl.load(x + n)
            n = n // 3
        tl.store(x, total)

    source = ASTSource(add_up, {"x": "*fp32", "n": "i32"}, {}, {})
    _, code = aot.inspect(triton.compile(source, target=GPUTarget("cuda", 90, 32)))
    counts = [aot.count(code, [trips]).issued for trips in (0, 1, 2)]
    assert 3 <= counts[1] - counts[0] == counts[2] - counts[1] <= 400


def test_the_default_type_of_the_caller_reaches_no_kernel():
    import torch

    from fdn_kernels import aot

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert aot.compile_layer(aot.Layer("LP", "local", "analytic"), 90)
    finally:
        torch.set_default_dtype(before)
