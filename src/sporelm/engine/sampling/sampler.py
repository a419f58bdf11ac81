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

from sporelm.engine.constraint import Constrained, Constraint
from sporelm.engine.sampling.candidates import greatest
from sporelm.engine.sampling.cut import Rows, drawn, left
from sporelm.engine.sampling.history import edits_of
from sporelm.engine.sampling.mirostat import Mirostat
from sporelm.engine.sampling.params import Sampling
from sporelm.engine.step import Step

Logits = NDArray[np.float32]

FIRST_CANDIDATES = 256  # looked at for top-p without top-k; four times as many until their probability suffices
BLOCK = 64  # neighbours whose weights are added up first where all tokens are kept
NOTHING_LEFT = "no token of the model may follow"  # of its vocabulary, or with min_tokens
NOT_A_TOKEN = -1  # what argmax gives for a row with NaN


class TokenScores(NamedTuple):
    """Logarithms of probabilities at one position: of the token that was chosen, and of the likeliest."""

    logprob: float
    top: dict[int, float]  # by id, in falling order


class Choice:
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
        self.edits = edits_of(sampling, prompt, stop_ids, vocab)
        if constraint is not None:
            self.edits.append(Constrained(constraint))
        self.mirostat = Mirostat(sampling) if sampling.mirostat else None

    def settles(self, best: int) -> bool:
        """Whether the argmax `best` is the choice: all that could change it is a constraint, which allows it."""
        if self.constraint is None or self.sampling.temperature > 0 or len(self.edits) > 1:
            return False
        return self.constraint.allows(best)

    @property
    def draws_first(self) -> bool:
        """Whether a token is drawn from the logits as they are: nothing changes them, or only a constraint, which is
        asked afterwards, because it seldom forbids what the model wants, and saying all that it allows takes longer."""
        if self.constraint is None:
            return not self.edits
        return len(self.edits) == 1 and self.mirostat is None

    def uniform(self) -> float:
        """A number in [0, 1) of 53 random bits, from the generator's raw words, which numpy promises not to change."""
        return float(int(self.bits.random_raw()) >> 11) * 2.0**-53

    def accept(self, token: int) -> None:
        """The token was chosen."""
        for edit in self.edits:
            edit.accept(token)


class Picked(NamedTuple):
    """What a step gave: tokens for each part that wanted some, scores for those who asked, and what constraints say."""

    tokens: list[list[int]]
    scores: dict[int, list[TokenScores]]
    forced: dict[int, list[int]]  # by request: what its constraint leaves no choice of, after these tokens
    ended: set[int]  # requests whose constraint allows nothing but an end
    failures: dict[int, str]  # requests whose constraint failed, and why


class _Turn(NamedTuple):
    """A request that chooses, row by row: its first row, its guesses, and what it has said of them so far."""

    choice: Choice
    request: int
    row: int
    guesses: Sequence[int]
    said: list[int]

    def settled(self, best: int) -> bool:
        """Whether the argmax is what it says, or no token is: NaN."""
        return best == NOT_A_TOKEN or self.choice.settles(best)

    @property
    def goes_on(self) -> bool:
        """Whether its last guess was right, so that the next row counts too."""
        count = len(self.said)
        return count <= len(self.guesses) and self.said[-1] == self.guesses[count - 1]


