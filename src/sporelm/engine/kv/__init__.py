"""Where the keys and values of positions are kept: pages, the sequences that hold them, and who gives way to whom."""

from sporelm.engine.kv.pages import PagePool
from sporelm.engine.kv.sequence import KvSequence
from sporelm.engine.kv.stateful import StatefulStore
from sporelm.engine.kv.states import StatePool
from sporelm.engine.kv.store import Dormitory, SequenceStore

__all__ = ["KvSequence", "PagePool", "SequenceStore", "StatePool", "StatefulStore", "store_of"]


def store_of(pages: int, states: int, interval: int, dormitory: Dormitory | None = None) -> SequenceStore:
    """A store over so many pages, and recurrent states if the model keeps such; those that lie `interval` pages apart
    are kept for longer."""
    if not states:
        return SequenceStore(PagePool(pages), dormitory)
    return StatefulStore(PagePool(pages), StatePool(states), interval, dormitory)
