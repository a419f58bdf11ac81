"""StableLM 3B, Zephyr and StableLM 2 1.6B: layer norms with biases, and a quarter of each head rotated."""

from sporelm.models.blocks import Attention, GatedMLP, Layer, LayerNorm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, NORM_BIASES, changed


@architecture(
    Family(
        "stablelm",
        (
            HfClass(
                "StableLmForCausalLM",
                "stablelm",
                {"num_key_value_heads": 32, "max_position_embeddings": 4096, "partial_rotary_factor": 0.25},
                (("use_qkv_bias", "attention_bias"),),
            ),
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            Field("attention_bias", "", "bool", "use_qkv_bias"),
            without=("window",),
        ),
        changed(COMMON, *NORM_BIASES),
        only={"hidden_act": ("silu",), "use_parallel_residual": (False,), "qk_layernorm": (False,)},
        words=lambda config: {"partial_rotary_factor": config.rotary / config.head_dim},
        partial_rotary=True,
    )
)
class StableLM(Decoder):
    """The Llama layer with layer norms (Bellagente et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(
            LayerNorm(f"{name}.attn_norm", config.width, config.eps),
            Attention(name, config),
            LayerNorm(f"{name}.ffn_norm", config.width, config.eps),
            GatedMLP(name, config),
        )

    def last_norm(self, config: ModelConfig) -> LayerNorm:
        return LayerNorm("output_norm", config.width, config.eps)
