"""Zero-computation experts (Meituan 2025, "LongCat-Flash"): a token adds itself in place of an expert's result."""

from typing import Any

import numpy as np

from sporelm.ops.argument_checks import check_ints, check_rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32, I32


def _split_zero_experts_spec(weights: Any, ids: Any, *, experts: int) -> tuple[Spec, Spec, Spec]:
    given, chosen = check_rows("weights", weights), check_ints("ids", ids, 2)
    require(given.shape == chosen.shape, f"weights {given} and ids {chosen} must be of one shape")
    require(experts >= 1, f"experts {experts} must be 1 or more")
    return Spec(given.shape, F32), Spec(given.shape, I32), Spec((given.shape[0], 1), F32)


@op(_split_zero_experts_spec)
def split_zero_experts(weights, ids, *, experts):  # weights float32 [tokens, k], ids int32 [tokens, k], as from `route`
    """Split each token's experts into computing experts and zero-computation experts.

    Experts from number `experts` on do not compute. Returns the weights, 0 for those experts; ids, where those experts
    are replaced by the token's first expert that computes, or 0, so that no further matrix is read; and the sum of
    their weights, in order, [tokens, 1].
    """
    idle, total = ids >= experts, np.zeros(len(ids), np.float32)
    for slot in range(ids.shape[1]):
        total = total + np.where(idle[:, slot], weights[:, slot], np.float32(0))
    first = np.where(idle.all(axis=1), 0, np.take_along_axis(ids, idle.argmin(axis=1)[:, None], axis=1)[:, 0])
    kept = np.where(idle, first[:, None], ids).astype(np.int32)
    return np.where(idle, np.float32(0), weights), kept, total[:, None].astype(np.float32)
