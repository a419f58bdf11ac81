"""The mixes choose as llama.cpp's quantizer does, on models that meet every rule."""

import json
from pathlib import Path
from typing import Any

import pytest

from mix_models import MODELS, MixModel
from sporelm.quant import FORMATS
from sporelm.quant.ggml_types import GGML_TYPES
from sporelm.quant.quant_mixes import (
    ALIASES,
    MIXES,
    RULES,
    SMALL_BLOCK_FALLBACKS,
    FormatRequest,
    ModelTraits,
    choose_formats,
    find_role,
    fit_format_to_width,
    needs_imatrix,
    sort_tensor_names,
)

GOLDENS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "mix_goldens.json").read_text())
BY_CODE = {code: name for name, code in GOLDENS["codes"].items()}
REQUESTS = {
    "": FormatRequest(),
    "imatrix": FormatRequest(has_imatrix=True),
    "pure": FormatRequest(is_pure=True),
    "output": FormatRequest(output="Q5_0"),
    "embedding": FormatRequest(embedding="Q5_1"),
    "override": FormatRequest(
        override=lambda name: "Q8_0" if "attn_v" in name and name[:6] in ("blk.0.", "blk.1.") else None
    ),
}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_as_llama_cpp_chooses(model: MixModel) -> None:
    shapes, traits = model.shapes(), model.traits
    matrices = [name for name in sort_tensor_names(list(shapes)) if len(shapes[name]) > 1]
    for case, signs in GOLDENS["models"][model.name].items():
        mix, _, wish = case.partition(" ")
        chosen = choose_formats(MIXES[mix], shapes, traits, REQUESTS[wish])
        if signs is None:  # it refuses rows of 96 for Q1_0, types asked for by hand that do not fit, and garbage
            is_garbage = any(needs_imatrix(MIXES[mix], name, choice.format_name) for name, choice in chosen.items())
            assert is_garbage or mix == "Q1_0" or wish in ("output", "embedding"), case
            continue
        expected = {name: BY_CODE[sign] for name, sign in zip(matrices, signs, strict=True)}
        found = {name: chosen[name].format_name if name in chosen else "F16" for name in matrices}
        assert found == expected, case


def test_the_goldens_hold_every_mix() -> None:
    for cases in GOLDENS["models"].values():
        assert {case.partition(" ")[0] for case in cases} == set(MIXES)


def test_tables_name_what_exists() -> None:
    names = {known.name for known in GGML_TYPES.values()}
    assert {mix.main for mix in MIXES.values()} <= names
    assert {rule.format_name for rules in RULES.values() for rule in rules} <= names
    assert {mix for rules in RULES.values() for rule in rules for mix in rule.mixes.split()} <= set(MIXES)
    assert set(SMALL_BLOCK_FALLBACKS) | set(SMALL_BLOCK_FALLBACKS.values()) <= set(FORMATS)
    assert set(ALIASES.values()) <= set(MIXES)
    assert not set(ALIASES) & set(MIXES)
    assert len({mix.file_type for mix in MIXES.values()}) == len(MIXES)


@pytest.mark.parametrize(
    ("format_name", "width", "expected"),
    [
        ("Q4_K", 512, "Q4_K"),
        ("Q4_K", 96, "Q5_0"),
        ("Q6_K", 96, "Q8_0"),
        ("IQ4_XS", 32, "IQ4_NL"),
        ("Q4_K", 40, "F16"),
        ("Q8_0", 40, "F16"),
        ("MXFP4", 40, "F16"),
        ("F16", 7, "F16"),
    ],
)
def test_rows_that_are_not_whole_blocks(format_name: str, width: int, expected: str) -> None:
    assert fit_format_to_width(format_name, width) == expected


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("blk.0.attn_norm.weight", (8, 256)),
        ("blk.0.attn_q.bias", (8, 256)),
        ("blk.0.ffn_gate_inp.weight", (8, 256)),
        ("position_embd.weight", (8, 256)),
        ("blk.0.ssm_conv1d.weight", (8, 256)),
        ("blk.0.attn_q.weight", (256,)),
        ("blk.0.attn_q.weight", (1, 256)),
    ],
)
def test_skipped_tensors(name: str, shape: tuple[int, ...]) -> None:
    assert choose_formats(MIXES["Q4_K_M"], {name: shape}, ModelTraits("llama", 1, 1, 1)) == {}


def test_some_architectures_skip_more() -> None:
    shapes = {"blk.0.attn_q_a.weight": (8, 256), "blk.0.indexer.proj.weight": (8, 256), "output.weight": (8, 256)}
    chosen = choose_formats(MIXES["Q2_K"], shapes, ModelTraits("glm5-next", 1, 1, 1))
    assert {name: choice.format_name for name, choice in chosen.items()} == {
        "output.weight": "Q6_K",
        "blk.0.attn_q_a.weight": "Q8_0",
    }


def test_order_and_roles() -> None:
    names = ["output.weight", "blk.10.a", "blk.9.b", "blk.9.a", "token_embd.weight"]
    assert sort_tensor_names(names) == ["output.weight", "token_embd.weight", "blk.9.a", "blk.9.b", "blk.10.a"]
    assert find_role("blk.3.ffn_down_exps.weight") == "down"
    assert find_role("blk.3.attn_q_norm.weight") == ""
