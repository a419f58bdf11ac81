"""Our rotary embedding in the place of the function `apply_rotary_pos_emb` of a model's module.

transformers has no registry for it without the package `kernels`, so the name in the module is bound to ours. A module
is shared by all models of its architecture: the function is put back when the last of them is undone.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sporelm.adaptors.torch import rotary
from sporelm.adaptors.transformers.swapped_modules import is_close

FUNCTION = "apply_rotary_pos_emb"
_USES: dict[str, int] = {}  # accelerated models by module


def swap_rotary(model: Any) -> Iterator[tuple[str, str, Callable[[], None]]]:
    """Swap the function of each module that the model's attention comes from.

    Yields the function's name, the reason where it stays as it is, and a function that puts it back.
    """
    names = {type(module).__module__ for module in model.modules() if type(module).__name__.endswith("Attention")}
    for name in sorted(names):
        module = sys.modules[name]
        before = getattr(module, FUNCTION, None)
        if before is None:
            continue
        label = f"{name.rpartition('.')[2]}.{FUNCTION}"
        original = getattr(before, "original", before)
        if reason := find_rotary_obstacle(original):
            yield label, reason, _keep
            continue
        _USES[name] = _USES.get(name, 0) + 1
        if original is before:
            setattr(module, FUNCTION, _swapped(original))
        yield label, "", partial(_put_back, module, name, original)


def _keep() -> None:
    """Put nothing back."""


def _put_back(module: Any, name: str, original: Any) -> None:
    _USES[name] -= 1
    if not _USES[name]:
        setattr(module, FUNCTION, original)


def find_rotary_obstacle(function: Any) -> str:
    """Return why a function is not our rotation by halves; "" if it is. Tries it on random heads."""
    q, k = torch.randn(2, 3, 4, 16), torch.randn(2, 1, 4, 16)
    angles = torch.randn(2, 4, 8)
    cos, sin = (torch.cat((each, each), dim=-1) for each in (angles.cos(), angles.sin()))
    try:
        expected = function(q, k, cos, sin)
        same = all(map(is_close, _rotate(q, k, cos, sin, 1), expected))
    except Exception as error:  # another signature
        return f"it takes other arguments ({type(error).__name__})"
    return "" if same else "it does not rotate halves of the whole head"


def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int) -> tuple[Tensor, Tensor]:
    half = cos.shape[-1] // 2
    cos, sin = cos[..., :half], sin[..., :half]
    if unsqueeze_dim == 2:
        return rotary(q, cos, sin), rotary(k, cos, sin)
    return rotary(q.transpose(1, 2), cos, sin).transpose(1, 2), rotary(k.transpose(1, 2), cos, sin).transpose(1, 2)


def _swapped(original: Any) -> Any:
    """Return a function with the original's arguments that calls our kernel where it applies."""

    def apply_rotary_pos_emb(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1, **options: Any
    ) -> Any:
        plain = q.dim() == 4 and cos.dim() == 3 and cos.shape[-1] == q.shape[-1] and unsqueeze_dim in (1, 2)
        if options or not plain or cos.shape[0] not in (1, q.shape[0]):
            return original(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim, **options)
        return _rotate(q, k, cos, sin, unsqueeze_dim)

    apply_rotary_pos_emb.original = original  # type: ignore[attr-defined]
    return apply_rotary_pos_emb
