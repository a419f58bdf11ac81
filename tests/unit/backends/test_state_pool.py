"""Pools of recurrent states: what is put into a state is there, copies are copies, and the others stay as they are."""

from collections.abc import Iterator

import numpy as np
import pytest

from available import open_available
from sporelm.backends.backend_registry import open_backend
from sporelm.backends.protocol import Backend
from sporelm.errors import BackendError, ContextError

LAYERS = [[(3, 5), (7,)], [(2, 3, 4)]]
SHAPES = [shape for layer in LAYERS for shape in layer]


@pytest.fixture(params=["cpu", "reference", "torch", "opencl"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made = open_available(request.param, threads=1)
    yield made
    made.close()


def test_states_hold_what_is_put_there_and_begin_with_zeros(backend: Backend) -> None:
    rng = np.random.default_rng(3)
    caches = backend.allocate_states(5, LAYERS)
    assert [[tensor.shape for tensor in cache] for cache in caches] == [[(5, 3, 5), (5, 7)], [(5, 2, 3, 4)]]
    given = [rng.standard_normal((3, *shape), np.float32) for shape in SHAPES]
    backend.import_states(caches, [4, 0, 2], given)
    for there, back in zip(given, backend.export_states(caches, [2, 4, 0]), strict=True):
        assert np.array_equal(there[[2, 0, 1]], back)
    assert not any(array.any() for array in backend.export_states(caches, [1, 3]))
    assert [array.shape for array in backend.export_states(caches, [])] == [(0, *shape) for shape in SHAPES]
    backend.free_states(caches)
    with pytest.raises(ContextError):
        backend.export_states(caches, [0])


def test_copies_are_made_one_after_the_other(backend: Backend) -> None:
    caches = backend.allocate_states(4, LAYERS)
    given = [np.arange(4, dtype=np.float32).repeat(np.prod(shape)).reshape(4, *shape) + 1 for shape in SHAPES]
    backend.import_states(caches, range(4), given)
    backend.copy_states(caches, [(0, 1), (1, 3), (2, 0)])
    for array in backend.export_states(caches, range(4)):
        assert array.reshape(4, -1)[:, 0].tolist() == [3, 1, 3, 1]
        assert (array.reshape(4, -1) == array.reshape(4, -1)[:, :1]).all()
    backend.free_states(caches)


def test_torch_makes_copies_at_once_where_their_order_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is launched ahead copies the state of each of its requests."""
    backend = open_available("torch", threads=1)
    import torch

    caches = backend.allocate_states(6, LAYERS)
    given = [np.random.default_rng(3).standard_normal((6, *shape), np.float32) for shape in SHAPES]
    backend.import_states(caches, range(6), given)
    copy, counts = torch.Tensor.index_copy_, list[int]()

    def count_rows(array: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        counts.append(len(index))
        return copy(array, dim, index, source)

    monkeypatch.setattr(torch.Tensor, "index_copy_", count_rows)
    backend.copy_states(caches, [(0, 3), (1, 4), (0, 5)])
    backend.copy_states(caches, [])
    assert counts == [3] * len(SHAPES)
    for before, after in zip(given, backend.export_states(caches, range(6)), strict=True):
        assert np.array_equal(after, before[[0, 1, 2, 0, 1, 0]])
    backend.free_states(caches)
    backend.close()


def test_a_state_has_the_bytes_that_are_counted(backend: Backend) -> None:
    numbers = sum(int(np.prod(shape)) for shape in SHAPES)
    assert 4 * numbers <= backend.state_bytes(LAYERS) <= 4 * numbers + 64 * len(SHAPES)


def test_a_pool_is_not_a_plain_tensor_on_the_cpu() -> None:
    cpu = open_backend("cpu", threads=1)
    caches = cpu.allocate_states(2, LAYERS)
    with pytest.raises(BackendError, match="Use export_pages"):
        caches[0][0].numpy()
    cpu.free_states(caches)
    cpu.close()
