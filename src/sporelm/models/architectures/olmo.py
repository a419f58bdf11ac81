"""OLMo 1: Llama with layer norms that have no weights, and bounds on queries, keys and values."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import layer_norm_without_weights
from sporelm.models.decoder import Decoder


@architecture("olmo")
class Olmo(Decoder):
    """The Llama layer with layer norms that have no weights (Groeneveld et al. 2024)."""

    norms = staticmethod(layer_norm_without_weights)
