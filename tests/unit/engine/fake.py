"""A model without weights: its cache holds token ids, its next token is a checksum of the history found there.

So any mistake in page tables, slots, sharing or copying changes the tokens that come out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sporelm.engine import Engine, EngineConfig, ModelOutput, Request, Step
from sporelm.engine.runner import InputArrays
from sporelm.engine.speculative import DraftTokens, Speculation
from sporelm.ops.paged_attention import PAGE

VOCAB = 97


def next_token(history: Sequence[int], vocab: int = VOCAB) -> int:
    """Return the fake model's token after a history."""
    return sum((place + 1) * (token + 3) for place, token in enumerate(history)) % vocab


def expected(prompt: Sequence[int], count: int, vocab: int = VOCAB) -> list[int]:
    """The greedy continuation."""
    known = list(prompt)
    for _ in range(count):
        known.append(next_token(known, vocab))
    return known[len(prompt) :]


class FakeRunner:
    """Keeps ids in slots and reads each history back through the page table of the filled arrays."""

    def __init__(self, limits: EngineConfig) -> None:
        self.limits = limits
        self.cells = np.full(limits.num_pages * PAGE, -1, np.int64)
        self.inputs = InputArrays(limits)
        self.steps: list[Step] = []
        self.broken = False  # from now on every logit is NaN

    def run(self, step: Step) -> ModelOutput:
        self.steps.append(step)
        assert 0 < step.num_tokens <= self.limits.token_budget
        for source, target in step.copies:
            self.cells[target * PAGE : (target + 1) * PAGE] = self.cells[source * PAGE : (source + 1) * PAGE]
        arrays, extents = self.inputs.fill(step)
        assert {name: len(array) for name, array in arrays.items()} == {
            **dict.fromkeys(("tokens", "positions", "slots"), extents["tokens"]),
            **dict.fromkeys(("lengths", "pages", "states"), extents["sequences"]),
            "starts": extents["starts"],
            "rows": extents["rows"],
        }
        slots = arrays["slots"]
        assert len(set(slots.tolist())) == len(slots), "two rows write to one slot"
        self.cells[slots] = arrays["tokens"]
        logits = np.zeros((extents["rows"], self.limits.vocab), np.float32)
        for output, row in enumerate(arrays["rows"]):
            sequence = int(np.searchsorted(arrays["starts"], row, side="right")) - 1
            places = np.arange(arrays["positions"][row] + 1)
            held = arrays["pages"][sequence, places // PAGE] * PAGE + places % PAGE
            logits[output, next_token(self.cells[held].tolist(), self.limits.vocab)] = 9
        if self.broken:
            logits[:] = np.nan
        best = np.where(np.isnan(logits).any(axis=-1), -1, logits.argmax(axis=-1)).astype(np.int32)
        return ModelOutput(best, logits)

    @property
    def kv(self) -> str:
        return "f32"

    def embed(self, step: Step) -> np.ndarray:
        return self.run(step).logits

    def export_pages(self, pages: Sequence[int]) -> list[np.ndarray]:
        """The ids in pages, as the keys of one layer of one head of dimension 1; values are their negatives."""
        cells = self.cells.reshape(-1, PAGE)[list(pages)].astype(np.float32)
        return [np.stack([cells, -cells], axis=1)[:, :, None, :, None]]

    def import_pages(self, pages: Sequence[int], layers: Sequence[np.ndarray]) -> None:
        (layer,) = layers
        assert (layer[:, 0] == -layer[:, 1]).all()
        self.cells.reshape(-1, PAGE)[list(pages)] = layer[:, 0, 0, :, 0]

    def export_states(self, states: Sequence[int]) -> list[np.ndarray]:
        return []

    def start_export(self, pages: Sequence[int], states: Sequence[int]) -> Callable[[], Any]:
        found = self.export_pages(pages), self.export_states(states)
        return lambda: found

    def import_states(self, states: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        assert not arrays


def limits(**changes: int) -> EngineConfig:
    """Small limits."""
    values = {
        "max_context": 256,
        "model_context": 512,
        "vocab": VOCAB,
        "token_budget": 48,
        "max_batch": 4,
        "num_pages": 24,
    }
    return EngineConfig(**{**values, **changes})


def engine(speculation: Speculation | None = None, **changes: int) -> Engine:
    """An engine over the fake model."""
    chosen = limits(**changes)
    return Engine(FakeRunner(chosen), chosen, speculation)


class Oracle:
    """Guesses what the fake model will say; every `wrong`-th token of a text it guesses wrong."""

    def __init__(self, wrong: int = 0) -> None:
        self.wrong = wrong
        self.ended: list[int] = []

    def read(self, requests: Sequence[Request], alone: bool) -> None:
        """Nothing has to be read."""

    def propose_all(self, wanted: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        found = {request.id: self.propose(request, limit) for request, limit in wanted}
        return {request: DraftTokens(guess, [0.95] * len(guess)) for request, guess in found.items() if guess}

    def propose(self, request: Request, limit: int) -> list[int]:
        guesses = expected(request.context_ids, limit)
        for place in range(len(guesses)):
            if self.wrong and (len(request.context_ids) + place) % self.wrong == 0:
                guesses[place] = (guesses[place] + 1) % VOCAB
        return guesses

    def end(self, request: Request) -> None:
        self.ended.append(request.id)
