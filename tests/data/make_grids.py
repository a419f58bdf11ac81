"""Writes src/sporelm/quant/grids.npz: the code books of the IQ formats, from the tables in the gguf package.

    python tests/data/make_grids.py

The tables are llama.cpp's (MIT licence); the package is part of that project.
"""

from pathlib import Path

import gguf.quants
import numpy as np

TARGET = Path(__file__).resolve().parents[2] / "src" / "sporelm" / "quant" / "grids.npz"
SOURCES = {"IQ1": "IQ1_S"} | {name: name for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")}


def main() -> None:
    tables = {}
    for name, source in SOURCES.items():
        kind = getattr(gguf.quants, source)
        kind.init_grid()
        tables[name] = kind.grid.reshape(kind.grid_shape).astype(np.int8)
    np.savez_compressed(TARGET, **tables)


if __name__ == "__main__":
    main()
