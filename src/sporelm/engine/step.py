"""A step: the input of one run of the model. Plain data, to be logged, replayed and sent to other ranks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ScheduledSequence":
        """Return what `to_json` wrote; earlier versions wrote neither "adapter" nor "state" nor "sampled"."""
        return cls(
            request_id=values["request"],
            tokens=values["tokens"],
            position=values["position"],
            page_table=tuple(values["pages"]),
            num_outputs=values["rows"],
            adapter_id=values.get("adapter", 0),
            state_slot=values.get("state", 0),
            is_sampled=values.get("sampled", True),
        )


class Step(NamedTuple):
    """The sequences that run together, and the pages and states that are copied, in order, before anything writes."""

    sequences: list[ScheduledSequence]  # the sampled ones first
    copies: list[tuple[int, int]]  # pages: (source, target)
    state_copies: tuple[tuple[int, int], ...] = ()

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
