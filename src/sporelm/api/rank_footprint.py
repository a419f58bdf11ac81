"""The part of a divided model that each rank holds: weights, KV heads, and the weights that several ranks have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sporelm.api.model_loader import ModelLoader, packed_sizes
from sporelm.api.parallel_options import ParallelOptions
from sporelm.api.rank_launch import check_supported
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine.capacity import page_bytes_by_part, state_bytes_by_part
from sporelm.errors import RequestError, UnsupportedModel
from sporelm.models import Encoder
from sporelm.models.blocks.block_memory import Paged
from sporelm.models.params import Param
from sporelm.models.sharding_plan import RankWeights, ShardingPlan
from sporelm.ops.canonical_pages import KV_TYPES


@dataclass(frozen=True)
class RankFootprint:
    """The part of a model that one rank holds.

    layers        the first one of its stage, and past the last
    sizes         the bytes of each of its weights after packing
    replicated    the weights that all ranks of its stage have whole
    kv_heads      the KV heads of its layers, and how many of the model's: each pair that occurs. Latent rows have none
    page_bytes    of one page across its layers
    state_bytes   of one sequence's recurrent state across its layers
    """

    rank: int
    stage: int
    layers: tuple[int, int]
    sizes: Mapping[Param, int]
    replicated: Sequence[Param]
    kv_heads: Sequence[tuple[int, int]]
    page_bytes: int
    state_bytes: int

    @cached_property
    def weight_bytes(self) -> int:
        return sum(self.sizes.values())

    @cached_property
    def replicated_bytes(self) -> dict[str, int]:
        """The bytes of replicated weights, the most first, by their names without the numbers of layers."""
        found: dict[str, int] = {}
        for param in self.replicated:
            first, number, *rest = [*param.name.split("."), ""]
            is_of_layer = first == "layers" and number.isdecimal()
            name = ".".join(rest[:-1]) if is_of_layer else param.name
            found[name] = found.get(name, 0) + self.sizes[param]
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def as_json(self, num_pages: int, num_states: int) -> dict[str, Any]:
        """Return the bytes of weights, and of caches with this number of pages and recurrent states."""
        return {
            "rank": self.rank,
            "stage": self.stage,
            "layers": list(self.layers),
            "weights": self.weight_bytes,
            "replicated": sum(self.replicated_bytes.values()),
            "replicated_weights": self.replicated_bytes,
            "kv_heads": [{"rank": local, "model": whole} for local, whole in self.kv_heads],
            "kv": num_pages * self.page_bytes,
            "states": num_states * self.state_bytes,
        }


def measure_rank(model: ModelLoader, plan: ShardingPlan, parallel: ParallelConfig, rank: int) -> RankFootprint:
    """Return what a rank holds of a model that is not loaded."""
    stage, tp_rank = parallel.stage(rank), parallel.tp_rank(rank)
    sizes = packed_sizes(model.formats, model.params, model.backend, RankWeights(plan, stage, tp_rank))
    whole = model.model.memory()
    local = plan.local_memory(whole, tp_rank)
    numbers = plan.stage_caches[stage]
    memory = [local[number] for number in numbers]
    pairs = [(local[number], whole[number]) for number in numbers]
    return RankFootprint(
        rank=rank,
        stage=stage,
        layers=parallel.layer_ranges(plan.num_layers)[stage],
        sizes=sizes,
        replicated=[param for param in sizes if param.name not in plan.weights] if parallel.tp > 1 else [],
        kv_heads=sorted({(own.kv_heads, every.kv_heads) for own, every in pairs if isinstance(own, Paged)}),
        page_bytes=sum(page_bytes_by_part(memory, model.backend, KV_TYPES[model.kv])),
        state_bytes=sum(state_bytes_by_part(memory, model.backend)),
    )


def check_experts(model: ModelLoader, parallel: ParallelConfig) -> None:
    """Raise RequestError if experts are to be divided that the model does not have."""
    if parallel.expert_parallel and not model.expert_bytes:
        raise RequestError(
            f"the option ep: {model.config.name} has no experts (got True; allowed False for it). Leave it out."
        )


def summarize_ranks(
    model: ModelLoader, parallel: ParallelOptions, num_pages: int, num_states: int, *, is_split: bool
) -> dict[str, Any] | None:
    """Return what each rank would hold of a model that is not loaded, or why it cannot be divided; None for one rank.

    num_pages, num_states   of the caches
    is_split                whether options split the model between a device and the CPU
    """
    if parallel.is_single:
        return None
    config = parallel.config
    found: dict[str, Any] = {"tp": config.tp, "pp": config.pp, "ep": config.expert_parallel}
    try:
        check_supported(parallel, is_encoder=isinstance(model.model, Encoder), is_split=is_split)
        check_experts(model, config)
        plan = model.plan_sharding(config)
        members = [measure_rank(model, plan, config, rank) for rank in range(config.size)]
    except (UnsupportedModel, RequestError) as reason:
        return found | {"runs": False, "reason": str(reason), "whole": model.nbytes, "members": []}
    return found | {
        "runs": True,
        "reason": None,
        "whole": model.nbytes,
        "members": [each.as_json(num_pages, num_states) for each in members],
    }
