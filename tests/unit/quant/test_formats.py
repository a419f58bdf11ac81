"""Number formats: bit-exact against the gguf package, and against their own definitions."""

import numpy as np
import pytest

from sporelm.errors import OpError, UnsupportedModel
from sporelm.quant import FORMATS, Q4_1, Q8_0, dequantize_tensor, format_of, quantize_tensor
from sporelm.quant.ggml_types import GGML_TYPES, ggml_type_name

EVERY = sorted(FORMATS)
BLOCKED = [name for name in EVERY if FORMATS[name].values > 1]
WRITTEN = [name for name in EVERY if FORMATS[name].can_quantize]
READ_ONLY = ["I16", "I32", "I64", "I8", "IQ1_M", "IQ1_S", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ3_S", "IQ3_XXS"]
NOT_READ_BY_GGUF = {"F64", "I8", "I16", "I32", "I64", "Q8_1", "Q8_K", "Q1_0", "Q2_0"}
WRITTEN_BY_GGUF = ("BF16", "F16", "F32", "MXFP4", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0")


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


def blocks_of(name: str, n: int) -> np.ndarray:
    """Blocks of any bits, but with scales that are finite: uint8 [n, nbytes]."""
    blocks = np.random.default_rng(3).integers(0, 256, (n, FORMATS[name].nbytes), dtype=np.uint8)
    for offset, width in FORMATS[name].words:
        blocks[:, offset + width - 1] &= 0x3B
    return blocks


@pytest.mark.parametrize("name", [name for name in EVERY if name not in NOT_READ_BY_GGUF])
def test_dequantize_is_bit_exact_with_gguf(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    number_format = format_of(name)
    blocks = blocks_of(name, 517)
    with np.errstate(over="ignore"):
        expected = gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]).reshape(517, -1)
    assert same_bits(number_format.dequantize(blocks), np.ascontiguousarray(expected, np.float32))


@pytest.mark.parametrize("name", WRITTEN_BY_GGUF)
def test_quantize_is_bit_exact_with_gguf(name: str) -> None:
    gguf = pytest.importorskip("gguf")
    number_format = format_of(name)
    x = awkward_values(np.random.default_rng(5), 640, max(32, number_format.values))
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
def test_byteswap_twice_changes_nothing(name: str) -> None:
    number_format = format_of(name)
    blocks = np.random.default_rng(1).integers(0, 256, (9, number_format.nbytes), dtype=np.uint8)
    swapped = number_format.byteswap(blocks)
    assert np.array_equal(swapped, blocks) == (not number_format.words)
    assert np.array_equal(number_format.byteswap(swapped), blocks)


def test_byteswapped_f32_is_the_big_endian_number() -> None:
    big = np.array([1.5, -2.0], ">f4").view(np.uint8).reshape(2, 4)
    assert format_of("F32").dequantize(format_of("F32").byteswap(big)).ravel().tolist() == [1.5, -2.0]


@pytest.mark.parametrize("name", EVERY)
def test_whole_tensors_equal_their_chunks(name: str) -> None:
    number_format = format_of(name)
    x = np.random.default_rng(2).standard_normal((11, 40_000 // 256 * 256)).astype(np.float32)
    blocks = quantize_tensor(number_format, x) if name in WRITTEN else blocks_of(name, x.size // number_format.values)
    values = dequantize_tensor(number_format, blocks, x.shape)
    assert values.shape == x.shape
    assert same_bits(number_format.dequantize(blocks[-50:]).ravel(), values.ravel()[-50 * number_format.values :])


def test_formats_are_found_by_name_and_id() -> None:
    assert format_of("q4_1") is format_of(3) is Q4_1


def test_unknown_formats_are_named_in_the_error() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"Q4_2 \(4\) is not supported yet; supported: F32, F16, Q4_0, .*, Q2_0$"
    ):
        format_of(4)
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


@pytest.mark.parametrize("name", [name for name in BLOCKED if name in WRITTEN])
def test_numbers_that_share_a_scale_must_be_finite(name: str) -> None:
    number_format = format_of(name)
    for bad in (np.nan, np.inf, -np.inf):
        x = np.zeros((2, number_format.values), np.float32)
        x[1, -1] = bad
        with pytest.raises(OpError, match=f"{name} cannot hold NaN or infinity"):
            quantize_tensor(number_format, x)


# MXFP4 and NVFP4 have scales that are always finite; IQ1_M's lies in pieces.
@pytest.mark.parametrize("name", [name for name in BLOCKED if name not in ("MXFP4", "NVFP4", "IQ1_M")])
@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_scales_that_are_not_finite_show_in_the_values_without_a_warning(name: str, scale: float) -> None:
    number_format = format_of(name)
    blocks = np.zeros((1, number_format.nbytes), np.uint8)
    for offset, width in number_format.words if name in WRITTEN else number_format.words[:1]:
        if width == 2 or offset == 0:
            blocks[0, offset : offset + width] = np.array([scale], f"<f{width}").view(np.uint8)
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
        "Q2_K": [*range(80), 81, 80, 83, 82],
        "Q3_K": [*range(108), 109, 108],
        "IQ4_XS": [1, 0, 3, 2],
        "IQ1_M": [*range(48), 49, 48, 51, 50, 53, 52, 55, 54],
        "TQ1_0": [*range(52), 53, 52],
        "Q8_K": [3, 2, 1, 0, *range(4, 260), *(byte ^ 1 for byte in range(260, 292))],
    }.items():
        number_format = format_of(name)
        order = [*moved, *range(len(moved), number_format.nbytes)]
        block = np.arange(number_format.nbytes).astype(np.uint8)[None]
        assert number_format.byteswap(block)[0].tolist() == [byte & 255 for byte in order]


@pytest.mark.parametrize("name", READ_ONLY)
def test_read_only_formats_are_rejected(name: str) -> None:
    number_format = format_of(name)
    assert not number_format.can_quantize
    x = np.zeros((1, number_format.values), np.float32)
    reason = "holds integers" if name.startswith("I") and name[1:].isdigit() else "needs an importance matrix"
    with pytest.raises(OpError, match=f"{name} is read-only: it {reason}.* Use one of F32, .*, Q6_K"):
        quantize_tensor(number_format, x)
    with pytest.raises(OpError, match="this number format is read-only"):
        number_format.quantize(x)


def test_only_integers_and_codebooks_are_read_only() -> None:
    assert sorted(set(EVERY) - set(WRITTEN)) == READ_ONLY


@pytest.mark.parametrize(
    ("name", "numbers"), [("I8", "<i1"), ("I16", "<i2"), ("I32", "<i4"), ("I64", "<i8"), ("F64", "<f8")]
)
def test_plain_numbers_are_what_numpy_makes_of_them(name: str, numbers: str) -> None:
    blocks = np.random.default_rng(7).integers(0, 256, (500, np.dtype(numbers).itemsize), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = blocks.view(numbers).astype(np.float32)
    assert np.array_equal(format_of(name).dequantize(blocks), expected, equal_nan=True)


def test_f64_holds_every_float32() -> None:
    x = np.array([[1.5, -0.0, np.inf, -1e-45, np.float32(0.1)]], np.float32)
    assert quantize_tensor(format_of("F64"), x).view("<f8").ravel().tolist() == x[0].astype(float).tolist()
    assert same_bits(dequantize_tensor(format_of("F64"), quantize_tensor(format_of("F64"), x), x.shape), x)


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan])
def test_iq1_m_shows_a_scale_in_pieces_that_is_not_finite(scale: float) -> None:
    blocks = np.zeros((1, 56), np.uint8)
    bits = int(np.array(scale, "<f2").view("<u2"))
    blocks[0, 48:].view("<u2")[:] = [(bits >> shift & 15) << 12 for shift in (0, 4, 8, 12)]
    assert not np.isfinite(format_of("IQ1_M").dequantize(blocks)).any()


def test_scales_of_fp4_formats_at_their_ends() -> None:
    mxfp4 = np.full((4, 17), 0x22, np.uint8)  # code 2 is 1.0
    mxfp4[:, 0] = [0, 1, 127, 255]
    assert format_of("MXFP4").dequantize(mxfp4)[:, 0].tolist() == [2.0**-127, 2.0**-126, 1.0, np.inf]
    nvfp4 = np.full((1, 36), 0x22, np.uint8)
    nvfp4[0, :4] = [0x01, 0x38, 0x7E, 0x7F]
    assert format_of("NVFP4").dequantize(nvfp4)[0, ::16].tolist() == [2.0**-9, 1.0, 448.0, 0.0]
