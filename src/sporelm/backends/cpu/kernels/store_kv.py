"""The store of keys and values. An item is one kv head of one token."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, i32, i64
from sporelm.backends.cpu.jit.kernel import parse_fields
from sporelm.backends.cpu.kernels.kv_pages import KvPages


def store_kv(target: Any, pages: KvPages) -> Kernel:
    """Store keys and values of one kv head of one token in its slot."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        with k.range(first, last) as item:
            token, head = item // f.kv_heads, item % f.kv_heads
            at = token * f.stride + head * (4 * pages.head_dim)
            slot = k.load(i32, f.slots, token * 4).sext(i64)
            pages.store(k, f.cache, f.page_bytes, slot, head, k.at(f.keys, at), k.at(f.values, at))

    return Kernel(
        f"store_kv_{pages.name}", parse_fields("keys:p values:p stride:i kv_heads:i cache:p page_bytes:i slots:p"), body
    )
