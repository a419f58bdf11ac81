"""The sampler: samples the next token of all requests of a step together.

`Sampling` documents the order. At temperature 0 the greatest logit wins, the lowest id among equals. The same seed
gives the same tokens, whatever else runs: a request draws one number a token (two with XTC) from its own generator
(PCG64, O'Neill 2014), and the result of a row depends on no other row.
"""

from collections.abc import Mapping, Sequence
from itertools import compress
from math import isfinite, log
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.constraint import Constraint, ConstraintProcessor
from sporelm.engine.model_output import ModelOutput
from sporelm.engine.sampling.candidates import top_k_ids
from sporelm.engine.sampling.filters import Candidates, apply_filters, sample
from sporelm.engine.sampling.logits_processors import make_logits_processors
from sporelm.engine.sampling.mirostat import Mirostat
from sporelm.engine.sampling.sampler_params import Sampling
from sporelm.engine.step import Step

Logits = NDArray[np.float32]

FIRST_CANDIDATES = 256  # for top-p without top-k; four times as many until their probability suffices
MAX_CANDIDATES = 1024  # of a row that are read in place of all logits
BLOCK = 64  # neighbours whose weights are added up first where all tokens are kept
NOTHING_LEFT = "no token of the model may follow"  # of its vocabulary, or with min_tokens
NOT_A_TOKEN = -1  # what argmax gives for a row with NaN


class TokenLogprobs(NamedTuple):
    """Logarithms of probabilities at one position: of the sampled token, and of the likeliest."""

    logprob: float
    top: dict[int, float]  # by id, in falling order


class SamplerState:
    """The sampling state of one request: its random generator, its logits processors and its constraint."""

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
        self.device_options: Any = None  # of the device sampler, which makes them once

    def accepts_argmax(self, best: int) -> bool:
        """Return whether the argmax `best` is the sampled token: greedy, and allowed by the constraint."""
        if self.constraint is None or self.sampling.temperature > 0 or len(self.processors) > 1:
            return False
        return self.constraint.allows(best)

    @property
    def can_draw_first(self) -> bool:
        """Whether a token can be drawn from unprocessed logits.

        A constraint is asked afterwards: it seldom forbids the token, and a mask of all allowed tokens takes longer.
        """
        if self.constraint is None:
            return not self.processors
        return len(self.processors) == 1 and self.mirostat is None

    def next_uniform(self) -> float:
        """Return a number in [0, 1) of 53 random bits, from the generator's raw words, stable across versions."""
        return float(int(self.bits.random_raw()) >> 11) * 2.0**-53

    def rewind(self, count: int) -> None:
        """Return the last `count` numbers to the generator, or skip -count. Changes the state."""
        self.bits.advance(-count % (1 << 128))

    def accept(self, token: int) -> None:
        """Note a sampled token. Changes the state."""
        for processor in self.processors:
            processor.accept(token)


class SamplerOutput(NamedTuple):
    """The sampled tokens of each sequence with outputs, log probabilities if requested, and results of constraints."""

    tokens: list[list[int]]
    logprobs: dict[int, list[TokenLogprobs]]
    forced: dict[int, list[int]]  # by request id: tokens that its constraint forces after these
    ended: set[int]  # requests whose constraint allows only an end
    failures: dict[int, str]  # by request id: why its constraint failed


class DraftCheck(NamedTuple):
    """The check of one request's draft, row by row: its first row, the draft tokens, and the tokens sampled so far."""

    state: SamplerState
    request: int
    row: int
    draft: Sequence[int]
    sampled: list[int]

    def is_argmax_sampled(self, best: int) -> bool:
        """Return whether the argmax is the result: it is the sampled token, or NaN."""
        return best == NOT_A_TOKEN or self.state.accepts_argmax(best)

    @property
    def is_last_accepted(self) -> bool:
        """Whether the last draft token was accepted, so that the next row counts too."""
        count = len(self.sampled)
        return count <= len(self.draft) and self.sampled[-1] == self.draft[count - 1]


