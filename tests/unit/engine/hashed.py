"""A model without weights that can be sampled from, and what it says alone: a loop without an engine.

The cache holds for each position a hash of its id and of what the position before holds; the scores of the next token
are a hash of all that a row finds through its page table. So a wrong table, slot or position, a missed copy, a stale
page, or one that was computed after another text changes what is said.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from sporelm.engine import EngineConfig, ModelOutput, Request, Sampler, Sampling, Step, TokenLogprobs
from sporelm.engine.constraint import Constraint
from sporelm.engine.prefill_budget import PrefillBudget
from sporelm.engine.runner import InputArrays
from sporelm.engine.speculative import DraftTokens, Speculation
from sporelm.engine.step import ScheduledSequence
from sporelm.ops.paged_attention import PAGE

VOCAB = 61
MODULUS = (1 << 24) - 3  # a prime; what is below it a float32 holds exactly
_tables = np.random.default_rng(0).normal(scale=2, size=(2, 256, VOCAB)).astype(np.float32)


def next_cell(cell: int, token: int, position: int) -> int:
    """Return the cell of a token after another cell."""
    return (cell * 31_337 + 1021 * position + token + 1) % MODULUS


def cells_of(tokens: Sequence[int], cell: int = 0, position: int = 0) -> NDArray[np.int64]:
    """Return the cells of tokens from a position on, after a cell."""
    cells = []
    for place, token in enumerate(tokens, position):
        cell = next_cell(cell, token, place)
        cells.append(cell)
    return np.array(cells, np.int64)


def scores_after(cells: NDArray[np.int64]) -> NDArray[np.float32]:
    """The logits [VOCAB] after a text."""
    return scores_of(crc32(cells.tobytes()))


def scores_of(digest: int) -> NDArray[np.float32]:
    """The logits [VOCAB] after a text with this digest of its cells."""
    return _tables[0, digest & 255] + _tables[1, digest >> 8 & 255]


def state_of(tokens: Sequence[int]) -> NDArray[np.float32]:
    """Return the recurrent state of this model after a text: its last cell, and the halves of the digest of all."""
    cells = cells_of(tokens)
    digest = crc32(cells.tobytes())
    return np.array([cells[-1], digest & 0xFFFF, digest >> 16], np.float32)


class HashedRunner:
    """Runs steps of this model. `fail` makes the next step, or the next one that copies pages, raise before or after it
    has written; where `strange`, some texts go on otherwise than the model says."""

    def __init__(self, limits: EngineConfig, *, strange: bool = False) -> None:
        self.limits = limits
        self.strange = strange
        self.cells = np.full(limits.num_pages * PAGE, -1, np.int64)
        self.inputs = InputArrays(limits)
        self.fail: str | None = None
        self.failure: type[BaseException] = KeyboardInterrupt
        self.poison: int | None = None  # the row of the next step that is NaN
        self.poisoned: set[int] = set()  # requests that had such a row

    def run(self, step: Step) -> ModelOutput:
        self.interrupt("before")
        if step.copies or step.state_copies:
            self.interrupt("copying")
        assert 0 < step.num_tokens <= self.limits.token_budget
        assert len(step.sequences) <= self.limits.max_batch
        for source, target in step.copies:
            self.cells[target * PAGE : (target + 1) * PAGE] = self.cells[source * PAGE : (source + 1) * PAGE]
        arrays, extents = self.inputs.fill(step)
        slots = arrays["slots"]
        assert len(set(slots.tolist())) == len(slots), "two rows write to one slot"
        self._write(step)
        self.interrupt("after")
        logits = np.zeros((extents["rows"], VOCAB), np.float32)
        for output, row in enumerate(arrays["rows"]):
            sequence = int(np.searchsorted(arrays["starts"], row, side="right")) - 1
            places = np.arange(arrays["positions"][row] + 1)
            held = arrays["pages"][sequence, places // PAGE] * PAGE + places % PAGE
            logits[output] = self._scores(int(row), self.cells[held])
            if self.strange and len(held) % 3 == 0:
                logits[output] = np.roll(logits[output], 1)
        self._poison(step, logits)
        best = np.where(np.isnan(logits).any(axis=-1), -1, logits.argmax(axis=-1)).astype(np.int32)
        return ModelOutput(best, logits)

    @property
    def kv(self) -> str:
        return "f32"

    def embed(self, step: Step) -> NDArray[np.float32]:
        return self.run(step).logits

    def export_pages(self, pages: Sequence[int]) -> list[np.ndarray]:
        """The cells of pages as one layer of one head of one number, and values that are their negatives."""
        cells = self.cells.reshape(-1, PAGE)[list(pages)].astype(np.float32)
        return [np.stack([cells, -cells], axis=1)[:, :, None, :, None]]

    def import_pages(self, pages: Sequence[int], layers: Sequence[np.ndarray]) -> None:
        (layer,) = layers
        assert (layer[:, 0] == -layer[:, 1]).all()
        self.cells.reshape(-1, PAGE)[list(pages)] = layer[:, 0, 0, :, 0].astype(np.int64)

    def export_states(self, states: Sequence[int]) -> list[np.ndarray]:
        return []

    def start_export(self, pages: Sequence[int], states: Sequence[int]) -> Callable[[], Any]:
        found = self.export_pages(pages), self.export_states(states)
        return lambda: found

    def import_states(self, states: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        assert not arrays

    def _write(self, step: Step) -> None:
        arrays, row = self.inputs.arrays, 0
        for index, scheduled in enumerate(step.sequences):
            for _ in scheduled.tokens:
                place = int(arrays["positions"][row])
                before = arrays["pages"][index, (place - 1) // PAGE] * PAGE + (place - 1) % PAGE
                cell = int(self.cells[before]) if place else 0
                self.cells[arrays["slots"][row]] = next_cell(cell, int(arrays["tokens"][row]), place)
                row += 1

    def _scores(self, row: int, cells: NDArray[np.int64]) -> NDArray[np.float32]:
        """The logits of a row of the step, which finds these cells in its pages."""
        return scores_after(cells)

    def interrupt(self, when: str) -> None:
        """Raise `failure` if that is wanted at this place."""
        if self.fail == when:
            self.fail = None
            raise self.failure

    def _poison(self, step: Step, logits: np.ndarray) -> None:
        wanted = [scheduled.request_id for scheduled in step.sequences for _ in range(scheduled.num_outputs)]
        if self.poison is not None and wanted:
            row, self.poison = self.poison % len(wanted), None
            logits[row] = np.nan
            self.poisoned.add(wanted[row])


class StatefulRunner(HashedRunner):
    """The same with a recurrent state of each sequence, and nothing in pages unless `paged`.

    A row's scores come of the state that its part's slot held before the step, and of the tokens since. What a slot
    holds where a sequence begins is not read. With pages both must tell the same text, or the scores are others.
    """

    def __init__(self, limits: EngineConfig, *, strange: bool = False, paged: bool = True) -> None:
        super().__init__(limits, strange=strange)
        self.paged = paged
        self.states = np.full((limits.num_states, 3), 7, np.float32)
        self.digests: list[int] = []  # of the rows of the last step

    def export_pages(self, pages: Sequence[int]) -> list[np.ndarray]:
        return super().export_pages(pages) if self.paged else []

    def import_pages(self, pages: Sequence[int], layers: Sequence[np.ndarray]) -> None:
        if self.paged:
            super().import_pages(pages, layers)
        else:
            assert not layers

    def export_states(self, states: Sequence[int]) -> list[np.ndarray]:
        return [self.states[list(states)]]

    def import_states(self, states: Sequence[int], arrays: Sequence[np.ndarray]) -> None:
        (self.states[list(states)],) = arrays

    def _write(self, step: Step) -> None:
        if self.paged:
            super()._write(step)
        for source, target in step.state_copies:
            self.states[target] = self.states[source]
        assert len({scheduled.state_slot for scheduled in step.sequences}) == len(step.sequences), (
            "two parts write to one state"
        )
        assert self.inputs.arrays["states"][: len(step.sequences)].tolist() == [
            scheduled.state_slot for scheduled in step.sequences
        ]
        self.digests = []
        for scheduled in step.sequences:
            cell, digest = 0, 0
            if scheduled.position:
                cell, low, high = map(int, self.states[scheduled.state_slot])
                digest = low | high << 16
            for place, token in enumerate(scheduled.tokens, scheduled.position):
                cell = next_cell(cell, token, place)
                digest = crc32(np.int64(cell).tobytes(), digest)
                self.digests.append(digest)
            self.states[scheduled.state_slot] = (cell, digest & 0xFFFF, digest >> 16)

    def _scores(self, row: int, cells: NDArray[np.int64]) -> NDArray[np.float32]:
        digest = self.digests[row]
        return scores_of(digest if not self.paged or crc32(cells.tobytes()) == digest else digest ^ 0x5A5A)


class Form:
    """A constraint: even tokens, each fourth one forced, whole after `length`; `fails` at the same place instead."""

    def __init__(self, length: int, *, fails: bool = False) -> None:
        self.length, self.fails, self.count = length, fails, 0

    @property
    def failure(self) -> str | None:
        return "it cannot go on" if self.fails and self.count >= self.length else None

    @property
    def ended(self) -> bool:
        return not self.fails and self.count >= self.length

    def words(self) -> NDArray[np.int32]:
        allowed = np.arange(-(-VOCAB // 32) * 32) % 2 == 0
        allowed[VOCAB:] = False
        if self.forced():
            allowed[:] = False
            allowed[self.forced()] = True
        return np.packbits(allowed, bitorder="little").view("<i4")

    def allows(self, token: int) -> bool:
        return bool(self.words()[token // 32] >> (token % 32) & 1)

    def accept(self, token: int) -> None:
        assert self.allows(token)
        self.count += 1

    def forced(self) -> list[int]:
        if self.count % 4 != 3 or self.count >= self.length:
            return []
        return [10 + self.count % 7]


@dataclass(frozen=True)
class Wish:
    """A request's text and manner."""

    prompt: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    form: tuple[int, bool] | None = None  # of the constraint: its length, and whether it fails
    roll: bool = False

    def constraint(self) -> Constraint | None:
        return Form(self.form[0], fails=self.form[1]) if self.form else None


