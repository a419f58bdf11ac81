"""Prompts with tools, calls and results: by chat templates, or in words if the template does not support them."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sporelm.errors import RequestError
from sporelm.text import ChatTemplate, check_messages
from sporelm.text.chat_templates import template_sandbox
from sporelm.text.chat_templates.chat_messages import check_tools
from sporelm.text.dialects import DIALECTS, check_variables, choose_dialect, render_with_tools
from unit.text.dialects.answers import TOOLS

DATA = Path(__file__).resolve().parents[3] / "data"
GOLDENS: dict[str, dict[str, Any]] = json.loads((DATA / "template_goldens.json").read_text(encoding="utf-8"))
SPEC = importlib.util.spec_from_file_location("make_template_goldens", DATA / "make_template_goldens.py")
assert SPEC is not None
assert SPEC.loader is not None
MADE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MADE)

USER = {"role": "user", "content": "Hi"}
CHATML = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
PLAIN = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + (
    "{% if (m.role == 'user') != loop.first %}{% if loop.index0 % 2 == 0 and m.role != 'user' %}"
    "{{ raise_exception('must alternate') }}{% endif %}{% endif %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
)


def messages_with_call(**changes: Any) -> list[dict[str, Any]]:
    """Return a question, a call in the OpenAI API's format, and its result."""
    function = {"name": "weather", "arguments": '{"place": "Zürich"}'}
    call = {"id": "call_1", "type": "function", "function": function | changes}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [USER, answer, {"role": "tool", "tool_call_id": "call_1", "content": "21 °C"}]


