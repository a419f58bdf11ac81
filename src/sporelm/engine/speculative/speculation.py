"""When to guess, and how far: as long as it pays.

A guess costs a row more in the step, and the time of guessing; it saves a step if it is right. All of it is measured:
the times of steps by their rows, the times of proposing, and how many guesses of each request were right. A request
whose guesses do not pay is left alone for a while, twice as long each time. Steps are filled up to the rows that cost
about as much as one; a full batch leaves none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from sporelm.engine.request import Request
from sporelm.engine.speculative.drafter import Drafter
from sporelm.engine.step import Step

ROWS = 16  # which a step computes in little more time than one, where reading the weights takes the time
FIRST_LENGTH = 4  # tokens of a request's first guess
MOST_LENGTH = 15
FIRST_PAUSE, MOST_PAUSE = 8, 256  # tokens
SMOOTHING = 0.3  # weight of the newest guess
TIME_SMOOTHING = 0.2
ROW_COST = 0.1  # of a step, for a row more, before it was measured
MARGIN = 0.1  # tokens by which a guess must gain more than it costs
NOTHING = 0.02  # of a step: time of proposing that is not worth a pause


@dataclass
class _Habit:
    """What is known of a request's guesses."""

    length: int = FIRST_LENGTH
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


class Speculation:
    """Guesses for the requests of one engine. `rows`: the most rows of a step in which there are guesses."""

    def __init__(self, drafter: Drafter, rows: int = ROWS) -> None:
        self.drafter = drafter
        self.rows = rows
        self.habits: dict[int, _Habit] = {}
        self.times: dict[int, float] = {}  # seconds of a step, by its rows
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
            habit = self.habits.setdefault(request.id, _Habit())
            if habit.pause:
                habit.pause -= 1
                continue
            known = len(request.known)
            most = min(habit.length, left, request.max_tokens - request.num_generated - 1, max_context - known)
            if most > 0:
                wanted.append((request, most))
        if not wanted:
            return {}
        self.drafter.read([request for request, _ in wanted], len(decoding) == 1)
        began = perf_counter()
        found = self.drafter.propose_all(wanted, left)
        self.seconds = perf_counter() - began
        self.asked = [request.id for request, _ in wanted]
        return found

    def learn(self, step: Step, said: Sequence[Sequence[int]], seconds: float) -> None:
        """A step in which all decoded took `seconds`, and said so much for each part. Changes the habits."""
        rows, requests = step.num_tokens, len(step.parts)
        if rows <= self.rows:
            old = self.times.get(rows)
            self.times[rows] = seconds if old is None else old + TIME_SMOOTHING * (seconds - old)
        if not self.asked:
            return
        row_cost, asked = self._row_cost(requests, rows), set(self.asked)
        # While one request gains tokens, all of them wait: for its rows, and for its share of the time of proposing.
        proposing = self.seconds / (self.times.get(requests) or seconds) * requests / len(asked)
        for part, tokens in zip(step.parts, said, strict=True):
            drafted, right = part.rows - 1, len(tokens) - 1
            habit = self.habits.get(part.request)
            if habit is None or part.request not in asked:
                continue
            if not drafted:
                if proposing > NOTHING:
                    habit.learn(-proposing)
                continue
            self.proposed += drafted
            self.accepted += right
            habit.length = min(MOST_LENGTH, 2 * drafted) if right == drafted else max(2, right + 1)
            habit.learn(right - row_cost * drafted * requests - proposing - MARGIN)
        self.asked = []

    def end(self, request: Request) -> None:
        """Forget a request."""
        if self.habits.pop(request.id, None) is not None:
            self.drafter.end(request)

    def _row_cost(self, plain: int, rows: int) -> float:
        """What a row more than `plain` costs, as a share of a step without guesses."""
        base, whole = self.times.get(plain), self.times.get(rows)
        if not base or not whole or rows == plain:
            return ROW_COST
        return max(0.0, whole / base - 1) / (rows - plain)