@dataclass(frozen=True)
class ExpectedOutput:
    """The output of a wish."""

    tokens: list[int]
    logprobs: list[TokenLogprobs]
    finish_reason: str


class SteadySpeculation(Speculation):
    """Takes the number of rows for the time of a step, so that its drafts depend on no clock."""

    def propose(self, decoding: Sequence[Request], max_context: int) -> dict[int, list[int]]:
        found = super().propose(decoding, max_context)
        self._proposing_seconds = 0.01
        return found

    def observe_step(self, step: Step, sampled_tokens: Sequence[Sequence[int]], seconds: float) -> None:
        super().observe_step(step, sampled_tokens, 1 + 0.02 * step.num_tokens)


class SteadyPrefillBudget(PrefillBudget):
    """The same for the prefill budget."""

    def observe(self, decoding: int, tokens: int, seconds: float) -> None:
        super().observe(decoding, tokens, 1 + 0.02 * (decoding + tokens))


@lru_cache(4096)
def predict(prompt: tuple[int, ...]) -> tuple[int, NDArray[np.float32]]:
    """Return the greedy token after a text, and the logits."""
    logits = scores_after(cells_of(prompt))
    return int(logits.argmax()), logits


def rolled_context(text: Sequence[int], room: int) -> list[int]:
    """Return a rolling context: as long as a text is too long, a half is dropped after the first quarter."""
    left = list(text)
    while len(left) > room:
        del left[room // 4 : room // 4 + max(1, room // 2)]
    return left


def expected_output(wish: Wish, max_context: int) -> ExpectedOutput:
    """Return the output for one wish by itself: no pages, no chunks, no batch, no drafts."""
    sampler, constraint = Sampler(), wish.constraint()
    sampler.add(1, wish.sampling, wish.prompt, sorted(wish.stop_ids), VOCAB, constraint)
    known, scores = list(wish.prompt), list[TokenLogprobs]()
    while True:
        best, logits = predict(tuple(rolled_context(known, max_context) if wish.roll else known))
        step = Step([ScheduledSequence(1, known[-1:], len(known) - 1, (), 1)], [])
        picked = sampler.sample(ModelOutput(np.array([best], np.int32), logits[None].copy()), step)
        if 1 in picked.failures:
            return ExpectedOutput(known[len(wish.prompt) :], scores, "error")
        scores += picked.logprobs.get(1, [])
        for token in (*picked.tokens[0], *picked.forced.get(1, [])):
            known.append(token)
            sampled_tokens = known[len(wish.prompt) :]
            if token in wish.stop_ids:
                return ExpectedOutput(sampled_tokens, scores, "stop")
            if len(sampled_tokens) == wish.max_tokens or (len(known) > max_context and not wish.roll):
                return ExpectedOutput(sampled_tokens, scores, "length")
        if 1 in picked.ended:
            return ExpectedOutput(sampled_tokens, scores, "stop")


class Guesses:
    """Guesses what would be said greedily; every `wrong`-th token of a text it guesses wrong."""

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong

    def read(self, requests: Sequence[Request], predict: bool) -> None:
        """Nothing has to be read."""

    def propose_all(self, wanted: Sequence[tuple[Request, int]], rows: int) -> dict[int, DraftTokens]:
        found: dict[int, DraftTokens] = {}
        for request, most in wanted:
            known = list(request.context_ids)
            for _ in range(min(most, rows)):
                token = predict(tuple(known))[0]
                known.append((token + (len(known) % self.wrong == 0)) % VOCAB)
                rows -= 1
            if len(known) > len(request.context_ids):
                guess = known[len(request.context_ids) :]
                found[request.id] = DraftTokens(guess, [0.95] * len(guess))
        return found

    def end(self, request: Request) -> None:
        """Nothing is kept."""
