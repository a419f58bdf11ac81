"""openPangu Embedded: Llama with biases of attention."""

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import Family, Field, HfClass, fields


@architecture(
    Family(
        "pangu-embedded",
        (
            HfClass(
                "PanguEmbeddedForCausalLM",
                "PanguEmbedded",
                {"bias": True, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "rope_theta": 16e6},
                (("bias", "attention_bias"),),
            ),
        ),
        fields(
            *(Field(part, "", "bool", "bias", default=True) for part in ("attention_bias", "attention_out_bias")),
            without=("window",),
        ),
    )
)
class Pangu(Decoder):
    """The Llama layer (Huawei 2025)."""
