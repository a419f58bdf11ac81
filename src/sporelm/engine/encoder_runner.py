"""The runner of encoders: whole texts in one step, without a cache."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.backends.protocol import Backend, Progress
from sporelm.models import Encoder
from sporelm.models.encoder_inputs import EncoderInputs, ReadTexts, text_specs, trace_texts
from sporelm.plan import Plan


class EncoderText(NamedTuple):
    """The input of an encoder: one text, or a pair whose second text begins at the token `second`."""

    tokens: Sequence[int]
    second: int | None = None


class EncoderRunner:
    """One encoder on one back-end; a step has at most `most_tokens` tokens of `most_texts` texts."""

    def __init__(
        self,
        model: Encoder,
        weights: Mapping[str, Any],
        backend: Backend,
        *,
        max_tokens: int,
        max_texts: int,
        eager: bool = False,
    ) -> None:
        self.model, self.weights, self.backend, self.eager = model, weights, backend, eager
        self.max_tokens, self.max_texts = max_tokens, max_texts
        self.compile_s = 0.0  # seconds spent compiling programs
        self.filled_at = 0.0  # when the last step's inputs were ready, of perf_counter
        self.plan: Plan | None = None  # of the last step, unless eager
        self.lora_runtime = None  # adapters are not supported
        self._plans: dict[str, Plan] = {}  # by the name of the function

    def prepare(self, progress: Progress | None = None) -> None:
        """Compile the programs of scores, if the model has a head, else of embeddings. Does nothing if eager."""
        if not self.eager:
            began = perf_counter()
            self._plan(self.model.embed if self.model.classifier is None else self.model.score).prepare(None, progress)
            self.compile_s += perf_counter() - began

    def embed(self, texts: Sequence[EncoderText]) -> list[NDArray[np.float32]]:
        """Return the hidden states of each text: float32 [tokens, width], views that the next step overwrites."""
        hidden = self._compute(self.model.embed, texts)["hidden"]
        return np.split(hidden, np.cumsum([len(text.tokens) for text in texts])[:-1])

    def score(self, texts: Sequence[EncoderText]) -> NDArray[np.float32]:
        """Return the scores of the model's head for each text: float32 [texts, labels], a view likewise."""
        return self._compute(self.model.score, texts)["scores"]

    def close(self) -> None:
        """Free the programs."""
        for plan in self._plans.values():
            plan.close()

    def _compute(self, read: ReadTexts, texts: Sequence[EncoderText]) -> dict[str, NDArray[np.float32]]:
        if self.model.config.token_types < 2:
            texts = [EncoderText(text.tokens) for text in texts]
        inputs = make_encoder_inputs(texts)
        self.filled_at = perf_counter()
        if self.eager:
            results = read(EncoderInputs(*map(self.backend.tensor, inputs)), self.weights)
            return {name: result.numpy() for name, result in results.items()}
        extents = {"tokens": len(inputs.tokens), "texts": len(texts), "starts": len(texts) + 1}
        plan = self.plan = self._plan(read)
        if len(plan.bucket_programs) < len(plan.step_buckets):
            began = perf_counter()
            plan.bucket_program(plan.find_bucket(extents))
            self.compile_s += perf_counter() - began
        return plan.run(inputs._asdict(), extents)

    def _plan(self, read: ReadTexts) -> Plan:
        name = read.__name__
        if name not in self._plans:
            graph = trace_texts(read, self.weights, text_specs(self.max_tokens, self.max_texts))
            self._plans[name] = Plan(graph, self.backend, self.max_tokens)
        return self._plans[name]


def make_encoder_inputs(texts: Sequence[EncoderText]) -> EncoderInputs:
    """Return the arrays of a step, int32."""
    counts = np.array([len(text.tokens) for text in texts])
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    tokens = np.concatenate([np.asarray(text.tokens, np.int32) for text in texts])
    positions = np.arange(len(tokens), dtype=np.int32) - np.repeat(starts[:-1], counts)
    seconds = np.array([len(text.tokens) if text.second is None else text.second for text in texts], np.int32)
    types = (positions >= np.repeat(seconds, counts)).astype(np.int32)
    return EncoderInputs(tokens, positions, types, starts, starts[:-1].copy(), starts[1:].copy())
