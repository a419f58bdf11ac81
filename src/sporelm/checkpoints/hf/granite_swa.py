"""Hugging Face folders of Granite with windows."""

from dataclasses import replace
from typing import Any, Final

from sporelm.checkpoints.config_keys import Key, hf_keys
from sporelm.checkpoints.config_values import ConfigValues
from sporelm.checkpoints.expert_keys import hf_expert_keys
from sporelm.checkpoints.gguf.granite_swa import every_fourth_layer, without_rope
from sporelm.checkpoints.hf.granite import GRANITE_KEYS
from sporelm.checkpoints.hf.granitemoe import GraniteMoeForCausalLM
from sporelm.checkpoints.hf_schema import HfSchema
from sporelm.checkpoints.hf_tensors import ATTENTION, DECODER_TENSORS, LAYER, fused_expert_tensors
from sporelm.checkpoints.hf_windows import read_full_layers, read_window
from sporelm.checkpoints.hybrid_layers import read_rope_pattern
from sporelm.checkpoints.schema_registry import register
from sporelm.errors import UnsupportedModel
from sporelm.models.architectures.granite_swa import GraniteSWA
from sporelm.models.config import ModelConfig

LAYER_THETAS: Final = "layer_rope_theta"  # of each layer; 0 for one without rotary positions
DEFAULT_WINDOW: Final = 128


def with_one_theta(values: ConfigValues) -> ConfigValues:
    """Return the values with one rotary base, from the list of the layers' bases."""
    given, rope = values.get(LAYER_THETAS), values.get("rope_parameters")
    thetas = [theta for theta in given if theta] if isinstance(given, list) else []
    if not thetas:
        return values
    inner = {"rope_parameters": {**rope, "rope_theta": thetas[0]}} if isinstance(rope, dict) and rope else {}
    return values.with_changes({"rope_theta": thetas[0], **inner})


@register
class GraniteSWAForCausalLM(HfSchema):
    """Granite with windows, dense."""

    model_type = "granite_swa"
    architecture = GraniteSWA
    keys = hf_keys(
        *GRANITE_KEYS,
        Key("mlp_bias", "mlp_bias", "bool"),
        *hf_expert_keys(
            count="num_local_experts",
            used="num_experts_per_tok",
            shared_ffn="shared_intermediate_size",
            optional=True,
        ),
    )
    class_keys = {"attention_bias": "attention_bias", "sliding_window": "window", "mlp_bias": "mlp_bias"}
    defaults = {
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
    }
    constants = {"experts.scores": "softmax_of_chosen"}
    tensors = {
        **DECODER_TENSORS,
        "layers.{}.attn_sinks.weight": f"{ATTENTION}sinks",
        **fused_expert_tensors(
            f"{LAYER}block_sparse_moe.router.weight",
            f"{LAYER}block_sparse_moe.experts.gate_up_proj",
            f"{LAYER}block_sparse_moe.experts.down_proj",
            f"{LAYER}shared_mlp.input_linear.weight",
            f"{LAYER}shared_mlp.output_linear.weight",
        ),
    }
    has_window_pattern = True

    def class_for(self, config: ModelConfig) -> HfSchema:
        return GraniteMoeSWAForCausalLM() if config.experts else GraniteSWAForCausalLM()

    def full_attention_layers(self, layers: int) -> frozenset[int]:
        return every_fourth_layer(layers)

    def config_from_json(self, values: ConfigValues, dtype: str = "F32") -> ModelConfig:
        values = with_one_theta(values)
        config = super().config_from_json(values, dtype)
        thetas = read_rope_pattern(values, LAYER_THETAS, config.layers)
        if len({theta for theta in thetas if theta}) > 1:
            what = f"{LAYER_THETAS} has more than one base, which is not supported"
            raise UnsupportedModel(f"{values.where}: {what}")
        listed = values.has("layer_types")
        full_layers = read_full_layers(values, config.layers) if listed else every_fourth_layer(config.layers)
        window = read_window(values, "sliding_window", DEFAULT_WINDOW)
        return replace(config, window=window, full_layers=full_layers, nope_layers=without_rope(thetas))

    def extra_json(self, config: ModelConfig) -> dict[str, Any]:
        layers = range(config.layers)
        kinds = ["full_attention" if layer in config.full_layers else "sliding_attention" for layer in layers]
        thetas = [0 if layer in config.nope_layers else config.rope_theta for layer in layers]
        return {"layer_types": kinds, LAYER_THETAS: thetas}


@register
class GraniteMoeSWAForCausalLM(GraniteSWAForCausalLM):
    """Granite with windows and a mixture of experts."""

    model_type = "granitemoe_swa"
    class_keys = {"attention_bias": "attention_bias", "sliding_window": "window"}
    defaults = GraniteMoeForCausalLM.defaults
