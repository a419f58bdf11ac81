"""The tolerance of conformance follows from the declared types."""

from sporelm import ops
from sporelm.backends.reference import ReferenceBackend
from sporelm.ops.number_types import NumberTypes
from sporelm.tensor.dtype import BF16, F16


def test_float32_is_compared_as_before() -> None:
    assert NumberTypes().tolerance == 1e-5


def test_narrower_types_allow_their_roundings() -> None:
    assert NumberTypes(activation=F16).tolerance == 3 * 2.0**-11
    assert NumberTypes(activation=BF16).tolerance == 3 * 2.0**-8
    assert NumberTypes(accumulation=BF16).tolerance == 3 * 2.0**-8


def test_the_reference_keeps_float32() -> None:
    backend = ReferenceBackend()
    assert {backend.number_types(op) for op in ops.ALL.values()} == {NumberTypes()}
