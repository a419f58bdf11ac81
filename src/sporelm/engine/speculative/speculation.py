"""When to guess, and how far: as long as it pays.

A guess costs a row more in the step, and the time of guessing; it saves a step if it is right. All of it is measured:
the times of steps, the times of proposing, and how many guesses of each request were right. Of what is proposed the
likeliest tokens are taken, as long as each brings more than its row costs. A request whose guesses do not pay is left
alone for a while, twice as long each time. A step with guesses has few rows; a full batch leaves none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from sporelm.engine.prefill_budget import moved
from sporelm.engine.request import Request
from sporelm.engine.speculative.drafter import Drafter, DraftTokens
from sporelm.engine.step import Step

ROWS = 16  # which a step computes in little more time than one, where reading the weights takes the time
MOST_LENGTH = 15  # tokens of a guess
FIRST_PAUSE, MOST_PAUSE = 8, 256  # tokens
SMOOTHING = 0.2  # weight of the newest guess
TIME_SMOOTHING = 0.2
ROW_COST = 0.12  # of a step, for a row more, before it was measured
LEAST_ROW_COST, MOST_ROW_COST = 0.01, 1.0
MARGIN = 0.05  # tokens by which a guess must gain more than it costs
NOTHING = 0.02  # of a step: time of proposing that is not worth a pause


@dataclass
class DraftBackoff:
    """What is known of a request's guesses."""

    value: float = 0.5  # tokens gained by a guess, less what it cost
    pause: int = 0  # tokens that pass before the next guess
    next_pause: int = FIRST_PAUSE

    def learn(self, value: float) -> None:
        """A guess gained so much; none is made for a while if they do not pay."""
        self.value += SMOOTHING * (value - self.value)
        if self.value < 0:
            self.pause, self.value = self.next_pause, 0.0
            self.next_pause = min(MOST_PAUSE, 2 * self.next_pause)
        elif value > 0:
            self.next_pause = FIRST_PAUSE


@dataclass
class RowCost:
    """What rows for guesses cost, the newest counting most. Longer guesses tell more of it than short ones."""

    rows: float = 8.0
    cost: float = 8.0 * ROW_COST  # of them, in steps without guesses

    def learn(self, rows: int, cost: float) -> None:
        """So many rows more cost so much."""
        self.rows = (1 - TIME_SMOOTHING) * self.rows + rows
        self.cost = (1 - TIME_SMOOTHING) * self.cost + cost

    @property
    def each(self) -> float:
        return min(max(self.cost / self.rows, LEAST_ROW_COST), MOST_ROW_COST)


class Speculation:
    """Guesses for the requests of one engine. `rows`: the most rows of a step in which there are guesses."""

    def __init__(self, drafter: Drafter, rows: int = ROWS) -> None:
        self.drafter = drafter
        self.rows = rows
        self.habits: dict[int, DraftBackoff] = {}
        self.times: dict[int, float] = {}  # seconds of a step without guesses, by its rows
        self.costs: dict[int, RowCost] = {}  # of rows more than in such a step, by its rows
        self.proposed = self.accepted = 0  # tokens, of all requests
        self.asked: list[int] = []  # requests for which the last proposal was made
        self.seconds = 0.0  # that it took

    def propose(self, decoding: Sequence[Request], max_context: int) -> dict[int, list[int]]:
        """Guesses, by request, for the next step, in which nobody but these takes part."""
        self.asked, self.seconds = [], 0.0
        left = self.rows - len(decoding)
        if left <= 0 or not self.times.get(len(decoding)):
            return {}  # what a step without guesses takes is measured first
        wanted: list[tuple[Request, int]] = []
        for request in decoding:
            habit = self.habits.setdefault(request.id, DraftBackoff())
            if habit.pause:
                habit.pause -= 1
                continue
            known = len(request.known)
            most = min(MOST_LENGTH, left, request.max_tokens - request.num_generated - 1, max_context - known)
            if most > 0:
                wanted.append((request, most))
        if not wanted:
            return {}
        self.drafter.read([request for request, _ in wanted], len(decoding) == 1)
        began = perf_counter()
        found = self.drafter.propose_all(wanted, left)
        self.seconds = perf_counter() - began
        self.asked = [request.id for request, _ in wanted]
        return likeliest(found, len(decoding), left, self._row_cost(len(decoding)))

    def learn(self, step: Step, said: Sequence[Sequence[int]], seconds: float) -> None:
        """A step in which all decoded took `seconds`, and said so much for each part. Changes the habits."""
        rows, requests = step.num_tokens, len(step.sequences)
        base = self.times.get(requests)
        if rows == requests:
            self.times[requests] = moved(base, seconds, TIME_SMOOTHING)
        elif base:
            self.costs.setdefault(requests, RowCost()).learn(rows - requests, seconds / base - 1)
        if not self.asked:
            return
        row_cost, asked = self._row_cost(requests), set(self.asked)
        # While one request gains tokens, all of them wait: for its rows, and for its share of the time of proposing.
        proposing = self.seconds / (base or seconds) * requests / len(asked)
        for scheduled, tokens in zip(step.sequences, said, strict=True):
            drafted, right = scheduled.num_outputs - 1, len(tokens) - 1
            habit = self.habits.get(scheduled.request_id)
            if habit is None or scheduled.request_id not in asked:
                continue
            if not drafted:
                if proposing > NOTHING:
                    habit.learn(-proposing)
                continue
            self.proposed += drafted
            self.accepted += right
            habit.learn(right - row_cost * drafted * requests - proposing - MARGIN)
        self.asked = []

    def end(self, request: Request) -> None:
        """Forget a request."""
        if self.habits.pop(request.id, None) is not None:
            self.drafter.end(request)

    def _row_cost(self, requests: int) -> float:
        """What a row more costs in a step of so many requests, as a share of one without guesses."""
        cost = self.costs.get(requests)
        return ROW_COST if cost is None else cost.each


def likeliest(found: dict[int, DraftTokens], requests: int, rows: int, row_cost: float) -> dict[int, list[int]]:
    """Of these guesses the tokens that are worth their rows, `rows` at most, by request.

    A step without guesses says one token for each of `requests`. The likeliest token more is taken as long as its
    chance is above what its row takes from the others: so the tokens said in a second are most.
    """
    taken, chances = dict.fromkeys(found, 0), {request: guess.chances[0] for request, guess in found.items()}
    said, time = float(requests), 1.0
    while chances and rows > 0:
        request = max(chances, key=chances.__getitem__)
        chance = chances[request]
        if chance <= row_cost * said / time:
            break
        said, time, rows = said + chance, time + row_cost, rows - 1
        taken[request] += 1
        if taken[request] < len(found[request].tokens):
            chances[request] *= found[request].chances[taken[request]]
        else:
            del chances[request]
    return {request: found[request].tokens[:count] for request, count in taken.items() if count}
