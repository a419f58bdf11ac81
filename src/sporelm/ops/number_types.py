"""The types in which a back-end keeps and computes real numbers (ADR 0044).

A graph's F32 means "real numbers". A back-end declares for each op in which type it returns the results and in which it
adds up. Conformance takes its tolerance from that.
"""

from dataclasses import dataclass

from sporelm.tensor.dtype import BF16, F16, F32, DType

# Half the distance from 1 to the next number: the relative error of one rounding to nearest.
UNIT_ROUNDOFF: dict[DType, float] = {F32: 2.0**-24, F16: 2.0**-11, BF16: 2.0**-8}
DTYPE_OPTIONS = ("auto", "f32", "f16", "bf16", "fp8")  # the values of --dtype
ORDER_TOLERANCE = 1e-5  # of float32 sums of the same numbers in another order
ROUNDINGS = 3  # of a result: of the op, and of the two values that a fused gated product has inside


@dataclass(frozen=True)
class NumberTypes:
    """The types of one op: `activation` of its results, `accumulation` of the sums inside it.

    sum_roundings   of such a sum, as a multiple of one: about the square root of the terms that are added in that type
    """

    activation: DType = F32
    accumulation: DType = F32
    sum_roundings: int = ROUNDINGS

    @property
    def tolerance(self) -> float:
        """Return the error allowed against the reference on the same inputs, as a share of the greatest result."""
        kept = 0.0 if self.activation is F32 else ROUNDINGS * UNIT_ROUNDOFF[self.activation]
        added = 0.0 if self.accumulation is F32 else self.sum_roundings * UNIT_ROUNDOFF[self.accumulation]
        return max(ORDER_TOLERANCE, kept, added)
