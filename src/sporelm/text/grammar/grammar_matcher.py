"""Compiled grammars, and the matchers that follow an answer and mask its tokens.

A grammar is compiled once, outside the engine, within limits of size, depth and work (llguidance counts its steps).
Each answer has a copy of its matcher; the grammars used last are cached. After any error no token is allowed: an answer
never leaves its grammar unnoticed.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache
from queue import SimpleQueue
from threading import Lock, Thread, stack_size
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.host_cores import usable_cores
from sporelm.errors import RequestError
from sporelm.text.grammar.grammar import Grammar
from sporelm.text.grammar.grammar_checks import MAX_STRING_CHARACTERS
from sporelm.text.grammar.grammar_errors import NO_TOKEN, describe_missing_token, translate_llguidance_error
from sporelm.text.grammar.grammar_vocabulary import TokenizerVocabulary
from sporelm.text.tokenizers.tokenizer import Tokenizer

MAX_CACHED_GRAMMARS = 16  # compiled grammars of a tokenizer
STACK_BYTES = 64 << 20  # of the thread that compiles: ten times as much as the deepest grammar took
MAX_MASK_THREADS = 32  # that compute the masks of several answers
MAX_FORCED_TOKENS = 2048  # that a grammar may force without a choice
MAX_FORCED_BYTES = MAX_STRING_CHARACTERS  # the same as text: to tokenize more would delay the engine
# Limits of work: lexer fuel at the beginning and per token, Earley items per token, states and symbols in all. They are
# below llguidance's own limits: a request may cost the engine a few milliseconds per token at most.
INITIAL_FUEL, STEP_FUEL, STEP_ITEMS, LEXER_STATES, SYMBOLS = 1_000_000, 100_000, 5_000, 20_000, 100_000

_lock = Lock()
_vocabularies: "WeakKeyDictionary[Tokenizer, Any]" = WeakKeyDictionary()
_cache: "WeakKeyDictionary[Tokenizer, OrderedDict[str, CompiledGrammar]]" = WeakKeyDictionary()


@cache
def _executor() -> Any:
    """Return llguidance's threads, made once: one for each core that this process may use."""
    from llguidance import LLExecutor

    return LLExecutor(num_threads=min(usable_cores(), MAX_MASK_THREADS))


class GrammarMatcher:
    """A grammar's state during one answer: a `Constraint` of the engine."""

    def __init__(self, matcher: Any, stop_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._stop_ids = stop_ids
        self._stopped = False  # cached: asking llguidance each time costs more than the answer
        self.failure: str | None = None  # why the answer cannot continue
        self._check()

    @property
    def ended(self) -> bool:
        """Whether the answer is complete."""
        return self._stopped and self.failure is None

    def allows(self, token: int) -> bool:
        """Whether a token may come next; no token may after an error."""
        return self.failure is None and bool(self._matcher.validate_tokens([token]) == 1)

    def words(self) -> NDArray[np.int32]:
        """Return the bitmask of the tokens that may come next: int32 [n], a bit for each; no bit after an error."""
        bitmask = np.frombuffer(self._matcher.compute_bitmask(), "<i4")
        self._check()
        return np.zeros_like(bitmask) if self.failure is not None else bitmask

    @classmethod
    def fill_words(cls, constraints: "Sequence[GrammarMatcher]", words: NDArray[np.int32]) -> None:
        """Write the bitmask of each answer to a row of `words`, in llguidance's threads, which do without Python's
        lock."""
        from llguidance.numpy import fill_next_token_bitmask_par

        fill_next_token_bitmask_par(_executor(), [(each._matcher, row) for row, each in enumerate(constraints)], words)
        for row, each in enumerate(constraints):
            each._check()
            if each.failure is not None:
                words[row] = 0

    def accept(self, token: int) -> None:
        """Advance by a token of the answer."""
        self._matcher.consume_token(token)
        self._stopped = self._matcher.is_stopped()
        if self._stopped:
            self._check()

    def forced(self) -> list[int]:
        """Return the tokens that must come next. More than MAX_FORCED_TOKENS are a failure: the grammar only repeats
        itself."""
        if self.failure is not None or self._stopped:
            return []
        if (num_bytes := len(self._matcher.compute_ff_bytes())) > MAX_FORCED_BYTES:
            self.failure = f"it forces too many bytes at once (got {num_bytes}; allowed {MAX_FORCED_BYTES})"
            return []
        tokens = self._matcher.compute_ff_tokens()
        if len(tokens) > MAX_FORCED_TOKENS:
            self.failure = f"it forces too many tokens at once (got {len(tokens)}; allowed {MAX_FORCED_TOKENS})"
        if not tokens:
            self._check()
            return []
        return [token for token in tokens if token not in self._stop_ids] if self.failure is None else []

    def _check(self) -> None:
        """Record an error of llguidance, which also stops it. Changes the state."""
        if self.failure is None and self._matcher.is_error():
            self.failure = translate_llguidance_error(self._matcher.get_error())
            self._stopped = True


class CompiledGrammar:
    """A grammar for one tokenizer; `matcher` begins an answer."""

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar) -> None:
        """Compile the grammar, not in the engine's thread: it may take some tenths of a second. Raises RequestError."""
        vocabulary = _get_vocabulary(tokenizer)
        source = grammar.source()
        self._stop_ids = tokenizer.stop_ids
        tokens = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
        self._initial = _compile_thread.run(lambda: compile_matcher(vocabulary, source, self._stop_ids, tokens))

    def matcher(self) -> GrammarMatcher:
        """Return the matcher of a new answer."""
        return GrammarMatcher(self._initial.deep_copy(), self._stop_ids)


