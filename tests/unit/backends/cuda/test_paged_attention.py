"""Attention over pages: kernels against torch in padded steps and in company, and their machine code for five cards."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.paged_steps import Chunk, PagedStep, make_step, pad_step
from unit.backends.cuda.recurrent_ops import require_interpreter

KV_HEADS, GROUP, HEAD_DIM, BLOCK = 2, 3, 26, 32
# Rows and lengths: decoded rows over one and three splits, a draft, a chunk over two of its tiles.
CHUNKS = (Chunk(1, 530), Chunk(1, 3), Chunk(5, 300), Chunk(47, 200))
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"window": 100, "sinks": True},
    {"chunk": 90, "slopes": True},
    {"softcap": 2.0},
)


def attend(step: PagedStep, q: Any, cache: Any, attention: Any, options: dict[str, Any]) -> Any:
    import torch

    from sporelm.backends.torch.step_context import STEP

    given = dict(options)
    numbers = [
        torch.linspace(0.1, 1, KV_HEADS * GROUP) if given.pop(name, False) else None for name in ("sinks", "slopes")
    ]
    with STEP.begin(BLOCK, False):
        return attention(q, cache, step.starts, step.lengths, step.pages, *numbers, scale=HEAD_DIM**-0.5, **given)


def make_inputs(dtype: Any) -> tuple[PagedStep, Any, Any]:
    """Return a step, its queries, and a cache with NaN where no sequence has positions."""
    import torch

    torch.manual_seed(0)
    step = make_step(CHUNKS)
    cache = torch.full((step.num_pages, 2, KV_HEADS, 64, HEAD_DIM), torch.nan)
    for table, chunk in zip(step.pages, CHUNKS, strict=True):
        for start in range(0, chunk.length, 64):
            count = min(64, chunk.length - start)
            cache[table[start // 64], :, :, :count] = torch.randn(2, KV_HEADS, count, HEAD_DIM)
    return step, torch.randn(step.num_rows, KV_HEADS * GROUP * HEAD_DIM).to(dtype), cache.to(dtype)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_padded_steps_agree_with_torch(options: dict[str, Any]) -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.paged_attention import attention
    from sporelm.backends.torch.paged_attention import attention as plain

    step, q, cache = make_inputs(torch.float32)
    expected = attend(step, q, cache, plain, options)
    exact = attend(step, q, cache, attention, options)
    torch.testing.assert_close(exact, expected, rtol=2e-5, atol=2e-5)
    padded, places = pad_step(step, CHUNKS, BLOCK, decodes=4, blocks=5)
    cache[padded.dump_page, :, :, 0] = 1
    rows = torch.zeros(padded.num_rows, q.shape[1])
    rows[places] = q
    found = attend(padded, rows, cache, attention, options)
    assert found.isfinite().all()
    torch.testing.assert_close(found[places], exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("dtype", "options"), [("float32", OPTIONS[1]), ("bfloat16", OPTIONS[0])], ids=str)
def test_rows_do_not_depend_on_their_company(
    dtype: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, also where partial results are computed in parts to bound their memory."""
    require_interpreter()
    import torch

    from sporelm.backends.cuda import query_tiles
    from sporelm.backends.cuda.paged_attention import attention

    step, q, cache = make_inputs(getattr(torch, dtype))
    whole = attend(step, q, cache, attention, options)
    for index in range(len(CHUNKS)):
        rows = slice(int(step.starts[index]), int(step.starts[index + 1]))
        assert torch.equal(attend(step.select(index), q[rows], cache, attention, options), whole[rows])
    monkeypatch.setattr(query_tiles, "MAX_PARTIAL_NUMBERS", 1)
    assert torch.equal(attend(step, q, cache, attention, options), whole)


def test_parts_of_a_prompt_agree_with_the_whole() -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.paged_attention import attention

    _, q, cache = make_inputs(torch.float32)
    pages = make_step(CHUNKS).pages[:1]
    rows = q[:40]

    def attend_to(first: int, stop: int) -> Any:
        step = PagedStep(np.array([0, stop - first]), np.array([260 + stop]), pages, len(cache), 0)
        return attend(step, rows[first:stop], cache, attention, {})

    parts = [attend_to(first, stop) for first, stop in ((0, 20), (20, 23), (23, 24), (24, 40))]
    torch.testing.assert_close(torch.cat(parts), attend_to(0, 40), rtol=2e-5, atol=2e-5)


def record(rows: int, kv: str, head_dim: int, group: int, **options: Any) -> Sequence[Any]:
    """Return the launches of one sequence with 8 heads of keys."""
    import torch

    from sporelm.backends.cuda.paged_attention import attention

    q = torch.zeros(rows, 8 * group * head_dim, dtype=torch.bfloat16)
    cache = torch.zeros(8, 2, 8, 64, head_dim, dtype=getattr(torch, kv))
    pages = torch.zeros(1, 8, dtype=torch.int32)
    return record_launches(
        lambda: attention(q, cache, np.array([0, rows]), np.array([500]), pages, scale=1.0, **options)
    )


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("kv", ["bfloat16", "float8_e4m3fn"])
def test_decoding_streams_pages_in_the_background(card: int, kv: str) -> None:
    """Asynchronous copies of 16 bytes a thread, or 8 of FP8, keep the memory busy while products are computed."""
    require_compiler()
    launch, merge = record(1, kv, 128, 4)
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.registers <= 168
    assert code.shared_bytes <= SHARED_BYTES[card] // 2, "two programs on a processor at least"
    assert code.uses_tensor_cores
    copies = code.instructions("LDGSTS.E")
    assert len([each for each in copies if "128" in each.split()[0] or ".64" in each.split()[0]]) >= 8
    assert kv != "bfloat16" or any("128" in each.split()[0] for each in copies)
    assert not any("LDG.E.U" in each for each in code.instructions("LDG.E.U"))
    if kv == "bfloat16":
        code = compile_launch(merge, card)
        assert code.stack_bytes == 0
        assert code.registers <= 64
        assert code.instructions("LDG.E.128")


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_prompts_are_products_on_tensor_cores(card: int, head_dim: int) -> None:
    require_compiler()
    [launch] = record(256, "bfloat16", head_dim, 4)
    code = compile_launch(launch, card)
    assert code.uses_tensor_cores
    assert card != 90 or code.instructions("HGMMA")
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert any("128" in each.split()[0] for each in code.instructions("LDGSTS.E"))
