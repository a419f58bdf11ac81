"""compressed-tensors: the formats of llm-compressor: w4a16, w8a16, w8a8 and FP8.

Source: the compressed-tensors library's compressors. A weight [out, in] is stored as

pack-quantized   weight_packed int32 [out, in * bits / 32], the lowest bits first, each integer plus 2^(bits - 1);
                 weight_shape int64 [2]; with zero points, weight_zero_point int32 [out * bits / 32, groups], packed
                 along the output; with an order of activations, weight_g_idx int32 [in]
int-quantized    weight int8 [out, in], and without symmetry weight_zero_point int8
float-quantized  weight F8_E4M3 [out, in]

each with weight_scale: float [1], [out, 1] or [out, groups], or for tiles [out / rows, in / columns].
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.quantized.assembled_weight import AssembledWeight
from sporelm.checkpoints.quantized.fp8 import find_activation_scales, find_fp8_weights, read_tile
from sporelm.checkpoints.quantized.groups import assign_groups
from sporelm.checkpoints.quantized.integers import Bytes, Factors, Integers, unpack
from sporelm.checkpoints.quantized.parts import Parts
from sporelm.checkpoints.quantized.scaled_weights import assemble_scaled
from sporelm.errors import ModelFileError, UnsupportedModel

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
PACKED_BITS = (2, 4, 8)  # widths that fill whole words


class CompressedTensors:
    """A folder whose quantization_config says "compressed-tensors"."""

    def __init__(self, parts: Parts, settings: ConfigValues) -> None:
        self.parts, self.where = parts, settings.where
        groups = settings.values.get("config_groups") or {}
        if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
            raise ModelFileError(f"{self.where}: config_groups is {format_value(groups)}; it must hold objects")
        forms = [settings.text("format", "dense"), *(str(group.get("format") or "dense") for group in groups.values())]
        for form in forms:
            if form not in FORMATS:
                raise UnsupportedModel(
                    f"{self.where}: format {format_value(form)} is not supported; {', '.join(FORMATS)} are"
                )
        _reject_option(settings, "sparsity_config", "dense")
        _reject_option(settings, "transform_config", "")
        weights = [group.get("weights") or {} for group in groups.values()]
        bits = [found.get("num_bits") for found in weights if isinstance(found, Mapping)]
        self.bits = {number for number in bits if isinstance(number, int)}
        tiles = [found.get("block_structure") for found in weights if isinstance(found, Mapping)]
        self.tile = next((read_tile(tile, self.where) for tile in tiles if tile is not None), None)

    def weights(self) -> Iterator[AssembledWeight]:
        for stem in self.parts.find_stems(".weight_packed"):
            yield self._read_packed(stem).assemble()
        for stem in self.parts.find_stems(".weight_scale"):
            info = self.parts.files.tensors.get(f"{stem}.weight")
            if info is not None and info.type_name == "I8":
                yield self._assemble_int8(stem)
        yield from find_fp8_weights(self.parts, self.tile)

    def find_unused(self) -> Iterator[tuple[str, str]]:
        yield from find_activation_scales(self.parts)

    def _read_packed(self, stem: str) -> Integers:
        parts = self.parts
        names = [f"{stem}.weight_{part}" for part in ("packed", "scale", "shape")]
        out, width = (int(length) for length in parts.read_array(names[2], ("I64", "I32"), (2,)))
        packed = parts.read_array(names[0], "I32", (None, None))
        if out != len(packed) or not 0 <= width < 1 << 31:
            shape = list(packed.shape)
            raise ModelFileError(
                f"{self.where}: {format_value(names[2])} is {[out, width]}, but the packed integers are {shape}"
            )
        bits = next((b for b in PACKED_BITS if b in self.bits and packed.shape[1] == -(-width * b // 32)), None)
        if bits is None:
            bits_text = ", ".join(sorted(map(str, self.bits)))
            raise UnsupportedModel(
                f"{self.where}: {format_value(names[0])} has {packed.shape[1]} words for {width} columns, not those of"
                f" {bits_text} bits; {PACKED_BITS} bits are supported"
            )
        parts.check_shape(names[1], (out, None))
        groups = parts.info(names[1]).shape[1]
        group_of = self._read_groups(stem, width, groups, names)
        zero_name = f"{stem}.weight_zero_point"
        zeros = None
        if zero_name in parts:
            names.append(zero_name)
            zeros = parts.read_array(zero_name, "I32", (-(-out * bits // 32), groups))
        each, middle, chosen = 32 // bits, 1 << bits - 1, bits

        def numbers(start: int, stop: int) -> Bytes:
            return np.ascontiguousarray(unpack(packed[start:stop], chosen)[:, :width])

        def factors(start: int, stop: int) -> Factors:
            scales = parts.read_floats(names[1], (out, groups))[start:stop]
            if zeros is None:
                return scales, np.full(scales.shape, middle, np.int16)
            first = start // each
            stored = unpack(zeros[first : -(-stop // each)].T, chosen)[:, start - first * each : stop - first * each]
            return scales, stored.T.astype(np.int16)

        return Integers(f"{stem}.weight", tuple(names), bits, (out, width), group_of, numbers, factors)

    def _read_groups(self, stem: str, width: int, groups: int, names: list[str]) -> np.ndarray:
        """Return the group of each column; a tensor with the groups becomes one of the weight's parts."""
        name = f"{stem}.weight_g_idx"
        if name in self.parts:
            names.append(name)
            found = self.parts.read_array(name, ("I32", "I64"), (width,))
            if width and not 0 <= int(found.min()) <= int(found.max()) < groups:
                raise ModelFileError(f"{self.where}: {format_value(name)} holds a group outside 0 to {groups - 1}")
            return found
        if not groups or width % groups:
            raise ModelFileError(
                f"{self.where}: {format_value(names[1])} has {groups} groups, which do not divide {width} columns"
            )
        return assign_groups(width, width // groups)

    def _assemble_int8(self, stem: str) -> AssembledWeight:
        """Return a weight of signed bytes, with zero points if they are not all 0."""
        zero_name = f"{stem}.weight_zero_point"
        weight = assemble_scaled(self.parts, f"{stem}.weight", f"{stem}.weight_scale", self.tile)
        if zero_name not in self.parts:
            return weight
        zeros = self.parts.read_array(zero_name, "I8", self.parts.info(zero_name).shape)
        if not zeros.any():
            return _with_part(weight, zero_name)
        out, width = weight.shape
        scale_name = f"{stem}.weight_scale"
        self.parts.check_shape(zero_name, self.parts.info(scale_name).shape)
        scales = self.parts.read_floats(scale_name, self.parts.info(scale_name).shape)
        groups = scales.size // out if out and scales.size % out == 0 else 1
        if scales.size not in (1, out * groups) or width % groups:
            raise ModelFileError(
                f"{self.where}: {format_value(scale_name)} is {list(scales.shape)}, not that of a weight {[out, width]}"
            )
        stored = self.parts.read_array(f"{stem}.weight", "I8", (out, width))
        shape = (out, groups)

        def numbers(start: int, stop: int) -> Bytes:
            return np.ascontiguousarray(stored[start:stop]).view(np.uint8) ^ np.uint8(128)

        def factors(start: int, stop: int) -> Factors:
            every = np.broadcast_to(scales.reshape(-1, groups), shape)
            points = np.broadcast_to(zeros.reshape(-1, groups), shape).astype(np.int16) + np.int16(128)
            return every[start:stop], points[start:stop]

        names = (f"{stem}.weight", scale_name, zero_name)
        group_of = assign_groups(width, width // groups)
        return Integers(f"{stem}.weight", names, 8, (out, width), group_of, numbers, factors).assemble()


def _with_part(weight: AssembledWeight, name: str) -> AssembledWeight:
    """Return a weight that also uses another tensor."""
    return AssembledWeight(weight.name, weight.format, weight.shape, (*weight.parts, name), weight.rows, weight.note)


def _reject_option(settings: ConfigValues, key: str, allowed: str) -> None:
    """Raise UnsupportedModel for an option that is set: it changes the weights in an unsupported way."""
    value: Any = settings.values.get(key)
    if isinstance(value, Mapping):
        value = value.get("format") if allowed else value.get("config_groups")
    if value and value != allowed:
        raise UnsupportedModel(f"{settings.where}: {key} {format_value(value)} is not supported")
