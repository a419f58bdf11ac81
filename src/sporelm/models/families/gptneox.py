"""GPT-NeoX-20B, Pythia, Dolly 2: attention and feed-forward block beside each other, with a norm each."""

from typing import Any

from sporelm.models.blocks import MLP, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import GELUS, Family, Field, HfClass, activation, fields
from sporelm.weights.forms import BY_GROUP, qkv_names
from sporelm.weights.names import COMMON, Names, changed, with_bias

LAYER = "gpt_neox.layers.{}."
NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "gpt_neox.embed_in.weight"),
    Names("output.weight", "output.weight", "embed_out.weight"),
    *with_bias("output_norm", "output_norm", "gpt_neox.final_layer_norm"),
    *with_bias("layers.{}.attn_norm", "blk.{}.attn_norm", f"{LAYER}input_layernorm"),
    *with_bias("layers.{}.ffn_norm", "blk.{}.ffn_norm", f"{LAYER}post_attention_layernorm"),
    *with_bias("layers.{}.attn_o", "blk.{}.attn_output", f"{LAYER}attention.dense"),
    *with_bias("layers.{}.ffn_up", "blk.{}.ffn_up", f"{LAYER}mlp.dense_h_to_4h"),
    *with_bias("layers.{}.ffn_down", "blk.{}.ffn_down", f"{LAYER}mlp.dense_4h_to_h"),
    *qkv_names(f"{LAYER}attention.query_key_value", BY_GROUP),
)
NEW_OUTPUT = Names("output.weight", "output.weight", "lm_head.weight")  # as transformers calls it since 5.0


def reworded(values: dict[str, Any], share: float = 0.25) -> dict[str, Any]:
    """Return config.json with what others call partial_rotary_factor and rope_theta under these names.

    Outside the rotary parameters transformers reads no other words for them than its own; a null is not a number there.
    """
    words = {"partial_rotary_factor": ("rotary_pct", share), "rope_theta": ("rotary_emb_base", 10000)}
    return values | {ours: values.get(theirs, usual) for ours, (theirs, usual) in words.items()}


def words(config: ModelConfig) -> dict[str, Any]:
    return {"rotary_pct": config.rotary / config.head_dim, "rotary_emb_base": config.rope_theta}


@architecture(
    Family(
        "gptneox",
        (
            HfClass(
                "GPTNeoXForCausalLM",
                "gpt_neox",
                {"layer_norm_eps": 1e-5},
                (("use_parallel_residual", "parallel"), ("attention_bias", "attention_bias")),
            ),
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            Field("parallel", "use_parallel_residual", "bool", "use_parallel_residual", default=True),
            activation("hidden_act", "gelu"),
            Field("attention_bias", "", "bool", "attention_bias", default=True),
            Field("attention_out_bias", "", "bool", "attention_bias", default=True),
            without=("kv_heads", "head_dim", "window"),
        ),
        NAMES,
        {"hf": (NEW_OUTPUT,)},
        fixed={"mlp_bias": True},
        only={},
        reworded=reworded,
        words=words,
        ignored=(f"{LAYER}attention.bias", f"{LAYER}attention.masked_bias", f"{LAYER}attention.rotary_emb.inv_freq"),
        partial_rotary=True,
    )
)
class GPTNeoX(Decoder):
    """x + attention(norm(x)) + mlp(norm(x)), or in turn; a part of each head is rotated (Black et al. 2022)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, GELUS[config.activation]), norm=self.norms)
