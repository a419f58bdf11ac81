"""Guesses at the next tokens, which the model checks several at a time; what comes out is what it would have said."""

from sporelm.engine.speculative.ngram import NgramDrafter
from sporelm.engine.speculative.speculation import Drafter, Speculation

__all__ = ["Drafter", "NgramDrafter", "Speculation"]
