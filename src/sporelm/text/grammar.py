"""Grammars of answers: JSON schemas, regular expressions, Lark grammars and choices, by llguidance.

A grammar is compiled once, outside of the engine, within limits of size, depth and work (llguidance counts its steps),
and matched by a copy for each answer. Whatever goes wrong, nothing is allowed any more: an answer never leaves its
grammar unseen.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError
from sporelm.text.tokenizer import Tokenizer

LONGEST_GRAMMAR = 1 << 18  # characters
DEEPEST_SCHEMA = 64  # arrays and objects inside each other
MOST_CHOICES = 4096
WHITE_SPACE = r"( |\n {0,32})?"  # between the parts of JSON: enough for indented lines, not for an answer of spaces
# Work: lexer fuel at the beginning and a token, Earley items a token, states and symbols at all. Less than llguidance's
# own limits: a request may cost the engine a few milliseconds a token at most.
INITIAL_FUEL, STEP_FUEL, STEP_ITEMS, LEXER_STATES, SYMBOLS = 1_000_000, 100_000, 20_000, 50_000, 100_000

ANCHORS = ("", "x", "\n", ".")  # texts with which no beginning of another joins to one token, one of them at least

_lock = Lock()
_tokenizers: "WeakKeyDictionary[Tokenizer, Any]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Grammar:
    """What an answer must look like. One of these; raises RequestError for none, or several.

    json_schema   a JSON schema, as an object or its text; `{"type": "object"}` is any JSON object
    regex         a regular expression, in linear time (no backtracking, no look-around)
    lark          a grammar in llguidance's dialect of Lark
    choice        texts, one of which the answer is
    """

    json_schema: Any = None
    regex: str | None = None
    lark: str | None = None
    choice: Sequence[str] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("json_schema", "regex", "lark", "choice") if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"{', '.join(given)} are given together" if given else "none is given"
            raise RequestError(f"a grammar is one of json_schema, regex, lark and choice: {what}")

    def source(self) -> str:
        """The grammar as llguidance reads it. Raises RequestError for what is too long, too deep or of a wrong type."""
        from llguidance import LLMatcher

        if self.json_schema is not None:
            schema = _schema(self.json_schema)
            return str(LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITE_SPACE}))
        if self.choice is not None:
            return str(LLMatcher.grammar_from_lark(f"start: {' | '.join(_choices(self.choice))}"))
        name, text = ("regex", self.regex) if self.regex is not None else ("lark", self.lark)
        if not isinstance(text, str):
            raise RequestError(f"{name} is a {type(text).__name__}: it must be a text")
        _check_length(name, text)
        made = LLMatcher.grammar_from_regex(text) if name == "regex" else LLMatcher.grammar_from_lark(text)
        return str(made)


class Matcher:
    """A grammar followed through one answer: a `Constraint` of the engine."""

    def __init__(self, matcher: Any, stop_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._stop_ids = stop_ids

    @property
    def failure(self) -> str | None:
        """Why the answer cannot go on."""
        return first_line(self._matcher.get_error()) if self._matcher.is_error() else None

    @property
    def ended(self) -> bool:
        """Whether the answer is whole."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def mask(self) -> NDArray[np.bool_]:
        """Which tokens may come next: bool [n]; none after an error."""
        found = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8) != 0
        return np.zeros_like(found) if self._matcher.is_error() else found

    def accept(self, token: int) -> None:
        """A token was said."""
        self._matcher.consume_token(token)

    def forced(self) -> list[int]:
        """Tokens that must come next."""
        if self._matcher.is_error() or self._matcher.is_stopped():
            return []
        return [token for token in self._matcher.compute_ff_tokens() if token not in self._stop_ids]


class CompiledGrammar:
    """A grammar for one tokenizer; `matcher` begins an answer."""

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar) -> None:
        """Compile it, which may take some tenths of a second: not in the engine's thread. Raises RequestError."""
        from llguidance import LLMatcher

        self._first = LLMatcher(_vocabulary(tokenizer), grammar.source(), log_level=0, limits=_limits())
        self._stop_ids = tokenizer.stop_ids
        if self._first.is_error():
            raise RequestError(f"the grammar cannot be used: {first_line(self._first.get_error())}")

    def matcher(self) -> Matcher:
        """The beginning of an answer."""
        return Matcher(self._first.deep_copy(), self._stop_ids)


