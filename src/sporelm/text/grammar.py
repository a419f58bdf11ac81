"""Grammars of answers: JSON schemas, regular expressions, Lark grammars and choices, by llguidance.

A grammar is compiled once, outside of the engine, within limits of size, depth and work (llguidance counts its steps),
and matched by a copy for each answer; those used last are kept. Whatever goes wrong, nothing is allowed any more: an
answer never leaves its grammar unseen.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread, stack_size
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError
from sporelm.text.gbnf_lark import gbnf_as_lark
from sporelm.text.grammar_reasons import NO_TOKEN, in_words, without_token
from sporelm.text.grammar_text import checked_text, choice_as_lark, lark_text, schema_text
from sporelm.text.tokenizer import Tokenizer

KINDS = ("json_schema", "regex", "lark", "gbnf", "choice")
MOST_KEPT = 16  # compiled grammars of a tokenizer
STACK_BYTES = 64 << 20  # of the thread that compiles: ten times what the deepest grammar took
MOST_FORCED = 2048  # tokens that an answer may have to say without a choice
WHITE_SPACE = r"( |\n {0,32})?"  # between the parts of JSON: enough for indented lines, not for an answer of spaces
# Work: lexer fuel at the beginning and a token, Earley items a token, states and symbols at all. Less than llguidance's
# own limits: a request may cost the engine a few milliseconds a token at most.
INITIAL_FUEL, STEP_FUEL, STEP_ITEMS, LEXER_STATES, SYMBOLS = 1_000_000, 100_000, 5_000, 20_000, 100_000

ANCHORS = ("", "x", "\n", ".")  # texts with which no beginning of another joins to one token, one of them at least

_lock = Lock()
_tokenizers: "WeakKeyDictionary[Tokenizer, Any]" = WeakKeyDictionary()
_kept: "WeakKeyDictionary[Tokenizer, OrderedDict[str, CompiledGrammar]]" = WeakKeyDictionary()


@dataclass(frozen=True)
class Grammar:
    """What an answer must look like. One of these; raises RequestError for none, or several.

    json_schema   a JSON schema, as an object or its text; `{"type": "object"}` is any JSON object, True any JSON
    regex         a regular expression, in linear time (no backtracking, no look-around)
    lark          a grammar in llguidance's dialect of Lark
    gbnf          a grammar in llama.cpp's GBNF
    choice        texts, one of which the answer is
    """

    json_schema: Any = None
    regex: str | None = None
    lark: str | None = None
    choice: Sequence[str] | None = None
    gbnf: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"{', '.join(given)} are given together" if given else "none is given"
            raise RequestError(f"a grammar is one of {', '.join(KINDS)}: {what}")

    def source(self) -> str:
        """The grammar as llguidance reads it. Raises RequestError for what is too long, too deep or of a wrong type."""
        from llguidance import LLMatcher

        try:
            if self.json_schema is not None:
                schema = schema_text(self.json_schema)
                return str(LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITE_SPACE}))
            if self.choice is not None:
                return str(LLMatcher.grammar_from_lark(choice_as_lark(self.choice)))
            if self.regex is not None:
                return str(LLMatcher.grammar_from_regex(checked_text("regex", self.regex)))
            if self.gbnf is not None:
                return str(LLMatcher.grammar_from_lark(gbnf_as_lark(self.gbnf)))
            return str(LLMatcher.grammar_from_lark(lark_text(self.lark)))
        except ValueError as reason:
            raise RequestError(f"the grammar cannot be used: {in_words(str(reason))}") from None


class Matcher:
    """A grammar followed through one answer: a `Constraint` of the engine."""

    def __init__(self, matcher: Any, stop_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._stop_ids = stop_ids
        self._stopped = False  # noted when it changes: to ask llguidance each time costs more than the answer
        self.failure: str | None = None  # why the answer cannot go on
        self._check()

    @property
    def ended(self) -> bool:
        """Whether the answer is whole."""
        return self._stopped and self.failure is None

    def allows(self, token: int) -> bool:
        """Whether a token may come next; not after an error."""
        return self.failure is None and bool(self._matcher.validate_tokens([token]) == 1)

    def words(self) -> NDArray[np.int32]:
        """Which tokens may come next: int32 [n], a bit for each; none after an error."""
        found = np.frombuffer(self._matcher.compute_bitmask(), "<i4")
        self._check()
        return np.zeros_like(found) if self.failure is not None else found

    def accept(self, token: int) -> None:
        """A token was said."""
        self._matcher.consume_token(token)
        self._stopped = self._matcher.is_stopped()
        if self._stopped:
            self._check()

    def forced(self) -> list[int]:
        """Tokens that must come next. More than MOST_FORCED are a failure: a grammar that only repeats itself."""
        if self.failure is not None or self._stopped:
            return []
        found = self._matcher.compute_ff_tokens()
        if len(found) > MOST_FORCED:
            self.failure = f"it forces {len(found)} tokens at once, at most {MOST_FORCED} are taken"
        if not found:
            self._check()
            return []
        return [token for token in found if token not in self._stop_ids] if self.failure is None else []

    def _check(self) -> None:
        """Note an error of llguidance, which also stops it. Changes the state."""
        if self.failure is None and self._matcher.is_error():
            self.failure, self._stopped = in_words(self._matcher.get_error()), True


class CompiledGrammar:
    """A grammar for one tokenizer; `matcher` begins an answer."""

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar) -> None:
        """Compile it, which may take some tenths of a second: not in the engine's thread. Raises RequestError."""
        from llguidance import LLMatcher

        words, source = _vocabulary(tokenizer), grammar.source()
        self._first = _large_stack.run(lambda: LLMatcher(words, source, log_level=0, limits=_limits()))
        self._stop_ids = tokenizer.stop_ids
        # The first steps here rather than in the engine's thread: they show a grammar that allows nothing or too much.
        begun = self.matcher()
        possible = not begun.failure and begun.words().any()
        begun.forced()
        if begun.failure or not possible:
            reason = begun.failure or "it allows no text"
            if reason == in_words(NO_TOKEN):
                forced = self._first.deep_copy().compute_ff_bytes()
                reason = without_token(forced, map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
            raise RequestError(f"the grammar cannot be used: {reason}")

    def matcher(self) -> Matcher:
        """The beginning of an answer."""
        return Matcher(self._first.deep_copy(), self._stop_ids)


def compiled(tokenizer: Tokenizer, grammar: Grammar) -> CompiledGrammar:
    """A grammar compiled for a tokenizer, or the one that was compiled for it before. Raises RequestError."""
    key = grammar.source()
    with _lock:
        kept = _kept.setdefault(tokenizer, OrderedDict())
        if key in kept:
            kept.move_to_end(key)
            return kept[key]
    made = CompiledGrammar(tokenizer, grammar)
    with _lock:
        kept[key] = made
        while len(kept) > MOST_KEPT:
            kept.popitem(last=False)
    return made


class _LargeStack:
    """A thread in which grammars are compiled one after the other: llguidance's compilers call themselves as deep as a
    grammar is, and a thread may have as little as 128 kB. One for all, so that what compiling takes is taken once."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._thread: Thread | None = None

    def run(self, make: Callable[[], Any]) -> Any:
        """What a call gives, or raises."""
        made: Future[Any] = Future()
        with _lock:
            if self._thread is None or not self._thread.is_alive():  # as in a child after a fork
                self._begin()
        self._jobs.put((make, made))
        return made.result()

    def _begin(self) -> None:
        self._jobs = SimpleQueue()
        self._thread = Thread(target=self._work, args=(self._jobs,), name="grammar", daemon=True)
        before = stack_size(STACK_BYTES)  # the process's for a moment: threads that begin then have it
        try:
            self._thread.start()
        finally:
            stack_size(before)

    def _work(self, jobs: Any) -> None:
        while True:
            make, made = jobs.get()
            try:
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)
            del make, made  # not kept until the next one comes


_large_stack = _LargeStack()


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
