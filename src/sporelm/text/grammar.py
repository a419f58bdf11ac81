"""Grammars of answers: JSON schemas, regular expressions, Lark grammars and choices, by llguidance.

A grammar is compiled once, outside of the engine, within limits of size, depth and work (llguidance counts its steps),
and matched by a copy for each answer; those used last are kept. Not all of a compiler's work is counted, and it cannot
be interrupted: a server tries each new grammar in another process first (`GrammarTrials`). Whatever goes wrong, nothing
is allowed any more: an answer never leaves its grammar unseen.
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from queue import SimpleQueue
from threading import Lock, Thread, stack_size
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from sporelm.errors import RequestError
from sporelm.text.budget import GRAMMAR_SECONDS
from sporelm.text.gbnf_lark import gbnf_as_lark
from sporelm.text.grammar_reasons import NO_TOKEN, in_words, without_token
from sporelm.text.grammar_text import LONGEST_STRING, checked_text, choice_as_lark, lark_text, schema_text
from sporelm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sporelm.text.isolated_process import IsolatedProcess

KINDS = ("json_schema", "regex", "lark", "gbnf", "choice")
MOST_KEPT = 16  # compiled grammars of a tokenizer
MAX_TRIED = 512  # sources of grammars whose trials are remembered
STACK_BYTES = 64 << 20  # of the thread that compiles: ten times what the deepest grammar took
MOST_FORCED = 2048  # tokens that an answer may have to say without a choice
MAX_FORCED_BYTES = LONGEST_STRING  # the same as text: to read more into tokens would hold the engine up
LONGEST_TOKEN = 32  # bytes that are tried as one token where longest tokens are taken first
WHITE_SPACE = r"( |\n {0,32})?"  # between the parts of JSON: enough for indented lines, not for an answer of spaces
# Work: lexer fuel at the beginning and a token, Earley items a token, states and symbols at all. Less than llguidance's
# own limits: a request may cost the engine a few milliseconds a token at most.
INITIAL_FUEL, STEP_FUEL, STEP_ITEMS, LEXER_STATES, SYMBOLS = 1_000_000, 100_000, 5_000, 20_000, 100_000

_keys = itertools.count()
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
        if (length := len(self._matcher.compute_ff_bytes())) > MAX_FORCED_BYTES:
            self.failure = f"it forces {length} bytes at once, at most {MAX_FORCED_BYTES} are taken"
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
        words, source = _vocabulary(tokenizer), grammar.source()
        self._stop_ids = tokenizer.stop_ids
        tokens = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
        self._first = _large_stack.run(lambda: first_matcher(words, source, self._stop_ids, tokens))

    def matcher(self) -> Matcher:
        """The beginning of an answer."""
        return Matcher(self._first.deep_copy(), self._stop_ids)


def first_matcher(words: Any, source: str, stop_ids: frozenset[int], tokens: Iterable[bytes]) -> Any:
    """Compile a grammar for llguidance's view of a vocabulary, and take its first step: it shows a grammar that allows
    nothing or too much. `tokens` are the vocabulary's. Raises RequestError.

    It calls itself as deep as the grammar is: for a thread with a large stack.
    """
    from llguidance import LLMatcher

    first = LLMatcher(words, source, log_level=0, limits=_limits())
    begun = Matcher(first.deep_copy(), stop_ids)
    possible = not begun.failure and begun.words().any()
    begun.forced()
    if begun.failure or not possible:
        reason = begun.failure or "it allows no text"
        if reason == in_words(NO_TOKEN):
            reason = without_token(first.deep_copy().compute_ff_bytes(), tokens)
        raise RequestError(f"the grammar cannot be used: {reason}")
    return first


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


class GrammarTrials:
    """Tries new grammars of one tokenizer in another process, where their compilation can be stopped.

    A grammar that has passed may be compiled in this process: that takes as much, which is little. Those tried last are
    remembered, passed or not, so that the same one is not tried again.
    """

    def __init__(self, tokenizer: Tokenizer, process: "IsolatedProcess", seconds: float = GRAMMAR_SECONDS) -> None:
        """`seconds` of CPU that a trial may take."""
        from sporelm.text.isolated_process import Subject

        self._process, self.seconds = process, seconds
        self._subject = Subject(next(_keys), "vocabulary", lambda: _plain(tokenizer))
        self._tried: OrderedDict[bytes, Future[Exception | None]] = OrderedDict()  # by digests of sources
        self._changing = Lock()

    def submit(self, grammar: Grammar) -> "Future[Exception | None]":
        """Begin the trial of a grammar, or find it again. The result is None or an error for `raise_failure`:
        RequestError for a grammar that cannot be used, QueueFull or BackendError where it could not be tried.

        Raises RequestError for what is too long, too deep or of a wrong type.
        """
        source = grammar.source()
        key = sha256(source.encode("utf-8", "surrogatepass")).digest()
        with self._changing:
            if (found := self._tried.get(key)) is not None:
                self._tried.move_to_end(key)
                return found
            done: Future[Exception | None] = Future()
            done.set_running_or_notify_cancel()  # others may wait for it too
            self._tried[key] = done
            while len(self._tried) > MAX_TRIED:
                self._tried.popitem(last=False)
        try:
            trial = self._process.submit(self._subject, (source,), self.seconds)
        except Exception as error:
            self._settle(key, done, error)
        else:
            trial.add_done_callback(lambda trial: self._settle(key, done, trial.exception()))
        return done

    def check(self, grammar: Grammar) -> None:
        """Try a grammar, and wait for the result. Raises as `submit` does, and the result."""
        raise_failure(self.submit(grammar).result())

    def _settle(self, key: bytes, done: "Future[Exception | None]", error: BaseException | None) -> None:
        from sporelm.text.isolated_process import OverBudget, ProcessDied

        if isinstance(error, OverBudget):
            what = f"to compile it takes more than {self.seconds:g} s of CPU time"
            error = RequestError(f"the grammar cannot be used: {what}. Make it simpler.")
        elif isinstance(error, ProcessDied):
            error = RequestError("the grammar cannot be used: to compile it takes too much memory. Make it simpler.")
        elif error is not None and type(error) is not RequestError:  # nothing is known of the grammar
            with self._changing:
                self._tried.pop(key, None)
        if isinstance(error, Exception):
            done.set_result(error.with_traceback(None))
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(None)


def raise_failure(error: Exception | None) -> None:
    """Raise a copy of the error of a trial, if there is one. An error that is kept and raised again and again would
    hold the frames of every request that met it."""
    if error is not None:
        raise copy(error)


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


class PlainVocabulary:
    """A vocabulary as llguidance wants to see it. It reads a text into tokens by taking the longest first: enough to
    try a grammar, where which tokens are forced does not matter."""

    def __init__(
        self, tokens: list[bytes], eos_token_id: int, bos_token_id: int | None, special_token_ids: list[int]
    ) -> None:
        self.tokens = tokens
        self.eos_token_id, self.bos_token_id, self.special_token_ids = eos_token_id, bos_token_id, special_token_ids

        self._ids: dict[bytes, int] = {}

    def __call__(self, text: bytes) -> list[int]:
        if not self._ids:
            self._ids = {token: number for number, token in enumerate(self.tokens) if token}
        found, start = [], 0
        while start < len(text):
            ends = range(min(len(text), start + LONGEST_TOKEN), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                break  # the rest is left to the grammar's next step
            found.append(self._ids[text[start:end]])
            start = end
        return found

    def words(self, stop_ids: Iterable[int]) -> Any:
        """llguidance's own form of it; `stop_ids` end a text."""
        from llguidance import LLTokenizer, TokenizerWrapper

        return LLTokenizer(TokenizerWrapper(self), eos_token=sorted(stop_ids))


class _Words(PlainVocabulary):
    """A tokenizer as llguidance wants to see it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = tokenizer.special
        super().__init__(
            [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)],
            min(tokenizer.stop_ids) if special.eos_id is None else special.eos_id,
            special.bos_id,
            sorted(special.control),
        )
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


def _plain(tokenizer: Tokenizer) -> tuple[list[bytes], int, int | None, list[int], list[int]]:
    """A tokenizer's vocabulary as plain data: the arguments of PlainVocabulary, and the ids that end a text."""
    words = _Words(tokenizer)
    stop_ids = sorted(tokenizer.stop_ids)
    return words.tokens, words.eos_token_id, words.bos_token_id, words.special_token_ids, stop_ids


def _vocabulary(tokenizer: Tokenizer) -> Any:
    """llguidance's view of a tokenizer, made once. Raises RequestError for a tokenizer without an end."""
    if not tokenizer.stop_ids:
        raise RequestError(f"{tokenizer.label} has no token that ends a text: an answer with a grammar could not end")
    with _lock:
        if tokenizer not in _tokenizers:
            _tokenizers[tokenizer] = _Words(tokenizer).words(tokenizer.stop_ids)
        return _tokenizers[tokenizer]
