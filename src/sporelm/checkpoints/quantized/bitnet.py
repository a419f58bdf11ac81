"""BitNet's ternary weights: -1, 0 and 1 with one scale for a matrix, packed, or made of floats when a model is opened.

Source: transformers' integrations/bitnet.py; Ma et al. 2024. A weight [out, in] is one of

packed   weight uint8 [out / 4, in], weight_scale float [1]: row i * out / 4 + r is pair i of the bits of row r, the
         lowest first, less one; times the scale in modules of the class "autobitlinear", divided by it in others
online   weight float [out, in]: what counts is round(value / mean), from -1 to 1, times the mean of magnitudes

Each row that they are multiplied with is rounded to int8 there, with one scale; here as for the format that it becomes.
"""

from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.quantized.assembled import CHUNK_VALUES, Assembled
from sporelm.checkpoints.quantized.groups import WIDENED, cut, even_groups
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.errors import UnsupportedModel
from sporelm.files.tensor_messages import quote
from sporelm.quant import F32, TQ2_0, QuantFormat, format_of
from sporelm.quant.packing import join_bit_pairs, to_halves

EACH = 4  # numbers of a byte
MIN_MEAN = np.float32(1e-5)
MATRICES, TABLES = "_proj.weight", ("embed_tokens.weight", "lm_head.weight")
OPTIONS = {"linear_class": ("bitlinear", "autobitlinear"), "quantization_mode": ("offline", "online")}
ROUNDED = "rows that they multiply are rounded to int8 by runs of columns, not whole"

Numbers = Callable[[int, int], NDArray[np.uint8]]  # of rows start to stop - 1, plus one


class BitNet:
    """A folder whose quantization_config says "bitnet"."""

    def __init__(self, parts: Parts, settings: ConfigValues) -> None:
        self.parts = parts
        told = {key: settings.text(key, known[0]) for key, known in OPTIONS.items()}
        for key, known in OPTIONS.items():
            if told[key] not in known:
                what = f"{key} {quote(told[key])} is not supported; {' and '.join(known)} are"
                raise UnsupportedModel(f"{settings.where}: {what}")
        if settings.flag("use_rms_norm", False):
            raise UnsupportedModel(f"{settings.where}: use_rms_norm, a norm in front of each product, is not supported")
        own = told["linear_class"] == "autobitlinear"
        self.divides, self.online = not own, own and told["quantization_mode"] == "online"
        left = settings.values.get("modules_to_not_convert") or ["lm_head"]
        if self.online and left != ["lm_head"]:
            what = (
                f"modules_to_not_convert {quote(str(left))} is not supported beside online rounding; lm_head alone is"
            )
            raise UnsupportedModel(f"{settings.where}: {what}")

    def weights(self) -> Iterator[Assembled]:
        if not self.online:
            for stem in self.parts.ending(".weight_scale"):
                yield self._packed(f"{stem}.weight", f"{stem}.weight_scale")
            return
        for name, info in self.parts.files.tensors.items():
            if len(info.shape) == 2 and not name.endswith(TABLES):
                if not name.endswith(MATRICES):
                    what = f"{quote(name)} is neither a table nor a matrix of {MATRICES!r}"
                    raise UnsupportedModel(f"{self.parts.where}: {what}: not supported with online rounding")
                yield self._rounded(name, *info.shape)

    def unused(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def _packed(self, name: str, scale_name: str) -> Assembled:
        held = self.parts.array(name, "U8", (None, None))
        scale = self.parts.floats(scale_name, (1,))[0]
        with np.errstate(divide="ignore", over="ignore"):  # loaders look for what is not finite
            scale = np.float32(1) / scale if self.divides else scale
            halves = bool(np.float32(np.float16(scale)) == scale)
        count, width = held.shape

        def numbers(start: int, stop: int) -> NDArray[np.uint8]:
            rows = np.arange(start, stop)
            shifts = (2 * (rows // count)).astype(np.uint8)[:, None]
            return held[rows % count] >> shifts & np.uint8(3)

        chosen = TQ2_0 if halves and width % TQ2_0.values == 0 else _bytes(width)
        return _made(name, chosen, (EACH * count, width), (name, scale_name), numbers, lambda: scale)

    def _rounded(self, name: str, out: int, width: int) -> Assembled:
        step = max(1, CHUNK_VALUES // max(1, width))

        @cache
        def mean() -> np.float32:
            starts = range(0, out, step)
            sums = (np.abs(values(start, start + step)).sum(dtype=np.float64) for start in starts)
            return np.maximum(np.float32(sum(sums) / (out * width)), MIN_MEAN)

        def values(start: int, stop: int) -> NDArray[np.float32]:
            return self.parts.floats(name, (out, width), slice(start, stop))

        def numbers(start: int, stop: int) -> NDArray[np.uint8]:
            return (np.clip(np.rint(values(start, stop) / mean()), -1, 1) + 1).astype(np.uint8)

        return _made(name, _bytes(width), (out, width), (name,), numbers, mean)


def _bytes(width: int) -> type[QuantFormat]:
    """What holds any scale of rows as long as this."""
    columns = cut(even_groups(width, -1))
    return F32 if columns.size == 1 else format_of(f"INT8_{columns.size}")


def _made(
    name: str,
    chosen: type[QuantFormat],
    shape: tuple[int, int],
    parts: tuple[str, ...],
    numbers: Numbers,
    scale: Callable[[], np.float32],
) -> Assembled:
    """A weight of these numbers less one, times a scale."""

    def rows(start: int, stop: int) -> NDArray[np.uint8]:
        codes = numbers(start, stop)
        if chosen is F32:
            return ((codes.astype(np.float32) - 1) * scale()).astype("<f4").view(np.uint8)
        blocks = codes.reshape(-1, chosen.values)
        scales = np.full((len(blocks), 1), scale(), "<f4")
        if chosen is TQ2_0:
            made = [join_bit_pairs(blocks), to_halves(scales)]
        else:
            made = [scales.view(np.uint8), blocks - np.uint8(1)]
        return np.concatenate(made, axis=1).reshape(stop - start, -1)

    note = f"their rows are no runs of 32 columns; {WIDENED}" if chosen is F32 else ROUNDED
    return Assembled(name, chosen, shape, parts, rows, note)
