"""Text on both sides of the model: tokenizers, incremental detokenizing, stop strings and chat templates."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sporelm.text.detokenizer import Detokenizer
    from sporelm.text.load import load_tokenizer
    from sporelm.text.messages import check_messages
    from sporelm.text.rendered_prompt import RenderedPrompt
    from sporelm.text.stops import StopMatcher
    from sporelm.text.template import ChatTemplate
    from sporelm.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "RenderedPrompt",
    "StopMatcher",
    "Tokenizer",
    "check_messages",
    "load_tokenizer",
]

_HOMES = {
    "ChatTemplate": "template",
    "Detokenizer": "detokenizer",
    "RenderedPrompt": "rendered_prompt",
    "StopMatcher": "stops",
    "Tokenizer": "tokenizer",
    "check_messages": "messages",
    "load_tokenizer": "load",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
