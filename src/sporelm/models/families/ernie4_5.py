"""ERNIE 4.5, its dense models: Llama whose heads are rotated by neighbours."""

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import Family, Field, HfClass, fields


@architecture(
    Family(
        "ernie4_5",
        tuple(
            HfClass(
                name,
                "ernie4_5",
                {"tie_word_embeddings": True, "num_key_value_heads": 2, "head_dim": 128, "rope_theta": 500000.0}
                | {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5},
                (("use_bias", "mlp_bias"),),
            )
            for name in ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")  # the second is that of its first folders
        ),
        fields(
            *(Field(name, "", "bool", "use_bias") for name in ("attention_bias", "attention_out_bias", "mlp_bias")),
            without=("window",),
        ),
        fixed={"rope_style": "adjacent"},
    )
)
class Ernie45(Decoder):
    """The Llama layer (Baidu ERNIE team 2025)."""
