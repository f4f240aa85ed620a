"""Another set of tiles: what tests compute with beside the shipped ones."""

from __future__ import annotations

from fdn_kernels.triton.launch import Tile

TILES = {
    "forward": Tile(4, {"BB": 32, "BO": 4, "BI": 16}),
    "rows": Tile(4, {"BB": 32, "BO": 4, "BI": 16}),
    "weights": Tile(4, {"BB": 64, "BO": 2, "BI": 16}),
    "product": Tile(4, {"BM": 32, "BN": 32, "BK": 16}),
    "contract": Tile(4, {"BB": 64, "BK": 4, "BP": 2, "BQ": 2}),
    "correlate": Tile(4, {"BB": 64, "BK": 2, "BO": 2, "BI": 16}),
}
