"""Quantized weights of Hugging Face folders, assembled from their parts; one module for each scheme."""

from sporelm.checkpoints.quantized.folder import QuantizedFolder
from sporelm.checkpoints.quantized.schemes import with_quantized

__all__ = ["QuantizedFolder", "with_quantized"]
