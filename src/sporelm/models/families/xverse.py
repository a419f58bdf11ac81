"""XVERSE: the Llama layer and nothing else."""

from sporelm.models.decoder import Decoder
from sporelm.models.registry import architecture
from sporelm.weights.family import Family, HfClass, fields


@architecture(
    Family(
        "xverse",
        (HfClass("XverseForCausalLM", "xverse", {"rms_norm_eps": 1e-6, "max_position_embeddings": 8192}),),
        fields(without=("window",)),
        paired_rows=True,
    )
)
class Xverse(Decoder):
    """Llama's (XVERSE Technology 2023)."""
