"""Embedding lookup through plain torch."""

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.backends.torch.quantized_linear import TorchWeight


@implements(ops.embedding)
def embedding(ids: Tensor, table: TorchWeight, *, fills: bool = False) -> Tensor:
    known = (ids >= 0) & (ids < table.shape[0])
    found = table.values.index_select(0, ids.masked_fill(~known, 0))
    return found if fills else found.masked_fill(~known.unsqueeze(1), torch.nan)
