"""Phi-1, Phi-1.5 and Phi-2: attention and feed-forward block beside each other, biases everywhere."""

from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.forms import qkv_names
from sporelm.weights.names import COMMON, NORM_BIASES, changed, with_bias

LAYER = "model.layers.{}."
NAMES = changed(
    COMMON,
    *NORM_BIASES,
    *with_bias("output_norm", "output_norm", "model.final_layernorm"),
    *with_bias("output", "output", "lm_head"),
    *with_bias("layers.{}.attn_o", "blk.{}.attn_output", f"{LAYER}self_attn.dense"),
    *with_bias("layers.{}.ffn_up", "blk.{}.ffn_up", f"{LAYER}mlp.fc1"),
    *with_bias("layers.{}.ffn_down", "blk.{}.ffn_down", f"{LAYER}mlp.fc2"),
)
# Files made of the first folders of Phi-2, which held query, key and value in one tensor.
FUSED = qkv_names()


@architecture(
    Family(
        "phi2",
        (HfClass("PhiForCausalLM", "phi", {"layer_norm_eps": 1e-5, "partial_rotary_factor": 0.5}),),
        fields(Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"), without=("window",)),
        NAMES,
        {"gguf": FUSED},
        fixed={"parallel": True, "output_bias": True}
        | dict.fromkeys(("attention_bias", "attention_out_bias", "mlp_bias"), True),
        only={
            "hidden_act": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
            "qk_layernorm": (False,),
            "tie_word_embeddings": (False,),
        },
        words=lambda config: {"partial_rotary_factor": config.rotary / config.head_dim},
        partial_rotary=True,
    )
)
class Phi2(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)), one norm for both; half of each head is rotated (Li et al. 2023)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms, shared=True)