class Sampler:
    """Chooses for every request of a step."""

    def __init__(self) -> None:
        self.choices: dict[int, Choice] = {}  # by request id; those that need more than the argmax

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
            self.choices[request] = Choice(sampling, prompt, stop_ids, vocab, constraint)

    def drop(self, request: int) -> None:
        """Forget a request. Changes the sampler."""
        self.choices.pop(request, None)

    def pick(self, best: NDArray[np.int32], logits: Logits, step: Step) -> Picked:
        """What each part says that wants logits, in order; NOT_A_TOKEN where these are not numbers.

        best int32 [rows], each row's argmax or -1 for NaN; logits float32 [rows, vocab]. A part with several rows
        guessed: it says a token for its first row, and for each further one as long as what it said was guessed. So
        the tokens are those that would have been chosen one after the other. Changes the generators.
        """
        greedy: list[int] = best.tolist()
        if not self.choices and len(greedy) == len(step.parts) == step.num_tokens:
            return Picked([[token] for token in greedy], {}, {}, set(), {})
        tokens: list[list[int]] = []
        turns: list[_Turn] = []
        row = 0
        for part in step.parts:
            rows = part.rows
            if not rows:
                continue
            guesses = part.tokens[len(part.tokens) - rows + 1 :] if rows > 1 else ()
            choice = self.choices.get(part.request)
            if choice is None:
                tokens.append(agreed(greedy[row : row + rows], guesses))
            else:
                turns.append(_Turn(choice, part.request, row, guesses, []))
                tokens.append(turns[-1].said)
            row += rows
        picked = Picked(tokens, {}, {}, set(), {})
        while turns:
            self._say(turns, greedy, logits, picked)
            turns = [turn for turn in turns if self._goes_on(turn, picked)]
        return picked

    def _goes_on(self, turn: _Turn, picked: Picked) -> bool:
        """Whether a turn has another row that counts; takes in what its constraint says otherwise."""
        constraint = turn.choice.constraint
        if constraint is None:
            return turn.goes_on
        # What must follow is not chosen, guessed or not: else the same seed would give other texts with guesses.
        if turn.goes_on and not constraint.ended and not constraint.failure and not _must(turn, constraint):
            return True
        _constrain(turn, constraint, picked)
        return False

    def _say(self, turns: list[_Turn], greedy: list[int], logits: Logits, picked: Picked) -> None:
        """One token more for each turn."""
        places = [turn.row + len(turn.said) for turn in turns]
        chosen: dict[int, int] = {}
        free: dict[int, Choice] = {}
        edited: dict[int, Choice] = {}
        for turn, place in zip(turns, places, strict=True):
            if turn.settled(greedy[place]):
                chosen[place] = greedy[place]
            else:
                (free if turn.choice.draws_first else edited)[place] = turn.choice
        if free:
            rows = list(free)
            found = draw_rows(_taken(logits, rows), list(free.values()), [greedy[row] for row in rows])
            for (place, choice), token in zip(free.items(), found, strict=True):
                if choice.constraint is None or choice.constraint.allows(token):
                    chosen[place] = token
                else:
                    edited[place] = choice
        if edited:
            rows = list(edited)
            chosen |= zip(rows, pick_rows(logits[rows], list(edited.values())), strict=True)
        for turn, place in zip(turns, places, strict=True):
            token = chosen[place]
            turn.said.append(token)
            if token == NOT_A_TOKEN:
                is_number = greedy[place] != NOT_A_TOKEN and np.isfinite(logits[place, greedy[place]])
                if turn.choice.constraint is not None and is_number:
                    picked.failures[turn.request] = NOTHING_LEFT
                continue
            turn.choice.accept(token)
            count = turn.choice.sampling.logprobs
            if count is not None:
                picked.scores.setdefault(turn.request, []).append(scores_of(logits[place], token, count))


def _must(turn: _Turn, constraint: Constraint) -> list[int]:
    """What must follow. Where log probabilities are asked for each token is chosen by itself, to have some."""
    if turn.choice.sampling.logprobs is not None or turn.said[-1] == NOT_A_TOKEN:
        return []
    return constraint.forced()


def _constrain(turn: _Turn, constraint: Constraint, picked: Picked) -> None:
    """What a constraint says after a turn: that the answer has failed or is whole, or what must follow."""
    if constraint.failure is not None:
        picked.failures[turn.request] = constraint.failure
        return
    if forced := _must(turn, constraint):
        picked.forced[turn.request] = forced
        for token in forced:
            turn.choice.accept(token)
    if constraint.ended:
        picked.ended.add(turn.request)


def agreed(tokens: list[int], guesses: Sequence[int]) -> list[int]:
    """The first token, and those after it as long as what was said is what was guessed."""
    right = 0
    while right < len(guesses) and tokens[right] == guesses[right]:
        right += 1
    return tokens[: right + 1]


