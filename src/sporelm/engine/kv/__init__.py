"""The KV cache: pages of keys and values, recurrent states, the sequences that hold them, and where they are
offloaded."""

from sporelm.engine.kv.kv_cache import KvCache
from sporelm.engine.kv.kv_sequence import KvSequence
from sporelm.engine.kv.offload import OffloadStore

__all__ = ["KvCache", "KvSequence", "OffloadStore"]
