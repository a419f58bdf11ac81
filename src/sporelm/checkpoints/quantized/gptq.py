"""GPTQ: integers of 2, 3, 4 or 8 bits in words along the input, by AutoGPTQ and GPTQModel.

Source: AutoGPTQ's and GPTQModel's plain torch layers. A weight [out, in] is stored as

qweight  int32 [in * bits / 32, out]       the integers of a column of `in`, lowest bits first
qzeros   int32 [groups, out * bits / 32]   zero points; the first format of checkpoints stores them less one
scales   float [groups, out]
g_idx    int32 [in]                        the group of each column; not contiguous with act-order

value = (integer - zero) * scale. A stored zero point of all ones stands for -1: the zero point is 0.
"""

from collections.abc import Iterator

import numpy as np

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight
from sporelm.checkpoints.quantized.groups import check_group_count
from sporelm.checkpoints.quantized.integers import Bytes, Factors, Integers, unpack
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.tensor_messages import quote

BITS = (2, 3, 4, 8)
MAX_GROUP_SIZE = 1 << 20


class Gptq:
    """A folder whose quantization_config says "gptq"."""

    def __init__(self, parts: Parts, settings: ConfigValues) -> None:
        self.parts, self.where = parts, settings.where
        self.bits = settings.integer("bits", 1, 32)
        if self.bits not in BITS:
            raise UnsupportedModel(f"{self.where}: GPTQ with {self.bits} bits is not supported; {BITS} are")
        self.group = settings.integer("group_size", -1, MAX_GROUP_SIZE, -1)
        form = settings.text("checkpoint_format", "gptq")
        if form not in ("gptq", "gptq_v2"):
            raise UnsupportedModel(f"{self.where}: checkpoint_format {form!r} is not supported; gptq and gptq_v2 are")
        self.has_zeros_less_one = form == "gptq"
        self.has_mixed_bits = bool(settings.values.get("dynamic"))  # of GPTQModel: other bits for some weights

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
        parts.check_shape(names[1], (groups, None))
        bits, remainder = divmod(parts.info(names[1]).shape[1] * 32, max(1, out))
        if remainder or bits not in BITS or (bits != self.bits and not self.has_mixed_bits):
            shape = list(parts.info(names[1]).shape)
            raise ModelFileError(
                f"{self.where}: {quote(names[1])} is {shape};"
                f" {out} zero points of {self.bits} bits take {out * self.bits // 32} words"
            )
        qweight = parts.read_array(names[0], "I32", (None, out))
        qzeros = parts.read_array(names[1], "I32", (groups, None))
        width, remainder = divmod(qweight.shape[0] * 32, bits)
        if remainder:
            raise ModelFileError(
                f"{self.where}: {quote(names[0])} has {len(qweight)} words a column; they do not fit {bits} bits"
            )
        group_of = self._read_groups(stem, width, groups)
        group_names = (f"{stem}.g_idx",) if f"{stem}.g_idx" in parts else ()

        def numbers(start: int, stop: int) -> Bytes:
            return unpack(qweight[:, start:stop].T, bits)

        def factors(start: int, stop: int) -> Factors:
            # a word holds several outputs: unpack whole words
            each = 32 if bits == 3 else 32 // bits
            first, last = start // each * each, -(-stop // each) * each
            stored = unpack(qzeros[:, first * bits // 32 : last * bits // 32], bits)[:, start - first : stop - first]
            zeros = (stored + np.uint8(1) & np.uint8((1 << bits) - 1) if self.has_zeros_less_one else stored).astype(
                np.int16
            )
            return parts.read_floats(names[2], (groups, out))[:, start:stop].T, zeros.T

        return Integers(f"{stem}.weight", (*names, *group_names), bits, (out, width), group_of, numbers, factors)

    def _read_groups(self, stem: str, width: int, groups: int) -> np.ndarray:
        """Return the group of each column. Raises ModelFileError for a group out of range."""
        name = f"{stem}.g_idx"
        if name in self.parts:
            found = self.parts.read_array(name, ("I32", "I64"), (width,))
            if width and not 0 <= int(found.min()) <= int(found.max()) < groups:
                low, high = int(found.min()), int(found.max())
                raise ModelFileError(
                    f"{self.where}: {quote(name)} holds groups {low} to {high}; the weight has groups 0 to {groups - 1}"
                )
            return found
        return check_group_count(width, self.group, groups, f"{self.where}: {quote(stem + '.scales')}")