def pick_rows(logits: Logits, choices: Sequence[Choice]) -> list[int]:
    """A token for each row of logits [rows, vocab] without NaN; NOT_A_TOKEN for a row in which none is finite or one is
    +inf. Changes rows whose choice has edits."""
    for row, choice in zip(logits, choices, strict=True):
        for edit in choice.edits:
            edit.apply(row)
    return draw_rows(logits, choices, logits.argmax(axis=1).tolist())


def draw_rows(logits: Logits, choices: Sequence[Choice], best: Sequence[int]) -> list[int]:
    """`pick_rows` of logits whose argmax is known, and which no edits change."""
    tokens = list(best)
    finite = np.isfinite(logits[np.arange(len(tokens)), tokens])
    together: dict[int, list[int]] = {}  # rows by the number of candidates that they need at first; 0: all
    for row, choice in enumerate(choices):
        sampling = choice.sampling
        if not finite[row]:
            tokens[row] = NOT_A_TOKEN
        elif choice.mirostat is not None:
            tokens[row] = choice.mirostat.pick(logits[row], choice.uniform())
        elif sampling.temperature > 0:
            together.setdefault(first_candidates(sampling, logits.shape[1]), []).append(row)
    for count, rows in together.items():
        found = _draw(_taken(logits, rows), [choices[row] for row in rows], count)
        for row, token in zip(rows, found, strict=True):
            tokens[row] = token
    return tokens


def _taken(logits: Logits, rows: Sequence[int]) -> Logits:
    """These rows; the array itself where it is all of them."""
    return logits if len(rows) == len(logits) else logits[rows]


def first_candidates(sampling: Sampling, vocab: int) -> int:
    """How many of the greatest logits a row needs, at first; 0 if it needs none in order."""
    if 0 < sampling.top_k < vocab:
        return sampling.top_k
    is_cut = sampling.top_p < 1 or sampling.min_p > 0
    if sampling.typical_p < 1 or (sampling.xtc_probability > 0 and not is_cut):
        return vocab  # the expected surprise is of all of them, and XTC keeps the unlikely
    return min(FIRST_CANDIDATES, vocab) if is_cut else 0


def _draw(logits: Logits, choices: Sequence[Choice], count: int) -> list[int]:
    """A token for each row; all of them need `count` candidates at first."""
    samplings = [choice.sampling for choice in choices]
    coins = [choice.uniform() if choice.sampling.xtc_probability else 1.0 for choice in choices]
    uniforms = [choice.uniform() for choice in choices]
    if count == 0:
        return _of_all(logits, samplings, uniforms)
    tokens = [NOT_A_TOKEN] * len(choices)
    waiting = list(range(len(choices)))
    while waiting:
        rows, suffices = candidates(_taken(logits, waiting), [samplings[row] for row in waiting], count)
        ready = list(compress(waiting, suffices))
        if ready:
            rows = rows.only(suffices)
            chosen = [samplings[row] for row in ready]
            kept = left(rows, chosen, [coins[row] for row in ready])
            places = drawn(rows, kept, chosen, [uniforms[row] for row in ready])
            for row, ids, place in zip(ready, rows.ids, places, strict=True):
                tokens[row] = int(ids[place])
        waiting = [row for row, done in zip(waiting, suffices, strict=True) if not done]
        count = min(4 * count, logits.shape[1])
    return tokens


def candidates(logits: Logits, samplings: Sequence[Sampling], count: int) -> tuple[Rows, NDArray[np.bool_]]:
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
    return Rows(ids, scores, totals), suffices


def _of_all(logits: Logits, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
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


def scores_of(logits: Logits, token: int, count: int) -> TokenScores:
    """The token's log probability, and those of the `count` likeliest, of logits [vocab] as the model gave them."""
    exact = logits.astype(np.float64)
    best = exact.max()
    if not isfinite(best):
        return TokenScores(float("nan"), {})
    logs = exact - best
    logs -= np.log(np.exp(logs).sum())
    top = greatest(logits[None], count)[0].tolist() if count else []
    return TokenScores(float(logs[token]), {each: float(logs[each]) for each in top})
