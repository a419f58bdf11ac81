"""Seed-OSS: Llama with biases on query, key and value, and heads of a width of their own."""

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, NORM_BETWEEN, changed

BIASES = ("attention_bias", "attention_out_bias", "mlp_bias")


@architecture(
    Family(
        "seed_oss",
        (
            HfClass(
                "SeedOssForCausalLM",
                "seed_oss",
                {"num_key_value_heads": 8, "head_dim": 128, "attention_bias": True, "max_position_embeddings": 524288},
                tuple((name, name) for name in BIASES),
            ),
        ),
        fields(*(Field(name, "", "bool", name) for name in BIASES), without=("window",)),
        changed(COMMON, NORM_BETWEEN),
    )
)
class SeedOss(Decoder):
    """The Llama layer (ByteDance Seed team 2025)."""
