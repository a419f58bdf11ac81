"""BitNet b1.58: Llama with norms in front of what comes down, made for weights of -1, 0 and 1."""

from sporelm.models.blocks import Attention, GatedMLP, Layer, NormedLinear, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, Family, HfClass, activation, fields
from sporelm.weights.names import COMMON, Names, changed

KINDS = {"silu": "silu", "relu2": "relu_squared"}  # what llama.cpp computes, and what the model of 2B has
NAMES = changed(
    COMMON,
    *(
        Names(
            f"layers.{{}}.{part}_sub_norm.weight",
            f"blk.{{}}.{part}_sub_norm.weight",
            f"model.layers.{{}}.{block}.weight",
        )
        for part, block in (("attn", "self_attn.attn_sub_norm"), ("ffn", "mlp.ffn_sub_norm"))
    ),
)


@architecture(
    Family(
        "bitnet",
        (
            HfClass(
                "BitNetForCausalLM",
                "bitnet",
                {"num_key_value_heads": 5, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "relu2"},
                (("attention_bias", "attention_bias"),),
            ),
        ),
        fields(*ATTENTION_BIAS, activation("hidden_act", "silu", KINDS), without=("window",)),
        NAMES,
        only={"mlp_bias": (False,)},
    )
)
class BitNet(Decoder):
    """x + o(norm(attention(norm(x)))), then x + down(norm(act(gate) up)) of norm(x) (Ma et al. 2024)."""

    def layer(self, config: ModelConfig, index: int) -> Layer:
        name = f"layers.{index}"
        attention, mlp = Attention(name, config), GatedMLP(name, config, KINDS[config.activation])
        attention.o = NormedLinear(attention.o, f"{name}.attn_sub_norm", config.eps)
        mlp.down = NormedLinear(mlp.down, f"{name}.ffn_sub_norm", config.eps)
        return pre_norm(config, index, attention, mlp)
