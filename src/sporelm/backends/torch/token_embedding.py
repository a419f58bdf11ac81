"""Embedding lookup through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.torch_weight import TorchWeight


@implements(ops.embedding, is_narrow=True)
def embedding(ids: Tensor, table: TorchWeight, *, fills: bool = False, first: int | None = None) -> Tensor:
    ids = ids - (first or 0)
    is_known = (ids >= 0) & (ids < table.shape[0])
    found = table.select(ids.masked_fill(~is_known, 0))
    return found if fills else found.masked_fill_(~is_known.unsqueeze(1), torch.nan if first is None else 0)
