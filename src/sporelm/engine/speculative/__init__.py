"""Guesses at the next tokens, which the model checks several at a time; what comes out is what it would have said."""

from sporelm.engine.speculative.draft import ModelDrafter
from sporelm.engine.speculative.drafter import Drafter, DraftTokens
from sporelm.engine.speculative.ngram import NgramDrafter
from sporelm.engine.speculative.speculation import Speculation

__all__ = ["DraftTokens", "Drafter", "ModelDrafter", "NgramDrafter", "Speculation"]
