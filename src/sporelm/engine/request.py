"""A request: token ids to continue, how, and how far it has come."""

from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Literal

from sporelm.engine.constraint import Constraint
from sporelm.engine.kv.prefix import Chain
from sporelm.engine.kv.sequence import KvSequence
from sporelm.engine.sampling import Sampling, TokenScores
from sporelm.errors import RequestError

FinishReason = Literal["stop", "length", "cancelled", "error"]


def whole_number(name: str, value: Any) -> int:
    """`value` as an int, numpy's whole numbers included. Raises RequestError for anything else."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise RequestError(f"{name} is {value!r:.60}: it must be a whole number")


def token_ids(name: str, values: Any) -> list[int]:
    """Token ids given as a list, a tuple or an array. Raises RequestError for anything else, text included."""
    if isinstance(values, str | bytes) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise RequestError(f"{name} is {values!r:.60}: it must be a list of token ids")
    return [whole_number(f"a token of {name}", value) for value in values]


class Request:
    """What to continue and what has come of it.

    There are no phases: each step computes `known` tokens that the sequence does not hold yet, and when all are held
    the next one becomes known.
    """

    __slots__ = (
        "accepted",
        "adapter",
        "arrived",
        "cache_miss",
        "cached_tokens",
        "chain",
        "constraint",
        "drafted",
        "error",
        "finish_reason",
        "first_token_at",
        "id",
        "known",
        "last_token_at",
        "max_tokens",
        "num_prompt",
        "owner",
        "priority",
        "salt",
        "sampling",
        "scores",
        "sequence",
        "started",
        "stop_ids",
        "temporary",
        "twin",
    )

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 256,
        stop_ids: Iterable[int] = (),
        sequence: KvSequence | None = None,
        salt: str = "",
        priority: int = 0,
        owner: str | None = None,
        twin: "Request | None" = None,
        constraint: Constraint | None = None,
        adapter: int = 0,
    ) -> None:
        """Continue `prompt` by at most `max_tokens` ids, or up to one of `stop_ids`, which is then the last one.

        What others of the same `salt` have computed of the prompt is not computed again. With a `sequence`, what it
        holds is not either, it keeps the KV afterwards, and its salt counts. Lower `priority` is served first; among
        equals those `owner`s (by default the salt) of whom the fewest run. A `twin` has the same prompt and was added
        before: this request waits until that is computed, and shares it. A `constraint` says what may be answered.
        Raises RequestError for an empty prompt or max_tokens < 1.
        """
        self.known = token_ids("the prompt", prompt)  # then what was generated
        if not self.known:
            raise RequestError("the prompt has no tokens: give at least one")
        if max_tokens < 1:
            raise RequestError(f"max_tokens is {max_tokens}: it must be at least 1")
        self.num_prompt = len(self.known)
        self.sampling = sampling or Sampling()
        self.scores: list[TokenScores] = []  # of each generated token, if the sampling asks for them
        self.max_tokens = max_tokens
        self.stop_ids = frozenset(stop_ids)
        self.sequence = sequence
        self.salt = salt
        self.priority = priority
        self.owner = salt if owner is None else owner
        self.twin = twin
        self.constraint = constraint
        self.adapter = adapter  # the number of one that is loaded, 0 for none
        self.chain = Chain(salt)  # the keys under which the pages of `known` are found
        self.temporary = sequence is None  # its sequence goes when it ends
        self.id = 0  # given by the engine
        self.cached_tokens = 0  # of the prompt, found in the sequence or computed by others
        self.cache_miss: str | None = None  # why not more of it; None where it is all but the last page
        self.drafted = self.accepted = 0  # tokens that were guessed, and those of them that were right
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.arrived = self.started = self.first_token_at = self.last_token_at = 0.0  # seconds of perf_counter

    @property
    def num_computed(self) -> int:
        """Known tokens whose keys and values are held."""
        return self.sequence.length if self.sequence else 0

    @property
    def decoding(self) -> bool:
        """Whether the prompt is computed, and one token after the other follows."""
        return self.num_generated > 0 and self.num_computed >= len(self.known) - 1

    @property
    def prompt(self) -> list[int]:
        return self.known[: self.num_prompt]

    @property
    def generated(self) -> list[int]:
        return self.known[self.num_prompt :]

    @property
    def num_generated(self) -> int:
        return len(self.known) - self.num_prompt

    def commit(self, token: int, room: int) -> None:
        """Add a generated token; finish if it is a stop id, the last wanted, or no room is left after it."""
        self.known.append(token)
        if token in self.stop_ids:
            self.finish_reason = "stop"
        elif len(self.known) - self.num_prompt >= self.max_tokens or len(self.known) > room:
            self.finish_reason = "length"

    def __repr__(self) -> str:
        state = self.finish_reason or f"{self.num_computed} of {len(self.known)} tokens computed"
        return f"Request({self.id}, prompt {self.num_prompt}, generated {self.num_generated}, {state})"
