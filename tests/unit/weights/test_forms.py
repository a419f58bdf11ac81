"""Weights that files hold otherwise: brought into our form and written back they are the same numbers."""

from typing import Any

import numpy as np
import pytest

from sporelm.quant import F32, Q8_0, quantize_tensor
from sporelm.weights.forms import brought, held_as, stored_shapes
from sporelm.weights.names import Names, Param, Stored
from sporelm.weights.stored import StoredTensor

TURNED = np.array([2, 0, 3, 1])
FORMS = {
    "columns": (Stored("t", columns=lambda config: TURNED), (3, 4), (3, 4)),
    "rows and logarithms": (Stored("t", rows=lambda config: TURNED, log=True), (4,), (4,)),
    "an axis between": (Stored("t", transposed=True, between=True, columns=lambda config: TURNED), (3, 4), (4, 1, 3)),
    "a vector as a column": (Stored("t", between=True), (4,), (4, 1)),
    "a matrix as a vector": (Stored("t", flat=True), (3, 4), (12,)),
}


def stored(values: np.ndarray, order: Any = None, form: Any = F32) -> StoredTensor:
    return StoredTensor("t", form, values.shape, quantize_tensor(form, values).reshape(-1), order)


@pytest.mark.parametrize("name", FORMS)
def test_there_and_back(name: str) -> None:
    form, shape, held_shape = FORMS[name]
    weight = -1 - np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    table = (Names("w", form, form),)
    (held,) = held_as({"w": weight}, "hf", table, None).values()  # type: ignore[arg-type]
    assert held.shape == held_shape
    assert stored_shapes([Param("w", shape)], {"w": "t"}, lambda ours: form) == {"t": held_shape}
    found = brought(stored(held), form, None, shape).dequantize()  # type: ignore[arg-type]
    assert np.allclose(found, weight, rtol=1e-6)
    assert found.shape == shape


def test_decay_survives_the_round_trip_bit_for_bit() -> None:
    """Folders hold log(-decay), GGUF files decay: an error of either direction would be amplified by a recurrence."""
    logs = np.random.default_rng(0).uniform(-20, 20, 100_000).astype(np.float32)
    logs[:16] = np.log(np.arange(1, 17, dtype=np.float32))  # Mamba's own initial values
    form = Stored("t", log=True)
    decay = brought(stored(logs), form, None, logs.shape).dequantize()  # type: ignore[arg-type]
    (held,) = held_as({"w": decay}, "hf", (Names("w", form, form),), None).values()  # type: ignore[arg-type]
    again = brought(stored(held), form, None, logs.shape).dequantize()  # type: ignore[arg-type]
    assert np.array_equal(again, decay)


@pytest.mark.parametrize(
    "order", [None, np.random.RandomState(1).permutation(64).astype(np.int32)], ids=["", "act-order"]
)
def test_columns_of_blocks_stay_and_say_their_order(order: Any) -> None:
    """No number is rounded anew; what multiplies the weight is put in order instead."""
    index = np.random.RandomState(2).permutation(64)
    tensor = stored(np.random.RandomState(3).standard_normal((2, 64)).astype(np.float32), order, Q8_0)
    found = brought(tensor, Stored("t", columns=lambda config: index), None, (2, 64))  # type: ignore[arg-type]
    assert np.array_equal(found.dequantize(), tensor.dequantize()[:, index])
    assert np.array_equal(found.blocks, tensor.blocks)
