"""Hugging Face folders of ModernBERT."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.encoder_schema import EncoderHfSchema, as_encoder_config
from sporelm.checkpoints.gguf.modern_bert import FULL_STEP, HEAD_POOLING_KEY, LOCAL_THETA, first_of_each
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import fused_gate_up_tensors, fused_qkv_tensors
from sporelm.checkpoints.hf_windows import read_full_layers, read_window
from sporelm.checkpoints.rope_fields import MAX_THETA
from sporelm.checkpoints.schema_registry import register
from sporelm.checkpoints.tensor_table import TensorTable
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.modern_bert import ModernBert
from sporelm.models.config import MAX_LAYERS, ModelConfig
from sporelm.models.encoder_config import EncoderConfig

DEFAULT_WINDOW: Final = 128
DEFAULT_THETA: Final = 160000.0
MODERN_BERT_KEYS: Final = (
    Key("eps", "norm_eps", "f32"),
    Key("local_theta", "local_rope_theta", "f32", 1.0, MAX_THETA, LOCAL_THETA),
)
MODERN_BERT_SUPPORTED: Final = {
    "hidden_activation": ("gelu",),
    "classifier_activation": ("gelu",),
    **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), (False,)),
}


def modern_bert_tensors(prefix: str) -> TensorTable:
    """Return the tensors without a head, under names with this prefix."""
    layer = f"{prefix}layers.{{}}."
    return {
        "embedding.weight": f"{prefix}embeddings.tok_embeddings.weight",
        "embedding_norm.weight": f"{prefix}embeddings.norm.weight",
        "output_norm.weight": f"{prefix}final_norm.weight",
        "layers.{}.attn_norm.weight": f"{layer}attn_norm.weight",
        **fused_qkv_tensors(f"{layer}attn.Wqkv", parts=("weight",)),
        "layers.{}.attn_o.weight": f"{layer}attn.Wo.weight",
        "layers.{}.ffn_norm.weight": f"{layer}mlp_norm.weight",
        **fused_gate_up_tensors(f"{layer}mlp.Wi.weight"),
        "layers.{}.ffn_down.weight": f"{layer}mlp.Wo.weight",
    }


def _tensors(prefix: str = "") -> TensorTable:
    return {
        **modern_bert_tensors(prefix),
        "classifier_dense.weight": "head.dense.weight",
        "classifier_norm.weight": "head.norm.weight",
        "classifier.weight": "classifier.weight",
        "classifier.bias": "classifier.bias",
    }


def with_two_bases(values: ConfigValues) -> ConfigValues:
    """Return the values with the rotary parameters of layers without a window, and the base of the others as
    `local_rope_theta`. transformers 5 has a set for each type of layer."""
    found = {**values.values, "rope_theta": values.get("global_rope_theta", DEFAULT_THETA)}
    kinds = values.get("rope_parameters")
    if not isinstance(kinds, dict) or "full_attention" not in kinds:
        return values.with_values(found)
    local = kinds.get("sliding_attention") or {}
    if not isinstance(local, dict) or local.get("rope_type", "default") != "default":
        what = f"rope_parameters of layers with a window are {local!r:.60}"
        raise UnsupportedModel(f"{values.where}: {what}; only unscaled ones are supported")
    theta = {"local_rope_theta": local["rope_theta"]} if "rope_theta" in local else {}
    return values.with_values({**found, **theta, "rope_parameters": kinds["full_attention"]})


def read_step_or_full_layers(values: ConfigValues, layers: int) -> frozenset[int]:
    """Return the layers without a window: those of `layer_types`, else the first of each
    `global_attn_every_n_layers`."""
    step = values.integer("global_attn_every_n_layers", 1, MAX_LAYERS, FULL_STEP)
    return read_full_layers(values, layers) if values.has("layer_types") else first_of_each(step, layers)


def layer_types_json(config: ModelConfig) -> dict[str, Any]:
    """Return the types of layers and their rotary bases, under the keys of transformers 5 and of earlier versions."""
    types = ["full_attention" if config.window_of(n) is None else "sliding_attention" for n in range(config.layers)]
    bases = {"full_attention": config.rope_theta, "sliding_attention": config.local_theta}
    return {
        "layer_types": types,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in bases.items()},
        "global_rope_theta": config.rope_theta,
        "local_rope_theta": config.local_theta,
    }


@register
class ModernBertModel(EncoderHfSchema):
    """ModernBERT. Folders of embedding models may also name the class with the pretraining head."""

    model_type = "modernbert"
    architecture = ModernBert
    keys = hf_keys(
        *MODERN_BERT_KEYS, HEAD_POOLING_KEY._replace(key="classifier_pooling"), without=("head_dim", "kv_heads")
    )
    class_keys = {"local_attention": "window"}
    defaults = {
        "max_position_embeddings": 8192,
        "vocab_size": 50368,
        "norm_eps": 1e-5,
        "classifier_pooling": "cls",
    }
    supported = MODERN_BERT_SUPPORTED
    tensors = _tensors()
    optional_prefixes = ("model.",)
    ignored_tensors = ("head.*", "decoder.*")

    def class_for(self, config: ModelConfig) -> HfSchema:
        return ModernBertForSequenceClassification() if as_encoder_config(config).head_labels else ModernBertModel()

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return first_of_each(FULL_STEP, layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> EncoderConfig:
        values = with_two_bases(values)
        config = super().config_from_json(values, dtype)
        return replace(
            config,
            full_layers=read_step_or_full_layers(values, config.layers),
            window=read_window(values, "local_attention", DEFAULT_WINDOW),
        )

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        return {**layer_types_json(config), **super().extra_json(config)}


@register
class ModernBertForSequenceClassification(ModernBertModel):
    """ModernBERT with a classification head."""

    has_head = True
    tensors = _tensors("model.")


@register
class ModernBertForMaskedLM(ModernBertModel):
    """ModernBERT with its pretraining head."""
