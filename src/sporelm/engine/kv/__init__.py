"""Where the keys and values of positions are kept: pages, the sequences that hold them, and who gives way to whom."""

from sporelm.engine.kv.pages import PagePool
from sporelm.engine.kv.sequence import KvSequence
from sporelm.engine.kv.store import SequenceStore

__all__ = ["KvSequence", "PagePool", "SequenceStore"]
