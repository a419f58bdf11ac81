"""Configurations of Ling 3, LongCat-Flash, Youtu-LLM and their kin: allowed and refused values."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from families import EVERY, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.checkpoints import config_from_hf, open_model
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.models.architectures.bailingmoe3 import BailingMoe3Config
from sporelm.models.config import ModelConfig
from sporelm.tools.hf.from_hf import from_hf
from sporelm.tools.hf.to_hf import to_hf
from sporelm.tools.output_file import OutputFile, save_models

BY_NAME = {case.name: case for case in EVERY}
MAKERS = {"architectures": ["BailingMoeV3ForCausalLM"]}


def of_hf(name: str, **change: Any) -> ModelConfig:
    return config_from_hf(BY_NAME[name].config | change, "config.json")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("axk1", {"topk_method": "greedy"}, "topk_method 'greedy' is not supported; noaux_tc is"),
        ("axk2", {"n_group": 4, "topk_group": 2}, "n_group 4 is not supported; None is"),
        ("ling3", {"no_kda_lora": False}, "no_kda_lora False is not supported; True is"),
        ("ling3", {"expert_swiglu_limit_list": [7.0, None]}, "limits of layers without experts are not supported"),
        ("ling3", {"gated_attention_proj_granularity_type": "element_wise"}, "'element_wise' is not supported"),
        ("ling3", {"moe_shared_expert_intermediate_size": 20}, "must be 48, the width of all shared experts; it is 20"),
        (
            "ling3",
            {"q_lora_rank": 20},
            "BailingHybridForCausalLM does not support q_lora_rank 20; BailingMoeV3ForCausal",
        ),
        ("longcat-flash", {"zero_expert_type": "drop"}, "zero_expert_type 'drop' is not supported; identity is"),
        ("youtu", {"mlp_bias": True}, "mlp_bias True is not supported; False is"),
        (
            "youtu",
            {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "norm_topk_prob": True},
            "YoutuForCausalLM with n_routed_experts is not supported",
        ),
    ],
)
def test_options_that_are_not_computed_are_refused(name: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        of_hf(name, **change)


def test_the_rotated_part_of_a_head_is_of_pairs() -> None:
    """Of a whole head an even number may be left nevertheless."""
    with pytest.raises(ModelFileError, match="7 of 7 rotary dimensions of a head of 14 are rotated; a head needs both"):
        of_hf("youtu", qk_rope_head_dim=7, qk_nope_head_dim=7)


@pytest.mark.parametrize(
    ("change", "attention"),
    [
        ({"num_hidden_layers": 5}, {1, 3}),
        (MAKERS | {"num_hidden_layers": 5}, {1, 3, 4}),
        (MAKERS | {"num_hidden_layers": 5, "layer_types": ["linear_attention"] * 4 + ["full_attention"]}, {4}),
    ],
)
def test_which_layers_of_ling_3_are_attention(change: dict[str, Any], attention: set[int]) -> None:
    config = of_hf("ling3", **change)
    assert isinstance(config, BailingMoe3Config)
    assert config.attention_layers == attention


def test_ling_3_has_two_vocabularies() -> None:
    found, config = of_hf("ling3"), dict(BY_NAME["ling3"].config)
    words = {"n_group": "num_expert_group", "num_experts_per_tok": "num_experts_per_token"}
    words |= {"max_position_embeddings": "model_max_length", "num_shared_experts": "n_shared_experts"}
    changed = {words.get(name, name): value for name, value in config.items()}
    rope = {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    changed |= {"head_dim": 8, "linear_head_dim": 16, "partial_rotary_factor": 0.5, "rope_parameters": rope}
    changed["expert_swiglu_limit_list"] = [None, 0]
    assert config_from_hf(changed, "config.json") == found


def test_a_wider_shared_block_is_its_makers_own() -> None:
    experts = of_hf("ling3", **MAKERS, moe_shared_expert_intermediate_size=20).experts
    assert experts is not None
    assert experts.shared_width == 20


def test_longcat_flash_in_the_words_of_transformers() -> None:
    found, config = of_hf("longcat-flash"), dict(BY_NAME["longcat-flash"].config)
    words = {
        "num_layers": "num_hidden_layers",
        "ffn_hidden_size": "intermediate_size",
        "moe_topk": "num_experts_per_tok",
    }
    changed = {words.get(name, name): value for name, value in config.items()}
    assert config_from_hf(changed | {"num_hidden_layers": 4}, "config.json") == found


def test_limits_of_ling_3_go_into_gguf_files_and_back(tmp_path: Path) -> None:
    """transformers leaves them aside, llama.cpp and vLLM do not; a short list has zeros behind."""
    case = BY_NAME["ling3"]
    config = case.config | MAKERS | {"expert_swiglu_limit_list": [0, None, 7.0]}
    place = write_case(tmp_path / "model", replace(case, config=config))
    write_tokenizer(place, tokenizer_json(case.model.config.vocab))
    save_models([OutputFile(tmp_path / "m.gguf", from_hf(place).model)])
    source = open_model(tmp_path / "m.gguf")
    found = source.config
    assert isinstance(found, BailingMoe3Config)
    assert (found.swiglu_limits, found.shared_swiglu_limits) == ((0, 0, 7, 0), (0, 0, 0, 0))
    source.close()
    back = json.loads(to_hf(tmp_path / "m.gguf").texts["config.json"])
    assert (back["expert_swiglu_limit_list"], back["share_expert_swiglu_limit_list"]) == ([0, 0, 7.0, 0], None)
