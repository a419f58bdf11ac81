"""LLM: a path in, text out."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sporelm.api import measure
from sporelm.api.adapters import LoraAdapter
from sporelm.api.answer import Answer
from sporelm.api.completion import Completion, Piece
from sporelm.api.conversation import Conversation
from sporelm.api.embedding import embed, pooling_of
from sporelm.api.loading import Options
from sporelm.api.open_model import Message, OpenModel, Prompt
from sporelm.api.params import SamplingParams, single
from sporelm.api.paths import path_of
from sporelm.api.reranking import Ranked, rerank
from sporelm.api.stepwise import whole
from sporelm.backends.backend import Progress
from sporelm.engine import KvSequence
from sporelm.engine.kv.session_folder import DEFAULT_BYTES
from sporelm.engine.request import MOST_IDS, size_of, token_ids
from sporelm.errors import MemoryShortage, RequestError
from sporelm.text import RenderedPrompt
from sporelm.weights.resident import available_bytes


class LLM(OpenModel):
    """A model that is loaded and ready. Threads may share one, and their requests run together; so do open streams.

    backend       None: SPORE_BACKEND, else "cpu"
    threads       None: SPORE_THREADS, else the cores that affinity and cgroup leave; at most twice as many
    max_context   positions of a sequence; None: the least of the model's own, 8192 and what the memory allows
    kv            numbers of the cache: "f16", "f32", or "q8_0" in half of f16's memory; None: f32 for f32
                  weights, else f16
    eager         run op by op, without a plan
    progress      called with (stage, done, total) while it loads
    max_batch     requests that run together
    dequantize    compute with the weights' values in float32: the reference that quantization is judged by
    token_budget  tokens of a step at most; None: as many as the back-end's largest program takes, which is the limit
    speculate     guess the next tokens and check several at once, where that pays; the answers are the same.
                  "ngram": out of the text itself; "draft": by the draft model
    draft_model   a smaller model with the same tokens, whose guesses are checked; means speculate="draft"
    session_dir   a folder in which conversations sleep whose pages others need, instead of being computed anew
    session_bytes of its files at most; the longest asleep go first
    kv_memory     what the cache takes: bytes, or a size as "2G", "1.5GiB"; None: what contexts need, half of what
                  is free at most
    trace         a file for where the time of each step goes, per op: a Chrome trace, whole once this is closed
    record        a file for every step with its results, which `spore replay` repeats
    adapters      loaded as by `load_adapter`: paths, or LoraAdapter(path, name, scale)
    chat_template in place of the model's own: a name of `BUILTIN_TEMPLATES` ("chatml", ...), or a file of jinja
    any_kind      the options are for models of any kind: an encoder leaves out those for which it has no use
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        backend: str | None = None,
        device: str = "cpu",
        threads: int | None = None,
        max_context: int | None = None,
        kv: str | None = None,
        eager: bool = False,
        progress: Progress | None = None,
        max_batch: int = 16,
        dequantize: bool = False,
        token_budget: int | None = None,
        speculate: str | None = None,
        draft_model: str | Path | None = None,
        session_dir: str | Path | None = None,
        session_bytes: int = DEFAULT_BYTES,
        kv_memory: int | str | None = None,
        trace: str | Path | None = None,
        record: str | Path | None = None,
        adapters: Sequence[str | Path | LoraAdapter] = (),
        any_kind: bool = False,
        chat_template: str | Path | None = None,
    ) -> None:
        """Load a model: a .gguf file, a Hugging Face folder, hf:owner/name[:file], a stored name, or the default.

        The options are those of the class. Raises SporeError with one line that says what to do.
        """
        options = Options(
            model, backend, device, threads, max_context, kv, eager, max_batch, dequantize, token_budget, speculate,
            draft_model, session_dir, session_bytes, kv_memory, any_kind=any_kind, chat_template=chat_template,
        )  # fmt: skip
        super().__init__(options, progress, trace, record, adapters)
        self._chat: KvSequence | None = None  # what `chat` keeps from one call to the next

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Continue prompts, raw texts or token ids, together; the completions come in the order of the prompts.

        `params` are for all prompts, or one for each. Raises RequestError, ContextOverflow, which say which of several
        prompts it is that cannot be served; then none is.
        """
        texts = several(prompts)
        one = SamplingParams() if params is None else params
        chosen = one if isinstance(one, Sequence) else [one] * len(texts)
        if size_of(chosen) != len(texts):
            count = size_of(chosen)
            raise RequestError(f"{count} sampling parameters for {len(texts)} prompts: give one, or one for each")
        groups = [
            self._group(number, len(texts), text, each)
            for number, (text, each) in enumerate(zip(texts, chosen, strict=True), 1)
        ]
        self.run([answer for group in groups for answer in group])
        return [self.best_of(group) for group in groups]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Generator[Piece, None, None]:
        """Continue one prompt piece by piece; closing the iterator cancels, even while the prompt is computed.

        A piece may be empty. Raises as `generate`, before it returns.
        """
        return self.pieces(self.answer(self.prompt_ids(prompt), single(params)))

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """The answer to messages {"role", "content"}. What they share with the last call is not computed again."""
        for piece in self.chat_stream(messages, params):
            if piece.completion is not None:
                return piece.completion
        raise AssertionError("a stream ends with its completion")

    def chat_stream(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[Piece, None, None]:
        """`chat`, piece by piece."""
        ids = self.chat_ids(self.render(messages))
        if self._chat is None:
            self._chat = self.engine.sequence()
        sequence = None if self.engine.scheduler.uses(self._chat) else self._chat
        return self.pieces(self.answer(ids, single(params), sequence, continues=False))

    def conversation(self, system: str | None = None) -> Conversation:
        """A chat that keeps its history, and the keys and values of it."""
        return Conversation(self, system)

    def wake(self, path: str | Path) -> Conversation:
        """A conversation that `Conversation.sleep` wrote; nothing is computed again.

        Raises ModelNotFound, ModelFileError for a damaged file, RequestError for one of another model, MemoryShortage
        while running requests leave too few pages.
        """
        return Conversation.woken(self, path_of("the path of a session", path))

    def logits(self, ids: Sequence[int], adapter: str | None = None) -> NDArray[np.float32]:
        """Scores of the next token at every position: float32 [len(ids), vocab], the caller's own.

        Raises ContextOverflow, RequestError, MemoryShortage.
        """
        self.check_generates()
        ids = token_ids("the prompt", ids)
        needed, available = len(ids) * self.config.vocab * 4, available_bytes()
        if available is not None and needed > available:
            raise MemoryShortage(
                f"logits of {len(ids)} tokens need {needed / 1e6:.0f} MB, {available / 1e6:.0f} MB are available: "
                "ask for fewer tokens at a time"
            )
        self.engine.limits.check_prompt(len(ids))
        scores, done = np.empty((len(ids), self.config.vocab), np.float32), 0

        def take(chunk: NDArray[np.float32]) -> None:
            nonlocal done
            scores[done : done + len(chunk)] = chunk
            done += len(chunk)

        whole(self.engine.logits(ids, take, self.adapters.number(adapter)), self.engine)
        return scores

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        pooling: str | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: bool = False,
        adapter: str | None = None,
    ) -> NDArray[np.float32]:
        """A vector for each text, or list of token ids: float32 [texts, width].

        pooling      of what the model makes of each position: "mean", "last", or "cls", the first; None: as its files
                     say, and the mean where they do not
        normalize    to length 1, so that the product of two is the cosine between them
        prompt_name  of the prompts that the model's folder has, the one to put before each text: "query", say; None: as
                     the folder says; "": none
        truncate     longer texts are cut at the max_seq_length of the model's folder, or where the context ends, as
                     sentence-transformers does; else all of a text counts, and one that is too long is refused
        adapter      the name of one that is loaded

        Raises RequestError, ContextOverflow.
        """
        ids = [self.embed_ids(text, prompt_name, truncate=truncate) for text in several(texts)]
        number = self.adapters.number(adapter)
        chosen = pooling_of(self.config, pooling, ids)
        return embed(self, ids, chosen, normalize=normalize, adapter=number)

    def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, normalize: bool = True
    ) -> list[Ranked]:
        """Documents by how well they answer a query, the best first, with the score that a reranker gives each.

        top_n      of them; None: all
        normalize  scores are between 0 and 1; else they are what the model's head says

        Raises RequestError for a model that is no reranker, ContextOverflow for a query and document too long together.
        """
        return rerank(self, query, documents, top_n, normalize=normalize)

    def bench_prefill(self, n: int, adapter: str | None = None) -> float:
        """Seconds from submitting a random prompt of n tokens to its first token."""
        return measure.prefill(self.engine, n, self.adapters.number(adapter))

    def bench_decode(self, n: int, batch: int = 1, depth: int = 0, adapter: str | None = None) -> float:
        """Seconds to decode n tokens in each of `batch` sequences that hold `depth` tokens already (see `measure`)."""
        return measure.decode(self.engine, n, batch, depth, self.adapters.number(adapter))

    def bench_whole(self, n: int, batch: int, prompt: int, adapter: str | None = None) -> float:
        """Seconds from submitting `batch` random prompts of `prompt` tokens at once until each has n tokens more."""
        return measure.whole(self.engine, n, batch, prompt, self.adapters.number(adapter))

    def answer(
        self,
        ids: list[int],
        params: SamplingParams,
        sequence: KvSequence | None = None,
        *,
        continues: bool = True,
    ) -> Answer:
        """An answer that is checked and not begun; its grammar is compiled. Raises RequestError, ContextOverflow."""
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params is a {type(params).__name__}: it must be SamplingParams")
        self.check_generates()
        adapter = self.adapters.number(params.adapter)
        answer = Answer(ids, params, self.tokenizer, sequence, continues=continues, adapter=adapter)
        self.engine.scheduler.check(answer.request)
        if self.isolation is not None:
            self.isolation.check_grammar(params.grammar)
        answer.prepare()
        return answer

    def _group(self, number: int, count: int, prompt: Prompt, params: SamplingParams) -> list[Answer]:
        """The answers to one prompt of a list; an error says which it is."""
        try:
            return self.several_answers(self.prompt_ids(prompt), params)
        except RequestError as reason:
            if count == 1:
                raise
            raise type(reason)(f"prompt {number} of {count}: {reason}") from None

    def several_answers(self, ids: list[int], params: SamplingParams, *, continues: bool = True) -> list[Answer]:
        """The answers that are made of one prompt, not begun; `continues`: they go on with its text."""
        first = self.answer(ids, params, continues=continues)
        others = range(1, params.made)
        return [
            first,
            *(Answer(ids, params, self.tokenizer, continues=continues, first=first, number=each) for each in others),
        ]

    def best_of(self, answers: list[Answer]) -> Completion:
        """Of the answers to one prompt those that are wanted, as one completion."""
        params = answers[0].params
        if params.made > params.n:
            answers = sorted(answers, key=lambda answer: -answer.likelihood)[: params.n]
        first, *others = answers
        return first.completion(self.timings, [other.completion(self.timings) for other in others])

    def pieces(self, answer: Answer) -> Generator[Piece, None, None]:
        """Begin an answer and yield its pieces; closing the iterator cancels it.

        A step without news, as most of a long prompt's are, yields an empty piece: the caller can stop there too.
        """
        engine = self.engine
        engine.add(answer.request)
        try:
            piece = answer.take(engine)
            while piece is None or not piece.finish_reason:
                if piece is None:
                    self.engine.step()
                    piece = answer.take(engine) or Piece("", [])
                else:
                    yield piece
                    piece = answer.take(engine)
            yield replace(piece, completion=answer.completion(self.timings))
        finally:
            if answer.finish_reason is None and self._opened is not None:
                answer.end(engine)

    def run(self, answers: Sequence[Answer]) -> None:
        """Begin answers and finish them together; cancel all of them if interrupted."""
        engine, following = self.engine, dict[int, Answer]()
        try:
            for answer in answers:
                following[engine.add(answer.request).id] = answer
            while following:
                engine.step()  # or another thread's step brought the news
                for number, answer in list(following.items()):
                    answer.take(engine)
                    if answer.finish_reason:
                        del following[number]
        finally:
            for answer in answers:
                if answer.finish_reason is None and answer.request.id:
                    answer.end(engine)


def several(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """The prompts of a call that may give one: a text, or token ids. Raises RequestError for what is neither."""
    if isinstance(prompts, str | RenderedPrompt):
        return [prompts]
    if not isinstance(prompts, Sequence | np.ndarray):
        raise RequestError(f"prompts is a {type(prompts).__name__}: give a text, token ids, or a list of them")
    if size_of(prompts) > MOST_IDS:
        raise RequestError(f"there are more than {MOST_IDS} prompts, or ids of one: give fewer")
    if len(prompts) and all(isinstance(item, int | np.integer) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]
