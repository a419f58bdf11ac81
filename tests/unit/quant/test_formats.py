"""Number formats: bit-exact against the gguf package, and against their own definitions."""

import numpy as np
import pytest

from sporelm.errors import OpError, UnsupportedModel
from sporelm.quant import FORMATS, Q4_1, Q8_0, dequantize_tensor, format_of, quantize_tensor
from sporelm.quant.ggml_types import GGML_TYPES, ggml_type_name

EVERY = sorted(FORMATS)
BLOCKED = [name for name in EVERY if FORMATS[name].values > 1]


def awkward_values(rng: np.random.Generator, blocks: int, values: int) -> np.ndarray:
    """float32 [blocks, values] with wide scales, halves, zeros, constant and tiny blocks."""
    x = rng.standard_normal((blocks, values)).astype(np.float32) * np.exp2(rng.integers(-12, 12, (blocks, 1))).astype(
        np.float32
    )
    x[0] = 0
    x[1] = 3.25
    x[2] = np.arange(values) - 15.5
    x[3] = -7
    x[4] = (np.arange(values) % 16) / 2
    return x


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", EVERY)
def test_dequantize_is_bit_exact_with_gguf(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    number_format = format_of(name)
    blocks = np.random.default_rng(3).integers(0, 256, (517, number_format.nbytes), dtype=np.uint8)
    for offset, width in number_format.words:  # finite scales
        blocks[:, offset + width - 1] &= 0x3B
    expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]).reshape(517, -1)
    assert same_bits(number_format.dequantize(blocks), np.ascontiguousarray(expected, np.float32))


@pytest.mark.parametrize("name", [name for name in EVERY if FORMATS[name].values <= 32])  # it writes no K-quants
def test_quantize_is_bit_exact_with_gguf(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    number_format = format_of(name)
    x = awkward_values(np.random.default_rng(5), 640, 32)
    expected = gguf.quantize(x, gguf.GGMLQuantizationType[name]).view(np.uint8).reshape(-1, number_format.nbytes)
    assert same_bits(quantize_tensor(number_format, x), np.ascontiguousarray(expected))


@pytest.mark.parametrize("name", EVERY)
def test_block_sizes_match_the_table(name: str) -> None:
    number_format = format_of(name)
    assert GGML_TYPES[number_format.ggml_id] == (name, number_format.values, number_format.nbytes)


def test_type_table_matches_gguf() -> None:
    gguf = pytest.importorskip("gguf")
    theirs = {
        kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind])
        for kind in gguf.GGMLQuantizationType
        if kind.name != "Q8_1"  # 36 bytes in ggml; the gguf package still has the older 40
    }
    assert {key: tuple(GGML_TYPES[key]) for key in theirs} == theirs


def test_q8_0_rounds_halves_away_from_zero() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, :5] = [127, 0.5, 1.5, -2.5, 0.49999997]
    assert Q8_0.quantize(x)[0, 2:7].view(np.int8).tolist() == [127, 1, 2, -3, 0]


@pytest.mark.parametrize("name", EVERY)
def test_swapping_twice_changes_nothing(name: str) -> None:
    number_format = format_of(name)
    blocks = np.random.default_rng(1).integers(0, 256, (9, number_format.nbytes), dtype=np.uint8)
    swapped = number_format.swapped(blocks)
    assert not np.array_equal(swapped, blocks)
    assert np.array_equal(number_format.swapped(swapped), blocks)


def test_swapped_f32_is_the_big_endian_number() -> None:
    big = np.array([1.5, -2.0], ">f4").view(np.uint8).reshape(2, 4)
    assert format_of("F32").dequantize(format_of("F32").swapped(big)).ravel().tolist() == [1.5, -2.0]


@pytest.mark.parametrize("name", EVERY)
def test_whole_tensors_equal_their_chunks(name: str) -> None:
    number_format = format_of(name)
    x = np.random.default_rng(2).standard_normal((11, 40_000 // 256 * 256)).astype(np.float32)
    blocks = quantize_tensor(number_format, x)
    values = dequantize_tensor(number_format, blocks, x.shape)
    assert values.shape == x.shape
    assert same_bits(number_format.dequantize(blocks[-50:]).ravel(), values.ravel()[-50 * number_format.values :])


def test_formats_are_found_by_name_and_id() -> None:
    assert format_of("q4_1") is format_of(3) is Q4_1
    assert {name: f.activation for name, f in FORMATS.items()} == {
        "F32": "float",
        "F16": "float",
        "BF16": "float",
        "Q4_0": "int8/32",
        "Q4_1": "int8/32",
        "Q5_0": "int8/32",
        "Q5_1": "int8/32",
        "Q8_0": "int8/32",
        "Q4_K": "int8/256",
        "Q5_K": "int8/256",
        "Q6_K": "int8/256",
    }


def test_unknown_formats_are_named_in_the_error() -> None:
    names = "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16"
    with pytest.raises(UnsupportedModel, match=rf"Q2_K \(10\) is not supported yet; supported: {names}"):
        format_of(10)
    with pytest.raises(UnsupportedModel, match="'int3'"):
        format_of("int3")
    assert ggml_type_name(4) == "Q4_2 (4)"
    assert ggml_type_name(999) == "unknown (999)"


def test_sizes_that_do_not_fit_are_errors() -> None:
    with pytest.raises(OpError, match="rows of 33 values"):
        Q8_0.tensor_nbytes((2, 33))
    with pytest.raises(OpError, match="needs 68 uint8 bytes, got 34"):
        dequantize_tensor(Q8_0, np.zeros(34, np.uint8), (2, 32))
    with pytest.raises(OpError, match="NaN or infinity"):
        quantize_tensor(Q8_0, np.full((1, 32), np.nan, np.float32))


@pytest.mark.parametrize("name", BLOCKED)
def test_numbers_that_share_a_scale_must_be_finite(name: str) -> None:
    number_format = format_of(name)
    for bad in (np.nan, np.inf, -np.inf):
        x = np.zeros((2, number_format.values), np.float32)
        x[1, -1] = bad
        with pytest.raises(OpError, match=f"{name} cannot hold NaN or infinity"):
            quantize_tensor(number_format, x)


@pytest.mark.parametrize("name", BLOCKED)
@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_scales_that_are_not_finite_show_in_the_values_without_a_warning(name: str, scale: float) -> None:
    number_format = format_of(name)
    blocks = np.zeros((1, number_format.nbytes), np.uint8)
    for offset, width in number_format.words:
        if width == 2:
            blocks[0, offset : offset + 2] = np.array([scale], "<f2").view(np.uint8)
    assert not np.isfinite(number_format.dequantize(blocks)).any()
    assert not np.isfinite(dequantize_tensor(number_format, blocks, (number_format.values,))).any()


def test_big_endian_blocks_hold_halves_and_words_in_reverse() -> None:
    for name, moved in {
        "Q4_0": [1, 0],
        "Q5_0": [1, 0, 5, 4, 3, 2],
        "Q5_1": [1, 0, 3, 2, 7, 6, 5, 4],
        "Q4_K": [1, 0, 3, 2],
        "Q5_K": [1, 0, 3, 2],
        "Q6_K": [*range(208), 209, 208],
    }.items():
        number_format = format_of(name)
        order = [*moved, *range(len(moved), number_format.nbytes)]
        block = np.arange(number_format.nbytes, dtype=np.uint8)[None]
        assert number_format.swapped(block)[0].tolist() == order
