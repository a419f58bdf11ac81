"""Orion: Llama with layer norms."""

from sporelm.models.blocks import LayerNorm
from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import Family, Field, HfClass, fields
from sporelm.weights.names import COMMON, NORM_BIASES, changed


@architecture(
    Family(
        "orion",
        (HfClass("OrionForCausalLM", "orion", {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096}),),
        fields(Field("eps", "attention.layer_norm_epsilon", "f32", "rms_norm_eps"), without=("window",)),
        changed(COMMON, *NORM_BIASES),
        only={"hidden_act": ("silu",), "attention_bias": (False,)},
    )
)
class Orion(Decoder):
    """The Llama layer (OrionStar 2024); its norms are layer norms, whatever files call their epsilon."""

    norms = LayerNorm
