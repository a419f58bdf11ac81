"""FP8: eight-bit floats with float scales, as DeepSeek, Qwen, FBGEMM, ModelOpt and vLLM's users publish them.

Source: the model cards of DeepSeek-V3 and Qwen3-FP8, and transformers' fine-grained FP8 layer. A weight [out, in] is

weight            F8_E4M3 or F8_E5M2 [out, in]
weight_scale_inv  float, one for each tile of `weight_block_size` (128x128); the number is multiplied by it
weight_scale      float, one for all, or one for each output

Scales of activations (input_scale, activation_scale) are not needed: activations stay floats here.
"""

from collections.abc import Iterator

from sporelm.checkpoints.config_values import ConfigValues, shown
from sporelm.checkpoints.quantized.assembled import Assembled
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.checkpoints.quantized.scaled import Tile, scaled
from sporelm.errors import ModelFileError, UnsupportedModel

SCALES = ("_scale_inv", "_scale")
EIGHT_BITS = ("F8_E4M3", "F8_E5M2")
LARGEST_TILE = 1 << 20
# Scales of activations and of quantized caches: both stay floats here.
ACTIVATIONS = (
    ".input_scale", ".activation_scale", ".act_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale",
    ".input_scale_ub", ".input_global_scale", ".input_zero_point",
)  # fmt: skip


class Fp8:
    """A folder whose quantization_config says "fp8", "fbgemm_fp8" or "modelopt"."""

    def __init__(self, parts: Parts, settings: ConfigValues) -> None:
        self.parts = parts
        algorithm = settings.text("quant_algo", "FP8")  # ModelOpt's
        if not algorithm.upper().startswith("FP8"):
            raise UnsupportedModel(f"{settings.where}: quant_algo {algorithm!r} is not supported; FP8 is")
        self.tile = tile_of(settings.values.get("weight_block_size"), settings.where)

    def weights(self) -> Iterator[Assembled]:
        yield from floats_of_eight_bits(self.parts, self.tile)

    def unused(self) -> Iterator[tuple[str, str]]:
        yield from activation_scales(self.parts)


def floats_of_eight_bits(parts: Parts, tile: Tile | None) -> Iterator[Assembled]:
    """Every matrix of eight-bit floats, with its scales if it has any."""
    for name, info in parts.files.tensors.items():
        if info.type_name in EIGHT_BITS and len(info.shape) == 2:
            found = [name + suffix for suffix in SCALES if name + suffix in parts]
            yield scaled(parts, name, found[0] if found else None, tile)


def activation_scales(parts: Parts) -> Iterator[tuple[str, str]]:
    """What says how activations are to be rounded."""
    for name in parts.files.tensors:
        if name.endswith(ACTIVATIONS):
            yield (
                name,
                "scales of activations are left out: no activation is rounded to eight bits by them",
            )


def tile_of(value: object, where: str) -> Tile | None:
    """weight_block_size: rows and columns of a tile, absent for other scales. Raises ModelFileError."""
    if value is None:
        return None
    good = isinstance(value, list) and len(value) == 2 and all(type(n) is int and 1 <= n <= LARGEST_TILE for n in value)
    if not isinstance(value, list) or not good:
        raise ModelFileError(f"{where}: weight_block_size is {shown(value)}; it must be two numbers, rows and columns")
    return Tile(*value)
