"""Values in files of the decoders in tests/families/classic.py: the allowed ones, and refusals in one line."""

from typing import Any

import numpy as np
import pytest

from families import EVERY
from families.classic import block
from sporelm.checkpoints import config_from_hf
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.per_layer_shapes import with_gguf_lists
from sporelm.errors import ModelError, ModelFileError, UnsupportedModel
from sporelm.models.layer_shapes import LayerShapesConfig

BY_NAME = {case.name: case for case in EVERY}
LAYERS = [block(3, 4.0)] * 5
SINKS = {"attention": {"n_heads_in_group": 3, "num_sink_tokens": 4}, "ffn": {"ffn_mult": 1.0}}
LINEAR = {"attention": {"n_heads_in_group": 3}, "ffn": {"replace_with_linear": True}}


@pytest.mark.parametrize(
    ("name", "change", "kind", "message"),
    [
        ("arctic", {"moe_layer_frequency": 2}, UnsupportedModel, "moe_layer_frequency 2 is not supported; 1 is"),
        ("arctic", {"num_experts_per_tok": 1}, UnsupportedModel, "1 expert per token is not supported"),
        ("bitnet", {"hidden_act": "gelu"}, UnsupportedModel, "hidden_act 'gelu' is not supported; silu, relu2 are"),
        ("codegen", {"n_head": 6}, UnsupportedModel, "n_head is 6; multiples of 4 are supported"),
        ("codegen", {"auto_map": {"AutoModel": "x"}}, UnsupportedModel, "custom code, as in CodeGen 2"),
        ("codeshell", {"group_query_attention": False}, UnsupportedModel, "group_query_attention False"),
        ("codeshell", {"position_embedding_type": "learned"}, UnsupportedModel, "'learned' is not supported; rope is"),
        ("deci", {"block_configs": [*LAYERS, SINKS]}, UnsupportedModel, "num_sink_tokens 4 is not supported"),
        ("deci", {"block_configs": [*LAYERS, LINEAR]}, UnsupportedModel, "replace_with_linear True is not supported"),
        ("deci", {"block_configs": LAYERS}, ModelFileError, "for each layer"),
        ("deci", {"block_configs": [*LAYERS, {"ffn": {}}]}, ModelFileError, "it must have attention and ffn"),
        (
            "deci",
            {"block_configs": [*LAYERS, block(4, 1.0)]},
            ModelFileError,
            "6 query heads do not divide into groups of 4",
        ),
        ("deci-odd-tied", {"num_key_value_heads_per_layer": "x"}, ModelFileError, "must be a number for each layer"),
        ("flex-olmo", {"num_experts_per_tok": 9}, ModelFileError, "a token uses 9 of 5 experts"),
        ("gpt-neox-japanese", {"intermediate_multiple_size": "4"}, ModelFileError, "intermediate_multiple_size is '4'"),
        ("jais", {"position_embedding_type": "learned"}, UnsupportedModel, "'learned' is not supported; alibi is"),
        ("jais", {"alibi_scaling": {"type": "linear"}}, UnsupportedModel, "alibi_scaling .* is not supported"),
        ("jais", {"mup_width_scale": 0}, ModelFileError, "mup_width_scale is 0"),
        ("maincoder", {"use_qk_norm": False}, UnsupportedModel, "use_qk_norm False is not supported"),
        ("modern-bert-decoder", {"norm_bias": True}, UnsupportedModel, "norm_bias True is not supported"),
        ("nanochat", {"hidden_act": "silu"}, UnsupportedModel, "hidden_act 'silu' is not supported; relu2 is"),
        ("openelm", {"ffn_multipliers": 2.0}, ModelFileError, "it must be a number for each layer"),
        ("openelm", {"num_kv_heads": [2, 3]}, ModelFileError, "for each layer"),
        (
            "openelm",
            {"num_kv_heads": [2, 0, 2]},
            ModelFileError,
            "list of integers from 1 to [0-9]+, one for each layer",
        ),
        ("openelm", {"num_kv_heads": [2, 4, 2]}, ModelFileError, "not a multiple of 4 KV heads"),
        ("openelm", {"normalize_qk_projections": False}, UnsupportedModel, "normalize_qk_projections False"),
        ("vaultgemma", {"attention_bias": True}, UnsupportedModel, "attention_bias True is not supported"),
        ("xglm", {"add_cross_attention": True}, UnsupportedModel, "add_cross_attention True is not supported"),
    ],
)
def test_refused_in_one_line(name: str, change: dict[str, Any], kind: type[ModelError], message: str) -> None:
    config = {**BY_NAME[name].config, **change}
    with pytest.raises(kind, match=message) as caught:
        config_from_hf(config, "config.json")
    assert "\n" not in str(caught.value)


def test_lists_of_metadata_become_the_shapes_of_layers() -> None:
    """The numbers are those of the layer with most heads that has key heads too."""
    values = {
        "attention.head_count": np.array([8, 8, 0, 4]),
        "attention.head_count_kv": [2, 0, 0, 4],
        "feed_forward_length": [256, 512, 0, 256],
    }
    found = with_gguf_lists(ConfigValues(values, "test"))
    assert [found.get(key) for key in values] == [8, 2, 512]
    assert found.get("layer_heads") == [8, 8, 0, 4]
    mixed = ConfigValues({"attention.head_count": 8, "attention.head_count_kv": [2, 1]}, "test")
    assert with_gguf_lists(mixed).get("attention.head_count") == 8


def test_a_layer_of_block_configs_that_says_nothing_has_nothing() -> None:
    blocks = [*LAYERS, {"attention": {}, "ffn": {}}]
    config = config_from_hf({**BY_NAME["deci"].config, "block_configs": blocks}, "config.json")
    assert isinstance(config, LayerShapesConfig)
    last = config.for_layer(config.layers - 1)
    assert (last.heads, last.kv_heads, last.ffn) == (0, 0, 0)


def test_a_layer_left_out_keeps_rows_as_they_are() -> None:
    model = BY_NAME["deci"].model
    assert isinstance(model.config, LayerShapesConfig)
    left = model.layers[3]
    assert (left.params(), left.memory()) == ([], ())
    rows = np.ones((2, 48), np.float32)
    assert left(rows, None, {}) is rows


def test_the_first_folders_of_refact_hold_keys_and_gates_apart() -> None:
    case = BY_NAME["refact"]
    held = [f"transformer.h.0.{name}.weight" for name in ("attn.k", "attn.v", "mlp.linear_1", "mlp.linear_3")]
    names = [f"layers.0.{name}.weight" for name in ("attn_k", "attn_v", "ffn_gate", "ffn_up")]
    first = case.schema.for_file(held)
    assert [first.stored_name(name, case.model.config) for name in names] == held
    usual = case.schema.for_file(["transformer.h.0.attn.kv.weight"])
    assert usual.stored_name(names[0], case.model.config) == "transformer.h.0.attn.kv.weight"