class Sampler:
    """Samples for all requests of a step."""

    def __init__(self) -> None:
        self.states: dict[int, SamplerState] = {}  # by request id; of requests that need more than the argmax

    def needs_request(self, sampling: Sampling, constraint: Constraint | None) -> bool:
        """Return whether a request must be added: the argmax does not suffice for its tokens. Changes nothing."""
        return not sampling.is_argmax or constraint is not None

    def add(
        self,
        request: int,
        sampling: Sampling,
        prompt: Sequence[int],
        stop_ids: Sequence[int],
        vocab: int,
        constraint: Constraint | None = None,
    ) -> None:
        """Create the state of a request, unless the argmax suffices. Changes the sampler."""
        if Sampler.needs_request(self, sampling, constraint):
            self.states[request] = SamplerState(sampling, prompt, stop_ids, vocab, constraint)

    def drop(self, request: int) -> None:
        """Forget a request. Changes the sampler."""
        self.states.pop(request, None)

    def read(self, model_output: ModelOutput, step: Step) -> None:
        """Wait for what `sample` reads of a step. Changes no state: after a failure the step can be run again."""
        _ = model_output.argmax
        if not self.states:
            return
        ids = [each.request_id for each in step.sequences if each.num_outputs and each.is_sampled]
        states = [self.states[id] for id in ids if id in self.states]
        if not states:
            return
        count = num_needed_candidates(states) if step.sequences[-1].is_sampled else 0
        if count:
            model_output.read_candidates(count)
        else:
            _ = model_output.logits

    def sample(self, model_output: ModelOutput, step: Step) -> SamplerOutput:
        """Return the tokens of each sequence whose outputs are sampled, in order; NOT_A_TOKEN where logits are NaN.

        Logits are read only if some request needs more than the argmax. A sequence with several rows has a draft: a
        token is sampled for the first row, and for each further one as long as the sampled tokens equal the draft. So
        the result is the same as without a draft. Changes the random generators.
        """
        greedy: list[int] = model_output.argmax.tolist()
        is_decode = len(greedy) == len(step.sequences) == step.num_tokens and step.sequences[-1].is_sampled
        if is_decode and not self.states:
            return SamplerOutput([[token] for token in greedy], {}, {}, set(), {})
        tokens, checks = begin_checks(self.states, greedy, step)
        output = SamplerOutput(tokens, {}, {}, set(), {})
        if checks:
            run_checks(checks, greedy, model_output.logits, output)
        return output


def begin_checks(
    states: Mapping[int, SamplerState], greedy: list[int], step: Step
) -> tuple[list[list[int]], list[DraftCheck]]:
    """Return a list of sampled tokens for each sequence with outputs, and the checks that fill those of `states`.

    Those of other requests have the tokens already: the argmax of each row, as far as they equal the draft.
    """
    tokens: list[list[int]] = []
    checks: list[DraftCheck] = []
    row = 0
    for scheduled in step.sequences:
        rows = scheduled.num_outputs
        if not scheduled.is_sampled:
            break  # the last ones
        if not rows:
            continue
        draft = scheduled.tokens[len(scheduled.tokens) - rows + 1 :] if rows > 1 else ()
        state = states.get(scheduled.request_id)
        if state is None:
            tokens.append(accepted_prefix(greedy[row : row + rows], draft))
        else:
            checks.append(DraftCheck(state, scheduled.request_id, row, draft, []))
            tokens.append(checks[-1].sampled)
        row += rows
    return tokens, checks


def run_checks(checks: list[DraftCheck], greedy: list[int], logits: Logits, output: SamplerOutput) -> None:
    """Sample for each request until its draft ends or differs. Changes the states, and adds to the output."""
    while checks:
        _sample_next(checks, greedy, logits, output)
        checks = [check for check in checks if continue_check(check, output)]


def continue_check(check: DraftCheck, output: SamplerOutput) -> bool:
    """Return whether another row of this request counts; if not, add its constraint's results to the output."""
    constraint = check.state.constraint
    if constraint is None:
        return check.is_last_accepted
    # Forced tokens are not sampled, drafted or not: else the same seed would give other texts with drafts.
    if (
        check.is_last_accepted
        and not constraint.ended
        and not constraint.failure
        and not _forced_tokens(check, constraint)
    ):
        return True
    _apply_constraint(check, constraint, output)
    return False


def _sample_next(checks: list[DraftCheck], greedy: list[int], logits: Logits, output: SamplerOutput) -> None:
    """Sample one token for each request."""
    places = [check.row + len(check.sampled) for check in checks]
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
        found = sample_unprocessed_rows(_select_rows(logits, rows), list(free.values()), [greedy[row] for row in rows])
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
        check.sampled.append(token)
        if token == NOT_A_TOKEN:
            is_number = greedy[place] != NOT_A_TOKEN and np.isfinite(logits[place, greedy[place]])
            if check.state.constraint is not None and is_number:
                output.failures[check.request] = NOTHING_LEFT
            continue
        check.state.accept(token)
        count = check.state.sampling.logprobs
        if count is not None:
            output.logprobs.setdefault(check.request, []).append(token_logprobs(logits[place], token, count))


def _forced_tokens(check: DraftCheck, constraint: Constraint) -> list[int]:
    """Return forced tokens. Where log probabilities are requested none are: each token needs a row of logits."""
    if check.state.sampling.logprobs is not None or check.sampled[-1] == NOT_A_TOKEN:
        return []
    return constraint.forced()


