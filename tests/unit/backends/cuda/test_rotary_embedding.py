"""Rope and writes to pages: each kind of pages against torch, and machine code for five cards."""

from typing import Any

import pytest

from unit.backends.cuda.compiled_kernels import CARDS, compile_launch, record_launches, require_compiler
from unit.backends.cuda.recurrent_ops import require_interpreter

PAGES, KV_HEADS, HEAD_DIM = 2, 3, 40


def make_cache(kv: str, kv_heads: int, head_dim: int) -> Any:
    import torch

    from sporelm.ops.canonical_pages import BlockPages

    shape = (PAGES, 2, kv_heads, 64, head_dim)
    if kv == "q8_0":
        return BlockPages(torch.zeros(*shape[:-1], -(-head_dim // 32) * 34, dtype=torch.uint8), shape)
    return torch.zeros(shape).to(getattr(torch, kv))


@pytest.mark.parametrize("kv", ["float32", "bfloat16", "float8_e4m3fn", "q8_0"])
def test_rows_are_rounded_to_pages_as_by_torch(kv: str) -> None:
    """Numbers of any size, halves between two, and where they have a meaning also infinite ones and NaN."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.paged_attention import store_kv
    from sporelm.backends.torch.paged_attention import store_kv as plain
    from sporelm.backends.torch.torch_pages import cache_bits

    torch.manual_seed(0)
    rows = torch.randn(9, KV_HEADS * HEAD_DIM) * 2.0 ** torch.randint(-24, 14, (9, KV_HEADS * HEAD_DIM))
    rows[1:3] = torch.arange(2 * KV_HEADS * HEAD_DIM).view(2, -1) / 2
    rows[3] *= 0
    rows[5, :3] = torch.tensor([0.0625, 0.01562, 2.0**-10])
    if kv != "q8_0":
        rows[4, :4] = torch.tensor([torch.inf, -torch.inf, 1e9, torch.nan])
    slots = torch.randperm(PAGES * 64, dtype=torch.int32)[:9]
    caches = [make_cache(kv, KV_HEADS, HEAD_DIM) for _ in range(2)]
    for function, cache in zip((plain, store_kv), caches, strict=True):
        function(rows.flip(0).contiguous(), rows, cache, slots)
    expected, found = (cache_bits(cache).flatten(0, 3) for cache in caches)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("style", ["half", "adjacent", "halves"])
def test_part_of_a_head_is_rotated_in_strided_rows(style: str) -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.rotary_embedding import rope_store
    from sporelm.backends.torch.rotary_embedding import rope_store as plain
    from sporelm.backends.torch.torch_pages import cache_bits

    torch.manual_seed(1)
    q, k, v = torch.randn(5, 12 * HEAD_DIM).split([6 * HEAD_DIM, 3 * HEAD_DIM, 3 * HEAD_DIM], dim=1)
    table, positions = torch.randn(50, 24), torch.tensor([0, 3, 49, 7, 7], dtype=torch.int32)
    slots = torch.randperm(PAGES * 64, dtype=torch.int32)[:5]
    caches = [make_cache("float16", KV_HEADS, HEAD_DIM) for _ in range(2)]
    rotated = [
        function(q, k, v, positions, table, cache, slots, head_dim=HEAD_DIM, style=style)
        for function, cache in zip((plain, rope_store), caches, strict=True)
    ]
    torch.testing.assert_close(rotated[1], rotated[0])
    torch.testing.assert_close(cache_bits(caches[1]), cache_bits(caches[0]))


def test_equal_positions_are_one() -> None:
    """Rows with three equal positions, as those of texts beside images: the bits of rows with one (M-RoPE)."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda.rotary_embedding import rope_store
    from sporelm.backends.torch.torch_pages import cache_bits

    torch.manual_seed(2)
    q, k, v = torch.randn(5, 12 * HEAD_DIM).split([6 * HEAD_DIM, 3 * HEAD_DIM, 3 * HEAD_DIM], dim=1)
    table, positions = torch.randn(50, HEAD_DIM), torch.tensor([0, 3, 49, 7, 7], dtype=torch.int32)
    slots = torch.randperm(PAGES * 64, dtype=torch.int32)[:5]
    caches = [make_cache("float16", KV_HEADS, HEAD_DIM) for _ in range(2)]
    how: dict[str, Any] = {"head_dim": HEAD_DIM, "style": "half"}
    one = rope_store(q, k, v, positions, table, caches[0], slots, **how)
    thrice, streams = positions[:, None].repeat(1, 3), tuple(pair % 3 for pair in range(HEAD_DIM // 2))
    three = rope_store(q, k, v, thrice, table, caches[1], slots, **how, streams=streams)
    torch.testing.assert_close(three, one, rtol=0, atol=0)
    torch.testing.assert_close(cache_bits(caches[1]), cache_bits(caches[0]), rtol=0, atol=0)


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("kv", ["bfloat16", "float8_e4m3fn", "q8_0"])
def test_one_launch_rotates_and_stores(card: int, kv: str) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.rotary_embedding import rope_store

    q, k, v = (torch.zeros(4, heads * 128, dtype=torch.bfloat16) for heads in (32, 8, 8))
    places = torch.zeros(4, dtype=torch.int32)
    cache = make_cache(kv, 8, 128)
    [launch] = record_launches(
        lambda: rope_store(q, k, v, places, torch.zeros(64, 128), cache, places, head_dim=128, style="half")
    )
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.registers <= 96
    assert code.instructions("LDG.E.128")
    assert code.instructions("STG.E.128")
