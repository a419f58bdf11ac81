"""Calls that a chat template renders are parsed by the dialect chosen for the template."""

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from sporelm.errors import RequestError
from sporelm.text import ChatTemplate
from sporelm.text.dialects import Reply, choose_dialect, render_with_tools
from unit.text.dialects.dialect_models import TEMPLATES

RESULT = "RESULT"
VALUES = {
    "place": "Zürich \"a\"\nb 'x' 😀",
    "days": 2,
    "list": [1, ["x", {"a": None}], True],
    "on": False,
    "more": {"k": "v"},
}
KINDS = {"place": "string", "days": "integer", "list": "array", "on": "boolean", "more": "object"}
SCHEMA = {"type": "object", "properties": {name: {"type": kind} for name, kind in KINDS.items()}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock", "description": "The time.", "parameters": {"type": "object"}}},
]
CALLS = [("weather", VALUES), ("clock", {})]
USER = {"role": "user", "content": "Hi?"}

# Excerpts of the models' own templates.
INVOKE = """
{%- for m in messages -%}
{%- if m.tool_calls -%}
{{ '\\n\\n<｜DSML｜function_calls>\\n' }}{%- for c in m.tool_calls -%}
{{ '<｜DSML｜invoke name="' + c.function.name + '">\\n' }}
{%- for k, v in c.function.arguments.items() -%}
{{ '<｜DSML｜parameter name="' + k + '" string="' + ('true' if v is string else 'false') + '">' }}
{{- v if v is string else v | tojson }}{{ '</｜DSML｜parameter>\\n' }}
{%- endfor -%}{{ '</｜DSML｜invoke>\\n' }}{%- endfor -%}{{ '</｜DSML｜function_calls>' }}
{%- else -%}[{{ m.role }}]{{ m.content }}{%- endif -%}
{%- endfor -%}{% if tools %}{% endif %}
"""
PYTHON = """
{%- for m in messages -%}
{%- if m.tool_calls -%}
<|tool_call_start|>[{%- for c in m.tool_calls -%}
{{ c.function.name }}(
{%- for k, v in c.function.arguments.items() -%}
{{ k }}={{ "'" + v + "'" if v is string else v | tojson if v is mapping else v | string }}
{%- if not loop.last %}, {% endif %}{%- endfor -%}){%- if not loop.last %}, {% endif %}
{%- endfor -%}]<|tool_call_end|>
{%- else -%}[{{ m.role }}]{{ m.content }}{%- endif -%}
{%- endfor -%}
"""
KEYED = """
{%- for m in messages -%}
{%- if m.tool_calls -%}
<|tools_prefix|>[{%- for c in m.tool_calls -%}
{{ '{"' + c.function.name + '": ' + c.function.arguments | tojson + '}' }}{%- if not loop.last %}, {% endif %}
{%- endfor -%}]<|tools_suffix|>
{%- else -%}[{{ m.role }}]{{ m.content }}{%- endif -%}
{%- endfor -%}
"""
NESTED = """
{%- macro tags(v) -%}
{%- if v is mapping -%}{%- for k, i in v.items() if i is not none -%}
{{ ns }}<{{ k }}>{{ tags(i) }}{{ ns }}</{{ k }}>
{%- endfor -%}
{%- elif v is iterable and v is not string -%}{%- for i in v -%}{{ ns }}<item>{{ tags(i) }}{{ ns }}</item>{%- endfor -%}
{%- else -%}{{ v | tojson if v is boolean else v }}{%- endif -%}
{%- endmacro -%}
{%- set ns = ']<]minimax[>[' -%}
{%- for m in messages -%}
{%- if m.tool_calls -%}
</mm:think>{{ ns }}<tool_call>
{% for c in m.tool_calls -%}
{{ ns }}<invoke name="{{ c.function.name }}">{{ tags(c.function.arguments) }}{{ ns }}</invoke>
{% endfor -%}
{{ ns }}</tool_call>
{%- else -%}[{{ m.role }}]{{ m.content }}{%- endif -%}
{%- endfor -%}{% if tools %}{% endif %}
"""
TYPED = """
{%- macro open(tag) -%}<|open|>{{ tag }}<|sep|>{%- endmacro -%}
{%- macro close(tag) -%}{{ '<|close|>' + tag + '<|sep|>' }}{%- endmacro -%}
{%- for m in messages -%}
{%- if m.tool_calls -%}
{{ open('think') }}{{ close('think') }}{{ open('response') }}{{ close('response') }}{{ open('tools') }}
{%- for c in m.tool_calls -%}
{{ open('call tool="' + c.function.name + '" index="' ~ loop.index ~ '"') }}
{%- for k, v in c.function.arguments.items() -%}
{%- set kind = 'boolean' if v is boolean else 'number' if v is number else 'object' if v is mapping else 'array' -%}
{{ open('argument key="' + k + '" type="' + ('string' if v is string else kind) + '"') }}
{{- v if v is string else v | tojson }}{{ close('argument') }}
{%- endfor -%}{{ close('call') }}
{%- endfor -%}{{ close('tools') }}
{%- else -%}[{{ m.role }}]{{ m.content }}{%- endif -%}
{%- endfor -%}{% if tools %}{% endif %}
"""
MESSAGES = """
{%- for m in messages -%}
{%- if m.tool_calls -%}
{%- for c in m.tool_calls -%}
{{ '<|start|>assistant to=' + c.function.name + '<|message|><atem:function_calls>\\n' }}
{{- '<atem:invoke name="' + c.function.name + '">\\n' }}
{%- for k, v in c.function.arguments.items() -%}
{{ '<atem:parameter name="' + k + '">' + (v if v is string else v | tojson) + '</atem:parameter>\\n' }}
{%- endfor -%}{{ '</atem:invoke>\\n</atem:function_calls>' + ('<|eot|>' if loop.last else '<|eom|>') }}
{%- endfor -%}
{%- else -%}<|start|>{{ m.role }}<|message|>{{ m.content }}<|eot|>{%- endif -%}
{%- endfor -%}{% if add_generation_prompt %}<|start|>assistant{% endif %}{% if tools %}{% endif %}
"""
FUNCTOOLS = """
{%- for m in messages -%}
{%- if m.tool_calls -%}{%- set found = namespace(calls=[]) -%}
{%- for c in m.tool_calls -%}
{%- set one = '{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson + '}' -%}
{%- set found.calls = found.calls + [one] -%}
{%- endfor -%} functools[{{ found.calls | join(', ') }}]
{%- else -%}[{{ m.role }}]{{ m.content }}{%- endif -%}
{%- endfor -%}{{ 'Available functions as JSON spec:\n' + functions + '\nToday is ' + datetime }}
"""


