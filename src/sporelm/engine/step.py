"""A step: what one run of the model computes. Plain data, to be logged, replayed and sent to other ranks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Part(NamedTuple):
    """One sequence's share of a step: `tokens` from `position` on, the logits of the last `rows` of them wanted.

    `adapter` is the number of an adapter that is loaded, 0 for none; `state` the slot of its recurrent states.
    """

    request: int
    tokens: Sequence[int]
    position: int
    pages: tuple[int, ...]  # the page table of the sequence, long enough for position + len(tokens)
    rows: int
    adapter: int = 0
    state: int = 0


class Step(NamedTuple):
    """The parts that run together, and the pages (source, target) to copy before any of them writes, in order; and so
    the recurrent states."""

    parts: list[Part]
    copies: list[tuple[int, int]]
    state_copies: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(part.tokens) for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """As values that JSON knows."""
        parts = [part._asdict() | {"tokens": list(part.tokens), "pages": list(part.pages)} for part in self.parts]
        copies = {"copies": self.copies} | ({"state_copies": self.state_copies} if self.state_copies else {})
        return {"parts": parts} | {name: [list(pair) for pair in pairs] for name, pairs in copies.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Step":
        """What `to_json` gave, as a step again."""
        parts = [Part(**{**part, "pages": tuple(part["pages"])}) for part in values["parts"]]
        copies, state_copies = ([(a, b) for a, b in values.get(key, ())] for key in ("copies", "state_copies"))
        return cls(parts, copies, tuple(state_copies))
