"""RWKV's token shift through plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements


@implements(ops.mix_rows)
def mix_rows(x: Tensor, delta: Tensor, mixes: Sequence[Tensor], more: Sequence[Tensor] = ()) -> tuple[Tensor, ...]:
    each = [mix + given for mix, given in zip(mixes, more, strict=True)] if more else mixes
    return tuple(torch.addcmul(x, mix, delta) for mix in each)


@implements(ops.blend)
def blend(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    return x + (y - x) * gate.sigmoid()
