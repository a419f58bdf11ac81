"""dots.llm1: Qwen3's attention with DeepSeek V3's mixture."""

from dataclasses import replace

from sporelm.models.blocks import Attention, Layer, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import MOST_LAYERS, ModelConfig
from sporelm.weights.config_files import full_layers_of, window_of
from sporelm.weights.experts import V3_CHOICE, V3_FIELDS, choice_bias_name, expert_fields, expert_names, shared_names
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, HEAD_NORMS, HF, Kind, changed


def _windowed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """Layers from `max_window_layers` on, or those in `layer_types`, have a window."""
    if kind != HF:
        return config
    full = full_layers_of(values, config.layers)
    if not values.has("layer_types"):
        full = frozenset(range(min(values.integer("max_window_layers", 0, MOST_LAYERS, 62), config.layers)))
    window = window_of(values, "sliding_window", 4096)
    return config if len(full) == config.layers else replace(config, window=window, full_layers=full)


@architecture(
    Family(
        "dots1",
        (
            HfClass(
                "Dots1ForCausalLM",
                "dots1",
                {"max_position_embeddings": 2048, "num_key_value_heads": 32},
                (("attention_bias", "attention_bias"), ("norm_topk_prob", "experts.renormalize")),
            ),
        ),
        fields(*ATTENTION_BIAS, *V3_FIELDS, *expert_fields(scores="")),
        changed(COMMON, *HEAD_NORMS, *expert_names(), *shared_names(), choice_bias_name()),
        fixed=V3_CHOICE,
        finish=_windowed,
        windowless=True,
    )
)
class Dots1(Decoder):
    """The Llama layer; queries and keys are normed head by head, a mixture follows (rednote-hilab 2025)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, config.window_of(index), norm="heads")
        return pre_norm(config, index, attention)
