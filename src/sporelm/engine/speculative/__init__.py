"""Speculative decoding: draft tokens that the model verifies several at a time; the output does not depend on them."""

from sporelm.engine.speculative.draft import ModelDrafter
from sporelm.engine.speculative.drafter import Drafter, DraftTokens
from sporelm.engine.speculative.ngram import NgramDrafter
from sporelm.engine.speculative.speculation import Speculation

__all__ = ["DraftTokens", "Drafter", "ModelDrafter", "NgramDrafter", "Speculation"]
