"""Text on both sides of the model: tokenizers, incremental detokenizing, stop strings and chat templates."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sporelm.text.chat_templates.chat_messages import check_messages
    from sporelm.text.chat_templates.chat_template import ChatTemplate
    from sporelm.text.chat_templates.rendered_prompt import RenderedPrompt
    from sporelm.text.detokenizer import Detokenizer
    from sporelm.text.stop_matcher import StopMatcher
    from sporelm.text.tokenizers.load_tokenizer import load_tokenizer
    from sporelm.text.tokenizers.tokenizer import Tokenizer

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
    "ChatTemplate": "chat_templates.chat_template",
    "Detokenizer": "detokenizer",
    "RenderedPrompt": "chat_templates.rendered_prompt",
    "StopMatcher": "stop_matcher",
    "Tokenizer": "tokenizers.tokenizer",
    "check_messages": "chat_templates.chat_messages",
    "load_tokenizer": "tokenizers.load_tokenizer",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
