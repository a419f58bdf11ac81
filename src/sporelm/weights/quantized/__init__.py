"""Weights that Hugging Face folders hold quantized, put together from their parts; one file a scheme."""

from sporelm.weights.quantized.folder import QuantizedFolder
from sporelm.weights.quantized.schemes import with_quantized

__all__ = ["QuantizedFolder", "with_quantized"]
