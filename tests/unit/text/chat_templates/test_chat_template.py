"""Chat templates: equal to transformers' rendering, whatever the messages, and harmless whatever the template."""

import importlib.util
import json
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sporelm.errors import ModelFileError, RequestError, SporeError
from sporelm.text import ChatTemplate, load_tokenizer
from sporelm.text.chat_templates import render_budget, template_sandbox
from sporelm.text.chat_templates.render_budget import LimitReached, RenderBudget

DATA = Path(__file__).resolve().parents[3] / "data"
GOLDENS: dict[str, dict[str, Any]] = json.loads((DATA / "template_goldens.json").read_text(encoding="utf-8"))
PEER_GOLDENS: dict[str, dict[str, str]] = json.loads((DATA / "template_goldens_peer.json").read_text(encoding="utf-8"))
USER = [{"role": "user", "content": "Hi"}]


def script() -> ModuleType:
    """The script that made the goldens, for its cases."""
    spec = importlib.util.spec_from_file_location("make_template_goldens", DATA / "make_template_goldens.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MADE = script()


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "strftime_now", lambda form: MADE.NOW.strftime(form))


@pytest.mark.parametrize("case", MADE.CASES)
@pytest.mark.parametrize("name", GOLDENS)
def test_renders_as_transformers_does(shared: Path, name: str, case: str) -> None:
    template = ChatTemplate((shared / "data/templates" / name).read_text(encoding="utf-8"), MADE.SPECIAL)
    expected = GOLDENS[name][case]
    if case == "parts" and not template._supports_parts:
        # transformers prints the list or fails; we give such a template one text
        text = template.render(**MADE.CASES[case]).text if name in PLAIN_PARTS else ""
        assert name not in PLAIN_PARTS or "One two" in text
        return
    if expected == "error":
        with pytest.raises(SporeError):
            template.render(**MADE.CASES[case])
    else:
        assert MADE.digest(template.render(**MADE.CASES[case]).text) == expected


PLAIN_PARTS = {"Minueza-32M-UltraChat.jinja", "google-gemma-2-2b-it.jinja", "Qwen-Qwen2.5-7B-Instruct.jinja"}


@pytest.fixture(scope="module")
def peers_templates() -> Path:
    """Return the folder of chat templates in the sources of the llama.cpp build."""
    place = os.environ.get("SPORE_PEER")
    if not place:
        pytest.skip(
            "SPORE_PEER names no folder with llama.cpp's programs: bench/peer.sh builds them and keeps its sources"
        )
    found = sorted(Path(place).resolve().parents[1].glob("llama_cpp_python-*/vendor/llama.cpp/models/templates"))
    if not found:
        pytest.skip(f"llama.cpp's sources with models/templates are missing beside {place}")
    return found[-1]


@pytest.mark.all
@pytest.mark.parametrize("name", PEER_GOLDENS)
def test_renders_llama_cpps_templates_as_transformers_does(peers_templates: Path, name: str) -> None:
    template, wrong = ChatTemplate((peers_templates / name).read_text(encoding="utf-8"), MADE.SPECIAL), []
    for case, expected in PEER_GOLDENS[name].items():
        if case == "parts" and not template._supports_parts:
            continue
        try:
            found = MADE.short(MADE.digest(template.render(**MADE.CASES[case]).text))
        except SporeError:
            found = "error"
        if found != expected:
            wrong.append(case)
    assert not wrong


def test_goldens_cover_the_interesting_cases() -> None:
    kinds = [entry == "error" for cases in GOLDENS.values() for entry in cases.values()]
    assert len(GOLDENS) == 18
    assert any(kinds)
    assert kinds.count(False) > 100


def test_parts_become_one_text_only_where_the_template_knows_none() -> None:
    message = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert ChatTemplate("{{ messages[0].content }}!").render(message).text == "ab!"
    knows = "{% for p in messages[0].content %}<{{ p.text }}>{% endfor %}"
    assert ChatTemplate(knows).render(message).text == "<a><b>"


def test_generation_tag_loop_controls_and_trimming() -> None:
    source = """{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {% generation %}
{{ m.content }}
    {% endgeneration %}
    {% break %}
{% endfor %}"""
    assert ChatTemplate(source).render([{"role": "system", "content": "S"}, *USER]).text == "Hi\n"


