"""Gaps that a request asks to be filled: whether a model can, and what is said if it cannot."""

from sporelm.errors import RequestError
from sporelm.serve.served_model import ServedModel
from sporelm.text.filling import GapTokens, gap_tokens


def gap_of(model: ServedModel) -> GapTokens:
    """The tokens with which a model is asked to fill a gap. Raises RequestError for one that was not made for it."""
    found = gap_tokens(model.llm.llm.tokenizer)
    if found is None:
        raise RequestError(
            f"suffix cannot be had: {model.name} has no tokens for filling a gap (fill-in-the-middle), as models for "
            "code have; leave it out, or ask another model"
        )
    return found
