"""CodeShell: StarCoder with rotary positions in place of learned ones, and groups of query heads."""

from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.families.gpt2 import FIXED, LAYER, NUMBERS
from sporelm.models.families.starcoder import NAMES
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields

DEFAULTS = {"num_query_groups": 8, "n_positions": 8192, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True}


@architecture(
    Family(
        "codeshell",
        (HfClass("CodeShellForCausalLM", "codeshell", DEFAULTS),),
        fields(
            *NUMBERS,
            Field("kv_heads", "attention.head_count_kv", "u32", "num_query_groups"),
            without=("head_dim", "window"),
        ),
        NAMES,
        fixed={key: value for key, value in FIXED.items() if key != "rotary"},
        only={
            "activation_function": ("gelu_pytorch_tanh", "gelu_new"),
            "position_embedding_type": ("rope",),
            "group_query_attention": (True,),
            "scale_attn_weights": (True,),
            "add_cross_attention": (False,),
        },
        positions="n_positions",
        ffn_widths=4,
        ignored=(f"{LAYER}attn.bias", f"{LAYER}attn.masked_bias", f"{LAYER}attn.rotary_emb.inv_freq"),
        prefix="transformer.",
    )
)
class CodeShell(Decoder):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Xie et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms)
