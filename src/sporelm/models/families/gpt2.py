"""GPT-2: layer norms with biases, learned positions, a feed-forward block without a gate."""

from collections.abc import Mapping
from typing import Any

from sporelm import ops
from sporelm.models.blocks import MLP, Embedding, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.inputs import StepInputs
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.forms import QKV
from sporelm.weights.names import COMMON, Names, Param, Stored, changed

KINDS = ("weight", "bias")
LAYER = "transformer.h.{}."


def turned(name: str, kind: str, part: str = "") -> Stored:
    """The weights of products are [in, out] in Hugging Face folders (Conv1D)."""
    return Stored(f"{LAYER}{name}.{kind}", QKV[part] if part else None, kind == "weight")


NAMES = changed(
    COMMON,
    Names("embedding.weight", "token_embd.weight", "transformer.wte.weight"),
    Names("positions.weight", "position_embd.weight", "transformer.wpe.weight"),
    *(Names(f"output_norm.{kind}", f"output_norm.{kind}", f"transformer.ln_f.{kind}") for kind in KINDS),
    *(
        Names(f"layers.{{}}.{norm}_norm.{kind}", f"blk.{{}}.{norm}_norm.{kind}", f"{LAYER}{hf}.{kind}")
        for norm, hf in (("attn", "ln_1"), ("ffn", "ln_2"))
        for kind in KINDS
    ),
    *(
        Names(
            f"layers.{{}}.attn_{part}.{kind}",
            Stored(f"blk.{{}}.attn_qkv.{kind}", QKV[part]),
            turned("attn.c_attn", kind, part),
        )
        for part in "qkv"
        for kind in KINDS
    ),
    *(
        Names(f"layers.{{}}.{ours}.{kind}", f"blk.{{}}.{gguf}.{kind}", turned(hf, kind))
        for ours, gguf, hf in (
            ("attn_o", "attn_output", "attn.c_proj"),
            ("ffn_up", "ffn_up", "mlp.c_fc"),
            ("ffn_down", "ffn_down", "mlp.c_proj"),
        )
        for kind in KINDS
    ),
)
DEFAULTS = {"tie_word_embeddings": True, "n_positions": 1024, "vocab_size": 50257, "layer_norm_epsilon": 1e-5}
NUMBERS = (
    Field("layers", "block_count", "u32", "n_layer"),
    Field("width", "embedding_length", "u32", "n_embd"),
    Field("ffn", "feed_forward_length", "u32", "n_inner"),
    Field("heads", "attention.head_count", "u32", "n_head"),
    Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_epsilon"),
)
FIXED = {"rotary": 0, "attention_bias": True, "attention_out_bias": True, "mlp_bias": True}


@architecture(
    Family(
        "gpt2",
        (
            HfClass(
                "GPT2LMHeadModel",
                "gpt2",
                DEFAULTS,
            ),
        ),
        fields(
            *NUMBERS,
            without=("head_dim", "kv_heads", "rotary", "window"),
        ),
        NAMES,
        fixed=FIXED,
        only={
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        positions="n_positions",
        ffn_widths=4,
        ignored=(f"{LAYER}attn.bias", f"{LAYER}attn.masked_bias", "h.{}.attn.bias", "h.{}.attn.masked_bias"),
        prefix="transformer.",
    )
)
class GPT2(Decoder):
    """Rows of tokens and of positions added, norms in front, attention, GELU (Radford et al. 2019)."""

    norms = LayerNorm

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.positions = Embedding("positions", config.context_length, config.width)

    def layer(self, config: ModelConfig, index: int) -> Layer:
        return pre_norm(config, index, mlp=MLP(f"layers.{index}", config, "gelu_tanh"), norm=self.norms)

    def params(self) -> list[Param]:
        return [*super().params(), *self.positions.params()]

    def embedded(self, step: StepInputs, weights: Mapping[str, Any]) -> Any:
        return ops.add(super().embedded(step, weights), self.positions(step.positions, weights))
