"""Rows whose three rotary positions are equal are rotated as rows with one position, bit for bit: texts beside images
in one step, and the same texts alone."""

from typing import Any

import numpy as np
import pytest

from available import BACKENDS, open_available
from cpu_targets import TARGETS
from sporelm import ops
from sporelm.backends.cpu import CpuBackend
from sporelm.models.rotary import rope_table, sections, turns
from sporelm.ops.paged_attention import PAGE
from sporelm.tensor.dtype import F32

HEADS, ROWS = 3, 37
STREAMS = {
    20: {"sections": sections((4, 3, 3)), "turns": turns((4, 3, 3))},
    128: {"sections": sections((16, 24, 24)), "turns": turns((24, 20, 20))},
}
CASES = [(dim, kind) for dim in STREAMS for kind in STREAMS[dim]]
PLACES = [*((name, "") for name in BACKENDS), *(("cpu", target) for target in TARGETS[1:])]


def rotated(backend: Any, head_dim: int, streams: tuple[int, ...] | None) -> list[np.ndarray]:
    """Queries rotated alone, and queries and pages of the fused op."""
    rng = np.random.default_rng(head_dim)
    q, k, v = (rng.normal(0, 1, (ROWS, HEADS * head_dim)).astype(np.float32) for _ in range(3))
    places = rng.integers(0, 90, ROWS).astype(np.int32)
    positions = backend.tensor(places if streams is None else np.repeat(places[:, None], 3, axis=1))
    table = backend.tensor(rope_table(90, head_dim, 1e4))
    how: dict[str, Any] = {"head_dim": head_dim, "style": "half"} | ({} if streams is None else {"streams": streams})
    (cache,) = backend.allocate_pages(1, [(HEADS, head_dim)], F32)
    slots = backend.tensor(np.arange(ROWS, dtype=np.int32))
    alone = ops.rope(backend.tensor(q), positions, table, **how)
    fused = ops.rope_store(*(backend.tensor(x) for x in (q, k, v)), positions, table, cache, slots, **how)
    pages = backend.export_pages(cache, [0])
    assert ROWS < PAGE
    return [np.array(alone.numpy()), np.array(fused.numpy()), np.asarray(pages)[..., :ROWS, :]]


@pytest.mark.parametrize(("head_dim", "kind"), CASES)
@pytest.mark.parametrize(("name", "target"), PLACES)
def test_equal_positions_are_one(name: str, target: str, head_dim: int, kind: str) -> None:
    backend = CpuBackend(threads=1, target=target) if target else open_available(name)
    plain, streams = (rotated(backend, head_dim, each) for each in (None, STREAMS[head_dim][kind]))
    for one, three in zip(plain, streams, strict=True):
        np.testing.assert_array_equal(one, three)
    assert np.abs(plain[0]).max() > 1
    np.testing.assert_array_equal(plain[0], plain[1])
    backend.close()