def test_json_is_not_escaped() -> None:
    source = "{{ x|tojson }} {{ x|tojson(indent=1) }} {{ [3, 'ß']|tojson(separators=(',', ':'), ensure_ascii=True) }}"
    expected = '{"b": "<ü>", "a": 1} {\n "b": "<ü>",\n "a": 1\n} [3,"\\u00df"]'
    assert ChatTemplate(source).render(USER, x={"b": "<ü>", "a": 1}).text == expected


def test_refusal_is_the_callers_error_and_one_line() -> None:
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        ChatTemplate("{{ raise_exception('roles must\\nalternate') }}", label="tiny").render(USER)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ x.y.z }}", "'x' is undefined"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "name '_x'"),
        ("{% include 'passwd' %}", "loader"),
        ("{{ 10.0 ** 400 }}", "OverflowError"),
        ("{{ [[1]]|sum(start=[]) }}", "numbers only"),
    ],
)
def test_faults_of_a_template_name_it(source: str, message: str) -> None:
    with pytest.raises(ModelFileError, match="tiny fails: .*" + message) as caught:
        ChatTemplate(source, label="tiny").render(USER)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "line 1"),
        ("\n{{ 'a'|urlize }}", "line 2: No filter named 'urlize'"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape"),
        ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "nests too deeply"),
        ("{{ 1" + "+1" * 20000 + " }}", "nests too deeply"),
        ("x" * 300_000, "300000 characters"),
    ],
)
def test_what_cannot_be_compiled(source: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        ChatTemplate(source)


DOUBLE = "{% set ns = namespace(a='x', l=[]) %}{% for i in range(99) %}{% set BODY %}{% endfor %}{{ ns.a }}{{ ns.l }}"
HOSTILE = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [0] * 10**9 }}",
    "{{ 2 ** (10**9) }}",
    "{% set ns = namespace(a=3) %}{% for i in range(99) %}{% set ns.a = ns.a * ns.a %}{% endfor %}",
    "{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "{% for i in range(100000) %}" + "x" * 1000 + "{% endfor %}",
    DOUBLE.replace("BODY", "ns.a = ns.a ~ ns.a"),
    DOUBLE.replace("BODY", "ns.a = ns.a + ns.a"),
    DOUBLE.replace("BODY", "ns.a = [ns.a, ns.a]|join"),
    DOUBLE.replace("BODY", "ns.a = '%s%s' % (ns.a, ns.a)"),
    DOUBLE.replace("BODY", "ns.a = '{0}{0}'.format(ns.a)"),
    DOUBLE.replace("BODY", "ns.a = ns.a|replace('x', 'xx')"),
    DOUBLE.replace("BODY", "ns.a = ns.a.replace('x', 'xx')"),
    DOUBLE.replace("BODY", "ns.l = [ns.l, ns.l]"),
    DOUBLE.replace("BODY", "ns.l = (ns.l, ns.l)"),
    DOUBLE.replace("BODY", "ns.l = {'a': ns.l, 'b': ns.l}"),
    DOUBLE.replace("BODY", "ns.l = dict(a=ns.l, b=ns.l)"),
    DOUBLE.replace("BODY", "ns.l = ns.l + ns.l + [1]"),
    "{% set n = namespace(a='x') %}{% for i in range(99) %}{% set q %}{{ n.a }}{{ n.a }}{% endset %}"
    "{% set n.a = q %}{% endfor %}",
    "{{ 'a'|center(10**9) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ ['a']|map('center', 10**9)|list }}",
    "{% set f = 'abc'|attr('ljust') %}{{ f(10**9) }}",
    "{{ ('\t' * 100000).expandtabs(10000) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ '{:>1000000000}'.format(1) }}",
    "{{ '{:>{w}}'.format(1, w=10**9) }}",
    "{{ ('{0}' * 10000).format('x' * 100000) }}",
    "{{ 'a{}'.format_map({}) }}",
    "{{ ('x' * 10**6).join(['a'] * 100000) }}",
    "{{ (['a'] * 100000)|join('x' * 10**6) }}",
    "{{ ('x' * 10**6)|replace('x', 'y' * 10**6) }}",
    "{{ [1]|batch(10**9, 'x')|list }}",
    "{{ [1]|slice(10**9)|list }}",
    "{{ ('a\n' * 1000)|indent(10**9) }}",
    "{{ 1|round(10**9, 'ceil') }}",
    "{{ [1, 2]|tojson(indent=10**9) }}",
    "{{ [1, 2]|tojson(indent=' ' * 100) }}",
    "{{ (1).to_bytes(10**10, 'big') }}",
    "{{ ('a b ' * 4000000).split()|length }}",
    "{{ ('a' * 9000000)|list|length }}",
    "{{ (['a' * 1000000] * 10000)|string }}",
    "{{ dict(a=['a' * 1000000] * 10000).values() }}",
    "{% set b = ['a' * 4000000] * 10000 %}{{ ('a' * 3999999 ~ 'b') in b }}",
    "{% set b = ['a' * 4000000] * 10000 %}{{ b.count('a' * 3999999 ~ 'b') }}",
    "{% set b = range(3000)|list %}{{ range(3000)|select('in', b)|list|length }}",
    "{{ strftime_now('%Y' * 500) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for a in [[]] recursive %}{{ loop([[]]) }}{% endfor %}",
    "{% block a %}{{ self.a() }}{% endblock %}",
]


