"""Answers in a given form, by the story model: whatever it would like to say, the form holds."""

import asyncio
import gc
import json
import re
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sporelm import LLM, AsyncLLM, Grammar, SamplingParams
from sporelm.cli.run import as_json
from sporelm.errors import RequestError
from sporelm.text import load_tokenizer
from sporelm.text.grammar.grammar_checks import MAX_GRAMMAR_CHARACTERS, MAX_SCHEMA_DEPTH
from sporelm.text.grammar.grammar_matcher import MAX_CACHED_GRAMMARS, CompiledGrammar, _cache, compile_grammar
from sporelm.text.tokenizers.tokenizer import MAX_CACHED_SEARCHES
from system.test_generation_chat import folder

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


letters = folder  # every byte is a token of its own, which the story's own words lack


@pytest.fixture(scope="module")
def llm(letters: Path) -> Iterator[LLM]:
    with LLM(letters, threads=2) as made:
        yield made


def params(grammar: Grammar, **changes: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 400, "temperature": 1.2, "seed": 3, "grammar": grammar} | changes))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_schema_holds(llm: LLM, seed: int, temperature: float) -> None:
    grammar = Grammar(json_schema=SCHEMA)
    (answer,) = llm.generate("A pet: ", params(grammar, seed=seed, temperature=temperature))
    found = json.loads(answer.text)
    assert answer.finish_reason == "stop"
    assert set(found) == {"name", "age", "kind"}
    assert found["kind"] in ("cat", "dog")
    assert 0 <= found["age"] <= 120
    assert len(found["name"]) <= 12


def test_expressions_grammars_and_choices_hold(llm: LLM) -> None:
    forms = {
        r"[0-9]{3}-[a-f]{2}": Grammar(regex=r"[0-9]{3}-[a-f]{2}"),
        r"(yes|no|perhaps not)": Grammar(choice=["yes", "no", "perhaps not"]),
        r"(ab)+c": Grammar(lark='start: "ab"+ "c"'),
    }
    wanted = [params(grammar, max_tokens=300) for grammar in forms.values()]
    for form, answer in zip(forms, llm.generate(["Once"] * 3, wanted), strict=True):
        assert re.fullmatch(form, answer.text) or answer.finish_reason == "length", (form, answer.text)


def test_a_batch_of_forms_gives_what_each_gives_alone(llm: LLM) -> None:
    wanted = [params(Grammar(json_schema=SCHEMA), seed=seed) for seed in range(4)]
    together = llm.generate(["A pet: "] * 5, [*wanted, SamplingParams(max_tokens=30, temperature=0.0)])
    alone = [llm.generate("A pet: ", each)[0] for each in wanted]
    assert [answer.token_ids for answer in together[:4]] == [answer.token_ids for answer in alone]
    assert together[4].text == llm.generate("A pet: ", SamplingParams(max_tokens=30, temperature=0.0))[0].text