def _apply_constraint(check: DraftCheck, constraint: Constraint, output: SamplerOutput) -> None:
    """Add the results of a constraint to the output: failure, forced tokens, the end."""
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
    """Return the first token, and those after it as long as the tokens equal the draft."""
    right = 0
    while right < len(draft) and tokens[right] == draft[right]:
        right += 1
    return tokens[: right + 1]


def sample_rows(logits: Logits, states: Sequence[SamplerState]) -> list[int]:
    """Return a token for each row of logits [rows, vocab] without NaN.

    NOT_A_TOKEN for a row without a finite logit or with +inf. Changes rows that have logits processors.
    """
    for row, state in zip(logits, states, strict=True):
        for processor in state.processors:
            processor.apply(row)
    return sample_unprocessed_rows(logits, states, logits.argmax(axis=1).tolist())


def sample_unprocessed_rows(logits: Logits, states: Sequence[SamplerState], best: Sequence[int]) -> list[int]:
    """Return the result of `sample_rows` for logits whose argmax is known, without logits processors."""
    tokens = list(best)
    finite = np.isfinite(logits[np.arange(len(tokens)), tokens])
    together: dict[int, list[int]] = {}  # rows by the number of candidates that they need at first; 0: all
    for row, state in enumerate(states):
        sampling = state.sampling
        if not finite[row]:
            tokens[row] = NOT_A_TOKEN
        elif state.mirostat is not None:
            tokens[row] = state.mirostat.sample(logits[row], state.next_uniform())
        elif sampling.temperature > 0:
            together.setdefault(num_first_candidates(sampling, logits.shape[1]), []).append(row)
    for count, rows in together.items():
        found = _sample_rows(_select_rows(logits, rows), [states[row] for row in rows], count)
        for row, token in zip(rows, found, strict=True):
            tokens[row] = token
    return tokens


def _select_rows(logits: Logits, rows: Sequence[int]) -> Logits:
    """Return these rows; the array itself where it is all of them."""
    return logits if len(rows) == len(logits) else logits[rows]


def num_needed_candidates(states: Sequence[SamplerState]) -> int:
    """Return how many of the greatest logits of a row are all that these requests read; 0 if they may read others."""
    count = 0
    for state in states:
        sampling = state.sampling
        reads_others = state.processors or state.mirostat is not None or sampling.logprobs is not None
        if reads_others or not 0 < sampling.top_k <= MAX_CANDIDATES:
            return 0
        count = max(count, sampling.top_k)
    return count


def num_first_candidates(sampling: Sampling, vocab: int) -> int:
    """Return how many of the greatest logits a row needs at first; 0 if it needs no order."""
    if 0 < sampling.top_k < vocab:
        return sampling.top_k
    is_cut = sampling.top_p < 1 or sampling.min_p > 0
    if sampling.typical_p < 1 or (sampling.xtc_probability > 0 and not is_cut):
        return vocab  # the expected surprise is of all of them, and XTC keeps the unlikely
    return min(FIRST_CANDIDATES, vocab) if is_cut else 0


def _sample_rows(logits: Logits, states: Sequence[SamplerState], count: int) -> list[int]:
    """Return a token for each row; all rows need `count` candidates at first."""
    samplings = [state.sampling for state in states]
    coins = [state.next_uniform() if state.sampling.xtc_probability else 1.0 for state in states]
    uniforms = [state.next_uniform() for state in states]
    if count == 0:
        return _sample_full_rows(logits, samplings, uniforms)
    tokens = [NOT_A_TOKEN] * len(states)
    waiting = list(range(len(states)))
    while waiting:
        rows, suffices = find_candidates(_select_rows(logits, waiting), [samplings[row] for row in waiting], count)
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


def find_candidates(logits: Logits, samplings: Sequence[Sampling], count: int) -> tuple[Candidates, NDArray[np.bool_]]:
    """Return the `count` greatest of each row, and for which rows the filters keep no others."""
    ids = top_k_ids(logits, count)
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
    """Return tokens drawn from whole rows: first a block of neighbours by its weight, then one of them."""
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
    """Return the token's log probability, and those of the `count` likeliest, from unprocessed logits [vocab]."""
    exact = logits.astype(np.float64)
    best = exact.max()
    if not isfinite(best):
        return TokenLogprobs(float("nan"), {})
    logs = exact - best
    logs -= np.log(np.exp(logs).sum())
    top = top_k_ids(logits[None], count)[0].tolist() if count else []
    return TokenLogprobs(float(logs[token]), {each: float(logs[each]) for each in top})
