"""Weights that Hugging Face folders hold quantized, put together from their parts; one file a scheme."""

from sporelm.checkpoints.quantized.folder import QuantizedFolder
from sporelm.checkpoints.quantized.schemes import with_quantized

__all__ = ["QuantizedFolder", "with_quantized"]
