"""Which number format each weight of a made-up model gets: one for all matrices, or a mix as llama.cpp's files have it.

The rules of the mixes are those of llama.cpp's quantizer (llama-quant.cpp) for the Llama family without an importance
matrix: the output matrix gets more bits, and some layers' values and down projections do.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from sporelm.bench.shapes import Shape
from sporelm.errors import RequestError
from sporelm.quant import F32, FORMATS, QuantFormat

# What llama.cpp stores instead where a row is not whole blocks of 256.
SMALLER_BLOCKS = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
OUTPUT = "Q6_K"
LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")


def eighths(layer: int, layers: int) -> bool:
    """The first eighth of the layers, the last, and every third between them."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


@dataclass(frozen=True)
class Mix:
    """`main` for most matrices, `better` for those values and down projections whose layer (of so many) is chosen."""

    main: str
    better: str
    values: Callable[[int, int], bool]
    down: Callable[[int, int], bool]

    def format_name(self, tensor: str, shape: Shape) -> str:
        """The format of a matrix, before its rows are looked at."""
        if tensor == "output.weight" or (shape.tied and tensor == "token_embd.weight"):
            return OUTPUT
        if found := LAYER.fullmatch(tensor):
            chosen = {"attn_v": self.values, "ffn_down": self.down}.get(found[2])
            if chosen and chosen(int(found[1]), shape.layers):
                return self.better
        return self.main


MIXES = {
    "q4_k_s": Mix("Q4_K", "Q5_K", lambda layer, layers: layer < 4, lambda layer, layers: layer < layers // 8),
    "q4_k_m": Mix("Q4_K", "Q6_K", eighths, eighths),
    "q5_k_s": Mix("Q5_K", "Q5_K", lambda layer, layers: False, lambda layer, layers: False),
    "q5_k_m": Mix("Q5_K", "Q6_K", eighths, eighths),
}


NOT_FOR_WEIGHTS = {"F64", "Q8_1", "Q8_K"}  # ggml multiplies no matrices of these

# `general.file_type`, as llama.cpp numbers its files (llama.h, llama_ftype); it calls a pure K-quant "small".
FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 7,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k": 11,
    "q4_k": 14,
    "q5_k": 16,
    "q6_k": 18,
    "iq4_nl": 25,
    "iq4_xs": 30,
    "bf16": 32,
    "tq1_0": 36,
    "tq2_0": 37,
    "mxfp4": 38,
    "nvfp4": 39,
    "q1_0": 40,
    "q2_0": 41,
    "q4_k_s": 14,
    "q4_k_m": 15,
    "q5_k_s": 16,
    "q5_k_m": 17,
}


def plain() -> list[str]:
    """The number formats that a model's weights can be rounded to, by their ids."""
    chosen = [form for form in FORMATS.values() if form.can_quantize and form.name not in NOT_FOR_WEIGHTS]
    return [form.name.lower() for form in sorted(chosen, key=lambda form: form.ggml_id)]


def known() -> list[str]:
    """The names that `formats` takes: the number formats by their ids, then the mixes."""
    return plain() + list(MIXES)


def formats(name: str, shape: Shape, label: str) -> dict[str, type[QuantFormat]]:
    """The format of every tensor of `shape` by its name: `name` (see `known`) for the matrices, F32 for vectors.

    Raises RequestError where a row is not whole blocks of the one format asked for; a mix takes smaller blocks there.
    """
    found: dict[str, type[QuantFormat]] = {}
    for tensor, extents in shape.tensors().items():
        mix = MIXES.get(name)
        wanted = FORMATS[mix.format_name(tensor, shape) if mix else name.upper()] if len(extents) == 2 else F32
        if extents[-1] % wanted.values:
            if mix is None:
                fits = [other for other in plain() if extents[-1] % FORMATS[other.upper()].values == 0]
                raise RequestError(
                    f"{label}: rows of {extents[-1]} values are not whole blocks of {name}'s {wanted.values}: "
                    f"take one of {', '.join(fits)}, or a mix such as q4_k_m, which has smaller blocks there"
                )
            wanted = FORMATS[SMALLER_BLOCKS[wanted.name]]
        found[tensor] = wanted
    return found
