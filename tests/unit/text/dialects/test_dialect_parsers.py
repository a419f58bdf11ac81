"""Parsers of answers: the documented formats, and that no cutting of a text changes what is made of it."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sporelm.errors import RequestError
from sporelm.text.dialects import DIALECTS, Arguments, CallEnd, CallStart, Content, Reply
from unit.text.dialects.answers import ANSWERS, CHECKS, HERMES, TOOLS, pieces, read

# Parts of all formats, to be put together in any order.
MARKS = sorted({mark for make in DIALECTS.values() for mark in make().all_markers()})
PARTS = [
    *MARKS, *"{}[]\":,;`\\ \n<x1", '{"name": "weather", "arguments": ', '{"name": "clock"}', '{"place": "', "weather",
    "clock", "assistant", "to=functions.clock", "call:clock{", "```json\n", "```tool_code\n", "clock()", "true",
    "\\u00", "\\ud83d\\ude00", "12e3", "é",
]  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_documented_answers(name: str) -> None:
    dialect, prompt, text, content, reasoning, calls = ANSWERS[name]
    reply = read(DIALECTS[dialect](), [text], prompt)
    assert reply.content == content
    assert reply.reasoning == reasoning
    assert [(call.name, call.arguments, call.complete) for call in reply.calls] == calls


@pytest.mark.parametrize("name", ANSWERS)
def test_parsing_does_not_depend_on_where_text_is_cut(name: str) -> None:
    dialect, prompt, text, *_ = ANSWERS[name]
    whole = read(DIALECTS[dialect](), [text], prompt)
    assert read(DIALECTS[dialect](), list(text), prompt) == whole
    for size in (2, 3, 7):
        assert read(DIALECTS[dialect](), [text[at : at + size] for at in range(0, len(text), size)], prompt) == whole


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(DIALECTS)), st.lists(st.sampled_from(PARTS), max_size=14), st.lists(st.integers(1, 200)))
def test_random_text_in_random_pieces(name: str, parts: list[str], cuts: list[int]) -> None:
    check(name, "".join(parts), cuts)


@pytest.mark.all
@settings(max_examples=20000, deadline=None)
@given(st.sampled_from(sorted(DIALECTS)), st.lists(st.sampled_from(PARTS), max_size=24), st.lists(st.integers(1, 300)))
def test_many_random_texts_in_random_pieces(name: str, parts: list[str], cuts: list[int]) -> None:
    check(name, "".join(parts), cuts)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_truncated_answers(name: str) -> None:
    """Calls of a truncated answer have valid JSON arguments, and its content is a prefix of the whole answer's."""
    dialect, prompt, text, content, *_ = ANSWERS[name]
    for end in range(len(text)):
        reply = read(DIALECTS[dialect](), [text[:end]], prompt)
        assert all(isinstance(json.loads(call.arguments), dict) for call in reply.calls)
        if reply.calls and not reply.calls[-1].complete and "," not in name:
            assert content.startswith(reply.content)


def check(name: str, text: str, cuts: list[int]) -> None:
    dialect = DIALECTS[name]()
    whole = read(dialect, [text])
    assert read(dialect, pieces(text, cuts)) == whole
    for call in whole.calls:
        assert isinstance(json.loads(call.arguments, parse_constant=pytest.fail), dict)
    thinking = dialect.thinking
    markers = (
        *dialect.frame_markers,
        *((*thinking.answer, thinking.open, thinking.close) if thinking else ()),
        *SILENT.get(name, ()),
    )
    if not whole.calls and not whole.reasoning and not any(marker in text for marker in markers):
        assert whole.content == text


# Marks that may go without a call, besides those of reasoning and the frames of what is said.
SILENT = {
    "harmony": ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    "muse": ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    "recipients": ("all\n",),
}


def test_text_is_emitted_once_it_cannot_be_a_marker() -> None:
    parser = DIALECTS["hermes"]().parser(TOOLS)
    assert parser.push("Hello <b") == [Content("Hello <b")]
    assert parser.push(" <tool") == []
    assert parser.push("box>") == [Content(" <toolbox>")]


def test_json_arguments_stream() -> None:
    parser = DIALECTS["hermes"]().parser(TOOLS, new_id=lambda: "i")
    assert parser.push('<tool_call>{"name": "weather", ') == []
    assert parser.push('"arguments": {"place": "Zü') == [CallStart(0, "i", "weather"), Arguments(0, '{"place": "Zü')]
    assert parser.push('rich", "days"') == [Arguments(0, 'rich"')]
    assert parser.push(": 1") == []
    assert parser.push("2}") == [Arguments(0, ', "days": 12}'), CallEnd(0, True)]
    assert parser.push("}\n</tool_call>\n") == []
    assert parser.finish() == []
    assert parser.finish() == []
    with pytest.raises(RequestError, match="finished"):
        parser.push("x")


