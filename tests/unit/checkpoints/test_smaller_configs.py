"""Configurations of families that are others with a part changed: what is refused, and what is read as what."""

from typing import Any

import numpy as np
import pytest

from families import CASES
from sporelm.checkpoints import config_from_gguf, config_from_hf
from sporelm.checkpoints.schema_registry import schemas_for
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.models.config import ModelConfig

BY_NAME = {case.name: case for case in CASES}
NORMED = "moe_normalize_expert_weights"


@pytest.mark.parametrize(
    ("name", "change", "kind", "message"),
    [
        ("apertus", {"qk_norm": False}, UnsupportedModel, "qk_norm False is not supported; True is"),
        ("jamba", {"mamba_inner_layernorms": False}, UnsupportedModel, "mamba_inner_layernorms False is not supported"),
        ("mimo2", {"scoring_func": "softmax"}, UnsupportedModel, "scoring_func 'softmax' is not supported; sigmoid is"),
        ("dbrx", {"ffn_config": {NORMED: 2.0}}, UnsupportedModel, f"{NORMED} 2.0 with ffn_act_fn .* is not supported"),
        ("dbrx", {"ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, UnsupportedModel, "ffn_act_fn .*gelu"),
        ("dbrx", {"attn_config": [1]}, UnsupportedModel, r"attn_config must be an object \(got \[1\]\)"),
        ("exaone", {"activation_function": "gelu"}, UnsupportedModel, "activation_function 'gelu' is not supported"),
        (
            "hy-v3",
            {"mlp_layer_types": ["sparse", "dense", "sparse"]},
            UnsupportedModel,
            "dense layers first, then sparse ones",
        ),
        ("mistral4", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, UnsupportedModel, "needs YaRN's original"),
        ("opt", {"activation_function": "swish"}, UnsupportedModel, "activation_function 'swish' is not supported"),
        ("opt", {"word_embed_proj_dim": 0}, ModelFileError, "word_embed_proj_dim is 0"),
        (
            "cohere-compass",
            {"rope_parameters": {"full_attention": None}},
            UnsupportedModel,
            "rope_parameters lack sliding_attention, which is not supported",
        ),
        (
            "cohere-compass",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            UnsupportedModel,
            "rope_parameters of full_attention are .* which is not supported",
        ),
        (
            "cohere-compass",
            {"sliding_window": None},
            UnsupportedModel,
            "layers are sliding_attention, but sliding_window is null",
        ),
        ("flint", {"sliding_window": None}, UnsupportedModel, "sliding_window is null, so no layer would have"),
        (
            "flint",
            {"mlp_only_layers": [-1]},
            ModelFileError,
            r"mlp_only_layers is \[-1\]; it must be a list of layer numbers",
        ),
    ],
)
def test_refused(name: str, change: dict[str, Any], kind: type[ModelError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        config_from_hf(BY_NAME[name].config | change, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("window", [None, 9])
def test_exaone_4_of_full_layers_is_rotated_only_without_a_window(window: int | None) -> None:
    """As in transformers; a GGUF file has no window in either case."""
    change = {"layer_types": ["full_attention"] * 64, "num_hidden_layers": 64, "sliding_window": window}
    found = config_from_hf(BY_NAME["exaone4"].config | change, "config.json")
    schema, _ = schemas_for(found)
    assert schema.find_unsupported(found) == ("none of its layers has positions" if window else "")


def test_mistral_4_inside_of_mistral_3() -> None:
    """Its folders have the class of Mistral Small 3.1 around another text model."""
    alone = BY_NAME["mistral4"].config
    inner = {key: value for key, value in alone.items() if key != "architectures"}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": inner}
    assert config_from_hf(whole, "config.json") == config_from_hf(alone, "config.json")


@pytest.mark.parametrize("marks", [[1, 0], "101", 3, [[1], 0, 1], ["a"] * 3])
def test_which_layers_are_rotated_in_gguf_files(marks: Any) -> None:
    numbers = {"block_count": 3, "embedding_length": 48, "feed_forward_length": 88, "attention.head_count": 6}
    numbers |= {"context_length": 256, "attention.layer_norm_epsilon": 1e-5, "attention.sliding_window": 9}
    numbers |= {"attention.sliding_window_pattern": [True, False, True]}
    shapes = {"token_embd.weight": (131, 48)}

    def read(marks: Any) -> ModelConfig:
        values = {f"cohere_compass_text.{key}": value for key, value in numbers.items()}
        values |= {"general.architecture": "cohere_compass_text", "cohere_compass_text.attention.rope_pattern": marks}
        return config_from_gguf(values, shapes, "m.gguf")

    assert read(np.array([True, False, True])).nope_layers == {1}
    with pytest.raises(UnsupportedModel, match=r"rope_pattern is .* it must be a list of 0 or 1 for the 3 layers"):
        read(marks)
