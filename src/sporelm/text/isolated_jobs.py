"""The jobs of text in an `IsolatedProcess`: they render templates and try grammars. Each function loads a resource and
returns its job."""

import time
from collections.abc import Callable
from typing import Any


def load_template(source: str, special_tokens: dict[str, str], label: str, dated: bool = False) -> Callable[..., Any]:
    """Load a chat template; a job renders one chat."""
    from sporelm.text.chat_templates.chat_template import ChatTemplate, RenderInput, TemplateStopped, unpack_marked

    template = ChatTemplate(source, special_tokens, label=label, dated=dated)

    def render(seconds: float, *chat: Any) -> tuple[Any, str, float]:
        """Return the spans; the reason if the rendering was stopped; its CPU time in seconds."""
        start = time.thread_time()
        spans: Any = ()
        stop_reason = ""
        try:
            spans = template.render_locally(RenderInput(*unpack_marked(list(chat))), seconds).spans
        except TemplateStopped as reason:
            stop_reason = str(reason)
        return spans, stop_reason, time.thread_time() - start

    return render


def load_vocabulary(
    tokens: list[bytes], eos_id: int, bos_id: int | None, special_ids: list[int], stop_ids: list[int]
) -> Callable[..., Any]:
    """Load a vocabulary; a job compiles a grammar for it and takes its first step."""
    from sporelm.text.grammar.grammar_matcher import compile_matcher
    from sporelm.text.grammar.grammar_vocabulary import PlainVocabulary

    vocabulary = PlainVocabulary(tokens, eos_id, bos_id, special_ids).to_llguidance(stop_ids)
    ends = frozenset(stop_ids)

    def try_grammar(source: str) -> None:
        compile_matcher(vocabulary, source, ends, tokens)

    return try_grammar
