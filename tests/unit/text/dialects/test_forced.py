"""Calls that must be made: the grammar allows the dialect's own form with arguments of the schema, and nothing else."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_folders import FLAGS, tokenizer_json, write_tokenizer
from sporelm.errors import RequestError
from sporelm.text import Detokenizer, Tokenizer, load_tokenizer
from sporelm.text.dialects import DIALECTS, Dialect, call_grammar
from sporelm.text.dialects.tool import allowed
from sporelm.text.grammar import Grammar, Matcher, compiled
from unit.text.dialects.answers import FORCED, TOOLS, read

WEATHER, CLOCK = {"type": "function", "function": {"name": "weather"}}, {"name": "clock"}


def made(folder: Path, marks: tuple[str, ...] = ()) -> Tokenizer:
    """Every byte is a token, and each mark is a special one."""
    spec: dict[str, Any] = tokenizer_json(300)
    for mark in dict.fromkeys(marks):
        token = len(spec["model"]["vocab"])
        spec["model"]["vocab"][mark] = token
        spec["added_tokens"].append({"id": token, "content": mark, "special": True} | FLAGS)
    write_tokenizer(folder, spec)
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return made(tmp_path_factory.mktemp("letters"))


def matcher(dialect: Dialect, tokenizer: Tokenizer, choice: Any = "required", **options: Any) -> Matcher:
    grammar = call_grammar(dialect, TOOLS, choice, tokenizer, **options)
    assert grammar is not None
    return compiled(tokenizer, grammar).matcher()


def followed(found: Matcher, tokenizer: Tokenizer, text: str) -> str:
    """How much of a text a grammar allows."""
    said: list[int] = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        if found.ended or not found.allows(token):
            break
        found.accept(token)
        said.append(token)
    return tokenizer.decode(said, continues=True)


def can_end(found: Matcher, tokenizer: Tokenizer) -> bool:
    words = found.words()
    return found.ended or any(words[token >> 5] >> (token & 31) & 1 for token in tokenizer.stop_ids)


@pytest.mark.parametrize("special", [False, True], ids=["spelled", "special tokens"])
@pytest.mark.parametrize("name", FORCED)
def test_the_models_own_form_is_allowed(name: str, special: bool, letters: Tokenizer, tmp_path: Path) -> None:
    dialect, text = FORCED[name]
    tokenizer = made(tmp_path, dialect.all_marks()) if special else letters
    found = matcher(dialect, tokenizer)
    assert followed(found, tokenizer, text) == text
    assert can_end(found, tokenizer)
    reply = read(dialect, [text])
    assert reply.calls
    assert not reply.content
    assert all(call.complete for call in reply.calls)


@pytest.mark.parametrize("name", FORCED)
def test_what_is_no_call_is_not(name: str, letters: Tokenizer) -> None:
    dialect, text = FORCED[name]
    assert len(followed(matcher(dialect, letters), letters, "Hello there")) < 2
    assert not can_end(matcher(dialect, letters), letters)
    other = text.replace("weather", "whether").replace("clock", "clack")
    assert followed(matcher(dialect, letters), letters, other) != other
    if '"days": 2' in text or "days:2" in text or "days=2" in text:
        wrong = text.replace('"days": 2', '"days": "2"').replace("days:2", "days:true").replace("days=2", "days=True")
        assert followed(matcher(dialect, letters), letters, wrong) != wrong


@pytest.mark.parametrize("name", FORCED)
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_drawn_is_a_call(name: str, seed: int, letters: Tokenizer) -> None:
    """Tokens at random, where the grammar leaves a choice: what comes is a call of the function that was named."""
    dialect, _ = FORCED[name]
    prompt = dialect.thinking.close if dialect.thinking else ""
    closer = CLOSERS.get(dialect.name, '"')
    found = matcher(dialect, letters, WEATHER, parallel=False, prompt=prompt)
    begun = followed(found, letters, BEGUN.get(name, ""))
    text = begun + letters.decode(list(drawn(found, closer, letters, random.Random(seed))), continues=True)
    assert found.failure is None
    assert can_end(found, letters)
    reply = read(dialect, [text])
    assert [(call.name, call.complete) for call in reply.calls] == [("weather", True)], text


BEGUN = {"harmony": "<|channel|>commentary", "muse": " to=weather"}  # or else it may think
CLOSERS = {
    "qwen_coder": "\n</parameter>",
    "seed": "\n</parameter>",
    "glm": "</arg_value>",
    "minicpm": "</param>",
    "gemma4": '<|"|>',
    "functiongemma": "<escape>",
    "minimax": "</parameter>",
    "minimax_m3": "]<]minimax[>[</place>",
    "kimi_k3": "<|close|>argument<|sep|>",
    "muse": "</atem:parameter>",
    "dsml": "</｜DSML｜parameter>",
    "hy3": "</arg_value:opensource>",
}


def drawn(found: Matcher, closer: str, tokenizer: Tokenizer, choice: random.Random) -> Iterator[int]:
    """Random tokens up to where the answer can end; after some, what closes a text is written wherever it can be."""
    end = tokenizer.encode(closer, add_special_tokens=False)
    said: list[int] = []
    for step in range(600):
        tokens = found.forced()
        if not tokens and can_end(found, tokenizer):
            return
        if not tokens:
            allowed = np.flatnonzero(np.unpackbits(found.words().view(np.uint8), bitorder="little")).tolist()
            begun = max(length for length in range(len(end)) if said[len(said) - length :] == end[:length])
            tokens = [end[begun]] if end[begun] in allowed and step > 60 else [choice.choice(allowed)]
        for token in tokens:
            found.accept(token)
            said.append(token)
            yield token


def test_reasoning_comes_first_where_the_prompt_began_it(letters: Tokenizer) -> None:
    call = FORCED["hermes"][1]
    for prompt, text in [("<think>\n", f"Hm.\n</think>\n\n{call}"), ("", f"<think>Hm</think>{call}"), ("", call)]:
        assert followed(matcher(DIALECTS["hermes"](), letters, prompt=prompt), letters, text) == text
    closed = matcher(DIALECTS["hermes"](), letters, prompt="<think>\n\n</think>\n\n")
    assert followed(closed, letters, "<think>") != "<think>"


def test_one_call_where_several_are_not_wanted(letters: Tokenizer) -> None:
    found = matcher(DIALECTS["hermes"](), letters, parallel=False)
    one, _, two = FORCED["hermes"][1].partition("</tool_call>\n")
    assert followed(found, letters, f"{one}</tool_call>\n{two}") == f"{one}</tool_call>"
    assert found.ended


def test_the_model_may_decide(letters: Tokenizer) -> None:
    for choice in (None, "auto", "none"):
        assert call_grammar(DIALECTS["hermes"](), TOOLS, choice, letters) is None


@pytest.mark.parametrize(
    ("tools", "choice", "message"),
    [
        ([], "required", "there are no tools"),
        (TOOLS, {"name": "x"}, "names 'x', which is not among"),
        (TOOLS, "maybe", "tool_choice is 'maybe'; it must be"),
        (TOOLS, {"function": 3}, "must be"),
        (TOOLS, [1], "must be"),
    ],
)
def test_choices_that_cannot_be(tools: list[dict[str, Any]], choice: Any, message: str, letters: Tokenizer) -> None:
    with pytest.raises(RequestError, match=message):
        call_grammar(DIALECTS["hermes"](), tools, choice, letters)


CITY = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
FORMS = {
    "schema": (Grammar(json_schema=CITY), '{"city": "Rome"}', '{"city": "Paris"}'),
    "schema as text": (Grammar(json_schema=json.dumps(CITY)), '{"city":"Rome"}', '{"town":"Rome"}'),
    "lenient schema": (
        Grammar(json_schema={**CITY, "not": {"const": 1}, "x-guidance": {"lenient": True}}),
        '{"city": "Rome"}',
        "[]",
    ),
    "any JSON": (Grammar(json_schema=True), "[1, 2]", "one"),
    "expression": (Grammar(regex=r"a/b\/c\n[/x]+"), "a/b/c\n/x", "a/b/d"),
    "choice": (Grammar(choice=["yes", 'no "/"']), 'no "/"', "maybe"),
    "lark": (Grammar(lark='start: word ("," word)*\nword: "a" | "{"'), "a,{", "b"),
}


# What stands around content.
FRAMED = {
    "harmony": ("<|channel|>final<|message|>", ""),
    "cohere": ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    "solar": ("<|content|>", ""),
    "muse": (" to=user<|message|>", ""),
    "kimi_k3": ("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    "recipients": ("all\n", ""),
}


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", FORCED)
def test_content_has_its_form_where_the_model_may_call_or_not(name: str, kind: str, letters: Tokenizer) -> None:
    (dialect, call), (form, right, wrong) = FORCED[name], FORMS[kind]
    head, end = FRAMED.get(name, ("", ""))

    def begun() -> Matcher:
        return matcher(dialect, letters, "auto", content=form)

    for text in (call, head + right + end):
        found = begun()
        assert followed(found, letters, text) == text
        assert can_end(found, letters)
    if kind != "any JSON":
        assert followed(begun(), letters, head + wrong) != head + wrong
    assert len(followed(begun(), letters, "Hello there")) < 2
    assert followed(matcher(dialect, letters, content=form), letters, call) == call
    without = call_grammar(dialect, None, None, letters, content=form)
    assert without is form or name in FRAMED


def test_reasoning_may_come_before_content_of_a_form(letters: Tokenizer) -> None:
    form, right, _ = FORMS["schema"]
    hermes = DIALECTS["hermes"]()
    for options, text in (
        ({"prompt": "<think>\n"}, f"Hm.</think>\n\n{right}"),
        ({"thinks": True}, f"<think>Hm.</think>{right}"),
        ({"thinks": True}, right),
    ):
        grammar = call_grammar(hermes, None, None, letters, content=form, **options)  # type: ignore[arg-type]
        assert grammar is not None
        found = compiled(letters, grammar).matcher()
        assert followed(found, letters, text) == text
        assert can_end(found, letters)
        assert followed(compiled(letters, grammar).matcher(), letters, "<think>x</think>Hm") != "<think>x</think>Hm"


@pytest.mark.parametrize("inside", [True, False])
def test_some_of_the_tools_may_be_allowed(inside: bool) -> None:
    which = {"mode": "required", "tools": [WEATHER]}
    choice = {"type": "allowed_tools"} | ({"allowed_tools": which} if inside else which)
    left, mode = allowed(TOOLS, choice)
    assert ([tool["function"]["name"] for tool in left or ()], mode) == (["weather"], "required")
    assert allowed(TOOLS, "auto") == (TOOLS, "auto")
    for wrong in ({"mode": "auto"}, {"mode": "x", "tools": [WEATHER]}, {"mode": "auto", "tools": [{"name": "x"}]}):
        with pytest.raises(RequestError, match="tool_choice"):
            allowed(TOOLS, {"type": "allowed_tools", "allowed_tools": wrong})


def test_many_tools(letters: Tokenizer) -> None:
    many = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {"a": {}}}}}
        for i in range(40)
    ]
    grammar = call_grammar(DIALECTS["hermes"](), many, "required", letters)
    assert grammar is not None
    found = compiled(letters, grammar).matcher()
    text = '<tool_call>\n{"name": "f39", "arguments": {"a": [1]}}\n</tool_call>'
    assert followed(found, letters, text) == text
    different = [
        {**tool, "function": {**tool["function"], "parameters": {"properties": {f"a{i}": {}}}}}
        for i, tool in enumerate(many)
    ]
    with pytest.raises(RequestError, match="name one function in tool_choice"):
        call_grammar(DIALECTS["harmony"](), different, "required", letters)
    assert call_grammar(DIALECTS["harmony"](), different, CLOCK | {"name": "f3"}, letters) is not None


def test_references_of_raw_values(letters: Tokenizer) -> None:
    kind = {"$ref": "#/$defs/kind"}
    schema = {
        "type": "object",
        "properties": {"kind": kind},
        "required": ["kind"],
        "$defs": {"kind": {"enum": ["a", "b"]}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    for name, right in [
        ("qwen_coder", "<tool_call>\n<function=f>\n<parameter=kind>\nb\n</parameter>\n</function>\n</tool_call>"),
        ("gemma4", '<|tool_call>call:f{kind:<|"|>b<|"|>}<tool_call|>'),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"kind": "b"}}\n</tool_call>'),
    ]:
        grammar = call_grammar(DIALECTS[name](), tools, "required", letters)
        assert grammar is not None
        found = compiled(letters, grammar)
        wrong = right.replace("\nb\n", "\nc\n").replace(">b<", ">c<").replace('"b"', '"c"')
        assert followed(found.matcher(), letters, right) == right
        assert followed(found.matcher(), letters, wrong) != wrong


def test_a_schema_without_end(letters: Tokenizer) -> None:
    schema = {"type": "object", "properties": {side: {"$ref": "#"} for side in ("left", "right")}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(RequestError, match=r"nests deeper|more than 512 values"):
        call_grammar(DIALECTS["gemma4"](), tools, "required", letters)
    grammar = call_grammar(DIALECTS["hermes"](), tools, "required", letters)
    assert grammar is not None
    text = '<tool_call>\n{"name": "f", "arguments": {"left": {"right": {}}}}\n</tool_call>'
    assert followed(compiled(letters, grammar).matcher(), letters, text) == text


def test_marks_that_are_special_tokens_are_shown(tmp_path: Path) -> None:
    tokenizer = made(tmp_path, ("<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>", "<function"))
    dialect = DIALECTS["hermes"]()
    shown = dialect.shown_ids(tokenizer)
    assert {tokenizer.id_to_piece(token) for token in shown} == {"<tool_call>", "</tool_call>"}
    assert len(DIALECTS["minicpm"]().shown_ids(tokenizer)) == 1
    ids = tokenizer.encode("<|im_start|>a<tool_call>{}</tool_call><|im_end|>", add_special_tokens=False)
    assert Detokenizer(tokenizer, skip_special_tokens=True, shown=shown).push_all(ids) == "a<tool_call>{}</tool_call>"
    assert Detokenizer(tokenizer, skip_special_tokens=True).push_all(ids) == "a{}"
