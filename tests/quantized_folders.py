"""Tiny Llama folders whose matrices are quantized, written by the schemes' specifications, and what they stand for.

Nothing here uses the package: it is the other reading of the formats.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tiny_models import SUPER, WIDE, Tiny

Made = tuple[dict[str, Any], np.ndarray]  # the tensors after the weight's stem, (dtype, array) or array; and the values
Scheme = Callable[[np.ndarray, np.random.Generator], Made]

F8 = {"F8_E4M3": (4, 3), "F8_E5M2": (5, 2)}
NF4_LEVELS = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers along the first axis in words of 32 bits, lowest bits first: int [n, m] -> int32 [n * bits / 32, m]."""
    lines = []
    for column in numbers.T:
        whole = 0
        for place, number in enumerate(column):
            whole |= int(number) << (bits * place)
        nbytes = -(-len(column) * bits // 32) * 4
        lines.append(np.frombuffer(whole.to_bytes(nbytes, "little"), "<i4"))
    return np.stack(lines, axis=1)


def rounded(weight: np.ndarray, bits: int, group_of: np.ndarray, symmetric: bool, halves: bool = True) -> tuple:
    """Integers [out, in], scales and zero points [out, groups] near a weight."""
    out, top = len(weight), 2**bits - 1
    groups = int(group_of.max()) + 1
    scales, zeros = np.zeros((out, groups), np.float32), np.zeros((out, groups), np.int64)
    for group in range(groups):
        part = weight[:, group_of == group]
        if symmetric:
            scale, zero = np.abs(part).max(1) / (2 ** (bits - 1)), np.full(out, 2 ** (bits - 1))
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = (high - low) / top
            zero = np.clip(np.rint(-low / scale), 0, top)
        scales[:, group], zeros[:, group] = scale.astype(np.float16) if halves else scale, zero
    numbers = np.clip(np.rint(weight / scales[:, group_of]) + zeros[:, group_of], 0, top).astype(np.int64)
    return numbers, scales, zeros


def gptq(bits: int = 4, group: int = 32, symmetric: bool = False, order: str = "", version: int = 1) -> Scheme:
    """`order`: "own", an order of columns for each weight, or "shared", one for all of a width."""

    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        out, width = weight.shape
        group_of = np.arange(width) // (group if group > 0 else width)
        if order:
            group_of = group_of[(np.random.default_rng(width) if order == "shared" else random).permutation(width)]
        numbers, scales, zeros = rounded(weight, bits, group_of, symmetric)
        stored = (zeros - 1) % 2**bits if version == 1 else zeros
        made = {
            ".qweight": words(numbers.T, bits),
            ".qzeros": np.ascontiguousarray(words(stored, bits).T),
            ".scales": scales.T.astype(np.float16),
            ".g_idx": group_of.astype(np.int32),
            ".bias": np.zeros(out, np.float16),
        }
        return made, (numbers - zeros[:, group_of]).astype(np.float32) * scales[:, group_of]

    return make


def awq(group: int = 32) -> Scheme:
    def interleaved(numbers: np.ndarray) -> np.ndarray:  # int [n, out] -> int32 [n, out / 8]
        packed = np.zeros((len(numbers), numbers.shape[1] // 8), np.int64)
        for nibble, output in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            packed |= numbers[:, output::8] << (4 * nibble)
        return packed.astype(np.uint32).view(np.int32)

    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        group_of = np.arange(weight.shape[1]) // group
        numbers, scales, zeros = rounded(weight, 4, group_of, False)
        made = {
            ".qweight": interleaved(numbers.T),
            ".qzeros": interleaved(zeros.T),
            ".scales": scales.T.astype(np.float16),
        }
        return made, (numbers - zeros[:, group_of]).astype(np.float32) * scales[:, group_of]

    return make


def small_float(code: int, kind: str) -> float:
    """One eight-bit float by its definition."""
    exponent_bits, fraction_bits = F8[kind]
    sign, exponent = code >> 7, code >> fraction_bits & (1 << exponent_bits) - 1
    fraction = code & (1 << fraction_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    if kind == "F8_E5M2" and exponent == 31:
        return float("nan") if fraction else float("-inf" if sign else "inf")
    if kind == "F8_E4M3" and code & 127 == 127:
        return float("nan")
    size = fraction * 2.0 ** (1 - bias - fraction_bits)
    if exponent:
        size = (1 + fraction / (1 << fraction_bits)) * 2.0 ** (exponent - bias)
    return -size if sign else size


def fp8(tile: str | tuple[int, int] = "tensor", kind: str = "F8_E4M3", suffix: str = "_scale") -> Scheme:
    """Codes near a weight: `tile` is "tensor", "row", or rows and columns that share a scale."""
    table = np.array([small_float(code, kind) for code in range(256)], np.float32)
    usable = np.flatnonzero(np.isfinite(table))

    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        out, width = weight.shape
        rows, columns = {"tensor": (out, width), "row": (1, width)}.get(tile, tile)  # type: ignore[arg-type, misc]
        shape = -(-out // rows), -(-width // columns)
        scales = random.uniform(0.001, 0.01, shape).astype(np.float32)
        each = np.repeat(np.repeat(scales, rows, 0)[:out], columns, 1)[:, :width]
        codes = usable[np.abs(weight[..., None] / each[..., None] - table[usable]).argmin(-1)].astype(np.uint8)
        stored = scales.reshape(()) if tile == "tensor" else scales
        return {".weight": (kind, codes), f".weight{suffix}": stored}, table[codes] * each

    return make


def packed(bits: int = 4, group: int = 32, symmetric: bool = True, order: bool = False, size: float = 1.0) -> Scheme:
    """compressed-tensors' pack-quantized, with bfloat16 scales, of weights of another `size` if that is not 1."""

    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        out, width = weight.shape
        group_of = np.arange(width) // (group if group > 0 else width)
        if order:
            group_of = group_of[random.permutation(width)]
        numbers, scales, zeros = rounded(weight, bits, group_of, symmetric)
        scales = ((scales * np.float32(size)).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        made: dict[str, Any] = {
            ".weight_packed": np.ascontiguousarray(words(numbers.T, bits).T),
            ".weight_scale": ("BF16", (scales.view(np.uint32) >> 16).astype(np.uint16)),
            ".weight_shape": np.array([out, width], np.int64),
        }
        if not symmetric:
            made[".weight_zero_point"] = words(zeros, bits)
        if order:
            made[".weight_g_idx"] = group_of.astype(np.int32)
        return made, (numbers - zeros[:, group_of]).astype(np.float32) * scales[:, group_of]

    return make


def int8(rows: bool = True, symmetric: bool = True) -> Scheme:
    """compressed-tensors' int-quantized."""

    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        numbers, scales, zeros = rounded(weight, 8, np.zeros(weight.shape[1], np.int64), symmetric)
        if not rows:
            scales = np.full_like(scales, scales.max())
            numbers = np.clip(np.rint(weight / scales) + zeros, 0, 255).astype(np.int64)
        values = (numbers - zeros).astype(np.float32) * scales
        made = {".weight": (numbers - 128).astype(np.int8), ".weight_scale": scales if rows else scales[:1, 0]}
        made[".weight_zero_point"] = (zeros - 128).astype(np.int8) if rows else np.zeros(1, np.int8)
        made[".input_scale"] = np.ones(1, np.float32)
        return made, values

    return make


def bnb_int8() -> Scheme:
    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        largest = np.abs(weight).max(1)
        numbers = np.rint(weight * (127 / largest[:, None])).astype(np.int8)
        made = {".weight": numbers, ".SCB": largest, ".weight_format": np.zeros((), np.uint8)}
        return made, numbers * (largest / np.float32(127))[:, None]

    return make


def ternary(divided: bool = False, scale: float = 0.75) -> Scheme:
    """BitNet's, packed; `scale` is stored."""

    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        numbers = random.integers(-1, 2, weight.shape)
        quarters = np.split(numbers + 1, 4)
        packed = sum(part << 2 * place for place, part in enumerate(quarters))
        held = np.array([scale], np.float32)
        made = {".weight": np.asarray(packed, np.uint8), ".weight_scale": held}
        return made, numbers.astype(np.float32) * (np.float32(1) / held if divided else held)

    return make


def rounded_online() -> Scheme:
    """BitNet's: each float becomes -1, 0 or 1 times the mean of magnitudes."""

    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        mean = np.abs(weight.astype(np.float64)).mean().astype(np.float32)
        return {".weight": weight}, np.clip(np.rint(weight / mean), -1, 1) * mean

    return make


def nf4(double: bool = True, run: int = 64) -> Scheme:
    def make(weight: np.ndarray, random: np.random.Generator) -> Made:
        levels = np.array(NF4_LEVELS, np.float32)
        runs = np.pad(weight.reshape(-1), (0, -weight.size % run)).reshape(-1, run)
        factors = np.abs(runs).max(1) + np.float32(1e-3)
        state = {"quant_type": "nf4", "blocksize": run, "dtype": "float32", "shape": list(weight.shape)}
        made: dict[str, Any] = {".weight.quant_map": levels, ".weight.absmax": factors}
        if double:
            map_of = np.sort(random.uniform(-1, 1, 256)).astype(np.float32)
            offset, nested = float(factors.mean()), np.zeros(-(-len(factors) // 256), np.float32)
            codes = np.zeros(len(factors), np.uint8)
            for number in range(len(nested)):
                part = slice(256 * number, 256 * number + 256)
                nested[number] = np.abs(factors[part] - offset).max()
                share = (factors[part] - offset) / nested[number]
                codes[part] = np.abs(share[:, None] - map_of).argmin(1)
            factors = map_of[codes] * np.repeat(nested, 256)[: len(codes)] + np.float32(offset)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            made |= {".weight.absmax": codes, ".weight.nested_absmax": nested, ".weight.nested_quant_map": map_of}
        codes4 = np.abs((runs / factors[:, None])[..., None] - levels).argmin(-1)
        flat = codes4.reshape(-1)[: weight.size]
        made[".weight"] = (flat[::2] << 4 | flat[1::2]).astype(np.uint8)[:, None]
        text = json.dumps(state).encode()
        made[".weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(text, np.uint8)
        values = (levels[codes4] * factors[:, None]).reshape(-1)[: weight.size].reshape(weight.shape)
        return made, values.astype(np.float32)

    return make


def save(path: Path, tensors: dict[str, Any]) -> None:
    """A safetensors file; arrays of types that numpy lacks are given as (dtype, array of their bits)."""
    names = {"f4": "F32", "f2": "F16", "i4": "I32", "i8": "I64", "i1": "I8", "u1": "U8", "f8": "F64"}
    header, data = {}, bytearray()
    for name, given in tensors.items():
        dtype, array = given if isinstance(given, tuple) else (names[given.dtype.str[1:]], given)
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write(
    folder: Path,
    tiny: Tiny,
    scheme: Scheme,
    settings: dict[str, Any] | None,
    change: dict[str, Any] | None = None,
    name: str = "model",
) -> dict[str, np.ndarray]:
    """A folder whose matrices are quantized, but for the embedding and the output; `change` replaces tensors by name.

    Returns the values that the folder stands for, by their names.
    """
    random = np.random.default_rng(3)
    tensors: dict[str, Any] = {}
    values = {}
    for key, array in tiny.weights().items():
        if array.ndim != 2 or "_proj." not in key:
            tensors[key] = values[key] = array
        else:
            made, values[key] = scheme(array, random)
            tensors |= {key.removesuffix(".weight") + part: given for part, given in made.items()}
    tensors |= change or {}
    folder.mkdir(parents=True)
    config = tiny.config | ({"quantization_config": settings} if settings is not None else {})
    (folder / "config.json").write_text(json.dumps(config))
    save(folder / f"{name}.safetensors", {key: given for key, given in tensors.items() if given is not None})
    return values


# Folders by the name of their method: how the matrices are made, config.json's settings, and the model.
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": False}
INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}, "targets": ["Linear"]}},
}
FOLDERS: dict[str, tuple[Scheme, dict[str, Any], Tiny]] = {
    "gptq": (gptq(group=128), GPTQ, SUPER),
    "gptq act-order": (gptq(order="own"), GPTQ | {"group_size": 32, "desc_act": True}, WIDE),
    "awq": (awq(), {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, WIDE),
    "fp8": (fp8((128, 128), suffix="_scale_inv"), FP8, SUPER),
    "w8a8": (int8(), INT8, WIDE),
    "nf4": (nf4(), {"quant_method": "bitsandbytes", "load_in_4bit": True}, SUPER),
}
