"""Load a model step by step: memory requirements first, then weights, then a worker."""

from collections.abc import Mapping, Sequence
from typing import Any

from sporelm.backends.backend_parts import part_of_weight, parts_of
from sporelm.backends.protocol import Backend, Progress
from sporelm.checkpoints.loader import ModelSource, load_parameters, map_tensors, packed_format
from sporelm.distributed.parallel_config import ParallelConfig
from sporelm.engine import EngineConfig, LoadedModel, Worker
from sporelm.engine.capacity import page_bytes_by_part, state_bytes_by_part, step_bytes
from sporelm.errors import UnsupportedModel
from sporelm.models import Encoder, build
from sporelm.models.params import Param
from sporelm.models.sharded_model import RankPlace, ShardedModel
from sporelm.models.sharding_plan import RankWeights, ShardingPlan, plan_sharding
from sporelm.ops.canonical_pages import KV_TYPES
from sporelm.quant import F32 as F32_FORMAT
from sporelm.quant import QuantFormat
from sporelm.tensor.tensor import Tensor


class ModelLoader:
    """A model whose files are open and whose weights are not loaded yet.

    kv          data type of the KV cache; None: f32 for f32 weights, else f16
    dequantize  dequantize all weights to float32
    place       the rank whose part of the model is loaded; None: all of it

    Raises UnsupportedModel for a model that cannot be divided over the ranks.
    """

    def __init__(
        self, source: ModelSource, backend: Backend, kv: str | None, *, dequantize: bool, place: RankPlace | None = None
    ) -> None:
        self.source = source
        self.backend = backend
        self.dequantize = dequantize
        self.config = source.config
        self.model: Any = build(source.config)
        self.params = self.model.params()
        self.formats = packed_formats(source, self.params, dequantize=dequantize)
        self.rank_weights: RankWeights | None = None
        self._plan: ShardingPlan | None = None
        if place is not None:
            if isinstance(self.model, Encoder):
                raise UnsupportedModel(
                    f"{self.config.name} is an encoder: only decoders can be divided over several ranks"
                )
            self.model = ShardedModel(self.model, self.formats, place, backend)
            self.rank_weights = self.model.rank_weights
        self.kv = kv or ("f32" if dequantize or source.config.dtype == "F32" else "f16")
        sizes = packed_sizes(self.formats, self.params, backend, self.rank_weights)
        self.nbytes = sum(sizes.values())
        self.weight_bytes_by_part = [0] * len(parts_of(backend))
        for param, nbytes in sizes.items():
            self.weight_bytes_by_part[part_of_weight(backend, param.name)] += nbytes
        self.expert_bytes = sum(nbytes for param, nbytes in sizes.items() if param.is_experts)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page across all layers."""
        return sum(self.page_bytes_by_part)

    @property
    def page_bytes_by_part(self) -> list[int]:
        """Bytes of one page across the layers on each part of the back-end."""
        return page_bytes_by_part(self.model.memory(), self.backend, KV_TYPES[self.kv])

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's recurrent state across all layers; 0 for models without recurrent state."""
        return sum(self.state_bytes_by_part)

    @property
    def state_bytes_by_part(self) -> list[int]:
        """Bytes of one sequence's recurrent state across the layers on each part of the back-end."""
        return state_bytes_by_part(self.model.memory(), self.backend)

    def step_bytes(self, num_tokens: int) -> int:
        """Return an estimate of the bytes of activations in a step of `num_tokens` tokens."""
        return step_bytes(self.config, num_tokens)

    def plan_sharding(self, parallel: ParallelConfig) -> ShardingPlan:
        """Return how the model is divided over ranks, planned once. Raises UnsupportedModel, RequestError."""
        if self._plan is None or self._plan.parallel != parallel:
            self._plan = plan_sharding(self.model, self.params, self.formats, parallel)
        return self._plan

    def load_weights(self, max_context: int, threads: int, progress: Progress | None) -> dict[str, Tensor]:
        """Load the weights, and compute position tables for `max_context`. Raises ModelFileError, MemoryShortage."""
        weights = load_parameters(
            self.source,
            self.params,
            self.backend,
            progress,
            dequantize=self.dequantize,
            threads=threads,
            rank_weights=self.rank_weights,
        )
        tables = self.model.tables(max_context)
        if isinstance(self.model, Encoder):
            tables |= self.model.learned_tables(weights, max_context)
            learned = self.model.learned_weights(weights)
            weights |= {name: self.backend.pack(tensor) for name, tensor in learned.items()}
        return weights | {name: self.backend.tensor(table) for name, table in tables.items()}

    def load_decoder(self, max_context: int, threads: int, progress: Progress | None) -> LoadedModel:
        """Load a decoder. Raises like `load_weights`, and UnsupportedModel for an encoder."""
        if isinstance(self.model, Encoder):
            raise UnsupportedModel(f"{self.config.name} is an encoder: it cannot generate text")
        return LoadedModel(self.model, self.load_weights(max_context, threads, progress))

    def create_worker(
        self, loaded: LoadedModel, limits: EngineConfig, progress: Progress | None, *, eager: bool
    ) -> Worker:
        """Return a worker with compiled programs. Raises MemoryShortage."""
        worker = Worker(loaded, self.backend, limits=limits, kv=KV_TYPES[self.kv], eager=eager)
        try:
            worker.prepare(progress)
        except BaseException:
            worker.close()
            raise
        return worker


def packed_formats(source: ModelSource, params: Sequence[Param], *, dequantize: bool) -> dict[str, type[QuantFormat]]:
    """Return the number format in which each weight is packed, by name."""
    mapped = map_tensors(source, params).tensors
    return {each.param.name: F32_FORMAT if dequantize else packed_format(source, each) for each in mapped}


def packed_sizes(
    formats: Mapping[str, type[QuantFormat]],
    params: Sequence[Param],
    backend: Backend,
    rank_weights: RankWeights | None = None,
) -> dict[Param, int]:
    """Return the bytes of each weight after packing in these formats; of a rank's part of them."""
    sizes, parts = {}, parts_of(backend)
    for param in params:
        if rank_weights is None or rank_weights.has(param.name):
            shape = rank_weights.shape(param) if rank_weights else param.shape
            sizes[param] = parts[part_of_weight(backend, param.name)].packed_bytes(formats[param.name], shape)
    return sizes


def packed_bytes_per_param(
    source: ModelSource, params: Sequence[Param], backend: Backend, *, dequantize: bool
) -> dict[Param, int]:
    """Return the bytes of each weight of a source after packing."""
    return packed_sizes(packed_formats(source, params, dequantize=dequantize), params, backend)
