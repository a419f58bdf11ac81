"""Hugging Face folders of Llama 4: the text model alone, and the multimodal model."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.llama4 import (
    FULL_LAYER_STEP,
    TEMPERATURE_FLOOR,
    TEMPERATURE_SCALE,
    check_single_expert,
)
from sporelm.checkpoints.hf.smollm3 import with_nope_layers
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import DECODER_TENSORS, LAYER, expert_tensors, shared_expert_tensors
from sporelm.checkpoints.hf_windows import every_nth_layer, read_full_layers
from sporelm.checkpoints.rope_fields import MAX_CONTEXT, MAX_FACTOR
from sporelm.checkpoints.row_numbers import EXPERT_GATE_UP_ROWS
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.checkpoints.tensor_table import StoredAs, TensorTable, with_alternatives
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS, select_text_config
from sporelm.checkpoints.transforms import TakeRows, Transpose
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.llama4 import Llama4, Llama4Config
from sporelm.models.config import ModelConfig

FEED_FORWARD: Final = f"{LAYER}feed_forward."
CHUNKED: Final = "chunked_attention"


def expert_projections() -> TensorTable:
    """Return the router and the experts' projections: [experts, in, out], or a tensor for each expert, as quantizers
    write them."""
    transpose = Transpose("keep")
    stacked: TensorTable = {
        "layers.{}.ffn_gate_inp.weight": f"{FEED_FORWARD}router.weight",
        **{
            f"layers.{{}}.ffn_{name}_exps.weight": StoredAs(
                f"{FEED_FORWARD}experts.gate_up_proj", transpose, TakeRows(rows, axis=1)
            )
            for name, rows in EXPERT_GATE_UP_ROWS.items()
        },
        "layers.{}.ffn_down_exps.weight": StoredAs(f"{FEED_FORWARD}experts.down_proj", transpose),
    }
    single = {name: row for name, row in expert_tensors(FEED_FORWARD).items() if "_exps." in name}
    return with_alternatives(stacked, single)


def with_text_model(values: ConfigValues) -> ConfigValues:
    """Return the values of the text model, with sliding windows in place of chunks and without disabled options."""
    found = dict(select_text_config(dict(values.values)))
    if found.get("no_rope_layers") == []:
        del found["no_rope_layers"]
    kinds = found.get("layer_types")
    if isinstance(kinds, list):
        found["layer_types"] = ["sliding_attention" if kind == CHUNKED else kind for kind in kinds]
    if found.get("moe_layers") == []:
        found |= {"num_local_experts": 0, "interleave_moe_layer_step": 1}
    if not found.get("attn_temperature_tuning", True):
        found["attn_scale"] = 0.0
    return values.with_values(found)


def with_moe_layers(config: Llama4Config, values: ConfigValues) -> Llama4Config:
    """Return the configuration with experts in the layers of `moe_layers`."""
    experts, given = config.experts, values.get("moe_layers")
    if experts is None or given is None:
        return config
    if not isinstance(given, list) or any(type(layer) is not int for layer in given):
        raise UnsupportedModel(f"{values.where}: moe_layers is {format_value(given)}; it must list layers")
    if given == [layer for layer in range(config.layers) if experts.at(layer)]:
        return config
    dense = frozenset(range(config.layers)) - {*given}
    return replace(config, experts=replace(experts, step=1, dense=dense))


@register
class Llama4ForCausalLM(HfSchema):
    """Llama 4's text model."""

    model_type = "llama4_text"
    architecture = Llama4
    keys = hf_keys(
        Key("ffn", "intermediate_size_mlp", "u32"),
        *hf_expert_keys(
            optional=True,
            count="num_local_experts",
            used="num_experts_per_tok",
            ffn="intermediate_size",
            step="interleave_moe_layer_step",
        ),
        Key("has_qk_norm", "use_qk_norm", "bool", default=True),
        Key("temperature_floor", "floor_scale", "u32", 1, MAX_CONTEXT, TEMPERATURE_FLOOR),
        Key("temperature_scale", "attn_scale", "f32", 0, MAX_FACTOR, TEMPERATURE_SCALE),
    )
    class_keys = {"attention_chunk_size": "window", "use_qk_norm": "has_qk_norm"}
    defaults = {
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "attention_chunk_size": 8192,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
    }
    constants = {"rope_style": "adjacent"}
    supported = {"hidden_act": ("silu",), "attention_bias": (False,)}
    tensors = {
        **DECODER_TENSORS,
        **expert_projections(),
        **shared_expert_tensors(f"{FEED_FORWARD}shared_expert."),
        **{f"layers.{{}}.ffn_{name}.weight": f"{FEED_FORWARD}{name}_proj.weight" for name in ("gate", "up", "down")},
    }
    prefix_variants = TEXT_MODEL_PREFIXES
    ignored_tensors = (*MULTIMODAL_TENSORS, "vision_model.*")

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_nth_layer(FULL_LAYER_STEP)(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Llama4Config:
        values = with_text_model(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Llama4Config)
        check_single_expert(config, values.where)
        config = with_nope_layers(config, values)
        full_layers = config.nope_layers
        if values.has("layer_types"):
            full_layers = read_full_layers(values, config.layers)
        config = with_moe_layers(config, values)
        is_full = len(full_layers) == config.layers
        window = None if is_full else values.integer("attention_chunk_size", 1, MAX_CONTEXT)
        return replace(config, window=window, full_layers=full_layers)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        layers, experts = range(config.layers), config.experts
        kinds = ["full_attention" if layer in config.full_layers else CHUNKED for layer in layers]
        return {
            "moe_layers": [layer for layer in layers if experts and experts.at(layer)],
            "no_rope_layers": [int(layer not in config.nope_layers) for layer in layers],
            "layer_types": kinds,
        }


@register
class Llama4ForConditionalGeneration(Llama4ForCausalLM):
    """The multimodal Llama 4."""

    model_type = "llama4"