def compile_matcher(vocabulary: Any, source: str, stop_ids: frozenset[int], tokens: Iterable[bytes]) -> Any:
    """Compile a grammar for llguidance's form of a vocabulary, and take its first step, which reveals a grammar that
    allows nothing or too much. `tokens` are the vocabulary's. Raises RequestError.

    The recursion is as deep as the grammar: run this in a thread with a large stack.
    """
    from llguidance import LLMatcher

    initial = LLMatcher(vocabulary, source, log_level=0, limits=_get_limits())
    matcher = GrammarMatcher(initial.deep_copy(), stop_ids)
    allows_any = not matcher.failure and matcher.words().any()
    matcher.forced()
    if matcher.failure or not allows_any:
        reason = matcher.failure or "it allows no text"
        if reason == translate_llguidance_error(NO_TOKEN):
            reason = describe_missing_token(initial.deep_copy().compute_ff_bytes(), tokens)
        raise RequestError(f"the grammar cannot be used: {reason}")
    return initial


def compile_grammar(tokenizer: Tokenizer, grammar: Grammar) -> CompiledGrammar:
    """Return a grammar compiled for a tokenizer, from the cache if it is there. Raises RequestError."""
    key = grammar.source()
    with _lock:
        grammars = _cache.setdefault(tokenizer, OrderedDict())
        if key in grammars:
            grammars.move_to_end(key)
            return grammars[key]
    compiled = CompiledGrammar(tokenizer, grammar)
    with _lock:
        grammars[key] = compiled
        while len(grammars) > MAX_CACHED_GRAMMARS:
            grammars.popitem(last=False)
    return compiled


class CompileThread:
    """A thread that compiles grammars one after the other, with a large stack: llguidance's compilers recurse as deep
    as a grammar is, and other threads may have only 128 kB. One thread serves all, so that the memory for compiling is
    needed once."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._thread: Thread | None = None

    def run(self, compile_job: Callable[[], Any]) -> Any:
        """Return the result of a call made in the thread, or raise its error."""
        result: Future[Any] = Future()
        with _lock:
            if self._thread is None or not self._thread.is_alive():  # as in a child after a fork
                self._start()
        self._jobs.put((compile_job, result))
        return result.result()

    def _start(self) -> None:
        self._jobs = SimpleQueue()
        self._thread = Thread(target=self._serve, args=(self._jobs,), name="grammar", daemon=True)
        previous = stack_size(STACK_BYTES)  # of the whole process for a moment: other threads that start now have it
        try:
            self._thread.start()
        finally:
            stack_size(previous)

    def _serve(self, jobs: Any) -> None:
        while True:
            compile_job, result = jobs.get()
            try:
                result.set_result(compile_job())
            except BaseException as error:
                result.set_exception(error)
            del compile_job, result  # not kept alive until the next job


_compile_thread = CompileThread()


@cache
def _get_limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=INITIAL_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=SYMBOLS,
        verbose_errors=False,
    )


def _get_vocabulary(tokenizer: Tokenizer) -> Any:
    """Return llguidance's form of a tokenizer, built once. Raises RequestError for a tokenizer without stop ids."""
    if not tokenizer.stop_ids:
        raise RequestError(f"{tokenizer.label} has no token that ends a text: an answer with a grammar could not end")
    with _lock:
        if tokenizer not in _vocabularies:
            _vocabularies[tokenizer] = TokenizerVocabulary(tokenizer).to_llguidance(tokenizer.stop_ids)
        return _vocabularies[tokenizer]
