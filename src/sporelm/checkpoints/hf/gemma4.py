"""Hugging Face folders of Gemma 4: the text model alone, and the multimodal model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues, format_value
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.gemma4 import LOCAL_THETA_KEY, OPTIONAL_LOGIT_CAP_KEY, with_checked_layers
from sporelm.checkpoints.hf.gemma import GEMMA_SUPPORTED
from sporelm.checkpoints.hf_rope_by_type import (
    FULL,
    PROPORTION_KEY,
    SLIDING,
    flatten_rope,
    read_proportion,
    rope_by_type_json,
)
from sporelm.checkpoints.hf_rope_by_type import LOCAL_THETA_KEY as HF_LOCAL_THETA
from sporelm.checkpoints.hf_schema import PER_LAYER_CONFIG, HfSchema
from sporelm.checkpoints.hf_tensors import (
    DECODER_TENSORS,
    HEAD_NORM_TENSORS,
    LAYER,
    POST_NORM_TENSORS,
    fused_expert_tensors,
)
from sporelm.checkpoints.hf_windows import list_attention_types, read_full_layers, read_window
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_schema import TEXT_MODEL_PREFIXES
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.checkpoints.text_config import MULTIMODAL_TENSORS, select_text_config
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.gemma4 import Gemma4, Gemma4Config
from sporelm.models.config import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_WIDTH, ModelConfig

DEFAULT_HEAD_DIM: Final = 256
DEFAULT_WINDOW: Final = 512
WINDOW_STEP: Final = 6  # layers from one without a window to the next
# Keys of layers without a window.
GLOBAL_HEAD_DIM: Final = "global_head_dim"
GLOBAL_KV_HEADS: Final = "num_global_key_value_heads"
DEFAULT_ROPE: Final = {"rope_parameters": {"rope_theta": 1e6}, PROPORTION_KEY: 0.25}
EXPERT_KEYS: Final = {"count": "num_experts", "used": "top_k_experts", "ffn": "moe_intermediate_size"}
# The norm before the feed-forward block, and the norms after both blocks.
AROUND_NORM_TENSORS: Final[TensorTable] = {
    "layers.{}.ffn_norm.weight": f"{LAYER}pre_feedforward_layernorm.weight",
    **POST_NORM_TENSORS,
}
# Per-layer inputs.
PER_LAYER_INPUT_TENSORS: Final[TensorTable] = {
    "layer_embedding.weight": "model.embed_tokens_per_layer.weight",
    "layer_projection.weight": "model.per_layer_model_projection.weight",
    "layer_projection_norm.weight": "model.per_layer_projection_norm.weight",
    "layers.{}.input_gate.weight": f"{LAYER}per_layer_input_gate.weight",
    "layers.{}.input_up.weight": f"{LAYER}per_layer_projection.weight",
    "layers.{}.input_norm.weight": f"{LAYER}post_per_layer_input_norm.weight",
    "layers.{}.out_scale.weight": f"{LAYER}layer_scalar",
}
# The mixture of experts parallel to the dense block.
PARALLEL_MIXTURE_TENSORS: Final[TensorTable] = {
    **fused_expert_tensors(f"{LAYER}router.proj.weight", f"{LAYER}experts.gate_up_proj", f"{LAYER}experts.down_proj"),
    "layers.{}.ffn_gate_inp_norm.weight": f"{LAYER}router.scale",
    "layers.{}.ffn_factors.weight": f"{LAYER}router.per_expert_scale",
    "layers.{}.ffn_experts_norm.weight": f"{LAYER}pre_feedforward_layernorm_2.weight",
    "layers.{}.ffn_dense_post_norm.weight": f"{LAYER}post_feedforward_layernorm_1.weight",
    "layers.{}.ffn_experts_post_norm.weight": f"{LAYER}post_feedforward_layernorm_2.weight",
}


def with_numbers_by_type(values: ConfigValues) -> ConfigValues:
    """Return the values of the text model with separate keys for the numbers of each type of layer."""
    found = dict(select_text_config(dict(values.values)))
    if not found.get("enable_moe_block"):
        found |= dict.fromkeys(EXPERT_KEYS.values())
    if found.get("layer_types") is None and isinstance(layers := found.get("num_hidden_layers"), int):
        count = min(layers, MAX_LAYERS)
        found["layer_types"] = [SLIDING if (layer + 1) % WINDOW_STEP else FULL for layer in range(count)]
    if isinstance(types := found.get("layer_types"), list) and types:
        found["layer_types"] = types = [*types[:-1], FULL]  # the default in transformers
    if not found.get("attention_k_eq_v"):
        found[GLOBAL_KV_HEADS] = None
    if (
        found.get(PER_LAYER_CONFIG) == {}
    ):  # transformers writes records only for differences: all layers have the same heads
        head_dim = found.get("head_dim", DEFAULT_HEAD_DIM)
        found |= {PER_LAYER_CONFIG: None, GLOBAL_HEAD_DIM: head_dim, GLOBAL_KV_HEADS: None}
    found |= _read_layer_records(found.get(PER_LAYER_CONFIG), types if isinstance(types, list) else [])
    if found.get(GLOBAL_KV_HEADS) is None:
        found[GLOBAL_KV_HEADS] = found.get("num_key_value_heads")
    rope = found.get("rope_parameters")
    return values.with_values(found | (DEFAULT_ROPE if rope is None else flatten_rope(rope)))


def _read_layer_records(records: Any, types: list[Any]) -> dict[str, Any]:
    """Return the heads of layers without a window. transformers writes a record of them for each such layer, under its
    zero-padded number. Other records are rejected later."""
    full_layers = sorted(str(layer) for layer, kind in enumerate(types) if kind == FULL)
    if not isinstance(records, Mapping) or not records:
        return {}
    if sorted(str(key).lstrip("0") or "0" for key in records) != full_layers:
        return {}
    first, *others = records.values()
    is_known = isinstance(first, Mapping) and {"head_dim"} <= first.keys() <= {"head_dim", "num_key_value_heads"}
    if not is_known or any(other != first for other in others):
        return {}
    head_dim, kv_heads = first["head_dim"], first.get("num_key_value_heads")
    return {PER_LAYER_CONFIG: None, GLOBAL_HEAD_DIM: head_dim, GLOBAL_KV_HEADS: kv_heads}


@register
class Gemma4ForCausalLM(HfSchema):
    """Gemma 4's text model. In transformers, it has per-layer inputs if layers share keys and values."""

    model_type = "gemma4_text"
    architecture = Gemma4
    keys = hf_keys(
        Key("head_dim", GLOBAL_HEAD_DIM, "u32"),
        Key("kv_heads", GLOBAL_KV_HEADS, "u32"),
        Key("local_head_dim", "head_dim", "u32", 2, MAX_HEAD_DIM),
        Key("local_kv_heads", "num_key_value_heads", "u32", 1, MAX_HEADS),
        Key("num_kv_shared_layers", "num_kv_shared_layers", "u32", 0, MAX_LAYERS, 0),
        Key("per_layer_input_size", "hidden_size_per_layer_input", "u32", 0, MAX_WIDTH, 0),
        *hf_expert_keys(optional=True, **EXPERT_KEYS),
        Key("has_tied_values", "attention_k_eq_v", "bool", default=False),
        Key("has_double_wide_mlp", "use_double_wide_mlp", "bool", default=False),
        OPTIONAL_LOGIT_CAP_KEY,
        LOCAL_THETA_KEY._replace(key=HF_LOCAL_THETA),
    )
    class_keys = {
        "sliding_window": "window",
        "attention_k_eq_v": "has_tied_values",
        "use_double_wide_mlp": "has_double_wide_mlp",
    }
    defaults: Mapping[str, Any] = {
        "num_key_value_heads": 4,
        "head_dim": DEFAULT_HEAD_DIM,
        "global_head_dim": 512,
        "hidden_size_per_layer_input": 256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "sliding_window": 512,
    }
    supported = {
        **GEMMA_SUPPORTED,
        "use_bidirectional_attention": (None, "vision", False),  # image tokens attend to each other
        "hidden_activation": ("gelu_pytorch_tanh",),
    }
    tensors = {
        **DECODER_TENSORS,
        **HEAD_NORM_TENSORS,
        **AROUND_NORM_TENSORS,
        **PER_LAYER_INPUT_TENSORS,
        **PARALLEL_MIXTURE_TENSORS,
    }
    prefix_variants = TEXT_MODEL_PREFIXES
    ignored_tensors = MULTIMODAL_TENSORS
    has_window_pattern = True

    def class_for(self, config: ModelConfig) -> HfSchema:
        assert isinstance(config, Gemma4Config)
        lacks_rows = config.num_kv_shared_layers and not config.per_layer_input_size
        return Gemma4UnifiedForCausalLM() if lacks_rows and config.experts is None else Gemma4ForCausalLM()

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> Gemma4Config:
        values = with_numbers_by_type(values)
        config = super().config_from_json(values, dtype)
        assert isinstance(config, Gemma4Config)
        vocab = values.get("vocab_size_per_layer_input")
        if config.per_layer_input_size and vocab not in (None, config.vocab):
            what = f"vocab_size_per_layer_input {format_value(vocab)} differs from vocab_size {config.vocab}"
            raise UnsupportedModel(f"{values.where}: {what}, which is not supported")
        config = replace(
            config,
            full_layers=read_full_layers(values, config.layers),
            window=read_window(values, "sliding_window", DEFAULT_WINDOW),
            rope_scaling=read_proportion(config, values),
        )
        return with_checked_layers(config, values)

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {
            "enable_moe_block": config.experts is not None,
            "layer_types": list_attention_types(config),
            **rope_by_type_json(config),
            "vocab_size_per_layer_input": config.vocab,
        }


@register
class Gemma4ForConditionalGeneration(Gemma4ForCausalLM):
    """The multimodal Gemma 4."""

    model_type = "gemma4"


@register
class Gemma4UnifiedForCausalLM(Gemma4ForCausalLM):
    """The text model of the unified Gemma 4, which has no per-layer inputs."""

    model_type = "gemma4_unified_text"
    defaults = {
        **Gemma4ForCausalLM.defaults,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 1024,
        "max_position_embeddings": 262144,
    }


@register
class Gemma4UnifiedForConditionalGeneration(Gemma4UnifiedForCausalLM):
    """The unified Gemma 4."""

    model_type = "gemma4_unified"
