"""Choosing the next token of every request of a step, together.

`Sampling` says in which order. At temperature 0 the greatest logit is taken, the lowest id among equals. The same seed
gives the same tokens, whatever else runs: a request draws one number a token (two with XTC) from a generator of its own
(PCG64, O'Neill 2014), and what is computed of a row depends on no other row.
"""

from collections.abc import Sequence
from itertools import compress
from math import isfinite, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.constraint import Constraint, ConstraintProcessor
from sporelm.engine.sampling.candidates import greatest
from sporelm.engine.sampling.filters import Candidates, apply_filters, sample
from sporelm.engine.sampling.logits_processors import make_logits_processors
from sporelm.engine.sampling.mirostat import Mirostat
from sporelm.engine.sampling.params import Sampling
from sporelm.engine.step import Step

Logits = NDArray[np.float32]

FIRST_CANDIDATES = 256  # looked at for top-p without top-k; four times as many until their probability suffices
BLOCK = 64  # neighbours whose weights are added up first where all tokens are kept
NOTHING_LEFT = "no token of the model may follow"  # of its vocabulary, or with min_tokens
NOT_A_TOKEN = -1  # what argmax gives for a row with NaN


class TokenLogprobs(NamedTuple):
    """Logarithms of probabilities at one position: of the token that was chosen, and of the likeliest."""

    logprob: float
    top: dict[int, float]  # by id, in falling order


class SamplerState:
    """The choosing of one request: its generator, and what it has seen."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: Sequence[int],
        stop_ids: Sequence[int] = (),
        vocab: int = 1 << 31,
        constraint: Constraint | None = None,
    ) -> None:
        self.sampling = sampling
        self.constraint = constraint
        self.bits = np.random.PCG64(sampling.seed)
        self.processors = make_logits_processors(sampling, prompt, stop_ids, vocab)
        if constraint is not None:
            self.processors.append(ConstraintProcessor(constraint))
        self.mirostat = Mirostat(sampling) if sampling.mirostat else None

    def accepts_argmax(self, best: int) -> bool:
        """Whether the argmax `best` is the choice: all that could change it is a constraint, which allows it."""
        if self.constraint is None or self.sampling.temperature > 0 or len(self.processors) > 1:
            return False
        return self.constraint.allows(best)

    @property
    def can_draw_first(self) -> bool:
        """Whether a token is drawn from the logits as they are: nothing changes them, or only a constraint, which is
        asked afterwards, because it seldom forbids what the model wants, and saying all that it allows takes longer."""
        if self.constraint is None:
            return not self.processors
        return len(self.processors) == 1 and self.mirostat is None

    def next_uniform(self) -> float:
        """A number in [0, 1) of 53 random bits, from the generator's raw words, which numpy promises not to change."""
        return float(int(self.bits.random_raw()) >> 11) * 2.0**-53

    def accept(self, token: int) -> None:
        """The token was chosen."""
        for processor in self.processors:
            processor.accept(token)


class SamplerOutput(NamedTuple):
    """What a step gave: tokens for each part that wanted some, scores for those who asked, and what constraints say."""

    tokens: list[list[int]]
    scores: dict[int, list[TokenLogprobs]]
    forced: dict[int, list[int]]  # by request: what its constraint leaves no choice of, after these tokens
    ended: set[int]  # requests whose constraint allows nothing but an end
    failures: dict[int, str]  # requests whose constraint failed, and why


class DraftCheck(NamedTuple):
    """A request that chooses, row by row: its first row, its guesses, and what it has said of them so far."""

    state: SamplerState
    request: int
    row: int
    draft: Sequence[int]
    said: list[int]

    def is_argmax_sampled(self, best: int) -> bool:
        """Whether the argmax is what it says, or no token is: NaN."""
        return best == NOT_A_TOKEN or self.state.accepts_argmax(best)

    @property
    def is_last_accepted(self) -> bool:
        """Whether its last guess was right, so that the next row counts too."""
        count = len(self.said)
        return count <= len(self.draft) and self.said[-1] == self.draft[count - 1]


