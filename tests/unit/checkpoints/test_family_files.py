"""Values in families' files: options that would change the result are refused, rows of fused tensors add up."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import EVERY, Case
from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.schema_registry import gguf_schema_for
from sporelm.checkpoints.tensor_names import GGUF, HF, Kind
from sporelm.checkpoints.transforms import TakePart, TakeRows
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel

BY_NAME = {case.name: case for case in EVERY}


@pytest.mark.parametrize(
    ("name", "change", "kind", "message"),
    [
        ("bert", {"position_embedding_type": "relative_key"}, UnsupportedModel, "is not supported; absolute is"),
        ("albert", {"num_hidden_groups": 2}, UnsupportedModel, "num_hidden_groups 2 is not supported; 1 is"),
        ("deberta2", {"conv_kernel_size": 3}, UnsupportedModel, "conv_kernel_size 3 is not supported; 0 is"),
        ("deberta2", {"relative_attention": None}, UnsupportedModel, "relative_attention False is not supported"),
        ("deberta2", {"share_att_key": False}, UnsupportedModel, "share_att_key False is not supported"),
        ("deberta2", {"pos_att_type": "c2p"}, UnsupportedModel, "pos_att_type 'c2p' is not supported; c2p\\|p2c is"),
        ("deberta2", {"norm_rel_ebd": None}, UnsupportedModel, "norm_rel_ebd 'none' is not supported"),
        ("deberta2", {"position_biased_input": True}, UnsupportedModel, "position_biased_input True is not"),
        ("deberta2", {"embedding_size": 24}, UnsupportedModel, "embedding_size must be hidden_size"),
        ("deberta2", {"max_relative_positions": 9}, UnsupportedModel, "up to 9 have 16 buckets"),
        ("deberta2", {"position_buckets": -1}, ModelFileError, "position_buckets is -1"),
        ("t5-encoder", {"feed_forward_proj": "gated-silu"}, UnsupportedModel, "feed_forward_proj 'gated-silu' is not"),
        ("t5-encoder", {"relative_attention_num_buckets": 64}, UnsupportedModel, "num_buckets 64 is not supported"),
        ("t5-encoder", {"relative_attention_max_distance": 64}, UnsupportedModel, "max_distance 64 is not supported"),
        ("megatron-bert", {"is_decoder": True}, UnsupportedModel, "is_decoder True is not supported; False is"),
        ("xlm-roberta-xl", {"pad_token_id": 0}, UnsupportedModel, "pad_token_id must be 1"),
        ("roberta", {"max_position_embeddings": 2}, ModelFileError, "is 2; it must exceed the 2 unused ones"),
        ("electra", {"hidden_act": "relu"}, UnsupportedModel, "hidden_act 'relu' is not supported; gelu is"),
        ("bert-scores", {"id2label": None, "num_labels": 0}, ModelFileError, "num_labels is 0"),
        ("xlm-roberta", {"pad_token_id": 0}, UnsupportedModel, "pad_token_id must be 1"),
        ("gemma", {"attention_bias": True}, UnsupportedModel, "attention_bias True is not supported; False is"),
        ("gemma", {"hidden_act": "relu"}, UnsupportedModel, "hidden_act 'relu' is not supported"),
        ("gemma3", {"rope_local_base_freq": 0}, ModelFileError, "rope_local_base_freq .* is 0; it must be a number"),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            UnsupportedModel,
            "inverse_layer_idx True is not supported",
        ),
        ("gpt2", {"n_positions": 0}, ModelFileError, "n_positions is 0"),
        ("mixtral", {"num_experts_per_tok": 9}, ModelFileError, "a token uses 9 of 5 experts"),
        ("phi3", {"partial_rotary_factor": 0.05}, ModelFileError, "cannot rotate 0 of a head's 8 dimensions"),
        ("qwen2moe", {"mlp_only_layers": ["0"]}, ModelFileError, "it must be a list of layer numbers"),
        ("smollm3", {"no_rope_layers": [1]}, ModelFileError, "must be 0 or 1 for each of 4 layers"),
        (
            "cohere2",
            {"sliding_window": None},
            UnsupportedModel,
            "no layer has a window",
        ),
        ("falcon-new", {"parallel_attn": False}, UnsupportedModel, "not supported with new_decoder_architecture"),
        ("mpt", {"attn_config": {"prefix_lm": True}}, UnsupportedModel, "prefix_lm True is not supported; False is"),
        ("mpt", {"attn_config": [8]}, ModelFileError, "attn_config must be an object"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, UnsupportedModel, "True is not supported"),
        ("glm", {"position_encoding_2d": True}, UnsupportedModel, "position_encoding_2d True is not supported"),
        ("internlm", {"rotary": {"base": 5e5, "type": "linear"}}, UnsupportedModel, "type origin and dynamic are"),
        ("internlm3", {"qkv_bias": True}, UnsupportedModel, "qkv_bias and bias differ"),
        ("hunyuan", {"rope_scaling": {"type": "dynamic", "alpha": "x"}}, ModelFileError, "alpha is 'x'"),
        ("ministral3", {"rope_parameters": {"llama_4_scaling_beta": 0.1}}, UnsupportedModel, "needs YaRN's original"),
        ("ministral3", {"sliding_window": 64}, UnsupportedModel, "sliding_window 64 is not supported"),
        ("bamba", {"rope_parameters": {"partial_rotary_factor": 0.25}}, UnsupportedModel, "Bamba rotates half of each"),
        ("bamba", {"attn_layer_indices": ["1"]}, ModelFileError, "it must be a list of layer numbers"),
        ("plamo", {"n_shared_head": 0}, ModelFileError, "n_shared_head is 0; it must divide the number of heads"),
        ("zamba2", {"tie_word_embeddings": False}, UnsupportedModel, "tie_word_embeddings False is not supported"),
        ("granite-hybrid", {"partial_rotary_factor": 0.5}, UnsupportedModel, "4 of a head's 8 dimensions are rotated"),
        ("gptneox", {"hidden_act": ["gelu"]}, ModelFileError, "hidden_act is .* must be text"),
        ("gptneox", {"hidden_act": "relu"}, UnsupportedModel, "hidden_act 'relu' is not supported; gelu, gelu_pytorch"),
        ("minicpm", {"sparse_config": {"topk": 64}}, UnsupportedModel, "sparse_config .* is not supported; None is"),
        ("minicpm", {"num_experts": 8}, UnsupportedModel, "num_experts 8 is not supported; 0 is"),
        ("olmo2", {"per_layer_config": {"1": {"head_dim": 4}}}, UnsupportedModel, "per_layer_config .* for 'olmo2'"),
        (
            "gemma4-tied-values",
            {"per_layer_config": {"2": {"intermediate_size": 8}}},
            UnsupportedModel,
            "per_layer_config .* is not supported for 'gemma4_text'",
        ),
        ("glm", {"rope_ratio": 10**400}, ModelFileError, "rope_theta is 1000"),
        ("lfm2", {"intermediate_size": 10**400}, ModelFileError, "intermediate_size is 1000"),
        (
            "minicpm3",
            {"num_hidden_layers": 10**400, "scale_depth": None},
            ModelFileError,
            "num_hidden_layers is 1000",
        ),
        ("olmo", {"clip_qkv": -1.0}, ModelFileError, "clip_qkv is -1.0; it must be a number from"),
        ("phi2", {"tie_word_embeddings": True}, UnsupportedModel, "tie_word_embeddings True is not supported"),
        ("starcoder2", {"use_bias": False}, UnsupportedModel, "use_bias False is not supported"),
    ],
)
def test_options_are_refused(name: str, change: dict[str, Any], kind: type[ModelError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        config_from_hf(BY_NAME[name].config | change, "config.json")
    assert "\n" not in str(caught.value)


def test_gemma4_in_records_of_layers() -> None:
    """As transformers 5.23 writes what it reads: numbers of layers are padded."""
    kinds = (["sliding_attention"] * 5 + ["full_attention"]) * 2
    given = BY_NAME["gemma4-tied-values"].config | {"num_hidden_layers": 12, "layer_types": kinds}
    record = {"head_dim": given["global_head_dim"], "num_key_value_heads": given["num_global_key_value_heads"]}
    without = {key: value for key, value in given.items() if "global" not in key}
    found = config_from_hf(without | {"per_layer_config": {"05": record, "11": record}}, "config.json")
    assert found == config_from_hf(given, "config.json")
    alike = {"global_head_dim": given["head_dim"], "num_global_key_value_heads": None}
    found = config_from_hf(without | {"per_layer_config": {}}, "config.json")  # no layer differs
    assert found == config_from_hf(given | alike, "config.json")
    for wrong in ({"05": record}, {"05": record, "11": record | {"head_dim": 8}}, {"5" * 9: record, "x": record}):
        with pytest.raises(UnsupportedModel, match="per_layer_config"):
            config_from_hf(without | {"per_layer_config": wrong}, "config.json")


def test_internlm_1_says_its_rotary_base_in_words_of_its_own() -> None:
    values = {key: value for key, value in BY_NAME["internlm"].config.items() if key != "rope_theta"}
    found = [config_from_hf({**values, **more}, "x") for more in ({}, {"rotary": {"base": 5e5, "type": "dynamic"}})]
    assert [config.rope_theta for config in found] == [10000.0, 500000.0]


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_phi3_calls_longrope_by_its_first_name(key: str) -> None:
    given = BY_NAME["phi3-longrope"].config
    scaling = {name: value for name, value in given["rope_scaling"].items() if "type" not in name}
    found = config_from_hf(given | {"rope_scaling": scaling | {key: "su"}}, "config.json")
    assert found == config_from_hf(given, "config.json")


KEYS = [(case, key) for case in EVERY if case.config["architectures"] for key in (*case.config, "layer_types")]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(KEYS), ANYTHING)
def test_any_value_is_taken_or_refused_in_one_line(chosen: tuple[Case, str], value: Any) -> None:
    case, key = chosen
    refusal = ""
    try:
        config_from_hf(case.config | {key: value}, "config.json")
    except ModelError as reason:
        refusal = str(reason)
    assert "\n" not in refusal
    assert len(refusal) < 400


@pytest.mark.parametrize("kind", [GGUF, HF])
@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_each_row_of_a_tensor_belongs_to_one_parameter(case: Case, kind: Kind) -> None:
    schema = gguf_schema_for(case.schema) if kind == GGUF else case.schema
    mapping = schema.resolve(case.model.params(), case.model.config)
    shapes = mapping.source_shapes()
    for name, group in mapping.by_source.items():
        rows = []
        for tensor in group:
            assert tensor.source_shape == shapes[name] or tensor.cut_index is not None
            cut = None if tensor.cut_index is None else tensor.transforms[tensor.cut_index]
            if isinstance(cut, TakeRows):
                assert len(cut.index) == cut.loaded_shape[cut.axis]
                rows.append(cut.index)
            else:
                rows.append(np.array([cut.index]) if isinstance(cut, TakePart) else np.zeros(1, int))
        every = np.sort(np.concatenate(rows))
        assert np.array_equal(every, np.arange(len(every))), name
