"""OLMo 1: Llama with layer norms that have no weights, and limits on queries, keys and values."""

from dataclasses import replace

from sporelm.models.blocks import bare
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.config import ModelConfig
from sporelm.weights.family import ATTENTION_BIAS, OPTIONAL, Family, Field, HfClass, fields
from sporelm.weights.fields import Fields
from sporelm.weights.names import HF, Kind

EPS = 1e-5  # which its folders do not say
LEAST, MOST = 1e-6, 1e6


def _finished(config: ModelConfig, values: Fields, kind: Kind) -> ModelConfig:
    return replace(config, eps=EPS) if kind == HF else config


@architecture(
    Family(
        "olmo",
        (HfClass("OlmoForCausalLM", "olmo", fields=(("attention_bias", "attention_bias"),)),),
        fields(
            Field("eps", "attention.layer_norm_epsilon", "f32", ""),
            Field("qkv_limit", "attention.clamp_kqv", "f32", "clip_qkv", LEAST, MOST, OPTIONAL),
            *ATTENTION_BIAS,
            without=("window",),
        ),
        finish=_finished,
        paired_rows=True,
    )
)
class Olmo(Decoder):
    """The Llama layer with bare norms (Groeneveld et al. 2024)."""

    norms = staticmethod(bare)