class Sampler:
    """Chooses for every request of a step."""

    def __init__(self) -> None:
        self.states: dict[int, SamplerState] = {}  # by request id; those that need more than the argmax

    def add(
        self,
        request: int,
        sampling: Sampling,
        prompt: Sequence[int],
        stop_ids: Sequence[int],
        vocab: int,
        constraint: Constraint | None = None,
    ) -> None:
        """Make ready to choose for a request. Changes the sampler."""
        if not sampling.plain or constraint is not None:
            self.states[request] = SamplerState(sampling, prompt, stop_ids, vocab, constraint)

    def drop(self, request: int) -> None:
        """Forget a request. Changes the sampler."""
        self.states.pop(request, None)

    def pick(self, best: NDArray[np.int32], logits: Logits, step: Step) -> SamplerOutput:
        """What each part says that wants logits, in order; NOT_A_TOKEN where these are not numbers.

        best int32 [rows], each row's argmax or -1 for NaN; logits float32 [rows, vocab]. A part with several rows
        guessed: it says a token for its first row, and for each further one as long as what it said was guessed. So
        the tokens are those that would have been chosen one after the other. Changes the generators.
        """
        greedy: list[int] = best.tolist()
        if not self.states and len(greedy) == len(step.sequences) == step.num_tokens:
            return SamplerOutput([[token] for token in greedy], {}, {}, set(), {})
        tokens: list[list[int]] = []
        checks: list[DraftCheck] = []
        row = 0
        for scheduled in step.sequences:
            rows = scheduled.num_outputs
            if not rows:
                continue
            draft = scheduled.tokens[len(scheduled.tokens) - rows + 1 :] if rows > 1 else ()
            state = self.states.get(scheduled.request_id)
            if state is None:
                tokens.append(accepted_prefix(greedy[row : row + rows], draft))
            else:
                checks.append(DraftCheck(state, scheduled.request_id, row, draft, []))
                tokens.append(checks[-1].said)
            row += rows
        output = SamplerOutput(tokens, {}, {}, set(), {})
        while checks:
            self._sample_next(checks, greedy, logits, output)
            checks = [check for check in checks if self._continue_check(check, output)]
        return output

    def _continue_check(self, check: DraftCheck, output: SamplerOutput) -> bool:
        """Whether a turn has another row that counts; takes in what its constraint says otherwise."""
        constraint = check.state.constraint
        if constraint is None:
            return check.is_last_accepted
        # What must follow is not chosen, guessed or not: else the same seed would give other texts with guesses.
        if (
            check.is_last_accepted
            and not constraint.ended
            and not constraint.failure
            and not _forced_tokens(check, constraint)
        ):
            return True
        _apply_constraint(check, constraint, output)
        return False

    def _sample_next(self, checks: list[DraftCheck], greedy: list[int], logits: Logits, output: SamplerOutput) -> None:
        """One token more for each turn."""
        places = [check.row + len(check.said) for check in checks]
        chosen: dict[int, int] = {}
        free: dict[int, SamplerState] = {}
        edited: dict[int, SamplerState] = {}
        for check, place in zip(checks, places, strict=True):
            if check.is_argmax_sampled(greedy[place]):
                chosen[place] = greedy[place]
            else:
                (free if check.state.can_draw_first else edited)[place] = check.state
        if free:
            rows = list(free)
            found = sample_unprocessed_rows(
                _select_rows(logits, rows), list(free.values()), [greedy[row] for row in rows]
            )
            for (place, state), token in zip(free.items(), found, strict=True):
                if state.constraint is None or state.constraint.allows(token):
                    chosen[place] = token
                else:
                    edited[place] = state
        if edited:
            rows = list(edited)
            chosen |= zip(rows, sample_rows(logits[rows], list(edited.values())), strict=True)
        for check, place in zip(checks, places, strict=True):
            token = chosen[place]
            check.said.append(token)
            if token == NOT_A_TOKEN:
                is_number = greedy[place] != NOT_A_TOKEN and np.isfinite(logits[place, greedy[place]])
                if check.state.constraint is not None and is_number:
                    output.failures[check.request] = NOTHING_LEFT
                continue
            check.state.accept(token)
            count = check.state.sampling.logprobs
            if count is not None:
                output.scores.setdefault(check.request, []).append(token_logprobs(logits[place], token, count))


