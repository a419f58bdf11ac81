"""Folders of quantized weights: the values that each scheme's specification gives, held exactly; hostile ones."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantized_folders as made_by
from close import assert_close
from quantized_folders import Scheme, write
from sporelm.checkpoints import open_model
from sporelm.checkpoints.loader import check_finite
from sporelm.checkpoints.quantized import with_quantized
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.files.safetensors import open_safetensors
from tiny_models import SUPER, WIDE, Tiny

GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
TILED = FP8 | {"weight_block_size": [128, 128]}
BNB = {"quant_method": "bitsandbytes"}
BITNET = {"quant_method": "bitnet"}
OWN = BITNET | {"linear_class": "autobitlinear", "quantization_mode": "offline"}
ONLINE = OWN | {"quantization_mode": "online"}
DOWN = "model.layers.1.mlp.down_proj.weight"


def compressed(form: str, bits: int = 8, **more: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group"} | more
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups, "ignore": ["lm_head"]}


# scheme, what config.json says of it, the formats of its weights, and the model; rows of WIDE are 96 and 160 long
CASES: dict[str, tuple[Scheme, dict[str, Any], set[str], Tiny]] = {
    "gptq": (made_by.gptq(), GPTQ, {"UINT4_32"}, WIDE),
    "gptq groups of 128": (made_by.gptq(group=128), GPTQ | {"group_size": 128}, {"UINT4_128"}, SUPER),
    "gptq groups of 64": (made_by.gptq(group=64), GPTQ | {"group_size": 64}, {"UINT4_64"}, SUPER),
    "gptq one group": (made_by.gptq(group=-1), GPTQ | {"group_size": -1}, {"UINT4_32"}, WIDE),
    "gptq symmetric": (made_by.gptq(symmetric=True), GPTQ | {"sym": True}, {"Q4_0"}, WIDE),
    "gptq v2": (made_by.gptq(version=2), GPTQ | {"checkpoint_format": "gptq_v2"}, {"UINT4_32"}, WIDE),
    "gptq 8 bits": (made_by.gptq(8), GPTQ | {"bits": 8}, {"UINT8_32"}, WIDE),
    "gptq 8 bits symmetric": (made_by.gptq(8, symmetric=True), GPTQ | {"bits": 8, "sym": True}, {"INT8_32"}, WIDE),
    "gptq 3 bits": (made_by.gptq(3), GPTQ | {"bits": 3}, {"UINT4_32"}, WIDE),
    "gptq 2 bits": (made_by.gptq(2), GPTQ | {"bits": 2}, {"UINT4_32"}, WIDE),
    "gptq act-order": (made_by.gptq(order="own"), GPTQ | {"desc_act": True}, {"UINT4_32"}, WIDE),
    "auto-round": (made_by.gptq(), GPTQ | {"quant_method": "auto-round"}, {"UINT4_32"}, WIDE),
    "awq": (made_by.awq(), AWQ, {"UINT4_32"}, WIDE),
    "awq groups of 128": (made_by.awq(128), AWQ | {"group_size": 128}, {"UINT4_128"}, SUPER),
    "fp8": (made_by.fp8(), FP8, {"F8_E4M3_32"}, WIDE),
    "fp8 rows": (made_by.fp8("row"), FP8, {"F8_E4M3_128"}, SUPER),
    "fp8 tiles": (made_by.fp8((128, 128), suffix="_scale_inv"), TILED, {"F8_E4M3_128"}, SUPER),
    "fp8 tiles cut off": (made_by.fp8((128, 128), suffix="_scale_inv"), TILED, {"F8_E4M3_32"}, WIDE),
    "fp8 e5m2": (made_by.fp8(kind="F8_E5M2"), FP8, {"F8_E5M2_32"}, WIDE),
    "w4a16": (made_by.packed(), compressed("pack-quantized", 4), {"Q4_0"}, WIDE),
    "w4a16 zero points": (made_by.packed(symmetric=False), compressed("pack-quantized", 4), {"UINT4_32"}, WIDE),
    "w4a16 tiny scales": (made_by.packed(size=1e-6), compressed("pack-quantized", 4), {"F32"}, WIDE),
    "w4a16 tiny scales act-order": (
        made_by.packed(size=1e-6, order=True),
        compressed("pack-quantized", 4),
        {"F32"},
        WIDE,
    ),
    "w4a16 act-order": (made_by.packed(order=True), compressed("pack-quantized", 4), {"Q4_0"}, WIDE),
    "w8a16 rows": (made_by.packed(8, -1), compressed("pack-quantized"), {"INT8_32"}, WIDE),
    "w8a8": (made_by.int8(), compressed("int-quantized"), {"INT8_32"}, WIDE),
    "w8a8 one scale": (made_by.int8(rows=False), compressed("int-quantized"), {"INT8_32"}, WIDE),
    "compressed fp8": (made_by.fp8("row"), compressed("float-quantized"), {"F8_E4M3_32"}, WIDE),
    "bitnet": (made_by.ternary(), OWN, {"TQ2_0"}, SUPER),
    "bitnet divided": (made_by.ternary(divided=True), BITNET, {"INT8_128"}, SUPER),
    "bitnet short rows": (made_by.ternary(), OWN, {"INT8_32"}, WIDE),
    "bitnet online": (made_by.rounded_online(), ONLINE, {"INT8_32"}, WIDE),
    "llm.int8": (made_by.bnb_int8(), BNB | {"load_in_8bit": True}, {"INT8_32"}, WIDE),
    "nf4": (made_by.nf4(), BNB | {"load_in_4bit": True}, {"NF4"}, SUPER),
    "nf4 plain": (made_by.nf4(double=False), {"load_in_4bit": True}, {"NF4"}, SUPER),
    "nf4 across rows": (made_by.nf4(), BNB, {"F32"}, WIDE),
}


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_the_specification(case: str, tmp_path: Path) -> None:
    scheme, settings, formats, tiny = CASES[case]
    expected = write(tmp_path / "model", tiny, scheme, settings)
    source = open_model(tmp_path / "model")
    quantized = {name for name in expected if "_proj." in name}
    assert set(source.files.tensors) - set(expected) <= {f"{name[:-7]}.bias" for name in quantized}
    found = set()
    for name, values in expected.items():
        stored = source.files.tensor(name)
        info = source.files.tensors[name]
        assert (stored.format.name, stored.shape, stored.nbytes) == (info.type_name, info.shape, info.nbytes)
        assert_close(stored.dequantize(), values, "exact")
        if name in quantized:
            found.add(stored.format.name)
    assert found == formats
    assert bool(source.notes) == ("F32" in formats or case.startswith(("w8a8", "bitnet")))
    source.close()


def test_older_folders_have_a_file_of_their_own(tmp_path: Path) -> None:
    """quantize_config.json (GPTQ) and quant_config.json (AWQ), and a weight file of any name."""
    for name, scheme, values in (
        ("quantize_config.json", made_by.gptq(), {"bits": 4, "group_size": 32, "desc_act": False}),
        ("quant_config.json", made_by.awq(), {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}),
    ):
        folder = tmp_path / name
        expected = write(folder, WIDE, scheme, None, name="gptq_model-4bit-32g")
        (folder / name).write_text(json.dumps(values))
        with open_model(folder).files as files:
            assert_close(files.tensor(DOWN).dequantize(), expected[DOWN], "exact")


def test_weights_not_converted_are_read_as_they_are(tmp_path: Path) -> None:
    """A module with its plain weight is left out by name."""
    plain = {f"{DOWN[:-7]}.{part}": None for part in ("qweight", "qzeros", "scales", "g_idx", "bias")}
    write(tmp_path / "model", WIDE, made_by.gptq(), GPTQ, plain | {DOWN: WIDE.weights()[DOWN]})
    with open_model(tmp_path / "model").files as files:
        assert files.tensor(DOWN).format.name == "F32"
        assert_close(files.tensor(DOWN).dequantize(), WIDE.weights()[DOWN], "exact")


def test_stacks_of_four_bit_floats_become_mxfp4(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    blocks, scales = (random.integers(0, 256, shape, np.uint8) for shape in ((3, 5, 2, 16), (3, 5, 2)))
    scales = scales // 8 + 100
    tensors = {"experts.up_proj_blocks": blocks, "experts.up_proj_scales": scales}
    made_by.save(tmp_path / "model.safetensors", tensors)
    files = with_quantized(open_safetensors(tmp_path), {"quantization_config": {"quant_method": "mxfp4"}})
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(3, 5, 2, 32)
    expected = levels[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
    stored = files.tensor("experts.up_proj")
    assert stored.format.name == "MXFP4"
    assert_close(stored.dequantize(), expected.reshape(3, 5, 64), "exact")


UP = "model.layers.0.mlp.up_proj"  # [160, 96]
WORDS, PLAIN = made_by.gptq(), np.ones((160, 96), np.float32)
REFUSED: dict[str, tuple[Scheme, Any, dict[str, Any], type[ModelError], str]] = {
    "bitnet of another class": (
        made_by.ternary(), BITNET | {"linear_class": "x"}, {}, UnsupportedModel, "linear_class 'x' is not supported",
    ),
    "bitnet with norms": (made_by.ternary(), BITNET | {"use_rms_norm": True}, {}, UnsupportedModel, "use_rms_norm"),
    "bitnet online but some": (
        made_by.rounded_online(), ONLINE | {"modules_to_not_convert": ["x"]}, {}, UnsupportedModel, "for online",
    ),
    "bitnet of several scales": (
        made_by.ternary(), OWN, {f"{UP}.weight_scale": np.ones(2, np.float32)}, ModelFileError, r"it must be \[1\]",
    ),
    "bitnet online of unknown": (
        made_by.rounded_online(), ONLINE, {"x.weight": PLAIN}, UnsupportedModel, "neither a table nor a matrix",
    ),
    "no object": (WORDS, "int4", {}, ModelFileError, "quantization_config is 'int4'; it must be an object"),
    "no method": (WORDS, {"bits": 4}, {}, ModelFileError, "quant_method is missing"),
    "unknown method": (WORDS, {"quant_method": "aqlm"}, {}, UnsupportedModel, "quant_method 'aqlm' is not supported;"),
    "no bits": (WORDS, {"quant_method": "gptq"}, {}, ModelFileError, "bits is missing"),
    "5 bits": (WORDS, GPTQ | {"bits": 5}, {}, UnsupportedModel, "GPTQ with 5 bits is not supported"),
    "other bits": (WORDS, GPTQ | {"bits": 8}, {}, ModelFileError, "zero points of 8 bits take"),
    "layout": (WORDS, GPTQ | {"checkpoint_format": "marlin"}, {}, UnsupportedModel, "'marlin' is not supported"),
    "part missing": (WORDS, GPTQ, {f"{UP}.qzeros": None}, ModelFileError, f"lacks '{UP}.qzeros', a part"),
    "part of another type": (
        WORDS, GPTQ, {f"{UP}.qweight": np.zeros((12, 160), np.float32)}, ModelFileError, "is F32; it must be I32"
    ),
    "part of another shape": (
        WORDS, GPTQ, {f"{UP}.qweight": np.zeros((12, 168), np.int32)}, ModelFileError, r"is \[12, 168\]; to fit"
    ),
    "empty part": (WORDS, GPTQ, {f"{UP}.qweight": np.zeros((0, 160), np.int32)}, ModelFileError, "must not be empty"),
    "words too few": (
        made_by.gptq(3), GPTQ | {"bits": 3}, {f"{UP}.qweight": np.zeros((10, 160), np.int32)},
        ModelFileError, "10 words a column; they do not fit 3 bits",
    ),
    "missing group": (
        WORDS, GPTQ, {f"{UP}.g_idx": np.full(96, 3, np.int32)}, ModelFileError, "holds groups 3 to 3; the weight has"
    ),
    "negative group": (
        WORDS, GPTQ, {f"{UP}.g_idx": np.full(96, -1, np.int32)}, ModelFileError, "holds groups -1 to -1; the weight has"
    ),
    "groups of another size": (
        WORDS, GPTQ | {"group_size": 64}, {f"{UP}.g_idx": None}, ModelFileError, "3 groups; 96 columns in groups of 64"
    ),
    "twice": (WORDS, GPTQ, {f"{UP}.weight": PLAIN}, ModelFileError, "twice: plain and quantized"),
    "awq layout": (made_by.awq(), AWQ | {"version": "gemv"}, {}, UnsupportedModel, "'gemv' is not supported"),
    "awq groups": (made_by.awq(), AWQ | {"group_size": 24}, {}, ModelFileError, "3 groups; 96 columns in groups of 24"),
    "tile": (made_by.fp8(), FP8 | {"weight_block_size": [128]}, {}, ModelFileError, "must be two numbers, rows and"),
    "algorithm": (
        made_by.fp8(), {"quant_method": "modelopt", "quant_algo": "NVFP4"}, {}, UnsupportedModel, "'NVFP4' is not supp"
    ),
    "scales": (
        made_by.fp8("row"), FP8, {f"{UP}.weight_scale": np.ones((7, 3), np.float32)}, ModelFileError, "does not fit"
    ),
    "scales of another type": (
        made_by.fp8(), FP8, {f"{UP}.weight_scale": np.ones((), np.int32)}, ModelFileError, "is I32; it must be F32 or"
    ),
    "packing": (made_by.packed(), compressed("marlin-24", 4), {}, UnsupportedModel, "'marlin-24' is not supported"),
    "rotated": (
        made_by.packed(), compressed("pack-quantized", 4) | {"transform_config": {"config_groups": {"u": {}}}}, {},
        UnsupportedModel, "transform_config .* is not supported",
    ),
    "shape tensor": (
        made_by.packed(), compressed("pack-quantized", 4), {f"{UP}.weight_shape": np.array([160, 1 << 40])},
        ModelFileError, "the packed integers are",
    ),
    "bits of packed": (made_by.packed(), compressed("pack-quantized", 8), {}, UnsupportedModel, "words for 96 columns"),
    "state": (
        made_by.nf4(), BNB, {f"{UP}.weight.quant_state.bitsandbytes__nf4": np.frombuffer(b"{", np.uint8)},
        ModelFileError, "is not readable JSON",
    ),
    "other code": (
        made_by.nf4(), BNB, {f"{UP}.weight.quant_state.bitsandbytes__fp4": np.frombuffer(b"{}", np.uint8)},
        UnsupportedModel, "code 'fp4' is not supported; nf4 is",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_in_one_line(case: str, tmp_path: Path) -> None:
    scheme, settings, change, kind, message = REFUSED[case]
    write(tmp_path / "model", WIDE, scheme, settings, change)
    with pytest.raises(kind, match=message) as caught:
        open_model(tmp_path / "model")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "settings", "part"),
    [(made_by.gptq(), GPTQ, "scales"), (made_by.gptq(8, symmetric=True), GPTQ | {"bits": 8}, "scales"),
     (made_by.gptq(8), GPTQ | {"bits": 8}, "scales"), (made_by.fp8("row"), FP8, "weight_scale"),
     (made_by.nf4(double=False), BNB, "weight.absmax")],
    ids=["nibbles", "signed bytes", "bytes", "fp8", "nf4"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_scales_that_are_not_finite(
    scheme: Scheme, settings: dict[str, Any], part: str, value: str, tmp_path: Path
) -> None:
    write(tmp_path / "good", SUPER, scheme, settings)
    with open_model(tmp_path / "good").files as files:
        info, raw = files.files.tensors[f"{UP}.{part}"], files.files.raw(f"{UP}.{part}")  # type: ignore[union-attr]
        scales = raw.view("<f2" if info.type_name == "F16" else "<f4").reshape(info.shape).copy()
    scales.reshape(-1)[-1] = float(value)
    write(tmp_path / "bad", SUPER, scheme, settings, {f"{UP}.{part}": scales})
    source = open_model(tmp_path / "bad")
    with pytest.raises(ModelFileError, match=f"tensor {UP}.weight holds NaN or infinity"):
        check_finite(source, source.files.tensor(f"{UP}.weight"))


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    codes = np.full((160, 96), 0x7F, np.uint8)
    write(tmp_path / "bad", WIDE, made_by.fp8(), FP8, {f"{UP}.weight": ("F8_E4M3", codes)})
    source = open_model(tmp_path / "bad")
    with pytest.raises(ModelFileError, match=f"tensor {UP}.weight holds NaN or infinity"):
        check_finite(source, source.files.tensor(f"{UP}.weight"))
