"""Writes quant_goldens.npz: what ggml's own code makes of values and of blocks. Run it with a build of ggml:

    python tests/data/make_quant_goldens.py PATH_OF_LIBGGML_BASE

Of every block only a checksum is stored, of those made with importance one for all blocks of a case. The library must
be built for plain x86-64, as ggml's `ggml-base` is by default: where the compiler may fuse multiplications and
additions, a few blocks come out differently.
"""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from quant_inputs import CASES, IMPORTANCES, checksums, importance, patterns, values  # noqa: E402
from sporelm.quant import FORMATS, QuantFormat  # noqa: E402

NAMES = tuple(sorted(name for name, number_format in FORMATS.items() if number_format.values > 1))
NOT_READ = {"Q8_1"}  # by ggml; its product of rows reads it in place
NOT_IN_FILES = {"Q8_1", "Q8_K"}  # ggml writes these for its products only
ROWS = 32  # of 256 values, in every case
PATTERNS = 64  # blocks
WIDTH = 512  # of rows that are made with importance


def function_of(
    ggml: ctypes.CDLL, verb: str, number_format: type[QuantFormat], ending: str = ""
) -> Callable[..., None]:
    """ggml's function of a format that takes source, target and a number of values: "dequantize_row_q4_K"."""
    function = getattr(ggml, f"{verb}_{number_format.name.lower().replace('_k', '_K')}{ending}")
    function.restype = None
    return function


def quantized(
    ggml: ctypes.CDLL, number_format: type[QuantFormat], x: np.ndarray, columns: np.ndarray | None = None
) -> np.ndarray:
    """ggml's blocks of float32 values [rows, width], perhaps with the importance of columns: uint8 [n, nbytes]."""
    blocks = np.zeros((x.size // number_format.values, number_format.nbytes), np.uint8)
    source, target = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(blocks.ctypes.data)
    if number_format.name in NOT_IN_FILES:
        function_of(ggml, "quantize_row", number_format, "_ref")(source, target, ctypes.c_int64(x.size))
        return blocks
    ggml.ggml_quantize_init(number_format.ggml_id)
    rows, width = (ctypes.c_int64(number) for number in x.shape)
    given = None if columns is None else ctypes.c_void_p(columns.ctypes.data)
    written = ggml.ggml_quantize_chunk(number_format.ggml_id, source, target, ctypes.c_int64(0), rows, width, given)
    assert written == blocks.size, (number_format.name, written)
    return blocks


def dequantized(ggml: ctypes.CDLL, number_format: type[QuantFormat], blocks: np.ndarray) -> np.ndarray:
    """ggml's values of blocks: float32 [n, values]."""
    result = np.zeros((len(blocks), number_format.values), np.float32)
    source, target = ctypes.c_void_p(blocks.ctypes.data), ctypes.c_void_p(result.ctypes.data)
    function_of(ggml, "dequantize_row", number_format)(source, target, ctypes.c_int64(result.size))
    return result


def weighted(ggml: ctypes.CDLL, number_format: type[QuantFormat]) -> np.ndarray:
    """The checksum of ggml's blocks of each case and kind of importance: uint32 [cases, importances]."""
    found = []
    for case in CASES:
        x = values(case, ROWS).reshape(-1, WIDTH)
        made = [quantized(ggml, number_format, x, importance(kind, WIDTH)) for kind in IMPORTANCES]
        found.append(checksums(np.stack(made).reshape(len(made), -1)))
    return np.stack(found)


def main(library: str) -> None:
    ggml = ctypes.CDLL(library)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    goldens = {}
    for name in NAMES:
        number_format = FORMATS[name]
        blocks = patterns(name, number_format.nbytes, PATTERNS)
        if name not in NOT_READ:
            goldens[f"dequantize/{name}"] = checksums(dequantized(ggml, number_format, blocks))
        if number_format.can_quantize:
            made = [quantized(ggml, number_format, values(case, ROWS)).reshape(ROWS, -1) for case in CASES]
            goldens[f"quantize/{name}"] = np.stack([checksums(blocks) for blocks in made])
        if number_format.can_weigh:
            goldens[f"weighted/{name}"] = weighted(ggml, number_format)
    np.savez_compressed(HERE / "quant_goldens.npz", **goldens)


if __name__ == "__main__":
    main(sys.argv[1])