def _forced_tokens(check: DraftCheck, constraint: Constraint) -> list[int]:
    """What must follow. Where log probabilities are asked for each token is chosen by itself, to have some."""
    if check.state.sampling.logprobs is not None or check.said[-1] == NOT_A_TOKEN:
        return []
    return constraint.forced()


def _apply_constraint(check: DraftCheck, constraint: Constraint, output: SamplerOutput) -> None:
    """What a constraint says after a turn: that the answer has failed or is whole, or what must follow."""
    if constraint.failure is not None:
        output.failures[check.request] = constraint.failure
        return
    if forced := _forced_tokens(check, constraint):
        output.forced[check.request] = forced
        for token in forced:
            check.state.accept(token)
    if constraint.ended:
        output.ended.add(check.request)


def accepted_prefix(tokens: list[int], draft: Sequence[int]) -> list[int]:
    """The first token, and those after it as long as what was said is what was guessed."""
    right = 0
    while right < len(draft) and tokens[right] == draft[right]:
        right += 1
    return tokens[: right + 1]


def sample_rows(logits: Logits, states: Sequence[SamplerState]) -> list[int]:
    """A token for each row of logits [rows, vocab] without NaN; NOT_A_TOKEN for a row in which none is finite or one is
    +inf. Changes rows whose choice has edits."""
    for row, state in zip(logits, states, strict=True):
        for processor in state.processors:
            processor.apply(row)
    return sample_unprocessed_rows(logits, states, logits.argmax(axis=1).tolist())


def sample_unprocessed_rows(logits: Logits, states: Sequence[SamplerState], best: Sequence[int]) -> list[int]:
    """`pick_rows` of logits whose argmax is known, and which no edits change."""
    tokens = list(best)
    finite = np.isfinite(logits[np.arange(len(tokens)), tokens])
    together: dict[int, list[int]] = {}  # rows by the number of candidates that they need at first; 0: all
    for row, state in enumerate(states):
        sampling = state.sampling
        if not finite[row]:
            tokens[row] = NOT_A_TOKEN
        elif state.mirostat is not None:
            tokens[row] = state.mirostat.pick(logits[row], state.next_uniform())
        elif sampling.temperature > 0:
            together.setdefault(num_first_candidates(sampling, logits.shape[1]), []).append(row)
    for count, rows in together.items():
        found = _sample_rows(_select_rows(logits, rows), [states[row] for row in rows], count)
        for row, token in zip(rows, found, strict=True):
            tokens[row] = token
    return tokens


def _select_rows(logits: Logits, rows: Sequence[int]) -> Logits:
    """These rows; the array itself where it is all of them."""
    return logits if len(rows) == len(logits) else logits[rows]


def num_first_candidates(sampling: Sampling, vocab: int) -> int:
    """How many of the greatest logits a row needs, at first; 0 if it needs none in order."""
    if 0 < sampling.top_k < vocab:
        return sampling.top_k
    is_cut = sampling.top_p < 1 or sampling.min_p > 0
    if sampling.typical_p < 1 or (sampling.xtc_probability > 0 and not is_cut):
        return vocab  # the expected surprise is of all of them, and XTC keeps the unlikely
    return min(FIRST_CANDIDATES, vocab) if is_cut else 0


