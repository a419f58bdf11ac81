"""Options that go to the back-end: dtype, strict and batch_invariant."""

from typing import Any

import numpy as np
import pytest

from sporelm import LLM, ops
from sporelm.api.engine_loader import open_device
from sporelm.backends import backend_registry
from sporelm.backends.reference import ReferenceBackend
from sporelm.errors import BackendError, RequestError
from sporelm.ops import Op


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_back_ends_of_the_host_compute_in_f32(name: str) -> None:
    for dtype in ("auto", "f32"):
        open_device(name, "cpu", 1, dtype).close()
    for dtype in ("f16", "bf16"):
        with pytest.raises(BackendError, match=rf"got dtype {dtype}; allowed auto, f32\). Leave out") as caught:
            open_device(name, "cpu", 1, dtype)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "", 4])
def test_other_number_types_are_refused(dtype: Any) -> None:
    with pytest.raises(RequestError, match="it must be one of auto, f32, f16, bf16"):
        LLM("nothing.gguf", dtype=dtype)


class WithoutAdd(ReferenceBackend):
    """A device without a kernel for one op."""

    name = "narrow"

    def __init__(self, threads: int | None = None, device: str = "cpu") -> None:
        super().__init__()

    def find_function(self, op: Op) -> Any:
        return None if op is ops.add else super().find_function(op)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backend_registry.OWN, "narrow", "unit.api.test_engine_options:WithoutAdd")


def test_a_number_type_is_refused_where_the_back_end_has_no_choice(narrow: None) -> None:
    open_device("narrow", "cpu", 1).close()
    with pytest.raises(
        BackendError, match=r"'narrow': no choice of data types \(got bf16\)\. Leave out the option dtype"
    ):
        open_device("narrow", "cpu", 1, "bf16")


def test_batch_invariance_is_refused_where_the_back_end_has_no_fixed_order(narrow: None) -> None:
    open_device("cpu", "cpu", 1, batch_invariant=True).close()
    with pytest.raises(BackendError, match="'narrow' has no fixed order of sums"):
        open_device("narrow", "cpu", 1, batch_invariant=True)


def test_strict_refuses_the_reference(narrow: None) -> None:
    x = np.ones((2, 3), np.float32)
    backend = open_device("narrow", "cpu", 1)
    assert ops.add(backend.tensor(x), backend.tensor(x)).numpy()[0, 0] == 2
    backend.close()
    backend = open_device("narrow", "cpu", 1, strict=True)
    with pytest.raises(BackendError, match=r"narrow has no kernel for add: .*\. Leave out the option strict"):
        ops.add(backend.tensor(x), backend.tensor(x))
    backend.close()
