"""Helium: Llama whose folders have the numbers of a head that are rotated together side by side."""

from typing import Any

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import ATTENTION_BIAS, Family, Field, HfClass, fields

NUMBERS: dict[str, Any] = {"num_key_value_heads": 20, "head_dim": 128, "rms_norm_eps": 1e-8, "rope_theta": 1e5}
NUMBERS |= {"max_position_embeddings": 4096}
FLAGS = (("attention_bias", "attention_bias"), ("mlp_bias", "mlp_bias"))


@architecture(
    Family(
        "helium",
        (HfClass("HeliumForCausalLM", "helium", NUMBERS, FLAGS),),
        fields(ATTENTION_BIAS[0], Field("mlp_bias", "", "bool", "mlp_bias"), without=("window",)),
        fixed={"rope_style": "adjacent"},
    )
)
class Helium(Decoder):
    """The Llama layer (Kyutai 2025)."""