@pytest.mark.parametrize("case", ["tool_result", "two_calls", "thoughts"])
@pytest.mark.parametrize("name", GOLDENS)
def test_arguments_as_text_render_like_objects(
    shared: Path, name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments as JSON text render like transformers renders them as objects."""
    monkeypatch.setattr(template_sandbox, "strftime_now", lambda form: MADE.NOW.strftime(form))
    if GOLDENS[name][case] == "error":
        return
    given = dict(MADE.CASES[case])
    messages = [dict(message) for message in given.pop("messages")]
    for message in messages:
        for index, call in enumerate(message.get("tool_calls", ())):
            function = call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}
            message["tool_calls"] = [*message["tool_calls"]]
            message["tool_calls"][index] = call | {"function": function}
    template = ChatTemplate((shared / "data/templates" / name).read_text(encoding="utf-8"), MADE.SPECIAL)
    assert MADE.digest(template.render(messages, **given).text) == GOLDENS[name][case]


@pytest.mark.parametrize("name", GOLDENS)
def test_every_template_renders_tools_calls_and_results(shared: Path, name: str) -> None:
    source = (shared / "data/templates" / name).read_text(encoding="utf-8")
    template, dialect = ChatTemplate(source, MADE.SPECIAL), choose_dialect(source)
    system = [{"role": "system", "content": "Be brief."}] if template.supports_system_role else []
    text = render_with_tools(template, dialect, [*system, USER], TOOLS).text
    assert text.count('"clock"') == 1 or "type clock = " in text or text.count("<name>clock</name>") == 1
    text = render_with_tools(template, dialect, messages_with_call(), TOOLS).text
    assert "Zürich" in text or "Z\\u00fcrich" in text
    assert "21 °C" in text or "21 \\u00b0C" in text
    assert "None" not in text


def test_template_without_tools() -> None:
    template, dialect = ChatTemplate(CHATML), DIALECTS["generic"]()
    assert (template.supports_tools, template.renders_tool_calls, template.renders_tool_results) == (False, False, True)
    text = render_with_tools(template, dialect, [{"role": "system", "content": "S"}, *messages_with_call()], TOOLS).text
    system, *others = text.strip("[]").split("][")
    assert system.startswith("system|S\n\nYou may call these functions")
    assert '\n<tool_call>\n{"name": "function_name", "arguments": {"argument_name": "value"}}\n</tool_call>\n' in system
    call = '<tool_call>\n{"name": "weather", "arguments": {"place": "Zürich"}}\n</tool_call>'
    assert others == ["user|Hi", f"assistant|{call}", "user|<tool_response>\n21 °C\n</tool_response>"]
    assert render_with_tools(template, dialect, [USER]).text == "[user|Hi]"


def test_successive_results_are_one_message() -> None:
    messages = messages_with_call()
    text = render_with_tools(ChatTemplate(CHATML), DIALECTS["generic"](), [*messages, messages[-1], USER]).text
    response = "<tool_response>\n21 °C\n</tool_response>"
    assert text.endswith(f"[user|{response}\n{response}][user|Hi]")


def test_template_without_a_system_role() -> None:
    text = render_with_tools(ChatTemplate(PLAIN), DIALECTS["gemma"](), messages_with_call(), TOOLS).text
    assert text.startswith("[user|You may call these functions")
    assert '"parameters": {"place": "Zürich"}' in text


def test_call_ids_fit_mistral(shared: Path) -> None:
    source = (shared / "data/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja").read_text(encoding="utf-8")
    template, dialect = ChatTemplate(source, MADE.SPECIAL), choose_dialect(source)
    with pytest.raises(RequestError, match="length 9"):
        template.render(messages_with_call(), tools=TOOLS)
    text = render_with_tools(template, dialect, messages_with_call(), TOOLS).text
    made = dialect.normalize_call_id("call_1")
    assert len(made) == 9
    assert text.count(made) == 2
    assert dialect.normalize_call_id("abcdefghi") == "abcdefghi"


def test_formatted_calls_can_be_parsed_again() -> None:
    from sporelm.text.dialects import Reply, ToolCall

    calls = [ToolCall("", "weather", '{"place": "x"}'), ToolCall("", "clock", "{}")]
    for name, make in DIALECTS.items():
        dialect = make()
        if type(dialect).format_calls is type(DIALECTS["hermes"]()).format_calls and name not in ("hermes", "generic"):
            continue  # the default format, used only if a template has none of its own
        parser = dialect.parser(TOOLS)
        reply = Reply().add(parser.push(dialect.format_calls(calls))).add(parser.finish())
        assert [(call.name, call.arguments) for call in reply.calls] == [(call.name, call.arguments) for call in calls]


def test_reasoning_gets_the_field_that_the_template_reads() -> None:
    template = ChatTemplate("{{ messages[1].thinking }}{{ messages[1].reasoning_content }}")
    messages = [USER, {"role": "assistant", "content": "A", "reasoning_content": "Hm"}]
    assert template.render(messages).text == "HmHm"
    assert template.render([USER, messages[1] | {"thinking": "T"}]).text == "THm"


@pytest.mark.parametrize("refuses", [False, True])
def test_reasoning_beside_content_and_calls_is_dropped_only_if_the_template_rejects_it(refuses: bool) -> None:
    source = "{{ messages[1].thinking }}/{{ messages[1].content }}/{{ messages[1].tool_calls[0].function.name }}"
    if refuses:
        source = "{% if messages[1].thinking and messages[1].tool_calls and messages[1].content %}"
        source += "{{ raise_exception('all three') }}{% endif %}{{ messages[1].content }}"
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}
    said = {"role": "assistant", "content": "A", "reasoning_content": "Hm", "tool_calls": [call]}
    assert ChatTemplate(source).render([USER, said]).text == ("A" if refuses else "Hm/A/f")


def test_missing_content_is_an_empty_text_if_the_template_needs_one() -> None:
    assert ChatTemplate("{{ messages[1].content + '!' }}").render(messages_with_call()).text == "!"
    assert ChatTemplate("{{ messages[1].content is none }}").render(messages_with_call()).text == "True"
    qwq = "{% set m = messages[1] %}{{ m.content if messages | length == 2 else m.content.split('x')[0] }}!"
    assert ChatTemplate(qwq + "{{ m.tool_calls[0].function.name }}").render(messages_with_call()).text == "!weather"


@pytest.mark.parametrize(
    ("source", "wish", "text"),
    [
        ("{% if not thinking is defined %}{% set thinking = true %}{% endif %}{{ thinking }}", False, "False"),
        ("{% if thinking is undefined %}{% set thinking = true %}{% endif %}{{ thinking }}", None, "True"),
        ("{{ thinking_mode }}", True, "enabled"),
        ("{{ thinking_mode }}", False, "disabled"),
        ("{{ enable_thinking }}{{ thinking_mode }}", True, "True"),
        ("{{ messages[0].thinking is defined }}{{ thinking }}", True, "False"),
    ],
)
def test_reasoning_switch_gets_the_variable_that_the_template_reads(source: str, wish: bool | None, text: str) -> None:
    given = {} if wish is None else {"enable_thinking": wish}
    assert ChatTemplate(source).render([USER], **given).text == text
    if wish is not None and "enable" not in source and "messages" not in source:
        assert ChatTemplate(source).render([USER], **given, thinking="t", thinking_mode="t").text == "t"


def test_firefunction_gets_functions_and_the_time() -> None:
    template = ChatTemplate("formatted as functools[...]: {{ functions }} {{ datetime }}")
    text = render_with_tools(template, choose_dialect(template.source), [USER], TOOLS).text
    assert '"name": "clock"' in text
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", text)
    assert ": [] 2" in template.render([USER]).text
    assert template.render([USER], functions="f", datetime="now").text.endswith(": f now")


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        (messages_with_call(arguments="{"), "message 1, tool call 0: its arguments are not valid JSON"),
        (messages_with_call(arguments="[1]"), "its arguments are a list; they must be an object"),
        (messages_with_call(arguments=3), "its arguments are a int"),
        (messages_with_call(arguments="[" * 100000), "its arguments are not valid JSON|nests deeper"),
        (messages_with_call(arguments='{"a":' * 40 + "1" + "}" * 40), "nests deeper than 32"),
        (messages_with_call(name=""), "tool call 0 names no function"),
        ([USER, {"role": "assistant", "tool_calls": {"a": 1}}], "tool_calls is a dict"),
        ([USER, {"role": "assistant", "tool_calls": [1]}], "tool call 0 names no function"),
        ([USER, {"role": "assistant", "tool_calls": [{"name": "x"}] * 129}], r"too many tool calls \(got 129"),
        ([{"role": "tool", "content": "x", "tool_call_id": 3}], "tool_call_id is a int"),
        ([{"role": "tool"}], "message 0 has no content"),
        ([{"role": "user", "content": "x", "reasoning_content": 3}], "reasoning_content is a int"),
    ],
)
def test_malformed_messages(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        check_messages(messages)
    assert "\n" not in str(caught.value)


def test_arguments_may_be_missing_or_empty() -> None:
    for arguments in ("", " ", None, {}):
        (function,) = [
            call["function"] for call in check_messages(messages_with_call(arguments=arguments))[1]["tool_calls"]
        ]
        assert function["arguments"] == {}
    flat = check_messages([USER, {"role": "assistant", "tool_calls": [{"name": "x", "arguments": '{"a": 1}'}]}])
    assert flat[1]["tool_calls"] == [{"name": "x", "arguments": {"a": 1}}]


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f"} | fields}]


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("x", "tools is a str"),
        ([3], "tool 0 is not a function"),
        ([{"type": "web_search"}], "tool 0 is not a function"),
        (function(name="a b"), "its name is 'a b'"),
        (function(name="x" * 129), "1 to 128"),
        (function() * 2, "tool 1 has the name 'f' of another"),
        (function(parameters=[1]), "its parameters are a list"),
        (function(parameters={"type": "string"}), "have type 'string'"),
        (function(parameters={"properties": []}), "properties of its parameters"),
        (function(parameters={"properties": {"a": 3}}), "its parameter 'a' is a int"),
        (function(parameters={"required": "a"}), "required parameters must be"),
        (function(description=3), "its description must be a string"),
        (function(description="x" * 300000), "allowed 262144"),
        ([function(name=f"f{i}")[0] for i in range(129)], r"got 129; allowed 128"),
        (function(parameters={"a": object()}), "contains a object"),
    ],
)
def test_malformed_tools(tools: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        check_tools(tools)
    assert "\n" not in str(caught.value)


def test_template_variables_of_a_request() -> None:
    assert check_variables(None) == {}
    assert check_variables({"enable_thinking": False, "reasoning_effort": "low"})["reasoning_effort"] == "low"
    for given, message in [
        ({"messages": []}, "has 'messages': only enable_thinking"),
        ({"enable_thinking": "yes"}, "enable_thinking is 'yes'; it must be a bool"),
        ({"thinking_budget": True}, "must be a int"),
        ([1], "must be an object"),
    ]:
        with pytest.raises(RequestError, match=message):
            check_variables(given)
