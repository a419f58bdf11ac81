"""MXFP4: four-bit floats with a power of two for each 32, as gpt-oss publishes its experts.

Source: the OCP microscaling formats, and transformers' reader of gpt-oss. A stack of weights [..., out, in] is

<name>_blocks  uint8 [..., out, in / 32, 16]   two numbers a byte, the low nibble first
<name>_scales  uint8 [..., out, in / 32]       exponents, 127 stands for 1

It becomes ggml's MXFP4: the same numbers and exponents, in another order of nibbles.
"""

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.quant import MXFP4
from sporelm.quant.packing import join_nibbles, spread_bits


class Mxfp4:
    """A folder whose quantization_config says "mxfp4"."""

    def __init__(self, parts: Parts, settings: ConfigValues) -> None:
        self.parts = parts

    def weights(self) -> Iterator[AssembledWeight]:
        for stem in self.parts.find_stems("_blocks"):
            yield self._weight(stem)

    def find_unused(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def _weight(self, stem: str) -> AssembledWeight:
        names = (f"{stem}_blocks", f"{stem}_scales")
        leading: tuple[int | None, ...] = self.parts.info(names[1]).shape
        blocks = self.parts.read_array(names[0], "U8", (*leading, 16))
        scales = self.parts.read_array(names[1], "U8", leading)
        shape = (*scales.shape[:-1], scales.shape[-1] * 32) if scales.ndim else (32,)
        each = scales.shape[-1] if scales.ndim else 1
        flat, exponents = blocks.reshape(-1, each, 16), scales.reshape(-1, each, 1)

        def rows(start: int, stop: int) -> NDArray[np.uint8]:
            codes = join_nibbles(spread_bits(flat[start:stop].reshape(-1, 16), 4), 16)
            parts = [exponents[start:stop].reshape(-1, 1), codes]
            return np.concatenate(parts, axis=1).reshape(stop - start, -1)

        assert prod(shape[:-1]) == len(flat)
        return AssembledWeight(stem, MXFP4, shape, names, rows)
