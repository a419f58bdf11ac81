"""Rows of latents and keys to their slots. An item is one token."""

from typing import Any

from sporelm.backends.cpu.jit import Builder, Kernel, Val, f32, i32, i64
from sporelm.backends.cpu.jit.kernel import fields
from sporelm.backends.cpu.kernels.latent_pages import LatentPages
from sporelm.backends.cpu.kernels.norm import norm_head
from sporelm.backends.cpu.kernels.rope import Turn


def store_latent(target: Any, pages: LatentPages, rank: int, turn: Turn) -> Kernel:
    """The first `rank` numbers are normed, the others rotated, if any are to be."""

    def body(k: Builder, f: Any, first: Val, last: Val, scratch: Val) -> None:
        for at in range(pages.width, pages.padded):
            k.store(k.const(f32, 0), scratch, 4 * at)
        with k.range(first, last) as token:
            row = k.at(f.x, token * f.x_stride)
            norm_head(k, row, scratch, f.weight, rank, f.eps)
            angles = turn.angles(k, f, token) if turn.rotary else {}
            turn.rotate(k, k.at(row, 4 * rank), k.at(scratch, 4 * rank), angles)
            slot = k.load(i32, f.slots, token * 4).sext(i64)
            pages.store(k, f.cache, f.page_bytes, slot, scratch)

    text = f"x:p x_stride:i weight:p {turn.fields if turn.rotary else ''} cache:p page_bytes:i slots:p eps:f"
    name = f"store_latent_{pages.name}_{rank}_{turn.name}"
    return Kernel(name, fields(text), body, scratch=4 * pages.padded)
