"""A request: token ids to continue, how, and how far it has come."""

import sys
from collections.abc import Iterable, Sequence, Sized
from operator import index
from typing import Any, Literal

from sporelm.engine.constraint import Constraint
from sporelm.engine.kv.kv_sequence import KvSequence
from sporelm.engine.kv.prefix_cache import PageHashes
from sporelm.engine.sampling import Sampling, TokenLogprobs
from sporelm.errors import RequestError, shown
from sporelm.ops.paged_attention import PAGE

MOST_IDS = 1 << 24  # of a text: no context is so long

FinishReason = Literal["stop", "length", "cancelled", "error"]


def whole_number(name: str, value: Any) -> int:
    """`value` as an int, numpy's whole numbers included. Raises RequestError for anything else."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise RequestError(f"{name} is {shown(value)}: it must be a whole number")


def token_ids(name: str, values: Any) -> list[int]:
    """Token ids given as a list, a tuple or an array. Raises RequestError for anything else, text included."""
    if isinstance(values, str | bytes) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise RequestError(f"{name} is {shown(values)}: it must be a list of token ids")
    if size_of(values, name) > MOST_IDS:
        raise RequestError(f"{name} has more than {MOST_IDS} ids, which no model takes: give fewer")
    return [whole_number(f"a token of {name}", value) for value in values]


def size_of(values: Sized, name: str = "the list") -> int:
    """How many there are, of a range too; a huge number where Python cannot say. Raises RequestError for none."""
    try:
        return len(values)
    except OverflowError:
        return sys.maxsize
    except TypeError:
        raise RequestError(f"{name} is {shown(values)}, which has no length: give a list") from None


def beginning(room: int) -> int:
    """Positions of a context that keep their tokens when it rolls: a quarter, in whole pages if it has one."""
    quarter = room // 4
    return quarter // PAGE * PAGE or quarter


class Request:
    """What to continue and what has come of it.

    There are no phases: each step computes `known` tokens that the sequence does not hold yet, and when all are held
    the next one becomes known. What is known is the whole `text`, unless that has outgrown the context of a request
    that rolls: then it is the text without some tokens after its beginning.
    """

    __slots__ = (
        "accepted",
        "adapter",
        "arrived",
        "cache_miss",
        "cached_tokens",
        "constraint",
        "drafted",
        "dropped",
        "error",
        "finish_reason",
        "first_token_at",
        "id",
        "known",
        "last_token_at",
        "max_tokens",
        "num_prompt",
        "num_shown",
        "owner",
        "page_hashes",
        "priority",
        "roll",
        "salt",
        "sampling",
        "scores",
        "sequence",
        "started",
        "stop_ids",
        "temporary",
        "text",
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
        roll: bool = False,
        adapter: int = 0,
    ) -> None:
        """Continue `prompt` by at most `max_tokens` ids, or up to one of `stop_ids`, which is then the last one.

        What others of the same `salt` have computed of the prompt is not computed again. With a `sequence`, what it
        holds is not either, it keeps the KV afterwards, and its salt counts. Lower `priority` is served first; among
        equals those `owner`s (by default the salt) of whom the fewest run. A `twin` has the same prompt and was added
        before: this request waits until that is computed, and shares it. A `constraint` says what may be answered.
        With `roll` a text that outgrows the context goes on without some tokens after its first quarter (`fit`).
        Raises RequestError for an empty prompt or max_tokens < 1.
        """
        self.text = token_ids("the prompt", prompt)  # then what was generated
        self.known = self.text  # of it, what the model is shown; another list once some is left out
        if not self.known:
            raise RequestError("the prompt has no tokens: give at least one")
        if max_tokens < 1:
            raise RequestError(f"max_tokens is {max_tokens}: it must be at least 1")
        self.num_prompt = self.num_shown = len(self.text)  # of the prompt; of that what the model was shown
        self.dropped = 0  # tokens of the text that were left out to make room
        self.roll = roll
        self.sampling = sampling or Sampling()
        self.scores: list[TokenLogprobs] = []  # of each generated token, if the sampling asks for them
        self.max_tokens = max_tokens
        self.stop_ids = frozenset(stop_ids)
        self.sequence = sequence
        self.salt = salt
        self.priority = priority
        self.owner = salt if owner is None else owner
        self.twin = twin
        self.constraint = constraint
        self.adapter = adapter  # the number of one that is loaded, 0 for none
        self.page_hashes = PageHashes(salt)  # the keys under which the pages of `known` are found
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
        return self.text[: self.num_prompt]

    @property
    def generated(self) -> list[int]:
        return self.text[self.num_prompt :]

    @property
    def num_generated(self) -> int:
        return len(self.text) - self.num_prompt

    def commit(self, token: int, room: int) -> None:
        """Add a generated token; finish if it is a stop id, the last wanted, or no room is left after it."""
        text, known = self.text, self.known
        text.append(token)
        if known is not text:
            known.append(token)
        if token in self.stop_ids:
            self.finish_reason = "stop"
        elif len(text) - self.num_prompt >= self.max_tokens:
            self.finish_reason = "length"
        elif len(known) > room:
            if self.roll:
                self.fit(room)
            else:
                self.finish_reason = "length"

    def fit(self, room: int) -> None:
        """Leave out of a request that rolls what `room` positions do not hold: after the first quarter of them, so many
        halves of them as are too much. Where the next cut is does not change while the text grows by less than a half,
        so what is held of one turn of a conversation is of use in the next."""
        if not self.roll or len(self.known) <= room:
            return
        first, half = beginning(room), max(1, room // 2)
        self.dropped = -((room - len(self.text)) // half) * half
        self.known = self.text[:first] + self.text[first + self.dropped :]
        del self.page_hashes.hashes[first // PAGE :]
        if not self.num_generated:
            self.num_shown = len(self.known)

    def __repr__(self) -> str:
        state = self.finish_reason or f"{self.num_computed} of {len(self.known)} tokens computed"
        return f"Request({self.id}, prompt {self.num_prompt}, generated {self.num_generated}, {state})"
