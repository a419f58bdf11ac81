"""Sparse multi-head latent attention: each row attends to the slots that an indexer selected."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_range
from sporelm.ops.canonical_pages import read_pages
from sporelm.ops.mla import check_latent_queries
from sporelm.ops.op import op, require
from sporelm.ops.paged_attention import PAGE
from sporelm.ops.spec import Spec
from sporelm.ops.topk_indexer import NO_SLOT


def _sparse_mla_spec(latent: Any, q: Any, cache: Any, chosen: Any, *, heads: int, scale: float) -> Spec:
    absorbed, slots = check_latent_queries(latent, q, cache, heads), check_ints("chosen", chosen, rank=2)
    require(absorbed.shape[0] == slots.shape[0], f"latent {absorbed} and chosen {slots} must have as many rows")
    return absorbed


def _check_slot_lists(latent: Any, q: Any, cache: Any, chosen: Any, **options: Any) -> None:
    slots = chosen.numpy()
    check_range("chosen", slots, NO_SLOT, cache.shape[0] * PAGE)
    there = slots != NO_SLOT
    packed = there[:, :1].all() and (there[:, 1:] <= there[:, :-1]).all()
    require(bool(packed), f"chosen must have a slot in each row, and {NO_SLOT} only behind the last one")


@op(_sparse_mla_spec, indices=_check_slot_lists)
def sparse_mla(latent, q, cache, chosen, *, heads, scale):
    """Attend to the latent rows in the selected slots: [tokens, heads * rank].

    latent, q, cache, heads and scale as in `latent_attention`. chosen int32 [tokens, k] lists slots in the order in
    which they are summed, then NO_SLOT. With all positions of a row the result equals `latent_attention`'s bit for bit.
    """
    rank, width = latent.shape[1] // heads, cache.shape[4]
    turned = q.reshape(len(q), heads, -1)[..., : width - rank]
    whole = np.concatenate([latent.reshape(len(q), heads, rank), turned], axis=2) * np.float32(scale)
    out = np.zeros((len(q), heads, rank), np.float32)
    for row, slots in enumerate(chosen):
        seen = slots[slots != NO_SLOT]
        used, where = np.unique(seen // PAGE, return_inverse=True)
        held = read_pages(cache, used)[where, 0, 0, seen % PAGE]
        scores = whole[row] @ held.T
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out[row] = weights / weights.sum(axis=-1, keepdims=True) @ held[:, :rank]
    return out.reshape(len(q), -1)
