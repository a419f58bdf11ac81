"""A step: the input of one run of the model. Plain data, to be logged, replayed and sent to other ranks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sporelm.engine.prompt_images import IMAGE_IDS, ScheduledImage
from sporelm.errors import RequestError

UNKNOWN = -1  # in place of an id: the token that the step in flight samples for the same request
# The tokens of a sequence with such an id, which has no other. The scheduler finds them by identity; a step that was
# read or sent has a copy, so the runner compares ids.
UNKNOWN_TOKENS = (UNKNOWN,)


class ScheduledSequence(NamedTuple):
    """One sequence's share of a step: `tokens` from `position` on; outputs are computed for the last `num_outputs`."""

    request_id: int
    tokens: Sequence[int]
    position: int
    page_table: tuple[int, ...]  # long enough for position + len(tokens)
    num_outputs: int
    adapter_id: int = 0  # 0: no adapter
    state_slot: int = 0  # of its recurrent states
    is_sampled: bool = True  # whether tokens are sampled from its outputs
    images: tuple[ScheduledImage, ...] = ()  # whose rows are among the tokens
    rope_positions: NDArray[np.int32] | None = None  # [tokens, 3], behind or in an image of a model that has them

    def to_json(self) -> dict[str, Any]:
        """Return the values under the keys of recordings, which are older than the field names."""
        values: dict[str, Any] = {
            "request": self.request_id,
            "tokens": list(self.tokens),
            "position": self.position,
            "pages": list(self.page_table),
            "rows": self.num_outputs,
            "adapter": self.adapter_id,
            "state": self.state_slot,
        }
        if not self.is_sampled:
            values["sampled"] = False
        if self.images:  # without their values
            values["images"] = [[each.first, len(each.values), each.start, each.stop] for each in self.images]
        if self.rope_positions is not None:
            values["rope_positions"] = self.rope_positions.tolist()
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ScheduledSequence":
        """Return what `to_json` wrote; earlier versions wrote neither "adapter" nor "state" nor "sampled".

        Raises RequestError for a sequence with rows of images, whose values are not recorded.
        """
        if values.get("images"):
            raise RequestError("the recording holds images, whose rows are not recorded: it cannot be replayed")
        rope_positions = values.get("rope_positions")
        return cls(
            request_id=values["request"],
            tokens=values["tokens"],
            position=values["position"],
            page_table=tuple(values["pages"]),
            num_outputs=values["rows"],
            adapter_id=values.get("adapter", 0),
            state_slot=values.get("state", 0),
            is_sampled=values.get("sampled", True),
            rope_positions=None if rope_positions is None else np.array(rope_positions, np.int32),
        )


def vocabulary_ids(scheduled: ScheduledSequence) -> Sequence[int] | NDArray[np.int32]:
    """Return the tokens of a sequence with 0 in place of the ids of image rows."""
    if not scheduled.images:
        return scheduled.tokens
    ids = np.array(scheduled.tokens, np.int64)
    return np.where(ids < IMAGE_IDS, ids, 0).astype(np.int32)


class Step(NamedTuple):
    """The sequences that run together, and the pages and states that are copied, in order, before anything writes."""

    sequences: list[ScheduledSequence]  # the sampled ones first
    copies: list[tuple[int, int]]  # pages: (source, target)
    state_copies: tuple[tuple[int, int], ...] = ()

    @property
    def has_images(self) -> bool:
        """Whether the step needs the inputs of images."""
        return any(scheduled.images or scheduled.rope_positions is not None for scheduled in self.sequences)

    @property
    def num_tokens(self) -> int:
        return sum([len(scheduled.tokens) for scheduled in self.sequences])

    @property
    def num_outputs(self) -> int:
        return sum([scheduled.num_outputs for scheduled in self.sequences])

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON values, under the keys of recordings."""
        values: dict[str, Any] = {"parts": [scheduled.to_json() for scheduled in self.sequences]}
        values["copies"] = [list(pair) for pair in self.copies]
        if self.state_copies:
            values["state_copies"] = [list(pair) for pair in self.state_copies]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Step":
        """Return the step that `to_json` wrote."""
        sequences = [ScheduledSequence.from_json(each) for each in values["parts"]]
        copies, state_copies = ([(a, b) for a, b in values.get(key, ())] for key in ("copies", "state_copies"))
        return cls(sequences, copies, tuple(state_copies))
