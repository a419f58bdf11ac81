"""AWQ: four-bit integers with zero points, in words along the output, by AutoAWQ (its layout "gemm").

Source: AutoAWQ's gemm layer. A weight [out, in] is stored as

qweight  int32 [in, out / 8]       eight outputs a word: nibble n is output NIBBLES[n] of the eight
qzeros   int32 [groups, out / 8]   zero points in the same order
scales   float [groups, out]

value = (integer - zero) * scale, in groups of `group_size` columns.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight
from sporelm.checkpoints.quantized.gptq import MAX_GROUP_SIZE
from sporelm.checkpoints.quantized.groups import check_group_count
from sporelm.checkpoints.quantized.integers import Bytes, Factors, Integers, unpack
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.tensor_messages import quote

NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)
NIBBLE_OF_OUTPUT = np.argsort(NIBBLES)  # the nibble of each output


class Awq:
    """A folder whose quantization_config says "awq"."""

    def __init__(self, parts: Parts, settings: ConfigValues) -> None:
        self.parts, self.where = parts, settings.where
        bits = settings.integer("bits", 1, 32, 4)
        if bits != 4:
            raise UnsupportedModel(f"{self.where}: AWQ with {bits} bits is not supported; 4 bits are")
        version = settings.text("version", "gemm").lower()
        if version != "gemm":
            raise UnsupportedModel(f"{self.where}: AWQ's layout {version!r} is not supported; 'gemm' is")
        self.group = settings.integer("group_size", -1, MAX_GROUP_SIZE, 128)

    def weights(self) -> Iterator[AssembledWeight]:
        for stem in self.parts.find_stems(".qweight"):
            yield self._weight(stem).assemble()

    def find_unused(self) -> Iterator[tuple[str, str]]:
        return iter(())

    def _weight(self, stem: str) -> Integers:
        parts = self.parts
        names = tuple(f"{stem}.{part}" for part in ("qweight", "qzeros", "scales"))
        parts.check_shape(names[2], (None, None))
        groups, out = parts.info(names[2]).shape
        if out % 8:
            raise ModelFileError(f"{self.where}: {quote(names[2])} has {out} outputs; they must be a multiple of 8")
        qweight, qzeros = (
            parts.read_array(names[0], "I32", (None, out // 8)),
            parts.read_array(names[1], "I32", (groups, out // 8)),
        )
        width = qweight.shape[0]
        group_of = check_group_count(width, self.group, groups, f"{self.where}: {quote(names[2])}")

        def numbers(start: int, stop: int) -> Bytes:
            return _unpack_outputs(qweight, start, stop)

        def factors(start: int, stop: int) -> Factors:
            scales = parts.read_floats(names[2], (groups, out))[:, start:stop].T
            return scales, _unpack_outputs(qzeros, start, stop).astype(np.int16)

        return Integers(f"{stem}.weight", names, 4, (out, width), group_of, numbers, factors)


def _unpack_outputs(packed: NDArray[np.int32], start: int, stop: int) -> Bytes:
    """Return the integers of outputs start to stop - 1, output by output: [n, out / 8] -> uint8 [outputs, n]."""
    first = start // 8
    stored = unpack(packed[:, first : -(-stop // 8)], 4).reshape(len(packed), -1, 8)
    return stored[:, :, NIBBLE_OF_OUTPUT].reshape(len(packed), -1)[:, start - 8 * first : stop - 8 * first].T
