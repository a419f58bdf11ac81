"""Fill-in-the-middle: the tokens with which a model is asked to fill the gap before a suffix."""

from sporelm.errors import RequestError
from sporelm.serve.model_pool.served_model import ServedModel
from sporelm.text.fim_tokens import FimTokens, find_fim_tokens


def fim_tokens(model: ServedModel) -> FimTokens:
    """Return the model's tokens for fill-in-the-middle. Raises RequestError for a model without them."""
    tokens = find_fim_tokens(model.llm.tokenizer)
    if tokens is None:
        raise RequestError(
            f"suffix is not supported: {model.name} has no tokens for filling a gap (fill-in-the-middle), as models "
            "for code have; leave it out, or use another model"
        )
    return tokens
