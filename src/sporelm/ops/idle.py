"""Experts that compute nothing: a token that chose some adds itself in their place (Meituan 2025, "LongCat-Flash")."""

from typing import Any

import numpy as np

from sporelm.ops.arguments import ints, rows
from sporelm.ops.op import op, require
from sporelm.ops.spec import Spec
from sporelm.tensor.dtype import F32, I32


def _parted(shares: Any, ids: Any, *, experts: int) -> tuple[Spec, Spec, Spec]:
    given, chosen = rows("shares", shares), ints("ids", ids, 2)
    require(given.shape == chosen.shape, f"shares {given} and ids {chosen} must be of one shape")
    require(experts >= 1, f"experts {experts} must be 1 or more")
    return Spec(given.shape, F32), Spec(given.shape, I32), Spec((given.shape[0], 1), F32)


@op(_parted)
def part_idle(shares, ids, *, experts):  # shares float32 [tokens, k], ids int32 [tokens, k], as `route` gives them
    """What of each token's choice computes, and how much does not.

    Experts from number `experts` on are idle. Gives shares, 0 for those; ids, for those the first of the token's that
    computes, or 0, so that no other matrix is read; and the sum of the idle shares, in order, [tokens, 1].
    """
    idle, total = ids >= experts, np.zeros(len(ids), np.float32)
    for slot in range(ids.shape[1]):
        total = total + np.where(idle[:, slot], shares[:, slot], np.float32(0))
    first = np.where(idle.all(axis=1), 0, np.take_along_axis(ids, idle.argmin(axis=1)[:, None], axis=1)[:, 0])
    kept = np.where(idle, first[:, None], ids).astype(np.int32)
    return np.where(idle, np.float32(0), shares), kept, total[:, None].astype(np.float32)
