"""The records that dlinfer's callers pass to its ops for experts (`dlinfer/utils/type_annotation.py`)."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from torch import Tensor


class MoECommType(Enum):
    """How devices exchange tokens and experts."""

    NAIVE = auto()
    ALLGATHER = auto()
    ALLTOALL = auto()
    MC2 = auto()
    TP = auto()
    UNDEFINED = auto()


@dataclass
class MoeMetadata:
    """The parallel layout of a step's experts. Only one device (`ep_size` 1) is supported here."""

    max_tokens_across_dp: int = 1
    pad_size: int = 0
    dp_size: int = 1
    tp_size: int = 1
    ep_size: int = 1
    tp_rank: int = 0
    ep_rank: int = 0
    tp_group: Any = None
    ep_group: Any = None
    moe_comm_type: MoECommType = MoECommType.UNDEFINED
    x_active_mask: Tensor | None = None
    moe_group_name: str | None = None
    expert_ids_per_ep_rank: Tensor | None = None
    router_n_groups: int = -1


def check_single_device(metadata: Any, name: str) -> None:
    """Raise NotImplementedError where experts are spread over devices."""
    size = getattr(metadata, "ep_size", 1)
    if size > 1:
        raise NotImplementedError(
            f"{name}: experts spread over devices (got ep_size {size}; allowed 1). Use one device."
        )
