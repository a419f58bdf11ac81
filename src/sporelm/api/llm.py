"""LLM: loads a model and generates text, chats, embeds, reranks and scores."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sporelm.api.completion import Completion, Piece
from sporelm.api.conversation import Conversation
from sporelm.api.cooperative import run_to_completion
from sporelm.api.document_ranking import RerankResult, rerank
from sporelm.api.embeddings import choose_pooling, embed
from sporelm.api.engine_loader import EngineOptions
from sporelm.api.engine_timing import time_decode, time_prefill, time_requests
from sporelm.api.loaded_llm import LoadedLLM, Message, Prompt
from sporelm.api.lora_adapters import LoraAdapter
from sporelm.api.parallel_options import ParallelOptions
from sporelm.api.sampling_params import SamplingParams, check_single
from sporelm.api.text_generation import TextGeneration
from sporelm.api.user_paths import parse_path
from sporelm.backends.memory_residency import available_bytes
from sporelm.backends.protocol import Progress
from sporelm.engine import KvSequence
from sporelm.engine.kv.offload import DEFAULT_MAX_BYTES
from sporelm.engine.prompt_images import PromptIds
from sporelm.engine.request import MAX_TOKEN_IDS, length_of, parse_token_ids
from sporelm.errors import ContextOverflow, MemoryShortage, RequestError, safe_repr
from sporelm.text import RenderedPrompt
from sporelm.vision.image_sources import check_picture_list


class LLM(LoadedLLM):
    """A loaded model. Threads may share it: their requests, and open streams, run in one batch.

    backend       None: SPORE_BACKEND, else "cpu"; "auto": the fastest device that holds the model, by a measurement;
                  `notes` say which and why
    threads       None: SPORE_THREADS, else the cores that affinity and cgroup allow; at most twice as many
    max_context   maximum tokens of a sequence; None: the smallest of the model's context, 8192 and what memory allows
    kv            data type of the KV cache: "f16", "bf16" or "f32"; "q8_0" or "fp8" in half the memory of f16, fp8 less
                  precise; None: f32 for f32 weights, else f16
    dtype         data type of activations: "auto", "f32", "f16" or "bf16"; the cpu and reference back-ends take
                  "auto" and "f32"
    strict        raise BackendError where the reference would run an op for which the back-end has no kernel
    batch_invariant  make results independent of the batch: every product adds in a fixed order; always on for cpu
    eager         run op by op, without a plan
    progress      called with (phase, done, total) during loading
    max_batch     maximum number of requests in a batch; more wait. None: as many as suit the device, 16 on a CPU
    dequantize    dequantize the weights to float32: the reference that quantized models are compared with
    token_budget  maximum tokens of a step; None: those of the back-end's largest program, which is the upper limit
    speculate     speculative decoding: draft tokens and verify several at once, where that is faster; the output is the
                  same. "ngram": drafts from the text itself; "draft": drafts from the draft model
    draft_model   a smaller model with the same vocabulary that drafts tokens; implies speculate="draft"
    session_dir   folder to which the KV cache of idle conversations is offloaded when others need its pages, so that it
                  is not recomputed
    session_bytes maximum total size of the files in session_dir; the least recently used are deleted first
    kv_memory     memory of the KV cache: bytes, or a size such as "2G" or "1.5GiB"; None: what the contexts need, at
                  most half of the free memory
    trace         file for the time of each step, per op: a Chrome trace, complete once the model is closed
    record        file for every step and its results, which `spore replay` repeats
    adapters      LoRA adapters to load, as by `load_adapter`: paths, or LoraAdapter(path, name, scale)
    chat_template replaces the model's own template: a name of `BUILTIN_TEMPLATES` ("chatml", ...), or a Jinja file
    any_kind      allow options that an encoder does not use; it ignores them
    device_memory memory of the device for weights, KV cache and a step: bytes, or a size such as "20G"; layers that do
                  not fit are on the CPU. None: all of its free memory
    experts_on    "cpu": experts' matrices are on the CPU, everything else on the device
    mmproj        GGUF file with the model's vision tower; folders of models that see hold theirs
    tp            tensor-parallel ranks: each has a shard of every weight, and they compute each layer together
    pp            pipeline stages, which have some layers each; there are tp * pp ranks
    ep            divide experts as a whole over the ranks of a stage, instead of each expert's matrices
    tp_shares     relative sizes of the shards of a stage's ranks, such as (1, 1, 2); None: equal ones
    pp_layers     layers of each stage, such as (10, 12); None: as equal as possible
    rank_executor "processes": the ranks from the second on are processes of their own, which end with this one;
                  "threads": threads of this process, for tests
    remote_ranks  how many of the last ranks are workers of other hosts, which join with `spore worker`
    rank_listen   private address at which they join, such as "10.0.0.1:7000"
    rank_token_file  file with their secret, mode 0600; created if it does not exist
    rank_tls_cert PEM file with a certificate, and rank_tls_key with its key: encrypt the messages between hosts
    rank_tls_key  see rank_tls_cert
    rank_devices  back-end of each stage, or of each rank, as NAME or NAME@DEVICE, such as ("cuda@cuda:0", "cpu");
                  None: all have the back-end and the device of the first
    micro_batches parts into which a step is split so that stages work at the same time; 0: one for each stage
    announce      called with a line about the split between device and CPU, with the expected speed, before weights are
                  loaded; `notes` have it, too
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
        max_batch: int | None = None,
        dequantize: bool = False,
        token_budget: int | None = None,
        speculate: str | None = None,
        draft_model: str | Path | None = None,
        session_dir: str | Path | None = None,
        session_bytes: int = DEFAULT_MAX_BYTES,
        kv_memory: int | str | None = None,
        trace: str | Path | None = None,
        record: str | Path | None = None,
        adapters: Sequence[str | Path | LoraAdapter] = (),
        any_kind: bool = False,
        chat_template: str | Path | None = None,
        dtype: str = "auto",
        strict: bool = False,
        batch_invariant: bool = False,
        device_memory: int | str | None = None,
        experts_on: str | None = None,
        announce: Callable[[str], None] | None = None,
        mmproj: str | Path | None = None,
        tp: int = 1,
        pp: int = 1,
        ep: bool = False,
        tp_shares: Sequence[int] | None = None,
        pp_layers: Sequence[int] | None = None,
        rank_executor: str = "processes",
        remote_ranks: int = 0,
        rank_listen: str | None = None,
        rank_token_file: str | Path | None = None,
        rank_tls_cert: str | Path | None = None,
        rank_tls_key: str | Path | None = None,
        rank_devices: Sequence[str] | None = None,
        micro_batches: int = 0,
    ) -> None:
        """Load a model: a .gguf file, a Hugging Face folder, hf:owner/name[:file], a stored name, or the default.

        The class documents the options. Raises SporeError, whose message is one line with a remedy.
        """
        parallel = ParallelOptions(
            tp, pp, ep, tp_shares, pp_layers, rank_executor, remote_ranks, rank_listen, rank_token_file,
            rank_tls_cert, rank_tls_key, rank_devices, micro_batches,
        )  # fmt: skip
        options = EngineOptions(
            model, backend, device, threads, max_context, kv, eager, max_batch, dequantize, token_budget, speculate,
            draft_model, session_dir, session_bytes, kv_memory, any_kind=any_kind, chat_template=chat_template,
            dtype=dtype, strict=strict, batch_invariant=batch_invariant, device_memory=device_memory,
            experts_on=experts_on, mmproj=mmproj, parallel=parallel,
        )  # fmt: skip
        super().__init__(options, progress, trace, record, adapters, announce)
        self._chat: KvSequence | None = None  # the KV cache that `chat` keeps between calls

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Continue prompts, raw texts or token ids, in one batch. Returns completions in the order of the prompts.

        `params` apply to all prompts, or are one for each. Raises RequestError and ContextOverflow, which name the
        invalid prompt; then no prompt is run.
        """
        prompt_list = as_prompt_list(prompts)
        shared = SamplingParams() if params is None else params
        params_list = shared if isinstance(shared, Sequence) else [shared] * len(prompt_list)
        if length_of(params_list) != len(prompt_list):
            count = length_of(params_list)
            raise RequestError(f"{count} sampling parameters for {len(prompt_list)} prompts: give one, or one for each")
        groups = [
            self._prepare_numbered(number, len(prompt_list), prompt, each)
            for number, (prompt, each) in enumerate(zip(prompt_list, params_list, strict=True), 1)
        ]
        self.run_generations([generation for group in groups for generation in group])
        return [self.merge_completions(group) for group in groups]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Generator[Piece, None, None]:
        """Continue one prompt and yield the text piece by piece. Closing the iterator cancels the request.

        A piece may be empty, for example during prefill. Raises like `generate`, before the first piece.
        """
        return self.stream_pieces(self.prepare_generation(self.prompt_ids(prompt), check_single(params)))

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """Answer messages {"role", "content"}. The prefix they share with the last call is not recomputed."""
        for piece in self.chat_stream(messages, params):
            if piece.completion is not None:
                return piece.completion
        raise AssertionError("a stream ends with its completion")

    def chat_stream(
        self, messages: Sequence[Message], params: SamplingParams | None = None
    ) -> Generator[Piece, None, None]:
        """Answer messages and yield the text piece by piece; see `chat`."""
        ids = self.chat_ids(self.render(messages))
        if self._chat is None:
            self._chat = self.engine.sequence()
        sequence = None if self.engine.scheduler.uses(self._chat) else self._chat
        return self.stream_pieces(self.prepare_generation(ids, check_single(params), sequence, continues=False))

    def conversation(self, system: str | None = None) -> Conversation:
        """Start a conversation, which keeps its messages and its KV cache."""
        return Conversation(self, system)

    def wake(self, path: str | Path) -> Conversation:
        """Restore a conversation that `Conversation.sleep` or `save` wrote, without recomputing anything.

        Raises ModelNotFound, ModelFileError for a damaged file, RequestError for a session of another model,
        MemoryShortage while running requests leave too few pages.
        """
        return Conversation.restore(self, parse_path("the path of a session", path))

    def prompt_with_images(self, text: str, images: Sequence[Any]) -> list[int]:
        """Return the ids of raw text with pictures, for `generate`, `stream` and `logits`.

        text     with the model's placeholder once for each picture; without any, pictures stand in front of it
        images   paths, bytes, PIL images, uint8 arrays [height, width, 3], or lists of frames

        Raises RequestError, also for a model without a vision tower; ContextOverflow.
        """
        if not isinstance(text, str):
            raise RequestError(f"the text is {safe_repr(text)}: it must be a string")
        parts = [{"type": "image", "image": image} for image in check_picture_list(images)]
        taken = self.take_images([{"role": "user", "content": parts}])
        if not taken.pictures:
            return self.prompt_ids(text)
        assert self.image_reader is not None
        ids = self.chat_ids(self.image_reader.insert_into_text(text, taken.pictures))
        prefix = list(self.tokenizer.special.prefix)
        if isinstance(ids, PromptIds) and prefix and ids[: len(prefix)] != prefix:
            images_at = [replace(image, start=image.start + len(prefix)) for image in ids.images]
            return PromptIds([*prefix, *ids], images_at)
        return ids

    def logits(self, ids: Sequence[int], adapter: str | None = None) -> NDArray[np.float32]:
        """Return the logits of the next token at every position, as a new array: float32 [len(ids), vocab].

        Raises ContextOverflow, RequestError, MemoryShortage.
        """
        self.check_can_generate()
        ids = ids if isinstance(ids, PromptIds) else parse_token_ids("the prompt", ids)
        needed = len(ids) * self.config.vocab * 4
        available = available_bytes()
        if available is not None and needed > available:
            raise MemoryShortage(
                f"logits of {len(ids)} tokens need {needed / 1e6:.0f} MB, {available / 1e6:.0f} MB are available: "
                "ask for fewer tokens at a time"
            )
        self.engine.limits.check_prompt(len(ids))
        logits = np.empty((len(ids), self.config.vocab), np.float32)
        done = 0

        def copy_chunk(chunk: NDArray[np.float32]) -> None:
            nonlocal done
            logits[done : done + len(chunk)] = chunk
            done += len(chunk)

        run_to_completion(self.engine.logits(ids, copy_chunk, self.adapters.adapter_id(adapter)), self.engine)
        return logits

    def embed(
        self,
        texts: Prompt | Sequence[Prompt] = (),
        *,
        images: Sequence[Any] = (),
        pooling: str | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        truncate: bool = False,
        adapter: str | None = None,
    ) -> NDArray[np.float32]:
        """Return a vector for each text, or list of token ids, and then for each image: float32 [texts, width].

        images       pictures for a vision model, as in `prompt_with_images`; each is a prompt of its own.
                     `ImageTextEncoder` embeds pictures and texts with CLIP and SigLIP
        pooling      how the positions are combined: "mean", "last", or "cls", the first; None: as the model's files
                     say, else the mean
        normalize    scale vectors to length 1, so that the dot product of two is their cosine similarity
        prompt_name  name of a prompt of the model's folder to put before each text, such as "query"; None: the folder's
                     default; "": none
        truncate     truncate longer texts to the max_seq_length of the model's folder and to the context, as
                     sentence-transformers does; else a text that is too long raises ContextOverflow
        adapter      name of a loaded LoRA adapter

        Raises RequestError, ContextOverflow.
        """
        images = check_picture_list(images)
        ids = [self.embed_ids(text, prompt_name, truncate=truncate) for text in as_prompt_list(texts)]
        longest = max(map(len, ids), default=0)
        if longest > self.max_context:
            raise ContextOverflow(
                f"text: it is too long (got {longest} tokens; allowed {self.max_context}). Shorten it, set the option "
                "truncate, or raise the option max_context.",
                context=self.max_context,
            )
        ids += [self.prompt_with_images("", [image]) for image in images]
        adapter_id = self.adapters.adapter_id(adapter)
        chosen = choose_pooling(self.config, pooling, ids)
        return embed(self, ids, chosen, normalize=normalize, adapter_id=adapter_id)

    def rerank(
        self, query: str, documents: Sequence[str], *, top_n: int | None = None, normalize: bool = True
    ) -> list[RerankResult]:
        """Score how well documents answer a query, and return them sorted, the best first.

        top_n      number of documents to return; None: all
        normalize  map scores to 0..1; else they are the raw outputs of the model's head

        Raises RequestError for a model that is not a reranker, ContextOverflow for a pair that is too long.
        """
        return rerank(self, query, documents, top_n, normalize=normalize)

    def bench_prefill(self, n: int, adapter: str | None = None) -> float:
        """Return the seconds from submitting a random prompt of n tokens to its first token.

        Resets the prefix cache.
        """
        return time_prefill(self.engine, n, self.adapters.adapter_id(adapter))

    def bench_decode(self, n: int, batch: int = 1, depth: int = 0, adapter: str | None = None) -> float:
        """Return the seconds to decode n tokens in each of `batch` sequences of `depth` tokens (see `time_decode`).

        Resets the prefix cache.
        """
        return time_decode(self.engine, n, batch, depth, self.adapters.adapter_id(adapter))

    def bench_whole(self, n: int, batch: int, prompt: int, adapter: str | None = None) -> float:
        """Return the seconds from submitting `batch` random prompts of `prompt` tokens until each has n more tokens.

        Resets the prefix cache.
        """
        return time_requests(self.engine, n, batch, prompt, self.adapters.adapter_id(adapter))

    def prepare_generation(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        sequence: KvSequence | None = None,
        *,
        continues: bool = True,
    ) -> TextGeneration:
        """Check a request and compile its grammar, without starting it. Raises RequestError, ContextOverflow.

        continues   the text continues the prompt's, so a leading space is kept
        """
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params is a {type(params).__name__}: it must be SamplingParams")
        self.check_can_generate()
        adapter_id = self.adapters.adapter_id(params.adapter)
        generation = TextGeneration(ids, params, self.tokenizer, sequence, continues=continues, adapter=adapter_id)
        self.engine.scheduler.check(generation.request)
        if self.isolation is not None:
            self.isolation.check_grammar(params.grammar, params.salt)
        generation.prepare()
        return generation

    def _prepare_numbered(
        self, number: int, count: int, prompt: Prompt, params: SamplingParams
    ) -> list[TextGeneration]:
        """Prepare the generations of one prompt of a list; an error names the prompt."""
        try:
            ids = self.prompt_ids(prompt) if isinstance(prompt, str | RenderedPrompt) else prompt
            return self.prepare_generations(ids, params)
        except RequestError as reason:
            if count == 1:
                raise
            raise type(reason)(f"prompt {number} of {count}: {reason}") from None

    def prepare_generations(
        self, ids: Sequence[int], params: SamplingParams, *, continues: bool = True
    ) -> list[TextGeneration]:
        """Prepare all generations that `n` and `best_of` ask for of one prompt. Raises like `prepare_generation`."""
        first = self.prepare_generation(ids, params, continues=continues)
        others = [
            TextGeneration(ids, params, self.tokenizer, continues=continues, first=first, index=index)
            for index in range(1, params.num_sequences)
        ]
        return [first, *others]

    def merge_completions(self, generations: list[TextGeneration]) -> Completion:
        """Return the best `n` of a prompt's finished generations as one completion with alternatives."""
        params = generations[0].params
        if params.num_sequences > params.n:
            generations = sorted(generations, key=lambda generation: -generation.mean_logprob)[: params.n]
        first, *others = generations
        return first.completion(self.timings, [other.completion(self.timings) for other in others])

    def stream_pieces(self, generation: TextGeneration) -> Generator[Piece, None, None]:
        """Start a generation and yield its pieces. Closing the iterator cancels it.

        A step without new text, such as one of a long prefill, yields an empty piece, so that the caller can stop.
        """
        engine = self.engine
        engine.add(generation.request)
        try:
            piece = generation.take(engine)
            while piece is None or not piece.finish_reason:
                if piece is None:
                    self.engine.step()
                    piece = generation.take(engine) or Piece("", [])
                else:
                    yield piece
                    piece = generation.take(engine)
            yield replace(piece, completion=generation.completion(self.timings))
        finally:
            if generation.finish_reason is None and self._loaded_engine is not None:
                generation.end(engine)

    def run_generations(self, generations: Sequence[TextGeneration]) -> None:
        """Start generations and run them to their ends in one batch. Cancels all of them if interrupted."""
        engine = self.engine
        running = dict[int, TextGeneration]()
        try:
            for generation in generations:
                running[engine.add(generation.request).id] = generation
            while running:
                engine.step()  # a step of another thread may have advanced them too
                for request_id, generation in list(running.items()):
                    generation.take(engine)
                    if generation.finish_reason:
                        del running[request_id]
        finally:
            for generation in generations:
                if generation.finish_reason is None and generation.request.id:
                    generation.end(engine)


def as_prompt_list(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """Return the prompts of a call that may pass a single text or list of token ids. Raises RequestError."""
    if isinstance(prompts, str | RenderedPrompt):
        return [prompts]
    if not isinstance(prompts, Sequence | np.ndarray):
        raise RequestError(f"prompts is a {type(prompts).__name__}: give a text, token ids, or a list of them")
    if length_of(prompts) > MAX_TOKEN_IDS:
        raise RequestError(f"there are more than {MAX_TOKEN_IDS} prompts, or ids of one: give fewer")
    if len(prompts) and all(isinstance(item, int | np.integer) for item in prompts):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]
