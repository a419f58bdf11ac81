"""A request: token ids to continue, the options, and its progress."""

import sys
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import replace
from operator import index
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.constraint import Constraint
from sporelm.engine.kv.kv_sequence import KvSequence
from sporelm.engine.kv.prefix_cache import PageHashes
from sporelm.engine.prompt_images import PromptIds, PromptImage, RopePositions, insert_image_ids
from sporelm.engine.sampling import Sampling, TokenLogprobs
from sporelm.errors import RequestError, safe_repr
from sporelm.ops.paged_attention import PAGE

MAX_TOKEN_IDS = 1 << 24  # of a prompt: no context is that long

FinishReason = Literal["stop", "length", "cancelled", "error"]
OutputKind = Literal["tokens", "logits", "hidden"]
Rows = NDArray[np.float32]
RowsCallback = Callable[[Rows], object]


def parse_int(name: str, value: Any) -> int:
    """Return `value` as an int; numpy's integers are allowed. Raises RequestError for anything else."""
    try:
        if not isinstance(value, bool):
            return index(value)
    except TypeError:
        pass
    raise RequestError(f"{name} is {safe_repr(value)}: it must be a whole number")


def parse_token_ids(name: str, values: Any) -> list[int]:
    """Return token ids given as a list, a tuple or an array. Raises RequestError for anything else, such as a str."""
    if isinstance(values, str | bytes) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise RequestError(f"{name} is {safe_repr(values)}: it must be a list of token ids")
    if length_of(values, name) > MAX_TOKEN_IDS:
        raise RequestError(f"{name} has more than {MAX_TOKEN_IDS} ids, which no model takes: give fewer")
    return [parse_int(f"a token of {name}", value) for value in values]


def length_of(values: Sized, name: str = "the list") -> int:
    """Return the length, sys.maxsize for a range that is too long for `len`. Raises RequestError for an iterator."""
    try:
        return len(values)
    except OverflowError:
        return sys.maxsize
    except TypeError:
        raise RequestError(f"{name} is {safe_repr(values)}, which has no length: give a list") from None


def num_pinned_positions(room: int) -> int:
    """Return how many first positions keep their tokens when a context rolls: a quarter, in whole pages if possible."""
    quarter = room // 4
    return quarter // PAGE * PAGE or quarter


