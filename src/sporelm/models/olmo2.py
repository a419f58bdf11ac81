"""OLMo 2: norms behind each block in place of in front, and norms over all queries and all keys of a row."""

from sporelm.models.blocks import Attention, GatedMLP, Layer, RMSNorm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, fields
from sporelm.weights.names import COMMON, HEAD_NORMS, POST_NORMS, changed


@architecture(
    Family(
        "olmo2",
        (HfClass("Olmo2ForCausalLM", "olmo2", {"rms_norm_eps": 1e-5}, (("attention_bias", "attention_bias"),)),),
        fields(*ATTENTION_BIAS, without=("window",)),
        changed(COMMON, *HEAD_NORMS, *POST_NORMS),
    )
)
class Olmo2(Decoder):
    """x + norm(attention(x)), then x + norm(mlp(x)) (OLMo team 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        return Layer(
            None,
            Attention(name, config, norm="whole"),
            None,
            GatedMLP(name, config),
            after_attention=RMSNorm(f"{name}.attn_post_norm", config.width, config.eps),
            after_mlp=RMSNorm(f"{name}.ffn_post_norm", config.width, config.eps),
        )
