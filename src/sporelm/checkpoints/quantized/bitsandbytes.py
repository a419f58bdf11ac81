"""bitsandbytes: LLM.int8 and the four-bit code NF4, with factors that are quantized themselves or not.

Source: bitsandbytes' serialization, the LLM.int8 and QLoRA papers (Dettmers et al. 2022, 2023).

int8   weight int8 [out, in], SCB float [out]: value = number * SCB / 127 of its row
nf4    weight uint8 [out * in / 2, 1], the high nibble first, row by row: value = NF4 number * factor of its run of
       `blocksize` values; weight.absmax float [runs], or uint8 with double quantization: then factor =
       nested_quant_map[absmax] * nested_absmax of its run of `nested_blocksize` factors + nested_offset;
       weight.quant_map float [16], weight.quant_state.bitsandbytes__nf4: JSON with the shape and these numbers
"""

import json
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight
from sporelm.checkpoints.quantized.groups import WIDENED, assign_groups, cut_blocks
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.files.tensor_messages import quote
from sporelm.quant import F32, NF4, format_of
from sporelm.quant.nf4 import NF4_LEVELS
from sporelm.quant.packing import join_nibbles

STATE = ".weight.quant_state.bitsandbytes__"
MAX_STATE_BYTES = 1 << 16  # bytes of JSON
MAX_RUN = 1 << 20

Factors = Callable[[NDArray[np.intp]], NDArray[np.float32]]


class BitsAndBytes:
    """A folder whose quantization_config says "bitsandbytes"."""

    def __init__(self, parts: Parts, settings: ConfigValues) -> None:
        self.parts, self.where = parts, parts.where

    def weights(self) -> Iterator[AssembledWeight]:
        for stem in self.parts.find_stems(".SCB"):
            yield self._assemble_int8(stem)
        for name in self.parts.files.tensors:
            if STATE in name:
                stem, _, code = name.partition(STATE)
                if code != "nf4":
                    raise UnsupportedModel(
                        f"{self.where}: {quote(name)}: the code {quote(code)} is not supported; nf4 is"
                    )
                yield self._assemble_nf4(stem, name)

    def find_unused(self) -> Iterator[tuple[str, str]]:
        for name in self.parts.files.tensors:
            if name.endswith(".weight_format"):
                if self.parts.read_array(name, "U8", self.parts.info(name).shape).any():
                    raise UnsupportedModel(
                        f"{self.where}: {quote(name)} is not 0, which is not supported; row-major weights are"
                    )
                yield name, ""

    def _assemble_int8(self, stem: str) -> AssembledWeight:
        name, scale_name = f"{stem}.weight", f"{stem}.SCB"
        stored = self.parts.read_array(name, "I8", (None, None))
        out, width = stored.shape
        self.parts.check_shape(scale_name, (out,))
        columns = cut_blocks(assign_groups(width, -1))
        chosen = F32 if columns.size == 1 else format_of(f"INT8_{columns.size}")

        def rows(start: int, stop: int) -> NDArray[np.uint8]:
            scales = self.parts.read_floats(scale_name, (out,))[start:stop, None] / np.float32(127)
            if chosen is F32:
                return (stored[start:stop].astype("<f4") * scales).view(np.uint8)
            head = np.repeat(scales, len(columns.group), axis=1).reshape(-1, 1).astype("<f4").view(np.uint8)
            numbers = np.ascontiguousarray(stored[start:stop]).view(np.uint8).reshape(-1, chosen.values)
            return np.concatenate([head, numbers], axis=1).reshape(stop - start, -1)

        note = f"the row width is not a multiple of 32; {WIDENED}" if chosen is F32 else ""
        return AssembledWeight(name, chosen, (out, width), (name, scale_name), rows, note)

    def _assemble_nf4(self, stem: str, state_name: str) -> AssembledWeight:
        parts, name = self.parts, f"{stem}.weight"
        state = self._read_state(state_name)
        out, width = self._read_shape(state, state_name)
        run = state.integer("blocksize", 1, MAX_RUN)
        count = out * width
        stored = parts.read_array(name, "U8", (-(-count // 2), 1)).reshape(-1)
        numbers = parts.read_floats(f"{name}.quant_map", (16,))
        factors, names = self._read_factors(name, -(-count // run), state)
        names = (name, state_name, f"{name}.quant_map", *names)
        fits = run % 64 == 0 and width % 64 == 0 and np.array_equal(numbers, NF4_LEVELS)
        if width % 2:
            raise UnsupportedModel(
                f"{self.where}: {quote(name)} has rows of {width} values, which is not supported; even widths are"
            )

        def rows(start: int, stop: int) -> NDArray[np.uint8]:
            packed = stored[start * width // 2 : stop * width // 2]
            codes = np.stack([packed >> np.uint8(4), packed & np.uint8(15)], axis=1).reshape(-1)
            if not fits:
                each = factors(np.arange(start * width, stop * width) // run)
                return (numbers[codes] * each).astype("<f4").view(np.uint8).reshape(stop - start, -1)
            head = factors(np.arange(start * width, stop * width, 64) // run).astype("<f4").view(np.uint8)
            blocks = join_nibbles(codes.reshape(-1, 64), 16)
            return np.concatenate([head.reshape(-1, 4), blocks], axis=1).reshape(stop - start, -1)

        note = "" if fits else f"their run length is not 64, or their code is not NF4's; {WIDENED}"
        return AssembledWeight(name, NF4 if fits else F32, (out, width), names, rows, note)

    def _read_factors(self, name: str, count: int, state: ConfigValues) -> tuple[Factors, tuple[str, ...]]:
        """Return a function from run numbers to their factors, and the parts that it reads."""
        parts, absmax = self.parts, f"{name}.absmax"
        if parts.info(absmax).type_name != "U8":
            stored = parts.read_array(absmax, "F32", (count,))
            return (lambda runs: stored[runs]), (absmax,)
        run = state.integer("nested_blocksize", 1, MAX_RUN)
        offset = np.float32(state.number("nested_offset", -1e30, 1e30))
        nested, codes = f"{name}.nested_absmax", f"{name}.nested_quant_map"
        scales = parts.read_floats(nested, (-(-count // run),))
        levels, rounded = parts.read_floats(codes, (256,)), parts.read_array(absmax, "U8", (count,))
        return (lambda runs: levels[rounded[runs]] * scales[runs // run] + offset), (absmax, nested, codes)

    def _read_state(self, name: str) -> ConfigValues:
        """Return the JSON in a tensor of bytes."""
        raw = self.parts.read_array(name, "U8", (None,))
        try:
            if len(raw) > MAX_STATE_BYTES:
                raise ValueError(f"it has {len(raw)} bytes")
            values = json.loads(raw.tobytes().decode())
        except (ValueError, RecursionError) as reason:
            raise ModelFileError(f"{self.where}: {quote(name)} is not readable JSON: {str(reason)[:80]}") from None
        if not isinstance(values, dict):
            raise ModelFileError(f"{self.where}: {quote(name)} must hold a JSON object")
        return ConfigValues(values, f"{self.where}: {name[:120]}")

    def _read_shape(self, state: ConfigValues, name: str) -> tuple[int, int]:
        """Return the weight's shape from its state."""
        shape = state.values.get("shape")
        is_shape = (
            isinstance(shape, list) and len(shape) == 2 and all(type(n) is int and 0 <= n < 1 << 31 for n in shape)
        )
        if not isinstance(shape, list) or not is_shape:
            raise ModelFileError(f"{self.where}: {quote(name)} has no shape of two axes")
        return shape[0], shape[1]
