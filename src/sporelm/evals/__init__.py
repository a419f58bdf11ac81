"""Quality: perplexity, divergence of quantized weights from their dequantized selves, conformance of back-ends."""

from sporelm.evals.divergence import Divergence, kl
from sporelm.evals.perplexity import Perplexity, perplexity
from sporelm.evals.windows import Windows, cut

__all__ = ["Divergence", "Perplexity", "Windows", "cut", "kl", "perplexity"]