@pytest.mark.parametrize("source", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_templates_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "strftime_now", STRFTIME)
    with pytest.raises(ModelFileError, match="was stopped") as caught:
        ChatTemplate(source).render(USER)
    assert "\n" not in str(caught.value)


STRFTIME = template_sandbox.strftime_now


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for i in range(100000) %}{% for j in range(100000) if j < 0 %}{% endfor %}{% endfor %}",
        "{% for a in [1] recursive %}{% for j in range(90000) %}{{ loop }}{% endfor %}{{ loop([1, 1]) }}{% endfor %}",
    ],
)
def test_endless_templates_are_stopped_in_any_thread(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([0.0] * 20 + [100.0] * 1000)  # a clock that jumps: the test itself takes no time
    monkeypatch.setattr(render_budget.time, "thread_time", lambda: next(seconds))
    caught: list[BaseException] = []

    def render() -> None:
        try:
            ChatTemplate(source).render(USER)
        except SporeError as error:
            caught.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    thread.join()
    assert "was stopped: it" in str(caught[0])


def test_budget_grows_with_the_messages() -> None:
    long = [{"role": "user", "content": "x" * 1_000_000}]
    source = "{% for i in range(12) %}{{ messages[0].content ~ '' }}{% endfor %}"
    assert len(ChatTemplate(source).render(long).text) == 12_000_000
    with pytest.raises(ModelFileError, match="output is longer"):
        ChatTemplate(source.replace("12", "24")).render(long)


def test_containers_are_counted_in_depth() -> None:
    spare = RenderBudget()
    value: list[Any] = []
    for _ in range(10):
        value = [value, value]
    before = spare.remaining_work
    spare.use_value(value)
    assert before - spare.remaining_work == 16 * (2**11 - 1)
    for _ in range(30):
        value = [value, value]
    with pytest.raises(LimitReached):
        spare.use_value(value)


def test_template_of_a_tokenizer(shared: Path, story: Path) -> None:
    with pytest.raises(RequestError, match=r"no chat template.*chat_template\.jinja"):
        ChatTemplate.of(load_tokenizer(story))
    qwen = load_tokenizer(shared / "data/vocabs/ggml-vocab-qwen2.gguf")
    text = ChatTemplate.of(qwen).render(USER).text
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert qwen.encode(text)[0] == qwen.encode("<|im_start|>")[0]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("Hi", "messages is a str"),
        ([], "messages is empty"),
        ([USER[0], "Hi"], "message 1 is a str"),
        ([{"content": "x"}], "message 0: role is None"),
        ([{"role": "user"}], "message 0 has no content"),
        ([{"role": "user", "content": 3}], "message 0: content is a int"),
        ([USER[0], {"role": "user", "content": ["x"]}], "message 1, part 0 is a str"),
        ([{"role": "user", "content": [{"type": "audio"}]}], "message 0, part 0 has type 'audio'; only 'text'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "belongs to a model that does not see"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0, part 0: text is a NoneType"),
        ([{"role": "user", "content": "x", "extra": object()}], "message 0 contains a object"),
        ([{"role": "user", "content": "x", "extra": {1: 2}}], "message 0 has the key 1"),
    ],
)
def test_malformed_messages(messages: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatTemplate("{{ messages }}").render(messages)


def test_nested_data_is_bounded() -> None:
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(RequestError, match="deeper than 32"):
        ChatTemplate("").render([{"role": "user", "content": "x", "extra": nested}])


def test_a_models_template_is_compiled_once(story: Path) -> None:
    tokenizer = load_tokenizer(story)
    tokenizer.chat_templates = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools[0].function.name }}"}
    assert ChatTemplate.of(tokenizer) is ChatTemplate.of(tokenizer)
    assert not ChatTemplate.of(tokenizer).supports_tools
    assert ChatTemplate.of(tokenizer, tools=True).supports_tools