def round_trip(source: str, count: int) -> tuple[str, Reply]:
    """Return the dialect's name, and its parse of the text between a question and the first result."""
    template, dialect = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}), choose_dialect(source)
    calls = [
        {"id": f"abcdefgh{at}", "type": "function", "function": {"name": name, "arguments": json.dumps(values)}}
        for at, (name, values) in enumerate(CALLS[:count])
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in calls]
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    question = render_with_tools(template, dialect, [USER], TOOLS).text
    text = render_with_tools(template, dialect, messages, TOOLS, add_generation_prompt=False).text
    begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(question, text, strict=False)))
    parser = dialect.parser(TOOLS, prompt=text[:begin])
    answer = text[begin:].partition(RESULT)[0]
    return dialect.name, Reply().add(parser.push(answer)).add(parser.finish())


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_round_trip_of_model_templates(shared: Path, name: str) -> None:
    source = (shared / "data" / "templates" / name).read_text(encoding="utf-8")
    has_one_call = name.startswith(("meta-llama", "openai-gpt-oss"))  # rejects several calls, or renders only the first
    try:
        _, reply = round_trip(source, 1 if has_one_call else 2)
    except RequestError:
        pytest.fail("the template rejects these calls")
    got = [(call.name, json.loads(call.arguments), call.complete) for call in reply.calls]
    assert got == [(*call, True) for call in CALLS[: 1 if has_one_call else 2]]


EXCERPTS = {"dsml": INVOKE, "lfm2": PYTHON, "apertus": KEYED, "minimax_m3": NESTED, "kimi_k3": TYPED}
EXCERPTS |= {"firefunction": FUNCTOOLS, "muse": MESSAGES}


@pytest.mark.parametrize("name", EXCERPTS)
def test_round_trip_of_dialects(name: str) -> None:
    dialect, reply = round_trip(EXCERPTS[name], 2)
    assert dialect == name
    expected = json.dumps(CALLS)
    if name == "minimax_m3":  # cannot write an object without keys, or null
        expected = expected.replace('{"a": null}', '""')
    assert [[call.name, json.loads(call.arguments)] for call in reply.calls] == json.loads(expected)


RESPONDS = "<think></think> <response></response> <tool_call>"  # ERNIE 4.5
HUNYUAN = "{{ '<｜hy_Assistant｜>' }} <tool_calls>"


@pytest.mark.parametrize(
    ("source", "prompt", "text", "content", "reasoning", "calls"),
    [
        (RESPONDS, "<think>\n", "Hm\n</think>\n\n<response>\nHi\n</response>\n", "Hi", "Hm", 0),
        (RESPONDS, "<think>\n", 'Hm</think><tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>', "", "Hm", 1),
        (RESPONDS, "<think>", "Hm</think>Say <response>Hi</response>", "Say <response>Hi</response>", "Hm", 0),
        (HUNYUAN, "", "<think>\nHm\n</think>\n<answer>\nHi\n</answer>", "Hi", "Hm", 0),
        (HUNYUAN, "<think>\n\n</think>\n", "<answer>\nHi\n</answer>", "Hi", "", 0),
        (HUNYUAN, "", "<answer>\nHi\n</answer>", "<answer>\nHi\n</answer>", "", 0),
        (HUNYUAN, "<think>", 'Hm</think><answer>A<tool_calls>[{"name": "clock"}]</tool_calls></answer>', "A", "Hm", 1),
        ("[BEGIN FINAL RESPONSE]", "Here are my reasoning steps:\n", "Hm\n[BEGIN FINAL RESPONSE]\nHi", "Hi", "Hm", 0),
    ],
)
def test_content_after_reasoning(source: str, prompt: str, text: str, content: str, reasoning: str, calls: int) -> None:
    for parts in ([text], list(text)):
        parser = choose_dialect(source).parser(TOOLS, prompt=prompt)
        reply = Reply()
        for part in parts:
            reply.add(parser.push(part))
        reply.add(parser.finish())
        assert (reply.content, reply.reasoning, len(reply.calls)) == (content, reasoning, calls)