def test_python_arguments_stream() -> None:
    parser = DIALECTS["lfm2"]().parser(TOOLS, new_id=lambda: "i")
    assert parser.push("<|tool_call_start|>[weat") == []
    assert parser.push("her(") == [CallStart(0, "i", "weather")]
    assert parser.push("place='Zü") == [Arguments(0, '{"place": "Zü')]
    assert parser.push("rich'") == [Arguments(0, "rich")]
    assert parser.push(", da") == []
    assert parser.push("ys") == []
    assert parser.push("=1") == [Arguments(0, '"')]
    assert parser.push("2)") == [Arguments(0, ', "days": 12}'), CallEnd(0, True)]
    assert parser.push("]<|tool_call_end|>") == []
    assert parser.finish() == []


SCALARS = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text(max_size=12)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,6}", fullmatch=True), VALUES, max_size=4), st.lists(st.integers(1, 200))
)
def test_python_literals_are_parsed(values: dict[str, object], cuts: list[int]) -> None:
    written = ", ".join(f"{key}={value!r}" for key, value in values.items())
    text = f"<|tool_call_start|>[clock({written}), clock()]<|tool_call_end|>"
    reply = read(DIALECTS["lfm2"](), pieces(text, cuts))
    assert [(json.loads(call.arguments), call.complete) for call in reply.calls] == [(values, True), ({}, True)]
    assert reply.content == ""


def test_without_tools_all_text_is_content() -> None:
    parser = DIALECTS["hermes"]().parser()
    reply = Reply().add(parser.push(f"<think>a</think>{CHECKS}\n{HERMES}")).add(parser.finish())
    assert (reply.content, reply.reasoning, reply.calls) == (f"{CHECKS}\n{HERMES}", "a", [])


def test_call_ids_are_unique_and_fit_templates() -> None:
    parser = DIALECTS["mistral"]().parser(TOOLS)
    text = "[TOOL_CALLS]clock[CALL_ID]abcdefghi[ARGS]{}" * 2 + "[TOOL_CALLS]clock[CALL_ID]x[ARGS]{}"
    reply = Reply().add(parser.push(text)).add(parser.finish())
    ids = [call.id for call in reply.calls]
    assert ids[0] == "abcdefghi"
    assert len(set(ids)) == 3
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert DIALECTS["hermes"]().new_id().startswith("call_")


def test_many_markers_without_calls_take_linear_time() -> None:
    """Each failed attempt ends where the next begins: no part of a text is read again and again."""
    for name in DIALECTS:
        dialect = DIALECTS[name]()
        for marker in dialect.start_markers:
            text = (marker + '{"a": "' + marker + '\\"') * 1000
            assert read(dialect, [text]).content == text


def test_deep_and_long_arguments() -> None:
    deep = '<tool_call>{"name": "clock", "arguments": {"a": ' + "[" * 5000
    assert json.loads(read(DIALECTS["hermes"](), [deep]).calls[0].arguments)
    long = "".join(random.Random(1).choice('ab\\"\n{}') for _ in range(50_000))
    text = f"<tool_call>{json.dumps({'name': 'clock', 'arguments': {'a': long}})}</tool_call>"
    reply = read(DIALECTS["hermes"](), [text[at : at + 5] for at in range(0, len(text), 5)])
    assert json.loads(reply.calls[0].arguments) == {"a": long}


REFERRED = {
    "type": "object",
    "properties": {
        "kind": {"allOf": [{"$ref": "#/$defs/kind"}]},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"type": ["integer", "string"]},
        "loop": {"$ref": "#/properties/loop"},
        "on": {"type": "boolean"},
    },
    "$defs": {"kind": {"enum": ["1", "2"]}},
}


@pytest.mark.parametrize(
    ("key", "raw", "value"),
    [
        ("kind", "1", "1"),
        ("maybe", '"a"', '"a"'),
        ("maybe", "null", None),
        ("maybe", "3", "3"),
        ("count", "3", 3),
        ("count", "3.5", "3.5"),
        ("loop", "[1]", [1]),
        ("loop", "a b", "a b"),
        ("on", "True", True),
        ("on", "yes", "yes"),
    ],
)
def test_raw_values_get_their_schema_types(key: str, raw: str, value: object) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": REFERRED}}]
    parser = DIALECTS["qwen_coder"]().parser(tools)
    text = f"<function=f>\n<parameter={key}>\n{raw}\n</parameter>\n</function>"
    reply = Reply().add(parser.push(text)).add(parser.finish())
    assert json.loads(reply.calls[0].arguments) == {key: value}


def test_malformed_tools_are_rejected() -> None:
    with pytest.raises(RequestError, match="tool 0 is not a function"):
        DIALECTS["hermes"]().parser([{"name": "x"}])


def test_former_names_of_deltas_still_work() -> None:
    from sporelm.text import dialects

    assert dialects.CallBegun is dialects.CallStart
    assert dialects.CallEnded is dialects.CallEnd
    assert dialects.Call is dialects.ToolCall
    assert dialects.Parser is dialects.AnswerParser
    assert not {"CallBegun", "CallEnded", "Call", "Parser"} & set(dialects.__all__)
    with pytest.raises(AttributeError):
        dialects.missing  # noqa: B018
