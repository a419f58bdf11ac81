"""Facts that models report about themselves: their weights, their memory, their tables; and names on disk."""

import subprocess
import sys

import pytest

from sporelm.checkpoints import config_from_gguf, config_from_hf, gguf_tensors, hf_tensors
from sporelm.checkpoints.schema_registry import (
    find_architecture,
    find_gguf_schema,
    find_hf_schema,
    is_gguf_name,
    known_names,
)
from sporelm.checkpoints.supported_models import MODELS, SupportedModel
from sporelm.checkpoints.tensor_names import find_unread, format_names, split_layer_number
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.errors import UnsupportedModel
from sporelm.models import Columns, Param, Rows, build
from sporelm.models.architectures.llama import Llama
from sporelm.models.blocks import Paged
from tiny_models import LLAMA, MISTRAL, TINY, Tiny


@pytest.mark.parametrize("tiny", TINY, ids=lambda tiny: tiny.name)
def test_params_are_the_folders_tensors(tiny: Tiny) -> None:
    model = build(config_from_hf(tiny.config, "config.json"))
    params = model.params()
    schema = find_hf_schema(tiny.config["architectures"][0])
    stored = schema.resolve(params, model.config).source_shapes()
    assert stored == {name: array.shape for name, array in tiny.weights().items()}
    assert len(stored) == len(params)


def test_how_weights_may_be_sharded() -> None:
    """Whole key heads with all their query heads; what declares nothing is sharded by rows, or copied."""
    splits = {param.name: param.split for param in build(config_from_hf(LLAMA, "c")).params()}
    assert splits["layers.0.attn_q.weight"] == Rows(24, 3)
    assert splits["layers.0.attn_k.weight"] == splits["layers.0.attn_v.weight"] == Rows(8)
    assert splits["layers.0.attn_o.weight"] == Columns(24, 3)
    assert splits["layers.1.ffn_gate.weight"] == splits["layers.1.ffn_up.weight"] == Rows(1)
    assert splits["layers.1.ffn_down.weight"] == Columns(1)
    assert splits["layers.0.attn_norm.weight"] is splits["embedding.weight"] is splits["output.weight"] is None


def test_biases_are_cut_with_their_rows_only() -> None:
    config = config_from_hf(LLAMA | {"attention_bias": True, "mlp_bias": True}, "c")
    splits = {param.name: param.split for param in build(config).params()}
    assert splits["layers.0.attn_q.bias"] == Rows(24, 3)
    assert splits["layers.0.attn_o.bias"] is splits["layers.0.ffn_down.bias"] is None


def test_memory_is_said_for_each_layer() -> None:
    assert build(config_from_hf(MISTRAL, "c")).memory() == [Paged(kv_heads=2, head_dim=8)] * 2


@pytest.mark.parametrize(("asked", "nearest"), [("lama", "llama"), ("LlamaForCasualLM", "LlamaForCausalLM")])
def test_unknown_architecture_names_the_nearest(asked: str, nearest: str) -> None:
    with pytest.raises(
        UnsupportedModel, match=f"architecture '{asked}' is not supported; nearest known: {nearest}\\. "
    ):
        config_from_hf({"architectures": [asked]}, "c")


def test_an_unknown_architecture_is_told_with_its_file() -> None:
    with pytest.raises(UnsupportedModel, match=r"^some/config\.json: architecture 'NoSuchModel' is not supported"):
        config_from_hf({"architectures": ["NoSuchModel"]}, "some/config.json")
    with pytest.raises(UnsupportedModel, match=r"^some\.gguf: architecture 'nosuch' is not supported"):
        config_from_gguf({"general.architecture": "nosuch"}, {}, "some.gguf")


def test_another_text_model_within_a_class_is_refused() -> None:
    """transformers takes whatever text_config.model_type says for it."""
    outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    numbers = {key: value for key, value in MISTRAL.items() if key not in ("architectures", "sliding_window")}
    for kind in ({}, {"model_type": "mistral"}, {"model_type": "ministral3"}):
        assert config_from_hf(outer | {"text_config": numbers | {"sliding_window": None} | kind}, "c").layers == 2
    with pytest.raises(UnsupportedModel, match="c: model_type 'qwen2' is not supported; ministral3, mistral, "):
        config_from_hf(outer | {"text_config": numbers | {"sliding_window": None, "model_type": "qwen2"}}, "c")


def test_far_away_architecture_says_where_the_families_are_listed() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"'x{80}' is not supported\. 'spore doctor --models' lists the \d+ supported fam"
    ):
        config_from_hf({"architectures": ["x" * 5000]}, "c")


def test_one_name_one_model() -> None:
    assert {"MistralForCausalLM", "llama"} <= set(known_names())
    assert find_architecture("MistralForCausalLM") is find_architecture("llama") is Llama


@pytest.mark.parametrize("listed", MODELS, ids=lambda listed: listed.module)
def test_the_list_of_models_says_what_their_schemas_say(listed: SupportedModel) -> None:
    gguf = find_gguf_schema(listed.names[0])
    assert gguf.module == listed.module
    assert gguf.names[0] == listed.names[0]
    for name in listed.names[1:]:
        if is_gguf_name(name):
            assert find_gguf_schema(name).module == listed.module
        else:
            assert find_hf_schema(name).class_name == name
            assert find_hf_schema(name).module == listed.module


def test_models_are_in_order() -> None:
    modules = [listed.module for listed in MODELS]
    assert modules == sorted(modules)


def test_schemas_are_imported_when_they_are_asked_for() -> None:
    module = "sporelm.checkpoints.hf.llama"
    code = f"import sys, sporelm.checkpoints.schema_registry as m; m.known_names(); print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("table", [gguf_tensors.DECODER_TENSORS, hf_tensors.DECODER_TENSORS], ids=["gguf", "hf"])
def test_names_are_one_to_one(table: TensorTable) -> None:
    assert len(set(table.values())) == len(table)


def test_names_on_disk() -> None:
    config = config_from_hf(LLAMA, "config.json")
    gguf, hf = find_gguf_schema("llama"), find_hf_schema("LlamaForCausalLM")
    assert gguf.stored_name("layers.12.attn_o.weight", config) == "blk.12.attn_output.weight"
    assert hf.stored_name("layers.12.attn_o.weight", config) == "model.layers.12.self_attn.o_proj.weight"
    assert hf.stored_name("output.weight", config) == "lm_head.weight"
    assert hf.stored_name("unheard.of", config) == "unheard.of"
    assert split_layer_number("blk.3.ffn_up.weight") == ("blk.{}.ffn_up.weight", "3")
    assert split_layer_number("output.weight") == ("output.weight", "")


def test_what_may_be_ignored() -> None:
    names = ["model.layers.7.self_attn.rotary_emb.inv_freq", "model.layers.7.self_attn.q_norm.weight"]
    assert find_unread(names, "hf") == {names[0]}


def test_long_lists_are_cut() -> None:
    assert format_names(["a", "b"]) == "a, b"
    assert format_names(list("abcdef")) == "a, b, c, d and 2 more"


def test_param_is_plain_data() -> None:
    assert Param("x", (1, 2)) == Param("x", (1, 2), None)