def _sample_rows(logits: Logits, states: Sequence[SamplerState], count: int) -> list[int]:
    """A token for each row; all of them need `count` candidates at first."""
    samplings = [state.sampling for state in states]
    coins = [state.next_uniform() if state.sampling.xtc_probability else 1.0 for state in states]
    uniforms = [state.next_uniform() for state in states]
    if count == 0:
        return _sample_full_rows(logits, samplings, uniforms)
    tokens = [NOT_A_TOKEN] * len(states)
    waiting = list(range(len(states)))
    while waiting:
        rows, suffices = candidates(_select_rows(logits, waiting), [samplings[row] for row in waiting], count)
        ready = list(compress(waiting, suffices))
        if ready:
            rows = rows.only(suffices)
            chosen = [samplings[row] for row in ready]
            kept = apply_filters(rows, chosen, [coins[row] for row in ready])
            places = sample(rows, kept, chosen, [uniforms[row] for row in ready])
            for row, ids, place in zip(ready, rows.ids, places, strict=True):
                tokens[row] = int(ids[place])
        waiting = [row for row, done in zip(waiting, suffices, strict=True) if not done]
        count = min(4 * count, logits.shape[1])
    return tokens


def candidates(logits: Logits, samplings: Sequence[Sampling], count: int) -> tuple[Candidates, NDArray[np.bool_]]:
    """The `count` greatest of each row, and for which rows nothing beyond them can be left."""
    ids = greatest(logits, count)
    found = np.take_along_axis(logits, ids, axis=1)
    scores = found.astype(np.float64) - found[:, :1]
    sums = np.cumsum(np.exp(scores), axis=1)[:, -1]
    totals, suffices = sums.copy(), np.ones(len(logits), np.bool_)
    for row, sampling in enumerate(samplings):
        if count in (sampling.top_k, logits.shape[1]):
            continue
        suffices[row] = sampling.min_p > 0 and scores[row, -1] < log(sampling.min_p)
        if sampling.top_p < 1:
            totals[row] = np.exp(logits[row] - found[row, 0]).sum(dtype=np.float64)
            suffices[row] |= sums[row] >= sampling.top_p * totals[row]
    return Candidates(ids, scores, totals), suffices


def _sample_full_rows(logits: Logits, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
    """Tokens drawn from whole rows: first a block of neighbours by its weight, then one of them."""
    rows, vocab = logits.shape
    best = logits.max(axis=1, keepdims=True)
    temperatures = np.array([[sampling.temperature] for sampling in samplings], np.float64)
    blocks = -(-vocab // BLOCK)
    weights = np.zeros((rows, blocks * BLOCK), np.float32)
    with np.errstate(over="ignore"):
        np.exp(((logits - best) / temperatures).astype(np.float32), out=weights[:, :vocab])
    sums = np.cumsum(weights.reshape(rows, blocks, BLOCK).sum(axis=2, dtype=np.float64), axis=1)
    wanted = np.asarray(uniforms) * sums[:, -1]
    tokens = []
    for row in range(rows):
        block = min(int(np.searchsorted(sums[row], wanted[row], side="right")), blocks - 1)
        inside = np.cumsum(weights[row, block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
        before = sums[row, block - 1] if block else 0.0
        place = int(np.searchsorted(inside, wanted[row] - before, side="right"))
        last = int(np.flatnonzero(np.diff(inside, prepend=0.0))[-1])
        tokens.append(block * BLOCK + min(place, last))
    return tokens


def token_logprobs(logits: Logits, token: int, count: int) -> TokenLogprobs:
    """The token's log probability, and those of the `count` likeliest, of logits [vocab] as the model gave them."""
    exact = logits.astype(np.float64)
    best = exact.max()
    if not isfinite(best):
        return TokenLogprobs(float("nan"), {})
    logs = exact - best
    logs -= np.log(np.exp(logs).sum())
    top = greatest(logits[None], count)[0].tolist() if count else []
    return TokenLogprobs(float(logs[token]), {each: float(logs[each]) for each in top})
