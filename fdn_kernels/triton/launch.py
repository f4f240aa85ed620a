"""Tiles, and how their kernels are started."""

from __future__ import annotations

import math
from dataclasses import dataclass

import triton
from torch import Tensor

from fdn_kernels.triton.backward import rows_kernel, weights_kernel
from fdn_kernels.triton.forward import forward_kernel
from fdn_kernels.triton.noise import noise_kernel
from fdn_kernels.triton.products import contract_kernel, correlate_kernel, product_kernel


@dataclass(frozen=True)
class Tile:
    """A program's warps and the sizes of its tile, by the kernel's names.

    Registers suffice (see :mod:`fdn_kernels.aot`).

    Raises:
        ValueError: for sizes that are no powers of two, or below 16 where products need 16.
    """

    warps: int
    sizes: dict[str, int]

    def __post_init__(self) -> None:
        sizes = self.sizes
        depths = [sizes.get(name, 16) for name in ("BM", "BN")] + ([sizes["BK"]] if "BM" in sizes else [])
        if "BB" in sizes and "BO" in sizes and "BK" not in sizes:
            depths += [sizes["BB"], sizes["BO"] * sizes["BI"]]
        if any(size & (size - 1) for size in sizes.values()) or min(depths) < 16:
            raise ValueError(
                f"a tile's sizes are powers of two, and its matrix products at least 16 deep and wide; given {sizes}"
            )

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]


# Four warps with 64 rows each share one asynchronous product of Hopper's: fewer rows would be computed several times.
TILES = {
    "forward": Tile(4, {"BB": 64, "BO": 2, "BI": 16}),  # examples, outputs, inputs
    "rows": Tile(4, {"BB": 64, "BO": 2, "BI": 16}),
    "weights": Tile(4, {"BB": 32, "BO": 4, "BI": 16}),
    # for hypernetworks wider than 32, or a sampled KL, which needs means too
    "wide forward": Tile(8, {"BB": 64, "BO": 1, "BI": 16}),
    "wide rows": Tile(8, {"BB": 16, "BO": 2, "BI": 16}),
    "wide weights": Tile(8, {"BB": 16, "BO": 2, "BI": 16}),
    "product": Tile(8, {"BM": 128, "BN": 64, "BK": 32}),
    "contract": Tile(4, {"BB": 64, "BK": 8, "BP": 16, "BQ": 1}),
    "correlate": Tile(4, {"BB": 32, "BK": 2, "BO": 8, "BI": 16}),
    "noise": Tile(4, {"BN": 512}),
}
KERNELS = {"forward": forward_kernel, "rows": rows_kernel, "weights": weights_kernel, "product": product_kernel,
           "contract": contract_kernel, "correlate": correlate_kernel, "noise": noise_kernel}  # fmt: skip
OPTIONS = {"num_stages": 1, "maxnreg": 255}  # with a limit of 255 ptxas does not spill to stay below 128
GRID_LIMIT = (1 << 16) - 1  # programs along the second and third axis
PROGRAMS = 528  # wanted at once: four for each of an H100's 132 multiprocessors


def launch(name: str, grid: tuple[int, int, int], **arguments) -> None:
    """Start the kernel of a tile."""
    tile = TILES[name]
    if math.prod(grid) > 0:
        KERNELS[name.removeprefix("wide ")][grid](**arguments, **tile.sizes, num_warps=tile.warps, **OPTIONS)


def splits(programs: int, most: int) -> int:
    """Into how many parts a program's walk is cut, to keep the device busy where there are few programs."""
    return max(1, min(PROGRAMS // max(1, programs), most, GRID_LIMIT))


def product(x: Tensor, w: Tensor, out: Tensor, precision: str, add: bool = False) -> Tensor:
    """out = x w (+ out) for (R, B, M, K) and (R, B, K, N), float32 and of any strides.

    A batch axis of 1 is one for all.
    """
    (replicates, batch, m, n), tile = out.shape, TILES["product"]
    strides = {
        f"{name}_{axis}": 0 if axis == "b" and t.shape[1] == 1 else step
        for name, axes, t in (("x", "rbmk", x), ("w", "rbkn", w), ("o", "rbmn", out))
        for axis, step in zip(axes, t.stride())
    }
    programs = triton.cdiv(m, tile["BM"]) * triton.cdiv(n, tile["BN"]) * batch
    launch(
        "product", (programs, 1, replicates), x=x, w=w, out=out, **strides, M=m, N=n, K=x.shape[3], ADD=add,
        PRECISION=precision,
    )  # fmt: skip
    return out
