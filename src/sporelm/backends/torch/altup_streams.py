"""AltUp's streams through plain torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sporelm import ops
from sporelm.backends.torch.op_functions import implements
from sporelm.ops.altup_streams import MIN_MEAN_SQUARE


def _match_magnitude(x: Tensor, others: Sequence[Tensor]) -> list[Tensor]:
    target = x.square().mean(dim=-1, keepdim=True).sqrt()
    return [y * (target / y.square().mean(dim=-1, keepdim=True).clamp(min=MIN_MEAN_SQUARE).sqrt()) for y in others]


@implements(ops.spread_streams)
def spread_streams(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    return torch.stack([x, *_match_magnitude(x, others)], dim=1)


@implements(ops.merge_streams)
def merge_streams(x: Tensor, others: Sequence[Tensor]) -> Tensor:
    return torch.stack([x, *_match_magnitude(x, others)]).mean(dim=0)


@implements(ops.stream)
def stream(x: Tensor, *, index: int) -> Tensor:
    return x[:, index]


@implements(ops.altup_predict)
def altup_predict(x: Tensor, coefs: Tensor) -> Tensor:
    count = x.shape[1]
    return x + coefs.unflatten(1, (count, count)) @ x


@implements(ops.altup_first)
def altup_first(predictions: Tensor, activated: Tensor, coefs: Tensor, scale: Tensor) -> Tensor:
    first = predictions[:, 0]
    return (first + (activated - first) * (coefs[:, :1] + 1)) * scale


@implements(ops.altup_correct)
def altup_correct(predictions: Tensor, activated: Tensor, coefs: Tensor, added: Tensor) -> Tensor:
    found = (activated - predictions[:, 0]).unsqueeze(1)
    corrected = predictions + found * (coefs.unsqueeze(2) + 1)
    return torch.cat([corrected[:, :1], corrected[:, 1:] + added.unsqueeze(1)], dim=1)


@implements(ops.gaussian_topk)
def gaussian_topk(x: Tensor, *, factor: float) -> Tensor:
    mean = x.mean(dim=-1, keepdim=True)
    deviation = (x - mean).square().mean(dim=-1, keepdim=True).sqrt()
    return (x - (mean + deviation * factor)).relu()