def test_several_answers_have_the_form_each(llm: LLM) -> None:
    (answer,) = llm.generate("A pet: ", params(Grammar(json_schema=SCHEMA), n=3))
    for each in (answer, *answer.alternatives):
        assert json.loads(each.text)["kind"] in ("cat", "dog")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ({}, "none is given"),
        ({"regex": "a", "lark": "b"}, "regex, lark are given together"),
        ({"regex": "(a"}, "cannot be used"),
        ({"regex": r"(a)\1"}, "cannot be used"),
        ({"regex": 5}, "regex is a int"),
        ({"lark": "start: nothing"}, "cannot be used"),
        ({"json_schema": "{"}, "not valid JSON"),
        ({"json_schema": [1]}, "json_schema is a list"),
        ({"json_schema": {"type": "frob"}}, "cannot be used"),
        ({"json_schema": {"$ref": "https://example.org/x"}}, "cannot be used"),
        ({"json_schema": {"a": float}}, "not valid JSON"),
        ({"choice": []}, "choice is empty"),
        ({"lark": ""}, "lark is empty"),
        ({"regex": ""}, "regex is empty"),
        ({"json_schema": " \n"}, "json_schema is empty"),
        ({"choice": "abc"}, "choice must be"),
        ({"choice": ["a", ""]}, "choice must be"),
        ({"choice": ["x"] * 5000}, "choice has too many texts"),
        ({"regex": "a" * (MAX_GRAMMAR_CHARACTERS + 1)}, "allowed 262144"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_runs(llm: LLM, grammar: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate("A", params(Grammar(**grammar)))
    assert llm.engine.scheduler.is_idle


def chain(count: int) -> dict[str, Any]:
    """A schema whose definitions refer to one after the other."""
    parts: dict[str, Any] = {
        f"d{number}": {"type": "object", "properties": {"next": {"$ref": f"#/$defs/d{number + 1}"}}}
        for number in range(count)
    }
    return {"$defs": parts | {f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}


BOMBS = {
    "a chain of definitions": ({"json_schema": chain(2000)}, "more than 512 levels"),
    "the same in Lark": ({"lark": f"start: %json {json.dumps(chain(2000))}"}, "more than 512 levels"),
    "a definition of itself": ({"json_schema": {"$ref": "#"}}, "cannot be used"),
    "a definition of nothing": ({"json_schema": {"$ref": "#/$defs/a~1b"}}, "points to nothing"),
    "a chain of rules": (
        {"lark": "start: r0\n" + "\n".join(f'r{n}: r{n + 1} "x"' for n in range(8000)) + '\nr8000: "a"'},
        "too many lines with rules",
    ),
    "deep parentheses": ({"lark": "start: " + "(" * 20000 + '"a"' + ")" * 20000}, "too deeply nested"),
    "many grammars inside": ({"lark": "start: " + "%lark {\nstart: " * 30 + '"a"' + "\n}" * 30}, "nested grammars"),
    "invalid JSON": ({"lark": "start: %json {"}, "not followed by valid JSON"),
    "JSON without end": ({"lark": "start: %json " + '{"a":' * 5000}, "not followed by valid JSON"),
    "a great count": ({"regex": "(a{1000}){1000}"}, "it forces .* bytes at once"),
    "a long text": ({"json_schema": {"const": "x" * 20000}}, "got 20000 characters"),
    "a great number": ({"json_schema": {"type": "integer", "minimum": -(10**4000)}}, "cannot be used: number out of"),
    "a large schema": ({"json_schema": json.dumps({"enum": ["x" * 100] * 100000})}, "allowed 262144"),
    "deep regular expression": ({"regex": "(" * 50000 + "a" + ")" * 50000}, "cannot be used"),
    "alternatives of all": (
        {"json_schema": {"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(8)]} for i in range(12)]}},
        "cannot be used",
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_grammar_that_would_cost_too_much_is_refused(llm: LLM, bomb: str) -> None:
    grammar, message = BOMBS[bomb]
    with pytest.raises(RequestError, match=message):
        llm.generate("A", params(Grammar(**grammar)))
    assert llm.engine.scheduler.is_idle


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(regex="(((a{1,100}){1,100}){1,100}){1,100}"),
        Grammar(lark='start: /[xy]/ BIG\nBIG: "a"{100000}'),
    ],
    ids=["nested counts", "forced later"],
)
def test_a_limit_met_in_the_middle_ends_that_answer_alone(llm: LLM, grammar: Grammar) -> None:
    free = SamplingParams(max_tokens=20, temperature=0.0)
    bad, good = llm.generate(["A pet: "] * 2, [params(grammar), free])
    assert bad.finish_reason == "error"
    assert (bad.error or "").startswith("the grammar: ")
    assert as_json(bad)["error"] == bad.error
    assert "error" not in as_json(good)
    assert good.text == llm.generate("A pet: ", free)[0].text


def test_what_a_lark_grammar_holds_of_json_holds(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema |= {"additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
    (answer,) = llm.generate("A pet: ", params(Grammar(lark=f'start: "pet " %json {json.dumps(schema)}')))
    assert json.loads(answer.text.removeprefix("pet "))["a"] in (1, 2)


def test_many_choices_and_choices_that_begin_alike(llm: LLM) -> None:
    many = [f"answer number {number}" for number in range(4096)]
    for texts in (many, ["a" * count for count in range(1, 30)]):
        (answer,) = llm.generate("A", params(Grammar(choice=texts), max_tokens=60))
        assert answer.text in texts
        assert answer.finish_reason == "stop"


def test_a_grammar_is_compiled_once_and_few_are_kept(letters: Path) -> None:
    tokenizer = load_tokenizer(letters)
    first = compile_grammar(tokenizer, Grammar(choice=["yes", "no"]))
    assert compile_grammar(tokenizer, Grammar(choice=["yes", "no"])) is first
    assert compile_grammar(tokenizer, Grammar(choice=["yes", "nay"])) is not first
    for number in range(MAX_CACHED_GRAMMARS):
        compile_grammar(tokenizer, Grammar(choice=[f"{number}"]))
    assert len(_cache[tokenizer]) == MAX_CACHED_GRAMMARS
    assert compile_grammar(tokenizer, Grammar(choice=["yes", "no"])) is not first


def test_one_thread_compiles_for_all(letters: Path) -> None:
    tokenizer = load_tokenizer(letters)

    def make(number: int) -> bool:
        """Whether it was refused."""
        try:
            compile_grammar(tokenizer, Grammar(regex="(a" if number % 3 == 0 else f"one{number}"))
        except RequestError:
            return True
        return False

    make(1)
    before = [thread for thread in threading.enumerate() if thread.name == "grammar"]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(make, range(24))) == [number % 3 == 0 for number in range(24)]
    assert len(before) == 1
    assert [thread for thread in threading.enumerate() if thread.name == "grammar"] == before


def test_what_is_allowed_is_what_the_mask_says(letters: Path) -> None:
    tokenizer = load_tokenizer(letters)
    bytes_of = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    words = {token for token in range(tokenizer.vocab_size) if token not in tokenizer.stop_ids}
    matcher = CompiledGrammar(tokenizer, Grammar(regex="[a-c]{1,3}x?")).matcher()
    for letter in (b"a", b"c", b"b"):
        bits = np.unpackbits(matcher.words().view(np.uint8), bitorder="little")
        masked = set(np.flatnonzero(bits).tolist())
        allowed = {token for token in range(tokenizer.vocab_size) if matcher.allows(token)}
        assert allowed <= masked
        assert allowed & words == masked & words != set()
        matcher.accept(next(token for token in sorted(allowed) if bytes_of[token] == letter))


def test_a_schema_that_is_too_deep_is_refused(llm: LLM) -> None:
    schema: Any = {"type": "string"}
    for _ in range(MAX_SCHEMA_DEPTH):
        schema = {"type": "array", "items": schema}
    with pytest.raises(RequestError, match="nested too deep"):
        CompiledGrammar(llm.tokenizer, Grammar(json_schema=schema))


def test_forms_from_one_loop(letters: Path, llm: LLM) -> None:
    async def several() -> list[Any]:
        async with AsyncLLM(letters, threads=1) as many:
            return await asyncio.gather(
                many.generate("A pet: ", params(Grammar(json_schema=SCHEMA))),
                many.generate("A pet: ", params(Grammar(regex="(a"))),
                many.generate("A pet: ", params(Grammar(choice=["one", "two"]))),
                return_exceptions=True,
            )

    good, bad, choice = asyncio.run(several())
    assert good.text == llm.generate("A pet: ", params(Grammar(json_schema=SCHEMA)))[0].text
    assert isinstance(bad, RequestError)
    assert choice.text in ("one", "two")


def test_a_tokenizer_is_freed_when_unused(letters: Path) -> None:
    tokenizer = load_tokenizer(letters)
    seen = weakref.ref(tokenizer)
    matcher = CompiledGrammar(tokenizer, Grammar(choice=["yes", "no"])).matcher()
    assert matcher.words().any()
    del tokenizer
    gc.collect()
    assert seen() is None
    assert matcher.forced() == [], "and the answer can still be ended"


def test_sets_of_ids_are_kept_within_limits(letters: Path) -> None:
    tokenizer = load_tokenizer(letters)
    wanted = tokenizer.ids_with(("a", "\ud800"))
    for number in range(2 * MAX_CACHED_SEARCHES):
        tokenizer.ids_with((f"{number}",))
        assert len(tokenizer._search_cache) <= MAX_CACHED_SEARCHES
    assert tokenizer.ids_with(("a", "\ud800")) == wanted
    assert all(b"a" in tokenizer.token_bytes(token) for token in wanted)
    assert wanted


@pytest.mark.parametrize("page", ["structured-output", "sampling"])
def test_the_examples_of_the_pages_run(letters: Path, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        names: dict[str, Any] = {}
        exec(example.replace('"model.gguf"', repr(str(letters))), names)
        names["llm"].close()
        assert names["answer"].finish_reason in ("stop", "length")
