"""StableLM 3B, Zephyr, StableLM 2: layer norms with biases, a quarter of each head rotated; the 12B in parallel."""

from dataclasses import dataclass, replace

from sporelm.models.blocks import Attention, Layer, LayerNorm, pre_norm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import COMMON, GGUF, NORM_BIASES, Kind, Names, Stored, changed

HEAD_NORMS = tuple(
    Names(
        f"layers.{{}}.attn_{part}_norm.weight",
        f"blk.{{}}.attn_{part}_norm.weight",
        Stored(f"model.layers.{{}}.self_attn.{part}_layernorm.norms.{{e}}.weight", each=True),
    )
    for part in "qk"
)


@dataclass(frozen=True)
class StableLMParts:
    """What some of its models have."""

    head_norms: bool  # of queries and keys, one for each head
    second_norm: bool = False  # in front of the feed-forward block


def _in_parallel(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    """GGUF files have a key for it, of which llama.cpp's converter once wrote the wrong value."""
    return replace(config, parallel=not config.own.second_norm) if kind == GGUF else config


@architecture(
    Family(
        "stablelm",
        (
            HfClass(
                "StableLmForCausalLM",
                "stablelm",
                {"num_key_value_heads": 32, "max_position_embeddings": 4096, "partial_rotary_factor": 0.25}
                | {"layer_norm_eps": 1e-5},
                (
                    ("use_qkv_bias", "attention_bias"),
                    ("use_parallel_residual", "parallel"),
                    ("qk_layernorm", "own.head_norms"),
                ),
            ),
        ),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", "layer_norm_eps"),
            Field("attention_bias", "", "bool", "use_qkv_bias"),
            Field("parallel", "use_parallel_residual", "bool", "use_parallel_residual"),
            Field("own.head_norms", "", "bool", "qk_layernorm", weight="layers.{}.attn_q_norm.weight"),
            Field("own.second_norm", "", "bool", "", weight="layers.{}.ffn_norm.weight"),
            without=("window",),
        ),
        changed(COMMON, *NORM_BIASES, *HEAD_NORMS),
        finish=_in_parallel,
        words=lambda config: {"partial_rotary_factor": config.rotary / config.head_dim},
        partial_rotary=True,
        own=StableLMParts,
    )
)
class StableLM(Decoder):
    """The Llama layer with layer norms, or its parts beside each other (Bellagente et al. 2024)."""

    norms = LayerNorm

    def layer(self, config: ModelConfig, index: int) -> Layer:
        attention = Attention(f"layers.{index}", config, norm="each" if config.own.head_norms else "")
        return pre_norm(config, index, attention, norm=self.norms, shared=True)
