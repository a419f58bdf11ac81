"""Truncated tool calls are not content, where a grammar requires calls."""

from typing import Any

import pytest

from sporelm.serve.chat.truncated_tool_calls import TruncatedCallFilter
from sporelm.text.dialects import DIALECTS, Reply

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def read(text: str, name: str = "hermes", *, must_call: bool = True, json: bool = True) -> Reply:
    dialect = DIALECTS[name]()
    parser = TruncatedCallFilter(dialect.parser(TOOLS), dialect.all_markers(), must_call=must_call, is_json=json)
    reply = Reply()
    for character in text:
        reply.add(parser.push(character))
    return reply.add(parser.finish())


CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'


@pytest.mark.parametrize("must_call", [True, False])
def test_no_part_of_a_call_is_content(must_call: bool) -> None:
    for end in range(len(CALL) + 1):
        reply = read("<think>Hm</think>" + CALL[:end], must_call=must_call)
        assert (reply.content.strip(), reply.reasoning) == ("", "Hm"), CALL[:end]
    for end in range(1, len(CALL)):
        reply = read(CALL + "\n" + CALL[:end], must_call=must_call)
        assert (reply.content.strip(), reply.calls[0].arguments) == ("", '{"at": "it"}'), CALL[:end]


@pytest.mark.parametrize(("name", "text"), [("mistral", "[TOOL_CALLS]lo"), ("llama3", '{"name": "lo'), ("llama3", "{")])
def test_an_answer_that_must_call_has_no_content_in_other_dialects_either(name: str, text: str) -> None:
    assert read(text, name).content == ""


def test_content_of_the_form_that_was_asked_for_stays() -> None:
    for text in ('{"at": 1}', '{"na', "[1, 2", "[", '"<tool_call>"'):
        for name in ("hermes", "llama3", "mistral"):
            assert read(text, name, must_call=False).content == text
    assert read("<", must_call=False, json=False).content == "<", "a form of another kind may begin so"


def test_readings_know_whether_a_grammar_holds_their_answers() -> None:
    from sporelm.serve.chat.chat_format import ChatFormat

    made: Any = ChatFormat.__new__(ChatFormat)
    made.dialect, made.tools, made.prompt_end = DIALECTS["hermes"](), TOOLS, ""
    made.has_call_grammar = made.must_call = made.is_json = False
    assert not isinstance(made.parser(), TruncatedCallFilter)
    made.has_call_grammar = True
    assert isinstance(made.parser(), TruncatedCallFilter)
