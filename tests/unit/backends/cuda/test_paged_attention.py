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
    {"images": True},
    {"images": True, "window": 20, "sinks": True},
)
# Chunk, first and past-last position: in a draft, in the first tile of a chunk, over two of its tiles.
IMAGES = ((2, 296, 299), (3, 155, 160), (3, 170, 198))


def make_spans() -> Any:
    """Return the spans of the rows of CHUNKS."""
    import torch

    ends, spans = np.cumsum([chunk.rows for chunk in CHUNKS]), np.zeros((sum(chunk.rows for chunk in CHUNKS), 2))
    for index, first, stop in IMAGES:
        shift = ends[index] - CHUNKS[index].length
        spans[shift + first : shift + stop] = first, stop
    return torch.from_numpy(spans.astype(np.int32))


def attend(step: PagedStep, q: Any, cache: Any, attention: Any, options: dict[str, Any], *, rows: Any = None) -> Any:
    """`rows` are the places in this step of those of CHUNKS, or those of its rows that are in this step."""
    import torch

    from sporelm.backends.torch.step_context import STEP

    given = dict(options)
    numbers = [
        torch.linspace(0.1, 1, KV_HEADS * GROUP) if given.pop(name, False) else None for name in ("sinks", "slopes")
    ]
    if given.pop("images", False):
        spans = make_spans()
        if isinstance(rows, slice):
            spans = spans[rows]
        elif rows is not None:
            spans = torch.zeros(len(q), 2, dtype=torch.int32).index_copy_(0, rows, spans)
        numbers.append(spans)
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
    found = attend(padded, rows, cache, attention, options, rows=places)
    assert found.isfinite().all()
    torch.testing.assert_close(found[places], exact, rtol=2e-5, atol=2e-5)
    of_torch = attend(padded, rows, cache, plain, options, rows=places)
    torch.testing.assert_close(of_torch[places], exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "options"), [("float32", OPTIONS[1]), ("bfloat16", OPTIONS[0]), ("float32", OPTIONS[5])], ids=str
)
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
        assert torch.equal(attend(step.select(index), q[rows], cache, attention, options, rows=rows), whole[rows])
    monkeypatch.setattr(query_tiles, "MAX_PARTIAL_NUMBERS", 1)
    assert torch.equal(attend(step, q, cache, attention, options), whole)


def test_text_is_the_same_with_and_without_spans() -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.paged_attention import attention

    step, q, cache = make_inputs(torch.float32)
    with_images, without = (
        attend(step, q, cache, attention, {"window": 100, **more}) for more in ({"images": True}, {})
    )
    assert torch.equal(with_images[:2], without[:2]), "decoded rows"
    places = torch.cat([torch.arange(chunk.length - chunk.rows, chunk.length) for chunk in CHUNKS])
    sees_more = make_spans()[:, 1] > places + 1
    torch.testing.assert_close(with_images[~sees_more], without[~sees_more], rtol=2e-5, atol=2e-5)
    assert not torch.isclose(with_images[sees_more], without[sees_more]).all(dim=1).any()


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


def record(rows: int, kv: str, head_dim: int, group: int, *numbers: Any, **options: Any) -> Sequence[Any]:
    """Return the launches of one sequence with 8 heads of keys; `numbers` are further arguments."""
    import torch

    from sporelm.backends.cuda.paged_attention import attention

    q = torch.zeros(rows, 8 * group * head_dim, dtype=torch.bfloat16)
    cache = torch.zeros(8, 2, 8, 64, head_dim, dtype=getattr(torch, kv))
    pages = torch.zeros(1, 8, dtype=torch.int32)
    return record_launches(
        lambda: attention(q, cache, np.array([0, rows]), np.array([500]), pages, *numbers, scale=1.0, **options)
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


@pytest.mark.parametrize("card", CARDS)
def test_prompts_with_images_need_no_stack(card: int) -> None:
    require_compiler()
    import torch

    spans = torch.zeros(256, 2, dtype=torch.int32)
    [launch] = record(256, "bfloat16", 128, 4, None, None, spans, window=100)
    code = compile_launch(launch, card)
    assert code.uses_tensor_cores
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert any("128" in each.split()[0] for each in code.instructions("LDGSTS.E"))
    for each in record(1, "bfloat16", 128, 4, None, None, spans[:1], window=100):
        given = dict(zip(each.kernel.arg_names, each.args, strict=False))
        assert given["spans"] is None, "decoding has the kernels of text"