def first_line(reason: str) -> str:
    """What an error of llguidance says, without the state of its parser."""
    line = next((line.strip() for line in reason.splitlines() if line.strip()), "unknown reason")
    return line[:200]


@cache
def _limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=INITIAL_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=SYMBOLS,
        verbose_errors=False,
    )


class _Words:
    """A tokenizer as llguidance wants to see it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special
        self.eos_token_id = min(tokenizer.stop_ids) if special.eos_id is None else special.eos_id
        self.bos_token_id = special.bos_id
        self.special_token_ids = sorted(special.control)
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self._tokenizer = ref(tokenizer)  # this lives as long as its entry in _tokenizers, which must not keep its key

    def __call__(self, text: bytes) -> list[int]:
        """The ids of a text that goes on with another: without the space that some tokenizers put in front."""
        wanted = text.decode("utf-8", "replace")
        for anchor in ANCHORS:
            before = self._encoded(anchor)
            ids = self._encoded(anchor + wanted)
            after = ids[len(before) :]
            if ids[: len(before)] == before and b"".join(self.tokens[token] for token in after) == text:
                return after
        return []  # nothing is forced, then

    def _encoded(self, text: str) -> list[int]:
        tokenizer = self._tokenizer()
        return [] if tokenizer is None else tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def _vocabulary(tokenizer: Tokenizer) -> Any:
    """llguidance's view of a tokenizer, made once. Raises RequestError for a tokenizer without an end."""
    from llguidance import LLTokenizer, TokenizerWrapper

    if not tokenizer.stop_ids:
        raise RequestError(f"{tokenizer.label} has no token that ends a text: an answer with a grammar could not end")
    with _lock:
        if tokenizer not in _tokenizers:
            words = TokenizerWrapper(_Words(tokenizer))
            _tokenizers[tokenizer] = LLTokenizer(words, eos_token=sorted(tokenizer.stop_ids))
        return _tokenizers[tokenizer]


def _schema(given: Any) -> str:
    """A schema as text, checked. Raises RequestError."""
    text = given if isinstance(given, str) else None
    try:
        value = json.loads(text) if text is not None and len(text) <= LONGEST_GRAMMAR else given
        text = json.dumps(value) if text is None else text
    except (TypeError, ValueError, RecursionError) as reason:
        raise RequestError(f"json_schema is no JSON: {str(reason)[:100]}") from None
    _check_length("json_schema", text)
    if not isinstance(value, dict | bool):
        raise RequestError(f"json_schema is a {type(value).__name__}: it must be an object, or true")
    if (depth := _depth(value)) > DEEPEST_SCHEMA:
        raise RequestError(f"json_schema is nested more than {DEEPEST_SCHEMA} deep ({depth}): make it flatter")
    return text


def _depth(value: Any) -> int:
    """How many arrays and objects are inside each other; one more than DEEPEST_SCHEMA for more."""
    level, depth = [value], 0
    while level and depth <= DEEPEST_SCHEMA:
        inside: list[Any] = []
        for each in level:
            inside += each.values() if isinstance(each, dict) else each if isinstance(each, list) else []
        depth += any(isinstance(each, dict | list) for each in level)
        level = inside
    return depth


def _choices(given: Sequence[str]) -> list[str]:
    """Choices as Lark's strings. Raises RequestError."""
    if isinstance(given, str) or not given or not all(isinstance(text, str) and text for text in given):
        raise RequestError("choice must be a list of texts, none of them empty")
    if len(given) > MOST_CHOICES:
        raise RequestError(f"choice has {len(given)} texts: at most {MOST_CHOICES} are taken")
    _check_length("choice", "".join(given))
    return [json.dumps(text) for text in given]


def _check_length(name: str, text: str) -> None:
    if len(text) > LONGEST_GRAMMAR:
        raise RequestError(f"{name} has {len(text)} characters: at most {LONGEST_GRAMMAR} are taken")
