"""Runs an encoder: whole texts in one step, without a cache."""

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
    """What an encoder reads at once: one text, or two, of which the second begins at the token `second`."""

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
        most_tokens: int,
        most_texts: int,
        eager: bool = False,
    ) -> None:
        self.model, self.weights, self.backend, self.eager = model, weights, backend, eager
        self.most_tokens, self.most_texts = most_tokens, most_texts
        self.compile_s = 0.0  # seconds spent making programs
        self.filled_at = 0.0  # when the last step's inputs were ready, of perf_counter
        self.plan: Plan | None = None  # of the last step, unless eager
        self.lora_runtime = None  # it takes no adapters
        self._plans: dict[str, Plan] = {}  # by the name of what they compute

    def prepare(self, progress: Progress | None = None) -> None:
        """Make the programs of what the model is for now: scores, if it has a head. Does nothing if eager."""
        if not self.eager:
            began = perf_counter()
            self._plan(self.model.embed if self.model.classifier is None else self.model.score).prepare(None, progress)
            self.compile_s += perf_counter() - began

    def embed(self, texts: Sequence[EncoderText]) -> list[NDArray[np.float32]]:
        """What each text's tokens are made: float32 [tokens, width], views that the next step overwrites."""
        hidden = self._compute(self.model.embed, texts)["hidden"]
        return np.split(hidden, np.cumsum([len(text.tokens) for text in texts])[:-1])

    def score(self, texts: Sequence[EncoderText]) -> NDArray[np.float32]:
        """The scores that a model's head gives each text: float32 [texts, labels], a view likewise."""
        return self._compute(self.model.score, texts)["scores"]

    def close(self) -> None:
        """Free the programs."""
        for plan in self._plans.values():
            plan.close()

    def _compute(self, read: ReadTexts, texts: Sequence[EncoderText]) -> dict[str, NDArray[np.float32]]:
        if self.model.config.token_types < 2:
            texts = [EncoderText(text.tokens) for text in texts]
        inputs = arrays_of(texts)
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
            graph = trace_texts(read, self.weights, text_specs(self.most_tokens, self.most_texts))
            self._plans[name] = Plan(graph, self.backend, self.most_tokens)
        return self._plans[name]


def arrays_of(texts: Sequence[EncoderText]) -> EncoderInputs:
    """The arrays of a step, int32."""
    counts = np.array([len(text.tokens) for text in texts])
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    tokens = np.concatenate([np.asarray(text.tokens, np.int32) for text in texts])
    positions = np.arange(len(tokens), dtype=np.int32) - np.repeat(starts[:-1], counts)
    seconds = np.array([len(text.tokens) if text.second is None else text.second for text in texts], np.int32)
    types = (positions >= np.repeat(seconds, counts)).astype(np.int32)
    return EncoderInputs(tokens, positions, types, starts, starts[:-1].copy(), starts[1:].copy())
