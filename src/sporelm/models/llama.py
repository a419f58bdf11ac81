"""The Llama family: Llama, Mistral (sliding window), SmolLM2, TinyStories, Minueza."""

from dataclasses import replace

from sporelm.errors import UnsupportedModel
from sporelm.models.blocks import Attention, GatedMLP, Layer, RMSNorm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.config_files import full_layers_of, window_of
from sporelm.weights.family import ATTENTION_BIAS, Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import HF, Kind


def _windowed(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """config.json of Llama may have a window too, which only Mistral heeds."""
    if kind != HF:
        return config
    window = window_of(values, "sliding_window", 4096) if config.architecture == "MistralForCausalLM" else None
    return replace(config, window=window, full_layers=full_layers_of(values, config.layers))


def _class(config: ModelConfig) -> str:
    if config.window is None:
        return "LlamaForCausalLM"
    if config.attention_bias or config.mlp_bias:
        raise UnsupportedModel("a sliding window together with biases is of no class of transformers")
    return "MistralForCausalLM"


FLAGS = (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias"))


@architecture(
    Family(
        "llama",
        (
            HfClass("LlamaForCausalLM", "llama", fields=FLAGS),
            HfClass(
                "MistralForCausalLM",
                "mistral",
                {"num_key_value_heads": 8, "max_position_embeddings": 131072},
                (("sliding_window", "window"),),
            ),
        ),
        fields(
            *ATTENTION_BIAS,
            Field("mlp_bias", "", "bool", "mlp_bias"),
        ),
        finish=_windowed,
        choose=_class,
        paired_rows=True,
        windowless=True,
    )
)
class Llama(Decoder):
    """Norms in front, rotary attention of grouped queries, a SiLU-gated feed-forward block (Touvron et al. 2023)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(
            RMSNorm(f"{name}.attn_norm", config.width, config.eps),
            Attention(name, config, config.window_of(index)),
            RMSNorm(f"{name}.ffn_norm", config.width, config.eps),
            GatedMLP(name, config),
        )
