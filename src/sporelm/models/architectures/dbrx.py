"""DBRX: layer norms without biases, limits on queries, keys and values, and experts in every layer."""

from sporelm.models.architecture_registry import architecture
from sporelm.models.blocks import layer_norm_without_bias
from sporelm.models.decoder import Decoder


@architecture("dbrx")
class Dbrx(Decoder):
    """The Llama layer with layer norms and a mixture (Databricks 2024)."""

    norms = staticmethod(layer_norm_without_bias)