class Request:
    """Token ids to continue, or to compute a row of outputs for each, and the progress of that.

    There are no phases: each step computes those `context_ids` that the sequence does not hold yet, and when all are
    held the next token is appended. The context is the whole text (`all_token_ids`), unless that has outgrown the
    context of a request that rolls: then some tokens after its beginning are missing.
    """

    __slots__ = (
        "adapter_id",
        "all_token_ids",
        "arrival_time",
        "cache_miss",
        "cache_salt",
        "cached_tokens",
        "constraint",
        "context_ids",
        "error",
        "exception",
        "finish_reason",
        "first_token_time",
        "has_known_ids",
        "id",
        "images",
        "is_temporary",
        "last_token_time",
        "logprobs",
        "max_tokens",
        "needed_images",
        "num_accepted_tokens",
        "num_context_prompt",
        "num_delivered",
        "num_draft_tokens",
        "num_dropped",
        "num_prompt",
        "on_rows",
        "output",
        "page_hashes",
        "parent",
        "priority",
        "prompt_images",
        "roll",
        "rope_positions",
        "sampling",
        "sequence",
        "start_time",
        "stop_ids",
        "tenant",
    )

    def __init__(
        self,
        prompt: Sequence[int],
        *,
        sampling: Sampling | None = None,
        max_tokens: int = 256,
        stop_ids: Iterable[int] = (),
        sequence: KvSequence | None = None,
        cache_salt: str = "",
        priority: int = 0,
        tenant: str | None = None,
        parent: "Request | None" = None,
        constraint: Constraint | None = None,
        roll: bool = False,
        adapter_id: int = 0,
        output: OutputKind = "tokens",
        on_rows: RowsCallback | None = None,
    ) -> None:
        """Continue `prompt`, a `PromptIds` if it has images, by at most `max_tokens` ids, or up to one of `stop_ids`,
        which is then the last one.

        sequence    holds what an earlier request computed, and keeps the KV afterwards; its salt counts
        cache_salt  prefixes are shared by requests with the same salt only
        priority    lower is served first
        tenant      among equal priorities the one with the fewest running requests is served first; default: the salt
        parent      a request with the same prompt, added before: this one waits until that is computed, and shares it
        constraint  what the answer must look like
        roll        a text that outgrows the context loses some tokens after its first quarter (`roll_context`)
        adapter_id  of a loaded LoRA adapter, 0 for none
        output      "logits" or "hidden": nothing is generated, and `on_rows` gets a row of logits, or the last hidden
                    state, of each position
        on_rows     called with the new rows of each step, float32 [rows, width], a view that is valid during the call

        Raises RequestError for an empty prompt or max_tokens < 1.
        """
        self.all_token_ids = parse_token_ids("the prompt", prompt)  # the prompt, then the generated tokens
        self.context_ids = self.all_token_ids  # the model's input; another list once tokens were dropped
        if not self.context_ids:
            raise RequestError("the prompt has no tokens: give at least one")
        if max_tokens < 1:
            raise RequestError(f"max_tokens is {max_tokens}: it must be at least 1")
        images = prompt.images if isinstance(prompt, PromptIds) else ()
        self.images = tuple(image.copy() for image in images)  # of the context
        self.prompt_images = self.images  # of the whole text
        self.needed_images: list[PromptImage] | None = None  # that no cache covers, once the scheduler has looked
        self.rope_positions: RopePositions | None = None
        if self.images:
            self.all_token_ids[:] = insert_image_ids(self.all_token_ids, self.images)
            if self.images[0].positions is not None:
                self.rope_positions = RopePositions(self.images)
        self.num_prompt = len(self.all_token_ids)
        self.num_context_prompt = self.num_prompt  # tokens of the prompt that are in the context
        self.num_dropped = 0  # tokens of the text that were dropped to make room
        self.roll = roll
        self.sampling = sampling or Sampling()
        self.logprobs: list[TokenLogprobs] = []  # of each generated token, if the sampling options ask for them
        self.max_tokens = max_tokens
        self.stop_ids = frozenset(stop_ids)
        self.sequence = sequence
        self.cache_salt = cache_salt
        self.priority = priority
        self.tenant = cache_salt if tenant is None else tenant
        self.parent = parent
        self.constraint = constraint
        self.adapter_id = adapter_id
        self.output = output
        self.on_rows = on_rows
        self.has_known_ids = False  # whether the scheduler has found all ids in the vocabulary
        self.num_delivered = 0  # rows with which `on_rows` was called
        self.page_hashes = PageHashes(cache_salt)  # of the pages of `context_ids`
        self.is_temporary = sequence is None  # its sequence is dropped when it ends
        self.id = 0  # assigned by the engine
        self.cached_tokens = 0  # of the prompt: held by the sequence or found in the prefix cache
        self.cache_miss: str | None = None  # why not more; None if all but the last page was cached
        self.num_draft_tokens = 0  # that were checked
        self.num_accepted_tokens = 0  # of them
        self.finish_reason: FinishReason | None = None
        self.error: str | None = None
        self.exception: Exception | None = None  # of `on_rows`, or of a step for rows only
        self.arrival_time = 0.0  # seconds of perf_counter, as the following
        self.start_time = 0.0
        self.first_token_time = 0.0
        self.last_token_time = 0.0

    @property
    def num_computed(self) -> int:
        """Context tokens whose keys and values are cached."""
        return self.sequence.length if self.sequence else 0

    @property
    def is_decoding(self) -> bool:
        """Whether the prompt is computed, and each step computes one token."""
        sequence = self.sequence  # no properties: this is asked for each request of each step
        return (
            len(self.all_token_ids) > self.num_prompt
            and sequence is not None
            and len(sequence.tokens) >= len(self.context_ids) - 1
        )

    @property
    def prompt(self) -> list[int]:
        """The ids of the prompt, with that of the vocabulary in place of each image row's."""
        return PromptIds(self.all_token_ids[: self.num_prompt], self.prompt_images).to_vocabulary_ids()

    @property
    def vocabulary_ids(self) -> list[int]:
        """All ids outside of images."""
        ids, begin = list[int](), 0
        if not self.prompt_images:
            return self.all_token_ids
        for image in self.prompt_images:
            ids += self.all_token_ids[begin : image.start]
            begin = image.stop
        return ids + self.all_token_ids[begin:]

    @property
    def generated(self) -> list[int]:
        return self.all_token_ids[self.num_prompt :]

    @property
    def num_generated(self) -> int:
        return len(self.all_token_ids) - self.num_prompt

    def deliver_rows(self, position: int, rows: Rows) -> None:
        """Call `on_rows` with those rows from `position` on that it has not had yet. Changes the request."""
        begin = self.num_delivered
        self.num_delivered = max(begin, position + len(rows))  # before the call: no row is delivered twice
        if self.num_delivered > begin and self.on_rows is not None:
            self.on_rows(rows[begin - position :])

    def append_token(self, token: int, room: int) -> None:
        """Add a generated token; finish if it is a stop id, the last allowed one, or if no room is left after it."""
        token_ids, context_ids = self.all_token_ids, self.context_ids
        token_ids.append(token)
        if context_ids is not token_ids:
            context_ids.append(token)
        if token in self.stop_ids:
            self.finish_reason = "stop"
        elif len(token_ids) - self.num_prompt >= self.max_tokens:
            self.finish_reason = "length"
        elif len(context_ids) > room:
            if self.roll:
                self.roll_context(room)
            else:
                self.finish_reason = "length"

    def roll_context(self, room: int) -> None:
        """Drop tokens of a request that rolls if its context exceeds `room` positions: after the first quarter, as many
        halves of the room as are too much.

        The place of the next cut does not change while the text grows by less than a half, so that the KV of one turn
        of a conversation can be reused in the next. An image that would lose a part is dropped as a whole.
        """
        if not self.roll or len(self.context_ids) <= room:
            return
        begin = num_pinned_positions(room)
        half = max(1, room // 2)
        end = begin - (room - len(self.all_token_ids)) // half * half
        for image in self.prompt_images:
            begin = image.start if image.start < begin < image.stop else begin
            end = image.stop if image.start < end < image.stop else end
        self.num_dropped = end - begin
        self.context_ids = self.all_token_ids[:begin] + self.all_token_ids[end:]
        del self.page_hashes.hashes[begin // PAGE :]
        if self.prompt_images:
            self._move_images(begin, end)
        if not self.num_generated:
            self.num_context_prompt = len(self.context_ids)

    def _move_images(self, begin: int, end: int) -> None:
        """Place the images in a context without the positions from `begin` to `end` of the text."""
        self.needed_images = None
        computed = {image.key: image for image in self.images if image.rows is not None}
        moved = list[PromptImage]()
        for image in self.prompt_images:
            if image.stop <= begin or image.start >= end:
                start = image.start if image.stop <= begin else image.start - (end - begin)
                moved.append(replace(computed.get(image.key, image), start=start))
        self.images = tuple(moved)
        if self.rope_positions is not None:
            self.rope_positions = RopePositions(self.images)

    def __repr__(self) -> str:
        state = self.finish_reason or f"{self.num_computed} of {len(self.context_ids)} tokens computed"
        return f"Request({self.id}, prompt {self.num_prompt}, generated {self.num_generated}, {state})"
