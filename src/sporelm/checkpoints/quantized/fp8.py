"""FP8: eight-bit floats with float scales, as DeepSeek, Qwen, FBGEMM, ModelOpt and vLLM's users publish them.

Source: the model cards of DeepSeek-V3 and Qwen3-FP8, and transformers' fine-grained FP8 layer. A weight [out, in] is

weight            F8_E4M3 or F8_E5M2 [out, in]
weight_scale_inv  float, one for each tile of `weight_block_size` (128x128); value = number * scale
weight_scale      float, one for all, or one for each output

Scales of activations (input_scale, activation_scale) are not read: activations are not quantized here.
"""

from collections.abc import Iterator

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.checkpoints.quantized.scaled_weights import Tile, assemble_scaled
from sporelm.errors import ModelFileError, UnsupportedModel

SCALES = ("_scale_inv", "_scale")
EIGHT_BITS = ("F8_E4M3", "F8_E5M2")
MAX_TILE = 1 << 20
# Scales of activations and of quantized KV caches: neither is quantized here.
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
        self.tile = read_tile(settings.values.get("weight_block_size"), settings.where)

    def weights(self) -> Iterator[AssembledWeight]:
        yield from find_fp8_weights(self.parts, self.tile)

    def find_unused(self) -> Iterator[tuple[str, str]]:
        yield from find_activation_scales(self.parts)


def find_fp8_weights(parts: Parts, tile: Tile | None) -> Iterator[AssembledWeight]:
    """Yield every matrix of eight-bit floats, with its scales if it has any."""
    for name, info in parts.files.tensors.items():
        if info.type_name in EIGHT_BITS and len(info.shape) == 2:
            found = [name + suffix for suffix in SCALES if name + suffix in parts]
            yield assemble_scaled(parts, name, found[0] if found else None, tile)


def find_activation_scales(parts: Parts) -> Iterator[tuple[str, str]]:
    """Yield the tensors of scales for quantized activations."""
    for name in parts.files.tensors:
        if name.endswith(ACTIVATIONS):
            yield (
                name,
                "scales of activations are ignored: activations are not quantized to eight bits",
            )


def read_tile(value: object, where: str) -> Tile | None:
    """Return weight_block_size, the rows and columns of a tile; None if it is absent. Raises ModelFileError."""
    if value is None:
        return None
    is_tile = isinstance(value, list) and len(value) == 2 and all(type(n) is int and 1 <= n <= MAX_TILE for n in value)
    if not isinstance(value, list) or not is_tile:
        raise ModelFileError(
            f"{where}: weight_block_size is {format_value(value)}; it must be two numbers, rows and columns"
        )
    return Tile(*value)
