"""A back-end of functions as another package may have it: its `add_lora` goes adapter by adapter, as the reference
does, and takes the rows' adapters as an array of the host."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from sporelm.backends.torch import TorchBackend


def add_lora(y: torch.Tensor, x: torch.Tensor, which: Any, a: Iterable[Any], b: Iterable[Any]) -> torch.Tensor:
    assert isinstance(which, np.ndarray), "an argument of Op.host"
    result = y.clone()
    for number, (down, up) in enumerate(zip(a, b, strict=True)):
        rows = np.flatnonzero(which == number).tolist()
        if down is not None and rows:
            result[rows] += (x[rows] @ down.T) @ up
    return result


class PlainTorch(TorchBackend):
    """Without ops that take the arguments of `Op.host` on the device."""

    padded_ops = ()
    functions = {**TorchBackend.functions, "add_lora": add_lora}
