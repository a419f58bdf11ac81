"""Absent, null, zero and a default are four different things that a config.json may say."""

from pathlib import Path
from typing import Any

import pytest

from families import CASES, write_case
from hf_folders import tokenizer_json, write_tokenizer
from sporelm.checkpoints import config_from_hf
from sporelm.errors import ModelFileError, UnsupportedModel
from sporelm.tools.hf.from_hf import from_hf

BY_NAME = {case.name: case for case in CASES}
HALVED = ("gptneox", "glm", "glm4", "glm4moe", "phi2", "stablelm", "nemotron", "persimmon", "qwen35", "qwen3next")


def read(name: str, **changes: Any) -> Any:
    """The configuration of a case with other values."""
    return config_from_hf(BY_NAME[name].config | changes, "config.json")


@pytest.mark.parametrize("name", HALVED)
def test_all_of_a_head_is_another_share_than_the_class_takes(name: str) -> None:
    """Families whose heads are rotated in part unless a file says otherwise."""
    usual, whole = read(name), read(name, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 1.0})
    assert usual.rotary < usual.head_dim
    assert whole.rotary == whole.head_dim
    quarter = read(name, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.25})
    assert quarter.rotary == int(quarter.head_dim * 0.25)


def test_gguf_files_say_that_all_of_a_head_is_rotated(tmp_path: Path) -> None:
    case = BY_NAME["gptneox"]
    config = case.config | {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}}
    folder = write_case(tmp_path / "m", type(case)("gptneox", config))
    write_tokenizer(folder, tokenizer_json(case.model.config.vocab))
    entry = from_hf(folder).model.metadata["gptneox.rope.dimension_count"]
    assert entry.value == case.model.config.head_dim


def test_keys_inside_the_rotary_parameters_count_first() -> None:
    inner = {"rope_theta": 500.0, "partial_rotary_factor": 0.5}
    found = read("stablelm", rope_parameters=inner, rope_theta=777.0, partial_rotary_factor=1.0)
    assert (found.rope_theta, found.rotary) == (500.0, found.head_dim // 2)


def test_gpt_neox_reads_no_other_words_than_its_own_outside_them() -> None:
    found = read("gptneox", partial_rotary_factor=1.0, rope_theta=777.0, rotary_pct=0.5, rotary_emb_base=500)
    assert (found.rope_theta, found.rotary) == (500.0, found.head_dim // 2)
    silent = read("gptneox", partial_rotary_factor=1.0, rope_theta=777.0, rotary_pct=None)
    assert silent.rope_theta == BY_NAME["gptneox"].model.config.rope_theta


@pytest.mark.parametrize(
    ("name", "changes", "error", "says"),
    [
        (
            "stablelm",
            {"partial_rotary_factor": 0.0},
            ModelFileError,
            r"they must be pairs \(partial_rotary_factor is 0\)",
        ),
        ("mixtral", {"sliding_window": 0}, ModelFileError, "sliding_window is 0; it must be an integer from 1"),
        ("deepseek3", {"n_group": 2, "topk_group": 0}, ModelFileError, "topk_group is 0; it must be positive"),
        ("mistral4", {"topk_group": 0}, ModelFileError, "topk_group is 0; it must be positive"),
        ("deepseek3", {"routed_scaling_factor": 0.0}, ModelFileError, "routed_scaling_factor is 0"),
        ("mixtral", {"num_experts_per_tok": 0}, ModelFileError, "a token uses 0 of 5 experts"),
        ("ernie-moe", {"moe_norm_min": 1.0}, UnsupportedModel, "moe_norm_min 1.0 is not supported"),
        ("hy-v3", {"num_shared_experts": 0}, ModelFileError, "num_shared_experts is 0"),
    ],
)
def test_zeros_are_not_taken_for_defaults(name: str, changes: dict[str, Any], error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        read(name, **changes)


def test_a_null_flag_is_false() -> None:
    assert read("deepseek3", rope_interleave=None).rope_style == "half"
    assert read("deepseek3").rope_style == "adjacent"


def test_relations_that_cannot_be_name_the_keys() -> None:
    with pytest.raises(ModelFileError, match=r"\(num_attention_heads, num_key_value_heads\)"):
        read("arcee", num_key_value_heads=5)
    with pytest.raises(ModelFileError, match=r"head_dim is missing \(hidden_size, num_attention_heads\)"):
        read("arcee", hidden_size=49)
    with pytest.raises(ModelFileError, match=r"\(num_experts_per_tok, num_local_experts\)"):
        read("mixtral", num_experts_per_tok=9)
