"""Latent attention: the kernel against torch in padded steps and in company, and its machine code for five cards."""

from typing import Any

import numpy as np
import pytest

from unit.backends.cuda.compiled_kernels import CARDS, SHARED_BYTES, compile_launch, record_launches, require_compiler
from unit.backends.cuda.paged_steps import Chunk, PagedStep, make_step, pad_step
from unit.backends.cuda.recurrent_ops import require_interpreter

HEADS, RANK, ROTARY, HEAD_DIM, BLOCK = 5, 40, 12, 20, 32
CHUNKS = (Chunk(1, 300), Chunk(1, 3), Chunk(5, 270), Chunk(37, 100))


def attend(step: PagedStep, latent: Any, q: Any, cache: Any, function: Any) -> Any:
    from sporelm.backends.torch.step_context import STEP

    with STEP.begin(BLOCK, False):
        return function(latent, q, cache, step.starts, step.lengths, step.pages, heads=HEADS, scale=HEAD_DIM**-0.5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_agree_with_torch_and_rows_do_not_depend_on_their_company(dtype: str) -> None:
    require_interpreter()
    import torch

    from sporelm.backends.cuda.mla import latent_attention
    from sporelm.backends.torch.mla import latent_attention as plain

    torch.manual_seed(0)
    kept = getattr(torch, dtype)
    step = make_step(CHUNKS)
    cache = torch.full((step.num_pages, 1, 1, 64, RANK + ROTARY), torch.nan)
    for table, chunk in zip(step.pages, CHUNKS, strict=True):
        for start in range(0, chunk.length, 64):
            count = min(64, chunk.length - start)
            cache[table[start // 64], 0, 0, :count] = torch.randn(count, RANK + ROTARY)
    cache = cache.to(kept)
    rows = [torch.randn(step.num_rows, HEADS * width).to(kept) for width in (RANK, HEAD_DIM)]
    found = attend(step, *rows, cache, latent_attention)
    rounding = 2e-5 if dtype == "float32" else 2e-2
    torch.testing.assert_close(found, attend(step, *rows, cache, plain), rtol=rounding, atol=rounding)
    for index in range(len(CHUNKS)):
        own = slice(int(step.starts[index]), int(step.starts[index + 1]))
        alone = attend(step.select(index), *(each[own] for each in rows), cache, latent_attention)
        assert torch.equal(alone, found[own])
    padded, places = pad_step(step, CHUNKS, BLOCK, decodes=3, blocks=4)
    cache[padded.dump_page, :, :, 0] = 1
    more = [torch.zeros(padded.num_rows, each.shape[1], dtype=kept) for each in rows]
    for target, each in zip(more, rows, strict=True):
        target[places] = each
    whole = attend(padded, *more, cache, latent_attention)
    assert whole.isfinite().all()
    torch.testing.assert_close(whole[places], found, rtol=rounding, atol=rounding)  # the last block is split


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("rows", "heads"), [(1, 16), (1, 128), (256, 16)])
def test_tiles_fit_each_card(card: int, rows: int, heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shapes of DeepSeek-V2-Lite and V3: 512 latent numbers and 64 rotated ones."""
    require_compiler()
    import torch

    from sporelm.backends.cuda import mla

    monkeypatch.setattr(mla, "_has_large_tiles", lambda device: card == 90)
    kept = torch.bfloat16
    latent, q = torch.zeros(rows, heads * 512, dtype=kept), torch.zeros(rows, heads * 192, dtype=kept)
    cache, pages = torch.zeros(8, 1, 1, 64, 576, dtype=kept), torch.zeros(1, 8, dtype=torch.int32)
    step = np.array([0, rows]), np.array([500]), pages
    launches = record_launches(lambda: mla.latent_attention(latent, q, cache, *step, heads=heads, scale=1.0))
    code = compile_launch(launches[0], card)
    assert code.stack_bytes == 0
    assert code.shared_bytes <= SHARED_BYTES[card]
    assert code.uses_tensor_cores
    assert any("128" in each.split()[0] for each in code.instructions("LDGSTS.E"))


@pytest.mark.parametrize("card", CARDS)
def test_one_launch_applies_the_norm_rotates_and_stores(card: int) -> None:
    require_compiler()
    import torch

    from sporelm.backends.cuda.mla import store_latent

    x, places = torch.zeros(4, 576, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int32)
    cache, table = torch.zeros(8, 1, 1, 64, 576, dtype=torch.bfloat16), torch.zeros(64, 64)
    [launch] = record_launches(
        lambda: store_latent(x, torch.ones(512), places, table, cache, places, eps=1e-6, style="half")
    )
    code = compile_launch(launch, card)
    assert code.stack_bytes == 0
    assert code.registers <= 64
