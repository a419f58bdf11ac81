"""Quality: perplexity, divergence of quantized weights from their dequantized selves, conformance of back-ends."""

from sporelm.evals.divergence import Divergence, compute_kl
from sporelm.evals.perplexity import Perplexity, compute_perplexity
from sporelm.evals.scoring_windows import ScoringWindows, cut_windows

__all__ = ["Divergence", "Perplexity", "ScoringWindows", "compute_kl", "compute_perplexity", "cut_windows"]
