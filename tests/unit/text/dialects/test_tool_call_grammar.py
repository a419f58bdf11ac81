"""Grammars of forced calls: they allow only the dialect's native format, with arguments that fit the schema."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm.errors import RequestError
from sporelm.text import Detokenizer, Tokenizer
from sporelm.text.dialects import DIALECTS, Dialect, call_grammar
from sporelm.text.dialects.tool import select_allowed_tools
from sporelm.text.grammar.grammar import Grammar
from sporelm.text.grammar.grammar_matcher import GrammarMatcher, compile_grammar
from unit.text.dialects.answers import FORCED, TOOLS, read
from unit.text.dialects.dialect_models import marker_tokenizer

WEATHER, CLOCK = {"type": "function", "function": {"name": "weather"}}, {"name": "clock"}


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return marker_tokenizer(tmp_path_factory.mktemp("letters"))


def matcher(dialect: Dialect, tokenizer: Tokenizer, choice: Any = "required", **options: Any) -> GrammarMatcher:
    grammar = call_grammar(dialect, TOOLS, choice, tokenizer, **options)
    assert grammar is not None
    return compile_grammar(tokenizer, grammar).matcher()


def accepted_prefix(grammar_matcher: GrammarMatcher, tokenizer: Tokenizer, text: str) -> str:
    """Return the longest prefix of a text that the grammar accepts."""
    tokens: list[int] = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        if grammar_matcher.ended or not grammar_matcher.allows(token):
            break
        grammar_matcher.accept(token)
        tokens.append(token)
    return tokenizer.decode(tokens, continues=True)


def can_end(grammar_matcher: GrammarMatcher, tokenizer: Tokenizer) -> bool:
    words = grammar_matcher.words()
    return grammar_matcher.ended or any(words[token >> 5] >> (token & 31) & 1 for token in tokenizer.stop_ids)


@pytest.mark.parametrize("special", [False, True], ids=["text", "special tokens"])
@pytest.mark.parametrize("name", FORCED)
def test_grammar_allows_the_native_format(name: str, special: bool, letters: Tokenizer, tmp_path: Path) -> None:
    dialect, text = FORCED[name]
    tokenizer = marker_tokenizer(tmp_path, dialect.all_markers()) if special else letters
    grammar_matcher = matcher(dialect, tokenizer)
    assert accepted_prefix(grammar_matcher, tokenizer, text) == text
    assert can_end(grammar_matcher, tokenizer)
    reply = read(dialect, [text])
    assert reply.calls
    assert not reply.content
    assert all(call.complete for call in reply.calls)


@pytest.mark.parametrize("name", FORCED)
def test_grammar_rejects_text_that_is_not_a_call(name: str, letters: Tokenizer) -> None:
    dialect, text = FORCED[name]
    assert len(accepted_prefix(matcher(dialect, letters), letters, "Hello there")) < 2
    assert not can_end(matcher(dialect, letters), letters)
    other = text.replace("weather", "whether").replace("clock", "clack")
    assert accepted_prefix(matcher(dialect, letters), letters, other) != other
    if '"days": 2' in text or "days:2" in text or "days=2" in text:
        wrong = text.replace('"days": 2', '"days": "2"').replace("days:2", "days:true").replace("days=2", "days=True")
        assert accepted_prefix(matcher(dialect, letters), letters, wrong) != wrong


@pytest.mark.parametrize("name", FORCED)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_derivations_parse_as_calls(name: str, seed: int, letters: Tokenizer) -> None:
    """Random tokens that the grammar allows are a call of the named function."""
    dialect, _ = FORCED[name]
    prompt = dialect.thinking.close if dialect.thinking else ""
    closer = CLOSERS.get(dialect.name, '"')
    grammar_matcher = matcher(dialect, letters, WEATHER, parallel=False, prompt=prompt)
    prefix = accepted_prefix(grammar_matcher, letters, PREFIXES.get(name, ""))
    text = prefix + letters.decode(
        list(random_tokens(grammar_matcher, closer, letters, random.Random(seed))), continues=True
    )
    assert grammar_matcher.failure is None
    assert can_end(grammar_matcher, letters)
    reply = read(dialect, [text])
    assert [(call.name, call.complete) for call in reply.calls] == [("weather", True)], text


PREFIXES = {"harmony": "<|channel|>commentary", "muse": " to=weather"}  # otherwise the answer may begin with reasoning
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


def random_tokens(
    grammar_matcher: GrammarMatcher, closer: str, tokenizer: Tokenizer, choice: random.Random
) -> Iterator[int]:
    """Yield random tokens until the answer can end. After some tokens, prefer those of `closer`."""
    end = tokenizer.encode(closer, add_special_tokens=False)
    accepted: list[int] = []
    for step in range(600):
        tokens = grammar_matcher.forced()
        if not tokens and can_end(grammar_matcher, tokenizer):
            return
        if not tokens:
            bits = np.unpackbits(grammar_matcher.words().view(np.uint8), bitorder="little")
            allowed = np.flatnonzero(bits).tolist()
            num_matched = max(
                length for length in range(len(end)) if accepted[len(accepted) - length :] == end[:length]
            )
            tokens = [end[num_matched]] if end[num_matched] in allowed and step > 60 else [choice.choice(allowed)]
        for token in tokens:
            grammar_matcher.accept(token)
            accepted.append(token)
            yield token


def test_reasoning_comes_first_if_the_prompt_opened_it(letters: Tokenizer) -> None:
    call = FORCED["hermes"][1]
    for prompt, text in [("<think>\n", f"Hm.\n</think>\n\n{call}"), ("", f"<think>Hm</think>{call}"), ("", call)]:
        assert accepted_prefix(matcher(DIALECTS["hermes"](), letters, prompt=prompt), letters, text) == text
    closed = matcher(DIALECTS["hermes"](), letters, prompt="<think>\n\n</think>\n\n")
    assert accepted_prefix(closed, letters, "<think>") != "<think>"


def test_one_call_without_parallel_tool_calls(letters: Tokenizer) -> None:
    grammar_matcher = matcher(DIALECTS["hermes"](), letters, parallel=False)
    one, _, two = FORCED["hermes"][1].partition("</tool_call>\n")
    assert accepted_prefix(grammar_matcher, letters, f"{one}</tool_call>\n{two}") == f"{one}</tool_call>"
    assert grammar_matcher.ended


def test_tool_choice_auto(letters: Tokenizer) -> None:
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
def test_invalid_tool_choices(tools: list[dict[str, Any]], choice: Any, message: str, letters: Tokenizer) -> None:
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


# Markers before and after content.
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
def test_content_follows_its_grammar_with_optional_calls(name: str, kind: str, letters: Tokenizer) -> None:
    (dialect, call), (form, right, wrong) = FORCED[name], FORMS[kind]
    head, end = FRAMED.get(name, ("", ""))

    def new_matcher() -> GrammarMatcher:
        return matcher(dialect, letters, "auto", content=form)

    for text in (call, head + right + end):
        grammar_matcher = new_matcher()
        assert accepted_prefix(grammar_matcher, letters, text) == text
        assert can_end(grammar_matcher, letters)
    if kind != "any JSON":
        assert accepted_prefix(new_matcher(), letters, head + wrong) != head + wrong
    assert len(accepted_prefix(new_matcher(), letters, "Hello there")) < 2
    assert accepted_prefix(matcher(dialect, letters, content=form), letters, call) == call
    without = call_grammar(dialect, None, None, letters, content=form)
    assert without is form or name in FRAMED


def test_reasoning_may_precede_constrained_content(letters: Tokenizer) -> None:
    form, right, _ = FORMS["schema"]
    hermes = DIALECTS["hermes"]()
    for options, text in (
        ({"prompt": "<think>\n"}, f"Hm.</think>\n\n{right}"),
        ({"thinks": True}, f"<think>Hm.</think>{right}"),
        ({"thinks": True}, right),
    ):
        grammar = call_grammar(hermes, None, None, letters, content=form, **options)  # type: ignore[arg-type]
        assert grammar is not None
        grammar_matcher = compile_grammar(letters, grammar).matcher()
        assert accepted_prefix(grammar_matcher, letters, text) == text
        assert can_end(grammar_matcher, letters)
        assert (
            accepted_prefix(compile_grammar(letters, grammar).matcher(), letters, "<think>x</think>Hm")
            != "<think>x</think>Hm"
        )


@pytest.mark.parametrize("inside", [True, False])
def test_allowed_tools(inside: bool) -> None:
    which = {"mode": "required", "tools": [WEATHER]}
    choice = {"type": "allowed_tools"} | ({"allowed_tools": which} if inside else which)
    tools, mode = select_allowed_tools(TOOLS, choice)
    assert ([tool["function"]["name"] for tool in tools or ()], mode) == (["weather"], "required")
    assert select_allowed_tools(TOOLS, "auto") == (TOOLS, "auto")
    for wrong in ({"mode": "auto"}, {"mode": "x", "tools": [WEATHER]}, {"mode": "auto", "tools": [{"name": "x"}]}):
        with pytest.raises(RequestError, match="tool_choice"):
            select_allowed_tools(TOOLS, {"type": "allowed_tools", "allowed_tools": wrong})


def test_many_tools(letters: Tokenizer) -> None:
    many = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object", "properties": {"a": {}}}}}
        for i in range(40)
    ]
    grammar = call_grammar(DIALECTS["hermes"](), many, "required", letters)
    assert grammar is not None
    grammar_matcher = compile_grammar(letters, grammar).matcher()
    text = '<tool_call>\n{"name": "f39", "arguments": {"a": [1]}}\n</tool_call>'
    assert accepted_prefix(grammar_matcher, letters, text) == text
    different = [
        {**tool, "function": {**tool["function"], "parameters": {"properties": {f"a{i}": {}}}}}
        for i, tool in enumerate(many)
    ]
    with pytest.raises(RequestError, match="Name one function in tool_choice"):
        call_grammar(DIALECTS["harmony"](), different, "required", letters)
    assert call_grammar(DIALECTS["harmony"](), different, CLOCK | {"name": "f3"}, letters) is not None


def test_references_in_schemas_of_raw_values(letters: Tokenizer) -> None:
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
        compiled = compile_grammar(letters, grammar)
        wrong = right.replace("\nb\n", "\nc\n").replace(">b<", ">c<").replace('"b"', '"c"')
        assert accepted_prefix(compiled.matcher(), letters, right) == right
        assert accepted_prefix(compiled.matcher(), letters, wrong) != wrong


def test_recursive_schema(letters: Tokenizer) -> None:
    schema = {"type": "object", "properties": {side: {"$ref": "#"} for side in ("left", "right")}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(RequestError, match=r"nests deeper|more than 512 values"):
        call_grammar(DIALECTS["gemma4"](), tools, "required", letters)
    grammar = call_grammar(DIALECTS["hermes"](), tools, "required", letters)
    assert grammar is not None
    text = '<tool_call>\n{"name": "f", "arguments": {"left": {"right": {}}}}\n</tool_call>'
    assert accepted_prefix(compile_grammar(letters, grammar).matcher(), letters, text) == text


def test_markers_that_are_special_tokens_are_shown(tmp_path: Path) -> None:
    tokenizer = marker_tokenizer(tmp_path, ("<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>", "<function"))
    dialect = DIALECTS["hermes"]()
    shown = dialect.shown_ids(tokenizer)
    assert {tokenizer.id_to_piece(token) for token in shown} == {"<tool_call>", "</tool_call>"}
    assert len(DIALECTS["minicpm"]().shown_ids(tokenizer)) == 1
    ids = tokenizer.encode("<|im_start|>a<tool_call>{}</tool_call><|im_end|>", add_special_tokens=False)
    assert Detokenizer(tokenizer, skip_special_tokens=True, shown=shown).push_all(ids) == "a<tool_call>{}</tool_call>"
    assert Detokenizer(tokenizer, skip_special_tokens=True).push_all(ids) == "a{}"
