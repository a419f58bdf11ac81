"""When to draft, and how many tokens: as long as it pays.

A draft costs rows in the step, and the time of the drafter; it saves steps if it is accepted. All of it is measured:
the times of steps, the times of proposing, and the accepted tokens of each request. Of all draft tokens the likeliest
are taken, as long as each gains more than its row costs. A request whose drafts do not pay has none for a while, twice
as long each time. A step with drafts has few rows; a full batch leaves none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

from sporelm.engine.prefill_budget import moving_average
from sporelm.engine.request import Request
from sporelm.engine.speculative.drafter import Drafter, DraftTokens
from sporelm.engine.step import Step

ROWS = 16  # which a step computes in little more time than one, where reading the weights takes the time
MAX_DRAFT_TOKENS = 15  # of a request
FIRST_PAUSE = 8  # tokens
MAX_PAUSE = 256  # tokens
SMOOTHING = 0.2  # weight of the newest draft
TIME_SMOOTHING = 0.2
ROW_COST = 0.12  # of each further row, as a share of a step, before it was measured
MIN_ROW_COST = 0.01
MAX_ROW_COST = 1.0
MARGIN = 0.05  # tokens by which a draft must gain more than it costs
NEGLIGIBLE = 0.02  # as a share of a step: a time of proposing for which no pause is made


@dataclass
class DraftBackoff:
    """The measured value of a request's drafts, and the pauses that it makes."""

    value: float = 0.5  # tokens gained by a draft, less its cost
    pause: int = 0  # tokens that pass before the next draft
    next_pause: int = FIRST_PAUSE

    def learn(self, value: float) -> None:
        """Note the value of a draft. Begins a pause if drafts do not pay."""
        self.value += SMOOTHING * (value - self.value)
        if self.value < 0:
            self.pause, self.value = self.next_pause, 0.0
            self.next_pause = min(MAX_PAUSE, 2 * self.next_pause)
        elif value > 0:
            self.next_pause = FIRST_PAUSE


@dataclass
class RowCost:
    """The measured cost of rows for draft tokens; longer drafts weigh more than short ones, new ones more than old."""

    rows: float = 8.0
    cost: float = 8.0 * ROW_COST  # in steps without drafts

    def learn(self, rows: int, cost: float) -> None:
        """Note what these further rows cost."""
        self.rows = (1 - TIME_SMOOTHING) * self.rows + rows
        self.cost = (1 - TIME_SMOOTHING) * self.cost + cost

    @property
    def each(self) -> float:
        return min(max(self.cost / self.rows, MIN_ROW_COST), MAX_ROW_COST)


class Speculation:
    """Draft tokens for the requests of one engine. `rows`: the maximum of rows of a step with drafts."""

    def __init__(self, drafter: Drafter, rows: int = ROWS) -> None:
        self.drafter = drafter
        self.rows = rows
        self.backoffs: dict[int, DraftBackoff] = {}  # by request id
        self.times: dict[int, float] = {}  # seconds of a step without drafts, by its rows
        self.costs: dict[int, RowCost] = {}  # of further rows, by the rows without drafts
        self.num_draft_tokens = 0  # that were checked, of all requests
        self.num_accepted_tokens = 0
        self._proposed_ids: list[int] = []  # requests for which the last proposal was made
        self._proposing_seconds = 0.0

    def propose(self, decoding: Sequence[Request], max_context: int) -> dict[int, list[int]]:
        """Return draft tokens by request id for the next step, in which only these requests take part."""
        self._proposed_ids = []
        self._proposing_seconds = 0.0
        num_rows = self.rows - len(decoding)
        if num_rows <= 0 or not self.times.get(len(decoding)):
            return {}  # the time of a step without drafts is measured first
        limits: list[tuple[Request, int]] = []
        for request in decoding:
            backoff = self.backoffs.setdefault(request.id, DraftBackoff())
            if backoff.pause:
                backoff.pause -= 1
                continue
            num_remaining = request.max_tokens - request.num_generated - 1
            limit = min(MAX_DRAFT_TOKENS, num_rows, num_remaining, max_context - len(request.context_ids))
            if limit > 0:
                limits.append((request, limit))
        if not limits:
            return {}
        self.drafter.read([request for request, _ in limits], len(decoding) == 1)
        start = perf_counter()
        drafts = self.drafter.propose_all(limits, num_rows)
        self._proposing_seconds = perf_counter() - start
        self._proposed_ids = [request.id for request, _ in limits]
        return select_drafts(drafts, len(decoding), num_rows, self._row_cost(len(decoding)))

    def observe_step(self, step: Step, sampled_tokens: Sequence[Sequence[int]], seconds: float) -> None:
        """Note the time and the tokens of a step in which all requests decoded. Changes the backoffs."""
        rows, num_requests = step.num_tokens, len(step.sequences)
        base = self.times.get(num_requests)
        if rows == num_requests:
            self.times[num_requests] = moving_average(base, seconds, TIME_SMOOTHING)
        elif base:
            self.costs.setdefault(num_requests, RowCost()).learn(rows - num_requests, seconds / base - 1)
        if not self._proposed_ids:
            return
        row_cost, proposed_ids = self._row_cost(num_requests), set(self._proposed_ids)
        # While one request gains tokens, all of them wait: for its rows, and for its share of the time of proposing.
        proposing = self._proposing_seconds / (base or seconds) * num_requests / len(proposed_ids)
        for scheduled, tokens in zip(step.sequences, sampled_tokens, strict=True):
            num_drafts, num_accepted = scheduled.num_outputs - 1, len(tokens) - 1
            backoff = self.backoffs.get(scheduled.request_id)
            if backoff is None or scheduled.request_id not in proposed_ids:
                continue
            if not num_drafts:
                if proposing > NEGLIGIBLE:
                    backoff.learn(-proposing)
                continue
            self.num_draft_tokens += num_drafts
            self.num_accepted_tokens += num_accepted
            backoff.learn(num_accepted - row_cost * num_drafts * num_requests - proposing - MARGIN)
        self._proposed_ids = []

    def end(self, request: Request) -> None:
        """Forget a request."""
        if self.backoffs.pop(request.id, None) is not None:
            self.drafter.end(request)

    def _row_cost(self, num_requests: int) -> float:
        """Return the cost of a further row in a step of `num_requests`, as a share of a step without drafts."""
        cost = self.costs.get(num_requests)
        return ROW_COST if cost is None else cost.each


def select_drafts(
    drafts: dict[int, DraftTokens], num_requests: int, rows: int, row_cost: float
) -> dict[int, list[int]]:
    """Return the draft tokens that are worth their rows, `rows` at most, by request id.

    A step without drafts gives one token for each of `num_requests`. The likeliest draft token is taken as long as its
    probability is above what its row takes from the others: this maximizes the tokens of a second.
    """
    counts = dict.fromkeys(drafts, 0)
    probabilities = {request_id: draft.probabilities[0] for request_id, draft in drafts.items()}
    num_tokens, time = float(num_requests), 1.0
    while probabilities and rows > 0:
        request_id = max(probabilities, key=probabilities.__getitem__)
        probability = probabilities[request_id]
        if probability <= row_cost * num_tokens / time:
            break
        num_tokens, time, rows = num_tokens + probability, time + row_cost, rows - 1
        counts[request_id] += 1
        if counts[request_id] < len(drafts[request_id].tokens):
            probabilities[request_id] *= drafts[request_id].probabilities[counts[request_id]]
        else:
            del probabilities[request_id]
    return {request_id: drafts[request_id].tokens[:count] for request_id, count in counts.items() if count}
