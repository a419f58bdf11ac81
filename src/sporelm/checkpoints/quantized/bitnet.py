"""BitNet's ternary weights: -1, 0 and 1 with one scale for a matrix, stored packed or rounded from floats on opening.

Source: transformers' integrations/bitnet.py; Ma et al. 2024. A weight [out, in] is one of

packed   weight uint8 [out / 4, in], weight_scale float [1]: row i * out / 4 + r is bit pair i of row r, the lowest
         first, less one. It is multiplied by the scale in modules of the class "autobitlinear", divided by it in others
online   weight float [out, in]: round(value / mean), clipped to -1 to 1, times the mean of magnitudes

The original rounds each input row to int8 with one scale; here inputs are rounded as for the resulting number format.
"""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.quantized.assembled_weight import CHUNK_VALUES, AssembledWeight
from sporelm.checkpoints.quantized.groups import WIDENED, assign_groups, cut_blocks
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.errors import UnsupportedModel
from sporelm.files.tensor_messages import quote
from sporelm.quant import F32, TQ2_0, QuantFormat, format_of
from sporelm.quant.packing import join_bit_pairs, to_halves

VALUES_PER_BYTE = 4  # packed numbers
MIN_MEAN = np.float32(1e-5)
MATRICES, TABLES = "_proj.weight", ("embed_tokens.weight", "lm_head.weight")
OPTIONS = {"linear_class": ("bitlinear", "autobitlinear"), "quantization_mode": ("offline", "online")}
ROUNDED = "their inputs are rounded to int8 in blocks of columns, not by whole rows"

Numbers = Callable[[int, int], NDArray[np.uint8]]  # of rows start to stop - 1, plus one


class BitNet:
    """A folder whose quantization_config says "bitnet"."""

    def __init__(self, parts: Parts, settings: ConfigValues) -> None:
        self.parts = parts
        options = {key: settings.text(key, known[0]) for key, known in OPTIONS.items()}
        for key, known in OPTIONS.items():
            if options[key] not in known:
                what = f"{key} {quote(options[key])} is not supported; {' and '.join(known)} are"
                raise UnsupportedModel(f"{settings.where}: {what}")
        if settings.flag("use_rms_norm", False):
            raise UnsupportedModel(f"{settings.where}: use_rms_norm, a norm in front of each product, is not supported")
        is_auto = options["linear_class"] == "autobitlinear"
        self.divides, self.online = not is_auto, is_auto and options["quantization_mode"] == "online"
        unconverted = settings.values.get("modules_to_not_convert") or ["lm_head"]
        if self.online and unconverted != ["lm_head"]:
            what = f"modules_to_not_convert {quote(str(unconverted))} is not supported for online rounding; lm_head is"
            raise UnsupportedModel(f"{settings.where}: {what}")

    def weights(self) -> Iterator[AssembledWeight]:
        if not self.online:
            for stem in self.parts.find_stems(".weight_scale"):
                yield self._assemble_packed(f"{stem}.weight", f"{stem}.weight_scale")
            return
        for name, info in self.parts.files.tensors.items():
            if len(info.shape) == 2 and not name.endswith(TABLES):
                if not name.endswith(MATRICES):
                    what = f"{quote(name)} is neither a table nor a matrix of {MATRICES!r}"
                    raise UnsupportedModel(f"{self.parts.where}: {what}: not supported with online rounding")
                yield self._assemble_rounded(name, *info.shape)

    def find_unused(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def _assemble_packed(self, name: str, scale_name: str) -> AssembledWeight:
        packed = self.parts.read_array(name, "U8", (None, None))
        scale = self.parts.read_floats(scale_name, (1,))[0]
        with np.errstate(divide="ignore", over="ignore"):  # loaders check that values are finite
            scale = np.float32(1) / scale if self.divides else scale
            halves = bool(np.float32(np.float16(scale)) == scale)
        count, width = packed.shape

        def numbers(start: int, stop: int) -> NDArray[np.uint8]:
            rows = np.arange(start, stop)
            shifts = (2 * (rows // count)).astype(np.uint8)[:, None]
            return packed[rows % count] >> shifts & np.uint8(3)

        chosen = TQ2_0 if halves and width % TQ2_0.values == 0 else _choose_format(width)
        return _assemble(name, chosen, (VALUES_PER_BYTE * count, width), (name, scale_name), numbers, lambda: scale)

    def _assemble_rounded(self, name: str, out: int, width: int) -> AssembledWeight:
        step = max(1, CHUNK_VALUES // max(1, width))

        @cache
        def mean() -> np.float32:
            starts = range(0, out, step)
            sums = (np.abs(values(start, start + step)).sum(dtype=np.float64) for start in starts)
            return np.maximum(np.float32(sum(sums) / (out * width)), MIN_MEAN)

        def values(start: int, stop: int) -> NDArray[np.float32]:
            return self.parts.read_floats(name, (out, width), slice(start, stop))

        def numbers(start: int, stop: int) -> NDArray[np.uint8]:
            return (np.clip(np.rint(values(start, stop) / mean()), -1, 1) + 1).astype(np.uint8)

        return _assemble(name, _choose_format(width), (out, width), (name,), numbers, mean)


def _choose_format(width: int) -> type[QuantFormat]:
    """Return a number format that holds any scale for rows of this width."""
    columns = cut_blocks(assign_groups(width, -1))
    return F32 if columns.size == 1 else format_of(f"INT8_{columns.size}")


def _assemble(
    name: str,
    chosen: type[QuantFormat],
    shape: tuple[int, int],
    parts: tuple[str, ...],
    numbers: Numbers,
    scale: Callable[[], np.float32],
) -> AssembledWeight:
    """Return a weight of these numbers less one, times a scale."""

    def rows(start: int, stop: int) -> NDArray[np.uint8]:
        codes = numbers(start, stop)
        if chosen is F32:
            return ((codes.astype(np.float32) - 1) * scale()).astype("<f4").view(np.uint8)
        blocks = codes.reshape(-1, chosen.values)
        scales = np.full((len(blocks), 1), scale(), "<f4")
        if chosen is TQ2_0:
            parts = [join_bit_pairs(blocks), to_halves(scales)]
        else:
            parts = [scales.view(np.uint8), blocks - np.uint8(1)]
        return np.concatenate(parts, axis=1).reshape(stop - start, -1)

    note = f"the row width is not a multiple of 32; {WIDENED}" if chosen is F32 else ROUNDED
    return AssembledWeight(name, chosen, shape, parts, rows, note)
