"""Writes quant_goldens.npz: what ggml's own code makes of values and of blocks. Run it with a build of ggml:

    python tests/data/make_quant_goldens.py PATH_OF_LIBGGML_BASE

Of every block only a checksum is stored. The library must be built for plain x86-64, as ggml's `ggml-base` is by
default: where the compiler may fuse multiplications and additions, a few blocks come out differently.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "src")]

from quant_inputs import CASES, checksums, patterns, values  # noqa: E402
from sporelm.quant import FORMATS, QuantFormat  # noqa: E402

NAMES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
ROWS = 48  # of 256 values, in every case
PATTERNS = 64  # blocks


def quantized(ggml: ctypes.CDLL, number_format: type[QuantFormat], x: np.ndarray) -> np.ndarray:
    """ggml's blocks of float32 values, without an importance matrix: uint8 [n, nbytes]."""
    blocks = np.zeros((x.size // number_format.values, number_format.nbytes), np.uint8)
    ggml.ggml_quantize_init(number_format.ggml_id)
    source, target = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(blocks.ctypes.data)
    rows, width = (ctypes.c_int64(number) for number in x.shape)
    written = ggml.ggml_quantize_chunk(number_format.ggml_id, source, target, ctypes.c_int64(0), rows, width, None)
    assert written == blocks.size, (number_format.name, written)
    return blocks


def dequantized(ggml: ctypes.CDLL, number_format: type[QuantFormat], blocks: np.ndarray) -> np.ndarray:
    """ggml's values of blocks: float32 [n, values]."""
    result = np.zeros((len(blocks), number_format.values), np.float32)
    function = getattr(ggml, f"dequantize_row_{number_format.name.replace('Q', 'q')}")
    function.restype = None
    source, target = ctypes.c_void_p(blocks.ctypes.data), ctypes.c_void_p(result.ctypes.data)
    function(source, target, ctypes.c_int64(result.size))
    return result


def main(library: str) -> None:
    ggml = ctypes.CDLL(library)
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    goldens = {}
    for name in NAMES:
        number_format = FORMATS[name]
        blocks = patterns(name, number_format.nbytes, PATTERNS)
        goldens[f"dequantize/{name}"] = checksums(dequantized(ggml, number_format, blocks))
        for case in CASES:
            made = quantized(ggml, number_format, values(case, ROWS))
            goldens[f"quantize/{name}/{case}"] = checksums(made.reshape(ROWS, -1))
    np.savez_compressed(HERE / "quant_goldens.npz", **goldens)


if __name__ == "__main__":
    main(sys.argv[1])
